"""Measures of a column of few predictions: `many_measures` in fixed-point numbers, without memory of its own.

The same doubles. Where two doubles leave a rounding open, or a prediction is tiny, the caller measures the column by
expansions.
"""

import numpy as np

from calibrators._kernels.compiled import kernel
from calibrators._kernels.double_double import add_pairs, two_product, two_sum
from calibrators._kernels.fixed_point import (
    FEW,
    FINEST,
    SMALLEST,
    UNIT_BITS,
    carried,
    over,
    pair_of,
    parts_of,
    surely,
)
from calibrators._kernels.logarithm import log_in_place

MOST_BINS = 32
"""Sums of so many doubles are sure."""

_MOST_ROWS = np.int64(1 << 20)
_MOST_PRODUCT = np.int64(1 << 35)  # times 2**18 it is a double
_ERROR = 2.0**-96
"""Of a sum of some doubles, relative to it; more than it can be."""

_DUST = 2.0**-48
"""A sum from here on is sure though what lies below its parts has been rounded."""

(
    AUC,
    ACCURACY,
    BRIER,
    RMSE,
    LOG_LOSS,
    ECE_FREQUENCY,
    MCE_FREQUENCY,
    ECE_WIDTH,
    MCE_WIDTH,
    MEAN,
    WEIGHT,
    POSITIVES,
    GAP,
    VARIANCE,
    LARGEST,
) = range(15)
"""Of a row of measures; the root of the Brier score is left to the caller."""

GROUP_WEIGHT, GROUP_MEAN, GROUP_FREQUENCY = range(3)
"""Of a group of equally many rows."""


@kernel
def workspace():
    """What measuring a column writes to: of the places between predictions what lies below them, and of losses."""
    counts = np.zeros((2, FEW + 1), np.int64)  # rows and positives
    parts = np.zeros((4, FEW + 1), np.int64)  # of the sum of predictions
    values = np.empty(2 * FEW)
    return counts, parts, (values, values.view(np.int64), np.empty((4, 2 * FEW)))


@kernel
def assess_few(q, v, h, edges, bins, work, found, groups):
    """As `many_measures.assess_each`, of a column; whether all of it is sure. work : see `workspace`."""
    if q.size > FEW or bins > MOST_BINS:
        return False
    counts, parts, losses = work
    if not _sum_up(q, v, h, counts, parts):
        return False
    n = q.size
    weight, hits = counts[0, n], counts[1, n]
    half = _first_from(q, edges[edges.size - 1])
    below, hits_below = counts[0, half], counts[1, half]
    found[WEIGHT], found[POSITIVES] = float(weight), float(hits)
    found[ACCURACY] = float(below - hits_below + hits - hits_below) / float(weight)
    found[AUC] = _auc(v, h, counts, n)
    high, low, exact = pair_of(parts[0, n], parts[1, n], parts[2, n], parts[3, n])
    found[MEAN], sure = over(high, low, exact, float(weight))
    return (
        sure
        and _losses(q, v, h, losses, found)
        and _by_width(q, edges, counts, parts, found)
        and _by_frequency(q, bins, counts, parts, found, groups)
    )


@kernel
def _first_from(q, limit):
    """The first place with a prediction of at least `limit`."""
    i = 0
    while i < q.size and q[i] < limit:
        i += 1
    return i


@kernel
def _sum_up(q, v, h, counts, parts):
    """Fill in the sums below each place; False where a prediction is tiny, or rows are many."""
    weight = hits = np.int64(0)
    s = t = u = w = np.int64(0)
    for i in range(q.size):
        if q[i] != 0.0 and q[i] < SMALLEST:
            return False
        f = np.int64(v[i])
        weight += f
        hits += np.int64(h[i])
        if weight > _MOST_ROWS:
            return False
        a, b, c, d, _ = parts_of(q[i])
        s += f * a
        t += f * b
        u += f * c
        w += f * d
        counts[0, i + 1], counts[1, i + 1] = weight, hits
        parts[0, i + 1], parts[1, i + 1], parts[2, i + 1], parts[3, i + 1] = s, t, u, w
    return True


@kernel
def _auc(v, h, counts, n):
    """See `calibrators.measures.predictions.area_under_roc`: a quotient of whole numbers; NaN of one class."""
    weight, hits = counts[0, n], counts[1, n]
    if hits == 0 or hits == weight:
        return np.nan
    rank = -hits * hits
    for i in range(n):
        rank += np.int64(h[i]) * (2 * counts[0, i] + np.int64(v[i]))
    return float(rank) / float(2 * hits * (weight - hits))


