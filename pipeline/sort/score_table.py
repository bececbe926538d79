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

from calibrators._kernels.sums import exact_sum
from calibrators.arithmetic.passes import Array, Pass, Points
from calibrators.arithmetic.sampling import add_sums, scaled
from logcal.errors import InputRejectedError, LabelsWaitingError
from pipeline.execution import Executor, Graph
from pipeline.files.blobs import receipts_in
from pipeline.files.folders import Folder
from pipeline.log import quarantine
from pipeline.log.label_counts import all_counted, sum_labels
from pipeline.log.logs import Log, cut
from pipeline.log.quarantine import RowRules
from pipeline.sort import buckets, runs
from pipeline.sort.buckets import BucketSpans
from pipeline.sort.label_join import add_labels
from pipeline.sort.parts import Part, merge_bucket, merge_points, run_parts
from pipeline.sort.run_files import MOST_ROWS, most_bytes, row_width
from pipeline.sort.run_merging import add_regrouping
from pipeline.sort.runs import Reading, RunReceipt
from pipeline.sort.segment_merge import Cutting, merge_segments
from pipeline.sort.segments import ShuffleFile

RUN_ROWS = 1 << 21
"""Rows a run: 32 MB of buffers."""

BUCKET_BYTES = 24 << 20
"""Bytes of run data a bucket: with its points and a calibrator's work, some 150 MB in a worker."""

LABEL_BYTES = 256 << 20
"""Bytes of outcomes that are joined at once; more are joined part by part."""

_WORKER_BYTES = 160 << 20
"""Memory of a worker before it does anything."""

_SMALLEST_BUCKET = 4 << 20
_WORK_FACTOR = 8
"""Memory that a bucket's task needs, in terms of its bytes."""

MOST_RUNS = 2048
"""Beyond so many, runs and buckets grow as far as the memory allows: every bucket has a place in every run, and
one task holds them all."""


