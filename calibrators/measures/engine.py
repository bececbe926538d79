"""The measuring engine: sums over sorted predictions, accumulated, merged over parts, and finished once.

A *column* is a set of predictions of rows. A whole log is one column in several parts; a million segments are a million
columns of a few points each. `accumulate_columns` computes the sums of complete columns, `part_state` those of a part
of a column, and `merge` adds parts up. Measures are then computed from the sums of all columns at once: see
`predictions`, `certainty`, `decomposition` and `spread`.

Equal predictions are one point, even if two parts share it: a part keeps its first and its last point separately, and
`merge` joins equal ones before it adds them. All sums are double-doubles, and measures are rounded to 12 significant
digits, so that they do not depend on how a log was cut.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from calibrators.core.arrays import Array, Integers, Mask
from calibrators.core.double_double import Pair
from calibrators.core.kernels import pava
from calibrators.core.passes import Blocks, Pass, Points
from calibrators.core.pava import pool_points
from calibrators.core.sampling import odds_divided
from calibrators.measures import kernels

Predict = Callable[[Array], Array]
"""Scores to probabilities in [0, 1] that do not decrease with the score; picklable."""

NOT_MONOTONE = (
    "expected probabilities in [0, 1] that do not decrease with the score: for a map that does, measure a table "
    "whose scores are the calibrated probabilities"
)

MOST_DISTINCT = 20_000
"""Number of distinct predictions of a column up to which each has a cell of its own."""

_BLOCK = 1 << 15
_SLACK = 1e-13
"""Relative rounding error allowed for limits of weights that are not counts."""
_CELLS = 512
"""Number of cells per unit of log odds, for more distinct predictions."""


@dataclass(frozen=True)
class MeasureOptions:
    """Options of measuring predictions.

    Attributes
    ----------
    predict : map from scores to predictions that does not decrease; None: the scores are the predictions
    edges : inner edges of bins of predictions, ascending
    rate : for a log of sampled rows, the kept share of the negatives divided by that of the positives. Sums describe
        all rows: a negative weighs 1 / rate
    odds : the same rate, for sums of the sampled rows themselves, which valid tests need: predictions, which describe
        all rows, are converted to the odds of the sampled log
    blocks, cells : whether to compute the isotonic blocks of the predictions, and their cells
    """

    predict: Predict | None = None
    edges: tuple[float, ...] = ()
    rate: float = 1.0
    odds: float = 1.0
    blocks: bool = False
    cells: bool = False


class PredictionCells(NamedTuple):
    """Cells of predictions: distinct ones; in columns of more than 20,000, intervals of log odds of width 1 / 512.

    Predictions of 0 and of 1 always have their own cells.

    key : float64 array: number of each cell's interval. low, high : lowest and highest prediction in each cell
    sums : float64 array, shape (2, 2, cells): weight and positives, as high and low parts
    starts : index of each column's first cell, and the number of cells
    """

    key: Array
    low: Array
    high: Array
    sums: Array
    starts: Integers


@dataclass(frozen=True)
class Sums:
    """Sums of columns; the first axis of each array runs over the columns.

    Attributes
    ----------
    low, high : lowest and highest prediction
    integral : bool: whether all weights are whole numbers
    scale : factor of weights in the sums of the ranking: a power of two
    values : Pair, shape (columns, `kernels.SUMS`)
    edges : float64 array: inner edges of bins
    at_edges : Pair, shape (columns, edges, `kernels.BINNED`): sums below each edge
    targets : shape (columns, limits): cumulative weights at which groups end
    below : Pair, shape (columns, limits, `kernels.BINNED`): sums before the point that reaches each target
    ties : shape (columns, limits, 4): prediction, weight, positives and squares of that point; NaN if none reaches it
    """

    low: Array
    high: Array
    integral: Mask
    scale: Array
    values: Pair
    edges: Array
    at_edges: Pair
    targets: Array
    below: Pair
    ties: Array

    def column(self, i: int, limits: int, points: Array) -> Sums:
        """Extract column i of sums of single points; its point reaches every limit."""
        part = slice(i, i + 1)
        zero = np.zeros((1, limits, kernels.BINNED))
        row = {
            name: getattr(self, name)[part]
            for name in ("low", "high", "integral", "scale", "values", "at_edges")
        }
        return replace(self, **row, below=Pair(zero, zero), ties=np.broadcast_to(points[i], (1, limits, 4)))

    def of(self, term: int) -> Pair:
        """Sum number `term` of each column."""
        return self.values[:, term]

    @property
    def ranked(self) -> tuple[Pair, Pair]:
        """Positives and negatives in the scale of the ranking's sums."""
        hits = self.of(kernels.POSITIVES)
        return hits * self.scale, (self.of(kernels.WEIGHT) - hits) * self.scale

    @property
    def probabilities(self) -> Mask:
        """Tell whether all predictions of a column lie in [0, 1]."""
        return np.asarray((self.low >= 0) & (self.high <= 1))


