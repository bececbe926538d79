"""Rows on their way into runs: gathered, sorted, their longer ties folded, written.

Rows without weights are scores alone, a class at a time, which sorts twice as fast as pairs; it works for any finite
score and loses nothing. Rows with weights are pairs of score and weight, the label being the weight's sign. Rows with
segments have the code of theirs beside the score. Longer ties become sums.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from calibrators.arithmetic.ordering import sort_pairs, sort_scores
from calibrators.arithmetic.passes import HIGHEST_WEIGHT, LOWEST_WEIGHT, Array, Points
from calibrators.arithmetic.ties import Coded, expand_coded, sum_coded, tie_starts
from pipeline._kernels import rows as row_kernels
from pipeline.log.logs import Rows
from pipeline.log.segment_values import Encoder
from pipeline.sort.effective_size import WeightSums, add_sums, sums_of
from pipeline.sort.run_files import (
    CodedEntries,
    CodedRows,
    Integers,
    Run,
    RunSegments,
    Sections,
    SignedRows,
    Tagged,
    write_run,
)
from pipeline.sort.tagged import bits_of_tags, order_tagged, sort_tagged

SHORTEST_FOLDED_TIE = 4
"""Rows from which a tie is smaller as an entry (24 bytes) than as rows (8 or 16 bytes each)."""

_EMPTY = np.empty(0)
_NO_CODES = np.empty(0, np.int64)


class Buffer:
    """Rows without weights, on their way into runs.

    sampling : whether `sums` of the rows' weights are wanted
    """

    sampling = False
    sums: WeightSums | None = None

    def __init__(self, capacity: int, folder: str, index: int) -> None:
        self.capacity = capacity
        self.folder = folder
        self.index = index
        self.negatives = np.empty(capacity)
        self.positives = np.empty(capacity)
        self.n = self.p = 0
        self.used_positive = 0
        self.lowest, self.highest = np.inf, -np.inf
        self.runs: list[Run] = []

    def add(self, rows: Rows) -> int:
        """Take the usable rows; return how many there were."""
        used = 0
        for start in range(0, rows.score.size, self.capacity):
            score = rows.score[start : start + self.capacity]
            if self.n + self.p + score.size > self.capacity:
                self.flush()
            before = self.n + self.p
            label = rows.label[start : start + self.capacity]
            self.n, self.p = row_kernels.split_classes(
                score, label, self.negatives, self.positives, self.n, self.p
            )
            used += self.n + self.p - before
        return used

    def flush(self) -> None:
        """Write what is held as a run."""
        if self.n + self.p:
            self.write(self.negatives[: self.n], self.positives[: self.p])
        self.n = self.p = 0

    def write(self, negatives: Array, positives: Array) -> None:
        """Write scores of the classes, at least one score, as a run; they are sorted in place."""
        sort_scores(negatives)
        sort_scores(positives)
        ends = [section[i] for section in (negatives, positives) if section.size for i in (0, -1)]
        self.lowest, self.highest = min(self.lowest, *ends), max(self.highest, *ends)
        self.used_positive += positives.size
        negatives, negative_ties = fold(negatives, label=0)
        positives, positive_ties = fold(positives, label=1)
        entries = np.concatenate([negative_ties, positive_ties], axis=1)
        entries = np.take(entries, np.argsort(entries[0], kind="stable"), axis=1)
        self._write(Sections(negatives, positives, entries=Points(*entries)))

    def _add_weights(self, weight: Array) -> None:
        if self.sampling:
            self.sums = add_sums([self.sums, sums_of(weight)])

    def _write(self, sections: Sections, segments: RunSegments | None = None) -> None:
        path = f"{self.folder}/run-{self.index:06d}-{len(self.runs):04d}"
        self.runs.append(write_run(path, sections, segments))


def _longer_ties(score: Array, code: Integers | None = None) -> npt.NDArray[np.bool_] | None:
    """Which of some sorted rows are in ties of at least `SHORTEST_FOLDED_TIE`; None where none are."""
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


def fold_weighted(rows: SignedRows) -> tuple[SignedRows, Points]:
    """Sorted weighted rows without their longer ties, and the ties' exact sums as entries."""
    kept, entries = fold_coded(CodedRows(rows.score, _NO_CODES, rows.signed))
    return SignedRows(kept.score, kept.signed), Points(entries.score, entries.weight, entries.positives)


