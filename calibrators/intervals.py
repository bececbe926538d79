"""An interval for each row of a calibration map: a band around the true probabilities, or Venn-Abers predictions.

Both look at observations as rows: each has weight 1, and they are independent.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from calibrators.calibration_map import CalibrationMap, Interval
from calibrators.passes import Array, Pass, Place, Points
from calibrators.pooling import pool_points
from calibrators.sampling import odds_divided

NONE, BAND, VENN_ABERS = "none", "band", "venn_abers"
KINDS = (NONE, BAND, VENN_ABERS)

ALPHA = 0.05
"""The chance that the true probability is outside the band at any score."""

_GRID = 256


def divided(interval: Interval, rate: float) -> Interval:
    """Of all rows, where the observations are a sample: see `calibrators.sampling`."""
    if rate == 1.0:
        return interval
    return Interval(*(np.asarray(odds_divided(column, rate)) for column in interval))


# The band


class Cells(NamedTuple):
    """Neighbouring cells of observations.

    last : float64 array, shape (cells,): the last score of each
    rows, positives : float64 arrays, shape (cells,): whole numbers
    """

    last: Array
    rows: Array
    positives: Array


class _CellsInPart(NamedTuple):
    """Where cells end in a part, the ranks and positives up to there, and the part's own totals."""

    last: Array
    rank: Array
    positives: Array
    highest: float
    total: float
    total_positives: float


def ranks(rows: int) -> Array:
    """Where cells end: j N / 256, and powers of two and what is left of N by them below N / 256; past ties."""
    inner = rows * np.arange(1, _GRID) / _GRID
    powers = 2.0 ** np.arange(max(0, int(np.ceil(np.log2(max(rows / _GRID, 1.0))))))
    powers = powers[powers < rows / _GRID]
    return np.unique(np.concatenate([powers, inner, rows - powers]))


def with_cells(request: Pass) -> Pass:
    """A pass that yields what `request` does and, where it is carried out `placed`, the band's `Cells`; else None."""
    return replace(
        request,
        chunk=partial(_alone, request.chunk),
        placed=partial(_with_cells, request),
        combine=partial(_both, request.combine),
        classes=None,
    )


def cells_pass(rows: int) -> Pass:
    """The pass that yields the cells of so many observations, over one part."""
    return Pass(chunk=partial(_cells_in_part, place=Place(0, rows)), combine=_joined)


def _alone(chunk: Callable[[Points], Any], points: Points) -> tuple[Any, None]:
    return chunk(points), None


def _with_cells(request: Pass, points: Points, place: Place) -> tuple[Any, _CellsInPart]:
    state = request.chunk(points) if request.placed is None else request.placed(points, place)
    return state, _cells_in_part(points, place)


def _both(combine: Callable[[list[Any]], Any], states: list[tuple[Any, Any]]) -> tuple[Any, Cells | None]:
    cells = [own for _, own in states]
    return combine([state for state, _ in states]), None if None in cells else _joined(cells)


def _cells_in_part(points: Points, place: Place) -> _CellsInPart:
    size, total = points.score.size, float(points.weight.sum())
    targets = ranks(place.total) - place.before
    targets = targets[(targets > 0) & (targets <= total)]
    if total == size:  # no ties
        at = np.unique(np.ceil(targets).astype(np.int64) - 1)
        through: Array = at.astype(np.float64) + 1.0
    else:
        sums = np.cumsum(points.weight)
        at = np.unique(np.searchsorted(sums, targets))
        through = sums[at]
    hits = np.empty(0)
    if at.size:
        hits = np.add.reduceat(points.positives[: at[-1] + 1], np.append(0, at[:-1] + 1))
    return _CellsInPart(
        points.score[at],
        through + place.before,
        np.cumsum(hits),
        float(points.score[-1]),
        total,
        float(points.positives.sum()),
    )


