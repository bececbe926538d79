"""Shared parts of jobs: a plan before they start, an outcome after."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from pipeline.execution import Executor

REPORT, RUN = "report.html", "run.json"
"""Names of a job's page, and of the numbers in it."""

SCRATCH = "scratch ("
"""Start of a line about scratch space."""


@dataclass(frozen=True)
class Plan:
    """Plan of a job, as --dry-run prints it.

    Attributes
    ----------
    stages, reads, writes : in order, a line each
    facts : for machines
    """

    job: str
    stages: tuple[str, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def places(self) -> list[str]:
        """Outputs that stay."""
        return [line for line in self.writes if not line.startswith(SCRATCH)]

    def lines(self) -> list[str]:
        """For people."""
        shown = [f"{self.job} would do this (no rows were read):"]
        for title, items in (("stages", self.stages), ("reads", self.reads), ("writes", self.writes)):
            shown += [f"  {title}:", *(f"    {item}" for item in items)]
        return shown


@dataclass(frozen=True)
class Outcome:
    """Outcome of a job.

    Attributes
    ----------
    summary : for --json; JSON values
    lines : for people
    """

    summary: dict[str, Any]
    lines: list[str]


class Startable(Protocol):
    """A job that has been checked and can start: what a job module's `prepare(config)` returns."""

    threads: bool = True
    """True if threads of one process serve its tasks as well as processes of their own would: sorting, merging, fitting
    and measuring are compiled code."""

    @property
    def plan(self) -> Plan:
        """Plan of the job."""

    def execute(self, executor: Executor) -> Outcome:
        """Do it."""
