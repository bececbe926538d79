"""Intervals for the rows of a calibration map: a simultaneous confidence band, or Venn-Abers predictions.

Posterior intervals are in `calibrators.core.pointwise`. Observations are assumed independent, and weights count
them: a weight of 2 equals a repeated observation. Fractional weights count too: sampling weights have been scaled to
add up to Kish's effective size (`calibrators.core.sampling`).
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from fractions import Fraction
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from calibrators.core.arrays import Array
from calibrators.core.cumulative import bin_counts, cuts_pass, layout_pass
from calibrators.core.map import CalibrationMap, Interval
from calibrators.core.passes import Pass, Points
from calibrators.core.pava import pool_points
from calibrators.core.sampling import odds_divided

NONE, AUTO, POSTERIOR, BAND, VENN_ABERS = "none", "auto", "posterior", "band", "venn_abers"
KINDS = (NONE, POSTERIOR, BAND, VENN_ABERS)

ALPHA = 0.05
"""Probability that the truth lies outside the band at any score."""

_GRID = 256


def divided(interval: Interval, rate: float) -> Interval:
    """Convert an interval of sampled rows to all rows: see `calibrators.core.sampling`."""
    if rate == 1.0:
        return interval
    return Interval(*(np.asarray(odds_divided(column, rate)) for column in interval))


# The band


class BandCells(NamedTuple):
    """Consecutive cells of observations.

    last : float64 array, shape (cells,): last score of each cell
    rows, positives : float64 arrays, shape (cells,): weight of the rows and of the positives
    """

    last: Array
    rows: Array
    positives: Array


def ranks(rows: float) -> Array:
    """Compute the ranks at which cells end: j N / 256, and 2**i and N - 2**i for 2**i < N / 256."""
    inner = rows * np.arange(1, _GRID) / _GRID
    powers = 2.0 ** np.arange(max(0, int(np.ceil(np.log2(max(rows / _GRID, 1.0))))))
    powers = powers[powers < rows / _GRID]
    return np.unique(np.concatenate([powers, inner, rows - powers]))


def cell_passes() -> Generator[Pass, Any, BandCells]:
    """Yield the two passes that cells need, receive their results, return the cells."""
    layout = yield layout_pass()
    cuts = yield cuts_pass(layout, ranks(layout.weight))
    return BandCells(np.append(cuts.below, layout.last), *bin_counts(layout, cuts.counts))


def band(fitted: CalibrationMap, cells: BandCells, alpha: float = ALPHA) -> Interval | None:
    """Compute the simultaneous band for probabilities that never decrease with the score (Dimitriadis et al. 2023).

    Parameters
    ----------
    fitted : map for whose rows the band is: its lower end at a row's first score, its upper end at the last
    cells : cells of the observations
    alpha : in (0, 1): with probability at least 1 - alpha the truth lies within the band everywhere

    Returns
    -------
    Interval, or None if the bounds cross: then the observations refute that the truth never decreases

    Notes
    -----
    Exact for independent rows: Clopper-Pearson bounds of the mean of each of J ranges of 1, 2, 4, ... cells, at
    alpha / (2 J) per side. Sums of weights are used as counts. For weights w <= 1, such as decayed ones, the bounds are
    conservative: the moment generating function of w times a label is at most that of a label to the power of w.
    Sampling weights are divided by the largest first: see `lightened`.
    """
    lower, upper = cell_bounds(cells, alpha)
    if np.any(lower > upper[1:]):
        return None
    before_end = np.nextafter(fitted.score_hi, -np.inf)
    before_end[-1] = np.inf
    first = np.searchsorted(cells.last, fitted.score_lo)
    last = np.searchsorted(cells.last, before_end)
    return Interval(lower[first], upper[last + 1])


def lightened(cells: BandCells, heaviest: float) -> BandCells:
    """Scale sampling weights so that the largest counts as one row, for a conservative band.

    Kish's effective size has the right variance, but not the tail of few heavy rows: with log-normal weights, sigma = 1
    and 2 % positives, its band contains the truth in only three of four cases.

    heaviest : the largest weight; a smaller one than 1 counts as 1
    """
    if heaviest <= 1.0:
        return cells
    return BandCells(cells.last, cells.rows / heaviest, cells.positives / heaviest)


def cell_bounds(cells: BandCells, alpha: float = ALPHA) -> tuple[Array, Array]:
    """Compute the band's bounds for scores in each cell, and outside the cells.

    Returns
    -------
    lower : float64 array, shape (cells + 1,): lower[i] for scores in cell i, the last for scores above all cells
    upper : float64 array, shape (cells + 2,): upper[i] for scores in cell i - 1, the first for scores below all cells,
        the last for scores above
    """
    from scipy.special import betaincinv

    n, k = (np.concatenate([[0.0], np.cumsum(column)]) for column in (cells.rows, cells.positives))
    count = cells.rows.size
    starts, sizes = [], []
    size = 1
    while size <= count:
        first = np.arange(0, count - size + 1, max(1, size // 4))
        starts.append(first)
        sizes.append(np.full(first.size, size))
        size *= 2
    start = np.concatenate(starts)
    end = start + np.concatenate(sizes)
    rows, hits = n[end] - n[start], k[end] - k[start]
    tail = alpha / (2 * start.size)
    low, high = np.zeros(start.size), np.ones(start.size)
    has_hits, has_misses = hits > 0, hits < rows
    low[has_hits] = betaincinv(hits[has_hits], rows[has_hits] - hits[has_hits] + 1, tail)
    high[has_misses] = betaincinv(hits[has_misses] + 1, rows[has_misses] - hits[has_misses], 1 - tail)
    lower, upper = np.zeros(count + 1), np.ones(count + 2)
    np.maximum.at(lower, end, low)
    # Ranges that start after cell i - 1 bound its scores from above.
    np.minimum.at(upper, start, high)
    return np.maximum.accumulate(lower), np.minimum.accumulate(upper[::-1])[::-1]


# Venn-Abers


Count = int | Fraction

Block = tuple[Count, Count]
"""Weight of the rows and of the positives, exact, so that results do not depend on the parts."""


class _Piece(NamedTuple):
    """Points of a part in one row of the map.

    row : index among the map's rows with observations. first, last : first and last point
    after_first, before_last : isotonic blocks of the points after the first, and before the last
    """

    row: int
    first: Block
    after_first: list[Block]
    before_last: list[Block]
    last: Block

    @property
    def blocks(self) -> list[Block]:
        return [self.first, *self.after_first]


def venn_abers_pass(fitted: CalibrationMap) -> Pass:
    """Make the pass over its observations that yields the Venn-Abers `Interval` of an isotonic regression.

    For the scores of a row, the lower end is F0 at its first score and the upper end F1 at its last: the least
    probability with label 0 and the greatest with label 1 (Vovk, Petej & Fedorova 2015), neither of which decreases
    with the score. It contains [F0, F1] at each score of the row, and is wider where both differ within the row.
    Outside all scores the ends are 0 and 1. It is not a confidence interval.
    """
    rows = np.flatnonzero(fitted.weight > 0)
    return Pass(chunk=partial(_pieces, fitted.score_lo[rows]), combine=partial(_venn_abers, fitted, rows))


def _pieces(edges: Array, points: Points) -> list[_Piece]:
    row = np.searchsorted(edges, points.score, side="right") - 1
    begin = np.append(np.flatnonzero(np.diff(row, prepend=-1)), row.size)
    pieces = []
    for a, b in zip(begin[:-1].tolist(), begin[1:].tolist(), strict=True):
        inside = Points(*(column[a:b] for column in points))
        first, last = ((_count(inside.weight[i]), _count(inside.positives[i])) for i in (0, -1))
        after_first = _blocks(Points(*(column[1:] for column in inside)))
        before_last = _blocks(Points(*(column[:-1] for column in inside)))
        pieces.append(_Piece(int(row[a]), first, after_first, before_last, last))
    return pieces


def _blocks(points: Points) -> list[Block]:
    if not points.score.size:
        return []
    blocks = pool_points(points)
    sums = zip(*(column.tolist() for column in blocks[2:]), strict=True)
    return [(_count(w, w_low), _count(k, k_low)) for w, w_low, k, k_low in sums]


def _count(high: float, low: float = 0.0) -> Count:
    """Convert a double-double to an exact number; whole ones to int, which is faster than Fraction."""
    if low == 0.0 and high == (integer := int(high)):
        return integer
    return Fraction(high) + Fraction(low)


def _venn_abers(fitted: CalibrationMap, rows: Any, parts: list[list[_Piece]]) -> Interval:
    """Compute the intervals of a map's rows. rows : indices of the rows with observations."""
    pieces: list[_Piece] = []
    for piece in chain.from_iterable(parts):
        if pieces and pieces[-1].row == piece.row:
            before = pieces[-1]
            after_first = [*before.after_first, *piece.blocks]
            before_last = [*before.blocks, *piece.before_last]
            pieces[-1] = _Piece(piece.row, before.first, after_first, before_last, piece.last)
        else:
            pieces.append(piece)
    pooled = [_pool(piece.blocks) for piece in pieces]
    left: list[Block] = []
    right: list[Block] = [block for blocks in reversed(pooled) for block in reversed(blocks)]
    lower_first, upper_first, lower_last, upper_last = [], [], [], []
    for piece, blocks in zip(pieces, pooled, strict=True):
        before_last = _pool(piece.before_last)
        del right[len(right) - len(blocks) :]
        after_first = _pool(piece.after_first)[::-1]
        lower_first.append(_level((left,), piece.first, 0, (right, after_first)))
        upper_first.append(_level((left,), piece.first, 1, (right, after_first)))
        lower_last.append(_level((left, before_last), piece.last, 0, (right,)))
        upper_last.append(_level((left, before_last), piece.last, 1, (right,)))
        left += blocks
    lower, upper = np.empty(len(fitted)), np.empty(len(fitted))
    lower[rows], upper[rows] = lower_first, upper_last
    # A row without observations is a gap: from the last score of the row before to the first score of the next.
    gap = np.flatnonzero(fitted.weight == 0)
    following = np.searchsorted(rows, gap)
    lower[gap] = np.array(lower_last)[following - 1]
    upper[gap] = np.array(upper_first)[np.minimum(following, rows.size - 1)]
    lower[0], upper[-1] = 0.0, 1.0
    return Interval(lower, upper)


