"""Rows of many segments: numbering the segments, and taking the rows that can be used."""

import numpy as np

from calibrators._kernels.compiled import kernel
from pipeline._kernels.rows import HIGHEST_WEIGHT, LOWEST_WEIGHT

_LARGEST = 1.7976931348623157e308
_PRIME = np.uint64(0x100000001B3)  # of the hash of Fowler, Noll and Vo
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / golden ratio: spreads neighbours over the slots
_BLOCK = 256  # texts whose look-ups are made ready together: what they need fits into the next cache
_FEW = 4096  # texts: so many are in the cache anyway


@kernel
def number(values, start, slots, shift, found, count, codes):
    """Give whole numbers codes 0, 1, ... in the order of their first appearance.

    Parameters
    ----------
    values : int64 array, shape (n,). start : of the first that has no code yet.
    slots : int32 array, shape (2**k,), at least twice the size of `found`: open-addressing table, -1 where empty.
    shift : 64 - k.
    found : int64 array; found[:count] are the values that have codes, by code; filled on.
    codes : int32 array, shape (n,), is filled from `start`.

    Returns
    -------
    how far it came: n, or less where `found` is full; the new count
    """
    mask = np.uint64(slots.size - 1)
    for i in range(start, values.size):
        value = values[i]
        slot = (np.uint64(value) * _MULTIPLIER) >> shift
        while True:
            code = slots[np.int64(slot)]
            if code < 0:
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
def number_text(starts, data, begin, slots, shift, hashes, ends, found, count, codes):
    """As `number`, of texts.

    Parameters
    ----------
    starts : int32 or int64 array, shape (n + 1,): text i is data[starts[i]:starts[i + 1]], bytes. begin : of the first
        that has no code yet.
    slots, shift : as in `number`
    hashes : uint64 array; of the texts that have codes. ends : int64 array, shape (hashes.size + 1,): text of code c is
        found[ends[c]:ends[c + 1]]. All three are filled on.
    codes : int32 array, shape (n,), is filled from `begin`.

    Returns
    -------
    how far it came: n, or less where `hashes` or `found` is full; the new count

    Notes
    -----
    With many texts nearly each look-up waits for memory four times, one after the other. So texts are taken in blocks,
    and what their look-ups will need is read beforehand, in loops whose reads do not wait for each other.
    """
    mask = np.uint64(slots.size - 1)
    block = np.empty(_BLOCK, np.uint64)
    likely = np.empty(_BLOCK, np.int32)
    seen = np.uint64(0)
    for first in range(begin, starts.size - 1, _BLOCK):
        last = min(first + _BLOCK, starts.size - 1)
        for i in range(first, last):
            h = np.uint64(starts[i + 1] - starts[i]) * _MULTIPLIER
            for j in range(starts[i], starts[i + 1]):
                h = (h ^ np.uint64(data[j])) * _PRIME
            block[i - first] = h ^ (h >> np.uint64(29))
        if count > _FEW:
            for i in range(last - first):
                likely[i] = max(slots[np.int64((block[i] * _MULTIPLIER) >> shift)], np.int32(0))
            for i in range(last - first):
                seen += hashes[likely[i]] + np.uint64(found[min(ends[likely[i]], found.size - 1)])
        for i in range(first, last):
            start, stop = np.int64(starts[i]), np.int64(starts[i + 1])
            size = stop - start
            h = block[i - first]
            slot = (h * _MULTIPLIER) >> shift
            while True:
                code = slots[np.int64(slot)]
                if code < 0:
                    at = ends[count]
                    if count == hashes.size or at + size > found.size:
                        return i, count, seen
                    for j in range(size):
                        found[at + j] = data[start + j]
                    ends[count + 1] = at + size
                    hashes[count] = h
                    slots[np.int64(slot)] = code = count
                    count += 1
                    break
                if hashes[code] == h and ends[code + 1] - ends[code] == size:
                    at = ends[code]
                    same = True
                    for j in range(size):
                        if found[at + j] != data[start + j]:
                            same = False
                            break
                    if same:
                        break
                slot = (slot + np.uint64(1)) & mask
            codes[i] = code
    # `seen` is given back so that its reads are not left out.
    return starts.size - 1, count, seen


@kernel
def hash_again(hashes, count, nothing, slots, shift):
    """Put the codes of texts that have hashes into a new table, but for the code `nothing`, which is no text's."""
    mask = np.uint64(slots.size - 1)
    for code in range(count):
        if code == nothing:
            continue
        slot = (hashes[code] * _MULTIPLIER) >> shift
        while slots[np.int64(slot)] >= 0:
            slot = (slot + np.uint64(1)) & mask
        slots[np.int64(slot)] = code


@kernel
def keep(score, label, code, out_score, out_slot, counts, n):
    """Append usable rows to out_score and out_slot; return the new length.

    score : float64 array; usable when finite. label : uint8 array; usable when 0 or 1. code : int32 array.
    out_score, out_slot : float64 and int32 arrays with room for score.size more after n. A slot is 2 * code + label.
    counts : int64 array: of each slot; added to.
    """
    for i in range(score.size):
        s = score[i] + 0.0  # -0.0 is 0.0
        z = label[i]
        good = (z <= 1) & (abs(s) <= _LARGEST)
        slot = 2 * code[i] + (z & 1)
        # Written without a branch: it belongs to the next row where this one is not usable.
        out_score[n] = s
        out_slot[n] = slot
        counts[slot] += good
        n += good
    return n


@kernel
def keep_weighted(score, label, weight, code, out_score, out_weight, out_slot, counts, n):
    """As `keep`, of rows with weights. A weight is usable from 1e-100 to 1e100."""
    for i in range(score.size):
        s = score[i] + 0.0
        w = weight[i]
        z = label[i]
        if z <= 1 and abs(s) <= _LARGEST and LOWEST_WEIGHT <= w <= HIGHEST_WEIGHT:
            slot = 2 * code[i] + z
            out_score[n] = s
            out_weight[n] = w
            out_slot[n] = slot
            counts[slot] += 1
            n += 1
    return n
