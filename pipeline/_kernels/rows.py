"""Loops over rows: splitting and counting the rows of a batch; sorting and scattering rows with tags.

A tag is twice the code of a row's segment, plus its label.
"""

import numpy as np

from calibrators._kernels.compiled import kernel
from calibrators._kernels.lookup import bits_of, ordinal

_BITS = 64
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_CODE_MULTIPLIER = np.uint64(0xC2B2AE3D27D4EB4F)


@kernel
def split_classes(score, label, negatives, positives, n, p):
    """Append the scores of each class to its array; return the new lengths.

    score : float64 array, finite
    label : uint8 array of 0 and 1
    negatives, positives : float64 arrays with room for score.size more entries after n and p
    """
    for i in range(score.size):
        s = score[i] + 0.0  # -0.0 is 0.0
        z = label[i]
        # Written without a branch, since labels are unpredictable.
        negatives[n] = s
        positives[p] = s
        n += 1 - z
        p += z
    return n, p


@kernel
def count_rows(score, label, code, table, codes, uncounted):
    """Count rows by score and code in a hash table with open addressing (Knuth 1998, 6.4, algorithm L).

    A slot is two adjacent words, so most lookups miss the processor's cache once.

    Parameters
    ----------
    score, label : see `split_classes`
    code : int32 array, or empty
    table : uint64 array, shape (2 ** k + 1, 2), initially zero. Slot: the score's bits plus 1; the number of rows with
        label 0 (lower 32 bits) and with label 1 (upper 32 bits). The last row begins with the number of scores.
    codes : int32 array, shape (2 ** k,): code of each slot; or empty
    uncounted : int64 array, shape (rows,): filled with the indices of rows that are not counted, because their score
        is new and the table is half full

    Returns
    -------
    number of rows that are not counted
    """
    slots = table.shape[0] - 1
    shift = np.uint64(_BITS)
    while slots >> (_BITS + 1 - np.int64(shift)):
        shift -= np.uint64(1)
    filled, n = np.int64(table[slots, 0]), 0
    for i in range(score.size):
        s = score[i] + 0.0  # -0.0 is 0.0
        z = label[i]
        key = np.float64(s).view(np.uint64) + np.uint64(1)
        c = code[i] if code.size else np.int32(0)
        slot = np.int64(((key + np.uint64(c) * _CODE_MULTIPLIER) * _GOLDEN) >> shift)
        while table[slot, 0] and not (table[slot, 0] == key and (code.size == 0 or codes[slot] == c)):
            slot = (slot + 1) & (slots - 1)
        if not table[slot, 0]:
            if 2 * filled >= slots:
                uncounted[n] = i
                n += 1
                continue
            table[slot, 0] = key
            if code.size:
                codes[slot] = c
            filled += 1
        table[slot, 1] += np.uint64(1) << (np.uint64(z) << np.uint64(5))
    table[slots, 0] = filled
    return n


_ONE = np.uint64(1)


@kernel
def count_pieces(raw, low, shift, counts):
    """Count doubles by piece: the leading bits of their distance from `low`. counts : int64 array, added to."""
    for i in range(raw.size):
        counts[np.int64((ordinal(raw[i]) - low) >> shift)] += 1


@kernel
def scatter_keys(raw, tag, low, shift, bits, next_slot, keys):
    """Scatter rows to their pieces as integer keys: the score's distance within its piece, then `bits` bits of tag.

    next_slot : int64 array: the start of each piece in `keys`; advanced
    keys : uint64 array, shape (n,): filled
    """
    mask = (_ONE << shift) - _ONE
    for i in range(raw.size):
        distance = ordinal(raw[i]) - low
        piece = np.int64(distance >> shift)
        keys[next_slot[piece]] = ((distance & mask) << bits) | np.uint64(tag[i])
        next_slot[piece] += 1


@kernel
def read_keys(keys, ends, low, shift, bits, raw, tag):
    """Decode the keys of `scatter_keys`. ends : int64 array: the end of each piece. raw, tag : filled."""
    mask = (_ONE << bits) - _ONE
    start = 0
    for piece in range(ends.size):
        lowest = low + (np.uint64(piece) << shift)
        # The compiler vectorises a loop without conditions.
        for i in range(start, ends[piece]):
            key = keys[i]
            raw[i] = bits_of(lowest + (key >> bits))
            tag[i] = np.int64(key & mask)
        start = ends[piece]


