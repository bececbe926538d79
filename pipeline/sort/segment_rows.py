"""Sorted rows of a log with segments, as each segment's points in scratch space."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from calibrators.core.arrays import Integers
from pipeline.execution import Executor, Graph
from pipeline.log import segment_values
from pipeline.log.logs import Log
from pipeline.log.segment_values import Key
from pipeline.sort.runs import RunReceipt
from pipeline.sort.score_table import ScoreTable, SortedRows, SortPlan, add_merge
from pipeline.sort.segment_merge import Cutting
from pipeline.sort.segment_tasks import cut_levels, map_segments
from pipeline.sort.segments import Coding, Level, Segments, ShuffleFile, Slices, number_segments

R = TypeVar("R")


class SegmentCounts(NamedTuple):
    """Row counts of a log whose rows were summed to points earlier.

    rows : number of rows, and of those with label 1, by segment. weighted : whether rows had weights
    """

    rows: Mapping[Key, tuple[int, int]]
    weighted: bool


@dataclass(frozen=True)
class SegmentRows:
    """A log's rows, segment by segment.

    Attributes
    ----------
    log, plan : the sorted log, and the plan of the sort
    names : names of the segment columns
    table : score table of all rows; written if `plan.write` has a folder
    level : the segments
    files : shuffle files of the segments' points, one per range of scores
    weighted : whether rows have weights
    """

    log: Log
    plan: SortPlan
    names: tuple[str, ...]
    table: ScoreTable
    level: Level
    files: tuple[ShuffleFile, ...]
    weighted: bool

    @classmethod
    def of(
        cls, rows: SortedRows, executor: Executor, names: tuple[str, ...], counts: SegmentCounts | None = None
    ) -> SegmentRows:
        """Divide sorted rows into segments. counts : counts of the log's rows, if rows are sums of earlier rows.

        Raises
        ------
        InputRejectedError
            As `build_score_table`; or there are too many segments.
        """
        graph = Graph()
        added: SegmentRows = executor.compute(graph, cls.add(graph, rows, names, counts).rows)
        return added

    @classmethod
    def add(
        cls, graph: Graph, rows: SortedRows, names: tuple[str, ...], counts: SegmentCounts | None = None
    ) -> AddedRows:
        """Add tasks that divide rows into segments: `number -> split -> merge-i -> combine -> rows`."""
        weighted = rows.weighted if counts is None else counts.weighted
        numbered = graph.task("number", _number, rows.total, rows.plan.scratch, weighted, counts)
        return cls.add_numbered(graph, rows, names, numbered)

    @classmethod
    def add_numbered(cls, graph: Graph, rows: SortedRows, names: tuple[str, ...], numbered: Any) -> AddedRows:
        """Add these tasks for numbered segments. numbered : the level and its `Cutting`, or a reference to the pair."""
        cutting = graph.task("cut", operator.itemgetter(1), numbered)
        merged = add_merge(graph, rows, None, cutting)
        return AddedRows(graph.task("rows", _rows, merged, numbered, rows.log, rows.plan, names), merged)

    @property
    def values(self) -> list[pa.Array]:
        """Values of the segments, one array per column."""
        return segment_values.arrays(self.level.keys, self.level.types)

    def map(self, executor: Executor, function: Callable[[int, Integers, Slices], R]) -> list[R]:
        """See `map_segments`."""
        return map_segments(self.files, executor, function, self.plan.bucket_bytes)


class AddedRows(NamedTuple):
    """References to a `SegmentRows`, and to the score table of all rows with the segments' shuffle files."""

    rows: Any
    merged: Any


def _number(
    total: RunReceipt, scratch: str, weighted: bool, counts: SegmentCounts | None
) -> tuple[Level, Cutting]:
    segments = number_segments(total.runs, scratch)
    level = segments.levels[-1]
    if counts is not None:
        rows = np.array([counts.rows[key] for key in level.keys], np.int64).reshape(-1, 2)
        level = replace(level, rows=rows[:, 0], positives=rows[:, 1])
    return level, cut_all(level, segments.coding, scratch, weighted=weighted)


def cut_all(level: Level, coding: Coding, scratch: str, *, weighted: bool) -> Cutting:
    """Return the `Cutting` that writes the points of all segments of a log's last level."""
    all_segments = np.ones(len(level.keys), np.bool_)
    return cut_levels(Segments((level,), coding), [all_segments], scratch, pooled=False, weighted=weighted)


def _rows(
    merged: tuple[ScoreTable, Any],
    numbered: tuple[Level, Cutting],
    log: Log,
    plan: SortPlan,
    names: tuple[str, ...],
) -> SegmentRows:
    table, _ = merged
    [files] = table.shuffled
    return SegmentRows(log, plan, names, table, numbered[0], files, numbered[1].weighted)
