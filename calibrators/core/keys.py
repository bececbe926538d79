"""Rows sorted as integer keys.

A row is its score and its *tag*: twice the code of its segment, plus its label. Rows without segments have the code 0.
A row of weight 1 is one 64-bit integer, the ordinal of its score, then its tag; rows with equal scores, and of those
the rows of a segment, are neighbours once these keys are sorted.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from calibrators.core import sorting
from calibrators.core.arrays import Array, Codes
from calibrators.core.kernels import keys as kernels
from calibrators.core.sorting import Coded, ordinals, sort_pieces, stable_order

Tags = Codes

_FEWEST = 32
"""Fewest rows of a piece, on average. Scores of both signs leave most pieces empty, whose counts cost little."""

_MOST = 1 << 15
"""Rows of a piece that sort in a processor's nearer memory."""

_NO_COLUMN = np.empty(0, np.uint64)

_BY_CODE, _BY_SCORE = np.int32(1), np.int32(31)
"""Low bits of a tag that the rows of one sum need not share."""


def sort_rows(score: Array, tag: Tags, column: npt.NDArray[Any] | None = None) -> None:
    """Sort rows by score and tag, in place and stably.

    score : float64 array, shape (n,), contiguous, finite; -0.0 may become 0.0
    tag : int32 array, shape (n,), contiguous, >= 0
    column : further column of the rows, of 8-byte numbers, contiguous

    Notes
    -----
    Rows are scattered by the leading bits of their scores to pieces. Within a piece the rest of the score and the tag
    are one key; keys are sorted, and the rows are decoded from them, without a gather. If that needs too many pieces
    (scores of very many magnitudes and very many segments), an order of the rows is applied. O(n), except for the tags
    of equal scores.
    """
    n = score.size
    if n < 2:
        return
    bits = max(1, int(tag.max()).bit_length())
    low, high = ordinals(np.array([score.min(), score.max()]))
    span = int(high) - int(low)
    shift = 64 - bits
    if span >> shift > n // _FEWEST:
        order = stable_order(tag.astype(np.int64))
        order = order[stable_order(score[order])]
        for values in (score, tag) if column is None else (score, tag, column):
            values[:] = values[order]
        return
    while shift > 1 and span >> (shift - 1) <= n // _MOST:
        shift -= 1
    raw, layout = score.view(np.uint64), (low, np.uint64(shift), np.uint64(bits))
    counts = np.zeros((span >> shift) + 1, np.int64)
    kernels.count_pieces(raw, *layout[:2], counts)
    ends = np.cumsum(counts)
    keys = np.empty(n if column is None else (n, 2), np.uint64)
    rows = raw, tag, _NO_COLUMN if column is None else column.view(np.uint64)
    kernels.make_keys(rows, layout, ends - counts, keys)
    keys = sort_pieces(keys, ends, shift + bits)
    kernels.decode_keys(keys, ends, layout, rows)


def add_rows(score: Array, tag: Tags, *, by_code: bool) -> Coded:
    """Sort rows, and add up those with equal scores, and equal codes if asked to.

    score, tag : see `sort_rows`; overwritten
    by_code : otherwise the codes of the sums mean nothing
    """
    sort_rows(score, tag)
    return _added(score, tag, score, tag, by_code)


def add_sorted(score: Array, tag: Tags, *, by_code: bool) -> Coded:
    """Add up sorted rows, which stay; see `add_rows`."""
    return _added(score, tag, np.empty_like(score), np.empty_like(tag), by_code)


def _added(score: Array, tag: Tags, sum_score: Array, sum_code: Tags, by_code: bool) -> Coded:
    sums = sum_score, sum_code, np.empty(score.size), np.empty(score.size)
    n = kernels.add_up(score, tag, _BY_CODE if by_code else _BY_SCORE, sums)
    return Coded(*sorting.first_rows(list(sums), n))
