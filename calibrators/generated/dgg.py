"""Calibration of groups of observations instead of single ones: DGG, and grouping for any calibrator."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from calibrators.base import Calibrator
from calibrators.core import sorting
from calibrators.core.arrays import Array, Integers
from calibrators.core.cumulative import (
    Layout,
    bin_counts,
    counts_below_pass,
    layout_pass,
    point_moments,
    running_sums,
)
from calibrators.core.kernels import sums
from calibrators.core.kernels.sums import expansion_of
from calibrators.core.passes import Pass, Passes, Points, check_number, merge_passes
from calibrators.core.pava import check_ends
from calibrators.isotonic.calibrator import Isotonic


class Grouped(Calibrator):
    """A calibrator fitted to means of groups of consecutive observations in score order.

    In ascending order of their scores, every `group_size` observations form a group; the last group may be smaller.
    Each group becomes one point at its mean score, with its weight and its positives, so a smaller group counts less.
    With weights, groups end at the cumulative weights g, 2g, 3g, ... for group size g: a weight of 2 is a repeated row.
    A tie across the end of a group is divided in proportion, each share with the tie's frequency of positives, so that
    the order of tied rows does not matter. Groups with equal mean scores are one point.

    Parameters
    ----------
    calibrator : Calibrator that fits a calibration map, default Isotonic()
    group_size : int >= 1, default 100
        Observations per group, g. 1 does not change observations of weight 1.

    Notes
    -----
    Two passes gather the groups, 56 bytes each: at most one per `group_size` of weight and two per distinct score. The
    calibrator is then fitted to them in memory; a third pass counts the observations in each row of its map. O(m) time.
    Grouping helps with a few thousand observations, where isotonic regression follows single labels too closely at both
    ends.

    References
    ----------
    Alasalmi, Koskimäki, Suutala & Röning (2018), "Getting more out of small data sets: improving the calibration
    performance of isotonic regression by generating more data", ICAART, section 4.2.

    Examples
    --------
    >>> from calibrators import Grouped, Isotonic
    >>> grouped = Grouped(Isotonic(ends=0), group_size=2).fit([0.1, 0.3, 0.5, 0.7, 0.9], [0, 1, 0, 0, 1])
    >>> grouped.predict([0.2, 0.6, 0.75, 0.9])
    array([0.25 , 0.25 , 0.625, 1.   ])
    """

    def __init__(self, calibrator: Calibrator | None = None, group_size: int = 100) -> None:
        self.calibrator = calibrator
        self.group_size = group_size

    def check_parameters(self) -> None:
        """Raise ValueError if `group_size` is not a whole number >= 1, or `calibrator` is not valid."""
        check_number("group_size", self.group_size, "a whole number >= 1", 1, whole=True)
        if self.calibrator is None:
            return
        if not isinstance(self.calibrator, Calibrator):
            raise ValueError(
                f"calibrator: expected a calibrator of this package, found {self.calibrator!r:.60}"
            )
        self.calibrator.check_parameters()

    def _inner(self) -> Calibrator:
        from sklearn.base import clone

        return Isotonic() if self.calibrator is None else clone(self.calibrator)

    def gathers(self, points: int, parts: int, *, weighted: bool = False) -> float:
        """See `Calibrator.gathers`: the groups; with weights up to two per distinct score."""
        groups = 2 * points if weighted else points // int(self.group_size) + 1
        return super().gathers(2 * min(2 * points, groups), parts)

    def _passes(self) -> Passes:
        layout, groups = yield from groups_passes(int(self.group_size))
        fitted = self._inner().fit_points(groups).calibration_map_
        counts = yield counts_below_pass(layout, fitted.score_lo[1:])
        weight, positives = bin_counts(layout, counts)
        return replace(fitted, weight=weight, positives=positives)


class DGG(Grouped):
    """Isotonic regression on means of groups: the fit of the DGG method, whose log is generated beforehand.

    In simulations it is best for truths that rise and fall, or rise in steps or with a bend, with 20 to 600 positives.
    Its excess loss is 1.8 times the best method's in the median, and at most 34 times, if only the highest scores are
    informative (docs/methods.md).

    Parameters
    ----------
    group_size : int >= 1, default 100
        Observations per group.
    ends : float >= 0, default 1
        Observations added at the ends, so that no probability is 0 or 1: see `Isotonic`.

    Notes
    -----
    `Grouped` with isotonic regression: see there for ties, weights and cost. Non-decreasing.

    References
    ----------
    Alasalmi, Koskimäki, Suutala & Röning (2018), as for `Grouped`.

    Examples
    --------
    >>> from calibrators import DGG
    >>> DGG(group_size=2, ends=0).fit([0.1, 0.3, 0.5, 0.7], [0, 1, 1, 1]).predict([0.2, 0.4, 0.6])
    array([0.5 , 0.75, 1.  ])
    """

    def __init__(self, group_size: int = 100, ends: float = 1) -> None:
        super().__init__(group_size=group_size)
        self.ends = ends

    def check_parameters(self) -> None:
        """Raise ValueError as in `Grouped`, or if `ends` is not a finite number >= 0."""
        super().check_parameters()
        check_ends(self.ends)

    def _inner(self) -> Calibrator:
        return Isotonic(ends=self.ends)


# Groups of consecutive observations in score order, as points: mean scores and sums.


class _Ends(NamedTuple):
    """Ends of groups; float64 arrays of one shape, ascending.

    weight : cumulative weight at the end. positives, moment : cumulative sums of positives and of weight times score,
    with their low parts. last, following : the scores of the observations before and after the end.
    """

    weight: Array
    positives: Array
    positives_low: Array
    moment: Array
    moment_low: Array
    last: Array
    following: Array


def groups_passes(group_size: int) -> Generator[Pass, Any, tuple[Layout, Points]]:
    """Yield two passes, receive their results, return the layout and the groups as points.

    The first pass takes counts of each part and its sum of weight times score, the second the ends of groups, 56 bytes
    each.
    """
    layout, moments = yield merge_passes([layout_pass(), Pass(_moment_sum, running_sums)])
    ends = Pass(
        partial(_ends_in_part, layout, moments, float(group_size)), partial(_join_groups, layout, moments)
    )
    return layout, (yield ends)


def _moment_sum(points: Points) -> Array:
    return expansion_of(point_moments(points))


def _ends_in_part(layout: Layout, moments: list[Array], size: float, points: Points) -> _Ends:
    """Find the ends of groups inside a part.

    A point may contain many ends; all groups between the first and the last of them have its score and its level, so
    these two are enough. Its weight and its positives are divided in proportion.
    """
    part = layout.part_of(points)
    after = sums.prefix_sums(points.weight, layout.weight_before[part])
    before = np.append(sums.exact_sum(layout.weight_before[part]), after[:-1])
    first, last = np.floor(before / size) + 1.0, np.floor(after / size)
    index = np.flatnonzero(last >= first)
    ends = np.column_stack([first[index], last[index]])
    index, ends = np.repeat(index, 2), ends.ravel()
    distinct = np.append(True, (np.diff(index) > 0) | (np.diff(ends) > 0))[: index.size]
    index, ends = index[distinct], ends[distinct]
    # Rounding may put an end outside its point.
    weight = np.clip(ends * size, before[index], after[index])
    at_point_end = weight == after[index]
    share = np.where(at_point_end, 1.0, (weight - before[index]) / points.weight[index])
    following = np.append(points.score[1:], layout.score_after(part))
    return _Ends(
        weight,
        *_sums_at(points.positives, layout.positives_before[part], index, share),
        *_sums_at(point_moments(points), moments[part], index, share),
        points.score[index],
        np.where(at_point_end, following[index], points.score[index]),
    )


def _sums_at(values: Array, carry: Array, index: Integers, share: Array) -> tuple[Array, Array]:
    """Compute cumulative sums that include a share of the points at `index`, as double-doubles."""
    high, low = sums.sums_through(values, carry, index)
    with np.errstate(invalid="ignore", over="ignore"):
        added = values[index] * share
        total = high + added
        rounded = total - high
        return total, (high - (total - rounded)) + (added - rounded) + low


def _join_groups(layout: Layout, moments: list[Array], parts: list[_Ends]) -> Points:
    ends = [np.concatenate(column) for column in zip(*parts, strict=True)]
    inside = ends[0] < layout.weight
    end, positives, positives_low, moment, moment_low, last, following = (column[inside] for column in ends)
    moment_total = sums.sums_through(np.empty(0), moments[-1], np.zeros(1, np.int64))
    weight = np.diff(end, prepend=0.0, append=layout.weight)
    hits = np.diff(positives, prepend=0.0, append=layout.positives)
    hits += np.diff(positives_low, prepend=0.0, append=layout.positives_low)
    with np.errstate(invalid="ignore", over="ignore"):
        mean = np.diff(moment, prepend=0.0, append=moment_total[0])
        mean += np.diff(moment_low, prepend=0.0, append=moment_total[1])
    filled = weight > 0
    lowest = np.concatenate([layout.first[:1], following])[filled]
    highest = np.append(last, layout.last)[filled]
    with np.errstate(invalid="ignore", over="ignore"):
        mean = mean[filled] / weight[filled]
    # If a sum overflows, use the middle of the group.
    mean = np.where(np.isfinite(mean), mean, lowest / 2 + highest / 2)
    mean = np.clip(mean, lowest, highest) + 0.0
    hits = np.clip(hits[filled], 0.0, weight[filled])
    return Points(*sorting.sum_ties(_without_rounding(mean), weight[filled], hits))


def _without_rounding(mean: Array) -> Array:
    """Make ascending means equal that differ only by rounding."""
    with np.errstate(over="ignore"):
        distinct = np.diff(mean) > 4 * np.spacing(np.abs(mean[:-1]))
    starts = np.append(True, distinct)
    first: Array = mean[np.flatnonzero(starts)[np.cumsum(starts) - 1]]
    return first
