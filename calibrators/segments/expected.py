"""From a segment's likeliest move to its expected probabilities: E sigma(x) of x ~ N(m, v) is about
sigma(m + v (1 - 2 sigma(m)) / 2), and v, the variance of a + d x, is a polynomial of x.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from calibrators._kernels.log_odds import logistic
from calibrators.arithmetic.passes import Array

Integers = npt.NDArray[np.int64]
_FLAT = 1e-12


def asymmetry(logit: Array) -> Array:
    """1 - 2 p: E sigma(x) of x ~ N(m, v) is about sigma(m + v (1 - 2 p) / 2)."""
    p = np.empty(logit.size)
    logistic(np.ascontiguousarray(logit), p)
    return np.asarray(1.0 - 2.0 * p)


def moments(x: Array, logit: Array, weight: Array, sizes: Integers) -> Array:
    """Compute moments of segments, by information: powers 0 to 2 of x, and times the asymmetry 0 to 3: (segments, 7).

    x, logit, weight : float64 arrays, shape (cells,), segment after segment. sizes : of each, its cells
    """
    found, some = np.zeros((sizes.size, 7)), sizes > 0
    tilt = asymmetry(logit)
    information = weight * (0.25 * (1.0 - tilt * tilt))
    tilted = information * tilt
    terms = [information, information * x, information * x * x]
    terms += [tilted, tilted * x, tilted * x * x, tilted * x * x * x]
    starts = (np.cumsum(sizes) - sizes)[some]
    for column, term in zip(found.T, terms, strict=True):
        column[some] = np.add.reduceat(term, starts)
    return found


def line(sums: Array, place: float) -> Array:
    """The lines nearest to the asymmetry times 1, x and x**2, x from the place on: shape (2, 3). sums : of moments."""
    s, t = (
        [sum(math.comb(k, j) * (-place) ** (k - j) * own[j] for j in range(k + 1)) for k in range(own.size)]
        for own in (sums[:3], sums[3:])
    )
    low, high = np.array(t[:3]), np.array(t[1:])
    determinant = s[0] * s[2] - s[1] * s[1]
    if determinant <= _FLAT * s[0] * s[2]:
        return np.stack([low / s[0] if s[0] > 0 else np.zeros(3), np.zeros(3)])
    return np.stack([(s[2] * low - s[1] * high) / determinant, (s[0] * high - s[1] * low) / determinant])


def excess(derivatives: Array, pair: tuple[float, float]) -> Array:
    """Half of what the posterior variance of a + d x is more than the prior's, as a polynomial: shape (segments, 3)."""
    a, d = pair
    h_aa, h_ad, h_dd = derivatives[:, 2], derivatives[:, 3], derivatives[:, 4]
    of_a, of_d = 1.0 + a * h_aa, 1.0 + d * h_dd
    determinant = np.maximum(of_a * of_d - a * d * h_ad * h_ad, 1.0)
    variance_a, covariance, variance_d = (
        a * of_d / determinant,
        -a * d * h_ad / determinant,
        d * of_a / determinant,
    )
    return np.stack([0.5 * (variance_a - a), covariance, 0.5 * (variance_d - d)], axis=1)


def seen_from(theta: Array, derivatives: Array, further: float) -> tuple[Array, Array]:
    """Shifts, block ranges and the likelihood's derivatives, where x is counted from a place so much further."""
    if further == 0:
        return theta, derivatives
    a, d = theta.T
    g_a, g_d, h_aa, h_ad, h_dd = derivatives.T
    own = [g_a, g_d - further * g_a, h_aa, h_ad - further * h_aa]
    own.append(np.maximum(h_dd - 2.0 * further * h_ad + further * further * h_aa, 0.0))
    return np.stack([a + d * further, d], axis=1), np.stack(own, axis=1)
