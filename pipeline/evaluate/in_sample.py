"""Rows that a table was fitted to, in a log that it is measured on: they make it look better than it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.log.logs import Log

_TOTALS = (
    "rows_read",
    "rows_positive",
    "distinct_scores",
    "weight",
    "positives",
    "lowest_score",
    "highest_score",
)
_TOLD_APART = 100
"""Distinct scores from which on equal totals mean equal rows."""


@dataclass(frozen=True)
class InSample:
    """Rows of a log in files that a version was fitted to; `share` of all rows, in [0, 1]."""

    rows: int
    share: float

    def __bool__(self) -> bool:
        return self.rows > 0

    def sentence(self, version: str) -> str:
        """Describe it in a sentence."""
        some = "All" if self.share >= 1 else f"{100 * self.share:.3g} % of all"
        return (
            f"In sample: {some} rows are in files that version {version} was fitted on. It looks better on them than "
            "on rows that it has not seen."
        )


def in_sample(log: Log, manifest: Mapping[str, Any], days: Mapping[str, Any] | None = None) -> InSample:
    """Find the files of a log that a version was fitted to: by path, size and rows.

    days : of the log, where it is a window: its column, first and last day; none of them were fitted if the version's
        own window, by the same column, has no day in common with them
    """
    if days is not None and _apart(days, manifest.get("window")):
        return InSample(0, 0.0)
    fitted = {(file["path"], file["bytes"], file["rows"]) for file in manifest["log"]["files"]}
    rows = sum(file.rows for file in log.files if (file.path, file.size, file.rows) in fitted)
    return InSample(rows, rows / log.rows if log.rows else 0.0)


def _apart(days: Mapping[str, Any], window: Mapping[str, Any] | None) -> bool:
    if window is None or days["column"] != window["column"]:
        return False
    return bool(days["first"] > window["last"] or days["last"] < window["first"])


def of_same_rows(facts: Mapping[str, Any], manifest: Mapping[str, Any]) -> InSample:
    """Do `in_sample` for a log at another place: compare all its totals with those of the fitted rows.

    facts : of its score table
    """
    data = manifest["data"]
    known = all(name in data and name in facts for name in _TOTALS)
    if (
        known
        and facts["distinct_scores"] >= _TOLD_APART
        and all(data[name] == facts[name] for name in _TOTALS)
    ):
        return InSample(int(facts["rows_read"]), 1.0)
    return InSample(0, 0.0)
