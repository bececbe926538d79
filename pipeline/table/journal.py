"""Journal of a table: an append-only log of the changes of CURRENT and of new candidates.

    <store>/<table>/journal.jsonl                       on a mounted file system: one line per entry
    <store>/<table>/journal/<number>-<token>.json       on an object store: one object per entry

An entry is written before CURRENT changes, and contains the previous content of CURRENT. So the journal shows which
entries took effect: those whose version is the previous content of the next entry or, for the last entry, the content
of CURRENT. A run that is killed between the two writes leaves an entry without effect, and can be run again. Readers
skip an unfinished line and refuse a damaged one.

`days.json` in the same folder has users' decisions on the days of a table's log. An excluded day is left out of fits;
an included day is used even if it is suspect. A decision holds until the day's files change.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from logcal.errors import InputRejectedError
from logcal.storage import parse_json
from pipeline.files.folders import Folder
from pipeline.files.line_logs import LineLog
from pipeline.files.locks import locking

PUBLISH, PROMOTE, ROLLBACK = "publish", "promote", "rollback"
CANDIDATE, PRUNE = "candidate", "prune"
_MOVES = (PUBLISH, PROMOTE, ROLLBACK)
UNREADABLE = "(unreadable)"
"""Entry for the previous content of CURRENT if it was not a version's name."""


@dataclass(frozen=True)
class Entry:
    """Entry of the journal.

    Attributes
    ----------
    event : publish, promote or rollback, which change CURRENT; candidate or prune, which do not
    version : the version concerned
    previous : previous content of CURRENT, or UNREADABLE; None: CURRENT did not exist
    at : time in UTC
    run_id : identity of the run that made the version
    note : reasons, for readers
    """

    event: str
    version: str
    previous: str | None = None
    at: str = ""
    run_id: str | None = None
    note: str | None = None


_LOG = LineLog(
    "journal",
    "journal",
    Entry,
    ("event", "version", "at"),
    "the history of this table's versions",
    "nothing is published until then. If the line is that of a rollback, repeating the fit that it rolled back makes "
    "that version live again",
)


class Journal:
    """Journal in the folder of a table."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    def add(
        self,
        event: str,
        version: str,
        previous: str | None,
        run_id: str | None = None,
        note: str | None = None,
    ) -> None:
        """Append an entry and sync it; the caller holds the table's lock."""
        at = datetime.now(UTC).isoformat(timespec="seconds")
        _LOG.append(self._folder, [Entry(event, version, previous, at, run_id, note)])

    def went_live(self, version: str) -> str | None:
        """Return the time at which the live version went live; None if the journal does not have it.

        On an object store only the last entries are read.
        """
        entries = _LOG.read(self._folder, newest_first=True)
        return next(
            (entry.at for entry in entries if entry.version == version and entry.event in _MOVES), None
        )

    def entries(self) -> list[Entry]:
        """Return all entries, oldest first; empty without a journal.

        Raises
        ------
        InputRejectedError
            An entry is damaged, so that rollbacks may be missing.
        """
        return list(_LOG.read(self._folder))


def moves(entries: Sequence[Entry], current: str | None) -> list[Entry]:
    """Return the entries that changed CURRENT. current : content of CURRENT."""
    tried = [entry for entry in entries if entry.event in _MOVES]
    after = [*(entry.previous for entry in tried), current][1:]
    # An unreadable CURRENT is assumed to have named the entry's version.
    return [entry for entry, name in zip(tried, after, strict=False) if name in (entry.version, UNREADABLE)]


