"""Measures of very many small columns of predictions, one after the other: from exact sums, each rounded once.

The same doubles as `calibrators.measures.predictions` takes of each column with fractions, where weights are
counts of rows.
"""

import numpy as np

from calibrators._kernels.compiled import kernel
from calibrators._kernels.count_sums import LOSSES, WEIGHTS, sums_of_counts
from calibrators._kernels.expansions import (
    NO,
    SINGLE,
    add_all,
    add_product,
    add_times,
    add_whole,
    quotient,
)
from calibrators._kernels.few_measures import (
    ACCURACY,
    AUC,
    BRIER,
    ECE_FREQUENCY,
    ECE_WIDTH,
    GAP,
    GROUP_FREQUENCY,
    GROUP_MEAN,
    GROUP_WEIGHT,
    LARGEST,
    LOG_LOSS,
    MCE_FREQUENCY,
    MCE_WIDTH,
    MEAN,
    POSITIVES,
    VARIANCE,
    WEIGHT,
    assess_few,
    workspace,
)
from calibrators._kernels.measures import TINY
from calibrators._kernels.search import first_at
from calibrators._kernels.sums import MAX_COMPONENTS, add, rounded

NUMBERS = 15
"""Of a row of measures; see `few_measures`."""

_LOSSES, _WEIGHTS = np.int64(LOSSES), np.int64(WEIGHTS)


@kernel
def assess_each(p, w, k, starts, edges, bins, found, groups):
    """Measure columns of predictions, each ascending and without ties.

    Parameters
    ----------
    p, w, k : float64 arrays: predictions, and counts of rows and of positives, at most `COUNTS_LIMIT` a column.
        Of a column that leaves [0, 1] only the AUC, the rows and the positives are taken.
    starts : int64 array, shape (columns + 1,): where each column begins
    edges : float64 array: inner edges of the equal-width bins, ascending, and then the threshold of the accuracy
    bins : of the groups of equally many rows
    found : float64 array, shape (columns, NUMBERS); NaN: there is no such number
    groups : float64 array, shape (columns, bins, 3): weight, mean prediction, frequency of each group
    """
    none = np.empty(0, np.int64)
    work = workspace()
    for c in range(starts.size - 1):
        first, end = starts[c], starts[c + 1]
        q, v, h = p[first:end], w[first:end], k[first:end]
        scores = q[0] < 0 or q[q.size - 1] > 1
        if not scores and assess_few(q, v, h, edges, bins, work, found[c], groups[c]):
            continue
        if scores:
            _of_scores(q, v, h, none, found[c])
            continue
        at = np.empty(edges.size, np.int64)
        for e in range(edges.size):
            at[e] = first_at(q, 0, edges[e])
        borders = _borders(v, h, bins)
        cuts = _cuts(at, borders, q.size)
        sums, losses, rank = sums_of_counts(q, v, h, none, cuts, _LOSSES)
        _in_all(cuts, sums, losses, rank, at[edges.size - 1], q.size, found[c])
        _by_width(cuts, sums, at, q.size, found[c])
        _by_frequency(q, cuts, sums, borders, found[c], groups[c])


@kernel
def _borders(w, k, bins):
    """Where groups of equally many rows end: whole numbers, a row a border and one before the first.

    The cumulative weight there; the place of the tie in which it lies; the rows of that tie that are below; its rows;
    the positives below, and of the share of that tie the whole number and what is left over its rows.
    """
    total = hits = np.int64(0)
    for i in range(w.size):
        total += np.int64(w[i])
        hits += np.int64(k[i])
    size, larger = total // bins, total % bins
    out = np.zeros((bins + 1, 6), np.int64)
    out[0, 1], out[0, 3] = -1, 1
    below = hits_below = np.int64(0)
    i = 0
    for j in range(1, bins):
        target = j * size + min(j, larger)
        while below + np.int64(w[i]) < target:
            below += np.int64(w[i])
            hits_below += np.int64(k[i])
            i += 1
        share, rows = target - below, np.int64(w[i])
        some = np.int64(k[i]) * share
        out[j, 0], out[j, 1], out[j, 2] = target, i, share
        out[j, 3], out[j, 4], out[j, 5] = rows, hits_below + some // rows, some % rows
    out[bins, 0], out[bins, 1], out[bins, 3], out[bins, 4] = total, w.size, 1, hits
    return out


