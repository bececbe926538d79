"""Counts of a join with outcomes: rows by the status of their label, and delays of labels."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from logcal.arrow_columns import nullable_column
from logcal.errors import InputRejectedError

MATCHED, MISSING, WAITING, LATE, EARLY, CONFLICTING = (np.uint8(1 << i) for i in range(2, 8))
"""Bits of a row's status, above the two bits of its label's code. The first three exclude each other."""
LABEL_BITS = np.uint8(3)
_NULL = 2

_CELLS_PER_DOUBLING = 64
"""Cells of the delay histogram per doubling; a cell is 1.1 % wide."""
_BIT_NAMES = ("matched", "missing", "waiting", "late", "early", "conflicting")
"""Names of the counts for the bits, in the order of the bits."""


class Joined(NamedTuple):
    """Result of a join for some rows.

    status : uint8 array, see the bits above
    delay : uint16 array, the delay's cell (`delay_cells`) of matched rows; None without times
    values : float64 array, the labels of the outcomes, 0 without one; None if all labels are 0 or 1
    """

    status: npt.NDArray[np.uint8]
    delay: npt.NDArray[np.uint16] | None = None
    values: npt.NDArray[np.float64] | None = None

    @property
    def label(self) -> npt.NDArray[np.uint8]:
        """Codes of the labels, see `pipeline.log.logs.Rows`."""
        return self.status & LABEL_BITS

    @property
    def column(self) -> pa.Array:
        """The labels as a column; null without a label."""
        label = self.label
        values = label.astype(np.float64) if self.values is None else self.values
        return nullable_column(np.where(label == _NULL, np.nan, values))

    def part(self, chosen: Any) -> Joined:
        """Select rows."""
        return Joined(
            self.status[chosen],
            None if self.delay is None else self.delay[chosen],
            None if self.values is None else self.values[chosen],
        )


def delay_cells(seconds: npt.NDArray[np.float64]) -> npt.NDArray[np.uint16]:
    """Return the cells of delays: 64 per doubling of (1 + delay in seconds); negative delays count as 0."""
    cells = 1 + np.floor(_CELLS_PER_DOUBLING * np.log2(1 + np.maximum(seconds, 0.0)))
    return cells.astype(np.uint16)


@dataclass
class LabelCounts:
    """Counts of rows whose labels were joined; `merge` adds the counts of other rows.

    Attributes
    ----------
    matched, missing, waiting : rows with an outcome; rows finally without one; rows whose label is not known yet. Each
        row is one of these
    late, early : missing rows whose outcomes came after the wait, or too long before the prediction
    conflicting : matched rows whose outcomes have different labels
    zeros : matched rows with label 0
    outcomes : outcomes that have the key of a prediction, counted once per task
    dropped : missing rows that are left out
    orphaned : outcomes without a prediction; known when all rows are counted
    delays : number of matched rows by cell of the delay
    """

    matched: int = 0
    missing: int = 0
    waiting: int = 0
    late: int = 0
    early: int = 0
    conflicting: int = 0
    zeros: int = 0
    outcomes: int = 0
    dropped: int = 0
    orphaned: int = 0
    delays: Counter[int] = field(default_factory=Counter)

    def add(self, joined: Joined) -> None:
        """Count rows."""
        status = joined.status
        by_status = np.bincount(status, minlength=256)
        codes = np.arange(256, dtype=np.uint8)
        for i, name in enumerate(_BIT_NAMES, 2):
            setattr(self, name, getattr(self, name) + int(by_status[codes & (1 << i) != 0].sum()))
        self.zeros += int(by_status[(codes & (MATCHED | LABEL_BITS)) == MATCHED].sum())
        self.dropped += int(by_status[(codes & MISSING != 0) & (codes & LABEL_BITS == _NULL)].sum())
        if joined.delay is not None:
            cells = np.bincount(joined.delay[status & MATCHED != 0])
            self.delays.update({cell: int(cells[cell]) for cell in np.flatnonzero(cells).tolist()})

    def merge(self, other: LabelCounts) -> None:
        """Add the counts of other rows."""
        for entry in fields(self):
            setattr(self, entry.name, getattr(self, entry.name) + getattr(other, entry.name))

    def to_json(self) -> dict[str, Any]:
        """Return JSON values, from which `from_json` restores the counts."""
        return {**asdict(self), "delays": sorted(self.delays.items())}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> LabelCounts:
        """Restore counts from the result of `to_json`."""
        return cls(**{**data, "delays": Counter(dict(data["delays"]))})

    def facts(self) -> dict[str, Any]:
        """Return facts for the manifest."""
        facts: dict[str, Any] = {
            f"rows_{name}": getattr(self, name) for name in ("matched", "missing", "waiting", "late")
        }
        facts["rows_zero"] = self.zeros
        facts |= {"rows_conflicting": self.conflicting, "outcomes_orphaned": self.orphaned}
        if self.dropped:
            facts["rows_dropped"] = self.dropped
        if self.early:
            facts["rows_early"] = self.early
        if self.delays:
            facts["delay_seconds"] = {"median": self._delay(0.5), "p90": self._delay(0.9)}
        return facts

    def _delay(self, level: float) -> float:
        """Return a quantile of the delays in seconds, with an error of at most 0.6 % of (1 + delay)."""
        cells = np.array(sorted(self.delays))
        cumulative = np.cumsum([self.delays[cell] for cell in cells.tolist()])
        cell = cells[np.searchsorted(cumulative, level * cumulative[-1])]
        return float(np.round(2 ** ((cell - 0.5) / _CELLS_PER_DOUBLING) - 1, 2))


def sum_labels(parts: list[LabelCounts | None]) -> LabelCounts | None:
    """Add the counts of all parts; None if none has any."""
    counted = [part for part in parts if part is not None]
    if not counted:
        return None
    total = LabelCounts()
    for part in counted:
        total.merge(part)
    return total


def complete_counts(counts: LabelCounts | None, outcomes: int, *, matched: bool) -> LabelCounts | None:
    """Check and complete the counts of all rows; None if no labels were joined.

    outcomes : number of outcomes
    matched : whether at least one row must have an outcome

    Raises
    ------
    InputRejectedError
        Some rows are missing their outcome, and none has one.

    Notes
    -----
    An outcome is counted in each task with predictions of its key, so `orphaned` may be too low.
    """
    if counts is None:
        return None
    if counts.matched or not (matched and counts.missing):
        return replace(counts, orphaned=max(0, outcomes - counts.outcomes))
    details = f"; the outcomes of {counts.late:,} came after $[wait]" if counts.late else ""
    details += f"; the outcomes of {counts.early:,} are of days before" if counts.early else ""
    raise InputRejectedError(
        f"$[labels]: expected outcomes of some predictions, found none for {counts.missing:,} rows{details}: "
        "compare the values of $[key] with those of $[labels.key], and $[labels.time] with the rows' times"
    )
