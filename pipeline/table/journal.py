"""The journal: what was made current when, and by what; append-only.

    <store>/<table>/journal.jsonl                       on a mounted file system: one line each
    <store>/<table>/journal/<number>-<token>.json       on an object store: one object each

An entry is written before CURRENT changes, and holds what CURRENT held. So the journal alone shows which entries took
effect: one did if the next one found its version, or, for the last, if CURRENT holds it. A run that was killed between
the two leaves an entry that counts for nothing, and can be run again. Readers pass over a line that was never finished
and refuse one that is damaged.

Decisions of persons on the days of a table's log are in `days.json` beside it. An excluded day is left out of fits; an
included day is used even if it is suspect. A decision holds until the day's files change; then the day is judged again.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from logcal.errors import InputRejectedError
from logcal.storage import parse_checked, parse_json, with_checksum
from pipeline.files.folders import Folder
from pipeline.files.locks import locking
from pipeline.files.requests import together

PUBLISH, PROMOTE, ROLLBACK = "publish", "promote", "rollback"
CANDIDATE, PRUNE = "candidate", "prune"
_MOVES = (PUBLISH, PROMOTE, ROLLBACK)
UNREADABLE = "(unreadable)"
"""Former content of CURRENT in the journal if it held no name."""
_FILE = "journal.jsonl"
_FOLDER = "journal"
_UNFINISHED = re.compile(rb'|\{(?:(?!"checksum").)*[^}]|\{|.*"checksum"(?:: ?\d*)?')
"""Pattern of a line that ends before its checksum does."""


@dataclass(frozen=True)
class Entry:
    """One line of the journal.

    Attributes
    ----------
    event : publish, promote or rollback, which move CURRENT; candidate, prune, which do not.
    version : what it happened to. previous : what CURRENT held before, or UNREADABLE; None: it was not there.
    at : when, in UTC. run_id : of the run that published. note : why, for people.
    """

    event: str
    version: str
    previous: str | None
    at: str
    run_id: str | None = None
    note: str | None = None


class Journal:
    """The journal of a table, in its folder."""

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
        """Add an entry, synced; only for one that has the table's lock."""
        at = datetime.now(UTC).isoformat(timespec="seconds")
        entry = {k: v for k, v in asdict(Entry(event, version, previous, at, run_id, note)).items() if v}
        line = f"{json.dumps(with_checksum({'previous': None, **entry}))}\n".encode()
        if self._folder.local:
            self._folder.append(_FILE, line)
            return
        numbers = [int(name.partition("-")[0]) for name in self._objects()]
        name = f"{max(numbers, default=0) + 1:06d}-{uuid.uuid4().hex[:8]}.json"
        self._folder.write(f"{_FOLDER}/{name}", line)

    def entries(self) -> list[Entry]:
        """All entries, oldest first; empty where there is no journal.

        Raises
        ------
        InputRejectedError
            One is damaged: nobody can tell any more what was taken back.
        """
        if self._folder.local:
            text = self._folder.read(_FILE) or b""
            lines = {f"line {number} of {_FILE}": line for number, line in enumerate(text.split(b"\n"), 1)}
        else:
            names = [f"{_FOLDER}/{name}" for name in self._objects()]
            found = together(lambda name: self._folder.read(name) or b"", names)
            lines = dict(zip(names, found, strict=True))
        # A killed run may have left half of a line, which took no effect.
        return [self._entry(name, line) for name, line in lines.items() if not _UNFINISHED.fullmatch(line)]

    def _entry(self, name: str, line: bytes) -> Entry:
        try:
            facts: Any = parse_checked(line)
            wanted = {key: facts.get(key) for key in Entry.__dataclass_fields__}
            if not all(isinstance(wanted[key], str) for key in ("event", "version", "at")):
                raise ValueError("it names no event, version and time")
            return Entry(**wanted)
        except (ValueError, AttributeError) as error:
            raise InputRejectedError(
                f"{self._folder}: expected the history of this table's versions, found {name} damaged ({error}): "
                "restore it from a backup, or remove it: nothing is published until then. If the line is that of "
                "a rollback, repeating the fit that it rolled back makes that version live again"
            ) from None

    def _objects(self) -> list[str]:
        return [name for name in (self._folder / _FOLDER).names() if name[:1].isdigit()]


