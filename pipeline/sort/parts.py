"""Parts of a score table: the points of ranges of scores, written for later passes or passed to a chunk function.

A table that is kept is Parquet. Parts in scratch space are packed as runs are: written in a third of the time, and read
in half of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from calibrators.core.arrays import Array, Integers
from calibrators.core.kernels.sums import expansion_of
from calibrators.core.passes import Pass, Points
from logcal.arrow_columns import as_column, as_numpy
from pipeline import schema
from pipeline._kernels import packing
from pipeline.execution import Executor
from pipeline.files.blobs import Blob, reading, write_blob, writing
from pipeline.sort.run_files import packed_columns

PARQUET = ".parquet"

_ASCENDING = (True, False, False)
"""Order of the columns of points: True if ascending."""


class Part(NamedTuple):
    """Part of a score table: a range of scores.

    path : its file; None if it is not written. first : lowest score. points : number of points
    weight, positives : totals as expansions, empty where not known
    ends : ends of the packed columns in 8-byte words; empty in a Parquet file
    """

    path: str | None
    first: float
    points: int
    weight: Array
    positives: Array
    ends: tuple[int, ...] = ()

    def read(self) -> Points:
        """Read the points of a written part."""
        assert self.path is not None
        return _read_packed(self.path, self.points, self.ends) if self.ends else read_points(self.path)


def run_parts(parts: Iterable[tuple[float, Any]], request: Pass, executor: Executor, stage: str) -> Any:
    """Carry out a pass over the parts that it needs.

    parts : first score of each part, and an object whose `read` returns its points, such as a `Part`
    """
    tasks = [(part, request.chunk) for first, part in parts if request.only is None or first in request.only]
    return executor.reduce(stage, _run_part, tasks, request.combine)


def _run_part(part: Any, chunk: Callable[[Points], Any]) -> Any:
    return chunk(part.read())


def part_of(points: Points, path: str | None) -> Part:
    """Make a part of points, written if there is a path: as Parquet if its name says so, else packed."""
    ends: tuple[int, ...] = ()
    if path is not None:
        if path.endswith(PARQUET):
            write_points(points, path)
        else:
            ends = _write_packed(points, path)
    weight, positives = expansion_of(points.weight), expansion_of(points.positives)
    return Part(path, float(points.score[0]), points.score.size, weight, positives, ends)


def _write_packed(points: Points, path: str) -> tuple[int, ...]:
    """Write points packed, and return the ends of the columns; a repeated task writes the same file again."""
    ends: list[Integers] = []
    write_blob(path, packed_columns(zip(points, _ASCENDING, strict=True), ends))
    return tuple(int(column[-1]) for column in ends)


def _read_packed(path: str, size: int, ends: tuple[int, ...]) -> Points:
    points = Points(*(np.empty(size) for _ in Points._fields))
    spans = list(pairwise([0, *ends]))
    words = np.zeros(max(stop - start for start, stop in spans) + packing.PADDING, np.uint64)
    with Blob(path) as file:
        for column, ascending, (start, stop) in zip(points, _ASCENDING, spans, strict=True):
            file.read(8 * start, words[: stop - start].data.cast("B"))
            packing.unpack(words, stop - start, ascending, column.view(np.uint64))
    return points


def write_points(points: Points, path: str) -> None:
    """Write points as a part of a score table; a repeated task writes the same file again."""
    table = pa.Table.from_arrays([as_column(column) for column in points], schema=schema.SCORE_TABLE)
    write_part(table, path, ["weight", "positives"])


def write_part(table: pa.Table, path: str, repeated: list[str]) -> None:
    """Write a part as Parquet. repeated : columns to write as dictionaries."""
    with writing(path) as file:
        pq.write_table(
            table,
            file,
            # A few percent larger than with zstd, and read in two thirds of the time.
            compression="lz4",
            use_dictionary=repeated,
            column_encoding={"score": "BYTE_STREAM_SPLIT"},
            row_group_size=max(1, table.num_rows),  # reading several would take twice the memory
        )


def read_points(path: str) -> Points:
    """Read a part of a score table."""
    with reading(path) as source, pq.ParquetFile(source, pre_buffer=False) as file:
        table = file.read(columns=schema.SCORE_TABLE.names, use_threads=False)
    return Points(*(as_numpy(table.column(name)) for name in schema.SCORE_TABLE.names))
