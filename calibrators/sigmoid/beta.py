"""Beta calibration: three parameters, for scores in [0, 1]."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from calibrators.base import Calibrator, Needs
from calibrators.core.arrays import Array, Integers, Mask
from calibrators.core.cumulative import Layout, layout_pass
from calibrators.core.kernels import likelihood as kernel
from calibrators.core.map import CalibrationMap
from calibrators.core.passes import Pass, Passes, Points, blocks_of
from calibrators.core.tabulate import check_max_error, most_knots, tabulate
from calibrators.sigmoid.loss import (
    FEWEST_POINTS,
    Scale,
    binned_pass,
    expit,
    solved,
    stand_for_all,
    whole_totals,
)

_CLIP = 2.0**-53
_LOGS = -math.log(_CLIP)
_RIDGE = 1.0 / 99_999_999_999
"""Ridge of the authors' code, which keeps the optimum finite if scores separate the labels."""

_MAX_EVALUATIONS = 200
_CLOSE = 1e-13  # share of the loss: the optimiser stops when a step's expected decrease is smaller


class Beta(Calibrator):
    """Beta calibration: p = 1 / (1 + exp(-(a log s - b log(1 - s) + c))), by maximum likelihood with a, b >= 0.

    It is exact for scores that have a beta distribution within each label. It contains the identity (a = b = 1, c = 0),
    unlike a sigmoid of the score. If a or b would be negative, it is set to 0 and the other parameters are fitted
    again. The map is a piecewise linear approximation of this function. Monotone. Scores are clipped to
    [2**-53, 1 - 2**-53].

    Best where log-odds are near a line in log s and log(1 - s), up to 200,000 observations with 1 % positives; in
    simulations up to 1,300 times the excess loss of the best method elsewhere (docs/methods.md).

    Parameters
    ----------
    max_error : float in [1e-12, 0.1], default 1e-9
        As for `Platt`.

    Attributes
    ----------
    a_, b_, c_ : float
        The parameters.
    n_evaluations_ : int
        Number of passes over the points by the optimiser; 0 if bins stand for the points.

    Raises
    ------
    ValueError
        For scores outside [0, 1].

    Warns
    -----
    sklearn.exceptions.ConvergenceWarning
        If 200 evaluations are not enough.

    Notes
    -----
    Newton's method with step halving; each evaluation is one pass. Terms are rounded to a common unit and then added as
    whole numbers, so the optimum is the same to the last bit for any division into parts. From 2**17 points on it
    uses moments of the points in narrow bins, as `Platt` does.

    References
    ----------
    Kull, Silva Filho & Flach (2017), "Beyond sigmoids: how to obtain well-calibrated probabilities from binary
    classifiers with beta calibration", Electronic Journal of Statistics 11, 5052-5080, doi:10.1214/17-EJS1338SI.

    Examples
    --------
    >>> import numpy as np
    >>> from calibrators.sigmoid.beta import Beta
    >>> scores = np.repeat([0.1, 0.5, 0.9], 100)
    >>> labels = np.arange(300) % 100 < np.repeat([20, 50, 80], 100)
    >>> Beta().fit(scores, labels).predict([0.1, 0.5, 0.9]).round(3)
    array([0.2, 0.5, 0.8])
    """

    needs = Needs(resampling=False)

    a_: float
    b_: float
    c_: float
    n_evaluations_: int

    def __init__(self, max_error: float = 1e-9) -> None:
        self.max_error = max_error

    def facts(self) -> dict[str, Any]:
        """Return the parameters of the map."""
        return {"a": self.a_, "b": self.b_, "c": self.c_}

    def check_parameters(self) -> None:
        """Raise ValueError if `max_error` is outside [1e-12, 0.1]."""
        check_max_error(self.max_error)

    def gathers(self, points: int, parts: int, *, weighted: bool = False) -> float:
        """See `Calibrator.gathers`: sums, and the counts at the knots of the map."""
        return super().gathers(most_knots(float(self.max_error)), parts)

    def _passes(self) -> Passes:
        layout: Layout = yield layout_pass()
        layout.check_probabilities("Beta")
        fitted, self.n_evaluations_ = yield from _fit(layout)
        fitted = replace(fitted, c=fitted.c + math.log(self.sampling_.rate))
        self.a_, self.b_, self.c_ = fitted.a, fitted.b, fitted.c
        if fitted.a == 0.0 and fitted.b == 0.0:
            totals = np.array([layout.weight]), np.array([layout.positives])
            return CalibrationMap.from_bins(np.empty(0), expit(np.array([fitted.c])), *totals)
        return (yield from tabulate(layout, fitted, float(self.max_error)))


