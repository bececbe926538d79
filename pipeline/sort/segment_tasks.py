"""Segment tasks: the third stage of the out-of-core sort, for logs with segments.

Small segments are packed into tasks by the bytes of their items. A segment that is larger than a task is fitted or
measured in passes over parts, each the items of some neighbouring ranges of scores. A `SegmentTask` has the functions
for both cases.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from calibrators.core.arrays import Integers, Mask
from calibrators.core.passes import Pass, Points
from pipeline.execution import Executor, Graph
from pipeline.files.blobs import receipts_in
from pipeline.files.folders import Folder
from pipeline.log import segment_values
from pipeline.sort.parts import run_parts
from pipeline.sort.score_table import ScoreTable
from pipeline.sort.segment_merge import Cutting, KeptSegments, LevelCut
from pipeline.sort.segments import Segments, ShuffleFile, Slices, gather, item_counts, write_codes, write_keys

R = TypeVar("R")
W = TypeVar("W")

MOST_SEGMENTS = 2048
"""Most segments in a task whose items are points; each takes some time, however small it is."""

MOST_POOLED = 1 << 16
"""Most segments in a task whose items are isotonic blocks."""

ITEM_BYTES = 48
"""Most bytes of an item: six numbers, for a block of rows with weights."""


@dataclass(frozen=True)
class SegmentTask(Generic[R]):
    """Functions that compute the results of segments.

    Parameters
    ----------
    small : callable
        Function from the items of some segments to a result for all of them; picklable, runs in a task.
    first : Pass, optional
        First pass over a large segment's parts; None if items are pooled, so that no segment is divided.
    large : callable, optional
        Function from a large segment's number of points, and a function that carries out passes, to its result.
    """

    small: Callable[[Slices], R]
    first: Pass | None = None
    large: Callable[[int, Callable[[Pass], Any]], R] | None = None


def cut_levels(
    segments: Segments,
    wanted: Sequence[Mask],
    scratch: str,
    *,
    pooled: bool | None,
    weighted: bool,
) -> Cutting:
    """Choose the items that the merge writes for segments.

    wanted : mask of the segments to fit, for each level. pooled : see `LevelCut`; None for partial pooling, which needs
    the items of all segments and gives the wanted ones maps of their own
    """
    cuts = []
    for level, chosen in zip(segments.levels, wanted, strict=True):
        path, own_maps = f"{scratch}/level-{level.level}", None
        if pooled is None:
            groups, own_maps = level.of, write_codes(f"{path}-own", chosen.astype(np.int32))
        else:
            groups = np.where(chosen[level.of], level.of, np.int32(-1)).astype(np.int32)
        items_path = f"{scratch}/segments-{level.level}"
        cuts.append(LevelCut(write_codes(path, groups), len(level.keys), bool(pooled), items_path, own_maps))
    return Cutting(segments.coding, tuple(cuts), weighted)


def keep_keys(segments: Segments, names: Sequence[str], scratch: str, folder: str) -> KeptSegments:
    """Prepare the output of each segment's points to a folder. names : names of the segment columns."""
    Folder.at(folder).make()
    return KeptSegments(folder, write_keys(f"{scratch}/kept-keys.parquet", segments.levels[-1], names))


class SegmentBatch(NamedTuple):
    """Segments of one task.

    level : index of the segments' level among the wanted ones. codes : the segments. files : their shuffle files
    part : part of a single segment that is larger than a task; None for whole segments
    heaviest : see `RunReceipt`
    """

    level: int
    codes: Integers
    files: tuple[ShuffleFile, ...]
    part: _SegmentPart | None
    heaviest: float = 1.0

    def items(self) -> Slices:
        """Read the items of the segments, or of the part."""
        if self.part is None:
            return _gather_items(self.files, self.codes)
        points = self.part.read()
        return Slices(list(points), np.array([0, points.score.size]))


class TaskResults(NamedTuple):
    """Results of a batch. result : the segments' result; of a part: first score, points, and state of the pass."""

    level: int
    codes: Integers
    part: _SegmentPart | None
    result: Any


