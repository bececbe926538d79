"""How much of calibration errors chance explains."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

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
