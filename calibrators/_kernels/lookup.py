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
def heads_of_maps(edges, starts, buckets, heads):
    """Of each map how its buckets are found, as `bucket_starts` has them, into heads. O(maps).

    edges : uint64 array, shape (rows,): the ordered bits of the upper edge of each row of all maps
    starts : int64 array, shape (maps + 1,): where each map's rows begin, and where the last one's end
    buckets : about how many a row
    heads : uint64 array, shape (maps, 4): the ordered bits of the first edge, by how many bits scores are shifted, the
        place of the first bucket among those of all maps, and the number of the last bucket; filled

    Returns
    -------
    number of entries that the buckets of all maps take
    """
    place = 0
    for k in range(starts.size - 1):
        first, finite = starts[k], starts[k + 1] - starts[k] - 1
        shift, last = 0, 0
        heads[k, 0] = edges[first]
        if finite > 0:
            span = edges[first + finite - 1] - edges[first]
            while (span >> np.uint64(shift)) >= np.uint64(buckets * finite):
                shift += 1
            last = np.int64(span >> np.uint64(shift))
        heads[k, 1], heads[k, 2], heads[k, 3] = shift, place, last
        place += last + 2
    return place


@kernel
def fill_buckets(edges, starts, heads, buckets):
    """For each bucket of each map the first row with an edge in it or beyond, into buckets, uint32; linear."""
    for k in range(starts.size - 1):
        row, stop = starts[k], starts[k + 1] - 1
        place, last = np.int64(heads[k, 2]), np.int64(heads[k, 3])
        for b in range(last + 1):
            while row < stop and ((edges[row] - heads[k, 0]) >> heads[k, 1]) < np.uint64(b):
                row += 1
            buckets[place + b] = row
        buckets[place + last + 1] = stop


@kernel
def apply_each(scores, bits, place, rows, heads, buckets, out):
    """Evaluate at scores[i] the map place[i]; NaN stays NaN. O(1) each, as `apply`.

    scores : float64 array, shape (n,); bits : the same memory as uint64. place : int32 array, shape (n,)
    rows : float64 array, shape (rows, 4): as in `apply`, of all maps; the last edge of each is NaN
    heads, buckets : see `heads_of_maps` and `fill_buckets`
    """
    row, left = np.empty(_BLOCK, np.uint32), np.empty(_BLOCK, np.uint32)
    one = np.uint32(1)
    for first in range(0, scores.size, _BLOCK):
        n = min(_BLOCK, scores.size - first)
        most = one
        # In steps, whose reads do not wait for each other, and whose comparisons select: nobody can foresee them.
        for i in range(n):
            k = place[first + i]
            key = _TOP if scores[first + i] == 0.0 else _ordered(bits[first + i])
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
