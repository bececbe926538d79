"""Sorted runs: what the first stage of the out-of-core sort leaves in scratch space.

A run holds some millions of rows, sorted, in sections of raw float64: the scores of the rows with label 0, those
with label 1, and *entries* (score, weight, positives) for ties of several rows and for weighted rows. Sorting
scores alone, a class at a time, keeps numpy's vectorised sort, fifteen times faster than sorting positions; it
works for any finite score and loses nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from calibrators._kernels import rows as row_kernels
from calibrators._kernels import ties
from calibrators.ordering import sort_entries
from calibrators.points import Array, Points
from pipeline import quarantine, score_grid
from pipeline.logs import Columns, Piece, Rows, read_rows
from pipeline.quarantine import BadRows

SAMPLE_STRIDE = 1024
"""Every so many numbers of a section go into its sample: splitters and places are found from it."""

WIDTHS = (8, 8, 24)
"""Bytes of a number of each section: scores of label 0, scores of label 1, entries."""

SHORTEST_FOLDED_TIE = 4
"""Rows from which a tie is smaller as an entry (24 bytes) than as rows (8 bytes each)."""


class Reading(NamedTuple):
    """How a log's rows become scores.

    Attributes
    ----------
    transform : 'none' or 'sigmoid', applied to the score column.
    lookup : path of a lookup table applied after it, or None: the score is then a calibrated probability.
    grid : what scores are rounded to last; see `pipeline.score_grid`.
    """

    filesystem: Any
    columns: Columns
    transform: str = "none"
    lookup: str | None = None
    grid: str = score_grid.NONE


@dataclass
class Run:
    """A run file, its sections in the order of `WIDTHS`.

    sizes : of the sections. samples : every `SAMPLE_STRIDE`-th score of each.
    before : float64 array, one number a sample of the entries: the weight of the entries before it; exact where
        entries are counts of rows
    """

    path: str
    sizes: tuple[int, int, int]
    samples: tuple[Array, Array, Array]
    before: Array

    @property
    def bytes(self) -> int:
        """Size of the file."""
        return sum(width * size for width, size in zip(WIDTHS, self.sizes, strict=True))


@dataclass
class RunReceipt:
    """What one task of the first stage did."""

    runs: list[Run] = field(default_factory=list)
    rows: int = 0
    used: int = 0
    used_positive: int = 0
    lowest: float = np.inf
    highest: float = -np.inf
    largest_move: float = 0.0
    bad: BadRows = field(default_factory=BadRows)


def write_runs(
    pieces: tuple[Piece, ...], reading: Reading, folder: str, index: int, run_rows: int, keep_bad: bool
) -> RunReceipt:
    """Read pieces of a log and leave their usable rows as sorted runs of at most `run_rows` rows.

    Parameters
    ----------
    pieces : what to read
    reading : how
    folder : scratch folder; files are named by `index`, so that a repeated task writes the same files
    run_rows : rows a run
    keep_bad : whether to leave the unusable rows as Parquet beside the runs
    """
    kind = WeightedBuffer if reading.columns.weight else Buffer
    buffer = kind(run_rows, Path(folder), index)
    receipt = RunReceipt()
    bad_tables: list[pa.Table] = []
    for piece in pieces:
        for rows in read_rows(reading.filesystem, piece, reading.columns):
            receipt.rows += rows.score.size
            score, move = score_grid.round_scores(calibration_scores(rows.score, reading), reading.grid)
            receipt.largest_move = max(receipt.largest_move, move)
            used = buffer.add(rows._replace(score=score))
            receipt.used += used
            if used < rows.score.size:
                bad, table = quarantine.find_bad(rows, reading.columns, piece.path)
                receipt.bad.merge(bad)
                if keep_bad:
                    bad_tables.append(table)
    buffer.flush()
    receipt.runs = buffer.runs
    receipt.used_positive = buffer.used_positive
    receipt.lowest, receipt.highest = buffer.lowest, buffer.highest
    if bad_tables:
        quarantine.write_part(bad_tables, Path(folder) / f"bad-{index:06d}.parquet")
    return receipt


def calibration_scores(score: Array, reading: Reading) -> Array:
    """The scores that rows are sorted by, before they are rounded to a grid."""
    if reading.transform != "none":
        from pipeline.transforms import apply_transform

        # An infinite margin is a fault of the log, also where its sigmoid would be 0 or 1.
        score = apply_transform(np.where(np.isfinite(score), score, np.nan), reading.transform)
    if reading.lookup is not None:
        from pipeline.lookup_table import cached_lookup_table

        # The map of an infinite score is finite, but the row is as little use as before.
        finite = np.where(np.isfinite(score), score, np.nan)
        score = cached_lookup_table(reading.lookup).map.predict(finite)
    return score


class Buffer:
    """Rows without weights, on their way into runs."""

    def __init__(self, capacity: int, folder: Path, index: int) -> None:
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
        negatives.sort()
        positives.sort()
        ends = [section[i] for section in (negatives, positives) if section.size for i in (0, -1)]
        self.lowest, self.highest = min(self.lowest, *ends), max(self.highest, *ends)
        self.used_positive += positives.size
        negatives, negative_ties = fold(negatives, label=0)
        positives, positive_ties = fold(positives, label=1)
        entries = np.concatenate([negative_ties, positive_ties], axis=1)
        self._write(
            negatives, positives, Points(*np.take(entries, np.argsort(entries[0], kind="stable"), axis=1))
        )

    def _write(self, negatives: Array, positives: Array, entries: Points) -> None:
        path = self.folder / f"run-{self.index:06d}-{len(self.runs):04d}"
        self.runs.append(write_run(path, negatives, positives, entries))


def write_run(path: Path, negatives: Array, positives: Array, entries: Points) -> Run:
    """Write a run's sections, each ascending; a repeated task writes the same file again."""
    temporary = path.with_suffix(".tmp")
    with temporary.open("wb") as file:
        for section in (negatives, positives, *entries):
            file.write(section.data)
    temporary.replace(path)
    sections = (negatives, positives, entries.score)
    n, p, m = (section.size for section in sections)
    # Copies: a view would keep the whole section alive.
    samples = [section[::SAMPLE_STRIDE].copy() for section in sections]
    return Run(str(path), (n, p, m), (samples[0], samples[1], samples[2]), _weight_before(entries))