@kernel
def count_groups(code, shift, group_of, counts):
    """Count rows by group.

    code : int64 array: codes; or tags, with shift 1
    group_of : int32 array: the group of each code, -1 for codes to skip
    counts : int64 array, added to
    """
    for i in range(code.size):
        g = group_of[code[i] >> shift]
        if g >= 0:
            counts[g] += 1


@kernel
def scatter_ranks(score, tag, group_of, next_slot, distinct, out):
    """Scatter rows sorted by score to their groups, and return the number of distinct scores.

    next_slot : int64 array: the start of each group in `out`; advanced
    distinct : float64 array, shape (n,): filled with the distinct scores
    out : uint32 array: filled with twice the rank of each row's score, plus its label
    """
    rank = -1
    last = np.nan
    for i in range(score.size):
        s = score[i]
        rank += s != last
        distinct[rank] = last = s
        g = group_of[tag[i] >> 1]
        if g >= 0:
            out[next_slot[g]] = np.uint32(2 * rank + (tag[i] & 1))
            next_slot[g] += 1
    return rank + 1


@kernel
def scatter_points(score, code, weight, positives, group_of, next_slot, out):
    """Scatter points sorted by score to their groups. next_slot : see `scatter_ranks`. out : float64 (3, n), filled."""
    for i in range(score.size):
        g = group_of[code[i]]
        if g >= 0:
            j = next_slot[g]
            out[0, j] = score[i]
            out[1, j] = weight[i]
            out[2, j] = positives[i]
            next_slot[g] = j + 1


@kernel
def points_of_ranks(rows, starts, distinct, out, ends):
    """Merge the tied rows of each group into points.

    rows : uint32 array from `scatter_ranks`; group g has rows[starts[g]:starts[g + 1]]
    out : float64 array, shape (3, n): filled with scores, weights and positives
    ends : int64 array, shape (groups,): filled with the end of each group's points
    """
    m = -1
    for g in range(starts.size - 1):
        last = -1
        for i in range(starts[g], starts[g + 1]):
            rank = np.int64(rows[i] >> 1)
            if rank != last:
                m += 1
                out[0, m] = distinct[rank]
                out[1, m] = 0.0
                out[2, m] = 0.0
                last = rank
            out[1, m] += 1.0
            out[2, m] += rows[i] & 1
        ends[g] = m + 1


@kernel
def count_weights(rows, keys, sums, cutters, uncounted):
    """Count rows with weights by score; each weight is split into three parts whose sums are exact.

    Parameters
    ----------
    rows : score, label and weight; see `count_rows`
    keys : uint64 array, shape (2 ** k + 1,), initially zero: scores as in `count_rows`, then the number of scores
    sums : float64 array, shape (2 ** k, 6): the sums of the weights' three parts by score, over all rows and over rows
        with label 1
    cutters : four float64 numbers. The first three are added to a weight and subtracted again, which leaves its leading
        part; the last is the largest weight.
    uncounted : see `count_rows`; also rows whose weight needs a fourth part

    Returns
    -------
    number of rows that are not counted, and number of counted rows with label 1
    """
    score, label, weight = rows
    slots = keys.shape[0] - 1
    shift = np.uint64(_BITS)
    while slots >> (_BITS + 1 - np.int64(shift)):
        shift -= np.uint64(1)
    filled, n, hits = np.int64(keys[slots]), 0, 0
    for i in range(score.size):
        a = (cutters[0] + weight[i]) - cutters[0]
        remainder = weight[i] - a
        b = (cutters[1] + remainder) - cutters[1]
        remainder -= b
        c = (cutters[2] + remainder) - cutters[2]
        key = np.float64(score[i] + 0.0).view(np.uint64) + np.uint64(1)  # -0.0 is 0.0
        slot = np.int64((key * _GOLDEN) >> shift)
        while keys[slot] and keys[slot] != key:
            slot = (slot + 1) & (slots - 1)
        if weight[i] > cutters[3] or c != remainder or (not keys[slot] and 2 * filled >= slots):
            uncounted[n] = i
            n += 1
            continue
        filled += not keys[slot]
        keys[slot] = key
        slot_sums = sums[slot]
        slot_sums[0] += a
        slot_sums[1] += b
        slot_sums[2] += c
        if label[i]:
            slot_sums[3] += a
            slot_sums[4] += b
            slot_sums[5] += c
            hits += 1
    keys[slots] = filled
    return n, hits
