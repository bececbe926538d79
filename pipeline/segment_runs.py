"""Runs of segments: the first stage of the out-of-core sort where a log has segments.

A run holds some millions of rows, segment after segment, as raw float64: the scores with label 0 and then those with
label 1; of weighted rows the scores, the weights and the weights of the positive rows. Slices of at least
`SAMPLE_STRIDE` numbers are sorted and sampled, since their segment may be cut over several tasks; shorter ones are
sorted where they are gathered. Each level, that is each number of leading segment columns, has runs of its own, and
so has the log without segments: a log is read once for all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from calibrators._kernels import segments as kernels
from calibrators._kernels import ties
from calibrators.points import Array, Points
from pipeline import quarantine, segment_values
from pipeline.logs import Piece, read_rows
from pipeline.runs import Reading, RunReceipt, calibration_scores, new_buffer

SAMPLE_STRIDE = 1024

Integers = npt.NDArray[np.int64]


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
    pieces: tuple[Piece, ...], reading: Reading, folder: str, index: int, run_rows: int, keep_bad: bool
) -> SegmentReceipt:
    """Read pieces of a log and leave their usable rows as runs of every level; as `runs.write_runs`."""
    columns = reading.columns
    whole = new_buffer(columns, run_rows, Path(folder), index)
    buffer = _Buffer(len(columns.segments), columns.weight is not None, run_rows, Path(folder), index)
    encoder = segment_values.Encoder(columns.segments)
    receipt = SegmentReceipt()
    bad_tables: list[pa.Table] = []
    for piece in pieces:
        for rows in read_rows(reading.filesystem, piece, columns):
            receipt.rows += rows.score.size
            scores = calibration_scores(rows.score, reading)
            used = whole.add(rows._replace(score=scores))
            buffer.add(scores, encoder.encode(rows.batch), rows.label, rows.weight, encoder)
            receipt.used += used
            if used < rows.score.size:
                bad, table = quarantine.find_bad(rows, columns, piece.path)
                receipt.bad.merge(bad)
                if keep_bad:
                    bad_tables.append(table)
    whole.flush()
    buffer.flush(encoder)
    receipt.runs, receipt.segment_runs = whole.runs, buffer.runs
    receipt.used_positive = whole.used_positive
    receipt.lowest, receipt.highest = whole.lowest, whole.highest
    if bad_tables:
        quarantine.write_part(bad_tables, Path(folder) / f"bad-{index:06d}.parquet")
    return receipt


class _Buffer:
    """Usable rows with the codes of their segments, on their way into runs of every level."""

    def __init__(self, levels: int, weighted: bool, capacity: int, folder: Path, index: int) -> None:
        self.levels = levels
        self.weighted = weighted
        self.folder = folder
        self.index = index
        self.score = np.empty(capacity)
        self.code = np.empty(capacity, np.int32)
        self.label = np.empty(capacity, np.uint8)
        self.weight = np.empty(capacity if weighted else 0)
        self.n = 0
        self.flushed = 0
        self.runs: list[SegmentRun] = []

    def add(
        self,
        score: Array,
        code: npt.NDArray[np.int32],
        label: npt.NDArray[np.uint8],
        weight: Array | None,
        encoder: segment_values.Encoder,
    ) -> None:
        """Take the usable rows of a batch."""
        good = np.isfinite(score) & (label <= 1)
        if weight is not None:
            good &= np.isfinite(weight) & (weight > 0)
        kept = slice(None) if good.all() else good
        score, code, label = score[kept] + 0.0, code[kept], label[kept]  # -0.0 is 0.0
        weight = None if weight is None else weight[kept]
        done = 0
        while done < score.size:
            if self.n == self.score.size:
                self.flush(encoder)
            step = min(score.size - done, self.score.size - self.n)
            into, taken = slice(self.n, self.n + step), slice(done, done + step)
            self.score[into], self.code[into], self.label[into] = score[taken], code[taken], label[taken]
            if weight is not None:
                self.weight[into] = weight[taken]
            self.n += step
            done += step

    def flush(self, encoder: segment_values.Encoder) -> None:
        """Write what is held as a run of each level."""
        if self.n:
            present = np.flatnonzero(np.bincount(self.code[: self.n]))
            for level in range(1, self.levels + 1):
                self._write_level(level, present, encoder)
            self.n = 0
            self.flushed += 1

    def _write_level(self, level: int, present: Integers, encoder: segment_values.Encoder) -> None:
        found = [encoder.keys[code][:level] for code in present.tolist()]
        keys = sorted(set(found), key=segment_values.order)
        place = {key: i for i, key in enumerate(keys)}
        rank = np.zeros(len(encoder.keys), np.int64)
        rank[present] = [place[key] for key in found]
        code, label = self.code[: self.n], self.label[: self.n]
        classes = 1 if self.weighted else 2
        starts = np.zeros(classes * len(keys) + 1, np.int64)
        positions = np.empty(self.n, np.int64)
        kernels.scatter(code, rank, label, classes, starts, positions)
        score = np.empty(self.n)
        score[positions] = self.score[: self.n]
        sections = [score]
        if self.weighted:
            weight, hits = np.empty(self.n), np.empty(self.n)
            weight[positions] = self.weight[: self.n]
            hits[positions] = np.where(label == 1, self.weight[: self.n], 0.0)
            sections += [weight, hits]
        counts = np.diff(starts).astype(np.int32).reshape(classes, len(keys))
        positives = (
            np.bincount(rank[code[label == 1]], minlength=len(keys)).astype(np.int32)
            if self.weighted
            else counts[1]
        )
        sampled, sample = _sort_long_slices(sections, starts, len(keys))
        path = self.folder / f"run-{self.index:06d}-{self.flushed:04d}-level-{level}"
        temporary = path.with_suffix(".tmp")
        with temporary.open("wb") as file:
            for section in sections:
                file.write(section.data)
        temporary.replace(path)
        values = segment_values.arrays(keys, encoder.types[:level])
        self.runs.append(SegmentRun(str(path), level, values, counts, positives, sampled, sample))


def _sort_long_slices(
    sections: list[Array], starts: Integers, segments: int
) -> tuple[npt.NDArray[np.int32], Array]:
    """Sort the slices that a segment may be cut in; return where their samples are from, and the samples."""
    sampled, samples = [np.empty(0, np.int32)], [np.empty(0)]
    for i in np.flatnonzero(np.diff(starts) >= SAMPLE_STRIDE).tolist():
        own = slice(starts[i], starts[i + 1])
        if len(sections) == 1:
            sections[0][own].sort()
        else:
            by_score = np.argsort(sections[0][own])
            for section in sections:
                section[own] = section[own][by_score]
        samples.append(sections[0][own][::SAMPLE_STRIDE].copy())
        sampled.append(np.full(samples[-1].size, i % segments, np.int32))
    return np.concatenate(sampled), np.concatenate(samples)


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
    np.save(f"{run.path}.index.npy", index)


def _index(path: str, first: int, last: int) -> Integers:
    """The part of a run's index for the codes first, ..., last; shape (1 + classes, segments found + 1)."""
    index = np.load(f"{path}.index.npy", mmap_mode="r")
    a, b = np.searchsorted(index[0, :-1], [first, last + 1])
    return np.array(index[:, a : b + 1])