@dataclass(frozen=True)
class BetaMap:
    """p = sigmoid(a log s - b log(1 - s) + c), a and b >= 0."""

    a: float
    b: float
    c: float

    def argument(self, scores: Array) -> Array:
        """Compute the sigmoid's argument."""
        u, v = _logs(scores)
        return self.a * u + self.b * v + self.c

    def probability(self, scores: Array) -> Array:
        """Compute the probability."""
        return expit(self.argument(scores))

    def score(self, argument: Array) -> Array:
        """Invert `argument`, by bisection of the scores' logits."""
        low, high = np.full(argument.shape, -_LOGS), np.full(argument.shape, _LOGS)
        for _ in range(64):
            middle = (low + high) / 2
            u, v = _logs_of_logits(middle)
            value = self.a * u + self.b * v + self.c
            below = value < argument
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        return np.clip(expit((low + high) / 2), *self.domain())

    def relative_curvature(self, argument: Array) -> Array:
        """Compute the second derivative of p by the score over p (1 - p) (d argument / d score)**2."""
        s = self.score(argument)
        first = self.a / s + self.b / (1.0 - s)
        second = -self.a / s**2 + self.b / (1.0 - s) ** 2
        return np.asarray(second / first**2 - np.tanh(argument / 2))

    def domain(self) -> tuple[float, float]:
        """Return the lowest and the highest score."""
        return _CLIP, 1.0 - _CLIP


def _logs(scores: Array) -> tuple[Array, Array]:
    s = np.clip(scores, _CLIP, 1.0 - _CLIP)
    return np.log(s), -np.log1p(-s)


def _logs_of_logits(logits: Array) -> tuple[Array, Array]:
    """Compute log s and -log(1 - s) of s = expit(logits), without cancellation."""
    soft = np.log1p(np.exp(-np.abs(logits)))
    return np.minimum(logits, 0.0) - soft, np.maximum(logits, 0.0) + soft


_Terms = Callable[[Array], tuple[Array, Array]]
"""Function that returns log s and -log(1 - s) of the points' score column."""


class _Evaluation(NamedTuple):
    loss: float
    gradient: Array
    hessian: Array


def _evaluation_pass(layout: Layout, abc: Array, terms: _Terms) -> Pass:
    largest = layout.weight * max(_LOGS * (abs(abc[0]) + abs(abc[1])) + abs(abc[2]) + 2.0, _LOGS**2)
    unit = 2.0 ** min(60 - math.frexp(largest)[1], 1000)
    return Pass(partial(_sums, abc, unit, terms), partial(_evaluation, abc, unit))


def _sums(abc: Array, unit: float, terms: _Terms, points: Points) -> Integers:
    sums = np.zeros((10, 2), np.int64)
    for score, weight, positives in blocks_of(points):
        of_points = np.stack(terms(score))
        sums += kernel.loss_and_derivatives(of_points, positives, weight - positives, abc, unit, unit)
    return sums


