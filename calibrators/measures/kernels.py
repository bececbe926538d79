"""Kernels of the measuring engine: sums over sorted predictions, for many columns at once.

A column is a run of points, ascending by prediction. Sums are double-doubles, so their first 16 digits depend
neither on the order of the additions nor on the division of a column into parts. See `calibrators.measures.engine`.
"""

import numpy as np

from calibrators.core.compiled import kernel
from calibrators.core.kernels.sums import add_pairs, two_product, two_sum

(
    WEIGHT,
    POSITIVES,
    PREDICTED,
    SQUARES,
    BRIER,
    LOG_LOSS,
    INFINITE,
    VARIANCE,
    RESIDUAL,
    SIGNED,
    SIGNED_VARIANCE,
    INNER,
    SLOPE,
    CROSS,
    SLOPE_INFORMATION,
    LEFT_OUT,
    INFORMATION,
    HIT_PLACEMENTS,
    HIT_SQUARES,
    MISS_PLACEMENTS,
    MISS_SQUARES,
) = range(21)
"""Sums over the points of a column. A point has prediction p, weight w, k positives and n = w - k negatives.

WEIGHT, POSITIVES, PREDICTED, SQUARES : w, k, w p, and the sum of w**2 over the scores merged into the point; bins have
    these four sums, too
BRIER, LOG_LOSS, INFINITE : squared errors, finite log losses, and weight of the infinite log losses
VARIANCE : w p (1 - p) (1 - p + p / rate), see `accumulate`
RESIDUAL, SIGNED, SIGNED_VARIANCE : k - w p, (1 - 2 p) (k - w p), and the variance of the latter
INNER, SLOPE : k - w p and x (k - w p), where x is the log-odds, over predictions with 0 < p < 1: the derivatives of the
    log likelihood by intercept and slope of the log-odds
CROSS, SLOPE_INFORMATION, INFORMATION : x v, x**2 v and v, where v = w p (1 - p): their information
LEFT_OUT : weight of the predictions 0 and 1
HIT_PLACEMENTS, HIT_SQUARES : placement and its square, summed over positives; a positive's placement is twice the
    number of negatives below it plus the number of tied negatives
MISS_PLACEMENTS, MISS_SQUARES : the same with positives and negatives exchanged
"""

SUMS = MISS_SQUARES + 1
BINNED = 4
"""Number of leading sums that are also kept for bins."""


