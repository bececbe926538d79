"""Logit and logistic function without compiled code, with the same bits as `calibrators.core.kernels.log_odds`.

They use only additions, multiplications and divisions, which IEEE 754 rounds correctly, in a fixed order.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from calibrators.core.arrays import Array

LN2 = 0.6931471805599453
ROOT_HALF = 0.7071067811865476
LOG_TERMS = tuple(1.0 / (2 * j + 1) for j in range(10, -1, -1))
LOG2_E = 1.4426950408889634
LN2_HIGH, LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
"""log(2) in two parts: the last 32 bits of the first are zero, so its product with a small integer is exact."""
UNDERFLOW = -746.0
"""Argument below which exp is 0."""
HALF = 600
_P = (
    1.66666666666666019037e-01,
    -2.77777777770155933842e-03,
    6.61375632143793436117e-05,
    -1.65339022054652515390e-06,
    4.13813679705723846039e-08,
)


def log_of(x: Array) -> Array:
    """Return the logarithm of normal doubles > 0, to some units in the last place."""
    mantissa, exponent = np.frexp(x)
    small = mantissa < ROOT_HALF
    mantissa = np.where(small, mantissa * 2.0, mantissa)
    exponent = exponent - small
    s = (mantissa - 1.0) / (mantissa + 1.0)
    z = s * s
    total = np.zeros(x.size)
    for term in LOG_TERMS:
        total = total * z + term
    return exponent * LN2 + 2.0 * s * total


def exp_of_negative(x: Array) -> Array:
    """Return exp(x) for x <= 0, with an error below one unit in the last place."""
    x = np.maximum(x, UNDERFLOW)
    k = np.rint(x * LOG2_E)
    mantissa = exp_mantissa(x - k * LN2_HIGH, k * LN2_LOW)
    down = -k.astype(np.int64)
    first = np.minimum(down, HALF)
    result: Array = np.ldexp(np.ldexp(mantissa, -first), first - down)
    return result


def exp_mantissa(high: Any, low: Any) -> Any:
    """Return exp(high - low), |high - low| <= log(2) / 2."""
    p1, p2, p3, p4, p5 = _P
    r = high - low
    t = r * r
    c = r - t * (p1 + t * (p2 + t * (p3 + t * (p4 + t * p5))))
    return 1.0 - ((low - (r * c) / (2.0 - c)) - high)


def logistic(x: Array) -> Array:
    """Return 1 / (1 + exp(-x)) of finite numbers."""
    e = exp_of_negative(-np.abs(x))
    result: Array = np.where(x >= 0.0, 1.0, e) / (1.0 + e)
    return result


def log_odds(p: Array) -> Array:
    """Return log p - log(1 - p) of probabilities in [1e-300, 1 - 2**-53]."""
    return log_of(p) - log_of(1.0 - p)
