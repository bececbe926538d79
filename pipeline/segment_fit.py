"""Fitting a calibrator to each segment of a log, out of core.

One read of the log leaves runs of every level (see `pipeline.segment_runs`). Then, level by level: small segments are
packed into tasks by their bytes and fitted there; a segment that is larger than a task is cut by its scores, and
fitted in passes over its parts. Thin segments have no map of their own and fall back to the level below: the
segment of one column less, then all rows, then the score as it is.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from calibrators._kernels.accumulators import expansion_of
from calibrators.base import Calibrator
from calibrators.calibration_map import CalibrationMap
from calibrators.points import Array, Pass
from pipeline import segment_runs, segment_values
from pipeline.calibration import fit_log, keep_monotone
from pipeline.errors import InputRejectedError
from pipeline.execution import Executor
from pipeline.logs import Log
from pipeline.score_table import Part, ScoreTable, SortPlan, run_parts, sort_log, write_points
from pipeline.segment_runs import SegmentRun
from pipeline.segment_values import Key

MIN_ROWS, MIN_POSITIVES, ONE_CLASS, ONE_SCORE, NOT_SUITED = (
    "min_rows",
    "min_positives",
    "one_class",
    "one_score",
    "not_suited",
)
"""Why a segment has no map of its own; not_suited: the calibrator refuses its scores."""

OWN, PARENT, GLOBAL, IDENTITY = "segment", "parent", "global", "identity"
"""Which rows a segment's map was fitted to."""

_COLUMNS = tuple(CalibrationMap.__dataclass_fields__)


@dataclass(frozen=True)
class SegmentRules:
    """Which segments are calibrated on their own.

    min_rows, min_positives : rows, and rows with label 1, that a segment must have at least.
    """

    min_rows: int = 1
    min_positives: int = 1

    def reason(self, rows: int, positives: int) -> str | None:
        """Why so few rows are not fitted; None where they are."""
        if rows < self.min_rows:
            return MIN_ROWS
        if positives in (0, rows):
            return ONE_CLASS
        return MIN_POSITIVES if positives < self.min_positives else None


@dataclass
class Maps:
    """Maps, one after the other: the rows of the i-th are sizes[i], in `columns` as `CalibrationMap` names them."""

    sizes: list[int] = field(default_factory=list)
    columns: list[list[Array]] = field(default_factory=lambda: [[] for _ in _COLUMNS])

    def add(self, one: CalibrationMap | None) -> None:
        """Append a map, or none."""
        self.sizes.append(0 if one is None else len(one))
        if one is not None:
            for column, name in zip(self.columns, _COLUMNS, strict=True):
                column.append(getattr(one, name))

    def packed(self) -> Maps:
        """With one array a column."""
        return Maps(self.sizes, [[np.concatenate([np.empty(0), *column])] for column in self.columns])

    def arrays(self) -> list[Array]:
        """The columns."""
        return [np.concatenate([np.empty(0), *column]) for column in self.columns]


class Fitted(NamedTuple):
    """What a task made of some segments, by position.

    maps, reasons : a map or a reason each. monotone : whether every map is. repair : largest change it made.
    """

    maps: Maps
    reasons: list[str | None]
    monotone: bool
    repair: float


@dataclass
class LevelFit:
    """The segments of one level, in the order of `segment_values.order`.

    Attributes
    ----------
    level : number of columns in a key; 0: all rows.
    rows, positives : of each segment: rows used, and those with label 1.
    reasons : why a segment has no map, None where it has one.
    maps : of all segments, in order; size 0 where there is none.
    """

    level: int
    keys: list[Key]
    rows: npt.NDArray[np.int64]
    positives: npt.NDArray[np.int64]
    reasons: list[str | None]
    maps: Maps


@dataclass(frozen=True)
class SegmentedFit:
    """Maps of all levels; of level 0 first.

    Attributes
    ----------
    table : facts of all rows. types : of the segment columns.
    identity : whether level 0 is the score as it is, since all rows together are too few.
    monotone : whether every map is. repair : largest change that was made to have them so.
    """

    levels: tuple[LevelFit, ...]
    table: ScoreTable
    types: tuple[pa.DataType, ...]
    identity: bool
    monotone: bool
    repair: float

    def source(self, key: Key) -> tuple[str, int]:
        """Which rows a key's map was fitted to: the kind, and the level."""
        for fit in reversed(self.levels[1:]):
            at = self._places[fit.level].get(key[: fit.level])
            if at is not None and fit.maps.sizes[at]:
                return (OWN if fit.level == len(self.types) else PARENT), fit.level
        return (IDENTITY if self.identity else GLOBAL), 0

    def __post_init__(self) -> None:
        places = {fit.level: {key: i for i, key in enumerate(fit.keys)} for fit in self.levels}
        object.__setattr__(self, "_places", places)

    _places: dict[int, dict[Key, int]] = field(init=False, repr=False)


