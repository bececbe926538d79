"""A published table for readers: its versions, the status of each, and the run that made it.

`pipeline.table.store` documents the files and how they are written.
"""

from __future__ import annotations

import functools
import hashlib
import json
import platform
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from importlib import metadata
from typing import Any

from logcal import schema
from logcal.arrow_columns import segment_problems
from logcal.errors import ConfigError, InputRejectedError, NothingToDoError, examples, listing
from logcal.manifest import full_name, read_manifest
from logcal.reading import storage_error
from logcal.storage import open_filesystem
from pipeline.files.folders import Folder
from pipeline.files.requests import together
from pipeline.log.logs import Log
from pipeline.table.journal import CANDIDATE, UNREADABLE, Entry, Journal, taken_back, trail, was_current

CURRENT = "CURRENT"

Known = tuple[Sequence[str], Sequence[Entry]]
"""Names of a table's versions, oldest first, and the entries of its journal: on an object store each is a request."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")


class PublishedTable:
    """The versions of one table, to be read.

    Parameters
    ----------
    path : local folder or fsspec URL
    table : name of the table

    Raises
    ------
    ConfigError
        For a name that is not a plain one, or a path that cannot be opened.
    """

    def __init__(self, path: str, table: str) -> None:
        if not _NAME.fullmatch(table):
            raise ConfigError(
                f"store.table: expected letters, digits, '.', '_' and '-', found {table!r}: choose a plain name"
            )
        self.filesystem, root = open_filesystem(path, "store.path")
        self.table = table
        self.folder = Folder(self.filesystem, f"{root.rstrip('/')}/{table}")
        self.local = self.folder.local
        self.root = self.folder.root
        self.url = self.root if self.local else str(self.filesystem.unstrip_protocol(self.root))
        self.journal = Journal(self.folder)
        self._versions = self.folder / "versions"

    def current_name(self) -> str | None:
        """The name that CURRENT holds, or None before the first version.

        Raises
        ------
        InputRejectedError
            CURRENT holds no name.
        """
        self.check_current()
        data = _given(self.folder, CURRENT)
        if data is None:
            return None
        name = data.decode("utf-8", "replace").strip()
        if not _NAME.fullmatch(name):
            found = f"{data[:40]!r}" if data.strip() else "nothing"
            raise InputRejectedError(
                f"{self.root}/{CURRENT}: expected the name of a version, found {found}: "
                "point it to one with `logcal tables rollback`"
            )
        return name

    def check_current(self) -> None:
        """Check that CURRENT is a file, if it is there.

        Raises
        ------
        InputRejectedError
            It is a folder, which no command replaces.
        """
        path = f"{self.root}/{CURRENT}"
        if self.local and self.filesystem.isdir(path):
            raise InputRejectedError(
                f"{path}: expected a file with the name of a version, found a folder: remove it, then use "
                "`logcal tables rollback`"
            )

    def readable_current(self) -> str | None:
        """The name that CURRENT holds, or UNREADABLE; None before the first version."""
        try:
            return self.current_name()
        except InputRejectedError:
            return UNREADABLE

    def current(self) -> Version | None:
        """The current version, or None before the first.

        Raises
        ------
        InputRejectedError
            CURRENT names a version that is not there.
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
        """The names of all versions, oldest first."""
        if self.local:
            names = [
                name
                for name in self._versions.names()
                if self.filesystem.exists(f"{self._versions.root}/{name}/{MANIFEST}")
            ]
        else:
            # One listing, not a question a version.
            ends = [path.partition("/") for path in self._versions.files_below()]
            names = [name for name, _, file in ends if file == MANIFEST]
        return [name for name in names if _NAME.fullmatch(name)]

    def version(self, name: str | None = None) -> Version:
        """A version by its name, or the beginning of it that no other has; or the current one.

        Raises
        ------
        InputRejectedError
            It is not there, or its manifest cannot be read.
        """
        if name is None:
            found = self.current()
            if found is None:
                raise InputRejectedError(
                    f"expected a published table '{self.table}', found none in {self.root}: run `logcal fit` first"
                )
            return found
        manifest = self._manifest(name)
        if manifest is None:
            name = full_name(self.table, name, self.names())
            manifest = self._manifest(name)
        return self._version(name, manifest or b"")

    def _version(self, name: str, manifest: bytes) -> Version:
        path = f"{self._versions.root}/{name}/{MANIFEST}"
        return Version(name, self._versions.located(name), read_manifest(path, manifest))

    def version_to_watch(self, name: str | None = None) -> Version:
        """`version`, for jobs that look at a table day by day: before its first fit they have nothing to do.

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
        """All versions, oldest first."""
        return [self.version(name) for name in self.names()]

    def known(self) -> Known:
        """The names of all versions, oldest first, and the journal's entries."""
        lists: list[Callable[[], Any]] = [self.names, self.journal.entries]
        names, entries = together(lambda listed: listed(), lists, remote=not self.local)
        return names, entries

    def find_run(self, run_id: str, there: Known | None = None) -> Version | None:
        """The newest version that a run with this id made, or None. there : if known."""
        names, entries = there or self.known()
        made_by = {entry.version: entry.run_id for entry in entries if entry.run_id}
        for name in reversed(names):
            # One that the journal does not know is of a run that was killed: its manifest says whose.
            version = self.version(name) if made_by.get(name, run_id) == run_id else None
            if version is not None and version.manifest.get("run_id") == run_id:
                return version
        return None

    def verify(self, version: Version) -> dict[str, bytes]:
        """Compare a version's lookup table, and the segments beside it, with their checksums; return their contents.

        Raises
        ------
        InputRejectedError
            They differ, or the file is gone.
        TemporaryError
            The store does not give it now.
        """
        contents = {}
        for name, facts in version.manifest["files"].items():
            if "/" in name:
                continue
            data = _given(self._versions / version.name, name)
            found = "no file" if data is None else hashlib.sha256(data).hexdigest()
            if data is None or found != facts["sha256"]:
                raise InputRejectedError(
                    f"{version.folder}/{name}: expected the sha256 {facts['sha256']} of its manifest, found {found}: "
                    "the version is damaged; go back to another with `logcal tables rollback`"
                )
            contents[name] = data
        return contents

    def _manifest(self, name: str) -> bytes | None:
        return _given(self._versions / name, MANIFEST) if _NAME.fullmatch(name) else None

    def predecessor(self, entries: list[Entry], now: str | None) -> str | None:
        """The version that a rollback would go back to, or None."""
        names = self.names()
        way = [name for name in trail(entries, names, now) if name in names and name != now]
        return way[-1] if way else None


