"""A published table for readers: its versions, their status, and the runs that made them.

`pipeline.table.store` documents the files and how they are written.
"""

from __future__ import annotations

import functools
import hashlib
import json
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from importlib import metadata
from typing import TYPE_CHECKING, Any

from logcal import schema
from logcal.errors import ConfigError, InputRejectedError, NothingToDoError, examples, listing
from logcal.manifest import full_name, read_manifest
from logcal.reading import storage_error
from logcal.segment_types import DATES, kind_of, segment_problems
from logcal.storage import check_name, is_name, open_filesystem
from logcal.version import __version__
from pipeline.files.folders import Folder
from pipeline.files.requests import together
from pipeline.table.journal import (
    CANDIDATE,
    UNREADABLE,
    Entry,
    Journal,
    moves,
    taken_back,
    trail,
    was_current,
)

if TYPE_CHECKING:
    from pipeline.log.logs import Log

CURRENT = "CURRENT"

StoreState = tuple[Sequence[str], Sequence[Entry]]
"""Names of a table's versions, oldest first, and the entries of its journal."""


class PublishedTable:
    """Read access to the versions of a table.

    Parameters
    ----------
    path : local folder or fsspec URL
    table : name of the table

    Raises
    ------
    ConfigError
        The name is longer than 200 characters, or has others than letters, digits, '.', '_' and '-'; the path cannot be
        opened.
    """

    def __init__(self, path: str, table: str) -> None:
        try:
            check_name(table)
        except ValueError as error:
            raise ConfigError(f"$[table]: {error}") from None
        self.folder = Folder.of(*open_filesystem(path, "$[store]")) / table
        self.filesystem, self.root, self.url = self.folder.filesystem, self.folder.root, str(self.folder)
        self.table = table
        self.journal = Journal(self.folder)
        self._versions = self.folder / "versions"

    def current_name(self) -> str | None:
        """Return the name in CURRENT, or None before the first version.

        Raises
        ------
        InputRejectedError
            CURRENT has other content.
        """
        data = _read(self.folder, CURRENT)
        if data is None:
            self.check_current()
            return None
        name = data.decode("utf-8", "replace").strip()
        if not is_name(name):
            content = f"{data[:40]!r}" if data.strip() else "nothing"
            raise InputRejectedError(
                f"{self.root}/{CURRENT}: expected the name of a version, found {content}: "
                "point it to one with `logcal tables rollback`"
            )
        return name

    def check_current(self) -> None:
        """Check that CURRENT is a file, if it exists.

        Raises
        ------
        InputRejectedError
            CURRENT is a folder, which no command replaces.
        """
        if self.filesystem.isdir(f"{self.root}/{CURRENT}"):
            raise InputRejectedError(
                f"{self.root}/{CURRENT}: expected a file with the name of a version, found a folder: remove it, then "
                "use `logcal tables rollback`"
            )

    def readable_current(self) -> str | None:
        """Return the name in CURRENT, or UNREADABLE if it names no version; None before the first version."""
        try:
            name = self.current_name()
        except InputRejectedError:
            return UNREADABLE
        return name if name is None or self._manifest(name) is not None else UNREADABLE

    def current(self) -> Version | None:
        """Return the current version, or None before the first one.

        Raises
        ------
        InputRejectedError
            CURRENT names a version that does not exist.
        """
        name = self.current_name()
        if name is None:
            return None
        manifest = self._manifest(name)
        if manifest is None:
            raise InputRejectedError(
                f"{self.root}/{CURRENT} names version '{name}', which is not there; found "
                f"{examples(self.names()) or 'no versions'}: point it to one of them with `logcal tables rollback`"
            )
        return self._version(name, manifest)

    def names(self) -> list[str]:
        """Return the names of all versions, oldest first."""
        return [name for name in self._versions.holding(MANIFEST) if is_name(name)]

    def version(self, name: str | None = None) -> Version:
        """Return a version. name : its name or a unique prefix of it; None: the current version.

        Raises
        ------
        InputRejectedError
            The version does not exist, or its manifest cannot be read.
        """
        if name is None:
            current = self.current()
            if current is None:
                expected = f"expected a published table '{self.table}', found"
                if names := self.names():
                    raise InputRejectedError(
                        f"{expected} no live version in {self.root}, only {examples(names)}: name one of them, or make "
                        "it live with `logcal tables promote`"
                    )
                raise InputRejectedError(f"{expected} none in {self.root}: run `logcal fit` first")
            return current
        manifest = self._manifest(name)
        if manifest is None:
            name = full_name(self.table, name, self.names())
            manifest = self._manifest(name)
        return self._version(name, manifest or b"")

    def _version(self, name: str, manifest: bytes) -> Version:
        path = f"{self._versions.root}/{name}/{MANIFEST}"
        return Version(name, str(self._versions / name), read_manifest(path, manifest))

    def version_to_watch(self, name: str | None = None) -> Version:
        """Do `version` for jobs that watch a table day by day, which have nothing to do before its first fit.

        Raises
        ------
        NothingToDoError
            No version is live.
        """
        if name is None and self.current_name() is None:
            raise NothingToDoError(
                f"table '{self.table}' in {self.url} has no live version yet: nothing to do before `logcal fit` has "
                "published one"
            )
        return self.version(name)

    def versions(self) -> list[Version]:
        """Return all versions, oldest first."""
        return [self.version(name) for name in self.names()]

    def state(self) -> StoreState:
        """Read the names of all versions and the journal, on an object store in parallel."""
        lists: list[Callable[[], Any]] = [self.names, self.journal.entries]
        names, entries = together(lambda read: read(), lists, remote=self.folder.remote)
        return names, entries

    def find_run(self, run_id: str, state: StoreState | None = None) -> Version | None:
        """Return the newest version of a run, or None. state : the table's state, if it has been read."""
        names, entries = state or self.state()
        made_by = {entry.version: entry.run_id for entry in entries if entry.run_id}
        for name in reversed(names):
            # A version without an entry was made by a killed run, which its manifest names.
            version = self.version(name) if made_by.get(name, run_id) == run_id else None
            if version is not None and version.manifest.get("run_id") == run_id:
                return version
        return None

    def live_versions(self) -> Iterator[Version]:
        """Yield the versions that were live, the live one first, then backwards in time; pruned ones are left out."""
        live = self.current()
        if live is None:
            return
        yield live
        names, seen = set(self.names()), {live.name}
        for entry in reversed(moves(self.journal.entries(), live.name)):
            if entry.version in names - seen:
                seen.add(entry.version)
                yield self.version(entry.version)

    def verify(self, version: Version) -> dict[str, bytes]:
        """Compare a version's lookup table and segments with their checksums; return their contents by name.

        Raises
        ------
        InputRejectedError
            A file differs or is missing.
        TemporaryError
            The store is unavailable.
        """
        contents = {}
        for name, facts in version.manifest["files"].items():
            if "/" in name:
                continue
            data = _read(self._versions / version.name, name)
            digest = "no file" if data is None else hashlib.sha256(data).hexdigest()
            if data is None or digest != facts["sha256"]:
                raise InputRejectedError(
                    f"{version.folder}/{name}: expected the sha256 {facts['sha256']} of its manifest, found {digest}: "
                    "the version is damaged; go back to another with `logcal tables rollback`"
                )
            contents[name] = data
        return contents

    def _manifest(self, name: str) -> bytes | None:
        return _read(self._versions / name, MANIFEST) if is_name(name) else None

    def predecessor(self, entries: list[Entry], current: str | None) -> str | None:
        """Return the version that a rollback would go back to, or None."""
        names = self.names()
        earlier = [name for name in trail(entries, names, current) if name in names and name != current]
        return earlier[-1] if earlier else None


