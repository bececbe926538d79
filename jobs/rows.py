"""Input rows of a job by its configuration: the log's columns, its days, its sort; paths of outputs."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from jobs.config.jobs import DAY, DataConfig, JobConfig
from jobs.config.sections import (
    TOMORROW,
    LogConfig,
    WindowConfig,
    parse_duration,
    whole_days,
)
from jobs.outcome import SCRATCH, Plan
from logcal.errors import ConfigError, NothingToDoError, counted
from pipeline.days.closed import close_excluded, find_damaged
from pipeline.days.files import known_spans
from pipeline.files import clock
from pipeline.files.output import Output
from pipeline.files.scratch import check_space
from pipeline.labels.outcomes import LabelSource, Outcomes
from pipeline.log.calendars import Calendar, last_ended
from pipeline.log.log_files import LogFile
from pipeline.log.logs import Columns, Log, cut, open_log
from pipeline.log.quarantine import DAY_OUT, BadRows, Example, RowRules, check, check_output, copy_parts
from pipeline.log.windows import Close, ClosedDay, Window, choose_window, day_of, open_window
from pipeline.table.published import PublishedTable

if TYPE_CHECKING:
    from pipeline.sort.score_table import SortPlan

JOB = "{job}"
"""Placeholder for the job's name in the path of a report."""

_logger = logging.getLogger("logcal")

_MANY_EARLY = 0.01
"""Share of all rows with early outcomes above which the times probably come from different clocks."""

NO_SCRATCH = "scratch"
"""Placeholder for scratch space in a graph that is only drawn."""


def columns_of(config: Any, segments: tuple[str, ...], newest: int | None = None) -> Columns:
    """Return the columns of scores, labels, weights and the given segments.

    config : configuration with a log, and perhaps a window
    newest : newest complete day of the log, if the caller knows it

    Raises
    ------
    ConfigError
        Rows wait for their outcomes, but have no time.
    """
    log, window = config.log, getattr(config, "window", None)
    columns = Columns(log.score, log.label, log.weight, segments, sampling=log.sampling)
    columns = replace(columns, calendar=calendar_of(window)._replace(latest=latest_labelled(log, window)))
    labels = outcomes_of(log, window, newest)
    if labels is None:
        return columns
    # Name of the labels in messages; it must differ from the columns that are read.
    name = log.labels.label or "label"
    used_names = {log.score, log.weight, *segments, *labels.source.columns}
    return replace(columns, label=f"log.labels.{name}" if name in used_names else name, labels=labels)


def outcomes_of(
    config: LogConfig | DataConfig, window: WindowConfig | None = None, newest: int | None = None
) -> Outcomes | None:
    """Return the labels of a section if they are in other files, otherwise None.

    window : window of the job, if it has one; its column dates the rows if the section names none
    newest : see `columns_of`

    Raises
    ------
    ConfigError
        Rows wait for their outcomes, but have no time.
    """
    labels = config.labels
    if labels.path is None:
        return None
    wait = parse_duration(labels.wait)
    predicted = config.time or (None if window is None else window.column)
    if wait is not None and predicted is None:
        raise ConfigError(
            "$[labels.wait]: expected $[time] or window.column, which say when predictions were made, found neither "
            f"with wait={labels.wait}"
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
        newest,
        calendar_of(window),
    )
    return Outcomes(source)


def calendar_of(window: WindowConfig | None) -> Calendar:
    """Return the days that rows may have by a job's window; None: by the defaults."""
    return Calendar(TOMORROW) if window is None else Calendar(window.newest, window.timezone)


def latest_labelled(config: LogConfig | DataConfig, window: WindowConfig | None) -> int | None:
    """Return the last day whose labels, in the log itself, are complete by the clock; None: all days' may be."""
    labels = config.labels
    if window is None or window.column is None or labels.path is not None or labels.wait is None:
        return None
    return last_ended(clock.now(), dt.timedelta(seconds=parse_duration(labels.wait)), window.timezone)


def row_settings(config: LogConfig) -> dict[str, Any]:
    """Return the configuration of scores and labels, on which day tables depend."""
    settings = config.model_dump(mode="json", include={"score", "label", "weight"})
    if config.labels.path is not None:
        settings |= config.model_dump(mode="json", include={"key": True, "time": True, "labels": True})
        del settings["labels"]["path"]
    return settings


