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
_ROUNDING = 1.5 * 2.0**52  # added, it leaves a whole number in the lowest bits
_ROUNDING_BITS = int(np.float64(_ROUNDING).view(np.int64))

BLOCK = 256
"""Numbers that are worked on at a time: what is made of them on the way stays in the processor's nearest cache."""


@kernel(inline=True)
def _mantissa(x, k):
    """exp(x) / 2**k, k the whole number that is nearest to x / ln 2."""
    high = x - k * _LN2_HIGH
    low = k * _LN2_LOW
    r = high - low
    t = r * r
    c = r - t * (_P1 + t * (_P2 + t * (_P3 + t * (_P4 + t * _P5))))
    return 1.0 - ((low - (r * c) / (2.0 - c)) - high)


@kernel(inline=True)
def exp_of_negative(x):
    """exp(x) for x <= 0, with an error below one unit in the last place."""
    x = max(x, _UNDERFLOW)
    k = np.rint(x * _LOG2_E)
    # 2**k in two factors: only the second product can round, where the result is subnormal.
    down = -np.int64(k)
    first = min(down, _HALF)
    return _mantissa(x, k) * _POWERS[first] * _POWERS[down - first]


@kernel
def room():
    """Memory for `fill`: int64 array, shape (4, BLOCK)."""
    return np.empty((4, BLOCK), np.int64)


@kernel
def fill(x, out, memory):
    """As `logistic`, of a block. A loop for each step: of these a processor does several numbers at a time.

    x, out : float64 arrays of one size, at most BLOCK; may be the same. memory : from `room`
    """
    rounded, first, second = memory[0], memory[1], memory[2]
    numbers = memory.view(np.float64)
    sums, mantissa = numbers[0], numbers[3]
    for i in range(x.size):
        v = -abs(x[i])
        v = max(_UNDERFLOW, v)
        total = v * _LOG2_E + _ROUNDING
        sums[i] = total
        mantissa[i] = _mantissa(v, total - _ROUNDING)
    for i in range(x.size):
        down = _ROUNDING_BITS - rounded[i]
        part = min(down, _HALF)
        # The bits of powers of two.
        first[i] = (1023 - part) << 52
        second[i] = (1023 - (down - part)) << 52
    large, small = numbers[1], numbers[2]
    for i in range(x.size):
        v = x[i]
        e = mantissa[i] * large[i] * small[i]
        p = (1.0 if v >= 0.0 else e) / (1.0 + e)
        out[i] = v if v != v else p


@kernel
def logistic(x, out):
    """1 / (1 + exp(-x)) into out, without overflow, within two units in the last place; NaN stays NaN.

    x, out : float64 arrays, shape (n,); may be the same.
    """
    memory = room()
    for start in range(0, x.size, BLOCK):
        stop = min(start + BLOCK, x.size)
        fill(x[start:stop], out[start:stop], memory)
