"""Adding up observations that share a score, or a score and a code, exactly."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from calibrators._kernels import sorting as kernels
from calibrators._kernels.sums import adds_exactly

Array = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

_NO_CODES = np.empty(0, np.int64)


class Coded(NamedTuple):
    """Entries with codes, sorted by score and code. Arrays, shape (n,): float64, int64, float64, float64."""

    score: Array
    code: Integers
    weight: Array
    positives: Array


def without_codes(score: Array, weight: Array, positives: Array) -> Coded:
    """Entries that a score alone tells apart."""
    return Coded(score, _NO_CODES, weight, positives)


def merge_classes(negatives: Array, positives: Array) -> tuple[Array, Array, Array]:
    """Scores, weights and positives of the distinct scores of two sorted arrays, one a class, of rows of weight 1."""
    columns = [np.empty(negatives.size + positives.size) for _ in range(3)]
    n = kernels.merge_classes(negatives, positives, *columns)
    score, weight, hits = _filled(columns, n)
    return score, weight, hits


def _filled(columns: list[Array], n: int) -> list[Array]:
    """The first n of each column."""
    # Where most is filled, copying would cost more than the unused end.
    return [column[:n] if 2 * n > column.size else column[:n].copy() for column in columns]


def sum_ties(score: Array, weight: Array, positives: Array) -> tuple[Array, Array, Array]:
    """Points of entries sorted by score: weight and positives of equal scores summed exactly, then rounded.

    An entry is any (score, weight, positives); entries of a score may be components of an expansion.
    """
    found = _added(without_codes(score, weight, positives), rounding=True)
    return found.score, found.weight, found.positives


def expand_ties(score: Array, weight: Array, positives: Array) -> tuple[Array, Array, Array]:
    """Shrink entries sorted by score without rounding: each tie becomes its exact sums' components.

    A tie of any length leaves as many entries as the longer of its two expansions (one for whole numbers),
    padded with zeros. Adding the result of several parts with `sum_ties` gives what all the entries together
    would have given.
    """
    found = _added(without_codes(score, weight, positives), rounding=False)
    return found.score, found.weight, found.positives


def sum_coded(entries: Coded) -> Coded:
    """Do `sum_ties` for entries that share a score and a code."""
    return _added(entries, rounding=True)


def expand_coded(entries: Coded) -> Coded:
    """Do `expand_ties` for entries that share a score and a code."""
    return _added(entries, rounding=False)


def _added(entries: Coded, *, rounding: bool) -> Coded:
    score, code, weight, positives = entries
    starts = tie_starts(score, code)
    if starts.size == score.size:
        return entries
    if adds_exactly(weight) and adds_exactly(positives):
        sums = (np.add.reduceat(column, starts) for column in (weight, positives))
        return Coded(score[starts], code[starts] if code.size else code, *sums)
    out, codes = np.empty((3, score.size)), np.empty(code.size, np.int64)
    n = kernels.add_ties((score, code, weight, positives), rounding, out, codes)
    score, weight, positives = _filled(list(out), n)
    return Coded(score, codes[:n], weight, positives)


def tie_starts(score: Array, code: Integers = _NO_CODES) -> Integers:
    """Return the starts of equal scores, and of equal codes if there are any."""
    new = np.empty(score.size, np.bool_)
    new[:1] = True
    np.not_equal(score[1:], score[:-1], out=new[1:])
    if code.size:
        new[1:] |= code[1:] != code[:-1]
    return np.flatnonzero(new)
