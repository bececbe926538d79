"""Applying a piecewise-linear map to scores: in any order in constant time a score, and to ascending ones."""

import numpy as np

from calibrators._kernels.compiled import kernel
from calibrators._kernels.search import first_at

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
    starts = np.empty(buckets + 1, np.int64)
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
def apply(scores, bits, edges, starts, low, shift, prob_lo, slope, anchor, out):
    """Evaluate the map at scores into out; NaN stays NaN.

    scores : float64 array, shape (n,); bits : the same memory as uint64.
    edges : float64 array, shape (rows - 1,): the upper (exclusive) edge of every row but the last.
    starts, low, shift : the index made by `bucket_starts`.
    """
    buckets = starts.size - 1
    rows = prob_lo.size
    for i in range(scores.size):
        s = scores[i]
        if np.isnan(s):
            out[i] = np.nan
            continue
        j = np.int64(0)
        if rows > 1:
            key = _ordered(bits[i]) if s != 0.0 else _TOP
            if key >= low:
                b = (key - low) >> shift
                if b >= np.uint64(buckets):
                    j = rows - 1
                else:
                    # Edges in the bucket: a binary search over the few that there are.
                    j = starts[np.int64(b)]
                    end = starts[np.int64(b) + 1]
                    while j < end:
                        mid = (j + end) >> 1
                        if edges[mid] <= s:
                            j = mid + 1
                        else:
                            end = mid
        # An infinite score in a constant row would give 0 * inf.
        out[i] = prob_lo[j] if slope[j] == 0.0 else prob_lo[j] + slope[j] * (s - anchor[j])


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
    for i in range(scores.size):
        s = scores[i]
        if np.isnan(s):
            out[i] = np.nan
            continue
        j = start[place[i]]
        end = stop[place[i]] - 1
        while j < end:
            mid = (j + end) >> 1
            if score_hi[mid] <= s:
                j = mid + 1
            else:
                end = mid
        # An infinite score in a constant row would give 0 * inf.
        out[i] = prob_lo[j] if slope[j] == 0.0 else prob_lo[j] + slope[j] * (s - anchor[j])
