"""Cumulative sums over points that are exact before they are rounded, from a carry that is exact too."""

import numpy as np
from numba import njit

from calibrators._kernels.sums import MAX_COMPONENTS, add, rounded


@njit(cache=True, nogil=True)
def add_expansions(left, right):
    """The exact sum of two expansions, as an expansion."""
    components = np.empty(MAX_COMPONENTS + 1)
    n = left.size
    components[:n] = left
    for i in range(right.size):
        n = add(components, n, right[i])
    return components[:n].copy()


@njit(cache=True, nogil=True)
def cuts_at(values, carry, targets):
    """For each target the first index whose cumulative sum, correctly rounded, reaches it.

    values : float64 array, shape (m,), >= 0. carry : expansion of what precedes values[0].
    targets : float64 array, ascending; those that are never reached get m.
    """
    m = values.size
    components = np.empty(MAX_COMPONENTS + 1)
    n = carry.size
    components[:n] = carry
    out = np.full(targets.size, m, np.int64)
    j = 0
    i = 0
    while i < m and j < targets.size:
        n = add(components, n, values[i])
        total = rounded(components, n)
        while j < targets.size and targets[j] <= total:
            out[j] = i
            j += 1
        i += 1
    return out


@njit(cache=True, nogil=True)
def sums_through(values, carry, stops):
    """Cumulative sums of values[: stop] after the carry, as double-doubles (high correctly rounded, and low).

    stops : int64 array, ascending, in [0, m].
    """
    components = np.empty(MAX_COMPONENTS + 1)
    scratch = np.empty(MAX_COMPONENTS + 1)
    n = carry.size
    components[:n] = carry
    high = np.empty(stops.size)
    low = np.empty(stops.size)
    i = 0
    for j in range(stops.size):
        while i < stops[j]:
            n = add(components, n, values[i])
            i += 1
        high[j] = rounded(components, n)
        low[j] = 0.0
        if n > 1:
            scratch[:n] = components[:n]
            low[j] = rounded(scratch, add(scratch, n, -high[j]))
    return high, low


@njit(cache=True, nogil=True)
def prefix_sums(values, carry):
    """The correctly rounded cumulative sum at every index, after the carry."""
    components = np.empty(MAX_COMPONENTS + 1)
    n = carry.size
    components[:n] = carry
    out = np.empty(values.size)
    for i in range(values.size):
        n = add(components, n, values[i])
        out[i] = rounded(components, n)
    return out
