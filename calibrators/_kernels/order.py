"""The order of doubles by way of whole numbers."""

import numpy as np

from calibrators._kernels.compiled import kernel
from calibrators._kernels.copying import put

_FEW = 16
"""Numbers that insertion sorts faster."""


_TOP = np.uint64(1) << np.uint64(63)


@kernel(inline=True)
def ordinal(bits):
    """The bits of a double as a whole number in the order of the doubles."""
    # The bits of negative numbers ascend as the numbers descend.
    return ~bits if bits & _TOP else bits | _TOP


@kernel(inline=True)
def bits_of(number):
    """The bits of the double that `ordinal` made a number of."""
    return number ^ _TOP if number & _TOP else ~number


@kernel
def keys(raw, bits):
    """Whole numbers in the order of finite doubles up to their lowest bits, where the place stands instead.

    raw : uint64 array: the bits of doubles.
    bits : so many of the lowest bits; 2 ** bits places at most. Zeros of either sign are equal.
    """
    out = np.empty(raw.size, np.uint64)
    shift = np.uint64(bits)
    for i in range(raw.size):
        u = raw[i]
        if u == _TOP:
            u = np.uint64(0)
        out[i] = ((ordinal(u) >> shift) << shift) | np.uint64(i)
    return out


@kernel
def places(sorted_keys, values, bits):
    """The places of the values in ascending order, equal ones in the order of their places; in the keys' memory.

    What only the lowest bits tell apart is put in order here.
    """
    n = values.size
    shift = np.uint64(bits)
    mask = (np.uint64(1) << shift) - np.uint64(1)
    out = sorted_keys.view(np.int64)
    i = 0
    while i < n:
        prefix = sorted_keys[i] >> shift
        if i + 1 == n or sorted_keys[i + 1] >> shift != prefix:
            out[i] = np.int64(sorted_keys[i] & mask)
            i += 1
            continue
        start = i
        ascending = True
        before = -np.inf
        while i < n and sorted_keys[i] >> shift == prefix:
            place = np.int64(sorted_keys[i] & mask)
            ascending = ascending and values[place] >= before
            before = values[place]
            i += 1
        stretch = sorted_keys[start:i] & mask
        if not ascending:
            if i - start <= _FEW:
                _insert(stretch, values)
            else:
                stretch = stretch[np.argsort(values[stretch.view(np.int64)], kind="mergesort")]
        # Their keys are read no more.
        put(out[start:], stretch.view(np.int64))
    return out


@kernel
def _insert(stretch, values):
    for i in range(1, stretch.size):
        place = stretch[i]
        j = i
        while j > 0 and values[np.int64(stretch[j - 1])] > values[np.int64(place)]:
            stretch[j] = stretch[j - 1]
            j -= 1
        stretch[j] = place


@kernel
def gather_pairs(order, pairs):
    """Both columns of pairs, shape (n, 2), in an order: neighbours in memory cost one access."""
    n = order.size
    first = np.empty(n)
    second = np.empty(n)
    for i in range(n):
        j = order[i]
        first[i] = pairs[j, 0]
        second[i] = pairs[j, 1]
    return first, second
