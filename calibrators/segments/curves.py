"""Curves of parents' maps, which segments adjust by a shift and a slope of log odds."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from calibrators.core.arrays import Array, Integers
from calibrators.core.kernels import log_odds
from calibrators.core.kernels.log_odds import logistic

LEAST, MOST = float(np.finfo(np.float64).tiny), 1.0 - 2.0**-53
"""Least and greatest probability with finite log odds in doubles."""

EXTREME = 27.6
"""Largest log odds of a segment's probabilities, about those of 1 - 1e-12."""

MOST_INFORMATION = 1e15
"""Most information with which doubles resolve a nat of evidence."""

_FLAT = 1e-12


class ParentCurve(NamedTuple):
    """Levels of a parent's map, which segments adjust.

    Attributes
    ----------
    logit : float64 array, shape (blocks,): log odds of each block's level, finite
    centre : mean of `logit` over the map's rows, weighted by p (1 - p)
    low, high : the first and the last level, in (0, 1)
    """

    logit: Array
    centre: float
    low: float
    high: float


def logit_of(p: Array, q: Array) -> Array:
    """Compute log(p) - log(q), with the same result on every machine. p, q : float64 arrays of normal numbers > 0."""
    out = np.empty(p.size)
    log_odds.logits(np.ascontiguousarray(p), np.ascontiguousarray(q), out)
    return out


def curve_of(level: npt.ArrayLike, weight: npt.ArrayLike) -> ParentCurve:
    """Compute the curve of a map, which segments adjust.

    Parameters
    ----------
    level : float64 array-like, shape (blocks,), in [0, 1], ascending
    weight : float64 array-like, shape (blocks,), > 0: weight of the map's rows in each block

    Notes
    -----
    A first level of 0 is replaced by min(1/2 / (W + 1), the next level), W its weight; a last level of 1 likewise.
    """
    p = np.array(level, np.float64)
    w = np.asarray(weight, np.float64)
    if p.ndim != 1 or p.size == 0 or p.shape != w.shape:
        raise ValueError(f"level, weight: expected one shape (n,) with n >= 1, found {p.shape} and {w.shape}")
    q = 1.0 - p
    if p[0] <= 0.0:
        p[0] = min([0.5 / (w[0] + 1.0), *p[1:2][p[1:2] < 1.0]])
        q[0] = 1.0 - p[0]
    if q[-1] <= 0.0:
        q[-1] = min([0.5 / (w[-1] + 1.0), *q[-2:-1][: p.size - 1]])
        p[-1] = 1.0 - q[-1]
    # With weights of 1e16 a level may round to 1.
    p, q = np.clip(p, LEAST, MOST), np.maximum(q, 1.0 - MOST)
    logit = logit_of(p, q)
    information = w * p * q
    return ParentCurve(
        logit, float((information * logit).sum() / information.sum()), float(p[0]), float(p[-1])
    )


def logistic_of(logit: Array) -> Array:
    """Compute the logistic function, by compiled code."""
    p = np.empty(logit.size)
    logistic(np.ascontiguousarray(logit), p)
    return p


def asymmetry(logit: Array) -> Array:
    """Compute 1 - 2 p: for x ~ N(m, v), E sigma(x) is about sigma(m + v (1 - 2 p) / 2)."""
    return np.asarray(1.0 - 2.0 * logistic_of(logit))


def moments(x: Array, logit: Array, weight: Array, sizes: Integers) -> Array:
    """Compute moments of segments weighted by information; shape (segments, 7).

    These are powers 0 to 2 of x, and powers 0 to 3 times the asymmetry.

    x, logit, weight : float64 arrays, shape (cells,), segment after segment. sizes : number of cells of each segment
    """
    result, filled = np.zeros((sizes.size, 7)), sizes > 0
    tilt = asymmetry(logit)
    information = weight * (0.25 * (1.0 - tilt * tilt))
    tilted = information * tilt
    terms = [information, information * x, information * x * x]
    terms += [tilted, tilted * x, tilted * x * x, tilted * x * x * x]
    starts = (np.cumsum(sizes) - sizes)[filled]
    for column, term in zip(result.T, terms, strict=True):
        column[filled] = np.add.reduceat(term, starts)
    return result


