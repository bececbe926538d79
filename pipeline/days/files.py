"""Files of a log by day, as a listing and the footers of new files tell.

The day of a file is known from its hive folder. Otherwise the footer tells the days of its rows; the store remembers
them, so that each footer is read once, and known files of excluded days are not opened.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from logcal.errors import FileChangedError, InputRejectedError
from logcal.storage import with_checksum
from pipeline.days.day_files import file_digests
from pipeline.days.records import digest_of
from pipeline.files.folders import Folder
from pipeline.log import folder_tree
from pipeline.log.calendars import UTC, Calendar
from pipeline.log.log_files import FileListing, LogFile, checked_footer, find_files, is_being_written
from pipeline.log.logs import Columns, check_columns, read_footers
from pipeline.log.windows import (
    UNPLACED,
    check_zoned,
    date_file,
    day_limits,
    day_number,
    hive_day,
    parse_day,
)
from pipeline.table.journal import FILE, Decision

_REMEMBERED = "day-files.json"
"""File in a table's folder with the days of the log's files, for logs whose days are in a column."""

Schemas = Sequence[tuple[str, pa.Schema]]
"""Relative path and schema of files, with the columns of their hive folders."""


@dataclass(frozen=True)
class DayFiles:
    """Files of a day.

    Attributes
    ----------
    day : days since 1970-01-01
    files : files that may hold rows of the day
    marked : whether the day's folder has the file that marks it as complete
    rows : number of rows of the files; None: footers have not been read
    labelled : rows with a label; None: unknown
    fault : the reason why the files cannot be used; None: there is none, or footers have not been read
    changing : whether a file is being written: it changed while it was read, has no footer yet, or is being copied
    zone : time zone of the day
    """

    day: int
    files: tuple[LogFile, ...] = ()
    marked: bool = False
    rows: int | None = None
    labelled: int | None = None
    fault: str | None = None
    changing: bool = False
    zone: str = UTC

    @property
    def digest(self) -> str:
        """Digest of the files; '' without files."""
        return digest_of(self.files, self.zone)


@dataclass(frozen=True)
class LogDays:
    """Days of a log.

    Attributes
    ----------
    filesystem : file system of the files
    days : days with files, or with a marker
    spans : first and last day of each file, by relative path
    unplaced : files whose days cannot be told, by relative path, with the reason. The days between their neighbours in
        the listing, or the newest day, count as changing
    excluded : files that a person excluded, by relative path, with the reason
    zone : time zone of the days
    """

    filesystem: Any = None
    days: Mapping[int, DayFiles] = field(default_factory=dict)
    spans: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    unplaced: Mapping[str, str] = field(default_factory=dict)
    excluded: Mapping[str, str] = field(default_factory=dict)
    zone: str = UTC

    @classmethod
    def of_spans(
        cls,
        files: Sequence[LogFile],
        spans: Mapping[str, tuple[int, int]],
        marked: Collection[int] = (),
        zone: str = UTC,
        **more: Any,
    ) -> LogDays:
        """Return the days of listed files. spans : first and last day of each file; marked : days with a marker."""
        by_day: dict[int, list[LogFile]] = {}
        for file in files:
            first, last = spans.get(file.relative, (0, -1))
            for day in range(first, last + 1):
                by_day.setdefault(day, []).append(file)
        numbers = {*marked, *by_day}
        days = {day: DayFiles(day, tuple(by_day.get(day, ())), day in marked, zone=zone) for day in numbers}
        return cls(days=days, spans=spans, zone=zone, **more)

    def of(self, day: int) -> DayFiles:
        """Return the files of a day, which may have none."""
        return self.days.get(day) or DayFiles(day, zone=self.zone)

    def names(self, days: Iterable[int]) -> set[str]:
        """Return the relative paths of the files that hold rows of these days only."""
        left_out = set(days)
        return {
            name
            for name, (first, last) in self.spans.items()
            if last - first < len(left_out) and left_out.issuperset(range(first, last + 1))
        }

    def not_scored_with(self, day: int, is_open: Callable[[int], bool]) -> set[str]:
        """Return the relative paths of the day's files that are scored with an earlier day, so that no row is twice.

        A file with rows of several days is scored with the first of them that is open, since it is complete then.

        is_open : whether a day is scored
        """
        names = {file.relative for file in self.of(day).files}
        return {name for name in names if any(map(is_open, range(self.spans[name][0], day)))}

    def inspected(self, days: Iterable[int], columns: Columns, reference: Schemas = ()) -> LogDays:
        """Read the footers of the files of some days, and add the rows, labelled rows and faults of each day.

        reference : files whose columns must have the same types; empty: those of the most days
        """
        chosen = [self.of(day) for day in sorted(set(days)) if self.of(day).files]
        read = {entry.day: read_footers(self.filesystem, entry.files) for entry in chosen}
        schemas = {
            day: [(f.relative, folder_tree.with_keys(s, f.path, columns.folders)) for f, s in good]
            for day, (good, _) in read.items()
        }
        if not reference:
            reference = _usual(schemas.values(), columns)
        found = dict(self.days)
        for entry in chosen:
            good, unreadable = read[entry.day]
            changing = entry.changing or any(isinstance(error, FileChangedError) for error in unreadable)
            problems = [*map(str, unreadable), *check_columns(schemas[entry.day], columns)[1]]
            if not problems and reference:
                problems = check_columns([*reference, *schemas[entry.day]], columns)[1]
            rows = sum(file.rows for file, _ in good)
            fault = "; ".join(problems) if problems and not changing else None
            labelled = None if problems else self._labelled([file for file, _ in good], columns)
            found[entry.day] = replace(entry, rows=rows, labelled=labelled, fault=fault, changing=changing)
        return replace(self, days=found)

    def _labelled(self, files: Sequence[LogFile], columns: Columns) -> int | None:
        """Count the rows with a label by the nulls in footers; None if these are unknown, or labels are elsewhere."""
        if columns.label is None or columns.labels is not None:
            return None
        total = 0
        for file in files:
            try:
                chunks = checked_footer(self.filesystem, file).chunks(columns.label)
            except InputRejectedError:
                return None
            counts = [chunk.statistics for chunk in chunks]
            if any(statistics is None or not statistics.has_null_count for statistics in counts):
                return None
            total += file.rows - sum(statistics.null_count for statistics in counts)
        return total


def _usual(schemas: Iterable[Schemas], columns: Columns) -> Schemas:
    """Return a file of the types that most days have; nothing if no day has all columns."""
    by_types: dict[str, list[tuple[str, pa.Schema]]] = {}
    for of_day in schemas:
        types, problems = check_columns(of_day, columns)
        if not problems and of_day:
            by_types.setdefault(json.dumps(types), []).append(of_day[0])
    return max(by_types.values(), key=len, default=[])[:1]


def list_days(
    paths: str | Sequence[str],
    column: str,
    calendar: Calendar,
    marker: str | None = None,
    folder: Folder | None = None,
    decisions: Mapping[str, Decision] | None = None,
) -> LogDays:
    """List a log's files by day. Reads footers of new files only where no hive folder tells the day.

    Parameters
    ----------
    paths, column : see `open_window`
    calendar : days that rows may have
    marker : name of the file that marks a day's folder as complete
    folder : folder of the table that remembers the days of files; None: nothing is remembered
    decisions : decisions of persons on days and files; excluded files are not opened

    Raises
    ------
    InputRejectedError
        See `find_files`.
    ConfigError
        See `choose_window`.
    """
    listing, zone = find_files(paths), calendar.zone
    excluded = excluded_files(listing.files, decisions or {})
    listing = replace(listing, files=tuple(file for file in listing.files if file.relative not in excluded))
    known = known_spans(folder, listing.files, column, zone)
    new = [file for file in listing.files if file.relative not in known]
    found, unplaced = _read_spans(listing.filesystem, new, column, calendar, first=not known)
    spans = known | found
    if folder is not None and found:
        undated = [f for f in listing.files if _hive_day(f, column, zone) is None and f.relative in spans]
        content = {_key(file, zone): spans[file.relative] for file in undated}
        folder.write(_REMEMBERED, json.dumps(with_checksum({"files": content})).encode())
    marked = set()
    for name in listing.skipped if marker else ():
        value = folder_tree.hive_value(name, column) if name.rpartition("/")[2] == marker else None
        marked_day = parse_day(value or "")
        if marked_day is not None:
            marked.add(day_number(marked_day))
    log = LogDays.of_spans(
        listing.files,
        spans,
        marked,
        zone,
        filesystem=listing.filesystem,
        unplaced=unplaced,
        excluded=excluded,
    )
    log = _with_unplaced(log, [file.relative for file in listing.files])
    return _with_copies(log, listing, column)


def excluded_files(files: Sequence[LogFile], decisions: Mapping[str, Decision]) -> dict[str, str]:
    """Return the files that a person excluded and that have not changed since, by relative path, with the reason."""
    found = {file.relative: (file, decisions.get(f"{FILE}{file.relative}")) for file in files}
    return {
        name: decision.reason
        for name, (file, decision) in found.items()
        if decision is not None and decision.holds(file_digests([file.identity]))
    }


def _with_unplaced(log: LogDays, names: Sequence[str]) -> LogDays:
    """Mark the days that files whose days cannot be told may belong to: those between their neighbours, or the newest.

    names : relative paths of all files, in their order
    """
    days, newest = dict(log.days), max(log.days, default=None)
    for i, name in enumerate(names):
        if name not in log.unplaced or newest is None:
            continue
        before = next((log.spans[other][1] for other in reversed(names[:i]) if other in log.spans), None)
        after = next((log.spans[other][0] for other in names[i:] if other in log.spans), newest)
        # Names whose order is not that of the days tell nothing.
        first = newest if before is None or before > after else before
        for day in range(first, max(first, after) + 1):
            days[day] = replace(days.get(day) or log.of(day), changing=True)
    return replace(log, days=days)


def _with_copies(log: LogDays, listing: FileListing, column: str) -> LogDays:
    """Mark the days that files are being copied to, as the names of temporary files in their folders tell."""
    days = dict(log.days)
    for name in listing.skipped:
        day = hive_day(name, column) if name.rstrip("/").endswith(folder_tree.TEMPORARY) else None
        if day is not None and is_being_written(listing.filesystem, f"{listing.root.rstrip('/')}/{name}"):
            days[day] = replace(log.of(day), changing=True)
    return replace(log, days=days)


def _key(file: LogFile, zone: str) -> str:
    return json.dumps(file.identity if zone == UTC else [*file.identity, zone])


def _hive_day(file: LogFile, column: str, zone: str) -> int | None:
    return hive_day(file.path, column) if zone == UTC else None


def known_spans(
    folder: Folder | None, files: Sequence[LogFile], column: str, zone: str
) -> dict[str, tuple[int, int]]:
    """Return the first and last day of files whose days hive folders tell or the store remembers, by relative path.

    folder : folder of the table that remembers the days of files; None: nothing is remembered
    """
    days = {file.relative: _hive_day(file, column, zone) for file in files}
    spans = {name: (day, day) for name, day in days.items() if day is not None}
    if folder is not None and len(spans) < len(days):
        content = (folder.read_json(_REMEMBERED) or {}).get("files", {})
        undated = (file for file in files if file.relative not in spans)
        spans |= {f.relative: tuple(content[key]) for f in undated if (key := _key(f, zone)) in content}
    return spans


def _read_spans(
    filesystem: Any, files: Sequence[LogFile], column: str, calendar: Calendar, *, first: bool
) -> tuple[dict[str, tuple[int, int]], dict[str, str]]:
    """Return the first and the last day of each file with rows, and the problems of files whose days cannot be told.

    first : whether no other file's days are known
    """
    spans, problems, limits = {}, {}, day_limits(calendar)
    readable, unreadable = read_footers(filesystem, files)
    if first:
        check_zoned(filesystem, [file for file, _ in readable], column, calendar.zone)
    by_path = {file.path: file for file in files}
    for error in unreadable:
        path = next((path for path in by_path if str(error).startswith(f"{path}: ")), None)
        problems[by_path[path].relative if path else str(error)] = str(error)
    for file, _ in readable:
        dated = date_file(filesystem, file, column, limits, calendar.zone)
        if isinstance(dated, str):
            problems[file.relative] = dated
        elif any(group.first == UNPLACED for group in dated.groups):
            problems[file.relative] = (
                f"{file.path}: expected possible days in {column} ($[newest]), found none"
            )
        elif dated.groups:
            spans[file.relative] = (min(g.first for g in dated.groups), max(g.last for g in dated.groups))
    return spans, problems
