"""Platt scaling: a sigmoid of the score, tabulated."""

from __future__ import annotations

import math
import warnings
from collections.abc import Generator
from dataclasses import dataclass
from functools import partial
from numbers import Real
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from sklearn.exceptions import ConvergenceWarning

from calibrators._kernels import sigmoid as kernel
from calibrators.base import Calibrator
from calibrators.calibration_map import CalibrationMap
from calibrators.cumulative import Layout, bin_counts, counts_below_pass, layout_pass
from calibrators.points import Pass, Passes, Points
from calibrators.tabulate import tabulate_sigmoid

Array = npt.NDArray[np.float64]

_MAX_EVALUATIONS = 100
_LAST_STEP = 1e-5  # change of the sigmoid's argument below which one more Newton step is exact
_CLIP = 2.0**-53  # the distance of the largest double below 1 from 1


class Platt(Calibrator):
    """Platt scaling: p = 1 / (1 + exp(-(slope x + intercept))), x the score or its logit, by maximum likelihood.

    The labels are replaced by Platt's targets, (N+ + 1) / (N+ + 2) for a positive and 1 / (N- + 2) for a negative,
    N+ and N- the weights of the classes, so that the optimum is finite whatever the data. The map is the sigmoid
    made piecewise linear, and `predict` is that map. Monotone; constant when all scores or
    all labels are equal.

    Parameters
    ----------
    input : {'score', 'logit'}, default 'score'
        What the sigmoid is linear in: the score (a margin or a probability, any finite number), or log(s / (1 - s))
        of a score in [0, 1], clipped to [2**-53, 1 - 2**-53] (beta calibration's symmetric case: it contains the
        identity).
    max_error : float in [1e-12, 0.1], default 1e-9
        Largest difference between the map and the sigmoid. Rows grow as 1 / sqrt(max_error): about 30,000 by
        default.

    Attributes
    ----------
    slope_, intercept_ : float
        Of the sigmoid's argument in x.
    log_loss_ : float
        Log loss against the targets, summed over the weights, at the optimum.
    n_evaluations_ : int
        Passes over the points that the optimiser took.

    Raises
    ------
    ValueError
        For input='logit' and scores outside [0, 1].

    Warns
    -----
    sklearn.exceptions.ConvergenceWarning
        If 100 evaluations are not enough.

    Notes
    -----
    Newton's method with line search (Lin, Lin & Weng 2007), in coordinates centred so that the Hessian is
    diagonal; each evaluation is one pass, some 25 ns a point. Terms are rounded to a common unit and then added as
    whole numbers, so the optimum is the same to the last bit however the points were cut. Typically 8 evaluations
    besides the passes for the totals and for the rows' counts.

    References
    ----------
    Platt (1999), "Probabilistic outputs for support vector machines and comparisons to regularized likelihood
    methods". Lin, Lin & Weng (2007), "A note on Platt's probabilistic outputs for support vector machines",
    Machine Learning 68, doi:10.1007/s10994-007-5018-6.

    Examples
    --------
    >>> from calibrators.platt import Platt
    >>> Platt().fit([-2.0, -1.0, 0.5, 1.0], [0, 0, 1, 1]).predict([0.0]).round(3)
    array([0.579])
    """

    slope_: float
    intercept_: float
    log_loss_: float
    n_evaluations_: int

    def __init__(self, input: Literal["score", "logit"] = "score", max_error: float = 1e-9) -> None:  # noqa: A002
        self.input = input
        self.max_error = max_error

    def check_parameters(self) -> None:
        """Raise ValueError if `input` is unknown or `max_error` outside [1e-12, 0.1]."""
        if self.input not in ("score", "logit"):
            raise ValueError(f"input: expected 'score' or 'logit', found {self.input!r}")
        if not isinstance(self.max_error, Real) or not 1e-12 <= self.max_error <= 0.1:
            raise ValueError(f"max_error: expected a number in [1e-12, 0.1], found {self.max_error!r}")

    def _passes(self) -> Passes:
        layout = yield layout_pass()
        scale = _Scale.of(layout, self.input)
        fitted = yield from _minimise(layout, scale)
        self.slope_, self.intercept_ = fitted.sigmoid.slope_and_intercept()
        self.log_loss_, self.n_evaluations_ = fitted.loss, fitted.evaluations
        if fitted.sigmoid.a == 0.0:
            totals = np.array([layout.weight]), np.array([layout.positives])
            level = fitted.sigmoid.probability(np.array([layout.last]))
            return CalibrationMap.from_bins(np.empty(0), level, *totals)
        knots, levels = tabulate_sigmoid(fitted.sigmoid, float(self.max_error))
        counts = yield counts_below_pass(layout, knots)
        return CalibrationMap.from_knots(knots, levels, *bin_counts(layout, counts))


