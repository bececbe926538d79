"""The monitor job: test day by day whether a published table is still calibrated."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from calibrators.measures.drift import stability_index
from jobs.config.jobs import MonitorConfig
from jobs.gate.limits import load_measured_table
from jobs.outcome import REPORT, RUN, Outcome, Plan, Startable
from jobs.rows import (
    ANY,
    ChosenRows,
    check_scratch,
    columns_of,
    exclusive_page_folder,
    open_log_and_window,
    plan_of,
    row_settings,
    scratch_line,
    source_line,
)
from logcal.errors import CheckFailedError, ConfigError, LabelsWaitingError, NothingToDoError, counted
from pipeline.days.day_tables import DayTables
from pipeline.days.source import Source
from pipeline.execution import Executor, Graph
from pipeline.files.folders import write_whole
from pipeline.files.records import to_json
from pipeline.files.scratch import scratch_folder
from pipeline.log.logs import Log
from pipeline.log.windows import Window, choose_window, day_number, day_of, parse_day
from pipeline.monitor import FOLDER, DayEvidence, History, Watch, day_evidence
from pipeline.pages.day_pages import e_value, excess_sentence, render_drift
from pipeline.sort.score_table import SortedRows, add_merge, scratch_bytes
from pipeline.table.lookup_table import read_lookup_table
from pipeline.table.published import PublishedTable, Version, fitted_until, segments_of

_YOUNG = 0.5
"""Largest share of a day's rows that may wait for their labels because of their age; the other rows are tested."""


def prepare(config: MonitorConfig, choice: ChosenRows = ANY) -> Prepared:
    """Check everything that can be checked before the first task; reads footers only."""
    store, version, lookup, _ = load_measured_table(config)
    transform = lookup.facts.score_transform
    columns = columns_of(config.log, segments_of(version), config.window, choice.newest)
    log, window = open_log_and_window(config.window, config.log.path, columns, choice, config.store)
    assert window is not None
    # `choose_window` decides for each day whether dates must be read.
    log = replace(log, columns=replace(log.columns, date=None))
    name = f"{version.name}.json"
    path = f"{store.root}/{FOLDER}/{name}"
    settings = {
        "fingerprint": version.manifest["fingerprint"],
        "tolerance": config.monitor.tolerance,
        "sampling_rate": config.log.sampling_rate,
        "column": window.column,
        **window.log.columns.calendar.facts,
    }
    document = (store.folder / FOLDER).read_json(name)
    history = History(version.name, settings) if document is None else History.from_json(document, path)
    if history.settings != settings:
        before, current = (
            ", ".join(f"{k} = {v}" for k, v in pairs.items()) for pairs in (history.settings, settings)
        )
        raise ConfigError(
            f"monitor: expected the settings that {path} began with, {before}, found {current}: evidence under others "
            "does not add up; move the file away to start again"
        )
    days = _new_days(window, history, version)
    # Without new days, a page of the days tested before may still have to be written.
    page = exclusive_page_folder(config.report.path, "monitor")
    if not days and (page is None or not history.days):
        _end_without_new_days(history, config.monitor.alpha, version)
    needed = check_scratch(config, window.log, scratch_bytes(window.log, write=True))
    return Prepared(config, log, window, days, store, version, history, path, transform, needed, page)


def _new_days(window: Window, history: History, version: Version) -> list[int]:
    """Return the days with rows after the last day that was tested or that the table was fitted to."""
    fitted = fitted_until(version.manifest)
    tested = [parse_day(day) for day in (history.last, fitted) if day]
    after = max((day_number(day) for day in tested if day is not None), default=-math.inf)
    return [day for day in window.days if day > after and any(True for _ in window.groups(day))]


def _check_alarm(history: History, alpha: float, version: Version) -> None:
    """Raise CheckFailedError if there is an alarm."""
    alarms = list(_alarms(history, alpha))
    if alarms:
        raise CheckFailedError(f"version {version.name}: {' '.join(alarms)}")


def _end_without_new_days(history: History, alpha: float, version: Version) -> NoReturn:
    _check_alarm(history, alpha, version)
    raise NothingToDoError(
        f"no day of the log is after {history.last or 'what the table was fitted to'}: nothing to do"
    )


def _alarms(history: History, alpha: float) -> Iterator[str]:
    if history.alarmed(alpha):
        since, observed, expected = history.drift()
        way = "underestimates" if observed > expected else "overestimates"
        yield f"Since {since} the table {way}: {excess_sentence(observed, expected)}."
    segments = history.alarmed_segments(alpha)
    if segments:
        first = ", ".join(
            f"{'/'.join('null' if v is None else str(v) for v in key)} ({'more' if state.direction > 0 else 'fewer'})"
            for key, state in segments[:5]
        )
        count = f"{len(segments):,} of {counted(len(history.segments), 'segment')}"
        yield f"In {count} the positives differ from the prediction, most clearly in {first}."


