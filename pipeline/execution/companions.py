"""Processes beside this one, which run tasks for its threads where Python's lock lets only one of them run."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import pickle
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple

from pipeline.execution import tasks as running
from pipeline.execution.tasks import Failure

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

log = logging.getLogger("logcal")

_END = 2.0
"""Seconds that a process has to end by itself once it has no tasks any more."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class _Companion(NamedTuple):
    process: BaseProcess
    connection: Connection


class Companions:
    """Processes of this machine that run a task each at a time, for threads of this process.

    A thread whose task would only wait for another's turn hands it to one that is free. One that ends too early, such
    as where memory is short, is not replaced: its task runs here, as it may run again. They end with this process.

    They are forked from this process, which has imported already what tasks need: that takes a hundredth of a second,
    where a process that starts from nothing takes more than half of one, which is a thousand small files.
    """

    def __init__(self, count: int) -> None:
        """Fork so many; none where forking is not safe: but on Linux, and beside other threads of this process."""
        self._all: list[_Companion] = []
        self._free: SimpleQueue[Connection] = SimpleQueue()
        self._turn = threading.Lock()
        if not _forking_is_safe():
            return
        try:
            for _ in range(count):
                self._fork()
        except OSError as error:
            log.debug("%d instead of %d processes beside this one: %s", len(self._all), count, error)

    def _fork(self) -> None:
        context = multiprocessing.get_context("fork")
        here, there = context.Pipe()
        # Those that were forked before wait for what comes through theirs until nobody has its other end any more.
        others = [here, *(connection for _, connection in self._all)]
        process = context.Process(target=_serve, args=(there, others), name="logcal-companion", daemon=True)
        # Until it has handlers of its own a signal would be handled there as the command's.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            with warnings.catch_warnings():
                # Python counts threads that numpy's and Arrow's libraries have: those prepare for a fork themselves.
                warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
                process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        there.close()
        self._all.append(_Companion(process, here))
        self._free.put(here)

    def run(self, run: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """As `tasks.here`: in this process if no other thread's task is, otherwise in one that is free.

        Where none is, the task runs here all the same, beside others.
        """
        if self._turn.acquire(blocking=False):
            try:
                return running.here(run, function, *arguments)
            finally:
                self._turn.release()
        try:
            connection = self._free.get_nowait()
        except Empty:
            return running.here(run, function, *arguments)
        try:
            connection.send((run, function, arguments))
            answer = pickle.loads(connection.recv_bytes())  # noqa: S301 - of our own process
        except (OSError, EOFError):
            # It has ended. Whether it was stopped is looked at before the task runs.
            return running.here(run, function, *arguments)
        self._free.put(connection)
        if isinstance(answer, Failure):
            raise answer.error
        return answer

    def stop(self) -> None:
        """End them at once, amid their tasks."""
        for process, _ in self._all:
            process.kill()

    def close(self) -> None:
        """End them: they have no tasks any more."""
        for _, connection in self._all:
            connection.close()
        for process, _ in self._all:
            process.join(_END)
            if process.is_alive():
                process.kill()


def _forking_is_safe() -> bool:
    return sys.platform == "linux" and threading.active_count() == 1


def _serve(connection: Connection, others: list[Connection]) -> None:
    """Run tasks until there are no more, or whoever sends them is gone. others : not this process's."""
    for other in others:
        other.close()
    # What a terminal sends to every process is the command's alone, which ends this one; so is what it does then.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    gc.enable()
    try:
        while True:
            connection.send_bytes(_outcome(*connection.recv()))
    except (EOFError, OSError):
        return


def _outcome(run: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> bytes:
    """What a task returns, or the error that it raises, for another process."""
    try:
        return pickle.dumps(running.elsewhere(run, function, *arguments))
    except Exception as error:  # noqa: BLE001 - raised where the result is asked for
        error.add_note(f"in a process beside the command's:\n{traceback.format_exc()}")
        return pickle.dumps(Failure(error))
