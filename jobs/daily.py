"""The days job: evaluate, monitor, fit and score every day that is complete and not done."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from jobs import day_steps
from jobs.config.jobs import DAY, DaysConfig
from jobs.day_list import day_facts, day_line, group_name, grouped, newest_measured, state_text
from jobs.day_survey import Survey, survey
from jobs.outcome import REPORT, Outcome, Plan, Startable
from jobs.rows import JOB, page_folder
from logcal.errors import (
    CheckFailedError,
    ConfigError,
    FileChangedError,
    NothingToDoError,
    TemporaryError,
    counted,
    examples,
)
from pipeline.days.records import (
    BEGIN,
    CHECK,
    COMPARED,
    DONE,
    EVALUATE,
    FAILED,
    FIT,
    MONITOR,
    SCORE,
    SET_ASIDE,
    SHIFT,
    STEPS,
    DayRecord,
    DayRecords,
)
from pipeline.days.states import BEFORE, LABELS_WAITING, DayState, compares_all, recorded_begin
from pipeline.execution import Executor
from pipeline.files.folders import Folder
from pipeline.files.locks import locking
from pipeline.log.windows import day_of
from pipeline.table.store import TableStore

log = logging.getLogger("logcal")

_LOCK = "daily"
"""Folder in a table's folder whose lock the daily job holds."""
_MOST_DAMAGED = 20
"""Damaged files that a fit finds one after the other before it gives up."""


def prepare(config: DaysConfig) -> Prepared:
    """Check the configuration and survey the days; reads footers of days that are not done."""
    store = TableStore(config.store.path, config.store.table)
    store.check_writable()
    _check_new(config, store)
    return Prepared(config, survey(config))


def _check_new(config: DaysConfig, store: TableStore) -> None:
    """Check that --new is given exactly for a table without versions.

    Raises
    ------
    ConfigError
        The table exists, or does not exist.
    """
    exists = bool(store.names())
    if exists and config.days.new:
        raise ConfigError(
            f"--new: expected no version of table '{store.table}', found some in {store.url}: leave --new out; only "
            "the first run needs it"
        )
    if not exists and not config.days.new:
        raise ConfigError(
            f"expected table '{store.table}', found no version in {store.url}: correct store.path, or give --new to "
            "begin a new table there"
        )


@dataclass(frozen=True)
class Prepared(Startable):
    """A daily job that can start."""

    config: DaysConfig
    survey: Survey

    @property
    def plan(self) -> Plan:
        """Plan of the daily job."""
        config, found = self.config, self.survey
        todo = _todo(found)
        stages = [f"{entry.name}: {', '.join(entry.todo)}" for entry in todo]
        return Plan(
            "days run",
            tuple(stages) or ("nothing is to be done",),
            (", ".join(config.log.path),),
            (config.report.path, config.output.path, f"{found.store.url}/"),
            {
                "days": {entry.name: list(entry.todo) for entry in todo},
                "states": found.states.counts(),
                "current_version": found.store.current_name(),
            },
        )

    def execute(self, executor: Executor) -> Outcome:
        """Do the days, and say what was done and what a person must decide."""
        store = self.survey.store
        with only_run(store.folder / _LOCK):
            _check_new(self.config, store)
            # Another run may have done days since the first survey.
            return _Run(survey(self.config), executor).outcome()


@contextmanager
def only_run(folder: Folder) -> Iterator[None]:
    """Hold the lock of a table's daily job until the block ends.

    Raises
    ------
    TemporaryError
        Another run holds it.
    """
    try:
        lock = locking(folder, patience=0)
        with lock:
            yield
    except TemporaryError as error:
        if f"{folder.root} for 0 s" not in str(error):
            raise
        raise TemporaryError(
            f"another run of the daily job works on {folder.root.rpartition('/')[0]}: run again later"
        ) from None


def _todo(found: Survey) -> list[DayState]:
    return [entry for entry in found.states.days if entry.todo and entry.state != BEFORE]


