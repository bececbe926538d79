"""Exact floating-point sums, so that no result depends on how rows are divided into parts.

A sum is kept as an *expansion*: doubles that do not overlap and whose exact sum is the exact sum of the terms
(Shewchuk 1997, "Adaptive Precision Floating-Point Arithmetic"). Expansions of parts may be added in any
order; rounding happens once, at the end, and is correct. Integers below 2**53 need one component. A sum beyond the
largest double is NaN.
"""

import math

import numpy as np

from calibrators.core.arrays import Array, Integers
from calibrators.core.compiled import kernel

_SPLIT = 134217729.0  # 2**27 + 1 (Dekker's splitting constant)


@kernel(inline=True)
def two_sum(a, b):
    """Return the sum of two doubles and its rounding error; together they are exact."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


@kernel(inline=True)
def two_product(a, b):
    """Return the product of two doubles and its rounding error, exact if nothing overflows or underflows."""
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
    """Return the sum of two double-doubles; exact for integers below 2**104."""
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
    """Return the double nearest to a / b for double-doubles a and b, b > 0.

    Two Newton steps have a relative error of some 2**-105 before the last rounding. The quotient of integers
    a and b is half-way between two doubles, or at least 2**-54 / b away from half-way (relatively). So
    for b below 2**44 the result is correctly rounded, and equal quotients of different pairs are equal doubles.
    """
    q = ah / bh
    ph, pl = two_product(q, bh)
    r = ((ah - ph) - pl) + (al - q * bl)
    return q + r / bh


# A component may have a single bit, so an expansion can become longer than its value needs. A double spans 2098
# binary digits and a compressed component 53 of them: a compressed expansion has at most 41 components.
MAX_COMPONENTS = 64


_LARGEST_WHOLE = 9007199254740992.0  # 2**53: every integer up to it is a double


@kernel
def _compress(components, n):
    """Rewrite the expansion in components[:n] with the fewest components; return their number.

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
            # Only an overflowed sum, with NaN among its components, cannot be compressed.
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
    """Return the double nearest to the expansion in components[:n], ties to even."""
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
    # Half-way cases are decided by the sign of the lower components.
    if n > 0 and ((low < 0.0 and components[n - 1] < 0.0) or (low > 0.0 and components[n - 1] > 0.0)):
        y = low * 2.0
        x = high + y
        if y == x - high:
            high = x
    return high


def adds_exactly(values: Array) -> bool:
    """Tell whether ordinary sums of values are exact: the values are integers, as in nearly all logs, and not large."""
    if values.size > _MOST_IN_NUMPY:
        return bool(_add_exactly(values))
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.abs(values).sum() <= _LARGEST_WHOLE and (values == np.rint(values)).all())


@kernel
def _add_exactly(values):
    # Eight sums at a time, which the compiler vectorises.
    sizes = np.zeros(8)
    whole = values.size - values.size % 8
    for first in range(0, whole, _STRIP):
        fractions = 0
        for i in range(first, min(first + _STRIP, whole), 8):
            for k in range(8):
                sizes[k] += abs(values[i + k])
                fractions |= values[i + k] != np.rint(values[i + k])
        if fractions:
            return False
    total = 0.0
    for k in range(8):
        total += sizes[k]
    for i in range(whole, values.size):
        total += abs(values[i])
        if values[i] != np.rint(values[i]):
            return False
    return total <= _LARGEST_WHOLE


def exact_sum(values: Array) -> float:
    """Return the correctly rounded sum of values: the same for any order and, through expansions, any grouping."""
    if values.size > _FEW and adds_exactly(values):
        return float(values.sum()) + 0.0
    try:
        return math.fsum(values.tolist()) + 0.0
    except (OverflowError, ValueError):
        return math.nan


def expansion_of(values: Array) -> Array:
    """Return the exact sum of values as an expansion, ascending in magnitude; empty when the sum is zero.

    Each round splits off as many leading bits as add up without rounding, until the remainders are zero (Rump, Ogita
    and Oishi 2008). Most weights take two rounds.
    """
    if adds_exactly(values):
        total = float(values.sum())
        return np.array([total] if total else [], np.float64)
    terms: list[float] = []
    for first in range(0, values.size, _STRIP):
        remainder = values[first : first + _STRIP]
        while remainder.size > _FEW and 0.0 < (largest := float(np.abs(remainder).max())) <= 2.0**1000:
            sigma = math.ldexp(1.0, math.frexp(largest)[1] + _CARRY_BITS)
            leading = (sigma + remainder) - sigma
            terms.append(float(leading.sum()))
            remainder = remainder - leading
        terms += remainder[remainder != 0.0].tolist()
    components: list[float] = []
    while (total := exact_sum(np.array(terms))) and len(components) < MAX_COMPONENTS:
        components.append(total)
        terms.append(-total)
    return np.array(components[::-1] if math.isfinite(sum(components)) else [math.nan])


