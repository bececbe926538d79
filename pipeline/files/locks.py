"""Locks on folders: exclusive for a run that changes a folder, shared for runs that use it.

Among the runs on all machines that want to change a folder, one has the lock and the others wait; or several share the
lock to use the folder, and none changes it.

On a mounted file system the folder itself is locked, and the lock ends with its process, however that ends. In an
object store a run creates an object, its lease, in `lock/`, whose name is a number that no other lease has: the store
must create objects conditionally. The number must be the largest in the folder once it is there; otherwise the run
takes the next one. It then has the lock once no conflicting lease has a smaller number. A process renews its lease as
long as it lives; a lease that was not renewed for `LEASE` belongs to a killed process and is removed. Ages are computed
from the store's times, so the machines' clocks may differ.
"""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from logcal.errors import InputRejectedError, TemporaryError
from pipeline.files.folders import Folder, LocalFolder, StoreFolder

PATIENCE = 600.0
"""Seconds that a run waits for a lock."""
LEASE = timedelta(minutes=3)
"""Age from which a lease that was not renewed belongs to a dead run."""
LOCKS = "lock"


class FolderLock:
    """Lock on a folder of a mounted file system that this process holds.

    Attributes
    ----------
    sure : whether no other process can hold a conflicting lock: false on a mounted file system without locks
    """

    def __init__(self, *, sure: bool) -> None:
        self.sure = sure

    def now(self) -> datetime:
        """Return the time by the clock of the folder's store."""
        return datetime.now(UTC)

    def check(self) -> None:
        """Check that the lock has not been lost.

        Raises
        ------
        TemporaryError
            Another run removed the lease, which had expired, for example because this machine was asleep.
        """


class _Lease(FolderLock):
    """Lease on a folder of an object store, see `held`. shared : see `locking`."""

    def __init__(self, folder: Folder, *, shared: bool) -> None:
        super().__init__(sure=True)
        self._folder = folder
        self._shared = shared
        self._number = 1
        facts = {"host": socket.gethostname(), "process": os.getpid(), "shared": shared}
        self._content = json.dumps({**facts, "token": uuid.uuid4().hex}).encode()
        self._ahead = 0.0
        self._ended = threading.Event()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Create the lease, and renew it on a thread until the block ends; then remove it."""
        thread = threading.Thread(target=self._renew, name="logcal-lock", daemon=True)
        try:
            self._create()
            self._ahead = _modified(self._folder, self._name).timestamp() - time.monotonic()
            thread.start()  # only now, when the number changes no more
            yield
        finally:
            self._ended.set()
            if thread.is_alive():
                thread.join()
            with suppress(Exception):  # a lease that remains expires
                if self._is_mine():
                    self._folder.remove(self._name)

    def _create(self) -> None:
        """Create the lease with a number that is larger than that of any lease that was created before."""
        while True:
            # A client that lost the store's answer repeats its request, and finds what it has created.
            created = self._folder.create(self._name, self._content) or self._is_mine()
            newest = max(_numbers(self._folder), default=0)
            if created and newest <= self._number:
                return
            if created:
                self._folder.remove(self._name)
            self._number = newest + 1

    @property
    def _name(self) -> str:
        return _lease_name(self._number)

    def _is_mine(self) -> bool:
        return self._folder.read(self._name) == self._content

    def _renew(self) -> None:
        while not self._ended.wait(max(LEASE.total_seconds() / 4, 1.0)):
            # After an error the next renewal is early enough. A lease that another run removed is not written again.
            with suppress(Exception):
                if self._is_mine():
                    self._folder.write(self._name, self._content)

    def now(self) -> datetime:
        """See `FolderLock.now`."""
        # The store's clock is assumed to run as fast as this machine's.
        return datetime.fromtimestamp(time.monotonic() + self._ahead, UTC)

    def conflict(self) -> dict[str, Any] | None:
        """Return the facts of a conflicting lease that was created before; None if there is none."""
        leases = live_leases(self._folder, self.now(), self._number)
        return next((lease for lease in leases if not (self._shared and lease.get("shared"))), None)

    def check(self) -> None:
        """See `FolderLock.check`."""
        if not self._is_mine():
            raise TemporaryError(
                f"this run had the right to write to {self._folder.root}, and others took it for dead: run again"
            )


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
    with _LOCKING[type(folder)](folder, shared, PATIENCE if patience is None else patience) as lock:
        yield lock


@contextmanager
def _flocked(folder: Folder, shared: bool, patience: float) -> Iterator[FolderLock]:
    descriptor = os.open(folder.root, os.O_RDONLY)
    try:
        yield FolderLock(sure=_flock(descriptor, folder.root, shared, patience))
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
    end = time.monotonic() + patience
    lease = _Lease(folder, shared=shared)
    with lease.held():
        while (owner := lease.conflict()) is not None:
            _wait(
                end, patience, folder.root, f"a run on {owner.get('host')} (process {owner.get('process')})"
            )
            lease.check()
        yield lease


_LOCKING = {LocalFolder: _flocked, StoreFolder: _leased}


def _numbers(folder: Folder) -> list[int]:
    return [int(name) for name in (folder / LOCKS).matching("[0-9]*") if name.isdecimal()]


def _lease_name(number: int) -> str:
    return f"{LOCKS}/{number:06d}"


def live_leases(folder: Folder, now: datetime, before: float = math.inf) -> list[dict[str, Any]]:
    """List the facts of the live leases in a store's folder; remove expired leases.

    now : time by the store's clock
    before : only leases with smaller numbers
    """
    leases = []
    for name in [_lease_name(number) for number in _numbers(folder) if number < before]:
        with suppress(FileNotFoundError):  # its owner removed it in the meantime
            if now - _modified(folder, name) >= LEASE:
                folder.remove(name)
                continue
            try:
                leases.append(folder.read_json(name) or {})
            except InputRejectedError:  # damaged: it conflicts with all others until it expires
                leases.append({})
    return leases


def _modified(folder: Folder, name: str) -> datetime:
    """Return the time at which an object was written, by the store's clock."""
    path = f"{folder.root}/{name}"
    folder.filesystem.invalidate_cache(path.rpartition("/")[0])
    modified: datetime = folder.filesystem.modified(path)
    return modified if modified.tzinfo else modified.replace(tzinfo=UTC)


def _wait(end: float, patience: float, root: str, owner: str) -> None:
    if time.monotonic() >= end:
        raise TemporaryError(f"{owner} has been using {root} for {patience:.0f} s: run again later")
    time.sleep(0.1)