@dataclass
class _Run:
    """One run of the daily job, which holds the lock.

    Attributes
    ----------
    found : survey of the days, with the records written so far
    done : records that this run has written
    lines : what happened, as text
    """

    found: Survey
    executor: Executor
    done: list[DayRecord] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    left: int = 0

    def outcome(self) -> Outcome:
        """Do what is left of each day, and return the outcome.

        Raises
        ------
        CheckFailedError
            A person must decide on a day.
        NothingToDoError
            No step of any day was left.
        """
        config, found = self.found.config, self.found
        self._begin()
        todo = _todo(self.found)
        chosen, self.left = todo[: config.days.most_days], max(0, len(todo) - config.days.most_days)
        groups = [[entry] for entry in chosen] if config.days.fit_each_day else [chosen] if chosen else []
        for group in groups:
            self._measure(group)
            self._fit(group)
            self._score(group)
        if not self.left and compares_all(found.records, found.now):
            # Only now: a run that is killed before has not done all changed days.
            DayRecords(found.store.folder).add([DayRecord(found.now.date().isoformat(), COMPARED)])
        return self._result()

    def _begin(self) -> None:
        """Record the first day that is scored, and faults of days."""
        found, records = self.found, []
        begin = found.states.begin
        if begin is not None and recorded_begin(found.records) is None:
            records.append(DayRecord(day_of(begin).isoformat(), BEGIN))
        for entry in found.states.days:
            if entry.files.fault is not None:
                known = found.records.get(entry.name, {}).get(CHECK, [DayRecord(entry.name, CHECK)])[-1]
                record = day_steps.check_record(entry.files, entry.files.fault, rows_read=False)
                if (known.files, known.message) != (record.files, record.message):
                    records.append(record)
        DayRecords(found.store.folder).add(records)
        self.found = found.updated()

    def _measure(self, group: Sequence[DayState]) -> None:
        for entry in group:
            for step, run in ((EVALUATE, day_steps.evaluate), (MONITOR, day_steps.monitor)):
                if step in entry.todo:
                    self._step(run, entry)

    def _score(self, group: Sequence[DayState]) -> None:
        for entry in group:
            if SCORE in entry.todo and self.found.log.of(entry.day).fault is None:
                self._step(day_steps.score, entry)

    def _step(self, run: Any, entry: DayState) -> None:
        try:
            record = run(self.found, entry, self.executor)
        except FileChangedError as error:
            log.warning("%s is still arriving: %s", entry.name, error)
            return
        if record is not None:
            self._record([record], {entry.name: entry})

    def _record(self, records: Sequence[DayRecord], entries: dict[str, DayState]) -> None:
        """Write records that say something new, and add their lines."""
        new = []
        for record in records:
            last = entries[record.day].last.get(record.step) if record.day in entries else None
            same = last is not None and replace(record, at=last.at) == last
            if not same:
                new.append(record)
                line = day_line(record, last)
                self.lines += [line] if record.step != FIT else []
                (log.warning if record.outcome == FAILED else log.info)("%s", line)
        self.done += DayRecords(self.found.store.folder).add(new)
        self.found = self.found.updated()

    def _fit(self, group: Sequence[DayState]) -> None:
        """Fit once, if a day of the group was not used by a fit yet."""
        for _ in range(_MOST_DAMAGED):
            due = [
                entry for entry in group if FIT in entry.todo and self.found.log.of(entry.day).fault is None
            ]
            days = [entry.day for entry in self.found.states.days if self.found.may_fit(entry)]
            newest = self.found.states.newest
            days = [day for day in days if newest is not None and day <= newest]
            first_fit = self.found.store.current_name() is None
            if not days or not (due or first_fit):
                return
            last = max(days)
            if self.found.config.days.fit_each_day and not first_fit:
                last = max([entry.day for entry in due] + self._fitted(days))
            try:
                fitted = day_steps.fit(self.found, last, due, self.executor)
            except FileChangedError as error:
                log.warning("no fit: %s", error)
                return
            if fitted.culprit is None:
                entries = {entry.name: entry for entry in self.found.states.days}
                self._record(fitted.records, entries)
                self.lines.append(f"fit up to {day_of(last)}: {fitted.message}")
                return
            self._set_aside(*fitted.culprit)

    def _fitted(self, days: Sequence[int]) -> list[int]:
        """Return those of some days that a fit has used."""
        states = {entry.day: entry for entry in self.found.states.days}
        return [day for day in days if FIT in states[day].last and states[day].last[FIT].outcome == DONE]

    def _set_aside(self, day: int, fault: str) -> None:
        """Leave out a day whose rows cannot be read, and remember it."""
        log_days = self.found.log
        files = log_days.of(day)
        record = day_steps.check_record(files, fault, rows_read=True)
        self.done += DayRecords(self.found.store.folder).add([record])
        log.warning("%s is set aside: %s", record.day, fault)
        changed = replace(log_days, days={**log_days.days, day: replace(files, fault=fault)})
        self.found = self.found.updated(changed)

    def _result(self) -> Outcome:
        """Return the outcome of the run."""
        found = self.found.updated()
        attention = [entry for entry in found.states.days if entry.attention]
        scored = [record for record in self.done if record.step == SCORE and record.outcome == DONE]
        counts: dict[str, int] = {}
        for record in scored:
            for name, count in record.facts.items():
                if name != SHIFT:
                    counts[name] = counts.get(name, 0) + int(count)
        summary: dict[str, Any] = {
            "table": found.config.store.table,
            "version": found.store.current_name(),
            "states": found.states.counts(),
            "newest_measured": newest_measured(found.states.days),
            "days": [day_facts(entry) for entry in found.states.days if _shown(entry, self.done)],
            "days_left": self.left,
            "reports": self._reports(found),
            "files_without_day": dict(found.log.unplaced),
            **counts,
        }
        lines = [*self.lines]
        if left_out := [step for step in STEPS if step not in found.rules.steps]:
            summary["steps_left_out"] = left_out
            lines.append(f"{', '.join(left_out)}: left out, since rows have weights")
        if self.left:
            lines.append(f"{counted(self.left, 'more day')} to do (days.most_days): run again")
        lines += [f"{group_name(group)} {state_text(group[0])}" for group in grouped(attention)]
        lines += [f"{name}: {reason}" for name, reason in found.log.unplaced.items()]
        outcome = Outcome(summary, lines)
        if attention or found.log.unplaced:
            text = _attention_text(attention, found.log.unplaced, found.states.newest)
            raise CheckFailedError(text, outcome=outcome)
        if not any(record.outcome in (DONE, SET_ASIDE) for record in self.done) and not self.left:
            raise NothingToDoError(_nothing_text(found), outcome=Outcome(summary, []))
        return outcome

    @staticmethod
    def _reports(found: Survey) -> dict[str, str]:
        """Return the newest pages of the jobs that write some."""
        path, newest = found.config.report.path, newest_measured(found.states.days)
        pages = {MONITOR: page_folder(path, MONITOR)} if MONITOR in found.rules.steps else {}
        if newest is not None:
            pages[EVALUATE] = path.replace(JOB, EVALUATE).replace(DAY, newest["day"])
        return {job: f"{folder}/{REPORT}" for job, folder in pages.items()}


