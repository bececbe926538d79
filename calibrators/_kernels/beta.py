"""The log loss of beta calibration and its derivatives, summed without regard to order."""

import math

import numpy as np

from calibrators._kernels.compiled import kernel

SUMS = 10
LOW_BITS = 30


@kernel
def loss_and_derivatives(u, v, weight, positives, a, b, c, scale):
    """Sums over points of the log loss of sigmoid(a u + b v + c), its gradient and its Hessian.

    As `sigmoid.loss_and_derivatives`: each term is rounded to a multiple of 2**-LOW_BITS / scale. Returns int64, shape
    (10, 2): loss; d/da, d/db, d/dc; d2/da2, d2/dadb, d2/dadc, d2/db2, d2/dbdc, d2/dc2.
    """
    terms = np.empty(SUMS)
    sums = np.zeros((SUMS, 2), np.int64)
    low_unit = 2.0**LOW_BITS
    for i in range(u.size):
        x, y = u[i], v[i]
        z = a * x + b * y + c
        hit = positives[i]
        miss = weight[i] - hit
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
        terms[1], terms[2], terms[3] = g * x, g * y, g
        terms[4], terms[5], terms[6] = h * x * x, h * x * y, h * x
        terms[7], terms[8], terms[9] = h * y * y, h * y, h
        for j in range(SUMS):
            scaled = terms[j] * scale
            high = np.rint(scaled)
            sums[j, 0] += np.int64(high)
            sums[j, 1] += np.int64(np.rint((scaled - high) * low_unit))
    return sums
