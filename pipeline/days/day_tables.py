"""Day tables: sorted runs of a log's days, kept in the store, so that a fit of a window sorts only new files.

    <store>/<table>/days/<day>-<digest>-<made>/     see `pipeline.days.day_files`

A day has one or several tables. Each holds the day's rows from some of the files that may have rows of the day; no
file is in two tables of a day. The digest identifies these files (names, sizes, modification) and the settings by which
rows are read. So a new file is sorted alone, and a changed or removed file invalidates only its own table. Sums in runs
are exact: with any grouping, a window's score table equals, to the last bit, that of its rows. The tables of a day are
merged into one when the day is closed (no later files are expected), or when there are many.

Only one process writes to a table's folder; day.json, written last, completes the table. Fits that use day tables hold
a shared lock; a fit that gets the exclusive lock removes outdated tables.
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

from logcal.errors import TemporaryError
from logcal.schema import FORMAT_VERSION
from pipeline.days.day_files import (
    FACTS,
    StoredDay,
    drop_unused_files,
    finish_day,
    merge_tables,
    read_day,
)
from pipeline.days.window_runs import add_days, add_up_day
from pipeline.execution import Graph
from pipeline.files.blobs import each, receipts_in
from pipeline.files.folders import Folder
from pipeline.files.locks import LOCKS, locking
from pipeline.log.log_files import FileId
from pipeline.log.windows import Window, day_number, day_of, parse_day
from pipeline.sort.run_files import row_width
from pipeline.sort.runs import RunReceipt, steps_per_unit
from pipeline.sort.score_table import SortPlan
from pipeline.table.published import PublishedTable

Settings = dict[str, Any]

_GRID_BYTES = 48 << 20
"""Bytes of a merged run on a score grid, where rows are ties; a day then has few runs, however many its rows."""

MOST_PARTS = 64
"""Most tables of an open day; more are merged."""

_NAME = re.compile(r"(\d{4}-\d\d-\d\d)-([0-9a-f]{16})(-[0-9a-f]{8})?")


@dataclass(frozen=True)
class DayTable:
    """A table of a day of a window.

    Attributes
    ----------
    name : name of its folder. rows_sorted : number of its rows that this fit has sorted; 0 for an earlier fit's table
    """

    day: int
    name: str
    rows_sorted: int
    stored: StoredDay

    @property
    def content(self) -> str:
        """Day and digest of its files: the folder's name without the writer's random suffix."""
        match = _NAME.fullmatch(self.name)
        assert match is not None
        return f"{match[1]}-{match[2]}"

    @property
    def receipt(self) -> RunReceipt:
        """Receipt of its runs, rows and bad rows."""
        return self.stored.receipt


def tables_by_day(tables: Iterable[DayTable]) -> dict[int, list[DayTable]]:
    """Return the tables of each day, in the order of days and names."""
    ordered = sorted(tables, key=lambda table: (table.day, table.name))
    return {day: list(parts) for day, parts in groupby(ordered, lambda table: table.day)}


class Cover(NamedTuple):
    """Existing tables of a day, by name, and the files that still must be sorted."""

    tables: dict[str, StoredDay]
    missing: frozenset[FileId]


class DayTables:
    """The day tables of a published table.

    Parameters
    ----------
    store : the published table
    settings : all settings that determine a row's day, score and validity; JSON values
    """

    def __init__(self, store: PublishedTable, settings: Settings) -> None:
        self.folder = store.folder / "days"
        self.settings = settings

    def covers(self, window: Window) -> dict[int, Cover]:
        """Find the tables of each day, and the files that no table covers."""
        wanted = files_of_days(window)
        names: dict[int, list[str]] = {}
        for name in self.folder.names():
            day = _day_of(name)
            if day is not None and day in wanted:
                names.setdefault(day, []).append(name)
        tables = self._read([name for day_names in names.values() for name in day_names])
        of_day = {day: {name: tables[name] for name in names.get(day, ())} for day in wanted}
        return {day: self._cover(of_day[day], wanted[day], self._identity(window, day)) for day in wanted}

    def _identity(self, window: Window, day: int) -> Settings:
        """Return the settings that a day's tables depend on, with the time zone and the files of joined labels."""
        labels, limits = window.log.columns.labels, window.limits_of(day)
        optional = {} if limits is None else {"limits": limits}
        optional |= {} if labels is None else labels.identity(day)
        return self.settings | window.log.columns.calendar.facts | optional

    def _read(self, names: Sequence[str]) -> dict[str, StoredDay | None]:
        folder = str(self.folder)
        return dict(zip(names, each(read_day, [f"{folder}/{name}" for name in names], folder), strict=True))

    def _cover(self, tables: dict[str, StoredDay | None], files: set[FileId], settings: Settings) -> Cover:
        """Choose valid tables of wanted files only, without overlap, larger ones first."""
        candidates = [
            (name, stored)
            for name, stored in tables.items()
            if stored is not None and stored.files <= files and _digest(stored.files, settings) in name
        ]
        chosen: dict[str, StoredDay] = {}
        missing = set(files)
        for name, stored in sorted(candidates, key=lambda item: (-len(item[1].files), item[0])):
            if stored.files <= missing:
                chosen[name] = stored
                missing -= stored.files
        return Cover(chosen, frozenset(missing))

    def _folder(self, window: Window, day: int, files: frozenset[FileId]) -> str:
        """Return a new, unique folder for a table."""
        digest = _digest(files, self._identity(window, day))
        return f"{self.folder}/{day_of(day)}-{digest}-{uuid.uuid4().hex[:8]}"

    def find(self, window: Window) -> list[DayTable] | None:
        """Return a window's day tables if they cover all its files; otherwise None. Call it within `in_use`."""
        covers = self.covers(window)
        if not covers or any(cover.missing for cover in covers.values()):
            return None
        return [table for day, cover in covers.items() for table in _reused(day, cover)]

    def unsorted(self, window: Window) -> dict[int, frozenset[FileId]]:
        """Return the files that a fit would sort, by day, as of now."""
        return {day: cover.missing for day, cover in self.covers(window).items() if cover.missing}

    def add(self, graph: Graph, window: Window, plan: SortPlan) -> list[Any]:
        """Add tasks that make a window's missing tables: `sort-i -> days-k -> kept`. Call it within `in_use`.

        Tasks `close-k` merge the tables of closed days and of days with too many. Returns references to all of the
        window's tables.
        """
        covers = self.covers(window)
        files = {day: cover.missing for day, cover in covers.items() if cover.missing}
        folders = {day: self._folder(window, day, files[day]) for day in files}
        run_bytes = plan.run_rows * row_width(weighted=False)
        if steps_per_unit(plan.grid) is not None:
            run_bytes = max(run_bytes, _GRID_BYTES)
        parts = add_days(graph, window, files, folders, plan)
        tasks = [(folders[day], day, parts[day], sorted(files[day]), run_bytes) for day in files]
        receipts = receipts_in(plan.scratch)
        new = dict(zip(files, graph.layer("days", _finish_day, tasks, receipts=receipts), strict=True))
        tables_by_day = {day: _reused(day, cover) for day, cover in covers.items()}
        closing = []
        for day, tables in tables_by_day.items():
            count = len(tables) + (day in new)
            if count > MOST_PARTS or (count > 1 and day < max(covers) - 1):
                all_files = frozenset().union(files.get(day, ()), *(table.stored.files for table in tables))
                folder = self._folder(window, day, all_files)
                closing.append((folder, day, tables, new.pop(day, None), sorted(all_files), run_bytes))
        new_tables = [*new.values(), *graph.layer("close", _close_day, closing, receipts=receipts)]
        if new_tables:
            finished = graph.task("kept", _finish_tables, str(self.folder), new_tables)
            new_tables = graph.entries("made", finished, len(new_tables))
        closed = {day for _, day, *_ in closing}
        reused = [(table,) for day, tables in tables_by_day.items() if day not in closed for table in tables]
        return [*graph.layer("there", pass_table, reused, shown=False), *new_tables]

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Hold the shared lock while day tables are searched, made and read, so that nobody removes any."""
        with locking(self.folder, shared=True):
            yield

    def tidy(self, window: Window, tables: Sequence[DayTable]) -> int:
        """Remove tables of days before the window, outdated tables of its days, and incomplete tables.

        Tables of later days stay. Nothing is removed while another fit uses the folder; the next fit does it then.
        Returns the number of removed folders.
        """
        used = {table.name for table in tables}
        try:
            with locking(self.folder, patience=0) as lock:
                names = [name for name in self.folder.names() if lock.sure and name not in {LOCKS, *used}]
                unused = [name for name in names if self._is_old(name, window)]
                for name in unused:
                    self.folder.remove(name)
        except TemporaryError:
            return 0
        return len(unused)

    def _is_old(self, name: str, window: Window) -> bool:
        day = _day_of(name)
        if day is None:
            # Left by a process that was killed while it removed tables.
            return name.endswith("-removed") or name.startswith(".staging-")
        return day <= window.last or (self.folder / name).read(FACTS) is None


def _reused(day: int, cover: Cover) -> list[DayTable]:
    return [DayTable(day, name, 0, stored) for name, stored in sorted(cover.tables.items())]


def _digest(files: frozenset[FileId], settings: Settings) -> str:
    content = {"format_version": FORMAT_VERSION, "settings": settings, "files": sorted(files)}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def files_of_days(window: Window) -> dict[int, set[FileId]]:
    """Return the files that may hold rows of each day of a window, in order; days without files are left out."""
    wanted: dict[int, set[FileId]] = {}
    for file, groups in window.files:
        for day in {day for group in groups for day in range(group.first, group.last + 1)}:
            if window.first <= day <= window.last:
                wanted.setdefault(day, set()).add(file.identity)
    return dict(sorted(wanted.items()))


def add_scratch_days(
    graph: Graph, window: Window, plan: SortPlan, only: frozenset[int] | None = None
) -> list[Any]:
    """Add tasks that sort a window's days into scratch space: `sort-i -> days-k`; see `DayTables.add`.

    Each day has a folder in the plan's scratch space, named like its table.

    only : days to sort; None: all
    """
    wanted = files_of_days(window).items()
    files = {day: frozenset(day_files) for day, day_files in wanted if only is None or day in only}
    names = {day: f"day-{day_of(day)}" for day in files}
    folders = {day: f"{plan.scratch}/{name}" for day, name in names.items()}
    parts = add_days(graph, window, files, folders, plan)
    return graph.layer("days", _scratch_day, [(names[day], day, parts[day]) for day in files], shown=False)


def _scratch_day(name: str, day: int, parts: list[dict[int, RunReceipt]]) -> DayTable:
    receipt = add_up_day(day, parts)
    return DayTable(day, name, receipt.rows, StoredDay(frozenset(), receipt))


def _finish_day(
    folder: str,
    day: int,
    parts: list[dict[int, RunReceipt]],
    files: list[FileId],
    run_bytes: int,
) -> DayTable:
    """Make a day table from the results of sort tasks."""
    stored = finish_day(folder, add_up_day(day, parts), files, run_bytes)
    return DayTable(day, folder.rpartition("/")[2], stored.receipt.rows, stored)


def _close_day(
    folder: str,
    day: int,
    old: list[DayTable],
    new: DayTable | None,
    files: list[FileId],
    run_bytes: int,
) -> DayTable:
    """Merge the tables of a day into one."""
    Folder.at(folder).make()
    parent, _, name = folder.rpartition("/")
    tables = sorted([*old, *([] if new is None else [new])], key=lambda table: table.name)
    parts = [(f"{parent}/{table.name}", table.receipt) for table in tables]
    stored = merge_tables(folder, parts, files, run_bytes)
    return DayTable(day, name, 0 if new is None else new.rows_sorted, stored)


def _finish_tables(folder: str, tables: list[DayTable]) -> list[DayTable]:
    """Remove the unused files of new tables and sync their folder; return the tables."""
    each(drop_unused_files, [f"{folder}/{table.name}" for table in tables], folder)
    Folder.at(folder).sync()
    return tables


def pass_table(table: DayTable) -> DayTable:
    """Return an existing table, as a task."""
    return table


def _day_of(name: str) -> int | None:
    match = _NAME.fullmatch(name)
    day = parse_day(match[1]) if match else None
    return None if day is None else day_number(day)