# Points with ties joined.


class _Joined(NamedTuple):
    """Points of columns with ties joined.

    squares : sums of squared weights; None if there were no ties: then they are the squares of the weights
    low : float64 array, shape (3, m): low parts of weights, positives and squares; None if they are 0
    """

    p: Array
    w: Array
    k: Array
    starts: Integers
    squares: Array | None = None
    low: Array | None = None

    def inner(self) -> _Joined:
        """One column without its first and its last prediction."""
        inner, squares = slice(1, -1), self.squares
        starts = np.array([0, self.p.size - 2])
        return _Joined(
            self.p[inner], self.w[inner], self.k[inner], starts, None if squares is None else squares[inner]
        )

    def end(self, i: int) -> EndPoint:
        """Point i of a single column."""
        w, k = float(self.w[i]), float(self.k[i])
        square = w * w if self.squares is None else float(self.squares[i])
        lows = [0.0] * 3 if self.low is None else self.low[:, i].tolist()
        return EndPoint(float(self.p[i]), [list(pair) for pair in zip((w, k, square), lows, strict=True)])


def _join_ties(points: Points, starts: Integers) -> _Joined:
    p, w, k = points
    tied = p[1:] == p[:-1]
    tied[starts[1:-1] - 1] = False
    if not tied.any():
        return _Joined(p, w, k, starts)
    first, sums, starts = _add_up_ties(p, ((w,), (k,), (w * w,)), starts)
    weight, positives, squares = sums[:, 0]
    return _Joined(p[first], weight, np.minimum(positives, weight), starts, squares, sums[:, 1])


def _add_up_ties(
    keys: Array, columns: Sequence[Sequence[Array]], starts: Integers
) -> tuple[Integers, Array, Integers]:
    """Join neighbours with equal keys within each column.

    columns : arrays to add up for each sum. Returns the first index of each joined entry; the sums as high and low
    parts, shape (sums, 2, joined); and the new starts of the columns.
    """
    is_first = np.append(True, keys[1:] != keys[:-1])
    is_first[starts[:-1]] = True
    first = np.flatnonzero(is_first)
    ends, sums = np.append(first, keys.size), np.zeros((len(columns), 2, first.size, 1))
    for total, addends in zip(sums, columns, strict=True):
        for addend in addends:
            kernels.add_terms(np.ascontiguousarray(addend)[np.newaxis], ends, total)
    return first, sums[..., 0], np.searchsorted(first, starts)


# Accumulating.


