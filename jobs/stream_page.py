"""The page of a stream: what is wrong with it, and its state, with absolute times."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobs.config.naming import in_keys
from jobs.config.sections import parse_duration
from jobs.outcome import REPORT
from jobs.refit import PUBLISHED, REFUSED, REJECTED
from pipeline.files import clock
from pipeline.files.folders import write_whole
from pipeline.files.storage import without_secrets
from pipeline.monitor.history import closed_alarms, read_history, watched_days
from pipeline.pages.figures import utc_text
from pipeline.pages.stream_page import render_stream

if TYPE_CHECKING:
    from jobs.stream_report import Stream

_STALE = 900.0
"""Seconds without a new page, besides two pauses between listings, after which a follower must have stopped."""


def write_page(stream: Stream, folder: Path, *, last: bool) -> None:
    """Write the page. last : whether the follower ends."""
    ledger, refit = stream.ledger, stream.refits.last
    refused, coverage = ledger.refused, refit.get("label_coverage")
    facts = {
        "log": without_secrets(stream.places.sources.root),
        "scored": without_secrets(stream.places.targets.root),
        "files scored": len(ledger.files) - len(refused),
        "files to score": stream.remaining,
        "files not readable yet": len(ledger.waiting),
        "files refused": len(refused),
        "last batch": _time(ledger.facts.get("at")),
        "table version": stream.store.readable_current(),
        "last refit": refit_text(refit, _time(refit["at"])) if refit else "none",
        "rows with a label": None if coverage is None else f"{100 * coverage:.4g} %",
    }
    reports = [(_time(at), vars(report)) for at, report in stream.reports]
    pause = dt.timedelta(seconds=_STALE + 2 * parse_duration(stream.config.follow.poll))
    page = render_stream(
        f"Stream of {stream.config.store.table}",
        facts,
        refused,
        reports,
        watched_days(read_history(stream.store.folder)),
        list(_troubles(stream)),
        None if last else clock.now() + pause,
    )
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / REPORT, in_keys(page).encode())


def _time(at: float | None) -> str:
    return "none" if at is None else utc_text(dt.datetime.fromtimestamp(at, dt.UTC))


def refit_text(last: dict[str, Any], at: str) -> str:
    """Describe how a refit ended. at : when it began, as text."""
    result = f" {last['version']}" if last["outcome"] == PUBLISHED else f", {last['message']}"
    return f"{at}: {last['outcome']}{result}"


def _troubles(stream: Stream) -> Iterator[str]:
    """Yield what is wrong with the table: refits that gave none, labels that are late, alarms of drift."""
    refit, config = stream.refits.last, stream.config
    if refit.get("outcome") in (REFUSED, REJECTED):
        yield f"The refit of {_time(refit['at'])} was {refit['outcome']}."
        yield str(refit["message"])
    wait, known = parse_duration(config.log.labels.wait), refit.get("labels_until")
    if wait is not None and known is not None:
        # A day for the rest of the day in which a label may come, and one for the refit.
        due = dt.datetime.fromisoformat(f"{known}T00:00Z") + dt.timedelta(seconds=wait, days=2)
        if dt.datetime.fromtimestamp(refit["at"], dt.UTC) > due:
            yield (
                f"Labels wait longer than log.labels.wait ({config.log.labels.wait}): no day after {known} has them."
            )
    history = read_history(stream.store.folder)
    if history is not None:
        for alarm in reversed(history.open_alarms(closed_alarms(stream.store.folder))):
            yield f"Alarm of {alarm.day}: {alarm.message}"
