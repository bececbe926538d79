"""Sweeps over all binnings of neighbouring groups of points, for the best one and for the average of all.

The log score of a bin over the groups i .. u, Score_{i,u} of Pakdaman Naeini, Cooper & Hauskrecht (2014), is the log of
equation 5 times a factor of equation 4:
    cut[u] - (no_cut[u] - no_cut[i]) + log(n0! n1! / (n + 1)!),
where cut[u] is the log prior probability of a boundary after u (0 after the last), and no_cut[u] minus the log prior
probability of no boundary between the first group and u. Each sweep takes O(m^2) time and O(m) memory.
"""

import math

import numpy as np

from calibrators.core.compiled import kernel
from calibrators.core.kernels.log_beta import log_beta

_NEGLIGIBLE = -60.0  # a term below exp(-60) of a sum does not change it


@kernel
def log_factorials(n):
    """Return the logarithms of 0!, 1!, ..., n!."""
    table = np.empty(n + 1)
    for i in range(n + 1):
        table[i] = math.lgamma(i + 1.0)
    return table


@kernel(inline=True)
def _log_marginal(n0, n1, table):
    """Return log(n0! n1! / (n0 + n1 + 1)!). table : log factorials, or empty for weights that are not integers."""
    if table.size > 0:
        return table[int(n0)] + table[int(n1)] - table[int(n0 + n1) + 1]
    return log_beta(n1 + 1.0, n0 + 1.0)


@kernel
def best_binning(negatives, positives, cut, no_cut, table):
    """Return the first group of each bin of the best binning, and its log score. Of ties the last bins are longest.

    The dynamic programming of section 2.3: best[u] is the log of V^f_u.
    """
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
            score = best[i] + no_cut[i] + _log_marginal(n0, n1, table)
            if score >= highest:
                highest = score
                start[u] = i
        best[u + 1] = highest + cut[u] - no_cut[u]
    bins = np.empty(m, np.int64)
    count = 0
    u = m - 1
    while u >= 0:
        bins[count] = start[u]
        count += 1
        u = start[u] - 1
    return bins[:count][::-1].copy(), best[m]


@kernel
def log_sums_below(negatives, positives, cut, no_cut, table):
    """Return for each u the log of the total score of all binnings of the groups before u; shape (m + 1,).

    V^f_u of section 2.4, but with sums in place of maxima.
    """
    m = cut.size
    below = np.empty(m + 1)
    below[0] = 0.0
    terms = np.empty(m)
    for u in range(m):
        n0 = n1 = total = 0.0
        highest = -np.inf
        for i in range(u, -1, -1):
            n0 += negatives[i]
            n1 += positives[i]
            terms[i] = below[i] + no_cut[i] + _log_marginal(n0, n1, table)
            highest = max(highest, terms[i])
        for i in range(u + 1):
            # False for each term if all are -inf.
            if terms[i] - highest > _NEGLIGIBLE:
                total += math.exp(terms[i] - highest)
        below[u + 1] = highest + math.log(total) + cut[u] - no_cut[u] if total > 0.0 else -np.inf
    return below


@kernel
def average_levels(negatives, positives, cut, no_cut, table, below):
    """Return each group's level (n1 + 1) / (n + 2) of its bin, averaged over all binnings, weighted by their scores.

    One sweep averages all groups: it adds the probability of each bin at its first group and subtracts it behind its
    last: the sum of equation 8 for all predictions at once. It computes the total scores of the groups above, V^b_u, on
    the way.

    below : output of `log_sums_below`

    Returns
    -------
    level : float64 array, shape (m,)
    expected_bins : float: expected number of bins
    """
    m = cut.size
    above = np.empty(m + 1)
    above[m] = 0.0
    terms = np.empty(m)
    level_of = np.empty(m)
    level_change = np.zeros(m + 1)
    share_change = np.zeros(m + 1)
    log_total = below[m]
    expected_bins = 0.0
    for i in range(m - 1, -1, -1):
        n0 = n1 = 0.0
        highest = -np.inf
        for u in range(i, m):
            n0 += negatives[u]
            n1 += positives[u]
            terms[u] = above[u + 1] + cut[u] - no_cut[u] + _log_marginal(n0, n1, table)
            level_of[u] = (n1 + 1.0) / (n0 + n1 + 2.0)
            highest = max(highest, terms[u])
        if highest == -np.inf:
            above[i] = highest
            continue
        scale = below[i] + no_cut[i] + highest - log_total
        # A probability: rounding moves the logarithm beyond 0 by much only if weights are enormous.
        scale = math.exp(min(scale, 1.0)) if scale > _NEGLIGIBLE else 0.0
        total = mass = mass_level = 0.0
        for u in range(i, m):
            if terms[u] - highest <= _NEGLIGIBLE:
                continue
            share = math.exp(terms[u] - highest)
            total += share
            share *= scale
            mass += share
            mass_level += share * level_of[u]
            share_change[u + 1] -= share
            level_change[u + 1] -= share * level_of[u]
        above[i] = highest + math.log(total) + no_cut[i]
        share_change[i] += mass
        level_change[i] += mass_level
        expected_bins += mass
    level = np.empty(m)
    level_sum = share = 0.0
    for i in range(m):
        level_sum += level_change[i]
        share += share_change[i]
        # With enormous weights all shares of a group may vanish in rounding: its own level remains.
        own = (positives[i] + 1.0) / (negatives[i] + positives[i] + 2.0)
        level[i] = min(max(level_sum / share, 0.0), 1.0) if share > 0.0 else own
    return level, expected_bins
