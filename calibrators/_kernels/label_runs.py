"""Runs: maximal stretches of points with equal y = positives / weight."""

import math

import numpy as np

from calibrators._kernels.compiled import kernel
from calibrators._kernels.sums import two_product


@kernel
def _equal_products(a, b, c, d):
    """Tell whether a * b equals c * d exactly, for positive doubles."""
    ma, ea = math.frexp(a)
    mb, eb = math.frexp(b)
    mc, ec = math.frexp(c)
    md, ed = math.frexp(d)
    shift = (ea + eb) - (ec + ed)
    if abs(shift) > 1:
        return False
    # Mantissas neither overflow nor underflow.
    ma = math.ldexp(ma, shift)
    p, p_low = two_product(ma, mb)
    q, q_low = two_product(mc, md)
    return p == q and p_low == q_low


@kernel
def same_level(w1, k1, w2, k2):
    """Tell whether k1 / w1 equals k2 / w2 exactly (so that it is transitive)."""
    if k1 == 0.0 or k2 == 0.0:
        return k1 == k2
    if k1 == w1 or k2 == w2:
        return k1 == w1 and k2 == w2
    return _equal_products(k1, w2, k2, w1)


@kernel
def starts(weight, positives):
    """Return the first point of each run."""
    out = np.empty(weight.size, np.int64)
    runs = 0
    for i in range(weight.size):
        if i == 0 or not same_level(weight[i - 1], positives[i - 1], weight[i], positives[i]):
            out[runs] = i
            runs += 1
    return out[:runs].copy()
