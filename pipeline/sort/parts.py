"""Parts of a score table: the points of ranges of scores, written as Parquet files or passed to a chunk function."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from calibrators.core.arrays import Array
from calibrators.core.kernels.sums import expansion_of
from calibrators.core.passes import Pass, Points
from logcal.arrow_columns import as_column, as_numpy
from pipeline import schema
from pipeline.execution import Executor
from pipeline.files.blobs import reading, writing


class Part(NamedTuple):
    """Part of a score table: a range of scores.

    path : Parquet file; None if it is not written. first : lowest score. points : number of points
    weight, positives : totals as expansions, empty where not known
    """

    path: str | None
    first: float
    points: int
    weight: Array
    positives: Array

    def read(self) -> Points:
        """Read the points of a written part."""
        assert self.path is not None
        return read_points(self.path)


def run_parts(parts: Iterable[tuple[float, Any]], request: Pass, executor: Executor, stage: str) -> Any:
    """Carry out a pass over the parts that it needs.

    parts : first score of each part, and an object whose `read` returns its points, such as a `Part`
    """
    tasks = [(part, request.chunk) for first, part in parts if request.only is None or first in request.only]
    return executor.reduce(stage, _run_part, tasks, request.combine)


def _run_part(part: Any, chunk: Callable[[Points], Any]) -> Any:
    return chunk(part.read())


def part_of(points: Points, path: str | None) -> Part:
    """Make a part of points, written if there is a path."""
    if path is not None:
        write_points(points, path)
    first, weight, positives = (
        float(points.score[0]),
        expansion_of(points.weight),
        expansion_of(points.positives),
    )
    return Part(path, first, points.score.size, weight, positives)


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