@dataclass(frozen=True)
class SortPlan:
    """Plan of a score table.

    Parameters
    ----------
    scratch : folder that all workers see: a path or a URL
    transform, lookup, grid : see `pipeline.sort.runs.Reading`
    rules : what to do with unusable rows
    write : folder to write the table's parts to, or None where the first pass is all that is wanted
    run_rows, bucket_bytes, label_bytes : sizes of the work, and of outcomes that a process holds; they change no result
    """

    scratch: str
    transform: str = "none"
    lookup: str | None = None
    grid: str = runs.NO_GRID
    rules: RowRules = field(default_factory=RowRules)
    write: str | None = None
    run_rows: int = RUN_ROWS
    bucket_bytes: int = BUCKET_BYTES
    label_bytes: int = LABEL_BYTES

    def within(self, memory: int, rows: int = 0) -> SortPlan:
        """The plan with tasks small enough for workers with `memory` bytes. No result changes.

        Tasks for more rows than `MOST_RUNS` runs hold are larger, where the memory allows it.
        """
        fits = max(_SMALLEST_BUCKET, (memory - _WORKER_BYTES) // _WORK_FACTOR)
        growth = max(1.0, rows / (MOST_RUNS * self.run_rows))
        bucket = min(int(self.bucket_bytes * growth), fits)
        run_rows = min(int(self.run_rows * growth), bucket * RUN_ROWS // BUCKET_BYTES, MOST_ROWS)
        labels = memory * 3 // 8
        return replace(self, bucket_bytes=bucket, run_rows=run_rows, label_bytes=labels)


@dataclass(kw_only=True)
class ScoreTable(RunReceipt):
    """A score table in parts of ascending scores, with the receipt of its rows, but for their runs.

    Attributes
    ----------
    points : distinct scores. weight, positives : totals, correctly rounded.
    shuffled : of each level that was asked for, what the ranges of scores left of each segment, in their order.
    rounded : whether scores were rounded to a grid
    """

    parts: tuple[Part, ...]
    points: int
    weight: float
    positives: float
    shuffled: tuple[tuple[ShuffleFile, ...], ...] = ()
    rounded: bool = False

    def run(self, request: Pass, executor: Executor, stage: str = "pass") -> Any:
        """Carry out a pass over the written parts, or over those of them that it needs."""
        return run_parts([(part.first, part) for part in self.parts], request, executor, stage)

    @property
    def weights(self) -> list[tuple[float, Array]]:
        """First score and exact weight (an expansion) of each part, if all are known."""
        known = all(part.weight.size for part in self.parts)
        return [(part.first, part.weight) for part in self.parts] if known else []

    def label_facts(self) -> dict[str, Any]:
        """Facts for the manifest about joined labels, beside `facts`: they are no part of the table."""
        return {} if self.labels is None else {"labels": self.labels.facts()}

    def facts(self) -> dict[str, Any]:
        """Facts of the table for the manifest."""
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
    """Scratch space that sorting a log needs at most; with `write`, the table's parts included."""
    columns = log.columns
    held = most_bytes(log.rows, columns.weight is not None, bool(columns.segments))
    if log.rows > MOST_RUNS * RUN_ROWS:
        held *= 2  # runs may be merged twice: see `pipeline.sort.run_merging`
    return held + (24 * log.rows if write else 0)


class SortedRows(NamedTuple):
    """A log's rows as runs, as the stages after the first are given them.

    Attributes
    ----------
    log : as its runs are: with weights where they have weights.
    plan : how they were sorted, and what becomes of them
    total : the runs: a RunReceipt, or a reference to one in a graph
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
        """Most parts that their score table has."""
        if isinstance(self.total, RunReceipt):
            held = sum(run.bytes for run in self.total.runs)
        else:
            held = self.log.rows * row_width(self.weighted, bool(self.log.columns.segments))
        return max(1, -(-held // self.plan.bucket_bytes))


def build_score_table(
    log: Log, plan: SortPlan, executor: Executor, request: Pass | None = None
) -> tuple[ScoreTable, Any]:
    """Sort a log's rows into a score table, and carry out a first pass over it on the way.

    Parameters
    ----------
    log, plan, executor : what, how and where
    request : the pass, or None

    Returns
    -------
    table : ScoreTable
    result : of the pass, or None without one

    Raises
    ------
    InputRejectedError
        Unusable rows beyond what the rules allow; no usable row.
    """
    graph = Graph()
    rows = SortedRows(log, plan, add_sort(graph, log, plan))
    found: tuple[ScoreTable, Any] = executor.compute(graph, add_merge(graph, rows, request))
    return found


def merge_rows(rows: SortedRows, executor: Executor, request: Pass | None = None) -> tuple[ScoreTable, Any]:
    """Merge sorted rows into a score table; otherwise as `build_score_table`."""
    graph = Graph()
    found: tuple[ScoreTable, Any] = executor.compute(graph, add_merge(graph, rows, request))
    return found


def add_sort(graph: Graph, log: Log, plan: SortPlan) -> Any:
    """Add the first stages to a graph: `sort-i -> check`, and a second level where that is needed.

    Returns a reference to the receipts' sum.

    A task leaves its receipt beside what it writes: one that is repeated because the worker that held its result was
    lost, or a sort after a crash, reads that.
    """
    reading = Reading(log.filesystem, log.columns, plan.transform, plan.lookup, plan.grid)
    pieces = cut(log, plan.run_rows)
    readings = add_labels(graph, log, reading, pieces, plan.scratch, plan.label_bytes)
    tasks = [
        (own, how, plan.scratch, i, plan.run_rows, plan.rules.keep)
        for i, (own, how) in enumerate(zip(pieces, readings, strict=True))
    ]
    receipts = graph.layer("sort", runs.write_runs, tasks, receipts=receipts_in(plan.scratch))
    total = graph.task("check", _checked, receipts, plan.rules, log.columns.outcomes)
    return add_regrouping(graph, total, len(tasks), SortedRows(log, plan, total).most_parts, plan.scratch)


def add_merge(
    graph: Graph, rows: SortedRows, request: Pass | None = None, cutting: Cutting | None = None
) -> Any:
    """Add what follows to a graph: `split -> merge-i -> combine`; return a reference to what `build_score_table` does.

    The number of merges is bounded by the rows, so that it is known before; those beyond what there is do nothing. A
    merge needs its own entry of the split alone.

    cutting : of a log with segments, what is to be left of each
    """
    plan, total, count = rows.plan, rows.total, rows.most_parts
    if cutting is not None and not isinstance(total, RunReceipt):
        # Each run holds most names of segments; once they are numbered, the runs need none.
        total = graph.task("runs", without_segments, total)
    split = graph.task("split", _split, total, plan.bucket_bytes, count, plan.write)
    # What combines stays here.
    first = None if request is None else replace(request, combine=list)
    tasks = [
        (entry, plan.write and f"{plan.write}/part-{i:05d}.parquet", first, cutting, i)
        for i, entry in enumerate(graph.entries("entry", split, count))
    ]
    merged = graph.layer("merge", _merge_bucket, tasks, receipts=receipts_in(plan.scratch))
    combine = None if request is None else request.combine
    return graph.task("combine", _combined, total, merged, combine, plan.grid)


def without_segments(total: RunReceipt) -> RunReceipt:
    """The same runs without the names of their segments."""
    return replace(total, runs=[replace(run, segments=None) for run in total.runs])


def _checked(receipts: list[RunReceipt], rules: RowRules, outcomes: int) -> RunReceipt:
    total = add_up(receipts)
    quarantine.check(total.bad, total.rows, rules)
    total.labels = all_counted(total.labels, outcomes, matched=rules.matched)
    if total.used == 0:
        raise (LabelsWaitingError if total.waiting else InputRejectedError)(
            f"expected usable rows, found none among {total.rows:,}{quarantine.waiting(total.waiting)}"
        )
    return total


def add_up(receipts: list[RunReceipt]) -> RunReceipt:
    """Add up the receipts of several tasks of the first stage."""
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
    """A bucket: where its rows are, and the scores that it holds (low <= score < high).

    scale : what weights are multiplied by, once they are added up
    """

    spans: BucketSpans
    low: float
    high: float
    scale: float


def _split(total: RunReceipt, bucket_bytes: int, count: int, write: str | None) -> list[_Entry | None]:
    """Cut all runs into at most `count` buckets, and None for those that are not needed.

    write : see `SortPlan`
    """
    if write is not None:
        Folder.at(write).make()
    enough = -(-sum(run.bytes for run in total.runs) // count)
    scale = total.scale
    found = [_Entry(*own, scale) for own in ranges(total, max(bucket_bytes, enough))]
    return [*found, *([None] * (count - len(found)))]


def ranges(total: RunReceipt, bucket_bytes: int) -> list[tuple[BucketSpans, float, float]]:
    """Buckets of about so many bytes: where the rows of each are, and its scores, low <= score < high."""
    inner = buckets.splitters(total.runs, bucket_bytes)
    edges = np.concatenate([[-math.inf], inner, [math.inf]])
    spans = buckets.bucket_spans(total.runs, edges, bucket_bytes)
    return [(spans[i], float(low), float(high)) for i, (low, high) in enumerate(itertools.pairwise(edges))]


def _merge_bucket(
    entry: _Entry | None,
    path: str | None,
    first: Pass | None,
    cutting: Cutting | None,
    index: int,
) -> tuple[Part, Any, list[ShuffleFile]] | None:
    """Gather a bucket, write it if wanted, and carry out the first pass on it."""
    if entry is None:
        return None
    spans, low, high, scale = entry
    files: list[ShuffleFile] = []
    bucket: buckets.Bucket | Points
    if cutting is None:
        bucket = buckets.read_bucket(spans, low, high)
        if scale != 1.0:
            bucket = scaled(bucket.points(), scale)
    else:
        coded = buckets.read_coded_bucket(spans, low, high, cutting.coding.table)
        bucket, files = merge_segments(coded, cutting, index, scale)
    chunk, classes = (None, None) if first is None else (first.chunk, first.classes)
    if isinstance(bucket, Points):
        if not bucket.score.size:
            return None
        return (*merge_points(bucket, path, chunk), files)
    merged = merge_bucket(bucket, path, chunk, classes)
    return None if merged is None else (*merged, files)


def _combined(
    total: RunReceipt,
    merged: list[tuple[Part, Any, list[ShuffleFile]] | None],
    combine: Callable[[list[Any]], Any] | None,
    grid: str,
) -> tuple[ScoreTable, Any]:
    filled = [bucket for bucket in merged if bucket is not None]
    parts = tuple(part for part, *_ in filled)
    result = None if combine is None else combine([state for _, state, _ in filled])
    shuffled = tuple(zip(*(files for *_, files in filled), strict=True))
    of_rows = {**vars(total), "runs": [], "lowest": float(total.lowest), "highest": float(total.highest)}
    table = ScoreTable(
        **of_rows,
        parts=parts,
        points=sum(part.points for part in parts),
        weight=float(exact_sum(np.concatenate([part.weight for part in parts]))),
        positives=float(exact_sum(np.concatenate([part.positives for part in parts]))),
        shuffled=shuffled,
        rounded=grid != runs.NO_GRID,
    )
    return table, result
