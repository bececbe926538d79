"""The monitor job: test day by day whether a published table is still calibrated."""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from calibrators.measures.drift import DriftState, stability_index
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
from logcal.errors import CheckFailedError, LabelsWaitingError, NothingToDoError, counted
from logcal.reading import read_table
from pipeline.days.day_tables import DayTables
from pipeline.days.source import Source
from pipeline.execution import Executor, Graph
from pipeline.files.folders import write_whole
from pipeline.files.records import to_json
from pipeline.files.scratch import scratch_folder
from pipeline.log.logs import Log
from pipeline.log.windows import Window, choose_window, day_of
from pipeline.monitor.evidence import DayEvidence, Watch, day_evidence
from pipeline.monitor.history import (
    FOLDER,
    OPEN_DAYS,
    Alarm,
    History,
    closed_alarms,
    history_name,
    read_history,
    watched_days,
)
from pipeline.pages.day_pages import PageAlarm, e_value, render_drift
from pipeline.sort.score_table import SortedRows, add_merge, scratch_bytes
from pipeline.table.journal import Decision
from pipeline.table.published import PublishedTable, Version, has_seen, segments_of

logger = logging.getLogger("logcal")

_ROWS = ("rows_read", "rows_used", "rows_positive", "rows_quarantined", "rows_waiting")

_MOST_VERSIONS = 100
"""Number of versions back in which the one is looked for that was live before a fit read a day."""

_YOUNG = 0.5
"""Largest share of a day's rows that may wait for their labels because of their age; the other rows are tested."""


def prepare(config: MonitorConfig, choice: ChosenRows = ANY) -> Prepared:
    """Check everything that can be checked before the first task; reads footers only."""
    store, version, lookup = load_measured_table(config)
    transform = lookup.facts.score_transform
    columns = columns_of(config, segments_of(version), choice.newest)
    log, window = open_log_and_window(config, columns, choice)
    assert window is not None
    # `choose_window` decides for each day whether dates must be read.
    log = replace(log, columns=replace(log.columns, date=None))
    settings = {
        "tolerance": config.monitor.tolerance,
        "sampling_rate": config.log.sampling_rate,
        "column": window.column,
        **window.log.columns.calendar.facts,
    }
    history = read_history(store.folder, config.store.version) or History(settings)
    if history.settings != settings:
        logger.warning("monitor: the test begins anew, since %s", _changed(history.settings, settings))
        history = replace(history, settings=settings, state=DriftState(), segments=())
    history = history.with_days_aside(version.manifest.get("window") or {})
    closed = closed_alarms(store.folder)
    days = _new_days(window, history, store, version, pinned=config.store.version is not None)
    for other in {each.name: each for each in days.values() if each.name != version.name}.values():
        store.verify(other)
    # Without new days, a page of the days tested before may still have to be written.
    page = exclusive_page_folder(config.report.path, "monitor")
    if not days and (page is None or not history.days):
        _end_without_new_days(history, _alarms_now(history, config.monitor.alpha, version, closed))
    needed = check_scratch(config, window.log, scratch_bytes(window.log, write=True))
    return Prepared(config, log, window, days, store, version, history, closed, transform, needed, page)


def _changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    changes = [f"{key} was {before.get(key)} and is {now[key]}" for key in now if before.get(key) != now[key]]
    return f"{', '.join(changes)}: evidence under other settings does not add up"


def _new_days(
    window: Window, history: History, store: PublishedTable, version: Version, *, pinned: bool
) -> dict[int, Version]:
    """Return the days with rows that were not tested, each with the version that was live before any fit read it.

    A version whose scores or segments are read in another way than the live one's tests no day.

    pinned : whether `version` was chosen by name, so that it tests all days that its fit has not read
    """
    tested = {day.day for day in history.days}
    others = iter(()) if pinned else itertools.islice(store.live_versions(), 1, _MOST_VERSIONS)
    versions, chosen = [version], {}

    def backwards() -> Iterator[Version]:
        yield from versions
        for other in others:
            versions.append(other)
            yield other

    for day in window.days:
        name = day_of(day).isoformat()
        if name not in tested and any(True for _ in window.groups(day)):
            found = next((each for each in backwards() if not has_seen(each.manifest, name)), None)
            if found is not None and _reading(found) == _reading(version):
                chosen[day] = found
    return chosen


