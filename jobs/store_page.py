"""`logcal tables page`: all tables of a store on one page, each with its live version, its days and its last runs."""

from __future__ import annotations

import datetime as dt
import operator
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jobs.config.naming import in_keys
from jobs.outcome import Outcome
from jobs.records import RUNS
from jobs.tables import write_file
from logcal.errors import ConfigError, InputRejectedError, counted
from logcal.storage import is_url, open_filesystem, parse_json
from pipeline.days.records import FAILED, SET_ASIDE
from pipeline.days.states import MISSING
from pipeline.files import clock
from pipeline.files.folders import Folder
from pipeline.files.requests import together
from pipeline.files.storage import without_secrets
from pipeline.monitor.history import History, closed_alarms, read_history, watched_days
from pipeline.pages.figures import utc_text
from pipeline.pages.store_page import LastRun, TableRow, render_store
from pipeline.table.published import PublishedTable, Version, days_fitted

_RECORD = re.compile(r"\d{8}T\d{6}-(?P<job>[a-z]+)-[0-9a-f-]{12}\.json")
"""Name of the record of a job; those of commands such as `tables-rollback` have two words."""

_DAILY = dt.timedelta(hours=26)
"""Time after which a daily job should have run again."""


def page(store: str, output: str) -> Outcome:
    """Write a page with all tables of a store.

    Raises
    ------
    InputRejectedError
        There is no table. A table that cannot be read is a row that says so.
    ConfigError
        The page cannot be written.
    """
    filesystem, root = open_filesystem(store, "--store")
    folder = Folder.of(filesystem, root)
    found = together(lambda name: _row(store, name), folder.names(), remote=folder.remote)
    rows = [row for row in found if row is not None]
    if not rows:
        raise InputRejectedError(f"expected published tables, found none in {store}: see `logcal fit`")
    base = None if is_url(output) else Path(os.path.abspath(output)).parent  # noqa: PTH100 - `Path` resolves more
    text = render_store(without_secrets(store), [_linked(row, base) for row in rows])
    write_file(output, in_keys(text).encode(), "--output")
    troubled = [row.table for row in rows if row.troubles]
    summary = {"store": store, "page": output, "tables": len(rows), "troubled": troubled}
    return Outcome(
        summary, [f"{counted(len(rows), 'table')}, {len(troubled)} of them to look at", f"  {output}"]
    )


def _row(store: str, name: str) -> TableRow | None:
    """Return the row of a table; None if the folder has none."""
    try:
        table = PublishedTable(store, name)
        version = table.current()
    except ConfigError:
        return None
    except InputRejectedError as error:
        return TableRow(name, troubles=(str(error),))
    runs = _last_runs(table.folder / RUNS)
    if version is None and not runs and not table.names():
        return None
    troubles, history = [], None
    closed: Mapping[str, Any] = {}
    try:
        history, closed = read_history(table.folder), closed_alarms(table.folder)
        since = None if version is None else table.journal.went_live(version.name)
    except InputRejectedError as error:
        troubles, since = [str(error)], None
    states: Mapping[str, Any] = next(
        (run.result["states"] for run in runs if isinstance(run.result.get("states"), dict)), {}
    )
    troubles += _troubles(version, history, closed, runs, states)
    measured = max(_measured(history, runs), key=operator.itemgetter(0), default=(None, None))
    return TableRow(
        name,
        version=None if version is None else version.name,
        since=None if since is None else dt.datetime.fromisoformat(since),
        method=None if version is None else str(version.manifest["method"]),
        rows=None if version is None else version.manifest["data"]["rows_used"],
        last_day=None if version is None else next(iter(days_fitted(version.manifest)[-1:]), None),
        measured_day=measured[0],
        ratio=measured[1],
        missing=states.get(MISSING),
        troubles=tuple(troubles),
        runs=runs,
    )


def _last_runs(folder: Folder) -> tuple[LastRun, ...]:
    """Return the last record of each job, sorted by job. Records that cannot be read are left out."""
    names = {match["job"]: name for name in folder.names() if (match := _RECORD.fullmatch(name))}
    runs = []
    for job, name in sorted(names.items()):
        try:
            record = parse_json(folder.read(name) or b"")
            result = record.get("result")
            runs.append(
                LastRun(
                    job,
                    dt.datetime.fromisoformat(record["end"]).astimezone(dt.UTC),
                    int(record["exit_code"]),
                    str(record.get("message") or ""),
                    result if isinstance(result, dict) else {},
                )
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
    return tuple(runs)


def _troubles(
    version: Version | None,
    history: History | None,
    closed: Mapping[str, Any],
    runs: Sequence[LastRun],
    states: Mapping[str, Any],
) -> Iterator[str]:
    """Yield what a person should look at."""
    if version is None:
        yield "no version is live"
    for alarm in reversed(history.open_alarms(closed) if history is not None else ()):
        yield f"alarm of {alarm.day}: {alarm.message}"
    for state in (MISSING, SET_ASIDE, FAILED):
        count = states.get(state)
        if isinstance(count, int) and count:
            yield f"{counted(count, 'day')} {state.replace('_', ' ')}"
    for run in runs:
        if run.job == "days" and clock.now() - run.end > _DAILY:
            yield f"the daily job has not run since {utc_text(run.end)}"
        if run.failed:
            yield f"{run.job} ended with {run.code}: {run.message}"


def _measured(history: History | None, runs: Sequence[LastRun]) -> Iterator[tuple[str, float]]:
    """Yield days with their observed over expected positives: the last evaluated one, and the last tested one.

    The test for drift keeps what it found first of a day whose files changed later; so the evaluation comes first.
    """
    for run in runs:
        newest = run.result.get("newest_measured")
        if isinstance(newest, dict) and isinstance(newest.get("observed_over_expected"), float):
            yield str(newest.get("day")), newest["observed_over_expected"]
    tested = [day for day in watched_days(history) if day["expected"] > 0]
    if tested:
        yield str(tested[-1]["day"]), tested[-1]["observed"] / tested[-1]["expected"]


def _linked(row: TableRow, base: Path | None) -> TableRow:
    """Return a row with links to its jobs' reports. base : folder of the page; None if that is no local folder."""
    links: dict[str, str] = {}
    for run in row.runs:
        reports = run.result.get("reports")
        found = reports if isinstance(reports, dict) else {run.job: run.result.get("report")}
        for job, path in found.items():
            link = _link(path, base) if isinstance(path, str) else None
            if link is not None:
                links[str(job)] = link
    return row.with_links(links)


def _link(path: str, base: Path | None) -> str | None:
    """Return the link to a report from a page in a folder; None if a browser could not open it."""
    if path.startswith(("http://", "https://")):
        return path
    if base is None or is_url(path) or not Path(path).is_file():
        return None
    return Path(os.path.relpath(path, base)).as_posix()
