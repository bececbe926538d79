"""The follower: lists the arrived files, plans a batch, scores it and commits it, repeatedly.

A batch may be interrupted after any of its writes. The next follower then carries out the plan with the version that
the plan names, so repeated work writes the same bytes.
"""

from __future__ import annotations

import datetime as dt
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields

from logcal.errors import CheckFailedError, ConfigError, InputRejectedError, TemporaryError, examples
from logcal.reading import cached_table
from pipeline.execution import Executor
from pipeline.follow import batch as tasks
from pipeline.follow.batch import (
    CHANGED,
    GONE,
    REFUSED,
    SCORED,
    UNREADABLE,
    FileOutcome,
    Limits,
    ListingChange,
    Places,
    compare,
    cut,
    list_sources,
    old_partitions,
)
from pipeline.follow.ledger import Batch, Done, Known, LeaseOwner, Ledger, SourceFile
from pipeline.score.ranges import RowCounts
from pipeline.score.scored_file import Scoring
from pipeline.score.shift import bins_of, total_counts

log = logging.getLogger("logcal")

RESCORE, IGNORE, FAIL = "rescore", "ignore", "fail"
KEEP, REMOVE = "keep", "remove"

_FIRST_WAIT, _LONGEST_WAIT = 0.5, 30.0


@dataclass(frozen=True)
class Rules:
    """Rules for arriving files.

    Attributes
    ----------
    limits : limits of a batch
    partition : key of the hive folders that give a file's day
    lookback : number of days before today in each listing; only a complete listing contains older ones
    relist : seconds between complete listings
    changed : 'rescore', 'ignore' or 'fail': treatment of a known file that has another size or stamp
    deleted : 'keep' or 'remove': treatment of a scored file whose source is gone
    give_up : seconds after which an unreadable file is refused
    forget : days after which a partition's files are forgotten; None: never
    """

    limits: Limits = field(default_factory=Limits)
    partition: str = "date"
    lookback: int = 3
    relist: float = 3600.0
    changed: str = RESCORE
    deleted: str = KEEP
    give_up: float = 300.0
    forget: int | None = None


@dataclass(kw_only=True)
class FollowCounts:
    """Counts of files and rows by outcome."""

    files: int = 0
    rows: int = 0
    null_rows: int = 0
    unseen_rows: int = 0
    rows_below_range: int = 0
    rows_above_range: int = 0
    bytes: int = 0
    removed: int = 0
    refused: dict[str, str] = field(default_factory=dict)

    def count(self, other: FollowCounts) -> None:
        """Add other counts."""
        for name in (counted.name for counted in fields(FollowCounts)):
            a, b = getattr(self, name), getattr(other, name)
            setattr(self, name, a | b if name == "refused" else a + b)


@dataclass
class Report(FollowCounts):
    """Report on a batch, for people and metrics.

    refused : reasons by name of the refused file
    files_left : number of new files that are not in the batch
    shift : description of scores that were written although they are beyond the limit; '': there are none
    """

    number: int
    version: str
    waiting: int = 0
    files_left: int = 0
    seconds: float = 0.0
    shift: str = ""


