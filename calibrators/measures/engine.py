"""The measuring engine: sums over sorted predictions, accumulated, merged over parts, and finished once.

A *column* is a set of predictions of rows. A whole log is one column in several parts; a million segments are a million
columns of a few points each. `accumulate_columns` takes the sums of whole columns, `part_state` those of a part of one,
and `merge` adds parts up. Measures are then computed from the sums of all columns at once: see `predictions`,
`error_bars`, `decomposition` and `spread`.

Predictions that are equal are one point, also where two parts share it: a part keeps its first and its last prediction
apart, and these are joined before they are added. All sums are double-doubles, and what comes of them is rounded to 12
significant digits, so that it does not depend on how a log was cut.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from calibrators._kernels import measures as kernels
from calibrators._kernels import pava
from calibrators.arithmetic.double_double import Pair
from calibrators.arithmetic.passes import Array, Blocks, Pass, Points
from calibrators.arithmetic.pooling import pool_points
from calibrators.arithmetic.sampling import odds_divided

Integers = npt.NDArray[np.int64]
Predict = Callable[[Array], Array]
"""Scores to probabilities in [0, 1] that do not decrease with the score; picklable."""

NOT_MONOTONE = (
    "expected probabilities in [0, 1] that do not decrease with the score: for a map that does, measure a table "
    "whose scores are the calibrated probabilities"
)

MOST_DRAWN = 20_000
"""Different predictions up to which labels are drawn from them."""

_BLOCK = 1 << 15
_SLACK = 1e-13
"""Share by which rounding may miss a limit of weights that are no counts."""
_CELLS = 512
"""Cells of predictions in one unit of log odds."""


@dataclass(frozen=True)
class MeasureOptions:
    """Choice of the measures to take of predictions.

    Attributes
    ----------
    predict : applied to the scores first; must not decrease with the score. None: the scores are the predictions.
    edges : ascending: of bins of predictions
    rate : for a log of sampled rows, the kept share of the negatives over that of the positives; sums describe all
        rows: a negative weighs 1 / rate
    odds : the same of a log whose rows count as they are, so that tests are right: predictions, which are of all rows,
        get the odds that they have in the log
    blocks, cells : whether to take the isotonic blocks of the predictions, and cells of their log odds
    """

    predict: Predict | None = None
    edges: tuple[float, ...] = ()
    rate: float = 1.0
    odds: float = 1.0
    blocks: bool = False
    cells: bool = False


class Cells(NamedTuple):
    """Cells of predictions: those whose log odds lie in an interval of 1 / 512, and those that are 0, or 1.

    key : float64 array: number of each cell. low, high : its lowest and its highest prediction
    sums : float64 array, shape (2, 2, cells): weight and positives, as high and low parts
    starts : where each column's cells begin, and the end
    """

    key: Array
    low: Array
    high: Array
    sums: Array
    starts: Integers


@dataclass(frozen=True)
class Sums:
    """Sums of columns. The first axis of each array runs over the columns, in `high` and `low` over pairs of them.

    Attributes
    ----------
    low, high : the lowest and the highest prediction
    whole : bool: whether all weights are whole numbers
    scale : factor of weights in the sums of the ranking: a power of two
    values : Pair, shape (columns, `kernels.SUMS`)
    edges : float64 array: of bins. upto : Pair, shape (columns, edges, `kernels.BINNED`): sums below each
    targets : shape (columns, limits): weights up to which groups go. below, ties : of each the sums before the
        prediction that reaches it, and that prediction, weight, positives and squares of its point; NaN if not reached
    """

    low: Array
    high: Array
    whole: npt.NDArray[np.bool_]
    scale: Array
    values: Pair
    edges: Array
    upto: Pair
    targets: Array
    below: Pair
    ties: Array

    def column(self, i: int, limits: int, points: Array) -> Sums:
        """One of columns of one point each, which reaches any limit."""
        own = slice(i, i + 1)
        none = np.zeros((1, limits, kernels.BINNED))
        mine = {
            name: getattr(self, name)[own] for name in ("low", "high", "whole", "scale", "values", "upto")
        }
        return replace(self, **mine, below=Pair(none, none), ties=np.broadcast_to(points[i], (1, limits, 4)))

    def of(self, term: int) -> Pair:
        """A sum of all columns, by its number."""
        return self.values[:, term]

    @property
    def ranked(self) -> tuple[Pair, Pair]:
        """Positives and negatives, in the scale of the ranking's sums."""
        hits = self.of(kernels.POSITIVES)
        return hits * self.scale, (self.of(kernels.WEIGHT) - hits) * self.scale

    @property
    def probabilities(self) -> npt.NDArray[np.bool_]:
        """Tell whether all predictions of a column lie in [0, 1]."""
        return np.asarray((self.low >= 0) & (self.high <= 1))


