"""Sorting whole numbers of 64 bits, and doubles as such, alone or in rows with another number, digit by digit.

Arrays have the shape (n,), or (n, 2) for rows, which are sorted by their first numbers. One source serves both: the
compiler drops the branch for the other number of dimensions.

Three digits of the leading bits are sorted, the lowest first (Knuth 1998, The Art of Computer Programming 3, 5.2.5):
each is one sweep that keeps the order of equal ones. Numbers that these bits do not tell apart are neighbours then, and
mostly few: they are inserted where they belong; longer stretches are sorted by the bits that are left. So it takes O(n)
whatever the numbers are, and no vector instructions, which some processors carry out slowly.

Sorted observations that share a score are added up.
"""

import numpy as np

from calibrators._kernels.compiled import kernel
from calibrators._kernels.lookup import bits_of, ordinal
from calibrators._kernels.sums import MAX_COMPONENTS, add, rounded

_SWEEPS = 3
_DIGIT, _SHORT_DIGIT = 10, 8
"""Bits of a digit. As many places are written to side by side as the nearest memory has lines, or fewer: the counts of
short arrays are fewer than their numbers."""

_LONG = 1 << 14
_FARTHEST = 32
"""Places that a number is moved back by, before its stretch is sorted instead."""

_BITS = np.uint64(64)


@kernel
def _sweep(source, target, shift, bits):
    """Put numbers in the order of one digit: of so many bits, from bit `shift` on."""
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
    """Sort numbers of at most `span`, equal ones in their order; they are in `spare` then. Both are uint64 arrays."""
    n = numbers.shape[0]
    bits = _DIGIT if n > _LONG else _SHORT_DIGIT
    width, short = np.uint64(bits), np.uint64(_SHORT_DIGIT)
    digits = np.uint64(_SWEEPS * bits)
    rest = np.uint64(0)
    while rest + digits < _BITS and span >> (rest + digits):
        rest += np.uint64(1)
    _sweep(numbers, spare, rest, bits)
    _sweep(spare, numbers, rest + width, bits)
    _sweep(numbers, spare, rest + width + width, bits)
    first = spare if spare.ndim == 1 else spare[:, 0]
    other = spare if spare.ndim == 1 else spare[:, 1]
    i = 1
    while i < n:
        x = first[i]
        if first[i - 1] <= x:
            i += 1
            continue
        y = other[i]
        j = i
        while j > 0 and first[j - 1] > x and i - j < _FARTHEST:
            first[j] = first[j - 1]
            if spare.ndim == 2:
                other[j] = other[j - 1]
            j -= 1
        first[j] = x
        if spare.ndim == 2:
            other[j] = y
        i += 1
        if i - j <= _FARTHEST:
            continue
        # More than a few that the leading bits do not tell apart: from where to where.
        prefix = x >> rest
        start = j
        while start > 0 and first[start - 1] >> rest == prefix:
            start -= 1
        while i < n and first[i] >> rest == prefix:
            i += 1
        shift = np.uint64(0)
        while shift < rest:
            _sweep(spare[start:i], numbers[start:i], shift, _SHORT_DIGIT)
            _sweep(numbers[start:i], spare[start:i], shift, 0)
            shift += short


@kernel
def sort_numbers(raw, spare, doubles):
    """Sort numbers in place, equal ones in their order; of rows, the first numbers are left before all others.

    raw, spare : uint64 arrays, one number at least. doubles : whether they are the bits of finite doubles, to be sorted
        as such
    """
    first = raw if raw.ndim == 1 else raw[:, 0]
    placed = spare if spare.ndim == 1 else spare[:, 0]
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
    for i in range(placed.size):
        x = placed[i] + low
        out[i] = bits_of(x) if doubles else x
        if raw.ndim == 2:
            out[placed.size + i] = spare[i, 1]


@kernel
def sort_pieces(numbers, ends, spare, span):
    """Sort each piece of some numbers of at most `span`; they are in `spare` then. ends : int64 array, of pieces."""
    start = 0
    for stop in ends:
        if stop - start > 1:
            _sort(numbers[start:stop], spare[start:stop], span)
        elif stop > start:
            spare[start] = numbers[start]
        start = stop


@kernel
def merge_classes(negatives, positives, score, weight, hits):
    """Merge two sorted arrays of scores, one a class, into points; every observation has weight 1.

    score, weight, hits : float64 arrays with room for all observations, are filled with a point a distinct score

    Returns
    -------
    how many points there are
    """
    i = j = 0
    m = -1
    last = np.nan
    w = h = 0.0
    n, p = negatives.size, positives.size
    while i < n or j < p:
        # Which class comes next cannot be predicted, so nothing here branches on it.
        negative = j == p or (i < n and negatives[i] <= positives[j])
        s = negatives[i] if negative else positives[j]
        i += negative
        j += 1 - negative
        tied = s == last
        m += 1 - tied
        w = 1.0 + tied * w
        h = (1.0 - negative) + tied * h
        score[m] = last = s
        weight[m] = w
        hits[m] = h
    return m + 1


@kernel
def add_ties(entries, rounding, out, codes):
    """Add up entries, sorted by score and code, that share both: exactly, then rounded, or not rounded at all.

    Parameters
    ----------
    entries : four arrays:
        score, code, weight, positives : shape (n,). Entries of a score may be components of an expansion. The codes are
        int64, or there are none: then the score alone tells entries apart
    rounding : whether a tie becomes one entry, its sums rounded once; otherwise the components of its exact sums, as
        many as the longer of its two expansions has (one for whole numbers), padded with zeros; where these are more
        than its entries, the entries stay
    out, codes : float64 array, shape (3, n), and int64 array of the size of `code`, are filled

    Returns
    -------
    how many entries are left
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
        longest = nw = nk = 0
        if i - start > 1:
            for j in range(start, i):
                nw = add(w, nw, weight[j])
                nk = add(k, nk, positives[j])
            if rounding:
                w[0], k[0] = rounded(w, nw), rounded(k, nk)
                nw = nk = 1
            longest = max(nw, nk)
        own = longest == 0 or longest > i - start
        for j in range(i - start if own else longest):
            out[0, m] = score[start]
            if code.size > 0:
                codes[m] = code[start]
            if own:
                out[1, m], out[2, m] = weight[start + j], positives[start + j]
            else:
                out[1, m] = w[j] if j < nw else 0.0
                out[2, m] = k[j] if j < nk else 0.0
            m += 1
    return m
