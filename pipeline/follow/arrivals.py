"""Arrivals: a log's files as they are listed now, and which of them are new, changed or gone."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from fsspec.implementations.local import LocalFileSystem

from pipeline.follow.ledger import Known, Source, partition_of
from pipeline.log.log_files import SUFFIXES, stamp_of


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
    taken: list[Source] = []
    size = 0
    for source in new:
        if taken and (len(taken) >= limits.files or size + source.size > limits.bytes):
            break
        taken.append(source)
        size += source.size
    return tuple(taken)


def old_partitions(names: Iterable[str], key: str, oldest: dt.date) -> set[str]:
    """Partitions of days before `oldest`, which may be forgotten."""
    partitions = {partition_of(name) for name in names}
    return {partition for partition in partitions if is_before(partition, key, oldest)}
