"""The logistic function, the same to the last bit on every machine.

Built from additions, multiplications and divisions, which IEEE 754 rounds correctly; the exponential functions of
numpy and of C libraries differ between processors in their last bit. exp(x) as in Sun's fdlibm (e_exp.c):
x = k ln 2 + r with |r| <= ln(2) / 2, and a rational approximation in r.
"""

import numpy as np

from calibrators._kernels.compiled import kernel

_LOG2_E = 1.4426950408889634
_LN2_HIGH = 6.93147180369123816490e-01  # its last 32 bits are zero, so that k times it is exact
_LN2_LOW = 1.90821492927058770002e-10
_P1 = 1.66666666666666019037e-01
_P2 = -2.77777777770155933842e-03
_P3 = 6.61375632143793436117e-05
_P4 = -1.65339022054652515390e-06
_P5 = 4.13813679705723846039e-08
_UNDERFLOW = -746.0  # exp of less is 0
_HALF = 600
_POWERS = np.ldexp(1.0, -np.arange(_HALF + 1))


@kernel(inline=True)
def exp_of_negative(x):
    """exp(x) for x <= 0, with an error below one unit in the last place."""
    x = max(x, _UNDERFLOW)
    k = np.rint(x * _LOG2_E)
    high = x - k * _LN2_HIGH
    low = k * _LN2_LOW
    r = high - low
    t = r * r
    c = r - t * (_P1 + t * (_P2 + t * (_P3 + t * (_P4 + t * _P5))))
    mantissa = 1.0 - ((low - (r * c) / (2.0 - c)) - high)
    # 2**k in two factors: only the second product can round, where the result is subnormal.
    down = -np.int64(k)
    first = min(down, _HALF)
    return mantissa * _POWERS[first] * _POWERS[down - first]


@kernel
def logistic(x, out):
    """1 / (1 + exp(-x)) into out, without overflow, within two units in the last place; NaN stays NaN.

    x, out : float64 arrays, shape (n,); may be the same.
    """
    for i in range(x.size):
        v = x[i]
        if np.isnan(v):
            out[i] = v
            continue
        e = exp_of_negative(-abs(v))
        out[i] = (1.0 if v >= 0.0 else e) / (1.0 + e)
