"""Rows of many groups, divided and pooled within the block ranges of their parents' maps."""

import numpy as np

from calibrators.core.compiled import kernel
from calibrators.core.kernels.pava import level_difference


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
def cells_within(first, last, weight, positives, starts, parent, edges, edge_starts, pooled):
    """Add up the items of each piece that `group_pieces` makes, and pool those of groups with own maps. O(items).

    Parameters
    ----------
    first, last, weight, positives : float64 arrays, shape (n,): items, group after group, ascending in each; sums are
        counts
    starts, parent, edges, edge_starts : as in `group_pieces`
    pooled : bool array, shape (groups,): whether to keep a group's items, pooled by isotonic regression

    Returns
    -------
    block_range : int64 array, shape (pieces,): index of each piece's block range in `edges`
    sums : float64 array, shape (3, pieces): weight, positives and first score of each piece
    sizes : int64 array, shape (2, groups): number of pieces and of pooled items of each group
    items : float64 array, shape (4, m): first score, last score, weight and positives of pooled items
    counts : int64 array: number of these items of each piece of pooled groups
    """
    sizes = np.empty((2, parent.size), np.int64)
    block_range, sums = np.empty(first.size, np.int64), np.empty((3, first.size))
    kept = 0
    for g in range(parent.size):
        kept += starts[g + 1] - starts[g] if pooled[g] else 0
    items, counts = np.empty((4, kept)), np.empty(kept, np.int64)
    n = m = pieces = 0
    for g in range(parent.size):
        sizes[0, g], sizes[1, g] = -n, -m
        edge, end = edge_starts[parent[g]], edge_starts[parent[g] + 1]
        for i in range(starts[g], starts[g + 1]):
            beyond = edge + 1 < end and edges[edge + 1] <= first[i]
            if beyond:
                edge = _edge_below(edges, edge, end, first[i])
            w, k = weight[i], positives[i]
            new = beyond or i == starts[g]
            if new:
                block_range[n] = edge
                sums[0, n], sums[1, n], sums[2, n] = w, k, first[i]
                n += 1
            else:
                sums[0, n - 1] += w
                sums[1, n - 1] += k
            if not pooled[g]:
                continue
            if new:
                counts[pieces] = 0
                pieces += 1
            a, inside = first[i], counts[pieces - 1]
            while (
                inside
                and level_difference((items[3, m - 1], 0.0, items[2, m - 1], 0.0), (k, 0.0, w, 0.0)) >= 0.0
            ):
                m -= 1
                inside -= 1
                a, w, k = items[0, m], w + items[2, m], k + items[3, m]
            items[0, m], items[1, m], items[2, m], items[3, m] = a, last[i], w, k
            m += 1
            counts[pieces - 1] = inside + 1
        sizes[0, g] += n
        sizes[1, g] += m
    return block_range[:n], sums[:, :n], sizes, items[:, :m], counts[:pieces]


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
    items : float64 array, shape (4, m): first score, last score (0 in groups that are not pooled, which need none),
        rows and positive rows of each item
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
    j = 0
    for g in range(groups):
        for _ in range(sizes[g]):
            items[0, j] = distinct[first[j]]
            items[1, j] = distinct[last[j]] if pooled[g] else 0.0
            items[2, j] = weight[j]
            items[3, j] = positives[j]
            j += 1
    return items, first[:m].copy(), sizes
