"""Rows with tags: a tag is twice the code of a row's segment, plus its label. Sorting, scattering."""

import numpy as np

from calibrators._kernels.compiled import kernel
from calibrators._kernels.order import bits_of, ordinal

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
