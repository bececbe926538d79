"""Files that a job does not open: those of excluded days, and those of days with damaged files."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Sequence

from pipeline.days.files import LogDays, excluded_files, known_spans, list_days
from pipeline.days.states import decision_on
from pipeline.files.folders import Folder
from pipeline.log.log_files import LogFile
from pipeline.log.logs import Columns
from pipeline.log.windows import DAMAGED, EXCLUDED, Close, ClosedDay, close_none, day_number
from pipeline.table.journal import EXCLUDE, read_decisions


def close_excluded(folder: Folder, column: str, zone: str) -> Close:
    """Return the function that closes the files that a person excluded, and those of excluded days.

    folder : folder of the table
    column, zone : see `open_window` and `Calendar`
    """
    decisions = read_decisions(folder)
    if not any(entry.decision == EXCLUDE for entry in decisions.values()):
        return close_none

    def close(files: Sequence[LogFile]) -> tuple[Collection[str], Sequence[ClosedDay]]:
        log = LogDays.of_spans(files, known_spans(folder, files, column, zone), zone=zone)
        closed = []
        for entry in log.days.values():
            decision = decision_on(entry, decisions)
            if decision is not None and decision.decision == EXCLUDE:
                closed.append(ClosedDay(entry.day, EXCLUDED, decision.reason))
        names, days = _closing(log, closed)
        return {*names, *excluded_files(files, decisions)}, days

    return close


def _closing(log: LogDays, closed: Sequence[ClosedDay]) -> tuple[Collection[str], Sequence[ClosedDay]]:
    """Return the files of closed days only, and the days of which no file is left."""
    names = log.names(entry.day for entry in closed)
    return names, [entry for entry in closed if all(f.relative in names for f in log.of(entry.day).files)]


def find_damaged(
    paths: str | Sequence[str],
    columns: Columns,
    column: str,
    length: int,
    until: dt.date | None,
    folder: Folder,
    close: Close,
) -> Close:
    """Return the function that closes files of damaged days of a window, besides those that `close` closes.

    length, until : see `choose_window`
    folder : folder of the table
    """
    log = list_days(paths, column, columns.calendar, folder=folder, decisions=read_decisions(folder))
    last = max(log.days, default=0) if until is None else day_number(until)
    _, closed = close([file for entry in log.days.values() for file in entry.files])
    open_days = set(range(last - length + 1, last + 1)) - {entry.day for entry in closed}
    log = log.inspected(open_days, columns)
    damaged = [
        ClosedDay(entry.day, DAMAGED, entry.fault) for entry in log.days.values() if entry.fault is not None
    ]

    def close_all(files: Sequence[LogFile]) -> tuple[Collection[str], Sequence[ClosedDay]]:
        names, excluded = close(files)
        bad, days = _closing(log, damaged)
        return {*names, *bad, *log.unplaced}, [*excluded, *days]

    return close_all
