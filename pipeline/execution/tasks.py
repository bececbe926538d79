"""Wrapper of every task: it retries storage errors, leaves a receipt, and can stop the task."""

from __future__ import annotations

import errno
import io
import pickle
import threading
import time
from collections.abc import Callable
from hashlib import sha256
from typing import Any, Protocol, TypeVar

from logcal.errors import LogcalError

_PAUSE = 0.2
"""Seconds before the second attempt; ten times as long before the third."""

_PERMANENT = {
    getattr(errno, name)
    for name in (
        "ENOENT", "EACCES", "EPERM", "EROFS", "ENOSPC", "EDQUOT", "EFBIG", "ENOTDIR", "EISDIR", "EEXIST",
        "ENAMETOOLONG", "ELOOP", "EINVAL", "EMFILE",
    )
}  # fmt: skip
"""Errors that another attempt meets again."""

T = TypeVar("T")
R = TypeVar("R")

_running = threading.local()
_stopped: set[str] = set()
_count = threading.Condition()
_under_way: dict[str, int] = {}


class StoppedError(Exception):
    """The command that wanted a task's result has ended."""


class Failure:
    """An error for the user, carried as a result, so that no scheduler repeats the task; it takes the place of the
    results of all that depend on it.
    """

    def __init__(self, error: Exception) -> None:
        self.error = error


class Receipts(Protocol):
    """Folder of the tasks' results."""

    def read(self, name: str) -> bytes | None:
        """Read the result under a name."""

    def write(self, name: str, content: bytes) -> None:
        """Leave something, whole or not at all."""


def attempt(function: Callable[..., Any], receipt: tuple[Receipts, str] | None, *arguments: Any) -> Any:
    """Call a task's function; again where storage fails in a way that may pass.

    receipt : where the result is left, and its name, and taken from if the same call has left it there
    """
    call = None if receipt is None else _digest(function, arguments)
    if receipt is None or call is None:
        return _attempt(function, arguments)
    receipts, name = receipt
    found = receipts.read(name) or b""
    if found.startswith(call):
        # Nobody else can have written it.
        return pickle.loads(found[len(call) :])  # noqa: S301
    result = _attempt(function, arguments)
    receipts.write(name, call + pickle.dumps(result))
    return result


def _digest(function: Callable[..., Any], arguments: tuple[Any, ...]) -> bytes | None:
    """The same for the same call in every process; None for a function that has no name, such as a notebook's.

    A result that has come from another process holds equal objects where it held one before: as bytes, each is written
    out. Written and read before, arrays are as they are in a result that was read.
    """
    written = io.BytesIO()
    pickler = pickle.Pickler(written)
    pickler.fast = True
    try:
        pickler.dump(pickle.loads(pickle.dumps((function, arguments))))  # noqa: S301
    except (AttributeError, pickle.PicklingError):
        return None
    return sha256(written.getvalue()).digest()


def _attempt(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    for pause in (_PAUSE, 10 * _PAUSE):
        try:
            return function(*arguments)
        except OSError as error:
            if error.errno is None or error.errno in _PERMANENT:
                raise
            _wait(pause)
    return function(*arguments)


def _wait(seconds: float) -> None:
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        check()
        time.sleep(min(left, 0.05))


def here(run: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """A task in the command's own process."""
    _running.run = run
    check()
    return function(*arguments)


def elsewhere(run: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """A task on a worker."""
    failure = _first_failure(arguments)
    if failure is not None:
        return failure
    _running.run = run
    with _count:
        _under_way[run] = _under_way.get(run, 0) + 1
    try:
        check()
        return function(*arguments)
    except LogcalError as error:
        return Failure(error)
    finally:
        _running.run = None
        with _count:
            _under_way[run] -= 1
            if not _under_way[run]:
                del _under_way[run]


def _first_failure(arguments: tuple[Any, ...]) -> Failure | None:
    for argument in arguments:
        if isinstance(argument, Failure):
            return argument
        if isinstance(argument, list):
            for item in argument:
                if isinstance(item, Failure):
                    return item
    return None


def check() -> None:
    """End the running task if its command has ended: to be called once a batch, a segment, a file.

    Raises
    ------
    StoppedError
    """
    if _stopped and getattr(_running, "run", None) in _stopped:
        raise StoppedError


def carried(function: Callable[[T], R]) -> Callable[[T], R]:
    """Return the function for other threads, where it is still a part of the running task: see `check`."""
    run = getattr(_running, "run", None)

    def carry(item: T) -> R:
        _running.run = run
        return function(item)

    return carry


def stop(run: str) -> int:
    """Let the tasks of a run end at their next `check`; return how many run here."""
    _stopped.add(run)
    return _under_way.get(run, 0)
