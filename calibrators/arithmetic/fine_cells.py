"""Fine cells: a summary of very many points for a curve along the score, made in one pass.

Points are drawn by their hashes, half by the weight of their positives and half by that of their negatives
(`calibrators._kernels.drawn_cells`), and the points at both ends are added. A drawn point is a cell; the points between
two neighbouring ones are another cell. So cells have nearly equal shares of either label, and they are a function of
the points alone, for any division into parts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from calibrators._kernels import drawn_cells as kernel
from calibrators._kernels import sums
from calibrators.arithmetic.passes import Array, Blocks, Pass, Points

DRAWN = 8192
"""Points at most, for either label."""

ENDS = 256
"""Points that are cells at either end: beyond the last drawn one scores may be far apart."""

_TOLD = 1e-12
"""Share of all weight that differences of sums can tell."""

MOST_CELLS = 2 * (2 * DRAWN + 2 * ENDS) + 1
_COLUMNS = 6
_TRIES = 4
_SALTS = (np.uint64(0x6A09E667F3BCC908), np.uint64(0xBB67AE8584CAA73B))

Indices = npt.NDArray[np.int64]


class FineCells(NamedTuple):
    """Neighbouring cells, ascending; float64 arrays, shape (cells,).

    first, last : the scores at which each begins and ends; equal where it is a single point
    weight, positives : sums, correctly rounded
    """

    first: Array
    last: Array
    weight: Array
    positives: Array


class _Part(NamedTuple):
    """The cells of a part. Sums: expansions one after another, of these lengths."""

    first: Array
    last: Array
    priority: Array  # (2, cells): by negatives and by positives; 0 of what was not drawn
    weight: Array
    positives: Array
    lengths: tuple[Indices, Indices]


def fine_cells_pass() -> Pass:
    """The pass that yields the `FineCells`."""
    return Pass(chunk=_cells_of_points, combine=_join, classes=_cells_of_classes)


def split_cells(fine: FineCells, blocks: Blocks) -> FineCells:
    """Cut cells where isotonic blocks of the same observations begin: where the truth jumps a cell would blur it."""
    cell = np.searchsorted(fine.first, blocks.first[1:], side="right") - 1
    inside = np.flatnonzero(blocks.first[1:] > fine.first[cell])
    first = np.concatenate([fine.first, blocks.first[inside + 1]])
    order = np.argsort(first, kind="stable")
    differences = []
    for of_cell, of_block in ((fine.weight, blocks.weight), (fine.positives, blocks.positives)):
        below = np.concatenate([np.append(0.0, np.cumsum(of_cell)[:-1]), np.cumsum(of_block)[inside]])
        differences.append(np.diff(np.append(below[order], of_cell.sum())))
    cells = FineCells(first[order], np.sort(np.concatenate([fine.last, blocks.last[inside]])), *differences)
    # Where weights differ by many orders of magnitude the differences are rounding.
    if not sums.adds_exactly(fine.weight) and cells.weight.min() < _TOLD * fine.weight.sum():
        return fine
    return cells._replace(positives=np.clip(cells.positives, 0.0, cells.weight))


def gathered_bytes(points: int, parts: int) -> float:
    """Bytes of all parts' states."""
    return 8.0 * (_COLUMNS + 2) * min(2 * points, MOST_CELLS * parts)


def _cells_of_points(points: Points) -> _Part:
    score, weight, positives = (np.ascontiguousarray(column) for column in points)
    bits = score.view(np.uint64)
    drawn = [
        _draw(partial(kernel.candidate_points, score, bits, column), score.size, float(column.sum()), salt)
        for column, salt in zip((weight - positives, positives), _SALTS, strict=True)
    ]
    marks = np.unique(np.concatenate([*(column[:, 1] for column in drawn), score[:ENDS], score[-ENDS:]]))
    marked = np.searchsorted(score, marks)
    ends = np.unique(np.concatenate([marked, marked + 1, [score.size]]))
    ends = ends[ends > 0]
    starts = np.append(0, ends[:-1])
    first, last = score[starts], score[ends - 1]
    priority = _priorities(first, last, drawn)
    (w, w_lengths), (k, k_lengths) = (sums.expansions_between(c, starts) for c in (weight, positives))
    return _Part(first, last, priority, w, k, (w_lengths, k_lengths))


