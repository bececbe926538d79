"""What chance does to calibration errors, of very many columns of predictions: the same doubles as of each alone.

Built from additions, multiplications, divisions and roots, which IEEE 754 rounds correctly: the same on every machine.
"""

import math

import numpy as np

from calibrators._kernels.compiled import kernel
from calibrators._kernels.double_double import two_product, two_sum
from calibrators._kernels.log_odds import log_of, log_of_rest
from calibrators._kernels.logistic import exp_of_negative

CHANCE_ERROR, DEBIASED = range(2)
"""Of a column's numbers."""
CHANCES = 2

_STIRLING = np.array(
    [
        0.0,
        0.08106146679532726,
        0.0413406959554093,
        0.02767792568499834,
        0.020790672103765093,
        0.016644691189821193,
        0.013876128823070748,
        0.01189670994589177,
        0.010411265261972096,
        0.009255462182712733,
        0.00833056343336287,
        0.007573675487951841,
        0.00694284010720953,
        0.006408994188004207,
        0.0059513701127588475,
        0.005554733551962801,
    ]
)
"""log(n!) less Stirling's log(sqrt(2 pi n) (n / e)**n), of n up to 15; not asked for of 0."""


@kernel
def chances_each(groups, sizes, found):
    """What chance does to the calibration errors of columns of predictions.

    Parameters
    ----------
    groups : float64 array, shape (columns, bins, 3): weight, mean prediction and frequency of each group of a column
    sizes : float64 array, shape (columns, bins): rows of each group, or their effective number
    found : float64 array, shape (columns, CHANCES): the calibration error that groups would show by chance if every
        probability is right (de Moivre), and their mean squared one less what chance adds (Kumar et al. 2019); NaN
        where a group has one row, or there is no group. Groups without rows do not count.
    """
    for c in range(groups.shape[0]):
        found[c, CHANCE_ERROR], found[c, DEBIASED] = _chances(groups[c], sizes[c])


@kernel
def _chances(groups, sizes):
    """The two numbers of a column."""
    # Each a sum and what rounding took of it: groups come in one order.
    total = total_low = apart = apart_low = squared = squared_low = 0.0
    known = False
    alone = False
    for j in range(groups.shape[0]):
        weight, p, f = groups[j]
        if not weight > 0.0:
            continue
        known = True
        total, rest = two_sum(total, weight)
        total_low += rest
        apart, rest = two_sum(apart, weight * mean_deviation(sizes[j], p))
        apart_low += rest
        if sizes[j] <= 1.0:
            alone = True
            continue
        squared, rest = two_sum(squared, weight * ((p - f) * (p - f) - f * (1.0 - f) / (sizes[j] - 1.0)))
        squared_low += rest
    if not known:
        return 0.0, np.nan
    total += total_low
    return (apart + apart_low) / total, np.nan if alone else (squared + squared_low) / total


@kernel
def mean_deviation(size, p):
    """E|k - m p| / m of a binomial k, m the size rounded, at least 1: 2 p (1 - p) Bin(floor(m p); m - 1, p).

    De Moivre's formula, 2 nu (1 - p) Bin(nu; m, p) / m with nu = floor(m p) + 1. The probability by saddle points,
    which loses no digits of large counts: Loader (2000), "Fast and accurate computation of binomial probabilities".
    """
    if p <= 0.0 or p >= 1.0:
        return 0.0
    m = max(1.0, np.rint(size))
    n, q = m - 1.0, 1.0 - p
    # Exactly: a small count of the other label would show what rounding leaves of a large one.
    high, low = two_product(m, p)
    x = np.floor(high)
    if x == high and low < 0.0:
        x -= 1.0
    outer = 2.0 * p * q
    if n == 0.0:
        return outer
    if x == 0.0:
        return outer * exp_of_negative(n * log_of_rest(p))
    if x == n:
        return outer * exp_of_negative(n * log_of(p))
    y = n - x
    apart = ((x - high) - low) + p
    exponent = _stirling(n) - _stirling(x) - _stirling(y) - _deviance(x, apart) - _deviance(y, -apart)
    return outer * exp_of_negative(min(0.0, exponent)) * math.sqrt(n / (2.0 * math.pi * x * y))


@kernel(inline=True)
def _stirling(n):
    """log(n!) less Stirling's formula, of a whole number n > 0."""
    if n <= 15.0:
        return _STIRLING[np.int64(n)]
    s = 1.0 / (n * n)
    return (1 / 12 - (1 / 360 - (1 / 1260 - (1 / 1680 - 1 / 1188 * s) * s) * s) * s) / n


@kernel(inline=True)
def _deviance(x, apart):
    """Half the deviance of a count, x log(x / mean) + mean - x, x > 0 less than 1 `apart` from its mean."""
    mean = x - apart
    if abs(apart) >= 0.1 * (x + mean):  # a few rows: no digits to lose
        return x * log_of(x / mean) - apart
    v = apart / (x + mean)
    total, term = apart * v, 2.0 * x * v
    for j in range(3, 40, 2):
        term *= v * v
        more = total + term / j
        if more == total:
            break
        total = more
    return total
