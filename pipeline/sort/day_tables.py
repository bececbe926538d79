"""Day tables: a log's days as sorted runs, kept in the store, so that a window is fitted without sorting it again.

    <store>/<table>/days/<day>-<digest>-<made>/     see `pipeline.sort.day_files`

A day has one table or several. Each holds the rows of some of the files that may have rows of the day; no file is in
two. The digest identifies these files (paths, sizes, modification) and the settings by which rows are read. So a new
file is sorted alone, and a changed or removed file invalidates only its own table. Sums in runs are exact: with any
grouping, a window's score table equals, to the last bit, that of its rows. Several tables of a day are merged into one
once no files of later days can follow, or once there are many.

Only one process writes to a table's folder; its facts, written last, make it a table. Fits that use the days hold a
shared lock; a fit with the exclusive lock removes what is outdated.
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from logcal.errors import TemporaryError
from pipeline.execution import Graph
from pipeline.files.blobs import each, receipts_in
from pipeline.files.folders import Folder
from pipeline.files.locks import LOCKS, locking
from pipeline.log.windows import Window, day_number, day_of, parse_day
from pipeline.sort.day_files import (
    FACTS,
    FileId,
    Kept,
    drop_unused,
    finish_day,
    merge_tables,
    read_day,
)
from pipeline.sort.run_files import row_width
from pipeline.sort.runs import RunReceipt, steps_per_unit
from pipeline.sort.score_table import SortPlan
from pipeline.sort.window_runs import add_days, add_up_day
from pipeline.table.published import PublishedTable

FORMAT = 8
_GRID_BYTES = 48 << 20
"""Bytes of a run on a score grid, where rows are ties: so a day of any number of rows has few runs."""

MOST_PARTS = 64
"""Tables of an open day; more are merged."""

_NAME = re.compile(r"(\d{4}-\d\d-\d\d)-([0-9a-f]{16})(-[0-9a-f]{8})?")


@dataclass(frozen=True)
class DayTable:
    """A table of a day of a window.

    Attributes
    ----------
    name : of its folder. rows_sorted : of its rows, those that this fit has read and sorted, not an earlier one.
    """

    day: int
    name: str
    rows_sorted: int
    kept: Kept

    @property
    def content(self) -> str:
        """Its day and the digest of its files: the folder's name without the part that tells writers apart."""
        match = _NAME.fullmatch(self.name)
        assert match is not None
        return f"{match[1]}-{match[2]}"

    @property
    def receipt(self) -> RunReceipt:
        """Its runs, rows and bad rows."""
        return self.kept.receipt


class Cover(NamedTuple):
    """A day's files: those of tables that are there, by name, and those that are to be sorted."""

    there: dict[str, Kept]
    missing: frozenset[FileId]


