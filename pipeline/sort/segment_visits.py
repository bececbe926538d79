"""Visiting the segments of a level: the third stage of the out-of-core sort where a log has segments.

Small segments are packed into tasks by the bytes of what the merge left of them; a segment that is larger than a task
is visited in passes over parts, each what some neighbouring ranges of scores left. Whoever wants something of segments
says what is to be done with either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from calibrators.passes import Pass, Points
from pipeline.execution import Executor
from pipeline.log import segment_values
from pipeline.sort.exchange import Exchanged, Slices, gather, item_counts
from pipeline.sort.run_files import Integers
from pipeline.sort.segment_merge import Cutting, KeptSegments, LevelCut
from pipeline.sort.segments import Level, Segments, write_codes

R = TypeVar("R")

MOST_SEGMENTS = 2048
"""Segments of points in a task: each costs some time, however small it is."""

MOST_POOLED = 1 << 16


@dataclass(frozen=True)
class Visit(Generic[R]):
    """What is done with segments.

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
    levels: Sequence[tuple[Level, npt.NDArray[np.bool_]]],
    scratch: Path,
    *,
    pooled: bool,
    weighted: bool,
) -> Cutting:
    """What the merge is to leave of segments. levels : those that are wanted, and which of their segments are."""
    cuts = []
    for level, wanted in levels:
        of = np.where(wanted[level.of], level.of, np.int32(-1)).astype(np.int32)
        path = write_codes(scratch / f"level-{level.level}", of)
        left = str(scratch / f"segments-{level.level}")
        cuts.append(LevelCut(path, len(level.keys), pooled, left))
    return Cutting(segments.coding, tuple(cuts), weighted)


def cut_leaning(
    segments: Segments, own: Sequence[npt.NDArray[np.bool_]], scratch: Path, *, weighted: bool
) -> Cutting:
    """What the merge is to leave of all segments, where maps lean on each other. own : see `LevelCut`; a level each."""
    cuts = []
    for level, chosen in zip(segments.levels, own, strict=True):
        path = write_codes(scratch / f"level-{level.level}", level.of)
        flags = write_codes(scratch / f"level-{level.level}-own", chosen.astype(np.int32))
        left = str(scratch / f"segments-{level.level}")
        cuts.append(LevelCut(path, len(level.keys), False, left, flags))
    return Cutting(segments.coding, tuple(cuts), weighted)


def keep_keys(segments: Segments, names: Sequence[str], scratch: Path, folder: Path) -> KeptSegments:
    """Make ready for the merge to keep each segment's points in a folder. names : of the segment columns."""
    level = segments.levels[-1]
    columns = segment_values.arrays(level.keys, level.types)
    path = scratch / "kept-keys.parquet"
    pq.write_table(pa.Table.from_arrays(columns, names=list(names)), path)
    folder.mkdir(parents=True, exist_ok=True)
    return KeptSegments(str(folder), str(path))


def visit_segments(
    files: Sequence[Exchanged],
    executor: Executor,
    visit: Visit[R],
    wanted: npt.NDArray[np.bool_],
    task_bytes: int,
) -> list[tuple[Integers, R]]:
    """Carry out a visit of the wanted segments of a level.

    files : what the merge has left of them

    Returns
    -------
    places of segments among the level's, and the result for them; in order
    """
    sizes = 8 * files[0].columns * item_counts(files)
    if visit.first is None:
        small, large = pack(sizes, ~wanted, task_bytes, MOST_POOLED, cut=False)
    else:
        small, large = pack(sizes, ~wanted, task_bytes, MOST_SEGMENTS)
    cuts = {code: _parts(files, code, task_bytes) for code in large}
    # One stage for all of them: none waits for the last one of another kind.
    parts = [(code, part) for code, own in cuts.items() for part in own]
    chunk = None if visit.first is None else visit.first.chunk
    tasks: list[tuple[Any, ...]] = [(_visit_part, part, chunk) for _, part in parts]
    tasks += [(_visit_small, tuple(files), codes, visit.small) for codes in small]
    results = executor.run("join", _call, tasks) if tasks else []
    done = list(zip(small, results[len(parts) :], strict=True))
    for code in large:
        own = [
            (part, *result)
            for (owner, part), result in zip(parts, results[: len(parts)], strict=True)
            if owner == code
        ]
        done.append((np.array([code]), _visit_large(own, executor, visit)))
    return sorted(done, key=lambda item: int(item[0][0]))