def _given(folder: Folder, name: str) -> bytes | None:
    """Do `Folder.read`; errors of the store name the file."""
    try:
        return folder.read(name)
    except OSError as error:
        raise storage_error(f"{folder}/{name}", "published table's file", error) from error


MANIFEST = "manifest.json"
LOOKUP = "lookup.parquet"
SCORE_TABLE = "score_table"


@dataclass(frozen=True)
class Version:
    """A version that is in the store. `folder` is a local path or a URL."""

    name: str
    folder: str
    manifest: dict[str, Any]

    @property
    def lookup_path(self) -> str:
        """Path or URL of the lookup table."""
        return f"{self.folder}/{LOOKUP}"

    @property
    def refusals(self) -> list[dict[str, Any]]:
        """Why it was not made current: `rule` and `message` each; empty if nothing spoke against it."""
        return list(self.manifest.get("refused", ()))

    @property
    def candidate(self) -> bool:
        """True if its run was not to make it live, or was refused."""
        return self.manifest.get("publish") == CANDIDATE


def same_table(one: str, other: str) -> bool:
    """Tell whether versions of these names have the same table: a name ends with its fingerprint's first digits."""
    return one.partition("-")[2] == other.partition("-")[2]


def segments_of(version: Version) -> tuple[str, ...]:
    """The names of a version's segment columns; empty without segments."""
    return tuple((version.manifest.get("segments") or {}).get("columns", ()))


def fitted_until(manifest: Mapping[str, Any]) -> str:
    """Last day that a version's fit used, set aside or excluded: later days of its window had no labels yet."""
    window = manifest.get("window") or {}
    unlabelled = {day["day"] for day in window.get("days_unlabelled", ())}
    known = (day for day in window.get("days", ()) if day.get("rows_usable", day["rows_used"]))
    return max({day["day"] for day in known} - unlabelled, default=window.get("last", ""))


def days_fitted(manifest: Mapping[str, Any]) -> list[str]:
    """The days of a version's window to whose rows it was fitted, in order; empty without a window."""
    return [day["day"] for day in (manifest.get("window") or {}).get("days", ()) if day["rows_used"]]


def strange_days(version: Version) -> list[str]:
    """Days that a version's fit set aside, or used as drift, with the reasons."""
    window = version.manifest.get("window") or {}
    return [
        f"{day['day']} {said}: {'; '.join(day['reasons'])}"
        for key, said in (("days_set_aside", "set aside"), ("days_of_drift", "used as drift"))
        for day in window.get(key, ())
    ]


def check_segment_types(version: Version, log: Log) -> None:
    """Compare a log's segment columns with those that a version was fitted to.

    Raises
    ------
    InputRejectedError
        A column is of another kind, so that none of its values would be known.
    """
    fitted = version.manifest.get("log", {}).get("columns", {})
    known = {name: fitted[name] for name in segments_of(version) if name in fitted}
    if problems := segment_problems(known, log.types):
        raise InputRejectedError(f"the log's segments are not the table's.\n{listing(problems)}")


class Status(Enum):
    """Status of a version.

    UNFINISHED: it has never been current, though nothing speaks against it: its run was killed. REPLACED: others have
    been made current since.
    """

    CURRENT = "current"
    CANDIDATE = "candidate"
    REFUSED = "refused"
    TAKEN_BACK = "taken back"
    UNFINISHED = "unfinished"
    REPLACED = "replaced"


def status_of(version: Version, entries: Sequence[Entry], now: str | None) -> Status:
    """Return the status of a version.

    Parameters
    ----------
    entries : of the journal
    now : what CURRENT holds
    """
    if version.name == now:
        return Status.CURRENT
    if was_current(entries, version.name, now):
        return Status.TAKEN_BACK if taken_back(entries, version.name, now) else Status.REPLACED
    if version.candidate:
        return Status.REFUSED if version.refusals else Status.CANDIDATE
    # A version from before there was a journal, with a higher number than the current one, was taken back.
    if "publish" not in version.manifest and now is not None:
        return Status.TAKEN_BACK if version.name > now else Status.REPLACED
    return Status.UNFINISHED


_PACKAGES = ("logcal", "dask", "numpy", "numba", "pyarrow", "scikit-learn", "scipy")


def run_id(job: str, log: Log, settings: dict[str, Any]) -> str:
    """A digest of what a job's result depends on: its files, by path, size and modification, and its settings.

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
        "logcal": metadata.version("logcal"),
        "settings": settings,
        "files": [(file.path, file.size, file.stamp) for file in log.files],
    }
    if log.columns.labels is not None:
        content["labels"] = log.columns.labels.identity()
    if log.snapshots:
        content["snapshots"] = log.snapshots
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@functools.cache
def software() -> dict[str, str]:
    """Versions of what computed a result."""
    versions = ((package, metadata.version(package)) for package in _PACKAGES)
    return {"python": platform.python_version(), **dict(versions)}