def _read(folder: Folder, name: str) -> bytes | None:
    """Do `Folder.read`; errors name the file."""
    try:
        return folder.read(name)
    except OSError as error:
        raise storage_error(f"{folder}/{name}", "published table's file", error) from error


MANIFEST = "manifest.json"
LOOKUP = "lookup.parquet"
SCORE_TABLE = "score_table"


@dataclass(frozen=True)
class Version:
    """Version in the store. folder : local path or URL."""

    name: str
    folder: str
    manifest: dict[str, Any]

    @property
    def lookup_path(self) -> str:
        """Path or URL of the lookup table."""
        return f"{self.folder}/{LOOKUP}"

    @property
    def refusals(self) -> list[dict[str, Any]]:
        """The unmet requirements, each with `rule` and `message`; empty if all were met."""
        return list(self.manifest["refused"])

    @property
    def candidate(self) -> bool:
        """True if it was saved as a candidate, on request or because it was refused."""
        return bool(self.manifest["publish"] == CANDIDATE)


def same_table(name: str, other: str) -> bool:
    """Return whether two versions have the same table: their names end with the first digits of its fingerprint."""
    return name.partition("-")[2] == other.partition("-")[2]


def segments_of(version: Version) -> tuple[str, ...]:
    """Return the names of a version's segment columns; empty without segments."""
    return tuple((version.manifest.get("segments") or {}).get("columns", ()))