def _sums(joined: _Joined, options: MeasureOptions, targets: Array, limits: Array) -> Sums:
    """Compute the sums of columns. limits : targets minus the weight of earlier parts, with slack for rounding."""
    p, w, k, starts, squares, _ = joined
    columns, edges = starts.size - 1, np.array(options.edges)
    sums = np.zeros((columns, 2, kernels.SUMS))
    upto = np.zeros((columns, edges.size, 2, kernels.BINNED))
    below = np.zeros((columns, limits.shape[1], 2, kernels.BINNED))
    ties = np.full((columns, limits.shape[1], 4), np.nan)
    integral = _are_integral(joined)
    total, largest = np.add.reduceat(w, starts[:-1]), np.maximum.reduceat(w, starts[:-1])
    # Powers of two that keep the third power of weights in the range of doubles; 1 for weights of rows.
    extreme = (largest > 2.0**60) | (largest < 2.0**-60)
    scale = np.where(extreme, np.ldexp(1.0, -np.frexp(largest)[1]), 1.0)
    exact = integral & (total * np.sqrt(largest) < 2.0**25)
    state = (sums, np.zeros((columns, 2), np.int64), upto, below, ties)
    # A long column is summed in blocks, so that temporary arrays stay in the processor's cache.
    step = _BLOCK if columns == 1 else p.size
    for i in range(0, p.size, step):
        block = slice(i, i + step)
        # Predictions may be scores outside [0, 1]; their losses are not used.
        with np.errstate(all="ignore"):
            probability = p[block] if options.odds == 1.0 else odds_divided(p[block], 1 / options.odds)
            losses = (-np.log(probability), -np.log1p(-probability))
        kernels.accumulate(
            (p[block], w[block], k[block], probability, np.empty(0) if squares is None else squares[block]),
            losses,
            (np.array([0, probability.size]) if columns == 1 else starts, scale, exact),
            state,
            (edges, limits),
            options.rate,
        )
    return Sums(
        low=p[starts[:-1]],
        high=p[starts[1:] - 1],
        integral=integral,
        scale=scale,
        values=Pair(sums[:, 0], sums[:, 1]),
        edges=edges,
        at_edges=Pair(upto[:, :, 0], upto[:, :, 1]),
        targets=targets,
        below=Pair(below[:, :, 0], below[:, :, 1]),
        ties=ties,
    )


def _are_integral(joined: _Joined) -> Mask:
    """Tell for each column whether all its weights and positives are whole numbers."""
    if joined.starts.size > 2:
        fractional = (joined.w != np.floor(joined.w)) | (joined.k != np.floor(joined.k))
        return ~np.logical_or.reduceat(fractional, joined.starts[:-1])
    blocks = (column[i : i + _BLOCK] for column in joined[1:3] for i in range(0, column.size, _BLOCK))
    return np.array([all(np.array_equal(block, np.floor(block)) for block in blocks)])


def group_targets(weight: Array, integral: Mask, groups: int) -> Array:
    """Cumulative weights at which groups of equal weight end, except the last. Shape (columns, groups - 1).

    Whole weights count rows: then groups have whole numbers of rows, the first (rows mod groups) groups one row more.
    """
    i = np.arange(1, groups)
    size, remainder = np.divmod(weight, groups)
    counted = i * size[:, None] + np.minimum(i, remainder[:, None])
    return np.where(integral[:, None], counted, weight[:, None] * i / groups)


def _reweighted(options: MeasureOptions, points: Points) -> Points:
    p, w, k = points
    return points if options.rate == 1.0 else Points(p, k + (w - k) / options.rate, k)


def accumulate_columns(points: Points, starts: Integers, options: MeasureOptions, groups: int) -> Sums:
    """Compute the sums of columns of predictions, stored one after the other.

    points : points of all columns, ascending within each
    starts : int64 array: index of each column's first point, and the number of points; no column is empty
    groups : number of groups of equal weight
    """
    joined = _join_ties(_reweighted(options, points), starts)
    weight = np.zeros((2, starts.size - 1, 1))
    kernels.add_terms(joined.w[None], joined.starts, weight)
    targets = group_targets(weight[0, :, 0], _are_integral(joined), groups)
    return _sums(joined, options, targets, targets * (1 - _SLACK))


def sum_terms(
    terms: Callable[..., list[Array]], columns: tuple[Array, ...], starts: Integers | None = None
) -> Pair:
    """Sum functions of points over columns stored one after the other; shape (columns, terms).

    terms : function from arrays of points to one array of the same length for each term
    starts : see `accumulate_columns`; None: all points are one column
    """
    starts = np.array([0, columns[0].size]) if starts is None else starts
    sums = None
    for first in range(0, columns[0].size, _TERM_BLOCK):
        last = min(first + _TERM_BLOCK, columns[0].size)
        values = np.stack(terms(*(column[first:last] for column in columns)))
        if sums is None:
            sums = np.zeros((2, starts.size - 1, values.shape[0]))
        # Columns i to j have points in this block.
        i, j = np.searchsorted(starts, first, side="right") - 1, np.searchsorted(starts, last)
        kernels.add_terms(values, np.clip(starts[i : j + 1], first, last) - first, sums[:, i:j])
    return Pair(*np.zeros((2, 1, 1)) if sums is None else sums)


