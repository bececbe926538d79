"""Exact sums over the parts of a score table: two passes, and where ties straddle borders.

Sums are fractions: weights and probabilities are doubles, so sums and products of them are exact, and shares of
ties too. There are a few hundred sums a part, made by kernels, and a few thousand operations on fractions in all.
"""

from __future__ import annotations

import functools
import operator
from bisect import bisect_left
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from calibrators._kernels import count_sums
from calibrators._kernels import measures as kernels
from calibrators._kernels.accumulators import merge
from calibrators.arithmetic.passes import Array, Points

Predict = Callable[[Array], Array]
"""Scores to probabilities in [0, 1] that do not decrease with the score; picklable."""


class Sums(NamedTuple):
    """Exact sums over observations: weight, positives, weight times probability, squares of the weights."""

    weight: Fraction
    positives: Fraction
    predicted: Fraction
    squares: Fraction

    def plus(self, other: Sums, times: Fraction | int = 1) -> Sums:
        """The sums of both; the other's taken so many times."""
        # Operations on fractions are most of what a small segment's measures take.
        if other is NOTHING:
            return self
        if times == 1:
            return other if self is NOTHING else Sums(*map(operator.add, self, other))
        if times == -1:
            return Sums(*map(operator.sub, self, other))
        return Sums(*(a + b * times for a, b in zip(self, other, strict=True)))


_ZERO = Fraction(0)
NOTHING = Sums(_ZERO, _ZERO, _ZERO, _ZERO)


Targets = dict[float, tuple[Array, Array]]
"""First score of each part in which groups end, to the exact weight before it (an expansion) and the cumulative
weights in it at which they end."""


# The first pass: totals, and what each part begins and ends with.


class PartState(NamedTuple):
    """What the first pass keeps of a part; sums as expansions, padded with zeros."""

    first: float  # score
    low: float  # first prediction
    high: float  # last prediction
    whole: bool  # numbers all
    sums: Array  # (segments, 4, components)
    losses: Array  # (3, components)
    rank: Array  # (components,)
    low_tie: Array  # (4, components): of the points tied with the first
    high_tie: Array  # (4, components): with the last
    ends: Ends | None  # of groups, where they were expected


class Part(NamedTuple):
    """A part, and what lies before it."""

    first: float
    low: float
    high: float
    total: Sums
    low_tie: Sums
    high_tie: Sums
    before: Fraction  # weight of the parts before
    below: Sums  # sums of the parts before


class Totals(NamedTuple):
    """What the first pass tells of all parts."""

    parts: list[Part]
    segments: list[Sums]  # between the edges
    total: Sums
    rank: Fraction  # see kernels.rank_sum
    squared: Fraction  # errors
    logs: Fraction  # log losses, where finite
    infinite: Fraction  # weight of the others
    whole: bool
    ends: list[Ends | None]  # of groups, where they were expected

    @property
    def lowest(self) -> float:
        """The lowest prediction."""
        return self.parts[0].low

    @property
    def highest(self) -> float:
        """The highest prediction."""
        return self.parts[-1].high

    @property
    def probabilities(self) -> bool:
        """Whether all predictions lie in [0, 1]."""
        return self.lowest >= 0 and self.highest <= 1


class Entries(NamedTuple):
    """Predictions of a part with weight and positives; `squares` only where both are counts: see `count_sums`."""

    p: Array
    w: Array
    k: Array
    squares: npt.NDArray[np.int64] | None
    whole: bool

    def of(self, part: slice) -> Entries:
        """Some of the entries."""
        squares = None if self.squares is None else self.squares[part]
        return Entries(self.p[part], self.w[part], self.k[part], squares, self.whole)

    def sums(self, edges: Array, *, products: bool = True) -> Array:
        """Between ascending edges: see `measures.segment_sums`."""
        if self.squares is None:
            p = self.p if products else np.clip(self.p, 0, 1)
            found: Array = kernels.segment_sums(p, self.w, self.k, edges)
        else:
            depth = count_sums.PRODUCTS if products else count_sums.WEIGHTS
            found = count_sums.sums_of_counts(*self[:4], _bounds(self.p, edges), depth)[0]
        return found


def _bounds(p: Array, edges: Array) -> npt.NDArray[np.int64]:
    return np.concatenate([[0], np.searchsorted(p, edges), [p.size]])


def entries_of(predict: Predict | None, points: Points) -> Entries:
    """A part's predictions in ascending order, ties joined where that is quick.

    Raises
    ------
    ValueError
        If predict decreases, or leaves [0, 1].
    """
    score, w, k = points
    counts, whole = kernels.counts_and_whole(w, k)
    if predict is None:
        return Entries(score, w, k, np.empty(0, np.int64) if counts else None, whole)
    p = predict(score)
    if not (kernels.ascending(p) and p[0] >= 0 and p[-1] <= 1):
        raise ValueError(_NOT_MONOTONE)
    if counts:
        q, v, h, squares = count_sums.join_ties(p, w, k)
        return Entries(q, v, h, squares, whole)
    return Entries(p, w, k, None, whole)


