"""Logit, logistic function and adjustments of log-odds, with the same bits on every machine.

They use only additions, multiplications and divisions. `logcal.adjustments` has the same without compiled code.
"""

import math

import numpy as np

from calibrators.core.compiled import kernel
from calibrators.core.log_odds import (
    HALF,
    LN2,
    LN2_HIGH,
    LN2_LOW,
    LOG2_E,
    ROOT_HALF,
    UNDERFLOW,
    exp_mantissa,
)


@kernel(inline=True)
def log_of(x):
    """Return the logarithm of a normal double > 0, to some units in the last place, without the C library."""
    mantissa, exponent = math.frexp(x)
    if mantissa < ROOT_HALF:
        mantissa *= 2.0
        exponent -= 1
    s = (mantissa - 1.0) / (mantissa + 1.0)
    z = s * s
    # The series of atanh: |s| <= 0.172, so eleven terms reach 1e-18.
    total = 0.0
    for j in range(10, -1, -1):
        total = total * z + 1.0 / (2 * j + 1)
    return exponent * LN2 + 2.0 * s * total


@kernel(inline=True)
def probability_of(eta):
    """Return 1 / (1 + exp(-eta)) of a finite number."""
    e = exp_of_negative(-abs(eta))
    return (1.0 if eta >= 0.0 else e) / (1.0 + e)


@kernel
def logits(p, q, out):
    """Write log(p) - log(q) to out; float64 arrays of normal numbers > 0."""
    for i in range(p.size):
        out[i] = log_of(p[i]) - log_of(q[i])


@kernel
def adjust_each(p, entry, numbers, out):
    """Adjust the log-odds of probabilities: out = sigmoid(shift + slope * logit(clip(p, low, high))).

    p : float64 array, shape (n,), in [0, 1]; NaN stays NaN
    entry : int32 array, shape (n,): index into `numbers` for each probability
    numbers : float64 arrays shift, slope, low, high; p is unchanged if shift is 0 and slope is 1
    out : float64 array, shape (n,); may be p
    """
    shift, slope, low, high = numbers
    for i in range(p.size):
        k = entry[i]
        a, b = shift[k], slope[k]
        v = p[i]
        if (a == 0.0 and b == 1.0) or np.isnan(v):
            out[i] = v
            continue
        v = max(low[k], min(high[k], v))
        out[i] = probability_of(a + b * (log_of(v) - log_of(1.0 - v)))


# The logistic function, the same to the last bit on every machine.

_ROUNDING = 1.5 * 2.0**52  # adding it rounds to an integer in the lowest bits
_ROUNDING_BITS = int(np.float64(_ROUNDING).view(np.int64))

_exp_mantissa = kernel(exp_mantissa, inline=True)


@kernel(inline=True)
def exp_of_negative(x):
    """Return exp(x) for x <= 0, with an error below one unit in the last place. No branch: loops become vectors."""
    x = max(UNDERFLOW, x)
    total = x * LOG2_E + _ROUNDING
    k = total - _ROUNDING
    # 2**k in two factors, by their bits: only the second product can round, if the result is subnormal.
    down = _ROUNDING_BITS - np.float64(total).view(np.int64)
    first = min(down, HALF)
    high = np.int64((1023 - first) << 52).view(np.float64)
    low = np.int64((1023 - (down - first)) << 52).view(np.float64)
    return _exp_mantissa(x - k * LN2_HIGH, k * LN2_LOW) * high * low


@kernel
def logistic(x, out):
    """Write 1 / (1 + exp(-x)) to out, without overflow, within two units in the last place; NaN stays NaN.

    x, out : float64 arrays, shape (n,); may be the same.
    """
    for i in range(x.size):
        p = probability_of(x[i])
        out[i] = x[i] if x[i] != x[i] else p
