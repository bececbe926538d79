"""Fitting a calibrator to each segment of a log, out of core.

One read of the log, and one order of its rows by score, serve all rows and each level's segments (see
`pipeline.sort.segment_merge`). Isotonic regression pools each segment within each range of scores, and then once more
what that leaves, which is exact; other methods have each segment's points gathered. Thin segments adjust their parent's
map (see `pipeline.fit.pooled_segments`), or have no map of their own and fall back to the level below: the segment of
one column less, then all rows, then the score as it is.
"""

from __future__ import annotations

import copy
import functools
import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from calibrators.arithmetic.calibration_map import CalibrationMap, Interval
from calibrators.arithmetic.passes import Pass, in_memory, run_passes
from calibrators.methods.base import Calibrator, Line
from calibrators.methods.intervals import NONE, POSTERIOR, divided, interval_passes
from calibrators.methods.isotonic import Isotonic
from calibrators.segments.partial_pooling import fit_groups
from logcal.errors import InputRejectedError
from pipeline.execution import Executor, Graph
from pipeline.fit.calibration import (
    Fit,
    Recipe,
    check_table,
    fit_log,
    interval_of,
    keep_monotone,
    placed,
)
from pipeline.fit.pooled_segments import Numbered, add_pooled
from pipeline.sort.runs import RunReceipt
from pipeline.sort.score_table import ScoreTable, SortedRows, add_merge
from pipeline.sort.segment_tasks import (
    ITEM_BYTES,
    MOST_POOLED,
    MOST_SEGMENTS,
    SegmentTask,
    add_batches,
    add_segment_tasks,
    cut_levels,
    finish_segment_tasks,
    keep_keys,
    most_batches,
)
from pipeline.sort.segments import Codes, Level, Slices, number_segments
from pipeline.table.segment_maps import (
    NOT_SUITED,
    ONE_SCORE,
    Adjustments,
    Fitted,
    LevelFit,
    Maps,
    SegmentedFit,
)


class Merged(NamedTuple):
    """Result of the graph of a fit to segments.

    first : the score table of all rows, and the result of the first pass
    joined : of the segments, from `add_pooled` or `add_segment_tasks`; None where these need the fit to all rows
    """

    first: tuple[ScoreTable, Any]
    numbered: Numbered
    joined: Any


def add_segment_fit(graph: Graph, recipe: Recipe, rows: SortedRows) -> Any:
    """Add a fit to segments to a graph: `number -> split -> merge-i -> combine -> pack -> join-i -> fitted`.

    rows : their plan's `write` is where the score table of the segments is kept. Returns a reference to a `Merged`.
    """
    calibrator = recipe.calibrator()
    keep, rows = rows.plan.write, _placed(rows, recipe)
    numbered = graph.task("number", _number, rows.total, rows.plan.scratch, recipe, rows.weighted, keep)
    cutting = graph.task("cut", operator.attrgetter("cutting"), numbered)
    first = add_merge(graph, rows, calibrator.first_pass(), cutting)
    joined = None
    if recipe.partial_pooling:
        joined = add_pooled(graph, calibrator, first, numbered, rows)
    elif not calibrator.fitted_for_segments:
        wanted = graph.task("wanted", operator.attrgetter("wanted"), numbered)
        segment_task = _segment_task(recipe, calibrator.for_segments())
        joined = _add_segment_tasks(graph, segment_task, first, wanted, rows, recipe)
    return graph.task("fitted", Merged, first, numbered, joined)


def _placed(rows: SortedRows, recipe: Recipe) -> SortedRows:
    plan = replace(rows.plan, write=None)
    return placed(rows._replace(plan=plan), recipe.calibrator(), recipe.interval)


