"""Survey of a log's days: their files, decisions and records, and the state of each day."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from jobs.config.jobs import DaysConfig
from jobs.config.sections import WEEKDAYS, parse_duration, whole_days
from jobs.rows import ChosenRows, calendar_of, columns_of
from logcal.errors import ConfigError, InputRejectedError
from pipeline.days.files import LogDays, Schemas, list_days
from pipeline.days.records import CHECK, DONE, FAILED, FIT, MONITOR, STEPS, DayRecords, Steps
from pipeline.days.states import BEFORE, EXCLUDED, DayRules, DayState, DayStates, day_states
from pipeline.files import clock
from pipeline.log.folder_tree import with_keys
from pipeline.log.logs import Columns, read_footers
from pipeline.log.windows import DAMAGED, ClosedDay, close_none, day_number, day_of, open_window
from pipeline.log.windows import EXCLUDED as CLOSED_EXCLUDED
from pipeline.table.journal import Decision, read_decisions
from pipeline.table.published import Version
from pipeline.table.store import TableStore


@dataclass(frozen=True)
class Survey:
    """Days of a log as they are now.

    Attributes
    ----------
    log : files by day; the footers of days with something left to do have been read
    records : records by ISO date and step
    now : time of the survey
    """

    config: DaysConfig
    store: TableStore
    log: LogDays
    decisions: Mapping[str, Decision]
    records: Mapping[str, Steps]
    rules: DayRules
    now: dt.datetime

    @cached_property
    def states(self) -> DayStates:
        """State of each day."""
        return day_states(self.log, self.decisions, self.records, self.rules, self.now)

    def updated(self, log: LogDays | None = None) -> Survey:
        """Return the survey with the present records, and with faults that were found since."""
        return replace(self, records=DayRecords(self.store.folder).read(), log=log or self.log)

    @property
    def window(self) -> range:
        """Days that a fit up to the newest complete day uses."""
        newest = self.states.newest
        return (
            range(0)
            if newest is None
            else range(newest - whole_days(self.config.window.last) + 1, newest + 1)
        )

    def may_fit(self, entry: DayState) -> bool:
        """Tell whether a fit may use a day: it is complete with its labels, not excluded and not damaged."""
        files = entry.files
        if not files.files or entry.state == EXCLUDED or files.fault is not None:
            return False
        return self.rules.complete(files, self.now) and self.rules.labels_complete(files, self.now)

    def choice(self, last: int | None = None) -> ChosenRows:
        """Return the files and days that a step leaves out.

        last : last day of a fit, which leaves out days whose labels are not complete, too; None: another step
        """
        closed, waiting = [], set()
        for entry in self.states.days:
            if entry.state == EXCLUDED:
                closed.append(ClosedDay(entry.day, CLOSED_EXCLUDED, entry.reason))
            elif entry.files.fault is not None:
                closed.append(ClosedDay(entry.day, DAMAGED, entry.files.fault))
            elif last is not None and entry.day <= last and not self.may_fit(entry):
                waiting.add(entry.day)
        names = self.log.names({entry.day for entry in closed} | waiting)
        names |= {*self.log.unplaced, *self.log.excluded}
        whole = [e for e in closed if all(f.relative in names for f in self.log.of(e.day).files)]
        return ChosenRows(names, self.states.newest, tuple(whole), self.log.spans)

    def scoring_choice(self, day: int) -> ChosenRows:
        """Return the files that the scoring of a day leaves out: those that are scored with another day."""
        skipped = {
            e.day for e in self.states.days if e.state in (BEFORE, EXCLUDED) or e.files.fault is not None
        }
        begin = self.states.begin if self.states.begin is not None else day
        with_others = self.log.not_scored_with(day, lambda other: other >= begin and other not in skipped)
        choice = self.choice()
        return replace(choice, without={*choice.without, *with_others})


def survey(config: DaysConfig) -> Survey:
    """Survey the days of a configuration's log: lists its files, and reads the footers of days that are not done.

    Raises
    ------
    ConfigError
        The log has no folder for each day, but days.complete_marker needs one.
    InputRejectedError
        The log cannot be listed.
    """
    store = TableStore(config.store.path, config.store.table)
    folder, column = store.folder, config.window.column
    assert column is not None
    marker = config.days.complete_marker
    decisions = read_decisions(folder)
    remembering = folder if store.names() else None
    log = list_days(config.log.path, column, calendar_of(config.window), marker, remembering, decisions)
    if marker is not None and not any(f"{column}=" in name for name in log.spans):
        raise ConfigError(
            f"days.complete_marker: expected a log in folders by day, such as {column}=2026-01-31/, found none: leave "
            "it out, then the clock decides (days.complete_after)"
        )
    result = Survey(
        config,
        store,
        log,
        decisions,
        DayRecords(folder).read(),
        _rules(config),
        clock.now(),
    )
    result = replace(result, log=_inspected(result))
    if config.log.labels.path is None:
        return result
    return replace(result, rules=replace(result.rules, known_day=_known_day(result)))


def _rules(config: DaysConfig) -> DayRules:
    days = config.days
    # `monitor` needs independent rows, without weights.
    steps = [step for step in STEPS if step != MONITOR or config.log.weight is None]
    return DayRules(
        begin=None if days.begin is None else day_number(dt.date.fromisoformat(days.begin)),
        complete_after=dt.timedelta(seconds=parse_duration(days.complete_after)),
        marker=days.complete_marker,
        weekdays=frozenset(WEEKDAYS.index(name) for name in days.weekdays),
        lookback=whole_days(days.lookback),
        until=None if config.window.last_day is None else day_number(config.window.last_day),
        label_wait=_label_wait(config),
        min_labelled=config.window.min_labelled,
        window=whole_days(config.window.last),
        steps=tuple(steps),
        zone=config.window.timezone,
    )


def _label_wait(config: DaysConfig) -> dt.timedelta:
    """Return the time until labels in the log are complete; joined labels are known by their own times."""
    labels = config.log.labels
    return dt.timedelta(seconds=0 if labels.path is not None else parse_duration(labels.wait) or 0)


def _inspected(found: Survey) -> LogDays:
    """Read the footers of days that are not done, and add the faults that earlier runs found while reading rows."""
    log, columns = found.log, columns_of(found.config, found.config.log.segment, found.states.newest)
    window, new = found.window, []
    for entry in found.states.days:
        record = entry.last.get(FIT)
        done = record is not None and record.files == entry.files.digest and record.outcome != FAILED
        if entry.state != EXCLUDED and not done and (entry.todo or entry.day in window):
            new.append(entry.day)
    log = log.inspected(new, columns, _reference(found, columns))
    days = dict(log.days)
    for day, files in log.days.items():
        checks = found.records.get(day_of(day).isoformat(), {}).get(CHECK, [])
        last = checks[-1] if checks else None
        if last is not None and last.files == files.digest and last.facts.get("rows_read"):
            days[day] = replace(files, fault=last.message)
    return replace(log, days=days)


def _reference(found: Survey, columns: Columns) -> Schemas:
    """Return a file of the newest day that a fit has used, whose columns other days must have; empty before that."""
    for entry in reversed(found.states.days):
        record = entry.last.get(FIT)
        if record is not None and record.outcome == DONE and record.files == entry.files.digest:
            good, _ = read_footers(found.log.filesystem, entry.files.files[:1])
            return [(file.relative, with_keys(schema, file.path, columns.folders)) for file, schema in good]
    return ()


def _known_day(found: Survey) -> int | None:
    """Return the last day whose joined labels are known; None if no row waits for an outcome."""
    config, newest = found.config, found.states.newest
    columns, choice = columns_of(config, config.log.segment, newest), found.choice()
    for entry in reversed(found.states.days):
        if entry.day > (newest or 0) or not entry.files.files or entry.files.fault is not None:
            continue
        if entry.state == EXCLUDED:
            continue
        assert config.window.column is not None
        try:
            window = open_window(
                config.log.path,
                columns,
                config.window.column,
                1,
                day_of(entry.day),
                choice.without,
                close_none,
                lambda _: found.log.spans,
            )
        except InputRejectedError:
            continue  # its outcomes cannot be used: the steps say so
        labels = window.log.columns.labels
        return None if labels is None else labels.known_day(config.window.min_labelled)
    return None


def fitted_with(version: Version | None, column: str | None) -> set[str]:
    """Return the days that a version was fitted to, as ISO dates, if it has a window of the same column."""
    window = {} if version is None else version.manifest.get("window") or {}
    if window.get("column") != column:
        return set()
    return {day["day"] for day in window.get("days", ()) if day["rows_used"]}
