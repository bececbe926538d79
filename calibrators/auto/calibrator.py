"""Automatic choice of the calibration: by range of scores, or among methods by cross-validated log loss."""

from __future__ import annotations

import importlib
import math
from collections.abc import Generator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from calibrators.auto.cross_validation import loss_passes
from calibrators.auto.folded import FoldedPoints
from calibrators.base import Calibrator, Needs
from calibrators.core.arrays import Array
from calibrators.core.cumulative import Layout, layout_of, layout_pass, part_totals
from calibrators.core.curve import cells_on, log_odds, score_axis
from calibrators.core.fine_cells import FineCells, fine_cells_pass, gathered_bytes, split_cells
from calibrators.core.local_choice import Choice, Steps, choose
from calibrators.core.map import CalibrationMap, MapBlockRanges
from calibrators.core.passes import Blocks, Pass, Passes, Points, check_number, merge_passes, share_sweeps
from calibrators.core.pava import check_ends, pool_ends, pooling_pass
from calibrators.core.pointwise import Pointwise
from calibrators.core.sampling import odds_divided
from calibrators.core.shrinking import floor_of, shrunk, shrunk_map
from calibrators.core.tabulate import check_max_error, tabulate_curve

CANDIDATES = {
    "platt": "calibrators.sigmoid.platt:Platt",
    "isotonic": "calibrators.isotonic.calibrator:Isotonic",
    "enir": "calibrators.near_isotonic.enir:ENIR",
    "bbq": "calibrators.binning.bbq:BBQ",
    "abb": "calibrators.bayesian_binning.abb:ABB",
}
"""Ordered from the simplest: two parameters; one monotone fit; averages of near-isotonic fits, of equal-frequency
binnings, of all binnings."""


_MIN_SHARE = 0.05
"""Share of the observations up to which a curve is not named in `chosen_`."""

_RANGE_WIDTH = 1 / 16
"""Width in log odds of the block ranges: the cells of segments cannot resolve smaller differences."""


