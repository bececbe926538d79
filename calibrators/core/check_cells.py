"""Cells of the points for the check of a map whose fit has several passes: about equal shares of rows and rarer label.

Points at the ends of these shares are cells of their own, and so are the points between two of them. So a heavy tie is
a cell, and cells do not depend on the division of the points into parts.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np

from calibrators.core.arrays import Array, Integers, Mask
from calibrators.core.cumulative import (
    Counts,
    Layout,
    bin_counts,
    counts_at,
    cut_positions,
    cut_positions_in_part,
    join_counts,
)
from calibrators.core.fine_cells import FineCells
from calibrators.core.kernels import sums as kernel
from calibrators.core.passes import Pass, Points

SHARES = 2048
_STRIDE = 64


class _CheckPart(NamedTuple):
    """Cells of a part.

    first, last : first and last score of each cell
    starts : whether the cell is one, or continues the last cell of the part before
    ends : whether the last cell ends at the end of the part
    counts : sums of all points below each cell
    """

    first: Array
    last: Array
    starts: Mask
    ends: bool
    counts: Counts


def check_cells_pass(layout: Layout) -> Pass:
    """Return the pass that yields at most some 4,100 cells, as `FineCells`. O(points)."""
    return Pass(chunk=partial(_cells_of_part, layout), combine=partial(_join, layout))


def _cells_of_part(layout: Layout, points: Points) -> _CheckPart:
    marked, size = _marked(layout, points), points.score.size
    starts = np.unique(np.concatenate([[0], marked, marked + 1]))
    starts = starts[starts < size]
    stops = np.append(starts[1:], size)
    is_start = np.ones(starts.size, bool)
    is_start[0] = layout.part_of(points) == 0 or bool(marked.size and marked[0] == 0)
    counts = counts_at(layout, layout.part_of(points), points, starts)
    ends = bool(marked.size and marked[-1] == size - 1)
    return _CheckPart(points.score[starts], points.score[stops - 1], is_start, ends, counts)


def _marked(layout: Layout, points: Points) -> Integers:
    """Return the indices of the points of a part at which the position reaches a target, see `cut_positions`."""
    targets = np.arange(1, SHARES) / SHARES
    part, size = layout.part_of(points), points.score.size
    stops = np.append(np.arange(0, size, _STRIDE), size)
    sums = [
        kernel.sums_through(column, before[part], stops)[0]
        for column, before in (
            (points.weight, layout.weight_before),
            (points.positives, layout.positives_before),
        )
    ]
    if not all((column == np.rint(column)).all() for column in sums):
        start, positions = cut_positions_in_part(layout, points, balanced=True)
        inside = targets[(targets > start) & (targets <= positions[-1])]
        return np.unique(np.searchsorted(positions, inside, side="left"))
    # Whole numbers add up exactly: look for the blocks of points that contain targets, and then only there.
    positions = cut_positions(layout, *sums, balanced=True)
    inside = targets[(targets > positions[0]) & (targets <= positions[-1])]
    block = np.searchsorted(positions, inside, side="left") - 1
    at = np.minimum(stops[block][:, np.newaxis] + np.arange(_STRIDE), size - 1)
    within = [
        column[block][:, np.newaxis] + np.cumsum(values[at], axis=1)
        for column, values in zip(sums, (points.weight, points.positives), strict=True)
    ]
    below = cut_positions(layout, *within, balanced=True) < inside[:, np.newaxis]
    return np.unique(stops[block] + below.sum(axis=1))


def _join(layout: Layout, parts: list[_CheckPart]) -> FineCells:
    first, last = (np.concatenate([getattr(part, name) for part in parts]) for name in ("first", "last"))
    is_start = np.concatenate([part.starts for part in parts])
    sizes = [part.first.size for part in parts]
    for begin, before in zip(np.cumsum(sizes)[:-1].tolist(), parts[:-1], strict=True):
        is_start[begin] |= before.ends
    starts = np.flatnonzero(is_start)
    counts = join_counts([part.counts for part in parts])
    weight, positives = bin_counts(layout, Counts(*(column[starts[1:]] for column in counts)))
    stops = np.append(starts[1:], first.size)
    return FineCells(first[starts], last[stops - 1], weight, positives)
