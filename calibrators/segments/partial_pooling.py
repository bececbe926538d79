"""Isotonic maps of many groups of rows, and partial pooling in the block ranges of their parents' maps.

Adjusting a parent's map (`calibrators.segments.adjusting`) and pooling with it need only a segment's counts in the
block ranges within which that map is constant.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from calibrators.core.arrays import Array, Codes, Integers, Mask
from calibrators.core.kernels import pava
from calibrators.core.map import maps_of_blocks
from calibrators.segments.kernels import partial_pooling as kernel


class WithinBlockRanges(NamedTuple):
    """Rows of groups within the block ranges of their parents' maps, group after group, ascending in each.

    A cell contains the rows of a group in a block range. It consists of items: of pooled blocks, or of one item if the
    group is not pooled.

    Attributes
    ----------
    items : float64 array, shape (6, items): first and last score, and weight and positives as double-doubles
    sizes : int64 array, shape (groups,): number of items of each group
    block_range : int64 array, shape (cells,): index of each cell's block range among those of all parents
    counts : int64 array, shape (cells,): number of items of each cell
    cells : int64 array, shape (groups,): number of cells of each group
    """

    items: Array
    sizes: Integers
    block_range: Integers
    counts: Integers
    cells: Integers


class BlockRanges(NamedTuple):
    """Block ranges of several maps.

    edges : float64 array of scores, or int32 array of ranks: lower ends, map after map, ascending in each
    starts : int64 array, shape (maps + 1,): index of each map's first block range, and the number of block ranges
    """

    edges: npt.NDArray[Any]
    starts: Integers


def pool_within(
    items: Sequence[Array],
    starts: Integers,
    block_ranges: BlockRanges,
    parent: npt.NDArray[np.integer[Any]],
    pooled: Mask,
) -> WithinBlockRanges:
    """Join the rows of groups within the block ranges of their parents' maps, for adjustments and own maps.

    It is associative: joining parts first and then their results gives the same result.

    Parameters
    ----------
    items : columns of `WithinBlockRanges.items`, for points or for results of parts; each item lies in one block range.
        Low parts may have shape (0,), for zeros.
    starts : int64 array, shape (groups + 1,): index of each group's first item, and the number of items
    parent : shape (groups,): index of each group's parent map
    pooled : shape (groups,): whether to pool items by isotonic regression, for an own map; else a cell is one item

    Notes
    -----
    O(items log block ranges) at most, O(items) if neighbouring items are mostly in the same block range.
    """
    begin, block_range, cells = kernel.group_pieces(items[0], starts, parent, *block_ranges)
    joined, counts = pava.pool_groups(tuple(items), np.append(begin, items[0].size), np.repeat(pooled, cells))
    ends = np.cumsum(cells)
    sizes = np.diff(np.append(0, np.cumsum(counts))[ends], prepend=0)
    return WithinBlockRanges(joined, sizes, block_range, counts, cells)


def cells_within(
    items: Sequence[Array],
    starts: Integers,
    block_ranges: BlockRanges,
    parent: npt.NDArray[np.integer[Any]],
    pooled: Mask,
) -> tuple[Integers, Array, Integers, Array, Integers]:
    """Join items as `pool_within` does, if their sums are counts; keep those of pooled groups only: see the kernel.

    items : first and last score, rows and positive rows. Other parameters: see `pool_within`
    """
    joined: tuple[Integers, Array, Integers, Array, Integers]
    joined = kernel.cells_within(*items, starts, parent, *block_ranges, pooled)
    return joined


def pool_ranks_within(
    rows: npt.NDArray[np.uint32],
    starts: Integers,
    distinct: Array,
    block_ranges: BlockRanges,
    parent: npt.NDArray[np.integer[Any]],
    pooled: Mask,
) -> tuple[Array, Codes, Integers]:
    """Join rows as `pool_within` does, for rows of weight 1 whose scores are ranks: see the kernel."""
    joined: tuple[Array, Codes, Integers]
    joined = kernel.pool_ranks_within(rows, starts, distinct, parent, *block_ranges, pooled)
    return joined


class OwnMaps(NamedTuple):
    """Own maps of groups, group after group.

    Attributes
    ----------
    first, last : float64 arrays, shape (blocks,): first and last score of each block
    weight, positives : float64 arrays, shape (blocks,): sums of the group's rows, without the prior
    level : float64 array, shape (blocks,): ascending in each group; in (0, 1) if the prior's strength is > 0
    sizes : int64 array, shape (groups,): number of blocks of each group
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
    strength: Array | float,
) -> OwnMaps:
    """Fit groups' own maps: isotonic regression of each group's points, pooled with a prior curve.

    Each point has weight w (1 + C) and positives y + C w p, with C = strength / sum of w p (1 - p) over the group.

    Parameters
    ----------
    first, last, weight, positives : float64 arrays, shape (n,)
        Points of groups, group after group, ascending in each; or their cells, pooled where `prior` is constant.
    starts : int64 array, shape (groups + 1,): strictly ascending
    prior : float64 array, shape (n,), in (0, 1), ascending in each group
    strength : information of each group's prior; 0: isotonic regression without a prior

    Notes
    -----
    Neighbours of equal level are one block. O(n).
    """
    information = np.add.reduceat(weight * prior * (1.0 - prior), starts[:-1])
    some = (np.asarray(strength) > 0) & (information > 0)
    share = np.divide(strength, information, out=np.zeros(information.size), where=some)
    prior_share = np.repeat(share, np.diff(starts))
    added = weight * (1.0 + prior_share)
    hits = np.minimum(positives + prior_share * weight * prior, added)
    # Indices instead of scores identify the points of each block.
    index, empty = np.arange(first.size, dtype=np.float64), np.empty(0)
    blocks, sizes = pava.pool_groups((index, index, added, empty, hits, empty), starts, pava.ALL)
    begin, end = blocks[0].astype(np.int64), blocks[1].astype(np.int64)
    return OwnMaps(
        first[begin],
        last[end],
        np.add.reduceat(weight, begin),
        np.add.reduceat(positives, begin),
        np.minimum(blocks[4] / blocks[2], 1.0),
        sizes,
    )


