"""Pool adjacent violators over blocks, with sums and comparisons that do not depend on how the input was cut.

Block sums are double-doubles (about 106 bits), exact for whole-number weights and, in practice, for any weights
that span fewer than some eight decades. Levels are compared by cross products: first in double precision, which
settles all but near-ties, then in double-doubles.
"""

import numpy as np
import numpy.typing as npt

from calibrators._kernels.compiled import kernel
from calibrators._kernels.sums import add_pairs, put, two_product

_CLEAR = 1e-14  # relative difference of the cross products above which double precision decides
_EQUAL = 2.0**-98  # relative difference below which levels count as equal


@kernel(inline=True)
def level_difference(one, other):
    """The sign of k1/w1 - k2/w2 as -1.0, 0.0 or 1.0. one, other : k and w, each with its low part (double-doubles)."""
    k1, k1_low, w1, w1_low = one
    k2, k2_low, w2, w2_low = other
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


@kernel(inline=True)
def _sum(ah, al, bh, bl):
    """Do `add_pairs` in a fourth of the time where nothing is rounded, as with counts."""
    s = ah + bh
    if al == 0.0 and bl == 0.0 and s - ah == bh and s - bh == ah:
        return s, 0.0
    return add_pairs(ah, al, bh, bl)


@kernel
def pool_groups(columns, starts):
    """Isotonic blocks of neighbouring blocks (Ayer et al. 1955; Barlow et al. 1972), of many groups, each for itself.

    The input blocks stand in ascending score order and need not be pooled themselves; a point is a block whose
    first and last score are equal and whose low parts are zero. Neighbours with equal levels are pooled too, so
    that the result is the unique coarsest one and pooling parts first, then what they leave, gives the same.

    Parameters
    ----------
    columns : six float64 arrays, shape (m,): first, last, weight, weight_low, positives, positives_low
        Sums as double-doubles. The low parts may be of shape (0,), for zeros.
    starts : int64 array, shape (groups + 1,): group g has the blocks from starts[g] to starts[g + 1], possibly none.

    Returns
    -------
    blocks : float64 array, shape (6, blocks): these columns, group after group; levels positives / weight strictly
        increase in each
    sizes : int64 array, shape (groups,): blocks of each. O(m) time.
    """
    first, last, weight, weight_low, positives, positives_low = columns
    groups = starts.size - 1
    sizes = np.zeros(groups, np.int64)
    has_low = weight_low.size > 0
    # As many blocks as there are at most; memory that is not written to is none.
    stack = np.empty((first.size, 6))
    wil = kil = 0.0
    n = 0
    for g in range(groups):
        start, base = starts[g], n
        if start == starts[g + 1]:
            continue
        # The block on top of the stack is held apart: most points join it.
        a, b = first[start], last[start]
        w, k = weight[start], positives[start]
        wl = weight_low[start] if has_low else 0.0
        kl = positives_low[start] if has_low else 0.0
        for i in range(start + 1, starts[g + 1]):
            wi, ki = weight[i], positives[i]
            if has_low:
                wil, kil = weight_low[i], positives_low[i]
            if level_difference((k, kl, w, wl), (ki, kil, wi, wil)) < 0.0:
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
            # The block comes first, as where blocks of parts are joined.
            while True:
                w, wl = _sum(w, wl, wi, wil)
                k, kl = _sum(k, kl, ki, kil)
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