def fold_coded(rows: CodedRows) -> tuple[CodedRows, Coded]:
    """The same of rows sorted by score and code; without codes by score.

    Ties whose sums would take more memory than their rows stay.
    """
    score, code, _ = rows
    width = 8 * (3 if code.size else 2)
    tied = _longer_ties(score, code if code.size else None)
    if tied is None:
        return rows, _entries_of(CodedRows(_EMPTY, _NO_CODES, _EMPTY))
    places = np.flatnonzero(tied)
    before = _entries_of(_some(rows, places))
    after = expand_coded(before)
    rows_of = np.diff(tie_starts(*before[:2]), append=before.score.size)
    entries_of = np.diff(tie_starts(*after[:2]), append=after.score.size)
    shorter = (width + 8) * entries_of < width * rows_of
    tied[places] = np.repeat(shorter, rows_of)
    there = np.repeat(shorter, entries_of)
    score, code, weight, positives = after
    entries = Coded(score[there], code[there] if code.size else code, weight[there], positives[there])
    return _some(rows, ~tied), entries


def _some(rows: CodedRows, which: npt.NDArray[Any]) -> CodedRows:
    score, code, signed = rows
    return CodedRows(score[which], code[which] if code.size else code, signed[which])


def _entries_of(rows: CodedRows) -> Coded:
    return Coded(rows.score, rows.code, np.abs(rows.signed), np.maximum(rows.signed, 0.0))


def _usable(rows: Rows, part: slice) -> Rows:
    """The usable rows of a part of a batch, mostly all: scores and weights that are numbers in range, and labels."""
    score, label = rows.score[part], rows.label[part]
    weight = None if rows.weight is None else rows.weight[part]
    code = None if rows.code is None else rows.code[part]
    good = np.isfinite(score)
    good &= label <= 1
    if weight is not None:
        good &= (weight >= LOWEST_WEIGHT) & (weight <= HIGHEST_WEIGHT)
    if not good.all():
        score, label = score[good], label[good]
        weight = None if weight is None else weight[good]
        code = None if code is None else code[good]
    return rows._replace(score=score, label=label, weight=weight, code=code)


class WeightedBuffer(Buffer):
    """Rows with weights, on their way into runs."""

    def __init__(self, capacity: int, folder: str, index: int) -> None:
        super().__init__(0, folder, index)
        self.capacity = capacity
        self.rows = np.empty((capacity, 2))

    def add(self, rows: Rows) -> int:
        """See `Buffer.add`."""
        assert rows.weight is not None
        used = 0
        for start in range(0, rows.score.size, self.capacity):
            part = slice(start, start + self.capacity)
            if self.n + rows.score[part].size > self.capacity:
                self.flush()
            before = self.n
            taken = _usable(rows, part)
            assert taken.weight is not None
            self.n += taken.score.size
            np.add(taken.score, 0.0, out=self.rows[before : self.n, 0])  # -0.0 is 0.0
            self.rows[before : self.n, 1] = np.where(taken.label == 1, taken.weight, -taken.weight)
            used += self.n - before
        return used

    def flush(self) -> None:
        """See `Buffer.flush`."""
        if self.n:
            self.write_weighted(self.rows[: self.n])
        self.n = 0

    def write_weighted(self, rows: Array) -> None:
        """Write weighted rows, shape (rows, 2): score and signed weight, at least one, as a run; they are used up."""
        score, signed = sort_pairs(rows)
        self.lowest, self.highest = min(self.lowest, score[0]), max(self.highest, score[-1])
        self.used_positive += int(np.count_nonzero(signed > 0))
        self._add_weights(np.abs(signed))
        kept, entries = fold_weighted(SignedRows(score, signed))
        self._write(Sections(rows=kept, entries=entries))


