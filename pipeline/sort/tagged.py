"""Rows with tags in the order of their scores, and of their tags where scores are equal."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from calibrators._kernels import radix
from calibrators.arithmetic.ordering import ascending
from calibrators.arithmetic.passes import Array
from pipeline._kernels import tags as kernels

Integers = npt.NDArray[np.int64]

_FEWEST = 256
"""Rows of a piece, on average: below it, starting to sort costs more than sorting."""

_MOST = 1 << 15
"""Rows of a piece that sort in a processor's nearer memory."""


def bits_of_tags(codes: int) -> int:
    """How many bits the tags of so many codes have."""
    return max(1, (2 * codes - 1).bit_length())


def sort_tagged(score: Array, tag: npt.NDArray[np.signedinteger], bits: int) -> tuple[Array, Integers]:
    """Rows in ascending order of score and tag.

    Parameters
    ----------
    score : float64 array, shape (n,), finite, without -0.0
    tag : integers, shape (n,), each below 2 ** bits

    Returns
    -------
    score, tag

    Notes
    -----
    Rows are scattered by the leading bits of their scores to pieces in which the rest of the score and the tag are one
    64-bit whole number: these are sorted by radix, and the rows are read back from them. Nothing is gathered. Where
    that needs too many pieces, as with scores of very many magnitudes and very many segments, pairs are sorted, and
    then the tags of equal scores. O(n), but for the tags of equal scores.
    """
    n = score.size
    raw = np.ascontiguousarray(score).view(np.uint64)
    low, high = map(np.uint64, kernels.extent(raw))
    span = int(high) - int(low)
    shift = 64 - bits
    if span >> shift > n // _FEWEST:
        pairs = np.empty((n, 2), np.uint64)
        pairs[:, 0], pairs[:, 1] = raw, tag
        raw, own = radix.sort_pairs(pairs, np.empty_like(pairs))
        tags = own.view(np.int64)
        kernels.sort_tied(raw, tags)
        return raw.view(np.float64), tags
    while shift > 1 and span >> (shift - 1) <= n // _MOST:
        shift -= 1
    counts = np.zeros((span >> shift) + 1, np.int64)
    kernels.count_pieces(raw, low, np.uint64(shift), counts)
    ends = np.cumsum(counts)
    keys = np.empty(n, np.uint64)
    kernels.scatter_keys(raw, tag, low, np.uint64(shift), np.uint64(bits), ends - counts, keys)
    in_order = np.empty(n, np.uint64)
    radix.sort_pieces(keys, ends, in_order, np.uint64((1 << shift + bits) - 1))
    tags = np.empty(n, np.int64)
    kernels.read_keys(in_order, ends, low, np.uint64(shift), np.uint64(bits), out := np.empty_like(raw), tags)
    return out.view(np.float64), tags


def order_tagged(score: Array, tag: npt.NDArray[np.signedinteger]) -> Integers:
    """The places of rows in ascending order of score and tag."""
    order = ascending(np.ascontiguousarray(score))
    kernels.order_ties(order, score, tag)
    return order