def pool(*columns: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The blocks of `pool_groups` of one group. columns : as there."""
    blocks: npt.NDArray[np.float64] = pool_groups(columns, np.array([0, columns[0].size]))[0]
    return blocks


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
    # As many blocks as rows at most; memory that is not written to is none.
    stack = np.empty((rows.size, 4), np.int64)
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
def add_block(out, base, m, pooled, block):
    """Put a block behind those from base to m, joined with those before it that do not stand lower.

    out : float64 array, shape (6, n): the columns of `pool`. pooled : otherwise it is joined with all of them.
    block : of the same columns. Returns how many blocks there are then.
    """
    first, last, w, w_low, k, k_low = block
    while m > base:
        j = m - 1
        before = (out[4, j], out[5, j], out[2, j], out[3, j])
        if pooled and level_difference(before, (k, k_low, w, w_low)) < 0.0:
            break
        m = j
        first = out[0, j]
        w, w_low = add_pairs(out[2, j], out[3, j], w, w_low)
        k, k_low = add_pairs(out[4, j], out[5, j], k, k_low)
    out[0, m], out[1, m], out[2, m], out[3, m], out[4, m], out[5, m] = first, last, w, w_low, k, k_low
    return m + 1


@kernel(inline=True)
def first_not_below(values, i, stop, bound):
    """The first place from i on whose value is not below a bound. values : ascending up to `stop`."""
    # Eight at a time: where so short a stretch ends cannot be predicted.
    while i + 8 <= stop:
        count = 0
        for d in range(8):
            count += values[i + d] < bound
        i += count
        if count < 8:
            return i
    while i < stop and values[i] < bound:
        i += 1
    return i


@kernel(inline=True)
def _joined(stack, top, a, w, k):
    """The last block, from score `a` on, once those of stack[:top] that do not stand lower have joined it."""
    while top > 0 and stack[top - 1, 3] * w >= k * stack[top - 1, 2]:
        top -= 1
        a = stack[top, 0]
        w += stack[top, 2]
        k += stack[top, 3]
    return top, a, w, k


@kernel
def pool_classes(negatives, positives):
    """Isotonic blocks of rows without weights, without the points in between.

    negatives, positives : float64 arrays, the scores of either class, ascending; from 1 to 2**26 - 1 together

    Returns
    -------
    blocks : float64 array, shape (blocks, 4): first, last, weight, positives. How many scores both classes have.
    """
    i = j = top = 0
    n, p = negatives.size, positives.size
    # As many blocks as rows at most; memory that is not written to is none.
    stack = np.empty((n + p, 4))
    both = 0
    # The last block is held apart: most points join it.
    a = b = w = k = 0.0
    while i < n or j < p:
        # Neighbours of one label are one block: those with label 0 never stand higher than what comes before.
        s = positives[j] if j < p else np.inf
        start = i
        i = first_not_below(negatives, i, n, s)
        if i > start:
            a = negatives[start] if w == 0.0 else a
            b = negatives[i - 1]
            w += i - start
            top, a, w, k = _joined(stack, top, a, w, k)
        s = negatives[i] if i < n else np.inf
        start = j
        j = first_not_below(positives, j, p, s)
        hits = weight = float(j - start)
        if j > start:
            first, last = positives[start], positives[j - 1]
        elif i < n and j < p:
            # A score of both.
            first = last = s
            weight = -float(i)
            while i < n and negatives[i] == s:
                i += 1
            while j < p and positives[j] == s:
                j += 1
            hits = float(j - start)
            weight += i + hits
            both += 1
        else:
            break
        if k * weight < hits * w:
            stack[top, 0], stack[top, 1], stack[top, 2], stack[top, 3] = a, b, w, k
            top += 1
            a, b, w, k = first, last, weight, hits
            continue
        a = first if w == 0.0 else a
        b = last
        w += weight
        k += hits
        top, a, w, k = _joined(stack, top, a, w, k)
    stack[top, 0], stack[top, 1], stack[top, 2], stack[top, 3] = a, b, w, k
    return stack[: top + 1].copy(), both


@kernel
def _join(block, other):
    """Add another block's sums to those of a block."""
    block[2], block[3] = add_pairs(block[2], block[3], other[2], other[3])
    block[4], block[5] = add_pairs(block[4], block[5], other[4], other[5])


@kernel
def _falls(one, other):
    """Tell whether the level of one block is at least that of the other."""
    return level_difference((one[4], one[5], one[2], one[3]), (other[4], other[5], other[2], other[3])) >= 0.0


@kernel
def pool_ends(blocks, sizes, ends):
    """Pool the blocks of each group again, with a block of `ends` positives before and as many negatives behind.

    The block before has the highest level of all, so it always joins the first block, and from there on; the one behind
    joins the last. What lies between is left as it is.

    Parameters
    ----------
    blocks : float64 array, shape (blocks, 6)
        first, last, weight, its low part, positives, their low part (double-doubles): isotonic blocks of groups, one
        group after the other.
    sizes : int64 array, shape (groups,), >= 1
    ends : float > 0

    Returns
    -------
    blocks : float64 array, shape (fewer blocks, 6): without the weight that was added
    levels : float64 array: with it. They increase within a group.
    sizes : int64 array, shape (groups,)
    """
    out = np.empty_like(blocks)
    levels = np.empty(blocks.shape[0])
    left = np.empty_like(sizes)
    # The blocks at both ends, with what is added, and the last one without it.
    low, high, own = np.empty(6), np.empty(6), np.empty(6)
    positive = np.array([0.0, 0.0, ends, 0.0, ends, 0.0])
    negative = np.array([0.0, 0.0, ends, 0.0, 0.0, 0.0])
    n = start = 0
    for g in range(sizes.size):
        base, stop = n, start + sizes[g]
        i, j = start + 1, stop - 2
        put(out[n], blocks[start])
        put(low, blocks[start])
        _join(low, positive)
        while i < stop - 1 and _falls(low, blocks[i]):
            _join(low, blocks[i])
            _join(out[n], blocks[i])
            out[n, 1] = blocks[i, 1]
            i += 1
        if sizes[g] == 1:
            _join(low, negative)
        else:
            put(own, blocks[stop - 1])
            put(high, own)
            _join(high, negative)
            while j >= i and _falls(blocks[j], high):
                _join(high, blocks[j])
                _join(own, blocks[j])
                own[0] = blocks[j, 0]
                j -= 1
            if j < i and _falls(low, high):
                _join(low, high)
                _join(out[n], own)
                out[n, 1] = own[1]
            else:
                for r in range(i, j + 1):
                    n += 1
                    put(out[n], blocks[r])
                    levels[n] = min(blocks[r, 4] / blocks[r, 2], 1.0)
                n += 1
                put(out[n], own)
                levels[n] = min(high[4] / high[2], 1.0)
        levels[base] = min(low[4] / low[2], 1.0)
        n += 1
        left[g] = n - base
        start = stop
    return out[:n].copy(), levels[:n].copy(), left
