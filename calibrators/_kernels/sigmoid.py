"""The logistic log loss of points and its derivatives, summed without regard to order."""

import math

import numpy as np

from calibrators._kernels.compiled import kernel

SUMS = 6
LOW_BITS = 30


@kernel
def loss_and_derivatives(x, weight, positives, target_one, target_zero, a, b, scale):
    """Sums over points of the log loss of sigmoid(a x + b), its gradient and its Hessian.

    Each term is rounded to the nearest multiple of 2**-LOW_BITS / scale; from there on sums are whole numbers, so
    they are the same for any order and grouping. The loop is short because the number of points is large.

    Parameters
    ----------
    x, weight, positives : float64 arrays, shape (m,), m < 2**32; |x| <= 1
    target_one, target_zero : pairs (t, 1 - t) of float64: the targets of a positive and of a negative label
    scale : power of 2 with scale * (sum of the absolute terms) < 2**62

    Returns
    -------
    int64 array, shape (6, 2)
        Loss; d/da, d/db; d2/da2, d2/dadb, d2/db2: each high + low * 2**-LOW_BITS, in units of 1 / scale.
    """
    terms = np.empty(SUMS)
    sums = np.zeros((SUMS, 2), np.int64)
    low_unit = 2.0**LOW_BITS
    for i in range(x.size):
        z = a * x[i] + b
        k = positives[i]
        rest = weight[i] - k
        hit = k * target_one[0] + rest * target_zero[0]
        miss = k * target_one[1] + rest * target_zero[1]
        e = math.exp(-abs(z))
        if z >= 0.0:
            p, q = 1.0 / (1.0 + e), e / (1.0 + e)
            loss = miss * z
        else:
            p, q = e / (1.0 + e), 1.0 / (1.0 + e)
            loss = -hit * z
        g = miss * p - hit * q
        h = weight[i] * p * q
        terms[0] = loss + weight[i] * math.log1p(e)
        terms[1] = g * x[i]
        terms[2] = g
        terms[3] = h * x[i] * x[i]
        terms[4] = h * x[i]
        terms[5] = h
        for j in range(SUMS):
            scaled = terms[j] * scale
            high = np.rint(scaled)
            sums[j, 0] += np.int64(high)
            sums[j, 1] += np.int64(np.rint((scaled - high) * low_unit))
    return sums
