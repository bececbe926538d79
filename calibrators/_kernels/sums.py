"""Exact floating-point sums, so that no result depends on how rows were cut into parts.

A sum is kept as an *expansion*: doubles that do not overlap and whose exact sum is the exact sum of what was
added (Shewchuk 1997, "Adaptive Precision Floating-Point Arithmetic"). Expansions of parts may be added in any
order; rounding happens once, at the end, and is correct. Integers below 2**53 stay one component long. A sum beyond the
largest double is NaN.
"""

import numpy as np
import numpy.typing as npt

from calibrators._kernels.compiled import kernel

_SPLIT = 134217729.0  # 2**27 + 1 (Dekker's splitting constant)


@kernel(inline=True)
def two_sum(a, b):
    """The sum of two doubles, exactly."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


@kernel(inline=True)
def two_product(a, b):
    """The product of two doubles, exactly while it neither overflows nor underflows."""
    p = a * b
    t = _SPLIT * a
    ah = t - (t - a)
    al = a - ah
    t = _SPLIT * b
    bh = t - (t - b)
    bl = b - bh
    return p, ((ah * bh - p) + ah * bl + al * bh) + al * bl


@kernel(inline=True)
def add_pairs(ah, al, bh, bl):
    """The sum of two double-doubles; exact for whole numbers below 2**104."""
    s, e = two_sum(ah, bh)
    t, f = two_sum(al, bl)
    e += t
    high = s + e
    e = e - (high - s)
    e += f
    s = high + e
    return s, e - (s - high)


@kernel(inline=True)
def divide_pairs(ah, al, bh, bl):
    """The double nearest to a / b, b > 0.

    Two Newton steps leave a relative error of some 2**-105 before the last rounding. The quotient of whole
    numbers a and b is half-way between two doubles, or at least 2**-54 / b away from half-way (relatively); so
    for b below 2**44 the result is correctly rounded, and equal quotients of different pairs are equal doubles.
    """
    q = ah / bh
    ph, pl = two_product(q, bh)
    r = ((ah - ph) - pl) + (al - q * bl)
    return q + r / bh


# Components may hold a single bit each, so an expansion can grow past what its value needs. A double spans 2098
# binary places and a compressed component 53 of them: after compression at most 41 are left.
MAX_COMPONENTS = 64


_LARGEST_WHOLE = 9007199254740992.0  # 2**53: doubles hold every whole number up to it


@kernel
def _compress(components, n):
    """Rewrite the expansion in components[:n] with as few components as its value needs; return their number.

    Shewchuk (1997), figure 15.
    """
    bottom = n - 1
    x = components[bottom]
    for j in range(n - 2, -1, -1):
        y = components[j]
        high = x + y
        low = y - (high - x)
        x = high
        if low != 0.0:
            components[bottom] = high
            bottom -= 1
            x = low
    top = 0
    for j in range(bottom + 1, n):
        y = components[j]
        high = y + x
        low = x - (high - y)
        if low != 0.0:
            components[top] = low
            top += 1
        x = high
    components[top] = x
    return top + 1


@kernel
def add(components, n, x):
    """Add x to the expansion in components[:n]; return its new length. Zero components are dropped.

    components : float64 array, shape (MAX_COMPONENTS,) or longer.
    """
    if n >= MAX_COMPONENTS - 1:
        n = _compress(components, n)
        if n >= MAX_COMPONENTS - 1:
            # Only sums beyond the largest double, whose rests are NaN, do not become shorter: there is no number left.
            components[0] = np.nan
            n = 1
    m = 0
    for j in range(n):
        y = components[j]
        if abs(x) < abs(y):
            x, y = y, x
        high = x + y
        low = y - (high - x)
        if low != 0.0:
            components[m] = low
            m += 1
        x = high
    if x != 0.0:
        components[m] = x
        m += 1
    return m


@kernel
def rounded(components, n):
    """The double nearest to the expansion in components[:n], ties to even."""
    if n == 0:
        return 0.0
    n -= 1
    high = components[n]
    low = 0.0
    while n > 0:
        x = high
        n -= 1
        y = components[n]
        high = x + y
        low = y - (high - x)
        if low != 0.0:
            break
    # Half-way cases look at the sign of what remains below.
    if n > 0 and ((low < 0.0 and components[n - 1] < 0.0) or (low > 0.0 and components[n - 1] > 0.0)):
        y = low * 2.0
        x = high + y
        if y == x - high:
            high = x
    return high


@kernel
def whole_total(values):
    """The sum of whole numbers, exact in plain doubles, and whether it is that."""
    # In integers, whose sums need no order, so that several are added at a time.
    total = size = largest = 0
    whole = True
    for i in range(values.size):
        x = values[i]
        k = np.int64(x)
        whole &= (np.float64(k) == x) & (abs(x) <= _LARGEST_WHOLE)
        total += k
        size += abs(k)
        largest = max(largest, abs(k))
    whole &= float(largest) * values.size < 4.0e18  # no sum has wrapped around
    return float(total), whole and size <= _LARGEST_WHOLE


@kernel
def expansion_of(values):
    """The exact sum of values as an expansion, ascending in magnitude; empty when the sum is zero."""
    components = np.empty(MAX_COMPONENTS)
    n = 0
    total, exact = whole_total(values)
    if exact:
        n = add(components, n, total)
    else:
        for i in range(values.size):
            n = add(components, n, values[i])
    return components[:n].copy()


def exact_sum(values: npt.NDArray[np.float64]) -> float:
    """The correctly rounded sum of values: the same for any order and, through expansions, any grouping."""
    with np.errstate(over="ignore", invalid="ignore"):
        if float(np.abs(values).sum()) <= _LARGEST_WHOLE and bool((values == np.floor(values)).all()):
            # Counts, for which nothing need be compiled.
            return float(values.sum()) + 0.0
    components = expansion_of(values)
    return float(rounded(components, components.size))


# Copies of arrays within compiled loops.


@kernel
def put(target, source):
    """target[: source.size] = source, from the first on: of overlapping ones the target must begin first."""
    for i in range(source.size):
        target[i] = source[i]


# Weighted sums of scores over blocks of neighbouring points, exactly.


@kernel
def block_expansions(values, ends):
    """The exact sum of each block of values as an expansion.

    ends : int64 array, shape (blocks,), ascending: where each block ends (exclusive).

    Returns
    -------
    components : float64 array: the expansions one after another
    lengths : int64 array, shape (blocks,)
    """
    out = np.empty(values.size)
    lengths = np.empty(ends.size, np.int64)
    components = np.empty(MAX_COMPONENTS)
    used = i = 0
    for block in range(ends.size):
        n = 0
        while i < ends[block]:
            n = add(components, n, values[i])
            i += 1
        # No expansion is longer than what it was made of, so there is room.
        put(out[used:], components[:n])
        used += n
        lengths[block] = n
    return out[:used].copy(), lengths


@kernel
def block_sums(components, ends):
    """The correctly rounded sum of each block of components (of expansions, in any grouping)."""
    out = np.empty(ends.size)
    total = np.empty(MAX_COMPONENTS)
    i = 0
    for block in range(ends.size):
        n = 0
        while i < ends[block]:
            n = add(total, n, components[i])
            i += 1
        out[block] = rounded(total, n)
    return out


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
