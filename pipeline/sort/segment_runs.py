"""Runs of segments: the first stage of the out-of-core sort where a log has segments.

A run holds some millions of rows, segment after segment, as raw float64: the scores with label 0 and then those with
label 1; of weighted rows the scores, and the weights, negative where the label is 0. Long slices are sorted and
sampled, since their segment may be cut over several tasks; shorter ones are sorted where they are gathered. Each
level, that is each number of leading segment columns, has runs of its own, and so has the log without segments: a log
is read once for all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from calibrators.ordering import ascending
from calibrators.passes import Array, Points
from pipeline._kernels import segments as kernels
from pipeline.arrow_columns import as_column
from pipeline.log import quarantine, score_grid, segment_values
from pipeline.log.log_files import Piece
from pipeline.log.logs import Log, Rows, cut, read_rows
from pipeline.sort.buckets import Bucket
from pipeline.sort.run_files import row_width
from pipeline.sort.runs import Buffer, Reading, RunReceipt, WeightedBuffer, calibration_scores
from pipeline.sort.score_table import SortPlan
from pipeline.table.segment_lookup import CodedMaps, cached_segmented_lookup

SAMPLE_STRIDE = 1024

Integers = npt.NDArray[np.int64]

_NONE = np.empty(0)


@dataclass
class SegmentRun:
    """A run file of one level.

    Attributes
    ----------
    values : the segments in it, in the order of `segment_values.order`, a column each.
    counts : int32 array, shape (classes, segments): numbers of each slice. One class where rows have weights.
    positives : int32 array, shape (segments,): rows with label 1.
    sampled, sample : of the long slices, the place of the segment in `values` and every `SAMPLE_STRIDE`-th score.
    """

    path: str
    level: int
    values: list[pa.Array]
    counts: npt.NDArray[np.int32]
    positives: npt.NDArray[np.int32]
    sampled: npt.NDArray[np.int32]
    sample: Array


@dataclass
class SegmentReceipt(RunReceipt):
    """What one task did; `runs` are those of the log without segments."""

    segment_runs: list[SegmentRun] = field(default_factory=list)


def write_segment_runs(
    pieces: tuple[Piece, ...],
    reading: Reading,
    folder: str,
    index: int,
    run_rows: int,
    keep_bad: bool,
    shortest_sorted: int,
    lowest: int = 1,
) -> SegmentReceipt:
    """Read pieces of a log and leave their usable rows as runs of every level; as `runs.write_runs`.

    shortest_sorted : slices of so many numbers are sorted and sampled. lowest : the first level that is wanted.
    """
    columns = reading.columns
    buffer = _Buffer(reading, run_rows, Path(folder), index, shortest_sorted, lowest)
    receipt = SegmentReceipt()
    bad_tables: list[pa.Table] = []
    for piece in pieces:
        for rows in read_rows(reading.filesystem, piece, columns):
            receipt.rows += rows.score.size
            used = buffer.add(rows)
            receipt.used += used
            if used < rows.score.size:
                bad, table = quarantine.find_bad(rows, columns, piece.path)
                receipt.bad.merge(bad)
                if keep_bad:
                    bad_tables.append(table)
    buffer.flush()
    receipt.runs, receipt.segment_runs = buffer.whole.runs, buffer.runs
    receipt.used_positive = buffer.whole.used_positive
    receipt.lowest, receipt.highest = buffer.whole.lowest, buffer.whole.highest
    receipt.largest_move = buffer.largest_move
    if bad_tables:
        quarantine.write_part(bad_tables, Path(folder) / f"bad-{index:06d}.parquet")
    return receipt


class _Buffer:
    """Usable rows with the slots of their segments, on their way into runs of every level.

    The rows are scattered once, by segment; each level's slices are those of the level above joined, so that one array
    is written again and again, sorted over longer and longer slices. The last ones are the classes of all rows.
    """

    def __init__(
        self, reading: Reading, capacity: int, folder: Path, index: int, shortest_sorted: int, lowest: int
    ) -> None:
        columns = reading.columns
        self.reading = reading
        self.weighted = columns.weight is not None
        self.lowest = lowest
        self.levels = len(columns.segments)
        self.capacity = capacity
        self.folder = folder
        self.index = index
        self.shortest_sorted = shortest_sorted
        self.encoder = segment_values.Encoder(columns.segments)
        self.maps: CodedMaps | None = None
        if reading.lookup is not None:
            self.maps = CodedMaps(cached_segmented_lookup(reading.lookup), self.encoder)
        self.whole: Buffer = (WeightedBuffer if self.weighted else Buffer)(0, folder, index)
        self.score = np.empty(capacity + 1)
        self.slot = np.empty(capacity + 1, np.int32)
        self.weight = np.empty(capacity if self.weighted else 0)
        self.counts = np.zeros(0, np.int64)
        self.n = 0
        self.largest_move = 0.0
        self.runs: list[SegmentRun] = []

    def add(self, rows: Rows) -> int:
        """Take the usable rows; return how many there were."""
        code = self.encoder.encode(rows.batch)
        score = calibration_scores(rows.score, self.reading._replace(lookup=None))
        if self.maps is not None:
            # As in `calibration_scores`.
            score, _ = self.maps.predict(np.where(np.isfinite(score), score, np.nan), code)
        score, move = score_grid.round_scores(score, self.reading.grid)
        self.largest_move = max(self.largest_move, move)
        self.counts = np.append(self.counts, np.zeros(2 * len(self.encoder) - self.counts.size, np.int64))
        used = 0
        for start in range(0, rows.score.size, self.capacity):
            part = slice(start, start + self.capacity)
            taken = (score[part], rows.label[part])
            if self.n + taken[0].size > self.capacity:
                self.flush()
            before = self.n
            if rows.weight is None:
                self.n = kernels.keep(*taken, code[part], self.score, self.slot, self.counts, self.n)
            else:
                out = (self.score, self.weight, self.slot)
                self.n = kernels.keep_weighted(
                    *taken, rows.weight[part], code[part], *out, self.counts, self.n
                )
            used += self.n - before
        return used

    def flush(self) -> None:
        """Write what is held as a run of each level."""
        if self.n == 0:
            return
        counts = self.counts.reshape(-1, 2)
        codes, ranks, values = self.encoder.sort(np.flatnonzero(counts.any(axis=1)))
        counts = np.ascontiguousarray(counts[codes].T)
        classes = counts.sum(axis=0, keepdims=True) if self.weighted else counts
        sections = self._scatter(codes, classes)
        changes = np.zeros(codes.size, np.bool_)
        borders = [changes := changes | (np.diff(column, prepend=-1) != 0) for column in ranks]
        flushed = len(self.whole.runs)
        for level in range(self.levels, self.lowest - 1, -1):
            first = np.flatnonzero(borders[level - 1])
            own = [
                column.take(as_column(rank[first]))
                for column, rank in zip(values[:level], ranks[:level], strict=True)
            ]
            path = self.folder / f"run-{self.index:06d}-{flushed:04d}-level-{level}"
            slices = np.add.reduceat(classes, first, axis=1)
            positives = np.add.reduceat(counts[1], first).astype(np.int32)
            self.runs.append(self._write(path, level, own, sections, slices, positives))
        if self.weighted:
            assert isinstance(self.whole, WeightedBuffer)
            self.whole.write_weighted(np.stack(sections, axis=1))
        else:
            negatives = int(counts[0].sum())
            self.whole.write(sections[0][:negatives], sections[0][negatives:])
        self.counts[:] = 0
        self.n = 0

    def _scatter(self, codes: Integers, classes: Integers) -> list[Array]:
        """The rows' sections in the order of class and segment."""
        sections = [np.empty(self.n) for _ in range(2 if self.weighted else 1)]
        starts = (np.cumsum(classes) - classes.reshape(-1)).reshape(classes.shape)
        score, slot, weight = self.score[: self.n], self.slot[: self.n], self.weight[: self.n]
        fill = np.zeros((len(self.encoder), classes.shape[0]), np.int64)
        fill[codes] = starts.T
        if self.weighted:
            kernels.scatter_weighted(score, weight, slot, fill.reshape(-1), *sections)
        else:
            kernels.scatter(score, slot, fill.reshape(-1), sections[0])
        return sections

    def _write(
        self,
        path: Path,
        level: int,
        values: list[pa.Array],
        sections: list[Array],
        slices: Integers,
        positives: npt.NDArray[np.int32],
    ) -> SegmentRun:
        sampled, sample = _sort_long_slices(sections, slices, self.shortest_sorted)
        temporary = path.with_suffix(".tmp")
        with temporary.open("wb") as file:
            for section in sections:
                file.write(section.data)
        temporary.replace(path)
        return SegmentRun(str(path), level, values, slices.astype(np.int32), positives, sampled, sample)


