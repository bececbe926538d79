"""Platt scaling: a sigmoid of the score, tabulated."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Generator
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from calibrators.arithmetic.calibration_map import CalibrationMap
from calibrators.arithmetic.cumulative import Layout, layout_pass
from calibrators.arithmetic.passes import Pass, Passes, check_choice
from calibrators.arithmetic.tabulate import check_max_error, most_knots, tabulated
from calibrators.methods.base import Calibrator, Line
from calibrators.methods.sigmoid import (
    FEWEST_POINTS,
    Evaluation,
    Scale,
    Sigmoid,
    binned_pass,
    evaluation_pass,
    solved,
)

Array = npt.NDArray[np.float64]

_MAX_EVALUATIONS = 100
_FARTHEST = 1e6  # of shift and slope * score, beyond which their sum is less exact than a table
_LAST_STEP = 1e-5  # change of the sigmoid's argument below which one more Newton step is exact
_ONLY_STEP = 3e-7  # and below which this one is, to 1e-13
_UNSEEN = 2.0**-51  # of a loss, a decrease that rounding hides
_STEEP = 1024.0  # of arguments beyond, only those near 0 matter: their change is a share of the slope's


class Platt(Calibrator):
    """Platt scaling: p = 1 / (1 + exp(-(slope x + intercept))), x the score or its logit, by maximum likelihood.

    The labels are replaced by Platt's targets, (N+ + 1) / (N+ + 2) for a positive and 1 / (N- + 2) for a negative,
    N+ and N- the weights of the classes, so that the optimum is finite whatever the data. The map is the sigmoid
    made piecewise linear, and `predict` is that map. Monotone; constant when all scores or
    all labels are equal.

    Best where the truth is a sigmoid, told by 20 to 600 positives; in simulations up to 1,900 times the excess loss of
    the best method elsewhere (docs/methods.md).

    Parameters
    ----------
    input : {'score', 'logit'}, default 'score'
        What the sigmoid is linear in: the score (a margin or a probability, any finite number), or log(s / (1 - s))
        of a score in [0, 1], clipped to [2**-53, 1 - 2**-53] (beta calibration's symmetric case: it contains the
        identity).
    max_error : float in [1e-12, 0.1], default 1e-9
        Largest difference between the map and the sigmoid; relative to p and to 1 - p it is at most 1e5 times as much,
        down to p of 3e-20. Rows grow as 1 / sqrt(max_error): about 30,000 by default.

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
    diagonal; each evaluation is one pass, some 14 ns a point. Terms are rounded to a common unit and then added as
    whole numbers, so the optimum is the same to the last bit however the points were cut. Typically 8 evaluations
    besides the passes for the totals and for the rows' counts; from 2**17 points on one or two, and a pass that
    gathers the points in narrow bins, whose optimum is where the others begin.

    References
    ----------
    Platt (1999), "Probabilistic outputs for support vector machines and comparisons to regularized likelihood
    methods". Lin, Lin & Weng (2007), "A note on Platt's probabilistic outputs for support vector machines",
    Machine Learning 68, doi:10.1007/s10994-007-5018-6.

    Examples
    --------
    >>> from calibrators.methods.platt import Platt
    >>> Platt().fit([-2.0, -1.0, 0.5, 1.0], [0, 0, 1, 1]).predict([0.0]).round(3)
    array([0.579])
    """

    fits_all_rows = True

    slope_: float
    intercept_: float
    log_loss_: float
    n_evaluations_: int
    _lines: str | None = None

    def __init__(self, input: Literal["score", "logit"] = "score", max_error: float = 1e-9) -> None:  # noqa: A002
        self.input = input
        self.max_error = max_error

    def facts(self) -> dict[str, Any]:
        """The sigmoid's parameters; None where scores are so close that a parameter is beyond the largest double."""
        found = {"slope": float(self.slope_), "intercept": float(self.intercept_)}
        return {name: number if math.isfinite(number) else None for name, number in found.items()}

    def check_parameters(self) -> None:
        """Raise ValueError if `input` is unknown or `max_error` outside [1e-12, 0.1]."""
        check_choice("input", self.input, "score", "logit")
        check_max_error(self.max_error)

    def gathers(self, points: int, parts: int, *, weighted: bool = False) -> float:
        """See `Calibrator.gathers`: sums, and the counts at the knots of its table."""
        return super().gathers(most_knots(float(self.max_error)), parts)

    def _passes(self) -> Passes:
        layout = yield layout_pass()
        scale = Scale.of(layout, self.input)
        fitted = yield from _minimise(layout, scale)
        fitted = fitted._replace(
            sigmoid=replace(fitted.sigmoid, b=fitted.sigmoid.b + math.log(self.sampling_rate))
        )
        self.slope_, self.intercept_ = fitted.sigmoid.slope_and_intercept()
        self.log_loss_, self.n_evaluations_ = fitted.loss, fitted.evaluations
        self.line_ = self._line(fitted.sigmoid, layout)
        if fitted.sigmoid.a == 0.0 or self.line_ is not None:
            totals = np.array([layout.weight]), np.array([layout.positives])
            level = fitted.sigmoid.probability(np.array([layout.last]))
            return CalibrationMap.from_bins(np.empty(0), level, *totals)
        return (yield from tabulated(layout, fitted.sigmoid, float(self.max_error)))

    def in_lines(self, *, falling: bool) -> Calibrator:
        """See `Calibrator.in_lines`: two numbers instead of some 30,000 rows."""
        made = copy.copy(self)
        made._lines = "any" if falling else "rising"
        return made

    def _line(self, sigmoid: Sigmoid, layout: Layout) -> Line | None:
        """The line, where it was asked for, and says as much as the table would."""
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
    points = yield binned_pass(layout, scale)
    start = solved(_from_constant(layout, scale), points).sigmoid
    now = yield evaluation_pass(layout, start)
    sigmoid, now = _recentred(start, now)
    da, db = _step(now)
    if _change(sigmoid, da, db) < _ONLY_STEP:
        return _Fitted(_moved(sigmoid, da, db, 1.0), now.loss, 1)
    return (yield from _descend(layout, sigmoid, now, 1))


