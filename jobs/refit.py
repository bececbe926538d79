"""Refits of a stream's table: the fit job, run from the follow job when it is time."""

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
from jobs.config.sections import parse_duration, whole_days
from logcal.errors import (
    CheckFailedError,
    FileChangedError,
    FileRejectedError,
    InputRejectedError,
    NothingToDoError,
    examples,
)
from logcal.storage import with_checksum
from pipeline.execution import Executor
from pipeline.follow.batch import compare, list_sources
from pipeline.follow.ledger import Ledger
from pipeline.log.log_files import LogFile, expected_folder, find_files
from pipeline.log.logs import read_footers
from pipeline.table.published import PublishedTable

log = logging.getLogger("logcal")

T = TypeVar("T")
J = TypeVar("J", bound=JobConfig)

PUBLISHED, UNCHANGED, REFUSED, REJECTED = "published", "unchanged", "refused", "rejected"
"""Outcomes of a refit. refused: by a check; the table stays. rejected: the log does not suit."""

_STATE = "refit.json"

_MOST_ATTEMPTS = 6
"""A refit is begun so often because of files that came, changed or went; where more do, the next one will do."""


@dataclass
class Refits:
    """The refits of a stream.

    Attributes
    ----------
    config : of the stream
    ledger : of its output; the last refit is said there
    refused : messages of refits that a check refused, in this run
    outcomes : how many refits of this run became what
    alarmed : whether the table's last look gave an alarm
    """

    config: FollowConfig
    ledger: Ledger
    refused: list[str] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    alarmed: bool = False

    @cached_property
    def last(self) -> dict[str, Any]:
        """The last refit: when it was, the rows scored by then, what became of it; empty before the first."""
        return self.ledger.folder.read_json(_STATE) or {}

    def turn(self, executor: Executor) -> None:
        """Watch the table, and refit if it is time."""
        self._look(executor)
        if self.due():
            self.run(executor)

    def due(self) -> bool:
        """Tell whether it is time."""
        refit, last = self.config.refit, self.last
        if not refit.wanted or not last:
            return refit.wanted
        every, since, now = parse_duration(refit.every), last.get("checked", last), time.time()
        # A clock that was set back must not stop refits for as long.
        late = every is not None and not 0 <= now - since["at"] < every
        more = refit.rows is not None and self._rows() - since["rows"] >= refit.rows
        if not (self.alarmed or late or more):
            return False
        if last.get("rejected") is None or last["rejected"] != self._inputs():
            return True
        # The same rows and labels would be rejected again: they are compared anew when it is next time.
        self.alarmed = False
        self._say({**last, "checked": {"at": now, "rows": self._rows()}})
        return False

    def _inputs(self) -> str:
        """Digest of what a refit depends on: configuration, files with rows and labels, the live version."""
        config, found = self._fit_config(), sorted(self._damaged())
        for paths, setting in ((config.log.path, "log.path"), (config.log.labels.path, "log.labels.path")):
            try:
                files = find_files(paths, setting).files if paths else ()
                found += [f"{file.path} {file.size} {file.stamp}" for file in files]
            except InputRejectedError as error:
                found.append(str(error))
        content = json.dumps([config.model_dump(mode="json"), self._table.readable_current(), found])
        return hashlib.sha256(content.encode()).hexdigest()

    def _look(self, executor: Executor) -> None:
        """Watch the table as the monitor job does, when it is time: its alarm makes a refit due."""
        seconds = parse_duration(self.config.refit.alarm)
        if seconds is None or not self.last:
            return
        looked = self.last.get("looked", 0.0)
        if 0 <= time.time() - looked < seconds:
            return
        from jobs import monitor

        config = self._job_config(MonitorConfig, report={})  # the stream has a page of its own
        try:
            self._tried(lambda files: monitor.prepare(config, files).execute(executor))
        except CheckFailedError as error:
            self.alarmed = True
            log.warning("alarm: %s", error)
        except (NothingToDoError, InputRejectedError) as error:
            log.info("not looked at: %s", error)
        self._say({**self.last, "looked": time.time(), "alarm": self.alarmed})

    def _say(self, content: dict[str, Any]) -> None:
        self.ledger.folder.replace(_STATE, json.dumps(with_checksum(content)).encode())
        self.last = content

    def _damaged(self) -> set[str]:
        """Files of the stream that were refused, or cannot be read yet: one of them stops no refit."""
        if self.config.labelled.path is not None:
            return set()
        return {*self.ledger.refused, *self.ledger.waiting}

    def _tried(self, job: Callable[[Collection[str]], T]) -> T:
        """The result of a job on the stream's log; tried anew where files come, change or go meanwhile.

        The job lists the folder itself, and reads the files that it has listed. If a file was replaced or removed
        meanwhile, it starts again. If a file is half written or damaged, it tries again without the files that the
        stream has not seen. It tries at most `_MOST_ATTEMPTS` times, since more files may come meanwhile. The next run
        of the job sees the files that were left out. If no file is at fault, it tries once without those.

        job : called with the names of files to pass over
        """
        without, attempts, all_seen = self._damaged(), 0, False
        while True:
            try:
                return job(without)
            except InputRejectedError as error:
                attempts += 1
                again = isinstance(error, FileRejectedError) and attempts < _MOST_ATTEMPTS
                if again and isinstance(error, FileChangedError):
                    log.info("begun anew: %s", error)
                    continue
                unseen = self._unseen() - without if again or not all_seen else set()
                if not unseen:
                    raise
                without, all_seen = without | unseen, True
                log.info("tried once more without %s, not scored yet: %s", examples(sorted(unseen), 3), error)

    def _unseen(self) -> set[str]:
        """Files that are new, or not what they were when they were scored.

        Before the first table all are new: then those that cannot be read.
        """
        if self.config.labelled.path is not None:
            return set()
        filesystem, root = expected_folder(self.config.log.path)
        days, since = whole_days(self.config.retention.ledger), None
        if days is not None:  # files of days that are forgotten were seen
            since = dt.datetime.now(dt.UTC).date() - dt.timedelta(days)
        listed = list_sources(filesystem, root, since=since, key=self.config.follow.partition)
        new = compare(listed, self.ledger.files, whole=False).new
        names = {source.name for source in new}
        if self.ledger.files:
            return names
        files = [LogFile(f"{root.rstrip('/')}/{name}", name, size, stamp) for name, size, stamp in new]
        whole, _ = read_footers(filesystem, files)
        return names - {file.relative for file, _ in whole}

    def _rows(self) -> int:
        return sum(known.rows for known in self.ledger.files.values())

    def run(self, executor: Executor) -> str:
        """Fit, and say what became of it.

        Raises
        ------
        TemporaryError, ConfigError
            As fit: the stream cannot go on with it.
        """
        from jobs import fit

        started, inputs = time.time(), self._inputs()
        before = self.last.get("version")
        version, message = before, ""
        facts: dict[str, Any] = {
            key: self.last[key] for key in ("looked", "label_coverage") if key in self.last
        }
        try:
            outcome = self._tried(lambda files: fit.prepare(self._fit_config(), files).execute(executor))
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
        said = f" {version}" if kind == PUBLISHED else ""
        log.info("refit: %s%s, %.1f s", kind, said, time.time() - started)
        current = self._table.current() if kind == UNCHANGED else None
        if current is not None and current.name != before:
            # A refit that was killed before it could say so has published it.
            kind, version, message = PUBLISHED, current.name, ""
            facts["label_coverage"] = _coverage(current.manifest["data"])
        self.alarmed = False
        facts |= {"at": started, "rows": self._rows(), "alarm": False}
        self._say({**facts, "outcome": kind, "version": version, "message": message})
        return kind

    @property
    def _table(self) -> PublishedTable:
        return PublishedTable(self.config.store.path, self.config.store.table)

    def _fit_config(self) -> FitConfig:
        return self._job_config(FitConfig, retention={"versions": self.config.retention.versions})

    def _job_config(self, job: type[J], **sections: Any) -> J:
        """Another job's part of the stream's configuration: of labelled rows, up to days with mature labels."""
        config = self.config
        given = config.model_dump(mode="json")
        section = {key: given[key] for key in job.model_fields if key in given}
        section["log"] = {**given["log"], "path": given["labelled"]["path"] or given["log"]["path"]}
        section["store"] = {"path": config.store.path, "table": config.store.table}
        if days := whole_days(config.refit.mature_after):
            until = dt.datetime.now(dt.UTC).date() - dt.timedelta(days)
            section["window"] = {**given["window"], "until": until.isoformat()}
        return job.model_validate(section | sections)


def _coverage(facts: Mapping[str, Any]) -> float | None:
    """The share of a fit's rows that have a label."""
    rows = facts.get("rows_read")
    return None if not rows else 1 - facts.get("rows_waiting", 0) / rows


def check(config: FollowConfig) -> None:
    """Check what can be checked of the refits before a stream is followed.

    Raises
    ------
    ConfigError
        The method or its parameters are wrong.
    """
    if config.refit.wanted:
        from pipeline.fit.calibration import make_calibrator

        make_calibrator(config.calibrator.method, config.calibrator.params)