# Points, joined where their predictions are equal.


class _Joined(NamedTuple):
    """Points of columns with ties joined. low, squares : of sums of several; None where each is its point's.

    low : float64 array, shape (3, m): what rounding took of weights, positives and squares
    """

    p: Array
    w: Array
    k: Array
    starts: Integers
    squares: Array | None = None
    low: Array | None = None

    def inner(self) -> _Joined:
        """One column without its first and its last prediction."""
        one, squares = slice(1, -1), self.squares
        starts = np.array([0, self.p.size - 2])
        return _Joined(
            self.p[one], self.w[one], self.k[one], starts, None if squares is None else squares[one]
        )

    def end(self, i: int) -> End:
        """A prediction of one column."""
        w, k = float(self.w[i]), float(self.k[i])
        square = w * w if self.squares is None else float(self.squares[i])
        low = [0.0] * 3 if self.low is None else self.low[:, i].tolist()
        return End(float(self.p[i]), [[high, rest] for high, rest in zip((w, k, square), low, strict=True)])


def _join(points: Points, starts: Integers) -> _Joined:
    p, w, k = points
    same = p[1:] == p[:-1]
    same[starts[1:-1] - 1] = False
    if not same.any():
        return _Joined(p, w, k, starts)
    at, sums, starts = _tied(p, ((w,), (k,), (w * w,)), starts)
    weight, positives, squares = sums[:, 0]
    return _Joined(p[at], weight, np.minimum(positives, weight), starts, squares, sums[:, 1])


def _tied(
    keys: Array, columns: Sequence[Sequence[Array]], starts: Integers
) -> tuple[Integers, Array, Integers]:
    """Join neighbours with equal keys within columns: where each begins, their sums, and where columns begin then.

    columns : of each sum its addends. The sums are high and low parts, shape (sums, 2, joined).
    """
    new = np.append(True, keys[1:] != keys[:-1])
    new[starts[:-1]] = True
    at = np.flatnonzero(new)
    ends, found = np.append(at, keys.size), np.zeros((len(columns), 2, at.size, 1))
    for sums, addends in zip(found, columns, strict=True):
        for one in addends:
            kernels.add_terms(np.ascontiguousarray(one)[np.newaxis], ends, sums)
    return at, found[..., 0], np.searchsorted(at, starts)


# Accumulating.


