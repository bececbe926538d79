"""Fitting a calibrator to each segment of a log, out of core.

One read of the log leaves runs of every level (see `pipeline.segment_runs`). Then, level by level: small segments are
packed into tasks by their bytes and fitted there; a segment that is larger than a task is cut by its scores, and
fitted in passes over its parts. Thin segments have no map of their own and fall back to the level below: the
segment of one column less, then all rows, then the score as it is.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from calibrators.base import Calibrator
from calibrators.calibration_map import CalibrationMap
from calibrators.points import Pass, Points
from pipeline import segment_runs, segment_values
from pipeline.calibration import fit_log, keep_monotone
from pipeline.errors import InputRejectedError
from pipeline.execution import Executor
from pipeline.logs import Log
from pipeline.score_table import Part, ScoreTable, SortPlan, merged, run_parts, sort_log
from pipeline.segment_maps import NOT_SUITED, ONE_SCORE, Fitted, LevelFit, Maps, SegmentedFit, SegmentRules
from pipeline.segment_runs import SegmentRun
from pipeline.segment_values import Key


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
    shortest = segment_runs.shortest_sorted(log, plan)
    write = functools.partial(segment_runs.write_segment_runs, shortest_sorted=shortest)
    total, receipts = sort_log(log, plan, executor, write)
    runs = [run for receipt in receipts for run in receipt.segment_runs]
    count = len(log.columns.segments)
    types = tuple(column.type for column in next(run for run in runs if run.level == count).values)
    fit = fit_log(calibrator, log, plan, executor, keep=None, total=total)
    whole, identity, repair = _whole(calibrator, fit.table, rules, monotone)
    levels, results = [whole], []
    for level in range(1, count + 1):
        of_level = [run for run in runs if run.level == level]
        worker = _Level(level, calibrator, plan, executor, monotone, log.columns.weight is not None, shortest)
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
        shortest_sorted: int,
    ) -> None:
        self.level = level
        self.shortest_sorted = shortest_sorted
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
        first = self.calibrator.first_pass().chunk
        # One stage for all of them: none waits for the last one of another kind.
        tasks: list[tuple[Any, ...]] = [
            (_merge_range, sources, *task, self.weighted, self.shortest_sorted, first)
            for task in self._ranges(large, rows, runs, codes)
        ]
        cut = len(tasks)
        tasks += [
            (_fit_bucket, sources, wanted, self.weighted, self.calibrator, self.monotone) for wanted in small
        ]
        results = self.executor.run("merge", _call, tasks) if tasks else []
        done = list(zip(small, results[cut:], strict=True))
        for code in large:
            parts = [
                result
                for task, result in zip(tasks[:cut], results[:cut], strict=True)
                if task[2] == code and result is not None
            ]
            done.append((np.array([code]), self._fit_parts(parts)))
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

    def _ranges(
        self,
        large: list[int],
        rows: npt.NDArray[np.int64],
        runs: list[SegmentRun],
        codes: list[npt.NDArray[np.int64]],
    ) -> Iterator[tuple[int, float, float, str | None]]:
        """The ranges of scores that large segments are cut into, and where their points go."""
        width = 24 if self.weighted else 8
        folder = self.plan.scratch / f"segments-{self.level}"
        folder.mkdir(exist_ok=True)
        for code in large:
            samples = [run.sample[own[run.sampled] == code] for run, own in zip(runs, codes, strict=True)]
            buckets = -(-int(rows[code]) * width // self.plan.bucket_bytes)
            edges = [-math.inf, *segment_runs.splitters(samples, buckets).tolist(), math.inf]
            for i, (low, high) in enumerate(itertools.pairwise(edges)):
                path = folder / f"part-{code:07d}-{i:05d}.parquet"
                yield code, low, high, None if self.calibrator.single_pass else str(path)

    def _fit_parts(self, merged: list[tuple[Part, Any]]) -> Fitted:
        """Fit a large segment to its parts, each with its state of the first pass."""
        parts = [part for part, _ in merged]
        if sum(part.points for part in parts) == 1:
            return _no_map(ONE_SCORE)
        states: list[Any] | None = [state for _, state in merged]

        def run(request: Pass) -> Any:
            nonlocal states
            if states is None:
                return run_parts(parts, request, self.executor, "fit")
            first, states = states, None
            return request.combine(first)

        try:
            self.calibrator.fit_passes(run)
        except ValueError:
            return _no_map(NOT_SUITED)
        finally:
            for part in parts:
                if part.path is not None:
                    Path(part.path).unlink()
        one, repair = keep_monotone(self.calibrator.calibration_map_, self.monotone)
        maps = Maps()
        maps.add(one)
        return Fitted(maps, [None], one.monotone, repair)


def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


def _no_map(reason: str) -> Fitted:
    maps = Maps()
    maps.add(None)
    return Fitted(maps, [reason], True, 0.0)


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


def _merge_range(
    sources: list[str],
    code: int,
    low: float,
    high: float,
    path: str | None,
    weighted: bool,
    shortest_sorted: int,
    chunk: Callable[[Points], Any],
) -> tuple[Part, Any] | None:
    """Gather a range of a large segment's scores, write it if wanted, and carry out the first pass on it."""
    points = segment_runs.gather_range(sources, code, low, high, weighted, shortest_sorted)
    return merged(points, path, chunk) if points.score.size else None