def logit(scores: Array) -> Array:
    """log(s / (1 - s)) of scores in [0, 1], clipped to [2**-53, 1 - 2**-53]."""
    s = np.clip(scores, _CLIP, 1.0 - _CLIP)
    return np.log(s) - np.log1p(-s)


@dataclass(frozen=True)
class _Scale:
    """The scores' range brought to [-1, 1]: x = (input - centre) / half."""

    input: str
    centre: float
    half: float

    @classmethod
    def of(cls, layout: Layout, kind: str) -> _Scale:
        first, last = float(layout.first[0]), layout.last
        if kind == "logit":
            if first < 0 or last > 1:
                raise ValueError(
                    f"scores: input='logit' expected numbers in [0, 1], found them from {first} to {last}: "
                    "use input='score' for margins"
                )
            first, last = logit(np.array([first, last]))
        centre = float(first / 2 + last / 2)
        return cls(kind, centre, float(max(last - centre, centre - first)))

    def x(self, scores: Array) -> Array:
        if self.half == 0.0:
            return np.zeros(scores.shape)
        values = logit(scores) if self.input == "logit" else scores
        with np.errstate(over="ignore"):
            return (values - self.centre) / self.half


@dataclass(frozen=True)
class Sigmoid:
    """p = 1 / (1 + exp(-(a (x - shift) + b))), x the scaled score."""

    scale: _Scale
    a: float
    b: float
    shift: float

    def argument(self, scores: Array) -> Array:
        """The sigmoid's argument, a (x - shift) + b."""
        with np.errstate(over="ignore"):
            return self.a * (self.scale.x(scores) - self.shift) + self.b

    def probability(self, scores: Array) -> Array:
        """The sigmoid itself, shape as the scores."""
        return expit(self.argument(scores))

    def score(self, argument: Array) -> Array:
        """The inverse of `argument`, within the scores that there are."""
        value = self._value(argument)
        if self.scale.input == "logit":
            return np.clip(expit(value), *self.domain())
        return np.clip(value, *self.domain())

    def domain(self) -> tuple[float, float]:
        """The lowest and highest score that the sigmoid is defined for."""
        if self.scale.input == "logit":
            return _CLIP, 1.0 - _CLIP
        return -1e308, 1e308

    def relative_curvature(self, argument: Array) -> Array:
        """Second derivative of p by the score over p (1 - p) (d argument / d score)**2."""
        curvature = -np.tanh(argument / 2)
        if self.scale.input == "logit":
            curvature = curvature + np.tanh(self._value(argument) / 2) * self.scale.half / self.a
        return curvature

    def _value(self, argument: Array) -> Array:
        """The score, or its logit, at an argument."""
        with np.errstate(over="ignore"):
            return self.scale.centre + self.scale.half * (self.shift + (argument - self.b) / self.a)

    def slope_and_intercept(self) -> tuple[float, float]:
        """Of the argument, in the input's own units."""
        if self.a == 0.0:
            return 0.0, self.b
        with np.errstate(over="ignore"):
            slope, centre = np.divide([self.a, self.scale.centre], self.scale.half)
        return float(slope), float(self.b - self.a * (centre + self.shift))


def expit(z: Array) -> Array:
    """1 / (1 + exp(-z)) without overflow."""
    e = np.exp(-np.abs(z))
    return np.where(z >= 0, 1.0, e) / (1.0 + e)


class _Evaluation(NamedTuple):
    loss: float
    by_a: float
    by_b: float
    by_aa: float
    by_ab: float
    by_bb: float


class _Fitted(NamedTuple):
    sigmoid: Sigmoid
    loss: float
    evaluations: int


_Search = Generator[Pass, Any, Any]


def _sums_in_part(
    sigmoid: Sigmoid, one: tuple[float, float], zero: tuple[float, float], unit: float, points: Points
) -> npt.NDArray[np.int64]:
    x = sigmoid.scale.x(points.score) - sigmoid.shift
    return kernel.loss_and_derivatives(
        x, points.weight, points.positives, one, zero, sigmoid.a, sigmoid.b, unit
    )