def _cells_of_classes(negatives: Array, positives: Array) -> tuple[_Part, int]:
    classes = negatives, positives
    drawn = [
        _draw(
            partial(kernel.class_candidates, column, column.view(np.uint64)), column.size, column.size, salt
        )
        for column, salt in zip(classes, _SALTS, strict=True)
    ]
    lowest = np.unique(np.concatenate([_first_distinct(column, ENDS) for column in classes]))[:ENDS]
    highest = np.unique(np.concatenate([_first_distinct(column[::-1], ENDS) for column in classes]))[-ENDS:]
    marks = np.unique(np.concatenate([*(column[:, 1] for column in drawn), lowest, highest]))
    # Rows below each mark, and up to it: a gap, a point, a gap, ...
    bounds = [
        np.column_stack([np.searchsorted(column, marks), np.searchsorted(column, marks, "right")])
        for column in classes
    ]
    stops = [np.append(bound.ravel(), column.size) for bound, column in zip(bounds, classes, strict=True)]
    starts = [np.append(0, stop[:-1]) for stop in stops]
    counts = [(stop - start).astype(np.float64) for stop, start in zip(stops, starts, strict=True)]
    nonempty = counts[0] + counts[1] > 0
    first, last = np.full(nonempty.size, np.inf), np.full(nonempty.size, -np.inf)
    for column, start, stop, count in zip(classes, starts, stops, counts, strict=True):
        rows = count > 0
        first[rows] = np.minimum(first[rows], column[start[rows]])
        last[rows] = np.maximum(last[rows], column[stop[rows] - 1])
    first, last = first[nonempty], last[nonempty]
    totals = (counts[0] + counts[1])[nonempty], counts[1][nonempty]
    state = _Part(first, last, _priorities(first, last, drawn), *totals, (np.ones(first.size, np.int64),) * 2)
    return state, int(kernel.distinct_in_either(negatives, positives))


def _draw(sample: Callable[..., tuple[Array, int]], count: int, weight: float, salt: np.uint64) -> Array:
    """The points with the highest priorities, `DRAWN` at most: priorities and scores; of equal ones the lower scores.

    likely : see `likely_points`. count, weight : of the points or rows that it draws from
    """
    if count > 4 * DRAWN and weight > 0:
        # Of weight W, W / t points have a priority above t, unless many share a score: a few more than needed.
        least = weight / (1.25 * DRAWN)
        for _ in range(_TRIES):
            candidates, size = sample(least, 2 * DRAWN, salt)
            if DRAWN <= size <= 2 * DRAWN:
                return np.asarray(candidates[np.lexsort((candidates[:, 1], -candidates[:, 0]))[:DRAWN]])
            least *= 0.1 if size < DRAWN else size / (1.5 * DRAWN)
    candidates, _ = sample(0.0, count, salt)
    return np.asarray(candidates[np.lexsort((candidates[:, 1], -candidates[:, 0]))[:DRAWN]])


def _first_distinct(values: Array, most: int) -> Array:
    """The first different ones of ascending or descending values, so many at most."""
    size = most
    while True:
        prefix = values[:size]
        distinct = prefix[np.append(True, prefix[1:] != prefix[:-1])[: prefix.size]]
        if distinct.size >= most or size >= values.size:
            return np.asarray(distinct[:most])
        size *= 8


def _priorities(first: Array, last: Array, drawn: list[Array]) -> Array:
    priority = np.zeros((2, first.size))
    for row, sample in zip(priority, drawn, strict=True):
        cells = np.searchsorted(first, sample[:, 1])
        row[cells] = sample[:, 0]
    return priority


def _join(parts: list[_Part]) -> FineCells:
    first, last = (np.concatenate([getattr(part, name) for part in parts]) for name in ("first", "last"))
    priority = np.concatenate([part.priority for part in parts], axis=1)
    marked = np.zeros(first.size, bool)
    for row in priority:
        sampled = np.flatnonzero(row)
        if sampled.size > DRAWN:
            # As the heaps of the parts have it: of equal priorities the lower score.
            sampled = sampled[np.lexsort((first[sampled], -row[sampled]))[:DRAWN]]
        marked[sampled] = True
    # The points at the ends of all are cells of their parts.
    marked[:ENDS] = True
    marked[-ENDS:] = True
    starts = np.flatnonzero(marked | np.append(True, marked[:-1]))
    weight, positives = (_sums(parts, i, starts) for i in (0, 1))
    return FineCells(
        first[starts], last[np.append(starts[1:], first.size) - 1], weight, np.minimum(positives, weight)
    )


def _sums(parts: list[_Part], column: int, starts: Indices) -> Array:
    components = np.concatenate([(part.weight, part.positives)[column] for part in parts])
    lengths = np.concatenate([part.lengths[column] for part in parts])
    return sums.sums_between(components, (np.cumsum(lengths) - lengths)[starts])
