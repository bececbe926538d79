"""Store: published versions of lookup tables, and the name of the current one.

    <store>/<table>/CURRENT                         the current version's name
    <store>/<table>/journal.jsonl                   the changes of CURRENT; see `pipeline.table.journal`
    <store>/<table>/versions/<version>/lookup.parquet
    <store>/<table>/versions/<version>/manifest.json   files, rows, checksums, facts of the run
    <store>/<table>/versions/<version>/score_table/    if it is kept

A version is written under a name that readers ignore, its manifest last, then renamed. Then an entry is added to the
journal, and CURRENT is changed: only this last step is visible to readers. On object stores, which cannot rename, the
manifest and CURRENT are single writes, and a version without a manifest does not exist. Only CURRENT is ever
overwritten. All steps happen under a lock (`pipeline.files.locks`); after any interruption, the same command continues.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Sequence, Set
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from logcal import schema
from logcal.errors import InputRejectedError, NothingToDoError
from logcal.storage import with_checksum
from pipeline.files.faults import write_fault
from pipeline.files.folders import Folder
from pipeline.files.locks import FolderLock, locking
from pipeline.files.storage import redacted
from pipeline.table.journal import CANDIDATE, PROMOTE, PRUNE, PUBLISH, ROLLBACK, UNREADABLE, Entry
from pipeline.table.published import (
    CURRENT,
    MANIFEST,
    SCORE_TABLE,
    PublishedTable,
    Status,
    StoreState,
    Version,
    status_of,
)

_STAGING = ".staging-"


class TableStore(PublishedTable):
    """Read and write access to the versions of a table. Parameters: see `PublishedTable`."""

    def check_writable(self) -> None:
        """Check that a version can be published.

        Raises
        ------
        ConfigError
            No permission, or a file where a folder is needed.
        """
        self.folder.check_writable("$[store]")

    def publish(
        self,
        fingerprint: str,
        files: Callable[[str], dict[str, bytes]],
        manifest: dict[str, Any],
        score_table: str | None = None,
        *,
        candidate: bool = False,
        refuse: Callable[[Version | None], list[dict[str, Any]]] | None = None,
    ) -> Version:
        """Publish a new version and make it current, unless it is a candidate or is refused.

        Parameters
        ----------
        fingerprint : hex digest of the table's content; part of the version's name
        files : function from the version's name to the bytes of lookup.parquet and other files, by name
        manifest : facts of the run; the version's name, time, files and checksums are added. If `refused` has entries
            (each with rule and message), the version is saved as a candidate.
        score_table : folder of parts to keep with the version, or None
        candidate : whether to save it as a candidate in any case
        refuse : called with the current version under the lock; returns more entries of `refused`

        Raises
        ------
        NothingToDoError
            Another process has published the same run meanwhile.
        TemporaryError, ConfigError
            The store cannot be written to now, or not at all. CURRENT is unchanged.
        """
        with self._storing(), self._versions.staging(_STAGING) as staged:
            written = {} if staged is None else _keep(score_table, staged)
            with self.locked() as lock:
                names, entries = state = self.state()
                existing = self._published(manifest.get("run_id"), state, lock)
                if existing is not None:
                    return existing
                current = self.current()
                previous = None if current is None else current.name
                refused = [*manifest.get("refused", ()), *(refuse(current) if refuse else ())]
                if staged is None:
                    self._remove_unfinished(names)
                name = self._next_name(fingerprint, entries)
                folder = staged or self._versions / name
                if staged is None:
                    written = _keep(score_table, folder)
                for path, data in files(name).items():
                    written[path] = folder.write(path, data)
                complete = {
                    "format_version": schema.FORMAT_VERSION,
                    "table": self.table,
                    "version": name,
                    "previous_version": previous,
                    "created": datetime.now(UTC).isoformat(timespec="seconds"),
                    "fingerprint": fingerprint,
                    "publish": CANDIDATE if candidate or refused else "current",
                    **manifest,
                    "refused": refused,
                    "files": written,
                }
                lock.check()
                folder.write(
                    MANIFEST,
                    json.dumps(with_checksum(redacted(complete)), indent=2, allow_nan=False).encode(),
                )
                if staged is not None:
                    staged.appear(name)
                version = Version(name, str(self._versions / name), complete)
                self._enter(CANDIDATE if version.candidate else PUBLISH, version, previous, lock)
        return version

    def make_current(self, version: Version, event: str = PUBLISH) -> str | None:
        """Make an existing version current; return the previous content of CURRENT.

        Raises
        ------
        InputRejectedError
            The version is damaged.
        NothingToDoError
            The version is current already.
        """
        self.verify(version)
        with self.locked() as lock:
            previous = self.readable_current()
            if previous == version.name:
                raise NothingToDoError(f"version {version.name} of '{self.table}' is current: nothing to do")
            self._enter(event, version, previous, lock)
        return previous

    def enter_candidate(self, version: Version) -> None:
        """Add a candidate to the journal, if the run that made it was killed before it could."""
        if any(entry.version == version.name for entry in self.journal.entries()):
            return
        with self.locked() as lock:
            self._enter(CANDIDATE, version, self.readable_current(), lock)

    def promote(self, name: str) -> tuple[str | None, Version]:
        """Make a version current, such as a candidate; return the previous content of CURRENT, and the version."""
        version = self.version(name)
        return self.make_current(version, PROMOTE), version

    def rollback(self, name: str | None = None) -> tuple[str | None, Version]:
        """Make another version current: the named one, or the one that was current before.

        If CURRENT cannot be read, the latter is the version that it named last.

        Returns
        -------
        previous name, version

        Raises
        ------
        InputRejectedError
            There is no such version, or its files differ from their checksums.
        """
        if name is not None:
            name = self.version(name).name
        elif not self.names():
            raise InputRejectedError(
                f"table '{self.table}' has no version in {self.root}: nothing to go back to"
            )
        with self.locked() as lock:
            previous = self.readable_current()
            version = self.version(name or self._predecessor(previous))
            self.verify(version)
            if previous != version.name:
                self._enter(ROLLBACK, version, previous, lock)
        return previous, version

    def prune(self, keep: int, needed: Callable[[], Set[str]] = set) -> list[str]:
        """Remove all versions but the newest ones, the current one, and the one that a rollback would go back to.

        Parameters
        ----------
        keep : number of the newest versions to keep, >= 1
        needed : called under the lock; returns the names of further versions to keep

        Returns
        -------
        names of the removed versions, oldest first

        Raises
        ------
        InputRejectedError
            CURRENT has no name, or names a version that does not exist.
        """
        with self.locked() as lock:
            names, version, entries = self.names(), self.current(), self.journal.entries()
            current = None if version is None else version.name
            previous = None if current is None else self.predecessor(entries, current)
            retained = {*names[-keep:], previous, current, *needed()}
            removed = [name for name in names if name not in retained]
            for name in removed:
                lock.check()
                self.journal.add(PRUNE, name, current)
                # The manifest is removed first: without it, readers do not see the version.
                self._versions.remove(f"{name}/{MANIFEST}")
                self._versions.remove(name)
            self._remove_unfinished(self.names())
        return removed

    def _predecessor(self, current: str | None) -> str:
        name = self.predecessor(self.journal.entries(), current)
        if name is None and current in (None, UNREADABLE):
            published = (version.name for version in reversed(self.versions()) if not version.candidate)
            name = next(published, None)
        if name is None:
            raise InputRejectedError(
                f"table '{self.table}' has no version before {current or 'the first'}: nothing to go back to"
            )
        return name

    @contextmanager
    def locked(self) -> Iterator[FolderLock]:
        """Lock the table against other writers, and remove unfinished files of killed processes.

        Raises
        ------
        TemporaryError, ConfigError
            The store cannot be written to now, or not at all.
        """
        with self._storing(), locking(self.folder) as lock:
            if lock.sure:
                self.folder.tidy()
            yield lock

    @contextmanager
    def _storing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise write_fault(error, f"the store at {self.root}", "nothing was published") from error

    def _enter(self, event: str, version: Version, previous: str | None, lock: FolderLock) -> None:
        """Add an entry to the journal, then change CURRENT unless the entry is that of a candidate."""
        self.check_current()
        lock.check()
        notes = "; ".join(str(refusal["message"]) for refusal in version.refusals)
        run_id = version.manifest.get("run_id")
        self.journal.add(event, version.name, previous, run_id, notes if event == CANDIDATE else None)
        if event != CANDIDATE:
            self.folder.write(CURRENT, f"{version.name}\n".encode())

    def _published(self, run_id: str | None, state: StoreState, lock: FolderLock) -> Version | None:
        """Make the version that another process made of the same run current; return it, or None if there is none."""
        version = None if run_id is None else self.find_run(run_id, state)
        if version is None:
            return None
        current = self.current_name()
        # An unfinished or replaced version becomes current when its run is repeated.
        if status_of(version, state[1], current) not in (Status.UNFINISHED, Status.REPLACED):
            raise NothingToDoError(
                f"another process published the same log and configuration as version {version.name} meanwhile: "
                "nothing to do"
            )
        self._enter(PUBLISH, version, current, lock)
        return version

    def _remove_unfinished(self, names: Collection[str]) -> None:
        """Remove folders without a manifest, except staging folders, to which other processes may be writing."""
        for name in self._versions.names():
            if name not in names and not name.startswith("."):
                self._versions.remove(name)

    def _next_name(self, fingerprint: str, entries: Sequence[Entry]) -> str:
        """Return the name of a new version: the next number, and the first digits of the content's digest."""
        # Numbers of pruned versions are not used again.
        names = [*self._versions.names(), *(entry.version for entry in entries)]
        numbers = [re.match(r"(\d+)-", name) for name in names]
        newest = max((int(match[1]) for match in numbers if match), default=0)
        return f"{newest + 1:06d}-{fingerprint[:12]}"


def _keep(score_table: str | None, folder: Folder) -> dict[str, Any]:
    if score_table is None:
        return {}
    source = Folder.at(score_table)
    parts = [(f"{SCORE_TABLE}/{name}", name) for name in source.matching("*.parquet")]
    return {new: folder.copy(source, name, new) for new, name in parts}
