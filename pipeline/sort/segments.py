"""The segments of all runs: numbered in the order of their keys, level by level, and found again from a run's codes.

A run has its own codes, in the order in which its segments appeared, so that a new segment changes no kept run. One
file in scratch space maps them to the codes among all runs; tasks read a run's part of it.

Merged ranges of scores write each segment's items, and tasks gather them. A file holds items of some numbers each
(points, or pooled blocks of them), segment after segment, ascending in each: packed column by column
(`pipeline._kernels.packing`), and so is where each segment's items begin; then where each column's blocks begin, so
that any stretch of a column can be read alone. A segment's items of all ranges, one after the other, ascend.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from calibrators.arithmetic.passes import Array, Points
from logcal.arrow_columns import as_column
from pipeline._kernels import packing
from pipeline.execution import tasks
from pipeline.files.blobs import Blob, each, reading, write_blob, writing
from pipeline.log import segment_values
from pipeline.log.segment_values import Key, arrays
from pipeline.sort import run_files
from pipeline.sort.folding import bits_of_tags
from pipeline.sort.run_files import Integers, Run, Words, blocks_of, packed_columns

Codes = npt.NDArray[np.int32]


def write_codes(path: str, codes: Codes) -> str:
    """Leave codes where tasks find them."""
    write_blob(path, [np.ascontiguousarray(codes).data])
    return path


def read_codes(path: str, start: int, stop: int) -> Codes:
    """The codes from place `start` to place `stop` of a file."""
    codes = np.empty(stop - start, np.int32)
    if codes.size:
        with Blob(path) as blob:
            blob.read(4 * start, codes.data.cast("B"))
    return codes


@dataclass(frozen=True)
class Coding:
    """Translation of the codes of runs into those of all runs.

    path : of a file of int32. starts : where the codes of each run begin in it, and the end. count : of all segments
    """

    path: str
    starts: tuple[int, ...]
    count: int

    def table(self, run: int) -> Codes:
        """Return the code of all runs for each of a run's codes."""
        return read_codes(self.path, *self.starts[run : run + 2])

    @property
    def bits(self) -> int:
        """Bits of a tag."""
        return bits_of_tags(self.count)


@dataclass(frozen=True)
class Level:
    """The segments of the first so many columns, in the order of `segment_values.order`.

    Attributes
    ----------
    level : number of columns in a key. types : of the columns.
    keys : of the segments. rows, positives : int64 arrays: of each, rows used, and those with label 1.
    of : int32 array: of each segment of all columns, the place of the one that it belongs to.
    """

    level: int
    types: tuple[pa.DataType, ...]
    keys: Sequence[Key]
    rows: Integers
    positives: Integers
    of: Codes


def write_keys(path: str, level: Level, names: Sequence[str]) -> str:
    """Leave the values of segments where tasks find them, a column of each name; see `read_keys`."""
    with writing(path) as file:
        pq.write_table(pa.Table.from_arrays(arrays(level.keys, level.types), names=list(names)), file)
    return path


def read_keys(path: str, codes: Integers) -> pa.Table:
    """The values of segments with some codes, a row each."""
    with reading(path) as source, pq.ParquetFile(source) as file:
        return file.read(use_threads=False).take(as_column(codes)).combine_chunks()


@dataclass(frozen=True)
class Segments:
    """All segments: levels from the first column alone to all of them, and the coding of the runs."""

    levels: tuple[Level, ...]
    coding: Coding


def number_segments(runs: Sequence[Run], scratch: str) -> Segments:
    """Number the segments of all runs; the coding is left in scratch space.

    Raises
    ------
    InputRejectedError
        More than `segment_values.MAX_SEGMENTS`.
    """
    known = [run.segments for run in runs if run.segments is not None]
    columns = [
        pa.concat_arrays(column)
        for column in zip(*(run_segments.values for run_segments in known), strict=True)
    ]
    numbered = segment_values.number(columns)
    starts = np.cumsum([0, *(len(run_segments.counts) for run_segments in known)]).tolist()
    coding = Coding(write_codes(f"{scratch}/codes", numbered.codes), tuple(starts), len(numbered.keys[-1]))
    by_label = np.zeros((2, coding.count), np.int64)
    for run_segments, start in zip(known, starts, strict=False):
        codes = numbered.codes[start : start + len(run_segments.counts)]
        for own, rows in zip(by_label, run_segments.counts.T, strict=True):
            np.add.at(own, codes, rows.astype(np.int64))
    counts = by_label.T
    levels = []
    for i, (keys, of) in enumerate(zip(numbered.keys, numbered.of, strict=True)):
        first = np.flatnonzero(np.diff(of, prepend=-1))
        own_counts = np.add.reduceat(counts, first, axis=0)
        types = numbered.types[: i + 1]
        levels.append(Level(i + 1, types, keys, own_counts.sum(axis=1), own_counts[:, 1].copy(), of))
    return Segments(tuple(levels), coding)