def fit_segments(
    calibrator: Calibrator,
    log: Log,
    plan: SortPlan,
    executor: Executor,
    rules: SegmentRules,
    monotone: str = "allow",
) -> SegmentedFit:
    """Fit a calibrator to each segment of a log, to each segment of its leading columns, and to all rows.

    The result depends neither on the order of the rows nor on files, sizes of tasks, or workers, and equals
    fitting each segment's rows in memory.

    Parameters
    ----------
    calibrator : with checked parameters
    log : whose `columns.segments` are the segment columns
    plan, executor : how to sort and where
    rules : which segments are fitted
    monotone : see `pipeline.calibration.keep_monotone`; it holds for each map

    Raises
    ------
    InputRejectedError
        As `fit_log` for all rows; too many segments; too few rows for any map where scores are not in [0, 1].
    CheckFailedError
        With monotone='require'.
    """
    total, receipts = sort_log(log, plan, executor, segment_runs.write_segment_runs)
    runs = [run for receipt in receipts for run in receipt.segment_runs]
    count = len(log.columns.segments)
    types = tuple(column.type for column in next(run for run in runs if run.level == count).values)
    fit = fit_log(calibrator, log, plan, executor, keep=None, total=total)
    whole, identity, repair = _whole(calibrator, fit.table, rules, monotone)
    levels, results = [whole], []
    for level in range(1, count + 1):
        of_level = [run for run in runs if run.level == level]
        worker = _Level(level, calibrator, plan, executor, monotone, log.columns.weight is not None)
        found, parts = worker.fit(of_level, rules)
        levels.append(found)
        results += parts
    first = identity or _map_of(whole).monotone
    return SegmentedFit(
        tuple(levels),
        fit.table,
        types,
        identity,
        first and all(result.monotone for result in results),
        max([repair, *(result.repair for result in results)]),
    )


def _whole(
    calibrator: Calibrator, table: ScoreTable, rules: SegmentRules, monotone: str
) -> tuple[LevelFit, bool, float]:
    """Level 0: the map of all rows, or the score as it is where they are too few."""
    reason = rules.reason(table.used, table.used_positive)
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


