"""Error bars of a column of few probabilities: `many_error_bars` in whole numbers, without memory of its own.

The same doubles. Where two doubles leave a rounding open, the caller takes the column by expansions.
"""

import math

import numpy as np

from calibrators._kernels.compiled import kernel
from calibrators._kernels.double_double import add_pairs, two_product, two_sum
from calibrators._kernels.error_sums import calibration_rows
from calibrators._kernels.fixed_point import FEW, NEXT, SMALLEST, UNIT, ratio_of_pairs, surely, times_pairs

AUC_ERROR, SPIEGELHALTER, SCORE_TEST = range(3)

PARTED = 1e-12  # as in `calibrators.measures.error_bars`
_MOST_ROWS = np.int64(1 << 12)  # the squares of places, times the square of the rows, are an int64
_PRODUCT_ERROR = 2.0**-100
"""Of a sum of products of two doubles' sums, relative to the sum of their magnitudes; more than it can be."""
_ZERO, _LOW, _HIGH, _ONE = range(4)
_SUMS = 11


@kernel
def workspace():
    """What taking a column's error bars writes to."""
    rows = np.ones((_SUMS, FEW))
    hit, miss = np.empty(FEW), np.empty(FEW)
    losses = (hit, miss, hit.view(np.int64), miss.view(np.int64), np.empty(FEW))
    return rows, losses, np.zeros((4, _SUMS, 2), np.int64)


@kernel
def error_bars_few(q, v, h, work, found):
    """As `many_error_bars.error_bars_each`, of a column; whether all of it is sure. work : see `workspace`."""
    if q.size > FEW:
        return False
    for i in range(q.size):
        if q[i] != 0.0 and q[i] < SMALLEST:
            return False
    found[AUC_ERROR], sure = _auc_error(v, h)
    if not sure:
        return False
    rows, losses, sums = work
    calibration_rows(q, q.size, True, rows, losses)
    first = 0
    for part in range(4):
        stop = first
        while stop < q.size and _is_in(q[stop], part):
            stop += 1
        _add_up(rows, v, h, first, stop, sums[part])
        first = stop
    found[SPIEGELHALTER] = _spiegelhalter(sums)
    found[SCORE_TEST], sure = _score_test(sums)
    return sure


@kernel(inline=True)
def _is_in(p, part):
    """Whether a prediction is of a part: 0, below 1/2, from 1/2, and 1."""
    if part == _ZERO:
        return p == 0.0
    if part == _LOW:
        return p < 0.5
    return p < 1.0 or part == _ONE


@kernel
def _add_up(rows, v, h, first, stop, sums):
    """The sums of `calibration_sums` over points of a part, in units of 2**-18 and 2**-50."""
    for r in range(_SUMS):
        a = b = np.int64(0)
        of_hits = r == 1 or r == 4 or r == 7
        for i in range(first, stop):
            f = np.int64(h[i]) if of_hits else np.int64(v[i])
            x = rows[r, i] * UNIT
            top = np.int64(x)
            a += f * top
            b += f * np.int64((x - np.float64(top)) * NEXT)
        sums[r, 0], sums[r, 1] = a, b


@kernel
def _auc_error(v, h):
    """See `many_error_bars._auc_error`: whole numbers below 2**62; and whether it is sure."""
    weight = positives = np.int64(0)
    for i in range(v.size):
        weight += np.int64(v[i])
        positives += np.int64(h[i])
        if weight > _MOST_ROWS:
            return 0.0, False
    negatives = weight - positives
    if positives <= 1 or negatives <= 1:
        return np.nan, True
    below = hits_below = np.int64(0)
    a = b = c = d = np.int64(0)
    for i in range(v.size):
        hits = np.int64(h[i])
        misses = np.int64(v[i]) - hits
        place, other = 2 * below + misses, 2 * hits_below + hits
        a += hits * place
        b += hits * place * place
        c += misses * other
        d += misses * other * other
        below += misses
        hits_below += hits
    total = (b * positives - a * a) * (negatives - 1) + (d * negatives - c * c) * (positives - 1)
    if total == 0:
        return 0.0, True
    high = float(total)
    low = float(total - np.int64(high))
    pairs = 2.0 * float(positives) * float(negatives)
    above, rest = two_product(pairs * pairs, float((positives - 1) * (negatives - 1)))
    high, low = ratio_of_pairs(high, low, above, rest)
    return math.sqrt(high), surely(high, low, high * _PRODUCT_ERROR)


@kernel(inline=True)
def _value(sums, r):
    """A sum as two doubles, exactly."""
    return two_sum(float(sums[r, 0]) / UNIT, float(sums[r, 1]) / (UNIT * NEXT))


@kernel(inline=True)
def _difference(sums, r, other):
    """The difference of two sums as two doubles, exactly."""
    a, b = sums[r, 0] - sums[other, 0], sums[r, 1] - sums[other, 1]
    return two_sum(float(a) / UNIT, float(b) / (UNIT * NEXT))


@kernel
def _spiegelhalter(sums):
    """See `many_error_bars._tests`."""
    a = b = c = d = np.int64(0)
    for part in range(4):
        sign = np.int64(1) if part < _HIGH else np.int64(-1)
        a += sign * (sums[part, 4, 0] - sums[part, 5, 0])
        b += sign * (sums[part, 4, 1] - sums[part, 5, 1])
    for part in range(_LOW, _ONE):
        c += sums[part, 6, 0]
        d += sums[part, 6, 1]
    if c == 0 and d == 0:
        return np.nan
    # Either sum is rounded once: its parts are doubles.
    above = float(a) / UNIT + float(b) / (UNIT * NEXT)
    return above / math.sqrt(float(c) / UNIT + float(d) / (UNIT * NEXT))


@kernel
def _score_test(sums):
    """See `many_error_bars._score_test`; and whether it is sure."""
    low, high = sums[_LOW], sums[_HIGH]
    a = add_pairs(*_value(low, 3), *_value(high, 3))
    if a[0] == 0.0:
        return np.nan, True
    c = add_pairs(*_value(low, 10), *_value(high, 10))
    x, y = _value(low, 9)
    b = add_pairs(*_value(high, 9), -x, -y)
    u = add_pairs(*_difference(high, 1, 2), *_difference(low, 1, 2))
    x, y = _difference(low, 7, 8)
    v = add_pairs(*_difference(high, 7, 8), -x, -y)
    largest = times_pairs(*a, *c)
    square = times_pairs(*b, *b)
    divisor = add_pairs(*largest, -square[0], -square[1])
    least = PARTED * largest[0]
    if abs(divisor[0] - least) <= 1e-9 * least:
        return 0.0, False
    if not divisor[0] > least:
        return np.nan, True
    one = times_pairs(*times_pairs(*u, *u), *c)
    other = times_pairs(*times_pairs(*v, *v), *a)
    mixed = times_pairs(*times_pairs(2.0 * u[0], 2.0 * u[1], *v), *b)
    above = add_pairs(*add_pairs(*one, *other), -mixed[0], -mixed[1])
    if one[0] == 0.0 and other[0] == 0.0 and mixed[0] == 0.0:
        return 0.0, True
    found, rest = ratio_of_pairs(*above, *divisor)
    lost = (one[0] + other[0] + abs(mixed[0])) / divisor[0] + abs(found) * (largest[0] + square[0]) / divisor[
        0
    ]
    return found, surely(found, rest, (lost + abs(found)) * _PRODUCT_ERROR)
