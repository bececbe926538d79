"""Rows added up in cells of close scores, which do not depend on ranges of scores or on other rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from calibrators.core.arrays import Array, Integers
from calibrators.core.sorting import ordinals

_SHIFT = np.uint64(40)
"""Bits of a score within a cell: cells are a 4,096th of a power of two wide."""


def add_up_cells(
    first: Array, last: Array, sums: Sequence[Array], starts: Integers
) -> tuple[list[Array], Integers]:
    """Add up items of segments, points or cells, that lie in one cell.

    first, last : float64 arrays, shape (items,): extreme scores of each, ascending in a segment; the same for points
    sums : arrays of this shape, to add up
    starts : int64 array: start of each segment's items, and the end

    Returns
    -------
    first and last score and sums of each cell, and the start of each segment's cells, and the end
    """
    if not first.size:
        return [first, last, *sums], starts
    cell = ordinals(first) >> _SHIFT
    new = np.append(True, cell[1:] != cell[:-1])
    new[starts[:-1][np.diff(starts) > 0]] = True
    at = np.flatnonzero(new)
    ends = np.append(at[1:], first.size) - 1
    added = [np.add.reduceat(column, at) for column in sums]
    return [first[at], last[ends], *added], np.searchsorted(at, starts)


def middle_of(first: Array, last: Array) -> Array:
    """Return the middle of each cell, and the score of one with a single score exactly."""
    return np.where(first == last, first, first / 2 + last / 2)
