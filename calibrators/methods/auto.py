"""The choice of a method by cross-validated log loss."""

from __future__ import annotations

import importlib
import math
from collections.abc import Generator, Sequence
from functools import partial
from numbers import Integral
from typing import Any

import numpy as np

from calibrators._kernels import sums
from calibrators.arithmetic.calibration_map import CalibrationMap
from calibrators.arithmetic.cumulative import Layout, layout_pass
from calibrators.arithmetic.passes import Array, Pass, Passes, Points
from calibrators.arithmetic.pooling import check_ends
from calibrators.measures.predictions import side_by_side
from calibrators.methods.base import Calibrator
from calibrators.methods.folded import FoldedPoints
from calibrators.methods.shrinking import floor_of, shrunk, shrunk_map

CANDIDATES = {
    "platt": "calibrators.methods.platt:Platt",
    "isotonic": "calibrators.methods.isotonic:Isotonic",
    "enir": "calibrators.methods.enir:ENIR",
    "bbq": "calibrators.methods.bbq:BBQ",
    "abb": "calibrators.methods.bayesian_binning:ABB",
}
"""From the simplest: two parameters; one monotone fit; an average of fits that bend it; of equal-frequency binnings;
of all binnings."""


class Auto(Calibrator):
    """The calibrator with the best cross-validated log loss, or a simpler one that is not clearly worse.

    Each candidate is fitted to the observations outside each fold and judged by its log loss on those inside. The
    one-standard-error rule: of the candidates whose mean loss exceeds the best one's by at most one standard error
    of that difference (which is taken observation by observation), the simplest is chosen, and fitted to all
    observations. The folds are a function of the scores, the numbers of observations there and `seed` alone; ties are
    one point whose observations are dealt by numbers, weights count as repeated rows.

    Best where nothing is known of the truth: in simulations 1.4 times the excess loss of the best method in the median,
    7 at most (docs/methods.md).

    Parameters
    ----------
    candidates : sequence of names, from the simplest; None for platt, isotonic, enir, bbq, abb
        bbq is left out for scores outside [0, 1].
    folds : int >= 2, default 5
        Fewer, where a label has less than twice as many observations; with less than four of a label nothing is
        compared, and the simplest candidate is taken.
    seed : int in [0, 2**31), default 0
    ends : float >= 0, default 1
        Of isotonic regression: see `Isotonic`.

    Attributes
    ----------
    chosen_ : str
    cross_validated_log_loss_ : dict of str to float >= 0
        Mean over all observations, natural logarithm; empty where nothing could be compared.
    excess_ : dict of str to tuple of two floats
        Mean excess over the best candidate's loss, and its standard error.

    Notes
    -----
    Neither 0 nor 1 is ever returned. Isotonic regression has `ends`; the maps of the others, and its own where `ends`
    is 0, are shrunk: p becomes 1 / (2 N) + (1 - 1 / N) p, N the sum of the weights, since N observations cannot tell a
    rarer event from an impossible one. Candidates are judged as they would be returned. Otherwise one held-out positive
    in a block of zeros would make a loss infinite.

    All candidates and folds are fitted in the same passes; time and what is gathered are those of all
    candidates, times the number of folds.

    References
    ----------
    Breiman, Friedman, Olshen & Stone (1984), "Classification and regression trees", section 3.4.3: the rule.

    Examples
    --------
    >>> import numpy as np
    >>> from calibrators.methods.auto import Auto
    >>> scores = np.arange(200) / 200
    >>> auto = Auto().fit(scores, np.abs(scores - 0.5) > 0.25)
    >>> auto.chosen_
    'bbq'
    """

    fitted_for_segments = True

    chosen_: str
    cross_validated_log_loss_: dict[str, float]
    excess_: dict[str, tuple[float, float]]

    def __init__(
        self, candidates: Sequence[str] | None = None, folds: int = 5, seed: int = 0, ends: float = 1
    ) -> None:
        self.candidates = candidates
        self.folds = folds
        self.seed = seed
        self.ends = ends

    def facts(self) -> dict[str, Any]:
        """What was chosen, and what it was compared with."""
        return {
            "chosen": self.chosen_,
            "cross_validated_log_loss": self.cross_validated_log_loss_,
            "excess_over_the_best": {name: list(pair) for name, pair in self.excess_.items()},
        }

    def for_segments(self) -> Calibrator:
        """The chosen calibrator: a choice for each segment would follow noise."""
        made = self._make(self.chosen_)
        if self.chosen_ == "enir":
            made.set_params(shrink=1)
        made.sampling_rate = self.sampling_rate
        return made

    def check_parameters(self) -> None:
        """Raise ValueError if a candidate is unknown, repeated or missing, or a number out of range."""
        names = self._names()
        if not names or len(set(names)) < len(names) or any(name not in CANDIDATES for name in names):
            raise ValueError(
                f"candidates: expected some of {', '.join(CANDIDATES)}, each once, found {self.candidates!r}"
            )
        for name, number, low in (("folds", self.folds, 2), ("seed", self.seed, 0)):
            if not isinstance(number, Integral) or isinstance(number, bool) or not low <= number < 2**31:
                raise ValueError(f"{name}: expected a whole number >= {low}, found {number!r}")
        check_ends(self.ends)

    def _names(self) -> tuple[str, ...]:
        return tuple(CANDIDATES if self.candidates is None else self.candidates)

    def gathers(self, points: int, parts: int, *, weighted: bool = False) -> float:
        """See `Calibrator.gathers`: of all candidates in all folds."""
        each = sum(self._make(name).gathers(points, parts, weighted=weighted) for name in self._names())
        return each * int(self.folds)

    def _passes(self) -> Passes:
        layout: Layout = yield layout_pass()
        names = self._names()
        if layout.first[0] < 0 or layout.last > 1:
            names = tuple(name for name in names if name != "bbq")
        if not names:
            raise ValueError(
                "candidates: bbq needs scores in [0, 1]; put the scores through the sigmoid, or name another candidate"
            )
        rarer = min(layout.positives, layout.weight - layout.positives)
        folds = int(min(self.folds, math.floor(rarer / 2)))
        self.cross_validated_log_loss_, self.excess_ = {}, {}
        self.chosen_ = names[0]
        if folds >= 2 and len(names) > 1:
            yield from self._compare(names, FoldedPoints(layout, folds, int(self.seed)))
        fitted = yield from self._make(self.chosen_)._passes()
        return shrunk_map(fitted, self._floor(self.chosen_, layout.weight))

    def _make(self, name: str) -> Calibrator:
        module, _, cls = CANDIDATES[name].partition(":")
        made: Calibrator = getattr(importlib.import_module(module), cls)()
        # What is shrunk is shrunk once, by as much in every fold.
        own: dict[str, dict[str, float]] = {"isotonic": {"ends": self.ends}, "enir": {"shrink": 0}}
        return made.set_params(**own.get(name, {}))

    def _floor(self, name: str, weight: float) -> float:
        """How far a candidate's map is shrunk."""
        return 0.0 if name == "isotonic" and self.ends > 0 else floor_of(1, weight)

    def _compare(self, names: tuple[str, ...], folded: FoldedPoints) -> Generator[Pass, Any, None]:
        # A part is divided once a fold, for all candidates together.
        fits = [
            folded.training(side_by_side(*(self._make(name)._passes() for name in names)), fold)
            for fold in range(folded.folds)
        ]
        by_fold: list[tuple[CalibrationMap, ...]] = list((yield from side_by_side(*fits)))
        floors = [self._floor(name, folded.layout.weight) for name in names]
        moments: Array = yield Pass(partial(_losses, folded, by_fold, floors), _add_up)
        count = len(names)
        mean = moments[:count] / folded.layout.weight
        squares = moments[count:].reshape(count, count) / folded.layout.weight
        best = int(np.argmin(mean))
        excess = mean - mean[best]
        variance = np.diag(squares) + squares[best, best] - 2 * squares[best] - excess**2
        error = np.sqrt(np.maximum(variance, 0.0) / folded.layout.weight)
        self.chosen_ = names[int(np.argmax(excess <= error))]
        self.cross_validated_log_loss_ = dict(zip(names, mean.tolist(), strict=True))
        self.excess_ = dict(zip(names, zip(excess.tolist(), error.tolist(), strict=True), strict=True))


