"""The registry of jobs. It imports only the standard library, so that --help is fast."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jobs.config.jobs import JobConfig


@dataclass(frozen=True)
class Shortcut:
    """Option of one job that stands for `--set KEY=VALUE`."""

    option: str
    key: str
    help: str
    metavar: str | None = None
    """Placeholder of the option's value; None: a flag, which sets the key to true."""


@dataclass(frozen=True)
class Job:
    """Facts about a job for the command line; its classes and modules are imported when it runs."""

    name: str
    help: str
    module: str
    """Has `prepare(config) -> Prepared`."""
    required: tuple[str, ...] = ()
    """Keys without a default, as --help shows them."""
    example: str = ""
    """Arguments of the shortest sensible command."""
    shortcuts: tuple[Shortcut, ...] = ()
    command: str = ""
    """The command's words, if they are not the job's name."""
    each: bool = False
    """True if one command runs the job for several configuration files (--each)."""
    workers_import: str = ""
    """Module with the job's additional imports in workers; such jobs do not run on threads. '': none."""

    def config_class(self) -> type[JobConfig]:
        """Import the configuration class."""
        from jobs.config.jobs import JOB_CONFIGS

        return JOB_CONFIGS[self.name]

    def load_module(self) -> Any:
        """Import the module that has `prepare`."""
        return importlib.import_module(self.module)


_TRAINING = "jobs.cluster.worker_preload_training"
_STORE = "--set store.path=store --set store.table=ads"

_JOBS = (
    Job(
        name="generate",
        help="Train a classifier on labelled data, and log its held-out scores.",
        module="jobs.generate",
        required=("data.path", "output.path"),
        example="--set data.path=data/ --set output.path=generated/",
        workers_import=_TRAINING,
    ),
    Job(
        name="fit",
        help="Fit a calibrator to a prediction log and publish its lookup table.",
        module="jobs.fit",
        required=("log.path", "store.path", "store.table"),
        example=f"--set log.path=log/ {_STORE}",
        shortcuts=(Shortcut("--force", "store.force", "Publish even if the live version has newer data."),),
        each=True,
    ),
    Job(
        name="score",
        help="Add calibrated probabilities to a log, from a published table.",
        module="jobs.score",
        required=("log.path", "store.path", "store.table", "output.path"),
        example=f"--set log.path=log/ {_STORE} --set output.path=scored/",
        shortcuts=(
            Shortcut("--verify", "score.verify", "Read the copied columns, too: find damage in them."),
        ),
    ),
    Job(
        name="follow",
        help="Score a log's files as they arrive, each once.",
        module="jobs.follow",
        required=("log.path", "store.path", "store.table", "output.path"),
        example=f"--set log.path=arriving/ {_STORE} --set output.path=scored/",
        shortcuts=(
            Shortcut("--once", "follow.once", "Score the files that are there, then exit."),
            Shortcut("--status", "follow.status", "Print the stream's status and exit."),
            Shortcut("--retry", "follow.retry", "Try a refused file again after a repair.", "NAME"),
            Shortcut("--rebuild", "follow.rebuild", "Rebuild a lost list of scored files (the ledger)."),
        ),
    ),
    Job(
        name="evaluate",
        help="Measure a published table on a labelled log and write a report.",
        module="jobs.evaluate",
        required=("log.path", "store.path", "store.table", "report.path"),
        example=f"--set log.path=held-out/ {_STORE} --set report.path=report/",
    ),
    Job(
        name="monitor",
        help="Test day by day whether a published table is still calibrated.",
        module="jobs.monitor",
        required=("log.path", "store.path", "store.table", "window.column"),
        example=f"--set log.path=log/ --set window.column=date {_STORE}",
    ),
    Job(
        name="compare",
        help="Compare methods by cross-validation on a log.",
        module="jobs.compare",
        required=("log.path",),
        example="--set log.path=log/ --set report.path=comparison/",
    ),
    Job(
        name="days",
        command="days run",
        each=True,
        help="Do the daily job for every day that is complete and not done.",
        module="jobs.daily",
        required=("log.path", "store.path", "store.table", "window.column", "report.path", "output.path"),
        example="--config day.yaml",
        shortcuts=(
            Shortcut("--new", "days.new", "Make the table's first version: for the first run."),
            Shortcut("--begin", "days.begin", "First day that is scored.", "DAY"),
            Shortcut("--until", "window.until", "Last day to do; it is complete, as all before.", "DAY"),
            Shortcut("--most-days", "days.most_days", "Days to do at most.", "N"),
            Shortcut("--fit-each-day", "days.fit_each_day", "Fit after each day, not once."),
        ),
    ),
    Job(
        name="demo",
        help="Train a classifier on UCI Adult; fit, score, evaluate, compare its log.",
        module="jobs.demo",
        example="--output demo-output",
        shortcuts=(Shortcut("--output", "output.path", "Folder to write to (default: demo-output).", "DIR"),),
    ),
)

JOBS: Mapping[str, Job] = {job.name: job for job in _JOBS}
"""Jobs by name, in the order of --help."""
