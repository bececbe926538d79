"""Applying a piecewise-linear map to scores: in any order in constant time a score, and to ascending ones."""

import numpy as np

from calibrators._kernels.compiled import kernel
from calibrators._kernels.search import first_at

_BLOCK = 256  # scores that are searched for together
_TOP = np.uint64(0x8000000000000000)


@kernel(inline=True)
def _ordered(bits):
    """Map the bits of a double to an unsigned integer of the same order."""
    if bits & _TOP:
        return ~bits
    return bits | _TOP


@kernel
def bucket_starts(edges, low, shift, buckets):
    """For each bucket of the ordered bits, the number of edges below it: where a search may start.

    edges : uint64 array, shape (m,): the ordered bits of the finite edges, ascending.
    """
    starts = np.empty(buckets + 1, np.uint32)
    j = 0
    for b in range(buckets):
        while j < edges.size and ((edges[j] - low) >> shift) < np.uint64(b):
            j += 1
        starts[b] = j
    starts[buckets] = edges.size
    return starts


@kernel
def ordered_bits(values):
    """The ordered bits of doubles (-0.0 counts as 0.0)."""
    bits = (values + 0.0).view(np.uint64)
    out = np.empty(bits.size, np.uint64)
    for i in range(bits.size):
        out[i] = _ordered(bits[i])
    return out


@kernel
def apply(scores, bits, rows, starts, low, shift, out):
    """Evaluate the map at scores into out; NaN stays NaN.

    scores : float64 array, shape (n,); bits : the same memory as uint64.
    rows : float64 array, shape (rows, 4): of each row the upper (exclusive) edge, prob_lo, slope and anchor, which a
        score needs together; the last edge is NaN, which no score reaches.
    starts, low, shift : the index made by `bucket_starts`, of uint32.
    """
    last = np.uint64(starts.size - 2)
    one = np.uint64(1)
    for i in range(scores.size):
        s = scores[i]
        # Selected, not branched to: processors cannot foresee what scores in any order are.
        key = _TOP if s == 0.0 else _ordered(bits[i])
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
def apply_ascending(scores, edges, prob_lo, slope, anchor, out):
    """As `apply`, at ascending scores without NaN."""
    if scores.size == 0:
        return
    i = 0
    j = np.searchsorted(edges, scores[0], side="right")
    while i < scores.size:
        stop = first_at(scores, i, edges[j]) if j < edges.size else scores.size
        if slope[j] == 0.0:
            out[i:stop] = prob_lo[j]
        else:
            for r in range(i, stop):
                out[r] = prob_lo[j] + slope[j] * (scores[r] - anchor[j])
        i = stop
        j += 1


@kernel
def apply_each(scores, place, start, stop, score_hi, prob_lo, slope, anchor, out):
    """Evaluate at scores[i] the map in rows start[k], ..., stop[k] - 1, k = place[i]; NaN stays NaN. O(log rows) each.

    place : int32 array, shape (n,). start, stop : int64 arrays, shape (maps,).
    """
    row, left = np.empty(_BLOCK, np.int64), np.empty(_BLOCK, np.int64)
    for first in range(0, scores.size, _BLOCK):
        n = min(_BLOCK, scores.size - first)
        most = np.int64(1)
        for i in range(n):
            k = place[first + i]
            row[i] = start[k]
            left[i] = stop[k] - start[k]
            most = max(most, left[i])
        # All searches of a block go on step by step: what one reads does not wait for what another has found.
        while most > 1:
            for i in range(n):
                half = left[i] >> 1
                row[i] += half * np.int64(score_hi[row[i] + max(half, np.int64(1)) - 1] <= scores[first + i])
                left[i] -= half
            most -= most >> 1
        for i in range(n):
            j, s = row[i], scores[first + i]
            value = prob_lo[j] + slope[j] * (s - anchor[j])
            # An infinite score in a constant row would give 0 * inf.
            value = prob_lo[j] if slope[j] == 0.0 else value
            out[first + i] = s if s != s else value
