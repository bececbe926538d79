"""Isotonic regression of very many groups of rows at once: the maps that `Isotonic` fits, without an object each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from calibrators._kernels import pava
from calibrators.arithmetic.calibration_map import gap_slopes
from calibrators.arithmetic.passes import Array

Integers = npt.NDArray[np.int64]


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


def maps_of_blocks(blocks: Array, level: Array, sizes: Integers) -> tuple[list[Array], Integers]:
    """Do `CalibrationMap.from_blocks` for many groups: the columns, and the rows of each group.

    blocks : float64 array, shape (4, blocks): first, last, weight, positives, group after group
    level : float64 array, shape (blocks,). sizes : int64 array, shape (groups,), >= 1: blocks of each
    """
    first, last, weight, positives = blocks
    ends = np.cumsum(sizes) - 1
    is_end = np.zeros(first.size, bool)
    is_end[ends] = True
    left = np.flatnonzero(~is_end)
    right = left + 1
    with np.errstate(over="ignore"):
        edge = np.nextafter(last[left], np.inf)
    # Each block has a row, and a second one for the gap behind it.
    keep = np.zeros((first.size, 2), bool)
    keep[:, 0] = True
    keep[left, 1] = edge < first[right]
    score_lo, prob_lo, slope, anchor, own_weight, own_positives = np.zeros((6, first.size, 2))
    score_lo[:, 0], score_lo[left, 1] = first, edge
    score_lo[ends - sizes + 1, 0] = -np.inf
    prob_lo[:] = level[:, np.newaxis]
    slope[left, 1] = gap_slopes(last[left], first[right], level[left], level[right])
    anchor[:, 0], anchor[:, 1] = first, last
    own_weight[:, 0], own_positives[:, 0] = weight, positives
    rows = np.add.reduceat(keep.sum(axis=1), ends - sizes + 1) if sizes.size else sizes
    score_lo = score_lo[keep]
    score_hi = np.append(score_lo[1:], np.inf)[: score_lo.size]
    score_hi[np.cumsum(rows) - 1] = np.inf
    rest = (prob_lo, slope, anchor, own_weight, own_positives)
    return [score_lo, score_hi, *(column[keep] for column in rest)], rows
