"""The store: published versions of lookup tables, and the pointer to the current one.

    <store>/<table>/CURRENT                         the current version's name
    <store>/<table>/versions/<version>/lookup.parquet
    <store>/<table>/versions/<version>/manifest.json   files, rows, checksums, facts of the run
    <store>/<table>/versions/<version>/score_table/    where it is kept

A version is written whole under a name that readers pass over, its manifest last, then renamed; moving CURRENT is
the last step and the only visible one. On object stores, which cannot rename, the manifest and CURRENT are single
writes, and a version without a manifest does not exist. Nothing is ever overwritten but CURRENT.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from pipeline import schema
from pipeline.errors import ConfigError, InputRejectedError, TemporaryError, examples
from pipeline.files.locks import make, remove, remove_dead
from pipeline.files.writable import check_writable

CURRENT = "CURRENT"
MANIFEST = "manifest.json"
LOOKUP = "lookup.parquet"
SCORE_TABLE = "score_table"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_STAGING = ".staging-"


@dataclass(frozen=True)
class Version:
    """A published version. `folder` is a local path or a URL."""

    name: str
    folder: str
    manifest: dict[str, Any]

    @property
    def lookup_path(self) -> str:
        """Path or URL of the lookup table."""
        return f"{self.folder}/{LOOKUP}"


def segments_of(version: Version) -> tuple[str, ...]:
    """The names of a version's segment columns; empty without segments."""
    return tuple(version.manifest.get("segments", {}).get("columns", ()))


