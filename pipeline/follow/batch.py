"""A batch of arrived files: finding new, changed and deleted files of a log, and tasks that score them one by one."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from logcal.errors import ConfigError, InputRejectedError, listing
from pipeline.files.folders import Folder, sync_folder
from pipeline.files.requests import together
from pipeline.follow.ledger import Known, SourceFile, partition_of
from pipeline.log.log_files import (
    SUFFIXES,
    FileState,
    LogFile,
    WrongFooterError,
    open_parquet,
    stamp_of,
    tree,
)
from pipeline.log.logs import batched_by_size
from pipeline.score.scored_file import Scoring, score_file
from pipeline.score.shift import Counts


@dataclass(frozen=True)
class Limits:
    """Largest number of files and of bytes in a batch; it has one file at least."""

    files: int = 1000
    bytes: int = 4 << 30


class ListingChange(NamedTuple):
    """Differences between a listing and the known files.

    new : files to score, sorted by stamp and name
    changed : names of known files that have another size or stamp
    gone : names of known files that a complete listing does not contain
    """

    new: tuple[SourceFile, ...]
    changed: tuple[str, ...]
    gone: tuple[str, ...]


def list_sources(folder: Folder, *, since: dt.date | None = None, key: str = "date") -> list[SourceFile]:
    """List the Parquet files below a folder.

    Names that begin with "_" or ".", or end as names of temporary files do, are skipped; on a mounted file system the
    rules are those of `local_tree`.

    since : folders `key=YYYY-MM-DD` of earlier days are skipped; other folders are not

    Raises
    ------
    InputRejectedError
        Symbolic links are circular, broken, or lead to files that are listed already.
    """
    folder.filesystem.invalidate_cache()  # a cached listing would not contain new files
    passed_over = None if since is None else partial(is_before, key=key, day=since)
    entries = tree(folder.filesystem, folder.root, passed_over)
    if entries.problems:
        raise InputRejectedError(f"{folder.root} cannot be followed.\n{listing(entries.problems)}")
    return [
        SourceFile(name, int(info["size"] or 0), stamp_of(info))
        for name, info in entries.files.values()
        if name.lower().endswith(SUFFIXES)
    ]


def is_before(part: str, key: str, day: dt.date) -> bool:
    """Tell whether a folder's name is `key=` and a day before `day`."""
    day_of_folder = day_of(part, key)
    return day_of_folder is not None and day_of_folder < day


def day_of(part: str, key: str) -> dt.date | None:
    """Parse the day in a folder's name `key=YYYY-MM-DD` or `key=YYYYMMDD`; return None for any other name."""
    name, _, value = part.partition("=")
    if name != key:
        return None
    try:
        return dt.date.fromisoformat(value)
    except ValueError:
        return None


def compare(
    listed: Collection[SourceFile],
    known: Mapping[str, Known],
    *,
    complete: bool,
    ignore_changed: bool = False,
) -> ListingChange:
    """Compare a listing with the known files. Stamps only order the new files: an old stamp excludes none.

    complete : whether the listing covers all days, so that files missing from it are gone
    ignore_changed : whether changed files are left out of `new`
    """
    new, changed, count = [], [], 0
    for source in listed:
        name, size, stamp = source
        before = known.get(name)
        if before is None:
            new.append(source)
            continue
        count += 1
        if before.stamp != stamp or before.size != size:
            changed.append(name)
            if not ignore_changed:
                new.append(source)
    gone: Iterable[str] = ()
    if complete and count < len(known):
        gone = known.keys() - {source.name for source in listed}
    new.sort(key=lambda source: (_order(source.stamp), source.name))
    return ListingChange(tuple(new), tuple(changed), tuple(sorted(gone)))


def _order(stamp: str) -> tuple[float, str]:
    try:
        return float(stamp), ""
    except ValueError:
        return 0.0, stamp


def cut(new: Iterable[SourceFile], limits: Limits) -> tuple[SourceFile, ...]:
    """Return the first files, up to a batch's limits; one at least."""
    return next(batched_by_size(new, lambda file: file.size, limits.bytes, limits.files), ())


def old_partitions(names: Iterable[str], key: str, oldest: dt.date) -> set[str]:
    """Return the partitions of days before `oldest`."""
    partitions = {partition_of(name) for name in names}
    return {partition for partition in partitions if is_before(partition, key, oldest)}


TASK_FILES = 64
TASK_BYTES = 64 << 20
"""Limits of a task: its largest number of files, and the bytes from which it takes no more files."""

SCORED, REFUSED, UNREADABLE, CHANGED, GONE = "scored", "refused", "unreadable", "changed", "gone"
"""Outcomes of a file. unreadable: it has no footer (yet). changed, gone: changed or removed after the listing."""


@dataclass(frozen=True)
class Places:
    """Folders of the sources and of the scored files, whose names are the same."""

    sources: Folder
    targets: Folder


class FileOutcome(NamedTuple):
    """Outcome of a file. known : its ledger entry if it was scored or refused. bins : see `pipeline.score.shift`."""

    source: SourceFile
    kind: str
    known: Known | None = None
    reason: str = ""
    bins: Counts = ()


def tasks_of(files: Sequence[SourceFile]) -> list[tuple[SourceFile, ...]]:
    """Divide files into tasks, in order."""
    return list(batched_by_size(files, lambda file: file.size, TASK_BYTES, TASK_FILES))


