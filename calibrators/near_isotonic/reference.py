"""Near-isotonic regression and ENIR as published, for readers and as the oracle of tests: slow and plain.

Notation of Naeini & Cooper (2016), "Binary classifier calibration using an ensemble of near isotonic regression
models", ICDM: bin B_i has |B_i| observations, sum z_j of them positive, the level p_i and the slope a_i; nu_i tells
whether the level falls after it. With weights |B_i| is a sum of weights. The product computes the same numbers
with other means: `path`, `part_blocks`, `model_search`.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import xlog1py, xlogy

from calibrators.core.arrays import Array
from calibrators.near_isotonic.enir import Models


class PathModel(NamedTuple):
    """Solution of equation 3 at a breakpoint; one entry per bin.

    lam : the breakpoint
    last : index of each bin's last point
    p, a : levels, and their slopes in lambda
    z, size : positives and weight
    """

    lam: Fraction
    last: list[int]
    p: list[Fraction]
    a: list[Fraction]
    z: list[Fraction]
    size: list[Fraction]


def modified_pava(weight: npt.ArrayLike, positives: npt.ArrayLike) -> list[PathModel]:
    """Find the path of near-isotonic solutions: Algorithm 1 (mPAVA), in rational arithmetic.

    Parameters
    ----------
    weight, positives : array-like, shape (m,): of the points, in ascending order of scores

    Returns
    -------
    list of PathModel
        At lambda = 0, where neighbours of equal frequency are one bin already, and at each breakpoint. O(m**2).
    """
    size, z = ([Fraction(float(x)) for x in np.asarray(column)] for column in (weight, positives))
    last, lam, models = list(range(len(size))), Fraction(0), list[PathModel]()
    p = [k / w for k, w in zip(z, size, strict=True)]  # the saturated fit
    while True:
        for i in reversed(range(len(p) - 1)):  # the pairs of equation 9's set I* have met
            if p[i] == p[i + 1]:
                size[i : i + 2], z[i : i + 2] = [size[i] + size[i + 1]], [z[i] + z[i + 1]]
                del last[i], p[i]
        nu = [0, *(int(left > right) for left, right in pairwise(p)), 0]
        a = [Fraction(nu[i] - nu[i + 1]) / size[i] for i in range(len(p))]  # equation 7
        models.append(PathModel(lam, last.copy(), p, a, z.copy(), size.copy()))
        meetings = [  # equation 8; bins of equal slope never meet, nor do those that met before
            (p[i] - p[i + 1]) / (a[i + 1] - a[i]) + lam for i in range(len(p) - 1) if a[i] != a[i + 1]
        ]
        breakpoints = [x for x in meetings if x > lam]
        if not breakpoints:
            return models
        following = min(breakpoints)  # equation 9
        p = [level + slope * (following - lam) for level, slope in zip(p, a, strict=True)]
        lam = following


def levels(model: PathModel) -> Array:
    """Expand a model to the level of every point."""
    return np.repeat([float(level) for level in model.p], np.diff([-1, *model.last]))


def enir(weight: npt.ArrayLike, positives: npt.ArrayLike, criterion: str = "bic") -> tuple[Array, Models]:
    """Average the models of the path by their scores (section III): the level of every point, and all models.

    lambda = 0 is left out (footnote 3), so there must be a breakpoint. criterion : 'bic', as published, 'aic' or 'aicc'
    """
    w, k = np.asarray(weight, np.float64), np.asarray(positives, np.float64)
    n, models = float(w.sum()), modified_pava(w, k)[1:]
    likelihood = np.array([log_likelihood(levels(model), w, k) for model in models])
    df = np.array([len(model.p) for model in models])
    with np.errstate(divide="ignore"):
        correction = np.where(df < n - 1, 2 * df * (df + 1) / np.maximum(n - df - 1, 0), np.inf)
    value = -2 * likelihood + {"bic": df * np.log(n), "aic": 2 * df, "aicc": 2 * df + correction}[criterion]
    score = np.exp((value.min() - value) / 2)  # Score(M_i), but for a factor
    share = score / score.sum()
    mean = sum(s * levels(model) for s, model in zip(share, models, strict=True))
    lam = np.array([float(model.lam) for model in models])
    return np.asarray(mean), Models(lam, df, likelihood, value, share)


def log_likelihood(p: Array, weight: Array, positives: Array) -> float:
    """Add up k log p + (w - k) log(1 - p), with 0 log 0 = 0; -inf where a label contradicts a level of 0 or 1."""
    return float((xlogy(positives, p) + xlog1py(weight - positives, -p)).sum())
