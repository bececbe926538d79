"""Rows on their way into runs: gathered, sorted, their longer ties folded, written.

Rows without weights are sorted as scores alone, one class at a time: twice as fast as pairs, for any finite scores, and
without loss. Rows with weights are pairs of score and weight, with the label as the weight's sign. Rows with segments
have their segment's code besides the score. Longer ties become sums.
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
from pipeline.sort.counting import Counted, CountedWeights
from pipeline.sort.folding import coded_sections, plain_sections, tagged_sections, together, without_short
from pipeline.sort.run_files import Run, RunSegments, Sections, write_run

_SIGNS = np.array([-1.0, 1.0])
"""Signs of the weights of rows with label 0 and 1."""


class Buffer:
    """Rows without weights, on their way into runs.

    sampling : whether `sums` of the rows' weights are wanted
    """

    coded = False
    sampling = False
    sums: WeightSums | None = None

    def __init__(self, capacity: int, folder: str, index: int) -> None:
        self.capacity = capacity
        self.folder = folder
        self.index = index
        self.counted = Counted(self.coded)
        self.held = 0
        self.used_positive = 0
        self.lowest, self.highest = np.inf, -np.inf
        self.runs: list[Run] = []
        self._allocate()

    def _allocate(self) -> None:
        self.negatives, self.positives = np.empty(self.capacity), np.empty(self.capacity)
        self.n = self.p = 0

    def add(self, rows: Rows) -> int:
        """Take the usable rows; return how many there were."""
        good = usable(rows)
        rows = rows if good.all() else rows.some(good)
        rest = self.counted.rest(rows) if self._counts(rows) else rows
        used = rows.score.size - rest.score.size
        for start in range(0, rest.score.size, self.capacity):
            part = rest.some(slice(start, start + self.capacity))
            if self.held + part.score.size > self.capacity:
                self.flush()
            before = self.held
            self._append(part)
            used += self.held - before
        return used

    def flush(self) -> None:
        """Write what is held as a run."""
        if self.held or self.counted.rows:
            counted, positive = self.counted.take()
            self.used_positive += positive
            self._write_rows(counted)
        self.held = self.n = self.p = 0

    def _counts(self, rows: Rows) -> bool:
        return rows.weight is None

    def _append(self, rows: Rows) -> None:
        own = rows.score, rows.label, self.negatives, self.positives, self.n, self.p
        self.n, self.p = row_kernels.split_classes(*own)
        self.held = self.n + self.p

    def _write_rows(self, counted: Coded) -> None:
        negatives, positives = self.negatives[: self.n], self.positives[: self.p]
        self.used_positive += self.p
        few, counted = without_short(counted)
        if few.score.size:
            of_both = (few.weight - few.positives, few.positives)
            more = [np.repeat(few.score, count.astype(np.int64)) for count in of_both]
            negatives, positives = np.append(negatives, more[0]), np.append(positives, more[1])
        sort_scores(negatives)
        sort_scores(positives)
        self._write(plain_sections(negatives, positives, np.empty((0, 2)), counted))

    def _add_weights(self, signed: Array) -> None:
        if self.sampling:
            self.sums = add_sums([self.sums, sums_of(np.abs(signed))])

    def _write(self, sections: Sections, segments: RunSegments | None = None) -> None:
        path = f"{self.folder}/run-{self.index:06d}-{len(self.runs):04d}"
        self.runs.append(write_run(path, sections, segments))
        lowest, highest = sections.ends
        self.lowest, self.highest = min(self.lowest, lowest), max(self.highest, highest)


class WeightedBuffer(Buffer):
    """Rows with weights, on their way into runs."""

    def _allocate(self) -> None:
        self.rows = np.empty((self.capacity, 2))
        self.counted = CountedWeights(coded=False)

    def _counts(self, rows: Rows) -> bool:
        return not self.sampling and rows.score.size > 0

    def _append(self, rows: Rows) -> None:
        assert rows.weight is not None
        own = self.rows[self.held : self.held + rows.score.size]
        np.add(rows.score, 0.0, out=own[:, 0])  # -0.0 is 0.0
        np.multiply(rows.weight, _SIGNS.take(rows.label), out=own[:, 1])
        self.held += rows.score.size

    def _write_rows(self, counted: Coded) -> None:
        pairs = self.rows[: self.held]
        self.used_positive += int(np.count_nonzero(pairs[:, 1] > 0))
        self._add_weights(pairs[:, 1])
        self._write(plain_sections(np.empty(0), np.empty(0), pairs, counted))


class CodedBuffer(Buffer):
    """Rows with segments, with weights or without, on their way into runs.

    encoder : gave the rows' codes, and knows what they stand for
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
        own = slice(self.held, self.held + rows.score.size)
        np.add(rows.score, 0.0, out=self.score[own])  # -0.0 is 0.0
        slot = self.slot[own]
        np.multiply(rows.code, 2, out=slot)
        slot += rows.label
        self._add_counts(np.bincount(slot))
        if rows.weight is not None:
            self.weight[own] = rows.weight
        self.held = own.stop

    def _add_counts(self, counts: npt.NDArray[Any]) -> None:
        if counts.size > self.counts.size:
            # Not at every batch: with many segments each has new ones.
            self.counts = np.append(self.counts, np.zeros(2 * counts.size - self.counts.size, np.int64))
        self.counts[: counts.size] += counts.astype(np.int64, copy=False)

    def _write_rows(self, counted: Coded) -> None:
        self.used_positive += int(self.counts[1::2].sum())
        for label, rows in enumerate((counted.weight - counted.positives, counted.positives)):
            self._add_counts(np.bincount(2 * counted.code + label, rows))
        counts = self.counts.reshape(-1, 2)[: len(self.encoder)].copy()
        self.counts[:] = 0
        present = np.flatnonzero(counts[:, 0] | counts[:, 1])
        places = np.zeros(counts.shape[0], np.int32)
        places[present] = np.arange(present.size)
        slot = self.slot[: self.held]
        if present.size < counts.shape[0]:
            slot = 2 * places[slot >> 1] + (slot & 1)
        counted = counted._replace(code=places[counted.code].astype(np.int64))
        own = counts[present]
        # A run's segments are held until those of all runs are numbered.
        segments = RunSegments(self.encoder.values_of(present), own.astype(np.min_scalar_type(own.max())))
        if self.weighted:
            self._add_weights(self.weight[: self.held])
            signed = np.where(slot & 1, self.weight[: self.held], -self.weight[: self.held])
            sections = coded_sections(self.score[: self.held], slot >> 1, signed)
        else:
            few, counted = without_short(counted)
            score = self.score[: self.held]
            for label, rows in enumerate((few.weight - few.positives, few.positives)):
                if rows.size:  # otherwise nothing is copied
                    score = np.append(score, np.repeat(few.score, rows.astype(np.int64)))
                    tags = np.repeat(2 * few.code + label, rows.astype(np.int64))
                    slot = np.append(slot, tags.astype(np.int32))
            sections = tagged_sections(score, slot, present.size)
        self._write(sections._replace(coded_entries=together(sections.coded_entries, counted)), segments)