def _sums(joined: _Joined, wanted: MeasureOptions, targets: Array, limits: Array) -> Sums:
    """The sums of columns. limits : the targets, less what a part has before, and what rounding may miss."""
    p, w, k, starts, squares, _ = joined
    columns, edges = starts.size - 1, np.array(wanted.edges)
    sums = np.zeros((columns, 2, kernels.SUMS))
    upto = np.zeros((columns, edges.size, 2, kernels.BINNED))
    below = np.zeros((columns, limits.shape[1], 2, kernels.BINNED))
    ties = np.full((columns, limits.shape[1], 4), np.nan)
    whole_weights = _whole(joined)
    total, largest = np.add.reduceat(w, starts[:-1]), np.maximum.reduceat(w, starts[:-1])
    # Powers of two that keep the third power of weights in the range of doubles; 1 for weights of rows.
    far = (largest > 2.0**60) | (largest < 2.0**-60)
    scale = np.where(far, np.ldexp(1.0, -np.frexp(largest)[1]), 1.0)
    exact = whole_weights & (total * np.sqrt(largest) < 2.0**25)
    state = (sums, np.zeros((columns, 2), np.int64), upto, below, ties)
    # A block of a long column after the other: temporary arrays stay in the processor's cache.
    step = _BLOCK if columns == 1 else p.size
    for i in range(0, p.size, step):
        block = slice(i, i + step)
        # Scores may be predictions, too: of those that are no probabilities it is not looked at.
        with np.errstate(all="ignore"):
            chance = p[block] if wanted.odds == 1.0 else odds_divided(p[block], 1 / wanted.odds)
            losses = (-np.log(chance), -np.log1p(-chance))
        kernels.accumulate(
            (p[block], w[block], k[block], chance, np.empty(0) if squares is None else squares[block]),
            losses,
            (np.array([0, chance.size]) if columns == 1 else starts, scale, exact),
            state,
            (edges, limits),
            wanted.rate,
        )
    return Sums(
        low=p[starts[:-1]],
        high=p[starts[1:] - 1],
        whole=whole_weights,
        scale=scale,
        values=Pair(sums[:, 0], sums[:, 1]),
        edges=edges,
        upto=Pair(upto[:, :, 0], upto[:, :, 1]),
        targets=targets,
        below=Pair(below[:, :, 0], below[:, :, 1]),
        ties=ties,
    )


def _whole(joined: _Joined) -> npt.NDArray[np.bool_]:
    """Tell whether all weights and positives of a column are whole numbers."""
    if joined.starts.size > 2:
        broken = (joined.w != np.floor(joined.w)) | (joined.k != np.floor(joined.k))
        return ~np.logical_or.reduceat(broken, joined.starts[:-1])
    columns = (column[i : i + _BLOCK] for column in joined[1:3] for i in range(0, column.size, _BLOCK))
    return np.array([all(np.array_equal(own, np.floor(own)) for own in columns)])


def targets_of(weight: Array, whole: npt.NDArray[np.bool_], groups: int) -> Array:
    """Cumulative weights at which groups of equal weight end, but the last. Shape (columns, groups - 1).

    Whole numbers count rows: groups of whole rows, the first (rows mod groups) of them one larger.
    """
    i = np.arange(1, groups)
    size, larger = np.divmod(weight, groups)
    counted = i * size[:, None] + np.minimum(i, larger[:, None])
    return np.where(whole[:, None], counted, weight[:, None] * i / groups)


def _weighed(wanted: MeasureOptions, points: Points) -> Points:
    p, w, k = points
    return points if wanted.rate == 1.0 else Points(p, k + (w - k) / wanted.rate, k)


def accumulate_columns(points: Points, starts: Integers, wanted: MeasureOptions, groups: int) -> Sums:
    """The sums of columns of predictions, one after the other.

    points : of all columns, each ascending. starts : int64 array: where each column begins, and the end; none is empty
    groups : of equal weight
    """
    joined = _join(_weighed(wanted, points), starts)
    weight = np.zeros((2, starts.size - 1, 1))
    kernels.add_terms(joined.w[None], joined.starts, weight)
    targets = targets_of(weight[0, :, 0], _whole(joined), groups)
    return _sums(joined, wanted, targets, targets * (1 - _SLACK))


def sum_terms(
    terms: Callable[..., list[Array]], columns: tuple[Array, ...], starts: Integers | None = None
) -> Pair:
    """Sums of functions of points, of columns of these one after the other; shape (columns, terms).

    terms : makes arrays as long as those that it is given. starts : None: all points are one column
    """
    starts = np.array([0, columns[0].size]) if starts is None else starts
    found = None
    for first in range(0, columns[0].size, _TERMS):
        last = min(first + _TERMS, columns[0].size)
        values = np.stack(terms(*(column[first:last] for column in columns)))
        if found is None:
            found = np.zeros((2, starts.size - 1, values.shape[0]))
        # The columns that have points in this block.
        i, j = np.searchsorted(starts, first, side="right") - 1, np.searchsorted(starts, last)
        kernels.add_terms(values, np.clip(starts[i : j + 1], first, last) - first, found[:, i:j])
    return Pair(*np.zeros((2, 1, 1)) if found is None else found)


