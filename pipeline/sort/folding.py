"""Sorting of rows by score and tag, and folding of longer ties into sums: the sections of a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from calibrators.arithmetic.ordering import (
    Coded,
    expand_coded,
    ordinals,
    sort_pairs,
    sort_pieces,
    stable_order,
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
    """Return the number of bits of the tags of `codes` codes."""
    return max(1, (2 * codes - 1).bit_length())


def sort_tagged(score: Array, tag: npt.NDArray[np.signedinteger], bits: int) -> tuple[Array, Integers]:
    """Sort rows by score and tag.

    Parameters
    ----------
    score : float64 array, shape (n,), n >= 1, finite, without -0.0
    tag : integers, shape (n,), each below 2 ** bits

    Returns
    -------
    score, tag

    Notes
    -----
    Rows are scattered by the leading bits of their scores to pieces. Within a piece the rest of the score and the tag
    are one 64-bit integer; these keys are sorted, and the rows are decoded from them, without a gather. If that needs
    too many pieces (scores of very many magnitudes and very many segments), pairs are sorted instead. O(n), except for
    the tags of equal scores.
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
        tied, number = _tied(score)
        tags[tied] = np.sort(number << 32 | tags[tied]) & 0xFFFFFFFF
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
    """Return the stable order of rows by score and tag. tag : integers below 2 ** 32."""
    order = stable_order(np.ascontiguousarray(score))
    tied, number = _tied(score[order])
    rows = order[tied]
    order[tied] = rows[stable_order(number << 32 | tag[rows])]
    return order


def _tied(score: Array) -> tuple[Integers, Integers]:
    """Return the positions of sorted rows in ties, and the number of each one's tie.

    Tie number and tag fit into one 64-bit integer.
    """
    same = score[1:] == score[:-1]
    positions = np.flatnonzero(np.append(same, False) | np.append(False, same))
    scores = score[positions]
    new = np.zeros(positions.size, np.bool_)
    np.not_equal(scores[1:], scores[:-1], out=new[1:])
    return positions, np.cumsum(new)


def recode(column: npt.NDArray[Any], table: npt.NDArray[np.int32], *, labelled: bool) -> None:
    """Replace a run's codes by those of all runs, in place.

    column : 64-bit integers: codes, or tags if `labelled`. table : new code by old code
    """
    old = column.astype(np.int64)
    column[:] = (table[old >> 1].astype(np.int64) << 1) | (old & 1) if labelled else table[old]


SHORTEST_FOLDED_TIE = 4
"""Rows from which a tie is smaller as an entry (24 bytes) than as rows (8 or 16 bytes each)."""

_EMPTY = np.empty(0)


def merge_entries(*parts: Coded) -> Coded:
    """Merge sets of entries, sorted by score and code."""
    score, code, weight, positives = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = order_tagged(score, code) if code.size else stable_order(score)
    return Coded(score[order], code[order] if code.size else code, weight[order], positives[order])


def split_short_ties(counted: Coded) -> tuple[Coded, Coded]:
    """Split ties of rows of weight 1 into those that are smaller as rows, and the others."""
    short = counted.weight < SHORTEST_FOLDED_TIE
    return Coded(*_select(counted, short)), Coded(*_select(counted, ~short))


