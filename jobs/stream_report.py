"""Reports of a stream: a log line per batch, --status, metrics for Prometheus, and a page."""

from __future__ import annotations

import datetime as dt
import logging
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from jobs.config.jobs import FollowConfig
from jobs.gate.limits import WARNED
from jobs.outcome import REPORT, Outcome
from jobs.refit import PUBLISHED, Refits
from jobs.rows import page_folder
from jobs.stream_page import refit_text, write_page
from logcal.errors import LogcalError, counted, examples
from pipeline.files.storage import without_secrets
from pipeline.follow.batch import Places, compare, list_sources
from pipeline.follow.follower import FollowCounts, Report
from pipeline.follow.ledger import Ledger, SourceFile
from pipeline.table.published import describe_suspect_days
from pipeline.table.store import TableStore

log = logging.getLogger("logcal")

_METRICS_EVERY, _PAGE_EVERY = 1.0, 60.0
"""Least number of seconds between two writes of the metrics, and of the page."""

_BATCHES_SHOWN = 50


ROW_COUNTS = ("rows", "null_rows", "unseen_rows", "rows_below_range", "rows_above_range")


@dataclass
class Stream(FollowCounts):
    """Stream that is followed: totals of a run's batches, metrics and a page.

    Metrics and the page are rewritten regularly; a file that cannot be written gives one warning.

    Attributes
    ----------
    waiting : number of files that cannot be read yet
    remaining : number of files still to be scored
    batches : number of batches of this run
    version : version of the table in the last batch
    shift : last `Report.shift` that is not empty
    reports : last batches, with the time in seconds since 1970 at which each ended
    """

    config: FollowConfig
    places: Places
    ledger: Ledger
    store: TableStore
    refits: Refits = field(init=False)
    waiting: int = 0
    remaining: int = 0
    batches: int = 0
    version: str | None = None
    shift: str = ""
    reports: deque[tuple[float, Report]] = field(default_factory=lambda: deque(maxlen=_BATCHES_SHOWN))
    _next: dict[str, float] = field(default_factory=dict)
    _failed: set[str] = field(default_factory=set)
    _published: tuple[str | None, float | None] = (None, None)

    def __post_init__(self) -> None:
        self.refits = Refits(self.config, self.ledger)

    def backlog(self) -> Sequence[SourceFile]:
        """Return the files that are still to be scored."""
        if self.ledger.stream() is not None:
            self.ledger.load()
        return compare(list_sources(self.places.sources), self.ledger.files, complete=True).new

    def add(self, report: Report | None) -> None:
        """Add a batch to the totals, and log a line about it."""
        if report is None:
            self.remaining = 0
            return
        self.batches += 1
        self.count(report)
        self.waiting, self.version, self.remaining = report.waiting, report.version, report.files_left
        self.shift = report.shift or self.shift
        self.reports.append((time.time(), report))
        counts = {
            "refused": len(report.refused),
            "not readable yet": report.waiting,
            "removed": report.removed,
            "left": report.files_left,
        }
        details = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
        batch, done = (
            f"batch {report.number:,}",
            f"{counted(report.files, 'file')}, {counted(report.rows, 'row')}",
        )
        end = f"; {details}" if details else ""
        log.info("%s: %s, version %s, %.2f s%s", batch, done, report.version, report.seconds, end)
        outside = report.rows_below_range + report.rows_above_range
        if outside > WARNED * report.rows:
            message = f"{outside:,} of {report.rows:,} rows have scores outside the range of the table's fit"
            log.warning("%s: %s", batch, message)
        for name, reason in list(report.refused.items())[:5]:
            log.warning("refused %s: %s", name, reason)

    def outcome(self) -> Outcome:
        """Return the outcome of the run."""
        path = self.places.targets.root
        summary = {
            "path": path,
            "table": self.config.store.table,
            "version": self.version,
            "batches": self.batches,
            "files": self.files,
            **{name: getattr(self, name) for name in ROW_COUNTS},
            "removed": self.removed,
            "waiting": self.waiting,
            "refits": self.refits.outcomes[PUBLISHED],
            "refused": self.refused,
        }
        if (page := page_folder(self.config.report.path, "follow")) is not None:
            summary["report"] = f"{page}/{REPORT}"
        batches = counted(self.batches, "batch")
        lines = [f"scored {self.rows:,} rows in {counted(self.files, 'file')}, {batches}", f"  {path}"]
        if refits := self.refits.outcomes[PUBLISHED]:
            lines.append(f"  {counted(refits, 'refit')} published: {self.refits.last['version']} is live")
        if refused := self.refused:
            lines.append(f"  {counted(len(refused), 'file')} refused: {examples(sorted(refused), 3)}")
        if self.waiting:
            lines.append(f"  {counted(self.waiting, 'file')} could not be read yet")
        return Outcome(summary=summary, lines=lines)

    def status(self) -> Outcome:
        """Return the status: backlog, refused files, ages of the last batch and table, and the last refit."""
        ledger, backlog, now = self.ledger, self.backlog(), time.time()
        refused = ledger.refused
        scored = len(ledger.files) - len(refused)
        current, last = self.store.current(), self.refits.last
        version = None if current is None else current.name
        ages = {
            "last_batch_age": _age(ledger.facts.get("at"), now),
            "table_age": _age(published_at(self.store, version), now),
            "oldest_waiting_age": _age(min(ledger.waiting.values(), default=None), now),
        }
        size = sum(source.size for source in backlog)
        summary = {
            "path": self.places.targets.root,
            "table": self.config.store.table,
            "version": version,
            "suspect_days": [] if current is None else describe_suspect_days(current),
            "files": scored,
            **{name: sum(getattr(file, name) for file in ledger.files.values()) for name in ROW_COUNTS},
            "backlog": len(backlog),
            "backlog_bytes": size,
            "batches": ledger.last,
            "waiting": sorted(ledger.waiting),
            "refit": last or None,
            "label_coverage": last.get("label_coverage"),
            "refused": refused,
            **ages,
        }
        batch, age = (age_text(ages[name]) for name in ("last_batch_age", "table_age"))
        lines = [
            f"{self.places.targets.root}: {counted(scored, 'file')} scored, {len(backlog):,} to score ({size:,} bytes)",
            f"  last batch {batch}; table version {version}, published {age}",
        ]
        lines += [f"  {day}" for day in summary["suspect_days"]]
        if last:
            lines.append(f"  last refit {refit_text(last, age_text(_age(last['at'], now)))}")
        if (coverage := last.get("label_coverage")) is not None:
            lines.append(f"  {100 * coverage:.4g} % of the last refit's rows had a label")
        if ledger.waiting:
            lines.append(f"  not readable yet: {examples(sorted(ledger.waiting), 3)}")
        lines += [f"  refused {name}: {reason}" for name, reason in sorted(refused.items())[:10]]
        return Outcome(summary, lines)

    def write_reports(self, *, last: bool = False) -> None:
        """Write the metrics and the page if they are due. last : write them in any case."""
        page = page_folder(self.config.report.path, "follow")
        outputs = (
            ("record.prometheus", self.config.record.prometheus, _METRICS_EVERY, self._metrics),
            ("report.path", page, _PAGE_EVERY, partial(write_page, self, last=last)),
        )
        for setting, target, every, write in outputs:
            now = time.monotonic()
            if target is None or (not last and now < self._next.get(setting, 0.0)):
                continue
            self._next[setting] = now + every
            try:
                write(Path(target))
            except (OSError, LogcalError) as error:
                if setting not in self._failed:
                    log.warning("%s: %s cannot be written: %s", setting, target, error)
                self._failed.add(setting)

    def _metrics(self, path: Path) -> None:
        from jobs.record_exports import update_stream

        last = self.refits.last
        batch_at, batch = self.reports[-1] if self.reports else (None, None)
        if self.version != self._published[0]:
            self._published = (self.version, published_at(self.store, self.version))
        values = {
            "listing_timestamp_seconds": time.time(),
            "batch_timestamp_seconds": batch_at,
            "batch_seconds": None if batch is None else batch.seconds,
            "table_timestamp_seconds": self._published[1],
            "batches": self.batches,
            "files": {"scored": self.files, "refused": len(self.refused), "removed": self.removed},
            "rows": {"scored": self.rows, "null": self.null_rows, "unseen": self.unseen_rows},
            "backlog_files": self.remaining,
            "waiting_files": len(self.ledger.waiting),
            "refit_timestamp_seconds": last.get("at"),
            "refits": dict(self.refits.outcomes),
            "label_coverage": last.get("label_coverage"),
        }
        update_stream(path, self.config.store.table, without_secrets(self.config.output.path), values)


def published_at(store: TableStore, version: str | None) -> float | None:
    """Return the time of a version's publication, in seconds since 1970."""
    if version is None:
        return None
    return dt.datetime.fromisoformat(store.version(version).manifest["created"]).timestamp()


def _age(at: float | None, now: float) -> float | None:
    # Not negative, even if the clock was set back.
    return None if at is None else max(0.0, round(now - at, 1))


def age_text(age: float | None) -> str:
    """Format an age in seconds, such as '3 hours ago'."""
    if age is None:
        return "never"
    for seconds, unit in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if age >= 2 * seconds:
            return f"{age / seconds:.0f} {unit} ago"
    return f"{counted(round(age), 'second')} ago"
