"""Sorted runs: what the first stage of the out-of-core sort leaves in scratch space.

A run holds some millions of rows, sorted, in sections of raw float64: the scores of the rows with label 0, those
with label 1, and *entries* (score, weight, positives) for ties of several rows and for weighted rows. Sorting
scores alone, a class at a time, keeps numpy's vectorised sort, fifteen times faster than sorting positions; it
works for any finite score and loses nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
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
    """

    path: str
    sizes: tuple[int, int, int]
    samples: tuple[Array, Array, Array]

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
    return Run(str(path), (n, p, m), (samples[0], samples[1], samples[2]))


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


def splitters(runs: list[Run], bucket_bytes: int) -> Array:
    """Scores that cut all runs into buckets of about `bucket_bytes`; never inside a tie.

    Bucket b holds splitters[b - 1] <= score < splitters[b]. The error is at most one stride a section a run.
    """
    sample = np.concatenate([part for run in runs for part in run.samples])
    sizes = np.concatenate(
        [
            np.full(part.size, width * SAMPLE_STRIDE)
            for run in runs
            for part, width in zip(run.samples, WIDTHS, strict=True)
        ]
    )
    order = np.argsort(sample, kind="stable")
    before = np.cumsum(sizes[order]) - sizes[order]
    buckets = max(1, -(-sum(run.bytes for run in runs) // bucket_bytes))
    targets = np.arange(1, buckets) * (before[-1] + sizes[order][-1]) / buckets
    chosen = np.unique(sample[order][np.searchsorted(before, targets).clip(max=sample.size - 1)])
    # Nothing lies below the lowest score.
    return chosen[chosen > sample[order][0]]


def brackets(runs: list[Run], edges: Array) -> npt.NDArray[np.int64]:
    """Where in each section of each run to look for the scores between edges, from the samples alone.

    Parameters
    ----------
    runs : list of Run
    edges : float64 array, shape (buckets + 1,), ascending

    Returns
    -------
    int64 array, shape (buckets, runs, sections, 2): what is looked for lies in section[start:stop], and at most a
    stride at each end does not belong to it.
    """
    found = np.empty((edges.size - 1, len(runs), len(WIDTHS), 2), np.int64)
    for r, run in enumerate(runs):
        for s, (sample, size) in enumerate(zip(run.samples, run.sizes, strict=True)):
            # Sample i is the section's number i * SAMPLE_STRIDE.
            at = np.searchsorted(sample, edges)
            found[:, r, s, 0] = np.maximum(at[:-1] - 1, 0) * SAMPLE_STRIDE
            found[:, r, s, 1] = np.minimum(at[1:] * SAMPLE_STRIDE, size)
    found[..., 1] = np.maximum(found[..., 0], found[..., 1])
    return found


class Source(NamedTuple):
    """What a bucket's task needs to know of a run: its file and the sizes of its sections."""

    path: str
    sizes: tuple[int, int, int]


def read_bucket(sources: list[Source], where: npt.NDArray[np.int64], low: float, high: float) -> Points:
    """The points with low <= score < high of all runs.

    where : int64 array, shape (runs, sections, 2): the bucket's `brackets`.
    """
    negatives, positives, scores, pairs = [], [], [], []
    for source, ((n0, n1), (p0, p1), (e0, e1)) in zip(sources, where.tolist(), strict=True):
        n, p, m = source.sizes
        # Not mapped into memory: the pages of all runs together would count as this process's.
        with Path(source.path).open("rb", buffering=0) as file:
            negatives.append(_between(_read(file, n0, n1), low, high))
            positives.append(_between(_read(file, n + p0, n + p1), low, high))
            start = n + p
            score = _read(file, start + e0, start + e1)
            a, b = np.searchsorted(score, [low, high])
            if a < b:
                rest = [_read(file, start + i * m + e0 + a, start + i * m + e0 + b) for i in (1, 2)]
                scores.append(score[a:b])
                pairs.append(np.stack(rest, axis=1))
    plain = Points(*ties.merge_classes(_sorted(negatives), _sorted(positives)))
    if not scores:
        return plain
    folded = Points(*ties.sum_ties(*sort_entries(np.concatenate(scores), np.concatenate(pairs))))
    if plain.score.size == 0:
        return folded
    # A log has either weights, all in entries, or whole-number counts, which add exactly.
    return Points(*row_kernels.merge_points(*plain, *folded))


def _read(file: FileIO, start: int, stop: int) -> Array:
    return np.fromfile(file, np.float64, stop - start, offset=8 * start - file.tell())


def _between(section: Array, low: float, high: float) -> Array:
    a, b = np.searchsorted(section, [low, high])
    return section[a:b]


def _sorted(parts: list[Array]) -> Array:
    whole = np.concatenate(parts)
    parts.clear()
    whole.sort()
    return whole
