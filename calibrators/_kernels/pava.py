"""Pool adjacent violators over blocks, with sums and comparisons that do not depend on how the input was cut.

Block sums are double-doubles (about 106 bits), exact for whole-number weights and, in practice, for any weights
that span fewer than some eight decades. Levels are compared by cross products: first in double precision, which
settles all but near-ties, then in double-doubles.
"""

import numpy as np
from numba import njit

from calibrators._kernels.double_double import add_pairs, two_product

_CLEAR = 1e-14  # relative difference of the cross products above which double precision decides
_EQUAL = 2.0**-98  # relative difference below which levels count as equal


@njit(cache=True, nogil=True, inline="always")
def level_difference(k1, k1_low, w1, w1_low, k2, k2_low, w2, w2_low):
    """The sign of k1/w1 - k2/w2 as -1.0, 0.0 or 1.0, for double-double sums."""
    a = k1 * w2
    b = k2 * w1
    if abs(a - b) > _CLEAR * (a + b):
        return 1.0 if a > b else -1.0
    ah, al = two_product(k1, w2)
    al += k1 * w2_low + k1_low * w2
    bh, bl = two_product(k2, w1)
    bl += k2 * w1_low + k2_low * w1
    d = (ah - bh) + (al - bl)
    if abs(d) <= _EQUAL * (a + b):
        return 0.0
    return 1.0 if d > 0.0 else -1.0


@njit(cache=True, nogil=True)
def pool(first, last, weight, weight_low, positives, positives_low):
    """Isotonic blocks of neighbouring blocks (Ayer et al. 1955; Barlow et al. 1972).

    The input blocks stand in ascending score order and need not be pooled themselves; a point is a block whose
    first and last score are equal and whose low parts are zero. Neighbours with equal levels are pooled too, so
    that the result is the unique coarsest one and pooling parts first, then what they leave, gives the same.

    Parameters
    ----------
    first, last : float64 arrays, shape (m,)
    weight, weight_low, positives, positives_low : float64 arrays, shape (m,) or, the low parts, (0,) for zeros
        Sums as double-doubles.

    Returns
    -------
    first, last, weight, weight_low, positives, positives_low : float64 arrays, shape (blocks,)
        Levels positives / weight strictly increase. O(m) time, O(blocks on the stack) memory.
    """
    m = first.size
    has_low = weight_low.size > 0
    capacity = min(m, 1024)
    stack = np.empty((capacity, 6))
    top = -1
    for i in range(m):
        a, b = first[i], last[i]
        w, k = weight[i], positives[i]
        wl = weight_low[i] if has_low else 0.0
        kl = positives_low[i] if has_low else 0.0
        while top >= 0 and (
            level_difference(stack[top, 4], stack[top, 5], stack[top, 2], stack[top, 3], k, kl, w, wl) >= 0.0
        ):
            a = stack[top, 0]
            w, wl = add_pairs(stack[top, 2], stack[top, 3], w, wl)
            k, kl = add_pairs(stack[top, 4], stack[top, 5], k, kl)
            top -= 1
        top += 1
        if top == capacity:
            capacity = min(m, 2 * capacity)
            larger = np.empty((capacity, 6))
            larger[:top] = stack[:top]
            stack = larger
        stack[top, 0], stack[top, 1] = a, b
        stack[top, 2], stack[top, 3] = w, wl
        stack[top, 4], stack[top, 5] = k, kl
    n = top + 1
    return (
        stack[:n, 0].copy(), stack[:n, 1].copy(), stack[:n, 2].copy(),
        stack[:n, 3].copy(), stack[:n, 4].copy(), stack[:n, 5].copy(),
    )  # fmt: skip
