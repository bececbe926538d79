"""Fit of a calibrator to each segment of a log, out of core.

The log is read once, and one sort of its rows by score serves all rows and each level's segments (see
`pipeline.sort.segment_merge`). Isotonic regression pools each segment within each range of scores, and then pools the
resulting blocks, which is exact; for other methods each segment's points are gathered. Small segments adjust their
parent's map (see `pipeline.fit.pooled_segments`), or have no map of their own and fall back to the segment with one
column fewer, then to all rows, then to the unchanged score.
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

from calibrators.base import Calibrator, Line, Sampling
from calibrators.core.arrays import Codes
from calibrators.core.fine_cells import FineCells
from calibrators.core.intervals import NONE, POSTERIOR, divided, interval_passes
from calibrators.core.map import CalibrationMap, Interval
from calibrators.core.passes import Pass, Points, in_memory, run_passes
from calibrators.isotonic.calibrator import Isotonic
from calibrators.measures.segment_check import joined
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
    with_table_path,
)
from pipeline.fit.outliers import fit_without_outliers
from pipeline.fit.pooled_segments import Numbered, add_pooled, pooled_pass
from pipeline.fit.self_check import (
    CellCollector,
    check_all_rows,
    expected_positives,
    sums_of_cells,
    sums_of_points,
    sums_of_rows,
)
from pipeline.fit.shared_maps import (
    SharedCells,
    bends_all_rows,
    check_of,
    check_shared,
    check_single,
    cut_shared,
    find_shared,
    fit_bent_parents,
    fit_users,
)
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
from pipeline.sort.segments import Level, Slices, number_segments
from pipeline.table.segment_maps import (
    NOT_SUITED,
    ONE_SCORE,
    Fitted,
    LevelFit,
    MapAdjustments,
    Maps,
    SegmentedFit,
)


class MergedFit(NamedTuple):
    """Result of the graph of a fit to segments.

    first : the score table of all rows, and the result of the first pass
    joined : results of `add_pooled` or `add_segment_tasks`; None if these need the fit to all rows first
    """

    first: tuple[ScoreTable, Any]
    numbered: Numbered
    joined: Any


def add_segment_fit(graph: Graph, recipe: Recipe, rows: SortedRows) -> Any:
    """Add a fit to segments to a graph: `number -> split -> merge-i -> combine -> pack -> join-i -> fitted`.

    rows : their plan's `write` is the path of the segments' score table, if it is kept

    Returns a reference to a `MergedFit`.
    """
    calibrator = recipe.calibrator()
    table_path, rows = rows.plan.write, _with_table_path(rows, recipe)
    numbered = graph.task("number", _number, rows.total, rows.plan.scratch, recipe, rows.weighted, table_path)
    cutting = graph.task("cut", operator.attrgetter("cutting"), numbered)
    first_pass = pooled_pass(calibrator) if recipe.partial_pooling else calibrator.first_pass()
    first = add_merge(graph, rows, first_pass, cutting)
    joined = None
    if recipe.partial_pooling:
        joined = add_pooled(graph, calibrator, recipe.sampling_rate, first, numbered, rows)
    elif not calibrator.needs.fit_before_segments:
        wanted = graph.task("wanted", operator.attrgetter("wanted"), numbered)
        segment_task = _segment_task(recipe, calibrator.for_segments())
        joined = _add_segment_tasks(graph, segment_task, first, wanted, rows, recipe)
    return graph.task("fitted", MergedFit, first, numbered, joined)


def _with_table_path(rows: SortedRows, recipe: Recipe) -> SortedRows:
    plan = replace(rows.plan, write=None)
    return with_table_path(rows._replace(plan=plan), recipe.calibrator(), recipe.interval)


def _add_segment_tasks(
    graph: Graph, segment_task: SegmentTask[Fitted], first: Any, wanted: Any, rows: SortedRows, recipe: Recipe
) -> Any:
    pooled, task_bytes = segment_task.first is None, rows.plan.bucket_bytes
    most_segments = MOST_POOLED if pooled else MOST_SEGMENTS
    per_level = most_batches(rows.log.rows, ITEM_BYTES, task_bytes, recipe.rules.min_rows, most_segments)
    most = per_level * len(recipe.columns)
    works = add_batches(graph, first, wanted, pooled=pooled, task_bytes=task_bytes, most=most)
    return add_segment_tasks(graph, works, segment_task, rows.plan.scratch)


def _segment_task(recipe: Recipe, calibrator: Calibrator, heaviest: float = 1.0) -> SegmentTask[Fitted]:
    """Make the segment task that fits segments.

    calibrator : calibrator of a segment
    heaviest : largest weight of a row of the score table, for segments that are cut
    """
    if isinstance(calibrator, Isotonic) and recipe.pooled:
        return SegmentTask(functools.partial(_fit_pooled, float(calibrator.ends)))
    settings = _settings(recipe, calibrator)
    return SegmentTask(
        small=functools.partial(_fit_small, settings),
        first=calibrator.first_pass(),
        large=functools.partial(_fit_large, settings, heaviest),
    )


def _number(total: RunReceipt, scratch: str, recipe: Recipe, weighted: bool, path: str | None) -> Numbered:
    segments = number_segments(total.runs, scratch)
    rules = recipe.rules if recipe.partial_pooling else replace(recipe.rules, partial_pooling=False)
    reasons = tuple(rules.reasons(level.rows, level.positives) for level in segments.levels)
    wanted = tuple(np.array([reason is None for reason in level], np.bool_) for level in reasons)
    pooled = None if recipe.partial_pooling else recipe.pooled
    cutting = cut_levels(segments, wanted, scratch, pooled=pooled, weighted=weighted)
    if path is not None:
        cutting = cutting._replace(kept=keep_keys(segments, recipe.columns, scratch, path))
    shared = None
    if not recipe.partial_pooling and (shared := find_shared(segments, wanted)) is not None:
        cutting = cutting._replace(levels=(*cutting.levels, cut_shared(shared, scratch)))
    return Numbered(segments, reasons, wanted, cutting, shared)


def finish_segments(
    recipe: Recipe, rows: SortedRows, executor: Executor, merged: MergedFit
) -> tuple[SegmentedFit, Fit]:
    """Run the passes after the first, of all rows and of large segments, whose number depends on the rows.

    The result depends neither on the order of the rows nor on files, sizes of tasks, or workers, and equals fitting
    each segment's rows in memory.

    Parameters
    ----------
    recipe : its columns are those of the log
    rows : their plan's `write` is the path of the segments' score table, if it is kept
    merged : result of the tasks of `add_segment_fit`

    Returns
    -------
    the maps, and the fit to all rows

    Raises
    ------
    InputRejectedError
        As `fit_log` for all rows; too many segments; too few rows for any map and scores outside [0, 1].
    CheckFailedError
        A map decreases and monotone is 'require'.
    """
    first, numbered, joined_levels = merged
    rows, interval = _with_table_path(rows, recipe), recipe.interval
    if recipe.partial_pooling:
        check_table(first[0])
        pooled_levels, variances, all_rows = fit_without_outliers(
            recipe, rows, executor, numbered, joined_levels
        )
        fit = Fit(all_rows.calibrator, first[0], agreement=all_rows.checked)
    else:
        fit = fit_log(recipe.calibrator(), rows, executor, interval, first, recipe.sampling_rate)
    level_0, identity, fit, refuted = _fit_level_0(fit, recipe)
    if recipe.partial_pooling:
        types = numbered.segments.levels[-1].types
        return SegmentedFit((level_0, *pooled_levels), types, False, True, 0.0, variances), fit
    segment_task = _segment_task(recipe, fit.calibrator.for_segments(), fit.table.heaviest)
    if joined_levels is None:
        graph = Graph()
        joined_levels = executor.compute(
            graph, _add_segment_tasks(graph, segment_task, first, numbered.wanted, rows, recipe)
        )
    numbered_levels = numbered.segments.levels
    levels, results, lines, shared = [level_0], [], [], None
    singles = []
    for level, reasons, level_results in zip(
        numbered_levels,
        numbered.reasons,
        finish_segment_tasks(joined_levels, len(numbered_levels), executor, segment_task),
        strict=True,
    ):
        levels.append(_level_fit(level, level_results, list(reasons), interval))
        results += [result for _, result in level_results]
        singles.append(level_results)
        lines.append(_lines_of(len(level.keys), level_results))
    users, parents, unchecked = None, 0, [replace(level_0, maps=Maps([0])), *levels[1:]]
    if numbered.shared is not None:
        cells = SharedCells(numbered.shared, first[0].shuffled[-1], executor)
        check = functools.partial(check_shared, cells, lines=lines, rate=recipe.sampling_rate)
        # Scores that are used as they are, were not fitted.
        shared = check(unchecked if identity else levels)
        heaviest = fit.calibrator.sampling_.heaviest
        verdict = check_of(shared, fit.agreement, heaviest)
        if interval == NONE:
            settings = _settings(recipe, fit.calibrator.for_segments())
            fit_points = functools.partial(_fit_points, settings, heaviest, results)
            enough = numbered.shared.with_enough(numbered.segments, recipe.rules)
            parents = fit_bent_parents(cells, verdict, levels, lines, fit_points, enough)
        if not identity and bends_all_rows(numbered.shared, verdict):
            users = fit_users(recipe, rows, executor, numbered.segments, numbered.shared)
        if users is not None:
            fit = replace(users.fit, table=fit.table)
            level_0, identity, fit, refuted = _fit_level_0(fit, recipe)
            levels[0] = level_0
        if users is not None or parents:
            shared = check(unchecked if identity or users is not None else levels)
    check_single(unchecked if identity else levels, lines, singles, recipe.sampling_rate)
    if any(line is not None for level_lines in lines for line in level_lines):
        _adjust_by_lines(levels, lines, [level.of for level in numbered_levels])
    first_map, repair = level_0.maps.first(), 0.0 if fit.agreement is None else fit.agreement.repair
    monotone_first = identity or first_map is None or first_map.monotone
    fitted = SegmentedFit(
        tuple(levels),
        numbered_levels[-1].types,
        identity,
        monotone_first and all(result.monotone for result in results),
        max([repair, *(result.repair for result in results)]),
        interval=interval,
        refuted=refuted + sum(result.refuted for result in results),
        shared=shared,
        users=None if users is None else users.rows,
        parents=parents,
    )
    return fitted, fit


def _fit_level_0(fit: Fit, recipe: Recipe) -> tuple[LevelFit, bool, Fit, int]:
    """Make level 0: the map of all rows, or the identity if they are too few.

    Also return whether it is the identity, the fit with the check of its map, and the number of refuted bands.
    """
    table, interval = fit.table, None
    rows, positives = np.array([table.used]), np.array([table.used_positive])
    [reason] = (
        [None]
        if recipe.partial_pooling
        else replace(recipe.rules, partial_pooling=False).reasons(rows, positives)
    )
    if reason is None:
        keep = functools.partial(keep_monotone, policy=recipe.monotone)
        agreement = fit.agreement or check_all_rows(fit.calibrator, fit.checked, keep)
        calibration_map, fit = agreement.fitted, replace(fit, agreement=agreement)
        interval = interval_of(fit, calibration_map)
    else:
        calibration_map = _identity(table, reason)
    maps = Maps.empty([], recipe.interval)
    maps.add(calibration_map, interval)
    refuted = int(reason is None and recipe.interval != NONE and interval is None)
    return LevelFit(0, [()], rows, positives, [reason], maps), reason is not None, fit, refuted


def _identity(table: ScoreTable, reason: str) -> CalibrationMap:
    if table.lowest < 0 or table.highest > 1:
        raise InputRejectedError(
            f"${reason}: expected at least as much in all rows together, found {table.used:,} rows, "
            f"{table.used_positive:,} of them positive; and scores from {table.lowest:g} to {table.highest:g} are no "
            f"probabilities to fall back to: lower ${reason}, or set $score_transform"
        )
    zero = np.zeros(3)
    edges = np.array([-np.inf, 0.0, 1.0, np.inf])
    return CalibrationMap(
        edges[:3], edges[1:], np.array([0.0, 0.0, 1.0]), np.array([0.0, 1.0, 0.0]), zero, zero, zero
    )


def _level_fit(
    level: Level, fits: list[tuple[npt.NDArray[np.int64], Fitted]], reasons: list[str | None], interval: str
) -> LevelFit:
    """Collect a level's maps in the order of its segments, and the fits' reasons for missing maps."""
    maps = Maps.empty([0] * len(level.keys), interval)
    for codes, result in fits:
        for code, size, reason in zip(codes.tolist(), result.maps.sizes, result.reasons, strict=True):
            maps.sizes[code] = size
            reasons[code] = reason
        for column, arrays in zip(maps.columns, result.maps.columns, strict=True):
            column.extend(arrays)
    checked = [(codes, result.checked) for codes, result in fits if result.checked is not None]
    return LevelFit(
        level.level,
        level.keys,
        level.rows,
        level.positives,
        reasons,
        maps,
        of=level.of,
        checked=joined(checked, len(level.keys)),
    )


def _lines_of(count: int, fits: list[tuple[npt.NDArray[np.int64], Fitted]]) -> list[Line | None]:
    """Return the line of each segment of a level; None if it has none."""
    lines: list[Line | None] = [None] * count
    for codes, result in fits:
        for code, line in zip(codes.tolist(), result.lines, strict=False):
            lines[code] = line
    return lines


def _adjust_by_lines(levels: list[LevelFit], lines: list[list[Line | None]], indices: list[Codes]) -> None:
    """Set the adjustments of all levels, if some segments have lines instead of maps.

    indices : for each level the index of each segment of the last level
    """
    above = MapAdjustments(np.zeros(1, np.int32), np.zeros(1), np.ones(1), *_CLIPPING, np.zeros(1, np.int8))
    above_indices = np.zeros_like(indices[0])
    for level, level_lines, level_indices in zip(levels[1:], lines, indices, strict=True):
        parent = np.zeros(len(level_lines), np.int64)
        parent[level_indices] = above_indices
        assert above.kind is not None
        fitted, kind = above.fitted_level[parent], above.kind[parent]
        shift, slope = above.shift[parent], above.slope[parent]
        for i, (line, reason) in enumerate(zip(level_lines, level.reasons, strict=True)):
            if reason is None:
                kind[i], shift[i], slope[i] = line or (0, 0.0, 1.0)
                fitted[i] = level.level
        low, high = (np.full(len(level_lines), bound[0]) for bound in _CLIPPING)
        level.adjustments = above = MapAdjustments(fitted, shift, slope, low, high, kind)
        above_indices = level_indices


_CLIPPING = (np.array([2.0**-53]), np.array([1.0 - 2.0**-53]))
"""Clipping bounds of a score before the logit."""


class _Settings(NamedTuple):
    """Settings of the fit to each segment: see `Recipe`."""

    calibrator: Calibrator
    monotone: str
    interval: str
    sampling_rate: float


def _settings(recipe: Recipe, calibrator: Calibrator) -> _Settings:
    if recipe.interval == NONE:  # intervals belong to rows of a map, which lines do not have
        calibrator = calibrator.in_lines(falling=recipe.monotone == "allow")
    return _Settings(calibrator, recipe.monotone, recipe.interval, recipe.sampling_rate)


def _fit_points(
    settings: _Settings, heaviest: float, results: list[Fitted], points: Points
) -> CalibrationMap | Line | str:
    result = _fit(settings, heaviest, points.score.size, in_memory(points))
    results.append(_collect([result], settings.interval))
    return result.outcome


def _fit_small(settings: _Settings, segments: Slices) -> Fitted:
    """Fit segments whose points are in memory."""
    results, expected = [], []
    for points in segments.points():
        result = _fit(settings, segments.heaviest, points.score.size, in_memory(points))
        results.append(result)
        expected.append(expected_positives(result.outcome, points, settings.sampling_rate))
    checked = sums_of_points(
        segments, np.concatenate(expected), np.array([result.fitted for result in results])
    )
    single = np.array([result.outcome == ONE_SCORE for result in results])
    one_score = np.array([column[segments.starts[:-1][single]] for column in segments.columns])
    return _collect(results, settings.interval)._replace(checked=checked, single=one_score)


def _fit_pooled(ends: float, segments: Slices) -> Fitted:
    """Fit isotonic regression to the blocks of segments; its maps never decrease."""
    columns, sizes = fit_groups(segments.columns, segments.starts, ends)
    rows = sizes.tolist()
    reasons = [ONE_SCORE if size == 0 else None for size in rows]
    checked = sums_of_rows(columns, sizes)
    items, starts = segments.columns, segments.starts
    one_score = starts[:-1][sizes == 0]
    sums = (
        np.add.reduceat(column, starts[:-1])[sizes == 0] for column in (items[2], items[len(items) // 2 + 1])
    )
    return Fitted(
        Maps(rows, [[column] for column in columns]),
        reasons,
        monotone=True,
        repair=0.0,
        checked=checked,
        single=np.array([items[0][one_score], *sums]),
    )


def _fit_large(settings: _Settings, heaviest: float, points: int, run: Callable[[Pass], Any]) -> Fitted:
    collector = CellCollector(settings.calibrator)
    result = _fit(settings, heaviest, points, lambda request: collector.run(request, run))
    cells = result.fine
    if result.fitted and cells is None:
        collector.finish(run)
        cells = collector.cells
    checked = sums_of_cells(result.outcome, cells, settings.sampling_rate)
    return _collect([result], settings.interval)._replace(checked=checked)


class _Result(NamedTuple):
    """Result of the fit to a segment.

    outcome : its map or its line, or the reason for neither
    repair : largest change by the monotone repair
    interval : interval of the map's rows
    fine : fine cells of the segment, if the fit gathered them
    """

    outcome: CalibrationMap | Line | str
    repair: float = 0.0
    interval: Interval | None = None
    fine: FineCells | None = None

    @property
    def fitted(self) -> bool:
        """True if the segment has a map or a line."""
        return not isinstance(self.outcome, str)

    @property
    def monotone(self) -> bool:
        """True unless the map or line decreases."""
        if isinstance(self.outcome, CalibrationMap):
            return self.outcome.monotone
        return isinstance(self.outcome, str) or self.outcome.slope >= 0


def _collect(results: list[_Result], interval: str) -> Fitted:
    maps = Maps.empty([], interval)
    for result in results:
        maps.add(result.outcome if isinstance(result.outcome, CalibrationMap) else None, result.interval)
    outcomes = [result.outcome for result in results]
    reasons = [outcome if isinstance(outcome, str) else None for outcome in outcomes]
    lines = [outcome if isinstance(outcome, Line) else None for outcome in outcomes]
    without = [r for r in results if isinstance(r.outcome, CalibrationMap) and r.interval is None]
    return Fitted(
        maps.packed(),
        reasons,
        all(result.monotone for result in results),
        max(result.repair for result in results),
        lines,
        0 if interval == NONE else len(without),
    )


def _fit(settings: _Settings, heaviest: float, points: int, run: Callable[[Pass], Any]) -> _Result:
    if points == 1:
        return _Result(ONE_SCORE)
    # Copy: the fit changes the calibrator, which other tasks share.
    calibrator = copy.copy(settings.calibrator)
    try:
        calibrator.fit_passes(run, Sampling(settings.sampling_rate, heaviest))
    except ValueError:
        return _Result(NOT_SUITED)
    if calibrator.line_ is not None:
        return _Result(calibrator.line_)
    new_map, repair = keep_monotone(calibrator.calibration_map_, settings.monotone)
    result = _Result(new_map, repair, fine=calibrator.fine_cells_)
    if settings.interval == NONE:
        return result
    if settings.interval == POSTERIOR:
        return result._replace(interval=calibrator.posterior_.interval(new_map))
    interval = run_passes(interval_passes(settings.interval, new_map, heaviest), run)
    rate = settings.sampling_rate
    return result._replace(interval=None if interval is None else divided(interval, rate))
