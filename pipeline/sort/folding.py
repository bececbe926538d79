"""Rows in order, also by their tags where scores are equal, and their longer ties as sums, as runs hold them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from calibrators.arithmetic.ordering import (
    Coded,
    ascending,
    expand_coded,
    ordinals,
    sort_pairs,
    sort_pieces,
    sum_coded,
    tie_starts,
    without_codes,
)
from calibrators.arithmetic.passes import Array, Points
from pipeline._kernels import rows as kernels
from pipeline.sort.run_files import CodedRows, Integers, Sections, SignedRows, Tagged

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
    too many pieces, as with scores of very many magnitudes and very many segments, pairs are sorted. O(n), but for the
    tags of equal scores.
    """
    n = score.size
    low, high = ordinals(np.array([score.min(), score.max()]))
    span = int(high) - int(low)
    shift = 64 - bits
    if span >> shift > n // _FEWEST:
        pairs = np.empty((n, 2))
        pairs[:, 0] = score
        pairs.view(np.int64)[:, 1] = tag
        score, out = sort_pairs(pairs)
        tags = out.view(np.int64)
        places, number = _tied(score)
        tags[places] = np.sort(number << 32 | tags[places]) & 0xFFFFFFFF
        return score, tags
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
    places, number = _tied(score[order])
    some = order[places]
    order[places] = some[ascending(number << 32 | tag[some])]
    return order


def _tied(score: Array) -> tuple[Integers, Integers]:
    """The places of sorted rows with equal scores, and a number for the score of each.

    The number and a row's tag are one whole number.
    """
    same = score[1:] == score[:-1]
    places = np.flatnonzero(np.append(same, False) | np.append(False, same))
    some = score[places]
    new = np.zeros(places.size, np.bool_)
    np.not_equal(some[1:], some[:-1], out=new[1:])
    return places, np.cumsum(new)


def recode(column: npt.NDArray[Any], table: npt.NDArray[np.int32], *, labelled: bool) -> None:
    """Replace a run's own codes by those of all runs, in place.

    column : whole numbers of 64 bits: codes, or tags where `labelled`. table : the new code of each old one
    """
    old = column.astype(np.int64)
    column[:] = (table[old >> 1].astype(np.int64) << 1) | (old & 1) if labelled else table[old]


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


def _longer_ties(score: Array, code: Integers | None = None, bits: int = 0) -> npt.NDArray[np.bool_] | None:
    """Find the sorted rows in ties of at least `SHORTEST_FOLDED_TIE`; None if there are none.

    code : equal in a tie, but for so many lowest bits
    """
    reach = SHORTEST_FOLDED_TIE - 1
    same = score[reach:] == score[:-reach]
    if code is not None:
        near = np.flatnonzero(same)
        same[near] = code[near] >> bits == code[near + reach] >> bits
    if not same.any():
        return None
    found = np.zeros(score.size, np.bool_)
    for i in range(SHORTEST_FOLDED_TIE):
        found[i : i + same.size] |= same
    return found


def _fold(values: Array, label: int) -> tuple[Array, Coded]:
    """Sorted scores of a class without their longer ties, and the ties as entries."""
    tied = _longer_ties(values)
    if tied is None:
        return values, without_codes(_EMPTY, _EMPTY, _EMPTY)
    some = values[tied]
    starts = tie_starts(some)
    count = np.diff(starts, append=some.size).astype(np.float64)
    return values[~tied], without_codes(some[starts], count, label * count)


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


def plain_sections(negatives: Array, positives: Array, pairs: Array, *entries: Coded) -> Sections:
    """Rows without segments as a run holds them.

    Parameters
    ----------
    negatives, positives : ascending scores of rows of weight 1
    pairs : scores and signed weights of weighted rows, in any order, shape (n, 2); are used up
    """
    negatives, of_negatives = _fold(negatives, label=0)
    positives, of_positives = _fold(positives, label=1)
    rows, of_rows = fold_coded(CodedRows.of(*sort_pairs(pairs)))
    score, _, *sums = expand_coded(together(of_negatives, of_positives, of_rows, *entries))
    return Sections(negatives, positives, SignedRows(rows.score, rows.signed), Points(score, *sums))


def tagged_sections(score: Array, tag: npt.NDArray[np.signedinteger], codes: int) -> Sections:
    """Rows of weight 1 with tags of so many codes, in any order, as a run holds them."""
    if not score.size:
        return Sections()
    score, tags = sort_tagged(score, tag, bits_of_tags(codes))
    tied = _longer_ties(score, tags, 1)
    if tied is None:
        return Sections(tagged=Tagged(score, tags))
    label = (tags[tied] & 1).astype(np.float64)
    entries = sum_coded(Coded(score[tied], tags[tied] >> 1, np.ones(label.size), label))
    return Sections(tagged=Tagged(score[~tied], tags[~tied]), coded_entries=entries)


def coded_sections(score: Array, code: npt.NDArray[np.signedinteger], signed: Array) -> Sections:
    """Weighted rows with codes, in any order, as a run holds them."""
    order = order_tagged(score, code)
    rows, entries = fold_coded(CodedRows(score[order], code[order].astype(np.int64), signed[order]))
    return Sections(coded_rows=rows, coded_entries=entries)