def _joined(parts: list[_CellsInPart]) -> Cells:
    before = np.cumsum([0.0, *(part.total_positives for part in parts)])
    total = sum(part.total for part in parts)
    last = np.concatenate([part.last for part in parts])
    rank = np.concatenate([part.rank for part in parts])
    hits = np.concatenate([part.positives + start for part, start in zip(parts, before[:-1], strict=True)])
    if not rank.size or rank[-1] < total:
        last, rank, hits = (
            np.append(last, parts[-1].highest),
            np.append(rank, total),
            np.append(hits, before[-1]),
        )
    return Cells(last, np.diff(rank, prepend=0.0), np.diff(hits, prepend=0.0))


def band(one: CalibrationMap, cells: Cells, alpha: float = ALPHA) -> Interval | None:
    """The simultaneous band for probabilities that never decrease with the score (Dimitriadis et al. 2023).

    Parameters
    ----------
    one : the map whose rows it is for: the lower end at a row's first score, the upper one at its last
    cells : of the observations
    alpha : in (0, 1): with probability at least 1 - alpha the truth lies within it everywhere

    Returns
    -------
    Interval, or None where bounds cross: the observations refute that the truth never decreases

    Notes
    -----
    Exact for independent rows: Clopper and Pearson's bounds of the mean of each of J stretches of 1, 2, 4, ... cells,
    at alpha / (2 J) a side.
    """
    lower, upper = cell_bounds(cells, alpha)
    if np.any(lower > upper[1:]):
        return None
    before_end = np.nextafter(one.score_hi, -np.inf)
    before_end[-1] = np.inf
    first = np.searchsorted(cells.last, one.score_lo)
    last = np.searchsorted(cells.last, before_end)
    return Interval(lower[first], upper[last + 1])


