"""The follow job: score files as they arrive, each once, with the current table."""

from __future__ import annotations

import errno
import logging
import time
from dataclasses import dataclass, replace
from typing import Any

from jobs import interrupts
from jobs.config.cluster import parse_bytes
from jobs.config.jobs import FollowConfig
from jobs.config.sections import parse_duration, whole_days
from jobs.gate.shift import shift_rule
from jobs.outcome import Outcome, Plan
from jobs.refit import PUBLISHED
from jobs.refit import check as check_refits
from jobs.resume import prune
from jobs.rows import exclusive_page_folder
from jobs.score import scoring_of
from jobs.stream_report import Stream
from logcal.errors import (
    CheckFailedError,
    ConfigError,
    InputRejectedError,
    NothingToDoError,
    counted,
    examples,
)
from logcal.storage import open_filesystem
from pipeline.execution import Executor
from pipeline.files.folders import Folder, relative_location
from pipeline.files.output import Output
from pipeline.files.storage import without_secrets
from pipeline.follow.batch import Limits, Places, compare, list_sources
from pipeline.follow.follower import Follower, Rules, rebuilt
from pipeline.follow.ledger import LeaseOwner, Ledger, announce
from pipeline.log.log_files import expected_folder
from pipeline.score.scored_file import Scoring
from pipeline.table.store import TableStore

log = logging.getLogger("logcal")

_SLICE = 0.1
"""Seconds between checks for a signal while waiting."""


def prepare(config: FollowConfig) -> Prepared:
    """Check everything that can be checked before the first batch; reads no footer."""
    filesystem, root = expected_folder(config.log.path)
    output = Output.at(config.output.path)
    outcomes = [open_filesystem(path, "log.labels.path") for path in config.log.labels.path or ()]
    output.check_apart([(filesystem, root), *outcomes])
    output.folder.check_writable("output.path")
    store = TableStore(config.store.path, config.store.table)
    if config.store.version is not None:
        store.version(config.store.version)
    check_refits(config)
    exclusive_page_folder(config.report.path, "follow")
    places = Places(Folder.of(filesystem, root), output.folder)
    ledger = Ledger(output.folder)
    _check_ledger(ledger, places, config)
    return Prepared(config, places, store, ledger)


def _check_ledger(ledger: Ledger, places: Places, config: FollowConfig) -> None:
    """Raise ConfigError if the output has files but no ledger."""
    if ledger.stream() is not None or config.follow.rebuild:
        return
    files = [source.name for source in list_sources(places.targets)]
    if files:
        raise ConfigError(
            f"output.path: expected a new or empty folder, or one with its ledger {ledger.root}, found "
            f"{counted(len(files), 'file')} without it ({examples(files, 3)}): give --rebuild to make "
            "the ledger from the log and the output, or choose another folder"
        )