class Packed(NamedTuple):
    """A file of columns of numbers of 8 bytes. sizes : numbers of each column. words : of all that are packed."""

    path: str
    sizes: tuple[int, ...]
    words: int

    def read(self, column: int, start: int = 0, stop: int | None = None) -> Words:
        """Numbers start, ..., stop - 1 of a column, as the whole numbers that their bits are."""
        with Blob(self.path) as blob:
            return self._read(blob, column, start, self.sizes[column] if stop is None else stop)

    def read_first(self, columns: int, start: int, stop: int) -> list[Words]:
        """The same of the first so many columns."""
        with Blob(self.path) as blob:
            return [self._read(blob, column, start, stop) for column in range(columns)]

    def _read(self, blob: Blob, column: int, start: int, stop: int) -> Words:
        if start >= stop:
            return np.empty(0, np.uint64)
        first, last = start // run_files.SAMPLE_STRIDE, blocks_of(stop)
        ends = np.empty(last - first + 1, np.int64)
        at = self.words + sum(blocks_of(size) + 1 for size in self.sizes[:column]) + first
        blob.read(8 * at, ends.data.cast("B"))
        size = int(ends[-1] - ends[0])
        words = np.zeros(size + packing.PADDING, np.uint64)
        blob.read(8 * int(ends[0]), words[:size].data.cast("B"))
        found = np.empty((last - first) * run_files.SAMPLE_STRIDE, np.uint64)
        packing.unpack(words, size, False, found)
        return found[start - first * run_files.SAMPLE_STRIDE : stop - first * run_files.SAMPLE_STRIDE]


def write_packed(path: str, columns: Iterable[npt.NDArray[Any]]) -> Packed:
    """Write columns of float64, or of whole numbers of 64 bits."""
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
    """A file of items: a column each, and then where each segment's begin, and the end."""

    file: Packed

    @property
    def path(self) -> str:
        """Path of the file."""
        return self.file.path

    @property
    def columns(self) -> int:
        """Numbers of an item."""
        return len(self.file.sizes) - 1

    @property
    def segments(self) -> int:
        """Number of segments."""
        return self.file.sizes[-1] - 1

    def starts(self, first: int, last: int) -> Integers:
        """Return the starts of the items of segments first, ..., last, and the end."""
        return self.file.read(self.columns, first, last + 2).view(np.int64)

    def read(self, first: int, last: int) -> tuple[list[Array], Integers]:
        """The items of segments first, ..., last, a column each, and where each segment's begin among them."""
        starts = self.starts(first, last)
        return self.slice(int(starts[0]), int(starts[-1])), starts - starts[0]

    def slice(self, start: int, stop: int) -> list[Array]:
        """Items start, ..., stop - 1."""
        return [column.view(np.float64) for column in self.file.read_first(self.columns, start, stop)]


def write_shuffle(path: str, columns: Sequence[Array], starts: Integers) -> ShuffleFile:
    """Write a range's items. starts : of each segment's, and the end; shape (segments + 1,)."""
    return ShuffleFile(write_packed(path, [*columns, starts]))


class Slices(NamedTuple):
    """Items of some segments, segment after segment: columns of float64, and where each segment begins, and the end.

    heaviest : see `ScoreTable`
    """

    columns: list[Array]
    starts: Integers
    heaviest: float = 1.0

    def points(self) -> Iterator[Points]:
        """Each segment's points, where items are points."""
        for start, stop in zip(self.starts[:-1].tolist(), self.starts[1:].tolist(), strict=True):
            # Each is fitted: of thousands that takes long.
            tasks.check()
            yield Points(*(column[start:stop] for column in self.columns))


def gather(files: Sequence[ShuffleFile], first: int, last: int) -> Slices:
    """All items of segments first, ..., last. files : in the order of their ranges."""
    found = each(lambda file: file.read(first, last), files, files[0].path)
    counts = np.sum([np.diff(starts) for _, starts in found], axis=0, dtype=np.int64)
    starts = np.concatenate([[0], np.cumsum(counts)])
    columns = [np.empty(starts[-1]) for _ in range(files[0].columns)]
    fill = starts[:-1].copy()
    for own, own_starts in found:
        sizes = np.diff(own_starts)
        places = np.repeat(fill - own_starts[:-1], sizes) + np.arange(own_starts[0], own_starts[-1])
        fill += sizes
        for column, items in zip(columns, own, strict=True):
            column[places] = items
    return Slices(columns, starts)


def item_counts(files: Sequence[ShuffleFile]) -> Integers:
    """Return the number of items of each segment."""
    total = np.zeros(files[0].segments, np.int64)
    for starts in each(lambda file: file.starts(0, file.segments - 1), files, files[0].path):
        total += np.diff(starts)
    return total
