"""Who follows: one process holds a stream's ledger at a time; one taken for dead finds that before it writes."""

from __future__ import annotations

import json
import os
import socket
from contextlib import ExitStack

from logcal.errors import TemporaryError
from pipeline.files.folders import Folder
from pipeline.files.turns import taking_turns

_FACTS = "follower.json"


class Holder:
    """The right to write to a ledger.

    Parameters
    ----------
    folder : of the ledger

    Raises
    ------
    TemporaryError
        Another process holds it.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._held = ExitStack()
        try:
            self._turn = self._held.enter_context(taking_turns(folder, patience=0))
        except TemporaryError:
            by = folder.read_json(_FACTS)
            who = f"process {by['process']} on {by['host']}" if by else "another process"
            raise TemporaryError(
                f"{folder.root}: {who} follows this stream already: one is enough; stop it first, or let it go on"
            ) from None
        facts = {"host": socket.gethostname(), "process": os.getpid()}
        try:
            folder.replace(_FACTS, json.dumps(facts).encode())
        except BaseException:
            self.release()
            raise

    def check(self) -> None:
        """Before each write: make sure that it is still held.

        Raises
        ------
        TemporaryError
            Another process took it over.
        """
        try:
            self._turn.check()
        except TemporaryError:
            raise TemporaryError(
                f"{self._folder.root}: another follower took over while this one was paused: it goes on, this one ends"
            ) from None

    def release(self) -> None:
        """Give it up."""
        self._held.close()