_FEW = 16
_STRIP = 1 << 14
_MOST_IN_NUMPY = 1 << 18
"""Number of values up to which a fit need not compile a loop, which takes longer."""
_CARRY_BITS = 15
"""Largest number of bits by which a sum of `_STRIP` numbers is longer than the largest of them."""


# Exact sums over blocks of neighbouring points.


def expansions_between(values: Array, starts: Integers) -> tuple[Array, Integers]:
    """Return the exact sum of each block of values as an expansion.

    starts : int64 array, shape (blocks,), ascending from 0: the start of each block

    Returns
    -------
    components : float64 array: the concatenated expansions
    lengths : int64 array, shape (blocks,), >= 1: number of components of each
    """
    if adds_exactly(values):
        return np.add.reduceat(values, starts), np.ones(starts.size, np.int64)
    components, lengths = _block_sums(values, np.append(starts[1:], values.size), False)
    return components, lengths


def sums_between(values: Array, starts: Integers) -> Array:
    """Return the correctly rounded sum of each block of values, or of components of expansions in any grouping.

    starts : see `expansions_between`
    """
    if adds_exactly(values):
        return np.add.reduceat(values, starts)
    totals: Array = _block_sums(values, np.append(starts[1:], values.size), True)[0]
    return totals


@kernel
def _block_sums(values, ends, rounding):
    """Return the sums of blocks as concatenated expansions, or else rounded, and the numbers of their components."""
    out, lengths = np.empty(values.size), np.ones(ends.size, np.int64)
    components = np.empty(MAX_COMPONENTS)
    used = i = 0
    for block in range(ends.size):
        if ends[block] == i + 1:
            out[used] = values[i] + 0.0
            used += 1
            i += 1
            continue
        n = 0
        while i < ends[block]:
            n = add(components, n, values[i])
            i += 1
        if rounding or n == 0:
            components[0] = rounded(components, n)
            n = 1
        # An expansion has at most as many components as terms, so `out` is long enough.
        for j in range(n):
            out[used + j] = components[j]
        used += n
        lengths[block] = n
    return out[:used].copy(), lengths


def sums_through(values: Array, carry: Array, stops: Integers) -> tuple[Array, Array]:
    """Return the sum of the carry and values[:stop] for each stop, as double-doubles with a correctly rounded high.

    carry : float64 array: an expansion
    stops : int64 array, ascending, in [0, m]
    """
    low = np.zeros(stops.size)
    return _cumulative(values, carry, stops, low), low


def prefix_sums(values: Array, carry: Array) -> Array:
    """Return the correctly rounded sum of the carry and values[: i + 1] for every i. carry : see `sums_through`."""
    totals: Array = _cumulative(values, carry, np.arange(1, values.size + 1), np.empty(0))
    return totals


@kernel
def _cumulative(values, carry, stops, low):
    """Return the rounded sums of `sums_through`; fill `low` with the low parts unless its shape is (0,)."""
    components, scratch = np.zeros(MAX_COMPONENTS), np.empty(MAX_COMPONENTS)
    high = np.empty(stops.size)
    n, i = carry.size, 0
    for j in range(n):
        components[j] = carry[j]
    total = components[0]
    for j in range(stops.size):
        while i < stops[j]:
            # The sum nearly always has one component, which is kept in `total`.
            above, below = two_sum(total, values[i])
            if n <= 1 and below == 0.0:
                total, n = above, 1
            else:
                if n <= 1:
                    components[0] = total
                n = add(components, n, values[i])
                total = components[0] if n > 0 else 0.0
            i += 1
        high[j] = total
        if n > 1:
            high[j] = rounded(components, n)
            if low.size > 0:
                for k in range(n):
                    scratch[k] = components[k]
                low[j] = rounded(scratch, add(scratch, n, -high[j]))
    return high
