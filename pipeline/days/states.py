"""State of each day of a log: what happened to it, what is left to do, and what a person must decide.

`day_states` is the one place where states are computed, from the days' files, the decisions and the records.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pipeline.days.day_files import file_digests
from pipeline.days.files import DayFiles, LogDays
from pipeline.days.records import (
    BEGIN,
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
    Steps,
)
from pipeline.log.calendars import UTC, last_ended, start_of
from pipeline.log.windows import day_number, day_of, parse_day
from pipeline.table.journal import EXCLUDE, INCLUDE, Decision

ARRIVING, LABELS_WAITING = "arriving", "labels_waiting"
UNSCORED, UNMEASURED = "unscored", "unmeasured"
MISSING, EXCLUDED, BEFORE = "missing", "excluded", "before"
STATES = (ARRIVING, LABELS_WAITING, UNSCORED, UNMEASURED, SET_ASIDE, FAILED, MISSING, EXCLUDED, DONE)
"""States of a day, as `logcal days list` and the metrics name them; days before the beginning have BEFORE.
unmeasured: the day is scored, and its labels have become complete."""

_WEEK = dt.timedelta(days=7)


def end_of(day: int, zone: str) -> dt.datetime:
    """Return the end of a day in a time zone, in UTC."""
    return dt.datetime.fromtimestamp(start_of(day + 1, zone) // 1_000_000, dt.UTC)


@dataclass(frozen=True)
class DayRules:
    """Rules for the states of days.

    Attributes
    ----------
    begin : first day that is scored; None: the last complete day of the first run
    complete_after : time after a day's end until its files have arrived
    marker : name of the file that marks a day as complete instead; None: the clock decides
    weekdays : days of the week with rows, 0 for Monday; empty: all
    lookback : days back whose files are compared in each run
    until : day that is complete with all earlier days, and after which no day is done; None: the clock decides
    label_wait : time after a day's end until its labels are complete
    min_labelled : share of a day's rows that must have a label
    known_day : last day whose joined labels are known; None: no row waits for an outcome
    window : number of days of the window: older days need no person's decision
    steps : steps that apply to the log
    zone : time zone of the days
    """

    begin: int | None = None
    complete_after: dt.timedelta = dt.timedelta(hours=3)
    marker: str | None = None
    weekdays: frozenset[int] = frozenset()
    lookback: int = 3
    until: int | None = None
    label_wait: dt.timedelta = dt.timedelta()
    min_labelled: float = 0.0
    known_day: int | None = None
    window: int = 30
    steps: tuple[str, ...] = STEPS
    zone: str = UTC

    def newest_by_clock(self, now: dt.datetime) -> int:
        """Return the last day whose files have arrived by the clock, or `until`."""
        if self.until is not None:
            return self.until
        return last_ended(now, self.complete_after, self.zone)

    def complete(self, files: DayFiles, now: dt.datetime) -> bool:
        """Tell whether all rows of a day have arrived."""
        if self.until is not None:
            return files.day <= self.until
        if files.changing:
            return False
        return files.marked if self.marker is not None else files.day <= self.newest_by_clock(now)

    def expected(self, day: int) -> bool:
        """Tell whether a day should have rows."""
        return not self.weekdays or day_of(day).weekday() in self.weekdays

    def labels_complete(self, files: DayFiles, now: dt.datetime) -> bool:
        """Tell whether a day's labels are complete, as far as can be told without reading rows."""
        if self.known_day is not None and files.day > self.known_day:
            return False
        if self.label_wait and end_of(files.day, self.zone) + self.label_wait > now:
            return False
        if files.labelled is None or not files.rows:
            return True
        return files.labelled > 0 and files.labelled >= self.min_labelled * files.rows


@dataclass(frozen=True)
class DayState:
    """State of a day.

    Attributes
    ----------
    day : days since 1970-01-01
    state : one of STATES, or BEFORE
    reason : why the day is set aside, failed or excluded; '' otherwise
    todo : steps that are left, whose conditions hold
    last : last record of each step
    decision : a person's decision, if it holds for the day's present files
    attention : whether a person must decide on the day
    changed : whether its files differ from those that were scored
    """

    day: int
    state: str
    files: DayFiles
    reason: str = ""
    todo: tuple[str, ...] = ()
    last: Mapping[str, DayRecord] = field(default_factory=dict)
    decision: Decision | None = None
    attention: bool = False
    changed: bool = False

    @property
    def name(self) -> str:
        """ISO date."""
        return day_of(self.day).isoformat()


@dataclass(frozen=True)
class DayStates:
    """States of all days of a log, oldest first.

    Attributes
    ----------
    newest : last complete day; None if there is none
    begin : first day that is scored; None: not known yet
    """

    days: tuple[DayState, ...]
    newest: int | None
    begin: int | None

    def counts(self) -> dict[str, int]:
        """Return the number of days in each state; days before the beginning are not counted."""
        states = [entry.state for entry in self.days]
        return {state: states.count(state) for state in STATES}


def compares_all(records: Mapping[str, Steps], now: dt.datetime) -> bool:
    """Tell whether this run compares the files of all days, which happens once a week."""
    times = [record.at for steps in records.values() for record in steps.get(COMPARED, ())]
    return not times or now - dt.datetime.fromisoformat(max(times)) >= _WEEK


