"""The reproduce job: the experiments of the methods' papers, and their tables beside ours."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import fsspec
from fsspec.implementations.local import LocalFileSystem

from jobs.config.jobs import ReproduceConfig
from jobs.run import Outcome, Plan
from logcal.errors import ConfigError
from pipeline.execution import Executor
from pipeline.files.folders import free_for, write_whole
from pipeline.files.writable import check_writable
from pipeline.reproduce.experiment_times import METHODS, run_times
from pipeline.reproduce.experiments import (
    EXPERIMENTS,
    Settings,
    Task,
    done,
    plan_tasks,
    read_results,
    run_tasks,
)
from pipeline.reproduce.reproduction import write_report

SHIPPED = Path(__file__).parent / "data"
MARKER = "reproduce.json"
RESULTS, TIMES = "results", "times"
QUICK = Settings(runs=2, folds=3, max_rows=1000)


def prepare(config: ReproduceConfig) -> Prepared:
    """Check the folders; plan the experiments on the data sets that are there.

    Raises
    ------
    ConfigError
        A folder cannot be used; no data set is there.
    """
    data = SHIPPED if config.data.path is None else _local(config.data.path, "data.path")
    if not data.is_dir():
        raise ConfigError(
            f"data.path: expected a folder with data sets as Parquet files, found no folder {data}"
        )
    folder = _local(config.output.path, "output.path")
    if not free_for(folder, MARKER):
        raise ConfigError(
            f"output.path: expected a folder that is new, empty, or of an earlier reproduction, found something else "
            f"in {folder}: choose another"
        )
    check_writable(folder, "output.path")
    settings = _settings(config)
    asked: tuple[str, ...] = config.reproduce.experiments or (*EXPERIMENTS, TIMES)
    tasks, missing = plan_tasks(data, settings, [name for name in EXPERIMENTS if name in asked])
    return Prepared(config, settings, data, folder, tuple(tasks), tuple(missing), TIMES in asked)


def _local(path: str, setting: str) -> Path:
    try:
        filesystem, root = fsspec.core.url_to_fs(path)
    except (ImportError, ValueError) as error:
        raise ConfigError(f"{setting}: cannot open {path}: {error}") from None
    if not isinstance(filesystem, LocalFileSystem):
        raise ConfigError(f"{setting}: expected a folder on a mounted file system, found {path}")
    return Path(root).resolve()


def _settings(config: ReproduceConfig) -> Settings:
    asked = config.reproduce
    if not asked.quick:
        return Settings(asked.seed, asked.runs, asked.folds, asked.max_rows, asked.large_runs)
    return Settings(
        seed=asked.seed,
        runs=min(asked.runs, QUICK.runs),
        folds=min(asked.folds, QUICK.folds),
        max_rows=min(asked.max_rows or QUICK.max_rows or 0, QUICK.max_rows or 0),
        large_runs=asked.large_runs,
    )


@dataclass(frozen=True)
class Prepared:
    """A reproduction that can start."""

    config: ReproduceConfig
    settings: Settings
    data: Path
    folder: Path
    tasks: tuple[Task, ...]
    missing: tuple[str, ...]
    timed: bool

    @property
    def threads(self) -> bool:
        """Classifiers are trained, which are held to one thread by settings of the whole process."""
        return False

    @property
    def plan(self) -> Plan:
        """What the reproduction would do."""
        there = sum(done(task, self.folder / RESULTS) for task in self.tasks)
        sets = sorted({task.set for task in self.tasks})
        return Plan(
            job="reproduce",
            stages=(
                f"experiments: {len(self.tasks) - there:,} of {len(self.tasks):,} are still to be done",
                *self._times_lines(),
                "report: the papers' tables beside ours, from all results",
            ),
            reads=(f"{self.data}: {', '.join(sets)}", *self._missing_lines()),
            writes=(str(self.folder),),
            facts={"tasks": len(self.tasks), "done": there, "sets": sets, "missing": list(self.missing)},
        )

    @property
    def _largest(self) -> int:
        return 10_000 if self.config.reproduce.quick else 1_000_000

    def _times_lines(self) -> tuple[str, ...]:
        line = f"times: {', '.join(METHODS)} up to {self._largest:,} observations"
        return (line,) if self.timed else ()

    def _missing_lines(self) -> tuple[str, ...]:
        return (f"not there, left out: {', '.join(self.missing)}",) if self.missing else ()

    def execute(self, executor: Executor) -> Outcome:
        """Do what is still to be done; write the report."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_whole(self.folder / MARKER, json.dumps({"made by": "logcal reproduce"}).encode())
        results = self.folder / RESULTS
        count = run_tasks(list(self.tasks), self.data, results, executor)
        times = []
        if self.timed:
            times = run_times(results / TIMES, self._largest, self.settings.seed, executor)
        table = read_results(list(self.tasks), results)
        report = write_report(table, self.settings, self.missing, self.folder, times)
        summary = {
            "tasks": len(self.tasks),
            "tasks_done_before": len(self.tasks) - count,
            "missing_sets": list(self.missing),
            "report": str(report),
            "results": str(self.folder / "results.parquet"),
        }
        lines = [
            f"{len(self.tasks):,} experiments, {len(self.tasks) - count:,} of them done before",
            *self._missing_lines(),
            f"report: {report}",
        ]
        return Outcome(summary=summary, lines=lines)
