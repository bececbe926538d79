"""Near-isotonic solution at one lambda for a part of the points, by the taut string method.

The cumulative sum of weight times level is a string pulled tight in a tube. Its upper bound at the end of each block
is the sum of the positives so far, and its lower bound is lambda less (Davies & Kovac 2001). The string bends down at
the lower bound, where the levels fall, and up at the upper bound, where they rise. So two hulls from the last bend on
are enough: the convex hull under the upper bound and the concave hull over the lower bound. When a new block makes
them cross, the string bends at the end of the first segment of the older hull.

For a part of the points, the height of the string at either end is only known to be within the tube. Strings do not
cross. So where the string that starts at the top and the one that starts at the bottom have the same bend, every string
has that bend, and all strings are equal from there on. A bend does not depend on later points.
"""

import numpy as np

from calibrators.core.compiled import kernel
from calibrators.core.kernels.pava import add_sums, level_difference


@kernel(inline=True)
def _steeper(left, right, exact):
    """Tell whether segment `left` is steeper than `right`. A segment is k, its low part, w and its low part."""
    a = left[0] * right[2]
    b = right[0] * left[2]
    if abs(a) + abs(b) < exact:
        return a > b
    return level_difference(left, right) > 0.0


@kernel(inline=True)
def _add(left, right, exact):
    """Join two neighbouring segments."""
    if exact > 0.0:
        return left[0] + right[0], 0.0, left[2] + right[2], 0.0
    k, k_low = add_sums(left[0], left[1], right[0], right[1])
    w, w_low = add_sums(left[2], left[3], right[2], right[3])
    return k, k_low, w, w_low


@kernel(inline=True)
def _raised(segment, lam, exact):
    """Return the segment with its end raised by `lam`."""
    if exact > 0.0:
        return segment[0] + lam, 0.0, segment[2], 0.0
    k, k_low = add_sums(segment[0], segment[1], lam, 0.0)
    return k, k_low, segment[2], segment[3]


@kernel(inline=True)
def _without(total, first, exact):
    """Return a segment without its first part."""
    return _add(total, (-first[0], -first[1], -first[2], -first[3]), exact)


@kernel
def _bends(sums, falls, tube, start, other_bends):
    """Find the bends of the string, up to the first that is also in `other_bends`; a bend is the block that it ends.

    tube : lambda, and the `exact` of `settled_ends`
    start : distance of the string's start from the top of the tube
    """
    weight, weight_low, positives, positives_low = sums
    lam, exact = tube
    m = falls.size
    has_low = weight_low.size > 0
    bends = np.empty(m, np.int64)
    # The segments of both hulls and their last blocks. Pages that are not written to use no memory.
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
            # Skip a bend that only rounding makes, between equal levels.
            if falls[end] == down:
                bends[n] = end
                n += 1
                while common < other_bends.size and other_bends[common] < end:
                    common += 1
                if common < other_bends.size and other_bends[common] == end:
                    return bends[:n]
    return bends[:n]


@kernel
def settled_ends(sums, falls, lam, exact):
    """Find the block ends of the solution at lambda that do not depend on points beyond both ends. O(m).

    Parameters
    ----------
    sums : four float64 arrays, shape (m,): weight and its low part, positives and their low part, of neighbouring
        groups of points, each within one block of the solution. The low parts may be of shape (0,), for zeros.
    falls : bool array, shape (m,): whether the gap after each group falls
    lam : float > 0
    exact : float: all sums, and products below it, are exact; 0 if they are not

    Returns
    -------
    ends : int64 array, ascending: last groups of consecutive blocks
    """
    tube = (lam, exact)
    all_ends = _bends(sums, falls, tube, 0.0, np.empty(0, np.int64))
    ends = _bends(sums, falls, tube, lam, all_ends)
    if ends.size > 0:
        i = np.searchsorted(all_ends, ends[-1])
        if i < all_ends.size and all_ends[i] == ends[-1]:
            return all_ends[i:].copy()
    return all_ends[:0].copy()
