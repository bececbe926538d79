"""A map's levels as the log-odds that segments move."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from calibrators._kernels import log_odds
from calibrators.arithmetic.passes import Array

LEAST, MOST = float(np.finfo(np.float64).tiny), 1.0 - 2.0**-53
"""Probabilities whose log-odds doubles can say."""


class Curve(NamedTuple):
    """A map's levels as the segments below it move them.

    Attributes
    ----------
    logit : float64 array, shape (blocks,): of each block's level, finite
    centre : the mean of `logit` over the map's rows, weighted by p (1 - p)
    low, high : the first level and the last one, in (0, 1)
    """

    logit: Array
    centre: float
    low: float
    high: float


def logit_of(p: Array, q: Array) -> Array:
    """log(p) - log(q), the same on every machine. p, q : float64 arrays of normal numbers > 0."""
    out = np.empty(p.size)
    log_odds.logits(np.ascontiguousarray(p), np.ascontiguousarray(q), out)
    return out


def curve_of(level: npt.ArrayLike, weight: npt.ArrayLike) -> Curve:
    """A map's curve: what is adjusted.

    Parameters
    ----------
    level : float64 array-like, shape (blocks,), in [0, 1], ascending
    weight : float64 array-like, shape (blocks,), > 0: of the map's rows in each

    Notes
    -----
    A first level of 0 counts as min(1/2 / (W + 1), the next level), W its weight; a last level of 1 mirrored.
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
    # Sums of weights of 1e16 leave levels that doubles cannot tell from 1.
    p, q = np.clip(p, LEAST, MOST), np.maximum(q, 1.0 - MOST)
    logit = logit_of(p, q)
    information = w * p * q
    return Curve(logit, float((information * logit).sum() / information.sum()), float(p[0]), float(p[-1]))
