"""Isotonic blocks whose levels are neither 0 nor 1: a positive below the lowest score, a negative above the highest."""

import numpy as np

from calibrators._kernels.compiled import kernel
from calibrators._kernels.double_double import add_pairs
from calibrators._kernels.pava import level_difference
from calibrators._kernels.sums import put


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