class Auto(Calibrator):
    """A smooth curve, or steps with that curve as their prior, chosen by the data for each range of scores.

    `Smooth` is many times better than isotonic regression where the truth is smooth, and worse where it jumps. Four
    models are fitted to all observations: the curve; isotonic regression with the curve as prior, which counts as
    information (sum of w p (1 - p)) of 300 or of 30; and the average of all ways to join the blocks of isotonic
    regression, with as many as 20 steps expected and the curve as prior of 60: where the truth has few levels, its
    excess is a half of isotonic regression's. They are also fitted to each of two halves and tested on the other half,
    in 1,000 bins along the score. A hidden Markov chain along the bins gives the probability that each is right in each
    bin, or there is no chain and the curve is right everywhere: with information I the chain's prior probability is
    300 / (300 + I), so that more observations need more evidence for steps. The map is the mixture by these
    probabilities, made non-decreasing. Finally its log-odds are shifted: by a share I / (I + 5), at most a half, of the
    shift with which the expected positives equal the observed ones, and by at most two standard errors. Beta
    calibration and Platt scaling of log-odds are curves without bends; with many observations the prior does not
    matter, and isotonic regression remains. With some hundred rows steps have a share of the mixture because they
    cannot tell: on real predictions that is better than the curve.

    With `candidates` the best of several methods is chosen by cross-validated log loss: each is fitted to the
    observations outside each fold and evaluated on those inside. By the one-standard-error rule, the simplest candidate
    is chosen whose mean loss exceeds the best one's by at most one standard error of the difference, computed from
    paired observations. It is then fitted to all observations. The folds depend only on the scores, their numbers of
    observations and `seed`; the observations of a tie are divided among the folds, weights count as repeated rows.

    Parameters
    ----------
    candidates : sequence of names of platt, isotonic, enir, bbq, abb, from the simplest; None for the curve
        bbq is left out for scores outside [0, 1].
    folds : int >= 2, default 5
        Number of folds with `candidates`. Fewer if a label has less than twice as many observations; if it has fewer
        than four, nothing is compared and the simplest candidate is used.
    seed : int in [0, 2**31), default 0
        Seed of folds and halves.
    ends : float >= 0, default 1
        Parameter of isotonic regression among candidates, and of segments: see `Isotonic`.
    max_error : float in [1e-12, 0.1], default 1e-7
        Without candidates, as for `Smooth`. The default is below the error that a hundred million rows could show, and
        needs a tenth of the rows that 1e-9 needs.

    Attributes
    ----------
    chosen_ : str
        The chosen candidate; without candidates 'smooth', 'isotonic' (steps: all models but the curve), or
        'both', if neither has 95 % of the observations.
    isotonic_share_ : float in [0, 1]
        Share of the observations whose probability comes from isotonic regression or averaged steps.
    cross_validated_log_loss_ : dict of str to float >= 0
        Mean over all observations, natural logarithm; empty if nothing could be compared.
    excess_ : dict of str to tuple of two floats
        Mean excess of each candidate's loss over the best one's, and its standard error.
    choice_ : Choice
        Without candidates, the curves that the map mixes and their weights.

    Notes
    -----
    One pass, and three fits like that of `Smooth`, whose time does not depend on the number of observations. The same
    pass pools isotonic blocks; cells are divided where blocks begin. Steps are averaged from at most 1,000 of them, in
    O(blocks^2) time; with more, isotonic regression takes their place.

    With `candidates`, neither 0 nor 1 is ever returned either. Isotonic regression uses `ends`; the maps of the others,
    and its map if `ends` is 0, are shrunk: p becomes 1 / (2 N) + (1 - 1 / N) p, N the sum of the weights, since N
    observations cannot distinguish a rarer event from an impossible one. Candidates are evaluated after shrinking;
    otherwise one held-out positive in a block of zeros would make a loss infinite. All candidates and folds are fitted
    in the same passes; time and memory are those of all candidates, times the number of folds.

    Without candidates, segments are partially pooled with this map (`calibrators.segments`). Without partial pooling
    segments use isotonic regression, because a choice for each segment would follow noise.

    References
    ----------
    Rabiner (1989), "A tutorial on hidden Markov models", Proceedings of the IEEE 77, 257-286. The average of steps: as
    for `ABB`.
    Breiman, Friedman, Olshen & Stone (1984), "Classification and regression trees", section 3.4.3: the
    one-standard-error rule.

    Examples
    --------
    >>> import numpy as np
    >>> from calibrators import Auto
    >>> scores = np.arange(20000) / 20000
    >>> labels = np.random.default_rng(0).random(20000) < scores**2
    >>> auto = Auto().fit(scores, labels)
    >>> auto.chosen_
    'smooth'
    >>> auto.predict([0.2, 0.5, 0.9]).round(2)
    array([0.04, 0.24, 0.82])
    """

    chosen_: str
    isotonic_share_: float
    choice_: Choice
    cross_validated_log_loss_: dict[str, float]
    excess_: dict[str, tuple[float, float]]
    _blocks: Blocks

    def __init__(
        self,
        candidates: Sequence[str] | None = None,
        folds: int = 5,
        seed: int = 0,
        ends: float = 1,
        max_error: float = 1e-7,
    ) -> None:
        self.candidates = candidates
        self.folds = folds
        self.seed = seed
        self.ends = ends
        self.max_error = max_error

    @property
    def needs(self) -> Needs:  # type: ignore[override]
        """With candidates there are several passes and no single curve; the fit chooses the segments' method."""
        if self.candidates is not None:
            return Needs(fit_before_segments=True)
        return Needs(one_pass=True, posterior=True, resampling=False, partial_pooling=True)

    def facts(self) -> dict[str, Any]:
        """Return the chosen method and the losses of its competitors."""
        if self.candidates is None:
            return {
                "chosen": self.chosen_,
                "isotonic_share": self.isotonic_share_,
                "cross_validated_log_loss": self.cross_validated_log_loss_,
                **self.choice_.curve.averages(),
            }
        return {
            "chosen": self.chosen_,
            "cross_validated_log_loss": self.cross_validated_log_loss_,
            "excess_over_the_best": {name: list(pair) for name, pair in self.excess_.items()},
        }

    def for_segments(self) -> Calibrator:
        """Return the chosen calibrator, because a choice for each segment would follow noise."""
        calibrator = self._make("isotonic" if self.candidates is None else self.chosen_)
        if self.candidates is not None and self.chosen_ == "enir":
            calibrator.set_params(shrink=1)
        return calibrator

    def block_ranges(self) -> MapBlockRanges:
        """Return the blocks of isotonic regression, joined where the map is nearly constant, and its mean in each."""
        fine, blocks = self.fine_cells_, self._blocks
        assert fine is not None
        edges = np.append(-np.inf, blocks.first[1:])
        middles = (fine.first / 2 + fine.last / 2, blocks.first / 2 + blocks.last / 2)
        cell_level, level = (
            np.asarray(odds_divided(self.calibration_map_.predict(s), 1.0 / self.sampling_.rate))
            for s in middles
        )
        block = np.searchsorted(edges, fine.first, side="right") - 1
        weight = np.bincount(block, fine.weight, edges.size)
        filled = weight > 0
        level[filled] = np.bincount(block, fine.weight * cell_level, edges.size)[filled] / weight[filled]
        level = np.maximum.accumulate(level)
        bin_ = np.floor(log_odds(level) / _RANGE_WIDTH)
        first = np.flatnonzero(np.diff(bin_, prepend=-np.inf))
        weight_sum, level_sum = (np.add.reduceat(x, first) for x in (blocks.weight, blocks.weight * level))
        return MapBlockRanges(edges[first], level_sum / weight_sum, weight_sum)

    def fall_back(self, ranges: Sequence[tuple[float, float]]) -> None:
        """Use isotonic regression for scores in these ranges, with the curve as weak prior, or everywhere without it.

        For a fit without candidates whose map does not agree with its observations there.

        Parameters
        ----------
        ranges : sequence of pairs of floats
            First and last scores; empty: everywhere.
        """
        fine, choice = self.fine_cells_, self.choice_
        assert fine is not None
        isotonic = np.full(fine.first.size, not ranges)
        for first, last in ranges:
            isotonic |= (fine.first <= last) & (fine.last >= first)
        share = np.where(isotonic, 0.0, choice.share)
        share[-1, isotonic] = 1.0
        self.choice_ = choice = replace(choice, share=share)
        self.posterior_ = replace(
            self.posterior_, share=share[0], shift=math.log(self.sampling_.rate) + choice.shift
        )
        self.isotonic_share_ = choice.isotonic_share
        self.chosen_ = "isotonic" if self.isotonic_share_ >= 1 - _MIN_SHARE else "both"
        if ranges:
            axis, shift = self.posterior_.axis, math.log(self.sampling_.rate)
            self.calibration_map_ = tabulate_curve(fine, axis, choice.knots(), shift, float(self.max_error))
            return
        blocks, level = pool_ends(self._blocks, float(self.ends))
        level = level if self.sampling_.rate == 1.0 else np.asarray(odds_divided(level, self.sampling_.rate))
        self.calibration_map_ = CalibrationMap.from_blocks(
            blocks.first, blocks.last, level, blocks.weight, blocks.positives
        )

    def check_parameters(self) -> None:
        """Raise ValueError if a candidate is unknown, repeated or missing, or a number out of range."""
        names = self._names()
        if not names or len(set(names)) < len(names) or any(name not in CANDIDATES for name in names):
            raise ValueError(
                f"candidates: expected some of {', '.join(CANDIDATES)}, each once, found {self.candidates!r}"
            )
        check_number("folds", self.folds, "a whole number >= 2", 2, 2**31 - 1, whole=True)
        check_number("seed", self.seed, "a whole number >= 0", 0, 2**31 - 1, whole=True)
        check_ends(self.ends)
        check_max_error(self.max_error)

    def _names(self) -> tuple[str, ...]:
        return tuple(CANDIDATES if self.candidates is None else self.candidates)

    def gathers(self, points: int, parts: int, *, weighted: bool = False) -> float:
        """See `Calibrator.gathers`: the sum over all candidates and folds."""
        if self.candidates is None:
            return super().gathers(points, parts) + gathered_bytes(points, parts)
        per_fold = sum(self._make(name).gathers(points, parts, weighted=weighted) for name in self._names())
        return per_fold * int(self.folds)

    def _passes(self) -> Passes:
        return self._local() if self.candidates is None else self._best()

    def _local(self) -> Passes:
        gathered, blocks = yield merge_passes([fine_cells_pass(), pooling_pass()])
        fine: FineCells = split_cells(gathered, blocks)
        self.fine_cells_, self._blocks = fine, blocks
        axis, shift = score_axis(fine, self.sampling_.rate), math.log(self.sampling_.rate)
        cells, halves = cells_on(axis, fine), _halves(fine, int(self.seed), self.sampling_.heaviest)
        begin = np.searchsorted(fine.first, blocks.first[1:])
        begin = begin[fine.first[begin] == blocks.first[1:]]
        below, above = axis.positions(fine.last[begin - 1]), axis.positions(fine.first[begin])
        steps = Steps(begin, 0.75 * below + 0.25 * above, above)
        self.choice_ = choose(cells, halves, steps)
        self.posterior_ = Pointwise(
            axis, self.choice_.curve, cells, self.choice_.share[0], shift + self.choice_.shift
        )
        share = self.isotonic_share_ = self.choice_.isotonic_share
        self.chosen_ = "smooth" if share <= _MIN_SHARE else "isotonic" if share >= 1 - _MIN_SHARE else "both"
        losses = (float(self.choice_.held_out[0]), float(self.choice_.held_out[1:].min()))
        self.cross_validated_log_loss_ = {
            name: loss
            for name, loss in zip(("smooth", "isotonic"), losses, strict=True)
            if math.isfinite(loss)
        }
        return tabulate_curve(fine, axis, self.choice_.knots(), shift, float(self.max_error))

    def _best(self) -> Passes:
        layout: Layout = yield layout_pass()
        names = self._names()
        if not layout.probabilities:
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
            yield from self._compare(
                names, FoldedPoints(layout, folds, int(self.seed), self.sampling_.heaviest)
            )
        fitted = yield from self._make(self.chosen_)._passes()
        return shrunk_map(fitted, self._floor(self.chosen_, layout.weight))

    def _make(self, name: str) -> Calibrator:
        module, _, cls = CANDIDATES[name].partition(":")
        calibrator: Calibrator = getattr(importlib.import_module(module), cls)()
        # ENIR's shrinking is off: `_shrunk_at` shrinks its maps, by the same amount in every fold.
        parameters: dict[str, dict[str, float]] = {"isotonic": {"ends": self.ends}, "enir": {"shrink": 0}}
        return calibrator.set_params(**parameters.get(name, {}))

    def _floor(self, name: str, weight: float) -> float:
        """Return the amount by which a candidate's map is shrunk."""
        return 0.0 if name == "isotonic" and self.ends > 0 else floor_of(1, weight)

    def _compare(self, names: tuple[str, ...], folded: FoldedPoints) -> Generator[Pass, Any, None]:
        # All candidates share the division of a part into folds.
        fits = [
            folded.over(share_sweeps(*(self._make(name)._passes() for name in names)), fold)
            for fold in range(folded.folds)
        ]
        by_fold: list[tuple[CalibrationMap, ...]] = list((yield from share_sweeps(*fits)))
        floors = [self._floor(name, folded.layout.weight) for name in names]
        predictions = [
            [partial(_shrunk_at, fitted, floor) for fitted, floor in zip(maps, floors, strict=True)]
            for maps in by_fold
        ]
        losses, _ = yield from loss_passes(folded, predictions, ("log_loss",))
        for name, loss in zip(names, losses["log_loss"], strict=True):
            self.cross_validated_log_loss_[name] = loss.mean or 0.0
            self.excess_[name] = loss.excess or 0.0, loss.excess_error or 0.0
        self.chosen_ = next(name for name, (excess, error) in self.excess_.items() if excess <= error)


def _halves(fine: FineCells, seed: int, heaviest: float) -> list[tuple[Array, Array]]:
    """Divide the observations into two halves; return weight and positives of each half in each cell."""
    points = Points(fine.first, fine.weight, fine.positives)
    layout = layout_of([part_totals(points)])
    halves = []
    for half in FoldedPoints(layout, 2, seed, heaviest).split(points, 0):
        weight, positives = np.zeros(fine.first.size), np.zeros(fine.first.size)
        if half is not None:
            cell = np.searchsorted(fine.first, half.score)
            weight[cell], positives[cell] = half.weight, half.positives
        halves.append((weight, positives))
    return halves


def _shrunk_at(fitted: CalibrationMap, floor: float, scores: Array) -> Array:
    return shrunk(fitted.predict_ascending(scores), floor)