def _select(columns: Iterable[npt.NDArray[Any]], index: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
    """Index each column; an empty column is an absent one and stays."""
    return (column[index] if column.size else column for column in columns)


def _long_ties(score: Array, code: Integers | None = None, bits: int = 0) -> npt.NDArray[np.bool_] | None:
    """Find the sorted rows in ties of at least `SHORTEST_FOLDED_TIE`; None if there are none.

    code : equal in a tie, except for the lowest `bits` bits
    """
    reach = SHORTEST_FOLDED_TIE - 1
    same = score[reach:] == score[:-reach]
    if code is not None:
        candidates = np.flatnonzero(same)
        same[candidates] = code[candidates] >> bits == code[candidates + reach] >> bits
    if not same.any():
        return None
    tied = np.zeros(score.size, np.bool_)
    for i in range(SHORTEST_FOLDED_TIE):
        tied[i : i + same.size] |= same
    return tied


def _fold_class(values: Array, label: int) -> tuple[Array, Coded]:
    """Split sorted scores of a class into those outside longer ties, and entries for the longer ties."""
    tied = _long_ties(values)
    if tied is None:
        return values, without_codes(_EMPTY, _EMPTY, _EMPTY)
    ties = values[tied]
    starts = tie_starts(ties)
    count = np.diff(starts, append=ties.size).astype(np.float64)
    return values[~tied], without_codes(ties[starts], count, label * count)


def fold_coded(rows: CodedRows) -> tuple[CodedRows, Coded]:
    """Split sorted weighted rows into those outside longer ties, and the exact sums of the longer ties.

    rows : sorted by score and code, or by score without codes. Ties whose sums take more memory than their rows stay.
    """
    width = 8 * (3 if rows.code.size else 2)
    tied = _long_ties(rows.score, rows.code if rows.code.size else None)
    if tied is None:
        return rows, _entries_of(CodedRows.of(_EMPTY, _EMPTY))
    positions = np.flatnonzero(tied)
    rows_as_entries = _entries_of(CodedRows(*_select(rows, positions)))
    sums = expand_coded(rows_as_entries)
    tie_rows = np.diff(tie_starts(*rows_as_entries[:2]), append=rows_as_entries.score.size)
    tie_sums = np.diff(tie_starts(*sums[:2]), append=sums.score.size)
    shorter = (width + 8) * tie_sums < width * tie_rows
    tied[positions] = np.repeat(shorter, tie_rows)
    kept = np.repeat(shorter, tie_sums)
    return CodedRows(*_select(rows, ~tied)), Coded(*_select(sums, kept))


def _entries_of(rows: CodedRows) -> Coded:
    return Coded(rows.score, rows.code, np.abs(rows.signed), np.maximum(rows.signed, 0.0))


def unsegmented_sections(negatives: Array, positives: Array, pairs: Array, *entries: Coded) -> Sections:
    """Return the sections of a run for rows without segments.

    Parameters
    ----------
    negatives, positives : ascending scores of rows of weight 1
    pairs : scores and signed weights of weighted rows, in any order, shape (n, 2); overwritten
    entries : ties of rows
    """
    negatives, of_negatives = _fold_class(negatives, label=0)
    positives, of_positives = _fold_class(positives, label=1)
    rows, of_rows = fold_coded(CodedRows.of(*sort_pairs(pairs)))
    score, _, *sums = expand_coded(merge_entries(of_negatives, of_positives, of_rows, *entries))
    return Sections(negatives, positives, SignedRows(rows.score, rows.signed), Points(score, *sums))


def tagged_sections(score: Array, tag: npt.NDArray[np.signedinteger], codes: int) -> Sections:
    """Return the sections of a run for rows of weight 1 with tags of `codes` codes, in any order."""
    if not score.size:
        return Sections()
    score, tags = sort_tagged(score, tag, bits_of_tags(codes))
    tied = _long_ties(score, tags, 1)
    if tied is None:
        return Sections(tagged=Tagged(score, tags))
    label = (tags[tied] & 1).astype(np.float64)
    entries = sum_coded(Coded(score[tied], tags[tied] >> 1, np.ones(label.size), label))
    return Sections(tagged=Tagged(score[~tied], tags[~tied]), coded_entries=entries)


def coded_sections(score: Array, code: npt.NDArray[np.signedinteger], signed: Array) -> Sections:
    """Return the sections of a run for weighted rows with codes, in any order."""
    order = order_tagged(score, code)
    rows, entries = fold_coded(CodedRows(score[order], code[order].astype(np.int64), signed[order]))
    return Sections(coded_rows=rows, coded_entries=entries)
