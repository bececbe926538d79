"""Progress of a job's stages on stderr: one bar per stage on a terminal, otherwise log lines."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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
"""Tasks that an estimate needs."""


@contextmanager
def reporting() -> Iterator[Report]:
    """A report for executors: bars if stderr is a terminal, otherwise log lines. It also ends an interrupted run."""
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
    """Progress of a stage: when it began, and the tasks that were done at its latest report.

    last : seconds at which the latest task ended. quarter : the tasks done, and seconds, when a quarter of all were.
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
        """Estimate from the tasks after the first quarter, since the first ones may compile code.

        None while these are fewer than `_ENOUGH`, and when the last tasks take longer than the others did.
        """
        if self.quarter is None or self.done - self.quarter[0] < _ENOUGH:
            return None
        left = (self.last - self.quarter[1]) / (self.done - self.quarter[0]) * (total - self.done)
        return left if left >= now - self.last else None


class LogLines:
    """A line when a stage starts and ends, and every `INTERVAL` seconds."""

    def __init__(self) -> None:
        self.stages: dict[str, _Stage] = {}
        self.said: dict[str, float] = {}

    def __call__(self, stage: str, done: int, total: int, workers: int | None = None) -> None:
        """See `pipeline.execution.Report`."""
        now = time.monotonic()
        if stage not in self.stages:
            self.stages[stage], self.said[stage] = _Stage(now, now), now
            log.info("%s: %s%s", stage, counted(total, "task"), _living(workers))
        known = self.stages[stage]
        known.update(done, total, now)
        seconds = now - known.began
        if done == total:
            del self.stages[stage]
            log.info("%s: done, %.1f s", stage, seconds)
        elif now - self.said[stage] >= INTERVAL:
            self.said[stage] = now
            left = known.seconds_left(total, now)
            estimate = "" if left is None else f", about {left:.0f} s left"
            how_far = f"{done:,} of {counted(total, 'task')}, {seconds:.0f} s"
            log.info("%s: %s%s%s", stage, how_far, estimate, _living(workers))


def _living(workers: int | None) -> str:
    return "" if workers is None else f", {counted(workers, 'worker')}"


class Bars:
    """One bar per stage."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.current: dict[str, TaskID] = {}

    def __call__(self, stage: str, done: int, total: int, workers: int | None = None) -> None:
        """See `pipeline.execution.Report`."""
        if stage not in self.current:
            self.current[stage] = self.progress.add_task(stage, total=total, workers="")
        self.progress.update(self.current[stage], completed=done, workers=_living(workers)[2:])
        if done == total:
            del self.current[stage]


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
