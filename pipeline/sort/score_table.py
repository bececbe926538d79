"""The score table: one row per distinct score, ascending, with its weight and positives; out of core.

Built in two stages of coarse tasks with one shuffle through scratch space: tasks sort rows into runs
(`pipeline.sort.runs`), one task chooses splitters from a sample of them, and tasks gather one bucket each from
all runs. Receipts and samples go from task to task, never rows.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from calibrators.core.arrays import Array
from calibrators.core.kernels.sums import exact_sum
from calibrators.core.passes import Pass
from calibrators.core.sampling import add_sums, scaled
from logcal.errors import InputRejectedError, LabelsWaitingError
from pipeline.execution import Executor, Graph
from pipeline.files.blobs import receipts_in
from pipeline.files.folders import Folder
from pipeline.labels.label_join import add_labels
from pipeline.log import quarantine
from pipeline.log.label_counts import complete_counts, sum_labels
from pipeline.log.logs import Log, cut
from pipeline.log.quarantine import RowRules
from pipeline.sort import buckets, runs
from pipeline.sort.buckets import BucketSpans
from pipeline.sort.parts import PARQUET, Part, part_of, run_parts
from pipeline.sort.run_files import MOST_ROWS, most_bytes, row_width
from pipeline.sort.run_merging import add_regrouping
from pipeline.sort.runs import Reading, RunReceipt
from pipeline.sort.segment_merge import Cutting, merge_segments
from pipeline.sort.segments import ShuffleFile

RUN_ROWS = 1 << 21
"""Rows per run: 32 MB of buffers."""

BUCKET_BYTES = 24 << 20
"""Bytes of run data per bucket; with its points and a calibrator's arrays, some 150 MB in a worker."""

LABEL_BYTES = 256 << 20
"""Most bytes of outcomes joined in memory; more are joined part by part."""

_WORKER_BYTES = 160 << 20
"""Memory of an idle worker."""

_SMALLEST_BUCKET = 4 << 20
_WORK_FACTOR = 8
"""Memory of a bucket's task, as a multiple of the bucket's bytes."""

JOINED = 16
"""Buckets whose states of the first pass are joined."""

MOST_RUNS = 2048
"""Runs above which runs and buckets grow, as far as memory allows: each bucket has a span in each run, and one task
holds all spans."""


