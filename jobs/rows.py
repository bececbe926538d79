"""The rows of a job, as its configuration names them: the log's columns, its days, and how they are sorted."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from jobs.config.sections import LogConfig, WindowConfig
from logcal.errors import ConfigError
from pipeline.files.output import Output
from pipeline.log.logs import Columns, Log, open_log
from pipeline.log.quarantine import RowRules, check_place, keep_parts
from pipeline.log.windows import Window, choose_window, day_of, open_window
from pipeline.sort.score_table import SortPlan

DAY = "{day}"
"""In the path of an output: the last day of the window."""
JOB = "{job}"
"""In the path of a report: the job's name."""

UNMADE = "scratch"
"""Stands for scratch space in a graph that is drawn."""


def columns_of(config: LogConfig, segments: tuple[str, ...]) -> Columns:
    """The columns of the scores, labels and weights, and these segments."""
    return Columns(config.score, config.label, config.weight, segments, sampling=config.sampling)


def window_of(config: WindowConfig, log: Log, last: str | None = None) -> Window | None:
    """The days that a configuration chooses, or None where it uses all of the log.

    last : the job's own number of days, such as 1d, in place of window.last
    """
    column = config.column
    if column is None:
        return None
    if last is not None:
        config = config.model_copy(update={"last": last, "half_life": None})
    return choose_window(log, column, config.length, config.last_day)


def open_dated(
    config: WindowConfig, paths: Sequence[str], columns: Columns, without: Collection[str] = ()
) -> tuple[Log, Window | None]:
    """A log's files that a configuration chooses, and its days; all files and None where it uses all of the log.

    without : see `open_log`
    """
    if config.column is None:
        return open_log(paths, columns, without), None
    window = open_window(paths, columns, config.column, config.length, config.last_day, without)
    return window.log, window


def place_of(path: str, setting: str, window: Window | None) -> str:
    """An output's path, with the window's last day where it names it.

    Raises
    ------
    ConfigError
        There is no window.
    """
    if DAY not in path:
        return path
    if window is None:
        raise ConfigError(
            f"{setting}: expected a path without {DAY} where window.column is null, found {path}: {DAY} is the last "
            "day of the window"
        )
    return path.replace(DAY, day_of(window.last).isoformat())


def page_folder(path: str | None, job: str) -> str | None:
    """The folder of a page that is not of one day, None for none: {job} and {day} in it are the job's name."""
    return None if path is None else path.replace(JOB, job).replace(DAY, job)


def own_page_folder(path: str | None, job: str) -> str | None:
    """The same of a page that is written anew each time, into a folder of its own.

    Raises
    ------
    ConfigError
        The report of an evaluation or a comparison is there, which is whole or not at all.
    """
    place = page_folder(path, job)
    if place is not None and Output(place, "report.path").manifest() is not None:
        raise ConfigError(
            f"report.path: expected a folder of its own for the page of {job}, found another job's report in {place}: "
            f"write {JOB} into the path, such as reports/{JOB}"
        )
    return place


def above_days(path: str) -> str | None:
    """The folder whose outputs an output's path tells apart by days; None where there is none with a name."""
    if DAY not in path:
        return None
    folder = path.partition(DAY)[0].rpartition("/")[0]
    # Of a URL without its host, or bucket.
    inside = folder.partition("://")[2].partition("/")[2] if "://" in folder else folder
    return folder if inside.rpartition("/")[2].strip(".") else None


@dataclass(frozen=True)
class Sorting:
    """How a run of a job sorts its log.

    Attributes
    ----------
    config : of the job
    identity : the run's id
    quarantine : where rows that cannot be used are kept; None: nowhere
    """

    config: Any
    identity: str
    quarantine: Output | None

    @classmethod
    def of(cls, config: Any, log: Log, identity: str) -> Sorting:
        """Check that the rows that cannot be used can be kept where the configuration says."""
        quarantine = None
        if config.log.quarantine_path is not None:
            quarantine = Output(f"{config.log.quarantine_path.rstrip('/')}/{identity}", "log.quarantine_path")
            quarantine.check_apart(log.filesystem, log.places())
            check_place(quarantine, identity)
        return cls(config, identity, quarantine)

    def plan(self, log: Log, scratch: str = UNMADE, transform: str = "none") -> SortPlan:
        """Sort a log in a folder, within the memory of a worker."""
        return plan_of(self.config, log, scratch, transform, keep=self.quarantine is not None)

    def keep_bad(self, scratch: str, count: int) -> None:
        """Keep the rows that cannot be used, which tasks left in scratch. count : of them."""
        if self.quarantine is not None and count:
            keep_parts(scratch, self.quarantine, self.identity)


def plan_of(
    config: Any, log: Log, scratch: str = UNMADE, transform: str = "none", *, keep: bool = False
) -> SortPlan:
    """How a configuration sorts a log. keep : whether rows that cannot be used are left in scratch."""
    rules = RowRules(config.log.on_bad_rows == "quarantine", config.log.max_bad_fraction, keep)
    grid = config.score_table.grid if hasattr(config, "score_table") else "none"
    plan = SortPlan(scratch, transform, grid=grid, rules=rules)
    return plan.within(config.cluster.memory_bytes, log.rows)


def facts_of(log: Log) -> dict[str, Any]:
    """What a plan says of a log."""
    return {"files": len(log.files), "rows": log.rows, "bytes": log.size}


def scratch_line(config: Any, needed: int) -> str:
    """What a plan says of the scratch space that is written to."""
    return f"scratch ({config.scratch or 'temporary folder'}): up to {needed:,} bytes, removed after"