_TERM_BLOCK = 4096
"""Number of points whose terms fit into the processor's cache."""


# A part of one column.


class EndPoint(NamedTuple):
    """First or last prediction of a part, which a neighbouring part may share.

    sums : addends of the weight, the positives and the squares
    """

    p: float
    sums: list[list[float]]

    def joined(self, other: EndPoint) -> EndPoint:
        """Join equal end points of two parts."""
        return EndPoint(self.p, [a + b for a, b in zip(self.sums, other.sums, strict=True)])

    @property
    def point(self) -> list[float]:
        """Prediction, weight, positives and squares."""
        w, k, squares = (math.fsum(addends) for addends in self.sums)
        return [self.p, w, min(k, w), squares]


class PartState(NamedTuple):
    """State of a part of a column.

    score : score of the first point
    ends : the first and the last point, or the only one
    between : sums of the points between; None if there are none
    blocks : isotonic blocks of the points between. cells : cells of all points
    """

    score: float
    ends: list[EndPoint]
    between: Sums | None
    blocks: Blocks | None
    cells: PredictionCells | None

    @property
    def weight(self) -> float:
        """Weight of the part, rounded: the search for the ends of groups allows for that."""
        between = 0.0 if self.between is None else float(self.between.of(kernels.WEIGHT).high[0])
        return math.fsum([between, *(value for end in self.ends for value in end.sums[0])])


@dataclass(frozen=True)
class GroupLimits:
    """Cumulative weights at which groups end, and the weight before each part, by the part's first score."""

    targets: tuple[float, ...]
    before: dict[float, float]


def predictions_of(predict: Predict | None, score: Array) -> Array:
    """Apply predict to ascending scores.

    Raises
    ------
    ValueError
        If the predictions decrease or leave [0, 1].
    """
    if predict is None:
        return score
    p = predict(score)
    if not (np.all(p[1:] >= p[:-1]) and p[0] >= 0 and p[-1] <= 1):
        raise ValueError(NOT_MONOTONE)
    return p


def part_state(options: MeasureOptions, limits: GroupLimits | None, points: Points) -> PartState:
    """Compute the state of a part. points : ascending, may be tied."""
    p = predictions_of(options.predict, points.score)
    joined = _join_ties(_reweighted(options, Points(p, *points[1:])), np.array([0, p.size]))
    probabilities, count = p[0] >= 0 and p[-1] <= 1, joined.p.size
    between = blocks = cells = None
    if count > 2:
        inner, targets = joined.inner(), np.empty((1, 0))
        before = None if limits is None else limits.before.get(float(points.score[0]))
        if limits is not None and before is not None:
            targets = np.array([limits.targets]) * (1 - _SLACK) - before - joined.w[0]
        between = _sums(inner, options, targets, targets)
        if options.blocks and probabilities:
            blocks = pool_points(Points(*(np.ascontiguousarray(column) for column in inner[:3])))
    if options.cells and probabilities:
        cells = _cells(joined)
    ends = [joined.end(0), *([joined.end(-1)] if count > 1 else [])]
    return PartState(float(points.score[0]), ends, between, blocks, cells)


def cells_of_columns(points: Points, starts: Integers) -> PredictionCells:
    """Compute the cells of columns of probabilities; see `accumulate_columns`."""
    return _cells(_join_ties(points, starts))


def _cells(joined: _Joined) -> PredictionCells:
    p, low = joined.p, () if joined.low is None else joined.low
    key = np.empty(p.size)
    for i in range(0, p.size, _BLOCK):
        block = p[i : i + _BLOCK]
        with np.errstate(divide="ignore"):
            key[i : i + _BLOCK] = np.floor(_CELLS * (np.log(block) - np.log1p(-block)))
    sizes = np.diff(joined.starts)
    member = np.where(np.repeat(sizes <= MOST_DISTINCT, sizes), p, key)
    first, sums, starts = _add_up_ties(member, ((joined.w, *low[:1]), (joined.k, *low[1:2])), joined.starts)
    last = np.append(first[1:], p.size) - 1
    return PredictionCells(key[first], p[first], p[last], sums, starts)