@dataclass(frozen=True)
class SortPlan:
    """Plan of a score table.

    Parameters
    ----------
    scratch : folder that all workers can reach: a path or a URL
    transform, lookup, grid : see `pipeline.sort.runs.Reading`
    rules : treatment of unusable rows
    write : folder for the table's parts; None if only the first pass is needed
    keep : whether these parts are kept, as Parquet
    run_rows, bucket_bytes, label_bytes : sizes of runs, buckets, and outcomes in memory; they do not change results
    """

    scratch: str
    transform: str = "none"
    lookup: str | None = None
    grid: str = runs.NO_GRID
    rules: RowRules = field(default_factory=RowRules)
    write: str | None = None
    keep: bool = False
    run_rows: int = RUN_ROWS
    bucket_bytes: int = BUCKET_BYTES
    label_bytes: int = LABEL_BYTES

    def within(self, memory: int, rows: int = 0) -> SortPlan:
        """Return the plan with tasks that fit into workers with `memory` bytes; results do not change.

        For more rows than `MOST_RUNS` runs have, tasks are larger, if memory allows.
        """
        fits = max(_SMALLEST_BUCKET, (memory - _WORKER_BYTES) // _WORK_FACTOR)
        growth = max(1.0, rows / (MOST_RUNS * self.run_rows))
        bucket = min(int(self.bucket_bytes * growth), fits)
        run_rows = min(int(self.run_rows * growth), bucket * RUN_ROWS // BUCKET_BYTES, MOST_ROWS)
        labels = memory * 3 // 8
        return replace(self, bucket_bytes=bucket, run_rows=run_rows, label_bytes=labels)


@dataclass(kw_only=True)
class ScoreTable(RunReceipt):
    """Score table in parts of ascending scores, with the receipt of its rows, without their runs.

    Attributes
    ----------
    points : number of distinct scores. weight, positives : totals, correctly rounded
    shuffled : for each requested level, the shuffle files of the ranges of scores, in order
    rounded : whether scores were rounded to a grid
    """

    parts: tuple[Part, ...]
    points: int
    weight: float
    positives: float
    shuffled: tuple[tuple[ShuffleFile, ...], ...] = ()
    rounded: bool = False

    def run(self, request: Pass, executor: Executor, stage: str = "pass") -> Any:
        """Carry out a pass over the written parts that it needs."""
        return run_parts([(part.first, part) for part in self.parts], request, executor, stage)

    @property
    def weights(self) -> list[tuple[float, Array]]:
        """First score and exact weight (an expansion) of each part; empty if some are not known."""
        all_known = all(part.weight.size for part in self.parts)
        return [(part.first, part.weight) for part in self.parts] if all_known else []

    def label_facts(self) -> dict[str, Any]:
        """Return facts about joined labels for the manifest, which `facts` does not have."""
        return {} if self.labels is None else {"labels": self.labels.facts()}

    def facts(self) -> dict[str, Any]:
        """Return facts about the table for the manifest."""
        optional: dict[str, Any] = {"largest_score_move": self.largest_move} if self.rounded else {}
        if self.scale != 1.0:
            optional = {"weight_scale": self.scale, **optional}
        if self.waiting:
            optional = {"rows_waiting": self.waiting, **optional}
        optional = {**self.held_out, **optional}
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
            **optional,
        }


def scratch_bytes(log: Log, *, write: bool) -> int:
    """Return an upper bound of the scratch space for sorting a log, and for the table's parts if `write`."""
    columns = log.columns
    run_bytes = most_bytes(log.rows, columns.weight is not None, bool(columns.segments))
    if log.rows > MOST_RUNS * RUN_ROWS:
        run_bytes *= 2  # runs may be merged twice: see `pipeline.sort.run_merging`
    return run_bytes + (25 * log.rows if write else 0)


class SortedRows(NamedTuple):
    """A log's rows as runs: the input of the stages after the first.

    Attributes
    ----------
    log : the log, with a weight column if its runs have weights
    plan : plan of the sort and of the merge
    total : RunReceipt of all runs, or a reference to it in a graph
    """

    log: Log
    plan: SortPlan
    total: Any

    @property
    def weighted(self) -> bool:
        """True if rows have weights."""
        return self.log.columns.weight is not None

    @property
    def most_parts(self) -> int:
        """Upper bound of the number of parts of the score table."""
        if isinstance(self.total, RunReceipt):
            total_bytes = sum(run.bytes for run in self.total.runs)
        else:
            total_bytes = self.log.rows * row_width(self.weighted)
        return max(1, -(-total_bytes // self.plan.bucket_bytes))


def build_score_table(
    log: Log, plan: SortPlan, executor: Executor, request: Pass | None = None
) -> tuple[ScoreTable, Any]:
    """Sort a log's rows into a score table, and carry out a first pass in the merge tasks.

    Parameters
    ----------
    request : the first pass, or None

    Returns
    -------
    table : ScoreTable
    result : result of the pass, or None without one

    Raises
    ------
    InputRejectedError
        There are more unusable rows than the rules allow, or no usable row.
    """
    graph = Graph()
    rows = SortedRows(log, plan, add_sort(graph, log, plan))
    result: tuple[ScoreTable, Any] = executor.compute(graph, add_merge(graph, rows, request))
    return result


def merge_rows(rows: SortedRows, executor: Executor, request: Pass | None = None) -> tuple[ScoreTable, Any]:
    """Merge sorted rows into a score table; see `build_score_table`."""
    graph = Graph()
    result: tuple[ScoreTable, Any] = executor.compute(graph, add_merge(graph, rows, request))
    return result


def add_sort(graph: Graph, log: Log, plan: SortPlan) -> Any:
    """Add the first stages to a graph: `sort-i -> check`, and a second level of merging if needed.

    Returns a reference to the sum of the receipts.

    A task writes its receipt next to its files. A task that is repeated, since a worker was lost or a run resumes after
    a crash, reads the receipt.
    """
    base_reading = Reading(log.filesystem, log.columns, plan.transform, plan.lookup, plan.grid)
    pieces = cut(log, plan.run_rows)
    readings = add_labels(graph, log, base_reading, pieces, plan.scratch, plan.label_bytes)
    tasks = [
        (task_pieces, reading, plan.scratch, i, plan.run_rows, plan.rules.keep)
        for i, (task_pieces, reading) in enumerate(zip(pieces, readings, strict=True))
    ]
    receipts = graph.layer("sort", runs.write_runs, tasks, receipts=receipts_in(plan.scratch))
    total = graph.task("check", _check, receipts, plan.rules, log.columns.outcomes)
    return add_regrouping(graph, total, len(tasks), SortedRows(log, plan, total).most_parts, plan.scratch)


def add_merge(
    graph: Graph, rows: SortedRows, request: Pass | None = None, cutting: Cutting | None = None
) -> Any:
    """Add the second stage to a graph: `split -> merge-i -> combine`; return a reference to table and result.

    The number of merge tasks is an upper bound from the number of rows, known in advance; superfluous tasks do nothing.
    A merge task reads only its entry of the split.

    cutting : how to divide rows into segments; None without segments
    """
    plan, total, count = rows.plan, rows.total, rows.most_parts
    if cutting is not None and not isinstance(total, RunReceipt):
        # Each run has the values of most segments; numbered segments make them superfluous.
        total = graph.task("runs", without_segments, total)
    split = graph.task("split", _split, total, plan.bucket_bytes, count, plan.write)
    # Merge tasks only need the chunk function.
    first = None if request is None else replace(request, combine=list, join=None)
    suffix = PARQUET if plan.keep else ""
    tasks = [
        (entry, plan.write and f"{plan.write}/part-{i:05d}{suffix}", first, cutting, i)
        for i, entry in enumerate(graph.entries("entry", split, count))
    ]
    merged = graph.layer("merge", _merge_bucket, tasks, receipts=receipts_in(plan.scratch))
    merged = _add_joins(graph, merged, request)
    combine = None if request is None else request.combine
    return graph.task("combine", _combine, total, merged, combine, plan.grid)


def without_segments(total: RunReceipt) -> RunReceipt:
    """Drop the segments' values from a receipt's runs."""
    return replace(total, runs=[replace(run, segments=None) for run in total.runs])


def _check(receipts: list[RunReceipt], rules: RowRules, outcomes: int) -> RunReceipt:
    total = add_up(receipts)
    quarantine.check(total.bad, total.rows, rules)
    total.labels = complete_counts(total.labels, outcomes, matched=rules.matched)
    if total.used == 0:
        raise (LabelsWaitingError if total.waiting else InputRejectedError)(
            f"expected usable rows, found none among {total.rows:,}{quarantine.waiting(total.waiting)}"
        )
    return total


def add_up(receipts: list[RunReceipt]) -> RunReceipt:
    """Add up receipts of tasks of the first stage."""
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
    total.sums = add_sums([receipt.sums for receipt in receipts])
    total.labels = sum_labels([receipt.labels for receipt in receipts])
    return total


class _Entry(NamedTuple):
    """A bucket: spans of its rows, and its range of scores, low <= score < high.

    scale : factor of the sums of weights
    """

    spans: BucketSpans
    low: float
    high: float
    scale: float


def _split(total: RunReceipt, bucket_bytes: int, count: int, write: str | None) -> list[_Entry | None]:
    """Cut all runs into at most `count` buckets; pad the list with None.

    write : see `SortPlan`
    """
    if write is not None:
        Folder.at(write).make()
    least_bytes = -(-sum(run.bytes for run in total.runs) // count)
    scale = total.scale
    entries = [_Entry(*bucket, scale) for bucket in ranges(total, max(bucket_bytes, least_bytes))]
    return [*entries, *([None] * (count - len(entries)))]


def ranges(total: RunReceipt, bucket_bytes: int) -> list[tuple[BucketSpans, float, float]]:
    """Cut all runs into buckets of about `bucket_bytes`; return spans and score range, low <= score < high, of each."""
    inner = buckets.splitters(total.runs, bucket_bytes)
    edges = np.concatenate([[-math.inf], inner, [math.inf]])
    spans = buckets.bucket_spans(total.runs, edges, bucket_bytes)
    return [(spans[i], float(low), float(high)) for i, (low, high) in enumerate(itertools.pairwise(edges))]


class _Merged(NamedTuple):
    """Parts of neighbouring buckets, the state of the first pass on them, and each part's shuffle files."""

    parts: list[Part]
    state: Any
    files: list[list[ShuffleFile]]


def _add_joins(graph: Graph, merged: list[Any], request: Pass | None) -> list[Any]:
    """Join the states of neighbouring buckets, if there are many, as soon as these are merged: less memory."""
    if request is None or request.join is None or len(merged) <= JOINED:
        return merged
    groups = [(merged[i : i + JOINED], request.join) for i in range(0, len(merged), JOINED)]
    return graph.layer("states", _join_buckets, groups, shown=False)


def _join_buckets(merged: list[_Merged | None], join: Callable[[list[Any]], Any]) -> _Merged | None:
    nonempty = [bucket for bucket in merged if bucket is not None]
    if not nonempty:
        return None
    states = [bucket.state for bucket in nonempty if bucket.state is not None]
    parts = [part for bucket in nonempty for part in bucket.parts]
    files = [written for bucket in nonempty for written in bucket.files]
    return _Merged(parts, join(states) if states else None, files)


def _merge_bucket(
    entry: _Entry | None,
    path: str | None,
    first: Pass | None,
    cutting: Cutting | None,
    index: int,
) -> _Merged | None:
    """Gather a bucket, write it if there is a path, and carry out the first pass on it."""
    if entry is None:
        return None
    spans, low, high, scale = entry
    files: list[ShuffleFile] = []
    table_of = None if cutting is None else cutting.coding.table
    bucket = buckets.read_bucket(spans, low, high, table_of)
    if cutting is not None:
        points, used, files = merge_segments(bucket, cutting, index, scale)
    else:
        points = used = bucket.points() if scale == 1.0 else scaled(bucket.points(), scale)
    if not points.score.size:
        return None
    state = first.chunk(used) if first is not None and used.score.size else None
    return _Merged([part_of(points, path)], state, [files])


def _combine(
    total: RunReceipt,
    merged: list[_Merged | None],
    combine: Callable[[list[Any]], Any] | None,
    grid: str,
) -> tuple[ScoreTable, Any]:
    nonempty = [bucket for bucket in merged if bucket is not None]
    parts = tuple(part for bucket in nonempty for part in bucket.parts)
    states = [bucket.state for bucket in nonempty if bucket.state is not None]
    result = None if combine is None else combine(states)
    shuffled = tuple(zip(*(files for bucket in nonempty for files in bucket.files), strict=True))
    receipt = {**vars(total), "runs": [], "lowest": float(total.lowest), "highest": float(total.highest)}
    table = ScoreTable(
        **receipt,
        parts=parts,
        points=sum(part.points for part in parts),
        weight=float(exact_sum(np.concatenate([part.weight for part in parts]))),
        positives=float(exact_sum(np.concatenate([part.positives for part in parts]))),
        shuffled=shuffled,
        rounded=grid != runs.NO_GRID,
    )
    return table, result