_TERMS = 4096
"""Points whose terms stay in the processor's cache."""


# A part of one column.


class End(NamedTuple):
    """A prediction that a neighbouring part may have, too; weight, positives and squares as addends."""

    p: float
    sums: list[list[float]]

    def joined(self, other: End) -> End:
        """The same prediction of two parts."""
        return End(self.p, [a + b for a, b in zip(self.sums, other.sums, strict=True)])

    @property
    def point(self) -> list[float]:
        """Prediction, weight, positives and squares."""
        w, k, squares = (math.fsum(one) for one in self.sums)
        return [self.p, w, min(k, w), squares]


class PartState(NamedTuple):
    """State of a part of a column. between : of the predictions between its first and its last one.

    score : of its first point. ends : the first and the last prediction, or the only one. blocks : isotonic ones of the
    points between; cells : of all; drawn : predictions between and their weights, if few
    """

    score: float
    ends: list[End]
    between: Sums | None
    blocks: Blocks | None
    cells: Cells | None
    drawn: Array | None

    @property
    def weight(self) -> float:
        """Weight of the part, approximately: ends of groups are searched with some slack."""
        between = 0.0 if self.between is None else float(self.between.of(kernels.WEIGHT).high[0])
        return math.fsum([between, *(value for end in self.ends for value in end.sums[0])])


@dataclass(frozen=True)
class Limits:
    """Expected ends of groups: cumulative weights, and the weight before each part, by first scores."""

    targets: tuple[float, ...]
    before: dict[float, float]


def predictions_of(predict: Predict | None, score: Array) -> Array:
    """Return the predictions at ascending scores.

    Raises
    ------
    ValueError
        If predict decreases, or leaves [0, 1].
    """
    if predict is None:
        return score
    p = predict(score)
    if not (np.all(p[1:] >= p[:-1]) and p[0] >= 0 and p[-1] <= 1):
        raise ValueError(NOT_MONOTONE)
    return p


def part_state(wanted: MeasureOptions, limits: Limits | None, points: Points) -> PartState:
    """The state of a part; its points ascend, and may be tied."""
    p = predictions_of(wanted.predict, points.score)
    joined = _join(_weighed(wanted, Points(p, *points[1:])), np.array([0, p.size]))
    probabilities, count = p[0] >= 0 and p[-1] <= 1, joined.p.size
    between = blocks = cells = drawn = None
    if count > 2:
        inner, targets = joined.inner(), np.empty((1, 0))
        before = None if limits is None else limits.before.get(float(points.score[0]))
        if limits is not None and before is not None:
            targets = np.array([limits.targets]) * (1 - _SLACK) - before - joined.w[0]
        between = _sums(inner, wanted, targets, targets)
        if wanted.blocks and probabilities:
            blocks = pool_points(Points(*(np.ascontiguousarray(column) for column in inner[:3])))
    if wanted.blocks and probabilities and count <= MOST_DRAWN:
        drawn = np.stack([joined.p[1:-1], joined.w[1:-1]])
    if wanted.cells and probabilities:
        cells = cells_of(joined)
    ends = [joined.end(0), *([joined.end(-1)] if count > 1 else [])]
    return PartState(float(points.score[0]), ends, between, blocks, cells, drawn)


def cells_of_columns(points: Points, starts: Integers) -> Cells:
    """The cells of columns of probabilities; see `accumulate_columns`."""
    return cells_of(_join(points, starts))


def cells_of(joined: _Joined) -> Cells:
    """The cells of columns of probabilities."""
    p, low = joined.p, () if joined.low is None else joined.low
    key = np.empty(p.size)
    for i in range(0, p.size, _BLOCK):
        block = p[i : i + _BLOCK]
        with np.errstate(divide="ignore"):
            key[i : i + _BLOCK] = np.floor(_CELLS * (np.log(block) - np.log1p(-block)))
    at, sums, starts = _tied(key, ((joined.w, *low[:1]), (joined.k, *low[1:2])), joined.starts)
    last = np.append(at[1:], p.size) - 1
    return Cells(key[at], p[at], p[last], sums, starts)


