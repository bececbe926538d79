"""The segments of all runs: numbered in the order of their keys, level by level, and found again from a run's codes.

A run has its own codes, in the order in which its segments appeared, so that a new segment changes no kept run. One
file in scratch space maps them to the codes among all runs; tasks read a run's part of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from logcal.arrow_columns import as_column
from pipeline.files.blobs import Blob, reading, write_blob, writing
from pipeline.log import segment_values
from pipeline.log.segment_values import Key, arrays
from pipeline.sort.folding import bits_of_tags
from pipeline.sort.run_files import Integers, Run

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
    counts = np.zeros((coding.count, 2), np.int64)
    for run_segments, start in zip(known, starts, strict=False):
        codes = numbered.codes[start : start + len(run_segments.counts)]
        # A run's segments differ.
        counts[codes] += run_segments.counts
    levels = []
    for i, (keys, of) in enumerate(zip(numbered.keys, numbered.of, strict=True)):
        first = np.flatnonzero(np.diff(of, prepend=-1))
        own_counts = np.add.reduceat(counts, first, axis=0)
        types = numbered.types[: i + 1]
        levels.append(Level(i + 1, types, keys, own_counts.sum(axis=1), own_counts[:, 1].copy(), of))
    return Segments(tuple(levels), coding)
