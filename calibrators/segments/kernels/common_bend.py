"""Derivatives of many groups' log likelihoods for a bend of the curve that they share."""

import numpy as np

from calibrators.core.compiled import kernel
from calibrators.core.kernels.log_odds import probability_of

_SINGULAR = 1e-6  # of an information matrix: its determinant, as a share of the product of its diagonal


@kernel
def add_derivatives(
    logit, weight, positives, starts, centre, lines, strength, curves, precision, knots, sums
):
    """Add the derivatives for the bend's values at knots to sums, each group's own line beside it being free.

    The bend is linear between knots and constant beyond them, so that a cell touches two of them. A group's log odds
    are shift + slope times the bent ones; its line may move by a value and a slope at its centre, both with priors
    around 0.

    Parameters
    ----------
    logit, weight, positives : float64 arrays, shape (cells,); log odds ascend in each group
    starts : int64 array, shape (groups + 1,)
    centre : float64 array, shape (groups,): see above
    lines : float64 array, shape (groups, 2): shift and slope
    strength : int64 array, shape (groups,): the bend's factor, in units of 1 / (n - 1)
    curves : float64 array, shape (n, k): bent log odds at the knots, with the bend found before, for each strength
    precision : float64 array, shape (2,), > 0: of the priors
    knots : float64 array, shape (k,), ascending
    sums : float64 array, shape (k + 1, k): row 0 gets the gradient, the others the negated second derivatives (their
        lower triangle)
    """
    k = knots.size
    value, tilt = np.zeros(k), np.zeros(k)
    for g in range(starts.size - 1):
        if strength[g] == 0:
            continue
        shift, slope = lines[g]
        curve, factor = curves[strength[g]], slope * strength[g] / (curves.shape[0] - 1)
        h_aa, h_ad, h_dd = precision[0], 0.0, precision[1]
        first = last = m = 0
        for i in range(starts[g], starts[g + 1]):
            if i == starts[g]:
                m = first = max(min(np.searchsorted(knots, logit[i], side="right") - 1, k - 2), 0)
            while m < k - 2 and logit[i] >= knots[m + 1]:
                m += 1
            last = m + 1
            inner = min(max(logit[i], knots[0]), knots[k - 1])
            share = (inner - knots[m]) / (knots[m + 1] - knots[m])
            bent = curve[m] + share * (curve[m + 1] - curve[m]) + (logit[i] - inner)
            p = probability_of(shift + slope * bent)
            information = weight[i] * p * (1.0 - p)
            x = bent - centre[g]
            h_aa += information
            h_ad += information * x
            h_dd += information * x * x
            high = factor * share
            low = factor - high
            residual = positives[i] - weight[i] * p
            sums[0, m] += residual * low
            sums[0, m + 1] += residual * high
            sums[1 + m, m] += information * low * low
            sums[2 + m, m] += information * low * high
            sums[2 + m, m + 1] += information * high * high
            value[m] += information * low
            value[m + 1] += information * high
            tilt[m] += information * x * low
            tilt[m + 1] += information * x * high
        determinant = h_aa * h_dd - h_ad * h_ad
        if (
            determinant <= _SINGULAR * h_aa * h_dd
        ):  # of huge weights at one place: the line's value is free alone
            h_ad, h_dd, determinant = 0.0, 1.0, h_aa
            tilt[first : last + 1] = 0.0
        for i in range(first, last + 1):
            of_value = (h_dd * value[i] - h_ad * tilt[i]) / determinant
            of_tilt = (h_aa * tilt[i] - h_ad * value[i]) / determinant
            for j in range(first, i + 1):
                sums[1 + i, j] -= of_value * value[j] + of_tilt * tilt[j]
        value[first : last + 1] = 0.0
        tilt[first : last + 1] = 0.0
