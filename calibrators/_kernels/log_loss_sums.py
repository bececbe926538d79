"""The logistic log loss of points and its derivatives by the argument; and sums without regard to order."""

import math

import numpy as np

from calibrators._kernels.compiled import kernel

LOW_BITS = 30

BLOCK = 2048
"""Points that are worked on at a time: their terms stay in the processor's nearest cache."""


@kernel
def loss_and_two_derivatives(z, hit, miss, loss, slope, curvature):
    """Of sigmoid(z) with weight `hit` of positive labels and `miss` of negative ones: log loss and derivatives by z.

    A loop for each function: what is left of them, a processor does several points of at a time.

    Parameters
    ----------
    z, hit, miss : float64 arrays, shape (m,)
    loss, slope, curvature : float64 arrays, shape (m,), filled
    """
    for i in range(z.size):
        curvature[i] = math.exp(-abs(z[i]))
    for i in range(z.size):
        loss[i] = math.log1p(curvature[i])
    for i in range(z.size):
        e = curvature[i]
        larger = 1.0 / (1.0 + e)
        smaller = e * larger
        up = z[i] >= 0.0
        p = larger if up else smaller
        q = smaller if up else larger
        weight = hit[i] + miss[i]
        loss[i] = (miss[i] * z[i] if up else -hit[i] * z[i]) + weight * loss[i]
        slope[i] = miss[i] * p - hit[i] * q
        curvature[i] = weight * p * q


@kernel
def add_whole(terms, scale, sums):
    """Add terms to sums, each rounded to the nearest multiple of 2**-LOW_BITS / scale.

    From there on sums are whole numbers, so they are the same for any order and grouping.

    Parameters
    ----------
    terms : float64 array, shape (m,), fewer than 2**32 in all
    scale : power of 2 with scale * (sum of the absolute terms) < 2**62
    sums : int64 array, shape (2,), changed: high + low * 2**-LOW_BITS, in units of 1 / scale
    """
    high_sum = low_sum = np.int64(0)
    low_unit = 2.0**LOW_BITS
    for i in range(terms.size):
        scaled = terms[i] * scale
        high = np.rint(scaled)
        high_sum += np.int64(high)
        low_sum += np.int64(np.rint((scaled - high) * low_unit))
    sums[0] += high_sum
    sums[1] += low_sum


@kernel
def add_product(left, right, product, scale, sums):
    """Fill `product`, which may be either factor, with left * right, and add it to sums as `add_whole` does."""
    for i in range(left.size):
        product[i] = left[i] * right[i]
    add_whole(product, scale, sums)