def _reading(version: Version) -> tuple[Any, ...]:
    """Return what tells how a version reads scores and segments."""
    return version.manifest["score_transform"], segments_of(version)


def _grid(version: Version) -> str:
    """Return the grid to which a version's fit rounded scores."""
    return str(version.manifest["config"]["score_table"]["grid"])


def _alarms_now(
    history: History, alpha: float, version: Version, closed: Collection[str], tested: Collection[str] = ()
) -> list[Alarm]:
    """Return the alarms of the tested days, or the one that is still on, without those that a person has closed."""
    raised = [alarm for alarm in history.alarms if alarm.day not in closed and set(tested) & set(alarm.days)]
    present = history.present_alarm(version.name, alpha, closed)
    return raised or ([] if present is None else [present])


def _check(alarms: Sequence[Alarm], outcome: Outcome | None = None) -> None:
    """Raise CheckFailedError if there are alarms. outcome : what was found."""
    if alarms:
        raise CheckFailedError(
            " ".join(f"version {alarm.version}: {alarm.message}" for alarm in alarms)
            + " The test begins anew with the next version, or when a person closes the alarm: "
            f"`logcal days acknowledge {alarms[-1].day}`",
            outcome=outcome,
        )


def _end_without_new_days(
    history: History, alarms: Sequence[Alarm], outcome: Outcome | None = None
) -> NoReturn:
    _check(alarms, outcome)
    raise NothingToDoError(
        f"no day of the log is after {history.last or 'what the table was fitted to'}: nothing to do"
    )