@kernel
def _cuts(at, borders, m):
    """All places that something begins or ends at, ascending."""
    cuts = np.zeros(at.size + 2 * borders.shape[0], np.int64)
    n = NO
    for e in range(at.size):
        cuts[n] = at[e]
        n += 1
    for j in range(1, borders.shape[0] - 1):
        cuts[n], cuts[n + 1] = borders[j, 1], borders[j, 1] + 1
        n += 2
    cuts[n], cuts[n + 1] = 0, m
    n += 2
    for a in range(1, n):
        value, b = cuts[a], a
        while b > 0 and cuts[b - 1] > value:
            cuts[b] = cuts[b - 1]
            b -= 1
        cuts[b] = value
    return cuts[:n]


@kernel
def _between(cuts, sums, low, high, components, n):
    """Rows and positives of the points low, ..., high - 1, which are cuts; adds their weighted predictions.

    Returns the two, and the length of the expansion.
    """
    weight = hits = np.int64(0)
    for s in range(cuts.size - 1):
        if cuts[s] >= high:
            break
        if cuts[s] >= low and cuts[s + 1] <= high and cuts[s] < cuts[s + 1]:
            for c in range(sums.shape[2]):
                weight += np.int64(sums[s, 0, c])
                hits += np.int64(sums[s, 1, c])
                if sums[s, 2, c] != 0.0:
                    n = add(components, n, sums[s, 2, c])
    return weight, hits, n


@kernel
def _over(components, weight):
    """An expansion that is padded with zeros over a whole number."""
    own, one = np.empty(MAX_COMPONENTS), np.empty(2)
    n = add_all(own, NO, components, components.size, 1.0)
    one[0] = float(weight)
    return quotient(own, n, one, SINGLE)


@kernel
def _in_all(cuts, sums, losses, rank, half, m, found):
    """What is taken of all points. half : the place of the first prediction of a positive."""
    predicted = np.empty(MAX_COMPONENTS)
    weight, hits, n = _between(cuts, sums, NO, m, predicted, NO)
    below, hits_below, _ = _between(cuts, sums, NO, half, np.empty(MAX_COMPONENTS), NO)
    size = np.empty(1)
    size[0] = float(weight)
    found[WEIGHT], found[POSITIVES] = float(weight), float(hits)
    found[MEAN] = quotient(predicted, n, size, SINGLE)
    found[ACCURACY] = float(below - hits_below + hits - hits_below) / float(weight)
    found[BRIER] = _over(losses[0], weight)
    found[LOG_LOSS] = np.inf if losses[2, 0] != 0.0 else _over(losses[1], weight)
    found[AUC] = _auc(rank, float(weight), float(hits))


@kernel
def _auc(rank, weight, hits):
    """See `calibrators.measures.predictions.area_under_roc`; NaN of one class."""
    if hits == 0 or hits == weight:
        return np.nan
    pairs, pairs_of_all = np.empty(MAX_COMPONENTS), np.empty(MAX_COMPONENTS)
    n = add_all(pairs, NO, rank, rank.size, 1.0)
    n = add_times(pairs, n, -hits, hits)
    return quotient(pairs, n, pairs_of_all, add_times(pairs_of_all, NO, 2.0 * hits, weight - hits))


@kernel
def _of_scores(q, v, h, none, found):
    """What is taken of predictions that are no probabilities."""
    cuts = np.zeros(2, np.int64)
    cuts[1] = q.size
    sums, _, rank = sums_of_counts(q, v, h, none, cuts, _WEIGHTS)
    weight, hits, _ = _between(cuts, sums, NO, q.size, np.empty(MAX_COMPONENTS), NO)
    found[WEIGHT], found[POSITIVES] = float(weight), float(hits)
    found[AUC] = _auc(rank, float(weight), float(hits))


@kernel
def _by_width(cuts, sums, at, m, found):
    """Calibration errors of equal-width bins. at : where they end, but the last, and another place."""
    gaps, gap, size = np.empty(MAX_COMPONENTS), np.empty(MAX_COMPONENTS), np.empty(1)
    n, low, largest = NO, NO, 0.0
    for j in range(at.size):
        high = at[j] if j < at.size - 1 else m
        weight, hits, g = _between(cuts, sums, low, high, gap, NO)
        low = high
        if weight == 0:
            continue
        g = add(gap, g, -float(hits))
        sign = -1.0 if g > 0 and gap[g - 1] < 0.0 else 1.0
        n = add_all(gaps, n, gap, g, sign)
        size[0] = float(weight)
        largest = max(largest, abs(quotient(gap, g, size, SINGLE)))
    size[0] = found[WEIGHT]
    found[ECE_WIDTH], found[MCE_WIDTH] = quotient(gaps, n, size, SINGLE), largest


