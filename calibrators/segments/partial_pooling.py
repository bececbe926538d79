"""Many groups of rows: isotonic maps of them, and partial pooling in the block ranges of their parents' maps.

Adjusting a parent's map (`calibrators.segments.adjusting`) and pooling with it need only a segment's counts in the
block ranges within which that map is constant.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from calibrators._kernels import partial_pooling as kernel
from calibrators._kernels import pava
from calibrators.arithmetic.calibration_map import maps_of_blocks
from calibrators.arithmetic.passes import Array

Integers = npt.NDArray[np.int64]

OWN_STRENGTH = 300.0
"""M: the information, sum of w p (1 - p), that an adjusted map made of blocks counts for in a segment's own map."""


class WithinBlockRanges(NamedTuple):
    """Rows of groups within the block ranges of their parents' maps, group after group, ascending in each.

    A cell is what a group has in a block range; it is made of items, of one where the group is not pooled.

    Attributes
    ----------
    items : float64 array, shape (6, items): the scores that each reaches from and to, and weight and positives as
        double-doubles
    sizes : int64 array, shape (groups,): items of each
    block_range : int64 array, shape (cells,): the place of each one's block range among all parents'
    counts : int64 array, shape (cells,): items of each
    cells : int64 array, shape (groups,): cells of each
    """

    items: Array
    sizes: Integers
    block_range: Integers
    counts: Integers
    cells: Integers


class BlockRanges(NamedTuple):
    """Starts of the block ranges of some maps.

    edges : float64 array of scores, or int32 array of ranks, map after map, ascending in each.
    starts : int64 array, shape (maps + 1,)
    """

    edges: npt.NDArray[Any]
    starts: Integers


def pool_within(
    items: Sequence[Array],
    starts: Integers,
    block_ranges: BlockRanges,
    parent: npt.NDArray[np.integer[Any]],
    pooled: npt.NDArray[np.bool_],
) -> WithinBlockRanges:
    """Join what groups have within the block ranges of their parents' maps: all that moving and own maps need.

    It is associative: parts that are joined first, and then together, give the same.

    Parameters
    ----------
    items : the columns of `WithinBlockRanges.items`, of points, or of what this has made of parts. Low parts may be of
        shape (0,), for zeros.
    starts : int64 array, shape (groups + 1,): where each group's begin. None lies in two block ranges.
    parent : shape (groups,): whose block ranges they are
    pooled : shape (groups,): whether isotonic regression pools them, for an own map; else a block range is one item

    Notes
    -----
    O(items log block ranges) at most, O(items) where most follow each other in a block range.
    """
    begin, block_range, cells = kernel.stretches(items[0], starts, parent, *block_ranges)
    found, counts = pava.pool_groups(tuple(items), np.append(begin, items[0].size), np.repeat(pooled, cells))
    ends = np.cumsum(cells)
    sizes = np.diff(np.append(0, np.cumsum(counts))[ends], prepend=0)
    return WithinBlockRanges(found, sizes, block_range, counts, cells)


def pool_ranks_within(
    rows: npt.NDArray[np.uint32],
    starts: Integers,
    distinct: Array,
    block_ranges: BlockRanges,
    parent: npt.NDArray[np.integer[Any]],
    pooled: npt.NDArray[np.bool_],
) -> tuple[Array, npt.NDArray[np.int32], Integers]:
    """Do `pool_within` for rows of weight 1, whose scores are ranks; with their edges: see the kernel."""
    found: tuple[Array, npt.NDArray[np.int32], Integers]
    found = kernel.pool_ranks_within(rows, starts, distinct, parent, *block_ranges, pooled)
    return found


class OwnMaps(NamedTuple):
    """Maps of groups of their own, group after group.

    Attributes
    ----------
    first, last, weight, positives : float64 arrays, shape (blocks,): each block's scores, and the group's own sums
    level : float64 array, shape (blocks,): ascending in each group; in (0, 1) where the prior counts for something
    sizes : int64 array, shape (groups,)
    """

    first: Array
    last: Array
    weight: Array
    positives: Array
    level: Array
    sizes: Integers


def own_maps(
    first: Array,
    last: Array,
    weight: Array,
    positives: Array,
    starts: Integers,
    prior: Array,
    strength: float = OWN_STRENGTH,
) -> OwnMaps:
    """Groups' own maps: isotonic regression of each group's points, pooled with a prior curve.

    Each point has weight w (1 + C) and positives y + C w p, with C = strength / sum of w p (1 - p) over the group.

    Parameters
    ----------
    first, last, weight, positives : float64 arrays, shape (n,)
        Points of groups, group after group, ascending in each; or their cells, pooled where `prior` is constant.
    starts : int64 array, shape (groups + 1,): strictly ascending
    prior : float64 array, shape (n,), in (0, 1), ascending in each group
    strength : the information that the prior counts for; 0: plain isotonic regression

    Notes
    -----
    Neighbours of equal level are one block. O(n).
    """
    information = np.add.reduceat(weight * prior * (1.0 - prior), starts[:-1])
    share = strength / information if strength else np.zeros(information.size)
    each = np.repeat(share, np.diff(starts))
    added = weight * (1.0 + each)
    hits = np.minimum(positives + each * weight * prior, added)
    # Pooled by their places instead of their scores, so that it is known which are in a block.
    place, none = np.arange(first.size, dtype=np.float64), np.empty(0)
    blocks, left = pava.pool_groups((place, place, added, none, hits, none), starts, pava.ALL)
    begin, end = blocks[0].astype(np.int64), blocks[1].astype(np.int64)
    return OwnMaps(
        first[begin],
        last[end],
        np.add.reduceat(weight, begin),
        np.add.reduceat(positives, begin),
        np.minimum(blocks[4] / blocks[2], 1.0),
        left,
    )


class GroupMaps(NamedTuple):
    """Maps of groups, one after the other.

    Attributes
    ----------
    columns : float64 arrays, shape (rows,), in the order of `CalibrationMap`'s fields.
    sizes : int64 array, shape (groups,): rows of each map; 0 where all scores of the group are equal.
    """

    columns: list[Array]
    sizes: Integers


def fit_groups(columns: Sequence[Array], starts: Integers, ends: float = 1.0) -> GroupMaps:
    """Isotonic regression of each group, to the last bit as `Isotonic(ends=ends).fit` on its rows.

    Parameters
    ----------
    columns : float64 arrays, shape (n,)
        Blocks that are pooled in parts, group after group, ascending in each: first and last score, weight and
        positives; or, where weights are no counts, first and last score, and weight and positives as double-doubles.
    starts : int64 array, shape (groups + 1,)
        Group g has the blocks from starts[g] to starts[g + 1], one at least.

    Notes
    -----
    O(n).
    """
    if len(columns) == 4:
        first, last, weight, positives = columns
        zero = np.zeros(first.size)
        columns = (first, last, weight, zero, positives, zero)
    pooled, sizes = pava.pool_groups(tuple(columns), starts, pava.ALL)
    # One block from a score to the same.
    alone = (sizes == 1) & (pooled[0] == pooled[1])[np.cumsum(sizes) - 1]
    blocks, left = pooled[:, ~np.repeat(alone, sizes)], sizes[~alone]
    level = np.minimum(blocks[4] / blocks[2], 1.0)
    if ends > 0 and left.size:
        blocks, level, left = pava.pool_ends(np.ascontiguousarray(blocks), left, ends)
    maps, rows = maps_of_blocks(blocks[[0, 1, 2, 4]], level, left)
    found = np.zeros(sizes.size, np.int64)
    found[~alone] = rows
    return GroupMaps(maps, found)
