"""Records of days: which steps of a day are done, with which files and which version.

    <store>/<table>/days.jsonl                            on a mounted file system: one line per record
    <store>/<table>/day-records/<number>-<token>.json     on an object store: one object per record

A record is written after the step's result is visible. A process that is killed between the two leaves a result without
a record; the step then recognises its own result when it is repeated. Records outlive the versions that they name.
Readers skip a line that was cut off, and refuse a damaged one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from pipeline.files import clock
from pipeline.files.folders import Folder
from pipeline.files.line_logs import LineLog
from pipeline.log.calendars import UTC
from pipeline.log.log_files import LogFile

EVALUATE, MONITOR, FIT, SCORE = "evaluate", "monitor", "fit", "score"
STEPS = (EVALUATE, MONITOR, FIT, SCORE)
SHIFT = "shift"
"""Fact of a day whose scores were written although they are too far from the table's: their distance."""
"""Steps of a day, in their order."""
CHECK = "check"
"""Record of the check of a day's footers, where it found a fault."""
BEGIN = "begin"
"""Record of the first day that is scored: earlier days are before the beginning."""
COMPARED = "compared"
"""Record of the last time when the files of all days were compared."""

DONE, FAILED, NOTHING, SET_ASIDE = "done", "failed", "nothing", "set_aside"
"""Outcomes of a step. nothing: it does not apply to the day, for the reason in the message. set_aside: the fit left the
day out, since it differs from the others."""


@dataclass(frozen=True)
class DayRecord:
    """Record of a step of a day.

    Attributes
    ----------
    day : ISO date
    step : one of `STEPS`, or CHECK, BEGIN, COMPARED
    files : digest of the day's files, see `digest_of`
    outcome : DONE, FAILED, NOTHING or SET_ASIDE
    at : time, ISO 8601, UTC
    version : version of the table that was measured, made or applied; None without one
    message : the reason, if the outcome is not DONE
    run_id : identity of the run, which a repeated run shares
    facts : numbers of the result, as JSON values
    """

    day: str
    step: str
    files: str = ""
    outcome: str = DONE
    at: str = ""
    version: str | None = None
    message: str | None = None
    run_id: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)


_LOG = LineLog(
    "days",
    "day-records",
    DayRecord,
    ("day", "step", "at"),
    "the records of this table's days",
    "its step of the day is then repeated, if its result is not found",
)

Steps = dict[str, list[DayRecord]]
"""Records of a day by step, oldest first."""


def digest_of(files: Iterable[LogFile], zone: str = UTC) -> str:
    """Return a digest of a day's files: their paths relative to the log, sizes and modification; '' without files.

    zone : time zone of the days
    """
    content: list[Any] = sorted(file.identity for file in files)
    if content and zone != UTC:
        content.append(zone)
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32] if content else ""


class DayRecords:
    """Records of days in the folder of a table."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    def exist(self) -> bool:
        """Tell whether the table has records, which its first daily job begins."""
        return _LOG.exists(self._folder)

    def add(self, records: Sequence[DayRecord]) -> list[DayRecord]:
        """Append records and sync them; return them with their time."""
        if not records:
            return []
        at = clock.now().isoformat(timespec="microseconds")
        timed = [DayRecord(**{**asdict(record), "at": at}) for record in records]
        _LOG.append(self._folder, timed)
        return timed

    def read(self) -> dict[str, Steps]:
        """Return all records by day and step, oldest first.

        Raises
        ------
        InputRejectedError
            A record is damaged, so that days could be done again, or be taken for done.
        """
        by_day: dict[str, Steps] = {}
        for record in sorted(_LOG.read(self._folder), key=lambda record: record.at):
            by_day.setdefault(record.day, {}).setdefault(record.step, []).append(record)
        return by_day
