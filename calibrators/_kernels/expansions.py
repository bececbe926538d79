"""Arithmetic of expansions (see `sums`): products without rounding, and quotients that are rounded once.

An expansion is components[:n] of an array with room for `sums.MAX_COMPONENTS`; its length n goes along.
"""

import numpy as np

from calibrators._kernels.compiled import kernel
from calibrators._kernels.double_double import two_product, two_sum
from calibrators._kernels.sums import MAX_COMPONENTS, add, rounded

NO, SINGLE, ROOM = np.int64(0), np.int64(1), np.int64(MAX_COMPONENTS)
"""Lengths. Not written as numbers, for each of which numba compiles a kernel anew where it is an argument."""

_WORD = np.int64(0xFFFFFFFF)
_WORD_SIZE = 4294967296.0
_SURE = 2.0**-95
"""The error of two terms of a quotient, relative to it, is less."""
_SHORT = 2.0**-50
"""Of a sum, what its second double may be at most where the rounding of that does not matter."""
_TERMS = 12


@kernel
def add_all(components, n, others, m, sign):
    """Add an expansion, times 1 or -1, to another; returns its length."""
    for i in range(m):
        if others[i] != 0.0:
            n = add(components, n, sign * others[i])
    return n


@kernel
def add_whole(components, n, value):
    """Add a whole number, int64, to an expansion; returns its length."""
    n = add(components, n, float(value >> 32) * _WORD_SIZE)
    return add(components, n, float(value & _WORD))


@kernel
def add_times(components, n, x, y):
    """Add the product of two doubles to an expansion; returns its length."""
    high, low = two_product(x, y)
    if low != 0.0:
        n = add(components, n, low)
    return add(components, n, high)


@kernel
def add_product(components, n, one, m, other, k, sign):
    """Add the product of two expansions, times 1 or -1, to a third; returns its length."""
    for i in range(m):
        for j in range(k):
            n = add_times(components, n, sign * one[i], other[j])
    return n


@kernel
def _near(components, n):
    """About the sum: a component may have a single bit."""
    total = 0.0
    for i in range(n):
        total += components[i]
    return total


@kernel
def _is_sure(high, low):
    """Whether high is the double nearest to high + low, give or take `_SURE` of it."""
    small = abs(high) * _SURE
    up, down = (np.nextafter(high, np.inf) - high) / 2, (high - np.nextafter(high, -np.inf)) / 2
    return low < up - small and low > small - down


@kernel
def _quotient_by_one(one, m, divisor):
    """`quotient` by a double, in two terms and without memory; and whether they decide it."""
    high, low = one[m - 1], 0.0
    for i in range(m - 2, -1, -1):
        high, error = two_sum(high, one[i])
        low += error
    if m > 4 or abs(low) > abs(high) * _SHORT:
        return 0.0, False
    first = high / divisor
    product, rest = two_product(first, divisor)
    # What the first term leaves is a double.
    second = (((high - product) - rest) + low) / divisor
    found, left = two_sum(first, second)
    return found, _is_sure(found, left)


@kernel
def quotient(one, m, other, k):
    """The double nearest to the quotient of two expansions, ties to even; the second is positive.

    Long division in doubles: two terms decide it but where it is next to the middle of two doubles.
    """
    if m == 0:
        return 0.0
    if k == 1:
        if m == 1:
            return one[0] / other[0]
        found, sure = _quotient_by_one(one, m, other[0])
        if sure:
            return found
    rest, terms = np.empty(MAX_COMPONENTS), np.empty(MAX_COMPONENTS)
    n = add_all(rest, NO, one, m, 1.0)
    divisor, found = _near(other, k), NO
    for i in range(_TERMS):
        if n == 0:
            break
        term = _near(rest, n) / divisor
        found = add(terms, found, term)
        for j in range(k):
            n = add_times(rest, n, -term, other[j])
        if i == 1:
            high = rounded(terms, found)
            low = _near(terms, found - 1) if found > 1 and terms[found - 1] == high else 0.0
            if terms[found - 1] == high and _is_sure(high, low):
                return high
    return rounded(terms, found)
