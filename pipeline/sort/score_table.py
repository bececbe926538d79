"""The score table: one row a distinct score, ascending, with its weight and positives; out of core.

Built in two stages of coarse tasks with one exchange through scratch space: tasks sort rows into runs
(`pipeline.sort.runs`), the coordinator chooses splitters from a sample of them, and tasks gather one bucket each from
all runs. The coordinator holds receipts and samples, never rows.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from calibrators._kernels.accumulators import expansion_of
from calibrators._kernels.sums import exact_sum
from calibrators.passes import Array, Classes, Pass, Place, Points
from pipeline import schema
from pipeline.arrow_columns import as_column, as_numpy
from pipeline.errors import InputRejectedError
from pipeline.execution import Executor
from pipeline.log import quarantine, score_grid
from pipeline.log.logs import Log, cut
from pipeline.log.quarantine import BadRows, RowRules
from pipeline.sort import buckets, runs
from pipeline.sort.buckets import Bucket, Places
from pipeline.sort.run_files import MOST_ROWS, most_bytes
from pipeline.sort.runs import Reading, RunReceipt

RUN_ROWS = 1 << 21
"""Rows a run: 32 MB of buffers."""

BUCKET_BYTES = 24 << 20
"""Of run data a bucket: with its points and a calibrator's work, some 150 MB in a worker."""

_WORKER_BYTES = 160 << 20
"""Of a worker before it does anything."""

_SMALLEST_BUCKET = 4 << 20
_WORK_FACTOR = 8
"""Memory that a bucket's task needs, in terms of its bytes."""

MOST_RUNS = 2048
"""Beyond so many, runs and buckets grow as far as the memory allows: every bucket has a place in every run, and the
coordinator holds them all."""