def label_lines(log: LogConfig | DataConfig, facts: Mapping[str, Any]) -> list[str]:
    """Return text lines about joined labels, none without such labels; log warnings about suspicious outcomes."""
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
        text += (
            f"; {labels['outcomes_orphaned']:,} outcomes of other rows (of days left out, or unknown keys)"
        )
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
    config: WindowConfig, log: Log, last: str | None = None, labelled: float | None = None
) -> Window | None:
    """Return the window that a configuration chooses, or None if it uses all of the log.

    last : number of days such as 1d that replaces window.last
    labelled : share of labels; the days end with the newest day that has so many, if rows wait for them

    Raises
    ------
    NothingToDoError
        No day has labels.
    """
    column, until = config.column, config.last_day
    if column is None:
        return None
    calendar = calendar_of(config)._replace(latest=log.columns.calendar.latest)
    log = replace(log, columns=replace(log.columns, calendar=calendar))
    if labelled is not None and last is not None and log.columns.labels is not None:
        window = choose_window(log, column, whole_days(config.last), until)
        labels = window.log.columns.labels
        newest = None if labels is None else labels.known_day(labelled)
        days = [day for day in window.days if (newest is None or day <= newest) and any(window.groups(day))]
        if not days:
            raise NothingToDoError(
                f"all rows up to {day_of(window.last)} wait for their labels (log.labels.wait): nothing to do"
            )
        # Keep the labels of all days: their newest outcome tells which rows still wait.
        log, until = replace(log, columns=replace(log.columns, labels=labels)), day_of(days[-1])
    return choose_window(log, column, whole_days(last or config.last), until)


_NO_RESULT: dict[str, Any] = {
    **dict.fromkeys(
        ("store", "retention", "scratch", "cluster", "record", "report", "output", "window"), True
    ),
    "log": {"path": True, "give_up": True, "labels": {"path"}},
    "data": {"path": True, "labels": {"path"}},
    "evaluate": {"last"},
}
"""Keys that do not change a job's result, and keys that choose files and days, which enter the run's id themselves."""


def settings_of(config: JobConfig, window: Window | None = None) -> dict[str, Any]:
    """Return the settings that a job's result depends on, for its run's id."""
    settings = config.model_dump(mode="json", exclude=_NO_RESULT)
    if getattr(getattr(config, "log", None), "quarantine_path", None) is not None:
        # Where the rows are kept is no part of a result, whether they are kept is.
        settings["log"]["quarantine_path"] = True
    if window is not None:
        settings["window"] = [window.column, window.first, window.last]
        settings["window"] += window.log.columns.calendar.facts.values()
        if (limits := window.limits_of()) is not None:
            settings["window"] += [list(limits)]
    return settings


@dataclass(frozen=True)
class ChosenRows:
    """Choice of a log's files and days that another job has made for this one.

    Attributes
    ----------
    without : relative paths of files to leave out
    newest : newest complete day of the log; None: that of the files
    closed : days left out, with the reasons; None: the job finds excluded and damaged days itself
    spans : first and last day of files, by relative path; None: those that the store remembers
    """

    without: Collection[str] = ()
    newest: int | None = None
    closed: tuple[ClosedDay, ...] | None = None
    spans: Mapping[str, tuple[int, int]] | None = None


ANY = ChosenRows()
"""No choice: all files of the log."""


def open_log_and_window(
    config: Any, columns: Columns, choice: ChosenRows, days: int | None = None
) -> tuple[Log, Window | None]:
    """Open the files of the days that a configuration chooses; return the log and its window, None without one.

    Files of excluded days are not opened; with window.bad_days = set_aside, files of damaged days are left out.

    config : configuration with a log, a window, and the store of the table whose excluded days count
    days : number of days that replaces window.last
    """
    paths, chosen = config.log.path, config.window
    if chosen.column is None:
        return open_log(paths, columns, choice.without), None
    columns = replace(columns, calendar=calendar_of(chosen)._replace(latest=columns.calendar.latest))
    folder = PublishedTable(config.store.path, config.store.table).folder
    column, zone, closed = chosen.column, chosen.timezone, choice.closed
    length = days or whole_days(chosen.last)
    close: Close = close_excluded(folder, column, zone) if closed is None else lambda files: ((), closed)
    if closed is None and chosen.bad_days == "set_aside":
        close = find_damaged(paths, columns, column, length, chosen.last_day, folder, close)

    def known(files: Sequence[LogFile]) -> Mapping[str, tuple[int, int]]:
        remembering = folder if choice.spans is None else None
        return known_spans(remembering, files, column, zone) | dict(choice.spans or {})

    window = open_window(paths, columns, column, length, chosen.last_day, choice.without, close, known)
    return window.log, window


def check_possible_days(config: LogConfig, window: Window | None) -> None:
    """Refuse rows with days that cannot be, unless bad rows are left out.

    Their number is known before rows are read, and a day to which they are added must not look suspect.

    Raises
    ------
    InputRejectedError
        The window has such rows.
    """
    if window is None or config.on_bad_rows != "fail":
        return
    bad = BadRows()
    for file, groups in window.files:
        for group in groups:
            if (found := group.impossible) is not None:
                example = Example(file.path, found.row, f"{window.column}={found.text()}")
                bad.merge(BadRows({DAY_OUT: found.rows}, {DAY_OUT: [example]}))
    check(bad, window.log.rows, RowRules())


