"""Day tables: a log's days as sorted runs, kept in the store, so that a window is fitted without sorting it anew.

    <store>/<table>/days/<day>-<digest>/day.json        rows, runs and bad rows of the day; written last
    <store>/<table>/days/<day>-<digest>/samples.npy     what is known of each run's blocks
    <store>/<table>/days/<day>-<digest>/segments.parquet  of a log with segments: those of each run
    <store>/<table>/days/<day>-<digest>/run-*           see `pipeline.sort.run_files`
    <store>/<table>/days/<day>-<digest>/counts          instead of runs, on a score grid; see `pipeline.sort.day_counts`

A day has one table or several: each is of some of the files that may hold rows of the day, and no two of one file.
The digest is of these files (paths, sizes, modification) and of the settings that rows are read by. So a file that is
new is sorted by itself, and one that was changed or removed takes the table with it that it is in, and no other. Sums
in runs are exact: whatever the grouping, the table of a window is, to the last bit, that of its rows. The tables of a
day that no later day's files follow any more, or that has become many, are merged into one.

A day table appears by one rename. Fits that use the folder share a lock on it; it is tidied under a lock of its own.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pipeline.errors import ConfigError, TemporaryError
from pipeline.execution import Executor, Graph
from pipeline.files.locks import hold, make, remove, remove_dead, share
from pipeline.log.quarantine import BadRows, Example
from pipeline.log.score_grid import steps_per_unit
from pipeline.log.windows import Window, day_number, day_of, parse_day
from pipeline.sort import day_runs
from pipeline.sort.day_counts import Counts, add_counts, cluster
from pipeline.sort.run_files import RunSegments, restored
from pipeline.sort.runs import RunReceipt
from pipeline.sort.score_table import SortPlan, add_up
from pipeline.sort.window_runs import FileId, add_days, add_up_day, check_window
from pipeline.table.store import TableStore

FORMAT = 5
MOST_PARTS = 64
"""Tables of an open day; more are merged."""

FACTS, SAMPLES = "day.json", "samples.npy"
_STAGING = ".staging-"
_NAME = re.compile(r"(\d{4}-\d\d-\d\d)-[0-9a-f]{16}")


class Kept(NamedTuple):
    """What is in a day table's folder.

    files : that it is of. receipt : its runs, rows and bad rows. counts : instead of runs; None where there are runs
    """

    files: frozenset[FileId]
    receipt: RunReceipt
    counts: Counts | None


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

    Raises
    ------
    ConfigError
        The store is not on a mounted file system.
    """

    def __init__(self, store: TableStore, settings: dict[str, Any]) -> None:
        if not store.local:
            raise ConfigError(
                "window: expected store.path on a mounted file system, where day tables are kept, found the URL of "
                f"{store.root}: choose another place, or leave window out"
            )
        self.folder = Path(store.root) / "days"
        self.settings = settings

    def covers(self, window: Window) -> dict[int, Cover]:
        """What there is of each day that has files, and what there is not."""
        wanted: dict[int, set[FileId]] = {}
        for file, groups in window.files:
            for day in {day for group in groups for day in range(group.first, group.last + 1)}:
                if window.first <= day <= window.last:
                    wanted.setdefault(day, set()).add((file.path, file.size, file.stamp))
        names: dict[int, list[str]] = {}
        for name in sorted(os.listdir(self.folder)) if self.folder.is_dir() else []:  # noqa: PTH208 (a name each)
            match = _NAME.fullmatch(name)
            dated = parse_day(match[1]) if match else None
            if dated is not None:
                names.setdefault(day_number(dated), []).append(name)
        return {day: self._cover(names.get(day, []), files) for day, files in sorted(wanted.items())}

    def _cover(self, names: list[str], wanted: set[FileId]) -> Cover:
        """Tables of none but wanted files, no two of one file; larger ones first."""
        found = []
        for name in names:
            kept = _read(self.folder / name)
            if kept is not None and kept.files <= wanted and name.endswith(self._digest(kept.files)):
                found.append((name, kept))
        there: dict[str, Kept] = {}
        missing = set(wanted)
        for name, kept in sorted(found, key=lambda item: (-len(item[1].files), item[0])):
            if kept.files <= missing:
                there[name] = kept
                missing -= kept.files
        return Cover(there, frozenset(missing))

    def _name(self, day: int, files: frozenset[FileId]) -> str:
        return f"{day_of(day)}-{self._digest(files)}"

    def _digest(self, files: frozenset[FileId]) -> str:
        content = {"format": FORMAT, "settings": self.settings, "files": sorted(files)}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]

    @staticmethod
    def _add(
        graph: Graph,
        window: Window,
        files: dict[int, frozenset[FileId]],
        folders: dict[int, Path],
        plan: SortPlan,
    ) -> list[Any]:
        """Add to a graph what makes day tables in folders of their own: `sort-i -> days-k`; return the references."""
        per_unit = _per_unit(window, plan)
        tasks = [
            (*day, sorted(files[day.day]), plan.run_rows, per_unit)
            for day in add_days(graph, window, files, folders, plan)
        ]
        return graph.layer("days", _finish_day, tasks, receipts=str(plan.scratch))

    def unsorted(self, window: Window) -> dict[int, frozenset[FileId]]:
        """The days that a fit would sort rows of, and of which files, as far as can be seen now."""
        return {day: cover.missing for day, cover in self.covers(window).items() if cover.missing}

    def add_sort(self, graph: Graph, window: Window, plan: SortPlan) -> list[Any]:
        """Add what would make the day tables that are not there to a graph; see `sort`."""
        files = self.unsorted(window)
        folders = {day: self.folder / self._name(day, own) for day, own in files.items()}
        return self._add(graph, window, files, folders, plan)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """While day tables are looked for, made and read: nobody removes any."""
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = share(self.folder)
        try:
            yield
        finally:
            if lock is not None:
                os.close(lock)

    def sort(self, window: Window, plan: SortPlan, executor: Executor) -> list[DayTable]:
        """A window's day tables; what is new or changed is sorted first. Call it `in_use`.

        Raises
        ------
        TemporaryError
            The store cannot be written to now.
        """
        covers = self.covers(window)
        new = {day: self._name(day, cover.missing) for day, cover in covers.items() if cover.missing}
        try:
            if new:
                self._make(window, {day: covers[day].missing for day in new}, new, plan, executor)
            there = {day: dict(cover.there) for day, cover in covers.items()}
            rows: dict[int, tuple[str, int]] = {}
            for day, name in new.items():
                there[day][name] = made = self._made(name)
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

    def _made(self, name: str) -> Kept:
        kept = _read(self.folder / name)
        if kept is None:
            raise TemporaryError(f"{self.folder / name} was written and has gone or changed since: run again")
        return kept

    @contextmanager
    def _staging(self) -> Iterator[Path]:
        """A folder for tables that are being made."""
        for left in self.folder.glob(f"{_STAGING}*"):
            remove_dead(left)
        staging = self.folder / f"{_STAGING}{uuid.uuid4().hex}"
        lock = make(staging)
        try:
            yield staging
        finally:
            remove(staging)
            if lock is not None:
                os.close(lock)

    def _make(
        self,
        window: Window,
        files: dict[int, frozenset[FileId]],
        names: dict[int, str],
        plan: SortPlan,
        executor: Executor,
    ) -> None:
        """Sort the rows that some files have of each day, and move the tables in."""
        with self._staging() as staging:
            folders = {day: staging / name for day, name in names.items()}
            for folder in folders.values():
                folder.mkdir()
            graph = Graph()
            executor.compute(graph, graph.task("kept", len, self._add(graph, window, files, folders, plan)))
            for day, name in names.items():
                _drop_unused(folders[day])
                self._move_in(folders[day], self.folder / name)
            _sync(self.folder)

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
        with self._staging() as staging:
            tasks = []
            for day in days:
                folder = staging / names[day]
                folder.mkdir()
                parts = [(str(self.folder / name), *kept[1:]) for name, kept in sorted(there[day].items())]
                files = sorted(_union(there[day]))
                tasks.append((str(folder), parts, files, plan.run_rows, _per_unit(window, plan)))
            executor.run("close", day_runs.merge_tables, tasks)
            for name in names.values():
                _drop_unused(staging / name)
                self._move_in(staging / name, self.folder / name)
            _sync(self.folder)
        for day, name in names.items():
            there[day].clear()
            there[day][name] = self._made(name)
        return names

    @staticmethod
    def _move_in(new: Path, place: Path) -> None:
        if place.exists():
            if _read(place) is not None:  # another fit was quicker
                return
            place.rename(new.with_name(f"{new.name}-damaged"))
        try:
            new.rename(place)
        except OSError:
            if _read(place) is None:
                raise

    def tidy(self, window: Window, tables: list[DayTable]) -> int:
        """Remove day tables before the window, and those of its days that are out of date; later days stay.

        Nothing is removed while another fit uses the folder: the next fit does it. Returns the number removed.
        """
        lock = hold(self.folder)
        if lock is None:
            return 0
        try:
            used = {table.name for table in tables}
            old = [path for path in self.folder.iterdir() if _is_old(path.name, window, used)]
            for path in old:
                remove(path)
            return len(old)
        finally:
            os.close(lock)

    def collect_bad(self, tables: list[DayTable], scratch: Path) -> None:
        """Copy the bad rows that day tables have kept to scratch, as a sort leaves them there."""
        parts = [
            part for table in tables for part in sorted((self.folder / table.name).glob("bad-*.parquet"))
        ]
        for i, part in enumerate(parts):
            shutil.copyfile(part, scratch / f"bad-{i:06d}.parquet")


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
    tasks = [(days, per_unit, str(plan.scratch / f"run-counts-{i:04d}")) for i, days in enumerate(clusters)]
    if tasks:
        receipt.runs = receipt.runs + executor.run("add", add_counts, tasks)
    return receipt