def _shown(entry: DayState, done: Sequence[DayRecord]) -> bool:
    return entry.attention or any(record.day == entry.name for record in done)


def _attention_text(attention: Sequence[DayState], unplaced: Any, newest: int | None) -> str:
    """Say what a person must decide on.

    newest : the last day that is complete
    """
    parts = []
    if attention:
        groups = grouped(attention)
        named = examples(
            [f"{group_name(group)} ({group[0].state.replace('_', ' ')})" for group in groups], 10
        )
        parts.append(f"{counted(len(attention), 'day')} to decide on: {named}; see `logcal days list`")
        parts.append("mend the files, or decide with `logcal days exclude` or `logcal days include`")
        if any(MONITOR in entry.last and entry.last[MONITOR].outcome == FAILED for entry in attention):
            parts.append("`logcal days acknowledge` closes an alarm of drift")
        if groups[-1][-1].day == newest and len(groups[-1]) > 1:
            parts.append("if the log ends there, give its last day: --until DAY")
    if unplaced:
        parts.append(
            f"{counted(len(unplaced), 'file')} whose days cannot be told ({examples(sorted(unplaced), 3)}), so that "
            "the days around count as arriving: mend it, or leave it out with `logcal days exclude --file NAME`"
        )
    return f"{'. '.join(text[0].upper() + text[1:] for text in parts)}. What the other days need is done"


def _nothing_text(found: Survey) -> str:
    newest, counts = found.states.newest, found.states.counts()
    waiting = [
        f"{counts[state]} {state.replace('_', ' ')}"
        for state in ("arriving", LABELS_WAITING)
        if counts[state]
    ]
    upto = "no day is complete" if newest is None else f"all days up to {day_of(newest)} are done"
    return f"{upto}{f' ({chr(44).join(waiting)})' if waiting else ''}: nothing to do"
