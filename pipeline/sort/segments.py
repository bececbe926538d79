"""Segments of all runs, numbered level by level, and shuffle files with the items of each segment.

A run has its own segment codes, in order of appearance, so that a new segment changes no stored run. One file in
scratch space maps them to the codes among all runs, which follow the order of the keys; tasks read a run's part of it.

A merge task writes a shuffle file with the items (points, or pooled blocks) of each segment in its range of scores, and
segment tasks gather them. Items lie segment after segment and ascend within each. Their columns, and the starts of the
segments, are packed (`pipeline._kernels.packing`); an index of the blocks at the end of the file allows reading any
range of a column. A segment's items from all ranges, concatenated, ascend.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from calibrators.core.arrays import Array, Codes, Integers
from calibrators.core.passes import Points
from logcal.arrow_columns import as_column
from pipeline._kernels import packing
from pipeline._kernels import rows as kernels
from pipeline.execution import tasks
from pipeline.files.blobs import Blob, each, reading, write_blob, writing
from pipeline.log import segment_values
from pipeline.log.segment_values import Key, arrays
from pipeline.sort import run_files
from pipeline.sort.run_files import Run, Words, blocks_of, packed_columns


def write_codes(path: str, codes: Codes) -> str:
    """Write codes to a file; return its path."""
    write_blob(path, [np.ascontiguousarray(codes).data])
    return path


def read_codes(path: str, start: int, stop: int) -> Codes:
    """Read codes start, ..., stop - 1 of a file."""
    codes = np.empty(stop - start, np.int32)
    if codes.size:
        with Blob(path) as blob:
            blob.read(4 * start, codes.data.cast("B"))
    return codes


@dataclass(frozen=True)
class Coding:
    """Translation of the runs' segment codes into codes among all runs.

    path : file of int32 codes. starts : start of each run's codes in it, and the end. count : number of segments
    """

    path: str
    starts: tuple[int, ...]
    count: int

    def table(self, run: int) -> Codes:
        """Return the code among all runs for each of a run's codes."""
        return read_codes(self.path, *self.starts[run : run + 2])


@dataclass(frozen=True)
class Level:
    """Segments by the values of the first `level` columns, in the order of `segment_values.order`.

    Attributes
    ----------
    level : number of columns in a key. types : types of the columns
    keys : key of each segment. rows, positives : int64 arrays: used rows of each segment, and those with label 1
    of : int32 array: for each segment of all columns, the index of its segment on this level
    """

    level: int
    types: tuple[pa.DataType, ...]
    keys: Sequence[Key]
    rows: Integers
    positives: Integers
    of: Codes


def write_keys(path: str, level: Level, names: Sequence[str]) -> str:
    """Write the segments' values to a Parquet file with these column names; return its path. See `read_keys`."""
    with writing(path) as file:
        pq.write_table(pa.Table.from_arrays(arrays(level.keys, level.types), names=list(names)), file)
    return path


def read_keys(path: str, codes: Codes) -> pa.Table:
    """Read the values of the segments with these codes, one row each."""
    with reading(path) as source, pq.ParquetFile(source) as file:
        return file.read(use_threads=False).take(as_column(codes)).combine_chunks()


@dataclass(frozen=True)
class Segments:
    """All segments: levels from the first column to all columns, and the coding of the runs."""

    levels: tuple[Level, ...]
    coding: Coding


def number_segments(runs: Sequence[Run], scratch: str) -> Segments:
    """Number the segments of all runs; write the coding to scratch space.

    Raises
    ------
    InputRejectedError
        There are more than `segment_values.MAX_SEGMENTS` segments.
    """
    present = [run.segments for run in runs if run.segments is not None]
    parts = segment_values.unified_values([segments.values for segments in present])
    columns = [pa.concat_arrays(column) for column in zip(*parts, strict=True)]
    numbered = segment_values.number(columns)
    starts = np.cumsum([0, *(len(segments.counts) for segments in present)]).tolist()
    coding = Coding(write_codes(f"{scratch}/codes", numbered.codes), tuple(starts), len(numbered.keys[-1]))
    by_label = np.zeros((2, coding.count))  # exact below 2**53 rows
    for segments, start in zip(present, starts, strict=False):
        codes = numbered.codes[start : start + len(segments.counts)]
        for label_counts, in_run in zip(by_label, segments.counts.T, strict=True):
            label_counts += np.bincount(codes, in_run, coding.count)
    counts = by_label.T.astype(np.int64)
    levels = []
    for i, (keys, of) in enumerate(zip(numbered.keys, numbered.of, strict=True)):
        first = np.flatnonzero(np.diff(of, prepend=-1))
        level_counts = np.add.reduceat(counts, first, axis=0)
        types = numbered.types[: i + 1]
        levels.append(Level(i + 1, types, keys, level_counts.sum(axis=1), level_counts[:, 1].copy(), of))
    return Segments(tuple(levels), coding)