def _join_cells(parts: list[PredictionCells]) -> PredictionCells:
    if len(parts) == 1:
        return parts[0]
    key, low, high = (np.concatenate([part[i] for part in parts]) for i in range(3))
    sums = np.concatenate([part.sums for part in parts], axis=2)
    few = np.array_equal(low, high) and np.unique(low).size <= MOST_DISTINCT
    member = low if few else key
    # Computed log odds may decrease in the last bit where the predictions increase.
    order = np.argsort(member, kind="stable")
    w, k = (sum_parts[:, order] for sum_parts in sums)
    first, joined, starts = _add_up_ties(member[order], (w, k), np.array([0, key.size]))
    low, high = np.minimum.reduceat(low[order], first), np.maximum.reduceat(high[order], first)
    return PredictionCells(key[order][first], low, high, joined, starts)


# Merging.


class Merged(NamedTuple):
    """Merged state of a column: sums, isotonic blocks, and cells."""

    sums: Sums
    blocks: Blocks | None
    cells: PredictionCells | None


def merge(options: MeasureOptions, groups: int, states: Sequence[PartState]) -> Merged:
    """Merge the parts of a column, given in ascending order of their predictions.

    Raises
    ------
    ValueError
        If a prediction of a part lies below the last prediction of the previous part.
    """
    elements = _join_ends(states)
    ends = [element for element in elements if isinstance(element, EndPoint)]
    pieces = _as_sums(elements, ends, options, groups - 1)
    weight = stacked([piece.of(kernels.WEIGHT)[0] for piece in pieces])
    integral = np.all([piece.integral for piece in pieces], axis=0)
    targets = group_targets(weight.running().high[-1:], integral, groups)
    values, scale = _add_values(pieces)
    below, ties = _find_limits(pieces, targets[0])
    sums = Sums(
        low=pieces[0].low,
        high=pieces[-1].high,
        integral=integral,
        scale=scale,
        values=values,
        edges=pieces[0].edges,
        at_edges=stacked([piece.at_edges for piece in pieces]).total(),
        targets=targets,
        below=below,
        ties=ties,
    )
    blocks = cells = None
    if options.blocks and sums.probabilities[0]:
        blocks = _join_blocks(states, elements)
    if options.cells and sums.probabilities[0]:
        cells = _join_cells([state.cells for state in states if state.cells is not None])
    return Merged(sums, blocks, cells)


def _join_ends(states: Sequence[PartState]) -> list[EndPoint | Sums]:
    """List the end points of all parts and the sums between them in order; join equal end points."""
    elements: list[EndPoint | Sums] = []
    for state in states:
        for element in (state.ends[0], state.between, *state.ends[1:]):
            if element is None:
                continue
            last = elements[-1] if elements else None
            if isinstance(element, EndPoint) and isinstance(last, EndPoint):
                if element.p < last.p:
                    raise ValueError(NOT_MONOTONE)
                if element.p == last.p:
                    elements[-1] = last.joined(element)
                    continue
            elements.append(element)
    return elements


def _as_sums(
    elements: list[EndPoint | Sums], ends: list[EndPoint], options: MeasureOptions, limits: int
) -> list[Sums]:
    """Convert each element to sums of one column; an end point becomes a column of one point."""
    points = np.array([end.point for end in ends])
    p, w, k, squares = np.ascontiguousarray(points.T)
    no_limits = np.empty((len(ends), 0))
    sums = _sums(_Joined(p, w, k, np.arange(len(ends) + 1), squares), options, no_limits, no_limits)
    indices = iter(range(len(ends)))
    return [e if isinstance(e, Sums) else sums.column(next(indices), limits, points) for e in elements]


def stacked(pairs: list[Pair]) -> Pair:
    """Stack pairs of the same shape along a new first axis."""
    return Pair(np.stack([pair.high for pair in pairs]), np.stack([pair.low for pair in pairs]))


