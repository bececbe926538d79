"""Partial pooling of many groups: each group shifts and stretches one shared curve, shrunken towards no change.

Results have the same bits on every machine: the order of operations is fixed, and the exponential and logarithm are
those of `calibrators._kernels.log_odds`.
"""

import numpy as np

from calibrators._kernels.compiled import kernel
from calibrators._kernels.log_odds import BLOCK, fill, log_of, probability_of

_ROUNDS = 100
_HALVINGS = 40
_LARGEST_PRODUCT = 2.0**1000  # limit of a product of determinants
_SMALL = 1e-7  # length of the last step: the next one, about its square, would not change the optimum
_FEW = 16  # sizes below which vectorised loops are slower


@kernel
def group_pieces(first, starts, parent, edges, edge_starts):
    """Divide the items of each group into pieces, one for each block range that contains some.

    Parameters
    ----------
    first : float64 array, shape (n,): first scores of items, group after group, ascending in each
    starts : int64 array, shape (groups + 1,): first item of each group, and the end
    parent : integer array, shape (groups,): the map whose block ranges each group uses
    edges : float64 array: first scores of the block ranges, parent after parent, ascending in each
    edge_starts : int64 array, shape (parents + 1,): first edge of each parent, and the end

    Returns
    -------
    begin : int64 array, shape (pieces,): first item of each piece
    block_range : int64 array, shape (pieces,): index of its block range in `edges`
    sizes : int64 array, shape (groups,): number of pieces of each group
    """
    sizes = np.zeros(parent.size, np.int64)
    begin, block_range = np.empty(first.size, np.int64), np.empty(first.size, np.int64)
    count = 0
    for g in range(parent.size):
        base = count
        edge = edge_starts[parent[g]]
        end = edge_starts[parent[g] + 1]
        for i in range(starts[g], starts[g + 1]):
            beyond = edge + 1 < end and edges[edge + 1] <= first[i]
            if beyond:
                edge = _edge_below(edges, edge, end, first[i])
            if beyond or i == starts[g]:
                begin[count], block_range[count] = i, edge
                count += 1
        sizes[g] = count - base
    return begin[:count].copy(), block_range[:count].copy(), sizes


@kernel
def _edge_below(edges, edge, end, a):
    """Return the last index in [edge, end) with edges[index] <= a, by exponential search; edges[edge] <= a."""
    step = 1
    while edge + step < end and edges[edge + step] <= a:
        edge += step
        step *= 2
    high = min(edge + step, end)
    while high - edge > 1:
        middle = (edge + high) >> 1
        if edges[middle] <= a:
            edge = middle
        else:
            high = middle
    return edge