def _add_segment_tasks(
    graph: Graph, segment_task: SegmentTask[Fitted], first: Any, wanted: Any, rows: SortedRows, recipe: Recipe
) -> Any:
    pooled, task_bytes = segment_task.first is None, rows.plan.bucket_bytes
    few = MOST_POOLED if pooled else MOST_SEGMENTS
    each = most_batches(rows.log.rows, ITEM_BYTES, task_bytes, recipe.rules.min_rows, few)
    most = each * len(recipe.columns)
    works = add_batches(graph, first, wanted, pooled=pooled, task_bytes=task_bytes, most=most)
    return add_segment_tasks(graph, works, segment_task, rows.plan.scratch)


def _segment_task(recipe: Recipe, calibrator: Calibrator, heaviest: float = 1.0) -> SegmentTask[Fitted]:
    """Fit segments in a segment task.

    calibrator : for them. heaviest : of the score table; segments that are not cut know it by themselves
    """
    if isinstance(calibrator, Isotonic) and recipe.pooled:
        return SegmentTask(functools.partial(_fit_pooled, float(calibrator.ends)))
    if recipe.interval == NONE:  # an interval describes the rows of the map
        calibrator = calibrator.in_lines(falling=recipe.monotone == "allow")
    way = _Way(calibrator, recipe.monotone, recipe.interval)
    return SegmentTask(
        small=functools.partial(_fit_small, way),
        first=calibrator.first_pass(),
        large=functools.partial(_fit_large, way, heaviest),
    )


def _number(total: RunReceipt, scratch: str, recipe: Recipe, weighted: bool, keep: str | None) -> Numbered:
    segments = number_segments(total.runs, scratch)
    rules = recipe.rules if recipe.partial_pooling else replace(recipe.rules, partial_pooling=False)
    reasons = tuple(rules.reasons(level.rows, level.positives) for level in segments.levels)
    wanted = tuple(np.array([reason is None for reason in own], np.bool_) for own in reasons)
    pooled = None if recipe.partial_pooling else recipe.pooled
    cutting = cut_levels(segments, wanted, scratch, pooled=pooled, weighted=weighted)
    if keep is not None:
        cutting = cutting._replace(kept=keep_keys(segments, recipe.columns, scratch, keep))
    return Numbered(segments, reasons, wanted, cutting)


def finish_segments(
    recipe: Recipe, rows: SortedRows, executor: Executor, merged: Merged
) -> tuple[SegmentedFit, Fit]:
    """Finish what the graph could not know beforehand: passes after the first, of all rows and of large segments.

    The result depends neither on the order of the rows nor on files, sizes of tasks, or workers, and equals fitting
    each segment's rows in memory.

    Parameters
    ----------
    recipe : its columns are those of the log
    rows : their plan's `write` is where the score table of the segments is kept, if it is wanted
    merged : what `add_segment_fit` gave

    Returns
    -------
    the maps, and the fit to all rows

    Raises
    ------
    InputRejectedError
        As `fit_log` for all rows; too many segments; too few rows for any map where scores are not in [0, 1].
    CheckFailedError
        With monotone='require'.
    """
    first, numbered, joined = merged
    rows, interval = _placed(rows, recipe), recipe.interval
    if recipe.partial_pooling:
        below, variances, fitted = joined
        check_table(first[0])
        fit = Fit(fitted, first[0])
    else:
        fit = fit_log(recipe.calibrator(), rows, executor, interval, first)
    level_0, identity, repair, refuted = _whole(fit, recipe)
    if recipe.partial_pooling:
        types = numbered.segments.levels[-1].types
        return SegmentedFit((level_0, *below), types, False, True, 0.0, variances), fit
    segment_task = _segment_task(recipe, fit.calibrator.for_segments(), fit.table.heaviest)
    if joined is None:
        graph = Graph()
        joined = executor.compute(
            graph, _add_segment_tasks(graph, segment_task, first, numbered.wanted, rows, recipe)
        )
    numbered_levels = numbered.segments.levels
    levels, results, lines = [level_0], [], []
    for level, reasons, done in zip(
        numbered_levels,
        numbered.reasons,
        finish_segment_tasks(joined, len(numbered_levels), executor, segment_task),
        strict=True,
    ):
        levels.append(_level_fit(level, done, list(reasons), interval))
        results += [result for _, result in done]
        lines.append(_lines_of(len(level.keys), done))
    if any(line is not None for level_lines in lines for line in level_lines):
        _say_as_moves(levels, lines, [level.of for level in numbered_levels])
    first_map = level_0.maps.first()
    monotone_first = identity or first_map is None or first_map.monotone
    fitted = SegmentedFit(
        tuple(levels),
        numbered_levels[-1].types,
        identity,
        monotone_first and all(result.monotone for result in results),
        max([repair, *(result.repair for result in results)]),
        interval=interval,
        refuted=refuted + sum(result.refuted for result in results),
    )
    return fitted, fit


