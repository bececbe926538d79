"""Many equal-frequency binnings at once: where their edges fall, how likely they are, and their average.

A binning of B bins has its edge j after the first point whose cumulative weight reaches numerator * j /
denominator, j = 1 .. B - 1. Consecutive j that fall on one point are skipped without being looked at.
"""

import math

import numpy as np

from calibrators._kernels.compiled import kernel
from calibrators._kernels.sums import MAX_COMPONENTS, fill_prefix_sums, put, rounded, two_sum

_HALF_LOG_2PI = 0.9189385332046727
_BLOCK = 1 << 16
_SMALL = 0.1
# Euler's constant, and zeta(k) / k for k = 2 .. 16.
_TAYLOR = np.array(
    [
        0.5772156649015329, 0.8224670334241132, 0.4006856343865314, 0.27058080842778454, 0.20738555102867398,
        0.1695571769974082, 0.14404989676884612, 0.12550966952474304, 0.11133426586956469, 0.1000994575127818,
        0.0909540171458291, 0.08335384054610900, 0.07693251641135219, 0.07143294629536134, 0.06666870588242047,
        0.06250095514121304,
    ]
)  # fmt: skip
_LARGE = 15.0  # from here on the first six terms of Stirling's series give all digits


@kernel(inline=True)
def first_target_beyond(sum_so_far, numerator, denominator):
    """The smallest j >= 1 with numerator * j / denominator > sum_so_far."""
    j = max(int(sum_so_far / numerator * denominator), 1)
    while numerator * j / denominator <= sum_so_far:
        j += 1
    while j > 1 and numerator * (j - 1) / denominator > sum_so_far:
        j -= 1
    return j


@kernel(inline=True)
def _search(sums, start, target, density):
    """The first index >= start whose sum reaches target, or sums.size; O(1) where weights are even."""
    n = sums.size
    guess = start
    if start < n:
        guess = min(start + max(int((target - sums[start]) * density), 0), n - 1)
    step = 1
    if sums[guess] >= target:
        high = guess
        low = guess - 1
        while low >= start and sums[low] >= target:
            high = low
            step *= 2
            low = max(low - step, start - 1)
    else:
        low = guess
        high = guess + 1
        while high < n and sums[high] < target:
            low = high
            step *= 2
            high = min(high + step, n)
    while high - low > 1:
        middle = (low + high) // 2
        if sums[middle] >= target:
            high = middle
        else:
            low = middle
    return high


@kernel
def _mark_one(sums, density, j, target, model, marked):
    """Mark those of some points that one binning has an edge after, from its j-th target on.

    model : bins, numerator, denominator, and the sum from which on no edge may lie. Returns the number of its next
    target, and that target.
    """
    bins, numerator, denominator, total = model
    end = sums[sums.size - 1]
    i = 0
    while j < bins and target <= end:
        i = _search(sums, i, target, density)
        if sums[i] >= total:
            break
        marked[i] = True
        j += 1
        target = numerator * j / denominator
        if target <= sums[i]:
            j = first_target_beyond(sums[i], numerator, denominator)
            target = numerator * j / denominator
        i += 1
    return j, target


@kernel
def mark_edges(weight, carry, models):
    """Mark the points of a part after which some binning has an edge.

    The points are taken in blocks that fit in the processor's cache, each with all the binnings.

    Parameters
    ----------
    weight : float64 array, shape (m,). carry : expansion of the weight before the part.
    models : bins, numerators, denominators: arrays with an entry a binning; and total: where no edge may lie any more
    """
    bins, numerators, denominators, total = models
    m = weight.size
    marked = np.zeros(m, np.bool_)
    components = np.zeros(MAX_COMPONENTS)
    put(components, carry)
    n = carry.size
    before = rounded(components, n)
    number = np.empty(bins.size, np.int64)
    target = np.empty(bins.size)
    for model in range(bins.size):
        number[model] = first_target_beyond(before, numerators[model], denominators[model])
        target[model] = numerators[model] * number[model] / denominators[model]
    block = np.empty(min(m, _BLOCK))
    start = 0
    while start < m:
        stop = min(start + _BLOCK, m)
        n = fill_prefix_sums(weight, start, stop, components, n, block)
        sums = block[: stop - start]
        end = sums[sums.size - 1]
        density = sums.size / max(end - before, 5e-324)
        for model in range(bins.size):
            if target[model] > end:
                continue
            own = (bins[model], numerators[model], denominators[model], total)
            j, t = _mark_one(sums, density, number[model], target[model], own, marked[start:stop])
            number[model] = j
            target[model] = t if j < bins[model] else np.inf
        before = end
        start = stop
    return marked


