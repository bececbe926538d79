"""Sorting whole numbers of 64 bits, alone or in rows with another number, digit by digit.

Three digits of the leading bits are sorted, the lowest first (Knuth 1998, The Art of Computer Programming 3, 5.2.5):
each is one sweep that keeps the order of equal ones. What these bits do not tell apart stands side by side then, and is
mostly a few numbers, which are inserted where they belong; longer stretches are sorted by the bits that are left. So
it takes O(n) whatever the numbers are, and no instructions that some processors have and others carry out slowly.
"""

import numpy as np

from calibrators._kernels.compiled import kernel
from calibrators._kernels.copying import put, put_rows
from calibrators._kernels.order import bits_of, ordinal

_SWEEPS = 3
_DIGIT, _SHORT_DIGIT = 10, 8
"""Bits of a digit. As many places are written to side by side as the nearest memory has lines, or fewer: the counts of
short arrays are fewer than their numbers."""

_LONG = 1 << 14
_FARTHEST = 32
"""Places that a number is moved back by, before its stretch is sorted instead."""

_ZERO = np.uint64(0)
_NEGATIVE_ZERO = np.uint64(1) << np.uint64(63)


@kernel(inline=True)
def _digit(number, shift, mask):
    return np.int64((number >> shift) & mask)


@kernel
def _begin(counts):
    """Where each digit's numbers begin, in the place of how many they are."""
    at = 0
    for d in range(counts.size):
        count = counts[d]
        counts[d] = at
        at += count


@kernel
def _sweep(source, target, shift, bits):
    """Put numbers in the order of one digit: of so many bits, from bit `shift` on."""
    mask = np.uint64((1 << bits) - 1)
    fill = np.zeros(1 << bits, np.int64)
    for i in range(source.size):
        fill[_digit(source[i], shift, mask)] += 1
    _begin(fill)
    for i in range(source.size):
        x = source[i]
        d = _digit(x, shift, mask)
        at = fill[d]
        fill[d] = at + 1
        target[at] = x


@kernel
def _sweep_rows(source, target, shift, bits):
    """The same of rows, shape (n, 2), by their first numbers."""
    mask = np.uint64((1 << bits) - 1)
    fill = np.zeros(1 << bits, np.int64)
    for i in range(source.shape[0]):
        fill[_digit(source[i, 0], shift, mask)] += 1
    _begin(fill)
    for i in range(source.shape[0]):
        x = source[i, 0]
        d = _digit(x, shift, mask)
        at = fill[d]
        fill[d] = at + 1
        target[at, 0] = x
        target[at, 1] = source[i, 1]


@kernel
def _lead(n, span):
    """Bits of a digit for so many numbers, and the bits below the three digits of numbers of at most `span`."""
    bits = _DIGIT if n > _LONG else _SHORT_DIGIT
    rest = 0
    while span >> np.uint64(rest + _SWEEPS * bits):
        rest += 1
    return bits, np.uint64(rest)


@kernel
def _stretch(first, n, at, rest):
    """What the leading bits do not tell apart from the number at a place: from where to where. first : the numbers."""
    prefix = first[at] >> rest
    start = at
    while start > 0 and first[start - 1] >> rest == prefix:
        start -= 1
    stop = at + 1
    while stop < n and first[stop] >> rest == prefix:
        stop += 1
    return start, stop


@kernel
def sort_numbers(numbers, spare, span):
    """Sort numbers of at most `span`; they are in `spare` then. Both are uint64 arrays, shape (n,)."""
    n = numbers.size
    bits, rest = _lead(n, span)
    width = np.uint64(bits)
    _sweep(numbers, spare, rest, bits)
    _sweep(spare, numbers, rest + width, bits)
    _sweep(numbers, spare, rest + width + width, bits)
    i = 1
    while i < n:
        x = spare[i]
        j = i
        while j > 0 and spare[j - 1] > x and i - j < _FARTHEST:
            spare[j] = spare[j - 1]
            j -= 1
        spare[j] = x
        i += 1
        if i - j <= _FARTHEST:
            continue
        start, i = _stretch(spare, n, j, rest)
        shift = _ZERO
        while shift < rest:
            _sweep(spare[start:i], numbers[start:i], shift, _SHORT_DIGIT)
            put(spare[start:], numbers[start:i])
            shift += np.uint64(_SHORT_DIGIT)


@kernel
def sort_rows(rows, spare, span):
    """Sort rows by their first numbers, of at most `span`; equal ones stay in their order. They are in `spare` then.

    rows, spare : uint64 arrays, shape (n, 2)
    """
    n = rows.shape[0]
    bits, rest = _lead(n, span)
    width = np.uint64(bits)
    _sweep_rows(rows, spare, rest, bits)
    _sweep_rows(spare, rows, rest + width, bits)
    _sweep_rows(rows, spare, rest + width + width, bits)
    i = 1
    while i < n:
        x, y = spare[i, 0], spare[i, 1]
        j = i
        while j > 0 and spare[j - 1, 0] > x and i - j < _FARTHEST:
            spare[j, 0], spare[j, 1] = spare[j - 1, 0], spare[j - 1, 1]
            j -= 1
        spare[j, 0], spare[j, 1] = x, y
        i += 1
        if i - j <= _FARTHEST:
            continue
        start, i = _stretch(spare[:, 0], n, j, rest)
        shift = _ZERO
        while shift < rest:
            _sweep_rows(spare[start:i], rows[start:i], shift, _SHORT_DIGIT)
            put_rows(spare[start:], rows[start:i])
            shift += np.uint64(_SHORT_DIGIT)


@kernel
def sort_keys(numbers, spare):
    """Sort any numbers in place. numbers, spare : uint64 arrays, shape (n,), one number at least."""
    low = high = numbers[0]
    for i in range(numbers.size):
        low = min(low, numbers[i])
        high = max(high, numbers[i])
    for i in range(numbers.size):
        numbers[i] -= low
    sort_numbers(numbers, spare, high - low)
    for i in range(numbers.size):
        numbers[i] = spare[i] + low


@kernel
def sort_doubles(raw, spare):
    """Sort finite doubles in place. raw : uint64 array, their bits, one at least. spare : another such array."""
    for i in range(raw.size):
        raw[i] = ordinal(raw[i])
    sort_keys(raw, spare)
    for i in range(raw.size):
        raw[i] = bits_of(raw[i])


@kernel
def sort_pieces(numbers, ends, spare, span):
    """Sort each piece of some numbers of at most `span`; they are in `spare` then. ends : int64 array, of pieces."""
    start = 0
    for stop in ends:
        if stop - start > 1:
            sort_numbers(numbers[start:stop], spare[start:stop], span)
        elif stop > start:
            spare[start] = numbers[start]
        start = stop


@kernel
def sort_pairs(raw, spare):
    """Sort pairs by their first number, a finite double; equal ones stay in their order, and zeros become positive.

    raw : uint64 array, shape (n, 2), the doubles' bits, one pair at least; is used up. spare : another of its shape.

    Returns
    -------
    uint64 array, shape (2, n): both columns, in the memory of `raw`
    """
    n = raw.shape[0]
    low, high = ~_ZERO, _ZERO
    for i in range(n):
        x = ordinal(raw[i, 0] if raw[i, 0] != _NEGATIVE_ZERO else _ZERO)
        raw[i, 0] = x
        low = min(low, x)
        high = max(high, x)
    for i in range(n):
        raw[i, 0] -= low
    sort_rows(raw, spare, high - low)
    out = raw.reshape(2, n)
    for i in range(n):
        out[0, i] = bits_of(spare[i, 0] + low)
        out[1, i] = spare[i, 1]
    return out