def _evaluation(abc: Array, unit: float, parts: list[Integers]) -> _Evaluation:
    values = whole_totals(unit, parts)
    ridge = np.array([_RIDGE, _RIDGE, 0.0])
    aa, ab, ac, bb, bc, cc = values[4:]
    hessian = np.array([[aa, ab, ac], [ab, bb, bc], [ac, bc, cc]]) + np.diag(ridge)
    return _Evaluation(values[0] + float(ridge @ abc**2) / 2, np.array(values[1:4]) + ridge * abc, hessian)


def _fit(layout: Layout) -> Generator[Pass, Any, tuple[BetaMap, int]]:
    n1, n0 = layout.positives, max(layout.weight - layout.positives, 0.0)
    base = math.log((n1 + 1.0) / (n0 + 1.0))
    if layout.first[0] == layout.last or n0 == 0.0 or n1 == 0.0:
        return BetaMap(0.0, 0.0, base if n0 == 0.0 or n1 == 0.0 else math.log(n1 / n0)), 0
    if layout.n_points < FEWEST_POINTS:
        abc, evaluations = yield from _constrained(layout, np.array([0.0, 0.0, base]))
    else:
        scale = Scale.of(layout, "logit")
        nodes = yield binned_pass(layout, scale)
        nodes = nodes._replace(score=scale.centre + scale.half * nodes.score)
        start = np.array([0.0, 0.0, base])
        for _ in range(2):  # the second time for one more Newton step
            start, evaluations = solved(_constrained(layout, start, _logs_of_logits), nodes)
        # The argument's derivative by the logit is a (1 - s) + b s; the logarithms' own is at most 1.
        slope = max(1.0, start[0] * (1.0 - layout.first[0]) + start[1] * layout.last)
        if evaluations < _MAX_EVALUATIONS and stand_for_all(nodes, layout, scale.half * slope):
            return BetaMap(*start.tolist()), 0
        abc, evaluations = yield from _constrained(layout, start)
    return BetaMap(*abc.tolist()), evaluations


def _constrained(
    layout: Layout, start: Array, terms: _Terms = _logs
) -> Generator[Pass, Any, tuple[Array, int]]:
    """Find the optimum with a, b >= 0; return it and the number of evaluations."""
    free = np.array([True, True, True])
    evaluations = 0
    while True:
        abc, count = yield from _newton(layout, np.where(free, start, 0.0), free, terms)
        evaluations += count
        negative = free & (abc < 0) & np.array([True, True, False])
        if not negative.any():
            return abc, evaluations
        # Fix the more negative parameter first, as the authors' code does.
        free[int(np.argmin(np.where(negative, abc, np.inf)))] = False


def _newton(layout: Layout, abc: Array, free: Mask, terms: _Terms) -> Generator[Pass, Any, tuple[Array, int]]:
    current: _Evaluation = yield _evaluation_pass(layout, abc, terms)
    evaluations = 1
    while evaluations < _MAX_EVALUATIONS:
        step = np.zeros(3)
        hessian = current.hessian[np.ix_(free, free)]
        step[free] = -np.linalg.lstsq(hessian, current.gradient[free], rcond=1e-13)[0]
        decrease, scale = float(step @ current.gradient), 1.0
        # Stop when the expected decrease is below the rounding of the sums, but not before a first step: from the
        # optimum of the bins this step is exact.
        if evaluations > 1 and not decrease < -_CLOSE * (1.0 + current.loss):
            return abc, evaluations
        while True:
            candidate = abc + scale * step
            new: _Evaluation = yield _evaluation_pass(layout, candidate, terms)
            evaluations += 1
            if new.loss <= current.loss + 1e-4 * scale * decrease or evaluations >= _MAX_EVALUATIONS:
                break
            scale /= 2
            if scale < 1e-12:
                return abc, evaluations
        abc, current = candidate, new
    from sklearn.exceptions import ConvergenceWarning

    warnings.warn(
        f"Beta: no optimum after {evaluations} evaluations; the map is the last one tried",
        ConvergenceWarning,
        stacklevel=2,
    )
    return abc, evaluations