def _join_cells(parts: list[Cells]) -> Cells:
    if len(parts) == 1:
        return parts[0]
    key, low, high = (np.concatenate([part[i] for part in parts]) for i in range(3))
    sums = np.concatenate([part.sums for part in parts], axis=2)
    # Predictions may be sorted otherwise than log odds are, in the last bit.
    order = np.argsort(key, kind="stable")
    w, k = (one[:, order] for one in sums)
    at, joined, starts = _tied(key[order], (w, k), np.array([0, key.size]))
    low, high = np.minimum.reduceat(low[order], at), np.maximum.reduceat(high[order], at)
    return Cells(key[order][at], low, high, joined, starts)


# Merging.


class Merged(NamedTuple):
    """A column: its sums, and, where they were taken, isotonic blocks, what is drawn from, and cells."""

    sums: Sums
    blocks: Blocks | None
    drawn: Array | None
    cells: Cells | None


def merge(wanted: MeasureOptions, groups: int, states: Sequence[PartState]) -> Merged:
    """A column from its parts, in ascending order of their predictions.

    Raises
    ------
    ValueError
        If predictions of one part lie below those of the part before.
    """
    elements = _elements(states)
    ends = [one for one in elements if isinstance(one, End)]
    pieces = _aligned(elements, ends, wanted, groups - 1)
    weight = Pair(*(np.concatenate([getattr(one.of(0), name) for one in pieces]) for name in ("high", "low")))
    passed = weight.running()
    whole = np.all([one.whole for one in pieces], axis=0)
    targets = targets_of(passed.high[-1:], whole, groups)
    values, scale = _add_values(pieces)
    below, ties = _reached(pieces, targets[0])
    sums = Sums(
        low=pieces[0].low,
        high=pieces[-1].high,
        whole=whole,
        scale=scale,
        values=values,
        edges=pieces[0].edges,
        upto=stacked([one.upto for one in pieces]).total(),
        targets=targets,
        below=below,
        ties=ties,
    )
    blocks = drawn = cells = None
    if wanted.blocks and sums.probabilities[0]:
        blocks, drawn = _join_blocks(states, elements), _join_drawn(states, ends)
    if wanted.cells and sums.probabilities[0]:
        cells = _join_cells([state.cells for state in states if state.cells is not None])
    return Merged(sums, blocks, drawn, cells)


def _elements(states: Sequence[PartState]) -> list[End | Sums]:
    """Ends of parts and the sums between them; equal ends are joined."""
    found: list[End | Sums] = []
    for state in states:
        for one in (state.ends[0], state.between, *state.ends[1:]):
            if one is None:
                continue
            last = found[-1] if found else None
            if isinstance(one, End) and isinstance(last, End):
                if one.p < last.p:
                    raise ValueError(NOT_MONOTONE)
                if one.p == last.p:
                    found[-1] = last.joined(one)
                    continue
            found.append(one)
    return found


def _aligned(elements: list[End | Sums], ends: list[End], wanted: MeasureOptions, limits: int) -> list[Sums]:
    """The elements as sums of one column each: ends are columns of one point, which reaches any limit itself."""
    points = np.array([one.point for one in ends])
    p, w, k, squares = np.ascontiguousarray(points.T)
    none = np.empty((len(ends), 0))
    sums = _sums(_Joined(p, w, k, np.arange(len(ends) + 1), squares), wanted, none, none)
    places = iter(range(len(ends)))
    return [one if isinstance(one, Sums) else sums.column(next(places), limits, points) for one in elements]


def stacked(pairs: list[Pair]) -> Pair:
    """Pairs of one shape as one, along a new first axis."""
    return Pair(np.stack([one.high for one in pairs]), np.stack([one.low for one in pairs]))


_RANKING = (kernels.HIT_PLACES, kernels.HIT_SQUARES, kernels.MISS_PLACES, kernels.MISS_SQUARES)


