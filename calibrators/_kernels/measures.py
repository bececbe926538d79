"""Compiled loops of the measuring engine: sums over sorted predictions, of many columns at once.

A column is a run of points, ascending by prediction. Sums are double-doubles, so that their first 16 digits depend
neither on the order of the additions nor on where a column was cut. See `calibrators.measures.engine`.
"""

import numpy as np

from calibrators._kernels.compiled import kernel
from calibrators._kernels.sums import add_pairs, two_product, two_sum

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
    ALONG,
    ACROSS,
    SQUARE,
    LEFT_OUT,
    INFORMATION,
    HIT_PLACES,
    HIT_SQUARES,
    MISS_PLACES,
    MISS_SQUARES,
) = range(21)
"""The sums of a column over its points; a point has prediction p, weight w, k positives and w - k negatives.

w, k, w p, and w**2 (of each score that a point was joined from): those that bins have as well, `BINNED` in number;
squared errors; log losses, and the weight of the infinite ones; w p (1 - p) (1 - p + p / rate), see `accumulate`;
k - w p, the same times (1 - 2 p), and the variance of that; over predictions between 0 and 1, with x their log odds and
v = w p (1 - p): k - w p, x (k - w p), x v, x**2 v; the weight of the other predictions; v; and of the ranking: with a
positive's place twice the negatives below it and once those tied with it, the sums of place and place**2 over the
positives, and the same of negatives.
"""

SUMS = 21
BINNED = 4


@kernel
def accumulate(points, losses, columns, state, borders, rate):
    """Add the points of columns to the columns' sums.

    Parameters
    ----------
    points : float64 arrays, shape (m,): prediction, strictly ascending in a column; weight; positives; the probability
        that is measured, which is the prediction but where rows were sampled; and `SQUARES`, or of shape (0,): then
        they are the squares of the weights
    losses : float64 arrays, shape (m,): -log(p) and -log(1 - p) of the probability p
    columns : arrays starts, scale and exact
        int64, shape (columns + 1,): where each column begins, and the end. float64, shape (columns,): factors of
        weights in the ranking's sums, which have their third power. bool, shape (columns,): whether the products of
        weights in the ranking's sums are whole numbers that doubles hold
    state : what was added before, changed. sums : shape (columns, 2, SUMS), high and low parts. passed : int64
        array, shape (columns, 2): edges and limits behind. upto : shape (columns, edges, 2, BINNED): sums below each
        edge. below : shape (columns, limits, 2, BINNED): sums before the point whose weight reaches the limit. ties :
        shape (columns, limits, 4): that point.
    borders : float64 arrays edges, ascending, and limits, shape (columns, limits), ascending
    rate : float > 0: where rows were sampled, of negatives, whose weights stand for 1 / rate rows each

    Of columns with predictions outside [0, 1], which are no probabilities, only the sums that need none are right.
    """
    sums, passed, upto, below, ties = state
    p, weight, positives, chance, squares = points
    starts, scale, exact = columns
    edges, limits = borders
    of_hits, of_misses = losses
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
            while high[0] + w >= limit:
                for q in range(BINNED):
                    below[c, t, 0, q], below[c, t, 1, q] = high[q], low[q]
                ties[c, t, 0], ties[c, t, 1], ties[c, t, 2], ties[c, t, 3] = a, w, k, square
                t += 1
                limit = limits[c, t] if t < limits.shape[1] else np.inf
            x[0], x[1], x[3] = w, k, square
            if proper:
                a = chance[i]
                b = 1.0 - a
                hit, miss = of_hits[i], of_misses[i]
                inner = 0.0 < a < 1.0
                v = w * a * b
                left = k * b - n * a
                x[2] = w * a
                x[4] = k * (b * b) + n * (a * a)
                x[5] = (k * hit if k > 0.0 and a > 0.0 else 0.0) + (n * miss if n > 0.0 and b > 0.0 else 0.0)
                x[6] = (0.0 if a > 0.0 else k) + (0.0 if b > 0.0 else n)
                x[7] = v * (b + a / rate)
                x[8] = left
                x[9] = left * (b - a)
                x[10] = v * (b - a) * (b - a)
                odds = miss - hit if inner else 0.0
                x[11] = left if inner else 0.0
                x[12] = odds * left
                # In this order: log odds are below 800, products of two small numbers may be no numbers.
                x[13] = v * odds
                x[14] = v * odds * odds
                x[15] = 0.0 if inner else w
                x[16] = v
            if exact[c]:
                place = 2.0 * (high[0] - high[1]) + n
                x[17] = k * place
                x[18] = k * place * place
                place = 2.0 * high[1] + k
                x[19] = n * place
                x[20] = n * place * place
            else:
                hits = (factor * high[1], factor * low[1])
                misses = add_pairs(factor * high[0], factor * low[0], -hits[0], -hits[1])
                hit, rest = factor * k, two_sum(factor * w, -factor * k)
                x[17], low[17], x[18], low[18] = _placed(misses, rest, hit, 0.0, low[17], low[18])
                x[19], low[19], x[20], low[20] = _placed(hits, (hit, 0.0), rest[0], rest[1], low[19], low[20])
            for q in range(SUMS):
                s = high[q] + x[q]
                y = s - high[q]
                low[q] += (high[q] - (s - y)) + (x[q] - y)
                high[q] = s
        passed[c, 0], passed[c, 1] = e, t
        for q in range(SUMS):
            high[q], low[q] = two_sum(high[q], low[q])
            sums[c, 0, q], sums[c, 1, q] = high[q], low[q]
        # For now nothing lies above; points that follow may.
        for j in range(e, edges.size):
            for q in range(BINNED):
                upto[c, j, 0, q], upto[c, j, 1, q] = high[q], low[q]


@kernel(inline=True)
def _placed(below, tied, weight, weight_low, place_low, square_low):
    """A weight times its place, and times the square of that; and what rounding took of both, added to low parts."""
    place, rest = add_pairs(2.0 * below[0], 2.0 * below[1], tied[0], tied[1])
    first, error = two_product(weight, place)
    place_low += error + weight * rest + weight_low * place
    square, other = two_product(place, place)
    other += 2.0 * place * rest
    second, error = two_product(weight, square)
    square_low += error + weight * other + weight_low * square
    return first, place_low, second, square_low


@kernel
def add_terms(terms, starts, sums):
    """Add the terms of each column's points to its sums.

    terms : float64 array, shape (terms, m). sums : float64 array, shape (2, columns, terms), changed
    """
    for c in range(starts.size - 1):
        for q in range(terms.shape[0]):
            high, low = sums[0, c, q], sums[1, c, q]
            for i in range(starts[c], starts[c + 1]):
                high, rest = two_sum(high, terms[q, i])
                low += rest
            sums[0, c, q], sums[1, c, q] = two_sum(high, low)
