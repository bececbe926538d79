"""Cumulative counts over points in parts: edges of equal-frequency bins, and the counts of bins.

A first pass (`layout_pass`) computes the exact sums before each part; later passes start from these and read only
their part. Sums are exact until they are rounded once, so edges and counts do not depend on the division into parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from calibrators.core.arrays import Array, Integers
from calibrators.core.kernels import sums
from calibrators.core.kernels.sums import expansion_of
from calibrators.core.map import midpoints
from calibrators.core.passes import Pass, Points, blocks_of

_SUMMABLE = 1e290


def summable(values: Array) -> Array:
    """Replace values that are too large to add up by NaN, so that overflow does not depend on the grouping."""
    large = np.abs(values) > _SUMMABLE
    return np.where(large, np.nan, values) if large.any() else values


def point_moments(points: Points) -> Array:
    """Return weight times score; NaN if it is too large to add up."""
    with np.errstate(over="ignore"):
        return summable(points.weight * points.score)


@dataclass(frozen=True)
class Layout:
    """Parts of the points in ascending order, with the sums before each part.

    Attributes
    ----------
    first : float64 array, shape (parts,): the first score of each part
    last : float: the highest score
    n_points : int: number of distinct scores
    weight, weight_low, positives, positives_low : float: totals as double-doubles with a correctly rounded high part
    weight_before, positives_before : tuples of float64 arrays, one per part: exact sums before the part as expansions
    """

    first: Array
    last: float
    n_points: int
    weight: float
    weight_low: float
    positives: float
    positives_low: float
    weight_before: tuple[Array, ...]
    positives_before: tuple[Array, ...]

    def part_of(self, points: Points) -> int:
        """Return the index of the part with these points."""
        return int(np.searchsorted(self.first, points.score[0]))

    @property
    def probabilities(self) -> bool:
        """True if all scores lie in [0, 1]."""
        return bool(self.first[0] >= 0 and self.last <= 1)

    def check_probabilities(self, method: str, advice: str = "put margins through the sigmoid first") -> None:
        """Raise ValueError unless all scores lie in [0, 1], as `method` expects."""
        if not self.probabilities:
            raise ValueError(
                f"scores: {method} expected numbers in [0, 1], found them from {self.first[0]} to {self.last}: {advice}"
            )

    def score_after(self, part: int) -> float:
        """Return the first score after the part; infinity after the last part."""
        return float(self.first[part + 1]) if part + 1 < self.first.size else np.inf


class Counts(NamedTuple):
    """Sums as double-doubles (high + low), float64 arrays of one shape."""

    weight: Array
    weight_low: Array
    positives: Array
    positives_low: Array


class Cuts(NamedTuple):
    """Cuts between neighbouring points, ascending, with cumulative counts.

    Attributes
    ----------
    below, above : float64 arrays, shape (cuts,): the scores on both sides of each cut
    counts : Counts of all points up to and including `below`
    """

    below: Array
    above: Array
    counts: Counts

    @property
    def edges(self) -> Array:
        """Bin edges: midpoints of the gaps; a score at an edge is in the upper bin."""
        return midpoints(self.below, self.above)


def layout_pass() -> Pass:
    """Return the pass that yields the `Layout`. The state of a part is a few short arrays."""
    return Pass(chunk=part_totals, combine=layout_of)


PartTotals = tuple[float, float, int, Array, Array]


def part_totals(points: Points) -> PartTotals:
    """Return first and last score, number of points, and the exact sums of weight and positives as expansions."""
    return (
        float(points.score[0]),
        float(points.score[-1]),
        points.score.size,
        expansion_of(points.weight),
        expansion_of(points.positives),
    )


def layout_of(parts: list[PartTotals]) -> Layout:
    """Return the layout of parts in ascending order."""
    weight_before = running_sums([part[3] for part in parts])
    positives_before = running_sums([part[4] for part in parts])
    weight, weight_low = _double_double(weight_before[-1])
    positives, positives_low = _double_double(positives_before[-1])
    return Layout(
        first=np.array([part[0] for part in parts]),
        last=parts[-1][1],
        n_points=sum(part[2] for part in parts),
        weight=weight,
        weight_low=weight_low,
        positives=positives,
        positives_low=positives_low,
        weight_before=tuple(weight_before[:-1]),
        positives_before=tuple(positives_before[:-1]),
    )


def running_sums(parts: list[Array]) -> list[Array]:
    """Return the exact sums before each part and the total, as expansions. parts : the sum of each part."""
    running = [np.empty(0)]
    for part in parts:
        running.append(expansion_of(np.concatenate([running[-1], part])))
    return running


def _double_double(expansion: Array) -> tuple[float, float]:
    high = sums.exact_sum(expansion)
    return high, sums.exact_sum(np.append(expansion, -high))


def equal_frequency_targets(total: float, bins: int) -> Array:
    """Return the cumulative weights at the ends of equal-frequency bins except the last: total j / bins, ascending."""
    return total * np.arange(1, bins) / bins


def cuts_pass(layout: Layout, targets: Array, *, balanced: bool = False) -> Pass:
    """Return the pass that yields the `Cuts` after the first point whose position reaches each target.

    So a cut never divides a tie. Equal cuts are merged and cuts without weight above them are dropped, so every bin
    between cuts has a weight > 0. O(points + targets).

    targets : float64 array, ascending: cumulative weights; shares if `balanced`
    balanced : see `cut_positions`
    """
    before = [_rounded_sums(expansions) for expansions in (layout.weight_before, layout.positives_before)]
    starts = np.maximum.accumulate(cut_positions(layout, *before, balanced=balanced))
    targets = targets[targets < (1.0 if balanced else layout.weight)]
    # A target is in the last part that starts below it.
    parts = np.unique(np.searchsorted(starts, targets, side="left") - 1)
    return Pass(
        chunk=partial(_cuts_in_part, layout, targets, balanced),
        combine=_join_cuts,
        only=_first_scores(layout, parts),
    )


def _rounded_sums(expansions: Sequence[Array]) -> Array:
    return np.array([sums.exact_sum(expansion) for expansion in expansions])


def _first_scores(layout: Layout, parts: Integers) -> frozenset[float]:
    return frozenset(layout.first[parts].tolist())


def _cuts_in_part(layout: Layout, targets: Array, balanced: bool, points: Points) -> Cuts:
    start, positions = cut_positions_in_part(layout, points, balanced=balanced)
    indices = np.unique(np.searchsorted(positions, targets[targets > start], side="left"))
    return cuts_after(layout, points, indices[indices < points.score.size])


def cut_positions(layout: Layout, weight: Array, positives: Array, *, balanced: bool) -> Array:
    """Return the positions that are compared with the targets of cuts: by default, the cumulative weight.

    weight, positives : correctly rounded cumulative sums
    balanced : use the mean of the cumulative shares of the weight and of the rarer label instead, so that half of the
        cuts follow the rows and half the rarer label
    """
    if not balanced:
        return weight
    few_positives = 2 * layout.positives <= layout.weight
    rarer = positives if few_positives else weight - positives
    total = layout.positives if few_positives else layout.weight - layout.positives
    share = weight / layout.weight
    return share if total <= 0 else (share + rarer / total) / 2


def cut_positions_in_part(layout: Layout, points: Points, *, balanced: bool) -> tuple[float, Array]:
    """Return the `cut_positions` before a part and at each of its points; ascending."""
    part = layout.part_of(points)
    before = layout.weight_before[part], layout.positives_before[part]
    weight = sums.prefix_sums(points.weight, before[0])
    positives = sums.prefix_sums(points.positives, before[1]) if balanced else weight
    start = cut_positions(layout, *(_rounded_sums([expansion]) for expansion in before), balanced=balanced)[0]
    return float(start), ascending_positions(layout, weight, positives, float(start), balanced=balanced)


def ascending_positions(
    layout: Layout, weight: Array, positives: Array, start: float, *, balanced: bool
) -> Array:
    """Replace cumulative weights by their `cut_positions`, and return these. start : the position before them."""
    # In place: new arrays of a part's length would cost more than the sums.
    for block in blocks_of(Points(weight, weight, positives)):
        block.weight[:] = cut_positions(layout, block.weight, block.positives, balanced=balanced)
    # Rounded sums of weights are subtracted, so the positions may not ascend without this.
    return np.maximum.accumulate(np.maximum(weight, start, out=weight), out=weight)


def cuts_after(layout: Layout, points: Points, index: Integers) -> Cuts:
    """Return the cuts after the given points of a part, except cuts without weight above. index : ascending."""
    part = layout.part_of(points)
    counts = counts_at(layout, part, points, index + 1)
    above = points.score[np.minimum(index + 1, points.score.size - 1)]
    above[index == points.score.size - 1] = layout.score_after(part)
    valid = (counts.weight < layout.weight) & np.isfinite(above)
    return Cuts(points.score[index][valid], above[valid], Counts(*(column[valid] for column in counts)))


def _join_cuts(parts: list[Cuts]) -> Cuts:
    return Cuts(
        np.concatenate([np.empty(0), *(part.below for part in parts)]),
        np.concatenate([np.empty(0), *(part.above for part in parts)]),
        join_counts([part.counts for part in parts]),
    )


def counts_below_pass(layout: Layout, edges: Array) -> Pass:
    """Return the pass that yields the cumulative `Counts` of the points with score < edge, for ascending edges."""
    parts = np.unique(np.maximum(np.searchsorted(layout.first, edges, side="left") - 1, 0))
    return Pass(
        chunk=partial(_counts_below_in_part, layout, edges),
        combine=join_counts,
        only=_first_scores(layout, parts),
    )


def _counts_below_in_part(layout: Layout, edges: Array, points: Points) -> Counts:
    part = layout.part_of(points)
    low = 0 if part == 0 else np.searchsorted(edges, layout.first[part], side="right")
    high = np.searchsorted(edges, layout.score_after(part), side="right")
    return counts_at(layout, part, points, np.searchsorted(points.score, edges[low:high]))


def counts_at(layout: Layout, part: int, points: Points, stops: Integers) -> Counts:
    """Return the cumulative counts up to the first `stops` points of a part. stops : ascending."""
    weight = sums.sums_through(points.weight, layout.weight_before[part], stops)
    positives = sums.sums_through(points.positives, layout.positives_before[part], stops)
    return Counts(*weight, *positives)


def gather_pass() -> Pass:
    """Return the pass that yields the points themselves, for small numbers of points."""
    return Pass(chunk=Points._make, combine=join_points)


def join_points(parts: list[Points]) -> Points:
    """Concatenate the points of parts."""
    return Points(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def join_counts(parts: list[Counts]) -> Counts:
    """Concatenate the counts of parts."""
    nothing = Counts(*(np.empty(0) for _ in Counts._fields))
    return Counts(*(np.concatenate(column) for column in zip(nothing, *parts, strict=True)))


def bin_counts(layout: Layout, counts: Counts) -> tuple[Array, Array]:
    """Return weight and positives of the bins between cumulative counts: shape (edges + 1,), positives <= weight."""
    weight = _differences(counts.weight, counts.weight_low, layout.weight, layout.weight_low)
    positives = _differences(counts.positives, counts.positives_low, layout.positives, layout.positives_low)
    return weight, np.minimum(positives, weight)


def _differences(high: Array, low: Array, total: float, total_low: float) -> Array:
    high = np.concatenate([[0.0], high, [total]])
    low = np.concatenate([[0.0], low, [total_low]])
    return np.maximum(np.diff(high) + np.diff(low), 0.0)
