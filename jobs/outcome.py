"""Common classes of jobs: plan, outcome, and the protocol of a job that can start."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from jobs.config.naming import in_keys
from pipeline.execution import Executor

REPORT, RUN = "report.html", "run.json"
"""File names of a job's page, and of its numbers as JSON."""

SCRATCH = "scratch ("
"""Start of a plan's line about scratch space."""


@dataclass(frozen=True)
class Plan:
    """Plan of a job, as --dry-run prints it.

    Attributes
    ----------
    stages, reads, writes : text lines, in order
    facts : JSON values, for --json and run records
    """

    job: str
    stages: tuple[str, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def outputs(self) -> list[str]:
        """Outputs of the job, without scratch space."""
        return [line for line in self.writes if not line.startswith(SCRATCH)]

    def lines(self) -> list[str]:
        """Return the plan as text lines for the terminal."""
        shown = [f"{self.job} would do this (no rows were read):"]
        for title, items in (("stages", self.stages), ("reads", self.reads), ("writes", self.writes)):
            shown += [f"  {title}:", *(f"    {item}" for item in items)]
        return shown


@dataclass(frozen=True)
class Outcome:
    """Outcome of a job.

    Attributes
    ----------
    summary : JSON values, for --json and run records
    lines : text lines for the terminal
    """

    summary: dict[str, Any]
    lines: list[str]

    def __post_init__(self) -> None:
        """Say the job's keys for the parameters of pipeline that texts name."""
        object.__setattr__(self, "summary", in_keys(self.summary))
        object.__setattr__(self, "lines", in_keys(self.lines))


class Startable(Protocol):
    """A job that has been checked and can start: what a job module's `prepare(config)` returns."""

    threads: bool = True
    """True if threads suit the tasks as well as processes: sorting, merging, fitting and measuring run compiled code
    without the GIL."""

    @property
    def plan(self) -> Plan:
        """Plan of the job."""

    def execute(self, executor: Executor) -> Outcome:
        """Run the job's tasks and publish its results."""
