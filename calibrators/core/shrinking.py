"""Shrinkage of maps towards one half, so that no probability is 0 or 1."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from calibrators.core.arrays import Array
from calibrators.core.map import CalibrationMap
from calibrators.core.passes import check_number


def floor_of(shrink: float, weight: float) -> float:
    """Compute the least distance of probabilities from 0 and 1 for a total weight N: shrink / (2 N).

    N observations cannot distinguish a rarer event from an impossible one.
    """
    return min(0.5, shrink / (2 * weight))


def shrunk(probability: Array, floor: float) -> Array:
    """Shrink probabilities into [floor, 1 - floor]: p becomes floor + (1 - 2 floor) p."""
    return np.minimum(floor + (1 - 2 * floor) * probability, 1 - floor)


def shrunk_map(fitted: CalibrationMap, floor: float) -> CalibrationMap:
    """Shrink the probabilities of a map; a monotone map stays monotone."""
    if floor == 0:
        return fitted
    level, slope = shrunk(fitted.prob_lo, floor), (1 - 2 * floor) * fitted.slope
    result = replace(fitted, prob_lo=level, slope=slope)
    # Rounding may lift the end of a gap above the next level.
    bits = 50
    while fitted.monotone and not result.monotone:
        low, high = result.ends()
        exceeds = np.append(high[:-1] > low[1:], False)
        slope = np.where(exceeds, slope * (1 - 2.0**-bits), slope)
        result, bits = replace(fitted, prob_lo=level, slope=slope), bits - 1
    return result


def check_shrink(shrink: Any) -> None:
    """Raise ValueError if `shrink` is not a finite number >= 0."""
    check_number("shrink", shrink, "a finite number >= 0", 0)
