"""Ctrl-C and SIGTERM, raised as KeyboardInterrupt: where it does no harm if that comes soon, otherwise anywhere.

An exception that a signal handler raises may come out inside a destructor or a callback, which swallows it.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SOON = 0.3
"""Seconds in which `check` should be called; then the interrupt is raised wherever the main thread is."""

SIGNALLED = 128
"""A run that a signal ended exits with this plus the signal's number, as shells have it: 130 or 143."""


class _State:
    received: int | None = None
    raised = False


@contextmanager
def catching() -> Iterator[None]:
    """Catch signals meanwhile. Of several only the first counts: nothing interrupts the cleaning up."""
    _State.received, _State.raised = None, False
    handlers = {signal.SIGINT: _receive, signal.SIGTERM: _receive, signal.SIGALRM: _raise_late}
    previous = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in previous.items():
            signal.signal(number, handler)


def check() -> None:
    """Raise KeyboardInterrupt if a signal has come: to be called often, and not while cleaning up."""
    if _State.received is not None:
        _State.raised = True
        raise KeyboardInterrupt


def exit_code() -> int:
    """Of a run that was interrupted."""
    return SIGNALLED + (_State.received or signal.SIGINT)


def _receive(number: int, frame: FrameType | None) -> None:
    if _State.received is None:
        _State.received = number
        signal.setitimer(signal.ITIMER_REAL, SOON)


def _raise_late(number: int, frame: FrameType | None) -> None:
    if not _State.raised:
        _State.raised = True
        raise KeyboardInterrupt
