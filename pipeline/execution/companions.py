"""Processes beside this one, which run tasks for its threads where Python's lock lets only one of them run."""

from __future__ import annotations

import logging
import pickle
import threading
import traceback
from collections.abc import Callable
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from pipeline.execution import tasks as running
from pipeline.execution.tasks import Failure

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection
    from multiprocessing.context import BaseContext

log = logging.getLogger("logcal")

_TASKS = 8
"""Of each process at least: fewer are done before it has started."""

_END = 2.0
"""Seconds that a process has to end by itself once it is not wanted any more."""


class Companions:
    """Processes of this machine that run a task each at a time, for threads of this process.

    A thread whose task would only wait for the others' turn hands it to one that is free. One that ends too early, such
    as where memory is short, is not replaced: its task runs here, as it may run again. They end with this process.
    """

    def __init__(self, context: Callable[[], BaseContext | None], most: int) -> None:
        """`context` : makes what starts processes, or None where there can be none. `most` : processes."""
        self._context = context
        self._most = most
        self._free: SimpleQueue[Connection] = SimpleQueue()
        self._processes: list[tuple[Any, Connection]] = []
        self._state = threading.Lock()
        self._begun = self._ended = False
        self._turn = threading.Lock()
        self._settled = threading.Event()
        """Set once all have started, or no more will."""

    def begin(self, tasks: int) -> None:
        """Begin to start them, for so many tasks, unless that was done; tasks do not wait for them."""
        count = min(self._most, tasks // _TASKS)
        if not self._begun and count > 0:
            self._begun = True
            threading.Thread(target=self._start, args=(count,), name="logcal-companions", daemon=True).start()

    def _start(self, count: int) -> None:
        try:
            context = self._context()
            for _ in range(count if context is not None else 0):
                assert context is not None
                here, there = context.Pipe()
                process: Any = context.Process(target=_serve, args=(there,), daemon=True)  # type: ignore[attr-defined]
                process.start()
                there.close()
                with self._state:
                    self._processes.append((process, here))
                    if self._ended:
                        process.kill()
                        return
                here.recv()
                self._free.put(here)
        except (OSError, EOFError, RuntimeError) as error:
            log.debug("no processes beside this one: %s", error)
        finally:
            self._settled.set()

    def run(self, run: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """As `tasks.here`: in this process if no other thread's task is, otherwise in one that is free.

        Where none is, the task runs here all the same, beside others.
        """
        if not self._begun:
            return running.here(run, function, *arguments)
        with self._in_turn() as own:
            if own:
                return running.here(run, function, *arguments)
        try:
            connection = self._free.get_nowait()
        except Empty:
            return running.here(run, function, *arguments)
        try:
            connection.send((run, function, arguments))
            answer = pickle.loads(connection.recv_bytes())  # noqa: S301 - of our own process
        except (OSError, EOFError):
            # Whether it was stopped is looked at first.
            return running.here(run, function, *arguments)
        self._free.put(connection)
        if isinstance(answer, Failure):
            raise answer.error
        return answer

    @contextmanager
    def _in_turn(self) -> Iterator[bool]:
        own = self._turn.acquire(blocking=False)
        try:
            yield own
        finally:
            if own:
                self._turn.release()

    def stop(self) -> None:
        """End them at once, amid their tasks."""
        for process, _ in self._end():
            process.kill()

    def close(self) -> None:
        """End them: they have no tasks any more."""
        ending = self._end()
        for _, connection in ending:
            connection.close()
        for process, _ in ending:
            process.join(_END)
            if process.is_alive():
                process.kill()

    def _end(self) -> list[tuple[Any, Connection]]:
        with self._state:
            self._ended = True
            return list(self._processes)


def _serve(connection: Connection) -> None:
    """Run tasks until there are no more, or whoever sends them is gone."""
    try:
        connection.send(None)
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
