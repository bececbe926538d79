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
def _add(left, right, exact):
    """Join two neighbouring segments. A segment is k, its low part, w and its low part."""
    if exact:
        return left[0] + right[0], 0.0, left[2] + right[2], 0.0
    k, k_low = add_sums(left[0], left[1], right[0], right[1])
    w, w_low = add_sums(left[2], left[3], right[2], right[3])
    return k, k_low, w, w_low


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
            if level_difference(new, before) > 0.0:
                break
            new = _add(before, new, exact)
            u_size -= 1
        if u_size == u:
            k, k_low = add_sums(total[0], total[1], start, 0.0)
            new, u, u_size = (k, k_low, total[2], total[3]), 0, 0
        upper[u_size, 0], upper[u_size, 1], upper[u_size, 2], upper[u_size, 3] = new
        upper_end[u_size] = j
        u_size += 1
        new = block
        while v_size > v:
            p = lower[v_size - 1]
            before = (p[0], p[1], p[2], p[3])
            if level_difference(before, new) > 0.0:
                break
            new = _add(before, new, exact)
            v_size -= 1
        if v_size == v:
            k, k_low = add_sums(total[0], total[1], start - lam, 0.0)
            new, v, v_size = (k, k_low, total[2], total[3]), 0, 0
        lower[v_size, 0], lower[v_size, 1], lower[v_size, 2], lower[v_size, 3] = new
        lower_end[v_size] = j
        v_size += 1
        # Two single segments end lambda apart and do not cross, unless lambda is lost in rounding.
        while u_size - u > 1 or v_size - v > 1:
            p, q = upper[u], lower[v]
            top, bottom = (p[0], p[1], p[2], p[3]), (q[0], q[1], q[2], q[3])
            if level_difference(bottom, top) <= 0.0:
                break
            down = u_size == u + 1
            if down:
                end = lower_end[v]
                k, k_low, w, w_low = _add(bottom, (lam - start, 0.0, 0.0, 0.0), exact)
                total = _add(total, (-k, -k_low, -w, -w_low), exact)
                start = lam
                v += 1
                new = _add(total, (lam, 0.0, 0.0, 0.0), exact)
                u, u_size = 0, 1
                upper[0, 0], upper[0, 1], upper[0, 2], upper[0, 3] = new
                upper_end[0] = j
            else:
                end = upper_end[u]
                k, k_low, w, w_low = _add(top, (-start, 0.0, 0.0, 0.0), exact)
                total = _add(total, (-k, -k_low, -w, -w_low), exact)
                start = 0.0
                u += 1
                new = _add(total, (-lam, 0.0, 0.0, 0.0), exact)
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
    exact : bool: whether sums of weights, of positives and of lambda are exact; then the low parts are ignored

    Returns
    -------
    ends : int64 array, ascending: last groups of consecutive blocks
    """
    all_ends = _bends(sums, falls, (lam, exact), 0.0, np.empty(0, np.int64))
    ends = _bends(sums, falls, (lam, exact), lam, all_ends)
    if ends.size > 0:
        i = 0
        while i < all_ends.size and all_ends[i] < ends[-1]:
            i += 1
        if i < all_ends.size and all_ends[i] == ends[-1]:
            return all_ends[i:].copy()
    return all_ends[:0].copy()
