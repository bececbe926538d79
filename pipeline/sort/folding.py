"""Folding of rows into runs: rows in order, and their longer ties as sums."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from calibrators.arithmetic.ordering import ascending
from calibrators.arithmetic.passes import Array
from calibrators.arithmetic.ties import Coded, expand_coded, sum_coded, tie_starts
from pipeline.sort.run_files import CodedRows, Integers, Sections, Tagged
from pipeline.sort.tagged import bits_of_tags, order_tagged, sort_tagged

SHORTEST_FOLDED_TIE = 4
"""Rows from which a tie is smaller as an entry (24 bytes) than as rows (8 or 16 bytes each)."""

_EMPTY = np.empty(0)


def together(*parts: Coded) -> Coded:
    """Entries of several, sorted by score and code."""
    score, code, weight, positives = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = order_tagged(score, code) if code.size else ascending(score)
    return Coded(score[order], code[order] if code.size else code, weight[order], positives[order])


def without_short(counted: Coded) -> tuple[Coded, Coded]:
    """Ties of rows of weight 1 that are smaller as rows, and the others."""
    short = counted.weight < SHORTEST_FOLDED_TIE
    return Coded(*_those(counted, short)), Coded(*_those(counted, ~short))


def _those(columns: Iterable[npt.NDArray[Any]], which: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
    """Some of the numbers of each column; a column may be empty for being absent."""
    return (column[which] if column.size else column for column in columns)


def _longer_ties(score: Array, code: Integers | None = None) -> npt.NDArray[np.bool_] | None:
    """Find the sorted rows in ties of at least `SHORTEST_FOLDED_TIE`; None if there are none."""
    reach = SHORTEST_FOLDED_TIE - 1
    same = score[reach:] == score[:-reach]
    if not same.any():
        return None
    if code is not None:
        same &= code[reach:] == code[:-reach]
    found = np.zeros(score.size, np.bool_)
    for i in range(SHORTEST_FOLDED_TIE):
        found[i : i + same.size] |= same
    return found


def fold(values: Array, label: int) -> tuple[Array, Array]:
    """Sorted scores of a class without their longer ties, and the ties as entries, shape (3, ties)."""
    tied = _longer_ties(values)
    if tied is None:
        return values, np.empty((3, 0))
    some = values[tied]
    starts = tie_starts(some)
    count = np.diff(starts, append=some.size).astype(np.float64)
    return values[~tied], np.stack([some[starts], count, label * count])


def fold_coded(rows: CodedRows) -> tuple[CodedRows, Coded]:
    """Weighted rows sorted by score and code, or by score, without their longer ties, and these ties' exact sums.

    Ties whose sums would take more memory than their rows stay.
    """
    width = 8 * (3 if rows.code.size else 2)
    tied = _longer_ties(rows.score, rows.code if rows.code.size else None)
    if tied is None:
        return rows, _entries_of(CodedRows.of(_EMPTY, _EMPTY))
    places = np.flatnonzero(tied)
    before = _entries_of(CodedRows(*_those(rows, places)))
    after = expand_coded(before)
    rows_of = np.diff(tie_starts(*before[:2]), append=before.score.size)
    entries_of = np.diff(tie_starts(*after[:2]), append=after.score.size)
    shorter = (width + 8) * entries_of < width * rows_of
    tied[places] = np.repeat(shorter, rows_of)
    there = np.repeat(shorter, entries_of)
    return CodedRows(*_those(rows, ~tied)), Coded(*_those(after, there))


def _entries_of(rows: CodedRows) -> Coded:
    return Coded(rows.score, rows.code, np.abs(rows.signed), np.maximum(rows.signed, 0.0))


def tagged_sections(score: Array, tag: npt.NDArray[np.signedinteger], codes: int) -> Sections:
    """Rows of weight 1 with tags of so many codes, in any order, as a run holds them."""
    if not score.size:
        return Sections()
    score, tags = sort_tagged(score, tag, bits_of_tags(codes))
    code = tags >> 1
    tied = _longer_ties(score, code)
    if tied is None or not tied.any():
        return Sections(tagged=Tagged(score, tags))
    label = (tags[tied] & 1).astype(np.float64)
    entries = sum_coded(Coded(score[tied], code[tied], np.ones(label.size), label))
    return Sections(tagged=Tagged(score[~tied], tags[~tied]), coded_entries=entries)


def coded_sections(score: Array, code: npt.NDArray[np.signedinteger], signed: Array) -> Sections:
    """Weighted rows with codes, in any order, as a run holds them."""
    order = order_tagged(score, code)
    rows, entries = fold_coded(CodedRows(score[order], code[order].astype(np.int64), signed[order]))
    return Sections(coded_rows=rows, coded_entries=entries)
