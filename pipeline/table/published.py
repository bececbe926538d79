"""A published table: its versions, and which of them is current; what those who only read it need.

`pipeline.table.store` says where everything lies, and how it got there.
"""

from __future__ import annotations

import hashlib
import json
import re

import fsspec

from logcal.errors import ConfigError, InputRejectedError, examples
from logcal.reading import not_given
from logcal.schema import FORMAT_VERSIONS, other_format
from pipeline.files.folders import Folder
from pipeline.table.journal import UNREADABLE, Entry, Journal, trail
from pipeline.table.run_index import RunIndex
from pipeline.table.version import MANIFEST, Version

CURRENT = "CURRENT"

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
        try:
            self.filesystem, root = fsspec.core.url_to_fs(path)
        except (ImportError, ValueError) as error:
            raise ConfigError(f"store.path: cannot open {path}: {error}") from None
        self.table = table
        self.folder = Folder(self.filesystem, f"{root.rstrip('/')}/{table}")
        self.local = self.folder.local
        self.root = self.folder.root
        self.url = self.root if self.local else str(self.filesystem.unstrip_protocol(self.root))
        self.journal = Journal(self.folder)
        self._versions = self.folder / "versions"
        self._index = RunIndex(self.folder)

    def current_name(self) -> str | None:
        """The name that CURRENT holds, or None before the first version.

        Raises
        ------
        InputRejectedError
            CURRENT holds no name.
        """
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
        if self._manifest(name) is None:
            raise InputRejectedError(
                f"{self.root}/{CURRENT} names version '{name}', which is not there; found "
                f"{examples(self.names()) or 'no versions'}: point it to one of them with `logcal tables rollback`"
            )
        return self.version(name)

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
        name = self._full_name(name)
        path = f"{self._versions.root}/{name}/{MANIFEST}"
        try:
            manifest = json.loads(self._manifest(name) or b"")
        except ValueError as error:
            raise InputRejectedError(
                f"{path}: expected JSON, found a damaged file ({error}): "
                "point CURRENT to another version with `logcal tables rollback`"
            ) from None
        other = manifest.get("format_version") if isinstance(manifest, dict) else None
        if other not in FORMAT_VERSIONS:
            raise InputRejectedError(f"{path}: {other_format(other)}")
        return Version(name, self._versions.located(name), manifest)

    def versions(self) -> list[Version]:
        """All versions, oldest first."""
        return [self.version(name) for name in self.names()]

    def find_run(self, run_id: str) -> Version | None:
        """The newest version that a run with this id made, or None."""
        for name, made_by in reversed(self._runs().items()):
            version = self.version(name) if made_by == run_id else None
            if version is not None and version.manifest.get("run_id") == run_id:
                return version
        return None

    def verify(self, version: Version) -> None:
        """Compare a version's lookup table, and the segments beside it, with their checksums.

        Raises
        ------
        InputRejectedError
            They differ, or the file is gone.
        TemporaryError
            The store does not give it now.
        """
        for name, facts in version.manifest["files"].items():
            if "/" in name:
                continue
            data = _given(self._versions / version.name, name)
            found = "no file" if data is None else hashlib.sha256(data).hexdigest()
            if found != facts["sha256"]:
                raise InputRejectedError(
                    f"{version.folder}/{name}: expected the sha256 {facts['sha256']} of its manifest, found {found}: "
                    "the version is damaged; go back to another with `logcal tables rollback`"
                )

    def _manifest(self, name: str) -> bytes | None:
        return _given(self._versions / name, MANIFEST) if _NAME.fullmatch(name) else None

    def _full_name(self, name: str) -> str:
        if self._manifest(name) is not None:
            return name
        names = self.names()
        found = [full for full in names if full.startswith(name)] if name else []
        if len(found) == 1:
            return found[0]
        if found:
            raise InputRejectedError(
                f"table '{self.table}' has {len(found)} versions that begin with '{name}': {examples(found)}; write "
                "more of the name"
            )
        raise InputRejectedError(
            f"table '{self.table}' has no version '{name}'; found {examples(names) or 'no versions'}"
        )

    def _runs(self) -> dict[str, str | None]:
        def look_up(name: str) -> str | None:
            try:
                run = self.version(name).manifest.get("run_id")
            except InputRejectedError:  # whoever uses that version is told
                return None
            return run if isinstance(run, str) else None

        return self._index.runs(self.names(), look_up)

    def predecessor(self, entries: list[Entry], now: str | None) -> str | None:
        """The version that a rollback would go back to, or None."""
        names = self.names()
        way = [name for name in trail(entries, names, now) if name in names and name != now]
        return way[-1] if way else None


def _given(folder: Folder, name: str) -> bytes | None:
    """As `Folder.read`; what the store says is said of the file."""
    try:
        return folder.read(name)
    except OSError as error:
        raise not_given(f"{folder}/{name}", "published table's file", error) from error