def _from_constant(layout: Layout, scale: Scale) -> Generator[Pass, Any, _Fitted]:
    n1, n0 = layout.positives, max(layout.weight - layout.positives, 0.0)
    sigmoid = Sigmoid(scale, a=0.0, b=math.log((n1 + 1.0) / (n0 + 1.0)), shift=0.0)
    now = yield evaluation_pass(layout, sigmoid)
    # Of one class or at one score, the optimum is the constant that the intercept starts from or moves to.
    if scale.half == 0.0 or n0 == 0.0 or n1 == 0.0:
        return (yield from _descend(layout, sigmoid, now, 1, flat=True))
    # Once more from the centre of the weights, where the Hessian is diagonal and loses no digits.
    sigmoid = _recentred(sigmoid, now)[0]
    now = yield evaluation_pass(layout, sigmoid)
    return (yield from _descend(layout, sigmoid, now, 2))


def _descend(
    layout: Layout, sigmoid: Sigmoid, now: Evaluation, evaluations: int, flat: bool = False
) -> Generator[Pass, Any, _Fitted]:
    last = False
    while evaluations < _MAX_EVALUATIONS:
        sigmoid, now = _recentred(sigmoid, now)
        da, db = _step(now)
        if flat:
            da = 0.0
        if last:
            return _Fitted(_moved(sigmoid, da, db, 1.0), now.loss, evaluations)
        last = _change(sigmoid, da, db) < _LAST_STEP
        decrease = da * now.by_a + db * now.by_b
        unseen = -decrease < _UNSEEN * now.loss  # which no line search can tell from none
        step = 1.0
        while True:
            tried = _moved(sigmoid, da, db, step)
            then = yield evaluation_pass(layout, tried)
            evaluations += 1
            if last or unseen or then.loss < now.loss + 1e-4 * step * decrease:
                break
            if evaluations >= _MAX_EVALUATIONS:
                break
            step /= 2
        sigmoid, now = tried, then
    from sklearn.exceptions import ConvergenceWarning

    warnings.warn(
        f"Platt: no optimum after {evaluations} evaluations; the sigmoid is the last one tried",
        ConvergenceWarning,
        stacklevel=2,
    )
    return _Fitted(sigmoid, now.loss, evaluations)


def _change(sigmoid: Sigmoid, da: float, db: float) -> float:
    """Bound the change of the sigmoid's argument by a step; of a steep one where that is not beyond `_STEEP`.

    One score far beyond all others makes the sigmoid steep on the scale of -1 to 1; at the far end its argument is then
    in the millions, where no change of it can be seen, nor computed to many digits.
    """
    return 2 * abs(da) / max(1.0, abs(sigmoid.a) / _STEEP) + abs(db)


def _step(at: Evaluation) -> tuple[float, float]:
    """Newton's, where the Hessian is diagonal."""
    da = -at.by_a / at.by_aa if at.by_aa > 0.0 else 0.0
    db = -at.by_b / at.by_bb if at.by_bb > 0.0 else 0.0
    return da, db


def _moved(sigmoid: Sigmoid, da: float, db: float, step: float) -> Sigmoid:
    return Sigmoid(sigmoid.scale, sigmoid.a + step * da, sigmoid.b + step * db, sigmoid.shift)


def _recentred(sigmoid: Sigmoid, at: Evaluation) -> tuple[Sigmoid, Evaluation]:
    """The same sigmoid and its derivatives, written around the mean of x under the Hessian's weights."""
    if not at.by_bb > 0.0:
        return sigmoid, at
    shift = min(max(sigmoid.shift + at.by_ab / at.by_bb, -1.0), 1.0)
    by = shift - sigmoid.shift
    moved = Sigmoid(sigmoid.scale, sigmoid.a, sigmoid.b + sigmoid.a * by, shift)
    by_aa = max(at.by_aa - 2 * by * at.by_ab + by * by * at.by_bb, 0.0)
    return moved, at._replace(by_a=at.by_a - by * at.by_b, by_aa=by_aa, by_ab=at.by_ab - by * at.by_bb)
