"""Ctrl-C and SIGTERM, raised as KeyboardInterrupt at the next safe point, or anywhere if none comes soon.

An exception that a signal handler raises may occur inside a destructor or a callback, which swallows it.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

SOON = 0.3
"""Seconds to wait for the next call of `check`; then the interrupt is raised wherever the main thread is."""

SIGNALLED = 128
"""Added to the signal's number in the exit code of an interrupted run, as in shells: 130 or 143."""

_LONGEST = 10.0
"""Seconds after which the interrupt is raised even while a lock is being taken, which may never succeed."""

CLEAN_UP = 60.0
"""Seconds from an interrupt to the end of a command's process, whatever its clean-up or its threads wait for."""

_CHECK_INTERVAL = 0.05
"""Seconds between checks whether the command has ended."""

_LOCKING = {"threading", "queue", "logging", "concurrent.futures.thread", "concurrent.futures._base"}
_WAITING = {"wait", "_wait_for_tstate_lock", "as_completed", "result"}


class _State:
    catching = False
    received: int | None = None
    since = 0.0
    raised = False
    own_process = False


@contextmanager
def catching() -> Iterator[None]:
    """Raise KeyboardInterrupt for signals in this context, once, so that clean-up is not interrupted.

    Within another such context it changes nothing.
    """
    if _State.catching or threading.current_thread() is not threading.main_thread():
        yield  # only the main thread can handle signals
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
    """Raise KeyboardInterrupt if a signal has been received. Call it often, but not while cleaning up."""
    if _State.catching and _State.received is not None:
        _raise()


def _raise() -> NoReturn:
    _State.raised = True
    if _State.own_process:
        ending = threading.Timer(CLEAN_UP, _end, [exit_code()])
        ending.daemon = True
        ending.start()
    raise KeyboardInterrupt


def _end(code: int) -> None:
    """End the process as SIGKILL would, after which the next run repairs what is left."""
    text = f"the clean-up did not end within {CLEAN_UP:g} s, for example for want of a store's answer"
    with suppress(OSError):
        os.write(2, f"logcal: interrupted; {text}: the next run does it\n".encode())
    os._exit(code)


def own_process() -> None:
    """Let an interrupt end this process, which is a command's own, after `CLEAN_UP` at the latest."""
    _State.own_process = True


def ignore() -> None:
    """Ignore signals from now on, since the run has published its result."""
    _State.raised = True


def resume() -> None:
    """End `ignore`, since another run follows; raise the interrupt that came meanwhile."""
    _State.raised = False
    check()


def ignore_until_exit() -> None:
    """Ignore signals while the process ends, so that they do not change its exit code."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def exit_code() -> int:
    """Return the exit code of a run that was interrupted."""
    return SIGNALLED + (_State.received or signal.SIGINT)


def _receive(number: int, frame: FrameType | None) -> None:
    first = _State.received is None
    if first:
        _State.received, _State.since = number, time.monotonic()
    elif _State.raised or time.monotonic() - _State.since < SOON:
        return
    if first or _importing(frame) or (_taking_lock(frame) and time.monotonic() - _State.since < _LONGEST):
        reminder = threading.Timer(SOON, _remind, [number])
        reminder.daemon = True
        reminder.start()
        return
    _raise()


def _importing(frame: FrameType | None) -> bool:
    """True during an import: interrupted, it may keep a lock that other threads wait for."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _taking_lock(frame: FrameType | None) -> bool:
    """True if the frame takes or releases a lock: interrupted, it may keep one that other threads wait for.

    Functions that wait can be interrupted safely.
    """
    return (
        frame is not None
        and frame.f_globals.get("__name__") in _LOCKING
        and frame.f_code.co_name not in _WAITING
    )


def _remind(number: int) -> None:
    # Sent to the main thread, so that it wakes up, and only while this module's handler is installed.
    if signal.getsignal(number) is _receive:
        signal.pthread_kill(threading.main_thread().ident or 0, number)


@contextmanager
def while_command_lives() -> Iterator[None]:
    """End this process, in this context, soon after the command that started it has ended.

    A command may end before it needs workers. A fork server that is still importing keeps the command's output open,
    and a reader of its pipe would wait for both.
    """
    command = os.getppid()
    done = threading.Event()

    def watch() -> None:
        while not done.wait(_CHECK_INTERVAL):
            if os.getppid() != command:
                os._exit(0)

    watching = threading.Thread(target=watch, name="logcal-command", daemon=True)
    watching.start()
    try:
        yield
    finally:
        done.set()
        watching.join()  # workers are forked from this process next, and forking with threads is not safe


def ignore_interrupts() -> None:
    """Ignore Ctrl-C in a worker: a terminal sends it to every process, and the command stops its workers itself."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