def trail(entries: Sequence[Entry], names: Sequence[str], current: str | None) -> list[str]:
    """Return the versions that rollbacks go back through: each was current before the next; the last is current.

    Parameters
    ----------
    entries : entries of the journal, oldest first
    names : names of all versions that could have been current, oldest first
    current : content of CURRENT, or UNREADABLE; None: it does not exist. Without a name in CURRENT the last version is
        that of the last entry that changed CURRENT.
    """
    tried = [entry for entry in entries if entry.event in _MOVES]
    if current in (None, UNREADABLE):
        current = tried[-1].version if tried else None
    first = tried[0].previous if tried else current
    # Versions without an entry, since the journal was removed, in the order of their numbers.
    recorded = {entry.version for entry in entries}
    versions = [name for name in names if first is not None and name < first and name not in recorded]
    versions += [first] if first is not None else []
    for entry in moves(entries, current):
        _move_to(versions, entry.previous)
        if entry.event == ROLLBACK:
            _go_back(versions, entry.version)
        elif versions[-1:] != [entry.version]:
            versions.append(entry.version)
    _move_to(versions, current)
    return versions


def _move_to(versions: list[str], name: str | None) -> None:
    """Make a version the last of a trail, if CURRENT was changed without an entry."""
    if name is None or name == UNREADABLE or versions[-1:] == [name]:
        return
    if name in versions:
        _go_back(versions, name)
    else:
        versions.append(name)


def _go_back(versions: list[str], name: str) -> None:
    del versions[-1:]
    if name in versions:
        del versions[len(versions) - versions[::-1].index(name) :]
    else:
        versions.append(name)


def taken_back(entries: Sequence[Entry], name: str, current: str | None) -> Entry | None:
    """Return the rollback that ended a version's last time as the live version; None if something else ended it."""
    ends = [entry for entry in moves(entries, current) if entry.previous == name and entry.version != name]
    return ends[-1] if ends and ends[-1].event == ROLLBACK else None


def was_current(entries: Sequence[Entry], name: str, current: str | None) -> bool:
    """Return whether a version has ever been live."""
    return any(name in (entry.version, entry.previous) for entry in moves(entries, current))


DECISIONS = "days.json"
EXCLUDE, INCLUDE = "exclude", "include"


FILE = "file:"
"""Beginning of the key of a decision on a file; the path relative to the log follows."""


@dataclass(frozen=True)
class Decision:
    """Decision about a day, or about one file.

    Attributes
    ----------
    decision : 'exclude' or 'include'; of an alarm 'acknowledge'
    reason : the user's reason
    at : time, ISO 8601
    files : digests of the day's files; empty: the day had no files yet
    """

    decision: str
    reason: str
    at: str
    files: tuple[str, ...] = ()

    def holds(self, digests: set[str]) -> bool:
        """Return whether it applies to all of the day's present files, given by their digests."""
        return not self.files or digests <= set(self.files)


def read_decisions(folder: Folder) -> dict[str, Decision]:
    """Read the decisions on a table's days, by day such as 2026-01-31, or FILE and a relative path.

    Raises
    ------
    InputRejectedError
        The file has other content.
    """
    try:
        days = parse_json(folder.read(DECISIONS) or b"{}")
        return {day: Decision(**{**row, "files": tuple(row["files"])}) for day, row in sorted(days.items())}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InputRejectedError(
            f"{folder}/{DECISIONS}: expected decisions on days as `logcal days` writes them, found something else: "
            "remove the file, and decide again"
        ) from None


def decide(
    folder: Folder, day: str, decision: str | None, reason: str, files: Collection[str]
) -> dict[str, Decision]:
    """Write a decision, or remove it if it is None; return all decisions.

    Parameters
    ----------
    folder : the table's folder
    day : such as 2026-01-31, or FILE and a file's relative path
    decision : see `Decision`, or None
    reason : the user's reason
    files : digests of the day's files
    """
    with locking(folder):
        decisions = read_decisions(folder)
        decisions.pop(day, None)
        if decision is not None:
            at = datetime.now(UTC).isoformat(timespec="seconds")
            decisions[day] = Decision(decision, reason, at, tuple(sorted(files)))
        content = {key: asdict(decisions[key]) for key in sorted(decisions)}
        folder.write(DECISIONS, json.dumps(content, indent=1).encode())
    return decisions
