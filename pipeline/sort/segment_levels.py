"""The segments of a log, level by level: the second stage of the out-of-core sort where a log has segments.

Small segments are packed into tasks by their bytes; a segment that is larger than a task is cut by its scores, and
visited in passes over its parts. Whoever wants the points of segments says what is to be done with either.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from calibrators.passes import Classes, Pass, Points
from pipeline.execution import Executor
from pipeline.log import segment_values
from pipeline.log.logs import Log
from pipeline.log.segment_values import Key
from pipeline.sort import segment_runs
from pipeline.sort.run_files import row_width
from pipeline.sort.runs import RunReceipt
from pipeline.sort.score_table import Part, SortPlan, merge, run_parts, sort_log
from pipeline.sort.segment_runs import SegmentRun, Slices

R = TypeVar("R")

MOST_SEGMENTS = 2048
"""In a task: each costs some time, however small it is."""


@dataclass(frozen=True)
class Visit(Generic[R]):
    """What is done with the points of segments.

    Parameters
    ----------
    small : callable
        The rows of some segments to a result for all of them; picklable, runs in a task.
    first : Pass
        Over a large segment's parts.
    large : callable
        The number of a large segment's points, and what carries out passes over them, to a result for it.
    write : bool
        Whether there is more than one pass.
    """

    small: Callable[[Slices], R]
    first: Pass
    large: Callable[[int, Callable[[Pass], Any]], R]
    write: bool


def sort_segments(
    log: Log, plan: SortPlan, executor: Executor, lowest: int = 1
) -> tuple[RunReceipt, list[SegmentLevel]]:
    """The first stage: the runs of all rows, and those of each level from `lowest` on.

    Raises
    ------
    InputRejectedError
        As `sort_log`; too many segments.
    """
    shortest = segment_runs.shortest_sorted(log, plan)
    write = functools.partial(segment_runs.write_segment_runs, shortest_sorted=shortest, lowest=lowest)
    total, receipts = sort_log(log, plan, executor, write)
    runs = [run for receipt in receipts for run in receipt.segment_runs]
    weighted = log.columns.weight is not None
    return total, [
        SegmentLevel([run for run in runs if run.level == level], plan, weighted, shortest)
        for level in range(lowest, len(log.columns.segments) + 1)
    ]


class SegmentLevel:
    """The segments of one level, in the order of `segment_values.order`.

    Attributes
    ----------
    level : number of columns in a key. types : of the columns.
    keys : of the segments. rows, positives : int64 arrays: of each, rows used, and those with label 1.
    """

    def __init__(self, runs: list[SegmentRun], plan: SortPlan, weighted: bool, shortest_sorted: int) -> None:
        self.level = runs[0].level
        self.types = tuple(column.type for column in runs[0].values)
        self.plan = plan
        self.weighted = weighted
        self.shortest_sorted = shortest_sorted
        self._runs = runs
        self.keys, self._codes = _number(runs)
        self.rows = np.zeros(len(self.keys), np.int64)
        self.positives = np.zeros(len(self.keys), np.int64)
        for run, own in zip(runs, self._codes, strict=True):
            self.rows[own] += run.counts.sum(axis=0)
            self.positives[own] += run.positives
            segment_runs.write_index(run, own)

    def visit(
        self, executor: Executor, visit: Visit[R], skipped: npt.NDArray[np.bool_]
    ) -> list[tuple[npt.NDArray[np.int64], R]]:
        """Carry out a visit of all segments but the skipped ones.

        Returns
        -------
        places of segments among `keys`, and the result for them; in order
        """
        sources = [run.path for run in self._runs]
        small, large = pack(self.rows * row_width(self.weighted), skipped, self.plan.bucket_bytes)
        # One stage for all of them: none waits for the last one of another kind.
        ranges = list(self._ranges(large, visit.write))
        first = (visit.first.chunk, visit.first.classes)
        tasks: list[tuple[Any, ...]] = [
            (_merge_range, sources, *task, self.weighted, self.shortest_sorted, *first) for task in ranges
        ]
        tasks += [(_visit_bucket, sources, wanted, self.weighted, visit.small) for wanted in small]
        results = executor.run("merge", _call, tasks) if tasks else []
        done = list(zip(small, results[len(ranges) :], strict=True))
        for code in large:
            parts = [
                result
                for task, result in zip(ranges, results[: len(ranges)], strict=True)
                if task[0] == code and result is not None
            ]
            done.append((np.array([code]), _visit_parts(parts, executor, visit)))
        return sorted(done, key=lambda item: int(item[0][0]))

    def _ranges(self, large: list[int], write: bool) -> Iterator[tuple[int, float, float, str | None]]:
        """The ranges of scores that large segments are cut into, and where their points go."""
        folder = self.plan.scratch / f"segments-{self.level}"
        folder.mkdir(exist_ok=True)
        for code in large:
            samples = [
                run.sample[own[run.sampled] == code] for run, own in zip(self._runs, self._codes, strict=True)
            ]
            buckets = -(-int(self.rows[code]) * row_width(self.weighted) // self.plan.bucket_bytes)
            edges = [-math.inf, *segment_runs.splitters(samples, buckets).tolist(), math.inf]
            for i, (low, high) in enumerate(itertools.pairwise(edges)):
                path = folder / f"part-{code:07d}-{i:05d}.parquet"
                yield code, low, high, str(path) if write else None


def _visit_parts(parts: list[tuple[Part, Any]], executor: Executor, visit: Visit[R]) -> R:
    """Visit a large segment by its parts, each with its state of the first pass."""
    own = [part for part, _ in parts]
    states: list[Any] | None = [state for _, state in parts]

    def run(request: Pass) -> Any:
        nonlocal states
        if states is None:
            return run_parts(own, request, executor, "fit")
        first, states = states, None
        return request.combine(first)

    try:
        return visit.large(sum(part.points for part in own), run)
    finally:
        for part in own:
            if part.path is not None:
                Path(part.path).unlink()


def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


def _visit_bucket(
    sources: list[str],
    wanted: npt.NDArray[np.int64],
    weighted: bool,
    small: Callable[[Slices], R],
) -> R:
    return small(segment_runs.gather(sources, wanted, weighted))


def _merge_range(
    sources: list[str],
    code: int,
    low: float,
    high: float,
    path: str | None,
    weighted: bool,
    shortest_sorted: int,
    chunk: Callable[[Points], Any],
    classes: Classes | None,
) -> tuple[Part, Any] | None:
    """Gather a range of a large segment's scores, write it if wanted, and carry out the first pass on it."""
    rows = segment_runs.gather_range(sources, code, low, high, weighted, shortest_sorted)
    return merge(rows, path, chunk, classes)


