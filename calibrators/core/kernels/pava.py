"""Pool adjacent violators over blocks; results do not depend on the division of the input into parts.

Block sums are double-doubles (about 106 bits), exact for integer weights and, in practice, for any weights
that span fewer than some eight decades. Levels are compared by cross products: first in double precision, which
decides all but near-ties, then in double-doubles.
"""

import numpy as np

from calibrators.core.arrays import Array, Integers
from calibrators.core.compiled import kernel
from calibrators.core.kernels.sums import add_pairs, two_product

_CLEAR = 1e-14  # relative difference of the cross products above which double precision decides
_MOST_ROWS = 2.0**26  # total weight below which cross products of whole numbers are exact
_EQUAL = 2.0**-98  # relative difference below which levels count as equal


@kernel(inline=True)
def level_difference(left, right):
    """Return the sign of k1/w1 - k2/w2 as -1.0, 0.0 or 1.0. left, right : k, its low part, w and its low part."""
    k1, k1_low, w1, w1_low = left
    k2, k2_low, w2, w2_low = right
    a = k1 * w2
    b = k2 * w1
    if abs(a - b) > _CLEAR * (abs(a) + abs(b)):
        return 1.0 if a > b else -1.0
    ah, al = two_product(k1, w2)
    al += k1 * w2_low + k1_low * w2
    bh, bl = two_product(k2, w1)
    bl += k2 * w1_low + k2_low * w1
    d = (ah - bh) + (al - bl)
    if abs(d) <= _EQUAL * (abs(a) + abs(b)):
        return 0.0
    return 1.0 if d > 0.0 else -1.0


@kernel(inline=True)
def add_sums(ah, al, bh, bl):
    """Do `add_pairs` in a quarter of the time if nothing is rounded, as with counts."""
    s = ah + bh
    if al == 0.0 and bl == 0.0 and s - ah == bh and s - bh == ah:
        return s, 0.0
    return add_pairs(ah, al, bh, bl)


@kernel
def pool_groups(columns, starts, pooled):
    """Pool neighbouring blocks of each group to isotonic blocks (Ayer et al. 1955; Barlow et al. 1972). O(m).

    The input blocks are in ascending order of scores and need not be pooled; a point is a block whose
    first and last score are equal and whose low parts are zero. Neighbours with equal levels are pooled, too. So the
    result is the unique coarsest one, also if parts of the input are pooled first.

    Parameters
    ----------
    columns : six float64 arrays, shape (m,): first, last, weight, weight_low, positives, positives_low
        Sums as double-doubles. The low parts may be of shape (0,), for zeros.
    starts : int64 array, shape (groups + 1,): group g has the blocks from starts[g] to starts[g + 1], possibly none.
    pooled : bool array, shape (groups,): whether to pool a group by levels; otherwise it becomes one block. Of shape
        (0,): all groups are pooled

    Returns
    -------
    blocks : float64 array, shape (6, blocks): the same columns, group after group; the levels positives / weight
        strictly increase in each group
    sizes : int64 array, shape (groups,): number of blocks of each group
    """
    first, last, weight, weight_low, positives, positives_low = columns
    groups = starts.size - 1
    sizes = np.zeros(groups, np.int64)
    has_low = weight_low.size > 0
    # Rows for the largest possible number of blocks; pages that are not written to use no memory.
    stack = np.empty((first.size, 6))
    wil = kil = 0.0
    n = 0
    for g in range(groups):
        start, base = starts[g], n
        pools = pooled.size == 0 or pooled[g]
        if start == starts[g + 1]:
            continue
        # The top of the stack is in local variables, because most points join it.
        a, b = first[start], last[start]
        w, k = weight[start], positives[start]
        wl = weight_low[start] if has_low else 0.0
        kl = positives_low[start] if has_low else 0.0
        for i in range(start + 1, starts[g + 1]):
            wi, ki = weight[i], positives[i]
            if has_low:
                wil, kil = weight_low[i], positives_low[i]
            if pools and level_difference((k, kl, w, wl), (ki, kil, wi, wil)) < 0.0:
                stack[n, 0], stack[n, 1], stack[n, 2], stack[n, 3], stack[n, 4], stack[n, 5] = (
                    a,
                    b,
                    w,
                    wl,
                    k,
                    kl,
                )
                n += 1
                a, b, w, wl, k, kl = first[i], last[i], wi, wil, ki, kil
                continue
            b = last[i]
            # Add the new block to the top block, in the same order as when blocks of parts are joined.
            while True:
                w, wl = add_sums(w, wl, wi, wil)
                k, kl = add_sums(k, kl, ki, kil)
                if n == base:
                    break
                t = stack[n - 1]
                if level_difference((t[4], t[5], t[2], t[3]), (k, kl, w, wl)) < 0.0:
                    break
                n -= 1
                a, wi, wil, ki, kil = t[0], w, wl, k, kl
                w, wl, k, kl = t[2], t[3], t[4], t[5]
            wil = kil = 0.0
        stack[n, 0], stack[n, 1], stack[n, 2], stack[n, 3], stack[n, 4], stack[n, 5] = a, b, w, wl, k, kl
        n += 1
        sizes[g] = n - base
    return stack[:n].T.copy(), sizes


