"""Steps of the daily job on one day: the jobs evaluate, monitor, fit and score, each with its record."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from jobs.config.jobs import (
    DAY,
    DaysConfig,
    EvaluateConfig,
    FitConfig,
    JobConfig,
    MonitorConfig,
    ScoreConfig,
)
from jobs.config.loading import derived
from jobs.config.naming import in_keys
from jobs.day_commands import fit_records
from jobs.day_survey import Survey, fitted_with
from jobs.rows import JOB, above_days
from logcal.errors import (
    CheckFailedError,
    ConfigError,
    FileChangedError,
    InputRejectedError,
    LabelsWaitingError,
    NothingToDoError,
)
from pipeline.days.files import DayFiles
from pipeline.days.records import (
    CHECK,
    DONE,
    EVALUATE,
    FAILED,
    FIT,
    MONITOR,
    NOTHING,
    SCORE,
    SHIFT,
    DayRecord,
    digest_of,
)
from pipeline.days.states import DayState
from pipeline.execution import Executor
from pipeline.files.output import Output
from pipeline.files.records import jsonable
from pipeline.log.windows import day_of
from pipeline.monitor.history import read_history
from pipeline.score.scored import scored_output
from pipeline.table.published import Version

log = logging.getLogger("logcal")

J = TypeVar("J", bound=JobConfig)

_DAY_OUTPUTS = ("output.path: ", "report.path: ")
"""Beginnings of messages about the place of one day's output, which do not concern other days."""


def job_config(config: DaysConfig, job: type[J], day: int, **sections: Mapping[str, Any]) -> J:
    """Return another job's configuration up to a day. sections : keys that replace those of the configuration."""
    window = {"until": day_of(day).isoformat(), **sections.pop("window", {})}
    return derived(config, job, window=window, **sections)


def evaluate(survey: Survey, entry: DayState, executor: Executor) -> DayRecord | None:
    """Measure the live version on a day that no fit has used. Returns None if its labels are not complete after all.

    Raises
    ------
    ConfigError, TemporaryError, FileChangedError
        See `jobs.evaluate.prepare`; the day's other failures are recorded.
    """
    from jobs import evaluate as job

    record, live = DayRecord(entry.name, EVALUATE, entry.files.digest), survey.store.current()
    if (reason := _unmeasured(live, survey, entry)) is not None:
        return replace(record, outcome=NOTHING, message=reason)
    assert live is not None
    record = replace(record, version=live.name)
    config = job_config(survey.config, EvaluateConfig, entry.day, evaluate={"last": "1d"})
    run_id = _attempt_id(config, entry)
    if (previous := _failed_before(entry, EVALUATE, run_id)) is not None:
        return previous
    try:
        job.prepare(config, survey.choice()).execute(executor)
    except LabelsWaitingError:
        return None
    except NothingToDoError:
        pass  # a run that was killed before it wrote the record
    except (CheckFailedError, InputRejectedError, ConfigError) as error:
        record = _failure(record, error, run_id)
    return replace(record, facts=_measured(survey.config, entry))


def _unmeasured(live: Version | None, survey: Survey, entry: DayState) -> str | None:
    """Return the reason why a day is not measured; None if it can be."""
    if live is None:
        return "no version was live"
    if entry.name in fitted_with(live, survey.config.window.column):
        return f"version {live.name} was fitted to it"
    return None


def _attempt_id(config: JobConfig, entry: DayState) -> str:
    """Return a digest of a day's files and of what its measurement depends on, without the version that is live."""
    settings = config.model_dump(mode="json", exclude={"record", "scratch", "cluster", "report"})
    content = json.dumps([settings, entry.files.digest], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:32]


def _failed_before(entry: DayState, step: str, run_id: str) -> DayRecord | None:
    """Return the record of the same run of a step if that failed: it would fail again."""
    last = entry.last.get(step)
    return last if last is not None and (last.outcome, last.run_id) == (FAILED, run_id) else None


def _measured(config: DaysConfig, entry: DayState) -> dict[str, Any]:
    """Return the numbers of a day's report; none without one."""
    path = config.report.path.replace(JOB, EVALUATE).replace(DAY, entry.name)
    return dict((Output.at(path, "report.path").manifest() or {}).get("measured") or {})


