"""Cox's line by maximum likelihood, the same to the last bit on every machine and whatever it is a part of.

Sums are kept with what rounding takes of them.
"""

import math

import numpy as np

from calibrators._kernels.compiled import kernel
from calibrators._kernels.double_double import two_product, two_sum
from calibrators._kernels.log_odds import log_of, log_of_rest
from calibrators._kernels.logarithm import log_in_place
from calibrators._kernels.logistic import logistic

_MOST_ROUNDS = 100
_PARTED = 1e-14
"""Of an information's determinant, relative to the product of its diagonal: below it there is no line."""


@kernel
def line(p, w, k, shift):
    """Intercept, slope and their standard errors of labels on the log-odds of predictions, less `shift`.

    p, w, k : float64 arrays: predictions between 0 and 1, and their weights and positives. NaN where there is no line.
    """
    none = (np.nan, np.nan, np.nan, np.nan)
    if p.size < 2 or not _both_labels(w, k):
        return none
    x = np.empty(p.size)
    for i in range(p.size):
        x[i] = log_of(p[i]) - log_of_rest(p[i]) - shift
    rest, logs, exponents = np.empty(p.size), np.empty(p.size), np.empty(p.size)
    a, b = 0.0, 1.0
    before, now = -math.inf, _likelihood(x, w, k, a, b, rest, logs, exponents)
    for _ in range(_MOST_ROUNDS):
        g, along, one, across, square = _derivatives(x, w, k, a, b, rest)
        determinant = _determinant(one, across, square)
        if not determinant > _PARTED * one * square:
            return none
        step_a = (square * g - across * along) / determinant
        step_b = (one * along - across * g) / determinant
        length = max(abs(step_a), abs(step_b))
        if length < 1e-12 * (1.0 + max(abs(a), abs(b))) or (now <= before and length < 1e-8):
            # The likelihood no longer tells, but this step is as good as the others.
            a, b = a + step_a, b + step_b
            _likelihood(x, w, k, a, b, rest, logs, exponents)
            _, _, one, across, square = _derivatives(x, w, k, a, b, rest)
            determinant = _determinant(one, across, square)
            return a, b, math.sqrt(square / determinant), math.sqrt(one / determinant)
        before = now
        scale = 1.0
        while True:
            now = _likelihood(x, w, k, a + scale * step_a, b + scale * step_b, rest, logs, exponents)
            if now >= before or scale <= 1e-9:
                break
            scale /= 2.0
        a, b = a + scale * step_a, b + scale * step_b
        if max(abs(a), abs(b)) > 1e4:
            return none
    return none


@kernel
def _determinant(one, across, square):
    """Of the information, of which the two products are often nearly the same."""
    high, low = two_product(one, square)
    taken, taken_low = two_product(across, across)
    return (high - taken) + (low - taken_low)


@kernel
def _both_labels(w, k):
    some = other = False
    for i in range(w.size):
        some |= k[i] > 0.0
        other |= k[i] < w[i]
    return some and other


@kernel
def _likelihood(x, w, k, a, b, rest, logs, exponents):
    """The logarithm of the likelihood of a line; `rest` becomes the smaller of q and 1 - q at each log-odds."""
    for i in range(x.size):
        rest[i] = -abs(a + b * x[i])
    logistic(rest, rest)
    for i in range(x.size):
        logs[i] = 1.0 - rest[i]
    log_in_place(logs, logs.view(np.int64), exponents, x.size)
    total = low = 0.0
    for i in range(x.size):
        eta = a + b * x[i]
        hits = k[i] if eta < 0.0 else k[i] - w[i]
        total, error = two_sum(total, hits * eta + w[i] * logs[i])
        low += error
    return total + low


@kernel
def _derivatives(x, w, k, a, b, rest):
    """The gradient of that logarithm, and the information: by intercept, by both, by slope."""
    g = along = one = across = square = 0.0
    g_low = along_low = one_low = across_low = square_low = 0.0
    for i in range(x.size):
        small = rest[i]
        # Of the rarer label, so that no digits are lost where nearly all rows have the other.
        left = k[i] - w[i] * small if a + b * x[i] < 0.0 else w[i] * small - (w[i] - k[i])
        v = w[i] * small * (1.0 - small)
        g, error = two_sum(g, left)
        g_low += error
        along, error = two_sum(along, x[i] * left)
        along_low += error
        one, error = two_sum(one, v)
        one_low += error
        across, error = two_sum(across, v * x[i])
        across_low += error
        square, error = two_sum(square, v * x[i] * x[i])
        square_low += error
    return g + g_low, along + along_low, one + one_low, across + across_low, square + square_low
