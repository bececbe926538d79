"""Counts of a join with outcomes: rows by the status of their label, and the delay of labels."""

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
"""Bits of a row's status; the two lowest are its label's code. The first three exclude each other."""
LABEL_BITS = np.uint8(3)
_NULL = 2

_PER_DOUBLING = 64
"""Cells of delays a doubling: a delay is known to 1.1 %."""
_COUNTED = ("matched", "missing", "waiting", "late", "early", "conflicting")
"""Counts of the bits, in their order."""


class Joined(NamedTuple):
    """Result of a join for some rows.

    status : uint8 array, see the bits above. delay : uint16 array, the cell of the delay of matched rows, see
        `delay_cells`; None without times. values : float64 array, the labels as the outcomes have them, 0 where
        there is none; None where all are 0 or 1
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
        """The labels as a column, null where there is none."""
        label = self.label
        values = label.astype(np.float64) if self.values is None else self.values
        return nullable_column(np.where(label == _NULL, np.nan, values))

    def part(self, chosen: Any) -> Joined:
        """Select some rows."""
        return Joined(
            self.status[chosen],
            None if self.delay is None else self.delay[chosen],
            None if self.values is None else self.values[chosen],
        )


def delay_cells(seconds: npt.NDArray[np.float64]) -> npt.NDArray[np.uint16]:
    """Cells of delays: 64 for each doubling of one second and the delay; negative delays are 0."""
    cells = 1 + np.floor(_PER_DOUBLING * np.log2(1 + np.maximum(seconds, 0.0)))
    return cells.astype(np.uint16)


@dataclass
class LabelCounts:
    """Counts of rows whose labels were joined; those of disjoint rows add up with `merge`.

    Attributes
    ----------
    matched, missing, waiting : rows, each in one of them: with a label of an outcome; without an outcome, for good;
        not known yet
    late, early : of the missing ones, those whose outcomes came after the wait, or long before the prediction
    conflicting : of the matched ones, those whose outcomes have different labels
    zeros : of the matched ones, those with label 0
    outcomes : rows of outcomes that have the key of a prediction, each once a task
    dropped : of the missing ones, those that are left out of the rows
    orphaned : rows of outcomes without a prediction, where all rows have been counted
    delays : matched rows by the cell of their delay
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
        for i, name in enumerate(_COUNTED, 2):
            setattr(self, name, getattr(self, name) + int(by_status[codes & (1 << i) != 0].sum()))
        self.zeros += int(by_status[(codes & (MATCHED | LABEL_BITS)) == MATCHED].sum())
        self.dropped += int(by_status[(codes & MISSING != 0) & (codes & LABEL_BITS == _NULL)].sum())
        if joined.delay is not None:
            cells = np.bincount(joined.delay[status & MATCHED != 0])
            self.delays.update({cell: int(cells[cell]) for cell in np.flatnonzero(cells).tolist()})

    def merge(self, other: LabelCounts) -> None:
        """Add the counts of other rows."""
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))

    def kept(self) -> dict[str, Any]:
        """For JSON; see `of`."""
        return {**asdict(self), "delays": sorted(self.delays.items())}

    @classmethod
    def of(cls, kept: dict[str, Any]) -> LabelCounts:
        """Restore it from the result of `kept`."""
        return cls(**{**kept, "delays": Counter(dict(kept["delays"]))})

    def facts(self) -> dict[str, Any]:
        """Facts for the manifest."""
        found: dict[str, Any] = {
            f"rows_{name}": getattr(self, name) for name in ("matched", "missing", "waiting", "late")
        }
        found["rows_zero"] = self.zeros
        found |= {"rows_conflicting": self.conflicting, "outcomes_orphaned": self.orphaned}
        if self.dropped:
            found["rows_dropped"] = self.dropped
        if self.early:
            found["rows_early"] = self.early
        if self.delays:
            found["delay_seconds"] = {"median": self._delay(0.5), "p90": self._delay(0.9)}
        return found

    def _delay(self, share: float) -> float:
        """A quantile of the delays in seconds, right to 0.6 % of one second and it."""
        cells = np.array(sorted(self.delays))
        upto = np.cumsum([self.delays[cell] for cell in cells.tolist()])
        cell = cells[np.searchsorted(upto, share * upto[-1])]
        return float(np.round(2 ** ((cell - 0.5) / _PER_DOUBLING) - 1, 2))


def sum_labels(parts: list[LabelCounts | None]) -> LabelCounts | None:
    """Add the counts of all parts; None if none has any."""
    found = [part for part in parts if part is not None]
    if not found:
        return None
    total = LabelCounts()
    for part in found:
        total.merge(part)
    return total


def all_counted(
    counts: LabelCounts | None, outcomes: int, *, matched: bool, section: str = "log"
) -> LabelCounts | None:
    """The counts of all rows; None where no labels were joined.

    outcomes : rows of outcomes that there are. matched : whether some row must have one. section : of the configuration

    Raises
    ------
    InputRejectedError
        Some rows are missing their outcome for good, and none has one.

    Notes
    -----
    An outcome whose key predictions of several tasks have is counted with each, so `orphaned` may be too low then.
    """
    if counts is None:
        return None
    if counts.matched or not (matched and counts.missing):
        return replace(counts, orphaned=max(0, outcomes - counts.outcomes))
    beside = f"; the outcomes of {counts.late:,} came after {section}.labels.wait" if counts.late else ""
    beside += f"; the outcomes of {counts.early:,} are of days before" if counts.early else ""
    raise InputRejectedError(
        f"{section}.labels: expected outcomes of some predictions, found none for {counts.missing:,} rows{beside}: "
        f"compare the values of {section}.key with those of {section}.labels.key, and {section}.labels.time with the "
        "rows' times"
    )