def line(sums: Array, pivot: float) -> Array:
    """Fit lines in x - pivot to the asymmetry times 1, x - pivot and its square: shape (2, 3). sums : see `moments`."""
    s, t = (
        [sum(math.comb(k, j) * (-pivot) ** (k - j) * m[j] for j in range(k + 1)) for k in range(m.size)]
        for m in (sums[:3], sums[3:])
    )
    low, high = np.array(t[:3]), np.array(t[1:])
    determinant = s[0] * s[2] - s[1] * s[1]
    if determinant <= _FLAT * s[0] * s[2]:
        return np.stack([low / s[0] if s[0] > 0 else np.zeros(3), np.zeros(3)])
    return np.stack([(s[2] * low - s[1] * high) / determinant, (s[0] * high - s[1] * low) / determinant])


def damped(variance: Array) -> Array:
    """Compute the variance v that gives E sigma(m + sqrt(variance) Z) by m + v (1 - 2 p) / 2, also if it is large.

    The expansion is exact to first order; sqrt(1 + pi v / 8) is the slope of log odds for large variances.
    """
    return np.asarray(4.0 * (np.sqrt(1.0 + 0.5 * np.asarray(variance)) - 1.0))


def half_variance(derivatives: Array, prior: Array) -> Array:
    """Compute half of the posterior variance of a + d x, damped, as polynomials in x: shape (segments, 3).

    derivatives : see the kernel's `adjust_curves`; prior : float64 array, shape (segments, 2): prior variances
    """
    a, d = prior.T
    h_aa, h_ad, h_dd = derivatives[:, 2], derivatives[:, 3], derivatives[:, 4]
    factor_a, factor_d = 1.0 + a * h_aa, 1.0 + d * h_dd
    determinant = np.maximum(factor_a * factor_d - a * d * h_ad * h_ad, 1.0)
    variance_a, variance_d = a * factor_d / determinant, d * factor_a / determinant
    covariance = -a * d * h_ad / determinant
    middle = covariance / np.sqrt(1.0 + 0.5 * np.abs(covariance))
    return np.stack([0.5 * damped(variance_a), middle, 0.5 * damped(variance_d)], axis=1)


def posterior_share(derivatives: Array, prior: Array) -> Array:
    """Compute the posterior over the prior variance of a: see `half_variance`."""
    a, d = prior.T
    h_aa, h_ad, h_dd = derivatives[:, 2], derivatives[:, 3], derivatives[:, 4]
    factor_d = 1.0 + d * h_dd
    return np.asarray(factor_d / np.maximum((1.0 + a * h_aa) * factor_d - a * d * h_ad * h_ad, factor_d))


def recentred(theta: Array, derivatives: Array, offset: float) -> tuple[Array, Array]:
    """Convert shifts, slopes and the likelihood's derivatives to a pivot that is larger by `offset`."""
    if offset == 0:
        return theta, derivatives
    a, d = theta.T
    g_a, g_d, h_aa, h_ad, h_dd = derivatives.T
    converted = [g_a, g_d - offset * g_a, h_aa, h_ad - offset * h_aa]
    converted.append(np.maximum(h_dd - 2.0 * offset * h_ad + offset * offset * h_aa, 0.0))
    return np.stack([a + d * offset, d], axis=1), np.stack(converted, axis=1)


def bounded(shift: Array, slope: Array, low: Array, high: Array) -> tuple[Array, Array, Array, Array]:
    """Narrow the bounds of parents' probabilities, within which segments' log odds are at most EXTREME.

    shift, slope, low, high : float64 arrays, shape (segments,): see `logcal.adjustments.Adjustments`
    """
    adjusted = (shift != 0.0) | (slope != 1.0)
    least, most = (logit_of(p, 1.0 - p) for p in (low, high))
    steep = np.maximum(slope, _FLAT)
    inner = [np.clip((bound - shift) / steep, least, most) for bound in (-EXTREME, EXTREME)]
    bounds = []
    for before, limit, log_odds_before in zip((low, high), inner, (least, most), strict=True):
        p = np.clip(logistic_of(limit), LEAST, MOST)
        bounds.append(np.where(adjusted & (limit != log_odds_before), p, before))
    # Where all log odds would be larger, the curve is constant.
    beyond = adjusted & (np.abs(shift + slope * np.clip(0.0, *inner)) > EXTREME + _FLAT)
    shift = np.where(beyond, np.clip(shift + slope * np.clip(0.0, *inner), -EXTREME, EXTREME), shift)
    return shift, np.where(beyond, 0.0, slope), bounds[0], bounds[1]
