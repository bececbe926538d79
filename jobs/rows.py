"""The rows of a job, as its configuration names them: the log's columns, its days, and how they are sorted."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from jobs.config.jobs import DataConfig, JobConfig
from jobs.config.sections import LogConfig, WindowConfig, parse_duration, whole_days
from jobs.outcome import SCRATCH, Plan
from logcal.errors import ConfigError, NothingToDoError, counted
from pipeline.files.output import Output
from pipeline.files.scratch import check_space
from pipeline.log.logs import Columns, Log, cut, open_log
from pipeline.log.outcomes import LabelSource, Outcomes
from pipeline.log.quarantine import RowRules, check_place, keep_parts
from pipeline.log.windows import Window, choose_window, day_of, open_window

if TYPE_CHECKING:
    from pipeline.sort.score_table import SortPlan

DAY = "{day}"
"""Placeholder in the path of an output: the last day of the window."""
JOB = "{job}"
"""Placeholder in the path of a report: the job's name."""

_logger = logging.getLogger("logcal")

_MANY_EARLY = 0.01
"""Share of all rows from which on times are probably of different clocks."""

UNMADE = "scratch"
"""Stands for scratch space in a graph that is drawn."""


def columns_of(config: LogConfig, segments: tuple[str, ...], window: WindowConfig | None = None) -> Columns:
    """The columns of the scores, labels and weights, and these segments.

    window : of jobs that have one

    Raises
    ------
    ConfigError
        Rows wait for their outcomes, and have no time.
    """
    columns = Columns(config.score, config.label, config.weight, segments, sampling=config.sampling)
    labels = outcomes_of(config, "log", None if window is None else window.column)
    if labels is None:
        return columns
    # What labels are called in messages; no column of the log that is read may have the name.
    name = config.labels.label or "label"
    taken = {config.score, config.weight, *segments, *labels.source.columns}
    return replace(columns, label=f"log.labels.{name}" if name in taken else name, labels=labels)


def outcomes_of(config: LogConfig | DataConfig, section: str, dated: str | None = None) -> Outcomes | None:
    """Return the labels of a section, if they are not in its own files.

    dated : a column that dates the rows, where the section names none

    Raises
    ------
    ConfigError
        Rows wait for their outcomes, and have no time.
    """
    labels = config.labels
    if labels.path is None:
        return None
    wait = parse_duration(labels.wait)
    predicted = config.time or dated
    if wait is not None and predicted is None:
        raise ConfigError(
            f"{section}.labels.wait: expected {section}.time or window.column, which say when predictions were made, "
            f"found neither with wait={labels.wait}"
        )
    source = LabelSource(
        labels.path,
        config.key,
        labels.key or config.key,
        labels.label,
        labels.time,
        predicted,
        None if wait is None else round(wait * 1e6),
        labels.missing,
        labels.duplicates,
        config.label,
        section,
    )
    return Outcomes(source)


def row_settings(config: LogConfig) -> dict[str, Any]:
    """Return the configuration of the rows' scores and labels: day tables depend on it."""
    found = config.model_dump(mode="json", include={"score", "label", "weight"})
    if config.labels.path is not None:
        found |= config.model_dump(mode="json", include={"key": True, "time": True, "labels": True})
        del found["labels"]["path"]
    return found


def label_lines(log: LogConfig | DataConfig, facts: Mapping[str, Any]) -> list[str]:
    """Lines for the terminal about joined labels, after warnings of what a person should look at; none without them."""
    labels = facts.get("labels")
    if labels is None:
        return []
    _warn_of_labels(labels, "data" if isinstance(log, DataConfig) else "log", log.labels.missing)
    missing = "left out" if log.labels.missing == "drop" else "label 0"
    text = f"labels: {labels['rows_matched']:,} rows with an outcome, {labels['rows_missing']:,} without ({missing})"
    for name in ("waiting", "late", "conflicting"):
        count = labels[f"rows_{name}"]
        text += f", {count:,} {name}" if count else ""
    if labels["outcomes_orphaned"]:
        text += f"; {labels['outcomes_orphaned']:,} outcomes of rows not read here"
    return [text]


def _warn_of_labels(labels: Mapping[str, Any], section: str, meaning: str) -> None:
    matched, missing, early = (labels.get(f"rows_{name}", 0) for name in ("matched", "missing", "early"))
    if early > _MANY_EARLY * (matched + missing):
        _logger.warning(
            "%s.labels: the outcomes of %s rows are more than a day before their predictions, and are not counted: "
            "compare labels.time with the times of the rows",
            section,
            f"{early:,}",
        )
    if labels["rows_zero"] and missing and meaning == "negative":
        _logger.warning(
            "%s.labels: outcomes say 0 themselves, and %s rows without an outcome count as 0, too: set "
            "labels.missing=drop if their labels are not known",
            section,
            f"{missing:,}",
        )


def window_of(
    config: WindowConfig, log: Log, last: str | None = None, *, labelled: bool = False
) -> Window | None:
    """The days that a configuration chooses, or None where it uses all of the log.

    last : the job's own number of days, such as 1d, in place of window.last. labelled : whether it counts from the
        newest day with labels, where rows wait for them: half of window.min_labelled, so that the next run has another

    Raises
    ------
    NothingToDoError
        There is no such day.
    """
    column, until = config.column, config.last_day
    if column is None:
        return None
    if labelled and last is not None and log.columns.labels is not None:
        window = choose_window(log, column, whole_days(config.last), until)
        labels = window.log.columns.labels
        known = None if labels is None else labels.known_day(config.min_labelled / 2)
        days = [day for day in window.days if (known is None or day <= known) and any(window.groups(day))]
        if not days:
            raise NothingToDoError(
                f"all rows up to {day_of(window.last)} wait for their labels (log.labels.wait): nothing to do"
            )
        # Outcomes are known up to the end of all days.
        log, until = replace(log, columns=replace(log.columns, labels=labels)), day_of(days[-1])
    return choose_window(log, column, whole_days(last or config.last), until)