class TableStore:
    """The versions of one table.

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
        try:
            self.filesystem, root = fsspec.core.url_to_fs(path)
        except (ImportError, ValueError) as error:
            raise ConfigError(f"store.path: cannot open {path}: {error}") from None
        self.table = table
        self.local = isinstance(self.filesystem, LocalFileSystem)
        self.root = f"{root.rstrip('/')}/{table}"

    def current_name(self) -> str | None:
        """The name that CURRENT holds, or None before the first version."""
        try:
            name: str = self.filesystem.cat_file(f"{self.root}/{CURRENT}").decode().strip()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return name

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
        names = self.names()
        if name not in names:
            raise InputRejectedError(
                f"{self.root}/{CURRENT} names version '{name}', which is not there; "
                f"found {examples(names) or 'no versions'}: point it to one of them with `logcal tables rollback`"
            )
        return self.version(name)

    def names(self) -> list[str]:
        """The names of all versions, oldest first."""
        try:
            folders = self.filesystem.ls(f"{self.root}/versions", detail=False)
        except (FileNotFoundError, NotADirectoryError):
            return []
        names = sorted(folder.rstrip("/").rpartition("/")[2] for folder in folders)
        return [
            name
            for name in names
            if _NAME.fullmatch(name) and self.filesystem.exists(f"{self._folder(name)}/{MANIFEST}")
        ]

    def version(self, name: str | None = None) -> Version:
        """A version by name, or the current one.

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
        folder = self._folder(name)
        try:
            if not _NAME.fullmatch(name):
                raise FileNotFoundError
            manifest = json.loads(self.filesystem.cat_file(f"{folder}/{MANIFEST}"))
        except (FileNotFoundError, NotADirectoryError):
            raise InputRejectedError(
                f"table '{self.table}' has no version '{name}'; found {examples(self.names()) or 'no versions'}"
            ) from None
        except ValueError as error:
            raise InputRejectedError(
                f"{folder}/{MANIFEST}: expected JSON, found a damaged file ({error}): "
                "point CURRENT to another version with `logcal tables rollback`"
            ) from None
        if manifest.get("format_version") != schema.FORMAT_VERSION:
            raise InputRejectedError(
                f"{folder}/{MANIFEST}: expected format_version {schema.FORMAT_VERSION}, found "
                f"{manifest.get('format_version')}: it was written by another version of logcal"
            )
        return Version(name, self._located(folder), manifest)

    def versions(self) -> list[Version]:
        """All versions, oldest first."""
        return [self.version(name) for name in self.names()]

    def find_run(self, run_id: str) -> Version | None:
        """The newest version that a run with this id published, or None."""
        return next((v for v in reversed(self.versions()) if v.manifest.get("run_id") == run_id), None)

    def check_writable(self) -> None:
        """Check that a version could be published here.

        Raises
        ------
        ConfigError
            No permission, or something in the way.
        """
        if self.local:
            check_writable(Path(self.root), "store.path")

    def publish(
        self,
        fingerprint: str,
        write_lookup: Callable[[str], bytes],
        manifest: dict[str, Any],
        score_table: Path | None = None,
        beside: dict[str, bytes] | None = None,
    ) -> Version:
        """Publish a new version and make it the current one.

        Parameters
        ----------
        fingerprint : hex digest of the table's content; part of the version's name
        write_lookup : from the version's name to the bytes of lookup.parquet
        manifest : facts of the run; the version's name, time, files and checksums are added
        score_table : folder of parts to keep with the version, or None
        beside : more files of the version, by name

        Raises
        ------
        TemporaryError
            The store cannot be written to now. CURRENT has not moved.
        """
        try:
            version = self._write_version(fingerprint, write_lookup, manifest, score_table, beside or {})
            self._point(version.name)
        except OSError as error:
            raise TemporaryError(
                f"the store at {self.root} cannot be written to ({error.strerror or error}); nothing was published"
            ) from error
        return version

    def _write_version(
        self,
        fingerprint: str,
        write_lookup: Callable[[str], bytes],
        manifest: dict[str, Any],
        score_table: Path | None,
        beside: dict[str, bytes],
    ) -> Version:
        name = self._next_name(fingerprint)
        lock = None
        if self.local:
            staging, lock = self._make_staging()
        else:
            staging = self._folder(name)
        try:
            files = {LOOKUP: write_lookup(name), **beside}
            written = {path: self._put(f"{staging}/{path}", data) for path, data in files.items()}
            if score_table is not None:
                for part in sorted(score_table.glob("*.parquet")):
                    path = f"{SCORE_TABLE}/{part.name}"
                    written[path] = self._put_file(part, f"{staging}/{path}")
            complete = {
                "format_version": schema.FORMAT_VERSION,
                "table": self.table,
                "version": name,
                "previous_version": self.current_name(),
                "created": datetime.now(UTC).isoformat(timespec="seconds"),
                "fingerprint": fingerprint,
                **manifest,
                "files": written,
            }
            self._put(f"{staging}/{MANIFEST}", json.dumps(complete, indent=2, allow_nan=False).encode())
            if self.local:
                _sync_folder(Path(staging))
                Path(staging).rename(self._folder(name))
                _sync_folder(Path(self.root) / "versions")
        finally:
            if self.local:
                remove(Path(staging))
            if lock is not None:
                os.close(lock)
        return Version(name, self._located(self._folder(name)), complete)

    def _make_staging(self) -> tuple[str, int | None]:
        """A folder for a version that is being written, held; what killed runs left is removed."""
        versions = Path(self.root) / "versions"
        versions.mkdir(parents=True, exist_ok=True)
        for left in versions.glob(f"{_STAGING}*"):
            remove_dead(left)
        staging = versions / f"{_STAGING}{uuid.uuid4().hex}"
        lock = make(staging)
        return str(staging), lock

    def _next_name(self, fingerprint: str) -> str:
        """The next number and the content's digest: unique, in order, and equal content is seen at a glance."""
        try:
            folders = self.filesystem.ls(f"{self.root}/versions", detail=False)
        except (FileNotFoundError, NotADirectoryError):
            folders = []
        numbers = [re.match(r"(\d+)-", folder.rstrip("/").rpartition("/")[2]) for folder in folders]
        newest = max((int(match[1]) for match in numbers if match), default=0)
        return f"{newest + 1:06d}-{fingerprint[:12]}"

    def rollback(self, name: str | None = None) -> tuple[str | None, Version]:
        """Point CURRENT to another version: the named one, or the newest before the current one.

        Returns
        -------
        previous name, version

        Raises
        ------
        InputRejectedError
            There is no such version, or its lookup table is not what its manifest says.
        """
        now = self.current_name()
        if name is None:
            older = [other for other in self.names() if now is None or other < now]
            if not older:
                raise InputRejectedError(
                    f"table '{self.table}' has no version before {now or 'the first'}: nothing to go back to"
                )
            name = older[-1]
        version = self.version(name)
        self.verify(version)
        self._point(name)
        return now, version

    def verify(self, version: Version) -> None:
        """Compare a version's lookup table, and the segments beside it, with their checksums.

        Raises
        ------
        InputRejectedError
            They differ, or the file is gone.
        """
        for name, facts in version.manifest["files"].items():
            if "/" in name:
                continue
            path = f"{version.folder}/{name}"
            try:
                found = hashlib.sha256(self.filesystem.cat_file(path)).hexdigest()
            except FileNotFoundError:
                found = "no file"
            if found != facts["sha256"]:
                raise InputRejectedError(
                    f"{path}: expected the sha256 {facts['sha256']} of its manifest, found {found}: "
                    "the version is damaged; go back to another with `logcal tables rollback`"
                )

    def _folder(self, name: str) -> str:
        return f"{self.root}/versions/{name}"

    def _located(self, path: str) -> str:
        """A path as those understand it who do not have this store's file system."""
        return path if self.local else str(self.filesystem.unstrip_protocol(path))

    def _point(self, name: str) -> None:
        path = f"{self.root}/{CURRENT}"
        if not self.local:
            self.filesystem.pipe_file(path, f"{name}\n".encode())
            return
        temporary = Path(f"{path}.{uuid.uuid4().hex}.tmp")
        _write_through(temporary, f"{name}\n".encode())
        temporary.replace(path)
        _sync_folder(Path(self.root))

    def _put(self, path: str, data: bytes) -> dict[str, Any]:
        if self.local:
            _write_through(Path(path), data)
        else:
            self.filesystem.pipe_file(path, data)
        return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}

    def _put_file(self, source: Path, path: str) -> dict[str, Any]:
        with source.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if self.local:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, path)
        else:
            self.filesystem.put_file(str(source), path)
        return {"bytes": source.stat().st_size, "sha256": digest}


def _write_through(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