def _number(runs: list[SegmentRun]) -> tuple[list[Key], list[npt.NDArray[np.int64]]]:
    """All segments in order, and the places of each run's among them."""
    columns = [pa.concat_arrays(column) for column in zip(*(run.values for run in runs), strict=True)]
    keys, codes = segment_values.number(columns)
    return keys, np.split(codes, np.cumsum([len(run.positives) for run in runs])[:-1])


def pack(
    sizes: npt.NDArray[np.int64], thin: npt.NDArray[np.bool_], bucket_bytes: int
) -> tuple[list[npt.NDArray[np.int64]], list[int]]:
    """Which segments are fitted together, and which are cut.

    Parameters
    ----------
    sizes : bytes of each segment, in order. thin : which are not fitted.
    bucket_bytes : that a task takes

    Returns
    -------
    small : neighbours that fit into one task, at most `MOST_SEGMENTS`, thin ones between them counted but left out
    large : segments that do not
    """
    small: list[npt.NDArray[np.int64]] = []
    large: list[int] = []
    held: list[int] = []
    size = 0
    for code, (bytes_, skip) in enumerate(zip(sizes.tolist(), thin.tolist(), strict=True)):
        if held and (size + bytes_ > bucket_bytes or len(held) == MOST_SEGMENTS):
            small.append(np.array(held))
            held = []
        if not held:
            size = 0
        if skip:
            size += bytes_ if held else 0
        elif bytes_ > bucket_bytes:
            large.append(code)
        else:
            held.append(code)
            size += bytes_
    if held:
        small.append(np.array(held))
    return small, large