_RANKING = (kernels.HIT_PLACEMENTS, kernels.HIT_SQUARES, kernels.MISS_PLACEMENTS, kernels.MISS_SQUARES)


def _add_values(pieces: list[Sums]) -> tuple[Pair, Array]:
    """Add up the sums of pieces in ascending order; return the total and the scale of the ranking's sums."""
    scale = min(float(piece.scale[0]) for piece in pieces)
    all_sums = stacked([piece.values[0] for piece in pieces])
    total = all_sums.total()
    # Convert to one scale: placements contain the factor squared, squared placements its third power.
    factor = np.array([scale / piece.scale[0] for piece in pieces])
    hits = all_sums[:, kernels.POSITIVES] * scale
    misses = (all_sums[:, kernels.WEIGHT] - all_sums[:, kernels.POSITIVES]) * scale
    terms = []
    for column, other, linear, quadratic in (
        (hits, misses, kernels.HIT_PLACEMENTS, kernels.HIT_SQUARES),
        (misses, hits, kernels.MISS_PLACEMENTS, kernels.MISS_SQUARES),
    ):
        before = other.running()[:-1] * 2.0
        placements, squared = all_sums[:, linear] * factor**2, all_sums[:, quadratic] * factor**3
        terms.append((placements + before * column).total())
        terms.append((squared + before * placements * 2.0 + before * before * column).total())
    for number, term in zip(_RANKING, terms, strict=True):
        total.high[number], total.low[number] = term.high, term.low
    return total[None], np.array([scale])


def _find_limits(pieces: list[Sums], targets: Array) -> tuple[Pair, Array]:
    """Find the sums below each target and the point that reaches it; NaN where no known point does."""
    binned = stacked([piece.values[0, : kernels.BINNED] for piece in pieces]).running()
    through = binned.high[1:, kernels.WEIGHT]
    below, ties = np.full((2, targets.size, kernels.BINNED), np.nan), np.full((targets.size, 4), np.nan)
    for t, target in enumerate(targets.tolist()):
        for i in np.flatnonzero(through >= target * (1 - _SLACK)).tolist():
            piece = pieces[i]
            if piece.ties.shape[1] == 0:
                break
            if not np.isnan(piece.ties[0, t, 0]):
                sums = binned[i] + piece.below[0, t]
                below[:, t], ties[t] = (sums.high, sums.low), piece.ties[0, t]
                break
    return Pair(*below[:, None]), ties[None]


def _join_blocks(states: Sequence[PartState], elements: list[EndPoint | Sums]) -> Blocks:
    between = iter([state.blocks for state in states if state.between is not None])
    pieces = []
    for element in elements:
        if isinstance(element, Sums):
            blocks = next(between)
            if blocks is not None:
                pieces.append(blocks)
            continue
        columns = [np.array([element.p])] * 2
        for sums in element.sums[:2]:
            total = math.fsum(sums)
            columns += [np.array([total]), np.array([math.fsum([*sums, -total])])]
        pieces.append(Blocks(*columns))
    return Blocks(*pava.pool(*(np.concatenate(column) for column in zip(*pieces, strict=True))))


def column_passes(
    options: MeasureOptions, groups: int = 1, parts: Sequence[tuple[float, Array]] = ()
) -> Generator[Pass, Any, Merged]:
    """Yield the passes over a score table that one column needs, receive their results, return its merged state.

    Parameters
    ----------
    options, groups : see `accumulate_columns`
    parts : first score and weight (as addends) of each part, if known. They save a pass if all weights are whole
        numbers

    Notes
    -----
    One pass, or two: the second needs the few parts in which a group ends.
    """
    expected = _expected_limits(parts, groups) if parts else None
    states = yield Pass(partial(part_state, options, expected), list)
    column = merge(options, groups, states)
    targets = tuple(column.sums.targets[0].tolist())
    if not targets or not column.sums.probabilities[0]:
        return column
    if expected is None or expected.targets != targets:
        weights = [(state.score, state.weight) for state in states]
        limits = GroupLimits(targets, _weights_before(weights))
        through = np.cumsum([weight for _, weight in weights])
        ends = np.searchsorted(through, np.array(targets) * (1 - 2 * _SLACK)).clip(max=len(states) - 1)
        second_states = yield Pass(
            partial(part_state, replace(options, blocks=False, cells=False), limits),
            list,
            only=frozenset(states[i].score for i in set(ends.tolist())),
        )
        between = {state.score: state.between for state in second_states}
        states = [state._replace(between=between.get(state.score, state.between)) for state in states]
        column = merge(options, groups, states)
    return column