def map_segments(
    files: Sequence[Exchanged],
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
    counts = item_counts(files)
    small, large = pack(8 * files[0].columns * counts, counts == 0, task_bytes, MOST_SEGMENTS)
    tasks: list[tuple[Any, ...]] = [
        (_map_part, part, code, function) for code in large for part in _parts(files, code, task_bytes)
    ]
    tasks += [(_map_small, tuple(files), codes, function) for codes in small]
    return executor.run("join", _call, [(call, i, *arguments) for i, (call, *arguments) in enumerate(tasks)])


def _map_part(index: int, part: _Part, code: int, function: Callable[..., R]) -> R:
    points = part.points()
    return function(index, np.array([code]), Slices(list(points), np.array([0, points.score.size])))


def _map_small(index: int, files: tuple[Exchanged, ...], codes: Integers, function: Callable[..., R]) -> R:
    return function(index, codes, _gathered(files, codes))


def _gathered(files: tuple[Exchanged, ...], codes: Integers) -> Slices:
    columns, starts = gather(files, int(codes[0]), int(codes[-1]))
    # Nothing is left of those in between.
    return Slices(columns, np.append(starts[codes - codes[0]], starts[-1]))


class _Part(NamedTuple):
    """Of some neighbouring ranges, the items of one segment. spans : of each file, the first and the end."""

    files: tuple[Exchanged, ...]
    spans: tuple[tuple[int, int], ...]

    def points(self) -> Points:
        found = [file.slice(*span) for file, span in zip(self.files, self.spans, strict=True)]
        return Points(*(np.concatenate(column) for column in zip(*found, strict=True)))


def _parts(files: Sequence[Exchanged], code: int, task_bytes: int) -> list[_Part]:
    parts: list[list[tuple[Exchanged, tuple[int, int]]]] = []
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


def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


def _visit_small(files: tuple[Exchanged, ...], codes: Integers, small: Callable[[Slices], R]) -> R:
    return small(_gathered(files, codes))


def _visit_part(part: _Part, chunk: Callable[[Points], Any]) -> tuple[float, int, Any]:
    points = part.points()
    return float(points.score[0]), points.score.size, chunk(points)


def _run_part(part: _Part, chunk: Callable[[Points], Any]) -> Any:
    return chunk(part.points())


def _visit_large(parts: list[tuple[_Part, float, int, Any]], executor: Executor, visit: Visit[R]) -> R:
    """Visit a large segment by its parts, each with its state of the first pass."""
    states: list[Any] | None = [state for *_, state in parts]

    def run(request: Pass) -> Any:
        nonlocal states
        if states is None:
            tasks = [
                (part, request.chunk)
                for part, first, *_ in parts
                if request.only is None or first in request.only
            ]
            return executor.reduce("fit", _run_part, tasks, request.combine)
        first, states = states, None
        return request.combine(first)

    assert visit.large is not None
    return visit.large(sum(points for _, _, points, _ in parts), run)


def pack(
    sizes: Integers, skipped: npt.NDArray[np.bool_], task_bytes: int, most: int, *, cut: bool = True
) -> tuple[list[Integers], list[int]]:
    """Which segments are visited together, and which are cut.

    Parameters
    ----------
    sizes : bytes of each segment, in order. skipped : which are not visited.
    task_bytes : that a task takes. most : segments of a task
    cut : whether segments larger than a task are cut; otherwise each is a task

    Returns
    -------
    small : neighbours that fit into one task, with nothing large between them. large : segments that do not
    """
    small: list[Integers] = []
    large: list[int] = []
    held: list[int] = []
    size = 0

    def flush() -> None:
        nonlocal size
        if held:
            small.append(np.array(held))
            held.clear()
        size = 0

    wanted: Iterator[int] = iter(np.flatnonzero(~skipped).tolist())
    for code in wanted:
        own = int(sizes[code])
        if size + own > task_bytes or len(held) == most:
            flush()
        if cut and own > task_bytes:
            large.append(code)
            continue
        held.append(code)
        size += own
    flush()
    return small, large
