"""Locks on folders: exclusive for a run that changes a folder, shared for runs that use it.

Among the runs on all machines that want to change a folder, one has the lock and the others wait; or several share the
lock to use the folder, and none changes it.

On a mounted file system the folder itself is locked, and the lock ends with its process, however that ends. Object
stores have no locks: there a run puts an object, its lease, into `lock/` and lists the others. It has the lock if it
sees no conflicting lease: of two runs that have put leases, the one that lists last sees the other's. Otherwise it
removes its lease and tries again later. The store must list every object that was put; conditional writes, which many
stores lack, are not needed. A process renews its lease as long as it lives; a lease that was not renewed for `LEASE`
belongs to a killed process and is ignored. Ages are computed from the store's times, so the machines' clocks may
differ.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import random
import socket
import threading
import time
import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from logcal.errors import TemporaryError
from logcal.storage import parse_json
from pipeline.files.folders import NEW, Folder, remove, remove_abandoned

PATIENCE = 600.0
"""Seconds that a run waits for a lock."""
LEASE = timedelta(minutes=3)
"""Age from which a lease that was not renewed belongs to a dead run."""
LOCKS = "lock"
_RANDOM = random.SystemRandom()


class FolderLock:
    """Lock on a folder that this process holds.

    Attributes
    ----------
    sure : whether no other process can hold a conflicting lock: false on a mounted file system without locks
    """

    def __init__(self, folder: Folder, name: str | None, sure: bool, facts: dict[str, Any]) -> None:
        self.sure = sure
        self._folder = folder
        self._name = name
        self._facts = facts
        self._ended = threading.Event()

    def now(self) -> datetime:
        """Return the time by an object store's clock, read by renewing the lease."""
        assert self._name is not None
        self._folder.replace(self._name, _encode(self._facts))
        return _modified(self._folder, self._name)

    def check(self) -> None:
        """Check that the lock has not been lost.

        Raises
        ------
        TemporaryError
            Another run removed the lease, which had expired, for example because this machine was asleep.
        """
        if self._name is not None and self._folder.read(self._name) is None:
            raise TemporaryError(
                f"this run had the right to write to {self._folder.root}, and others took it for dead: run again"
            )

    @contextmanager
    def renewing(self) -> Iterator[FolderLock]:
        """Renew the lease on a thread until the block ends."""
        thread = threading.Thread(target=self._renew, name="logcal-lock", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._ended.set()
            thread.join()

    def _renew(self) -> None:
        while not self._ended.wait(max(LEASE.total_seconds() / 4, 1.0)):
            # After an error the next renewal is early enough. A lease that another run removed is not written again.
            with suppress(Exception):
                if self._name is not None and self._folder.read(self._name) is not None:
                    self._folder.replace(self._name, _encode(self._facts))


@contextmanager
def locking(folder: Folder, *, shared: bool = False, patience: float | None = None) -> Iterator[FolderLock]:
    """Lock a folder, which is created if needed, until the block ends.

    shared : whether other shared locks are allowed
    patience : seconds to wait for the lock; None: `PATIENCE`

    Raises
    ------
    TemporaryError
        Another run held the lock all the time.
    """
    folder.make()
    patience = PATIENCE if patience is None else patience
    with _flocked(folder, shared, patience) if folder.local else _leased(folder, shared, patience) as lock:
        yield lock


@contextmanager
def _flocked(folder: Folder, shared: bool, patience: float) -> Iterator[FolderLock]:
    descriptor = os.open(folder.root, os.O_RDONLY)
    try:
        yield FolderLock(folder, None, _flock(descriptor, folder.root, shared, patience), {})
    finally:
        os.close(descriptor)


def _flock(descriptor: int, root: str, shared: bool, patience: float) -> bool:
    """Wait for the lock; return False if the file system has no locks."""
    end = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                return False
        else:
            return True
        _wait(end, patience, root, "another run")


@contextmanager
def _leased(folder: Folder, shared: bool, patience: float) -> Iterator[FolderLock]:
    name = f"{LOCKS}/{uuid.uuid4().hex}"
    facts = {"host": socket.gethostname(), "process": os.getpid(), "shared": shared}
    end = time.monotonic() + patience
    conflicts: list[dict[str, Any]] = []
    store_time, read_at = datetime.min.replace(tzinfo=UTC), 0.0
    try:
        while True:
            if conflicts:
                # The store's clock is assumed to run as fast as this machine's.
                elapsed = timedelta(seconds=time.monotonic() - read_at)
                conflicts = _conflicts(folder, name, shared, store_time + elapsed)
            if not conflicts:
                folder.write(name, _encode(facts))
                store_time, read_at = _modified(folder, name), time.monotonic()
                conflicts = _conflicts(folder, name, shared, store_time)
                if not conflicts:
                    break
                folder.remove(name)
            owner = f"a run on {conflicts[0].get('host')} (process {conflicts[0].get('process')})"
            _wait(end, patience, folder.root, owner)
        with FolderLock(folder, name, True, facts).renewing() as lock:
            yield lock
    finally:
        with suppress(Exception):  # a lease that remains expires
            folder.remove(name)


def _conflicts(folder: Folder, mine: str, shared: bool, now: datetime) -> list[dict[str, Any]]:
    return [other for other in live_leases(folder, now, mine) if not (shared and other.get("shared"))]


def live_leases(folder: Folder, now: datetime, mine: str | None = None) -> list[dict[str, Any]]:
    """List the facts of the live leases in a store's folder; remove expired leases.

    now : time by the store's clock
    mine : name of a lease that is left out
    """
    leases = []
    for other in (folder / LOCKS).names():
        name = f"{LOCKS}/{other}"
        data = None if name == mine else folder.read(name)
        if data is None:
            continue
        with suppress(FileNotFoundError):  # its owner removed it in the meantime
            if now - _modified(folder, name) < LEASE:
                leases.append(_decode(data))
            else:
                folder.remove(name)
    return leases


def _decode(data: bytes) -> dict[str, Any]:
    """Decode the facts of a lease; a damaged lease has none, and conflicts with all others until it expires."""
    try:
        facts = parse_json(data)
    except ValueError:
        return {}
    return facts if isinstance(facts, dict) else {}


def _modified(folder: Folder, name: str) -> datetime:
    """Return the time at which an object was written, by the store's clock, or else by the writer's."""
    path = f"{folder.root}/{name}"
    folder.filesystem.invalidate_cache(path.rpartition("/")[0])
    try:
        modified: datetime = folder.filesystem.modified(path)
    except NotImplementedError:
        modified = datetime.fromisoformat(parse_json(folder.filesystem.cat_file(path))["at"])
    return modified if modified.tzinfo else modified.replace(tzinfo=UTC)


def _encode(facts: dict[str, Any]) -> bytes:
    return json.dumps({**facts, "at": datetime.now(UTC).isoformat(timespec="seconds")}).encode()


def _wait(end: float, patience: float, root: str, owner: str) -> None:
    if time.monotonic() >= end:
        raise TemporaryError(f"{owner} has been using {root} for {patience:.0f} s: run again later")
    time.sleep(_RANDOM.uniform(0.01, 0.2))


def hold(folder: Path) -> int | None:
    """Lock a folder exclusively until this process ends or the returned descriptor is closed.

    Return None if another process holds the lock, or if the file system has no locks.

    Raises
    ------
    OSError
        There is no such folder.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def make(folder: Path, mode: int = 0o777) -> int | None:
    """Create a folder and lock it as `hold` does. It gets its name only once it is locked."""
    remove_abandoned(folder.parent)
    new = folder.with_name(f"{NEW}{uuid.uuid4().hex}")
    new.mkdir(mode)
    lock = hold(new)
    new.rename(folder)
    return lock


@contextmanager
def staging(home: Path, prefix: str, elsewhere: Collection[Path] = (), mode: int = 0o777) -> Iterator[Path]:
    """Create a locked staging folder in `home`; remove it at the end unless it was renamed.

    Staging folders of killed runs, with the same prefix, are removed first.

    elsewhere : further folders in which earlier runs may have left staging folders
    """
    for stale in (path for parent in {home, *elsewhere} for path in parent.glob(f"{prefix}*")):
        remove_dead(stale)
    folder = home / f"{prefix}{uuid.uuid4().hex}"
    lock = make(folder, mode)
    try:
        yield folder
    finally:
        remove(folder)
        if lock is not None:
            os.close(lock)


def remove_dead(folder: Path) -> None:
    """Remove a folder unless a living process holds its lock."""
    try:
        lock = hold(folder)
    except OSError:
        return
    if lock is not None:
        remove(folder)
        os.close(lock)