def _total(unit: float, parts: list[npt.NDArray[np.int64]]) -> _Evaluation:
    values = []
    for j in range(kernel.SUMS):
        whole = sum((int(part[j, 0]) << kernel.LOW_BITS) + int(part[j, 1]) for part in parts)
        values.append(math.ldexp(float(whole), -kernel.LOW_BITS) / unit)
    return _Evaluation(*values)


def _evaluation_pass(layout: Layout, sigmoid: Sigmoid) -> Pass:
    n1, n0 = layout.positives, max(layout.weight - layout.positives, 0.0)
    one = ((n1 + 1.0) / (n1 + 2.0), 1.0 / (n1 + 2.0))
    zero = (1.0 / (n0 + 2.0), (n0 + 1.0) / (n0 + 2.0))
    # No term exceeds its weight times this; x - shift lies in [-2, 2].
    largest = layout.weight * (2.0 * abs(sigmoid.a) + abs(sigmoid.b) + 4.0)
    unit = 2.0 ** min(60 - math.frexp(largest)[1], 1000)
    return Pass(chunk=partial(_sums_in_part, sigmoid, one, zero, unit), combine=partial(_total, unit))


def _minimise(layout: Layout, scale: _Scale) -> Generator[Pass, Any, _Fitted]:
    n1, n0 = layout.positives, max(layout.weight - layout.positives, 0.0)
    sigmoid = Sigmoid(scale, a=0.0, b=math.log((n1 + 1.0) / (n0 + 1.0)), shift=0.0)
    now = yield _evaluation_pass(layout, sigmoid)
    # Of one class or at one score, the optimum is the constant that the intercept starts from or moves to.
    flat = scale.half == 0.0 or n0 == 0.0 or n1 == 0.0
    if not flat:
        # Once more from the centre of the weights, where the Hessian is diagonal and loses no digits.
        sigmoid = _recentred(sigmoid, now)[0]
        now = yield _evaluation_pass(layout, sigmoid)
    evaluations, last = 1 if flat else 2, False
    while evaluations < _MAX_EVALUATIONS:
        sigmoid, now = _recentred(sigmoid, now)
        da = -now.by_a / now.by_aa if not flat and now.by_aa > 0.0 else 0.0
        db = -now.by_b / now.by_bb if now.by_bb > 0.0 else 0.0
        if last:
            return _Fitted(_moved(sigmoid, da, db, 1.0), now.loss, evaluations)
        last = 2 * abs(da) + abs(db) < _LAST_STEP
        decrease = da * now.by_a + db * now.by_b
        step = 1.0
        while True:
            tried = _moved(sigmoid, da, db, step)
            then = yield _evaluation_pass(layout, tried)
            evaluations += 1
            if last or then.loss < now.loss + 1e-4 * step * decrease or evaluations >= _MAX_EVALUATIONS:
                break
            step /= 2
        sigmoid, now = tried, then
    warnings.warn(
        f"Platt: no optimum after {evaluations} evaluations; the sigmoid is the last one tried",
        ConvergenceWarning,
        stacklevel=2,
    )
    return _Fitted(sigmoid, now.loss, evaluations)


def _moved(sigmoid: Sigmoid, da: float, db: float, step: float) -> Sigmoid:
    return Sigmoid(sigmoid.scale, sigmoid.a + step * da, sigmoid.b + step * db, sigmoid.shift)


def _recentred(sigmoid: Sigmoid, at: _Evaluation) -> tuple[Sigmoid, _Evaluation]:
    """The same sigmoid and its derivatives, written around the mean of x under the Hessian's weights."""
    if not at.by_bb > 0.0:
        return sigmoid, at
    shift = min(max(sigmoid.shift + at.by_ab / at.by_bb, -1.0), 1.0)
    by = shift - sigmoid.shift
    moved = Sigmoid(sigmoid.scale, sigmoid.a, sigmoid.b + sigmoid.a * by, shift)
    by_aa = max(at.by_aa - 2 * by * at.by_ab + by * by * at.by_bb, 0.0)
    return moved, at._replace(by_a=at.by_a - by * at.by_b, by_aa=by_aa, by_ab=at.by_ab - by * at.by_bb)
