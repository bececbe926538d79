"""Tasks for the segments of a level: the third stage of the out-of-core sort where a log has segments.

Small segments are packed into tasks by the bytes of what the merge left of them; a segment that is larger than a task
is fitted or measured in passes over parts, each the items of some neighbouring ranges of scores. A `SegmentTask`
says how to do either.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from calibrators.arithmetic.passes import Pass, Points
from pipeline.execution import Executor, Graph
from pipeline.files.blobs import receipts_in
from pipeline.files.folders import Folder
from pipeline.log import segment_values
from pipeline.sort.parts import run_parts
from pipeline.sort.run_files import Integers
from pipeline.sort.score_table import ScoreTable
from pipeline.sort.segment_merge import Cutting, KeptSegments, LevelCut
from pipeline.sort.segments import Segments, ShuffleFile, Slices, gather, item_counts, write_codes, write_keys

R = TypeVar("R")
W = TypeVar("W")

MOST_SEGMENTS = 2048
"""Segments of points in a task: each costs some time, however small it is."""

MOST_POOLED = 1 << 16

ITEM_BYTES = 48
"""Most bytes that the merge leaves of a row: of rows with weights, a block of six numbers."""


@dataclass(frozen=True)
class SegmentTask(Generic[R]):
    """Segment task.

    Parameters
    ----------
    small : callable
        The items of some segments to a result for all of them; picklable, runs in a task.
    first : Pass, optional
        Over a large segment's parts; None where no segment is cut, since items have been pooled.
    large : callable, optional
        The number of a large segment's points, and what carries out passes over them, to a result for it.
    """

    small: Callable[[Slices], R]
    first: Pass | None = None
    large: Callable[[int, Callable[[Pass], Any]], R] | None = None


def cut_levels(
    segments: Segments,
    wanted: Sequence[npt.NDArray[np.bool_]],
    scratch: str,
    *,
    pooled: bool | None,
    weighted: bool,
) -> Cutting:
    """Choose the items that the merge leaves of segments.

    wanted : of each level, the segments to fit. pooled : see `LevelCut`; None: with partial pooling all segments are
    needed, and these have maps of their own
    """
    cuts = []
    for level, chosen in zip(segments.levels, wanted, strict=True):
        path, own = f"{scratch}/level-{level.level}", None
        if pooled is None:
            of, own = level.of, write_codes(f"{path}-own", chosen.astype(np.int32))
        else:
            of = np.where(chosen[level.of], level.of, np.int32(-1)).astype(np.int32)
        left = f"{scratch}/segments-{level.level}"
        cuts.append(LevelCut(write_codes(path, of), len(level.keys), bool(pooled), left, own))
    return Cutting(segments.coding, tuple(cuts), weighted)


def keep_keys(segments: Segments, names: Sequence[str], scratch: str, folder: str) -> KeptSegments:
    """Make ready for the merge to keep each segment's points in a folder. names : of the segment columns."""
    Folder.at(folder).make()
    return KeptSegments(folder, write_keys(f"{scratch}/kept-keys.parquet", segments.levels[-1], names))


class Work(NamedTuple):
    """Work of a task of the third stage.

    level : place of the segments' level among those that are wanted. codes : the segments
    files : what is left of them
    part : of a segment that is larger than a task, and alone here; None: the segments are here as a whole
    heaviest : see `ScoreTable`
    """

    level: int
    codes: Integers
    files: tuple[ShuffleFile, ...]
    part: _Part | None
    heaviest: float = 1.0

    def items(self) -> Slices:
        """Items of the segments, or of the part of one."""
        if self.part is None:
            return _gathered(self.files, self.codes)
        points = self.part.read()
        return Slices(list(points), np.array([0, points.score.size]))


class TaskResults(NamedTuple):
    """Result of a `Work`. result : for the segments; of a part its first score, points, and state of the pass."""

    level: int
    codes: Integers
    part: _Part | None
    result: Any