def _failure(record: DayRecord, error: Exception, run_id: str | None = None) -> DayRecord:
    """Return the record of a step that failed.

    Raises
    ------
    ConfigError, FileChangedError
        The error does not concern this day alone, or the day's files are still being written.
    """
    if isinstance(error, FileChangedError) or (
        isinstance(error, ConfigError) and not in_keys(str(error)).startswith(_DAY_OUTPUTS)
    ):
        raise error
    return replace(record, outcome=FAILED, message=in_keys(str(error)), run_id=run_id)


def monitor(survey: Survey, entry: DayState, executor: Executor) -> DayRecord | None:
    """Test the live version for drift on a day. Raises: see `evaluate`."""
    from jobs import monitor as job

    record, live = DayRecord(entry.name, MONITOR, entry.files.digest), survey.store.current()
    if (reason := _unmeasured(live, survey, entry)) is not None:
        return replace(record, outcome=NOTHING, message=reason)
    assert live is not None
    record, said = replace(record, version=live.name), None
    # The day alone: an earlier day that could not be tested does not keep this one from it.
    config = job_config(survey.config, MonitorConfig, entry.day, window={"last": "1d"})
    run_id = _attempt_id(config, entry)
    if (previous := _failed_before(entry, MONITOR, run_id)) is not None:
        return previous
    try:
        outcome = job.prepare(config, survey.choice()).execute(executor)
        said = "; ".join(line.strip() for line in outcome.lines if entry.name in line)
    except NothingToDoError as error:
        said = str(error)
    except (CheckFailedError, InputRejectedError, ConfigError) as error:
        record = _failure(record, error, run_id)
    tested = _evidence(survey, entry)
    if tested is None:
        untested = replace(record, outcome=NOTHING, message=said or "not tested")
        return untested if record.outcome == DONE else record
    return replace(record, version=tested[0], facts=tested[1])


def _evidence(survey: Survey, entry: DayState) -> tuple[str, dict[str, Any]] | None:
    """Return the version that a tested day was compared with, and the evidence; None if the day was not tested."""
    history = read_history(survey.store.folder)
    found = [day for day in history.days if day.day == entry.name] if history is not None else []
    return (found[0].version, {"log_e": jsonable(found[0].log_e)}) if found else None


def score(survey: Survey, entry: DayState, executor: Executor) -> DayRecord | None:
    """Score a day with the live version. Returns None without a live version.

    Raises
    ------
    ConfigError, TemporaryError, FileChangedError
        See `jobs.score.prepare`; the day's other failures are recorded.
    """
    from jobs import score as job

    record, live = DayRecord(entry.name, SCORE, entry.files.digest), survey.store.current()
    choice = survey.scoring_choice(entry.day)
    owned = [file for file in entry.files.files if file.relative not in choice.without]
    if not owned:
        return replace(record, outcome=DONE, message="its files are scored with the day before")
    config = job_config(survey.config, ScoreConfig, entry.day, score={"last": "1d"})
    path = config.output.path.replace(DAY, entry.name)
    output = scored_output(
        path, among=above_days(config.output.path), replace=config.output.mode == "replace"
    )
    # A run that was killed before it wrote the record, perhaps before the live version changed.
    output.settle()
    manifest = output.manifest() or {}
    if manifest.get("log_files") != digest_of(owned):
        if live is None:
            return None
        record = replace(record, version=live.name)
        try:
            prepared = job.prepare(config, choice)
            if (previous := _failed_before(entry, SCORE, prepared.identity)) is not None:
                return previous
            try:
                prepared.execute(executor)
            except CheckFailedError as error:
                if not error.written:
                    return _failure(record, error, prepared.identity)
        except NothingToDoError:
            pass
        except (CheckFailedError, InputRejectedError, ConfigError) as error:
            if not getattr(error, "written", False):
                return _failure(record, error)
        manifest = output.manifest() or {}
    facts = {name: manifest[name] for name in _SCORED if name in manifest}
    version, run_id, shift = (
        manifest.get("table_version"),
        manifest.get("run_id"),
        manifest.get("shift") or {},
    )
    if shift.get("beyond"):
        facts[SHIFT] = shift["distance"]
    return replace(record, version=version, run_id=run_id, facts=facts)


