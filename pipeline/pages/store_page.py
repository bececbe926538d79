"""Page of a store: a row for each of its tables."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote

from logcal.errors import counted
from pipeline.files import clock
from pipeline.pages.figures import render_page

_GOOD = (0, 99)
_FRESH = dt.timedelta(hours=26)
"""Time after which a page that is written once a day should have been written again."""


@dataclass(frozen=True)
class LastRun:
    """Last run of a job on a table.

    Attributes
    ----------
    end : when it ended, with a time zone
    code : exit code
    message : why it failed
    result : the run's result, as its record has it
    """

    job: str
    end: dt.datetime
    code: int
    message: str = ""
    result: Mapping[str, Any] = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        """True unless it was done or had nothing to do."""
        return self.code not in _GOOD


@dataclass(frozen=True)
class TableRow:
    """State of a table; None stands for what is not known.

    Attributes
    ----------
    table : the table's name
    version, since, method, rows, last_day : the live version, when it went live, its method, the number of rows and the
        last day of its fit
    measured_day, ratio : newest measured day, and its observed over expected positives
    missing : number of days without a file
    troubles : what a person should look at, the most important one first
    runs : last run of each job
    links : URLs of reports by job, relative to the page or absolute
    """

    table: str
    version: str | None = None
    since: dt.datetime | None = None
    method: str | None = None
    rows: int | None = None
    last_day: str | None = None
    measured_day: str | None = None
    ratio: float | None = None
    missing: int | None = None
    troubles: tuple[str, ...] = ()
    runs: tuple[LastRun, ...] = ()
    links: Mapping[str, str] = field(default_factory=dict)

    def with_links(self, links: Mapping[str, str]) -> TableRow:
        """Return the row with links. links : paths or URLs by job, not escaped."""
        safe = "/:?=&%~+,;@"
        return replace(
            self, links={job: quote(link, safe=safe if "://" in link else "/") for job, link in links.items()}
        )


def render_store(title: str, rows: Sequence[TableRow]) -> str:
    """Render the page of a store: HTML without external references. Tables to look at come first."""
    now = clock.now()
    troubled = sum(bool(row.troubles) for row in rows)
    tables = counted(len(rows), "table")
    headline = f"{troubled:,} of {tables} to look at." if troubled else f"{tables}: all is as it should be."
    return render_page(
        "store.html.j2",
        title=f"Store {title}",
        headline=headline,
        kind="high" if troubled else "within",
        rows=sorted(rows, key=lambda row: (not row.troubles, row.table)),
        written=now,
        stale=now + _FRESH,
        age=lambda since: age_text(now - since),
    )


def age_text(age: dt.timedelta) -> str:
    """Format the age of a version, such as '3 days'."""
    return counted(age.days, "day") if age.days else counted(max(0, age.seconds // 3600), "hour")
