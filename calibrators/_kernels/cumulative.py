"""Cumulative sums over points that are exact before they are rounded, from a carry that is exact too.

Exact sums are expansions (see `sums`). While one component holds a sum, as for whole numbers below 2**53, an
addition costs no more than one in double precision.
"""

import numpy as np

from calibrators._kernels.compiled import kernel
from calibrators._kernels.double_double import two_sum
from calibrators._kernels.sums import MAX_COMPONENTS, add, put, rounded


@kernel(inline=True)
def _components(carry):
    components = np.zeros(MAX_COMPONENTS)
    put(components, carry)
    return components


@kernel
def fill_prefix_sums(values, start, stop, components, n, out):
    """Write the correctly rounded cumulative sums of values[start:stop] to out; return the expansion's length."""
    i = start
    if n <= 1:
        total = components[0] if n == 1 else 0.0
        while i < stop:
            high, low = two_sum(total, values[i])
            if low != 0.0:
                break
            total = high
            out[i - start] = total
            i += 1
        components[0] = total
        n = 1 if total != 0.0 else 0
    while i < stop:
        n = add(components, n, values[i])
        out[i - start] = rounded(components, n)
        i += 1
    return n


@kernel
def prefix_sums(values, carry):
    """The correctly rounded cumulative sum at every index, after the carry."""
    out = np.empty(values.size)
    fill_prefix_sums(values, 0, values.size, _components(carry), carry.size, out)
    return out


@kernel
def cuts_at(values, carry, targets):
    """For each target the first index whose cumulative sum, correctly rounded, reaches it.

    values : float64 array, shape (m,), >= 0. carry : expansion of what precedes values[0].
    targets : float64 array, ascending; those that are never reached get m.
    """
    m = values.size
    components = _components(carry)
    n = carry.size
    out = np.full(targets.size, m, np.int64)
    block = np.empty(min(m, 4096))
    j = 0
    start = 0
    while start < m and j < targets.size:
        stop = min(start + block.size, m)
        n = fill_prefix_sums(values, start, stop, components, n, block)
        i = start
        while j < targets.size and targets[j] <= block[stop - start - 1]:
            while block[i - start] < targets[j]:
                i += 1
            out[j] = i
            j += 1
        start = stop
    return out


@kernel
def sums_through(values, carry, stops):
    """Cumulative sums of values[: stop] after the carry, as double-doubles (high correctly rounded, and low).

    stops : int64 array, ascending, in [0, m].
    """
    components = _components(carry)
    scratch = np.empty(MAX_COMPONENTS)
    n = carry.size
    high = np.empty(stops.size)
    low = np.zeros(stops.size)
    i = 0
    j = 0
    if n <= 1:
        total = components[0] if n == 1 else 0.0
        exact = True
        while j < stops.size:
            while i < stops[j]:
                above, below = two_sum(total, values[i])
                if below != 0.0:
                    exact = False
                    break
                total = above
                i += 1
            if not exact:
                break
            high[j] = total
            j += 1
        components[0] = total
        n = 1 if total != 0.0 else 0
    while j < stops.size:
        while i < stops[j]:
            n = add(components, n, values[i])
            i += 1
        high[j] = rounded(components, n)
        if n > 1:
            put(scratch, components[:n])
            low[j] = rounded(scratch, add(scratch, n, -high[j]))
        j += 1
    return high, low