class DayTables:
    """The day tables of a published table.

    Parameters
    ----------
    store : where the table is published
    settings : what the day of a row, its score, and whether it can be used, depend on; JSON values
    """

    def __init__(self, store: PublishedTable, settings: dict[str, Any]) -> None:
        self.folder = store.folder / "days"
        self.settings = settings

    def covers(self, window: Window) -> dict[int, Cover]:
        """Divide the files of each day into those that tables cover and the others."""
        wanted = files_of_days(window)
        names: dict[int, list[str]] = {}
        for name in self.folder.names():
            dated = _day_of(name)
            if dated is not None and dated in wanted:
                names.setdefault(dated, []).append(name)
        found = self._read([name for own in names.values() for name in own])
        return {
            day: self._cover({name: found[name] for name in names.get(day, ())}, files, self._of(window, day))
            for day, files in wanted.items()
        }

    def _of(self, window: Window, day: int) -> dict[str, Any]:
        """Return the identity of a day's tables beside their files: the files of joined labels as well."""
        labels = window.log.columns.labels
        return self.settings if labels is None else {**self.settings, **labels.identity(day)}

    def _read(self, names: Sequence[str]) -> dict[str, Kept | None]:
        folder = str(self.folder)
        return dict(zip(names, each(read_day, [f"{folder}/{name}" for name in names], folder), strict=True))

    def _cover(self, tables: dict[str, Kept | None], wanted: set[FileId], settings: dict[str, Any]) -> Cover:
        """Tables of none but wanted files, no two of one file; larger ones first."""
        found = [
            (name, kept)
            for name, kept in tables.items()
            if kept is not None and kept.files <= wanted and _digest(kept.files, settings) in name
        ]
        there: dict[str, Kept] = {}
        missing = set(wanted)
        for name, kept in sorted(found, key=lambda item: (-len(item[1].files), item[0])):
            if kept.files <= missing:
                there[name] = kept
                missing -= kept.files
        return Cover(there, frozenset(missing))

    def _folder(self, window: Window, day: int, files: frozenset[FileId]) -> str:
        """Name a table that is to be made: no other has the name."""
        digest = _digest(files, self._of(window, day))
        return f"{self.folder}/{day_of(day)}-{digest}-{uuid.uuid4().hex[:8]}"

    def there(self, window: Window) -> list[DayTable] | None:
        """A window's day tables, where all of its rows are in some already; otherwise None. Call it `in_use`."""
        covers = self.covers(window)
        if not covers or any(cover.missing for cover in covers.values()):
            return None
        return [
            DayTable(day, name, 0, kept)
            for day, cover in covers.items()
            for name, kept in sorted(cover.there.items())
        ]

    def unsorted(self, window: Window) -> dict[int, frozenset[FileId]]:
        """The days whose rows a fit would sort, each with the files to read, as far as can be seen now."""
        return {day: cover.missing for day, cover in self.covers(window).items() if cover.missing}

    def add(self, graph: Graph, window: Window, plan: SortPlan) -> list[Any]:
        """Add to a graph what makes the tables that a window lacks: `sort-i -> days-k -> kept`. Call it `in_use`.

        The tables of days that are closed, and of those that have too many, are merged: `close-k`. Returns references
        to all of the window's tables.
        """
        covers = self.covers(window)
        files = {day: cover.missing for day, cover in covers.items() if cover.missing}
        folders = {day: self._folder(window, day, own) for day, own in files.items()}
        run_bytes = plan.run_rows * row_width(weighted=False, segmented=bool(window.log.columns.segments))
        if steps_per_unit(plan.grid) is not None:
            run_bytes = max(run_bytes, _GRID_BYTES)
        parts = add_days(graph, window, files, folders, plan)
        tasks = [(folders[day], day, parts[day], sorted(own), run_bytes) for day, own in files.items()]
        receipts = receipts_in(plan.scratch)
        new = dict(zip(files, graph.layer("days", _finish_day, tasks, receipts=receipts), strict=True))
        there = {
            day: [DayTable(day, name, 0, kept) for name, kept in sorted(cover.there.items())]
            for day, cover in covers.items()
        }
        closing = []
        for day, tables in there.items():
            count = len(tables) + (day in new)
            if count > MOST_PARTS or (count > 1 and day < max(covers) - 1):
                every = frozenset().union(files.get(day, ()), *(table.kept.files for table in tables))
                folder = self._folder(window, day, every)
                closing.append((folder, day, tables, new.pop(day, None), sorted(every), run_bytes))
        made = [*new.values(), *graph.layer("close", _close_day, closing, receipts=receipts)]
        if made:
            made = graph.entries("made", graph.task("kept", _settled, str(self.folder), made), len(made))
        closed = {day for _, day, *_ in closing}
        old = [(table,) for day, tables in there.items() if day not in closed for table in tables]
        return [*graph.layer("there", itself, old, shown=False), *made]

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """While day tables are looked for, made and read: nobody removes any."""
        with locking(self.folder, shared=True):
            yield

    def tidy(self, window: Window, tables: Sequence[DayTable]) -> int:
        """Remove day tables before the window, those of its days that are out of date, and what is no table.

        Later days stay. Nothing is removed while another fit uses the folder: the next fit does it. Returns the number
        removed.
        """
        used = {table.name for table in tables}
        try:
            with locking(self.folder, patience=0) as lock:
                names = [name for name in self.folder.names() if lock.sure and name not in {LOCKS, *used}]
                old = [name for name in names if self._is_old(name, window)]
                for name in old:
                    self.folder.remove(name)
        except TemporaryError:
            return 0
        return len(old)

    def _is_old(self, name: str, window: Window) -> bool:
        day = _day_of(name)
        if day is None:
            # Left by a process that was killed while it tidied, now or in an earlier version.
            return name.endswith("-removed") or name.startswith(".staging-")
        return day <= window.last or (self.folder / name).read(FACTS) is None


