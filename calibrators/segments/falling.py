"""A fall that segments share: their shares of positives fall where their parent's curve, which never falls, is flat."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from calibrators.core.arrays import Array, Integers
from calibrators.core.kernels.likelihood import isotonic_fit
from calibrators.measures.falls import levels_between_falls
from calibrators.segments.adjusting import BlockCells, CellParts
from calibrators.segments.curves import LEAST, MOST, logit_of


class FallingCells(NamedTuple):
    """Cells whose log odds fall where the shares of all segments fall: see `CellParts`.

    starts : int64 array, shape (segments + 1,): each segment's first cell
    change : float64 array, shape (cells,): change of the log odds
    """

    cells: CellParts
    starts: Integers
    change: Array

    @property
    def groups(self) -> int:
        """Number of segments."""
        return self.cells.groups

    def part(self, start: int, stop: int) -> BlockCells:
        """Select segments start, ..., stop - 1."""
        part = self.cells.part(start, stop)
        return part._replace(logit=part.logit + self.change[self.starts[start] : self.starts[stop]])


def change_at_falls(weight: Array, positives: Array, expected: Array) -> Array:
    """Return the change of log odds in each range of a parent's curve where falls are proven, else 0. O(ranges).

    What the adjusted curves expect is taken as rising, so that only falls count that the mix of segments does not
    explain.

    weight, positives, expected : float64 arrays, shape (ranges,): sums of the segments by ascending range; weights > 0
    """
    level = np.asarray(isotonic_fit(expected / weight, weight), np.float64)
    levels = levels_between_falls(weight, np.clip(weight * level + positives - expected, 0.0, weight))
    whole, between = (logit_of(p, 1.0 - p) for p in np.clip(levels, LEAST, MOST))
    return np.asarray(between - whole)
