"""Rows of weight 1 as integer keys: making, decoding and adding them up.

A row is its score and its tag: twice the code of its segment, plus its label. A key is the ordinal of the score within
a piece of the scores, then the bits of the tag.
"""

import numpy as np

from calibrators.core.compiled import kernel
from calibrators.core.kernels.lookup import bits_of, ordinal

_ONE = np.uint64(1)
_NEGATIVE_ZERO = _ONE << np.uint64(63)


@kernel(inline=True)
def _ordinal(raw):
    """Return the ordinal of a double, given its bits; that of 0.0 for -0.0."""
    return ordinal(raw) + np.uint64(raw == _NEGATIVE_ZERO)


@kernel
def count_pieces(raw, low, shift, counts):
    """Count doubles by piece: the leading bits of their distance from `low`. counts : int64 array, added to."""
    for i in range(raw.size):
        counts[np.int64((_ordinal(raw[i]) - low) >> shift)] += 1


@kernel
def make_keys(rows, layout, next_slot, keys):
    """Scatter rows to their pieces as keys: the score's distance within its piece, then the tag.

    rows : arrays
        raw, tag : bits of the scores, and the tags
        column : uint64: a number that stays with each row's key; empty if `keys` has no second column
    layout : uint64 numbers: the lowest ordinal, the bits of a distance within a piece, and the bits of a tag
    next_slot : int64 array: the start of each piece in `keys`; advanced
    keys : uint64 array, shape (n,) or (n, 2): filled
    """
    raw, tag, column = rows
    low, shift, bits = layout
    mask = (_ONE << shift) - _ONE
    for i in range(raw.size):
        distance = _ordinal(raw[i]) - low
        piece = np.int64(distance >> shift)
        at = next_slot[piece]
        key = ((distance & mask) << bits) | np.uint64(tag[i])
        if keys.ndim == 1:
            keys[at] = key
        else:
            keys[at, 0] = key
            keys[at, 1] = column[i]
        next_slot[piece] = at + 1


@kernel
def decode_keys(keys, ends, layout, rows):
    """Decode keys. ends : int64 array: the end of each piece. layout, rows : see `make_keys`; rows are filled."""
    raw, tag, column = rows
    low, shift, bits = layout
    mask = (_ONE << bits) - _ONE
    start = 0
    for p in range(ends.size):
        lowest = low + (np.uint64(p) << shift)
        # The compiler vectorises loops over slices, whose indices cannot be negative.
        stop = ends[p]
        piece, piece_raw, piece_tag = keys[start:stop], raw[start:stop], tag[start:stop]
        piece_keys = piece if keys.ndim == 1 else piece[:, 0]
        for i in range(piece_raw.size):
            piece_raw[i] = bits_of(lowest + (piece_keys[i] >> bits))
            piece_tag[i] = np.int32(piece_keys[i] & mask)
        if keys.ndim == 2:
            column[start:stop] = piece[:, 1]
        start = stop


@kernel
def add_up(score, tag, shift, sums):
    """Add up sorted rows with equal scores and equal tags without their lowest `shift` bits.

    sums : four arrays of the same size: score and code of each sum, which may be `score` and `tag`; weight, positives

    Returns
    -------
    number of sums
    """
    sum_score, sum_code, weight, positives = sums
    m = -1
    last, last_group = np.nan, np.int32(0)
    w = h = 0.0
    for i in range(score.size):
        s, t = score[i], tag[i]
        group = t >> shift
        # No branch on ties and labels, which cannot be predicted.
        tied = (s == last) & (group == last_group)
        m += 1 - tied
        w = 1.0 + tied * w
        h = np.float64(t & 1) + tied * h
        sum_score[m] = last = s
        sum_code[m] = t >> 1
        last_group = group
        weight[m] = w
        positives[m] = h
    return m + 1
