"""Exact sums of very many doubles in constant time an addition.

An accumulator is a fixed-point number that spans all doubles: int64 chunks of 32 bits each, the lowest bit of
chunk 0 being 2**-1074 (after Neal 2015, "Fast exact summation using small and large superaccumulators", whose
chunks are wider). Every addition changes three chunks by less than 2**32, so 2**31 additions cannot overflow one.
`drain` turns the sum into an expansion (see `sums`) and empties the accumulator.
"""

import math

import numpy as np

from calibrators._kernels.compiled import kernel
from calibrators._kernels.copying import put
from calibrators._kernels.double_double import two_product
from calibrators._kernels.sums import MAX_COMPONENTS, add, whole_total

CHUNKS = 68
_LOW = np.int64(0xFFFFFFFF)
_WHOLE = np.int64(1 << 53)  # doubles hold every whole number below


@kernel(inline=True)
def accumulate(accumulator, slot, bits, x):
    """Add x. slot : float64 array, shape (1,), scratch; bits : the same memory as uint64."""
    slot[0] = x
    word = bits[0]
    exponent = np.int64((word >> np.uint64(52)) & np.uint64(0x7FF))
    mantissa = word & np.uint64(0xFFFFFFFFFFFFF)
    if exponent > 0:
        mantissa |= np.uint64(0x10000000000000)
        exponent -= 1
    i = exponent >> 5
    shift = np.uint64(exponent & 31)
    low = np.int64((mantissa << shift) & np.uint64(0xFFFFFFFF))
    rest = mantissa >> (np.uint64(32) - shift)
    middle = np.int64(rest & np.uint64(0xFFFFFFFF))
    high = np.int64(rest >> np.uint64(32))
    if x < 0.0:
        low, middle, high = -low, -middle, -high
    accumulator[i] += low
    accumulator[i + 1] += middle
    accumulator[i + 2] += high


@kernel(inline=True)
def accumulate_product(accumulator, slot, bits, x, y):
    """Add x * y without rounding it (while neither overflows 1e300 nor its last bits fall below 2**-1074)."""
    high, low = two_product(x, y)
    accumulate(accumulator, slot, bits, high)
    if low != 0.0:
        accumulate(accumulator, slot, bits, low)


@kernel
def drain(accumulator, components):
    """Move the sum, if >= 0, into components as an expansion, padded with zeros; return its length. O(chunks)."""
    return drain_part(accumulator, 0, CHUNKS, components)


@kernel
def drain_part(accumulator, first, last, components):
    """`drain` where all chunks but first, ..., last - 1 are zero."""
    carry = np.int64(0)
    n = 0
    for i in range(first, last):
        total = accumulator[i] + carry
        accumulator[i] = 0
        carry = total >> 32
        rest = total & _LOW
        if rest != 0:
            n = add(components, n, math.ldexp(float(rest), 32 * i - 1074))
    if carry != 0:
        n = add(components, n, math.ldexp(float(carry), 32 * last - 1074))
    for i in range(n, components.size):
        components[i] = 0.0
    return n


@kernel
def whole_as_components(total, components):
    """Write the int64 total >= 0 into components as an expansion, padded with zeros; return its length."""
    if total < _WHOLE:
        components[0] = float(total)
        n = np.int64(total > 0)
    else:
        n = add(components, 0, float(total & _LOW))
        n = add(components, n, float(total >> 32) * 4294967296.0)
    for i in range(n, components.size):
        components[i] = 0.0
    return n


@kernel
def merge(rows):
    """Exact sums of rows of addends, shape (sums, addends), as expansions padded with zeros to one length."""
    out = np.zeros((rows.shape[0], MAX_COMPONENTS))
    widest = 1
    for r in range(rows.shape[0]):
        n = 0
        for j in range(rows.shape[1]):
            if rows[r, j] != 0.0:
                n = add(out[r], n, rows[r, j])
        for j in range(n, MAX_COMPONENTS):
            out[r, j] = 0.0
        widest = max(widest, n)
    return out[:, :widest].copy()


_STRIP = 1024
_ROOM = 11
"""Bits that a sum of `_STRIP` numbers may have more than the largest of them."""
_LANES = 8
_HUGE = 2.0**1000


@kernel
def _largest_magnitude(raw):
    """The bits of the largest magnitude. raw : int64 array, the bits of doubles."""
    largest = np.int64(0)
    for i in range(raw.size):
        largest = max(largest, raw[i] & np.int64(0x7FFFFFFFFFFFFFFF))
    return largest


@kernel
def _take_leading(strip, sigma, lanes):
    """Move of every number what is a multiple of sigma's last bit into sums, which stay exact."""
    for i in range(0, _STRIP, _LANES):
        # As many sums as vector instructions add at a time.
        for j in range(_LANES):
            x = strip[i + j]
            leading = (sigma + x) - sigma
            lanes[j] += leading
            strip[i + j] = x - leading


@kernel
def expansion_of(values):
    """The exact sum of values >= 0 as an expansion: `sums.expansion_of` for very many.

    Strips of numbers lose their leading bits, as many as can be added up without rounding, until nothing is left
    (Rump, Ogita and Oishi 2008, "Accurate floating-point summation"); most weights take two rounds.
    """
    components = np.empty(MAX_COMPONENTS)
    total, exact = whole_total(values)
    if exact:
        return components[: add(components, 0, total)].copy()
    accumulator = np.zeros(CHUNKS, np.int64)
    slot = np.empty(1)
    bits, magnitude = slot.view(np.uint64), slot.view(np.int64)
    strip = np.empty(_STRIP)
    raw = strip.view(np.int64)
    lanes = np.empty(_LANES)
    for start in range(0, values.size, _STRIP):
        n = min(_STRIP, values.size - start)
        put(strip, values[start : start + n])
        for i in range(n, _STRIP):
            strip[i] = 0.0
        magnitude[0] = _largest_magnitude(raw)
        largest = slot[0]
        if largest > _HUGE:  # sigma would overflow
            for i in range(n):
                accumulate(accumulator, slot, bits, strip[i])
            continue
        while largest > 0.0:
            for j in range(_LANES):
                lanes[j] = 0.0
            _take_leading(strip, math.ldexp(1.0, math.frexp(largest)[1] + _ROOM), lanes)
            leading = 0.0
            for j in range(_LANES):
                leading += lanes[j]
            accumulate(accumulator, slot, bits, leading)
            magnitude[0] = _largest_magnitude(raw)
            largest = slot[0]
    return components[: drain(accumulator, components)].copy()
