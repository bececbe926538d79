"""Partial pooling of many groups: each group shifts and stretches one shared curve, shrunken towards no change.

Built from additions, multiplications, divisions and the project's own exponential and logarithm, in the order of the
groups, so that every machine gives the same bits.
"""

import numpy as np

from calibrators._kernels.compiled import kernel
from calibrators._kernels.log_odds import BLOCK, fill, log_of, probability_of

_ROUNDS = 100
_HALVINGS = 40
_ROOM = 2.0**1000  # for a product of determinants
_SMALL = 1e-7  # of a step, beside 1: the next one, of its square, would not change the optimum
_FEW = 16  # numbers that take longer several at a time


@kernel
def stretches(first, starts, parent, edges, edge_starts):
    """Divide the items of groups into stretches that lie within a block range.

    Parameters
    ----------
    first : float64 array, shape (n,): first scores of items, group after group, ascending in each
    starts : int64 array, shape (groups + 1,)
    parent : integer array, shape (groups,): the map whose block ranges each group uses
    edges : float64 array: where the block ranges begin, parent after parent, ascending in each
    edge_starts : int64 array, shape (parents + 1,)

    Returns
    -------
    begin : int64 array, shape (stretches,): the first item of each. block_range : its place among `edges`
    sizes : int64 array, shape (groups,): stretches of each
    """
    sizes = np.zeros(parent.size, np.int64)
    begin, block_range = np.empty(first.size, np.int64), np.empty(first.size, np.int64)
    m = 0
    for g in range(parent.size):
        base = m
        at = edge_starts[parent[g]]
        end = edge_starts[parent[g] + 1]
        for i in range(starts[g], starts[g + 1]):
            beyond = at + 1 < end and edges[at + 1] <= first[i]
            if beyond:
                at = _edge_below(edges, at, end, first[i])
            if beyond or i == starts[g]:
                begin[m], block_range[m] = i, at
                m += 1
        sizes[g] = m - base
    return begin[:m].copy(), block_range[:m].copy(), sizes


@kernel
def _edge_below(edges, at, end, a):
    """The last place from `at` to `end` whose edge is not above a; that of `at` is not. Near ones are found first."""
    step = 1
    while at + step < end and edges[at + step] <= a:
        at += step
        step *= 2
    high = min(at + step, end)
    while high - at > 1:
        middle = (at + high) >> 1
        if edges[middle] <= a:
            at = middle
        else:
            high = middle
    return at


@kernel
def pool_ranks_within(rows, starts, distinct, parent, edges, edge_starts, pooled):
    """Pool rows of weight 1, whose scores are ranks, within stretches: see `stretches`.

    Parameters
    ----------
    rows : uint32 array, fewer than 2**31: of each row twice its score's rank, plus its label; ascending in each group
    starts : int64 array, shape (groups + 1,)
    distinct : float64 array: the score of each rank
    parent, edge_starts : as in `stretches`. edges : int32 array, ranks
    pooled : bool array, shape (groups,): whether isotonic regression pools a group; else a stretch is one item

    Returns
    -------
    items : float64 array, shape (4, m): the first and the last score of each, its rows, the positive ones
    ranks : int32 array, shape (m,): of the first scores
    sizes : int64 array, shape (groups,)
    """
    groups = starts.size - 1
    sizes = np.zeros(groups, np.int64)
    out = np.empty((4, rows.size), np.int32)
    first, last, weight, positives = out[0], out[1], out[2], out[3]
    m = 0
    for g in range(groups):
        base = start = m
        at = edge_starts[parent[g]]
        end = edge_starts[parent[g] + 1]
        i, stop = starts[g], starts[g + 1]
        pools = pooled[g]
        while i < stop:
            rank = begin = np.int64(rows[i] >> 1)
            w = k = np.int64(0)
            while i < stop and np.int64(rows[i] >> 1) == rank:
                w += 1
                k += np.int64(rows[i] & 1)
                i += 1
            if at + 1 < end and edges[at + 1] <= rank:
                at = _edge_below(edges, at, end, rank)
                start = m
            while m > start and not (pools and positives[m - 1] * w < k * weight[m - 1]):
                m -= 1
                begin = np.int64(first[m])
                w += weight[m]
                k += positives[m]
            first[m], last[m], weight[m], positives[m] = begin, rank, w, k
            m += 1
        sizes[g] = m - base
    items = np.empty((4, m))
    for j in range(m):
        items[0, j] = distinct[first[j]]
        items[1, j] = distinct[last[j]]
        items[2, j] = weight[j]
        items[3, j] = positives[j]
    return items, first[:m].copy(), sizes