def recorded_begin(records: Mapping[str, Steps]) -> int | None:
    """Return the first day that is scored, as the first run recorded it."""
    begins = [record for steps in records.values() for record in steps.get(BEGIN, ())]
    day = parse_day(begins[0].day) if begins else None
    return None if day is None else day_number(day)


def decision_on(files: DayFiles, decisions: Mapping[str, Decision]) -> Decision | None:
    """Return the decision that holds for a day's present files; None if there is none."""
    decision = decisions.get(day_of(files.day).isoformat())
    if decision is None:
        return None
    if files.digest in decision.files:
        return decision
    digests = file_digests(file.identity for file in files.files)
    return decision if decision.holds(digests) else None


def day_states(
    log: LogDays,
    decisions: Mapping[str, Decision],
    records: Mapping[str, Steps],
    rules: DayRules,
    now: dt.datetime,
) -> DayStates:
    """Compute the state of each day of a log.

    Parameters
    ----------
    log : files of each day. Faults and labels are those of the days whose footers were read
    decisions : persons' decisions, by ISO date
    records : records of the days, by ISO date and step
    now : the present time
    """
    complete = [day for day, files in log.days.items() if files.files and rules.complete(files, now)]
    newest = max(complete, default=None)
    last = rules.newest_by_clock(now)
    begin = rules.begin if rules.begin is not None else recorded_begin(records)
    begin = newest if begin is None else begin
    old = None if newest is None or compares_all(records, now) else newest - rules.lookback
    days = set(log.days) | (set() if begin is None else set(range(begin, last + 1)))
    entries = []
    for day in sorted(days):
        files = log.of(day)
        if rules.until is not None and day > rules.until:
            continue
        if not files.files and not files.marked and not rules.expected(day):
            continue
        steps = records.get(day_of(day).isoformat(), {})
        if old is not None and day < old:
            steps = {step: [replace(r, files=files.digest) for r in found] for step, found in steps.items()}
        entry = _state(files, decision_on(files, decisions), steps, rules, now, begin)
        entries.append(entry if day > last - rules.window else replace(entry, attention=False))
    return DayStates(tuple(entries), newest, begin)


def _state(
    files: DayFiles,
    decision: Decision | None,
    steps: Steps,
    rules: DayRules,
    now: dt.datetime,
    begin: int | None,
) -> DayState:
    """Return the state of a day. begin : first day that is scored; None: no day is complete yet."""
    last = {step: found[-1] for step, found in steps.items() if step in STEPS}
    entry = DayState(files.day, DONE, files, last=last, decision=decision)
    if decision is not None and decision.decision == EXCLUDE:
        return replace(entry, state=EXCLUDED, reason=decision.reason)
    if begin is not None and files.day < begin:
        return replace(entry, state=BEFORE)
    if not files.files and (rules.complete(files, now) or not files.changing):
        return replace(entry, state=MISSING, attention=decision is None)
    if begin is None or not rules.complete(files, now):
        return replace(entry, state=ARRIVING)
    if files.fault is not None:
        return replace(entry, state=SET_ASIDE, reason=files.fault, attention=decision is None)
    present = {step: record for step, record in last.items() if record.files == files.digest}
    labelled = rules.labels_complete(files, now)
    fitted = any(record.outcome == DONE for record in steps.get(FIT, ()))
    todo = [step for step in rules.steps if _left(step, present.get(step), decision, labelled, fitted)]
    entry = replace(entry, todo=tuple(todo), changed=SCORE in last and SCORE not in present)
    shift = present[SCORE].facts.get(SHIFT) if SCORE in present else None
    if shift is not None:
        reason = f"score: its scores are at a distance of {shift:.2f} from those that the table was fitted to"
        entry = replace(entry, reason=reason, attention=decision is None)
    failed = [f"{step}: {present[step].message}" for step in STEPS if _outcome(present, step) == FAILED]
    if failed:
        reason = "; ".join([*failed, *filter(None, [entry.reason])])
        return replace(entry, state=FAILED, reason=reason, attention=decision is None)
    if SCORE in todo:
        return replace(entry, state=UNSCORED)
    if not labelled:
        return replace(entry, state=LABELS_WAITING)
    if todo:
        return replace(entry, state=UNMEASURED)
    if _outcome(present, FIT) == SET_ASIDE:
        reason = present[FIT].message or ""
        return replace(entry, state=SET_ASIDE, reason=reason, attention=decision is None)
    return entry


def _outcome(present: Mapping[str, DayRecord], step: str) -> str | None:
    return present[step].outcome if step in present else None


def _left(
    step: str, record: DayRecord | None, decision: Decision | None, labelled: bool, fitted: bool
) -> bool:
    """Tell whether a step of a complete day is left.

    A step that failed is tried again: it recognises what would fail in the same way. A day is measured before any fit
    has used it, and not after that.

    record : the step's last record with the day's present files. fitted : whether a fit has used the day
    """
    again = record is None or record.outcome == FAILED
    if step == SCORE:
        return again
    if step in (EVALUATE, MONITOR):
        return labelled and again and not fitted
    if record is None or record.outcome != SET_ASIDE:
        return labelled and again
    return labelled and decision is not None and decision.decision == INCLUDE and decision.at > record.at
