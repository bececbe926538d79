"""A batch: which files of a log are new, changed or gone; its tasks score them one by one and report on each."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fsspec.implementations.local import LocalFileSystem

from logcal.errors import InputRejectedError
from pipeline.files.folders import sync_files, sync_folder
from pipeline.files.requests import together
from pipeline.follow.ledger import Known, Source, partition_of
from pipeline.log.log_files import SUFFIXES, FileState, LogFile, open_parquet, stamp_of
from pipeline.log.logs import neighbours
from pipeline.score.scored_file import Scoring, score_file


@dataclass(frozen=True)
class Limits:
    """Limits of a batch: its most files and its most bytes; it has one file at least."""

    files: int = 1000
    bytes: int = 4 << 30


class Change(NamedTuple):
    """New part of a listing.

    new : files to score, by stamp and then by name. changed : those of them that are known with another size or stamp.
    gone : known names that a whole listing does not have.
    """

    new: tuple[Source, ...]
    changed: tuple[str, ...]
    gone: tuple[str, ...]


def list_sources(
    filesystem: Any, root: str, *, since: dt.date | None = None, key: str = "date"
) -> list[Source]:
    """The Parquet files below a folder, as they are now.

    Names that begin with "_" or "." are passed over. since : folders `key=YYYY-MM-DD` of earlier days are passed over,
    too; those of other names are not, nor are days in the future.
    """
    if isinstance(filesystem, LocalFileSystem):
        return _scan(root, since, key)
    # A listing that is kept would hide what arrives.
    filesystem.invalidate_cache()
    base = root.rstrip("/")
    found = []
    for path, info in filesystem.find(base, detail=True).items():
        name = path[len(base) :].lstrip("/")
        parts = name.split("/")
        if any(part.startswith(("_", ".")) for part in parts) or not name.lower().endswith(SUFFIXES):
            continue
        if since is not None and any(is_before(part, key, since) for part in parts[:-1]):
            continue
        found.append(Source(name, int(info["size"] or 0), stamp_of(info)))
    return found


def _scan(root: str, since: dt.date | None, key: str) -> list[Source]:
    """Every look goes through all of it, so that some 3 microseconds a file are worth the trouble."""
    found: list[Source] = []
    folders = [(root, "")]
    while folders:
        folder, prefix = folders.pop()
        try:
            entries = os.scandir(folder)
        except (FileNotFoundError, NotADirectoryError):
            continue
        with entries:
            for entry in entries:
                name = entry.name
                if name[0] in "_.":
                    continue
                if (name.endswith(SUFFIXES) or name.lower().endswith(SUFFIXES)) and not entry.is_dir():
                    try:
                        status = entry.stat()
                    except FileNotFoundError:  # gone since
                        continue
                    # As Source(...), a third quicker.
                    found.append(tuple.__new__(Source, (prefix + name, status.st_size, str(status.st_mtime))))
                elif entry.is_dir() and not (since is not None and is_before(name, key, since)):
                    folders.append((entry.path, f"{prefix}{name}/"))
    return found


def is_before(part: str, key: str, day: dt.date) -> bool:
    """Tell whether a folder's name is `key=` and a day before that one."""
    named = day_of(part, key)
    return named is not None and named < day


def day_of(part: str, key: str) -> dt.date | None:
    """The day that a folder's name gives as `key=YYYY-MM-DD` or `key=YYYYMMDD`; None where it gives none."""
    name, _, value = part.partition("=")
    if name != key:
        return None
    try:
        return dt.date.fromisoformat(value)
    except ValueError:
        return None


def compare(
    listed: Collection[Source], known: Mapping[str, Known], *, whole: bool, ignore_changed: bool = False
) -> Change:
    """Find the new files of a listing, oldest stamp first. Times order files, and never leave one out."""
    new, changed, there = [], [], 0
    for source in listed:
        name, size, stamp = source
        before = known.get(name)
        if before is None:
            new.append(source)
            continue
        there += 1
        if before.stamp != stamp or before.size != size:
            changed.append(name)
            if not ignore_changed:
                new.append(source)
    gone: Iterable[str] = ()
    if whole and there < len(known):
        gone = known.keys() - {source.name for source in listed}
    new.sort(key=lambda source: (_order(source.stamp), source.name))
    return Change(tuple(new), tuple(changed), tuple(sorted(gone)))


def _order(stamp: str) -> tuple[float, str]:
    try:
        return float(stamp), ""
    except ValueError:
        return 0.0, stamp


def cut(new: Iterable[Source], limits: Limits) -> tuple[Source, ...]:
    """The first files, as far as a batch's limits go; one at least."""
    return next(neighbours(new, lambda file: file.size, limits.bytes, limits.files), ())


def old_partitions(names: Iterable[str], key: str, oldest: dt.date) -> set[str]:
    """Partitions of days before `oldest`, which may be forgotten."""
    partitions = {partition_of(name) for name in names}
    return {partition for partition in partitions if is_before(partition, key, oldest)}


TASK_FILES = 64
TASK_BYTES = 64 << 20
"""Limits of a task: the most files, and the bytes from which it takes no more."""

SCORED, REFUSED, UNREADABLE, CHANGED, GONE = "scored", "refused", "unreadable", "changed", "gone"
"""Outcomes of a file. unreadable: it has no footer (yet). changed, gone: it is no longer the one that was listed."""


