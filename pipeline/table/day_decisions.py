"""Decisions of persons on the days of a table's log, in `days.json` beside its versions.

An excluded day is left out of fits; an included day is used even if it is suspect. A decision holds until the day's
files change; then the day is judged again.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from logcal.errors import InputRejectedError
from logcal.storage import parse_json
from pipeline.files.folders import Folder
from pipeline.files.locks import locking

DECISIONS = "days.json"
EXCLUDE, INCLUDE = "exclude", "include"


@dataclass(frozen=True)
class Decision:
    """Decision about a day.

    Attributes
    ----------
    decision : 'exclude' or 'include'
    reason : in a person's words
    at : when, ISO 8601
    tables : digests of the day's files (earlier: names of its tables); empty: the day was not there yet
    """

    decision: str
    reason: str
    at: str
    tables: tuple[str, ...] = ()

    def holds(self, digests: Collection[str]) -> bool:
        """Tell whether it applies to the day as it is now: to all of its files, whatever settings read them."""
        return not self.tables or set(self.tables) >= set(digests)


def read_decisions(folder: Folder) -> dict[str, Decision]:
    """Decisions of a table, by day such as 2026-01-31.

    Raises
    ------
    InputRejectedError
        The file holds something else.
    """
    content = folder.read(DECISIONS)
    if content is None:
        return {}
    try:
        found = parse_json(content)
        return {
            str(day): Decision(
                str(own["decision"]), str(own["reason"]), str(own["at"]), tuple(map(str, own["tables"]))
            )
            for day, own in sorted(found.items())
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InputRejectedError(
            f"{folder}/{DECISIONS}: expected decisions on days as `logcal days` writes them, found something else: "
            "remove the file, and decide again"
        ) from None


def decide(
    folder: Folder, day: str, decision: str | None, reason: str, files: Collection[str]
) -> dict[str, Decision]:
    """Enter a decision, or with None take it back; return all of them.

    Parameters
    ----------
    folder : of the table
    day : such as 2026-01-31
    files : digests of the day's files
    """
    with locking(folder):
        decisions = read_decisions(folder)
        decisions.pop(day, None)
        if decision is not None:
            at = datetime.now(UTC).isoformat(timespec="seconds")
            decisions[day] = Decision(decision, reason, at, tuple(sorted(files)))
        content = {key: asdict(decisions[key]) for key in sorted(decisions)}
        folder.replace(DECISIONS, json.dumps(content, indent=1).encode())
    return decisions
