"""Sorting points that have more than a score."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from calibrators._kernels import order as kernel

Array = npt.NDArray[np.float64]

_FEW = 4096  # below it, packing keys is not worth while


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
    A value's leading bits and its place are one 64-bit whole number, and numpy sorts those with vector instructions.
    Values that agree in all the bits that there was room for are sorted by comparison. O(n log n).
    """
    if values.size < _FEW:
        return np.argsort(values, kind="stable")
    bits = int(values.size - 1).bit_length()
    keys = kernel.keys(values.view(np.uint64), bits)
    keys.sort()
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
    # Sorting again is faster than looking each of them up.
    return np.sort(score), weight, positives


def sort_pairs(pairs: Array) -> tuple[Array, Array]:
    """Pairs in ascending order of the first number, equal ones as they came.

    Parameters
    ----------
    pairs : float64 array, shape (n, 2), the first column finite

    Returns
    -------
    both columns : float64 arrays, shape (n,)
    """
    both: tuple[Array, Array] = kernel.gather_pairs(ascending(pairs[:, 0]), pairs)
    return both