@kernel
def _predicted(q, cuts, sums, lower, upper, before, components):
    """The sum of the predictions of a group between two borders, as an expansion; returns its length.

    before : rows of the tie of the lower border that are below the group
    """
    i, j = lower[1], upper[1]
    if i == j:
        return add_times(components, NO, _kept(q[i]), float(upper[0] - lower[0]))
    n = NO
    if i >= 0:
        n = add_times(components, n, _kept(q[i]), float(lower[3] - before))
    if j < q.size:
        n = add_times(components, n, _kept(q[j]), float(upper[2]))
    _, _, n = _between(cuts, sums, i + 1, j, components, n)
    return n


@kernel
def _kept(p):
    return p if p >= TINY else 0.0


@kernel
def _by_frequency(q, cuts, sums, borders, found, groups):
    """Calibration errors of groups of equally many rows, and what is known of each.

    The positives of a group are a whole number and what its borders have of their ties: fractions. With both over
    their common denominator all sums are exact.
    """
    bins = borders.shape[0] - 1
    predicted, rest = np.empty(MAX_COMPONENTS), np.empty(MAX_COMPONENTS)
    whole, divisor, gaps = np.empty(MAX_COMPONENTS), np.empty(MAX_COMPONENTS), np.empty(MAX_COMPONENTS)
    one, signs = np.empty(1), np.zeros(bins)
    spread = np.empty((2, MAX_COMPONENTS))
    n_gaps = n_gap = n_spread = NO
    largest = 0.0
    for j in range(bins):
        lower, upper = borders[j], borders[j + 1]
        weight = upper[0] - lower[0]
        groups[j, GROUP_WEIGHT] = float(weight)
        groups[j, GROUP_MEAN] = groups[j, GROUP_FREQUENCY] = np.nan
        if weight == 0:
            continue
        n = _predicted(q, cuts, sums, lower, upper, lower[2], predicted)
        hits = upper[4] - lower[4]
        # Rows of a tie are fewer than 2**31: their products are no larger than an int64.
        left, below = upper[5] * lower[3] - lower[5] * upper[3], lower[3] * upper[3]
        if left == 0:
            below = np.int64(1)
        b = add_whole(whole, NO, below)
        one[0] = float(weight)
        d = add_product(divisor, NO, whole, b, one, SINGLE, 1.0)
        one[0] = float(hits)
        r = add_whole(rest, add_product(rest, NO, whole, b, one, SINGLE, 1.0), left)
        frequency = quotient(rest, r, divisor, d)
        r = add_product(rest, r, whole, b, predicted, n, -1.0)
        signs[j] = -1.0 if r > 0 and rest[r - 1] < 0.0 else 1.0
        largest = max(largest, abs(quotient(rest, r, divisor, d)))
        n_gaps = add(gaps, add_all(gaps, n_gaps, predicted, n, -signs[j]), signs[j] * float(hits))
        one[0] = float(weight)
        mean = quotient(predicted, n, one, SINGLE)
        groups[j, GROUP_MEAN], groups[j, GROUP_FREQUENCY] = mean, frequency
        n_gap = add(spread[0], n_gap, float(weight) * abs(frequency - mean))
        n_spread = add(spread[1], n_spread, float(weight) * mean * (1 - mean))
    found[GAP], found[VARIANCE] = rounded(spread[0], n_gap), rounded(spread[1], n_spread)
    found[LARGEST], found[MCE_FREQUENCY] = 1.0, largest
    found[ECE_FREQUENCY] = _shared(borders, signs, gaps, n_gaps, found[WEIGHT])


@kernel
def _shared(borders, signs, gaps, n, weight):
    """The sum of groups' absolute gaps over the weight of all.

    gaps : without what the borders have of their ties, which one group has more of and the next one less
    signs : of the gaps; 0 of empty groups
    """
    divisor, other, one = np.empty(MAX_COMPONENTS), np.empty(MAX_COMPONENTS), np.empty(1)
    divisor[0] = 1.0
    d = SINGLE
    for j in range(1, borders.shape[0] - 1):
        times = signs[j - 1] - signs[j]
        if times == 0.0 or borders[j, 5] == 0:
            continue
        one[0] = float(borders[j, 3])
        m = add_product(other, NO, gaps, n, one, SINGLE, 1.0)
        one[0] = times * float(borders[j, 5])
        m = add_product(other, m, divisor, d, one, SINGLE, 1.0)
        n = add_all(gaps, NO, other, m, 1.0)
        one[0] = float(borders[j, 3])
        m = add_product(other, NO, divisor, d, one, SINGLE, 1.0)
        d = add_all(divisor, NO, other, m, 1.0)
    one[0] = weight
    m = add_product(other, NO, divisor, d, one, SINGLE, 1.0)
    return quotient(gaps, n, other, m)
