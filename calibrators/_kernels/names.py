"""Numbering values: hash tables of texts and of whole numbers, which many threads may read at once.

Texts are hashed and compared as whole numbers of eight of their bytes, which takes a step for eight bytes.
"""

import numpy as np

from calibrators._kernels.compiled import kernel

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / golden ratio: spreads neighbours over the slots
_SIZES = np.uint64(0xD6E8FEB86659FD93)  # odd, with half its bits set
_BLOCK = 256  # texts whose look-ups are made ready together: what they need fits into the next cache
_FEW = 4096  # texts: so many are in the cache anyway
_HEAD = 2  # words before a text's bytes
_LOW = np.uint64(0xFFFFFFFF)
_BYTE = np.uint64(0xFF)
_EMPTY = np.uint64(0)


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


@kernel
def hash_texts(starts, data, hashes):
    """Hash texts.

    starts : int32 or int64 array, shape (n + 1,): text i is data[starts[i]:starts[i + 1]], bytes.
    hashes : uint64 array, shape (n,): filled; leading bits are spread.
    """
    for i in range(hashes.size):
        hashes[i] = hash_text(data, np.int64(starts[i]), np.int64(starts[i + 1]))


@kernel
def number(values, start, slots, shift, found, count, adding, codes):
    """Give whole numbers codes 0, 1, ... in the order of their first appearance.

    Parameters
    ----------
    values : int64 array, shape (n,). start : of the first that has no code yet.
    slots : int32 array, shape (2**k,), at least twice the size of `found`: open-addressing table, -1 where empty.
    shift : 64 - k.
    found : int64 array; found[:count] are the values that have codes, by code; filled on.
    adding : whether others get codes; otherwise they get -1, and nothing but `codes` is changed.
    codes : int32 array, shape (n,), is filled from `start`.

    Returns
    -------
    how far it came: n, or less where `found` is full; the new count
    """
    mask = np.uint64(slots.size - 1)
    for i in range(start, values.size):
        value = values[i]
        slot = (np.uint64(value) * _GOLDEN) >> shift
        while True:
            code = slots[np.int64(slot)]
            if code < 0:
                if not adding:
                    break
                if count == found.size:
                    return i, count
                found[count] = value
                slots[np.int64(slot)] = code = count
                count += 1
                break
            if found[code] == value:
                break
            slot = (slot + np.uint64(1)) & mask
        codes[i] = code
    return values.size, count


@kernel
def number_text(starts, data, begin, slots, shift, words, places, used, adding, codes):
    """Number texts, as `number` does.

    Parameters
    ----------
    starts : int32 or int64 array, shape (n + 1,): text i is data[starts[i]:starts[i + 1]], bytes. begin : of the first
        that has no code yet.
    slots, shift : as in `number`, but uint64: of each text the lower half of its hash and, one higher, its place in
        `words` (32 bits each), 0 where empty
    words : uint64 array: of each text that has a code its hash, its size in bytes and its code (32 bits each), and its
        bytes, eight a word with zeros after the last. places : int64 array: of each code the text's place in `words`.
        Both are filled on.
    used : int64 array, shape (2,): how many codes there are, and how many words of theirs; changed
    adding : as in `number`.
    codes : int32 array, shape (n,), is filled from `begin`.

    Returns
    -------
    how far it came: n, or less where `words` or `places` is full; and what is of no use, but keeps reads whose values
    are not used

    Notes
    -----
    With many texts nearly each look-up waits for memory twice, once after the other. So texts are taken in blocks, and
    what their look-ups will need is read beforehand, in loops whose reads do not wait for each other. Slots tell nearly
    all texts apart that stand in each other's way, so that another text's words are not waited for.
    """
    mask = np.uint64(slots.size - 1)
    block = np.empty(_BLOCK, np.uint64)
    near = np.empty(_BLOCK, np.uint64)
    likely = np.empty(_BLOCK, np.int64)
    seen = np.uint64(0)
    count, end = used
    for first in range(begin, starts.size - 1, _BLOCK):
        last = min(first + _BLOCK, starts.size - 1)
        for i in range(first, last):
            block[i - first] = hash_text(data, np.int64(starts[i]), np.int64(starts[i + 1]))
        for i in range(last - first):
            near[i] = _like(slots, mask, block[i] >> shift, block[i] & _LOW)
            likely[i] = np.int64(slots[np.int64(near[i])] & _LOW) - 1
        if count > _FEW:
            for i in range(last - first):
                # A text's head and its first bytes may lie in two lines of memory.
                at = max(likely[i], 0)
                seen += words[at] + words[at + _HEAD + 1]
        for i in range(first, last):
            start = np.int64(starts[i])
            size = np.int64(starts[i + 1]) - start
            at = likely[i - first]
            if at >= 0 and _is_text(words, at, data, start, size):
                codes[i] = np.int32(words[at + 1] & _LOW)
                continue
            h = block[i - first]
            # Texts that have come since stand behind it.
            slot = near[i - first]
            while True:
                slot = _like(slots, mask, slot, h & _LOW)
                filled = slots[np.int64(slot)]
                if filled == _EMPTY:
                    if not adding:
                        codes[i] = -1
                        break
                    if count == places.size or end + _HEAD + (size + 7) // 8 + _HEAD > words.size:
                        used[0], used[1] = count, end
                        return i, seen
                    places[count] = end
                    slots[np.int64(slot)] = _slot_of(h, end)
                    codes[i] = count
                    end = _write_text(words, end, h, data, start, size, count)
                    count += 1
                    break
                at = np.int64(filled & _LOW) - 1
                if _is_text(words, at, data, start, size):
                    codes[i] = np.int32(words[at + 1] & _LOW)
                    break
                slot = (slot + np.uint64(1)) & mask
    if adding:
        used[0], used[1] = count, end
    return starts.size - 1, seen


