"""Processes that run cases of `logcal warm` beside it: it takes them from the front, they take them from the end.

Compiling holds a lock of the whole process, so another processor can only help in another process. What goes wrong in
a helper is no harm: its case is run again by the command, which then says what is wrong, if it was not the helper.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from jobs.compile_ahead import compile_kernels

log = logging.getLogger("logcal")

Kernels = dict[str, set[str]]
"""Of kernels the types of arguments."""


class Todo:
    """Cases that are waiting, by their numbers, and how many are done: for all threads."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.done = 0
        self._waiting = deque(range(total))
        self._changed = threading.Condition()

    def first(self) -> int | None:
        """Take the first case that waits; None if none does."""
        with self._changed:
            return self._waiting.popleft() if self._waiting else None

    def last(self) -> int | None:
        """Take the last case that waits; None if none does."""
        with self._changed:
            return self._waiting.pop() if self._waiting else None

    def finish(self) -> None:
        """Count a case that was taken."""
        with self._changed:
            self.done += 1
            self._changed.notify_all()

    def give_back(self, case: int) -> None:
        """Let a case that was taken wait again."""
        with self._changed:
            self._waiting.appendleft(case)
            self._changed.notify_all()

    def wait(self, seconds: float) -> None:
        """Wait until a case waits or all are done; no longer than so many seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self.done == self.total, seconds)


class Helper:
    """One process, and the thread that hands it cases.

    Parameters
    ----------
    code : what Python runs: it calls `serve`.
    todo : where cases are taken from.

    Attributes
    ----------
    used, compiled : kernels that it has called, and that it has compiled, as far as it has said.
    """

    def __init__(self, code: str, todo: Todo) -> None:
        self.used: Kernels = {}
        self.compiled: Kernels = {}
        self._todo = todo
        self._stopping = False
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
        )
        self._thread = threading.Thread(target=self._hand_out, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the process, whatever it does."""
        self._stopping = True
        self.process.kill()
        self.process.wait()
        self._thread.join()
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):
                assert pipe is not None
                pipe.close()

    def _hand_out(self) -> None:
        while not self._stopping and (case := self._todo.last()) is not None:
            answer = self._answer(case)
            if answer is None:
                self._todo.give_back(case)
                code = self.process.wait()
                if not self._stopping:
                    log.warning("a helping process ended early, with %s: its case is run again here", code)
                return
            self.used, self.compiled = (
                {name: set(types) for name, types in answer[what].items()} for what in ("used", "compiled")
            )
            self._todo.finish()

    def _answer(self, case: int) -> dict[str, Any] | None:
        """What it says once it has run a case; None if it has ended."""
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            stdin.write(f"{case}\n")
            stdin.flush()
            line = stdout.readline()
        except (OSError, ValueError):
            return None
        # Half a line is what it was writing when it was killed.
        return json.loads(line) if line.endswith("\n") else None


@contextlib.contextmanager
def helping(codes: list[str], todo: Todo) -> Iterator[list[Helper]]:
    """Start a helper for each code, as far as they can be started; they end with the block, or with this process."""
    helpers: list[Helper] = []
    try:
        with contextlib.suppress(OSError):
            for code in codes:
                helpers.append(Helper(code, todo))  # noqa: PERF401 (those that have started are stopped)
        yield helpers
    finally:
        for helper in helpers:
            helper.stop()


def serve(
    run: Callable[[int], None], kernels: Callable[[], dict[str, Kernels]], ahead: list[list[str]]
) -> None:
    """What a helper does: run the cases whose numbers come, and answer each, until whoever started it has gone.

    run : runs a case.
    kernels : what has been called and compiled so far.
    ahead : kernels and the types of their arguments, which are compiled before the first case.
    """
    # A terminal's Ctrl-C is sent to this process, too; the command ends it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    asked: queue.Queue[int] = queue.Queue()
    threading.Thread(target=_listen, args=(asked,), daemon=True).start()
    # Nothing that a case prints is an answer.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers, Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        compile_kernels(ahead)
        while True:
            run(asked.get())
            found = {
                what: {name: sorted(types) for name, types in these.items()}
                for what, these in kernels().items()
            }
            answers.write(f"{json.dumps(found)}\n")
            answers.flush()


def _listen(asked: queue.Queue[int]) -> None:
    # Without a buffer, whose lock this thread would hold when the process ends.
    with open(0, "rb", buffering=0, closefd=False) as questions:
        while (line := questions.readline()).endswith(b"\n"):
            asked.put(int(line))
    os._exit(0)  # whatever else is under way
