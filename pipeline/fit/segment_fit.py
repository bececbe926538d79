"""Fit of a calibrator to each segment of a log, out of core.

The log is read once, and one sort of its rows by score serves all rows and each level's segments (see
`pipeline.sort.segment_merge`). Isotonic regression pools each segment within each range of scores, and then pools the
resulting blocks, which is exact; for other methods each segment's points are gathered. Small segments adjust their
parent's map (see `pipeline.fit.pooled_segments`), or have no map of their own and fall back to the segment with one
column fewer, then to all rows, then to the unchanged score.
"""

from __future__ import annotations

import functools
import operator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from calibrators.base import Line
from calibrators.core.arrays import Codes, Integers
from calibrators.core.intervals import NONE
from calibrators.core.map import CalibrationMap
from calibrators.measures.segment_check import joined
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
from pipeline.fit.each_segment import fit_of_points, task_of
from pipeline.fit.outliers import fit_without_outliers
from pipeline.fit.pooled_segments import Numbered, add_pooled, pooled_pass
from pipeline.fit.self_check import check_all_rows
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
from pipeline.sort.segments import Level, number_segments
from pipeline.table.segment_maps import (
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
        segment_task = task_of(recipe, calibrator.for_segments())
        joined = _add_segment_tasks(graph, segment_task, first, wanted, rows, recipe)
    return graph.task("fitted", MergedFit, first, numbered, joined)


def _with_table_path(rows: SortedRows, recipe: Recipe) -> SortedRows:
    plan = replace(rows.plan, write=None, keep=False)
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
    rows = _with_table_path(rows, recipe)
    if recipe.partial_pooling:
        check_table(first[0])
        found = fit_without_outliers(recipe, rows, executor, numbered, joined_levels)
        pooled_levels, variances, all_rows = found
        whole = _level_0(Fit(all_rows.calibrator, first[0], agreement=all_rows.checked), recipe)
        types = numbered.segments.levels[-1].types
        return SegmentedFit((whole.level, *pooled_levels), types, False, True, 0.0, variances), whole.fit
    fit = fit_log(recipe.calibrator(), rows, executor, recipe.interval, first, recipe.sampling_rate)
    whole = _level_0(fit, recipe)
    segment_task = task_of(recipe, whole.fit.calibrator.for_segments(), whole.fit.table.heaviest)
    if joined_levels is None:
        graph = Graph()
        joined_levels = executor.compute(
            graph, _add_segment_tasks(graph, segment_task, first, numbered.wanted, rows, recipe)
        )
    levels = numbered.segments.levels
    fits = list(finish_segment_tasks(joined_levels, len(levels), executor, segment_task))
    below = _Below(
        [
            _level_fit(*of, recipe.interval)
            for of in zip(levels, fits, map(list, numbered.reasons), strict=True)
        ],
        [_lines_of(len(level.keys), of_level) for level, of_level in zip(levels, fits, strict=True)],
        [result for of_level in fits for _, result in of_level],
    )
    shared = _Shared()
    if numbered.shared is not None:
        cells = SharedCells(numbered.shared, first[0].shuffled[-1], executor)
        whole, shared = _mend_shared(recipe, rows, numbered, cells, whole, below)
    check_single(whole.fitted(below), below.lines, fits, recipe.sampling_rate)
    if any(line is not None for level_lines in below.lines for line in level_lines):
        _adjust_by_lines([whole.level, *below.levels], below.lines, [level.of for level in levels])
    first_map, agreement = whole.level.maps.first(), whole.fit.agreement
    monotone_first = whole.identity or first_map is None or first_map.monotone
    repair = 0.0 if agreement is None else agreement.repair
    fitted = SegmentedFit(
        (whole.level, *below.levels),
        levels[-1].types,
        whole.identity,
        monotone_first and all(result.monotone for result in below.results),
        max([repair, *(result.repair for result in below.results)]),
        interval=recipe.interval,
        refuted=whole.refuted + sum(result.refuted for result in below.results),
        shared=shared.check,
        users=shared.users,
        parents=shared.parents,
    )
    return fitted, whole.fit


class _Below(NamedTuple):
    """Fits of the levels after that of all rows: the levels, the line of each segment, and the tasks' results."""

    levels: list[LevelFit]
    lines: list[list[Line | None]]
    results: list[Fitted]


class _Whole(NamedTuple):
    """Level 0.

    level : the level. identity : whether its map is the unchanged score, as the rows are too few
    fit : the fit to all rows, with the check of its map
    refuted : number of refuted bands
    """

    level: LevelFit
    identity: bool
    fit: Fit
    refuted: int

    def fitted(self, below: _Below, whole: bool = True) -> list[LevelFit]:
        """Return all levels; that of all rows without its map if this was not fitted, or if `whole` is False."""
        level = self.level if whole and not self.identity else replace(self.level, maps=Maps([0]))
        return [level, *below.levels]


class _Shared(NamedTuple):
    """Check of the maps that segments share, and what was fitted to their users alone: see `SegmentedFit`."""

    check: LevelFit | None = None
    users: int | None = None
    parents: int = 0


def _mend_shared(
    recipe: Recipe, rows: SortedRows, numbered: Numbered, cells: SharedCells, whole: _Whole, below: _Below
) -> tuple[_Whole, _Shared]:
    """Check the maps that segments share; fit those that disagree with the rows that use them to these rows alone."""
    shared = cells.shared
    check = functools.partial(check_shared, cells, lines=below.lines, rate=recipe.sampling_rate)
    checked = check(whole.fitted(below))
    calibrator, parents = whole.fit.calibrator, 0
    verdict = check_of(checked, whole.fit.agreement, calibrator.sampling_.heaviest)
    if recipe.interval == NONE:
        fit = fit_of_points(recipe, calibrator.for_segments(), calibrator.sampling_.heaviest, below.results)
        enough = shared.with_enough(numbered.segments, recipe.rules)
        parents = fit_bent_parents(cells, verdict, [whole.level, *below.levels], below.lines, fit, enough)
    users = None
    if not whole.identity and bends_all_rows(shared, verdict):
        users = fit_users(recipe, rows, cells.executor, numbered.segments, shared)
    if users is not None:
        whole = _level_0(replace(users.fit, table=whole.fit.table), recipe)
    if users is not None or parents:
        # A map that was fitted to its users is checked as every fit is.
        checked = check(whole.fitted(below, whole=users is None))
    return whole, _Shared(checked, None if users is None else users.rows, parents)


def _level_0(fit: Fit, recipe: Recipe) -> _Whole:
    """Make level 0: the map of all rows, or the identity if they are too few."""
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
    return _Whole(LevelFit(0, [()], rows, positives, [reason], maps), reason is not None, fit, refuted)


def _identity(table: ScoreTable, reason: str) -> CalibrationMap:
    if table.lowest < 0 or table.highest > 1:
        raise InputRejectedError(
            f"$[{reason}]: expected at least as much in all rows together, found {table.used:,} rows, "
            f"{table.used_positive:,} of them positive; and scores from {table.lowest:g} to {table.highest:g} are no "
            f"probabilities to fall back to: lower $[{reason}], or set $[score_transform]"
        )
    zero = np.zeros(3)
    edges = np.array([-np.inf, 0.0, 1.0, np.inf])
    return CalibrationMap(
        edges[:3], edges[1:], np.array([0.0, 0.0, 1.0]), np.array([0.0, 1.0, 0.0]), zero, zero, zero
    )


def _level_fit(
    level: Level, fits: list[tuple[Integers, Fitted]], reasons: list[str | None], interval: str
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


def _lines_of(count: int, fits: list[tuple[Integers, Fitted]]) -> list[Line | None]:
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
