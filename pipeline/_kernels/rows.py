"""Loops over rows: counting the rows of a batch; scattering rows with tags to segments.

A tag is twice the code of a row's segment, plus its label.
"""

import numpy as np

from calibrators.core.compiled import kernel

_BITS = 64
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_CODE_MULTIPLIER = np.uint64(0xC2B2AE3D27D4EB4F)


@kernel
def count_rows(score, label, code, table, codes, uncounted):
    """Count rows by score and code in a hash table with open addressing (Knuth 1998, 6.4, algorithm L).

    A slot is two adjacent words, so most lookups miss the processor's cache once.

    Parameters
    ----------
    score : float64 array, finite. label : uint8 array of 0 and 1
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
    # The compiler needs no checks of indices that cannot be negative.
    last = np.uint64(slots - 1)
    filled, n = np.int64(table[slots, 0]), 0
    for i in range(score.size):
        s = score[i] + 0.0  # -0.0 is 0.0
        key = hashed = np.float64(s).view(np.uint64) + np.uint64(1)
        if code.size:
            hashed += np.uint64(code[i]) * _CODE_MULTIPLIER
        slot = (hashed * _GOLDEN) >> shift
        while table[slot, 0] != key or (code.size and codes[slot] != code[i]):
            if table[slot, 0]:
                slot = (slot + np.uint64(1)) & last
                continue
            if 2 * filled >= slots:
                break
            table[slot, 0] = key
            if code.size:
                codes[slot] = code[i]
            filled += 1
        if table[slot, 0]:
            table[slot, 1] += np.uint64(1) << (np.uint64(label[i]) << np.uint64(5))
        else:
            uncounted[n] = i
            n += 1
    table[slots, 0] = filled
    return n


@kernel
def count_groups(tag, group_of, counts):
    """Count rows by group.

    group_of : int32 array: the group of each code, -1 for codes to skip
    counts : int64 array, added to
    """
    for i in range(tag.size):
        g = group_of[tag[i] >> 1]
        if g >= 0:
            counts[g] += 1


@kernel
def scatter_ranks(score, tag, group_of, next_slot, out):
    """Scatter rows sorted by score to their groups.

    next_slot : int64 array: the start of each group in `out`; advanced
    out : uint32 array: filled with twice the rank of each row's score, plus its label
    """
    rank = -1
    last = np.nan
    for i in range(score.size):
        s = score[i]
        rank += s != last
        last = s
        g = group_of[tag[i] >> 1]
        if g >= 0:
            out[next_slot[g]] = np.uint32(2 * rank + (tag[i] & 1))
            next_slot[g] += 1


@kernel
def scatter_points(score, group, weight, positives, next_slot, out):
    """Scatter points sorted by score to their groups, -1 for points to skip.

    next_slot : see `scatter_ranks`. out : float64 array, shape (3, n), filled
    """
    for i in range(score.size):
        g = group[i]
        if g >= 0:
            j = next_slot[g]
            out[0, j] = score[i]
            out[1, j] = weight[i]
            out[2, j] = positives[i]
            next_slot[g] = j + 1


@kernel
def scatter_items(values, starts, slots, out):
    """Copy a column of items, group after group, to each group's slots in another column.

    starts : int64 array, shape (groups + 1,): first item of each group, and the end
    slots : int64 array, shape (groups,): first slot of each group in `out`
    """
    for g in range(slots.size):
        shift = slots[g] - starts[g]
        for i in range(starts[g], starts[g + 1]):
            out[i + shift] = values[i]


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