def _whole(fit: Fit, recipe: Recipe) -> tuple[LevelFit, bool, float, int]:
    """Level 0: the map of all rows, or the score as it is where they are too few; and how many bands were refuted."""
    table, own, interval = fit.table, None, recipe.interval
    rows, positives = np.array([table.used]), np.array([table.used_positive])
    [reason] = (
        [None]
        if recipe.partial_pooling
        else replace(recipe.rules, partial_pooling=False).reasons(rows, positives)
    )
    if reason is None:
        calibration_map, repair = keep_monotone(fit.calibrator.calibration_map_, recipe.monotone)
        own = interval_of(fit, calibration_map)
    else:
        calibration_map, repair = _identity(table, reason), 0.0
    maps = Maps.empty([], interval)
    maps.add(calibration_map, own)
    refuted = int(reason is None and interval != NONE and own is None)
    return LevelFit(0, [()], rows, positives, [reason], maps), reason is not None, repair, refuted


def _identity(table: ScoreTable, reason: str) -> CalibrationMap:
    if table.lowest < 0 or table.highest > 1:
        raise InputRejectedError(
            f"segments.{reason}: expected at least as much in all rows together, found {table.used:,} rows, "
            f"{table.used_positive:,} of them positive; and scores from {table.lowest:g} to {table.highest:g} are no "
            f"probabilities to fall back to: lower segments.{reason}, or set log.score_transform"
        )
    zero = np.zeros(3)
    edges = np.array([-np.inf, 0.0, 1.0, np.inf])
    return CalibrationMap(
        edges[:3], edges[1:], np.array([0.0, 0.0, 1.0]), np.array([0.0, 1.0, 0.0]), zero, zero, zero
    )


def _level_fit(
    level: Level, done: list[tuple[npt.NDArray[np.int64], Fitted]], reasons: list[str | None], interval: str
) -> LevelFit:
    """Collect a level's maps in the order of its segments, and add the reasons that fits gave for refusing one."""
    maps = Maps.empty([0] * len(level.keys), interval)
    for codes, result in done:
        for code, size, reason in zip(codes.tolist(), result.maps.sizes, result.reasons, strict=True):
            maps.sizes[code] = size
            reasons[code] = reason
        for column, more in zip(maps.columns, result.maps.columns, strict=True):
            column.extend(more)
    return LevelFit(level.level, level.keys, level.rows, level.positives, reasons, maps, of=level.of)


def _lines_of(count: int, done: list[tuple[npt.NDArray[np.int64], Fitted]]) -> list[Line | None]:
    """Return for each segment of a level its line, if it has one."""
    found: list[Line | None] = [None] * count
    for codes, result in done:
        for code, line in zip(codes.tolist(), result.lines, strict=False):
            found[code] = line
    return found


