"""Persons' decisions on alarms of a watched table."""

from __future__ import annotations

from dataclasses import replace

from jobs.outcome import Outcome
from logcal.errors import ConfigError, examples
from pipeline.days.records import DONE, FAILED, MONITOR, DayRecords
from pipeline.log.windows import parse_day
from pipeline.monitor.history import ACKNOWLEDGE, FOLDER, Alarm, closed_alarms, read_history
from pipeline.table.journal import decide
from pipeline.table.published import PublishedTable


def acknowledge(store: str, table: str, day: str, reason: str) -> Outcome:
    """Close the alarm that was on after a day's test; the test begins anew.

    Raises
    ------
    ConfigError
        There is no such alarm.
    """
    published = PublishedTable(store, table)
    alarm = _alarm_of(published, day)
    decide(published.folder / FOLDER, alarm.day, ACKNOWLEDGE, reason, ())
    _close_records(DayRecords(published.folder), alarm, reason)
    summary = {"table": table, "alarm": vars(alarm), "reason": reason}
    line = f"the alarm of {alarm.day} is closed, and the next run writes the page without it: {alarm.message}"
    return Outcome(summary, [line])


def _alarm_of(table: PublishedTable, day: str) -> Alarm:
    parsed = parse_day(day)
    if parsed is None:
        raise ConfigError(f"DAY: expected a date such as 2026-01-31, found {day!r}")
    history, closed = read_history(table.folder), closed_alarms(table.folder)
    alarms = () if history is None else history.alarms
    found = [alarm for alarm in alarms if parsed.isoformat() in alarm.days]
    if not found:
        left = [alarm.day for alarm in alarms if alarm.day not in closed]
        raise ConfigError(
            f"DAY: expected a day with an alarm of table '{table.table}', found {parsed.isoformat()}: "
            f"{f'alarms that nobody has closed are of {examples(left)}' if left else 'no alarm is open'}"
        )
    return found[-1]


def _close_records(records: DayRecords, alarm: Alarm, reason: str) -> None:
    """Record that the test of the alarm's days needs no decision any more."""
    known = records.read()
    last = [known[day][MONITOR][-1] for day in alarm.days if MONITOR in known.get(day, {})]
    records.add(
        [
            replace(record, outcome=DONE, message=f"alarm closed by a person: {reason}")
            for record in last
            if record.outcome == FAILED
        ]
    )
