"""Records of days that the commands evaluate, monitor, fit and score write, where a table has a daily job."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Iterator
from typing import Any

from jobs.config.jobs import DAY
from jobs.outcome import Outcome
from logcal.errors import LogcalError
from pipeline.days.records import (
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
from pipeline.table.published import PublishedTable

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
        yield from _fit_records(prepared, table.version(version).manifest.get("window") or {}, version)
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


def _fit_records(prepared: Any, window: dict[str, Any], version: str) -> Iterator[DayRecord]:
    fitting = getattr(prepared, "fitting", None)
    if fitting is None or fitting.source.window is None:
        return
    aside = {entry["day"]: "; ".join(entry["reasons"]) for entry in window.get("days_set_aside", ())}
    for day in fitting.source.window.days:
        name = day_of(day).isoformat()
        used = {entry["day"] for entry in window.get("days", ()) if entry["rows_used"]}
        if name in aside:
            digest = _digest(fitting.source.window, day)
            yield DayRecord(name, FIT, digest, SET_ASIDE, version=version, message=aside[name])
        elif name in used:
            yield DayRecord(name, FIT, _digest(fitting.source.window, day), version=version)


def _digest(window: Window, day: int) -> str:
    files = {file for file, _ in window.groups(day)}
    return digest_of(files, window.log.columns.calendar.zone)
