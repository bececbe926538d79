"""Calibration range of a table: the range of the scores that it was fitted to; and counts of scores outside it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from calibrators.core.arrays import Array
from logcal.errors import counted
from logcal.lookup_table import LookupFacts
from logcal.units import are_probabilities, unit_question


class CalibrationRange(NamedTuple):
    """Lowest and highest score that a table was fitted to, after its transform."""

    lowest: float
    highest: float


def range_of(facts: LookupFacts) -> CalibrationRange | None:
    """Read the range from a table's facts, and widen it by the grid's largest move of a score; None without a range."""
    lowest, highest = facts.data.get("lowest_score"), facts.data.get("highest_score")
    if not isinstance(lowest, (int, float)) or not isinstance(highest, (int, float)):
        return None
    margin = float(facts.data.get("largest_score_move") or 0.0)
    return CalibrationRange(lowest - margin, highest + margin)


class RowCounts(NamedTuple):
    """Counts of scored rows, and bytes of their files.

    `null_rows` have no probability, since their score is null or NaN; `unseen_rows` belong to segments that the table
    does not have, and get the probability of a fallback; the scores of `rows_below_range` and `rows_above_range` are
    outside the table's calibration range.
    """

    rows: int = 0
    null_rows: int = 0
    unseen_rows: int = 0
    rows_below_range: int = 0
    rows_above_range: int = 0
    bytes: int = 0

    @classmethod
    def total(cls, parts: Iterable[RowCounts]) -> RowCounts:
        """Add up counts."""
        return cls(*(sum(counts) for counts in zip(*parts, strict=True)))


@dataclass
class RangeCount:
    """Number of rows with scores outside a range, and the extreme scores.

    Attributes
    ----------
    within : the range; None: nothing is counted
    below, above : number of rows with scores below and above the range
    lowest, highest : extreme scores of all rows, which may be infinite; (inf, -inf) without rows
    """

    within: CalibrationRange | None
    below: int = 0
    above: int = 0
    lowest: float = math.inf
    highest: float = -math.inf

    @property
    def outside(self) -> int:
        """Number of rows outside the range."""
        return self.below + self.above

    def text(self, rows: int) -> str:
        """Describe the rows outside the range among `rows` rows; empty if there are none."""
        if self.within is None or not self.outside:
            return ""
        text = (
            f"{counted(self.outside, 'row')} ({100 * self.outside / rows:.3g} %) with scores outside the range that "
            f"the table was fitted to: {self.below:,} below {self.within.lowest:.6g}, {self.above:,} above "
            f"{self.within.highest:.6g}; this log's scores go from {self.lowest:.6g} to {self.highest:.6g}"
        )
        if are_probabilities(*self.within) and (question := unit_question(self.lowest, self.highest)):
            return f"{text}; {question}"
        return text

    def add(self, scores: Array) -> None:
        """Count transformed scores; NaN is neither below nor above."""
        if self.within is None or not scores.size:
            return
        lowest, highest = float(np.fmin.reduce(scores)), float(np.fmax.reduce(scores))
        if lowest < self.within.lowest:
            self.below += int(np.count_nonzero(scores < self.within.lowest))
        if highest > self.within.highest:
            self.above += int(np.count_nonzero(scores > self.within.highest))
        self.lowest, self.highest = min(self.lowest, lowest), max(self.highest, highest)
