"""Sorting of numbers by the faster of two algorithms on this processor; exact sums of ties.

Compiled code is imported on its first use, because applications sort little and should load quickly.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from calibrators.core.arrays import Array, Codes, Integers

Words = npt.NDArray[np.uint64]

_FEW = 1 << 18
"""Number of values below which numpy sorts: it takes at most 0.01 s and needs no compilation or measurement."""

_NO_CODES = np.empty(0, np.int32)
_SAMPLE = 1 << 16
_TRIALS = 3

_TOP = np.uint64(1) << np.uint64(63)


def radix_for(rows: int, width: int = 1) -> bool:
    """Tell whether to sort so many numbers, or rows of `width` numbers, by radix sort instead of numpy's sort.

    The result is the same; which one is faster depends on the processor. Radix sort takes 8 to 9 ns per score on AMD
    Zen 4 and 37 to 47 ns on Intel Emerald Rapids; numpy's sort, with AVX-512, takes 52 to 60 ns and 11.6 ns. On Zen 5
    numpy sorts numbers as fast, but takes 72 ns per row of two, whose order it applies, and radix sort 17 ns. So a
    process that sorts many of a width measures both once.
    """
    return rows >= _FEW and _radix_is_faster(width)


def _radix_is_faster(width: int) -> bool:
    # One thread measures while others wait: simultaneous sorts would distort the times.
    with _measuring:
        return _measure(width)


_measuring = threading.Lock()


@functools.cache
def _measure(width: int) -> bool:
    from calibrators.core.kernels import sorting

    sample = np.random.default_rng(0).random(_SAMPLE).view(np.uint64)
    numbers = sample if width == 1 else np.stack([sample, sample], axis=1)
    spare = np.empty_like(numbers)

    def by_radix() -> None:
        sorting.sort_numbers(numbers.copy(), spare, True)

    by_radix()  # compiles the code or loads it
    return _seconds(by_radix) < _seconds(lambda: _sort_by_numpy(numbers.copy()))


def _seconds(sort: Callable[[], None]) -> float:
    """Return the lowest processor time of this thread in a few trials."""
    times = []
    for _ in range(_TRIALS):
        start = time.thread_time()
        sort()
        times.append(time.thread_time() - start)
    return min(times)


def ordinals(values: Array) -> Words:
    """Return uint64 integers in the same order as the doubles, from their bits; -0.0 and 0.0 are equal."""
    bits = (values + 0.0).view(np.uint64)
    # The bits of negative numbers ascend as the numbers descend.
    return np.where(bits & _TOP, ~bits, bits | _TOP)


def sort_pieces(numbers: Words, ends: Integers, bits: int) -> Words:
    """Sort each piece of uint64 numbers, or of rows by their first number, stably; `numbers` is overwritten.

    numbers : shape (n,), or (n, 2) for rows
    ends : int64 array: the end of each piece
    bits : number of bits of the largest number sorted by
    """
    if radix_for(len(numbers), numbers.ndim):
        from calibrators.core.kernels import sorting

        out = np.empty_like(numbers)
        sorting.sort_pieces(numbers, ends, out, np.uint64((1 << bits) - 1))
        return out
    begins = np.append(0, ends[:-1])
    several = ends - begins > 1
    for start, stop in zip(begins[several].tolist(), ends[several].tolist(), strict=True):
        _sort_by_numpy(numbers[start:stop])
    return numbers


def _sort_by_numpy(numbers: Words) -> None:
    if numbers.ndim == 1:
        numbers.sort()
    else:
        numbers[:] = numbers.take(_by_numpy(np.ascontiguousarray(numbers[:, 0])), axis=0)


def stable_order(values: Array | Integers) -> Integers:
    """Return the stable order of numbers: `np.argsort(values, kind="stable")`, several times as fast.

    Parameters
    ----------
    values : float64 array, shape (n,), finite; or int64 array, >= 0

    Returns
    -------
    int64 array, shape (n,)
    """
    return _by_radix(values) if radix_for(values.size, 2) else _by_numpy(values)


def _by_numpy(values: npt.NDArray[Any]) -> Integers:
    order = np.argsort(values)
    in_order = values[order]
    new = in_order[1:] != in_order[:-1]
    if new.all():
        return order
    # That sort is not stable, so sort the indices within each tie.
    keys = np.zeros(order.size, np.int64)
    np.cumsum(new, out=keys[1:])
    keys = (keys << 32) | order
    keys.sort()
    return keys & 0xFFFFFFFF


def _by_radix(values: Array | Integers) -> Integers:
    from calibrators.core.kernels import sorting

    rows = np.empty((values.size, 2), np.uint64)
    doubles = values.dtype.kind == "f"
    if doubles:
        np.add(values, 0.0, out=rows.view(np.float64)[:, 0])  # -0.0 is 0.0
    else:
        rows[:, 0] = values
    rows[:, 1] = np.arange(values.size)
    sorting.sort_numbers(rows, np.empty_like(rows), doubles)
    # A copy, because a view would keep both columns in memory.
    order: Integers = rows.reshape(2, -1)[1].astype(np.int64)
    return order


class Coded(NamedTuple):
    """Entries with codes, sorted by score and code. Arrays, shape (n,), float64, int32, float64 and float64."""

    score: Array
    code: Codes
    weight: Array
    positives: Array


def first_rows(columns: list[npt.NDArray[Any]], n: int) -> list[npt.NDArray[Any]]:
    """Return the first n values of each column."""
    # A copy of more than half of an array would cost more than its unused end.
    return [column[:n] if 2 * n > column.size else column[:n].copy() for column in columns]


def sum_ties(score: Array, weight: Array, positives: Array) -> tuple[Array, Array, Array]:
    """Sum weight and positives of entries with equal scores exactly, then round; the result is points.

    Entries are sorted by score. An entry is any (score, weight, positives); several entries of one score may be
    components of an expansion.
    """
    entries = _add_ties(Coded(score, _NO_CODES, weight, positives), rounding=True)
    return entries.score, entries.weight, entries.positives


def sum_coded(entries: Coded) -> Coded:
    """Do `sum_ties` for entries that share a score and a code."""
    return _add_ties(entries, rounding=True)


def expand_coded(entries: Coded) -> Coded:
    """Sum ties of entries that share a score and a code, without rounding: a tie becomes components of its exact sums.

    A tie of any length becomes as many entries as the longer of its two expansions (one for integers), padded with
    zeros. `sum_coded` of the results of several parts equals `sum_coded` of all their entries.
    """
    return _add_ties(entries, rounding=False)


def _add_ties(entries: Coded, *, rounding: bool) -> Coded:
    score, code, weight, positives = entries
    starts = tie_starts(score, code)
    if starts.size == score.size:
        return entries
    from calibrators.core.kernels import sorting
    from calibrators.core.kernels.sums import adds_exactly

    if adds_exactly(weight) and adds_exactly(positives):
        sums = (np.add.reduceat(column, starts) for column in (weight, positives))
        return Coded(score[starts], code[starts] if code.size else code, *sums)
    out, codes = np.empty((3, score.size)), np.empty(code.size, np.int32)
    n = sorting.add_ties((score, code, weight, positives), rounding, out, codes)
    score, weight, positives = first_rows(list(out), n)
    return Coded(score, codes[:n], weight, positives)


def tie_starts(score: Array, code: Codes = _NO_CODES) -> Integers:
    """Return the first index of each tie: entries with equal scores, and with equal codes if there are codes."""
    new = np.empty(score.size, np.bool_)
    new[:1] = True
    np.not_equal(score[1:], score[:-1], out=new[1:])
    if code.size:
        new[1:] |= code[1:] != code[:-1]
    return np.flatnonzero(new)