class _Level:
    """Fits the segments of one level."""

    def __init__(
        self,
        level: int,
        calibrator: Calibrator,
        plan: SortPlan,
        executor: Executor,
        monotone: str,
        weighted: bool,
    ) -> None:
        self.level = level
        self.calibrator = calibrator
        self.plan = plan
        self.executor = executor
        self.monotone = monotone
        self.weighted = weighted

    def fit(self, runs: list[SegmentRun], rules: SegmentRules) -> tuple[LevelFit, list[Fitted]]:
        """Fit all that are not thin."""
        keys, codes = _number(runs)
        rows = np.zeros(len(keys), np.int64)
        positives = np.zeros(len(keys), np.int64)
        for run, own in zip(runs, codes, strict=True):
            rows[own] += run.counts.sum(axis=0)
            positives[own] += run.positives
            segment_runs.write_index(run, own)
        reasons = [rules.reason(n, k) for n, k in zip(rows.tolist(), positives.tolist(), strict=True)]
        sources = [run.path for run in runs]
        thin = np.array([reason is not None for reason in reasons])
        small, large = pack(rows * (24 if self.weighted else 8), thin, self.plan.bucket_bytes)
        tasks = [(sources, wanted, self.weighted, self.calibrator, self.monotone) for wanted in small]
        results = self.executor.run("merge", _fit_bucket, tasks) if tasks else []
        done = list(zip(small, results, strict=True))
        if large:
            fitted = self._fit_large(large, rows, runs, codes)
            done += [(np.array([code]), result) for code, result in zip(large, fitted, strict=True)]
        maps = self._collect(len(keys), done, reasons)
        return LevelFit(self.level, keys, rows, positives, reasons, maps), [result for _, result in done]

    @staticmethod
    def _collect(
        count: int, done: list[tuple[npt.NDArray[np.int64], Fitted]], reasons: list[str | None]
    ) -> Maps:
        """All maps in the order of the segments; reasons that were found while fitting are added."""
        maps = Maps([0] * count)
        for codes, result in sorted(done, key=lambda item: int(item[0][0])):
            for code, size, reason in zip(codes.tolist(), result.maps.sizes, result.reasons, strict=True):
                maps.sizes[code] = size
                reasons[code] = reason
            for column, more in zip(maps.columns, result.maps.columns, strict=True):
                column.extend(more)
        return maps

    def _fit_large(
        self,
        large: list[int],
        rows: npt.NDArray[np.int64],
        runs: list[SegmentRun],
        codes: list[npt.NDArray[np.int64]],
    ) -> list[Fitted]:
        """Cut segments by their scores, write the parts, and fit each in passes over its own."""
        width = 24 if self.weighted else 8
        sources = [run.path for run in runs]
        folder = self.plan.scratch / f"segments-{self.level}"
        folder.mkdir(exist_ok=True)
        tasks = []
        for code in large:
            samples = [run.sample[own[run.sampled] == code] for run, own in zip(runs, codes, strict=True)]
            buckets = -(-int(rows[code]) * width // self.plan.bucket_bytes)
            edges = [-math.inf, *segment_runs.splitters(samples, buckets).tolist(), math.inf]
            tasks += [
                (sources, code, low, high, self.weighted, str(folder / f"part-{code:07d}-{i:05d}.parquet"))
                for i, (low, high) in enumerate(itertools.pairwise(edges))
            ]
        parts = self.executor.run("merge", _write_part, tasks)
        fitted = []
        for code in large:
            own = [
                part for task, part in zip(tasks, parts, strict=True) if task[1] == code and part is not None
            ]
            fitted.append(self._fit_parts(own))
            for part in own:
                Path(str(part.path)).unlink()
        return fitted

    def _fit_parts(self, parts: Sequence[Part]) -> Fitted:
        if sum(part.points for part in parts) == 1:
            return _no_map(ONE_SCORE)

        def run(request: Pass) -> Any:
            return run_parts(parts, request, self.executor, "fit")

        try:
            self.calibrator.fit_passes(run)
        except ValueError:
            return _no_map(NOT_SUITED)
        one, repair = keep_monotone(self.calibrator.calibration_map_, self.monotone)
        maps = Maps()
        maps.add(one)
        return Fitted(maps, [None], one.monotone, repair)


def _no_map(reason: str) -> Fitted:
    maps = Maps()
    maps.add(None)
    return Fitted(maps, [reason], True, 0.0)


def _number(runs: list[SegmentRun]) -> tuple[list[Key], list[npt.NDArray[np.int64]]]:
    """All segments in order, and the places of each run's among them."""
    found: set[Key] = set()
    for run in runs:
        found.update(segment_runs.run_segments(run))
    if len(found) > segment_values.MAX_SEGMENTS:
        raise InputRejectedError(
            f"log.segment: expected at most {segment_values.MAX_SEGMENTS:,} segments, found {len(found):,}: leave out "
            "the column that tells rows apart and not groups of them"
        )
    keys = sorted(found, key=segment_values.order)
    code_of = {key: i for i, key in enumerate(keys)}
    codes = [np.array([code_of[key] for key in segment_runs.run_segments(run)], np.int64) for run in runs]
    return keys, codes


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
    small : neighbours that fit into one task, thin ones between them counted but left out
    large : segments that do not
    """
    small: list[npt.NDArray[np.int64]] = []
    large: list[int] = []
    held: list[int] = []
    size = 0
    for code, (bytes_, skip) in enumerate(zip(sizes.tolist(), thin.tolist(), strict=True)):
        if size + bytes_ > bucket_bytes and held:
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


def _fit_bucket(
    sources: list[str], wanted: npt.NDArray[np.int64], weighted: bool, calibrator: Calibrator, monotone: str
) -> Fitted:
    """Gather small segments and fit each."""
    maps, reasons, steady, largest = Maps(), [], True, 0.0
    for points in segment_runs.gather(sources, wanted, weighted):
        reason, one = None, None
        if points.score.size == 1:
            reason = ONE_SCORE
        else:
            try:
                calibrator.fit_points(points)
            except ValueError:
                reason = NOT_SUITED
            else:
                one, repair = keep_monotone(calibrator.calibration_map_, monotone)
                steady, largest = steady and one.monotone, max(largest, repair)
        maps.add(one)
        reasons.append(reason)
    return Fitted(maps.packed(), reasons, steady, largest)


def _write_part(
    sources: list[str], code: int, low: float, high: float, weighted: bool, path: str
) -> Part | None:
    """Gather a range of a large segment's scores and write it as a part of a score table."""
    points = segment_runs.gather_range(sources, code, low, high, weighted)
    if points.score.size == 0:
        return None
    write_points(points, Path(path))
    first = float(points.score[0])
    return Part(path, first, points.score.size, expansion_of(points.weight), expansion_of(points.positives))
