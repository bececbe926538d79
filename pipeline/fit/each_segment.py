"""Fit of a calibrator to one segment, or to the segments of a task."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from calibrators.base import Calibrator, Line, Sampling
from calibrators.core.fine_cells import FineCells
from calibrators.core.intervals import NONE, POSTERIOR, divided, interval_passes
from calibrators.core.map import CalibrationMap, Interval
from calibrators.core.passes import Pass, Points, in_memory, run_passes
from calibrators.isotonic.calibrator import Isotonic
from calibrators.segments.partial_pooling import fit_groups
from pipeline.fit.calibration import Recipe, keep_monotone
from pipeline.fit.self_check import (
    CellCollector,
    expected_positives,
    sums_of_cells,
    sums_of_points,
    sums_of_rows,
)
from pipeline.sort.segment_tasks import SegmentTask
from pipeline.sort.segments import Slices
from pipeline.table.segment_maps import NOT_SUITED, ONE_SCORE, Fitted, Maps


def task_of(recipe: Recipe, calibrator: Calibrator, heaviest: float = 1.0) -> SegmentTask[Fitted]:
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


def fit_of_points(
    recipe: Recipe, calibrator: Calibrator, heaviest: float, results: list[Fitted]
) -> Callable[[Points], CalibrationMap | Line | str]:
    """Return a function from a segment's points to its map or its line, or the reason for neither.

    Parameters: see `task_of`. results : what each call adds its result to
    """
    settings = _settings(recipe, calibrator)

    def fit(points: Points) -> CalibrationMap | Line | str:
        result = _fit(settings, heaviest, points.score.size, in_memory(points))
        results.append(_collect([result], settings.interval))
        return result.outcome

    return fit


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