@dataclass(frozen=True)
class Prepared:
    """A stream that can be followed."""

    config: FollowConfig
    places: Places
    store: TableStore
    ledger: Ledger

    @property
    def threads(self) -> bool:
        """False if a classifier is applied, since the limit to one thread is a setting of the whole process."""
        return self.config.classifier.path is None

    @property
    def plan(self) -> Plan:
        """Plan of the follower."""
        config, table = self.config, self.config.store.table
        backlog, files = self._stream().backlog(), self.ledger.files
        return Plan(
            "follow",
            (
                f"list: find new files every {config.follow.poll}",
                "score: copy each file and add the probability (a task for 64 files or 64 MiB)",
                "commit: write the outcome of each file to the ledger",
            ),
            (f"{', '.join(config.log.path)}: {counted(len(backlog), 'file')} to score",),
            (f"{self.places.targets.root}/", f"{self.ledger.root}/"),
            {"backlog": len(backlog), "files_known": len(files), "table": table},
        )

    def execute(self, executor: Executor) -> Outcome:
        """Follow the log until stopped, or score its new files once."""
        config = self.config
        if config.follow.status:
            return self._stream().status()
        lease_owner = LeaseOwner(self.ledger.folder)
        try:
            return self._follow(executor, lease_owner)
        finally:
            lease_owner.release()

    def _follow(self, executor: Executor, lease_owner: LeaseOwner) -> Outcome:
        config = self.config
        # Before the ledger is written: the table's name may be mistyped.
        current = self._current() if config.refit.enabled else self._await_version()
        if config.follow.rebuild and self.ledger.stream() is None:
            count = rebuilt(self.places, self.ledger)
            log.info("the ledger was made from the output: %s files are known", f"{count:,}")
        self.ledger.begin(_identity(config))
        self._register()
        follower = Follower(
            self.places, self.ledger, _rules(config), self._scoring, self._current, executor, lease_owner
        )
        stream = self._stream()
        stream.add(follower.start())
        self._log_start(current)
        if config.follow.retry is not None:
            follower.retry(config.follow.retry)
        if current is None and stream.refits.due():
            stream.refits.run(executor)
        try:
            (self._once if config.follow.once else self._until_stopped)(follower, stream)
        except KeyboardInterrupt:
            pending = f"{follower.pending:,} pending: the next run scores them"
            progress = pending if follower.pending else "nothing pending"
            raise KeyboardInterrupt(f"stopped after {counted(stream.files, 'file')}; {progress}") from None
        finally:
            stream.write_reports(last=True)
        return stream.outcome()

    def _stream(self) -> Stream:
        return Stream(self.config, self.places, self.ledger, self.store)

    def _log_start(self, current: str | None) -> None:
        """Log which stream is followed, with which table, and until when."""
        follow = self.config.follow
        until = "once" if follow.once else f"every {follow.poll}, for {follow.lifetime} or until Ctrl-C"
        log.info(
            "following %s %s: scored with table '%s' (%s) into %s; %s scored before",
            without_secrets(self.places.sources.root),
            until,
            self.config.store.table,
            current or "no version yet",
            without_secrets(self.places.targets.root),
            counted(len(self.ledger.files), "file"),
        )

    def _register(self) -> None:
        """Register the stream in the store, so that pruning keeps the versions that its batches use."""
        try:
            announce(self.store.folder, self.ledger)
        except OSError as error:
            if not isinstance(error, PermissionError) and error.errno != errno.EROFS:
                # A temporary fault, such as a full disk, ends the run; the next run tries again.
                raise
            log.warning(
                "%s: the stream cannot be registered (%s): pruning versions of '%s' does not protect those it uses",
                self.store.root,
                error,
                self.store.table,
            )

    def _await_version(self) -> str | None:
        """Wait for the table's first version and return the current one; with --once there must already be one."""
        if self.config.follow.once:
            return self.store.version(self.config.store.version).name
        end, warned = time.monotonic() + parse_duration(self.config.follow.lifetime), False
        while (current := self._current()) is None and time.monotonic() < end:
            if not warned:
                log.warning(
                    "table '%s' has no version yet: files wait for the first", self.config.store.table
                )
            warned = True
            _wait(time.monotonic() + max(parse_duration(self.config.follow.poll), 1.0))
        return current

    def _once(self, follower: Follower, stream: Stream) -> None:
        refits = stream.refits
        change = follower.listing(complete=True)
        while (report := follower.run(change)) is not None:
            stream.add(report)
            stream.write_reports()
            listing = compare(change.new, self.ledger.files, complete=False)
            unscored = tuple(source for source in listing.new if source.name not in self.ledger.waiting)
            if len(unscored) == len(change.new):
                break
            change = change._replace(new=unscored, gone=())
        refits.run_if_due(follower.executor)
        if stream.shift:
            raise CheckFailedError(f"score.max_shift: the files were scored, but {stream.shift}")
        if refits.refused:
            raise CheckFailedError(f"the files were scored, and the refit was refused: {refits.refused[-1]}")
        if refused := stream.refused:
            raise InputRejectedError(
                f"{counted(len(refused), 'file')} refused ({examples(sorted(refused), 3)}); the others were scored. "
                f"The first: {refused[min(refused)]}"
            )
        if not stream.batches and not refits.outcomes[PUBLISHED]:
            if self.config.refit.enabled:  # an interrupted refit may have left old versions
                prune(self.store, self.config.retention.versions)
            raise NothingToDoError(f"{self.places.sources.root}: no files are new: nothing to do")

    def _until_stopped(self, follower: Follower, stream: Stream) -> None:
        follow = self.config.follow
        end = time.monotonic() + parse_duration(follow.lifetime)
        while time.monotonic() < end:
            began = time.monotonic()
            interrupts.check()
            report = follower.run(follower.listing())
            stream.add(report)
            stream.refits.run_if_due(follower.executor)
            stream.write_reports()
            if report is None or not report.files_left:
                _wait(began + parse_duration(follow.poll))

    def _current(self) -> str | None:
        if self.config.store.version is not None:
            return self.config.store.version
        current = self.store.current()
        return None if current is None else current.name

    def _scoring(self, name: str) -> Scoring:
        config = self.config
        version = self.store.version(name)
        self.store.verify(version)
        return replace(
            scoring_of(config, version),
            max_outside=config.score.max_outside_range,
            shift=shift_rule(config.score, self.store, version),
            each_file=True,
        )


def _rules(config: FollowConfig) -> Rules:
    follow = config.follow
    return Rules(
        Limits(follow.max_files, parse_bytes(follow.max_bytes)),
        follow.partition,
        whole_days(follow.lookback),
        parse_duration(follow.relist),
        follow.changed,
        follow.deleted,
        parse_duration(config.log.give_up),
        whole_days(config.retention.ledger),
    )


def _identity(config: FollowConfig) -> dict[str, Any]:
    """Return the settings that identify a stream; the ledger keeps them.

    Paths are relative to the output, so that a stream may be moved with its log, output and store.
    """
    paths = {"log": config.log.path[0], "store": config.store.path, "classifier": config.classifier.path}
    return {
        **{name: path and relative_location(path, config.output.path) for name, path in paths.items()},
        "score": config.log.score,
        "table": config.store.table,
        "columns": [config.output.column, config.output.version_column],
    }


def _wait(until: float) -> None:
    while (remaining := until - time.monotonic()) > 0:
        interrupts.check()
        time.sleep(min(remaining, _SLICE))
