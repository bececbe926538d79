"""Ctrl-C and SIGTERM, raised as KeyboardInterrupt: where it does no harm if that comes soon, otherwise anywhere.

An exception that a signal handler raises may come out inside a destructor or a callback, which swallows it.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SOON = 0.3
"""Seconds in which `check` should be called; then the interrupt is raised wherever the main thread is."""

SIGNALLED = 128
"""A run that a signal ended exits with this plus the signal's number, as shells have it: 130 or 143."""

_LONGEST = 10.0
"""Seconds after which it is raised even where a lock is being taken: that may wait for what never comes."""

_LOOK = 0.05
"""Seconds between looks at whether the command has ended."""

_LOCKING = {"threading", "queue", "logging", "concurrent.futures.thread", "concurrent.futures._base"}
_WAITING = {"wait", "_wait_for_tstate_lock", "as_completed", "result"}


class _State:
    catching = False
    received: int | None = None
    at = 0.0
    raised = False


@contextmanager
def catching() -> Iterator[None]:
    """Catch signals meanwhile. What is raised is raised once: nothing interrupts the cleaning up."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are the main thread's, whose program this is
        return
    _State.catching, _State.received, _State.raised = True, None, False
    previous = {number: signal.signal(number, _receive) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        _State.catching = False
        for number, handler in previous.items():
            signal.signal(number, handler)


def check() -> None:
    """Raise KeyboardInterrupt if a signal has come: to be called often, and not while cleaning up."""
    if _State.catching and _State.received is not None:
        _State.raised = True
        raise KeyboardInterrupt


def ignore() -> None:
    """Let signals end nothing from here on: what the run was to publish is published."""
    _State.raised = True


def ended() -> None:
    """Let signals end nothing any more: the process is ending, and its exit code says what became of the run."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def exit_code() -> int:
    """Return the exit code of a run that was interrupted."""
    return SIGNALLED + (_State.received or signal.SIGINT)


def _receive(number: int, frame: FrameType | None) -> None:
    first = _State.received is None
    if first:
        _State.received, _State.at = number, time.monotonic()
    elif _State.raised or time.monotonic() - _State.at < SOON:
        return
    if first or _importing(frame) or (_taking_lock(frame) and time.monotonic() - _State.at < _LONGEST):
        reminder = threading.Timer(SOON, _remind, [number])
        reminder.daemon = True
        reminder.start()
        return
    _State.raised = True
    raise KeyboardInterrupt


def _importing(frame: FrameType | None) -> bool:
    """Tell whether an import is under way: interrupted, it may keep a lock that other threads wait for."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _taking_lock(frame: FrameType | None) -> bool:
    """Tell whether the frame takes or releases a lock: interrupted, it may keep one that other threads wait for.

    Waiting for something is another matter: what waits is made to be interrupted.
    """
    return (
        frame is not None
        and frame.f_globals.get("__name__") in _LOCKING
        and frame.f_code.co_name not in _WAITING
    )


def _remind(number: int) -> None:
    # To the main thread itself, so that it wakes up; and to no one else's handler.
    if signal.getsignal(number) is _receive:
        signal.pthread_kill(threading.main_thread().ident or 0, number)


@contextmanager
def while_command_lives() -> Iterator[None]:
    """Meanwhile end this process soon after the command that started it.

    A command may end before it wants workers. A process that goes on importing for them holds the command's output
    open, and who reads that through a pipe waits for both.
    """
    command = os.getppid()
    done = threading.Event()

    def watch() -> None:
        while not done.wait(_LOOK):
            if os.getppid() != command:
                os._exit(0)

    watching = threading.Thread(target=watch, name="logcal-command", daemon=True)
    watching.start()
    try:
        yield
    finally:
        done.set()
        watching.join()  # workers are forked from this process next, which is no time for threads


def ignore_interrupts() -> None:
    """Let Ctrl-C, which a terminal sends to every process, be the command's alone: it stops its workers itself."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