@kernel(inline=True)
def _slot_of(h, at):
    """Return the slot of a text with a hash and a place in `words`."""
    return (h & _LOW) << np.uint64(32) | np.uint64(at + 1)


@kernel(inline=True)
def _like(slots, mask, slot, half):
    """The first slot from one on that is empty, or whose text's hash has this lower half."""
    filled = slots[np.int64(slot)]
    while filled != _EMPTY and filled >> np.uint64(32) != half:
        slot = (slot + np.uint64(1)) & mask
        filled = slots[np.int64(slot)]
    return slot


@kernel(inline=True)
def _write_text(words, at, h, data, start, size, code):
    """Append a text with its code to `words`; return what is used of them then."""
    words[at] = h
    words[at + 1] = np.uint64(size) << np.uint64(32) | np.uint64(code)
    at += _HEAD
    whole = size & ~7
    for i in range(0, whole, 8):
        words[at] = word(data, start + i)
        at += 1
    if whole < size:
        words[at] = rest(data, start + whole, size - whole)
        at += 1
    return at


@kernel(inline=True)
def _is_text(words, at, data, start, size):
    """Tell whether the words from a place are this text."""
    if np.int64(words[at + 1] >> np.uint64(32)) != size:
        return False
    at += _HEAD
    whole = size & ~7
    for i in range(0, whole, 8):
        if words[at + i // 8] != word(data, start + i):
            return False
    return whole == size or words[at + whole // 8] == rest(data, start + whole, size - whole)


@kernel
def hash_again(words, places, nothing, slots, shift):
    """Put the texts of codes into a new table, but for the code `nothing`, which is no text's. See `number_text`."""
    mask = np.uint64(slots.size - 1)
    for code in range(places.size):
        if code == nothing:
            continue
        h = words[places[code]]
        slot = h >> shift
        while slots[np.int64(slot)] != _EMPTY:
            slot = (slot + np.uint64(1)) & mask
        slots[np.int64(slot)] = _slot_of(h, places[code])


@kernel
def bytes_of_texts(words, places, starts, data):
    """The bytes of the texts of some codes, into data, a uint8 array, from starts. See `number_text`."""
    for i in range(places.size):
        at = places[i] + _HEAD
        size = starts[i + 1] - starts[i]
        for begin in range(0, size, 8):
            eight = words[at]
            at += 1
            for j in range(starts[i] + begin, starts[i] + min(begin + 8, size)):
                data[j] = np.uint8(eight & _BYTE)
                eight >>= np.uint64(8)