def moves(entries: Sequence[Entry], now: str | None) -> list[Entry]:
    """The entries that made a version current, `now` being what CURRENT holds."""
    tried = [entry for entry in entries if entry.event in _MOVES]
    found = [*(entry.previous for entry in tried), now][1:]
    # Of what cannot be read it is assumed that it was as it should be.
    return [entry for entry, held in zip(tried, found, strict=False) if held in (entry.version, UNREADABLE)]


def trail(entries: Sequence[Entry], names: Sequence[str], now: str | None) -> list[str]:
    """The versions that a rollback goes back through: each was current before the next, the last one is current.

    Parameters
    ----------
    entries : of the journal, oldest first
    names : of all versions that could have been current, oldest first
    now : what CURRENT holds, or UNREADABLE; None: it is not there. Then the last is what it held, as far as is known
    """
    tried = [entry for entry in entries if entry.event in _MOVES]
    if now in (None, UNREADABLE):
        now = tried[-1].version if tried else None
    first = tried[0].previous if tried else now
    # Versions from before there was a journal, in the order of their numbers.
    written = {entry.version for entry in entries}
    way = [name for name in names if first is not None and name < first and name not in written]
    way += [first] if first is not None else []
    for entry in moves(entries, now):
        _reach(way, entry.previous)
        if entry.event == ROLLBACK:
            _go_back(way, entry.version)
        elif way[-1:] != [entry.version]:
            way.append(entry.version)
    _reach(way, now)
    return way


def _reach(way: list[str], name: str | None) -> None:
    """Be at a version: by hand, if nothing else says how."""
    if name is None or name == UNREADABLE or way[-1:] == [name]:
        return
    if name in way:
        _go_back(way, name)
    else:
        way.append(name)


def _go_back(way: list[str], name: str) -> None:
    del way[-1:]
    if name in way:
        del way[len(way) - way[::-1].index(name) :]
    else:
        way.append(name)


def taken_back(entries: Sequence[Entry], name: str, now: str | None) -> Entry | None:
    """The rollback that took a version back, if that is how it last ceased to be current."""
    left = [entry for entry in moves(entries, now) if entry.previous == name and entry.version != name]
    return left[-1] if left and left[-1].event == ROLLBACK else None


def was_current(entries: Sequence[Entry], name: str, now: str | None) -> bool:
    """Tell whether a version has ever been live."""
    return any(name in (entry.version, entry.previous) for entry in moves(entries, now))


DECISIONS = "days.json"
EXCLUDE, INCLUDE = "exclude", "include"


@dataclass(frozen=True)
class Decision:
    """Decision about a day.

    Attributes
    ----------
    decision : 'exclude' or 'include'
    reason : in a person's words
    at : when, ISO 8601
    tables : digests of the day's files (earlier: names of its tables); empty: the day was not there yet
    """

    decision: str
    reason: str
    at: str
    tables: tuple[str, ...] = ()

    def holds(self, digests: Collection[str]) -> bool:
        """Tell whether it applies to the day as it is now: to all of its files, whatever settings read them."""
        return not self.tables or set(self.tables) >= set(digests)


def read_decisions(folder: Folder) -> dict[str, Decision]:
    """Decisions of a table, by day such as 2026-01-31.

    Raises
    ------
    InputRejectedError
        The file holds something else.
    """
    try:
        found = parse_json(folder.read(DECISIONS) or b"{}")
        return {
            day: Decision(**{**own, "tables": tuple(own["tables"])}) for day, own in sorted(found.items())
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InputRejectedError(
            f"{folder}/{DECISIONS}: expected decisions on days as `logcal days` writes them, found something else: "
            "remove the file, and decide again"
        ) from None


def decide(
    folder: Folder, day: str, decision: str | None, reason: str, files: Collection[str]
) -> dict[str, Decision]:
    """Enter a decision, or with None take it back; return all of them.

    Parameters
    ----------
    folder : of the table
    day : such as 2026-01-31
    files : digests of the day's files
    """
    with locking(folder):
        decisions = read_decisions(folder)
        decisions.pop(day, None)
        if decision is not None:
            at = datetime.now(UTC).isoformat(timespec="seconds")
            decisions[day] = Decision(decision, reason, at, tuple(sorted(files)))
        content = {key: asdict(decisions[key]) for key in sorted(decisions)}
        folder.replace(DECISIONS, json.dumps(content, indent=1).encode())
    return decisions