@dataclass
class Follower:
    """Follower of a stream.

    Parameters
    ----------
    places : folders of the sources and of the scored files
    ledger : ledger of the output; `start` loads it
    rules : rules for arriving files
    scoring : function from the name of a table's version to the plan of scoring with it
    current : function that returns the name of the table's current version, or None if there is none yet
    executor : runs the tasks
    lease_owner : lock of the ledger

    Attributes
    ----------
    pending : number of files that are known to have arrived and are not scored
    """

    places: Places
    ledger: Ledger
    rules: Rules
    scoring: Callable[[str], Scoring]
    current: Callable[[], str | None]
    executor: Executor
    lease_owner: LeaseOwner
    pending: int = 0
    _last_complete: float | None = None
    _retry: dict[str, tuple[SourceFile, float, float]] = field(default_factory=dict)

    def start(self) -> Report | None:
        """Read the ledger; finish a batch that an earlier follower planned; forget files whose scored file is lost."""
        batch = self.ledger.load()
        self._forget_lost()
        if batch is None:
            return None
        log.info("batch %s was begun and not ended: it is carried out now", f"{batch.number:,}")
        tasks.sweep(self.places, batch.files)
        return self._carry_out(batch, time.monotonic(), 0)

    def _forget_lost(self) -> None:
        """Remove files whose scored file is gone from the ledger, so that they are scored again."""
        targets = {source.name for source in list_sources(self.places.targets)}
        lost = [
            name for name, known in self.ledger.files.items() if known.reason is None and name not in targets
        ]
        if self.rules.deleted == REMOVE or lost:
            sources = {source.name for source in list_sources(self.places.sources)}
            # If the source is gone too, the file cannot be scored again.
            lost = [name for name in lost if name in sources]
        if lost:
            log.warning(
                "%s scored files are gone from the output (%s): they are written again",
                f"{len(lost):,}",
                examples(lost, 3),
            )
        for name in lost:
            del self.ledger.files[name]

    def listing(self, *, complete: bool | None = None) -> ListingChange:
        """List new files. complete : whether all days are listed; None: if `Rules.relist` seconds have passed."""
        now = time.monotonic()
        if complete is None:
            complete = self._last_complete is None or now - self._last_complete >= self.rules.relist
        today = dt.datetime.now(dt.UTC).date()
        since = self._oldest(today) if complete else today - dt.timedelta(self.rules.lookback)
        listed = list_sources(self.places.sources, since=since, key=self.rules.partition)
        if complete:
            self._last_complete = now
        ignore = self.rules.changed != RESCORE
        change = compare(listed, self.ledger.files, complete=complete, ignore_changed=ignore)
        if change.changed and self.rules.changed == FAIL:
            raise CheckFailedError(
                f"$[changed]=fail: expected files that stay as they were, found {len(change.changed):,} with "
                f"another size or stamp than when they were scored ({examples(change.changed, 3)}): put them back, or "
                "set $[changed] to rescore or ignore"
            )
        if since is not None:
            change = change._replace(gone=tuple(self._within(change.gone, since)))
        return change._replace(new=tuple(source for source in change.new if self._is_due(source, now)))

    def _oldest(self, today: dt.date) -> dt.date | None:
        return None if self.rules.forget is None else today - dt.timedelta(self.rules.forget)

    def _within(self, names: Iterable[str], since: dt.date) -> list[str]:
        names = list(names)
        old = old_partitions(names, self.rules.partition, since)
        return [name for name in names if not any(name.startswith(f"{p}/") or f"/{p}/" in name for p in old)]

    def _is_due(self, source: SourceFile, now: float) -> bool:
        """Tell whether an unreadable file should be tried again: at once if it has changed since."""
        before = self._retry.get(source.name)
        return before is None or before[0] != source or now >= before[1]

    def run(self, change: ListingChange) -> Report | None:
        """Score a batch of the arrived files; return None if there is nothing to do, or no table yet."""
        gone = change.gone if self.rules.deleted == REMOVE else ()
        if not change.new and not gone:
            return None
        version = self.current()
        if version is None:
            return None
        started = time.monotonic()
        files = cut(change.new, self.rules.limits)
        self.lease_owner.check()
        batch = self.ledger.plan(version, files, gone)
        if batch is None:
            raise TemporaryError(
                f"{self.ledger.root}: another follower began the next batch: it goes on, this one ends"
            )
        return self._carry_out(batch, started, len(change.new) - len(files))

    def _carry_out(self, batch: Batch, started: float, left: int) -> Report:
        self.pending = len(batch.files) + left
        scoring = self.scoring(batch.version)
        outcomes: list[FileOutcome] = []
        if batch.files:
            tasks.make_folders(self.places, batch.files)
            arguments = [(files, self.places, scoring) for files in tasks.tasks_of(batch.files)]
            for results in self.executor.run("score", tasks.score_arrivals, arguments):
                outcomes += results
            if path := tasks.unseen(self.places, outcomes):
                error = self.executor.unless_unseen(InputRejectedError(f"{path}: gone", missing=path))
                if isinstance(error, ConfigError):
                    raise error
        outcomes, shift = self._judged(outcomes, scoring)
        self.lease_owner.check()
        gone = [outcome.source.name for outcome in outcomes if outcome.kind == GONE]
        for name in (*batch.removed, *(name for name in gone if name not in self.ledger.files)):
            # A follower that died before its commit may have scored a file that is gone now.
            self._remove(name)
        done = self._done_of(batch, outcomes)
        report = _report(batch, done, left, time.monotonic() - started)
        report.shift = shift
        done.facts = {
            "version": batch.version,
            "at": time.time(),
            "seconds": round(report.seconds, 3),
            "files": report.files,
            "rows": report.rows,
            "files_left": left,
        }
        tasks.keep(self.places, [outcome.source.name for outcome in outcomes if outcome.kind == SCORED])
        if not self.ledger.commit(batch, done):
            raise TemporaryError(
                f"{self.ledger.root}: another follower ended batch {batch.number}: it goes on, this one ends"
            )
        self.pending = left
        if self.ledger.due:
            self.ledger.compact()
            self._forget_old()
        return report

    def _judged(self, outcomes: list[FileOutcome], scoring: Scoring) -> tuple[list[FileOutcome], str]:
        """Judge the scores of a batch's files together; files that are refused lose their scored files.

        Large files were judged by their tasks. Returns the outcomes, and `Report.shift`.
        """
        if scoring.shift is None:
            return outcomes, ""
        counts = total_counts(outcome.bins for outcome in outcomes if outcome.kind == SCORED)
        bins = bins_of(cached_table(scoring.lookup).map) if counts else None
        shift = scoring.shift.judge(bins, counts)
        if shift is None or not shift.warned:
            return outcomes, ""
        if not (shift.beyond and scoring.shift.refuse):
            log.warning("%s", shift.text())
            return outcomes, shift.text() if shift.beyond else ""
        reason = f"$[max_shift]: {shift.text()}"
        judged = []
        for outcome in outcomes:
            source = outcome.source
            if outcome.kind == SCORED:
                self._remove(source.name)
                outcome = FileOutcome(source, REFUSED, Known(source.size, source.stamp, reason=reason))
            judged.append(outcome)
        return judged, ""

    def _done_of(self, batch: Batch, outcomes: Sequence[FileOutcome]) -> Done:
        now, clock = time.time(), time.monotonic()
        known: dict[str, Known] = {}
        waiting = dict(self.ledger.waiting)
        for outcome in outcomes:
            source = outcome.source
            name = source.name
            if outcome.known is not None:
                known[name] = outcome.known
            elif outcome.kind == UNREADABLE:
                # A clock that was set back must not delay giving up.
                since = waiting[name] = min(waiting.get(name, now), now)
                if now - since >= self.rules.give_up:
                    reason = (
                        f"{name}: not readable within {self.rules.give_up:g} s ($[give_up]): {outcome.reason}"
                    )
                    known[name] = Known(source.size, source.stamp, reason=reason)
                else:
                    _, _, wait = self._retry.get(name, (source, 0.0, _FIRST_WAIT / 2))
                    wait = min(2 * wait, _LONGEST_WAIT)
                    self._retry[name] = (source, clock + wait, wait)
            elif outcome.kind in (CHANGED, GONE):
                waiting.pop(name, None)
        for name in known:
            waiting.pop(name, None)
            self._retry.pop(name, None)
        return Done(known, waiting, batch.removed)

    def _remove(self, name: str) -> None:
        targets = self.places.targets
        with suppress(FileNotFoundError):  # a folder of the same name holds the scored files of others
            targets.filesystem.rm_file(f"{targets.root}/{name}")

    def _forget_old(self) -> None:
        oldest = self._oldest(dt.datetime.now(dt.UTC).date())
        if oldest is not None:
            for partition in old_partitions(self.ledger.files, self.rules.partition, oldest):
                self.ledger.forget_partition(partition)

    def retry(self, name: str) -> None:
        """Forget that a file was refused, so that it is tried again. Repeating it is harmless.

        Raises
        ------
        InputRejectedError
            No refused file and no file of the log has this name.
        """
        refused = self.ledger.refused
        if name in refused:
            self._note(Done(waiting=self.ledger.waiting, forgotten=(name,)))
        elif name in self.ledger.files:
            log.info("%s has been scored: there is nothing to try again", name)
        elif all(source.name != name for source in list_sources(self.places.sources)):
            raise InputRejectedError(
                f"expected the name of a refused file, found {name}; refused are "
                f"{examples(sorted(refused), 5) or 'none'}"
            )

    def _note(self, done: Done) -> None:
        self.lease_owner.check()
        if not self.ledger.note(done):
            raise TemporaryError(f"{self.ledger.root}: another follower writes to it: run again")