_NOT_MONOTONE = (
    "expected probabilities in [0, 1] that do not decrease with the score: for a map that does, measure a table "
    "whose scores are the calibrated probabilities"
)


def first_chunk(predict: Predict | None, edges: Array, targets: Targets | None, points: Points) -> PartState:
    """The first pass on a part; sums in the segments between ascending edges inside (0, 1).

    targets : where groups are expected to end, if known beforehand.
    """
    entries = entries_of(predict, points)
    p, w, k = entries[:3]
    probabilities = p[0] >= 0 and p[-1] <= 1
    if entries.squares is None:
        # Outside [0, 1] only the sums of weights are used, and products must not overflow.
        q = p if probabilities else np.clip(p, 0.0, 1.0)
        sums, losses, rank = (
            kernels.segment_sums(q, w, k, edges),
            kernels.loss_sums(q, w, k),
            kernels.rank_sum(p, w, k),
        )
    else:
        depth = count_sums.LOSSES if probabilities else count_sums.WEIGHTS
        sums, losses, rank = count_sums.sums_of_counts(*entries[:4], _bounds(p, edges), depth)
    none = np.empty(0)
    start, stop = int(np.searchsorted(p, p[0], side="right")), int(np.searchsorted(p, p[-1]))
    return PartState(
        first=float(points.score[0]),
        low=float(p[0]),
        high=float(p[-1]),
        whole=entries.whole,
        sums=sums,
        losses=losses,
        rank=rank,
        low_tie=entries.of(slice(start)).sums(none, products=probabilities)[0],
        high_tie=entries.of(slice(stop, None)).sums(none, products=probabilities)[0],
        ends=_ends(entries, float(points.score[0]), targets) if probabilities and targets else None,
    )


def exact(components: Array) -> Fraction:
    """The exact sum of the components of an expansion."""
    return _sum_of(components.tolist())


def _sum_of(components: Sequence[float]) -> Fraction:
    found = [Fraction(component) for component in components if component]
    return functools.reduce(operator.add, found) if found else _ZERO


def _exact_sums(rows: Array) -> Sums:
    return Sums(*map(_sum_of, rows.tolist()))


def add_sums(parts: list[Array]) -> list[Sums]:
    """Segment by segment over the parts."""
    segments = parts[0].shape[0]
    rows = merge(np.concatenate([part.reshape(4 * segments, -1) for part in parts], axis=1))
    return [_exact_sums(rows[4 * j : 4 * j + 4]) for j in range(segments)]


def add_up(states: list[PartState]) -> Totals:
    """The totals of parts in ascending order.

    Raises
    ------
    ValueError
        If predictions of one part lie below those of the part before.
    """
    parts: list[Part] = []
    below = NOTHING
    tied = NOTHING
    rank = Fraction(0)
    for state in states:
        if parts and state.low < parts[-1].high:
            raise ValueError(_NOT_MONOTONE)
        total = _exact_sums(merge(state.sums.swapaxes(0, 1).reshape(4, -1)))
        low_tie, high_tie = _exact_sums(state.low_tie), _exact_sums(state.high_tie)
        part = Part(state.first, state.low, state.high, total, low_tie, high_tie, below.weight, below)
        # All of a part before counts as below, but for what is tied with this part's first points.
        tied = _still_tied(tied, parts, state.low)
        rank += exact(state.rank) + 2 * total.positives * below.weight
        rank += tied.positives * low_tie.weight - low_tie.positives * tied.weight
        parts.append(part)
        below = below.plus(total)
    squared, logs, infinite = merge(np.concatenate([state.losses for state in states], axis=1))
    return Totals(
        parts=parts,
        segments=add_sums([state.sums for state in states]),
        total=below,
        rank=rank,
        squared=exact(squared),
        logs=exact(logs),
        infinite=exact(infinite),
        whole=all(state.whole for state in states),
        ends=[state.ends for state in states],
    )


def _still_tied(tied: Sums, parts: list[Part], prediction: float) -> Sums:
    """Sums of the points with this prediction at the end of the parts, from what were tied one part ago."""
    if not parts or parts[-1].high != prediction:
        return NOTHING
    last = parts[-1]
    return tied.plus(last.high_tie) if last.low == prediction else last.high_tie


def _tied_before(parts: list[Part], prediction: float) -> Sums:
    """Sums of the points with this prediction at the end of the parts."""
    tied = NOTHING
    for part in reversed(parts):
        if part.high != prediction:
            break
        tied = tied.plus(part.high_tie)
        if part.low != prediction:
            break
    return tied


# The second pass: where equal-frequency groups end.


