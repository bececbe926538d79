"""The rows of a log with segments, sorted: each segment's points in scratch space, for whoever looks at them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from pipeline.execution import Executor
from pipeline.log import segment_values
from pipeline.log.logs import Log
from pipeline.log.segment_values import Key
from pipeline.sort.exchange import Exchanged, Slices
from pipeline.sort.run_files import Integers
from pipeline.sort.runs import RunReceipt
from pipeline.sort.score_table import ScoreTable, SortPlan, build_score_table
from pipeline.sort.segment_visits import Visit, cut_levels, map_segments, visit_segments
from pipeline.sort.segments import Level, number_segments

R = TypeVar("R")


class Known(NamedTuple):
    """What is known of rows that have been summed up.

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
    files: tuple[Exchanged, ...]
    weighted: bool

    @classmethod
    def of(
        cls,
        log: Log,
        plan: SortPlan,
        executor: Executor,
        total: RunReceipt,
        names: tuple[str, ...],
        known: Known | None = None,
    ) -> SegmentRows:
        """From sorted runs of these segment columns. known : of rows that have been summed up, what they were.

        Raises
        ------
        InputRejectedError
            As `build_score_table`; too many segments.
        """
        segments = number_segments(total.runs, plan.scratch)
        level = segments.levels[-1]
        weighted = log.columns.weight is not None
        if known is not None:
            weighted = known.weighted
            counts = np.array([known.rows[key] for key in level.keys], np.int64).reshape(-1, 2)
            level = replace(level, rows=counts[:, 0], positives=counts[:, 1])
        everyone = np.ones(len(level.keys), np.bool_)
        cutting = cut_levels(segments, [(level, everyone)], plan.scratch, pooled=False, weighted=weighted)
        table, _ = build_score_table(log, plan, executor, None, total, cutting)
        [files] = table.exchanged
        return cls(log, plan, names, table, level, files, weighted)

    @property
    def values(self) -> list[pa.Array]:
        """The segments' values, a column each."""
        return segment_values.arrays(self.level.keys, self.level.types)

    def visit(self, executor: Executor, visit: Visit[R]) -> list[tuple[Integers, R]]:
        """See `visit_segments`."""
        everyone = np.ones(len(self.level.keys), np.bool_)
        return visit_segments(self.files, executor, visit, everyone, self.plan.bucket_bytes)

    def map(self, executor: Executor, function: Callable[[int, Integers, Slices], R]) -> list[R]:
        """See `map_segments`."""
        return map_segments(self.files, executor, function, self.plan.bucket_bytes)
