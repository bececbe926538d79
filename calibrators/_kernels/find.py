"""Finding values among known ones: hash tables of texts and of whole numbers, which many threads may read at once."""

import numpy as np

from calibrators._kernels.compiled import kernel
from calibrators._kernels.texts import hash_text, same_texts

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / golden ratio: spreads neighbours over the slots
_BLOCK = 256
_FEW = 4096  # known texts: so many are in the cache anyway


@kernel(inline=True)
def _number_slot(value, shift):
    h = np.uint64(value) * _GOLDEN
    return np.int64(((h ^ (h >> np.uint64(32))) * _GOLDEN) >> shift)


@kernel
def hash_texts(starts, data, slots, shift):
    """Fill a table of texts, all different. O(bytes).

    Parameters
    ----------
    starts : int64 array, shape (n + 1,): text i is data[starts[i]:starts[i + 1]], of bytes.
    slots : int32 array, shape (2**k,), more than n, all -1: is given the number of the text of each slot.
    shift : 64 - k, uint64.
    """
    mask = slots.size - 1
    for i in range(starts.size - 1):
        slot = np.int64(hash_text(data, starts[i], starts[i + 1]) >> shift)
        while slots[slot] >= 0:
            slot = (slot + 1) & mask
        slots[slot] = i


@kernel
def find_texts(starts, data, known_starts, known_data, slots, shift, out):
    """The number of each text among the known ones, -1 where it is none, into out. O(bytes). See `hash_texts`.

    What it returns is of no use, but keeps reads whose values are not used.
    """
    mask = slots.size - 1
    seen = np.uint64(0)
    first = np.empty(_BLOCK, np.int64)
    for block in range(0, out.size, _BLOCK):
        n = min(_BLOCK, out.size - block)
        # In steps, none of which waits for the one before: what they read lies anywhere.
        for j in range(n):
            first[j] = np.int64(hash_text(data, starts[block + j], starts[block + j + 1]) >> shift)
        for j in range(n):
            out[block + j] = slots[first[j]]
        if known_starts.size > _FEW:
            for j in range(n):
                seen += np.uint64(known_data[min(known_starts[max(out[block + j], 0)], known_data.size - 1)])
        for j in range(n):
            found = out[block + j]
            if found < 0:
                continue
            begin = starts[block + j]
            size = starts[block + j + 1] - begin
            slot = first[j]
            while found >= 0:
                at = known_starts[found]
                if known_starts[found + 1] - at == size and same_texts(data, begin, known_data, at, size):
                    break
                slot = (slot + 1) & mask
                found = slots[slot]
            out[block + j] = found
    return seen


@kernel
def hash_numbers(known, slots, shift):
    """Fill a table of whole numbers, all different. known : int64 array; the others as in `hash_texts`. O(n)."""
    mask = slots.size - 1
    for i in range(known.size):
        slot = _number_slot(known[i], shift)
        while slots[slot] >= 0:
            slot = (slot + 1) & mask
        slots[slot] = i


@kernel
def find_numbers(values, known, slots, shift, out):
    """The number of each value among the known ones, -1 where it is none, into out. O(n). values : int64 array."""
    mask = slots.size - 1
    for i in range(values.size):
        slot = _number_slot(values[i], shift)
        found = slots[slot]
        while found >= 0 and known[found] != values[i]:
            slot = (slot + 1) & mask
            found = slots[slot]
        out[i] = found