class Packed(NamedTuple):
    """File of packed columns of 8-byte numbers. sizes : length of each column. words : words of all packed columns."""

    path: str
    sizes: tuple[int, ...]
    words: int

    def read(self, column: int, start: int = 0, stop: int | None = None) -> Words:
        """Read numbers start, ..., stop - 1 of a column, as the uint64 of their bits."""
        with Blob(self.path) as blob:
            return self._read(blob, column, start, self.sizes[column] if stop is None else stop)

    def read_first(self, columns: int, start: int, stop: int) -> list[Words]:
        """Read numbers start, ..., stop - 1 of the first columns; see `read`."""
        with Blob(self.path) as blob:
            return [self._read(blob, column, start, stop) for column in range(columns)]

    def _read(self, blob: Blob, column: int, start: int, stop: int) -> Words:
        if start >= stop:
            return np.empty(0, np.uint64)
        first, last = start // run_files.SAMPLE_STRIDE, blocks_of(stop)
        ends = np.empty(last - first + 1, np.int64)
        position = self.words + sum(blocks_of(size) + 1 for size in self.sizes[:column]) + first
        blob.read(8 * position, ends.data.cast("B"))
        size = int(ends[-1] - ends[0])
        words = np.zeros(size + packing.PADDING, np.uint64)
        blob.read(8 * int(ends[0]), words[:size].data.cast("B"))
        numbers = np.empty((last - first) * run_files.SAMPLE_STRIDE, np.uint64)
        packing.unpack(words, size, False, numbers)
        return numbers[start - first * run_files.SAMPLE_STRIDE : stop - first * run_files.SAMPLE_STRIDE]


def write_packed(path: str, columns: Iterable[npt.NDArray[Any]]) -> Packed:
    """Write columns of float64 or 64-bit integers to a packed file."""
    sizes: list[int] = []
    ends: list[Integers] = []

    def parts() -> Iterator[memoryview]:
        yield from packed_columns(_sized(columns, sizes), ends)
        yield np.concatenate(ends).data

    write_blob(path, parts())
    return Packed(path, tuple(sizes), int(ends[-1][-1]))


def _sized(columns: Iterable[npt.NDArray[Any]], sizes: list[int]) -> Iterator[tuple[npt.NDArray[Any], bool]]:
    for column in columns:
        sizes.append(column.size)
        yield column, False


class ShuffleFile(NamedTuple):
    """File of the items of segments: columns of the items, then the start of each segment's items, and the end."""

    file: Packed

    @property
    def path(self) -> str:
        """Path of the file."""
        return self.file.path

    @property
    def columns(self) -> int:
        """Number of columns of an item."""
        return len(self.file.sizes) - 1

    @property
    def segments(self) -> int:
        """Number of segments."""
        return self.file.sizes[-1] - 1

    def starts(self, first: int, last: int) -> Integers:
        """Return the starts of the items of segments first, ..., last, and the end."""
        return self.file.read(self.columns, first, last + 2).view(np.int64)

    def read(self, first: int, last: int) -> tuple[list[Array], Integers]:
        """Read the items of segments first, ..., last by column, and the start of each segment among them."""
        starts = self.starts(first, last)
        return self.slice(int(starts[0]), int(starts[-1])), starts - starts[0]

    def slice(self, start: int, stop: int) -> list[Array]:
        """Read items start, ..., stop - 1 by column."""
        return [column.view(np.float64) for column in self.file.read_first(self.columns, start, stop)]


def write_shuffle(path: str, columns: Sequence[Array], starts: Integers) -> ShuffleFile:
    """Write a range's items. starts : start of each segment's items, and the end; shape (segments + 1,)."""
    return ShuffleFile(write_packed(path, [*columns, starts]))


class Slices(NamedTuple):
    """Items of some segments, segment after segment.

    columns : float64 arrays. starts : start of each segment, and the end. heaviest : see `RunReceipt`
    """

    columns: list[Array]
    starts: Integers
    heaviest: float = 1.0

    def points(self) -> Iterator[Points]:
        """Yield each segment's points, if items are points."""
        for start, stop in zip(self.starts[:-1].tolist(), self.starts[1:].tolist(), strict=True):
            # Fitting thousands of segments takes long: check whether the task must stop.
            tasks.check()
            yield Points(*(column[start:stop] for column in self.columns))


def gather(files: Sequence[ShuffleFile], first: int, last: int) -> Slices:
    """Gather all items of segments first, ..., last. files : shuffle files, by range."""
    slices = each(lambda file: file.read(first, last), files, files[0].path)
    starts = np.asarray(sum(file_starts for _, file_starts in slices))
    columns = [np.empty(starts[-1]) for _ in range(files[0].columns)]
    slots = starts[:-1].copy()
    for items, file_starts in slices:
        for column, values in zip(columns, items, strict=True):
            kernels.scatter_items(values, file_starts, slots, column)
        slots += np.diff(file_starts)
    return Slices(columns, starts)


def item_counts(files: Sequence[ShuffleFile]) -> Integers:
    """Return the number of items of each segment."""
    starts = each(lambda file: file.starts(0, file.segments - 1), files, files[0].path)
    return np.asarray(np.diff(sum(starts)))