class CodedBuffer(Buffer):
    """Rows with segments, with weights or without, on their way into runs.

    encoder : gave the rows' codes, and knows what they stand for
    """

    def __init__(self, capacity: int, folder: str, index: int, encoder: Encoder, weighted: bool) -> None:
        super().__init__(0, folder, index)
        self.capacity = capacity
        self.encoder = encoder
        self.score = np.empty(capacity)
        self.slot = np.empty(capacity, np.int32)
        self.weight = np.empty(capacity) if weighted else None
        self.counts = np.zeros(0, np.int64)

    def add(self, rows: Rows) -> int:
        """See `Buffer.add`."""
        assert rows.code is not None
        if 2 * len(self.encoder) > self.counts.size:
            # Not at every batch: with many segments each has new ones.
            self.counts = np.append(self.counts, np.zeros(4 * len(self.encoder) - self.counts.size, np.int64))
        used = 0
        for start in range(0, rows.score.size, self.capacity):
            part = slice(start, start + self.capacity)
            taken = _usable(rows, part)
            if self.n + taken.score.size > self.capacity:
                self.flush()
            before = self.n
            self.n += taken.score.size
            own = slice(before, self.n)
            assert taken.code is not None
            np.add(taken.score, 0.0, out=self.score[own])  # -0.0 is 0.0
            slot = self.slot[own]
            np.multiply(taken.code, 2, out=slot)
            slot += taken.label
            counts = np.bincount(slot)
            self.counts[: counts.size] += counts
            if self.weight is not None:
                self.weight[own] = taken.weight
            used += self.n - before
        return used

    def flush(self) -> None:
        """See `Buffer.flush`."""
        if self.n == 0:
            return
        counts = self.counts.reshape(-1, 2)[: len(self.encoder)]
        present = np.flatnonzero(counts[:, 0] | counts[:, 1])
        slot = self.slot[: self.n]
        if present.size < counts.shape[0]:
            places = np.zeros(counts.shape[0], np.int32)
            places[present] = np.arange(present.size)
            slot = 2 * places[slot >> 1] + (slot & 1)
        own = counts if present.size == counts.shape[0] else counts[present]
        # A run's segments are held until those of all runs are numbered.
        segments = RunSegments(self.encoder.values_of(present), own.astype(np.min_scalar_type(own.max())))
        score = self.score[: self.n]
        if self.weight is None:
            sections = tagged_sections(score, slot, present.size)
        else:
            self._add_weights(self.weight[: self.n])
            signed = np.where(slot & 1, self.weight[: self.n], -self.weight[: self.n])
            sections = coded_sections(score, slot >> 1, signed)
        self.lowest, self.highest = min(self.lowest, score.min()), max(self.highest, score.max())
        self.used_positive += int(segments.counts[:, 1].sum())
        self._write(sections, segments)
        self.counts[:] = 0
        self.n = 0


def tagged_sections(score: Array, tag: npt.NDArray[np.signedinteger], codes: int) -> Sections:
    """Rows of weight 1 with tags of so many codes, in any order, as a run holds them."""
    score, tags = sort_tagged(score, tag, bits_of_tags(codes))
    code = tags >> 1
    tied = _longer_ties(score, code)
    if tied is None or not tied.any():
        return Sections(tagged=Tagged(score, tags))
    label = (tags[tied] & 1).astype(np.float64)
    entries = sum_coded(Coded(score[tied], code[tied], np.ones(label.size), label))
    return Sections(tagged=Tagged(score[~tied], tags[~tied]), coded_entries=CodedEntries(*entries))


def coded_sections(score: Array, code: npt.NDArray[np.signedinteger], signed: Array) -> Sections:
    """Weighted rows with codes, in any order, as a run holds them."""
    order = order_tagged(score, code)
    rows, entries = fold_coded(CodedRows(score[order], code[order].astype(np.int64), signed[order]))
    return Sections(coded_rows=rows, coded_entries=CodedEntries(*entries))