@kernel
def accumulate(points, losses, columns, state, borders, rate):
    """Add the points of columns to the columns' sums.

    Parameters
    ----------
    points : float64 arrays, shape (m,):
        prediction : strictly ascending in a column
        weight, positives : of each point
        probability : the measured probability; it differs from the prediction only if rows were sampled
        squares : `SQUARES` of each point, or of shape (0,) for the squared weights
    losses : float64 arrays, shape (m,): -log(p) and -log(1 - p) of the probability p
    columns : arrays
        starts : int64, shape (columns + 1,): first point of each column, and the end
        scale : float64, shape (columns,): factors of weights in the ranking's sums, which have their third power
        exact : bool, shape (columns,): whether the products in the ranking's sums are exact in double precision
    state : float64 arrays of earlier calls, updated:
        sums : shape (columns, 2, SUMS): high and low parts
        passed : int64, shape (columns, 2): number of edges and limits below the last point
        upto : shape (columns, edges, 2, BINNED): sums below each edge
        below : shape (columns, limits, 2, BINNED): sums before the point whose weight reaches the limit
        ties : shape (columns, limits, 4): that point
    borders : float64 arrays
        edges : ascending
        limits : shape (columns, limits), ascending: cumulative weights
    rate : float > 0: if rows were sampled, the sampling rate of negatives, whose weights stand for 1 / rate rows each

    A column with predictions outside [0, 1] gets only the sums that need no probabilities.
    """
    sums, passed, upto, below, ties = state
    p, weight, positives, chance, squares = points
    starts, scale, exact = columns
    edges, limits = borders
    hit_losses, miss_losses = losses
    high, low, x = np.empty(SUMS), np.empty(SUMS), np.zeros(SUMS)
    for c in range(starts.size - 1):
        for q in range(SUMS):
            high[q], low[q] = sums[c, 0, q], sums[c, 1, q]
        e, t = passed[c]
        edge = edges[e] if e < edges.size else np.inf
        limit = limits[c, t] if t < limits.shape[1] else np.inf
        factor = scale[c]
        proper = starts[c] < starts[c + 1] and p[starts[c]] >= 0.0 and p[starts[c + 1] - 1] <= 1.0
        for i in range(starts[c], starts[c + 1]):
            a, w, k = p[i], weight[i], positives[i]
            n = w - k
            square = squares[i] if squares.size > 0 else w * w
            while a >= edge:
                for q in range(BINNED):
                    upto[c, e, 0, q], upto[c, e, 1, q] = high[q], low[q]
                e += 1
                edge = edges[e] if e < edges.size else np.inf
            while high[WEIGHT] + w >= limit:
                for q in range(BINNED):
                    below[c, t, 0, q], below[c, t, 1, q] = high[q], low[q]
                ties[c, t, 0], ties[c, t, 1], ties[c, t, 2], ties[c, t, 3] = a, w, k, square
                t += 1
                limit = limits[c, t] if t < limits.shape[1] else np.inf
            x[WEIGHT], x[POSITIVES], x[SQUARES] = w, k, square
            if proper:
                a = chance[i]
                b = 1.0 - a
                hit, miss = hit_losses[i], miss_losses[i]
                inner = 0.0 < a < 1.0
                v = w * a * b
                residual = k * b - n * a
                x[PREDICTED] = w * a
                x[BRIER] = k * (b * b) + n * (a * a)
                x[LOG_LOSS] = (k * hit if k > 0.0 and a > 0.0 else 0.0) + (
                    n * miss if n > 0.0 and b > 0.0 else 0.0
                )
                x[INFINITE] = (0.0 if a > 0.0 else k) + (0.0 if b > 0.0 else n)
                x[VARIANCE] = v * (b + a / rate)
                x[RESIDUAL] = residual
                x[SIGNED] = residual * (b - a)
                x[SIGNED_VARIANCE] = v * (b - a) * (b - a)
                odds = miss - hit if inner else 0.0
                x[INNER] = residual if inner else 0.0
                x[SLOPE] = odds * residual
                # In this order because log-odds are below 800, while a product of two small numbers may underflow.
                x[CROSS] = v * odds
                x[SLOPE_INFORMATION] = v * odds * odds
                x[LEFT_OUT] = 0.0 if inner else w
                x[INFORMATION] = v
            if exact[c]:
                placement = 2.0 * (high[WEIGHT] - high[POSITIVES]) + n
                x[HIT_PLACEMENTS] = k * placement
                x[HIT_SQUARES] = k * placement * placement
                placement = 2.0 * high[POSITIVES] + k
                x[MISS_PLACEMENTS] = n * placement
                x[MISS_SQUARES] = n * placement * placement
            else:
                hits = (factor * high[POSITIVES], factor * low[POSITIVES])
                misses = add_pairs(factor * high[WEIGHT], factor * low[WEIGHT], -hits[0], -hits[1])
                hit, tied = factor * k, two_sum(factor * w, -factor * k)
                x[HIT_PLACEMENTS], low[HIT_PLACEMENTS], x[HIT_SQUARES], low[HIT_SQUARES] = _terms(
                    misses, tied, hit, 0.0, low[HIT_PLACEMENTS], low[HIT_SQUARES]
                )
                x[MISS_PLACEMENTS], low[MISS_PLACEMENTS], x[MISS_SQUARES], low[MISS_SQUARES] = _terms(
                    hits, (hit, 0.0), tied[0], tied[1], low[MISS_PLACEMENTS], low[MISS_SQUARES]
                )
            for q in range(SUMS):
                s = high[q] + x[q]
                y = s - high[q]
                low[q] += (high[q] - (s - y)) + (x[q] - y)
                high[q] = s
        passed[c, 0], passed[c, 1] = e, t
        for q in range(SUMS):
            high[q], low[q] = two_sum(high[q], low[q])
            sums[c, 0, q], sums[c, 1, q] = high[q], low[q]
        # Edges above all points so far have the sums of all points, until later calls add points below them.
        for j in range(e, edges.size):
            for q in range(BINNED):
                upto[c, j, 0, q], upto[c, j, 1, q] = high[q], low[q]


@kernel(inline=True)
def _terms(below, tied, weight, weight_low, first_low, second_low):
    """Return weight * placement and weight * placement**2, and the low parts with the rounding errors of both added."""
    placement, placement_error = add_pairs(2.0 * below[0], 2.0 * below[1], tied[0], tied[1])
    total, error = two_product(weight, placement)
    first_low += error + weight * placement_error + weight_low * placement
    square, square_error = two_product(placement, placement)
    square_error += 2.0 * placement * placement_error
    square_total, error = two_product(weight, square)
    second_low += error + weight * square_error + weight_low * square
    return total, first_low, square_total, second_low


@kernel
def add_terms(terms, starts, sums):
    """Add the terms of each column's points to its sums.

    terms : float64 array, shape (terms, m)
    starts : int64 array, shape (columns + 1,): first point of each column, and the end
    sums : float64 array, shape (2, columns, terms): high and low parts, updated
    """
    for c in range(starts.size - 1):
        for q in range(terms.shape[0]):
            high, low = sums[0, c, q], sums[1, c, q]
            for i in range(starts[c], starts[c + 1]):
                high, error = two_sum(high, terms[q, i])
                low += error
            sums[0, c, q], sums[1, c, q] = two_sum(high, low)
