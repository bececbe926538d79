"""Runs: maximal stretches of points with equal y = positives / weight."""

import math

import numpy as np

from calibrators._kernels.compiled import kernel
from calibrators._kernels.sums import MAX_COMPONENTS, add, rounded, two_product, two_sum


@kernel
def _equal_products(a, b, c, d):
    """Tell whether a * b equals c * d exactly, for positive doubles."""
    ma, ea = math.frexp(a)
    mb, eb = math.frexp(b)
    mc, ec = math.frexp(c)
    md, ed = math.frexp(d)
    shift = (ea + eb) - (ec + ed)
    if abs(shift) > 1:
        return False
    # Mantissas neither overflow nor underflow.
    ma = math.ldexp(ma, shift)
    p, p_low = two_product(ma, mb)
    q, q_low = two_product(mc, md)
    return p == q and p_low == q_low


@kernel
def same_level(w1, k1, w2, k2):
    """Tell whether k1 / w1 equals k2 / w2 exactly (so that it is transitive)."""
    if k1 == 0.0 or k2 == 0.0:
        return k1 == k2
    if k1 == w1 or k2 == w2:
        return k1 == w1 and k2 == w2
    return _equal_products(k1, w2, k2, w1)


@kernel
def count(weight, positives):
    """The number of runs."""
    runs = min(1, weight.size)
    for i in range(1, weight.size):
        if not same_level(weight[i - 1], positives[i - 1], weight[i], positives[i]):
            runs += 1
    return runs


@kernel
def _exact(values, start, stop, components):
    """The correctly rounded sum of values[start:stop]. components : scratch."""
    s = 0.0
    lost = False
    for i in range(start, stop):
        s, low = two_sum(s, values[i])
        lost = lost or low != 0.0
    if not lost:
        return s
    n = 0
    for i in range(start, stop):
        n = add(components, n, values[i])
    return rounded(components, n)


@kernel
def gather(score, weight, positives, runs):
    """The runs of points.

    Returns
    -------
    start : int64 array, shape (runs + 1,): the first point of each run, and the number of points
    first, last, run_weight, run_positives : float64 arrays, shape (runs,)
        First and last score, and sums, correctly rounded.
    """
    start = np.empty(runs + 1, np.int64)
    first = np.empty(runs)
    last = np.empty(runs)
    run_weight = np.empty(runs)
    run_positives = np.empty(runs)
    components = np.empty(MAX_COMPONENTS)
    m = score.size
    i = 0
    for r in range(runs):
        begin = i
        i += 1
        while i < m and same_level(weight[i - 1], positives[i - 1], weight[i], positives[i]):
            i += 1
        start[r] = begin
        first[r] = score[begin]
        last[r] = score[i - 1]
        run_weight[r] = _exact(weight, begin, i, components)
        if positives[begin] == 0.0:
            run_positives[r] = 0.0
        elif positives[begin] == weight[begin]:
            run_positives[r] = run_weight[r]
        else:
            run_positives[r] = _exact(positives, begin, i, components)
    start[runs] = m
    return start, first, last, run_weight, run_positives


@kernel
def _add_moments(score, weight, start, stop, components):
    """Put the exact sum of weight * score over points start, ..., stop - 1 into components; return its length."""
    n = 0
    for i in range(start, stop):
        high, low = two_product(weight[i], score[i])
        n = add(components, n, high)
        n = add(components, n, low)
    return n


@kernel
def moments(score, weight, start):
    """The sum of weight * score over each run, correctly rounded. start : as `gather` gives it."""
    out = np.empty(start.size - 1)
    components = np.empty(MAX_COMPONENTS)
    for r in range(out.size):
        out[r] = rounded(components, _add_moments(score, weight, start[r], start[r + 1], components))
    return out


@kernel
def moment_expansion(score, weight, start, stop):
    """The exact sum of weight * score over points start, ..., stop - 1 as an expansion."""
    components = np.empty(MAX_COMPONENTS)
    return components[: _add_moments(score, weight, start, stop, components)].copy()
