"""The near-isotonic solution at one lambda, where the ends of the points are not known.

The sums of weight times level, from left to right, are a string pulled tight in a tube: at the end of each block it is
at most the sum of the positives so far, and at least lambda less (Davies & Kovac 2001). It bends down where the levels
fall, on the tube's lower bound, and up where they rise, on the upper. So from the last bend on, two hulls are enough:
the convex one under the upper bound and the concave one over the lower. When they cross, the string has to bend where
the first stretch of the one that was there before ends.

A part of the points knows how low in the tube its string begins, and ends, no better than by the tube itself. Strings
do not cross: where the one that begins at the top and the one that begins at the bottom bend at the same place, all do,
and from there on they are one. And a bend does not depend on what follows.
"""

import numpy as np

from calibrators._kernels.compiled import kernel
from calibrators._kernels.pava import add_sums, level_difference


@kernel(inline=True)
def _steeper(one, other, exact):
    """Tell whether one rises more than the other. one, other : k, its low part, w, its low part."""
    a = one[0] * other[2]
    b = other[0] * one[2]
    if abs(a) + abs(b) < exact:
        return a > b
    return level_difference(one, other) > 0.0


@kernel(inline=True)
def _add(one, other, exact):
    """Two neighbouring stretches as one."""
    if exact > 0.0:
        return one[0] + other[0], 0.0, one[2] + other[2], 0.0
    k, k_low = add_sums(one[0], one[1], other[0], other[1])
    w, w_low = add_sums(one[2], one[3], other[2], other[3])
    return k, k_low, w, w_low


@kernel(inline=True)
def _raised(one, lam, exact):
    """The stretch, if it ended higher by lambda."""
    if exact > 0.0:
        return one[0] + lam, 0.0, one[2], 0.0
    k, k_low = add_sums(one[0], one[1], lam, 0.0)
    return k, k_low, one[2], one[3]


@kernel(inline=True)
def _without(total, one, exact):
    """The rest of a stretch, without its first part."""
    return _add(total, (-one[0], -one[1], -one[2], -one[3]), exact)


@kernel
def _bends(sums, falls, tube, start, other):
    """The bends of the string, by the number of the block before; up to the first that `other` has too.

    tube : lambda, and the `exact` of `settled`. start : how far below the top it begins.
    """
    weight, weight_low, positives, positives_low = sums
    lam, exact = tube
    m = falls.size
    has_low = weight_low.size > 0
    bends = np.empty(m, np.int64)
    # The hulls: the stretches and where they end. Memory that is not written to is none.
    upper, lower = np.empty((m, 4)), np.empty((m, 4))
    upper_end, lower_end = np.empty(m, np.int64), np.empty(m, np.int64)
    n = common = u = u_size = v = v_size = 0
    total = (0.0, 0.0, 0.0, 0.0)
    for j in range(m):
        block = (positives[j], 0.0, weight[j], 0.0)
        if has_low:
            block = (positives[j], positives_low[j], weight[j], weight_low[j])
        total = _add(total, block, exact)
        new = block
        while u_size > u:
            p = upper[u_size - 1]
            before = (p[0], p[1], p[2], p[3])
            if _steeper(new, before, exact):
                break
            new = _add(before, new, exact)
            u_size -= 1
        if u_size == u:
            new, u, u_size = _raised(total, start, exact), 0, 0
        upper[u_size, 0], upper[u_size, 1], upper[u_size, 2], upper[u_size, 3] = new
        upper_end[u_size] = j
        u_size += 1
        new = block
        while v_size > v:
            p = lower[v_size - 1]
            before = (p[0], p[1], p[2], p[3])
            if _steeper(before, new, exact):
                break
            new = _add(before, new, exact)
            v_size -= 1
        if v_size == v:
            new, v, v_size = _raised(total, start - lam, exact), 0, 0
        lower[v_size, 0], lower[v_size, 1], lower[v_size, 2], lower[v_size, 3] = new
        lower_end[v_size] = j
        v_size += 1
        while True:
            p, q = upper[u], lower[v]
            top, bottom = (p[0], p[1], p[2], p[3]), (q[0], q[1], q[2], q[3])
            if not _steeper(bottom, top, exact):
                break
            down = u_size == u + 1
            if down:
                end = lower_end[v]
                total = _without(total, _raised(bottom, lam - start, exact), exact)
                start = lam
                v += 1
                new = _raised(total, lam, exact)
                u, u_size = 0, 1
                upper[0, 0], upper[0, 1], upper[0, 2], upper[0, 3] = new
                upper_end[0] = j
            else:
                end = upper_end[u]
                total = _without(total, _raised(top, -start, exact), exact)
                start = 0.0
                u += 1
                new = _raised(total, -lam, exact)
                v, v_size = 0, 1
                lower[0, 0], lower[0, 1], lower[0, 2], lower[0, 3] = new
                lower_end[0] = j
            # Rounding could bend it where levels are equal: that is none.
            if falls[end] == down:
                bends[n] = end
                n += 1
                while common < other.size and other[common] < end:
                    common += 1
                if common < other.size and other[common] == end:
                    return bends[:n]
    return bends[:n]


@kernel
def settled(sums, falls, lam, exact):
    """The ends of blocks of the solution at lambda that do not depend on what lies beyond both ends. O(m).

    Parameters
    ----------
    sums : four float64 arrays, shape (m,): weight, its low parts, positives, theirs; of neighbours that are each
        part of a block of the solution. The low parts may be of shape (0,), for zeros.
    falls : bool array, shape (m,): whether the gap after each falls
    lam : float > 0
    exact : float: products below it are exact, and all sums; 0 if they are not

    Returns
    -------
    ends : int64 array, ascending: the last of each block; between two of them lies nothing else
    """
    tube = (lam, exact)
    all_ends = _bends(sums, falls, tube, 0.0, np.empty(0, np.int64))
    ends = _bends(sums, falls, tube, lam, all_ends)
    if ends.size > 0:
        i = np.searchsorted(all_ends, ends[-1])
        if i < all_ends.size and all_ends[i] == ends[-1]:
            return all_ends[i:].copy()
    return all_ends[:0].copy()