def _weight_before(entries: Points) -> Array:
    """See `Run.before`."""
    starts = np.arange(0, entries.score.size, SAMPLE_STRIDE)
    sums = np.add.reduceat(entries.weight, starts) if starts.size else starts
    return np.concatenate([np.zeros(min(1, starts.size)), np.cumsum(sums[:-1])])


def write_entries(entries: Points, folder: Path, index: int) -> RunReceipt:
    """Leave entries, sorted by score, as a run; of the receipt, the run and its extreme scores are filled in."""
    run = write_run(folder / f"run-{index:06d}-0000", np.empty(0), np.empty(0), entries)
    return RunReceipt([run], lowest=float(entries.score[0]), highest=float(entries.score[-1]))


def read_run(run: Run) -> tuple[Array, Array, Points]:
    """A run's sections: scores of label 0, scores of label 1, entries."""
    n, p, m = run.sizes
    whole = np.fromfile(run.path, np.float64)
    negatives, positives, *entries = np.split(whole, [n, n + p, n + p + m, n + p + 2 * m])
    return negatives, positives, Points(*entries)


def fold(values: Array, label: int) -> tuple[Array, Array]:
    """Sorted scores of a class without their longer ties, and the ties as entries, shape (3, ties)."""
    reach = SHORTEST_FOLDED_TIE - 1
    if not (values[reach:] == values[:-reach]).any():
        return values, np.empty((3, 0))
    n, score, count = row_kernels.fold_ties(values, SHORTEST_FOLDED_TIE)
    return values[:n], np.stack([score, count, label * count])


class WeightedBuffer(Buffer):
    """Rows with weights: kept as entries, with sums that later sums cannot make inexact."""

    def __init__(self, capacity: int, folder: Path, index: int) -> None:
        super().__init__(0, folder, index)
        self.capacity = capacity
        self.score = np.empty(capacity)
        self.pairs = np.empty((capacity, 2))

    def add(self, rows: Rows) -> int:
        """See `Buffer.add`."""
        assert rows.weight is not None
        used = 0
        for start in range(0, rows.score.size, self.capacity):
            part = slice(start, start + self.capacity)
            if self.n + rows.score[part].size > self.capacity:
                self.flush()
            before = self.n
            self.n = row_kernels.keep_weighted(
                rows.score[part],
                rows.label[part],
                rows.weight[part],
                self.score,
                self.pairs,
                self.n,
            )
            used += self.n - before
        return used

    def flush(self) -> None:
        """See `Buffer.flush`."""
        if self.n:
            self.write_weighted(self.score[: self.n], self.pairs[: self.n])
        self.n = 0

    def write_weighted(self, score: Array, pairs: Array) -> None:
        """Write weighted rows, at least one, as a run.

        pairs : shape (rows, 2): the weight, and the weight again where the label is 1, otherwise 0.
        """
        score, weight, hits = sort_entries(score, pairs)
        self.lowest, self.highest = min(self.lowest, score[0]), max(self.highest, score[-1])
        self.used_positive += int(np.count_nonzero(hits))
        entries = Points(*ties.expand_ties(score, weight, hits))
        self._write(np.empty(0), np.empty(0), entries)