def gather(sources: list[str], wanted: Integers, weighted: bool) -> list[Points]:
    """The points of each wanted segment, all its rows together.

    wanted : codes, ascending, near each other: what lies between them is read too.
    """
    indices = [_index(path, int(wanted[0]), int(wanted[-1])) for path in sources]
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
    sections = [np.empty(starts[s % classes, -1]) for s in range(3 if weighted else 2)]
    for s, section in enumerate(sections):
        fill = starts[s % classes, :-1].copy()
        for path, index, target in zip(sources, indices, targets, strict=True):
            bounds = index[1 + s % classes]
            if target.size:
                data = _read(path, s if weighted else 0, bounds[0], bounds[-1], weighted)
                kernels.place(data, bounds - bounds[0], target, fill, section)
    cut = [np.split(section, starts[s % classes, 1:-1]) for s, section in enumerate(sections)]
    return [points_of(list(slices)) for slices in zip(*cut, strict=True)]


def points_of(sections: list[Array]) -> Points:
    """Points of a segment's sections in any order; the sections of plain rows are sorted in place."""
    if len(sections) == 2:
        for section in sections:
            section.sort()
        return Points(*ties.merge_classes(*sections))
    by_score = np.argsort(sections[0])
    return Points(*ties.sum_ties(*(section[by_score] for section in sections)))


def gather_range(sources: list[str], code: int, low: float, high: float, weighted: bool) -> Points:
    """The points of one segment with low <= score < high."""
    sections: list[list[Array]] = [[np.empty(0)] for _ in range(3 if weighted else 2)]
    for path in sources:
        index = _index(path, code, code)
        if index.shape[1] < 2:
            continue
        for c in range(index.shape[0] - 1):
            a, b = _range(path, int(index[1 + c, 0]), int(index[1 + c, 1]), low, high)
            columns = [_read(path, s, a, b, weighted) for s in ((0, 1, 2) if weighted else (0,))]
            inside = (columns[0] >= low) & (columns[0] < high)
            for s, column in enumerate(columns):
                sections[s + c].append(column if inside.all() else column[inside])
    return points_of([np.concatenate(parts) for parts in sections])


def _range(path: str, start: int, stop: int, low: float, high: float) -> tuple[int, int]:
    """Where to read a slice: the range itself where the slice is sorted, else all of it."""
    if stop - start < SAMPLE_STRIDE:
        return start, stop
    # Only the pages that the search touches are read.
    ordered = np.memmap(path, np.float64, "r", offset=8 * start, shape=(stop - start,))
    a, b = np.searchsorted(ordered, [low, high])
    return start + int(a), start + int(b)


def _read(path: str, section: int, start: int, stop: int, weighted: bool) -> Array:
    """Numbers of a run. section : of weighted rows, 0 to 2; plain rows have their classes one after the other."""
    with Path(path).open("rb", buffering=0) as file:
        rows = file.seek(0, 2) // 24 if weighted else 0
        file.seek(0)
        return np.fromfile(file, np.float64, int(stop - start), offset=8 * int(section * rows + start))


def splitters(run_samples: list[Array], buckets: int) -> Array:
    """Scores that cut a segment into about `buckets` parts of equal size; never inside a tie."""
    sample = np.sort(np.concatenate(run_samples))
    if sample.size == 0:
        return sample
    chosen = np.unique(sample[(np.arange(1, buckets) * sample.size) // buckets])
    return chosen[chosen > sample[0]]


def run_segments(run: SegmentRun) -> list[Any]:
    """The keys of a run's segments."""
    return segment_values.keys_of(run.values)
