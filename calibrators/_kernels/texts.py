"""Texts as whole numbers of eight of their bytes: hashing and comparing them takes a step for eight bytes."""

import numpy as np

from calibrators._kernels.compiled import kernel

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / golden ratio: spreads neighbours over the slots
_SIZES = np.uint64(0xD6E8FEB86659FD93)  # odd, with half its bits set


@kernel(inline=True)
def word(data, start):
    """Eight bytes of a uint8 array from a place, the first one lowest."""
    # Places without a sign need no look at it, so that the compiler makes one read of the eight.
    i = np.uintp(start)
    return (
        np.uint64(data[i])
        | np.uint64(data[i + np.uintp(1)]) << np.uint64(8)
        | np.uint64(data[i + np.uintp(2)]) << np.uint64(16)
        | np.uint64(data[i + np.uintp(3)]) << np.uint64(24)
        | np.uint64(data[i + np.uintp(4)]) << np.uint64(32)
        | np.uint64(data[i + np.uintp(5)]) << np.uint64(40)
        | np.uint64(data[i + np.uintp(6)]) << np.uint64(48)
        | np.uint64(data[i + np.uintp(7)]) << np.uint64(56)
    )


@kernel(inline=True)
def rest(data, start, size):
    """The last bytes of a text, 1 to 7, from a place of a uint8 array, as `word` with zeros after them."""
    if start + size >= 8:
        # What lies before is read too, and pushed out: nothing beyond the text is.
        return word(data, start + size - 8) >> np.uint64(64 - 8 * size)
    found = np.uint64(0)
    for i in range(size):
        found |= np.uint64(data[start + i]) << np.uint64(8 * i)
    return found


@kernel(inline=True)
def hash_text(data, start, stop):
    """A text's hash, uint64, whose leading bits are spread. data : uint8 array. start, stop : int64, of the text."""
    size = stop - start
    h = np.uint64(size) * _SIZES
    whole = start + (size & ~7)
    for i in range(start, whole, 8):
        h = (h ^ word(data, i)) * _GOLDEN
        h ^= h >> np.uint64(32)
    if whole < stop:
        h = (h ^ rest(data, whole, stop - whole)) * _GOLDEN
        h ^= h >> np.uint64(32)
    return h * _GOLDEN


@kernel(inline=True)
def same_texts(data, start, known, at, size):
    """Whether two texts of so many bytes are the same: data from start, known from at, both uint8 arrays."""
    whole = size & ~7
    for i in range(0, whole, 8):
        if word(data, start + i) != word(known, at + i):
            return False
    left = size - whole
    return left == 0 or rest(data, start + whole, left) == rest(known, at + whole, left)