def cell_bounds(cells: Cells, alpha: float = ALPHA) -> tuple[Array, Array]:
    """Bounds for scores in each cell; and one more, for scores beyond.

    Returns
    -------
    lower : float64 array, shape (cells + 1,): for scores in cell i, or beyond all
    upper : float64 array, shape (cells + 2,): for scores in cell i - 1, or beyond all; the first for scores below all
    """
    from scipy.special import betaincinv

    n, k = (np.concatenate([[0.0], np.cumsum(column)]) for column in (cells.rows, cells.positives))
    count = cells.rows.size
    starts, sizes = [], []
    size = 1
    while size <= count:
        own = np.arange(0, count - size + 1, max(1, size // 4))
        starts.append(own)
        sizes.append(np.full(own.size, size))
        size *= 2
    start = np.concatenate(starts)
    end = start + np.concatenate(sizes)
    rows, hits = n[end] - n[start], k[end] - k[start]
    tail = alpha / (2 * start.size)
    low, high = np.zeros(start.size), np.ones(start.size)
    some, other = hits > 0, hits < rows
    low[some] = betaincinv(hits[some], rows[some] - hits[some] + 1, tail)
    high[other] = betaincinv(hits[other] + 1, rows[other] - hits[other], 1 - tail)
    lower, upper = np.zeros(count + 1), np.ones(count + 2)
    np.maximum.at(lower, end, low)
    # For scores in cell i - 1 what begins behind it.
    np.minimum.at(upper, start, high)
    return np.maximum.accumulate(lower), np.minimum.accumulate(upper[::-1])[::-1]


# Venn-Abers


class _Piece(NamedTuple):
    """What a part has of a stretch of points: its first and its last, and the isotonic blocks without either."""

    stretch: int
    first: tuple[int, int]
    behind_first: list[tuple[int, int]]
    before_last: list[tuple[int, int]]
    last: tuple[int, int]

    @property
    def whole(self) -> list[tuple[int, int]]:
        return [self.first, *self.behind_first]


Block = tuple[int, int]
"""Rows, and those with label 1."""


def venn_abers_pass(one: CalibrationMap) -> Pass:
    """The pass that yields the Venn-Abers `Interval` of isotonic regression's map, over parts of its observations.

    Of scores in a row the least multiprobability with label 0, and the greatest with label 1: F0 at its first score,
    F1 at its last (Vovk, Petej & Fedorova 2015). Outside of all scores 0 and 1. It is no confidence interval.
    """
    flat = np.flatnonzero(one.weight > 0)
    return Pass(chunk=partial(_pieces, one.score_lo[flat]), combine=partial(_venn_abers, one, flat, len(one)))


def _pieces(edges: Array, points: Points) -> list[_Piece]:
    stretch = np.searchsorted(edges, points.score, side="right") - 1
    begin = np.append(np.flatnonzero(np.diff(stretch, prepend=-1)), stretch.size)
    found = []
    for a, b in zip(begin[:-1].tolist(), begin[1:].tolist(), strict=True):
        own = Points(*(column[a:b] for column in points))
        ends = [(int(own.weight[i]), int(own.positives[i])) for i in (0, -1)]
        rest, front = (_blocks(Points(*(c[part] for c in own))) for part in (slice(1, None), slice(None, -1)))
        found.append(_Piece(int(stretch[a]), ends[0], rest, front, ends[1]))
    return found


def _blocks(points: Points) -> list[Block]:
    if not points.score.size:
        return []
    blocks = pool_points(points)
    return list(zip(blocks.weight.astype(int).tolist(), blocks.positives.astype(int).tolist(), strict=True))


def _venn_abers(one: CalibrationMap, flat: Any, rows: int, parts: list[list[_Piece]]) -> Interval:
    stretches: list[_Piece] = []
    for piece in (piece for part in parts for piece in part):
        if stretches and stretches[-1].stretch == piece.stretch:
            before = stretches[-1]
            rest = [*before.behind_first, *piece.whole]
            stretches[-1] = _Piece(
                piece.stretch, before.first, rest, [*before.whole, *piece.before_last], piece.last
            )
        else:
            stretches.append(piece)
    pooled = [_pool(piece.whole) for piece in stretches]
    left: list[Block] = []
    right: list[Block] = [block for own in reversed(pooled) for block in reversed(own)]
    lower_first, upper_first, lower_last, upper_last = [], [], [], []
    for piece, own in zip(stretches, pooled, strict=True):
        front = _pool(piece.before_last)
        del right[len(right) - len(own) :]
        after = _pool(piece.behind_first)[::-1]
        lower_first.append(_level((left,), piece.first, 0, (right, after)))
        upper_first.append(_level((left,), piece.first, 1, (right, after)))
        lower_last.append(_level((left, front), piece.last, 0, (right,)))
        upper_last.append(_level((left, front), piece.last, 1, (right,)))
        left += own
    lower, upper = np.empty(rows), np.empty(rows)
    lower[flat], upper[flat] = lower_first, upper_last
    # Between two stretches lie the gaps: from the end of the one to the beginning of the other.
    gap = np.flatnonzero(one.weight == 0)
    place = np.searchsorted(flat, gap)
    lower[gap], upper[gap] = (
        np.array(lower_last)[place - 1],
        np.array(upper_first)[np.minimum(place, flat.size - 1)],
    )
    lower[0], upper[-1] = 0.0, 1.0
    return Interval(lower, upper)


def _pool(blocks: list[Block]) -> list[Block]:
    found: list[Block] = []
    for w, k in blocks:
        while found and found[-1][1] * w >= k * found[-1][0]:
            w, k = w + found[-1][0], k + found[-1][1]
            found.pop()
        found.append((w, k))
    return found


def _level(left: Sequence[list[Block]], point: Block, label: int, right: Sequence[list[Block]]) -> float:
    """The isotonic level of a point with one observation more. left, right : blocks, those next to it last."""
    w, k = point[0] + 1, point[1] + label
    below, above = (chain.from_iterable(map(reversed, side[::-1])) for side in (left, right))
    before, after = next(below, None), next(above, None)
    while True:
        if before is not None and before[1] * w >= k * before[0]:
            w, k = w + before[0], k + before[1]
            before = next(below, None)
        elif after is not None and k * after[0] >= after[1] * w:
            w, k = w + after[0], k + after[1]
            after = next(above, None)
        else:
            return k / w


def interval_passes(kind: str, one: CalibrationMap, rows: int) -> Generator[Pass, Any, Interval | None]:
    """Yield the passes over observations in one part, receive their results, return the map's interval.

    Parameters
    ----------
    kind : 'band' or 'venn_abers'
    one : the map, of the observations as they are
    rows : how many there are
    """
    if kind == VENN_ABERS:
        return (yield venn_abers_pass(one))
    return band(one, (yield cells_pass(rows)))