@dataclass(frozen=True)
class SortPlan:
    """How to build a score table.

    Parameters
    ----------
    scratch : folder that all workers see
    transform, lookup, grid : see `pipeline.sort.runs.Reading`
    rules : what to do with unusable rows
    write : folder to write the table's parts to, or None where the first pass is all that is wanted
    run_rows, bucket_bytes : sizes of the work; they change no result
    """

    scratch: Path
    transform: str = "none"
    lookup: str | None = None
    grid: str = score_grid.NONE
    rules: RowRules = field(default_factory=RowRules)
    write: Path | None = None
    run_rows: int = RUN_ROWS
    bucket_bytes: int = BUCKET_BYTES

    def within(self, memory: int, rows: int = 0) -> SortPlan:
        """The plan with tasks small enough for workers with `memory` bytes. No result changes.

        Tasks for more rows than `MOST_RUNS` runs hold are larger, where the memory allows it.
        """
        fits = max(_SMALLEST_BUCKET, (memory - _WORKER_BYTES) // _WORK_FACTOR)
        growth = max(1.0, rows / (MOST_RUNS * self.run_rows))
        bucket = min(int(self.bucket_bytes * growth), fits)
        run_rows = min(int(self.run_rows * growth), bucket * RUN_ROWS // BUCKET_BYTES, MOST_ROWS)
        return replace(self, bucket_bytes=bucket, run_rows=run_rows)


_MOST_CLASSES = 1 << 26
"""Rows below which `Pass.classes` is exact."""


class Part(NamedTuple):
    """A part of the table: a range of scores; weight and positives as expansions, empty where not known.

    group : the row group of the file that it is; None: all of them.
    """

    path: str | None
    first: float
    points: int
    weight: Array
    positives: Array
    group: int | None = None


@dataclass(frozen=True)
class ScoreTable:
    """A score table in parts of ascending scores.

    Attributes
    ----------
    rows, used : rows read, and rows in the table; the others are in `bad`.
    points : distinct scores. weight, positives : totals, correctly rounded.
    lowest, highest : the extreme scores.
    largest_move : of a score that was rounded to a grid; None without one.
    """

    parts: tuple[Part, ...]
    rows: int
    used: int
    used_positive: int
    points: int
    weight: float
    positives: float
    lowest: float
    highest: float
    bad: BadRows
    largest_move: float | None = None

    def run(self, request: Pass, executor: Executor, stage: str = "pass") -> Any:
        """Carry out a pass over the written parts, or over those of them that it needs."""
        return run_parts(self.parts, request, executor, stage)

    @property
    def weights(self) -> list[tuple[float, Array]]:
        """Of each part the first score and the exact weight (an expansion), where all are known."""
        known = all(part.weight.size for part in self.parts)
        return [(part.first, part.weight) for part in self.parts] if known else []

    def facts(self) -> dict[str, Any]:
        """What a manifest says of the table."""
        moved = {} if self.largest_move is None else {"largest_score_move": self.largest_move}
        return {
            "rows_read": self.rows,
            "rows_used": self.used,
            "rows_positive": self.used_positive,
            "rows_quarantined": self.bad.total,
            "quarantined_by_reason": self.bad.in_order(),
            "distinct_scores": self.points,
            "weight": self.weight,
            "positives": self.positives,
            "lowest_score": self.lowest,
            "highest_score": self.highest,
            **moved,
        }


def scratch_bytes(log: Log, *, write: bool) -> int:
    """Scratch space that sorting a log needs at most; with `write`, the table's parts included."""
    return most_bytes(log.rows, log.columns.weight is not None) + (24 * log.rows if write else 0)


def build_score_table(
    log: Log,
    plan: SortPlan,
    executor: Executor,
    request: Pass | None = None,
    total: RunReceipt | None = None,
) -> tuple[ScoreTable, Any]:
    """Sort a log's rows into a score table, and carry out a first pass over it on the way.

    Parameters
    ----------
    log, plan, executor : what, how and where
    request : the pass, or None
    total : what `sort_log` returned, where the log's runs are there already

    Returns
    -------
    table : ScoreTable
    result : of the pass, or None without one

    Raises
    ------
    InputRejectedError
        Unusable rows beyond what the rules allow; no usable row.
    """
    if total is None:
        total, _ = sort_log(log, plan, executor, runs.write_runs)
    tasks = _bucket_tasks(total, plan, request, placed=log.columns.weight is None)
    filled = [bucket for bucket in executor.run("merge", _merge_bucket, tasks) if bucket is not None]
    parts = tuple(part for part, _ in filled)
    result = request.combine([state for _, state in filled]) if request is not None else None
    return _table(parts, total, plan), result


def run_parts(parts: Sequence[Part], request: Pass, executor: Executor, stage: str) -> Any:
    """Carry out a pass over written parts, or over those of them that it needs."""
    tasks = [
        (part.path, part.group, request.chunk)
        for part in parts
        if request.only is None or part.first in request.only
    ]
    return request.combine(executor.run(stage, _run_chunk, tasks))


def sort_log(
    log: Log, plan: SortPlan, executor: Executor, write: Callable[..., Any]
) -> tuple[RunReceipt, list[Any]]:
    """The first stage: a log as runs.

    write : `runs.write_runs`, or a function with its parameters whose receipts hold more

    Returns
    -------
    the receipts' sum, the receipts

    Raises
    ------
    InputRejectedError
        Unusable rows beyond what the rules allow; no usable row.
    """
    reading = Reading(log.filesystem, log.columns, plan.transform, plan.lookup, plan.grid)
    tasks = [
        (pieces, reading, str(plan.scratch), i, plan.run_rows, plan.rules.keep)
        for i, pieces in enumerate(cut(log, plan.run_rows))
    ]
    receipts = executor.run("sort", write, tasks)
    total = add_up(receipts)
    quarantine.check(total.bad, total.rows, plan.rules)
    if total.used == 0:
        raise InputRejectedError(f"expected usable rows, found none among {total.rows:,}")
    return total, receipts


def add_up(receipts: list[RunReceipt]) -> RunReceipt:
    """What several tasks of the first stage did, in all."""
    total = RunReceipt()
    for receipt in receipts:
        total.runs += receipt.runs
        total.rows += receipt.rows
        total.used += receipt.used
        total.used_positive += receipt.used_positive
        total.lowest = min(total.lowest, receipt.lowest)
        total.highest = max(total.highest, receipt.highest)
        total.largest_move = max(total.largest_move, receipt.largest_move)
        total.bad.merge(receipt.bad)
    return total


def _bucket_tasks(
    total: RunReceipt, plan: SortPlan, request: Pass | None, *, placed: bool
) -> list[tuple[Any, ...]]:
    edges = np.concatenate([[-math.inf], buckets.splitters(total.runs, plan.bucket_bytes), [math.inf]])
    if plan.write is not None:
        plan.write.mkdir(parents=True, exist_ok=True)
    chunk: Callable[..., Any] | None = request.chunk if request is not None else None
    classes = request.classes if request is not None else None
    rows = None
    if placed and request is not None and request.placed is not None:
        chunk, rows = request.placed, total.used
    where = buckets.places(total.runs, edges)
    return [
        (where[i], float(low), float(high), _part_path(plan.write, i), chunk, rows, classes)
        for i, (low, high) in enumerate(itertools.pairwise(edges))
    ]


def _part_path(folder: Path | None, index: int) -> str | None:
    return None if folder is None else str(folder / f"part-{index:05d}.parquet")


def _merge_bucket(
    where: Places,
    low: float,
    high: float,
    path: str | None,
    chunk: Any,
    rows: int | None,
    classes: Classes | None,
) -> tuple[Part, Any] | None:
    """Gather a bucket, write it if wanted, and carry out the first pass on it.

    rows : for a pass carried out `placed`: of all buckets
    classes : see `Pass`
    """
    bucket = buckets.read_bucket(where, low, high)
    if rows is not None:
        chunk = partial(chunk, place=Place(int(bucket.before), rows))
    return merge(bucket, path, chunk, classes)


def merge(
    bucket: Bucket, path: str | None, chunk: Callable[[Points], Any] | None, classes: Classes | None
) -> tuple[Part, Any] | None:
    """Rows of a range of scores as a part, written where there is a path, and what a pass makes of them.

    Returns None where there are no rows.
    """
    rows = bucket.negatives.size + bucket.positives.size
    if classes is not None and path is None and bucket.plain and 0 < rows < _MOST_CLASSES:
        return _pooled(bucket.negatives, bucket.positives, classes)
    points = bucket.points()
    return _merged(points, path, chunk) if points.score.size else None


def _pooled(negatives: Array, positives: Array, classes: Classes) -> tuple[Part, Any]:
    """As `_merged`, of rows without weights whose points nobody needs."""
    state, points = classes(negatives, positives)
    first = min(float(scores[0]) for scores in (negatives, positives) if scores.size)
    hits = np.array([float(positives.size)])[: min(1, positives.size)]
    return Part(None, first, points, np.array([float(negatives.size + positives.size)]), hits), state


def _merged(points: Points, path: str | None, chunk: Callable[[Points], Any] | None) -> tuple[Part, Any]:
    if path is not None:
        write_points(points, Path(path))
    part = Part(
        path,
        float(points.score[0]),
        points.score.size,
        expansion_of(points.weight),
        expansion_of(points.positives),
    )
    return part, (chunk(points) if chunk is not None else None)


def _table(parts: tuple[Part, ...], total: RunReceipt, plan: SortPlan) -> ScoreTable:
    return ScoreTable(
        parts=parts,
        rows=total.rows,
        used=total.used,
        used_positive=total.used_positive,
        points=sum(part.points for part in parts),
        weight=float(exact_sum(np.concatenate([part.weight for part in parts]))),
        positives=float(exact_sum(np.concatenate([part.positives for part in parts]))),
        lowest=float(total.lowest),
        highest=float(total.highest),
        bad=total.bad,
        largest_move=None if plan.grid == score_grid.NONE else total.largest_move,
    )


def write_points(points: Points, path: Path) -> None:
    """Write points as a part of a score table; a repeated task writes the same file again."""
    table = pa.Table.from_arrays([as_column(column) for column in points], schema=schema.SCORE_TABLE)
    temporary = path.with_suffix(".tmp")
    pq.write_table(
        table,
        temporary,
        # Within some hundredths as small as zstd makes it, and read in two thirds of the time.
        compression="lz4",
        use_dictionary=["weight", "positives"],
        column_encoding={"score": "BYTE_STREAM_SPLIT"},
    )
    temporary.replace(path)


def read_points(path: str, group: int | None = None) -> Points:
    """A part of a score table."""
    score, weight, positives = schema.SCORE_TABLE.names
    with pq.ParquetFile(path, pre_buffer=False) as file:
        groups = range(file.num_row_groups) if group is None else [group]
        alike = only_weight(file.metadata, groups)
        names = [score, positives] if alike is not None else [score, weight, positives]
        table = file.read_row_groups(groups, columns=names, use_threads=False)
    columns = {name: as_numpy(table.column(name)) for name in names}
    if alike is not None:
        columns[weight] = np.full(table.num_rows, alike)
    return Points(columns[score], columns[weight], columns[positives])


def only_weight(footer: pq.FileMetaData, groups: Iterable[int]) -> float | None:
    """The weight that all points of some row groups have, where the footer tells."""
    at = schema.SCORE_TABLE.names.index("weight")
    found = set()
    for group in groups:
        statistics = footer.row_group(group).column(at).statistics
        if statistics is None or not statistics.has_min_max:
            return None
        found |= {statistics.min, statistics.max}
    return float(found.pop()) if len(found) == 1 else None


def _run_chunk(path: str, group: int | None, chunk: Any) -> Any:
    return chunk(read_points(path, group))