def fitted_until(manifest: Mapping[str, Any]) -> str:
    """Return the last day that a version's fit used, set aside or excluded; later days of its window had no labels."""
    window = manifest.get("window") or {}
    unlabelled = {day["day"] for day in window.get("days_unlabelled", ())}
    days = (day for day in window.get("days", ()) if day["rows_usable"])
    return max({day["day"] for day in days} - unlabelled, default=window.get("last", ""))


def has_seen(manifest: Mapping[str, Any], day: str) -> bool:
    """Tell whether a version's fit has read the rows of a day, or later days only. day : ISO date."""
    window = manifest.get("window") or {}
    first = min((entry["day"] for entry in window.get("days", ())), default="")
    unlabelled = {entry["day"] for entry in window.get("days_unlabelled", ())}
    read = {entry["day"] for entry in window.get("days", ()) if entry["rows_usable"]}
    return day < first or day in read - unlabelled


def days_fitted(manifest: Mapping[str, Any]) -> list[str]:
    """Return the days that a version was fitted to, in order; empty without a window."""
    return [day["day"] for day in (manifest.get("window") or {}).get("days", ()) if day["rows_used"]]


def describe_suspect_days(version: Version) -> list[str]:
    """Describe the days that a version's fit set aside or used as drift, with the reasons."""
    window = version.manifest.get("window") or {}
    return [
        f"{day['day']} {treatment}: {'; '.join(day['reasons'])}"
        for key, treatment in (("days_set_aside", "set aside"), ("days_of_drift", "used as drift"))
        for day in window.get(key, ())
    ]


def with_segments_of(version: Version, log: Log) -> Log:
    """Compare a log's segment columns with those that a version was fitted to; return the log to read.

    Columns that are dates in the version are read as dates, also where the log has them as text.

    Raises
    ------
    InputRejectedError
        A column has another type, so that none of its values would match.
    """
    fitted = version.manifest["log"]["columns"]
    types = {name: fitted[name] for name in segments_of(version) if name in fitted}
    if problems := segment_problems(types, log.types):
        raise InputRejectedError(f"the log's segments are not the table's.\n{listing(problems)}")
    dates = tuple(name for name, type_ in types.items() if kind_of(type_) == DATES)
    return replace(log, columns=replace(log.columns, dates=dates))


class Status(Enum):
    """Status of a version.

    UNFINISHED: its run was killed before it became current. REPLACED: another version has become current since.
    """

    CURRENT = "current"
    CANDIDATE = "candidate"
    REFUSED = "refused"
    TAKEN_BACK = "taken back"
    UNFINISHED = "unfinished"
    REPLACED = "replaced"


def status_of(version: Version, entries: Sequence[Entry], current: str | None) -> Status:
    """Return the status of a version.

    entries : entries of the journal
    current : content of CURRENT
    """
    if version.name == current:
        return Status.CURRENT
    if was_current(entries, version.name, current):
        return Status.TAKEN_BACK if taken_back(entries, version.name, current) else Status.REPLACED
    if version.candidate:
        return Status.REFUSED if version.refusals else Status.CANDIDATE
    return Status.UNFINISHED


_PACKAGES = ("dask", "numpy", "numba", "pyarrow", "scikit-learn", "scipy")


def run_id(job: str, log: Log, settings: dict[str, Any]) -> str:
    """Compute a digest of all that a job's result depends on: its files (name, size, modification) and its settings.

    Parameters
    ----------
    job : the job's name
    log : the input
    settings : the part of the configuration that can change the result, as JSON values

    Returns
    -------
    32 hexadecimal digits
    """
    content: dict[str, Any] = {
        "job": job,
        "format_version": schema.FORMAT_VERSION,
        "logcal": __version__,
        "settings": settings,
        "files": [file.identity for file in log.files],
    }
    if log.columns.labels is not None:
        content["labels"] = log.columns.labels.identity()
    if log.snapshots:
        content["snapshots"] = log.snapshots
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@functools.cache
def software() -> dict[str, str]:
    """Return the versions of Python and of the packages that compute results."""
    versions = ((package, metadata.version(package)) for package in _PACKAGES)
    return {"python": platform.python_version(), "logcal": __version__, **dict(versions)}
