"""Hash tables that give texts and integers codes 0, 1, ...; many threads may read one at the same time.

Texts are hashed and compared in words of eight bytes.
"""

import numpy as np

from calibrators.core.compiled import kernel

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / golden ratio: spreads neighbours over the slots
_SIZES = np.uint64(0xD6E8FEB86659FD93)  # odd, with half its bits set
_BLOCK = 256  # texts whose look-ups are prefetched together; their data fits into the L2 cache
_FEW = 4096  # number of texts up to which the table is in the cache anyway
_HEAD = 2  # words before a text's bytes
_LOW = np.uint64(0xFFFFFFFF)
_BYTE = np.uint64(0xFF)
_EMPTY = np.uint64(0)


@kernel(inline=True)
def word(data, start):
    """Return eight bytes of a uint8 array from an index as a uint64, little-endian."""
    # With unsigned indices, which cannot wrap around, the compiler makes one read of the eight.
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
def _last_word(data, start, size):
    """Return the last 1 to 7 bytes of a text from an index of a uint8 array, as `word`, padded with zeros."""
    if start + size >= 8:
        # Read eight bytes that end with the text, never beyond it, and shift out the bytes before it.
        return word(data, start + size - 8) >> np.uint64(64 - 8 * size)
    last_word = np.uint64(0)
    for i in range(size):
        last_word |= np.uint64(data[start + i]) << np.uint64(8 * i)
    return last_word


@kernel(inline=True)
def hash_text(data, start, stop):
    """Return the hash of the text data[start:stop], a uint64 with well distributed leading bits. data : uint8 array."""
    size = stop - start
    h = np.uint64(size) * _SIZES
    words_end = start + (size & ~7)
    for i in range(start, words_end, 8):
        h = (h ^ word(data, i)) * _GOLDEN
        h ^= h >> np.uint64(32)
    if words_end < stop:
        h = (h ^ _last_word(data, words_end, stop - words_end)) * _GOLDEN
        h ^= h >> np.uint64(32)
    return h * _GOLDEN


@kernel
def hash_texts(starts, data, hashes):
    """Hash texts.

    starts : int32 or int64 array, shape (n + 1,): text i is data[starts[i]:starts[i + 1]], bytes.
    hashes : uint64 array, shape (n,): output of `hash_text`
    """
    for i in range(hashes.size):
        hashes[i] = hash_text(data, np.int64(starts[i]), np.int64(starts[i + 1]))


@kernel
def number(values, start, table, count, adding, codes):
    """Give integers codes 0, 1, ... in the order of their first appearance.

    Parameters
    ----------
    values : int64 array, shape (n,)
    start : index of the first value without a code
    table : tuple of
        slots : int32 array, shape (2**k,), at least twice the size of `values_by_code`: open-addressing table, -1 if
            empty
        shift : 64 - k
        values_by_code : int64 array; values_by_code[:count] are the values that have codes; new values are appended
    adding : whether new values get codes; otherwise they get -1, and only `codes` is changed
    codes : int32 array, shape (n,), filled from `start`

    Returns
    -------
    index of the first value without a code: n, or less if `values_by_code` is full; the new count
    """
    slots, shift, values_by_code = table
    mask = np.uint64(slots.size - 1)
    for i in range(start, values.size):
        value = values[i]
        slot = (np.uint64(value) * _GOLDEN) >> shift
        while True:
            code = slots[np.int64(slot)]
            if code < 0:
                if not adding:
                    break
                if count == values_by_code.size:
                    return i, count
                values_by_code[count] = value
                slots[np.int64(slot)] = code = count
                count += 1
                break
            if values_by_code[code] == value:
                break
            slot = (slot + np.uint64(1)) & mask
        codes[i] = code
    return values.size, count


