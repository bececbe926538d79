"""Wrapper of every task: it retries after storage errors, writes a receipt, and can stop the task."""

from __future__ import annotations

import errno
import io
import pickle
import threading
import time
from collections.abc import Callable
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
"""Errors that a retry does not avoid."""

T = TypeVar("T")
R = TypeVar("R")

_running = threading.local()
_stopped: set[str] = set()
_count = threading.Condition()
_under_way: dict[str, int] = {}


class StoppedError(Exception):
    """The command that wanted a task's result has ended."""


class Failure:
    """An error for the user as a task's result, so that no scheduler repeats the task.

    It is also the result of all tasks that depend on the failed one.
    """

    def __init__(self, error: Exception) -> None:
        self.error = error


class ReceiptFolder(Protocol):
    """Folder of the tasks' results."""

    def read(self, name: str, call: bytes) -> bytes | None:
        """Read the result of a call under a name; None if there is none that can be believed."""

    def write(self, name: str, call: bytes, content: bytes) -> None:
        """Write the result of a call under a name, atomically."""


def attempt(function: Callable[..., Any], receipt: tuple[ReceiptFolder, str] | None, *arguments: Any) -> Any:
    """Call a task's function; retry it after storage errors that may be temporary.

    receipt : receipts and the result's name there. The result is written, or read if the same call has written it.
    """
    call = None if receipt is None else _pickled_call(function, arguments)
    if receipt is None or call is None:
        return _attempt(function, arguments)
    receipts, name = receipt
    content = receipts.read(name, call)
    if content is not None:
        return pickle.loads(content)  # noqa: S301 - only this user can have written it
    result = _attempt(function, arguments)
    receipts.write(name, call, pickle.dumps(result))
    return result


def _pickled_call(function: Callable[..., Any], arguments: tuple[Any, ...]) -> bytes | None:
    """Pickle a call, equally in every process; return None for a function without a name, such as a lambda.

    Arguments from another process may hold equal copies of an object that is shared in this one. So the pickler has no
    memo, and writes each occurrence in full. A first round of pickling gives arrays the form that they have there.
    """
    stream = io.BytesIO()
    pickler = pickle.Pickler(stream)
    pickler.fast = True  # without a memo
    try:
        pickler.dump(pickle.loads(pickle.dumps((function, arguments))))  # noqa: S301
    except (AttributeError, pickle.PicklingError):
        return None
    return stream.getvalue()


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
    while (remaining := end - time.monotonic()) > 0:
        check()
        time.sleep(min(remaining, 0.05))


def run_locally(run: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Run a task in the command's own process."""
    _running.run = run
    check()
    return function(*arguments)


def run_on_worker(run: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Run a task on a worker; return a `Failure` for an error for the user."""
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
    values = (value for given in arguments for value in (given if isinstance(given, list) else [given]))
    return next((value for value in values if isinstance(value, Failure)), None)


def check() -> None:
    """End the running task if its command has ended; tasks call this for each batch, segment and file.

    Raises
    ------
    StoppedError
        The command has ended.
    """
    if _stopped and getattr(_running, "run", None) in _stopped:
        raise StoppedError


def carried(function: Callable[[T], R]) -> Callable[[T], R]:
    """Wrap a function for other threads, where `check` then belongs to the running task."""
    run = getattr(_running, "run", None)

    def carry(item: T) -> R:
        _running.run = run
        return function(item)

    return carry


def stop(run: str) -> int:
    """End the tasks of a run at their next `check`; return how many run in this process."""
    _stopped.add(run)
    return _under_way.get(run, 0)
