"""Pool adjacent violators over blocks, with sums and comparisons that do not depend on how the input was cut.

Block sums are double-doubles (about 106 bits), exact for whole-number weights and, in practice, for any weights
that span fewer than some eight decades. Levels are compared by cross products: first in double precision, which
settles all but near-ties, then in double-doubles.
"""

import numpy as np

from calibrators._kernels.compiled import kernel
from calibrators._kernels.copying import put, put_rows
from calibrators._kernels.double_double import add_pairs, two_product

_CLEAR = 1e-14  # relative difference of the cross products above which double precision decides
_EQUAL = 2.0**-98  # relative difference below which levels count as equal


@kernel(inline=True)
def level_difference(k1, k1_low, w1, w1_low, k2, k2_low, w2, w2_low):
    """The sign of k1/w1 - k2/w2 as -1.0, 0.0 or 1.0, for double-double sums."""
    a = k1 * w2
    b = k2 * w1
    if abs(a - b) > _CLEAR * (a + b):
        return 1.0 if a > b else -1.0
    ah, al = two_product(k1, w2)
    al += k1 * w2_low + k1_low * w2
    bh, bl = two_product(k2, w1)
    bl += k2 * w1_low + k2_low * w1
    d = (ah - bh) + (al - bl)
    if abs(d) <= _EQUAL * (a + b):
        return 0.0
    return 1.0 if d > 0.0 else -1.0


@kernel
def pool(first, last, weight, weight_low, positives, positives_low):
    """Isotonic blocks of neighbouring blocks (Ayer et al. 1955; Barlow et al. 1972).

    The input blocks stand in ascending score order and need not be pooled themselves; a point is a block whose
    first and last score are equal and whose low parts are zero. Neighbours with equal levels are pooled too, so
    that the result is the unique coarsest one and pooling parts first, then what they leave, gives the same.

    Parameters
    ----------
    first, last : float64 arrays, shape (m,)
    weight, weight_low, positives, positives_low : float64 arrays, shape (m,) or, the low parts, (0,) for zeros
        Sums as double-doubles.

    Returns
    -------
    first, last, weight, weight_low, positives, positives_low : float64 arrays, shape (blocks,)
        Levels positives / weight strictly increase. O(m) time, O(blocks on the stack) memory.
    """
    m = first.size
    has_low = weight_low.size > 0
    capacity = min(m, 1024)
    stack = np.empty((capacity, 6))
    n = 0
    # The block on top of the stack is held apart: most points join it.
    a, b = first[0], last[0]
    w, k = weight[0], positives[0]
    wl = weight_low[0] if has_low else 0.0
    kl = positives_low[0] if has_low else 0.0
    for i in range(1, m):
        wi, ki = weight[i], positives[i]
        wil = weight_low[i] if has_low else 0.0
        kil = positives_low[i] if has_low else 0.0
        if level_difference(k, kl, w, wl, ki, kil, wi, wil) < 0.0:
            if n == capacity:
                capacity = min(m, 2 * capacity)
                larger = np.empty((capacity, 6))
                put_rows(larger, stack)
                stack = larger
            stack[n, 0], stack[n, 1], stack[n, 2], stack[n, 3], stack[n, 4], stack[n, 5] = a, b, w, wl, k, kl
            n += 1
            a, b, w, wl, k, kl = first[i], last[i], wi, wil, ki, kil
            continue
        b = last[i]
        w, wl = add_pairs(w, wl, wi, wil)
        k, kl = add_pairs(k, kl, ki, kil)
        while n > 0:
            t = stack[n - 1]
            if level_difference(t[4], t[5], t[2], t[3], k, kl, w, wl) < 0.0:
                break
            n -= 1
            a = t[0]
            w, wl = add_pairs(t[2], t[3], w, wl)
            k, kl = add_pairs(t[4], t[5], k, kl)
    if n == capacity:
        larger = np.empty((capacity + 1, 6))
        put_rows(larger, stack)
        stack = larger
    stack[n, 0], stack[n, 1], stack[n, 2], stack[n, 3], stack[n, 4], stack[n, 5] = a, b, w, wl, k, kl
    n += 1
    return (
        stack[:n, 0].copy(), stack[:n, 1].copy(), stack[:n, 2].copy(),
        stack[:n, 3].copy(), stack[:n, 4].copy(), stack[:n, 5].copy(),
    )  # fmt: skip


@kernel
def with_room(stack, top):
    """The stack, or a larger one, with room for a block at `top`."""
    if top < stack.shape[0]:
        return stack
    larger = np.empty((2 * top, 4))
    put_rows(larger, stack)
    return larger


@kernel
def _pool_more(score, weight, positives, start, stop, block, stack, base, top):
    """Pool the points start, ..., stop - 1 with the blocks before them.

    block : float64 array, shape (4,): the last block, which is held apart since most points join it.
    stack : the blocks before it; those of its group are stack[base:top].

    Returns
    -------
    stack, top
    """
    a, b, w, k = block
    for i in range(start, stop):
        wi, ki = weight[i], positives[i]
        if k * wi < ki * w:
            if (
                top == stack.shape[0]
            ):  # as `with_room` looks too: calling it for each block takes a third longer
                stack = with_room(stack, top)
            stack[top, 0], stack[top, 1], stack[top, 2], stack[top, 3] = a, b, w, k
            top += 1
            a = b = score[i]
            w, k = wi, ki
            continue
        b = score[i]
        w += wi
        k += ki
        while top > base and stack[top - 1, 3] * w >= k * stack[top - 1, 2]:
            top -= 1
            a = stack[top, 0]
            w += stack[top, 2]
            k += stack[top, 3]
    block[0], block[1], block[2], block[3] = a, b, w, k
    return stack, top


