"""Day tables: a log's days as sorted runs, kept in the store, so that a window is fitted without sorting it anew.

    <store>/<table>/days/<day>-<digest>/day.json        rows, runs and bad rows of the day; written last
    <store>/<table>/days/<day>-<digest>/samples.npy     what is known of each run's blocks
    <store>/<table>/days/<day>-<digest>/segments.parquet  of a log with segments: those of each run
    <store>/<table>/days/<day>-<digest>/run-*           see `pipeline.sort.run_files`
    <store>/<table>/days/<day>-<digest>/counts          instead of runs, on a score grid; see `pipeline.sort.day_counts`

The digest is of the files that may hold rows of the day (paths, sizes, modification) and of the settings that rows
are read by: a late, changed or removed file makes its days new ones, and no others. Sums in runs are exact, so that
the table of a window is, to the last bit, that of its rows.

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
from typing import Any

import numpy as np

from pipeline.errors import ConfigError, InputRejectedError, TemporaryError
from pipeline.execution import Executor, Graph
from pipeline.files.locks import hold, make, remove, remove_dead, share
from pipeline.log import quarantine
from pipeline.log.quarantine import BadRows, Example
from pipeline.log.score_grid import steps_per_unit
from pipeline.log.windows import Window, day_of, parse_day
from pipeline.sort import day_runs
from pipeline.sort.day_counts import Counts, add_counts, cluster
from pipeline.sort.run_files import RunSegments, restored
from pipeline.sort.runs import Reading, RunReceipt, write_runs
from pipeline.sort.score_table import SortPlan, add_up
from pipeline.table.store import TableStore

FORMAT = 4
FACTS, SAMPLES = "day.json", "samples.npy"
_STAGING = ".staging-"
_NAME = re.compile(r"(\d{4}-\d\d-\d\d)-[0-9a-f]{16}")


@dataclass(frozen=True)
class DayTable:
    """A day of a window.

    Attributes
    ----------
    name : of its folder. files : that may hold rows of it. sorted_now : by this fit; otherwise by an earlier one.
    receipt : its runs, rows and bad rows. counts : instead of runs; None where there are runs
    """

    day: int
    name: str
    files: int
    sorted_now: bool
    receipt: RunReceipt
    counts: Counts | None


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

    def names(self, window: Window) -> dict[int, str]:
        """The names of a window's day tables; days without files have none."""
        return {day: name for day in window.days if (name := self._name(window, day)) is not None}

    def _name(self, window: Window, day: int) -> str | None:
        files = {file.path: (file.path, file.size, file.stamp) for file, _ in window.groups(day)}
        if not files:
            return None
        content = {
            "format": FORMAT,
            "settings": self.settings,
            "files": [files[path] for path in sorted(files)],
        }
        digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
        return f"{day_of(day)}-{digest[:16]}"

    def unsorted(self, window: Window) -> list[int]:
        """The days that a fit would sort, as far as can be seen now."""
        return [day for day, name in self.names(window).items() if not (self.folder / name / FACTS).exists()]

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
        """A window's day tables; those that are new or changed are made first. Call it `in_use`.

        Raises
        ------
        TemporaryError
            The store cannot be written to now.
        """
        names = self.names(window)
        files = {day: len({file.path for file, _ in window.groups(day)}) for day in names}
        found = {day: _read(self.folder / name) for day, name in names.items()}
        new = [day for day, kept in found.items() if kept is None]
        if new:
            try:
                self._make(window, {day: names[day] for day in new}, plan, executor)
            except OSError as error:
                raise TemporaryError(
                    f"the store's day tables in {self.folder} cannot be written to ({error.strerror or error}); "
                    "nothing was published"
                ) from error
        tables = []
        for day, name in names.items():
            kept = found[day] or _read(self.folder / name)
            if kept is None:
                raise TemporaryError(
                    f"{self.folder / name} was written and has gone or changed since: run again"
                )
            tables.append(DayTable(day, name, files[day], day in new, *kept))
        return tables

    def _make(self, window: Window, names: dict[int, str], plan: SortPlan, executor: Executor) -> None:
        for left in self.folder.glob(f"{_STAGING}*"):
            remove_dead(left)
        staging = self.folder / f"{_STAGING}{uuid.uuid4().hex}"
        lock = make(staging)
        try:
            folders = {day: staging / name for day, name in names.items()}
            for folder in folders.values():
                folder.mkdir()
            graph = Graph()
            executor.compute(graph, graph.task("kept", len, _add_days(graph, window, folders, plan)))
            for day, name in names.items():
                _drop_unused(folders[day])
                self._move_in(folders[day], self.folder / name)
            _sync(self.folder)
        finally:
            remove(staging)
            if lock is not None:
                os.close(lock)

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
    quarantine.check(receipt.bad, receipt.rows, plan.rules)
    if receipt.used == 0:
        raise InputRejectedError(
            f"window: expected usable rows, found none among {receipt.rows:,}"
            f"{quarantine.waiting(receipt.rows - receipt.bad.total)}: set window.until or window.last"
        )
    per_unit = steps_per_unit(plan.grid)
    clusters = cluster([table.counts for table in tables if table.counts is not None])
    tasks = [(days, per_unit, str(plan.scratch / f"run-counts-{i:04d}")) for i, days in enumerate(clusters)]
    if tasks:
        receipt.runs = receipt.runs + executor.run("add", add_counts, tasks)
    return receipt


