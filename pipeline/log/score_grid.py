"""The score grid: scores rounded when they are read, so that a day has a bounded number of different ones."""

from __future__ import annotations

import re
from fractions import Fraction

import numpy as np

from calibrators.arithmetic.passes import Array

NONE, FLOAT32 = "none", "float32"
EXACT = 2.0**52
"""From here on every double is a whole number."""

_LARGEST_FLOAT32 = float(np.finfo(np.float32).max)
_STEP = re.compile(r"1e-([1-9])")


def usable(grid: str) -> bool:
    """Tell whether a text names a grid: none, float32, or a power of ten from 1e-1 to 1e-9."""
    return grid in (NONE, FLOAT32) or _STEP.fullmatch(grid) is not None


def steps_per_unit(grid: str) -> float | None:
    """Return 10 ** k of a power of ten 1e-k; None for the other grids."""
    match = _STEP.fullmatch(grid)
    return None if match is None else 10.0 ** int(match[1])


def round_scores(score: Array, grid: str) -> tuple[Array, float]:
    """Scores on a grid, and how far the one that moved the most has moved.

    Parameters
    ----------
    score : float64 array, shape (n,); infinities and NaN stay
    grid : 'none'; 'float32': the nearest float32; '1e-k': the nearest multiple of 10 ** -k. Halves go to the even
        one; a double is half-way only where it is so exactly, as 0.5 is. Scores too large for the grid (float32's
        range, 2 ** 52 steps) stay.
    """
    if grid == NONE:
        return score, 0.0
    per_unit = steps_per_unit(grid)
    with np.errstate(over="ignore", invalid="ignore"):
        if per_unit is None:
            rounded = score.astype(np.float32).astype(np.float64)
            small = np.abs(score) <= _LARGEST_FLOAT32
        else:
            # The double next to a whole number of steps, halves to the even one.
            steps = score * per_unit
            whole = np.rint(steps)
            halves = np.flatnonzero(np.abs(steps - whole) == 0.5)
            if halves.size:
                # Of the exact product: 0.05 is above half a tenth.
                values, place = np.unique(score[halves], return_inverse=True)
                exact = [round(Fraction(value) * int(per_unit)) for value in values.tolist()]
                whole[halves] = np.array(exact, np.float64)[place]
            rounded = whole / per_unit
            small = np.abs(steps) < EXACT
        out = np.where(small, rounded, score)
        return out, float(np.max(np.abs(out - score), initial=0.0, where=small))
