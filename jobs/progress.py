"""Progress of a job's stages on stderr: a bar a stage on a terminal, otherwise log lines."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from jobs import interrupts
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

    columns = (TextColumn("{task.description:>8}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        yield _checking(Bars(progress))


def _checking(report: Report) -> Report:
    def checked(stage: str, done: int, total: int) -> None:
        interrupts.check()
        report(stage, done, total)

    return checked


class LogLines:
    """A line when a stage starts and ends, and every `INTERVAL` seconds."""

    def __init__(self, interval: float = INTERVAL) -> None:
        self.interval = interval
        self.stage: str | None = None
        self.started = self.said = 0.0

    def __call__(self, stage: str, done: int, total: int) -> None:
        """See `pipeline.execution.Report`."""
        now = time.monotonic()
        if self.stage is None:
            self.stage = stage
            self.started = self.said = now
            log.info("%s: %s tasks", stage, f"{total:,}")
        if done == total:
            self.stage = None
            log.info("%s: done, %.1f s", stage, now - self.started)
        elif now - self.said >= self.interval:
            self.said = now
            seconds = now - self.started
            left = f", about {seconds / done * (total - done):.0f} s left" if done else ""
            log.info("%s: %s of %s tasks, %.0f s%s", stage, f"{done:,}", f"{total:,}", seconds, left)


class Bars:
    """A bar a stage."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.current: TaskID | None = None

    def __call__(self, stage: str, done: int, total: int) -> None:
        """See `pipeline.execution.Report`."""
        if self.current is None:
            self.current = self.progress.add_task(stage, total=total)
        self.progress.update(self.current, completed=done)
        if done == total:
            self.current = None