@kernel
def number_text(starts, data, begin, table, adding, codes):
    """Number texts, as `number` does.

    Parameters
    ----------
    starts : int32 or int64 array, shape (n + 1,): text i is data[starts[i]:starts[i + 1]], bytes.
    begin : index of the first text without a code
    table : tuple of
        slots, shift : as in `number`, but a slot is a uint64: the lower half of a text's hash, and its offset in
            `words` plus one (32 bits each); 0 if empty
        words : uint64 array: for each text with a code its hash, its size in bytes and its code (32 bits each), and
            its bytes, eight a word, padded with zeros. New texts are appended.
        offsets : int64 array: offset in `words` of the text of each code. New texts are appended.
        used : int64 array, shape (2,): number of codes and number of words in use; updated
    adding : as in `number`
    codes : int32 array, shape (n,), filled from `begin`

    Returns
    -------
    index of the first text without a code: n, or less if `words` or `offsets` is full; and a meaningless sum, so that
    the compiler does not drop the prefetching reads

    Notes
    -----
    With many texts, nearly each look-up waits for memory twice, for the slot and then for the words. So texts are
    taken in blocks, whose slots and words are prefetched in loops of independent reads. Half a hash in the slot tells
    nearly all colliding texts apart without a read of their words.
    """
    slots, shift, words, offsets, used = table
    mask = np.uint64(slots.size - 1)
    hashes = np.empty(_BLOCK, np.uint64)
    first_slots = np.empty(_BLOCK, np.uint64)
    candidates = np.empty(_BLOCK, np.int64)
    unused = np.uint64(0)
    count, end = used
    for first in range(begin, starts.size - 1, _BLOCK):
        last = min(first + _BLOCK, starts.size - 1)
        for i in range(first, last):
            hashes[i - first] = hash_text(data, np.int64(starts[i]), np.int64(starts[i + 1]))
        for i in range(last - first):
            first_slots[i] = _probe(slots, mask, hashes[i] >> shift, hashes[i] & _LOW)
            candidates[i] = np.int64(slots[np.int64(first_slots[i])] & _LOW) - 1
        if count > _FEW:
            for i in range(last - first):
                # A text's head and its first bytes may lie in two cache lines.
                at = max(candidates[i], 0)
                unused += words[at] + words[at + _HEAD + 1]
        for i in range(first, last):
            start = np.int64(starts[i])
            size = np.int64(starts[i + 1]) - start
            at = candidates[i - first]
            if at >= 0 and _is_text(words, at, data, start, size):
                codes[i] = np.int32(words[at + 1] & _LOW)
                continue
            h = hashes[i - first]
            # Texts added since the prefetch are in later slots.
            slot = first_slots[i - first]
            while True:
                slot = _probe(slots, mask, slot, h & _LOW)
                filled = slots[np.int64(slot)]
                if filled == _EMPTY:
                    if not adding:
                        codes[i] = -1
                        break
                    if count == offsets.size or end + _HEAD + (size + 7) // 8 + _HEAD > words.size:
                        used[0], used[1] = count, end
                        return i, unused
                    offsets[count] = end
                    slots[np.int64(slot)] = (h & _LOW) << np.uint64(32) | np.uint64(end + 1)
                    codes[i] = count
                    words[end] = h
                    words[end + 1] = np.uint64(size) << np.uint64(32) | np.uint64(count)
                    end += _HEAD
                    for j in range(0, size & ~7, 8):
                        words[end] = word(data, start + j)
                        end += 1
                    if size & 7:
                        words[end] = _last_word(data, start + (size & ~7), size & 7)
                        end += 1
                    count += 1
                    break
                at = np.int64(filled & _LOW) - 1
                if _is_text(words, at, data, start, size):
                    codes[i] = np.int32(words[at + 1] & _LOW)
                    break
                slot = (slot + np.uint64(1)) & mask
    if adding:
        used[0], used[1] = count, end
    return starts.size - 1, unused


@kernel(inline=True)
def _probe(slots, mask, slot, half):
    """Return the first slot from `slot` on that is empty or whose text's hash has the lower half `half`."""
    filled = slots[np.int64(slot)]
    while filled != _EMPTY and filled >> np.uint64(32) != half:
        slot = (slot + np.uint64(1)) & mask
        filled = slots[np.int64(slot)]
    return slot


@kernel(inline=True)
def _is_text(words, at, data, start, size):
    """Tell whether the text at an offset in `words` is data[start : start + size]."""
    if np.int64(words[at + 1] >> np.uint64(32)) != size:
        return False
    at += _HEAD
    full = size & ~7
    for i in range(0, full, 8):
        if words[at + i // 8] != word(data, start + i):
            return False
    return full == size or words[at + full // 8] == _last_word(data, start + full, size - full)


@kernel
def rehash(words, offsets, nothing, slots, shift):
    """Enter all texts into new slots, except the code `nothing`, which has no text. See `number_text`."""
    mask = np.uint64(slots.size - 1)
    for code in range(offsets.size):
        if code == nothing:
            continue
        h = words[offsets[code]]
        slot = h >> shift
        while slots[np.int64(slot)] != _EMPTY:
            slot = (slot + np.uint64(1)) & mask
        slots[np.int64(slot)] = (h & _LOW) << np.uint64(32) | np.uint64(offsets[code] + 1)


@kernel
def bytes_of_texts(words, offsets, starts, data):
    """Copy the texts at some offsets in `words` into data, a uint8 array, at `starts`. See `number_text`."""
    for i in range(offsets.size):
        at = offsets[i] + _HEAD
        size = starts[i + 1] - starts[i]
        for begin in range(0, size, 8):
            bits = words[at]
            at += 1
            for j in range(starts[i] + begin, starts[i] + min(begin + 8, size)):
                data[j] = np.uint8(bits & _BYTE)
                bits >>= np.uint64(8)