def _expected_limits(parts: Sequence[tuple[float, Array]], groups: int) -> GroupLimits:
    """Expected limits of groups, on the assumption that weights with a whole sum are whole."""
    weights = [(first, math.fsum(addends.tolist())) for first, addends in parts]
    total = math.fsum(value for _, addends in parts for value in addends.tolist())
    targets = group_targets(np.array([total]), np.array([total == math.floor(total)]), groups)
    return GroupLimits(tuple(targets[0].tolist()), _weights_before(weights))


def _weights_before(weights: Sequence[tuple[float, float]]) -> dict[float, float]:
    """Weight before each part, by first scores. weights : first scores and weights."""
    before = accumulate((weight for _, weight in weights), initial=0.0)
    return {first: weight for (first, _), weight in zip(weights, before, strict=False)}


# Bins and groups of finished columns.


@dataclass(frozen=True)
class Groups:
    """Sums of groups of predictions. Float64 arrays, shape (columns, groups).

    gap : absolute difference between observed and expected positives
    """

    weight: Array
    positives: Array
    predicted: Array
    squares: Array
    gap: Array

    @classmethod
    def between(cls, sums: Sums, inner: Pair) -> Groups:
        """Build groups from the sums below each inner border, shape (columns, groups - 1, `kernels.BINNED`)."""
        total = sums.values[:, None, : kernels.BINNED]
        high = np.concatenate([np.zeros_like(total.high), inner.high, total.high], axis=1)
        low = np.concatenate([np.zeros_like(total.low), inner.low, total.low], axis=1)
        between = np.diff(high, axis=1) + np.diff(low, axis=1)
        residual = Pair(high[:, :, 1], low[:, :, 1]) - Pair(high[:, :, 2], low[:, :, 2])
        gap = np.abs(np.diff(residual.high, axis=1) + np.diff(residual.low, axis=1))
        weight, positives, predicted, squares = np.moveaxis(between, 2, 0)
        return cls(weight, positives, predicted, squares, gap)


def bins_of(sums: Sums, borders: Sequence[float]) -> Groups:
    """Compute bins between consecutive borders; each inner border must be one of `sums.edges`."""
    indices = np.searchsorted(sums.edges, np.array(borders[1:-1]))
    return Groups.between(sums, sums.at_edges[:, indices])


def groups_of(sums: Sums) -> Groups:
    """Compute groups of equal weight; a tie across a border is divided in proportion."""
    p, w, k, squares = (sums.ties[:, :, i] for i in range(4))
    below = sums.below
    share = ((sums.targets - below.high[:, :, kernels.WEIGHT]) - below.low[:, :, kernels.WEIGHT]) / w
    cumulative = Pair.sum(below.high, np.stack([w, k, w * p, squares], axis=2) * share[:, :, None])
    low = cumulative.low + below.low
    # The cumulative weight at the end of a group is the target, exactly.
    cumulative.high[:, :, kernels.WEIGHT], low[:, :, kernels.WEIGHT] = sums.targets, 0.0
    return Groups.between(sums, Pair(cumulative.high, low))


def pooled_columns(points: Points, starts: Integers) -> tuple[Blocks, Integers]:
    """Compute isotonic blocks of columns, with indices of points as scores, and where each column's blocks start."""
    index, empty = np.arange(points.score.size, dtype=np.float64), np.empty(0)
    columns, sizes = pava.pool_groups(
        (index, index, points.weight, empty, points.positives, empty), starts, pava.ALL
    )
    return Blocks(*columns), np.append(0, np.cumsum(sizes))
