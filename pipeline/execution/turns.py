"""Turns of threads at what Python's lock lets only one of them do."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")

_TIMES = 3.0
"""Steps wait for storage most of the time when they took so many times as long as they computed in."""


class Turns:
    """Steps on small files by several threads: one at a time, unless they wait for storage most of the time.

    Nearly all that a step does needs Python's own lock, and threads that wrest it from each other take some third
    longer than one after the other. Where files are far, as in a mounted network folder, threads that wait side by
    side are worth more.

    Attributes
    ----------
    alone : whether steps take turns: at first, and until they have waited long
    """

    def __init__(self, waited: float) -> None:
        """`waited` : seconds of waiting from which on it counts."""
        self.alone = True
        self._waited = waited
        self._turn = threading.Lock()
        self._seconds = self._computed = 0.0

    def run(self, step: Callable[[], Result]) -> Result:
        """Do a step in this thread's turn."""
        if not self.alone:
            return step()
        with self._turn:
            begun, own = time.monotonic(), time.thread_time()
            try:
                return step()
            finally:
                self._seconds += time.monotonic() - begun
                self._computed += time.thread_time() - own
                if self._seconds > max(self._computed + self._waited, _TIMES * self._computed):
                    self.alone = False