def dated_path(path: str, setting: str, window: Window | None) -> str:
    """Return an output's path with {day} replaced by the window's last day.

    Raises
    ------
    ConfigError
        The path contains {day}, but there is no window.
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
    """Return the folder of a page that is not of one day: {job} and {day} become the job's name. None: no page."""
    return None if path is None else path.replace(JOB, job).replace(DAY, job)


def exclusive_page_folder(path: str | None, job: str) -> str | None:
    """Return `page_folder` for a page that is rewritten in each run and needs its own folder.

    Raises
    ------
    ConfigError
        The folder contains the report of an evaluation or a comparison.
    """
    folder = page_folder(path, job)
    if folder is not None and Output.at(folder, "report.path").manifest() is not None:
        raise ConfigError(
            f"report.path: expected a folder of its own for the page of {job}, found another job's report in {folder}: "
            f"write {JOB} into the path, such as reports/{JOB}"
        )
    return folder


def above_days(path: str) -> str | None:
    """Return the folder above the {day} of an output's path; None without {day}, or if the folder has no name."""
    if DAY not in path:
        return None
    folder = path.partition(DAY)[0].rpartition("/")[0]
    # In a URL, the first part is the host or bucket.
    inside = folder.partition("://")[2].partition("/")[2] if "://" in folder else folder
    return folder if inside.rpartition("/")[2].strip(".") else None


@dataclass(frozen=True)
class Sorting:
    """Sort of a job's log.

    Attributes
    ----------
    config : the job's configuration
    identity : the run's id
    needed : upper bound of its scratch space in bytes
    quarantine : folder of unusable rows; None: they are not kept
    """

    config: Any
    log: Log
    identity: str
    needed: int
    quarantine: Output | None

    @classmethod
    def of(cls, config: Any, log: Log, identity: str, needed: int, *, sorts: int = 1) -> Sorting:
        """Check scratch space and the quarantine folder, and return the sort.

        needed, sorts : see `check_scratch`
        """
        quarantine = None
        if config.log.quarantine_path is not None:
            quarantine = Output.at(
                f"{config.log.quarantine_path.rstrip('/')}/{identity}", "log.quarantine_path"
            )
            quarantine.check_apart(log.locations())
            check_output(quarantine, identity)
        return cls(config, log, identity, check_scratch(config, log, needed, sorts=sorts), quarantine)

    def plan(self, scratch: str = NO_SCRATCH, transform: str = "none") -> SortPlan:
        """Return the plan of the sort in a scratch folder, within the memory of a worker."""
        return plan_of(self.config, self.log, scratch, transform, keep=self.quarantine is not None)

    def planned(self, job: str, *stages: str, reads: str = "", writes: Sequence[str], **facts: Any) -> Plan:
        """Return the plan of a job that first builds the log's score table in scratch space.

        stages : stages after that
        reads : further input
        """
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
        """Move the unusable rows that tasks wrote to scratch into the quarantine folder. count : number of them."""
        if self.quarantine is not None and count:
            copy_parts(scratch, self.quarantine, self.identity)


def plan_of(
    config: Any, log: Log, scratch: str = NO_SCRATCH, transform: str = "none", *, keep: bool = False
) -> SortPlan:
    """Plan the sort of a log by a configuration. keep : whether tasks write unusable rows to scratch."""
    from pipeline.sort.score_table import SortPlan

    rules = RowRules(config.log.on_bad_rows == "quarantine", config.log.max_bad_fraction, keep)
    grid = config.score_table.grid if hasattr(config, "score_table") else "none"
    plan = SortPlan(scratch, transform, grid=grid, rules=rules)
    return plan.within(config.cluster.memory_bytes, log.rows)


def check_scratch(config: Any, log: Log, needed: int, *, sorts: int = 1) -> int:
    """Check that a job's scratch space has room and lies outside the log; return an upper bound of its bytes.

    needed : upper bound without the spill files of a label join
    sorts : number of sorts of the log, each of which joins the labels

    Raises
    ------
    ConfigError, TemporaryError
        `check_space` raises them, or scratch space lies inside the log or its outcomes.
    """
    from pipeline.labels.label_join import spill_bytes

    needed += sorts * spill_bytes(log, plan_of(config, log).label_bytes)
    check_space(config.scratch, needed)
    if config.scratch is not None:
        Output.at(f"{config.scratch.rstrip('/')}/logcal-scratch", "scratch").check_apart(log.locations())
    return needed


def facts_of(log: Log) -> dict[str, Any]:
    """Return the facts of a log for a plan."""
    return {"files": len(log.files), "rows": log.rows, "bytes": log.size}


def source_line(config: Any, log: Log) -> str:
    """Return a plan's line about the log that is read."""
    return f"{', '.join(config.log.path)}: {log.described()}"


def scratch_line(config: Any, needed: int) -> str:
    """Return a plan's line about scratch space."""
    return f"{SCRATCH}{config.scratch or 'temporary folder'}): up to {needed:,} bytes, removed after"
