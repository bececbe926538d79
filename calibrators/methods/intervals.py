"""An interval for each row of a calibration map: a band around the true probabilities, or Venn-Abers predictions.

A third, of a posterior, is in `calibrators.arithmetic.pointwise`. All count observations, which are independent: one of
weight 2 is the observation twice. Weights that are no whole numbers are counts all the same: sampling weights add up to
Kish's effective size by then (`calibrators.arithmetic.sampling`).
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from fractions import Fraction
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from calibrators.arithmetic.calibration_map import CalibrationMap, Interval
from calibrators.arithmetic.cumulative import bin_counts, cuts_pass, layout_pass
from calibrators.arithmetic.passes import Array, Pass, Points
from calibrators.arithmetic.pooling import pool_points
from calibrators.arithmetic.sampling import odds_divided

NONE, AUTO, POSTERIOR, BAND, VENN_ABERS = "none", "auto", "posterior", "band", "venn_abers"
KINDS = (NONE, POSTERIOR, BAND, VENN_ABERS)

ALPHA = 0.05
"""The chance that the true probability is outside the band at any score."""

_GRID = 256


def divided(interval: Interval, rate: float) -> Interval:
    """Scale to all rows, where the observations are a sample: see `calibrators.arithmetic.sampling`."""
    if rate == 1.0:
        return interval
    return Interval(*(np.asarray(odds_divided(column, rate)) for column in interval))


# The band


class Cells(NamedTuple):
    """Neighbouring cells of observations.

    last : float64 array, shape (cells,): the last score of each
    rows, positives : float64 arrays, shape (cells,): the sums of their weights
    """

    last: Array
    rows: Array
    positives: Array


def ranks(rows: float) -> Array:
    """Ends of cells: j N / 256, and powers of two and N less these below N / 256; past ties."""
    inner = rows * np.arange(1, _GRID) / _GRID
    powers = 2.0 ** np.arange(max(0, int(np.ceil(np.log2(max(rows / _GRID, 1.0))))))
    powers = powers[powers < rows / _GRID]
    return np.unique(np.concatenate([powers, inner, rows - powers]))


def cell_passes() -> Generator[Pass, Any, Cells]:
    """Yield the two passes over observations of any weights, in any parts, receive their results, return the cells."""
    layout = yield layout_pass()
    cuts = yield cuts_pass(layout, ranks(layout.weight))
    return Cells(np.append(cuts.below, layout.last), *bin_counts(layout, cuts.counts))


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
    at alpha / (2 J) a side. Sums of weights are counts to them. Of rows of weights w <= 1, as decay gives them, the
    bounds are on the safe side: the moment generating function of w times a label lies below that of a label to the
    power of w. Sampling weights are divided by the largest before: see `lightened`.
    """
    lower, upper = cell_bounds(cells, alpha)
    if np.any(lower > upper[1:]):
        return None
    before_end = np.nextafter(one.score_hi, -np.inf)
    before_end[-1] = np.inf
    first = np.searchsorted(cells.last, one.score_lo)
    last = np.searchsorted(cells.last, before_end)
    return Interval(lower[first], upper[last + 1])


def lightened(cells: Cells, heaviest: float) -> Cells:
    """Cells with sampling weights scaled so that the largest counts as one row: for a conservative band.

    Kish's effective size has the right variance, and not the tail of few heavy rows: of log-normal weights with
    sigma = 1 and 2 % positives its band holds in three tables of four. heaviest : the largest weight; below 1 as 1
    """
    if heaviest <= 1.0:
        return cells
    return Cells(cells.last, cells.rows / heaviest, cells.positives / heaviest)


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


Count = int | Fraction

Block = tuple[Count, Count]
"""Rows, and those with label 1: sums of weights, as exactly as they are known, so that parts leave no trace."""


class _Piece(NamedTuple):
    """Part of a range of points: its first and its last point, and the isotonic blocks between them."""

    stretch: int
    first: Block
    behind_first: list[Block]
    before_last: list[Block]
    last: Block

    @property
    def whole(self) -> list[Block]:
        return [self.first, *self.behind_first]


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
        ends = [(_count(own.weight[i]), _count(own.positives[i])) for i in (0, -1)]
        rest, front = (_blocks(Points(*(c[part] for c in own))) for part in (slice(1, None), slice(None, -1)))
        found.append(_Piece(int(stretch[a]), ends[0], rest, front, ends[1]))
    return found


def _blocks(points: Points) -> list[Block]:
    if not points.score.size:
        return []
    blocks = pool_points(points)
    sums = zip(*(column.tolist() for column in blocks[2:]), strict=True)
    return [(_count(w, w_low), _count(k, k_low)) for w, w_low, k, k_low in sums]


def _count(high: float, low: float = 0.0) -> Count:
    """A sum that is a double-double; a whole one as such, which is quicker."""
    if low == 0.0 and high == (whole := int(high)):
        return whole
    return Fraction(high) + Fraction(low)


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
            return float(k / w)


def interval_passes(
    kind: str, one: CalibrationMap, heaviest: float = 1.0
) -> Generator[Pass, Any, Interval | None]:
    """Yield the passes over a map's observations, receive their results, return the interval of each of its rows.

    kind : 'band' or 'venn_abers'. None where there is no band: see `band`. heaviest : see `lightened`
    """
    if kind == VENN_ABERS:
        found: Interval = yield venn_abers_pass(one)
        return found
    return band(one, lightened((yield from cell_passes()), heaviest))
