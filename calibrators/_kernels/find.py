"""Finding values among known ones: hash tables of texts and of whole numbers, which many threads may read at once."""

import numpy as np

from calibrators._kernels.compiled import kernel
from calibrators._kernels.texts import hash_text, rest, same_texts, word

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / golden ratio: spreads neighbours over the slots
_BLOCK = 256
_LONG = 16  # bytes of a text that two words hold
_NOT_YET = -2
_HALF, _LOW = np.uint64(32), np.uint64(0xFFFFFFFF)


@kernel(inline=True)
def _number_slot(value, shift):
    h = np.uint64(value) * _GOLDEN
    return np.int64(((h ^ (h >> np.uint64(32))) * _GOLDEN) >> shift)


@kernel(inline=True)
def _words_of(data, start, size):
    """Two words that tell texts of a size apart; of long ones the last is a hash, which need not."""
    if size > _LONG:
        return word(data, start), hash_text(data, start, start + size)
    if size > 8:
        return word(data, start), word(data, start + size - 8)
    if size == 8:
        return word(data, start), np.uint64(0)
    return (rest(data, start, size) if size else np.uint64(0)), np.uint64(0)


@kernel(inline=True)
def _text_slot(first, second, size, shift):
    h = (first ^ (np.uint64(size) * _GOLDEN)) * _GOLDEN
    h = ((h ^ (h >> np.uint64(32))) ^ second) * _GOLDEN
    return np.int64(((h ^ (h >> np.uint64(32))) * _GOLDEN) >> shift)


@kernel
def hash_texts(starts, data, slots, shift):
    """Fill a table of texts, all different. O(bytes).

    Parameters
    ----------
    starts : int64 array, shape (n + 1,): text i is data[starts[i]:starts[i + 1]], of bytes.
    slots : uint64 array, shape (2**k, 4), 2**k more than n, all 0: is given two words of a text, its size (32 bits) and
        its number plus one, which a look-up needs together.
    shift : 64 - k, uint64.
    """
    mask = slots.shape[0] - 1
    for i in range(starts.size - 1):
        size = starts[i + 1] - starts[i]
        first, second = _words_of(data, starts[i], size)
        slot = _text_slot(first, second, size, shift)
        while slots[slot, 2]:
            slot = (slot + 1) & mask
        slots[slot, 0], slots[slot, 1] = first, second
        slots[slot, 2] = np.uint64(size) << _HALF | np.uint64(i + 1)


@kernel
def find_texts(starts, data, known_starts, known_data, slots, shift, out):
    """The number of each text among the known ones, -1 where it is none, into out. O(bytes). See `hash_texts`."""
    mask = slots.shape[0] - 1
    firsts, seconds = np.empty(_BLOCK, np.uint64), np.empty(_BLOCK, np.uint64)
    places = np.empty(_BLOCK, np.int64)
    for block in range(0, out.size, _BLOCK):
        n = min(_BLOCK, out.size - block)
        for j in range(n):
            start = starts[block + j]
            size = starts[block + j + 1] - start
            first, second = _words_of(data, start, size)
            firsts[j], seconds[j], places[j] = first, second, _text_slot(first, second, size, shift)
        # Of most the first slot is the one, and what one reads does not wait for what another has found.
        for j in range(n):
            slot = places[j]
            head = slots[slot, 2]
            size = np.uint64(starts[block + j + 1] - starts[block + j])
            same = (
                (slots[slot, 0] == firsts[j])
                & (slots[slot, 1] == seconds[j])
                & (head >> _HALF == size)
                & (size <= np.uint64(_LONG))
            )
            found = np.int64(head & _LOW) - 1
            out[block + j] = found if same or found < 0 else _NOT_YET
        for j in range(n):
            if out[block + j] != _NOT_YET:
                continue
            start = starts[block + j]
            size = starts[block + j + 1] - start
            slot = places[j]
            while slots[slot, 2]:
                at = np.int64(slots[slot, 2] & _LOW) - 1
                if (
                    slots[slot, 0] == firsts[j]
                    and slots[slot, 1] == seconds[j]
                    and np.int64(slots[slot, 2] >> _HALF) == size
                    and (size <= _LONG or same_texts(data, start, known_data, known_starts[at], size))
                ):
                    break
                slot = (slot + 1) & mask
            out[block + j] = np.int64(slots[slot, 2] & _LOW) - 1


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
