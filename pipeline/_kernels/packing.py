"""Lossless bit packing of columns of doubles.

A column is cut into blocks of integers; each block uses the bit width of its largest integer. Ascending doubles are
stored as differences of their bit patterns (delta encoding); others as differences from the block's smallest magnitude
(frame of reference), with a sign bit if any number is negative (Lemire and Boytsov 2015, "Decoding billions of integers
per second through vectorization"). Each block begins with a header of two words. Sorted scores (two million in a run)
take 4 to 5 bytes each; weights with all 53 significant bits, about 7; counts and doubles converted from floats, less.
"""

import numpy as np

from calibrators.core.compiled import kernel
from calibrators.core.kernels.lookup import bits_of, ordinal

_TOP = np.uint64(1) << np.uint64(63)
_ONE = np.uint64(1)
_ZERO = np.uint64(0)
_WORD = np.uint64(64)
_LAST = np.uint64(63)
_BYTE = np.uint64(0xFF)

HEADER = 2
"""Words of a block's header. The first is the reference. The second holds the bit width, the number of trailing zero
bits left out, whether numbers have sign bits, the count of numbers (8, 6, 2 and 16 bits), and the position of the first
number in its column (32 bits)."""

PADDING = 2
"""Words beyond the last block that `unpack` may read."""


@kernel
def pack(raw, stride, ascending, words, ends):
    """Pack doubles into blocks of `stride` numbers.

    Parameters
    ----------
    raw : uint64 array, shape (n,): bit patterns of doubles
    ascending : whether the doubles are finite and ascending; they are then delta encoded
    words : uint64 array for the result, with room for n + (HEADER + 1) * blocks words
    ends : int64 array, shape (blocks + 1,): filled with the start of each block in `words`, and the end
    """
    numbers = np.empty(stride, np.uint64)
    w = 0
    ends[0] = 0
    for b in range(ends.size - 1):
        first = b * stride
        n = min(stride, raw.size - first)
        signed = union = _ZERO
        if ascending:
            reference = previous = ordinal(raw[first])
            for i in range(n):
                x = ordinal(raw[first + i])
                numbers[i] = x - previous
                union |= x - previous
                previous = x
        else:
            reference = ~_TOP
            for i in range(first, first + n):
                reference = min(reference, raw[i] & ~_TOP)
                signed |= raw[i] >> _LAST
            for i in range(n):
                u = raw[first + i]
                union |= (u & ~_TOP) - reference
                numbers[i] = (u & ~_TOP) - reference
        # Count the trailing bits that are zero in all numbers, and the bits above them.
        left_out = width = _ZERO
        if union:
            while not (union >> left_out) & _ONE:
                left_out += _ONE
            while width < _WORD and union >> left_out >> width:
                width += _ONE
        width += signed
        words[w] = reference
        words[w + 1] = (
            width
            | (left_out << np.uint64(8))
            | (signed << np.uint64(14))
            | (np.uint64(n) << np.uint64(16))
            | (np.uint64(first) << np.uint64(32))
        )
        w += HEADER
        word = used = _ZERO
        for i in range(n):
            x = numbers[i] >> left_out
            if signed:
                x = (x << _ONE) | (raw[first + i] >> _LAST)
            word |= x << used
            used += width
            if used >= _WORD:
                words[w] = word
                w += 1
                used -= _WORD
                word = x >> (width - used) if used else _ZERO
        if used:
            words[w] = word
            w += 1
        ends[b + 1] = w


@kernel
def unpack(words, stop, ascending, out):
    """Unpack blocks of doubles and return how many there are.

    Parameters
    ----------
    words : uint64 array, shape (stop + PADDING,) or longer: blocks written by `pack`, up to `stop`
    ascending : see `pack`
    out : uint64 array with room for all numbers: filled with bit patterns of doubles
    """
    w = m = 0
    while w < stop:
        reference = words[w]
        header = words[w + 1]
        width = header & _BYTE
        left_out = (header >> np.uint64(8)) & np.uint64(63)
        sign = (header >> np.uint64(14)) & _ONE
        n = np.int64((header >> np.uint64(16)) & np.uint64(0xFFFF))
        w += HEADER
        mask = (_ONE << width) - _ONE if width < _WORD else ~_ZERO
        # The compiler needs no checks of indices that cannot be negative.
        block, target, bit = words[w:], out[m : m + n], _ZERO
        for i in range(target.size):
            # Read the word that begins at this bit; the mask removes the bits of later numbers.
            j = bit >> np.uint64(6)
            offset = bit & _LAST
            x = ((block[j] >> offset) | ((block[j + _ONE] << _ONE) << (_LAST - offset))) & mask
            bit += width
            if ascending:
                reference += x << left_out
                target[i] = bits_of(reference)
            else:
                target[i] = (reference + ((x >> sign) << left_out)) | ((x & sign) << _LAST)
        w += np.int64((bit + _LAST) >> np.uint64(6))
        m += n
    return m


@kernel
def pack_tags(tag, stride, words, ends):
    """Pack int32 numbers >= 0 into blocks of `stride`: a word with bit width (8 bits) and count, then the numbers.

    words, ends : see `pack`
    """
    w = 0
    ends[0] = 0
    for b in range(ends.size - 1):
        # The compiler vectorises loops over a slice, whose indices cannot be negative.
        block = tag[b * stride : min(b * stride + stride, tag.size)]
        n = block.size
        union = np.int32(0)
        for i in range(n):
            union |= block[i]
        width = 0
        while union >> width:
            width += 1
        words[w] = np.uint64(width | n << 8)
        w += 1
        i = 0
        if width == 1:
            # Labels of rows without segments: a word at a time.
            for j in range(n // 64):
                labels = block[64 * j : 64 * j + 64]
                word = _ZERO
                for k in range(64):
                    word |= np.uint64(labels[k]) << np.uint64(k)
                words[w] = word
                w += 1
            i = n - n % 64
        word, used = _ZERO, 0
        while i < n and width:
            x = np.uint64(block[i])
            word |= x << np.uint64(used)
            used += width
            if used >= 64:
                words[w] = word
                w += 1
                used -= 64
                word = x >> np.uint64(width - used) if used else _ZERO
            i += 1
        if used:
            words[w] = word
            w += 1
        ends[b + 1] = w


@kernel
def unpack_tags(words, stop, out):
    """Unpack blocks of `pack_tags` and return how many numbers there are. words, stop, out : see `unpack`; int32."""
    w = m = 0
    while w < stop:
        width, n = np.int64(words[w] & _BYTE), np.int64(words[w] >> np.uint64(8))
        w += 1
        mask = (_ONE << np.uint64(width)) - _ONE
        start = 0
        if width == 1:
            while start + 64 <= n:
                word = words[w + start // 64]
                for k in range(64):
                    out[m + start + k] = np.int32((word >> np.uint64(k)) & _ONE)
                start += 64
        block, target, bit = words[w:], out[m : m + n], np.uint64(start * width)
        for i in range(start, target.size):
            j, offset = bit >> np.uint64(6), bit & _LAST
            x = (block[j] >> offset) | ((block[j + _ONE] << _ONE) << (_LAST - offset))
            bit += np.uint64(width)
            target[i] = np.int32(x & mask)
        w += (n * width + 63) // 64
        m += n
    return m
