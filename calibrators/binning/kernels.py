"""Edges and marginal likelihoods of many equal-frequency binnings.

A binning of B bins has its edge j after the first point whose cumulative weight reaches numerator * j /
denominator, j = 1 .. B - 1. Several j at one point are one edge; they are skipped without a loop over them.
"""

import math

import numpy as np

from calibrators.core.compiled import kernel
from calibrators.core.kernels.log_beta import log_beta

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


@kernel
def mark_edges(index, models, marked):
    """Mark the points of a part after which any of the binnings has an edge.

    index : see `edges_of`
    models : bins, numerators, denominators: arrays with one entry per binning
    marked : bool array, shape (m,), updated
    """
    bins, numerators, denominators = models
    most = 0
    for model in range(bins.size):
        most = max(most, bins[model])
    chosen = np.empty(min(most, marked.size), np.int64)
    for model in range(bins.size):
        count = edges_of(index, (bins[model], numerators[model], denominators[model]), chosen)
        for c in range(count):
            marked[chosen[c]] = True


@kernel
def bucket_index(sums, low, high):
    """Divide [low, high] into as many equal buckets as there are sums; return the first sum at or above each start."""
    buckets = max(sums.size, 1)
    starts = np.empty(buckets, np.int32)
    i = 0
    for b in range(buckets):
        while i < sums.size and sums[i] < low + (high - low) * b / buckets:
            i += 1
        # Start one early, because a rounded bucket number may be one too high.
        starts[b] = max(i - 1, 0)
    return starts


@kernel
def edges_of(index, model, out):
    """Write the indices of one binning's edges in the cuts' sums to out; return the number of edges.

    index : tuple of
        sums : ascending
        starts, low, high : their `bucket_index` and its range; no edge is at or below `low`, or above `high`
    model : bins, numerator, denominator
    """
    sums, starts, low, high = index
    bins, numerator, denominator = model
    count, j, reached = 0, 1, low
    while True:
        target = numerator * j / denominator
        if target <= reached:
            # The smallest j whose target is beyond the sum that is reached.
            j = max(int(reached / numerator * denominator), 1)
            while numerator * j / denominator <= reached:
                j += 1
            while j > 1 and numerator * (j - 1) / denominator > reached:
                j -= 1
            target = numerator * j / denominator
        if j >= bins or target > high:
            break
        b = min(int((target - low) / (high - low) * starts.size), starts.size - 1)
        i = starts[b]
        while i > 0 and sums[i - 1] >= target:
            i -= 1
        while i < sums.size and sums[i] < target:
            i += 1
        if i >= sums.size:
            break
        out[count] = i
        count += 1
        j += 1
        reached = sums[i]
    return count


@kernel(inline=True)
def _log_gamma_pair(a, b):
    """Return log Gamma(a) + log Gamma(b), a, b > 0.

    Of small ones, by log Gamma(1 + x) = -gamma x + sum over k of zeta(k) (-x)^k / k, its Taylor series.
    """
    if a + b > _SMALL:
        return math.lgamma(a) + math.lgamma(b)
    of_a = of_b = 0.0
    for k in range(_TAYLOR.size - 1, -1, -1):
        of_a, of_b = _TAYLOR[k] - a * of_a, _TAYLOR[k] - b * of_b
    return -a * of_a - b * of_b - math.log(a * b)


@kernel
def fill_bins(cuts, ends, chosen, count, out):
    """Compute edges, weight and positives of the bins between chosen cuts.

    cuts : float64 arrays, shape (cuts, 3): edge, cumulative weight and positives; and (cuts, 2): low parts of these
        sums, or (0, 2) if all are 0
    ends : float64 array, shape (5,): edge, weight and its low part, positives and their low part at the end of the data
    chosen, count : chosen[:count] are the indices of the chosen cuts
    out : bin edges, weight, positives: arrays, filled
    """
    sums, low = cuts
    bin_edges, weight, positives = out
    w0 = k0 = w0_low = k0_low = 0.0
    bin_edges[0] = 0.0
    for b in range(count + 1):
        edge, w, w_low, k, k_low = ends[0], ends[1], ends[2], ends[3], ends[4]
        if b < count:
            i = chosen[b]
            edge, w, k = sums[i, 0], sums[i, 1], sums[i, 2]
            w_low = k_low = 0.0
            if low.size > 0:
                w_low, k_low = low[i, 0], low[i, 1]
        weight[b] = max((w - w0) + (w_low - w0_low), 0.0)
        positives[b] = min(max((k - k0) + (k_low - k0_low), 0.0), weight[b])
        bin_edges[b + 1], w0, w0_low, k0, k0_low = edge, w, w_low, k, k_low


@kernel
def log_marginal_likelihoods(cuts, ends, index, models, strengths, out):
    """Compute the log marginal likelihood P(D | M) of each binning, equation 1, and its actual number of bins.

    The gamma functions of Pakdaman Naeini, Cooper & Hauskrecht (2015) as a quotient of two beta functions for each bin.

    cuts, ends : see `fill_bins`
    index : see `edges_of`; the sums of the cuts are usually their cumulative weights
    models : bins, numerators, denominators: arrays with one entry per binning
    strengths : float64 array, shape (binnings, 2): alpha + beta of each bin, as (value, 0); or (0, value), where the
        value is divided by the actual number of bins
    out : likelihoods and int64 numbers of bins, filled
    """
    bins, numerators, denominators = models
    scores, sizes = out
    largest = 1
    for model in range(bins.size):
        largest = max(largest, min(bins[model], len(cuts[0]) + 1))
    chosen = np.empty(largest, np.int64)
    bin_edges = np.empty(largest + 1)
    weight = np.empty(largest)
    positives = np.empty(largest)
    for model in range(bins.size):
        count = edges_of(index, (bins[model], numerators[model], denominators[model]), chosen)
        fill_bins(cuts, ends, chosen, count, (bin_edges, weight, positives))
        strength = strengths[model, 0] + strengths[model, 1] / (count + 1)
        constant = math.lgamma(strength)
        score = 0.0
        for b in range(count + 1):
            # The prior mean is the middle of the bin, clipped to [0.005, 0.995].
            alpha = strength * min(max((bin_edges[b] + bin_edges[b + 1]) / 2, 0.005), 0.995)
            beta = strength - alpha
            score += log_beta(positives[b] + alpha, weight[b] - positives[b] + beta)
            score += constant - _log_gamma_pair(alpha, beta)
        scores[model] = score
        sizes[model] = count + 1
