"""Cumulative sums over points that are exact before they are rounded, from a carry that is exact too.

Exact sums are expansions (see `sums`). While one component holds a sum, as for whole numbers below 2**53, an
addition costs no more than one in double precision.
"""

import numpy as np

from calibrators._kernels.compiled import kernel
from calibrators._kernels.copying import put
from calibrators._kernels.double_double import two_sum
from calibrators._kernels.sums import MAX_COMPONENTS, add, rounded

_STRETCH = 1024  # values summed as whole numbers or not at all
_MODERATE = 2.0**22
_MOST_WHOLE = 1 << 31  # times the former: sums that doubles hold


@kernel(inline=True)
def _components(carry):
    components = np.zeros(MAX_COMPONENTS)
    put(components, carry)
    return components


@kernel
def _advance(values, start, stop, components, n):
    """Add values[start:stop] to the expansion; return its new length."""
    i = start
    if n <= 1:
        total = components[0] if n == 1 else 0.0
        while i < stop:
            high, low = two_sum(total, values[i])
            if low != 0.0:
                break
            total = high
            i += 1
        components[0] = total
        n = 1 if total != 0.0 else 0
    while i < stop:
        n = add(components, n, values[i])
        i += 1
    return n


@kernel
def add_expansions(left, right):
    """The exact sum of two expansions, as an expansion."""
    components = _components(left)
    n = left.size
    for i in range(right.size):
        n = add(components, n, right[i])
    return components[:n].copy()


@kernel
def _sum_of_whole(values):
    """The length of a first stretch of moderate whole numbers, and their sum, which doubles hold exactly.

    Sums of integers may be made in any order, so the loop has vector instructions.
    """
    total = 0
    i = 0
    most = min(values.size, _MOST_WHOLE)
    while i + _STRETCH <= most:
        others = 0
        more = 0
        for j in range(i, i + _STRETCH):
            v = values[j]
            others += (v != np.floor(v)) | (not abs(v) <= _MODERATE)
            more += np.int64(v)
        if others:
            break
        total += more
        i += _STRETCH
    return i, float(total)


@kernel
def expansion_of(values):
    """The exact sum of values as an expansion."""
    components = np.zeros(MAX_COMPONENTS)
    done, components[0] = _sum_of_whole(values)
    n = _advance(values, done, values.size, components, 1 if components[0] != 0.0 else 0)
    return components[:n].copy()


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