def most_batches(rows: int, item_bytes: int, task_bytes: int, fewest_rows: int, most: int) -> int:
    """Return an upper bound of the segment tasks of a level, for a log with `rows` rows.

    item_bytes : most bytes of an item. fewest_rows : fewest rows of a wanted segment. most : most segments of a task
    """
    segments = min(segment_values.MAX_SEGMENTS, rows // max(1, fewest_rows))
    return 2 * -(-rows * item_bytes // task_bytes) + segments // most + 1


def limit_batches(
    count: int, task_bytes: int, most: int, divide: Callable[[int, int], list[W]]
) -> list[W | None]:
    """Call `divide` with growing task limits (bytes, segments) until it gives at most `count` tasks; pad with None."""
    while len(batches := divide(task_bytes, most)) > count:
        task_bytes, most = 5 * task_bytes // 4 + 1, 5 * most // 4 + 1
    return [*batches, *([None] * (count - len(batches)))]


def add_batches(
    graph: Graph, merged: Any, wanted: Any, *, pooled: bool, task_bytes: int, most: int
) -> list[Any]:
    """Add tasks that pack segments into batches: `pack -> work-i`; return references to `SegmentBatch` or None.

    Parameters
    ----------
    merged : pair of a score table with the shuffle files of each level, and anything; or a reference to it
    wanted : mask of the wanted segments for each level; or a reference
    pooled : whether items are pooled, so that no segment is divided
    task_bytes : bytes of items in a task; more if there would be too many tasks
    most : number of batches; superfluous ones are None
    """
    return graph.entries("work", graph.task("pack", _packed, merged, wanted, pooled, task_bytes, most), most)


def add_segment_tasks(graph: Graph, batches: list[Any], segment_task: SegmentTask[R], scratch: str) -> Any:
    """Add segment tasks to a graph: `join-i -> joined`; return a reference to the results for `finish_segment_tasks`.

    batches : references from `add_batches`, with pooled items if the segment task has no first pass
    scratch : folder for the tasks' receipts
    """
    chunk = None if segment_task.first is None else segment_task.first.chunk
    tasks = [(batch, segment_task.small, chunk) for batch in batches]
    results = graph.layer("join", _join, tasks, receipts=receipts_in(scratch))
    return graph.task("joined", _drop_empty, results)


def _drop_empty(results: list[TaskResults | None]) -> list[TaskResults]:
    return [result for result in results if result is not None]


def _packed(
    merged: tuple[ScoreTable, Any],
    wanted: Sequence[Mask],
    pooled: bool,
    task_bytes: int,
    most: int,
) -> list[SegmentBatch | None]:
    def divide(size: int, segments: int) -> list[SegmentBatch]:
        return [
            batch._replace(heaviest=merged[0].heaviest)
            # Shared maps follow the wanted levels.
            for level, (files, level_wanted) in enumerate(zip(merged[0].shuffled, wanted, strict=False))
            for batch in _batches_of_level(level, files, ~level_wanted, size, segments, cut=not pooled)
        ]

    return limit_batches(most, task_bytes, MOST_POOLED if pooled else MOST_SEGMENTS, divide)


def _batches_of_level(
    level: int,
    files: Sequence[ShuffleFile],
    skipped: Mask,
    task_bytes: int,
    most: int,
    *,
    cut: bool,
) -> list[SegmentBatch]:
    """Divide a level's segments into batches. skipped, cut : see `pack`."""
    sizes = 8 * files[0].columns * item_counts(files)
    small, large = pack(sizes, skipped, task_bytes, most, cut=cut)
    # Parts of large segments first: further passes over them follow.
    parts = [(code, part) for code in large for part in _parts_of_segment(files, code, task_bytes)]
    return [
        *(SegmentBatch(level, np.array([code]), (), part) for code, part in parts),
        *(SegmentBatch(level, codes, tuple(files), None) for codes in small),
    ]


def _join(batch: SegmentBatch | None, small: Callable[[Slices], Any], chunk: Any) -> TaskResults | None:
    if batch is None:
        return None
    if batch.part is None:
        result = small(batch.items()._replace(heaviest=batch.heaviest))
    else:
        points = batch.part.read()
        result = (float(points.score[0]), points.score.size, chunk(points))
    return TaskResults(batch.level, batch.codes, batch.part, result)


def finish_segment_tasks(
    results: Sequence[TaskResults], levels: int, executor: Executor, segment_task: SegmentTask[R]
) -> list[list[tuple[Integers, R]]]:
    """Compute the results of divided segments in passes over their parts; return codes and results by level."""
    by_level: list[list[tuple[Integers, R]]] = [[] for _ in range(levels)]
    divided: dict[tuple[int, int], list[tuple[_SegmentPart, float, int, Any]]] = {}
    for level, codes, part, result in results:
        if part is None:
            by_level[level].append((codes, result))
        else:
            divided.setdefault((level, int(codes[0])), []).append((part, *result))
    for (level, code), parts in divided.items():
        by_level[level].append((np.array([code]), _fit_large(parts, executor, segment_task)))
    return [sorted(level_results, key=lambda item: int(item[0][0])) for level_results in by_level]


def map_segments(
    files: Sequence[ShuffleFile],
    executor: Executor,
    function: Callable[[int, Integers, Slices], R],
    task_bytes: int,
    *,
    cut: bool = True,
) -> list[R]:
    """Apply a function to batches of all segments; segments larger than a task come in several parts, if points.

    function : function of the number of the task, segment codes, and the segments' points; picklable, runs in a task.
        The caller combines the results of parts of a segment.
    cut : see `pack`; False for items that are no points
    """
    batches = _batches_of_level(0, files, item_counts(files) == 0, task_bytes, MOST_SEGMENTS, cut=cut)
    return executor.run("join", _apply, [(function, i, batch) for i, batch in enumerate(batches)])


def _apply(function: Callable[[int, Integers, Slices], R], index: int, batch: SegmentBatch) -> R:
    return function(index, batch.codes, batch.items())


def _gather_items(files: tuple[ShuffleFile, ...], codes: Integers) -> Slices:
    columns, starts, _ = gather(files, int(codes[0]), int(codes[-1]))
    # Segments between the batch's codes have no items.
    return Slices(columns, np.append(starts[codes - codes[0]], starts[-1]))


class _SegmentPart(NamedTuple):
    """Items of one segment in some neighbouring ranges. spans : start and end of the items in each file."""

    files: tuple[ShuffleFile, ...]
    spans: tuple[tuple[int, int], ...]

    def read(self) -> Points:
        slices = [file.slice(*span) for file, span in zip(self.files, self.spans, strict=True)]
        return Points(*(np.concatenate(column) for column in zip(*slices, strict=True)))


def _parts_of_segment(files: Sequence[ShuffleFile], code: int, task_bytes: int) -> list[_SegmentPart]:
    parts: list[list[tuple[ShuffleFile, tuple[int, int]]]] = []
    part_bytes = 0
    for file in files:
        start, stop = file.starts(code, code).tolist()
        size = 8 * file.columns * (stop - start)
        if size == 0:
            continue
        if not parts or part_bytes + size > task_bytes:
            parts.append([])
            part_bytes = 0
        parts[-1].append((file, (start, stop)))
        part_bytes += size
    return [_SegmentPart(*map(tuple, zip(*part, strict=True))) for part in parts]


def _fit_large(
    parts: list[tuple[_SegmentPart, float, int, Any]], executor: Executor, segment_task: SegmentTask[R]
) -> R:
    """Compute the result of a large segment from its parts, each with its state of the first pass."""
    states: list[Any] | None = [state for *_, state in parts]

    def run(request: Pass) -> Any:
        nonlocal states
        if states is None:
            return run_parts([(first, part) for part, first, *_ in parts], request, executor, "fit")
        first, states = states, None
        return request.combine(first)

    assert segment_task.large is not None
    return segment_task.large(sum(points for _, _, points, _ in parts), run)


def pack(
    sizes: Integers, skipped: Mask, task_bytes: int, most: int, *, cut: bool = True
) -> tuple[list[Integers], list[int]]:
    """Pack segments into tasks.

    Parameters
    ----------
    sizes : bytes of each segment, in order. skipped : mask of the segments that are not wanted
    task_bytes : most bytes of a task. most : most segments of a task
    cut : whether segments larger than a task are divided; otherwise each is a task

    Returns
    -------
    small : codes of each task with whole segments, with no large segment between them. large : segments to divide
    """
    small: list[Integers] = []
    large: list[int] = []
    codes = np.flatnonzero(~skipped)
    wanted_sizes = sizes[codes]
    ends = np.cumsum(wanted_sizes)
    start = 0
    while start < codes.size:
        if cut and wanted_sizes[start] > task_bytes:
            large.append(int(codes[start]))
            start += 1
            continue
        stop = int(np.searchsorted(ends, ends[start] - wanted_sizes[start] + task_bytes, side="right"))
        stop = min(max(stop, start + 1), start + most)
        small.append(codes[start:stop])
        start = stop
    return small, large
