"""Bayesian binnings: what the best one (SBB) and the average of all (ABB) share."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any, Literal, NamedTuple

import numpy as np

from calibrators.base import Calibrator
from calibrators.core.arrays import Array
from calibrators.core.cumulative import (
    bin_counts,
    cuts_pass,
    equal_frequency_targets,
    gather_pass,
    layout_pass,
)
from calibrators.core.kernels import binnings as kernel
from calibrators.core.map import CalibrationMap
from calibrators.core.passes import Passes, check_choice, check_number

_MAX_TABLE = 1 << 24


class PointGroups(NamedTuple):
    """Neighbouring points between which no boundary is allowed; float64 arrays, shape (groups,)."""

    first: Array
    last: Array
    weight: Array
    positives: Array


class BayesianBinning(Calibrator):
    """Base of SBB and ABB: groups of points and scores of bins."""

    exact_: bool

    def __init__(
        self,
        expected_cuts: float = 10.0,
        max_cuts: int = 2000,
        cuts: Literal["rarer", "frequency"] = "rarer",
    ) -> None:
        self.expected_cuts = expected_cuts
        self.max_cuts = max_cuts
        self.cuts = cuts

    def facts(self) -> dict[str, Any]:
        """Tell whether every gap between distinct scores was a possible boundary, or only `max_cuts` cut points."""
        return {"every_boundary_considered": bool(self.exact_)}

    def check_parameters(self) -> None:
        """Raise ValueError unless `expected_cuts` is finite and > 0, `max_cuts` a whole number >= 1, `cuts` a name."""
        check_number("expected_cuts", self.expected_cuts, "a finite number > 0", math.ulp(0.0))
        check_number("max_cuts", self.max_cuts, "a whole number >= 1", 1, whole=True)
        check_choice("cuts", self.cuts, "rarer", "frequency")

    def gathers(self, points: int, parts: int, *, weighted: bool = False) -> float:
        """See `Calibrator.gathers`: the groups between cut points."""
        return super().gathers(min(2 * points, 2 * (int(self.max_cuts) + 1)), parts)

    def _passes(self) -> Passes:
        layout = yield layout_pass()
        self.exact_ = layout.n_points <= self.max_cuts
        if self.exact_:
            points = yield gather_pass()
            groups = PointGroups(points.score, points.score, points.weight, points.positives)
        else:
            bins = int(self.max_cuts) + 1
            balanced = self.cuts == "rarer"
            targets = equal_frequency_targets(1.0 if balanced else layout.weight, bins)
            cuts = yield cuts_pass(layout, targets, balanced=balanced)
            groups = PointGroups(
                np.append(layout.first[0], cuts.above),
                np.append(cuts.below, layout.last),
                *bin_counts(layout, cuts.counts),
            )
        return self._map(groups, Scores.of(groups, float(self.expected_cuts)))

    @abstractmethod
    def _map(self, groups: PointGroups, scores: Scores) -> CalibrationMap:
        """Compute the map from the groups and the scores of their bins."""


class Scores(NamedTuple):
    """Arrays from which the kernels score any bin.

    cut : log prior probability of a boundary after each group. no_cut : cumulative log prior probabilities of no
    boundary, negated. table : see `_log_factorials`
    """

    negatives: Array
    positives: Array
    cut: Array
    no_cut: Array
    table: Array

    @classmethod
    def of(cls, groups: PointGroups, expected_cuts: float) -> Scores:
        """Prepare the scores. expected_cuts : the paper's lambda, as in `SBB`."""
        # A power of two with which ranges do not overflow and gaps of the smallest doubles do not vanish.
        largest = float(max(-groups.first[0], groups.last[-1], groups.first[0], -groups.last[-1]))
        unit = 2.0 ** min(1000 - math.frexp(largest)[1], 1020)
        first, last = groups.first * unit, groups.last * unit
        gap = np.diff(first) / 2 + np.diff(last) / 2
        rate = expected_cuts * (gap / (last[-1] - first[0])) if gap.size else gap
        with np.errstate(divide="ignore"):
            cut = np.append(np.log(-np.expm1(-rate)), 0.0)
        no_cut = np.concatenate([[0.0], np.cumsum(rate)])
        negatives = groups.weight - groups.positives
        return cls(negatives, groups.positives, cut, no_cut, _log_factorials(groups.weight, groups.positives))


def _log_factorials(weight: Array, positives: Array) -> Array:
    """Tabulate log factorials if weights are whole and this is faster than one log-beta per bin; else empty."""
    total = float(weight.sum())
    integral = np.array_equal(weight, np.floor(weight)) and np.array_equal(positives, np.floor(positives))
    if integral and total + 2 <= min(_MAX_TABLE, 4 * weight.size**2 + 100):
        table: Array = kernel.log_factorials(int(total) + 1)
        return table
    return np.empty(0)
