"""Log-odds and back, the same to the last bit on every machine: logit p = log p - log(1 - p), and lines through it.

Built from additions, multiplications and divisions; `logcal.moved` does the same without compiled code.
"""

import math

import numpy as np

from calibrators._kernels.compiled import kernel
from calibrators._kernels.logistic import exp_of_negative

_LN2 = 0.6931471805599453


@kernel(inline=True)
def log_of(x):
    """The logarithm of a normal double > 0, to some units in the last place; no C library's."""
    mantissa, exponent = math.frexp(x)
    if mantissa < 0.7071067811865476:
        mantissa *= 2.0
        exponent -= 1
    s = (mantissa - 1.0) / (mantissa + 1.0)
    z = s * s
    # atanh's series: |s| <= 0.172, so that eleven terms reach 1e-18.
    total = 0.0
    for j in range(10, -1, -1):
        total = total * z + 1.0 / (2 * j + 1)
    return exponent * _LN2 + 2.0 * s * total


@kernel(inline=True)
def probability_of(eta):
    """1 / (1 + exp(-eta)) of a finite number."""
    e = exp_of_negative(-abs(eta))
    return (1.0 if eta >= 0.0 else e) / (1.0 + e)


@kernel
def logits(p, q, out):
    """log(p) - log(q) into out; float64 arrays of normal numbers > 0."""
    for i in range(p.size):
        out[i] = log_of(p[i]) - log_of(q[i])


@kernel
def move_each(p, place, shift, slope, low, high, out):
    """Move probabilities in place of their log-odds: sigma(shift + slope * logit(p held in [low, high])).

    p : float64 array, shape (n,), in [0, 1]; NaN stays NaN. place : int32 array, shape (n,): of each the entry of
    shift, slope, low, high : float64 arrays; with a shift of 0 and a slope of 1 p stays as it is. out : may be p.
    """
    for i in range(p.size):
        k = place[i]
        a, b = shift[k], slope[k]
        v = p[i]
        if (a == 0.0 and b == 1.0) or np.isnan(v):
            out[i] = v
            continue
        v = max(low[k], min(high[k], v))
        out[i] = probability_of(a + b * (log_of(v) - log_of(1.0 - v)))
