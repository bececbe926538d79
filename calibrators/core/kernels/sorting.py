"""Radix sort of uint64 numbers and of doubles, alone or in rows with a second number; sums of ties.

Arrays have the shape (n,), or (n, 2) for rows, which are sorted by their first column. One source serves both: the
compiler drops the branch for the other number of dimensions.

Three digits of the leading bits are sorted, the lowest first (Knuth 1998, The Art of Computer Programming 3, 5.2.5),
each in one stable sweep. Numbers with equal leading bits are then neighbours. Insertion sort orders the usual short
ranges of them; longer ranges are sorted by their lower bits. So the sort takes O(n) for any numbers, without vector
instructions, which are slow on some processors.
"""

import numpy as np

from calibrators.core.compiled import kernel
from calibrators.core.kernels.lookup import bits_of, ordinal
from calibrators.core.kernels.sums import MAX_COMPONENTS, add, rounded

_SWEEPS = 3
_DIGIT, _SHORT_DIGIT = 10, 8
"""Bits of a digit of long and of short arrays. A sweep writes to at most as many positions at a time as the L1 cache
has lines, and a short array has fewer counts than numbers."""

_LONG = 1 << 14
_FARTHEST = 32
"""Largest move of a number by insertion sort; if it is not enough, the range is sorted by its lower bits."""

_BITS = np.uint64(64)


@kernel
def _sweep(source, target, shift, bits):
    """Sort numbers stably by one digit: `bits` bits, from bit `shift` on."""
    mask = np.uint64((1 << bits) - 1)
    fill = np.zeros(1 << bits, np.int64)
    first = source if source.ndim == 1 else source[:, 0]
    for i in range(first.size):
        fill[np.int64((first[i] >> shift) & mask)] += 1
    at = 0
    for d in range(fill.size):
        count = fill[d]
        fill[d] = at
        at += count
    for i in range(first.size):
        x = first[i]
        d = np.int64((x >> shift) & mask)
        at = fill[d]
        fill[d] = at + 1
        if source.ndim == 1:
            target[at] = x
        else:
            target[at, 0] = x
            target[at, 1] = source[i, 1]


@kernel
def _sort(numbers, spare, span):
    """Sort numbers of at most `span` stably, from `numbers` into `spare`, uint64 arrays; `numbers` is overwritten."""
    n = numbers.shape[0]
    bits = _DIGIT if n > _LONG else _SHORT_DIGIT
    width, short = np.uint64(bits), np.uint64(_SHORT_DIGIT)
    digits = np.uint64(_SWEEPS * bits)
    lowest = np.uint64(0)
    while lowest + digits < _BITS and span >> (lowest + digits):
        lowest += np.uint64(1)
    _sweep(numbers, spare, lowest, bits)
    _sweep(spare, numbers, lowest + width, bits)
    _sweep(numbers, spare, lowest + width + width, bits)
    keys = spare if spare.ndim == 1 else spare[:, 0]
    values = spare if spare.ndim == 1 else spare[:, 1]
    i = 1
    while i < n:
        x = keys[i]
        if keys[i - 1] <= x:
            i += 1
            continue
        y = values[i]
        j = i
        while j > 0 and keys[j - 1] > x and i - j < _FARTHEST:
            keys[j] = keys[j - 1]
            if spare.ndim == 2:
                values[j] = values[j - 1]
            j -= 1
        keys[j] = x
        if spare.ndim == 2:
            values[j] = y
        i += 1
        if i - j <= _FARTHEST:
            continue
        # Find the range of numbers with these leading bits.
        prefix = x >> lowest
        start = j
        while start > 0 and keys[start - 1] >> lowest == prefix:
            start -= 1
        while i < n and keys[i] >> lowest == prefix:
            i += 1
        shift = np.uint64(0)
        while shift < lowest:
            _sweep(spare[start:i], numbers[start:i], shift, _SHORT_DIGIT)
            _sweep(numbers[start:i], spare[start:i], shift, 0)
            shift += short


@kernel
def sort_numbers(raw, spare, doubles):
    """Sort numbers or rows stably in place. The memory of rows then has the first column before the second.

    raw, spare : uint64 arrays of one shape, not empty
    doubles : whether the numbers are the bits of finite doubles, to be sorted as doubles
    """
    first = raw if raw.ndim == 1 else raw[:, 0]
    ordinals = spare if spare.ndim == 1 else spare[:, 0]
    low, high = ~np.uint64(0), np.uint64(0)
    for i in range(first.size):
        x = ordinal(first[i]) if doubles else first[i]
        first[i] = x
        low = min(low, x)
        high = max(high, x)
    for i in range(first.size):
        first[i] -= low
    _sort(raw, spare, high - low)
    out = raw.reshape(-1)
    for i in range(ordinals.size):
        x = ordinals[i] + low
        out[i] = bits_of(x) if doubles else x
        if raw.ndim == 2:
            out[ordinals.size + i] = spare[i, 1]


@kernel
def sort_pieces(numbers, ends, spare, span):
    """Sort each piece of some numbers of at most `span`, into `spare`. ends : int64 array: the end of each piece."""
    start = 0
    for stop in ends:
        if stop - start > 1:
            _sort(numbers[start:stop], spare[start:stop], span)
        elif stop > start:
            spare[start] = numbers[start]
        start = stop


@kernel
def add_ties(entries, rounding, out, codes):
    """Sum weight and positives of ties, entries with equal score and code, exactly; round the sums if asked to.

    Parameters
    ----------
    entries : four arrays, shape (n,), sorted by score and code:
        score, code, weight, positives : several entries of a tie may be components of one expansion. The codes are
        int32; the array is empty if ties are of the score alone
    rounding : whether a tie becomes one entry with sums rounded once. Otherwise it becomes the components of its
        exact sums, as many as the longer of its two expansions has (one for integers), padded with zeros; it is
        unchanged if that is more entries
    out, codes : float64 array, shape (3, n), and int32 array of the size of `code`, filled

    Returns
    -------
    number of entries in the output
    """
    score, code, weight, positives = entries
    n = score.size
    w = np.empty(MAX_COMPONENTS)
    k = np.empty(MAX_COMPONENTS)
    m = i = 0
    while i < n:
        start = i
        i += 1
        while i < n and score[i] == score[start] and (code.size == 0 or code[i] == code[start]):
            i += 1
        size = nw = nk = 0
        if i - start > 1:
            for j in range(start, i):
                nw = add(w, nw, weight[j])
                nk = add(k, nk, positives[j])
            if rounding:
                w[0], k[0] = rounded(w, nw), rounded(k, nk)
                nw = nk = 1
            size = max(nw, nk)
        unchanged = size == 0 or size > i - start
        for j in range(i - start if unchanged else size):
            out[0, m] = score[start]
            if code.size > 0:
                codes[m] = code[start]
            if unchanged:
                out[1, m], out[2, m] = weight[start + j], positives[start + j]
            else:
                out[1, m] = w[j] if j < nw else 0.0
                out[2, m] = k[j] if j < nk else 0.0
            m += 1
    return m