_NO_RESULT: dict[str, Any] = {
    **dict.fromkeys(
        ("store", "retention", "scratch", "cluster", "record", "report", "output", "window"), True
    ),
    "log": {"path": True, "labels": {"path"}},
    "evaluate": {"last"},
}
"""Keys that no result depends on, and those of the log's files and days, which count themselves and not how they were
chosen.
"""


def settings_of(config: JobConfig, window: Window | None = None) -> dict[str, Any]:
    """Return the settings that a job's result depends on, for its run's id."""
    settings = config.model_dump(mode="json", exclude=_NO_RESULT)
    if window is not None:
        settings["window"] = [window.column, window.first, window.last]
    return settings


def open_dated(
    config: WindowConfig, paths: Sequence[str], columns: Columns, without: Collection[str] = ()
) -> tuple[Log, Window | None]:
    """A log's files that a configuration chooses, and its days; all files and None where it uses all of the log.

    without : see `open_log`
    """
    if config.column is None:
        return open_log(paths, columns, without), None
    window = open_window(paths, columns, config.column, whole_days(config.last), config.last_day, without)
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
    """Sort of a job's log.

    Attributes
    ----------
    config : of the job
    identity : the run's id
    needed : bytes of scratch space that it takes at most
    quarantine : where rows that cannot be used are kept; None: nowhere
    """

    config: Any
    log: Log
    identity: str
    needed: int
    quarantine: Output | None

    @classmethod
    def of(cls, config: Any, log: Log, identity: str, needed: int, *, sorts: int = 1) -> Sorting:
        """Check that scratch space, and a place for rows that cannot be used, can be as the configuration says.

        needed, sorts : see `check_scratch`
        """
        quarantine = None
        if config.log.quarantine_path is not None:
            quarantine = Output(f"{config.log.quarantine_path.rstrip('/')}/{identity}", "log.quarantine_path")
            quarantine.check_apart(log.places())
            check_place(quarantine, identity)
        return cls(config, log, identity, check_scratch(config, log, needed, sorts=sorts), quarantine)

    def plan(self, scratch: str = UNMADE, transform: str = "none") -> SortPlan:
        """Sort the log in a folder, within the memory of a worker."""
        return plan_of(self.config, self.log, scratch, transform, keep=self.quarantine is not None)

    def planned(self, job: str, *stages: str, reads: str = "", writes: Sequence[str], **facts: Any) -> Plan:
        """Plan of a job that makes the log's score table in scratch space. stages : after that; reads : besides it."""
        log = self.log
        tasks = counted(len(cut(log, self.plan().run_rows)), "task")
        return Plan(
            job,
            (
                f"sort: read {', '.join(log.columns.names)} and write sorted runs ({tasks})",
                "merge: write the score table to scratch",
                *stages,
            ),
            (source_line(self.config, log), *filter(None, [reads])),
            (*writes, scratch_line(self.config, self.needed)),
            {**facts_of(log), **facts, "run_id": self.identity},
        )

    def keep_bad(self, scratch: str, count: int) -> None:
        """Keep the rows that cannot be used, which tasks left in scratch. count : of them."""
        if self.quarantine is not None and count:
            keep_parts(scratch, self.quarantine, self.identity)


def plan_of(
    config: Any, log: Log, scratch: str = UNMADE, transform: str = "none", *, keep: bool = False
) -> SortPlan:
    """Plan the sort of a log by a configuration. keep : whether rows that cannot be used are left in scratch."""
    from pipeline.sort.score_table import SortPlan

    rules = RowRules(config.log.on_bad_rows == "quarantine", config.log.max_bad_fraction, keep)
    grid = config.score_table.grid if hasattr(config, "score_table") else "none"
    plan = SortPlan(scratch, transform, grid=grid, rules=rules)
    return plan.within(config.cluster.memory_bytes, log.rows)


def check_scratch(config: Any, log: Log, needed: int, *, sorts: int = 1) -> int:
    """Check that a job's scratch space can be made, apart from the log; return the bytes that it takes at most.

    needed : bytes without what a join of labels spills. sorts : of the log, each of which joins its labels

    Raises
    ------
    ConfigError, TemporaryError
        As `check_space`; or scratch space would become part of the log or its outcomes.
    """
    from pipeline.sort.label_join import spill_bytes

    needed += sorts * spill_bytes(log, plan_of(config, log).label_bytes)
    check_space(config.scratch, needed)
    if config.scratch is not None:
        Output(f"{config.scratch.rstrip('/')}/logcal-scratch", "scratch").check_apart(log.places())
    return needed


def facts_of(log: Log) -> dict[str, Any]:
    """Facts of a log for a plan."""
    return {"files": len(log.files), "rows": log.rows, "bytes": log.size}


def source_line(config: Any, log: Log) -> str:
    """Line of a plan about the log that is read."""
    return f"{', '.join(config.log.path)}: {log.described()}"


def scratch_line(config: Any, needed: int) -> str:
    """Line of a plan about scratch space."""
    return f"{SCRATCH}{config.scratch or 'temporary folder'}): up to {needed:,} bytes, removed after"