def planned_facts(window: Window, days: DayTables) -> dict[str, Any]:
    """What a dry run says of a window."""
    return {
        "column": window.column,
        "first": day_of(window.first).isoformat(),
        "last": day_of(window.last).isoformat(),
        "days_to_sort": len(days.unsorted(window)),
        "days_without_files": len(window.days) - len(days.names(window)),
    }


def window_facts(window: Window, tables: list[DayTable]) -> dict[str, Any]:
    """What a manifest says of a window."""
    filled = [table for table in tables if table.receipt.rows]
    there = {table.day for table in filled}
    new = [table for table in filled if table.sorted_now]
    return {
        "column": window.column,
        "first": day_of(window.first).isoformat(),
        "last": day_of(window.last).isoformat(),
        "days_sorted": len(new),
        "days_reused": len(filled) - len(new),
        "days_missing": [day_of(day).isoformat() for day in window.days if day not in there],
        "rows_sorted": sum(table.receipt.rows for table in new),
        "days": [
            {
                "day": day_of(table.day).isoformat(),
                "table": table.name,
                "files": table.files,
                "rows_read": table.receipt.rows,
                "rows_used": table.receipt.used,
                "sorted_now": table.sorted_now,
            }
            for table in filled
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


def _add_days(graph: Graph, window: Window, folders: dict[int, Path], plan: SortPlan) -> list[Any]:
    """Add to a graph what makes day tables in folders of their own: `sort-i -> days-k`; return the references.

    A day needs the row groups alone that hold rows of it.
    """
    log = window.log
    reading = Reading(log.filesystem, log.columns, plan.transform, grid=plan.grid)
    plain = reading._replace(columns=day_runs.without_date(log.columns))
    keep = plan.rules.keep
    tasks: list[tuple[Any, ...]] = []
    days: list[int | None] = []
    reach: list[list[tuple[int, int]]] = []
    for day, folder in folders.items():
        own = [
            file.piece((group.place,), group.start, group.rows)
            for file, group in window.groups(day)
            if not group.mixed
        ]
        for pieces in day_runs.pack(own, plan.run_rows):
            tasks.append((write_runs, pieces, plain, str(folder), len(tasks), plan.run_rows, keep))
            days.append(day)
            reach.append([])
    wanted = {day: str(folder) for day, folder in folders.items()}
    mixed = [
        day_runs.MixedPiece(file.piece((group.place,), group.start, group.rows), group.first, group.last)
        for file, groups in window.files
        for group in groups
        if group.mixed and any(group.first <= day <= group.last for day in wanted)
    ]
    for divided in day_runs.pack(mixed, plan.run_rows):
        tasks.append((day_runs.write_divided_runs, divided, reading, wanted, len(tasks), plan.run_rows, keep))
        days.append(None)
        reach.append([(piece.first, piece.last) for piece in divided])
    found = graph.layer("sort", day_runs.call, tasks)
    columns = log.columns
    per_unit = None if columns.weight or columns.segments else steps_per_unit(plan.grid)
    finished = []
    for day, folder in folders.items():
        own = [result for sorted_day, result in zip(days, found, strict=True) if sorted_day == day]
        others = [
            result
            for sorted_day, result, days_in in zip(days, found, reach, strict=True)
            if sorted_day is None and any(first <= day <= last for first, last in days_in)
        ]
        finished.append((str(folder), day, own, others, plan.run_rows, per_unit))
    return graph.layer("days", _finish_day, finished)


def _finish_day(
    folder: str,
    day: int,
    own: list[RunReceipt],
    divided: list[dict[int, RunReceipt]],
    run_rows: int,
    per_unit: float | None,
) -> None:
    """Make a day table of what sort tasks left.

    own : of tasks that read rows of this day alone. divided : of those that read others' rows, too.
    """
    found = [*own, *(receipts[day] for receipts in divided if day in receipts)]
    day_runs.finish_day(folder, add_up(found), run_rows, per_unit)


def _read(folder: Path) -> tuple[RunReceipt, Counts | None] | None:
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
    except (OSError, ValueError, KeyError, EOFError):
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
    return None if numbers.size else (receipt, counts)


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
