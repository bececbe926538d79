"""Day tables: a log's days as sorted runs, kept in the store, so that a window is fitted without sorting it anew.

    <store>/<table>/days/<day>-<digest>-<made>/     see `pipeline.sort.day_files`

A day has one table or several: each is of some of the files that may hold rows of the day, and no two of one file.
The digest is of these files (paths, sizes, modification) and of the settings that rows are read by. So a file that is
new is sorted by itself, and one that was changed or removed takes the table with it that it is in, and no other. Sums
in runs are exact: whatever the grouping, the table of a window is, to the last bit, that of its rows. The tables of a
day that no later day's files follow any more, or that has become many, are merged into one.

A table is made in a folder that has no other maker, and is one once its facts are there, which are written last. Fits
that use the days share them; they are tidied by one that has them alone.
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
from pipeline.execution import Executor, Graph
from pipeline.files.blobs import each, receipts_in
from pipeline.files.folders import Folder
from pipeline.files.turns import LOCKS, taking_turns
from pipeline.log.quarantine import BAD_PARTS
from pipeline.log.score_grid import steps_per_unit
from pipeline.log.windows import Window, day_number, day_of, parse_day
from pipeline.sort.day_counts import Counts, add_counts, cluster
from pipeline.sort.day_files import FACTS, FileId, Kept, drop_unused, finish_day, merge_tables, read_day
from pipeline.sort.runs import RunReceipt
from pipeline.sort.score_table import SortPlan, add_up
from pipeline.sort.window_runs import add_days, add_up_day, check_window
from pipeline.table.published import PublishedTable

FORMAT = 5
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

    @property
    def counts(self) -> Counts | None:
        """Instead of runs."""
        return self.kept.counts


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
        """What there is of each day that has files, and what there is not."""
        wanted: dict[int, set[FileId]] = {}
        for file, groups in window.files:
            for day in {day for group in groups for day in range(group.first, group.last + 1)}:
                if window.first <= day <= window.last:
                    wanted.setdefault(day, set()).add((file.path, file.size, file.stamp))
        names: dict[int, list[str]] = {}
        for name in self.folder.names():
            dated = _day_of(name)
            if dated is not None and dated in wanted:
                names.setdefault(dated, []).append(name)
        found = self._read([name for own in names.values() for name in own])
        return {
            day: self._cover({name: found[name] for name in names.get(day, ())}, files)
            for day, files in sorted(wanted.items())
        }

    def _read(self, names: Sequence[str]) -> dict[str, Kept | None]:
        folder = str(self.folder)
        return dict(zip(names, each(read_day, [f"{folder}/{name}" for name in names], folder), strict=True))

    def _cover(self, tables: dict[str, Kept | None], wanted: set[FileId]) -> Cover:
        """Tables of none but wanted files, no two of one file; larger ones first."""
        found = [
            (name, kept)
            for name, kept in tables.items()
            if kept is not None and kept.files <= wanted and self._digest(kept.files) in name
        ]
        there: dict[str, Kept] = {}
        missing = set(wanted)
        for name, kept in sorted(found, key=lambda item: (-len(item[1].files), item[0])):
            if kept.files <= missing:
                there[name] = kept
                missing -= kept.files
        return Cover(there, frozenset(missing))

    def _name(self, day: int, files: frozenset[FileId]) -> str:
        """Of a table that is to be made: no other has it."""
        return f"{day_of(day)}-{self._digest(files)}-{uuid.uuid4().hex[:8]}"

    def _digest(self, files: frozenset[FileId]) -> str:
        content = {"format": FORMAT, "settings": self.settings, "files": sorted(files)}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]

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
        """The days that a fit would sort rows of, and of which files, as far as can be seen now."""
        return {day: cover.missing for day, cover in self.covers(window).items() if cover.missing}

    def add_sort(
        self, graph: Graph, window: Window, files: dict[int, frozenset[FileId]], plan: SortPlan
    ) -> tuple[list[Any], dict[int, str]]:
        """Add what makes day tables of some files of each day to a graph: `sort-i -> days-k`.

        Returns
        -------
        references, and the tables' names
        """
        names = {day: self._name(day, own) for day, own in files.items()}
        folders = {day: f"{self.folder}/{name}" for day, name in names.items()}
        per_unit = _per_unit(window, plan)
        tasks = [
            (*day, sorted(files[day.day]), plan.run_rows, per_unit)
            for day in add_days(graph, window, files, folders, plan)
        ]
        return graph.layer("days", _finish_day, tasks, receipts=receipts_in(plan.scratch)), names

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """While day tables are looked for, made and read: nobody removes any."""
        with taking_turns(self.folder, shared=True):
            yield

    def sort(self, window: Window, plan: SortPlan, executor: Executor) -> list[DayTable]:
        """A window's day tables; what is new or changed is sorted first. Call it `in_use`.

        Raises
        ------
        TemporaryError
            The store cannot be written to now.
        """
        covers = self.covers(window)
        try:
            new = self._make(
                window, {day: c.missing for day, c in covers.items() if c.missing}, plan, executor
            )
            there = {day: dict(cover.there) for day, cover in covers.items()}
            rows: dict[int, tuple[str, int]] = {}
            for day, (name, made) in new.items():
                there[day][name] = made
                rows[day] = (name, made.receipt.rows)
            for day, name in self._merge(window, there, plan, executor).items():
                if day in rows:
                    rows[day] = (name, rows[day][1])
        except OSError as error:
            raise TemporaryError(
                f"the store's day tables in {self.folder} cannot be written to ({error.strerror or error}); "
                "nothing was published"
            ) from error
        return [
            DayTable(day, name, rows[day][1] if day in rows and rows[day][0] == name else 0, kept)
            for day, tables in sorted(there.items())
            for name, kept in sorted(tables.items())
        ]

    def _make(
        self, window: Window, files: dict[int, frozenset[FileId]], plan: SortPlan, executor: Executor
    ) -> dict[int, tuple[str, Kept]]:
        """Sort the rows that some files have of each day; return the tables by day."""
        if not files:
            return {}
        graph = Graph()
        finished, names = self.add_sort(graph, window, files, plan)
        for name in names.values():
            (self.folder / name).make()
        executor.compute(graph, graph.task("kept", len, finished))
        return self._made(names)

    def _merge(
        self, window: Window, there: dict[int, dict[str, Kept]], plan: SortPlan, executor: Executor
    ) -> dict[int, str]:
        """Merge the tables of days that are closed, and of those that have too many; `there` is changed.

        Returns the names of the merged tables.
        """
        newest = max(there, default=0)
        days = [
            day
            for day, tables in there.items()
            if len(tables) > MOST_PARTS or (len(tables) > 1 and day < newest - 1)
        ]
        if not days:
            return {}
        names = {day: self._name(day, _union(there[day])) for day in days}
        tasks = []
        for day, name in names.items():
            (self.folder / name).make()
            parts = [(f"{self.folder}/{part}", *kept[1:]) for part, kept in sorted(there[day].items())]
            files = sorted(_union(there[day]))
            tasks.append((f"{self.folder}/{name}", parts, files, plan.run_rows, _per_unit(window, plan)))
        executor.run("close", merge_tables, tasks)
        for day, (name, kept) in self._made(names).items():
            there[day].clear()
            there[day][name] = kept
        return names

    def _made(self, names: dict[int, str]) -> dict[int, tuple[str, Kept]]:
        """Tables that have been made, without what is left over."""
        folder = str(self.folder)
        each(drop_unused, [f"{folder}/{name}" for name in names.values()], folder)
        self.folder.sync()
        found = self._read(list(names.values()))
        made = {}
        for day, name in names.items():
            kept = found[name]
            if kept is None:
                raise TemporaryError(f"{folder}/{name} was written and has gone or changed since: run again")
            made[day] = (name, kept)
        return made

    def tidy(self, window: Window, tables: list[DayTable]) -> int:
        """Remove day tables before the window, those of its days that are out of date, and what is no table.

        Later days stay. Nothing is removed while another fit uses the folder: the next fit does it. Returns the number
        removed.
        """
        used = {table.name for table in tables}
        try:
            with taking_turns(self.folder, patience=0) as turn:
                names = [name for name in self.folder.names() if turn.sure and name not in {LOCKS, *used}]
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

    def collect_bad(self, tables: list[DayTable], scratch: str) -> None:
        """Copy the bad rows that day tables have kept to scratch, as a sort leaves them there."""
        place = Folder.at(scratch)
        count = 0
        for table in tables:
            source = self.folder / table.name
            for part in source.matching(BAD_PARTS):
                place.link(source, part, f"bad-{count:06d}.parquet")
                count += 1


def add_up_days(tables: list[DayTable], plan: SortPlan, executor: Executor) -> RunReceipt:
    """All days' runs as one sort's; counts are added up first.

    Raises
    ------
    InputRejectedError
        Unusable rows beyond what the rules allow; no usable row.
    """
    receipt = add_up([table.receipt for table in tables])
    check_window(receipt, plan)
    per_unit = steps_per_unit(plan.grid)
    clusters = cluster([table.counts for table in tables if table.counts is not None])
    tasks = [(days, per_unit, f"{plan.scratch}/run-counts-{i:04d}") for i, days in enumerate(clusters)]
    if tasks:
        receipt.runs = receipt.runs + executor.run("add", add_counts, tasks)
    return receipt


def _union(tables: dict[str, Kept]) -> frozenset[FileId]:
    return frozenset().union(*(kept.files for kept in tables.values()))


def _day_of(name: str) -> int | None:
    match = _NAME.fullmatch(name)
    day = parse_day(match[1]) if match else None
    return None if day is None else day_number(day)


def _per_unit(window: Window, plan: SortPlan) -> float | None:
    """Steps of the score grid, where a day may become counts."""
    columns = window.log.columns
    return None if columns.weight or columns.segments else steps_per_unit(plan.grid)


def _finish_day(
    folder: str,
    day: int,
    own: list[RunReceipt],
    divided: list[dict[int, RunReceipt]],
    files: list[FileId],
    run_rows: int,
    per_unit: float | None,
) -> None:
    """Make a day table of what sort tasks left; see `SortedDay`."""
    finish_day(folder, add_up_day(folder, day, own, divided), files, run_rows, per_unit)
