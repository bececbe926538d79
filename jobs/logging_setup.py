"""The command's own log lines, on stderr; the root logger and other libraries' stay as they are."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

log = logging.getLogger("logcal")


class _StderrHandler(logging.StreamHandler[TextIO]):
    """Writes to what stderr is at the time: while bars are shown, to what puts lines above them."""

    def emit(self, record: logging.LogRecord) -> None:
        # Not `setStream`, which flushes the former one: it may be closed by now.
        self.stream = sys.stderr
        super().emit(record)


def log_to_stderr() -> None:
    """Write the log lines of this process to stderr."""
    if not log.handlers:
        handler = _StderrHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        log.addHandler(handler)
        log.setLevel(logging.INFO)
        log.propagate = False


@contextmanager
def quiet(upto: int) -> Iterator[None]:
    """Log nothing up to a level meanwhile."""
    level = log.level
    log.setLevel(upto + 1)
    try:
        yield
    finally:
        log.setLevel(level)


def announce_compiling() -> None:
    """Log a line when this process, or one forked from it, first compiles a kernel that is not on disk yet.

    Without it the command would seem to hang.
    """
    from numba.core import event

    class Listener(event.Listener):
        said = False

        def on_start(self, event: event.Event) -> None:
            if not self.said:
                self.said = True
                log.info("compiling for this machine: once after an installation")

        def on_end(self, event: event.Event) -> None:
            pass

    event.register("numba:compile", Listener())
