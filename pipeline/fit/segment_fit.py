"""Fitting a calibrator to each segment of a log, out of core.

One read of the log, and one order of its rows by score, serve all rows and each level's segments (see
`pipeline.sort.segment_merge`). Isotonic regression pools each segment within each range of scores, and then once more
what that leaves, which is exact; other methods have each segment's points gathered. Thin segments borrow strength (see
`pipeline.fit.leaning_segments`), or have no map of their own and fall back to the level below: the segment of one
column less, then all rows, then the score as it is.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from calibrators.base import Calibrator
from calibrators.calibration_map import CalibrationMap
from calibrators.isotonic import Isotonic
from calibrators.isotonic_groups import fit_groups
from calibrators.passes import Pass, Points
from pipeline.errors import InputRejectedError
from pipeline.execution import Executor
from pipeline.fit.calibration import fit_log, keep_monotone
from pipeline.fit.leaning_segments import fit_leaning, own_segments
from pipeline.log.logs import Log
from pipeline.sort.exchange import Slices
from pipeline.sort.runs import RunReceipt
from pipeline.sort.score_table import ScoreTable, SortPlan, sort_log
from pipeline.sort.segment_visits import Visit, cut_leaning, cut_levels, keep_keys, visit_segments
from pipeline.sort.segments import Level, number_segments
from pipeline.table.segment_maps import (
    NOT_SUITED,
    ONE_SCORE,
    Fitted,
    LevelFit,
    Maps,
    SegmentedFit,
    SegmentRules,
)


def fit_segments(
    calibrator: Calibrator,
    log: Log,
    plan: SortPlan,
    executor: Executor,
    rules: SegmentRules,
    monotone: str = "allow",
    total: RunReceipt | None = None,
    keep: Path | None = None,
) -> tuple[SegmentedFit, ScoreTable]:
    """Fit a calibrator to each segment of a log, to each segment of its leading columns, and to all rows.

    The result depends neither on the order of the rows nor on files, sizes of tasks, or workers, and equals
    fitting each segment's rows in memory.

    Parameters
    ----------
    calibrator : with checked parameters
    log : whose `columns.segments` are the segment columns
    plan, executor : how to sort and where
    rules : which segments are fitted
    monotone : see `pipeline.fit.calibration.keep_monotone`; it holds for each map
    total : see `pipeline.sort.score_table.build_score_table`
    keep : folder for the score table of the segments, if it is wanted

    Returns
    -------
    the maps, and the score table of all rows

    Raises
    ------
    InputRejectedError
        As `fit_log` for all rows; too many segments; too few rows for any map where scores are not in [0, 1].
    CheckFailedError
        With monotone='require'.
    """
    if total is None:
        total = sort_log(log, plan, executor)
    segments = number_segments(total.runs, plan.scratch)
    leaning = rules.lean and can_lean(calibrator)
    if not leaning:
        rules = replace(rules, lean=False)
    reasons = own_segments(segments, rules)
    wanted = [np.array([reason is None for reason in own], np.bool_) for own in reasons]
    pooled = can_lean(calibrator) and calibrator.sampling_rate == 1.0
    chosen = list(zip(segments.levels, wanted, strict=True))
    weighted = log.columns.weight is not None
    if leaning:
        cutting = cut_leaning(segments, wanted, plan.scratch, weighted=weighted)
    else:
        cutting = cut_levels(segments, chosen, plan.scratch, pooled=pooled, weighted=weighted)
    if keep is not None:
        kept = keep_keys(segments, log.columns.segments, plan.scratch, keep)
        cutting = cutting._replace(kept=kept)
    fit = fit_log(calibrator, log, plan, executor, keep=None, total=total, cutting=cutting)
    whole, identity, repair = _whole(calibrator, fit.table, rules, monotone)
    if leaning:
        exchanged, sizes = fit.table.exchanged, (plan.scratch, plan.bucket_bytes)
        rate = calibrator.sampling_rate
        below, variances = fit_leaning(_map_of(whole), segments, exchanged, reasons, executor, *sizes, rate)
        types = segments.levels[-1].types
        return SegmentedFit((whole, *below), types, False, True, 0.0, variances), fit.table
    calibrator = calibrator.for_segments()
    if isinstance(calibrator, Isotonic) and pooled:
        visit: Visit[Fitted] = Visit(functools.partial(_fit_pooled, float(calibrator.ends)))
    else:
        visit = Visit(
            small=functools.partial(_fit_small, calibrator, monotone),
            first=calibrator.first_pass(),
            large=functools.partial(_fit_large, calibrator, monotone),
        )
    levels, results = [whole], []
    for (level, own), files, found in zip(chosen, fit.table.exchanged, reasons, strict=True):
        done = visit_segments(files, executor, visit, own, plan.bucket_bytes)
        levels.append(_level_fit(level, done, found))
        results += [result for _, result in done]
    first = identity or _map_of(whole).monotone
    fitted = SegmentedFit(
        tuple(levels),
        segments.levels[-1].types,
        identity,
        first and all(result.monotone for result in results),
        max([repair, *(result.repair for result in results)]),
    )
    return fitted, fit.table


def leans(method: str, parameters: dict[str, Any]) -> bool:
    """Whether a method's maps, with its parameters, can lean on each other: see `can_lean`."""
    return method in ("isotonic", "dg") and not parameters.get("strict")


