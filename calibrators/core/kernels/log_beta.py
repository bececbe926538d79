"""Logarithm of the beta function: marginal likelihoods of bins of binary labels."""

import math

from calibrators.core.compiled import kernel

_HALF_LOG_2PI = 0.9189385332046727
_LARGE = 15.0  # from this argument on, the first six terms of Stirling's series give full precision


@kernel(inline=True)
def _stirling_tail(x):
    """Return log Gamma(x) - ((x - 1/2) log x - x + log(2 pi) / 2), x >= 15."""
    y = 1.0 / (x * x)
    return (
        1 / 12 - y * (1 / 360 - y * (1 / 1260 - y * (1 / 1680 - y * (1 / 1188 - y * (691 / 360360)))))
    ) / x


@kernel
def log_beta(a, b):
    """Return the log of the beta function, a, b > 0, without the cancellation of large log-gammas."""
    p, q = min(a, b), max(a, b)
    if q < _LARGE:
        return math.lgamma(p) + (math.lgamma(q) - math.lgamma(p + q))
    share = p / (p + q)
    tail = _stirling_tail(q) - _stirling_tail(p + q)
    if p >= _LARGE:
        tail += _stirling_tail(p)
        return (
            -0.5 * math.log(q) + _HALF_LOG_2PI + tail + (p - 0.5) * math.log(share) + q * math.log1p(-share)
        )
    return math.lgamma(p) + tail + p - p * math.log(p + q) + (q - 0.5) * math.log1p(-share)
