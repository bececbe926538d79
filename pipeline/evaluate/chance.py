"""How much of calibration errors chance explains."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from calibrators.measures.assessment import wilson_intervals
from pipeline.schema import RATIOS

Numbers = npt.NDArray[np.float64] | float

DOUBT = 0.05
"""The chance that any segment at all, each of them calibrated, has an error beyond chance."""


def beyond_chance(gap: Numbers, variance: Numbers, largest: Numbers, groups: int) -> npt.NDArray[np.float64]:
    """How much of summed calibration gaps chance cannot explain.

    Parameters
    ----------
    gap : float64 array, shape (segments,), or a number
        Of each segment the sum over its groups of |positives - sum of p|.
    variance : of each, of its sum of the labels if every probability is right: the sum of p * (1 - p).
    largest : of each, the largest weight of a row.
    groups : of a segment, at most

    Returns
    -------
    float64 array, shape (segments,), >= 0; NaN where gap is.
        What lies above the bound that the gaps of calibrated segments pass, any of them, with a chance of `DOUBT` at
        most. The predictions and the groups are taken as given, the labels as independent: rows that the maps were
        fitted to look better than they are.

    Notes
    -----
    The sum of absolute gaps is the largest of the 2**groups sums with signs, and each of them is a sum of independent
    terms of mean 0, none above `largest`: Bernstein's inequality, and the union of them and of all segments. It holds
    for rare positives too, where a normal approximation does not.

    References
    ----------
    Boucheron, Lugosi & Massart (2013), "Concentration inequalities", theorem 2.10,
    doi:10.1093/acprof:oso/9780199535255.001.0001.
    """
    c = groups * math.log(2) + math.log(max(1, np.size(gap)) / DOUBT)
    bound = np.multiply(largest, c / 3) + np.sqrt(
        np.multiply(largest, c / 3) ** 2 + np.multiply(variance, 2 * c)
    )
    return np.asarray(np.where(np.isnan(gap), np.nan, np.maximum(gap - bound, 0.0)))


def observed_over_expected(
    weight: npt.NDArray[np.float64],
    positives: npt.NDArray[np.float64],
    mean: npt.NDArray[np.float64],
    variance: npt.NDArray[np.float64],
) -> dict[str, npt.NDArray[np.float64]]:
    """Observed over expected positives of segments, as `calibrators.measures.error_bars.ErrorBars` has them of
    all rows.

    Parameters
    ----------
    weight, positives : float64 arrays, shape (segments,): of the rows. Weights count rows.
    mean : of each, of its probabilities. variance : as in `beyond_chance`

    Returns
    -------
    ratio, ratio_low, ratio_high : O / E and Wilson's 95 % interval; NaN where nothing was expected
    ratio_z : (O - E) / sqrt(V), V the variance, which groups of rows bound from above: so it is never too far from 0
    """
    frequency = positives / weight
    low, high = wilson_intervals(frequency, weight)
    # NaN where there is no number, or one of 0.
    expected, error = np.where(mean > 0, mean, np.nan), np.sqrt(np.where(variance > 0, variance, np.nan))
    found = [*(number / expected for number in (frequency, low, high)), (positives - weight * mean) / error]
    return dict(zip(RATIOS, found, strict=True))
