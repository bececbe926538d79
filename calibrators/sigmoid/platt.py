"""Platt scaling: a sigmoid of the score, tabulated."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Generator
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np

from calibrators.base import Calibrator, Line, Needs
from calibrators.core.cumulative import Layout, layout_pass
from calibrators.core.map import CalibrationMap
from calibrators.core.passes import Pass, Passes, check_choice
from calibrators.core.tabulate import check_max_error, most_knots, tabulate
from calibrators.sigmoid.loss import (
    FEWEST_POINTS,
    LossEvaluation,
    Scale,
    Sigmoid,
    binned_pass,
    evaluation_pass,
    solved,
    stand_for_all,
)

_MAX_EVALUATIONS = 100
_FARTHEST = 1e6  # |shift| + |slope * score| beyond which a line is less exact than a table
_LAST_STEP = 1e-5  # change of the sigmoid's argument below which one more Newton step is exact
_ROUNDING = 2.0**-51  # relative decrease of a loss that is lost in rounding
_STEEP = 1024.0  # slope beyond which only arguments near 0 matter: they change by a share of its change


class Platt(Calibrator):
    """Platt scaling: p = 1 / (1 + exp(-(slope x + intercept))), x the score or its logit, by maximum likelihood.

    The labels are replaced by Platt's targets, (N+ + 1) / (N+ + 2) for a positive and 1 / (N- + 2) for a negative,
    N+ and N- the weights of the classes, so that the optimum is finite for all data. The map is a piecewise linear
    approximation of the sigmoid, and `predict` applies this map. Monotone; constant if all scores or all labels are
    equal.

    Best if the truth is a sigmoid and there are 20 to 600 positives; in simulations its excess loss is up to 1,900
    times the best method's for other truths (docs/methods.md).

    Parameters
    ----------
    input : {'score', 'logit'}, default 'score'
        Variable x of the sigmoid: the score (a margin or a probability, any finite number), or log(s / (1 - s)) of a
        score in [0, 1], clipped to [2**-53, 1 - 2**-53] (the symmetric case of beta calibration, which contains the
        identity).
    max_error : float in [1e-12, 0.1], default 1e-9
        Largest difference between the map and the sigmoid; relative to p and to 1 - p it is at most 1e5 times as large,
        down to p = 3e-20. The number of rows grows as 1 / sqrt(max_error): about 30,000 by default.

    Attributes
    ----------
    slope_, intercept_ : float
        Coefficients of the sigmoid's argument.
    log_loss_ : float
        Log loss against the targets, summed over the weights, at the optimum.
    n_evaluations_ : int
        Number of passes over the points by the optimiser; 0 if bins stand for the points.

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
    diagonal; each evaluation is one pass, some 14 ns per point. Terms are rounded to a common unit and then added as
    whole numbers, so the optimum is the same to the last bit for any division into parts. Typically 8 evaluations,
    besides the passes for the totals and for the rows' counts. From 2**17 points on, one pass gathers moments of the
    points in narrow bins; their optimum is that of the points to some 13 digits, or the start for two or three
    evaluations if the sigmoid is steep.

    References
    ----------
    Platt (1999), "Probabilistic outputs for support vector machines and comparisons to regularized likelihood
    methods". Lin, Lin & Weng (2007), "A note on Platt's probabilistic outputs for support vector machines",
    Machine Learning 68, doi:10.1007/s10994-007-5018-6.

    Examples
    --------
    >>> from calibrators.sigmoid.platt import Platt
    >>> Platt().fit([-2.0, -1.0, 0.5, 1.0], [0, 0, 1, 1]).predict([0.0]).round(3)
    array([0.579])
    """

    needs = Needs(resampling=False)

    slope_: float
    intercept_: float
    log_loss_: float
    n_evaluations_: int
    _lines: str | None = None

    def __init__(self, input: Literal["score", "logit"] = "score", max_error: float = 1e-9) -> None:  # noqa: A002
        self.input = input
        self.max_error = max_error

    def facts(self) -> dict[str, Any]:
        """Return the sigmoid's parameters; None for one that overflows because the scores are too close."""
        parameters = {"slope": float(self.slope_), "intercept": float(self.intercept_)}
        return {name: number if math.isfinite(number) else None for name, number in parameters.items()}

    def check_parameters(self) -> None:
        """Raise ValueError if `input` is unknown or `max_error` outside [1e-12, 0.1]."""
        check_choice("input", self.input, "score", "logit")
        check_max_error(self.max_error)

    def gathers(self, points: int, parts: int, *, weighted: bool = False) -> float:
        """See `Calibrator.gathers`: sums, and the counts at the knots of the map."""
        return super().gathers(most_knots(float(self.max_error)), parts)

    def _passes(self) -> Passes:
        layout = yield layout_pass()
        scale = Scale.of(layout, self.input)
        fitted = yield from _minimise(layout, scale)
        fitted = fitted._replace(
            sigmoid=replace(fitted.sigmoid, b=fitted.sigmoid.b + math.log(self.sampling_.rate))
        )
        self.slope_, self.intercept_ = fitted.sigmoid.slope_and_intercept()
        self.log_loss_, self.n_evaluations_ = fitted.loss, fitted.evaluations
        self.line_ = self._line(fitted.sigmoid, layout)
        if fitted.sigmoid.a == 0.0 or self.line_ is not None:
            totals = np.array([layout.weight]), np.array([layout.positives])
            level = fitted.sigmoid.probability(np.array([layout.last]))
            return CalibrationMap.from_bins(np.empty(0), level, *totals)
        return (yield from tabulate(layout, fitted.sigmoid, float(self.max_error)))

    def in_lines(self, *, falling: bool) -> Calibrator:
        """See `Calibrator.in_lines`: a line is two numbers instead of some 30,000 rows."""
        calibrator = copy.copy(self)
        calibrator._lines = "any" if falling else "rising"
        return calibrator

    def _line(self, sigmoid: Sigmoid, layout: Layout) -> Line | None:
        """Return the line if `in_lines` requested it and it is as exact as a table."""
        if self._lines is None or (sigmoid.a < 0.0 and self._lines == "rising"):
            return None
        farthest = max(abs(layout.first[0]), abs(layout.last)) if self.input == "score" else 40.0
        if abs(self.intercept_) + abs(self.slope_) * farthest > _FARTHEST:
            return None
        return Line(1 if self.input == "score" else 2, float(self.intercept_), float(self.slope_))