def score_arrivals(files: tuple[SourceFile, ...], places: Places, scoring: Scoring) -> list[FileOutcome]:
    """Score files; each target appears atomically. Repeating it is harmless.

    An error of one file becomes its outcome and does not stop the others; an error of a file system, of the table or of
    the output is raised. The targets' folders must exist: a task that made them could make them on another machine.
    """
    scoring.load()
    remote = places.sources.remote or places.targets.remote
    outcomes = list(together(lambda file: _score(file, places, scoring), files, remote=remote))
    # Synced by the task, so that other tasks run while this one waits for the disk.
    places.targets.sync(
        [outcome.source.name for outcome in outcomes if outcome.kind == SCORED], missing_ok=True
    )
    return outcomes


def _score(file: SourceFile, places: Places, scoring: Scoring) -> FileOutcome:
    filesystem, path = places.sources.filesystem, f"{places.sources.root}/{file.name}"
    local = not places.sources.remote
    # A replaced file of a store is listed again with a new stamp. A local one is detected here.
    if local and (change := _change(places, file)):
        return FileOutcome(file, change)
    target = f"{places.targets.root}/{file.name}"
    # The target appears only when it is complete, so that no partial result of a changing file is visible.
    try:
        log_file = LogFile(path, file.name, file.size, file.stamp)
        counts = score_file(filesystem, log_file, places.targets.filesystem, target, scoring)
    except InputRejectedError as error:
        unreadable = _unreadable(filesystem, path, FileState(file.size, file.stamp))
        if change := _change(places, file):
            return FileOutcome(file, change)
        if unreadable is not None:
            return FileOutcome(file, UNREADABLE, reason=unreadable)
        return FileOutcome(file, REFUSED, Known(file.size, file.stamp, reason=str(error)))
    if local and _change(places, file):
        # The next listing finds it again, and its target is then replaced.
        return FileOutcome(file, CHANGED)
    return FileOutcome(file, SCORED, Known(file.size, file.stamp, **counts.rows._asdict()), bins=counts.bins)


def _change(places: Places, file: SourceFile) -> str:
    """Return GONE or CHANGED if a file was removed or changed since the listing, else ''."""
    current = _current(places.sources, file.name)
    return GONE if current is None else CHANGED if current != file else ""


def _current(folder: Folder, name: str) -> SourceFile | None:
    """Return a file's current size and stamp; None if it is gone."""
    path = f"{folder.root}/{name}"
    try:
        if not folder.remote:
            status = os.stat(path)  # noqa: PTH116 - files are many
            return SourceFile(name, status.st_size, str(status.st_mtime))
        folder.filesystem.invalidate_cache(path.rpartition("/")[0])
        info = folder.filesystem.info(path)
    except FileNotFoundError:
        return None
    return SourceFile(name, int(info["size"] or 0), stamp_of(info))


def _unreadable(filesystem: Any, path: str, state: FileState) -> str | None:
    """Return why a file's footer cannot be read, or None. The footer is written last: with it the file is complete."""
    if state.size == 0:
        return "it is empty (0 bytes)"
    try:
        with open_parquet(filesystem, path, state):
            return None
    except WrongFooterError:
        return None
    except InputRejectedError as error:
        return str(error)


def make_folders(places: Places, files: Iterable[SourceFile]) -> None:
    """Make the folders of the files that will be scored."""
    for folder in _folders(file.name for file in files):
        (places.targets / folder).make()


def _folders(names: Iterable[str]) -> set[str]:
    return {name.rpartition("/")[0] for name in names}


def unseen(places: Places, outcomes: Iterable[FileOutcome]) -> str:
    """Return the path of a file that a task called gone and this process sees; '' if there is none."""
    gone = (outcome.source for outcome in outcomes if outcome.kind == GONE)
    return next((f"{places.sources.root}/{file.name}" for file in gone if _change(places, file) != GONE), "")


def keep(places: Places, files: Sequence[str]) -> None:
    """Sync the directory entries of scored files to the disk; tasks have synced their content.

    Raises
    ------
    ConfigError
        A scored file is not there: a worker has written it to a folder of its own.
    """
    root = places.targets.root
    if places.targets.remote:
        return
    elsewhere = next((name for name in files if not os.path.exists(f"{root}/{name}")), None)  # noqa: PTH110
    if elsewhere is not None:
        raise ConfigError(
            f"$[output]: expected a folder that all workers see, found that {elsewhere} was scored and is not in "
            f"{root} on this machine: mount the folder on every worker, or give a URL"
        )
    folders = {Path(folder) for folder in _folders(files)}
    for folder in folders.union(*(inner.parents for inner in folders)):
        sync_folder(Path(root, folder))


def rows_of(folder: Folder, name: str) -> int | None:
    """Return the number of rows of a file; None if it cannot be read."""
    try:
        with open_parquet(folder.filesystem, f"{folder.root}/{name}", None) as parquet:
            rows: int = parquet.metadata.num_rows
            return rows
    except InputRejectedError:
        return None


def sweep(places: Places, files: Sequence[SourceFile]) -> None:
    """Remove the temporary files that killed tasks left in the target folders of a batch."""
    for folder in _folders(file.name for file in files):
        (places.targets / folder).tidy()
