"""Division of wide block ranges: where the map of all rows is flat, as if most rows have one label, segments' may rise.

A division must not depend on how rows are divided among tasks, and tasks must know where it can be before the map is
known: at the ends of fixed cells of scores.
"""

from __future__ import annotations

import numpy as np

from calibrators.core.arrays import Array, Integers
from calibrators.core.fine_cells import FineCells
from calibrators.core.map import MapBlockRanges
from calibrators.core.sorting import Words, ordinals

_SHIFT = np.uint64(46)
"""Bits of a score within a cell: cells are a 64th of a power of two wide."""

_TOP = np.uint64(1 << 63)
_WIDE, _PARTS = 1 / 16, 16
"""Share of the rows from which on a range is divided, and the largest number of parts."""


def cell_begins(scores: Array) -> Integers:
    """Return the indices of the scores, ascending, that lie in another cell than the one before. O(n)."""
    cells = _cells(scores)
    return np.flatnonzero(cells[1:] != cells[:-1]) + 1


def divide(blocks: MapBlockRanges, fine: FineCells, level: Array | None) -> MapBlockRanges:
    """Divide block ranges that hold many rows into parts of similar weight, at ends of cells.

    fine : cells of the same rows
    level : the map's value in each cell, as in `blocks`; None: the map is constant in each block range
    """
    cells, weight = _cells(fine.first), np.cumsum(fine.weight) - fine.weight
    block = np.searchsorted(blocks.edges, fine.first, side="right") - 1
    edges, of = [blocks.edges], [np.arange(blocks.edges.size)]
    for wide in np.flatnonzero(blocks.weight > _WIDE * blocks.weight.sum()).tolist():
        inside = np.flatnonzero(block == wide)
        begins = inside[1:][cells[inside[1:]] != cells[inside[:-1]]]
        if begins.size:
            share = (weight[begins] - weight[inside[0]]) / blocks.weight[wide]
            part, first = np.unique((_PARTS * share).astype(np.int64), return_index=True)
            edges.append(_lower_ends(cells[begins[first[part > 0]]]))
            of.append(np.full(edges[-1].size, wide))
    order = np.argsort(np.concatenate(edges), kind="stable")
    lower, parts = np.concatenate(edges)[order], np.concatenate(of)[order]
    divided = np.bincount(parts, minlength=blocks.edges.size)[parts] > 1
    part = np.searchsorted(lower, fine.first, side="right") - 1
    weights = np.bincount(part, fine.weight, lower.size)
    new_level, new_weight = blocks.level[parts], np.where(divided, weights, blocks.weight[parts])
    if level is not None:
        sums = np.bincount(part, fine.weight * level, lower.size)
        new_level[divided] = sums[divided] / weights[divided]
    return MapBlockRanges(lower, np.maximum.accumulate(new_level), new_weight)


def _cells(scores: Array) -> Words:
    return np.asarray(ordinals(scores) >> _SHIFT)


def _lower_ends(cells: Words) -> Array:
    """Return the smallest score of each cell, the inverse of `ordinals`."""
    first = cells << _SHIFT
    return np.where(first & _TOP, first ^ _TOP, ~first).view(np.float64)
