"""Rows with tags in the order of their scores, and of their tags where scores are equal."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from calibrators.arithmetic.ordering import ascending, ordinals, sort_pieces
from calibrators.arithmetic.passes import Array
from calibrators.arithmetic.ties import tie_starts
from pipeline._kernels import tags as kernels

Integers = npt.NDArray[np.int64]

_FEWEST = 256
"""Rows of a piece, on average: below it, starting to sort costs more than sorting."""

_MOST = 1 << 15
"""Rows of a piece that sort in a processor's nearer memory."""


def bits_of_tags(codes: int) -> int:
    """Return the number of bits of the tags of so many codes."""
    return max(1, (2 * codes - 1).bit_length())


def sort_tagged(score: Array, tag: npt.NDArray[np.signedinteger], bits: int) -> tuple[Array, Integers]:
    """Rows in ascending order of score and tag.

    Parameters
    ----------
    score : float64 array, shape (n,), n >= 1, finite, without -0.0
    tag : integers, shape (n,), each below 2 ** bits

    Returns
    -------
    score, tag

    Notes
    -----
    Rows are scattered by the leading bits of their scores to pieces in which the rest of the score and the tag are one
    64-bit whole number: these are sorted, and the rows are read back from them. Nothing is gathered. Where that needs
    too many pieces, as with scores of very many magnitudes and very many segments, places are sorted. O(n), but for the
    tags of equal scores.
    """
    n = score.size
    low, high = ordinals(np.array([score.min(), score.max()]))
    span = int(high) - int(low)
    shift = 64 - bits
    if span >> shift > n // _FEWEST:
        order = order_tagged(score, tag)
        return score[order], tag[order].astype(np.int64)
    while shift > 1 and span >> (shift - 1) <= n // _MOST:
        shift -= 1
    raw = np.ascontiguousarray(score).view(np.uint64)
    counts = np.zeros((span >> shift) + 1, np.int64)
    kernels.count_pieces(raw, low, np.uint64(shift), counts)
    ends = np.cumsum(counts)
    keys = np.empty(n, np.uint64)
    kernels.scatter_keys(raw, tag, low, np.uint64(shift), np.uint64(bits), ends - counts, keys)
    keys = sort_pieces(keys, ends, shift + bits)
    tags = np.empty(n, np.int64)
    kernels.read_keys(keys, ends, low, np.uint64(shift), np.uint64(bits), out := np.empty_like(raw), tags)
    return out.view(np.float64), tags


def order_tagged(score: Array, tag: npt.NDArray[np.signedinteger]) -> Integers:
    """The places of rows in ascending order of score and tag; equal ones in their order. tag : below 2 ** 32."""
    order = ascending(np.ascontiguousarray(score))
    starts = tie_starts(score[order])
    sizes = np.diff(starts, append=score.size)
    tied = np.repeat(sizes > 1, sizes)
    if not tied.any():
        return order
    # Of rows with equal scores a number for the score, and the tag, are one whole number.
    some = order[tied]
    number = np.repeat(np.arange(starts.size), sizes)[tied]
    order[tied] = some[ascending(number << 32 | tag[some])]
    return order


def recode(column: npt.NDArray[Any], table: npt.NDArray[np.int32], *, labelled: bool) -> None:
    """Replace a run's own codes by those of all runs, in place.

    column : whole numbers of 64 bits: codes, or tags where `labelled`. table : the new code of each old one
    """
    old = column.astype(np.int64)
    column[:] = (table[old >> 1].astype(np.int64) << 1) | (old & 1) if labelled else table[old]