@kernel
def _losses(q, v, h, work, found):
    """The Brier score and the log loss; whether they are sure."""
    values, bits, rows = work
    exponents, rest, squares, factors = rows[0], rows[1], rows[2], rows[3]
    wrong, m = np.int64(0), 0
    for i in range(q.size):
        x, hits, misses = q[i], h[i], v[i] - h[i]
        if x == 0.0 or x == 1.0:
            wrong += np.int64(hits if x == 0.0 else misses)
            continue
        y = 1.0 - x
        if hits > 0.0:
            values[m], rest[m], squares[m], factors[m] = x, 0.0, y * y, hits
            m += 1
        if misses > 0.0:
            # What rounding 1 - x lost; see `count_sums`.
            values[m], rest[m], squares[m], factors[m] = y, ((1.0 - y) - x) * (2.0 - y), x * x, misses
            m += 1
    log_in_place(values, bits, exponents, m)
    for i in range(m):
        values[i] = -(values[i] + rest[i])
    weight = found[WEIGHT]
    found[BRIER], sure = _mean_of(squares, factors, m, wrong, weight)
    if wrong > 0:
        found[LOG_LOSS] = np.inf
        return sure
    found[LOG_LOSS], also = _mean_of(values, factors, m, np.int64(0), weight)
    return sure and also


@kernel
def _mean_of(values, factors, m, ones, weight):
    """(ones + the sum of values times factors, which are whole) / weight, and whether it is sure."""
    s, t, u, w, dust = ones << UNIT_BITS, np.int64(0), np.int64(0), np.int64(0), 0.0
    for i in range(m):
        f = np.int64(factors[i])
        a, b, c, d, left = parts_of(values[i])
        s += f * a
        t += f * b
        u += f * c
        w += f * d
        dust += factors[i] * left
    high, low, exact = pair_of(s, t, u, w)
    if dust != 0.0:
        if not high > _DUST:
            return 0.0, False
        exact = False
        high, low = two_sum(high, low + dust * FINEST)
    return over(high, low, exact, weight)


@kernel
def _by_width(q, edges, counts, parts, found):
    """Calibration errors of equal-width bins; whether they are sure."""
    n, low, largest, sure = q.size, 0, 0.0, True
    s = t = u = w = np.int64(0)
    for j in range(edges.size):
        stop = low
        if j == edges.size - 1:
            stop = n
        while stop < n and q[stop] < edges[j]:
            stop += 1
        if stop == low:
            continue
        hits = counts[1, stop] - counts[1, low]
        a = parts[0, stop] - parts[0, low] - (hits << UNIT_BITS)
        b, c = parts[1, stop] - parts[1, low], parts[2, stop] - parts[2, low]
        d = parts[3, stop] - parts[3, low]
        high, rest, exact = pair_of(a, b, c, d)
        gap, known = over(high, rest, exact, float(counts[0, stop] - counts[0, low]))
        sure = sure and known
        largest = max(largest, abs(gap))
        sign = np.int64(-1) if high < 0.0 else np.int64(1)
        s += sign * a
        t += sign * b
        u += sign * c
        w += sign * d
        low = stop
    high, rest, exact = pair_of(s, t, u, w)
    found[ECE_WIDTH], known = over(high, rest, exact, found[WEIGHT])
    found[MCE_WIDTH] = largest
    return sure and known