class _Fitted(NamedTuple):
    sigmoid: Sigmoid
    loss: float
    evaluations: int


def _minimise(layout: Layout, scale: Scale) -> Generator[Pass, Any, _Fitted]:
    if scale.half == 0.0 or layout.n_points < FEWEST_POINTS:
        return (yield from _from_constant(layout, scale))
    nodes = yield binned_pass(layout, scale)
    fitted = solved(_from_constant(layout, Scale("score", 0.0, 1.0)), nodes)
    start = replace(fitted.sigmoid, scale=scale)
    if fitted.evaluations < _MAX_EVALUATIONS and stand_for_all(nodes, layout, abs(start.a)):
        return _Fitted(start, fitted.loss, 0)
    current = yield evaluation_pass(layout, start)
    return (yield from _descend(layout, start, current, 1))


def _from_constant(layout: Layout, scale: Scale) -> Generator[Pass, Any, _Fitted]:
    n1, n0 = layout.positives, max(layout.weight - layout.positives, 0.0)
    sigmoid = Sigmoid(scale, a=0.0, b=math.log((n1 + 1.0) / (n0 + 1.0)), shift=0.0)
    current = yield evaluation_pass(layout, sigmoid)
    # With one class or one score, the optimum is a constant.
    if scale.half == 0.0 or n0 == 0.0 or n1 == 0.0:
        return (yield from _descend(layout, sigmoid, current, 1, flat=True))
    # Evaluate again around the weighted mean, where the Hessian is diagonal and loses no digits.
    sigmoid = _recentred(sigmoid, current)[0]
    current = yield evaluation_pass(layout, sigmoid)
    return (yield from _descend(layout, sigmoid, current, 2))


def _descend(
    layout: Layout, sigmoid: Sigmoid, current: LossEvaluation, evaluations: int, flat: bool = False
) -> Generator[Pass, Any, _Fitted]:
    last = False
    while evaluations < _MAX_EVALUATIONS:
        sigmoid, current = _recentred(sigmoid, current)
        da, db = _step(current)
        if flat:
            da = 0.0
        if last:
            return _Fitted(_moved(sigmoid, da, db, 1.0), current.loss, evaluations)
        last = _change(sigmoid, da, db) < _LAST_STEP
        decrease = da * current.by_a + db * current.by_b
        undetectable = -decrease < _ROUNDING * current.loss  # too small for a line search
        step = 1.0
        while True:
            candidate = _moved(sigmoid, da, db, step)
            new = yield evaluation_pass(layout, candidate)
            evaluations += 1
            if last or undetectable or new.loss < current.loss + 1e-4 * step * decrease:
                break
            if evaluations >= _MAX_EVALUATIONS:
                break
            step /= 2
        sigmoid, current = candidate, new
    from sklearn.exceptions import ConvergenceWarning

    warnings.warn(
        f"Platt: no optimum after {evaluations} evaluations; the sigmoid is the last one tried",
        ConvergenceWarning,
        stacklevel=2,
    )
    return _Fitted(sigmoid, current.loss, evaluations)


def _change(sigmoid: Sigmoid, da: float, db: float) -> float:
    """Bound the change of the sigmoid's argument by a step; for a steep sigmoid only of arguments within `_STEEP`.

    One score far beyond all others makes the sigmoid steep on the scale of -1 to 1. At the far end its argument is then
    in the millions, where a change has no effect and cannot be computed accurately.
    """
    return 2 * abs(da) / max(1.0, abs(sigmoid.a) / _STEEP) + abs(db)


def _step(evaluation: LossEvaluation) -> tuple[float, float]:
    """Compute the Newton step for a diagonal Hessian."""
    da = -evaluation.by_a / evaluation.by_aa if evaluation.by_aa > 0.0 else 0.0
    db = -evaluation.by_b / evaluation.by_bb if evaluation.by_bb > 0.0 else 0.0
    return da, db


def _moved(sigmoid: Sigmoid, da: float, db: float, step: float) -> Sigmoid:
    return Sigmoid(sigmoid.scale, sigmoid.a + step * da, sigmoid.b + step * db, sigmoid.shift)


def _recentred(sigmoid: Sigmoid, evaluation: LossEvaluation) -> tuple[Sigmoid, LossEvaluation]:
    """Shift the coordinates of a sigmoid and its derivatives to the mean of x under the Hessian's weights."""
    if not evaluation.by_bb > 0.0:
        return sigmoid, evaluation
    shift = min(max(sigmoid.shift + evaluation.by_ab / evaluation.by_bb, -1.0), 1.0)
    change = shift - sigmoid.shift
    recentred = Sigmoid(sigmoid.scale, sigmoid.a, sigmoid.b + sigmoid.a * change, shift)
    by_aa = max(evaluation.by_aa - 2 * change * evaluation.by_ab + change * change * evaluation.by_bb, 0.0)
    return recentred, evaluation._replace(
        by_a=evaluation.by_a - change * evaluation.by_b,
        by_aa=by_aa,
        by_ab=evaluation.by_ab - change * evaluation.by_bb,
    )