def most_works(rows: int, item_bytes: int, task_bytes: int, fewest_rows: int, most: int) -> int:
    """Bound the tasks of the third stage of a level, in a log with so many rows.

    item_bytes : of what the merge leaves of a row. fewest_rows : of a segment that is wanted
    most : segments of a task
    """
    segments = min(segment_values.MAX_SEGMENTS, rows // max(1, fewest_rows))
    return 2 * -(-rows * item_bytes // task_bytes) + segments // most + 1


def within(count: int, task_bytes: int, most: int, works: Callable[[int, int], list[W]]) -> list[W | None]:
    """Divide the work of `works` by the bytes and segments that a task takes; and None up to `count`."""
    while len(found := works(task_bytes, most)) > count:
        task_bytes, most = 5 * task_bytes // 4 + 1, 5 * most // 4 + 1
    return [*found, *([None] * (count - len(found)))]


def add_works(
    graph: Graph, merged: Any, wanted: Any, *, pooled: bool, task_bytes: int, most: int
) -> list[Any]:
    """Add to a graph what packs segments into tasks: `pack -> work-i`; return references to `Work` or None.

    Parameters
    ----------
    merged : a score table with what is left of segments, level by level, and anything; or a reference to the pair
    wanted : of each level, which segments are wanted; or a reference
    pooled : whether what is left is pooled, so that no segment is cut
    task_bytes : that a task takes
    most : tasks: so many are there, those beyond what there is do nothing, and where more were needed they take more
    """
    return graph.entries("work", graph.task("pack", _packed, merged, wanted, pooled, task_bytes, most), most)


def add_segment_tasks(graph: Graph, works: Sequence[Any], segment_task: SegmentTask[R], scratch: str) -> Any:
    """Add the third stage to a graph: `join-i -> joined`; return a reference to what `finish_segment_tasks` takes.

    works : of `add_works`, pooled where the segment task has no first pass. scratch : where tasks leave their results
    """
    chunk = None if segment_task.first is None else segment_task.first.chunk
    tasks = [(work, segment_task.small, chunk) for work in works]
    found = graph.layer("join", _join, tasks, receipts=receipts_in(scratch))
    return graph.task("joined", _filled, found)


def _filled(found: list[TaskResults | None]) -> list[TaskResults]:
    return [one for one in found if one is not None]


def _packed(
    merged: tuple[ScoreTable, Any],
    wanted: Sequence[npt.NDArray[np.bool_]],
    pooled: bool,
    task_bytes: int,
    most: int,
) -> list[Work | None]:
    def works(size: int, segments: int) -> list[Work]:
        return [
            work._replace(heaviest=merged[0].heaviest)
            for level, (files, own) in enumerate(zip(merged[0].shuffled, wanted, strict=True))
            for work in _works(level, files, ~own, size, segments, cut=not pooled)
        ]

    return within(most, task_bytes, MOST_POOLED if pooled else MOST_SEGMENTS, works)


def _works(
    level: int,
    files: Sequence[ShuffleFile],
    skipped: npt.NDArray[np.bool_],
    task_bytes: int,
    most: int,
    *,
    cut: bool,
) -> list[Work]:
    """The tasks of a level. skipped, cut : see `pack`."""
    sizes = 8 * files[0].columns * item_counts(files)
    small, large = pack(sizes, skipped, task_bytes, most, cut=cut)
    # Those that are cut first: none waits for the last one of another kind.
    parts = [(code, part) for code in large for part in _parts(files, code, task_bytes)]
    return [
        *(Work(level, np.array([code]), (), part) for code, part in parts),
        *(Work(level, codes, tuple(files), None) for codes in small),
    ]


def _join(work: Work | None, small: Callable[[Slices], Any], chunk: Any) -> TaskResults | None:
    if work is None:
        return None
    if work.part is None:
        result = small(work.items()._replace(heaviest=work.heaviest))
    else:
        points = work.part.read()
        result = (float(points.score[0]), points.score.size, chunk(points))
    return TaskResults(work.level, work.codes, work.part, result)


def finish_segment_tasks(
    found: Sequence[TaskResults], levels: int, executor: Executor, segment_task: SegmentTask[R]
) -> list[list[tuple[Integers, R]]]:
    """Do the task for segments that were cut, in passes over their parts; return places and results of each level."""
    done: list[list[tuple[Integers, R]]] = [[] for _ in range(levels)]
    cut: dict[tuple[int, int], list[tuple[_Part, float, int, Any]]] = {}
    for level, codes, part, result in found:
        if part is None:
            done[level].append((codes, result))
        else:
            cut.setdefault((level, int(codes[0])), []).append((part, *result))
    for (level, code), parts in cut.items():
        done[level].append((np.array([code]), _fit_large(parts, executor, segment_task)))
    return [sorted(own, key=lambda item: int(item[0][0])) for own in done]


def map_segments(
    files: Sequence[ShuffleFile],
    executor: Executor,
    function: Callable[[int, Integers, Slices], R],
    task_bytes: int,
) -> list[R]:
    """Apply a function to all segments, some at a time, and to the largest in several parts, one after the other.

    function : of a number that no other task has, the places of segments among the level's, and their points;
        picklable, runs in a task. What it gives of one segment's parts must be fit to be put together.

    Returns
    -------
    results
    """
    works = _works(0, files, item_counts(files) == 0, task_bytes, MOST_SEGMENTS, cut=True)
    return executor.run("join", _map, [(function, i, work) for i, work in enumerate(works)])


def _map(function: Callable[[int, Integers, Slices], R], index: int, work: Work) -> R:
    return function(index, work.codes, work.items())


def _gathered(files: tuple[ShuffleFile, ...], codes: Integers) -> Slices:
    columns, starts, _ = gather(files, int(codes[0]), int(codes[-1]))
    # Nothing is left of those in between.
    return Slices(columns, np.append(starts[codes - codes[0]], starts[-1]))


class _Part(NamedTuple):
    """Items of one segment in some neighbouring ranges. spans : of each file, the first and the end."""

    files: tuple[ShuffleFile, ...]
    spans: tuple[tuple[int, int], ...]

    def read(self) -> Points:
        found = [file.slice(*span) for file, span in zip(self.files, self.spans, strict=True)]
        return Points(*(np.concatenate(column) for column in zip(*found, strict=True)))


def _parts(files: Sequence[ShuffleFile], code: int, task_bytes: int) -> list[_Part]:
    parts: list[list[tuple[ShuffleFile, tuple[int, int]]]] = []
    held = 0
    for file in files:
        start, stop = file.starts(code, code).tolist()
        size = 8 * file.columns * (stop - start)
        if size == 0:
            continue
        if not parts or held + size > task_bytes:
            parts.append([])
            held = 0
        parts[-1].append((file, (start, stop)))
        held += size
    return [_Part(*map(tuple, zip(*part, strict=True))) for part in parts]


def _fit_large(
    parts: list[tuple[_Part, float, int, Any]], executor: Executor, segment_task: SegmentTask[R]
) -> R:
    """Do the task for a large segment by its parts, each with its state of the first pass."""
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
    sizes: Integers, skipped: npt.NDArray[np.bool_], task_bytes: int, most: int, *, cut: bool = True
) -> tuple[list[Integers], list[int]]:
    """Choose the segments that one task takes together, and those that are cut.

    Parameters
    ----------
    sizes : bytes of each segment, in order. skipped : which are not wanted.
    task_bytes : that a task takes. most : segments of a task
    cut : whether segments larger than a task are cut; otherwise each is a task

    Returns
    -------
    small : neighbours that fit into one task, with nothing large between them. large : segments that do not
    """
    small: list[Integers] = []
    large: list[int] = []
    codes = np.flatnonzero(~skipped)
    own = sizes[codes]
    ends = np.cumsum(own)
    start = 0
    while start < codes.size:
        if cut and own[start] > task_bytes:
            large.append(int(codes[start]))
            start += 1
            continue
        stop = int(np.searchsorted(ends, ends[start] - own[start] + task_bytes, side="right"))
        stop = min(max(stop, start + 1), start + most)
        small.append(codes[start:stop])
        start = stop
    return small, large
