"""Sums of few numbers as four whole numbers, and their quotients by two doubles: exact arithmetic without memory.

A number is a 2**-18 + b 2**-50 + c 2**-82 + d 2**-114 with int64 a, b, c, d of any sign, so that sums and differences
of numbers are those of their parts. A quotient is taken in two doubles; where these leave its rounding open, which
hardly ever happens, it is said, and the caller takes it by `expansions`.
"""

import numpy as np

from calibrators._kernels.compiled import kernel
from calibrators._kernels.double_double import two_product, two_sum

FEW = 512
"""Predictions of a column that is measured so, at most."""

UNIT_BITS = np.int64(18)
"""One is so many bits up in the first part."""

UNIT = 2.0**18
NEXT = 2.0**32
FINEST = 2.0**-114
SMALLEST = 2.0**-60
"""Doubles from here to 1024 are such numbers."""

_LOW = np.int64(0xFFFFFFFF)
_ERROR = 2.0**-98
"""Of a quotient, relative to it; twice as much as it can be."""


@kernel(inline=True)
def parts_of(x):
    """The parts of a double in [0, 1024), and what is left below them, in units of 2**-114."""
    x *= UNIT
    a = np.int64(x)
    x = (x - np.float64(a)) * NEXT
    b = np.int64(x)
    x = (x - np.float64(b)) * NEXT
    c = np.int64(x)
    x = (x - np.float64(c)) * NEXT
    d = np.int64(x)
    return a, b, c, d, x - np.float64(d)


@kernel(inline=True)
def carried(a, b, c, d):
    """The same number with b, c and d in [0, 2**32)."""
    c += d >> 32
    b += c >> 32
    a += b >> 32
    return a, b & _LOW, c & _LOW, d & _LOW


@kernel(inline=True)
def pair_of(a, b, c, d):
    """The number as a sum of two doubles, of which the first is the nearest one; and whether it is exactly that.

    |a| < 2**53. Its error is less than 2**-104 of it.
    """
    a, b, c, d = carried(a, b, c, d)
    sign = 1.0
    if a < 0:
        # So that leading parts of a small number are zero.
        a, b, c, d = carried(-a, -b, -c, -d)
        sign = -1.0
    high, rest = two_sum(float(a) / UNIT, float(b) / (UNIT * NEXT))
    low, least = two_sum(float(c) / (UNIT * NEXT * NEXT), float(d) * FINEST)
    high, low = two_sum(high, low)
    low, lost = two_sum(rest, low)
    low, more = two_sum(low, least)
    high, low = two_sum(high, low)
    return sign * high, sign * low, (lost == 0.0) & (more == 0.0)


@kernel(inline=True)
def surely(high, low, error):
    """Whether a number next to high + low, give or take an error, is rounded to high, which their sum is."""
    return (high + (low + error) == high) & (high + (low - error) == high)


@kernel(inline=True)
def over(high, low, exact, divisor):
    """The double nearest to a sum of two doubles over a third, and whether that is sure.

    exact : whether the sum is; where the quotient, too, is a sum of two doubles, it may be half-way between two
    """
    first = high / divisor
    product, rest = two_product(first, divisor)
    left, lost = two_sum((high - product) - rest, low)
    second = left / divisor
    product, rest = two_product(second, divisor)
    found, low = two_sum(first, second)
    exact = exact & (lost == 0.0) & (product == left) & (rest == 0.0)
    return found, exact | surely(found, low, abs(found) * _ERROR)


@kernel(inline=True)
def times_pairs(ah, al, bh, bl):
    """The product of two sums of two doubles, as another; its error is less than 2**-102 of it."""
    high, low = two_product(ah, bh)
    return two_sum(high, low + (ah * bl + al * bh))


@kernel(inline=True)
def ratio_of_pairs(ah, al, bh, bl):
    """The quotient of two sums of two doubles, as another; its error is less than 2**-101 of it."""
    first = ah / bh
    product, rest = two_product(first, bh)
    second = (((ah - product) - rest) + (al - first * bl)) / bh
    return two_sum(first, second)