@kernel
def _derivatives(cells, start, stop, centre, a, d, scratch, out):
    """Gradient and information of one group's log likelihood at (a, d) into out: g_a, g_d, h_aa, h_ad, h_dd.

    cells : logit, base, weight, positives: see `move_curves`
    scratch : float64 array, shape (BLOCK,), and int64, shape (4, BLOCK)
    """
    logit, base, weight, positives = cells
    chance, memory = scratch
    g_a = g_d = h_aa = h_ad = h_dd = 0.0
    for begin in range(start, stop, BLOCK):
        n = min(BLOCK, stop - begin)
        for j in range(n):
            chance[j] = base[begin + j] + a + d * (logit[begin + j] - centre)
        if n < _FEW:
            for j in range(n):
                chance[j] = probability_of(chance[j])
        else:
            fill(chance[:n], chance[:n], memory)
        for j in range(n):
            i = begin + j
            x = logit[i] - centre
            p = chance[j]
            residual = positives[i] - weight[i] * p
            information = weight[i] * p * (1.0 - p)
            g_a += residual
            g_d += residual * x
            h_aa += information
            h_ad += information * x
            h_dd += information * x * x
    out[0], out[1], out[2], out[3], out[4] = g_a, g_d, h_aa, h_ad, h_dd


@kernel
def _climb(cells, start, stop, centre, inverse_a, inverse_d, move_a, move_d, a, d, scratch, out):
    """Newton's method on the penalised log likelihood, which is concave; steps are halved that go too far.

    Returns the optimum, and leaves the derivatives there in `out`.

    inverse_a, inverse_d : one over the variances. move_a, move_d : which of a and d are moved
    """
    _derivatives(cells, start, stop, centre, a, d, scratch, out)
    for _ in range(_ROUNDS):
        g_a, g_d = out[0] - a * inverse_a, out[1] - d * inverse_d
        h_aa, h_ad, h_dd = out[2] + inverse_a, out[3], out[4] + inverse_d
        if move_a and move_d:
            determinant = h_aa * h_dd - h_ad * h_ad
            step_a = (h_dd * g_a - h_ad * g_d) / determinant
            step_d = (h_aa * g_d - h_ad * g_a) / determinant
        elif move_a:
            step_a, step_d = g_a / h_aa, 0.0
        else:
            step_a, step_d = 0.0, g_d / h_dd
        slope = step_a * g_a + step_d * g_d
        t = 1.0
        for _ in range(_HALVINGS):
            _derivatives(cells, start, stop, centre, a + t * step_a, d + t * step_d, scratch, out)
            there = step_a * (out[0] - (a + t * step_a) * inverse_a) + step_d * (
                out[1] - (d + t * step_d) * inverse_d
            )
            # Along a step the slope falls; where it has turned as steep the other way, the step was too long.
            if there >= -0.5 * slope:
                break
            t *= 0.5
        else:
            _derivatives(cells, start, stop, centre, a + t * step_a, d + t * step_d, scratch, out)
        a += t * step_a
        d += t * step_d
        if max(abs(step_a), abs(step_d)) <= _SMALL:
            break
    return a, d