ALL = np.empty(0, np.bool_)
"""Argument `pooled` of `pool_groups` that pools all groups."""


def pool(*columns: Array) -> Array:
    """Pool the blocks of one group. columns : see `pool_groups`."""
    blocks: Array = pool_groups(columns, np.array([0, columns[0].size]), ALL)[0]
    return blocks


def pool_ends(columns: Array, sizes: Integers, ends: float) -> tuple[Array, Array, Integers]:
    """Pool each group's blocks with `ends` positives added below the lowest score and as many negatives above all.

    The added positives have the highest possible level, so they always join the first block and those that then
    violate the order; the added negatives join the last. Blocks in between are unchanged.

    Parameters
    ----------
    columns : float64 array, shape (6, blocks): isotonic blocks, group after group, as `pool_groups` returns them
    sizes : int64 array, shape (groups,), >= 1: number of blocks of each group
    ends : float > 0

    Returns
    -------
    blocks : float64 array, shape (6, new blocks): sums without the added weight
    levels : float64 array, shape (new blocks,): levels with the added weight; they increase within a group
    sizes : int64 array, shape (groups,): number of new blocks of each group
    """
    count, shift = columns.shape[1], 2 * np.arange(sizes.size)
    last = np.cumsum(sizes) + shift + 1
    first = last - sizes - 1
    positions = np.arange(count) + np.repeat(shift, sizes) + 1
    added = np.zeros((6, count + 2 * sizes.size))
    added[:, positions] = columns
    added[2, first] = added[2, last] = added[4, first] = ends
    added[0] = added[1] = np.arange(added.shape[1])
    pooled, pooled_sizes = pool_groups(tuple(added), np.append(first, added.shape[1]), ALL)
    starts = np.append(np.searchsorted(positions, pooled[0]), count)
    blocks = pool_groups(tuple(columns), starts, np.zeros(starts.size - 1, np.bool_))[0]
    return blocks, np.minimum(pooled[4] / pooled[2], 1.0), pooled_sizes


@kernel(inline=True)
def _join(stack, top, a, w, k):
    """Join blocks from the top of stack[:top] to the last block until the level below is lower.

    Return the new top and the first score, weight and positives of the last block.
    """
    while top > 0 and stack[top - 1, 3] * w >= k * stack[top - 1, 2]:
        top -= 1
        a = stack[top, 0]
        w += stack[top, 2]
        k += stack[top, 3]
    return top, a, w, k


@kernel
def pool_counts(score, weight, positives):
    """Compute the isotonic blocks of points with whole-number weights; several times as fast as `pool_groups`.

    score, weight, positives : float64 arrays, shape (m,), m >= 1, strictly ascending scores

    Returns
    -------
    float64 array, shape (blocks, 4): first, last, weight, positives; no blocks if a weight is not a whole number, or
    the sum of the weights is too large for exact cross products
    """
    n = score.size
    total, fractions = 0.0, 0
    for i in range(n):
        total += weight[i]
        fractions += (weight[i] != np.floor(weight[i])) | (positives[i] != np.floor(positives[i]))
    if fractions or total >= _MOST_ROWS:
        return np.empty((0, 4))
    # Rows for the largest possible number of blocks; pages that are not written to use no memory.
    stack = np.empty((n, 4))
    i = top = 0
    # The last block is in local variables, because most points join it.
    a = b = score[0]
    w = k = 0.0
    while i < n:
        # Neighbours with equal labels form one block; one of negatives always joins the block below it.
        start = i
        while i < n and positives[i] == 0.0:
            w += weight[i]
            i += 1
        if i > start:
            b = score[i - 1]
            top, a, w, k = _join(stack, top, a, w, k)
        if i == n:
            break
        first, w1, k1 = score[i], weight[i], positives[i]
        i += 1
        if k1 == w1:
            while i < n and positives[i] == weight[i]:
                w1 += weight[i]
                i += 1
            k1 = w1
        if k * w1 < k1 * w:
            stack[top, 0], stack[top, 1], stack[top, 2], stack[top, 3] = a, b, w, k
            top += 1
            a, b, w, k = first, score[i - 1], w1, k1
            continue
        b = score[i - 1]
        w += w1
        k += k1
        top, a, w, k = _join(stack, top, a, w, k)
    stack[top, 0], stack[top, 1], stack[top, 2], stack[top, 3] = a, b, w, k
    return stack[: top + 1].copy()