def can_lean(calibrator: Calibrator) -> bool:
    """Whether a calibrator's maps are constant on the rows that they were fitted to, and so can lean on each other."""
    return type(calibrator) is Isotonic and calibrator.single_pass


def _whole(
    calibrator: Calibrator, table: ScoreTable, rules: SegmentRules, monotone: str
) -> tuple[LevelFit, bool, float]:
    """Level 0: the map of all rows, or the score as it is where they are too few."""
    reason = None if rules.lean else rules.reason(table.used, table.used_positive)
    if reason is None:
        calibration_map, repair = keep_monotone(calibrator.calibration_map_, monotone)
    else:
        calibration_map, repair = _identity(table, reason), 0.0
    maps = Maps()
    maps.add(calibration_map)
    rows, positives = np.array([table.used]), np.array([table.used_positive])
    return LevelFit(0, [()], rows, positives, [reason], maps), reason is not None, repair


def _map_of(fit: LevelFit) -> CalibrationMap:
    return CalibrationMap(*fit.maps.arrays())


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
    level: Level, done: list[tuple[npt.NDArray[np.int64], Fitted]], reasons: list[str | None]
) -> LevelFit:
    maps = _collect(len(level.keys), done, reasons)
    return LevelFit(level.level, level.keys, level.rows, level.positives, reasons, maps)


def _collect(count: int, done: list[tuple[npt.NDArray[np.int64], Fitted]], reasons: list[str | None]) -> Maps:
    """All maps in the order of the segments; reasons that were found while fitting are added."""
    maps = Maps([0] * count)
    for codes, result in done:
        for code, size, reason in zip(codes.tolist(), result.maps.sizes, result.reasons, strict=True):
            maps.sizes[code] = size
            reasons[code] = reason
        for column, more in zip(maps.columns, result.maps.columns, strict=True):
            column.extend(more)
    return maps


def _fit_small(calibrator: Calibrator, monotone: str, segments: Slices) -> Fitted:
    """Fit segments whose points are in memory."""
    found = []
    for points in segments.points():
        run = functools.partial(_run, points)
        found.append(_fit_one(calibrator, monotone, points.score.size, run))
    return _fitted(found)


def _fit_pooled(ends: float, segments: Slices) -> Fitted:
    """Isotonic regression of segments' blocks: its maps never decrease."""
    columns, sizes = fit_groups(segments.columns, segments.starts, ends)
    rows = sizes.tolist()
    reasons = [ONE_SCORE if size == 0 else None for size in rows]
    return Fitted(Maps(rows, [[column] for column in columns]), reasons, monotone=True, repair=0.0)


def _run(points: Points, request: Pass) -> Any:
    return request.combine([request.chunk(points)])


def _fit_large(calibrator: Calibrator, monotone: str, points: int, run: Callable[[Pass], Any]) -> Fitted:
    return _fitted([_fit_one(calibrator, monotone, points, run)])


def _fitted(found: list[tuple[CalibrationMap | str, float]]) -> Fitted:
    maps = Maps()
    for one, _ in found:
        maps.add(None if isinstance(one, str) else one)
    reasons = [one if isinstance(one, str) else None for one, _ in found]
    monotone = all(isinstance(one, str) or one.monotone for one, _ in found)
    return Fitted(maps.packed(), reasons, monotone, max(repair for _, repair in found))


def _fit_one(
    calibrator: Calibrator, monotone: str, points: int, run: Callable[[Pass], Any]
) -> tuple[CalibrationMap | str, float]:
    """A segment's map and how far it was repaired; or why it has none."""
    if points == 1:
        return ONE_SCORE, 0.0
    # Fitting changes it, and other tasks have it too.
    calibrator = copy.copy(calibrator)
    try:
        calibrator.fit_passes(run)
    except ValueError:
        return NOT_SUITED, 0.0
    return keep_monotone(calibrator.calibration_map_, monotone)