def _add_values(pieces: list[Sums]) -> tuple[Pair, Array]:
    """The sums of all pieces, each standing above the ones before it, and the scale of the ranking's."""
    scale = min(float(one.scale[0]) for one in pieces)
    all_sums = stacked([one.values[0] for one in pieces])
    total = all_sums.total()
    # In one scale: of places the square, of their squares the third power of the factor.
    factor = np.array([scale / one.scale[0] for one in pieces])
    hits = all_sums[:, kernels.POSITIVES] * scale
    misses = (all_sums[:, kernels.WEIGHT] - all_sums[:, kernels.POSITIVES]) * scale
    terms = []
    for column, other, places, squares in (
        (hits, misses, kernels.HIT_PLACES, kernels.HIT_SQUARES),
        (misses, hits, kernels.MISS_PLACES, kernels.MISS_SQUARES),
    ):
        before = other.running()[:-1] * 2.0
        place, square = all_sums[:, places] * factor**2, all_sums[:, squares] * factor**3
        terms.append((place + before * column).total())
        terms.append((square + before * place * 2.0 + before * before * column).total())
    for term, one in zip(_RANKING, terms, strict=True):
        total.high[term], total.low[term] = one.high, one.low
    return total[None], np.array([scale])


def _reached(pieces: list[Sums], targets: Array) -> tuple[Pair, Array]:
    """Return the weight below each target, and the point that reaches it; NaN in parts without it."""
    binned = stacked([one.values[0, : kernels.BINNED] for one in pieces]).running()
    through = binned.high[1:, kernels.WEIGHT]
    below, ties = np.full((2, targets.size, kernels.BINNED), np.nan), np.full((targets.size, 4), np.nan)
    for t, target in enumerate(targets.tolist()):
        for i in np.flatnonzero(through >= target * (1 - _SLACK)).tolist():
            piece = pieces[i]
            if piece.ties.shape[1] == 0:
                break
            if not np.isnan(piece.ties[0, t, 0]):
                found = binned[i] + piece.below[0, t]
                below[:, t], ties[t] = (found.high, found.low), piece.ties[0, t]
                break
    return Pair(*below[:, None]), ties[None]


def _join_blocks(states: Sequence[PartState], elements: list[End | Sums]) -> Blocks:
    between = iter([state.blocks for state in states if state.between is not None])
    pieces = []
    for one in elements:
        if isinstance(one, Sums):
            own = next(between)
            if own is not None:
                pieces.append(own)
            continue
        columns = [np.array([one.p])] * 2
        for sums in one.sums[:2]:
            total = math.fsum(sums)
            columns += [np.array([total]), np.array([math.fsum([*sums, -total])])]
        pieces.append(Blocks(*columns))
    return Blocks(*pava.pool(*(np.concatenate(column) for column in zip(*pieces, strict=True))))


def _join_drawn(states: Sequence[PartState], ends: list[End]) -> Array:
    """Predictions, ascending, and their weights, where they are few; shape (predictions, 2)."""
    found = [state.drawn for state in states]
    if any(one is None for one in found):
        return np.empty((0, 2))
    outer = np.array([one.point[:2] for one in ends]).T
    p, weight = np.concatenate([*(one for one in found if one is not None), outer], axis=1)
    if p.size > MOST_DRAWN:
        return np.empty((0, 2))
    order = np.argsort(p)
    return np.column_stack([p[order], weight[order]])


def column_passes(
    wanted: MeasureOptions, groups: int = 1, parts: Sequence[tuple[float, Array]] = ()
) -> Generator[Pass, Any, Merged]:
    """Yield the passes over a score table that one column takes, receive their results, return it.

    Parameters
    ----------
    wanted, groups : see `accumulate_columns`
    parts : where they are known, of each part the first score and the weight, as addends: they save a pass where all
        weights are whole numbers

    Notes
    -----
    One pass, or two: the second needs the few parts in which a group ends.
    """
    expected = _expected(parts, groups) if parts else None
    states = yield Pass(partial(part_state, wanted, expected), list)
    found = merge(wanted, groups, states)
    targets = tuple(found.sums.targets[0].tolist())
    if not targets or not found.sums.probabilities[0]:
        return found
    if expected is None or expected.targets != targets:
        weights = [(state.score, state.weight) for state in states]
        limits = Limits(targets, dict(zip(*_before(weights), strict=True)))
        through = np.cumsum([weight for _, weight in weights])
        ends = np.searchsorted(through, np.array(targets) * (1 - 2 * _SLACK)).clip(max=len(states) - 1)
        again = yield Pass(
            partial(part_state, replace(wanted, blocks=False, cells=False), limits),
            list,
            only=frozenset(states[i].score for i in set(ends.tolist())),
        )
        between = {state.score: state.between for state in again}
        states = [state._replace(between=between.get(state.score, state.between)) for state in states]
        found = merge(wanted, groups, states)
    return found


