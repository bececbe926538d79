"""Measures of very many small columns of predictions at once, in compiled code.

The same doubles as `calibrators.measures.predictions` and `calibrators.measures.error_bars` take of each column
alone, where weights are
counts of rows: all sums are exact, and what is made of them is rounded once.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from calibrators._kernels import (
    few_error_bars,
    few_measures,
    many_agreements,
    many_certainty,
    many_error_bars,
    many_measures,
)
from calibrators._kernels.measures import counts_and_whole
from calibrators.arithmetic.passes import Array, Points
from calibrators.measures.predictions import THRESHOLD
from calibrators.measures.spread import cell_edges

Integers = npt.NDArray[np.int64]


def all_counts(points: Points) -> bool:
    """Whether all weights are counts of rows, few enough to be added up in whole numbers."""
    counts: bool = counts_and_whole(points.weight, points.positives)[0]
    return counts


def assess_columns(points: Points, starts: Integers, bins: int) -> tuple[Array, Array]:
    """Measures of columns of predictions, one after the other.

    Parameters
    ----------
    points : of all columns, each ascending and without ties; weights and positives are counts, see `all_counts`
    starts : int64 array, shape (columns + 1,): where each column begins, and the end; none is empty
    bins : >= 1, of the calibration errors

    Returns
    -------
    numbers : float64 array, shape (columns, 15): the `MEASURES`, the mean prediction, rows and positives; then of the
        groups of equally many rows the sum of rows * |frequency - mean prediction|, that of the variances, and the
        largest weight of a row, which is 1. NaN where there is no such number.
    groups : float64 array, shape (columns, bins, 3): rows, mean prediction and frequency of each group; NaN of empty
        ones, and of predictions outside [0, 1], which are scores

    Notes
    -----
    O(points); some two microseconds a column more, and thirty where it has tiny predictions, or more than some 500.
    """
    columns = starts.size - 1
    numbers = np.full((columns, many_measures.NUMBERS), np.nan)
    groups = np.full((columns, bins, 3), np.nan)
    edges = np.append(np.arange(1, bins) / bins, THRESHOLD)
    many_measures.assess_each(*points, starts, edges, bins, numbers, groups)
    brier = numbers[:, few_measures.BRIER].tolist()
    # As it is taken of one: a root by another function may differ in its last bit.
    numbers[:, few_measures.RMSE] = [one**0.5 for one in brier]
    return numbers, groups


def error_bars_of_columns(points: Points, starts: Integers) -> Array:
    """The AUC's error, Spiegelhalter's z and the p-value of the score test of columns of probabilities.

    points, starts : see `assess_columns`; predictions lie in [0, 1]

    Returns
    -------
    float64 array, shape (columns, 3)
        NaN where there is no such number.
    """
    found = np.empty((starts.size - 1, many_error_bars.NUMBERS))
    many_error_bars.error_bars_each(*points, starts, found)
    tests = found[:, few_error_bars.SCORE_TEST].tolist()
    found[:, few_error_bars.SCORE_TEST] = [math.exp(-test / 2) for test in tests]
    return found


def chances_of_columns(groups: Array) -> Array:
    """What chance does to the calibration errors of columns of probabilities.

    groups : see `assess_columns`

    Returns
    -------
    float64 array, shape (columns,
    2)
        As `calibrators.measures.decomposition.chance_error` and `debiased_squared_error`; NaN where there is no
        such number.
    """
    found = np.empty((groups.shape[0], many_certainty.CHANCES))
    many_certainty.chances_each(groups, groups[:, :, 0].copy(), found)
    return found


def agreements_of_columns(points: Points, starts: Integers, losses: Array, enough: float) -> Array:
    """What losses are made of, Cox's line and the ICI of columns of probabilities.

    Parameters
    ----------
    points, starts : see `assess_columns`; predictions lie in [0, 1]
    losses : float64 array, shape (columns, 2): Brier score and log loss
    enough : rows of either label from which on a column has these numbers

    Returns
    -------
    float64 array, shape (columns, 9)
        Miscalibration and discrimination of the Brier score and of the log loss, as `decomposition.decompose_losses`;
        intercept and its error, slope and its error, as `spread.cox`; `spread.mean_distance`. NaN where there is no
        such number.
    """
    found = np.empty((starts.size - 1, many_agreements.NUMBERS))
    many_agreements.agreements_each(*points, starts, cell_edges(), losses, float(enough), found)
    return found