@kernel
def pool_ranks_within(rows, starts, distinct, parent, edges, edge_starts, pooled):
    """Pool rows of weight 1, whose scores are ranks, within the pieces that `group_pieces` makes.

    Parameters
    ----------
    rows : uint32 array, fewer than 2**31 rows: twice the rank of each row's score, plus its label; ascending in each
        group
    starts : int64 array, shape (groups + 1,): first row of each group, and the end
    distinct : float64 array: the score of each rank
    parent, edge_starts : as in `group_pieces`
    edges : int32 array: ranks of the first scores of the block ranges
    pooled : bool array, shape (groups,): whether to pool a group by isotonic regression; else a piece is one item

    Returns
    -------
    items : float64 array, shape (4, m): first score, last score, rows and positive rows of each item
    ranks : int32 array, shape (m,): ranks of the first scores
    sizes : int64 array, shape (groups,): number of items of each group
    """
    groups = starts.size - 1
    sizes = np.zeros(groups, np.int64)
    out = np.empty((4, rows.size), np.int32)
    first, last, weight, positives = out[0], out[1], out[2], out[3]
    m = 0
    for g in range(groups):
        base = start = m
        edge = edge_starts[parent[g]]
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
            if edge + 1 < end and edges[edge + 1] <= rank:
                edge = _edge_below(edges, edge, end, rank)
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
    """Write gradient and information of one group's log likelihood at (a, d) to out: g_a, g_d, h_aa, h_ad, h_dd.

    cells : logit, base, weight, positives: see `adjust_curves`
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
def _maximize(cells, start, stop, centre, inverse_a, inverse_d, free_a, free_d, a, d, scratch, out):
    """Maximise the penalised log likelihood, which is concave, by Newton's method; halve steps that go too far.

    Return the optimum, and write the derivatives there to `out`.

    inverse_a, inverse_d : inverse variances
    free_a, free_d : whether a and d are free parameters; otherwise they keep their values
    """
    _derivatives(cells, start, stop, centre, a, d, scratch, out)
    for _ in range(_ROUNDS):
        g_a, g_d = out[0] - a * inverse_a, out[1] - d * inverse_d
        h_aa, h_ad, h_dd = out[2] + inverse_a, out[3], out[4] + inverse_d
        if free_a and free_d:
            determinant = h_aa * h_dd - h_ad * h_ad
            step_a = (h_dd * g_a - h_ad * g_d) / determinant
            step_d = (h_aa * g_d - h_ad * g_a) / determinant
        elif free_a:
            step_a, step_d = g_a / h_aa, 0.0
        else:
            step_a, step_d = 0.0, g_d / h_dd
        slope = step_a * g_a + step_d * g_d
        t = 1.0
        for _ in range(_HALVINGS):
            _derivatives(cells, start, stop, centre, a + t * step_a, d + t * step_d, scratch, out)
            new_slope = step_a * (out[0] - (a + t * step_a) * inverse_a) + step_d * (
                out[1] - (d + t * step_d) * inverse_d
            )
            # The slope decreases along a step. The step is too long if the slope at its end is too negative.
            if new_slope >= -0.5 * slope:
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
def adjust_curves(logit, base, weight, positives, starts, centre, variance_a, variance_d, theta, derivatives):
    """Fit a and d of each group: logit p = base + a + d x, a ~ N(0, variance_a), d ~ N(0, variance_d).

    Parameters
    ----------
    logit, base, weight, positives : float64 arrays, shape (cells,), group after group
    starts : int64 array, shape (groups + 1,): first cell of each group, and the end
    centre : float64 array, shape (groups,): x is logit - centre
    variance_a, variance_d : >= 0; with 0 the parameter is 0
    theta : float64 array, shape (groups, 2): initial (a, d), replaced by the penalised optimum, d >= -1
    derivatives : float64 array, shape (groups, 5): filled with gradient and information of the log likelihood at the
        optimum, for `evidence`
    """
    cells = (logit, base, weight, positives)
    scratch = (np.empty(BLOCK), np.empty((4, BLOCK), np.int64))
    free_a, free_d = variance_a > 0.0, variance_d > 0.0
    inverse_a = 1.0 / variance_a if free_a else 0.0
    inverse_d = 1.0 / variance_d if free_d else 0.0
    for g in range(starts.size - 1):
        out = derivatives[g]
        a = theta[g, 0] if free_a else 0.0
        d = theta[g, 1] if free_d else 0.0
        start, stop = starts[g], starts[g + 1]
        if free_a or free_d:
            a, d = _maximize(
                cells, start, stop, centre[g], inverse_a, inverse_d, free_a, free_d, a, d, scratch, out
            )
        else:
            _derivatives(cells, start, stop, centre[g], a, d, scratch, out)
        if d < -1.0:
            # A decreasing curve is not allowed, so take the constant one.
            d = -1.0
            if free_a:
                a, d = _maximize(
                    cells, start, stop, centre[g], inverse_a, inverse_d, True, False, a, d, scratch, out
                )
            else:
                _derivatives(cells, start, stop, centre[g], a, d, scratch, out)
        theta[g, 0], theta[g, 1] = a, d


@kernel
def evidence(theta, derivatives, variances, out):
    """Compute Laplace's log evidence of each pair of variances, summed over the groups in their order.

    With g, H gradient and information at theta and b = g + H theta: 1/2 b' (H + T^-1)^-1 b - 1/2 log det(I + T H).
    To save logarithms, determinants are multiplied until the product could overflow.

    theta, derivatives : output of `adjust_curves`
    variances : float64 array, shape (n,), ascending: candidates for variance_a and for variance_d
    out : float64 array, shape (n, n), filled
    """
    n = variances.size
    largest = variances[n - 1]
    product = np.ones((n, n))
    quadratics = np.zeros((n, n))
    out[:] = 0.0
    room = _LARGEST_PRODUCT
    for g in range(theta.shape[0]):
        g_a, g_d, h_aa, h_ad, h_dd = derivatives[g]
        b_a = g_a + h_aa * theta[g, 0] + h_ad * theta[g, 1]
        b_d = g_d + h_ad * theta[g, 0] + h_dd * theta[g, 1]
        determinant_h = max(h_aa * h_dd - h_ad * h_ad, 0.0)
        aa, ad, dd = b_a * b_a, 2.0 * h_ad * b_a * b_d, b_d * b_d
        # Determinants are at least 1; the largest variances have the largest determinant.
        largest_determinant = 1.0 + largest * (h_aa + h_dd + largest * determinant_h)
        if largest_determinant > room:
            for i in range(n):
                for j in range(n):
                    out[i, j] -= log_of(product[i, j])
                    product[i, j] = 1.0
            room = _LARGEST_PRODUCT
        room /= largest_determinant
        for i in range(n):
            s = variances[i]
            s_aa, s_ad, s_ha, s_determinant = s * aa, s * ad, 1.0 + s * h_aa, h_dd + s * determinant_h
            for j in range(n):
                t = variances[j]
                determinant = s_ha + t * s_determinant
                # b' (H + T^-1)^-1 b, multiplied by T so that a variance of 0 needs no special case.
                quadratic = s_aa * (1.0 + t * h_dd) + t * (dd * s_ha - s_ad)
                product[i, j] *= determinant
                quadratics[i, j] += quadratic / determinant
    for i in range(n):
        for j in range(n):
            out[i, j] = 0.5 * (quadratics[i, j] + out[i, j] - log_of(product[i, j]))
