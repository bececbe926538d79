"""Double-doubles: a number as the unevaluated sum high + low of two doubles, about 106 bits (Dekker 1971)."""

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