_SCORED = ("rows", "null_rows", "unseen_rows", "rows_below_range", "rows_above_range")
"""Counts of a scored log's manifest that the record repeats."""


class DayFit(NamedTuple):
    """Result of a fit for the days that it was due for.

    Attributes
    ----------
    records : records of the days
    message : the outcome in a sentence
    culprit : day with a damaged file, which the fit must leave out; None: there is none
    """

    records: Sequence[DayRecord]
    message: str = ""
    culprit: tuple[int, str] | None = None


def fit(survey: Survey, last: int, due: Sequence[DayState], executor: Executor) -> DayFit:
    """Fit a new version to the window that ends with day `last`. due : days that no fit has used.

    Raises
    ------
    ConfigError, TemporaryError, FileChangedError
        See `jobs.fit.prepare`; other failures are recorded.
    """
    from jobs import fit as job

    live = survey.store.current()
    end = ((live.manifest.get("window") or {}) if live is not None else {}).get("last", "")
    if live is not None and end > day_of(last).isoformat() and not survey.config.store.force:
        message = f"the live version {live.name} has days up to {end}: a fit to earlier days would replace newer data"
        return DayFit([_fit_record(entry, outcome=NOTHING, message=message) for entry in due], message)
    choice, run_id = survey.choice(last), None
    try:
        prepared = job.prepare(job_config(survey.config, FitConfig, last), choice)
        run_id = str(prepared.plan.facts.get("run_id"))
        failed = [_failed_before(entry, FIT, run_id) for entry in due]
        if due and all(failed):
            return DayFit([], str(failed[0].message if failed[0] else ""))
        outcome = prepared.execute(executor)
        version = survey.store.version(str(outcome.summary["version"]))
        message = f"published version {version.name}"
    except NothingToDoError as error:
        error.tidy()
        version, message = survey.store.version(), str(error)
    except CheckFailedError as error:
        return DayFit([_fit_record(entry, error, error.version) for entry in due], str(error))
    except LabelsWaitingError as error:
        return DayFit([], str(error))
    except (InputRejectedError, ConfigError) as error:
        culprit = culprit_of(survey, error)
        if culprit is not None:
            return DayFit([], str(error), culprit)
        return DayFit([_fit_record(entry, error, run_id=run_id) for entry in due], str(error))
    return DayFit(_fit_records(survey, version), message)


def culprit_of(survey: Survey, error: Exception) -> tuple[int, str] | None:
    """Return the day of the file that an error is about, and the message; None if it is not about one file."""
    if isinstance(error, FileChangedError):
        return None
    for files in survey.log.days.values():
        if any(str(error).startswith(f"{file.path}: ") for file in files.files):
            return files.day, str(error)
    return None


def _fit_record(
    entry: DayState,
    error: Exception | None = None,
    version: str | None = None,
    run_id: str | None = None,
    **fields: Any,
) -> DayRecord:
    record = DayRecord(entry.name, FIT, entry.files.digest, version=version, **fields)
    return record if error is None else _failure(record, error, run_id)


def _fit_records(survey: Survey, version: Version) -> list[DayRecord]:
    """Return the records of a version's days whose last record says something else, or that have none."""
    entries = {entry.name: entry for entry in survey.states.days if survey.may_fit(entry)}
    records = fit_records(version, ((name, entry.files.digest) for name, entry in entries.items()))
    last = {name: entry.last.get(FIT) for name, entry in entries.items()}
    return [
        record
        for record in records
        if (before := last[record.day]) is None
        or (before.files, before.outcome) != (record.files, record.outcome)
    ]


def check_record(files: DayFiles, fault: str, *, rows_read: bool) -> DayRecord:
    """Return the record of a day's fault.

    rows_read : whether it was found while rows were read, not in footers: it then holds while the files are the same
    """
    name = day_of(files.day).isoformat()
    return DayRecord(
        name, CHECK, files.digest, FAILED, message=in_keys(fault), facts={"rows_read": rows_read}
    )
