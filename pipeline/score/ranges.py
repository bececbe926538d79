"""Calibration ranges: scores below or above all that a table was fitted to, counted while a log is scored."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from logcal.lookup_table import LookupFacts

Array = npt.NDArray[np.float64]


class CalibrationRange(NamedTuple):
    """The lowest and the highest score that a table was fitted to, after its transform."""

    lowest: float
    highest: float


def range_of(facts: LookupFacts) -> CalibrationRange | None:
    """The range that a table's facts tell, made wider by the largest move of its grid; None where they tell none."""
    lowest, highest = facts.data.get("lowest_score"), facts.data.get("highest_score")
    if not isinstance(lowest, (int, float)) or not isinstance(highest, (int, float)):
        return None
    moved = float(facts.data.get("largest_score_move") or 0.0)
    return CalibrationRange(lowest - moved, highest + moved)


@dataclass
class RangeCount:
    """Rows outside a range, and how far out they are.

    Attributes
    ----------
    within : the range; None: nothing is counted.
    below, above : rows.
    lowest, highest : extreme scores of all rows, infinities too; (infinity, -infinity) before the first.
    """

    within: CalibrationRange | None
    below: int = 0
    above: int = 0
    lowest: float = math.inf
    highest: float = -math.inf

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
