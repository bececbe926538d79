"""Progress of a job's stages on stderr: one bar per stage on a terminal, otherwise log lines."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, TextIO

from jobs import interrupts
from logcal.errors import counted

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from pipeline.execution import Report


log = logging.getLogger("logcal")

INTERVAL = 30.0
"""Seconds between log lines of a stage."""

_ENOUGH = 8
"""Tasks that an estimate of the remaining time needs."""


@contextmanager
def reporting() -> Iterator[Report]:
    """Yield a progress report for executors: bars on a terminal, otherwise log lines. It also raises interrupts."""
    if not sys.stderr.isatty():
        yield _checking(LogLines())
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description:>8}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[workers]}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        yield _checking(Bars(progress))


def _checking(report: Report) -> Report:
    def checked(stage: str, done: int, total: int, workers: int | None = None) -> None:
        interrupts.check()
        if total:  # a stage may turn out to have nothing to do
            report(stage, done, total, workers)

    return checked


@dataclass
class _Stage:
    """Progress of a stage; times are in seconds of `time.monotonic`.

    began : start of the stage
    last : end of the latest task
    done : finished tasks
    quarter : finished tasks, and the time, when a quarter of all tasks had finished
    """

    began: float
    last: float
    done: int = 0
    quarter: tuple[int, float] | None = None

    def update(self, done: int, total: int, now: float) -> None:
        if done > self.done:
            self.done, self.last = done, now
        if self.quarter is None and done >= total / 4:
            self.quarter = done, now

    def seconds_left(self, total: int, now: float) -> float | None:
        """Estimate the remaining time from the tasks after the first quarter, since the first ones may compile code.

        None with fewer than `_ENOUGH` such tasks, and when the last tasks take longer than the others did.
        """
        if self.quarter is None or self.done - self.quarter[0] < _ENOUGH:
            return None
        estimate = (self.last - self.quarter[1]) / (self.done - self.quarter[0]) * (total - self.done)
        return estimate if estimate >= now - self.last else None


class LogLines:
    """Logs a line when a stage starts, when it ends, and every `INTERVAL` seconds."""

    def __init__(self) -> None:
        self.stages: dict[str, _Stage] = {}
        self.logged: dict[str, float] = {}

    def __call__(self, stage: str, done: int, total: int, workers: int | None = None) -> None:
        """See `pipeline.execution.Report`."""
        now = time.monotonic()
        if stage not in self.stages:
            self.stages[stage], self.logged[stage] = _Stage(now, now), now
            log.info("%s: %s%s", stage, counted(total, "task"), _worker_count(workers))
        progress = self.stages[stage]
        progress.update(done, total, now)
        seconds = now - progress.began
        if done == total:
            del self.stages[stage]
            log.info("%s: done, %.1f s", stage, seconds)
        elif now - self.logged[stage] >= INTERVAL:
            self.logged[stage] = now
            seconds_left = progress.seconds_left(total, now)
            estimate = "" if seconds_left is None else f", about {seconds_left:.0f} s left"
            how_far = f"{done:,} of {counted(total, 'task')}, {seconds:.0f} s"
            log.info("%s: %s%s%s", stage, how_far, estimate, _worker_count(workers))


def _worker_count(workers: int | None) -> str:
    return "" if workers is None else f", {counted(workers, 'worker')}"


class Bars:
    """Shows one progress bar per stage."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.current: dict[str, TaskID] = {}

    def __call__(self, stage: str, done: int, total: int, workers: int | None = None) -> None:
        """See `pipeline.execution.Report`."""
        if stage not in self.current:
            self.current[stage] = self.progress.add_task(stage, total=total, workers="")
        self.progress.update(self.current[stage], completed=done, workers=_worker_count(workers)[2:])
        if done == total:
            del self.current[stage]


class _StderrHandler(logging.StreamHandler[TextIO]):
    """Writes to the current `sys.stderr`, which prints lines above the bars while these are shown."""

    def emit(self, record: logging.LogRecord) -> None:
        # Not `setStream`: it flushes the former stream, which may be closed.
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
    """Log nothing up to a level in this context."""
    level = log.level
    log.setLevel(upto + 1)
    try:
        yield
    finally:
        log.setLevel(level)


@cache
def announce_compiling() -> None:
    """Log a line when this process, or one forked from it, first compiles a kernel that is not on disk yet.

    Without it the command would seem to hang.
    """
    from numba.core import event

    class Listener(event.Listener):
        announced = False

        def on_start(self, event: event.Event) -> None:
            if not self.announced:
                self.announced = True
                log.info("compiling for this machine, once after an installation: up to half a minute")

        def on_end(self, event: event.Event) -> None:
            pass

    event.register("numba:compile", Listener())