def _union(tables: dict[str, Kept]) -> frozenset[FileId]:
    return frozenset().union(*(kept.files for kept in tables.values()))


def planned_facts(window: Window, days: DayTables) -> dict[str, Any]:
    """What a dry run says of a window."""
    covers = days.covers(window)
    return {
        "column": window.column,
        "first": day_of(window.first).isoformat(),
        "last": day_of(window.last).isoformat(),
        "days_to_sort": sum(bool(cover.missing) for cover in covers.values()),
        "days_without_files": len(window.days) - len(covers),
    }


def window_facts(window: Window, tables: list[DayTable]) -> dict[str, Any]:
    """What a manifest says of a window."""
    by_day: dict[int, list[DayTable]] = {}
    for table in tables:
        by_day.setdefault(table.day, []).append(table)
    filled = {day: own for day, own in by_day.items() if any(table.receipt.rows for table in own)}
    new = [day for day, own in filled.items() if any(table.rows_sorted for table in own)]
    return {
        "column": window.column,
        "first": day_of(window.first).isoformat(),
        "last": day_of(window.last).isoformat(),
        "days_sorted": len(new),
        "days_reused": len(filled) - len(new),
        "days_missing": [day_of(day).isoformat() for day in window.days if day not in filled],
        "rows_sorted": sum(table.rows_sorted for table in tables),
        "days": [
            {
                "day": day_of(day).isoformat(),
                "tables": [table.name for table in own],
                "files": sum(len(table.kept.files) for table in own),
                "rows_read": sum(table.receipt.rows for table in own),
                "rows_used": sum(table.receipt.used for table in own),
                "sorted_now": day in new,
            }
            for day, own in filled.items()
        ],
    }


