"""Columns of doubles in few bits: blocks of whole numbers, each block with the bits that its largest number needs.

A block begins with two words: the number to count from, and the lowest bits that none of its numbers uses. Ascending
doubles are written as steps between their bit patterns as integers; others as the distance from the smallest magnitude
(frame of reference), with a sign bit if both signs occur (Lemire and Boytsov 2015, "Decoding billions of integers per
second through vectorization"). Nothing is rounded. Two million sorted scores take 4 to 5 bytes each, weights with all
their bits some 7; counts, and doubles that were floats before, take less.

For Parquet: a dictionary of a column's values, given up early where it does not pay, and codes side by side.
"""

import numpy as np
import numpy.typing as npt

from calibrators._kernels.compiled import kernel
from calibrators._kernels.lookup import bits_of, ordinal

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


def place(words: npt.NDArray[np.uint64]) -> int:
    """The place in its column of the first number of the block that begins here."""
    return int(words[1] >> np.uint64(32))


@kernel
def pack(raw, stride, ascending, words, ends):
    """Write doubles in blocks of `stride`.

    Parameters
    ----------
    raw : uint64 array, shape (n,): the bits of doubles. ascending : whether they are finite and ascend, and are written
        as steps
    words : uint64 array with room for n + (HEADER + 1) * blocks words
    ends : int64 array, shape (blocks + 1,), is filled: where each block begins, and the end.
    """
    numbers = np.empty(stride, np.uint64)
    at = 0
    ends[0] = 0
    for b in range(ends.size - 1):
        first = b * stride
        n = min(stride, raw.size - first)
        signed = either = _ZERO
        if ascending:
            reference = before = ordinal(raw[first])
            for i in range(n):
                x = ordinal(raw[first + i])
                numbers[i] = x - before
                either |= x - before
                before = x
        else:
            reference = ~_TOP
            for i in range(first, first + n):
                reference = min(reference, raw[i] & ~_TOP)
                signed |= raw[i] >> _LAST
            for i in range(n):
                u = raw[first + i]
                either |= (u & ~_TOP) - reference
                numbers[i] = (u & ~_TOP) - reference
        # The lowest bits that all lack, and how many the others are.
        left_out = width = _ZERO
        if either:
            while not (either >> left_out) & _ONE:
                left_out += _ONE
            while width < _WORD and either >> left_out >> width:
                width += _ONE
        width += signed
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
            x = numbers[i] >> left_out
            if signed:
                x = (x << _ONE) | (raw[first + i] >> _LAST)
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
        ends[b + 1] = at


@kernel
def unpack(words, stop, ascending, out):
    """Read the doubles of blocks.

    Parameters
    ----------
    words : uint64 array, shape (stop + PADDING,) or longer: blocks that `pack` wrote, up to `stop`
    ascending : as there
    out : uint64 array, shape (n,) with room for all of the blocks' numbers: is filled with the bits of doubles

    Returns
    -------
    how many there are
    """
    at = m = 0
    while at < stop:
        reference = words[at]
        header = words[at + 1]
        width = header & _BYTE
        left_out = (header >> np.uint64(8)) & np.uint64(63)
        sign = (header >> np.uint64(14)) & _ONE
        n = np.int64((header >> np.uint64(16)) & np.uint64(0xFFFF))
        at += HEADER
        mask = (_ONE << width) - _ONE if width < _WORD else ~_ZERO
        bit = _ZERO
        for i in range(m, m + n):
            # What begins at a bit, with bits of what follows above it.
            j = at + np.int64(bit >> np.uint64(6))
            offset = bit & _LAST
            x = ((words[j] >> offset) | ((words[j + 1] << _ONE) << (_LAST - offset))) & mask
            bit += width
            if ascending:
                reference += x << left_out
                out[i] = bits_of(reference)
            else:
                out[i] = (reference + ((x >> sign) << left_out)) | ((x & sign) << _LAST)
        at += np.int64((bit + _LAST) >> np.uint64(6))
        m += n
    return m


_MULTIPLIER = np.uint64(
    0x9E3779B97F4A7C15
)  # 2**64 / golden ratio: spreads neighbouring doubles over the slots
_EMPTY = -1


@kernel
def encode(bits, slots, shift, dictionary, used, limit, codes):
    """Replace values by their places in a dictionary that grows in order of appearance.

    Parameters
    ----------
    bits : uint64 array, shape (n,): the values' bits.
    slots : int32 array, shape (2**k,), at least twice `limit`: open-addressing hash table, -1 where empty.
    shift : 64 - k.
    dictionary : uint64 array, shape (limit,) or more; dictionary[:used] is filled.
    codes : unsigned integer array, shape (n,): filled.

    Returns
    -------
    int
        The new length of the dictionary, or -1 when it would pass `limit`: then codes are incomplete.
    """
    mask = np.uint64(slots.size - 1)
    for i in range(bits.size):
        value = bits[i]
        slot = (value * _MULTIPLIER) >> shift
        while True:
            code = slots[np.int64(slot)]
            if code == _EMPTY:
                if used == limit:
                    return -1
                dictionary[used] = value
                slots[np.int64(slot)] = used
                code = used
                used += 1
                break
            if dictionary[code] == value:
                break
            slot = (slot + np.uint64(1)) & mask
        codes[i] = code
    return used


@kernel
def pack_codes(codes, width, out):
    """Pack codes of `width` <= 16 bits side by side, the lowest bits first.

    codes : uint16 array, shape (n,).
    out : uint32 array, shape (ceil(n * width / 32),): filled.
    """
    held = np.uint64(0)
    count = 0
    j = 0
    for i in range(codes.size):
        held |= np.uint64(codes[i]) << np.uint64(count)
        count += width
        if count >= 32:
            out[j] = np.uint32(held & np.uint64(0xFFFFFFFF))
            held >>= np.uint64(32)
            count -= 32
            j += 1
    if count > 0:
        out[j] = np.uint32(held)