def group_ends(weight: Fraction, bins: int, *, whole: bool) -> list[float]:
    """Cumulative weights at which groups end, but the last.

    Whole numbers count rows: groups of whole rows, the first (rows mod bins) of them one larger. Other weights:
    equal shares, rounded to doubles.
    """
    if whole:
        size, larger = divmod(int(weight), bins)
        return [float(i * size + min(i, larger)) for i in range(1, bins)]
    return [float(weight * i / bins) for i in range(1, bins)]


def targets_of(totals: Totals, bins: int) -> Targets:
    """Where groups end."""
    parts = [(part.first, part.total.weight) for part in totals.parts]
    return _targets(parts, bins, whole=totals.whole)


def expected_targets(parts: Sequence[tuple[float, Array]], bins: int) -> Targets:
    """Where groups end if weights are whole numbers wherever they add up to one.

    parts : of each the first score, and the weight as an expansion
    """
    weights = [(first, exact(weight)) for first, weight in parts]
    return _targets(weights, bins, whole=sum(weight for _, weight in weights).denominator == 1)


def _targets(parts: list[tuple[float, Fraction]], bins: int, *, whole: bool) -> Targets:
    ends = list(accumulate(weight for _, weight in parts))
    found: dict[int, list[float]] = {}
    for target in group_ends(ends[-1], bins, whole=whole):
        found.setdefault(bisect_left(ends, target, hi=len(ends) - 1), []).append(target)
    return {parts[i][0]: (_expansion(ends[i] - parts[i][1]), np.array(inside)) for i, inside in found.items()}


def same_targets(one: Targets, other: Targets) -> bool:
    """Whether groups end at the same weights of the same parts."""
    return one.keys() == other.keys() and all(
        np.array_equal(a, b) for first in one for a, b in zip(one[first], other[first], strict=True)
    )


def _expansion(value: Fraction) -> Array:
    components = []
    while value:
        components.append(float(value))
        value -= Fraction(components[-1])
    return np.array(components[::-1], dtype=np.float64)


class Ends(NamedTuple):
    """Where groups end in a part."""

    first: float  # score of the part
    targets: Array  # cumulative weights
    prediction: Array  # at which each target is reached
    edges: Array  # each of those predictions, and the next double
    sums: Array  # of the part, between the edges


def second_chunk(predict: Predict | None, targets: Targets, points: Points) -> Ends | None:
    """The second pass on a part; None where no group ends in it."""
    first = float(points.score[0])
    return _ends(entries_of(predict, points), first, targets) if first in targets else None


def _ends(entries: Entries, first: float, targets: Targets) -> Ends | None:
    if first not in targets:
        return None
    carry, inside = targets[first]
    prediction = entries.p[kernels.crossings(entries.w, carry, inside, entries.squares is not None)]
    edges = np.unique(np.concatenate([prediction, np.nextafter(prediction, np.inf)]))
    return Ends(first, inside, prediction, edges, entries.sums(edges))


def not_none(states: list[Ends | None]) -> list[Ends]:
    """The parts in which groups end."""
    return [state for state in states if state is not None]


def groups_of(totals: Totals, found: list[Ends]) -> tuple[list[float], list[Sums]]:
    """Predictions at which the groups end, and the groups' sums."""
    index = {part.first: i for i, part in enumerate(totals.parts)}
    ends, cumulative = [], [NOTHING]
    for part_ends in found:
        between = [_exact_sums(rows) for rows in part_ends.sums]
        upto = list(accumulate(between, Sums.plus, initial=totals.parts[index[part_ends.first]].below))
        edges = part_ends.edges.tolist()
        for target, prediction in zip(part_ends.targets.tolist(), part_ends.prediction.tolist(), strict=True):
            j = bisect_left(edges, prediction)
            before, tie = _whole_tie(totals.parts, index[part_ends.first], prediction, between[j + 1])
            below = upto[j + 1].plus(before, -1)
            cumulative.append(below.plus(tie, (Fraction(target) - below.weight) / tie.weight))
            ends.append(prediction)
    cumulative.append(totals.total)
    return ends, [upper.plus(lower, -1) for lower, upper in pairwise(cumulative)]


def _whole_tie(parts: list[Part], i: int, prediction: float, inside: Sums) -> tuple[Sums, Sums]:
    """Sums of a tie that part i has a share of: in the parts before, and over all parts."""
    before = _tied_before(parts[:i], prediction) if parts[i].low == prediction else NOTHING
    tie = before.plus(inside)
    if parts[i].high == prediction:
        for part in parts[i + 1 :]:
            if part.low != prediction:
                break
            tie = tie.plus(part.low_tie)
            if part.high != prediction:
                break
    return before, tie


def histogram_chunk(edges: Array, points: Points) -> Array:
    """Sums of a part's scores, of any range, between ascending edges: see kernels.segment_sums."""
    score, w, k = points
    within: Array = np.searchsorted(edges, score, side="right") / (edges.size + 1)
    return entries_of(None, Points(within, w, k)).sums(np.arange(1, edges.size + 1) / (edges.size + 1))
