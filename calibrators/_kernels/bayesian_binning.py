"""Sweeps over all binnings of neighbouring groups of points: the best one, and the average of all.

A bin over the groups i .. u scores, in logarithms,
    cut[u] - (kept[u] - kept[i]) + log(n0! n1! / (n + 1)!),
cut[u] the log prior probability of a boundary after u (0 after the last), kept[u] minus the log prior probability
of no boundary between the first group and u. Each sweep is O(m^2) time and O(m) memory.
"""

import math

import numpy as np

from calibrators._kernels.binnings import log_beta
from calibrators._kernels.compiled import kernel

_NEGLIGIBLE = -60.0  # a share below exp(-60) of a sum is lost in it


@kernel
def log_factorials(n):
    """Log of 0!, 1!, ..., n!."""
    table = np.empty(n + 1)
    for i in range(n + 1):
        table[i] = math.lgamma(i + 1.0)
    return table


@kernel(inline=True)
def _log_marginal(n0, n1, table):
    """Log of n0! n1! / (n0 + n1 + 1)!; table : log factorials, or empty for weights that are not whole."""
    if table.size > 0:
        return table[int(n0)] + table[int(n1)] - table[int(n0 + n1) + 1]
    return log_beta(n1 + 1.0, n0 + 1.0)


@kernel
def best_binning(negatives, positives, cut, kept, table):
    """The first group of each bin of the binning with the highest score (of equals: with the longer last bins)."""
    m = cut.size
    best = np.empty(m + 1)
    best[0] = 0.0
    start = np.zeros(m, np.int64)
    for u in range(m):
        n0 = n1 = 0.0
        highest = -np.inf
        for i in range(u, -1, -1):
            n0 += negatives[i]
            n1 += positives[i]
            score = best[i] + kept[i] + _log_marginal(n0, n1, table)
            if score >= highest:
                highest = score
                start[u] = i
        best[u + 1] = highest + cut[u] - kept[u]
    bins = np.empty(m, np.int64)
    count = 0
    u = m - 1
    while u >= 0:
        bins[count] = start[u]
        count += 1
        u = start[u] - 1
    return bins[:count][::-1].copy(), best[m]


@kernel(inline=True)
def _log_sum(terms, n):
    """Log of the sum of exp(terms[:n])."""
    highest = -np.inf
    for i in range(n):
        highest = max(highest, terms[i])
    if highest == -np.inf:
        return highest, 0.0
    total = 0.0
    for i in range(n):
        if terms[i] - highest > _NEGLIGIBLE:
            total += math.exp(terms[i] - highest)
    return highest, total


@kernel
def log_sums_below(negatives, positives, cut, kept, table):
    """For each u the log of the summed scores of all binnings of the groups before u; shape (m + 1,)."""
    m = cut.size
    below = np.empty(m + 1)
    below[0] = 0.0
    terms = np.empty(m)
    for u in range(m):
        n0 = n1 = 0.0
        for i in range(u, -1, -1):
            n0 += negatives[i]
            n1 += positives[i]
            terms[i] = below[i] + kept[i] + _log_marginal(n0, n1, table)
        highest, total = _log_sum(terms, u + 1)
        below[u + 1] = highest + math.log(total) + cut[u] - kept[u] if total > 0.0 else -np.inf
    return below


@kernel
def average_levels(negatives, positives, cut, kept, table, below):
    """For each group the mean, over all binnings weighted by their scores, of its bin's (n1 + 1) / (n + 2).

    below : what `log_sums_below` gives. The sums above are made on the way; the probability of each bin is added
    where it begins and taken away behind its end, so that all groups are averaged in one sweep.

    Returns
    -------
    level : float64 array, shape (m,)
    bins : float, the expected number of bins
    """
    m = cut.size
    above = np.empty(m + 1)
    above[m] = 0.0
    terms = np.empty(m)
    level_of = np.empty(m)
    level_change = np.zeros(m + 1)
    share_change = np.zeros(m + 1)
    whole = below[m]
    expected = 0.0
    for i in range(m - 1, -1, -1):
        n0 = n1 = 0.0
        highest = -np.inf
        for u in range(i, m):
            n0 += negatives[u]
            n1 += positives[u]
            terms[u] = above[u + 1] + cut[u] - kept[u] + _log_marginal(n0, n1, table)
            level_of[u] = (n1 + 1.0) / (n0 + n1 + 2.0)
            highest = max(highest, terms[u])
        if highest == -np.inf:
            above[i] = highest
            continue
        scale = below[i] + kept[i] + highest - whole
        scale = math.exp(scale) if scale > _NEGLIGIBLE else 0.0
        total = begun = begun_level = 0.0
        for u in range(i, m):
            if terms[u] - highest <= _NEGLIGIBLE:
                continue
            share = math.exp(terms[u] - highest)
            total += share
            share *= scale
            begun += share
            begun_level += share * level_of[u]
            share_change[u + 1] -= share
            level_change[u + 1] -= share * level_of[u]
        above[i] = highest + math.log(total) + kept[i]
        share_change[i] += begun
        level_change[i] += begun_level
        expected += begun
    level = np.empty(m)
    now = share = 0.0
    for i in range(m):
        now += level_change[i]
        share += share_change[i]
        level[i] = min(max(now / share, 0.0), 1.0)
    return level, expected
