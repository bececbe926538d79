"""One writer at a time: of all runs that want to change a folder, wherever they run, one does, and the others wait.

On a mounted file system the folder itself is locked, and the lock ends with its process however that ends. Object
stores have no locks: there a writer puts an object of its own into `lock/` and looks what else is there. Whoever is
alone may write, since of two who have put theirs the one who looks last sees the other; whoever is not takes his back
and tries again later. That asks of a store only that what has been put is listed, and no conditional writes, which many
lack. A writer that was killed leaves its object behind, which counts for nothing once it is older than a writer lets it
become.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import random
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from pipeline.errors import TemporaryError
from pipeline.files.folders import Folder

PATIENCE = 600.0
"""Seconds that a run waits for others."""
LEASE = timedelta(minutes=3)
"""After which an object that has not been renewed is a dead writer's."""
_LOCKS = "lock"
_RANDOM = random.SystemRandom()


class Turn:
    """The right to write to a folder, for now.

    Attributes
    ----------
    sure : whether no other can have it too: false on a mounted file system without locks
    """

    def __init__(self, folder: Folder, name: str | None, sure: bool) -> None:
        self.sure = sure
        self._folder = folder
        self._name = name
        self._renewed = datetime.now(UTC)

    def check(self) -> None:
        """Check that it has not been lost, and renew it if it has become old.

        Raises
        ------
        TemporaryError
            Others took this run for dead, such as when its machine was asleep.
        """
        if self._name is None:
            return
        if self._folder.read(self._name) is None:
            raise TemporaryError(
                f"this run had the right to write to {self._folder.root}, and others took it for dead: run again"
            )
        if datetime.now(UTC) - self._renewed > LEASE / 4:
            self._renewed = datetime.now(UTC)
            self._folder.replace(self._name, _facts())


@contextmanager
def taking_turns(folder: Folder) -> Iterator[Turn]:
    """Wait until no other run writes to a folder, which is made if need be, and keep others waiting meanwhile.

    Raises
    ------
    TemporaryError
        Another had it all the time that a run waits.
    """
    folder.make()
    with _flocked(folder) if folder.local else _alone(folder) as turn:
        yield turn


@contextmanager
def _flocked(folder: Folder) -> Iterator[Turn]:
    descriptor = os.open(folder.root, os.O_RDONLY)
    try:
        yield Turn(folder, None, _flock(descriptor, folder.root))
    finally:
        os.close(descriptor)


def _flock(descriptor: int, root: str) -> bool:
    """Whether it is locked now; false where there are no locks."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                return False
        else:
            return True
        _wait(end, root, "another run")


@contextmanager
def _alone(folder: Folder) -> Iterator[Turn]:
    name = f"{_LOCKS}/{uuid.uuid4().hex}"
    end = time.monotonic() + PATIENCE
    try:
        while True:
            others = _living(folder, name)
            if not others:
                folder.write(name, _facts())
                others = _living(folder, name)
            if not others:
                break
            folder.remove(name)
            _wait(end, folder.root, f"a run on {others[0].get('host')} (process {others[0].get('process')})")
        yield Turn(folder, name, True)
    finally:
        folder.remove(name)


def _living(folder: Folder, mine: str) -> list[dict[str, Any]]:
    """What other living writers say of themselves; what dead ones left is removed."""
    found = []
    for other in (folder / _LOCKS).names():
        name = f"{_LOCKS}/{other}"
        data = None if name == mine else folder.read(name)
        if data is None:
            continue
        facts = json.loads(data)
        if datetime.now(UTC) - datetime.fromisoformat(facts["at"]) < LEASE:
            found.append(facts)
        else:
            folder.remove(name)
    return found


def _facts() -> bytes:
    facts = {
        "host": socket.gethostname(),
        "process": os.getpid(),
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    return json.dumps(facts).encode()


def _wait(end: float, root: str, who: str) -> None:
    if time.monotonic() > end:
        raise TemporaryError(f"{who} has been writing to {root} for {PATIENCE:.0f} s: run again later")
    time.sleep(_RANDOM.uniform(0.01, 0.2))
