"""Sorting scores, and points that have more than a score."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from calibrators._kernels import order as kernel
from calibrators._kernels import radix

Array = npt.NDArray[np.float64]

_FEW = 4096  # below it, packing keys is not worth while


def sort_scores(values: Array) -> None:
    """Sort finite doubles in place. O(n).

    values : float64 array, shape (n,), contiguous

    Notes
    -----
    By radix: numpy's sort is as fast with AVX2, and takes six times as long where AVX-512 stores are carried out in
    microcode (on AMD's Zen 4).
    """
    if values.size < _FEW:
        values.sort()
    else:
        radix.sort_doubles(values.view(np.uint64), np.empty(values.size, np.uint64))


def ascending(values: Array) -> npt.NDArray[np.int64]:
    """The stable order of finite doubles: `np.argsort(values, kind="stable")`, some three times faster.

    Parameters
    ----------
    values : float64 array, shape (n,), finite

    Returns
    -------
    int64 array, shape (n,)

    Notes
    -----
    A value's leading bits and its place are one 64-bit whole number, and those are sorted by radix. Values that agree
    in all the bits that there was room for are sorted by comparison. O(n log n).
    """
    if values.size < _FEW:
        return np.argsort(values, kind="stable")
    bits = int(values.size - 1).bit_length()
    keys = kernel.keys(values.view(np.uint64), bits)
    radix.sort_keys(keys, np.empty_like(keys))
    order: npt.NDArray[np.int64] = kernel.places(keys, values, bits)
    return order


def sort_entries(score: Array, pairs: Array) -> tuple[Array, Array, Array]:
    """Entries in ascending order of their scores, equal ones as they came.

    Parameters
    ----------
    score : float64 array, shape (n,), finite
    pairs : float64 array, shape (n, 2): weight and positives of each

    Returns
    -------
    score, weight, positives : float64 arrays, shape (n,)
    """
    weight, positives = kernel.gather_pairs(ascending(score), pairs)
    in_order = score.copy()
    # Sorting again is faster than looking each of them up.
    sort_scores(in_order)
    return in_order, weight, positives


def sort_pairs(pairs: Array) -> tuple[Array, Array]:
    """Pairs in ascending order of the first number, equal ones as they came. O(n).

    Parameters
    ----------
    pairs : float64 array, shape (n, 2), contiguous, the first column finite; it is used up

    Returns
    -------
    both columns : float64 arrays, shape (n,), in its memory
    """
    if not pairs.size:
        return pairs[:, 0], pairs[:, 1]
    raw = pairs.view(np.uint64)
    first, second = radix.sort_pairs(raw, np.empty_like(raw)).view(np.float64)
    return first, second