def _expected(parts: Sequence[tuple[float, Array]], groups: int) -> Limits:
    """Return the ends of groups if weights are whole numbers wherever they add up to one."""
    weights = [(first, math.fsum(addends.tolist())) for first, addends in parts]
    total = math.fsum(value for _, addends in parts for value in addends.tolist())
    targets = targets_of(np.array([total]), np.array([total == math.floor(total)]), groups)
    return Limits(tuple(targets[0].tolist()), dict(zip(*_before(weights), strict=True)))


def _before(weights: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """First scores of parts, and the weight before each."""
    return [first for first, _ in weights], [0.0, *accumulate(weight for _, weight in weights)][:-1]


# Bins and groups of finished columns.


@dataclass(frozen=True)
class Groups:
    """Sums of groups of predictions. Float64 arrays, shape (columns, groups).

    gap : of each the distance of what was observed from what was expected
    """

    weight: Array
    positives: Array
    predicted: Array
    squares: Array
    gap: Array

    @classmethod
    def between(cls, sums: Sums, inner: Pair) -> Groups:
        """From cumulative sums up to each border but the outer ones, shape (columns, groups - 1, `kernels.BINNED`)."""
        total = sums.values[:, None, : kernels.BINNED]
        high = np.concatenate([np.zeros_like(total.high), inner.high, total.high], axis=1)
        low = np.concatenate([np.zeros_like(total.low), inner.low, total.low], axis=1)
        between = np.diff(high, axis=1) + np.diff(low, axis=1)
        apart = Pair(high[:, :, 1], low[:, :, 1]) - Pair(high[:, :, 2], low[:, :, 2])
        gap = np.abs(np.diff(apart.high, axis=1) + np.diff(apart.low, axis=1))
        weight, positives, predicted, squares = np.moveaxis(between, 2, 0)
        return cls(weight, positives, predicted, squares, gap)


def bins_of(sums: Sums, borders: Sequence[float]) -> Groups:
    """Bins between consecutive borders; each inner border must be an edge."""
    at = np.searchsorted(sums.edges, np.array(borders[1:-1]))
    return Groups.between(sums, sums.upto[:, at])


def groups_of(sums: Sums) -> Groups:
    """Groups of equal weight; a tie that straddles their border is shared in proportion."""
    p, w, k, squares = (sums.ties[:, :, i] for i in range(4))
    below = sums.below
    share = ((sums.targets - below.high[:, :, kernels.WEIGHT]) - below.low[:, :, kernels.WEIGHT]) / w
    cumulative = Pair.sum(below.high, np.stack([w, k, w * p, squares], axis=2) * share[:, :, None])
    low = cumulative.low + below.low
    # What is known exactly: where a group ends.
    cumulative.high[:, :, kernels.WEIGHT], low[:, :, kernels.WEIGHT] = sums.targets, 0.0
    return Groups.between(sums, Pair(cumulative.high, low))


def pooled_columns(points: Points, starts: Integers) -> tuple[Blocks, Integers]:
    """Isotonic blocks of columns, from and to numbers of points; and where each column's begin, and the end."""
    number, none = np.arange(points.score.size, dtype=np.float64), np.empty(0)
    columns, sizes = pava.pool_groups(
        (number, number, points.weight, none, points.positives, none), starts, pava.ALL
    )
    return Blocks(*columns), np.append(0, np.cumsum(sizes))
