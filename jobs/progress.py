"""Progress of a job's stages on stderr: a bar a stage on a terminal, otherwise log lines."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from jobs import interrupts
from logcal.errors import counted
from pipeline.execution import Report

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

log = logging.getLogger("logcal")

INTERVAL = 30.0
"""Seconds between log lines of a stage."""


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
    with Progress(*columns, console=Console(stderr=True)) as progress, compiling(progress):
        yield _checking(Bars(progress))


@contextmanager
def compiling(progress: Progress) -> Iterator[None]:
    """A bar of its own while kernels are compiled, which no one knows the number of before."""
    from numba.core import event

    lock = threading.Lock()
    shown: list[TaskID] = []

    class Listener(event.Listener):
        def on_start(self, event: event.Event) -> None:
            with lock:
                if not shown:
                    shown.append(
                        progress.add_task("compile", total=None, workers="once after an installation")
                    )

        def on_end(self, event: event.Event) -> None:
            progress.advance(shown[0])

    listener = Listener()
    event.register("numba:compile", listener)
    try:
        yield
    finally:
        event.unregister("numba:compile", listener)
        if shown:
            done = int(progress.tasks[progress.task_ids.index(shown[0])].completed)
            progress.update(shown[0], total=max(done, 1))


def _checking(report: Report) -> Report:
    def checked(stage: str, done: int, total: int, workers: int | None = None) -> None:
        interrupts.check()
        report(stage, done, total, workers)

    return checked


class LogLines:
    """A line when a stage starts and ends, and every `INTERVAL` seconds."""

    def __init__(self, interval: float = INTERVAL) -> None:
        self.interval = interval
        self.started: dict[str, float] = {}
        self.said: dict[str, float] = {}

    def __call__(self, stage: str, done: int, total: int, workers: int | None = None) -> None:
        """See `pipeline.execution.Report`."""
        now = time.monotonic()
        if stage not in self.started:
            self.started[stage] = self.said[stage] = now
            log.info("%s: %s%s", stage, counted(total, "task"), _living(workers))
        seconds = now - self.started[stage]
        if done == total:
            del self.started[stage]
            log.info("%s: done, %.1f s", stage, seconds)
        elif now - self.said[stage] >= self.interval:
            self.said[stage] = now
            left = f", about {seconds / done * (total - done):.0f} s left" if done else ""
            how_far = f"{done:,} of {counted(total, 'task')}, {seconds:.0f} s"
            log.info("%s: %s%s%s", stage, how_far, left, _living(workers))


def _living(workers: int | None) -> str:
    if workers is None:
        return ""
    return f", {workers:,} worker{'' if workers == 1 else 's'}"


class Bars:
    """A bar a stage."""

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