@dataclass(frozen=True)
class Prepared(Startable):
    """A test of new days that can start."""

    config: MonitorConfig
    log: Log
    window: Window
    days: dict[int, Version]
    store: PublishedTable
    version: Version
    history: History
    closed: Mapping[str, Decision]
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
        for day in itertools.islice(self.days, 1):
            source = self._source(day)
            plan = plan_of(self.config, source.log)
            add_merge(graph, SortedRows(source.log, plan, source.add(graph, plan).total))
        return graph

    def _source(self, day: int) -> Source:
        assert self.config.window.column is not None
        window = choose_window(self.log, self.config.window.column, 1, day_of(day))
        return Source(window.log, window)

    @property
    def history_path(self) -> str:
        """File of the history."""
        return f"{self.store.root}/{FOLDER}/{history_name(self.config.store.version)}"

    def execute(self, executor: Executor) -> Outcome:
        """Test the days, save their evidence, and raise an alarm if there is one."""
        alpha, waiting, tested = self.config.monitor.alpha, None, {}
        history, rows = self.history, Counter[str]()
        bad = Counter[str]()
        for day, version in self.days.items():
            name = day_of(day).isoformat()
            try:
                evidence = self._test_day(day, version, executor)
            except LabelsWaitingError:
                waiting = f"{name} has no row with a label yet: not tested"
                break
            # Late labels are positives more often than not, unless rows wait by their age alone.
            if evidence.table.waiting > (_YOUNG * evidence.table.rows if self.config.log.waits_by_age else 0):
                waiting = f"{name} has {evidence.table.waiting:,} rows without a label yet: not tested"
                break
            shift: tuple[float | None, float | None] = (None, None)
            if evidence.scores is not None:  # PSI and KS against the scores that the table was fitted to
                fitted = np.asarray(read_table(version.lookup_path).map.weight)
                shift = stability_index(fitted, evidence.scores)
            history = history.renewed(version.name, segments_of(version), alpha, self.closed).after(
                name, version.name, evidence.total, evidence.segments, shift, alpha
            )
            tested[name] = version.name
            facts = evidence.table.facts()
            rows.update({key: facts[key] for key in _ROWS if key in facts})
            bad.update(facts["quarantined_by_reason"])
        (self.store.folder / FOLDER).write(history_name(self.config.store.version), history.as_json())
        alarms = _alarms_now(history, alpha, self.version, self.closed, tested)
        summary = self._summary(history, alarms)
        if self.page is not None:
            self._write_page(Path(self.page), history, summary)
        # What this run has done is not on the page, which is the same when a killed run is repeated.
        summary |= {"tested": tested, **rows, "quarantined_by_reason": dict(bad)}
        if not self.days:
            _end_without_new_days(history, alarms, Outcome(summary, []))
        _check(alarms, Outcome(summary, []))
        now = len(tested)
        lines = [
            f"no alarm: version {self.version.name}, {counted(len(history.days), 'day')} tested so far, {now} now",
            f"  evidence of drift (e-value) {e_value(history.state.log_e)}; from {1 / alpha:g} on there is an alarm",
            *([f"  {waiting}"] if waiting else []),
            f"  {self.history_path}",
        ]
        return Outcome(summary, lines)

    def _test_day(self, day: int, version: Version, executor: Executor) -> DayEvidence:
        config, source = self.config, self._source(day)
        grid = _grid(version)
        watch = Watch(version.lookup_path, config.monitor.tolerance, config.log.sampling_rate)
        assert source.window is not None
        with scratch_folder(config.scratch) as scratch, ExitStack() as stack:
            # Scores are read as by the table's fit, with or without its day tables.
            plan = replace(plan_of(config, source.log, scratch, self.transform), grid=grid)
            # A day may have no outcomes: this job decides what that means for the table.
            plan = replace(plan, rules=replace(plan.rules, matched=False))
            for days in self._day_tables(grid):
                stack.enter_context(days.in_use())
                tables = days.find(source.window)
                if tables is not None:
                    source = replace(source, tables=tables)
                    break
            total = source.sort(plan, executor).total
            return day_evidence(SortedRows(source.log, plan, total), executor, watch)

    def _day_tables(self, grid: str) -> list[DayTables]:
        """Day tables that fits of the table may have kept, with or without unusable rows."""
        if self.config.log.weight is not None or not self.store.folder.matching("days"):
            return []
        rows = row_settings(self.config.log)
        rows |= {"score_transform": self.transform, "segments": list(self.log.columns.segments)}
        rows |= {"grid": grid, "column": self.window.column}
        return [DayTables(self.store, {**rows, "keep_bad": keep_bad}) for keep_bad in (False, True)]

    def _summary(self, history: History, alarms: Sequence[Alarm]) -> dict[str, Any]:
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
            "alarm": bool(alarms),
            "alarms": [vars(alarm) for alarm in history.open_alarms(self.closed)],
            "segments_alarmed": segments,
            "history": self.history_path,
            **({} if self.page is None else {"report": f"{self.page}/{REPORT}"}),
        }

    def _write_page(self, root: Path, history: History, summary: dict[str, Any]) -> None:
        days = watched_days(history)
        open_days = {alarm.day for alarm in history.open_alarms(self.closed)}
        alarms = [
            PageAlarm(alarm.day, alarm.version, alarm.message, alarm.day in open_days, self._closing(alarm))
            for alarm in history.alarms
        ]
        rule, title = self.config.monitor, f"{self.config.store.table}, version {self.version.name}"
        page = render_drift(title, days, alarms, rule.alpha, rule.tolerance)
        root.mkdir(parents=True, exist_ok=True)
        for name, text in ((RUN, to_json({**summary, "history": days})), (REPORT, page)):
            write_whole(root / name, text.encode())

    def _closing(self, alarm: Alarm) -> str:
        """Return who or what closed an alarm, for the page."""
        decision = self.closed.get(alarm.day)
        if decision is None:
            return f"{OPEN_DAYS} days have passed"
        return f"closed on {decision.at[:10]}: {decision.reason}"
