"""Rounding scores to a grid, and counting them on it."""

import numpy as np

from calibrators._kernels.compiled import kernel

EXACT = 4503599627370496.0
"""2 ** 52: from here on every double is a whole number."""

_LARGEST_FLOAT32 = 3.4028234663852886e38


@kernel
def round_to_step(score, per_unit, out):
    """Scores to the nearest multiple of 1 / per_unit, ties to even; return the largest move.

    A multiple is the double next to k / per_unit. Scores of more than 2 ** 52 steps, infinities and NaN stay.
    """
    largest = 0.0
    for i in range(score.size):
        s = score[i]
        steps = s * per_unit
        if abs(steps) < EXACT:
            r = np.rint(steps) / per_unit
            largest = max(largest, abs(r - s))
            out[i] = r
        else:
            out[i] = s
    return largest


@kernel
def round_to_float32(score, out):
    """Scores to the nearest float32, ties to even; return the largest move. Scores beyond float32's largest stay."""
    largest = 0.0
    for i in range(score.size):
        s = score[i]
        if abs(s) <= _LARGEST_FLOAT32:
            r = np.float64(np.float32(s))
            largest = max(largest, abs(r - s))
            out[i] = r
        else:
            out[i] = s
    return largest


@kernel
def count_steps(score, amount, per_unit, first, counts):
    """Add amounts at scores that lie on the grid to `counts`, whose first entry is for step number `first`."""
    for i in range(score.size):
        counts[np.int64(np.rint(score[i] * per_unit)) - first] += np.int64(amount[i])