@kernel
def _by_frequency(q, bins, counts, parts, found, groups):
    """Calibration errors of groups of equally many rows, and what is known of each; whether they are sure.

    A group's border may lie within a tie: its positives are then a whole number and a share, and its gap is taken over
    the product of both borders' rows.
    """
    n, total = q.size, counts[0, q.size]
    size, larger = total // bins, total % bins
    i = 0
    # Of the lower border: the rows, the predictions' sum and the whole positives below; what the tie's share is over.
    rows = hits = left = np.int64(0)
    over_rows = np.int64(1)
    a0 = b0 = c0 = d0 = np.int64(0)
    # Of all groups: the sum of gaps, of which borders' shares are apart, and of two doubles each.
    s = t = u = w = np.int64(0)
    share_high = share_low = shares = 0.0
    largest = 0.0
    gaps, variances = (0.0, 0.0, True), (0.0, 0.0, True)
    before = 0.0
    sure = True
    for j in range(bins):
        target = (j + 1) * size + min(j + 1, larger)
        if j == bins - 1:
            i, inside, of, own = n, np.int64(0), np.int64(1), np.int64(0)
        else:
            while counts[0, i + 1] < target:
                i += 1
            inside, of = target - counts[0, i], counts[0, i + 1] - counts[0, i]
            own = (counts[1, i + 1] - counts[1, i]) * inside
        a, b, c, d = parts[0, i], parts[1, i], parts[2, i], parts[3, i]
        if inside > 0:
            x, y, z, r, _ = parts_of(q[i])
            a += inside * x
            b += inside * y
            c += inside * z
            d += inside * r
        upper_hits, upper_left = counts[1, i] + own // of, own % of
        weight = target - rows
        sign = 0.0
        groups[j, GROUP_WEIGHT] = float(weight)
        groups[j, GROUP_MEAN] = groups[j, GROUP_FREQUENCY] = np.nan
        if weight > 0:
            whole = upper_hits - hits
            mean, frequency, gap, known = _group(
                (a - a0, b - b0, c - c0, d - d0), weight, whole, (left, over_rows), (upper_left, of)
            )
            sure = sure and known
            largest = max(largest, abs(gap))
            sign = -1.0 if gap < 0.0 else 1.0
            way = np.int64(sign)
            s += way * ((whole << UNIT_BITS) - (a - a0))
            t -= way * (b - b0)
            u -= way * (c - c0)
            w -= way * (d - d0)
            groups[j, GROUP_MEAN], groups[j, GROUP_FREQUENCY] = mean, frequency
            gaps = _added(gaps, float(weight) * abs(frequency - mean))
            variances = _added(variances, float(weight) * mean * (1 - mean))
        if left > 0 and before != sign:
            high, low = _share((before - sign) * float(left), float(over_rows))
            share_high, share_low = add_pairs(share_high, share_low, high, low)
            shares += abs(high)
        before = sign
        rows, hits, left, over_rows = target, upper_hits, upper_left, of
        a0, b0, c0, d0 = a, b, c, d
    high, low, exact = pair_of(s, t, u, w)
    if shares > 0.0:
        shares += abs(high)
        high, low = add_pairs(high, low, share_high, share_low)
        exact = False
        if shares > 64.0 * abs(high):
            return False
    found[ECE_FREQUENCY], known = over(high, low, exact, found[WEIGHT])
    found[MCE_FREQUENCY], found[LARGEST] = largest, 1.0
    found[GAP], found[VARIANCE] = gaps[0], variances[0]
    return sure and known and _is_sure(gaps) and _is_sure(variances)


@kernel(inline=True)
def _group(predicted, weight, hits, lower, upper):
    """Mean prediction, frequency and the mean gap of a group; and whether they are sure.

    predicted : the parts of its predictions' sum. hits : its positives but for what each border's tie shares, that
    number over the tie's rows: lower, upper.
    """
    a, b, c, d = predicted
    high, low, exact = pair_of(a, b, c, d)
    mean, sure = over(high, low, exact, float(weight))
    share = upper[0] * lower[1] - lower[0] * upper[1]
    if share == 0:
        above, below = hits, weight
    else:
        times = lower[1] * upper[1]
        above, below = times * hits + share, times * weight
        if below > _MOST_PRODUCT:
            return mean, 0.0, 0.0, False
        a, b, c, d = carried(a, b, c, d)
        a, b, c, d = times * a, times * b, times * c, times * d
    high, low, exact = pair_of((above << UNIT_BITS) - a, -b, -c, -d)
    gap, known = over(high, low, exact, float(below))
    return mean, float(above) / float(below), gap, sure and known


@kernel(inline=True)
def _added(total, x):
    """A sum of two doubles, and whether it is exact, and x, a double >= 0."""
    high, low, exact = total
    high, rest = two_sum(high, x)
    low, lost = two_sum(low, rest)
    high, low = two_sum(high, low)
    return high, low, exact & (lost == 0.0)


@kernel(inline=True)
def _is_sure(total):
    """Whether the first of two doubles is what their sum is rounded to."""
    high, low, exact = total
    return exact | surely(high, low, high * _ERROR)


@kernel(inline=True)
def _share(above, below):
    """A quotient of whole numbers as two doubles."""
    first = above / below
    product, rest = two_product(first, below)
    return two_sum(first, ((above - product) - rest) / below)