@dataclass(frozen=True)
class Prepared(Startable):
    """A test of new days that can start."""

    config: MonitorConfig
    log: Log
    window: Window
    days: list[int]
    store: PublishedTable
    version: Version
    history: History
    history_path: str
    transform: str
    needed: int
    page: str | None

    @property
    def plan(self) -> Plan:
        """Plan of the monitor."""
        days = [day_of(day).isoformat() for day in self.days]
        stage = "write the page again, from the days tested before"
        if days:
            count = f"{counted(len(days), 'day')}, {days[0]} to {days[-1]}"
            stage = f"look at {count}, one after the other: sort, merge, add up"
        page = () if self.page is None else (f"{self.page}/{REPORT}",)
        return Plan(
            "monitor",
            (stage,),
            (source_line(self.config, self.window.log), self.version.lookup_path),
            (self.history_path, *page, scratch_line(self.config, self.needed)),
            {"days": days, "version": self.version.name},
        )

    def graph(self) -> Graph:
        """Graph of the first day, which equals that of each other day; without the comparison of segments."""
        graph = Graph()
        for day in self.days[:1]:
            source = self._source(day)
            plan = plan_of(self.config, source.log)
            add_merge(graph, SortedRows(source.log, plan, source.add(graph, plan).total))
        return graph

    def _source(self, day: int) -> Source:
        assert self.config.window.column is not None
        window = choose_window(self.log, self.config.window.column, 1, day_of(day))
        return Source(window.log, window)

    def execute(self, executor: Executor) -> Outcome:
        """Test the days, save their evidence, and raise an alarm if there is one."""
        alpha = self.config.monitor.alpha
        history, waiting = self.history, None
        for day in self.days:
            name = day_of(day).isoformat()
            try:
                evidence = self._test_day(day, executor)
            except LabelsWaitingError:
                waiting = f"{name} has no row with a label yet: not tested"
                break
            # Late labels are positives more often than not, unless rows wait by their age alone.
            if evidence.table.waiting > (_YOUNG * evidence.table.rows if self.config.log.waits_by_age else 0):
                waiting = f"{name} has {evidence.table.waiting:,} rows without a label yet: not tested"
                break
            shift: tuple[float | None, float | None] = (None, None)
            if evidence.scores is not None:  # PSI and KS against the scores that the table was fitted to
                fitted = np.asarray(read_lookup_table(self.version.lookup_path).map.weight)
                shift = stability_index(fitted, evidence.scores)
            history = history.after(name, evidence.total, evidence.segments, shift, alpha)
        (self.store.folder / FOLDER).replace(f"{self.version.name}.json", history.as_json())
        summary = self._summary(history)
        if self.page is not None:
            self._write_page(Path(self.page), history, summary)
        if not self.days:
            _end_without_new_days(history, alpha, self.version)
        _check_alarm(history, alpha, self.version)
        tested = len(history.days) - len(self.history.days)
        lines = [
            f"no alarm: version {self.version.name}, {counted(len(history.days), 'day')} tested so far, {tested} now",
            f"  evidence of drift (e-value) {e_value(history.state.log_e)}; from {1 / alpha:g} on there is an alarm",
            *([f"  {waiting}"] if waiting else []),
            f"  {self.history_path}",
        ]
        return Outcome(summary, lines)

    def _test_day(self, day: int, executor: Executor) -> DayEvidence:
        config, source = self.config, self._source(day)
        watch = Watch(self.version.lookup_path, config.monitor.tolerance, config.log.sampling_rate)
        assert source.window is not None
        with scratch_folder(config.scratch) as scratch, ExitStack() as stack:
            # Scores are read as by the table's fit, with or without its day tables.
            plan = replace(plan_of(config, source.log, scratch, self.transform), grid=self._grid)
            # A day may have no outcomes: this job decides what that means for the table.
            plan = replace(plan, rules=replace(plan.rules, matched=False))
            for days in self._day_tables:
                stack.enter_context(days.in_use())
                tables = days.find(source.window)
                if tables is not None:
                    source = replace(source, tables=tables)
                    break
            total = source.sort(plan, executor).total
            return day_evidence(SortedRows(source.log, plan, total), executor, watch)

    @property
    def _grid(self) -> str:
        """Grid to which the table's fit rounded scores."""
        return str(self.version.manifest["config"].get("score_table", {}).get("grid", "none"))

    @property
    def _day_tables(self) -> list[DayTables]:
        """Day tables that fits of the table may have kept, with or without unusable rows."""
        if self.config.log.weight is not None or not self.store.folder.matching("days"):
            return []
        rows = row_settings(self.config.log)
        rows |= {"score_transform": self.transform, "segments": list(self.log.columns.segments)}
        rows |= {"grid": self._grid, "column": self.window.column}
        return [DayTables(self.store, {**rows, "keep_bad": keep_bad}) for keep_bad in (False, True)]

    def _summary(self, history: History) -> dict[str, Any]:
        alpha = self.config.monitor.alpha
        segments = [
            {"segment": list(key), "log_e": state.log_e, "direction": state.direction}
            for key, state in history.alarmed_segments(alpha)
        ]
        return {
            "table": self.config.store.table,
            "version": self.version.name,
            "days": len(history.days),
            "last_day": history.last,
            "log_e": history.state.log_e,
            "alarm": history.alarmed(alpha),
            "alarms": list(_alarms(history, alpha)),
            "segments_alarmed": segments,
            "history": self.history_path,
        }

    def _write_page(self, root: Path, history: History, summary: dict[str, Any]) -> None:
        days = [vars(day) for day in history.days]
        rule, title = self.config.monitor, f"{self.config.store.table}, version {self.version.name}"
        page = render_drift(title, days, summary["alarms"], rule.alpha, rule.tolerance)
        root.mkdir(parents=True, exist_ok=True)
        for name, text in ((RUN, to_json({**summary, "history": days})), (REPORT, page)):
            write_whole(root / name, text.encode())
