"""Holding rows out of a fit: a candidate is fitted without them, and measured on them beside the current version."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from calibrators.base import Calibrator
from calibrators.calibration_map import CalibrationMap
from jobs.config import FitConfig
from pipeline.errors import ConfigError, InputRejectedError
from pipeline.execution import Executor
from pipeline.fit.calibration import Fit, fit_log, keep_monotone
from pipeline.fit.holdout import HeldOut, Rows, Run, Split, count, measure_held_out
from pipeline.log.logs import Log
from pipeline.log.windows import day_of
from pipeline.sort.day_tables import DayTable, add_up_days
from pipeline.sort.score_table import ScoreTable, SortPlan, build_score_table
from pipeline.table.map_change import map_of
from pipeline.table.version import Version


def check_holdout(config: FitConfig) -> None:
    """Check that rows can be held out.

    Raises
    ------
    ConfigError
        They cannot.
    """
    gate = config.gate
    if gate.holdout is None:
        return
    if config.log.segment:
        raise ConfigError(
            f"gate.holdout: expected null with log.segment, found {gate.holdout}: rows are held out of the score table "
            "of all rows, not of each segment's; judge such a table with `logcal evaluate` before it is promoted"
        )
    if gate.days and config.window.column is None:
        raise ConfigError(
            f"gate.holdout: expected window.column with a number of days, found {gate.holdout} without it: which rows "
            "are the last is what it says; or hold out a share such as 0.2"
        )
    if gate.days >= config.window.length and gate.days:
        raise ConfigError(
            f"gate.holdout: expected fewer days than window.last ({config.window.last}), found {gate.holdout}: no day "
            "would be left to fit to"
        )


@dataclass(frozen=True)
class Trial:
    """A candidate and what it is worth on the rows that it was not fitted to.

    positives : rows with label 1 that it was fitted to
    """

    fit: Fit
    held_out: HeldOut
    positives: int


@dataclass(frozen=True)
class Trials:
    """How a log's rows are held out and candidates tried on them.

    Attributes
    ----------
    make : a new calibrator. tables : of the log's days, with a window. current : the current version.
    """

    config: FitConfig
    log: Log
    sort: SortPlan
    executor: Executor
    make: Callable[[], Calibrator]
    tables: tuple[DayTable, ...]
    current: Version | None

    def of_share(self, fit: Fit) -> Trial:
        """Hold a share of the rows out of the written table of a fit to all."""
        share = self.config.gate.share
        assert share is not None
        split = Split(share)
        whole = self._run(fit.table)
        candidate = self.make()
        try:
            candidate.fit_passes(split.running(whole, held=False))
        except ValueError as error:
            raise InputRejectedError(
                f"gate.holdout: the rows that are not held out do not suit {type(candidate).__name__}: {error}"
            ) from None
        fresh = self._fresh_table(fit.table)
        run_fresh = None if fresh is None else split.running(self._run(fresh), held=True)
        held = self._measure(candidate, fit.table, split.running(whole, held=True), run_fresh)
        positives = count(split.running(whole, held=False)).positives
        return Trial(Fit(candidate, fit.table), held, int(positives))

    def of_days(self) -> Trial:
        """Hold the last days out."""
        last = max(table.day for table in self.tables)
        begin = last - self.config.gate.days + 1
        earlier = [table for table in self.tables if table.day < begin]
        fit = fit_log(
            self.make(),
            self.log,
            self._place("earlier"),
            self.executor,
            keep=None,
            total=add_up_days(earlier, self._place("earlier"), self.executor),
        )
        held = self._table_of("held", [table for table in self.tables if table.day >= begin])
        if held is None:
            return Trial(fit, HeldOut(Rows(0.0, 0.0)), fit.table.used_positive)
        fresh = self._table_of("fresh", [t for t in self.tables if t.day >= begin and not self._seen_day(t)])
        run_fresh = None if fresh is None else self._run(fresh)
        measured = self._measure(fit.calibrator, held, self._run(held), run_fresh)
        return Trial(fit, measured, fit.table.used_positive)

    def _measure(self, calibrator: Calibrator, table: ScoreTable, run: Run, run_fresh: Run | None) -> HeldOut:
        new, _ = keep_monotone(calibrator.calibration_map_, self.config.calibrator.monotone)
        return measure_held_out(
            new,
            run,
            current=self._current_map(),
            run_fresh=run_fresh,
            probabilities=table.lowest >= 0 and table.highest <= 1,
            sampling_rate=self.config.log.sampling_rate,
        )

    def _current_map(self) -> CalibrationMap | None:
        transform = self.config.log.score_transform
        if self.current is None or self.current.manifest["score_transform"] != transform:
            return None
        return map_of(self.current)

    def _run(self, table: ScoreTable) -> Run:
        return partial(table.run, executor=self.executor, stage="holdout")

    def _place(self, name: str, *, write: bool = False) -> SortPlan:
        """The sort in a folder of its own: names of runs and parts are not unique in all of scratch space."""
        scratch = self.sort.scratch / name
        scratch.mkdir(exist_ok=True)
        return replace(self.sort, scratch=scratch, write=scratch / "score_table" if write else None)

    def _table_of(self, name: str, tables: list[DayTable]) -> ScoreTable | None:
        """The score table of some days; None where they have no rows."""
        if not any(table.receipt.used for table in tables):
            return None
        plan = self._place(name, write=True)
        total = add_up_days(tables, plan, self.executor)
        return build_score_table(self.log, plan, self.executor, None, total)[0]

    def _fresh_table(self, whole: ScoreTable) -> ScoreTable | None:
        """The score table of the rows that the current version was not fitted to; None where there are none."""
        if self.current is None:
            return None
        if self.tables:
            fresh = [table for table in self.tables if not self._seen_day(table)]
            return whole if len(fresh) == len(self.tables) else self._table_of("fresh", fresh)
        files = tuple(file for file in self.log.files if (file.path, file.size, file.rows) not in self._seen)
        if len(files) == len(self.log.files):
            return whole
        if not any(file.rows for file in files):
            return None
        log = replace(self.log, files=files)
        return build_score_table(log, self._place("fresh", write=True), self.executor)[0]

    @property
    def _seen(self) -> set[tuple[Any, ...]]:
        """The files that the current version was fitted to."""
        sources = [] if self.current is None else self.current.manifest["log"]["files"]
        return {(file["path"], file["bytes"], file["rows"]) for file in sources}

    def _seen_day(self, table: DayTable) -> bool:
        """Whether the current version may have been fitted to rows of a day."""
        assert self.current is not None or not self._seen
        window = None if self.current is None else self.current.manifest.get("window")
        if window is not None:
            return bool(window["first"] <= day_of(table.day).isoformat() <= window["last"])
        return any((file.path, file.size, file.rows) in self._seen for file in self.log.files)