def _digest(files: frozenset[FileId], settings: dict[str, Any]) -> str:
    content = {"format": FORMAT, "settings": settings, "files": sorted(files)}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def files_of_days(window: Window) -> dict[int, set[FileId]]:
    """The files that may hold rows of each day of a window, of the days that have any; in order."""
    wanted: dict[int, set[FileId]] = {}
    for file, groups in window.files:
        for day in {day for group in groups for day in range(group.first, group.last + 1)}:
            if window.first <= day <= window.last:
                wanted.setdefault(day, set()).add((file.path, file.size, file.stamp))
    return dict(sorted(wanted.items()))


def add_scratch_days(
    graph: Graph, window: Window, plan: SortPlan, only: frozenset[int] | None = None
) -> list[Any]:
    """Add tasks that sort a window's days without keeping them: `sort-i -> days-k`; see `DayTables.add`.

    Each day has a folder of its own in the plan's scratch space, which is named as its table is.

    only : days that are sorted; None: all
    """
    wanted = files_of_days(window).items()
    files = {day: frozenset(own) for day, own in wanted if only is None or day in only}
    names = {day: f"day-{day_of(day)}" for day in files}
    folders = {day: f"{plan.scratch}/{name}" for day, name in names.items()}
    parts = add_days(graph, window, files, folders, plan)
    return graph.layer("days", _day_in_scratch, [(names[day], day, parts[day]) for day in files], shown=False)


def _day_in_scratch(name: str, day: int, parts: list[dict[int, RunReceipt]]) -> DayTable:
    receipt = add_up_day(day, parts)
    return DayTable(day, name, receipt.rows, Kept(frozenset(), receipt))


def _finish_day(
    folder: str,
    day: int,
    parts: list[dict[int, RunReceipt]],
    files: list[FileId],
    run_bytes: int,
) -> DayTable:
    """Make a day table of what sort tasks left."""
    kept = finish_day(folder, add_up_day(day, parts), files, run_bytes)
    return DayTable(day, folder.rpartition("/")[2], kept.receipt.rows, kept)


def _close_day(
    folder: str,
    day: int,
    there: list[DayTable],
    new: DayTable | None,
    files: list[FileId],
    run_bytes: int,
) -> DayTable:
    """Make one day table of several of a day."""
    Folder.at(folder).make()
    parent, _, name = folder.rpartition("/")
    every = sorted([*there, *([] if new is None else [new])], key=lambda table: table.name)
    parts = [(f"{parent}/{table.name}", table.receipt) for table in every]
    kept = merge_tables(folder, parts, files, run_bytes)
    return DayTable(day, name, 0 if new is None else new.rows_sorted, kept)


def _settled(folder: str, tables: list[DayTable]) -> list[DayTable]:
    """Tables that have been made, without what is left over, and sure to be found again."""
    each(drop_unused, [f"{folder}/{table.name}" for table in tables], folder)
    Folder.at(folder).sync()
    return tables


def itself(table: DayTable) -> DayTable:
    """Return a table that is there, as a task."""
    return table


def _day_of(name: str) -> int | None:
    match = _NAME.fullmatch(name)
    day = parse_day(match[1]) if match else None
    return None if day is None else day_number(day)
