"""Buffer that gathers a task's rows, and writes them as runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from calibrators.core.keys import Tags
from calibrators.core.sampling import WeightSums, add_sums, sums_of
from calibrators.core.sorting import Coded
from pipeline.log.logs import Rows
from pipeline.log.quarantine import usable
from pipeline.log.segment_values import Encoder
from pipeline.sort import counting
from pipeline.sort.run_files import Run, RunSegments, write_run
from pipeline.sort.sections import Sections, UnitRows, WeightedRows


class Buffer:
    """Buffer of rows.

    Parameters
    ----------
    capacity : most rows of a run
    folder, index : folder of the runs, and the number in their names
    encoder : encoder that gave the rows their segments' codes; None without segments
    weighted : whether rows have weights. sampling : whether these are sampling weights, of which `sums` are kept

    Attributes
    ----------
    runs : runs written so far
    used_positive : number of their rows with label 1. lowest, highest : their extreme scores
    """

    def __init__(
        self,
        capacity: int,
        folder: str,
        index: int,
        encoder: Encoder | None = None,
        *,
        weighted: bool = False,
        sampling: bool = False,
    ) -> None:
        self.capacity, self.folder, self.index = capacity, folder, index
        self.encoder, self.weighted, self.sampling = encoder, weighted, sampling
        self.counter = counting.RowCounter(encoder is not None)
        room = capacity if weighted else capacity + counting.MOST_RETURNED
        self.score, self.tag = np.empty(room), np.empty(room, np.int32)
        self.weight = np.empty(capacity if weighted else 0)
        self.size = 0
        self.used_positive = 0
        self.lowest, self.highest = np.inf, -np.inf
        self.sums: WeightSums | None = None
        self.runs: list[Run] = []

    def add(self, rows: Rows) -> int:
        """Add the usable rows; return their number."""
        valid = usable(rows)
        rows = rows if valid.all() else rows.some(valid)
        uncounted = rows if self.weighted else self.counter.count(rows)
        for start in range(0, uncounted.score.size, self.capacity):
            part = uncounted.some(slice(start, start + self.capacity))
            if self.size + part.score.size > self.capacity:
                self.flush()
            self._append(part)
        return rows.score.size

    def _append(self, rows: Rows) -> None:
        span = slice(self.size, self.size + rows.score.size)
        np.add(rows.score, 0.0, out=self.score[span])  # -0.0 is 0.0
        tag = self.tag[span]
        tag[:] = rows.label
        if rows.code is not None:
            tag += 2 * rows.code
        if rows.weight is not None:
            self.weight[span] = rows.weight
        self.size = span.stop
        self.used_positive += int(np.count_nonzero(rows.label))

    def flush(self) -> None:
        """Write the rows in the buffer as a run."""
        if not self.size and not self.counter.rows:
            return
        few, counted = self.counter.take()
        span = slice(self.size, self.size + few.score.size)
        self.score[span], self.tag[span] = few
        score, tag = self.score[: span.stop], self.tag[: span.stop]
        self.used_positive += int(np.count_nonzero(few.tag & 1)) + int(counted.positives.sum())
        sections = Sections(UnitRows(score, tag), sums=counted)
        if self.weighted:
            weight = self.weight[: self.size]
            sections = Sections(weighted=WeightedRows(score, tag, weight))
            if self.sampling:
                self.sums = add_sums([self.sums, sums_of(weight)])
        segments = None
        if self.encoder is not None:
            counts = _counts(len(self.encoder), tag, counted)
            sections, present = sections.renumbered(len(self.encoder))
            segments = RunSegments(self.encoder.values_of(present), counts[present])
        path = f"{self.folder}/run-{self.index:06d}-{len(self.runs):04d}"
        sections = sections.sorted()
        self.runs.append(write_run(path, sections, segments))
        lowest, highest = sections.score_range
        self.lowest, self.highest = min(self.lowest, lowest), max(self.highest, highest)
        self.size = 0


def _counts(codes: int, tag: Tags, counted: Coded) -> npt.NDArray[np.integer[Any]]:
    """Count the rows of each code by label. counted : sums of further rows."""
    counts = np.bincount(tag, minlength=2 * codes).reshape(-1, 2)
    for label, rows in enumerate((counted.weight - counted.positives, counted.positives)):
        counts[:, label] += np.bincount(counted.code, rows, codes).astype(np.int64)
    # A small integer type: the segments of all runs stay in memory until they are numbered.
    return counts.astype(np.min_scalar_type(counts.max()))