def _losses(
    folded: FoldedPoints, maps: list[tuple[CalibrationMap, ...]], floors: list[float], points: Points
) -> list[Array]:
    """Of a part: exact sums of the candidates' losses and of the products of each two, as expansions."""
    pieces = []
    for fold, candidates in enumerate(maps):
        inside = folded.split(points, fold)[1]
        if inside is not None:
            pieces.append(_moments(inside, candidates, floors))
    if not pieces:
        return []
    return [sums.expansion_of(np.concatenate(column)) for column in zip(*pieces, strict=True)]


def _moments(points: Points, maps: tuple[CalibrationMap, ...], floors: list[float]) -> list[Array]:
    negatives = points.weight - points.positives
    losses = []
    for calibration_map, floor in zip(maps, floors, strict=True):
        p = shrunk(calibration_map.predict(points.score), floor)
        losses.append((-np.log(p), -np.log1p(-p)))
    first = [points.positives * one + negatives * zero for one, zero in losses]
    second = [points.positives * (a[0] * b[0]) + negatives * (a[1] * b[1]) for a in losses for b in losses]
    return [sums.expansion_of(terms) for terms in (*first, *second)]


def _add_up(parts: list[list[Array]]) -> Array:
    columns = zip(*(part for part in parts if part), strict=True)
    return np.array([sums.exact_sum(np.concatenate(column)) for column in columns])
