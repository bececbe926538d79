"""Rows of a log with segments, sorted: each segment's points in scratch space."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from pipeline.execution import Executor, Graph
from pipeline.log import segment_values
from pipeline.log.logs import Log
from pipeline.log.segment_values import Key
from pipeline.sort.run_files import Integers
from pipeline.sort.runs import RunReceipt
from pipeline.sort.score_table import ScoreTable, SortedRows, SortPlan, add_merge
from pipeline.sort.segment_merge import Cutting
from pipeline.sort.segment_tasks import cut_levels, map_segments
from pipeline.sort.segments import Coding, Level, Segments, ShuffleFile, Slices, number_segments

R = TypeVar("R")


class Known(NamedTuple):
    """Facts about rows that have been summed up.

    rows : of each segment, the rows and those with label 1. weighted : whether rows had weights
    """

    rows: Mapping[Key, tuple[int, int]]
    weighted: bool


@dataclass(frozen=True)
class SegmentRows:
    """A log's rows, segment by segment.

    Attributes
    ----------
    log, plan : what was sorted, and how
    names : of the columns that tell segments apart
    table : of all rows; written where `plan.write` says so
    level : the segments
    files : what the ranges of scores left of each: its points
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
        cls, rows: SortedRows, executor: Executor, names: tuple[str, ...], known: Known | None = None
    ) -> SegmentRows:
        """From sorted rows of these segment columns. known : of rows that have been summed up, what they were.

        Raises
        ------
        InputRejectedError
            As `build_score_table`; too many segments.
        """
        graph = Graph()
        found: SegmentRows = executor.compute(graph, cls.add(graph, rows, names, known).rows)
        return found

    @classmethod
    def add(
        cls, graph: Graph, rows: SortedRows, names: tuple[str, ...], known: Known | None = None
    ) -> AddedRows:
        """The same in a graph: `number -> split -> merge-i -> combine -> rows`."""
        weighted = rows.weighted if known is None else known.weighted
        numbered = graph.task("number", _number, rows.total, rows.plan.scratch, weighted, known)
        return cls.add_numbered(graph, rows, names, numbered)

    @classmethod
    def add_numbered(cls, graph: Graph, rows: SortedRows, names: tuple[str, ...], numbered: Any) -> AddedRows:
        """The same where segments have been numbered. numbered : the level, and how rows leave the merge, as `cut_all`
        says it; or a reference to the pair.
        """
        cutting = graph.task("cut", operator.itemgetter(1), numbered)
        merged = add_merge(graph, rows, None, cutting)
        return AddedRows(graph.task("rows", _rows, merged, numbered, rows.log, rows.plan, names), merged)

    @property
    def values(self) -> list[pa.Array]:
        """The segments' values, a column each."""
        return segment_values.arrays(self.level.keys, self.level.types)

    def map(self, executor: Executor, function: Callable[[int, Integers, Slices], R]) -> list[R]:
        """See `map_segments`."""
        return map_segments(self.files, executor, function, self.plan.bucket_bytes)


class AddedRows(NamedTuple):
    """References to a `SegmentRows`, and to the score table of all rows with what is left of segments."""

    rows: Any
    merged: Any


def _number(total: RunReceipt, scratch: str, weighted: bool, known: Known | None) -> tuple[Level, Cutting]:
    segments = number_segments(total.runs, scratch)
    level = segments.levels[-1]
    if known is not None:
        counts = np.array([known.rows[key] for key in level.keys], np.int64).reshape(-1, 2)
        level = replace(level, rows=counts[:, 0], positives=counts[:, 1])
    return level, cut_all(level, segments.coding, scratch, weighted=weighted)


def cut_all(level: Level, coding: Coding, scratch: str, *, weighted: bool) -> Cutting:
    """Make the cut that leaves the points of all segments of a log's last level."""
    everyone = np.ones(len(level.keys), np.bool_)
    return cut_levels(Segments((level,), coding), [everyone], scratch, pooled=False, weighted=weighted)


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