@kernel
def mark_reached(sums, before, models):
    """`mark_edges` where what the targets are compared with is known at each point: ascending, and before the first."""
    bins, numerators, denominators, total = models
    marked = np.zeros(sums.size, np.bool_)
    end = sums[sums.size - 1]
    density = sums.size / max(end - before, 5e-324)
    for model in range(bins.size):
        j = first_target_beyond(before, numerators[model], denominators[model])
        t = numerators[model] * j / denominators[model]
        _mark_one(sums, density, j, t, (bins[model], numerators[model], denominators[model], total), marked)
    return marked


@kernel
def bucket_index(sums, total):
    """For each of as many equal buckets of [0, total] as there are sums, the first sum at or above its start."""
    buckets = max(sums.size, 1)
    starts = np.empty(buckets, np.int32)
    i = 0
    for b in range(buckets):
        while i < sums.size and sums[i] < total * b / buckets:
            i += 1
        # A rounded bucket number may be one too high: begin one early.
        starts[b] = max(i - 1, 0)
    return starts


@kernel
def edges_of(sums, starts, model, out):
    """Write the indices into sums (of the cuts) of one binning's edges to out; return how many there are.

    model : bins, numerator, denominator, total
    """
    bins, numerator, denominator, total = model
    n = sums.size
    count = 0
    j = 1
    while j < bins:
        target = numerator * j / denominator
        if target > total:
            break
        b = min(int(target / total * starts.size), starts.size - 1)
        i = starts[b]
        while i > 0 and sums[i - 1] >= target:
            i -= 1
        while i < n and sums[i] < target:
            i += 1
        if i >= n:
            break
        out[count] = i
        count += 1
        j += 1
        if numerator * j / denominator <= sums[i]:
            j = first_target_beyond(sums[i], numerator, denominator)
    return count


@kernel(inline=True)
def _stirling_rest(x):
    """Log Gamma(x) - ((x - 1/2) log x - x + log(2 pi) / 2), x >= 15."""
    y = 1.0 / (x * x)
    return (
        1 / 12 - y * (1 / 360 - y * (1 / 1260 - y * (1 / 1680 - y * (1 / 1188 - y * (691 / 360360)))))
    ) / x


@kernel
def log_beta(a, b):
    """Log of the beta function, a, b > 0, without the cancellation of three log-gammas where one is large."""
    p, q = min(a, b), max(a, b)
    if q < _LARGE:
        return math.lgamma(p) + (math.lgamma(q) - math.lgamma(p + q))
    share = p / (p + q)
    rest = _stirling_rest(q) - _stirling_rest(p + q)
    if p >= _LARGE:
        rest += _stirling_rest(p)
        return (
            -0.5 * math.log(q) + _HALF_LOG_2PI + rest + (p - 0.5) * math.log(share) + q * math.log1p(-share)
        )
    return math.lgamma(p) + rest + p - p * math.log(p + q) + (q - 0.5) * math.log1p(-share)


@kernel(inline=True)
def _log_gamma_one_plus(x):
    """Log Gamma(1 + x), 0 <= x <= 0.1, by its Taylor series -gamma x + sum over k of zeta(k) (-x)^k / k."""
    value = 0.0
    for k in range(_TAYLOR.size - 1, -1, -1):
        value = _TAYLOR[k] - x * value
    return -x * value