def _sort_long_slices(
    sections: list[Array], slices: Integers, shortest: int
) -> tuple[npt.NDArray[np.int32], Array]:
    """Sort the slices that a segment may be cut in; return where their samples are from, and the samples."""
    sampled, samples = [np.empty(0, np.int32)], [np.empty(0)]
    sizes = slices.reshape(-1)
    ends = np.cumsum(sizes)
    for i in np.flatnonzero(sizes >= shortest).tolist():
        own = slice(ends[i] - sizes[i], ends[i])
        if len(sections) == 1:
            sections[0][own].sort()
        else:
            by_score = ascending(sections[0][own])
            for section in sections:
                section[own] = section[own][by_score]
        samples.append(sections[0][own][::SAMPLE_STRIDE].copy())
        sampled.append(np.full(samples[-1].size, i % slices.shape[1], np.int32))
    return np.concatenate(sampled), np.concatenate(samples)


def shortest_sorted(log: Log, plan: SortPlan) -> int:
    """From how many numbers on a slice is sorted: shorter ones of a segment are half a task at most, all together.

    A segment is cut where it is larger than a task, and what is not sorted is then read once for each of its parts.
    """
    runs = len(cut(log, plan.run_rows)) + log.rows // plan.run_rows
    numbers = plan.bucket_bytes // row_width(log.columns.weight is not None)
    return max(SAMPLE_STRIDE, numbers // (2 * runs))


def write_index(run: SegmentRun, codes: Integers) -> None:
    """Leave beside a run which segments it has, by their codes over the whole log, and where their slices begin.

    An int64 array, shape (1 + classes, segments + 1): the codes, ascending, and the beginnings in each class.
    """
    counts = run.counts
    ends = np.cumsum(counts.reshape(-1), dtype=np.int64).reshape(counts.shape)
    index = np.empty((1 + counts.shape[0], codes.size + 1), np.int64)
    index[0, :-1], index[0, -1] = codes, np.iinfo(np.int64).max
    index[1:, 1:] = ends
    index[1:, 0] = np.concatenate([[0], ends[:-1, -1]])
    index.tofile(f"{run.path}.index")


def _index(path: str, weighted: bool, first: int, last: int) -> Integers:
    """The part of a run's index for the codes first, ..., last; shape (1 + classes, segments found + 1)."""
    index = np.memmap(f"{path}.index", np.int64, "r").reshape(2 if weighted else 3, -1)
    a, b = np.searchsorted(index[0, :-1], [first, last + 1])
    return np.array(index[:, a : b + 1])


@dataclass(frozen=True)
class Slices:
    """Rows of some segments, segment after segment.

    sections : of plain rows the scores of either class; of weighted rows scores, and weights with the label's sign.
    starts : int64 arrays, shape (segments + 1,): where each segment begins in each section, and the end.
    """

    sections: list[Array]
    starts: list[Integers]
    weighted: bool

    def each(self) -> Iterator[list[Array]]:
        """Each segment's sections."""
        cut = [np.split(s, starts[1:-1]) for s, starts in zip(self.sections, self.starts, strict=True)]
        return map(list, zip(*cut, strict=True))

    def points(self) -> list[Points]:
        """Each segment's points; the sections of plain rows are sorted in place."""
        return [bucket_of(first, second, self.weighted).points() for first, second in self.each()]


def gather(sources: list[str], wanted: Integers, weighted: bool) -> Slices:
    """The rows of each wanted segment, in the order of the runs.

    wanted : codes, ascending, near each other: what lies between them is read too.
    """
    indices = [_index(path, weighted, int(wanted[0]), int(wanted[-1])) for path in sources]
    targets = []
    classes = 1 if weighted else 2
    counts = np.zeros((classes, wanted.size), np.int64)
    for index in indices:
        at = np.searchsorted(wanted, index[0, :-1]).clip(max=wanted.size - 1)
        target = np.where(wanted[at] == index[0, :-1], at, -1)
        targets.append(target)
        own = target >= 0
        counts[:, target[own]] += np.diff(index[1:], axis=1)[:, own]
    starts = np.concatenate([np.zeros((classes, 1), np.int64), np.cumsum(counts, axis=1)], axis=1)
    sections = [np.empty(starts[s % classes, -1]) for s in range(2)]
    for s, section in enumerate(sections):
        fill = starts[s % classes, :-1].copy()
        for path, index, target in zip(sources, indices, targets, strict=True):
            bounds = index[1 + s % classes]
            if target.size:
                data = _read(path, s if weighted else 0, bounds[0], bounds[-1], weighted)
                kernels.place(data, bounds - bounds[0], target, fill, section)
    return Slices(sections, [starts[s % classes] for s in range(len(sections))], weighted)


def bucket_of(first: Array, second: Array, weighted: bool) -> Bucket:
    """The rows of a segment's sections in any order; those of plain rows are sorted in place."""
    if weighted:
        return Bucket(_NONE, _NONE, np.stack([first, second], axis=1), None, 0.0)
    first.sort()
    second.sort()
    return Bucket(first, second, np.empty((0, 2)), None, 0.0)


def gather_range(
    sources: list[str], code: int, low: float, high: float, weighted: bool, shortest_sorted: int
) -> Bucket:
    """The rows of one segment with low <= score < high; `Bucket.before` is not known."""
    sections: list[list[Array]] = [[np.empty(0)] for _ in range(2)]
    for path in sources:
        index = _index(path, weighted, code, code)
        if index.shape[1] < 2:
            continue
        for c in range(index.shape[0] - 1):
            a, b = int(index[1 + c, 0]), int(index[1 + c, 1])
            if b - a >= shortest_sorted:
                a, b = _range(path, a, b, low, high)
            columns = [_read(path, s, a, b, weighted) for s in ((0, 1) if weighted else (0,))]
            inside = (columns[0] >= low) & (columns[0] < high)
            for s, column in enumerate(columns):
                sections[s + c].append(column if inside.all() else column[inside])
    first, second = (np.concatenate(parts) for parts in sections)
    return bucket_of(first, second, weighted)


def _range(path: str, start: int, stop: int, low: float, high: float) -> tuple[int, int]:
    """Where a range lies in a sorted slice."""
    # Only the pages that the search touches are read.
    ordered = np.memmap(path, np.float64, "r", offset=8 * start, shape=(stop - start,))
    a, b = np.searchsorted(ordered, [low, high])
    return start + int(a), start + int(b)


def _read(path: str, section: int, start: int, stop: int, weighted: bool) -> Array:
    """Numbers of a run. section : of weighted rows, 0 or 1; plain rows have their classes one after the other."""
    with Path(path).open("rb", buffering=0) as file:
        rows = file.seek(0, 2) // row_width(weighted) if weighted else 0
        file.seek(0)
        return np.fromfile(file, np.float64, int(stop - start), offset=8 * int(section * rows + start))


def splitters(run_samples: list[Array], buckets: int) -> Array:
    """Scores that cut a segment into about `buckets` parts of equal size; never inside a tie."""
    sample = np.sort(np.concatenate(run_samples))
    if sample.size == 0:
        return sample
    chosen = np.unique(sample[(np.arange(1, buckets) * sample.size) // buckets])
    return chosen[chosen > sample[0]]
