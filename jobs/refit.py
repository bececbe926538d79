"""Refits of a stream's table: fit jobs that the follow job runs when they are due."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from jobs.config.jobs import FitConfig, FollowConfig, JobConfig, MonitorConfig
from jobs.config.loading import derived
from jobs.config.sections import parse_duration, whole_days
from jobs.rows import ChosenRows, latest_labelled
from logcal.errors import (
    CheckFailedError,
    FileBeingWrittenError,
    FileChangedError,
    FileRejectedError,
    InputRejectedError,
    NothingToDoError,
    examples,
)
from logcal.storage import with_checksum
from pipeline.execution import Executor
from pipeline.files.folders import Folder
from pipeline.follow.batch import compare, list_sources
from pipeline.follow.ledger import Ledger
from pipeline.log.log_files import LogFile, expected_folder, find_files
from pipeline.log.logs import read_footers
from pipeline.table.published import PublishedTable, fitted_until

log = logging.getLogger("logcal")

T = TypeVar("T")
J = TypeVar("J", bound=JobConfig)

PUBLISHED, UNCHANGED, REFUSED, REJECTED = "published", "unchanged", "refused", "rejected"
"""Outcomes of a refit. refused: a check failed and the table stays. rejected: the log cannot be used."""

_STATE = "refit.json"

_MOST_ATTEMPTS = 6
"""Attempts of a refit while files arrive, change or disappear; after these the next refit has to do."""


@dataclass
class Refits:
    """Refits of a stream.

    Attributes
    ----------
    config : the stream's configuration
    ledger : the stream's ledger; its folder keeps the state of the last refit
    refused : messages of this run's refits that a check refused
    outcomes : number of this run's refits by outcome
    alarmed : whether the last test of the table gave an alarm
    """

    config: FollowConfig
    ledger: Ledger
    refused: list[str] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    alarmed: bool = False

    @cached_property
    def last(self) -> dict[str, Any]:
        """State of the last refit: its time, the rows scored until then, its outcome; empty before the first."""
        return self.ledger.folder.read_json(_STATE) or {}

    def run_if_due(self, executor: Executor) -> None:
        """Test the table, and refit it, if these are due."""
        self._test_table(executor)
        if self.due():
            self.run(executor)

    def due(self) -> bool:
        """True if a refit is due: after an alarm, enough time, or enough rows."""
        refit, last = self.config.refit, self.last
        if not refit.enabled or not last:
            return refit.enabled
        every, previous, now = parse_duration(refit.every), last.get("compared", last), time.time()
        # A clock that was set back must not delay refits.
        too_late = every is not None and not 0 <= now - previous["at"] < every
        enough_rows = refit.rows is not None and self._rows() - previous["rows"] >= refit.rows
        if not (self.alarmed or too_late or enough_rows):
            return False
        if last.get("rejected") is None or last["rejected"] != self._inputs():
            return True
        # The same rows and labels would be rejected again: compare them again when the next refit is due.
        self.alarmed = False
        self._save({**last, "compared": {"at": now, "rows": self._rows()}})
        return False

    def _inputs(self) -> str:
        """Return a digest of a refit's inputs: configuration, files with rows and labels, the live version."""
        config, descriptions = self._fit_config(), sorted(self._unusable())
        descriptions.append(f"up to {latest_labelled(config.log, config.window)}")
        for paths in (config.log.path, config.log.labels.path):
            try:
                files = find_files(paths).files if paths else ()
                descriptions += [f"{file.identity}" for file in files]
            except InputRejectedError as error:
                descriptions.append(str(error))
        content = json.dumps([config.model_dump(mode="json"), self._table.readable_current(), descriptions])
        return hashlib.sha256(content.encode()).hexdigest()

    def _test_table(self, executor: Executor) -> None:
        """Run the monitor job, if it is due: its alarm makes a refit due."""
        seconds = parse_duration(self.config.refit.alarm)
        if seconds is None or not self.last:
            return
        tested = self.last.get("tested_at", 0.0)
        if 0 <= time.time() - tested < seconds:
            return
        from jobs import monitor

        config = self._job_config(MonitorConfig, report={"path": None})  # no page: the stream has its own
        try:
            self._run_job(lambda files: monitor.prepare(config, ChosenRows(files)).execute(executor))
        except CheckFailedError as error:
            self.alarmed = True
            log.warning("alarm: %s", error)
        except (NothingToDoError, InputRejectedError) as error:
            log.info("the table was not tested: %s", error)
        self._save({**self.last, "tested_at": time.time(), "alarm": self.alarmed})

    def _save(self, content: dict[str, Any]) -> None:
        self.ledger.folder.write(_STATE, json.dumps(with_checksum(content)).encode())
        self.last = content

    def _unusable(self) -> set[str]:
        """Return the stream's files that were refused or cannot be read yet; refits leave them out."""
        if self.config.labelled.path is not None:
            return set()
        return {*self.ledger.refused, *self.ledger.waiting}

    def _run_job(self, job: Callable[[Collection[str]], T]) -> T:
        """Run a job on the stream's log, again if files arrive, change or disappear meanwhile; return its result.

        The job lists the folder itself, and reads the files that it has listed. If a file was replaced or removed
        meanwhile, the job starts again. If a file is incomplete or damaged, the job is tried again without the files
        that the stream has not scored; if no file is at fault, this is tried once. There are at most `_MOST_ATTEMPTS`
        attempts. The job's next run sees the files that were left out.

        job : called with the names of files to leave out
        """
        without, attempts, all_seen = self._unusable(), 0, False
        while True:
            try:
                return job(without)
            except InputRejectedError as error:
                attempts += 1
                again = isinstance(error, FileRejectedError) and attempts < _MOST_ATTEMPTS
                if again and _has_changed(error):
                    log.info("started again: %s", error)
                    continue
                unseen = self._unseen() - without if again or not all_seen else set()
                if not unseen:
                    raise
                without, all_seen = without | unseen, True
                log.info("tried once more without %s, not scored yet: %s", examples(sorted(unseen), 3), error)

    def _unseen(self) -> set[str]:
        """Return the files that are new, or have changed since they were scored.

        Before the first table all files are new: then those that cannot be read.
        """
        if self.config.labelled.path is not None:
            return set()
        filesystem, root = expected_folder(self.config.log.path)
        days, since = whole_days(self.config.retention.ledger), None
        if days is not None:  # files of earlier days have left the ledger
            since = dt.datetime.now(dt.UTC).date() - dt.timedelta(days)
        listed = list_sources(Folder.of(filesystem, root), since=since, key=self.config.follow.partition)
        new = compare(listed, self.ledger.files, complete=False).new
        names = {source.name for source in new}
        if self.ledger.files:
            return names
        files = [LogFile(f"{root.rstrip('/')}/{name}", name, size, stamp) for name, size, stamp in new]
        readable, _ = read_footers(filesystem, files)
        return names - {file.relative for file, _ in readable}

    def _rows(self) -> int:
        return sum(file.rows for file in self.ledger.files.values())

    def run(self, executor: Executor) -> str:
        """Run a refit, save its state, and return its outcome.

        Raises
        ------
        TemporaryError, ConfigError
            The fit job raises them; the stream cannot continue.
        """
        from jobs import fit

        started, inputs = time.time(), self._inputs()
        before = self.last.get("version")
        version, message = before, ""
        facts: dict[str, Any] = {
            key: self.last[key] for key in ("tested_at", "label_coverage") if key in self.last
        }
        try:
            outcome = self._run_job(
                lambda files: fit.prepare(self._fit_config(), ChosenRows(files)).execute(executor)
            )
            kind, version = PUBLISHED, outcome.summary["version"]
            facts["label_coverage"] = _coverage(outcome.summary)
        except NothingToDoError as error:
            error.tidy()
            kind, message = UNCHANGED, str(error)
        except CheckFailedError as error:
            kind, message = REFUSED, str(error)
            self.refused.append(message)
            log.warning("refit refused, the table stays as it is: %s", error)
        except InputRejectedError as error:
            kind, message = REJECTED, str(error)
            facts["rejected"] = inputs
            log.warning("no refit: %s", error)
        self.outcomes[kind] += 1
        published = f" {version}" if kind == PUBLISHED else ""
        log.info("refit: %s%s, %.1f s", kind, published, time.time() - started)
        current = self._table.current() if kind == UNCHANGED else None
        if current is not None and current.name != before:
            # The version was published by a refit that was killed before it saved its state.
            kind, version, message = PUBLISHED, current.name, ""
            facts["label_coverage"] = _coverage(current.manifest["data"])
        self.alarmed = False
        live = self._table.current()
        if live is not None and _has_waiting_rows(live.manifest):
            facts["labels_until"] = fitted_until(live.manifest) or None
        facts |= {"at": started, "rows": self._rows(), "alarm": False}
        self._save({**facts, "outcome": kind, "version": version, "message": message})
        return kind

    @property
    def _table(self) -> PublishedTable:
        return PublishedTable(self.config.store.path, self.config.store.table)

    def _fit_config(self) -> FitConfig:
        return self._job_config(FitConfig)

    def _job_config(self, job: type[J], **sections: Any) -> J:
        """Return another job's configuration, from the stream's: labelled rows."""
        config = self.config
        log = {"path": config.labelled.path or config.log.path}
        return derived(config, job, log=log, store={"version": None}, **sections)


def _has_waiting_rows(manifest: Mapping[str, Any]) -> bool:
    """Tell whether rows, or whole days, had no label yet when a version was fitted."""
    left_out = (manifest.get("window") or {}).get("left_out") or {}
    return bool(manifest["data"].get("rows_waiting") or "unlabelled" in left_out)


def _coverage(facts: Mapping[str, Any]) -> float | None:
    """Return the share of a fit's rows that have a label; None without rows."""
    rows = facts.get("rows_read")
    return None if not rows else 1 - facts.get("rows_waiting", 0) / rows


def check(config: FollowConfig) -> None:
    """Check the configuration of the refits before a stream is followed.

    Raises
    ------
    ConfigError
        The method or its parameters are wrong.
    """
    if config.refit.enabled:
        from pipeline.fit.calibration import make_calibrator

        make_calibrator(config.calibrator.method, config.calibrator.params)


def _has_changed(error: InputRejectedError) -> bool:
    """Tell whether a file changed during a run, so that the next run may succeed at once."""
    return isinstance(error, FileChangedError) and not isinstance(error, FileBeingWrittenError)