@kernel
def move_curves(logit, base, weight, positives, starts, centre, variance_a, variance_d, theta, derivatives):
    """The penalised optimum of each group: logit p = base + a + d x, a ~ N(0, variance_a), d ~ N(0, variance_d).

    Parameters
    ----------
    logit, base, weight, positives : float64 arrays, shape (cells,), group after group
    starts : int64 array, shape (groups + 1,)
    centre : float64 array, shape (groups,): x is logit less it
    variance_a, variance_d : >= 0; with 0 the parameter is 0
    theta : float64 array, shape (groups, 2): where to begin; the optimum is written there. d >= -1
    derivatives : float64 array, shape (groups, 5): gradient and information of the log likelihood there, for `evidence`
    """
    cells = (logit, base, weight, positives)
    scratch = (np.empty(BLOCK), np.empty((4, BLOCK), np.int64))
    move_a, move_d = variance_a > 0.0, variance_d > 0.0
    inverse_a = 1.0 / variance_a if move_a else 0.0
    inverse_d = 1.0 / variance_d if move_d else 0.0
    for g in range(starts.size - 1):
        out = derivatives[g]
        a = theta[g, 0] if move_a else 0.0
        d = theta[g, 1] if move_d else 0.0
        start, stop = starts[g], starts[g + 1]
        if move_a or move_d:
            a, d = _climb(
                cells, start, stop, centre[g], inverse_a, inverse_d, move_a, move_d, a, d, scratch, out
            )
        else:
            _derivatives(cells, start, stop, centre[g], a, d, scratch, out)
        if d < -1.0:
            # A curve that falls is no calibration: the flat one.
            d = -1.0
            if move_a:
                a, d = _climb(
                    cells, start, stop, centre[g], inverse_a, inverse_d, True, False, a, d, scratch, out
                )
            else:
                _derivatives(cells, start, stop, centre[g], a, d, scratch, out)
        theta[g, 0], theta[g, 1] = a, d


@kernel
def evidence(theta, derivatives, variances, out):
    """Laplace's log evidence of each pair of variances, summed over the groups in their order.

    With g, H gradient and information at theta and b = g + H theta: 1/2 b' (H + T^-1)^-1 b - 1/2 log det(I + T H).
    Determinants are multiplied for as long as doubles can hold that, and their logarithm is taken then: one of each
    would be most of the work.

    variances : float64 array, shape (n,), ascending, the candidates for both. out : float64 array, shape (n, n)
    """
    n = variances.size
    largest = variances[n - 1]
    product = np.ones((n, n))
    tops = np.zeros((n, n))
    out[:] = 0.0
    room = _ROOM
    for g in range(theta.shape[0]):
        g_a, g_d, h_aa, h_ad, h_dd = derivatives[g]
        b_a = g_a + h_aa * theta[g, 0] + h_ad * theta[g, 1]
        b_d = g_d + h_ad * theta[g, 0] + h_dd * theta[g, 1]
        whole = max(h_aa * h_dd - h_ad * h_ad, 0.0)
        aa, ad, dd = b_a * b_a, 2.0 * h_ad * b_a * b_d, b_d * b_d
        # Determinants are 1 or more, and that of the largest variances is the largest.
        most = 1.0 + largest * (h_aa + h_dd + largest * whole)
        if most > room:
            for i in range(n):
                for j in range(n):
                    out[i, j] -= log_of(product[i, j])
                    product[i, j] = 1.0
            room = _ROOM
        room /= most
        for i in range(n):
            s = variances[i]
            s_aa, s_ad, s_ha, s_whole = s * aa, s * ad, 1.0 + s * h_aa, h_dd + s * whole
            for j in range(n):
                t = variances[j]
                determinant = s_ha + t * s_whole
                # b' (H + T^-1)^-1 b with T^-1 multiplied away, so that a variance of 0 drops out by itself.
                top = s_aa * (1.0 + t * h_dd) + t * (dd * s_ha - s_ad)
                product[i, j] *= determinant
                tops[i, j] += top / determinant
    for i in range(n):
        for j in range(n):
            out[i, j] = 0.5 * (tops[i, j] + out[i, j] - log_of(product[i, j]))