def _pool(blocks: list[Block]) -> list[Block]:
    pooled: list[Block] = []
    for w, k in blocks:
        while pooled and pooled[-1][1] * w >= k * pooled[-1][0]:
            w, k = w + pooled[-1][0], k + pooled[-1][1]
            pooled.pop()
        pooled.append((w, k))
    return pooled


def _level(left: Sequence[list[Block]], point: Block, label: int, right: Sequence[list[Block]]) -> float:
    """Compute the isotonic level of a point with one more observation of this label.

    left, right : lists of blocks on either side, the nearest block last
    """
    w, k = point[0] + 1, point[1] + label
    below, above = (chain.from_iterable(map(reversed, side[::-1])) for side in (left, right))
    previous, following = next(below, None), next(above, None)
    while True:
        if previous is not None and previous[1] * w >= k * previous[0]:
            w, k = w + previous[0], k + previous[1]
            previous = next(below, None)
        elif following is not None and k * following[0] >= following[1] * w:
            w, k = w + following[0], k + following[1]
            following = next(above, None)
        else:
            return float(k / w)


def interval_passes(
    kind: str, fitted: CalibrationMap, heaviest: float = 1.0
) -> Generator[Pass, Any, Interval | None]:
    """Yield the passes over a map's observations, receive their results, return the intervals of its rows.

    kind : 'band' or 'venn_abers'. heaviest : see `lightened`. Returns None if there is no band: see `band`.
    """
    if kind == VENN_ABERS:
        interval: Interval = yield venn_abers_pass(fitted)
        return interval
    return band(fitted, lightened((yield from cell_passes()), heaviest))
