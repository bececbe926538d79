"""The store: published versions of lookup tables, and the pointer to the current one.

    <store>/<table>/CURRENT                         the current version's name
    <store>/<table>/journal.jsonl                   what was made current when; see `pipeline.table.journal`
    <store>/<table>/versions/<version>/lookup.parquet
    <store>/<table>/versions/<version>/manifest.json   files, rows, checksums, facts of the run
    <store>/<table>/versions/<version>/score_table/    where it is kept

A version is written whole under a name that readers ignore, its manifest last, then renamed. Then the journal announces
it, and CURRENT is changed: the last step, and the only visible one. On object stores, which cannot rename, the manifest
and CURRENT are single writes, and a version without a manifest does not exist. Only CURRENT is ever
overwritten. All this happens under a lock (`pipeline.files.locks`); after any interruption, the same command continues.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Sequence, Set
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from logcal import schema
from logcal.errors import InputRejectedError, NothingToDoError
from logcal.storage import with_checksum
from pipeline.files.faults import write_fault
from pipeline.files.folders import Folder, check_writable
from pipeline.files.locks import FolderLock, locking, staging
from pipeline.files.storage import redacted
from pipeline.table.journal import CANDIDATE, PROMOTE, PRUNE, PUBLISH, ROLLBACK, UNREADABLE, Entry
from pipeline.table.published import (
    CURRENT,
    LOOKUP,
    MANIFEST,
    SCORE_TABLE,
    Known,
    PublishedTable,
    Status,
    Version,
    status_of,
)

_STAGING = ".staging-"


class TableStore(PublishedTable):
    """The versions of one table, to be read and changed. Its parameters are those of `PublishedTable`."""

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
        score_table: str | None = None,
        beside: dict[str, bytes] | None = None,
        *,
        candidate: bool = False,
        refuse: Callable[[Version | None], list[dict[str, Any]]] | None = None,
    ) -> Version:
        """Publish a new version and make it the current one, unless something speaks against that.

        Parameters
        ----------
        fingerprint : hex digest of the table's content; part of the version's name
        write_lookup : from the version's name to the bytes of lookup.parquet
        manifest : facts of the run; the version's name, time, files and checksums are added. With `refused` (rule and
            message each) the version is saved as a candidate.
        score_table : folder of parts to keep with the version, or None
        beside : more files of the version, by name
        candidate : keep it as a candidate in any case
        refuse : asked with the current version, when no other run can move CURRENT any more: what else is `refused`

        Raises
        ------
        NothingToDoError
            The same run has been published meanwhile, by another process.
        TemporaryError, ConfigError
            The store cannot be written to now, or not at all. CURRENT has not moved.
        """
        with self._storing(), self._staging() as local:
            written = {} if local is None else _keep(score_table, Folder(self.filesystem, str(local)))
            with self.locked() as lock:
                there = self.known()
                meanwhile = self._published(manifest.get("run_id"), there, lock)
                if meanwhile is not None:
                    return meanwhile
                now = self.current()
                before = None if now is None else now.name
                refused = [*manifest.get("refused", ()), *(refuse(now) if refuse else ())]
                if local is None:
                    self._remove_unfinished(there[0])
                name = self._next_name(fingerprint, there[1])
                place = self._versions / name if local is None else Folder(self.filesystem, str(local))
                if local is None:
                    written = _keep(score_table, place)
                for path, data in {LOOKUP: write_lookup(name), **(beside or {})}.items():
                    written[path] = place.write(path, data)
                complete = {
                    "format_version": schema.FORMAT_VERSION,
                    "table": self.table,
                    "version": name,
                    "previous_version": before,
                    "created": datetime.now(UTC).isoformat(timespec="seconds"),
                    "fingerprint": fingerprint,
                    "publish": CANDIDATE if candidate or refused else "current",
                    **manifest,
                    "refused": refused,
                    "files": written,
                }
                lock.check()
                place.write(
                    MANIFEST,
                    json.dumps(with_checksum(redacted(complete)), indent=2, allow_nan=False).encode(),
                )
                if local is not None:
                    self._versions.appear(local, name)
                version = Version(name, self._versions.located(name), complete)
                self._enter(CANDIDATE if version.candidate else PUBLISH, version, before, lock)
        return version

    def make_current(self, version: Version, event: str = PUBLISH) -> str | None:
        """Make a version current that is there; return what CURRENT held.

        Raises
        ------
        InputRejectedError
            It is damaged.
        NothingToDoError
            It is current.
        """
        self.verify(version)
        with self.locked() as lock:
            now = self.readable_current()
            if now == version.name:
                raise NothingToDoError(f"version {version.name} of '{self.table}' is current: nothing to do")
            self._enter(event, version, now, lock)
        return now

    def enter_candidate(self, version: Version) -> None:
        """Say in the journal that there is a candidate, if the run that made it was killed before it could."""
        if any(entry.version == version.name for entry in self.journal.entries()):
            return
        with self.locked() as lock:
            self._enter(CANDIDATE, version, self.readable_current(), lock)

    def promote(self, name: str) -> tuple[str | None, Version]:
        """Make a version current, such as a candidate; return what CURRENT held, and it. Errors: as `make_current`."""
        version = self.version(name)
        return self.make_current(version, PROMOTE), version

    def rollback(self, name: str | None = None) -> tuple[str | None, Version]:
        """Point CURRENT to another version: the named one, or the one that was current before.

        Where CURRENT holds nothing that can be read, to the one that it held.

        Returns
        -------
        previous name, version

        Raises
        ------
        InputRejectedError
            There is no such version, or its lookup table is not what its manifest says.
        """
        if name is not None:
            name = self.version(name).name
        elif not self.names():
            raise InputRejectedError(
                f"table '{self.table}' has no version in {self.root}: nothing to go back to"
            )
        with self.locked() as lock:
            now = self.readable_current()
            version = self.version(name or self._before(now))
            self.verify(version)
            if now != version.name:
                self._enter(ROLLBACK, version, now, lock)
        return now, version

    def prune(self, keep: int, needed: Callable[[], Set[str]] = set) -> list[str]:
        """Remove all versions but the newest ones, the current one, and the one that a rollback would go back to.

        Parameters
        ----------
        keep : how many of the newest stay, >= 1
        needed : asked when no other process can change the table: names of versions that stay, too

        Returns
        -------
        the names of those that were removed, oldest first

        Raises
        ------
        InputRejectedError
            CURRENT holds no name, or that of a version that is not there.
        """
        with self.locked() as lock:
            names, now, entries = self.names(), self.current(), self.journal.entries()
            before = None if now is None else self.predecessor(entries, now.name)
            stay = {*names[-keep:], before, None if now is None else now.name, *needed()}
            gone = [name for name in names if name not in stay]
            for name in gone:
                lock.check()
                self.journal.add(PRUNE, name, None if now is None else now.name)
                # Without a manifest there is no version, so nobody sees a part of one.
                self._versions.remove(f"{name}/{MANIFEST}")
                self._versions.remove(name)
            self._remove_unfinished(self.names())
        return gone

    def _before(self, now: str | None) -> str:
        found = self.predecessor(self.journal.entries(), now)
        if found is None and now in (None, UNREADABLE):
            found = next(
                (version.name for version in reversed(self.versions()) if not version.candidate), None
            )
        if found is None:
            raise InputRejectedError(
                f"table '{self.table}' has no version before {now or 'the first'}: nothing to go back to"
            )
        return found

    @contextmanager
    def locked(self) -> Iterator[FolderLock]:
        """Be the only one who changes this table; what killed processes left of CURRENT is removed.

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

    def _enter(self, event: str, version: Version, now: str | None, lock: FolderLock) -> None:
        """Say it in the journal, then move CURRENT if that is what happened."""
        self.check_current()
        lock.check()
        notes = "; ".join(str(refusal["message"]) for refusal in version.refusals)
        run_id = version.manifest.get("run_id")
        self.journal.add(event, version.name, now, run_id, notes if event == CANDIDATE else None)
        if event != CANDIDATE:
            self.folder.replace(CURRENT, f"{version.name}\n".encode())

    def _published(self, run_id: str | None, there: Known, lock: FolderLock) -> Version | None:
        """Version that another process made of the same run meanwhile, live now; None if there is none."""
        found = None if run_id is None else self.find_run(run_id, there)
        if found is None:
            return None
        now = self.current_name()
        # Others its run, run again, makes live.
        if status_of(found, there[1], now) not in (Status.UNFINISHED, Status.REPLACED):
            raise NothingToDoError(
                f"another process published the same log and configuration as version {found.name} meanwhile: "
                "nothing to do"
            )
        self._enter(PUBLISH, found, now, lock)
        return found

    def _staging(self) -> AbstractContextManager[Path | None]:
        """A local folder for a version that is being written; what killed runs left is removed."""
        self._versions.make()
        return staging(Path(self._versions.root), _STAGING) if self.local else nullcontext()

    def _remove_unfinished(self, there: Collection[str]) -> None:
        """Remove what killed runs left; of a mounted store what pruning left: others may be writing a version."""
        for name in self._versions.names():
            if name not in there and not (self.local and name.startswith(".")):
                self._versions.remove(name)

    def _next_name(self, fingerprint: str, entries: Sequence[Entry]) -> str:
        """The next number and the content's digest: unique, in order, and equal content is seen at a glance."""
        # Numbers of versions that were pruned are not given again.
        names = [*self._versions.names(), *(entry.version for entry in entries)]
        numbers = [re.match(r"(\d+)-", name) for name in names]
        newest = max((int(match[1]) for match in numbers if match), default=0)
        return f"{newest + 1:06d}-{fingerprint[:12]}"


def _keep(score_table: str | None, place: Folder) -> dict[str, Any]:
    if score_table is None:
        return {}
    source = Folder.at(score_table)
    parts = [(f"{SCORE_TABLE}/{name}", name) for name in source.matching("*.parquet")]
    return {new: place.copy(source, name, new) for new, name in parts}
