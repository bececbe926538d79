"""SBB and ABB by brute force over all binnings, for readers and as the oracle of tests.

Notation of Pakdaman Naeini, Cooper & Hauskrecht (2014), "Binary classifier calibration: a Bayesian non-parametric
approach", arXiv:1401.2955. The product finds the same best binning and the same mean by dynamic programming:
`core.kernels.binnings`.
"""

from __future__ import annotations

from itertools import pairwise, product
from typing import NamedTuple

import numpy as np
from scipy.special import gammaln

from calibrators.core.arrays import Array
from calibrators.core.passes import Points


class Binning(NamedTuple):
    """Binning Pa of the points.

    starts : index of the first point of each bin
    log_score : log Score(M), equation 6
    level : float64 array, shape (m,): at each point the smoothed frequency of its bin, (n_b1 + 1) / (n_b + 2)
    """

    starts: list[int]
    log_score: float
    level: Array


def all_binnings(points: Points, expected_cuts: float) -> list[Binning]:
    """List the 2**(m - 1) binnings of m points. expected_cuts : the Poisson distribution's lambda."""
    s, w, k = points
    distance = np.diff(s) / (s[-1] - s[0]) if s.size > 1 else np.empty(0)
    prior = -np.expm1(-expected_cuts * distance)  # Prior(k): a boundary between the points k and k + 1
    binnings = []
    for boundaries in product([False, True], repeat=s.size - 1):
        starts = [0, *(i + 1 for i, boundary in enumerate(boundaries) if boundary)]
        log_score, level = (
            float(np.log(np.where(boundaries, prior, 1 - prior)).sum()),
            np.empty(s.size),
        )  # equation 5
        for start, stop in pairwise([*starts, s.size]):
            n_b, n_b1 = w[start:stop].sum(), k[start:stop].sum()
            log_score += gammaln(n_b - n_b1 + 1) + gammaln(n_b1 + 1) - gammaln(n_b + 2)  # equation 4
            level[start:stop] = (n_b1 + 1) / (n_b + 2)
        binnings.append(Binning(starts, log_score, level))
    return binnings


def sbb(binnings: list[Binning]) -> Binning:
    """Select the binning with the best score, M_opt of section 2.2."""
    return max(binnings, key=lambda binning: binning.log_score)


def abb(binnings: list[Binning]) -> tuple[Array, float]:
    """Average the levels by score, equation 7; return also the mean number of bins."""
    logs = np.array([binning.log_score for binning in binnings])
    share = np.exp(logs - logs.max())
    share /= share.sum()
    bins = [len(binning.starts) for binning in binnings]
    return share @ np.array([binning.level for binning in binnings]), float(share @ bins)