def _report(batch: Batch, done: Done, left: int, seconds: float) -> Report:
    scored = [known for known in done.known.values() if known.reason is None]
    return Report(
        batch.number,
        batch.version,
        files=len(scored),
        **{name: sum(getattr(known, name) for known in scored) for name in RowCounts._fields},
        refused={name: known.reason for name, known in done.known.items() if known.reason is not None},
        removed=len(batch.removed),
        waiting=len(done.waiting),
        files_left=left,
        seconds=seconds,
    )


def rebuilt(places: Places, ledger: Ledger) -> int:
    """Rebuild a lost ledger from the log and the output; return the number of known files.

    A file is known if its scored file exists, has as many rows, and is not older. Other files are scored again. Call it
    before `Ledger.begin`: if it is interrupted, the next run finds no ledger and starts again.
    """
    ledger.discard()
    targets = {source.name: source for source in list_sources(places.targets)}
    done = Done()
    for source in list_sources(places.sources):
        target = targets.get(source.name)
        if target is None or not _at_least(target.stamp, source.stamp):
            continue
        rows = tasks.rows_of(places.targets, source.name)
        if rows is not None and rows == tasks.rows_of(places.sources, source.name):
            done.known[source.name] = Known(source.size, source.stamp, rows, bytes=target.size)
    if not ledger.note(done):
        raise TemporaryError(f"{ledger.root}: another follower writes to it: run again")
    return len(done.known)


def _at_least(stamp: str, other: str) -> bool:
    try:
        return float(stamp) >= float(other)
    except ValueError:  # entity tags have no order
        return True
