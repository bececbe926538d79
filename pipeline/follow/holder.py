"""Who follows: one process holds a stream's ledger at a time.

On a mounted file system it holds a lock on the ledger's folder, which ends with the process however it ends. Elsewhere
it holds a lease: `holder/<epoch>.json`, created only where nothing is, and renewed. Another follower may take the next
epoch when the lease has run out; a holder that was paused finds that before it writes.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
import uuid
from pathlib import Path
from typing import Any

from fsspec.implementations.local import LocalFileSystem

from pipeline.errors import TemporaryError
from pipeline.files.creation import create, read_json, replace
from pipeline.files.locks import hold

LEASE = 60.0
"""Seconds for which a lease holds without being renewed."""


class Holder:
    """The right to write to a ledger.

    Parameters
    ----------
    filesystem, root : of the ledger

    Raises
    ------
    TemporaryError
        Another process holds it.
    """

    def __init__(self, filesystem: Any, root: str, clock: Any = time.time) -> None:
        self.filesystem = filesystem
        self.root = root
        self.clock = clock
        self.facts = {"host": socket.gethostname(), "process": os.getpid(), "holder": uuid.uuid4().hex}
        self.epoch = 0
        self._lock: int | None = None
        if isinstance(filesystem, LocalFileSystem):
            Path(root).mkdir(parents=True, exist_ok=True)
            self._lock = hold(Path(root))
            if self._lock is None:
                raise self._held(read_json(filesystem, f"{root}/follower.json"))
        else:
            self._take()
        try:
            replace(filesystem, f"{root}/follower.json", self._content())
        except OSError:
            # Nobody would release it, and the next follower would wait for a lease to run out.
            with contextlib.suppress(OSError):
                self.release()
            raise

    def _take(self) -> None:
        newest = self._newest()
        if newest:
            found = read_json(self.filesystem, self._path(newest)) or {}
            if found.get("until", 0) > self.clock():
                raise self._held(found)
        self.epoch = newest + 1
        if not create(self.filesystem, self._path(self.epoch), self._content()):
            raise self._held(read_json(self.filesystem, self._path(self.epoch)))

    def _newest(self) -> int:
        self.filesystem.invalidate_cache()
        try:
            names = self.filesystem.ls(f"{self.root}/holder", detail=False)
        except FileNotFoundError:
            return 0
        return max((int(name.rpartition("/")[2].removesuffix(".json")) for name in names), default=0)

    def check(self) -> None:
        """Before each write: make sure that it is still held, and renew a lease.

        Raises
        ------
        TemporaryError
            Another process took it over.
        """
        if self._lock is not None:
            return
        if self._newest() != self.epoch:
            raise TemporaryError(
                f"{self.root}: another follower took over while this one was paused: it goes on, this one ends"
            )
        replace(self.filesystem, self._path(self.epoch), self._content())

    def release(self) -> None:
        """Give it up."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        elif self.epoch and self._newest() == self.epoch:
            replace(self.filesystem, self._path(self.epoch), json.dumps({**self.facts, "until": 0}).encode())

    def _path(self, epoch: int) -> str:
        return f"{self.root}/holder/{epoch:012d}.json"

    def _content(self) -> bytes:
        return json.dumps({**self.facts, "epoch": self.epoch, "until": self.clock() + LEASE}).encode()

    def _held(self, by: dict[str, Any] | None) -> TemporaryError:
        who = f"process {by['process']} on {by['host']}" if by else "another process"
        return TemporaryError(
            f"{self.root}: {who} follows this stream already: one is enough; stop it first, or let it go on"
        )
