"""Error bars of very many small columns of probabilities, one after the other: from exact sums, each rounded once.

The same doubles as `calibrators.measures.error_bars` takes of each column with fractions, where weights are
counts of rows.
"""

import math

import numpy as np

from calibrators._kernels.compiled import kernel
from calibrators._kernels.error_sums import calibration_sums, placements_of_counts
from calibrators._kernels.expansions import NO, ROOM, SINGLE, add_all, add_product, quotient
from calibrators._kernels.few_error_bars import (
    AUC_ERROR,
    PARTED,
    SCORE_TEST,
    SPIEGELHALTER,
    error_bars_few,
    workspace,
)
from calibrators._kernels.search import first_at
from calibrators._kernels.sums import MAX_COMPONENTS, rounded

NUMBERS = 3

_ZERO, _LOW, _HIGH, _ONE = range(4)


@kernel
def error_bars_each(p, w, k, starts, found):
    """The error of the AUC, Spiegelhalter's statistic and the score test of columns, ascending and without ties.

    Parameters
    ----------
    p, w, k, starts : see `many_measures.assess_each`
    found : float64 array, shape (columns, NUMBERS); NaN: there is no such number
    """
    bounds = np.zeros(5, np.int64)
    work = workspace()
    for c in range(starts.size - 1):
        first, end = starts[c], starts[c + 1]
        q, v, h = p[first:end], w[first:end], k[first:end]
        if error_bars_few(q, v, h, work, found[c]):
            continue
        found[c, AUC_ERROR] = _auc_error(placements_of_counts(q, v, h))
        bounds[1] = first_at(q, 0, np.nextafter(0.0, 1.0))
        bounds[2], bounds[3], bounds[4] = first_at(q, 0, 0.5), first_at(q, 0, 1.0), q.size
        slices = np.zeros((4, 11, MAX_COMPONENTS))
        for s in range(4):
            a, b = bounds[s], bounds[s + 1]
            if a < b:
                sums = calibration_sums(q[a:b], v[a:b], h[a:b], True, True)
                for r in range(11):
                    for i in range(sums.shape[1]):
                        slices[s, r, i] = sums[r, i]
        found[c, SPIEGELHALTER], found[c, SCORE_TEST] = _tests(slices)


@kernel
def _whole(components):
    """A whole number below 2**53 from an expansion that is padded with zeros."""
    total = 0.0
    for i in range(components.size):
        total += components[i]
    return total


@kernel
def _auc_error(places):
    """DeLong's standard error: of counts, one quotient of whole numbers; NaN where a label has one row, or none.

    With H positives, M negatives, their places' sum A and the sums of squared places S and T it is the root of
    ((S H - A**2) (M - 1) + (T M - (2 H M - A)**2) (H - 1)) / (4 H**2 M**2 (H - 1) (M - 1)).
    """
    hits, misses = _whole(places[0]), _whole(places[3])
    if hits <= 1 or misses <= 1:
        return np.nan
    own, rest = np.empty(MAX_COMPONENTS), np.empty(MAX_COMPONENTS)
    one, other, divisor = np.empty(1), np.empty(1), np.empty(MAX_COMPONENTS)
    total = np.empty(MAX_COMPONENTS)
    n = NO
    for side in range(2):
        above, below = (hits, misses) if side == 0 else (misses, hits)
        # The places of both labels add up to 2 H M.
        a = add_all(own, NO, places[3 * side + 1], ROOM, 1.0)
        one[0] = above
        m = add_all(divisor, NO, places[3 * side + 2], ROOM, 1.0)
        m = add_product(rest, NO, divisor, m, one, SINGLE, 1.0)
        m = add_product(rest, m, own, a, own, a, -1.0)
        one[0] = below - 1
        n = add_product(total, n, rest, m, one, SINGLE, 1.0)
    one[0], other[0] = 2.0 * hits, 2.0 * misses
    m = add_product(own, NO, one, SINGLE, other, SINGLE, 1.0)
    one[0], other[0] = hits, misses
    a = add_product(rest, NO, own, m, one, SINGLE, 1.0)
    m = add_product(own, NO, rest, a, other, SINGLE, 1.0)
    one[0], other[0] = hits - 1, misses - 1
    a = add_product(rest, NO, own, m, one, SINGLE, 1.0)
    m = add_product(divisor, NO, rest, a, other, SINGLE, 1.0)
    return math.sqrt(quotient(total, n, divisor, m))


@kernel
def _add(components, n, slices, part, row, sign):
    """Add a sum of a slice to an expansion; returns its length."""
    return add_all(components, n, slices[part, row], ROOM, sign)


@kernel
def _tests(slices):
    """Spiegelhalter's statistic and the score test's: see `calibrators.measures.error_bars._tests`."""
    x, y = np.empty(MAX_COMPONENTS), np.empty(MAX_COMPONENTS)
    n = NO
    for s in range(4):
        sign = 1.0 if s < _HIGH else -1.0
        n = _add(x, n, slices, s, 4, sign)
        n = _add(x, n, slices, s, 5, -sign)
    m = _add(y, _add(y, NO, slices, _LOW, 6, 1.0), slices, _HIGH, 6, 1.0)
    spiegelhalter = rounded(x, n) / math.sqrt(rounded(y, m)) if m > 0 else np.nan
    both = np.empty((5, MAX_COMPONENTS))
    size = np.zeros(5, np.int64)
    # Two derivatives of the likelihood, and what its information is made of.
    for r, row, sign in (
        (0, 1, 1.0),
        (0, 2, -1.0),
        (1, 7, 1.0),
        (1, 8, -1.0),
        (2, 3, 1.0),
        (3, 9, 1.0),
        (4, 10, 1.0),
    ):
        across = -1.0 if r == 1 or r == 3 else 1.0
        size[r] = _add(both[r], size[r], slices, _HIGH, row, sign)
        size[r] = _add(both[r], size[r], slices, _LOW, row, sign * across)
    return spiegelhalter, _score_test(both, size)


@kernel
def _score_test(both, size):
    """(u0**2 c - 2 u0 u1 b + u1**2 a) / (a c - b**2) of u0, u1, a, b, c; NaN where a c is about b**2."""
    part, whole, divisor = np.empty(MAX_COMPONENTS), np.empty(MAX_COMPONENTS), np.empty(MAX_COMPONENTS)
    d = add_product(divisor, NO, both[2], size[2], both[4], size[4], 1.0)
    largest = rounded(divisor, d)
    d = add_product(divisor, d, both[3], size[3], both[3], size[3], -1.0)
    if size[2] == 0 or not rounded(divisor, d) > PARTED * largest:
        return np.nan
    n = NO
    for i, j, r, sign in ((0, 0, 4, 1.0), (0, 1, 3, -1.0), (0, 1, 3, -1.0), (1, 1, 2, 1.0)):
        m = add_product(part, NO, both[i], size[i], both[j], size[j], sign)
        n = add_product(whole, n, part, m, both[r], size[r], 1.0)
    return quotient(whole, n, divisor, d)
