"""Fine cells: a summary of the points in one pass, to which a curve of the score is fitted.

Points are sampled by their hashes, half of them by the weight of their negatives and half by that of their positives
(`kernels.drawn_cells`), and the points at both ends are added. Each sampled point is a cell, and so are
the points between two of them. So cells have nearly equal shares of either label and do not depend on the division of
the points into parts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from calibrators.core.arrays import Array, Integers
from calibrators.core.kernels import drawn_cells as kernel
from calibrators.core.kernels import sums
from calibrators.core.passes import Blocks, Pass, Points

DRAWN = 8192
"""Largest number of sampled points for each label."""

ENDS = 256
"""Number of points at either end that are cells, because scores may be far apart beyond the last sampled one."""

_RESOLUTION = 1e-12
"""Smallest share of the total weight that differences of sums can resolve."""

MOST_CELLS = 2 * (2 * DRAWN + 2 * ENDS) + 1
_COLUMNS = 6
_TRIES = 4
_NONE = np.empty(0)
_SALTS = (np.uint64(0x6A09E667F3BCC908), np.uint64(0xBB67AE8584CAA73B))


class FineCells(NamedTuple):
    """Neighbouring cells, ascending; float64 arrays, shape (cells,).

    first, last : first and last score of each cell; equal if it is a single point
    weight, positives : correctly rounded sums
    """

    first: Array
    last: Array
    weight: Array
    positives: Array


class _Part(NamedTuple):
    """Cells of a part.

    weight, positives : concatenated expansions
    lengths : numbers of components of the expansions
    """

    first: Array
    last: Array
    priority: Array  # (2, cells): by negatives and by positives; 0 if not sampled
    weight: Array
    positives: Array
    lengths: tuple[Integers, Integers]


def fine_cells_pass() -> Pass:
    """Return the pass that yields the `FineCells`."""
    return Pass(chunk=_cells_of_points, combine=_cells_of_parts, join=_join)


def split_cells(fine: FineCells, blocks: Blocks) -> FineCells:
    """Split cells at the starts of isotonic blocks of the same observations, so that no cell blurs a jump."""
    cell = np.searchsorted(fine.first, blocks.first[1:], side="right") - 1
    inside = np.flatnonzero(blocks.first[1:] > fine.first[cell])
    first = np.concatenate([fine.first, blocks.first[inside + 1]])
    order = np.argsort(first, kind="stable")
    differences = []
    for of_cell, of_block in ((fine.weight, blocks.weight), (fine.positives, blocks.positives)):
        below = np.concatenate([np.append(0.0, np.cumsum(of_cell)[:-1]), np.cumsum(of_block)[inside]])
        differences.append(np.diff(np.append(below[order], of_cell.sum())))
    cells = FineCells(first[order], np.sort(np.concatenate([fine.last, blocks.last[inside]])), *differences)
    # If weights differ by many orders of magnitude, the differences are rounding errors.
    if not sums.adds_exactly(fine.weight) and cells.weight.min() < _RESOLUTION * fine.weight.sum():
        return fine
    return cells._replace(positives=np.clip(cells.positives, 0.0, cells.weight))


def gathered_bytes(points: int, parts: int) -> float:
    """Return the size in bytes of the states of all parts."""
    return 8.0 * (_COLUMNS + 2) * min(2 * points, MOST_CELLS * parts)


def _cells_of_points(points: Points) -> _Part:
    score, weight, positives = (np.ascontiguousarray(column) for column in points)
    total, ones = float(weight.sum()), float(positives.sum())
    of_label = ((weight, positives, total - ones), (positives, _NONE, ones))
    drawn = [
        _draw(partial(kernel.candidate_points, score.view(np.uint64), column, others), score.size, sum_, salt)
        for (column, others, sum_), salt in zip(of_label, _SALTS, strict=True)
    ]
    # A cell begins at each marked point and behind it.
    begins = np.zeros(score.size + 1, np.bool_)
    begins[0] = True
    ends = np.arange(min(ENDS, score.size))
    for marked in (*(index for index, _ in drawn), ends, score.size - 1 - ends):
        begins[marked] = begins[marked + 1] = True
    starts = np.flatnonzero(begins[:-1])
    first, last = score[starts], score[np.append(starts[1:], score.size) - 1]
    priority = np.zeros((2, starts.size))
    for row, (index, drawn_priority) in zip(priority, drawn, strict=True):
        row[np.searchsorted(starts, index)] = drawn_priority
    (w, w_lengths), (k, k_lengths) = (sums.expansions_between(c, starts) for c in (weight, positives))
    return _Part(first, last, priority, w, k, (w_lengths, k_lengths))


def _draw(
    sample: Callable[..., tuple[Integers, Array, int]], count: int, weight: float, salt: np.uint64
) -> tuple[Integers, Array]:
    """Sample up to `DRAWN` points with the highest priorities, of ties those with lower scores.

    sample : `candidate_points` without the last three arguments
    count, weight : number and total weight of the points

    Returns
    -------
    int64 and float64 arrays, shape (points,): indices and priorities
    """
    least, room = 0.0, count
    if count > 4 * DRAWN and weight > 0:
        # Of total weight W, about W / t points have a priority above t, or fewer if many rows share a score.
        least, room = weight / (1.25 * DRAWN), 2 * DRAWN
    for _ in range(_TRIES):
        index, priority, size = sample(least, room, salt)
        if least == 0 or DRAWN <= size <= room:
            break
        least *= 0.1 if size < DRAWN else size / (1.5 * DRAWN)
    else:
        index, priority, _ = sample(0.0, count, salt)
    highest = _highest(priority)
    return index[highest], priority[highest]


def _highest(priority: Array) -> Integers:
    """Return the indices, ascending, of the `DRAWN` highest priorities, of ties the first."""
    if priority.size <= DRAWN:
        return np.arange(priority.size)
    lowest = np.partition(priority, priority.size - DRAWN)[priority.size - DRAWN]
    chosen = priority > lowest
    chosen[np.flatnonzero(priority == lowest)[: DRAWN - np.count_nonzero(chosen)]] = True
    return np.flatnonzero(chosen)


def _cells_of_parts(parts: list[_Part]) -> FineCells:
    all_parts = _join(parts)
    weight, positives = (
        sums.sums_between(components, np.cumsum(lengths) - lengths)
        for components, lengths in zip(
            (all_parts.weight, all_parts.positives), all_parts.lengths, strict=True
        )
    )
    return FineCells(all_parts.first, all_parts.last, weight, np.minimum(positives, weight))


def _join(parts: list[_Part]) -> _Part:
    """Join the cells of neighbouring parts: as fine as those of their points in one part."""
    first, last = (np.concatenate([getattr(part, name) for part in parts]) for name in ("first", "last"))
    priority = np.concatenate([part.priority for part in parts], axis=1)
    marked = np.zeros(first.size, bool)
    for row in priority:
        sampled = np.flatnonzero(row)
        highest = sampled[_highest(row[sampled])]
        marked[highest] = True
        row[np.delete(sampled, np.searchsorted(sampled, highest))] = 0.0
    # The points at both ends of all points are cells of their parts.
    marked[:ENDS] = True
    marked[-ENDS:] = True
    starts = np.flatnonzero(marked | np.append(True, marked[:-1]))
    (w, w_lengths), (k, k_lengths) = (_sums(parts, i, starts) for i in (0, 1))
    ends = last[np.append(starts[1:], first.size) - 1]
    return _Part(first[starts], ends, priority[:, starts], w, k, (w_lengths, k_lengths))


def _sums(parts: list[_Part], column: int, starts: Integers) -> tuple[Array, Integers]:
    components = np.concatenate([(part.weight, part.positives)[column] for part in parts])
    lengths = np.concatenate([part.lengths[column] for part in parts])
    begins = starts if components.size == lengths.size else (np.cumsum(lengths) - lengths)[starts]
    return sums.expansions_between(components, begins)
