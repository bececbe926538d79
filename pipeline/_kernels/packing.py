"""Columns of doubles in few bits: blocks of whole numbers that are given as many bits as the largest needs.

A block is two words and what they say of the numbers that follow: what to count from, and the lowest bits that all
of them lack. Ascending doubles are written as steps between the whole numbers that their bits are; others as their
distance from the smallest magnitude (frame of reference), with a bit for the sign where there are two (see Lemire and
Boytsov 2015, "Decoding billions of integers per second through vectorization"). Nothing is rounded. Two million sorted
scores take 4 to 5 bytes each, weights with all their bits some 7; counts and doubles that were floats once take less.
"""

import numpy as np

from calibrators._kernels.compiled import kernel
from calibrators._kernels.order import bits_of, ordinal

_TOP = np.uint64(1) << np.uint64(63)
_ONE = np.uint64(1)
_ZERO = np.uint64(0)
_WORD = np.uint64(64)
_LAST = np.uint64(63)
_BYTE = np.uint64(0xFF)

HEADER = 2
"""Words of a block before its numbers: what to count from; and bits of a number, bits left out, whether numbers have
signs, how many there are (8, 6, 2 and 16 bits), and the place of the first in its column (32 bits)."""

PADDING = 2
"""Words behind the last that `unpack` may look at."""

LONGEST = 65535
"""Numbers in a block at most."""


@kernel
def _bits(x):
    """How many bits a whole number has."""
    n = 0
    while x >> np.uint64(8):
        x >>= np.uint64(8)
        n += 8
    while x:
        x >>= _ONE
        n += 1
    return np.uint64(n)


@kernel
def _put(numbers, n, reference, either, signs, first, words, at):
    """Write a block; return the place behind it.

    numbers : uint64 array; of numbers[:n], with signs behind the last bit. either : all their bits, without signs.
    """
    left_out = _ZERO
    if either:
        while not (either >> left_out) & _ONE:
            left_out += _ONE
    signed = np.uint64(signs)
    width = _bits(either >> left_out) + signed
    words[at] = reference
    words[at + 1] = (
        width
        | (left_out << np.uint64(8))
        | (signed << np.uint64(14))
        | (np.uint64(n) << np.uint64(16))
        | (np.uint64(first) << np.uint64(32))
    )
    at += HEADER
    word = used = _ZERO
    for i in range(n):
        x = numbers[i]
        if signs:
            x = ((x >> _ONE >> left_out) << _ONE) | (x & _ONE)
        else:
            x >>= left_out
        word |= x << used
        used += width
        if used >= _WORD:
            words[at] = word
            at += 1
            used -= _WORD
            word = x >> (width - used) if used else _ZERO
    if used:
        words[at] = word
        at += 1
    return at


@kernel
def pack_ascending(raw, stride, words, ends):
    """Write ascending doubles in blocks of `stride`.

    Parameters
    ----------
    raw : uint64 array, shape (n,): the bits of finite doubles, ascending.
    words : uint64 array with room for n + (HEADER + 1) * blocks words
    ends : int64 array, shape (blocks + 1,), is filled: where each block begins, and the end.
    """
    steps = np.empty(stride, np.uint64)
    at = 0
    ends[0] = 0
    for b in range(ends.size - 1):
        start = b * stride
        n = min(stride, raw.size - start)
        reference = before = ordinal(raw[start])
        either = _ZERO
        for i in range(n):
            number = ordinal(raw[start + i])
            steps[i] = number - before
            either |= steps[i]
            before = number
        at = _put(steps, n, reference, either, False, start, words, at)
        ends[b + 1] = at


@kernel
def pack(raw, stride, words, ends):
    """Write doubles in any order; as `pack_ascending`."""
    distances = np.empty(stride, np.uint64)
    at = 0
    ends[0] = 0
    for b in range(ends.size - 1):
        start = b * stride
        n = min(stride, raw.size - start)
        smallest = ~_TOP
        negative = _ZERO
        for i in range(start, start + n):
            smallest = min(smallest, raw[i] & ~_TOP)
            negative |= raw[i]
        signs = (negative & _TOP) != 0
        either = _ZERO
        for i in range(n):
            u = raw[start + i]
            distance = (u & ~_TOP) - smallest
            either |= distance
            distances[i] = (distance << _ONE) | (u >> _LAST) if signs else distance
        at = _put(distances, n, smallest, either, signs, start, words, at)
        ends[b + 1] = at


@kernel
def unpack_ascending(words, stop, low, high, out, column, m):
    """Read the doubles of words[:stop] from low on and below high.

    Parameters
    ----------
    words : uint64 array, shape (stop + PADDING,) or longer: blocks that `pack_ascending` wrote
    low, high : `ordinal` of the bits of either bound
    out : uint64 array, shape (room, columns): the bits of doubles; out[m:, column] is filled. There must be room for
        all of the blocks' numbers.

    Returns
    -------
    first : how many doubles of the column are below low. m : behind the last one taken
    """
    at = first = 0
    begin = m
    while at < stop:
        x = reference = words[at]
        header = words[at + 1]
        width = header & _BYTE
        left_out = (header >> np.uint64(8)) & np.uint64(63)
        n = np.int64((header >> np.uint64(16)) & np.uint64(0xFFFF))
        if m == begin:
            first = np.int64(header >> np.uint64(32))
        at += HEADER
        mask = _mask(width)
        bit = _ZERO
        for i in range(m, m + n):
            x += (_number(words, at, bit) & mask) << left_out
            bit += width
            out[i, column] = bits_of(x)
        at += np.int64((bit + _LAST) >> np.uint64(6))
        if reference >= low and x < high:
            m += n
            continue
        start, end = m, m + n
        for i in range(start, end):
            u = out[i, column]
            x = ordinal(u)
            if x >= low and x < high:
                out[m, column] = u
                m += 1
            elif m == begin:
                first += x < low
    return first, m


@kernel
def unpack(words, stop, first, out, column, m, end):
    """Read doubles from place `first` of their column on into out[m:end, column]; as `unpack_ascending`."""
    at = 0
    while at < stop and m < end:
        smallest = words[at]
        header = words[at + 1]
        width = header & _BYTE
        left_out = (header >> np.uint64(8)) & np.uint64(63)
        sign = (header >> np.uint64(14)) & _ONE
        n = np.int64((header >> np.uint64(16)) & np.uint64(0xFFFF))
        place = np.int64(header >> np.uint64(32))
        at += HEADER
        mask = _mask(width)
        skipped = min(n, max(0, first - place))
        taken = min(n - skipped, end - m)
        bit = np.uint64(skipped) * width
        for i in range(m, m + taken):
            x = _number(words, at, bit) & mask
            bit += width
            distance = (x >> sign) << left_out
            out[i, column] = (smallest + distance) | ((x & sign) << _LAST)
        m += taken
        at += np.int64((np.uint64(n) * width + _LAST) >> np.uint64(6))
    return m


@kernel(inline=True)
def _mask(width):
    return (_ONE << width) - _ONE if width < _WORD else ~_ZERO


@kernel(inline=True)
def _number(words, at, bit):
    """What begins at a bit, with bits of what follows above it."""
    i = at + np.int64(bit >> np.uint64(6))
    offset = bit & _LAST
    return (words[i] >> offset) | ((words[i + 1] << _ONE) << (_LAST - offset))
