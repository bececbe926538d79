"""Records of days that the commands evaluate, monitor, fit and score write, where a table has a daily job."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Iterable, Iterator
from typing import Any

from jobs.config.jobs import DAY
from jobs.outcome import Outcome
from logcal.errors import LogcalError
from pipeline.days.records import (
    DONE,
    EVALUATE,
    FIT,
    MONITOR,
    SCORE,
    SET_ASIDE,
    STEPS,
    DayRecord,
    DayRecords,
    digest_of,
)
from pipeline.log.windows import Window, day_number, day_of
from pipeline.table.published import PublishedTable, Version

log = logging.getLogger("logcal")


def record_command(job: str, config: Any, prepared: Any, outcome: Outcome) -> None:
    """Record the days that a command has done, if the table has a daily job, which then does not repeat them.

    A result of several days, or one that lies elsewhere than the daily job's, is not recorded.
    """
    if job not in STEPS or config.window.column is None:
        return
    try:
        table = PublishedTable(config.store.path, config.store.table)
        records = DayRecords(table.folder)
        if records.exist():
            records.add(list(_records(job, config, prepared, outcome, table)))
    except (OSError, LogcalError) as error:
        log.warning("the days of this %s cannot be recorded: %s", job, error)


def _records(
    job: str, config: Any, prepared: Any, outcome: Outcome, table: PublishedTable
) -> Iterator[DayRecord]:
    version = str(outcome.summary.get("version"))
    if job == FIT:
        fitting = getattr(prepared, "fitting", None)
        if fitting is not None and (window := fitting.source.window) is not None:
            digests = ((day_of(day).isoformat(), _digest(window, day)) for day in window.days)
            yield from fit_records(table.version(version), digests)
        return
    if job == MONITOR:
        for day, tested in outcome.summary["tested"].items():
            digest = _digest(prepared.window, day_number(dt.date.fromisoformat(day)))
            yield DayRecord(day, MONITOR, digest, version=tested)
        return
    window, path = prepared.window, config.output.path if job == SCORE else config.report.path
    if window is None or window.first != window.last or DAY not in path:
        return
    facts = {"rows": outcome.summary["rows"]} if job == SCORE else outcome.summary["measured"]
    day = window.last
    yield DayRecord(
        day_of(day).isoformat(),
        SCORE if job == SCORE else EVALUATE,
        _digest(window, day),
        version=version,
        run_id=outcome.summary["run_id"],
        facts=facts,
    )


def fit_records(version: Version, digests: Iterable[tuple[str, str]]) -> Iterator[DayRecord]:
    """Yield the records of the days that a version's fit used or set aside.

    digests : name and digest of files of each day that may have a record
    """
    window = version.manifest.get("window") or {}
    aside = {day["day"]: "; ".join(day["reasons"]) for day in window.get("days_set_aside", ())}
    aside |= {day["day"]: day["reason"] for day in window.get("days_damaged", ())}
    judged = {day["day"] for day in window.get("days", ())}
    judged -= {day["day"] for day in window.get("days_unlabelled", ())}
    for day, files in digests:
        if day in judged:
            outcome = SET_ASIDE if day in aside else DONE
            yield DayRecord(day, FIT, files, outcome, version=version.name, message=aside.get(day))


def _digest(window: Window, day: int) -> str:
    files = {file for file, _ in window.groups(day)}
    return digest_of(files, window.log.columns.calendar.zone)
