"""Buffers that gather a task's rows, sort them, fold longer ties into sums and write runs.

Rows without weights are sorted as scores alone, one class at a time: twice as fast as pairs, for any finite scores, and
without loss. Rows with weights are pairs of score and weight, with the label as the weight's sign. Rows with segments
have their segment's code besides the score.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from calibrators.arithmetic.ordering import Coded, sort_scores
from calibrators.arithmetic.passes import Array
from calibrators.arithmetic.sampling import WeightSums, add_sums, sums_of
from pipeline._kernels import rows as row_kernels
from pipeline.log.logs import Rows
from pipeline.log.quarantine import usable
from pipeline.log.segment_values import Encoder
from pipeline.sort import folding
from pipeline.sort.counting import RowCounter, WeightCounter
from pipeline.sort.run_files import Run, RunSegments, Sections, write_run

_SIGNS = np.array([-1.0, 1.0])
"""Signs of the weights of rows with label 0 and 1."""


class Buffer:
    """Buffer of rows without weights.

    sampling : whether weights are sampling weights, of which `sums` are kept
    """

    coded = False
    sampling = False
    sums: WeightSums | None = None

    def __init__(self, capacity: int, folder: str, index: int) -> None:
        self.capacity = capacity
        self.folder = folder
        self.index = index
        self.counter = RowCounter(self.coded)
        self.size = 0
        self.used_positive = 0
        self.lowest, self.highest = np.inf, -np.inf
        self.runs: list[Run] = []
        self._allocate()

    def _allocate(self) -> None:
        self.negatives, self.positives = np.empty(self.capacity), np.empty(self.capacity)
        self.n = self.p = 0

    def add(self, rows: Rows) -> int:
        """Add the usable rows; return their number."""
        valid = usable(rows)
        rows = rows if valid.all() else rows.some(valid)
        uncounted = self.counter.count(rows) if self._may_count(rows) else rows
        used = rows.score.size - uncounted.score.size
        for start in range(0, uncounted.score.size, self.capacity):
            part = uncounted.some(slice(start, start + self.capacity))
            if self.size + part.score.size > self.capacity:
                self.flush()
            before = self.size
            self._append(part)
            used += self.size - before
        return used

    def flush(self) -> None:
        """Write the rows in the buffer as a run."""
        if self.size or self.counter.rows:
            counted, positive = self.counter.take()
            self.used_positive += positive
            self._write_rows(counted)
        self.size = self.n = self.p = 0

    def _may_count(self, rows: Rows) -> bool:
        return rows.weight is None

    def _append(self, rows: Rows) -> None:
        arguments = rows.score, rows.label, self.negatives, self.positives, self.n, self.p
        self.n, self.p = row_kernels.split_classes(*arguments)
        self.size = self.n + self.p

    def _write_rows(self, counted: Coded) -> None:
        negatives, positives = self.negatives[: self.n], self.positives[: self.p]
        self.used_positive += self.p
        short, counted = folding.split_short_ties(counted)
        if short.score.size:
            class_counts = (short.weight - short.positives, short.positives)
            repeated = [np.repeat(short.score, count.astype(np.int64)) for count in class_counts]
            negatives, positives = np.append(negatives, repeated[0]), np.append(positives, repeated[1])
        sort_scores(negatives)
        sort_scores(positives)
        self._write(folding.unsegmented_sections(negatives, positives, np.empty((0, 2)), counted))

    def _add_weights(self, signed: Array) -> None:
        if self.sampling:
            self.sums = add_sums([self.sums, sums_of(np.abs(signed))])

    def _write(self, sections: Sections, segments: RunSegments | None = None) -> None:
        path = f"{self.folder}/run-{self.index:06d}-{len(self.runs):04d}"
        self.runs.append(write_run(path, sections, segments))
        lowest, highest = sections.score_range
        self.lowest, self.highest = min(self.lowest, lowest), max(self.highest, highest)


class WeightedBuffer(Buffer):
    """Buffer of rows with weights."""

    def _allocate(self) -> None:
        self.rows = np.empty((self.capacity, 2))
        self.counter = WeightCounter(coded=False)

    def _may_count(self, rows: Rows) -> bool:
        return not self.sampling and rows.score.size > 0

    def _append(self, rows: Rows) -> None:
        assert rows.weight is not None
        target = self.rows[self.size : self.size + rows.score.size]
        np.add(rows.score, 0.0, out=target[:, 0])  # -0.0 is 0.0
        np.multiply(rows.weight, _SIGNS.take(rows.label), out=target[:, 1])
        self.size += rows.score.size

    def _write_rows(self, counted: Coded) -> None:
        pairs = self.rows[: self.size]
        self.used_positive += int(np.count_nonzero(pairs[:, 1] > 0))
        self._add_weights(pairs[:, 1])
        self._write(folding.unsegmented_sections(np.empty(0), np.empty(0), pairs, counted))


class CodedBuffer(Buffer):
    """Buffer of rows with segments, with or without weights.

    encoder : encoder that gave the rows their segments' codes
    """

    coded = True

    def __init__(self, capacity: int, folder: str, index: int, encoder: Encoder, weighted: bool) -> None:
        self.encoder = encoder
        self.weighted = weighted
        super().__init__(capacity, folder, index)

    def _allocate(self) -> None:
        self.score, self.slot = np.empty(self.capacity), np.empty(self.capacity, np.int32)
        self.weight = np.empty(self.capacity if self.weighted else 0)
        self.counts = np.zeros(0, np.int64)

    def _append(self, rows: Rows) -> None:
        assert rows.code is not None
        span = slice(self.size, self.size + rows.score.size)
        np.add(rows.score, 0.0, out=self.score[span])  # -0.0 is 0.0
        slot = self.slot[span]
        np.multiply(rows.code, 2, out=slot)
        slot += rows.label
        self._add_counts(np.bincount(slot))
        if rows.weight is not None:
            self.weight[span] = rows.weight
        self.size = span.stop

    def _add_counts(self, counts: npt.NDArray[Any]) -> None:
        if counts.size > self.counts.size:
            # Twice the size needed, so that it does not grow with every batch: with many segments each has new ones.
            self.counts = np.append(self.counts, np.zeros(2 * counts.size - self.counts.size, np.int64))
        self.counts[: counts.size] += counts.astype(np.int64, copy=False)

    def _write_rows(self, counted: Coded) -> None:
        self.used_positive += int(self.counts[1::2].sum())
        for label, rows in enumerate((counted.weight - counted.positives, counted.positives)):
            self._add_counts(np.bincount(2 * counted.code + label, rows))
        counts = self.counts.reshape(-1, 2)[: len(self.encoder)].copy()
        self.counts[:] = 0
        present = np.flatnonzero(counts[:, 0] | counts[:, 1])
        new_codes = np.zeros(counts.shape[0], np.int32)
        new_codes[present] = np.arange(present.size)
        slot = self.slot[: self.size]
        if present.size < counts.shape[0]:
            slot = 2 * new_codes[slot >> 1] + (slot & 1)
        counted = counted._replace(code=new_codes[counted.code].astype(np.int64))
        counts = counts[present]
        # A small integer type: the segments of all runs stay in memory until they are numbered.
        small_counts = counts.astype(np.min_scalar_type(counts.max()))
        segments = RunSegments(self.encoder.values_of(present), small_counts)
        if self.weighted:
            self._add_weights(self.weight[: self.size])
            signed = np.where(slot & 1, self.weight[: self.size], -self.weight[: self.size])
            sections = folding.coded_sections(self.score[: self.size], slot >> 1, signed)
        else:
            short, counted = folding.split_short_ties(counted)
            score = self.score[: self.size]
            for label, rows in enumerate((short.weight - short.positives, short.positives)):
                if rows.size:  # avoids copying the arrays
                    score = np.append(score, np.repeat(short.score, rows.astype(np.int64)))
                    tags = np.repeat(2 * short.code + label, rows.astype(np.int64))
                    slot = np.append(slot, tags.astype(np.int32))
            sections = folding.tagged_sections(score, slot, present.size)
        entries = folding.merge_entries(sections.coded_entries, counted)
        self._write(sections._replace(coded_entries=entries), segments)