def _is_old(name: str, window: Window, used: set[str]) -> bool:
    if name.endswith("-removed"):  # left by a process that was killed while it tidied
        return True
    match = _NAME.fullmatch(name)
    day = parse_day(match[1]) if match else None
    if day is None or name in used:
        return False
    return day <= day_of(window.last)


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
    day_runs.finish_day(folder, add_up_day(folder, day, own, divided), files, run_rows, per_unit)


def _read(folder: Path) -> Kept | None:
    """A day table, or None where there is none that is whole."""
    try:
        facts = json.loads((folder / FACTS).read_text())
        numbers = np.load(folder / SAMPLES)
        sizes = [(folder / run["name"]).stat().st_size for run in facts["runs"]]
        counts = None if facts["counts"] is None else Counts(str(folder / "counts"), **facts["counts"])
        if counts is not None and Path(counts.path).stat().st_size != 8 * counts.steps:
            return None
        segments: list[RunSegments | None] = [None] * len(sizes)
        if facts["segments"]:
            segments = [*day_runs.read_run_segments(folder / day_runs.SEGMENTS, len(sizes))]
        files = frozenset((path, size, stamp) for path, size, stamp in facts["files"])
    except (OSError, ValueError, KeyError, EOFError, TypeError):
        return None
    receipt = RunReceipt(
        rows=facts["rows"],
        used=facts["used"],
        used_positive=facts["used_positive"],
        lowest=facts["lowest"],
        highest=facts["highest"],
        largest_move=facts["largest_move"],
        bad=BadRows(
            facts["bad"],
            {reason: [Example(*e) for e in found] for reason, found in facts["examples"].items()},
        ),
    )
    for run, size, own in zip(facts["runs"], sizes, segments, strict=True):
        try:
            one, numbers = restored(str(folder / run["name"]), run["sizes"], numbers, own)
        except ValueError:
            return None
        if one.file_bytes != size:
            return None
        receipt.runs.append(one)
    return None if numbers.size else Kept(files, receipt, counts)


def _drop_unused(folder: Path) -> None:
    """Remove the runs that were merged, and what lost workers may have left."""
    kept = {run["name"] for run in json.loads((folder / FACTS).read_text())["runs"]}
    for path in folder.glob("run-*"):
        if path.name not in kept:
            path.unlink()


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
