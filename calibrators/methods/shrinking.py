"""Maps drawn towards one half by so much that neither 0 nor 1 is left."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from calibrators.arithmetic.calibration_map import CalibrationMap
from calibrators.arithmetic.passes import Array, check_number


def floor_of(shrink: float, weight: float) -> float:
    """Return the least distance of probabilities from 0 and 1 for observations of this weight: shrink / (2 N).

    N observations cannot tell a rarer event from an impossible one.
    """
    return min(0.5, shrink / (2 * weight))


def shrunk(probability: Array, floor: float) -> Array:
    """Probabilities moved into [floor, 1 - floor]: p becomes floor + (1 - 2 floor) p."""
    return np.minimum(floor + (1 - 2 * floor) * probability, 1 - floor)


def shrunk_map(fitted: CalibrationMap, floor: float) -> CalibrationMap:
    """A map with `shrunk` probabilities; monotone where the map is."""
    if floor == 0:
        return fitted
    level, slope = shrunk(fitted.prob_lo, floor), (1 - 2 * floor) * fitted.slope
    found = replace(fitted, prob_lo=level, slope=slope)
    # Rounding may lift the end of a gap above the next level.
    bits = 50
    while fitted.monotone and not found.monotone:
        low, high = found.ends()
        passed = np.append(high[:-1] > low[1:], False)
        slope = np.where(passed, slope * (1 - 2.0**-bits), slope)
        found, bits = replace(fitted, prob_lo=level, slope=slope), bits - 1
    return found


def check_shrink(shrink: Any) -> None:
    """Raise ValueError if `shrink` is not a finite number >= 0."""
    check_number("shrink", shrink, "a finite number >= 0", 0)
