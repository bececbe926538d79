"""Locks on folders: exclusive for a run that changes a folder, shared for runs that use it meanwhile.

Of all runs that want to change a folder, on any machine, one does, and the others wait; or several use it together,
while none changes it.

On a mounted file system the folder itself is locked, and the lock ends with its process, however that ends. Object
stores have no locks: there a run puts an object into `lock/` and lists the others. It has the lock if it sees no
conflicting object: of two runs that have put theirs, the one that lists last sees the other. Otherwise it removes its
object and tries again later. This only needs a store that lists what was put; it needs no conditional writes, which
many stores lack. A process renews its object as long as it lives; a killed process's object is ignored once it is older
than a living process lets it become. The store's times give the age of both objects, so the machines' clocks may
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
"""Seconds that a run waits for others."""
LEASE = timedelta(minutes=3)
"""After which an object that has not been renewed is a dead run's."""
LOCKS = "lock"
_RANDOM = random.SystemRandom()


class FolderLock:
    """The right to change a folder, or to use it, for now.

    Attributes
    ----------
    sure : whether no other can have it too: false on a mounted file system without locks
    """

    def __init__(self, folder: Folder, name: str | None, sure: bool, facts: dict[str, Any]) -> None:
        self.sure = sure
        self._folder = folder
        self._name = name
        self._facts = facts
        self._ended = threading.Event()

    def now(self) -> datetime:
        """Read the clock of an object store, by renewing an object there."""
        assert self._name is not None
        self._folder.replace(self._name, _content(self._facts))
        return _taken(self._folder, self._name)

    def check(self) -> None:
        """Check that it has not been lost.

        Raises
        ------
        TemporaryError
            Others took this run for dead, such as when its machine was asleep.
        """
        if self._name is not None and self._folder.read(self._name) is None:
            raise TemporaryError(
                f"this run had the right to write to {self._folder.root}, and others took it for dead: run again"
            )

    @contextmanager
    def renewing(self) -> Iterator[FolderLock]:
        """Keep it until the block ends."""
        thread = threading.Thread(target=self._renew, name="logcal-lock", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._ended.set()
            thread.join()

    def _renew(self) -> None:
        while not self._ended.wait(max(LEASE.total_seconds() / 4, 1.0)):
            # Another try is soon enough; and what others have removed stays away.
            with suppress(Exception):
                if self._name is not None and self._folder.read(self._name) is not None:
                    self._folder.replace(self._name, _content(self._facts))


@contextmanager
def locking(folder: Folder, *, shared: bool = False, patience: float | None = None) -> Iterator[FolderLock]:
    """Wait until a folder, which is made if need be, may be changed, and keep others waiting meanwhile.

    shared : to use it, together with others who do
    patience : seconds to wait; None: those that runs usually wait

    Raises
    ------
    TemporaryError
        Another had it all the time.
    """
    folder.make()
    patience = PATIENCE if patience is None else patience
    with _flocked(folder, shared, patience) if folder.local else _alone(folder, shared, patience) as lock:
        yield lock


@contextmanager
def _flocked(folder: Folder, shared: bool, patience: float) -> Iterator[FolderLock]:
    descriptor = os.open(folder.root, os.O_RDONLY)
    try:
        yield FolderLock(folder, None, _flock(descriptor, folder.root, shared, patience), {})
    finally:
        os.close(descriptor)


def _flock(descriptor: int, root: str, shared: bool, patience: float) -> bool:
    """Tell whether it is locked now; false without locks."""
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
def _alone(folder: Folder, shared: bool, patience: float) -> Iterator[FolderLock]:
    name = f"{LOCKS}/{uuid.uuid4().hex}"
    facts = {"host": socket.gethostname(), "process": os.getpid(), "shared": shared}
    end = time.monotonic() + patience
    others: list[dict[str, Any]] = []
    now, then = datetime.min.replace(tzinfo=UTC), 0.0
    try:
        while True:
            if others:
                # Time passes for the store as it does here.
                passed = timedelta(seconds=time.monotonic() - then)
                others = _in_the_way(folder, name, shared, now + passed)
            if not others:
                folder.write(name, _content(facts))
                now, then = _taken(folder, name), time.monotonic()
                others = _in_the_way(folder, name, shared, now)
                if not others:
                    break
                folder.remove(name)
            who = f"a run on {others[0].get('host')} (process {others[0].get('process')})"
            _wait(end, patience, folder.root, who)
        with FolderLock(folder, name, True, facts).renewing() as lock:
            yield lock
    finally:
        with suppress(Exception):  # nobody minds it for long
            folder.remove(name)


def _in_the_way(folder: Folder, mine: str, shared: bool, now: datetime) -> list[dict[str, Any]]:
    return [other for other in living(folder, now, mine) if not (shared and other.get("shared"))]


def living(folder: Folder, now: datetime, mine: str | None = None) -> list[dict[str, Any]]:
    """List the facts of live lease owners and waiters in a store's folder; remove dead ones' files.

    now : by the store's clock. mine : the name of an object that is left out
    """
    found = []
    for other in (folder / LOCKS).names():
        name = f"{LOCKS}/{other}"
        data = None if name == mine else folder.read(name)
        if data is None:
            continue
        with suppress(FileNotFoundError):  # given back meanwhile
            if now - _taken(folder, name) < LEASE:
                found.append(_facts_in(data))
            else:
                folder.remove(name)
    return found


def _facts_in(data: bytes) -> dict[str, Any]:
    """Read the facts of a lease; empty if it is damaged, which keeps everybody out while it is renewed."""
    try:
        facts = parse_json(data)
    except ValueError:
        return {}
    return facts if isinstance(facts, dict) else {}


def _taken(folder: Folder, name: str) -> datetime:
    """Return the time at which a store took an object, by its clock, or else by the writer's."""
    path = f"{folder.root}/{name}"
    folder.filesystem.invalidate_cache(path.rpartition("/")[0])
    try:
        taken: datetime = folder.filesystem.modified(path)
    except NotImplementedError:
        taken = datetime.fromisoformat(parse_json(folder.filesystem.cat_file(path))["at"])
    return taken if taken.tzinfo else taken.replace(tzinfo=UTC)


def _content(facts: dict[str, Any]) -> bytes:
    return json.dumps({**facts, "at": datetime.now(UTC).isoformat(timespec="seconds")}).encode()


def _wait(end: float, patience: float, root: str, who: str) -> None:
    if time.monotonic() >= end:
        raise TemporaryError(f"{who} has been using {root} for {patience:.0f} s: run again later")
    time.sleep(_RANDOM.uniform(0.01, 0.2))


def hold(folder: Path) -> int | None:
    """Hold a folder as long as this process lives, or until the descriptor returned is closed.

    None: another process holds it, or the file system has no locks.

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
    """Make a folder and hold it; return what `hold` does. Nobody sees it by its name before it is held."""
    remove_abandoned(folder.parent)
    new = folder.with_name(f"{NEW}{uuid.uuid4().hex}")
    new.mkdir(mode)
    lock = hold(new)
    new.rename(folder)
    return lock


@contextmanager
def staging(home: Path, prefix: str, elsewhere: Collection[Path] = (), mode: int = 0o777) -> Iterator[Path]:
    """A folder for what is being written, which is renamed or else removed; what killed runs left of such is removed.

    elsewhere : further folders that runs may have left some in
    """
    for left in (found for place in {home, *elsewhere} for found in place.glob(f"{prefix}*")):
        remove_dead(left)
    folder = home / f"{prefix}{uuid.uuid4().hex}"
    lock = make(folder, mode)
    try:
        yield folder
    finally:
        remove(folder)
        if lock is not None:
            os.close(lock)


def remove_dead(folder: Path) -> None:
    """Remove a folder that no living process holds."""
    try:
        lock = hold(folder)
    except OSError:
        return
    if lock is not None:
        remove(folder)
        os.close(lock)
