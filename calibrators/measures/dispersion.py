"""Over-dispersion: how much more the observations vary than independent labels of weight 1.

Weights that vary at random, and rows that are copies, make rates vary more than binomial ones. Weights that count rows
do not.
"""

from __future__ import annotations

import math

import numpy as np

from calibrators.core.arrays import Array

GROUP_INFORMATION, FEWEST_GROUPS, MOST_GROUPS = 20.0, 16, 1024
"""Least information of a group of neighbouring cells, and number of groups, for `of_groups`."""

MOST = 10.0
"""A truth that jumps from score to score looks like over-dispersion, too, and must not hide misfits."""

_MEDIAN_OF_SQUARES = 0.454936
"""Median of the square of a standard normal number."""

MOST_PARTS, PART_INFORMATION = 2048, 8.0
"""Largest number of parts for `proven` if cells are not single points, and information of each."""

_HEAVY = 16.0
"""Largest variance of a cell that counts, as a multiple of the mean."""

_SIGNIFICANT = 4.0
_ERROR_OF_GROUPS = 3.5
"""Standard errors of `proven`; relative standard error of `of_groups`, times the root of the number of groups."""

_FURTHER = 3.0
"""Standard errors beyond which `of_groups` is believed rather than a smaller `proven`."""


def of_groups(sums: Array) -> float:
    """Estimate the over-dispersion from second differences of neighbouring rates, which no line changes.

    The median is not moved by a few jumps.

    sums : float64 array, shape (4, groups): weight, positives, expected and possible positives of neighbouring cells,
        see `fit_check.Misfit`

    Returns
    -------
    from 1 to 10
    """
    weight, positives, _, possible = sums
    # Of weights whose sum with the others rounds to that of the others, nothing is known.
    some = (weight > 0) & (possible > 0) & (possible < weight)
    weight, positives, possible = weight[some], positives[some], possible[some]
    if weight.size < FEWEST_GROUPS:
        return 1.0
    p = possible / weight
    variance = p * (1 - p) / weight
    rate = positives / weight
    second = rate[:-2] - 2 * rate[1:-1] + rate[2:]
    squares = second**2 / (variance[:-2] + 4 * variance[1:-1] + variance[2:])
    return float(np.clip(np.median(squares) / _MEDIAN_OF_SQUARES, 1.0, MOST))


def proven(sums: Array, groups: int, by_groups: float) -> float:
    """Return the over-dispersion if chance does not explain it, else 1.

    It is the sum of squared residuals of the cells over their variances' sum (Pearson's statistic), with isotonic
    regression as mean, but not beyond what `of_groups` allows: a truth that falls also makes residuals large.

    Parameters
    ----------
    sums : float64 array, shape (4, cells): as for `of_groups`, of points or of at most `MOST_PARTS` parts
    groups, by_groups : number of groups of `of_groups`, and its result; it is unknown below `FEWEST_GROUPS`

    Returns
    -------
    from 1 to 10. With rows of weight 1 and different scores exactly 1.
    """
    weight, positives, _, possible = sums[:, sums[0] > 0]
    p = np.clip(possible / weight, 0.0, 1.0)
    squares, variance = (positives - possible) ** 2, weight * p * (1 - p)
    # A heavy tie says nothing: either isotonic regression follows it, or it cannot.
    light = variance <= _HEAVY * variance.mean()
    squares, variance = squares[light], variance[light]
    beyond = squares - variance
    # In a unit whose square does not overflow: weights may be 1e100.
    beyond = np.ldexp(beyond, -np.frexp(np.abs(beyond).max(initial=0.0))[1])
    if not beyond.sum() > _SIGNIFICANT * math.sqrt((beyond**2).sum()):
        return 1.0
    most = MOST
    if groups >= FEWEST_GROUPS:
        most = min(most, by_groups * (1.0 + 2.0 * _ERROR_OF_GROUPS / math.sqrt(groups)))
    return float(np.clip(squares.sum() / variance.sum(), 1.0, most))


def combined(by_groups: float, groups: int, proven: float) -> float:
    """Combine both estimates: that of groups is too large by chance where there are few of them, which hides misfits.

    Few groups do not show random weights, but Pearson's statistic does. It is the better one unless a truth that falls,
    or jumps, made it larger; where it proves nothing, groups may still vary.
    """
    chance = 1.0 + _FURTHER * _ERROR_OF_GROUPS / math.sqrt(max(groups, 1))
    return proven if 1.0 < proven < by_groups <= proven * chance else max(by_groups, proven)
