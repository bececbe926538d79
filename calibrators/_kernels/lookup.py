"""Applying piecewise-linear maps to scores in any order, in constant time a score; the order of doubles."""

import numpy as np

from calibrators._kernels.compiled import kernel


@kernel(inline=True)
def ordinal(bits):
    """The bits of a double as a whole number in the order of the doubles."""
    # The bits of negative numbers ascend as the numbers descend.
    return ~bits if bits & _TOP else bits | _TOP


@kernel(inline=True)
def bits_of(number):
    """The bits of the double that `ordinal` made a number of."""
    return number ^ _TOP if number & _TOP else ~number


_BLOCK = 256  # scores that are searched for together
_TOP = np.uint64(0x8000000000000000)


@kernel
def apply(scores, bits, index, out):
    """Evaluate the map at scores into out; NaN stays NaN.

    scores : float64 array, shape (n,); bits : the same memory as uint64.
    index : four arrays and numbers:
        rows : float64 array, shape (rows, 4): of each row the upper (exclusive) edge, prob_lo, slope and anchor, which
            a score needs together; the last edge is NaN, which no score reaches.
        starts, low, shift : of each bucket of the scores' ordinals, less `low` and shifted, how many edges are below
            it; starts is uint32
    """
    rows, starts, low, shift = index
    last = np.uint64(starts.size - 2)
    one = np.uint64(1)
    for i in range(scores.size):
        s = scores[i]
        # Selected, not branched to: processors cannot foresee what scores in any order are.
        key = _TOP if s == 0.0 else ordinal(bits[i])
        b = (max(key, low) - low) >> shift
        b = min(last, b)
        j = np.uint64(starts[b])
        end = np.uint64(starts[b + one])
        # Most buckets have one edge at most; that of an empty one is above all its scores.
        j += np.uint64(rows[j, 0] <= s)
        while j < end:
            mid = (j + end) >> one
            if rows[mid, 0] <= s:
                j = mid + one
            else:
                end = mid
        level, slope = rows[j, 1], rows[j, 2]
        value = level + slope * (s - rows[j, 3])
        # An infinite score in a constant row would give 0 * inf.
        value = level if slope == 0.0 else value
        out[i] = s if s != s else value


@kernel
def apply_each(scores, bits, place, index, out):
    """Evaluate at scores[i] the map place[i]; NaN stays NaN. O(1) each, as `apply`.

    scores : float64 array, shape (n,); bits : the same memory as uint64. place : int32 array, shape (n,)
    index : three arrays:
        rows : float64 array, shape (rows, 4): as in `apply`, of all maps; the last edge of each is NaN
        heads : uint64 array, shape (maps, 4): the ordinal of the first edge, by how many bits scores are shifted, the
            place of the first bucket among those of all maps, and the number of the last bucket
        buckets : uint32 array: of each bucket of each map the first row with an edge in it or beyond
    """
    rows, heads, buckets = index
    row, left = np.empty(_BLOCK, np.uint32), np.empty(_BLOCK, np.uint32)
    one = np.uint32(1)
    for first in range(0, scores.size, _BLOCK):
        n = min(_BLOCK, scores.size - first)
        most = one
        # In steps, whose reads do not wait for each other, and whose comparisons select: nobody can foresee them.
        for i in range(n):
            k = place[first + i]
            key = _TOP if scores[first + i] == 0.0 else ordinal(bits[first + i])
            low = heads[k, 0]
            b = min((max(key, low) - low) >> heads[k, 1], heads[k, 3]) + heads[k, 2]
            row[i] = buckets[b]
            left[i] = buckets[b + np.uint64(1)] - row[i] + one
            most = max(most, left[i])
        while most > one:
            for i in range(n):
                half = left[i] >> one
                at = np.uintp(row[i]) + np.uintp(max(half, one)) - np.uintp(1)
                row[i] += half * np.uint32(rows[at, 0] <= scores[first + i])
                left[i] -= half
            most -= most >> one
        for i in range(n):
            j, s = row[i], scores[first + i]
            level, slope = rows[j, 1], rows[j, 2]
            value = level + slope * (s - rows[j, 3])
            # An infinite score in a constant row would give 0 * inf.
            value = level if slope == 0.0 else value
            out[first + i] = s if s != s else value
