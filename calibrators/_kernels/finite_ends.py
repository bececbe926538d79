"""Isotonic blocks whose levels are neither 0 nor 1: a positive below the lowest score, a negative above the highest."""

import numpy as np

from calibrators._kernels.compiled import kernel
from calibrators._kernels.copying import put
from calibrators._kernels.double_double import add_pairs
from calibrators._kernels.pava import level_difference


@kernel(inline=True)
def _joined(one, other):
    w, wl = add_pairs(one[0], one[1], other[0], other[1])
    k, kl = add_pairs(one[2], one[3], other[2], other[3])
    return (w, wl, k, kl)


@kernel(inline=True)
def _falls(one, other):
    """Whether the level of one block is at least that of the other."""
    sign = level_difference(one[2], one[3], one[0], one[1], other[2], other[3], other[0], other[1])
    return sign >= 0.0


@kernel(inline=True)
def _level(block):
    return min(block[2] / block[0], 1.0)


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
    n = start = 0
    for g in range(sizes.size):
        stop = start + sizes[g]
        i, j = start + 1, stop - 2
        b = blocks[start]
        own = low_own = (b[2], b[3], b[4], b[5])
        low = _joined(own, (ends, 0.0, ends, 0.0))
        base = n
        if sizes[g] > 1:
            while i < stop - 1:
                b = blocks[i]
                block = (b[2], b[3], b[4], b[5])
                if not _falls(low, block):
                    break
                low, low_own = _joined(low, block), _joined(low_own, block)
                i += 1
            b = blocks[stop - 1]
            high_own = (b[2], b[3], b[4], b[5])
            high = _joined(high_own, (ends, 0.0, 0.0, 0.0))
            while j >= i:
                b = blocks[j]
                block = (b[2], b[3], b[4], b[5])
                if not _falls(block, high):
                    break
                high, high_own = _joined(block, high), _joined(block, high_own)
                j -= 1
            if j >= i or not _falls(low, high):
                levels[n] = _level(low)
                _put(out, n, blocks[start, 0], blocks[i - 1, 1], low_own)
                n += 1
                for r in range(i, j + 1):
                    put(out[n], blocks[r])
                    levels[n] = min(blocks[r, 4] / blocks[r, 2], 1.0)
                    n += 1
                levels[n] = _level(high)
                _put(out, n, blocks[j + 1, 0], blocks[stop - 1, 1], high_own)
                n += 1
            else:
                low, low_own = _joined(low, high), _joined(low_own, high_own)
        else:
            low = _joined(low, (ends, 0.0, 0.0, 0.0))
        if n == base:
            levels[n] = _level(low)
            _put(out, n, blocks[start, 0], blocks[stop - 1, 1], low_own)
            n += 1
        left[g] = n - base
        start = stop
    return out[:n].copy(), levels[:n].copy(), left


@kernel(inline=True)
def _put(out, n, first, last, sums):
    out[n, 0], out[n, 1] = first, last
    out[n, 2], out[n, 3], out[n, 4], out[n, 5] = sums