@kernel(inline=True)
def _set(block, score, weight, positives):
    block[0], block[1], block[2], block[3] = score, score, weight, positives


@kernel
def pool_counts(score, weight, positives):
    """`pool` for points with whole-number weights of a total below 2**26: plain doubles are exact there.

    Returns the columns of `pool`.
    """
    block = np.empty(4)
    _set(block, score[0], weight[0], positives[0])
    stack, top = _pool_more(score, weight, positives, 1, score.size, block, np.empty((1024, 4)), 0, 0)
    stack = with_room(stack, top)
    put(stack[top], block)
    n = top + 1
    return (
        stack[:n, 0].copy(), stack[:n, 1].copy(), stack[:n, 2].copy(), np.zeros(n),
        stack[:n, 3].copy(), np.zeros(n),
    )  # fmt: skip


@kernel
def _doubled(stack):
    larger = np.empty((2 * stack.shape[0], stack.shape[1]), stack.dtype)
    put_rows(larger, stack)
    return larger


@kernel
def pool_ranked(rows, starts, distinct):
    """Isotonic blocks of many groups of rows of weight 1.

    Parameters
    ----------
    rows : uint32 array: of each row its score's place in `distinct`, twice, plus the label; ascending in each group.
    starts : int64 array, shape (groups + 1,): group g has the rows from starts[g] to starts[g + 1], possibly none.
    distinct : float64 array, ascending

    Returns
    -------
    first, last, weight, positives : float64 arrays, of all groups' blocks
    sizes : int64 array, shape (groups,): blocks of each
    """
    groups = starts.size - 1
    sizes = np.zeros(groups, np.int64)
    stack = np.empty((1024, 4), np.int64)
    base = 0
    for g in range(groups):
        i, end = starts[g], starts[g + 1]
        if i == end:
            continue
        top = base
        a = b = -1
        w = k = np.int64(0)
        while i < end:
            rank = np.int64(rows[i] >> 1)
            wi = np.int64(0)
            ki = np.int64(0)
            while i < end and np.int64(rows[i] >> 1) == rank:
                wi += 1
                ki += np.int64(rows[i] & 1)
                i += 1
            if w == 0 or k * wi < ki * w:
                if w > 0:
                    if top + 1 >= stack.shape[0]:
                        stack = _doubled(stack)
                    stack[top, 0], stack[top, 1], stack[top, 2], stack[top, 3] = a, b, w, k
                    top += 1
                a = b = rank
                w, k = wi, ki
                continue
            b = rank
            w += wi
            k += ki
            while top > base and stack[top - 1, 3] * w >= k * stack[top - 1, 2]:
                top -= 1
                a = stack[top, 0]
                w += stack[top, 2]
                k += stack[top, 3]
        if top + 1 >= stack.shape[0]:
            stack = _doubled(stack)
        stack[top, 0], stack[top, 1], stack[top, 2], stack[top, 3] = a, b, w, k
        sizes[g] = top + 1 - base
        base = top + 1
    blocks = np.empty((4, base))
    for j in range(base):
        blocks[0, j] = distinct[stack[j, 0]]
        blocks[1, j] = distinct[stack[j, 1]]
        blocks[2, j] = stack[j, 2]
        blocks[3, j] = stack[j, 3]
    return blocks, sizes


@kernel(inline=True)
def add_block(out, base, m, pooled, first, last, w, w_low, k, k_low):
    """Put a block behind those from base to m, joined with those before it that do not stand lower.

    out : float64 array, shape (6, n): the columns of `pool`. pooled : otherwise it is joined with all of them.
    Returns how many blocks there are then.
    """
    while m > base:
        j = m - 1
        if pooled and level_difference(out[4, j], out[5, j], out[2, j], out[3, j], k, k_low, w, w_low) < 0.0:
            break
        m = j
        first = out[0, j]
        w, w_low = add_pairs(out[2, j], out[3, j], w, w_low)
        k, k_low = add_pairs(out[4, j], out[5, j], k, k_low)
    out[0, m], out[1, m], out[2, m], out[3, m], out[4, m], out[5, m] = first, last, w, w_low, k, k_low
    return m + 1


@kernel
def pool_groups(first, last, weight, weight_low, positives, positives_low, starts):
    """`pool` of many groups of blocks, each for itself.

    starts : int64 array, shape (groups + 1,): group g has the blocks from starts[g] to starts[g + 1], possibly none.

    Returns
    -------
    blocks : float64 array, shape (6, blocks): the columns of `pool`, group after group
    sizes : int64 array, shape (groups,): blocks of each
    """
    groups = starts.size - 1
    sizes = np.zeros(groups, np.int64)
    out = np.empty((6, first.size))
    m = 0
    for g in range(groups):
        base = m
        for i in range(starts[g], starts[g + 1]):
            m = add_block(
                out,
                base,
                m,
                True,
                first[i],
                last[i],
                weight[i],
                weight_low[i],
                positives[i],
                positives_low[i],
            )
        sizes[g] = m - base
    return out[:, :m].copy(), sizes
