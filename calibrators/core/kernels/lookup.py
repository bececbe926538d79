"""Kernels that apply piecewise-linear maps to unsorted scores in constant time per score; ordinals of doubles."""

import numpy as np

from calibrators.core.compiled import kernel


@kernel(inline=True)
def ordinal(bits):
    """Return the ordinal of a double, given its bits: a uint64 in the same order as the doubles."""
    # The bits of negative numbers ascend as the numbers descend.
    return ~bits if bits & _TOP else bits | _TOP


@kernel(inline=True)
def bits_of(ordinal_bits):
    """Return the bits of the double with an ordinal: the inverse of `ordinal`."""
    return ordinal_bits ^ _TOP if ordinal_bits & _TOP else ~ordinal_bits


_BLOCK = 256  # number of scores whose binary searches run together
_TOP = np.uint64(0x8000000000000000)


@kernel
def apply(scores, bits, index, out):
    """Evaluate the map at scores into out; NaN stays NaN.

    scores : float64 array, shape (n,)
    bits : the same memory as uint64
    index : tuple of
        rows : float64 array, shape (rows, 4): upper (exclusive) edge, prob_lo, slope and anchor of each row; the last
            edge is NaN, which no score reaches
        starts : uint32 array: number of edges below each bucket of ordinals
        low, shift : uint64: the bucket of a score is its ordinal minus `low`, shifted right by `shift`
    """
    rows, starts, low, shift = index
    last = np.uint64(starts.size - 2)
    one = np.uint64(1)
    for i in range(scores.size):
        s = scores[i]
        # Conditional moves instead of branches: branches on unsorted scores cannot be predicted.
        key = _TOP if s == 0.0 else ordinal(bits[i])
        b = (max(key, low) - low) >> shift
        b = min(last, b)
        j = np.uint64(starts[b])
        end = np.uint64(starts[b + one])
        # Most buckets have at most one edge. The next edge of an empty bucket is above all its scores.
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
def apply_each(scores, bits, maps, index, out):
    """Evaluate the map maps[i] at scores[i] into out[i], in constant time each; NaN stays NaN.

    scores : float64 array, shape (n,)
    bits : the same memory as uint64
    maps : int32 array, shape (n,)
    index : tuple of
        rows : float64 array, shape (rows, 4): as in `apply`, of all maps; the last edge of each map is NaN
        heads : uint64 array, shape (maps, 4): ordinal of the map's first edge, shift of the ordinals, index of the
            map's first bucket in `buckets`, and number of its last bucket
        buckets : uint32 array: for each bucket of each map the first row whose edge is in the bucket or above
    """
    rows, heads, buckets = index
    row, widths = np.empty(_BLOCK, np.uint32), np.empty(_BLOCK, np.uint32)
    one = np.uint32(1)
    for block in range(0, scores.size, _BLOCK):
        n = min(_BLOCK, scores.size - block)
        widest = one
        # One step of all searches at a time: their reads are independent, and comparisons select instead of branching.
        for i in range(n):
            k = maps[block + i]
            key = _TOP if scores[block + i] == 0.0 else ordinal(bits[block + i])
            low = heads[k, 0]
            b = min((max(key, low) - low) >> heads[k, 1], heads[k, 3]) + heads[k, 2]
            row[i] = buckets[b]
            widths[i] = buckets[b + np.uint64(1)] - row[i] + one
            widest = max(widest, widths[i])
        while widest > one:
            for i in range(n):
                half = widths[i] >> one
                at = np.uintp(row[i]) + np.uintp(max(half, one)) - np.uintp(1)
                row[i] += half * np.uint32(rows[at, 0] <= scores[block + i])
                widths[i] -= half
            widest -= widest >> one
        for i in range(n):
            j, s = row[i], scores[block + i]
            level, slope = rows[j, 1], rows[j, 2]
            value = level + slope * (s - rows[j, 3])
            # An infinite score in a constant row would give 0 * inf.
            value = level if slope == 0.0 else value
            out[block + i] = s if s != s else value