@dataclass(frozen=True)
class Places:
    """Sources and targets of files: file systems and folders."""

    filesystem: Any
    root: str
    target_filesystem: Any
    target_root: str

    def source(self, name: str) -> str:
        """The path of a file."""
        return f"{self.root.rstrip('/')}/{name}"

    def target(self, name: str) -> str:
        """The path of its scored file."""
        return f"{self.target_root.rstrip('/')}/{name}"


class Outcome(NamedTuple):
    """Outcome of a file. known : the ledger's entry, if it was scored or refused."""

    source: Source
    kind: str
    known: Known | None = None
    reason: str = ""


def tasks_of(files: Sequence[Source]) -> list[tuple[Source, ...]]:
    """Files in groups that are a task each, in order."""
    return list(neighbours(files, lambda file: file.size, TASK_BYTES, TASK_FILES))


def score_arrivals(files: tuple[Source, ...], places: Places, scoring: Scoring) -> list[Outcome]:
    """Score files; each appears under its own name, whole. May run again.

    What is wrong with one file is said of it and stops nothing; what is wrong with a file system is raised.
    """
    made: set[str] = set()
    local = isinstance(places.filesystem, LocalFileSystem) and isinstance(
        places.target_filesystem, LocalFileSystem
    )
    found = list(together(lambda file: _score(file, places, scoring, made), files, remote=not local))
    if isinstance(places.target_filesystem, LocalFileSystem):
        # Here, so that other tasks go on while this one waits for the disk.
        written = [places.target(outcome.source.name) for outcome in found if outcome.kind == SCORED]
        sync_files(written, missing_ok=True)
    return found


def _score(file: Source, places: Places, scoring: Scoring, made: set[str]) -> Outcome:
    """Score one. made : folders of the output that are there, so that each is made once a task."""
    path = places.source(file.name)
    local = isinstance(places.filesystem, LocalFileSystem)
    # What takes a name in a store meanwhile is listed with another stamp than the ledger has; here it is told at once.
    if local and (change := _change(places, file)):
        return Outcome(file, change)
    target = places.target(file.name)
    _make_folder(places.target_filesystem, target.rpartition("/")[0], made)
    # Scored under another name first: what changes while it is read must not be seen.
    try:
        own = LogFile(path, file.name, file.size, file.stamp)
        rows = score_file(places.filesystem, own, places.target_filesystem, target, scoring).rows
    except InputRejectedError as error:
        unreadable = _unreadable(places.filesystem, path, FileState(file.size, file.stamp))
        if change := _change(places, file):
            return Outcome(file, change)
        if unreadable is not None:
            return Outcome(file, UNREADABLE, reason=unreadable)
        return Outcome(file, REFUSED, Known(file.size, file.stamp, reason=str(error)))
    except FileNotFoundError:
        return Outcome(file, GONE)
    if local and _change(places, file):
        # It is listed again, and written again.
        return Outcome(file, CHANGED)
    return Outcome(file, SCORED, Known(file.size, file.stamp, **rows._asdict()))


def _change(places: Places, file: Source) -> str:
    """Tell whether a file has GONE or CHANGED; '' if it is as it was."""
    found = _seen(places, places.source(file.name))
    return GONE if found is None else CHANGED if found != file else ""


def _seen(places: Places, path: str) -> Source | None:
    """The file as it is now; None where it is gone."""
    name = path[len(places.root.rstrip("/")) + 1 :]
    try:
        if isinstance(places.filesystem, LocalFileSystem):
            status = os.stat(path)  # noqa: PTH116 - files are many
            return Source(name, status.st_size, str(status.st_mtime))
        places.filesystem.invalidate_cache(path.rpartition("/")[0])
        info = places.filesystem.info(path)
    except FileNotFoundError:
        return None
    return Source(name, int(info["size"] or 0), stamp_of(info))


def _unreadable(filesystem: Any, path: str, state: FileState) -> str | None:
    """Why a file has no footer that can be read: it comes last, so that a file that has one is whole."""
    if state.size == 0:
        return "it is empty (0 bytes)"
    try:
        with open_parquet(filesystem, path, state):
            return None
    except InputRejectedError as error:
        return str(error)


def keep(places: Places, files: Sequence[str]) -> None:
    """Have the names of scored files on the disk; their content is, since tasks end so."""
    if not isinstance(places.target_filesystem, LocalFileSystem):
        return
    root = Path(places.target_root)
    folders = {Path(folder) for folder in {places.target(name).rpartition("/")[0] for name in files}}
    above = {
        folder for inner in folders for folder in inner.parents if root in folder.parents or folder == root
    }
    for folder in folders | above:
        sync_folder(folder)


def _make_folder(filesystem: Any, path: str, made: set[str]) -> None:
    if path not in made and isinstance(filesystem, LocalFileSystem):
        filesystem.makedirs(path, exist_ok=True)
        made.add(path)


def rows_of(filesystem: Any, path: str) -> int | None:
    """The rows of a file; None where it cannot be read."""
    try:
        with open_parquet(filesystem, path, None) as parquet:
            rows: int = parquet.metadata.num_rows
            return rows
    except InputRejectedError:
        return None


def sweep(places: Places, files: Sequence[Source]) -> None:
    """Remove what tasks that were killed left half-written beside the files of a batch."""
    if not isinstance(places.target_filesystem, LocalFileSystem):
        return
    for folder in {places.target(file.name).rpartition("/")[0] for file in files}:
        for left in Path(folder).glob(".*.tmp"):
            left.unlink(missing_ok=True)
