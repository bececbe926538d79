"""Groups of consecutive observations in score order, each a point of its own: its mean score and its sums.

Groups end at fixed cumulative weights, so no cut between parts can move them. Cumulative sums are exact before they
are rounded once (see `calibrators.arithmetic.cumulative`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from calibrators._kernels import cumulative
from calibrators.arithmetic import ties
from calibrators.arithmetic.cumulative import Indices, Layout, PartTotals, layout_of, part_totals, summable
from calibrators.arithmetic.double_double import expansion_of
from calibrators.arithmetic.passes import Array, Pass, Points

_BEFORE_ALL = np.zeros(1, np.int64)


@dataclass(frozen=True)
class _Start:
    """What precedes each part: counts, and sums of weight times score as expansions, one more for the total."""

    layout: Layout
    moments: tuple[Array, ...]


class _Ends(NamedTuple):
    """Where groups end; float64 arrays of one shape, ascending.

    weight : cumulative weight there. positives, moment : the same for positive labels and for weight times score,
    with their low parts. last, following : the scores of the observations before and after.
    """

    weight: Array
    positives: Array
    positives_low: Array
    moment: Array
    moment_low: Array
    last: Array
    following: Array


def start_pass() -> Pass:
    """The first pass: the counts of each part, and its sum of weight times score."""
    return Pass(chunk=_part_start, combine=_join_starts)


def groups_pass(start: _Start, group_size: int) -> Pass:
    """The second pass: gathers the `Points` of the groups, 56 bytes a group from the parts."""
    return Pass(chunk=partial(_ends_in_part, start, float(group_size)), combine=partial(_join_groups, start))


def _part_start(points: Points) -> tuple[PartTotals, Array]:
    return part_totals(points), expansion_of(_moments(points))


def _moments(points: Points) -> Array:
    with np.errstate(over="ignore"):
        return summable(points.weight * points.score)


def _join_starts(parts: list[tuple[PartTotals, Array]]) -> _Start:
    moments = [np.empty(0)]
    for _, moment in parts:
        moments.append(expansion_of(np.concatenate([moments[-1], moment])))
    return _Start(layout_of([totals for totals, _ in parts]), tuple(moments))


def _ends_in_part(start: _Start, size: float, points: Points) -> _Ends:
    """Where groups end inside a part.

    A point may hold many ends; all groups between its first and its last have its score and its level, so two ends
    are enough. Its weight and its positives are shared in proportion.
    """
    layout = start.layout
    part = layout.part_of(points)
    after = cumulative.prefix_sums(points.weight, layout.weight_before[part])
    before = np.concatenate(
        [cumulative.sums_through(points.weight, layout.weight_before[part], _BEFORE_ALL)[0], after[:-1]]
    )
    first, last = np.floor(before / size) + 1.0, np.floor(after / size)
    index = np.flatnonzero(last >= first)
    ends = np.column_stack([first[index], last[index]])
    index, ends = np.repeat(index, 2), ends.ravel()
    distinct = np.append(True, (np.diff(index) > 0) | (np.diff(ends) > 0))[: index.size]
    index, ends = index[distinct], ends[distinct]
    # Rounding may put an end beside its point.
    at = np.clip(ends * size, before[index], after[index])
    whole = at == after[index]
    share = np.where(whole, 1.0, (at - before[index]) / points.weight[index])
    following = np.append(points.score[1:], layout.score_after(part))
    return _Ends(
        at,
        *_sums_at(points.positives, layout.positives_before[part], index, share),
        *_sums_at(_moments(points), start.moments[part], index, share),
        points.score[index],
        np.where(whole, following[index], points.score[index]),
    )


def _sums_at(values: Array, carry: Array, index: Indices, share: Array) -> tuple[Array, Array]:
    """Cumulative sums up to a share of the points at `index`, as double-doubles."""
    high, low = cumulative.sums_through(values, carry, index)
    with np.errstate(invalid="ignore", over="ignore"):
        added = values[index] * share
        total = high + added
        rest = total - high
        return total, (high - (total - rest)) + (added - rest) + low


def _join_groups(start: _Start, parts: list[_Ends]) -> Points:
    layout = start.layout
    ends = [np.concatenate(column) for column in zip(*parts, strict=True)]
    inside = ends[0] < layout.weight
    at, positives, positives_low, moment, moment_low, last, following = (column[inside] for column in ends)
    moment_total = cumulative.sums_through(np.empty(0), start.moments[-1], _BEFORE_ALL)
    weight = np.diff(at, prepend=0.0, append=layout.weight)
    hits = np.diff(positives, prepend=0.0, append=layout.positives)
    hits += np.diff(positives_low, prepend=0.0, append=layout.positives_low)
    with np.errstate(invalid="ignore", over="ignore"):
        mean = np.diff(moment, prepend=0.0, append=moment_total[0])
        mean += np.diff(moment_low, prepend=0.0, append=moment_total[1])
    some = weight > 0
    lowest = np.concatenate([layout.first[:1], following])[some]
    highest = np.append(last, layout.last)[some]
    with np.errstate(invalid="ignore", over="ignore"):
        mean = mean[some] / weight[some]
    # Sums beyond the largest double: the middle of the group.
    mean = np.where(np.isfinite(mean), mean, lowest / 2 + highest / 2)
    mean = np.clip(mean, lowest, highest) + 0.0
    hits = np.clip(hits[some], 0.0, weight[some])
    return Points(*ties.sum_ties(_without_rounding(mean), weight[some], hits))


def _without_rounding(mean: Array) -> Array:
    """Ascending means, of which those that rounding alone has made different are equal."""
    with np.errstate(over="ignore"):
        apart = np.diff(mean) > 4 * np.spacing(np.abs(mean[:-1]))
    starts = np.append(True, apart)
    first: Array = mean[np.flatnonzero(starts)[np.cumsum(starts) - 1]]
    return first
