"""Rows of a batch, taken or counted; and rows with tags, sorted and scattered.

A tag is twice the code of a row's segment, plus its label.
"""

import numpy as np

from calibrators._kernels.compiled import kernel
from calibrators._kernels.lookup import bits_of, ordinal

_BITS = 64
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_OTHER = np.uint64(0xC2B2AE3D27D4EB4F)


@kernel
def split_classes(score, label, negatives, positives, n, p):
    """Append the scores of rows to one array a class; return the new lengths.

    score : float64 array, finite. label : uint8 array of 0 and 1
    negatives, positives : float64 arrays with room for score.size more entries after n and p.
    """
    for i in range(score.size):
        s = score[i] + 0.0  # -0.0 is 0.0
        z = label[i]
        # Written without a branch: labels are unpredictable.
        negatives[n] = s
        positives[p] = s
        n += 1 - z
        p += z
    return n, p


@kernel
def count_rows(score, label, code, table, codes, left):
    """Count rows by score and code in a hash table with open addressing (Knuth 1998, 6.4, algorithm L).

    A slot is two words, side by side in memory: a score is mostly found by one look at what is far away.

    Parameters
    ----------
    score, label : see `split_classes`. code : int32 array, or empty
    table : uint64 array, shape (2 ** k + 1, 2), zeros at first: of each score its bits and one more, and its rows with
        label 0 and, 32 bits higher, with label 1. The last row begins with how many scores there are.
    codes : int32 array, shape (2 ** k,): of each score its code; or empty
    left : int64 array of the rows' size, is filled with the places of rows that are not counted: of scores that came
        when the table was half full

    Returns
    -------
    how many are left
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
        at = np.int64(((key + np.uint64(c) * _OTHER) * _GOLDEN) >> shift)
        while table[at, 0] and not (table[at, 0] == key and (code.size == 0 or codes[at] == c)):
            at = (at + 1) & (slots - 1)
        if not table[at, 0]:
            if 2 * filled >= slots:
                left[n] = i
                n += 1
                continue
            table[at, 0] = key
            if code.size:
                codes[at] = c
            filled += 1
        table[at, 1] += np.uint64(1) << (np.uint64(z) << np.uint64(5))
    table[slots, 0] = filled
    return n


_ONE = np.uint64(1)


@kernel
def count_pieces(raw, low, shift, counts):
    """Count doubles by the leading bits of their distance from `low`. counts : int64 array, added to."""
    for i in range(raw.size):
        counts[np.int64((ordinal(raw[i]) - low) >> shift)] += 1


@kernel
def scatter_keys(raw, tag, low, shift, bits, fill, keys):
    """Put rows where their piece is, as whole numbers: what the piece leaves of the score, and behind it the tag.

    fill : int64 array: where each piece begins; moved on. keys : uint64 array, shape (n,), is filled.
    """
    mask = (_ONE << shift) - _ONE
    for i in range(raw.size):
        distance = ordinal(raw[i]) - low
        piece = np.int64(distance >> shift)
        keys[fill[piece]] = ((distance & mask) << bits) | np.uint64(tag[i])
        fill[piece] += 1


@kernel
def read_keys(keys, ends, low, shift, bits, raw, tag):
    """The rows that `scatter_keys` made keys of. ends : int64 array, of each piece. raw, tag : are filled."""
    mask = (_ONE << bits) - _ONE
    start = 0
    for piece in range(ends.size):
        base = low + (np.uint64(piece) << shift)
        # Loops without a condition of their own are done with vector instructions.
        for i in range(start, ends[piece]):
            key = keys[i]
            raw[i] = bits_of(base + (key >> bits))
            tag[i] = np.int64(key & mask)
        start = ends[piece]


@kernel
def count_groups(code, shift, group_of, counts):
    """Count rows by group. code : int64 array, codes, or tags where shift is 1. counts : int64 array, added to.

    group_of : int32 array: the group of each code, -1 for those that nobody wants.
    """
    for i in range(code.size):
        g = group_of[code[i] >> shift]
        if g >= 0:
            counts[g] += 1


@kernel
def scatter_ranks(score, tag, group_of, fill, distinct, out):
    """Put rows sorted by score in the order of their groups: each its score's rank, twice, plus its label.

    fill : int64 array: where each group begins in `out`; moved on.
    distinct : float64 array with room for all: is filled with the distinct scores.
    out : uint32 array

    Returns how many distinct scores there are.
    """
    rank = -1
    last = np.nan
    for i in range(score.size):
        s = score[i]
        rank += s != last
        distinct[rank] = last = s
        g = group_of[tag[i] >> 1]
        if g >= 0:
            out[fill[g]] = np.uint32(2 * rank + (tag[i] & 1))
            fill[g] += 1
    return rank + 1


@kernel
def scatter_points(score, code, weight, positives, group_of, fill, out):
    """Put points sorted by score in the order of their groups. out : float64 array, shape (3, n), is filled."""
    for i in range(score.size):
        g = group_of[code[i]]
        if g >= 0:
            at = fill[g]
            out[0, at] = score[i]
            out[1, at] = weight[i]
            out[2, at] = positives[i]
            fill[g] = at + 1


@kernel
def points_of_ranks(rows, starts, distinct, out, ends):
    """Add up the ties of each group.

    rows : uint32 array as `scatter_ranks` fills it; those of group g are rows[starts[g]:starts[g + 1]].
    out : float64 array, shape (3, n), is filled with scores, weights and positives
    ends : int64 array, shape (groups,), is filled: where each group's points end
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
def count_weights(rows, keys, sums, cutters, left):
    """Do `count_rows` for rows with weights, which are cut into parts that add exactly.

    Parameters
    ----------
    rows : score, label and weight, see `count_rows`
    keys : uint64 array, shape (2 ** k + 1,), zeros at first: scores as in `count_rows`, and how many there are
    sums : float64 array, shape (2 ** k, 6): of each score the sums of its weights' three parts, and of positives'
    cutters : four float64 numbers: adding and subtracting one leaves a weight's leading part; last
        the largest weight
    left : as in `count_rows`; also rows whose weight has a fourth part

    Returns
    -------
    how many are left, and how many of the others have label 1
    """
    score, label, weight = rows
    slots = keys.shape[0] - 1
    shift = np.uint64(_BITS)
    while slots >> (_BITS + 1 - np.int64(shift)):
        shift -= np.uint64(1)
    filled, n, hits = np.int64(keys[slots]), 0, 0
    for i in range(score.size):
        a = (cutters[0] + weight[i]) - cutters[0]
        rest = weight[i] - a
        b = (cutters[1] + rest) - cutters[1]
        rest -= b
        c = (cutters[2] + rest) - cutters[2]
        key = np.float64(score[i] + 0.0).view(np.uint64) + np.uint64(1)  # -0.0 is 0.0
        at = np.int64((key * _GOLDEN) >> shift)
        while keys[at] and keys[at] != key:
            at = (at + 1) & (slots - 1)
        if weight[i] > cutters[3] or c != rest or (not keys[at] and 2 * filled >= slots):
            left[n] = i
            n += 1
            continue
        filled += not keys[at]
        keys[at] = key
        own = sums[at]
        own[0] += a
        own[1] += b
        own[2] += c
        if label[i]:
            own[3] += a
            own[4] += b
            own[5] += c
            hits += 1
    keys[slots] = filled
    return n, hits