@kernel(inline=True)
def _log_gamma_pair(a, b):
    """Log Gamma(a) + log Gamma(b), a, b > 0."""
    if a + b <= _SMALL:
        return _log_gamma_one_plus(a) + _log_gamma_one_plus(b) - math.log(a * b)
    return math.lgamma(a) + math.lgamma(b)


@kernel(inline=True)
def _difference(high_1, low_1, high_0, low_0):
    return max((high_1 - high_0) + (low_1 - low_0), 0.0)


@kernel
def fill_bins(cuts, ends, chosen, count, out):
    """Interval, weight and positives of the bins between chosen cuts.

    cuts : float64 array, shape (cuts, 3 or 5): edge, cumulative weight and positives, and the two's low parts.
    ends : shape (5,): the same of the end of the data. out : bin edges, weight, positives: arrays that are filled
    """
    bin_edges, weight, positives = out
    has_low = cuts.shape[1] == 5
    w0 = k0 = w0_low = k0_low = 0.0
    bin_edges[0] = 0.0
    for b in range(count + 1):
        if b < count:
            row = cuts[chosen[b]]
            w_low, k_low = (row[3], row[4]) if has_low else (0.0, 0.0)
        else:
            row = ends
            w_low, k_low = ends[3], ends[4]
        weight[b] = _difference(row[1], w_low, w0, w0_low)
        positives[b] = min(_difference(row[2], k_low, k0, k0_low), weight[b])
        bin_edges[b + 1] = row[0]
        w0, k0, w0_low, k0_low = row[1], row[2], w_low, k_low


@kernel(inline=True)
def prior_mean(low, high):
    """The prior's mean of a bin: the midpoint of its interval, kept away from 0 and 1."""
    return min(max((low + high) / 2, 0.005), 0.995)


@kernel
def log_marginal_likelihoods(cuts, ends, index, models, strengths, out):
    """The log marginal likelihood of each binning, and how many bins it ends with.

    index : sums: of each cut what targets are compared with, ascending, the cumulative weight, as a rule; and their
    `bucket_index`. models : bins, numerators, denominators. out : likelihoods, and int64 numbers of bins: filled.
    strengths : float64 array, one a binning: alpha + beta of a bin, as (value, 0) or, to be shared out among the
    bins that there are, (0, value), in two columns.
    """
    sums, starts = index
    bins, numerators, denominators = models
    scores, sizes = out
    largest = 1
    for model in range(bins.size):
        largest = max(largest, min(bins[model], sums.size + 1))
    chosen = np.empty(largest, np.int64)
    bin_edges = np.empty(largest + 1)
    weight = np.empty(largest)
    positives = np.empty(largest)
    for model in range(bins.size):
        own = (bins[model], numerators[model], denominators[model], ends[1])
        count = edges_of(sums, starts, own, chosen)
        fill_bins(cuts, ends, chosen, count, (bin_edges, weight, positives))
        strength = strengths[model, 0] + strengths[model, 1] / (count + 1)
        constant = math.lgamma(strength)
        score = 0.0
        for b in range(count + 1):
            alpha = strength * prior_mean(bin_edges[b], bin_edges[b + 1])
            beta = strength - alpha
            score += log_beta(positives[b] + alpha, weight[b] - positives[b] + beta)
            score += constant - _log_gamma_pair(alpha, beta)
        scores[model] = score
        sizes[model] = count + 1


@kernel
def average_steps(at, change, start):
    """Running totals of start plus the changes at each distinct place, in double-double arithmetic.

    at : int64 array, ascending. Returns the distinct places and the totals before, between and after them.
    """
    places = np.empty(at.size, np.int64)
    totals = np.empty(at.size + 1)
    high, low = start, 0.0
    totals[0] = start
    n = 0
    i = 0
    while i < at.size:
        place = at[i]
        while i < at.size and at[i] == place:
            high, error = two_sum(high, change[i])
            low += error
            i += 1
        high, low = two_sum(high, low)
        places[n] = place
        n += 1
        totals[n] = high
    return places[:n].copy(), totals[: n + 1].copy()