def _say_as_moves(levels: list[LevelFit], lines: list[list[Line | None]], of: list[Codes]) -> None:
    """Say of all segments what they go through, where some have lines instead of maps.

    of : of each level, the segments of the most columns by their segment of that level
    """
    above = Adjustments(np.zeros(1, np.int32), np.zeros(1), np.ones(1), *_HELD, np.zeros(1, np.int8))
    places = np.zeros_like(of[0])
    for level, own, own_places in zip(levels[1:], lines, of, strict=True):
        parent = np.zeros(len(own), np.int64)
        parent[own_places] = places
        assert above.of is not None
        fitted, kind = above.fitted_level[parent], above.of[parent]
        shift, slope = above.shift[parent], above.slope[parent]
        for i, (line, reason) in enumerate(zip(own, level.reasons, strict=True)):
            if reason is None:
                kind[i], shift[i], slope[i] = line or (0, 0.0, 1.0)
                fitted[i] = level.level
        low, high = (np.full(len(own), end[0]) for end in _HELD)
        level.adjustments = above = Adjustments(fitted, shift, slope, low, high, kind)
        places = own_places


_HELD = (np.array([2.0**-53]), np.array([1.0 - 2.0**-53]))
"""Clipping bounds of a score before the logit."""


class _Way(NamedTuple):
    """Method of the fit to each segment: see `finish_segments`."""

    calibrator: Calibrator
    monotone: str
    interval: str


def _fit_small(way: _Way, segments: Slices) -> Fitted:
    """Fit segments whose points are in memory."""
    found = [
        _fit_one(way, segments.heaviest, points.score.size, in_memory(points)) for points in segments.points()
    ]
    return _fitted(found, way.interval)


def _fit_pooled(ends: float, segments: Slices) -> Fitted:
    """Isotonic regression of segments' blocks: its maps never decrease."""
    columns, sizes = fit_groups(segments.columns, segments.starts, ends)
    rows = sizes.tolist()
    reasons = [ONE_SCORE if size == 0 else None for size in rows]
    return Fitted(Maps(rows, [[column] for column in columns]), reasons, monotone=True, repair=0.0)


def _fit_large(way: _Way, heaviest: float, points: int, run: Callable[[Pass], Any]) -> Fitted:
    return _fitted([_fit_one(way, heaviest, points, run)], way.interval)


class _One(NamedTuple):
    """Result of a segment: its map or line, or the reason for neither; the size of its repair; and its interval."""

    what: CalibrationMap | Line | str
    repair: float = 0.0
    interval: Interval | None = None

    @property
    def rises(self) -> bool:
        """True if it never decreases."""
        if isinstance(self.what, CalibrationMap):
            return self.what.monotone
        return isinstance(self.what, str) or self.what.slope >= 0


def _fitted(found: list[_One], interval: str) -> Fitted:
    maps = Maps.empty([], interval)
    for one in found:
        maps.add(one.what if isinstance(one.what, CalibrationMap) else None, one.interval)
    reasons = [one.what if isinstance(one.what, str) else None for one in found]
    lines = [one.what if isinstance(one.what, Line) else None for one in found]
    without = [one for one in found if isinstance(one.what, CalibrationMap) and one.interval is None]
    return Fitted(
        maps.packed(),
        reasons,
        all(one.rises for one in found),
        max(one.repair for one in found),
        lines,
        0 if interval == NONE else len(without),
    )


def _fit_one(way: _Way, heaviest: float, points: int, run: Callable[[Pass], Any]) -> _One:
    if points == 1:
        return _One(ONE_SCORE)
    # Fitting changes it, and other tasks have it too.
    calibrator = copy.copy(way.calibrator)
    try:
        calibrator.fit_passes(run)
    except ValueError:
        return _One(NOT_SUITED)
    if calibrator.line_ is not None:
        return _One(calibrator.line_)
    one, repair = keep_monotone(calibrator.calibration_map_, way.monotone)
    if way.interval == NONE:
        return _One(one, repair)
    if way.interval == POSTERIOR:
        return _One(one, repair, calibrator.posterior_.interval(one))
    found = run_passes(interval_passes(way.interval, one, heaviest), run)
    return _One(one, repair, None if found is None else divided(found, calibrator.sampling_rate))
