"""Partial pooling: segments' rows in the block ranges of their parents' maps, and maps of their own.

Adjusting a parent's map (`calibrators.segments.adjusting`) and pooling with it need only a segment's counts in the
block ranges within which that map is constant.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from calibrators._kernels import partial_pooling as kernel
from calibrators.arithmetic.passes import Array

Integers = npt.NDArray[np.int64]

OWN_STRENGTH = 300.0
"""M: the information, sum of w p (1 - p), that an adjusted map made of blocks counts for in a segment's own map."""


class WithinBlockRanges(NamedTuple):
    """Items of groups that lie within the block ranges of their parents' maps, group after group, ascending in each.

    Attributes
    ----------
    first, last : float64 arrays, shape (items,): the scores that each reaches from and to
    weight, weight_low, positives, positives_low : float64 arrays, shape (items,): sums as double-doubles
    block_range : int64 array, shape (items,): the place of each one's block range among all parents'
    sizes : int64 array, shape (groups,)
    """

    first: Array
    last: Array
    weight: Array
    weight_low: Array
    positives: Array
    positives_low: Array
    block_range: Integers
    sizes: Integers


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
    items : the first six columns of `WithinBlockRanges`; of points, or of what this has made of parts
    starts : int64 array, shape (groups + 1,): where each group's begin. None lies in two block ranges.
    parent : shape (groups,): whose block ranges they are
    pooled : shape (groups,): whether isotonic regression pools them, for an own map; else a block range is one item

    Notes
    -----
    O(items log block ranges) at most, O(items) where most follow each other in a block range.
    """
    found, block_range, sizes = kernel.pool_within(*items, starts, parent, *block_ranges, pooled)
    first, last, weight, weight_low, positives, positives_low = _alone(found, items[0].size)
    block_range = _alone(block_range, items[0].size)
    return WithinBlockRanges(first, last, weight, weight_low, positives, positives_low, block_range, sizes)


class CountedCells(NamedTuple):
    """Whole rows of each group in each block range of its parent's map, group after group.

    Attributes
    ----------
    sizes : int64 array, shape (groups,): cells of each group
    block_range : int64 array, shape (cells,): the place of each one's block range among all parents'
    first, weight, positives : float64 arrays, shape (cells,): the first score; rows, and those with label 1
    counts : int64 array: of each cell of the pooled groups, how many items it has
    items : float64 array, shape (4, items): of pooled groups, see `WithinBlockRanges`: first, last, weight, positives
    item_sizes : int64 array, shape (groups,): items of each group, 0 where it is not pooled
    """

    sizes: Integers
    block_range: Integers
    first: Array
    weight: Array
    positives: Array
    counts: Integers
    items: Array
    item_sizes: Integers


def cells_within(
    items: Array,
    starts: Integers,
    block_ranges: BlockRanges,
    parent: npt.NDArray[np.integer[Any]],
    pooled: npt.NDArray[np.bool_],
) -> CountedCells:
    """Do `pool_within` for counted rows that come in parts, and add up their items in each block range.

    Parameters
    ----------
    items : float64 array, shape (n, 4): first and last score, rows and positive rows; of a part, group after group
    starts : int64 array, shape (parts, groups + 1): where each group's begin in a part, which lies above the one before
    block_ranges, parent, pooled : see `pool_within`
    """
    sizes, block_range, cells, counts, pools, pool_sizes = kernel.cells_within(
        items, starts, parent, *block_ranges, pooled
    )
    first, weight, positives = cells
    return CountedCells(sizes, block_range, first, weight, positives, counts, pools, pool_sizes)


def pool_ranks_within(
    rows: npt.NDArray[np.uint32],
    starts: Integers,
    distinct: Array,
    block_ranges: BlockRanges,
    parent: npt.NDArray[np.integer[Any]],
    pooled: npt.NDArray[np.bool_],
) -> tuple[Array, npt.NDArray[np.int32], Integers]:
    """Do `pool_within` for rows of weight 1, whose scores are ranks; with their edges. O(rows log ranges) at most.

    Parameters
    ----------
    rows : uint32 array, shape (n,), n < 2**31: of each twice its score's rank, plus its label; ascending in each group
    distinct : float64 array: the score of each rank
    starts, parent, pooled : see `pool_within`

    Returns
    -------
    items : float64 array, shape (4, items): first and last score, rows, positive rows
    ranks : int32 array, shape (items,): of the first scores. sizes : int64 array, shape (groups,)
    """
    found: tuple[Array, npt.NDArray[np.int32], Integers]
    found = kernel.pool_ranks_within(rows, starts, distinct, parent, *block_ranges, pooled)
    return found


def _alone(part: npt.NDArray[Any], room: int) -> npt.NDArray[Any]:
    """A part of a larger array without the rest, unless that is little and copying takes longer than it is worth."""
    return part.copy() if 2 * part.shape[-1] < room else part


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
    # Pooled by their places instead of their scores, so that it is known which are in a block.
    blocks, left = kernel.pool_with_prior(weight, positives, prior, starts, share)
    begin, end = blocks[0].astype(np.int64), blocks[1].astype(np.int64)
    return OwnMaps(
        first[begin],
        last[end],
        np.add.reduceat(weight, begin),
        np.add.reduceat(positives, begin),
        np.minimum(blocks[4] / blocks[2], 1.0),
        left,
    )