class GroupMaps(NamedTuple):
    """Maps of groups, stored one after the other.

    Attributes
    ----------
    columns : float64 arrays, shape (rows,), in the order of `CalibrationMap`'s fields.
    sizes : int64 array, shape (groups,): number of rows of each map; 0 if all scores of the group are equal.
    """

    columns: list[Array]
    sizes: Integers


def fit_groups(columns: Sequence[Array], starts: Integers, ends: float = 1.0) -> GroupMaps:
    """Fit isotonic regression to each group, to the last bit like `Isotonic(ends=ends).fit` on its rows.

    Parameters
    ----------
    columns : float64 arrays, shape (n,)
        Blocks pooled in parts, group after group, ascending in each: first and last score, weight and positives; if
        weights are not counts, weight and positives as double-doubles.
    starts : int64 array, shape (groups + 1,)
        Group g has the blocks from starts[g] to starts[g + 1], at least one.

    Notes
    -----
    O(n).
    """
    if len(columns) == 4:
        first, last, weight, positives = columns
        zero = np.zeros(first.size)
        columns = (first, last, weight, zero, positives, zero)
    pooled, sizes = pava.pool_groups(tuple(columns), starts, pava.ALL)
    # Groups with one score.
    single = (sizes == 1) & (pooled[0] == pooled[1])[np.cumsum(sizes) - 1]
    blocks, map_sizes = pooled[:, ~np.repeat(single, sizes)], sizes[~single]
    level = np.minimum(blocks[4] / blocks[2], 1.0)
    if ends > 0 and map_sizes.size:
        blocks, level, map_sizes = pava.pool_ends(np.ascontiguousarray(blocks), map_sizes, ends)
    maps, rows = maps_of_blocks(blocks[[0, 1, 2, 4]], level, map_sizes)
    row_counts = np.zeros(sizes.size, np.int64)
    row_counts[~single] = rows
    return GroupMaps(maps, row_counts)
