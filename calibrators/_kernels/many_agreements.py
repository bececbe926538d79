"""Cox's line, the ICI and what losses are made of, of very many columns of probabilities, one after the other.

The same doubles as `calibrators.measures.spread` and `calibrators.measures.decomposition` take of each column
alone, where weights are
counts of rows: cells and blocks hold whole numbers.
"""

import math

import numpy as np

from calibrators._kernels.block_losses import mean_losses
from calibrators._kernels.compiled import kernel
from calibrators._kernels.cox import line
from calibrators._kernels.expansions import NO
from calibrators._kernels.pava import pool
from calibrators._kernels.search import first_at
from calibrators._kernels.sums import MAX_COMPONENTS, add, rounded

NUMBERS = 9


@kernel
def agreements_each(p, w, k, starts, edges, losses, enough, found):
    """Of each column with enough rows of either label what its losses are made of, its line and its ICI.

    Parameters
    ----------
    p, w, k, starts : see `many_measures.assess_each`; p in [0, 1]
    edges : float64 array, ascending: of the cells of `calibrators.measures.spread`
    losses : float64 array, shape (columns, 2): Brier score and log loss
    enough : float64
    found : float64 array, shape (columns, NUMBERS): of the Brier score the miscalibration and the discrimination, of
        the log loss both, of the line the intercept, its error, the slope and its error, and the ICI. NaN: there is no
        such number
    """
    for c in range(starts.size - 1):
        first, end = starts[c], starts[c + 1]
        q, v, h = p[first:end], w[first:end], k[first:end]
        total, hits = _total(v), _total(h)
        if min(hits, total - hits) < enough:
            found[c] = np.nan
            continue
        _parts(q, v, h, total, losses[c], found[c, :4])
        cells = np.empty((3, q.size))
        n = _cells(q, v, h, edges, cells)
        _line(cells[0, :n], cells[1, :n], cells[2, :n], found[c, 4:8])
        found[c, 8] = _mean_distance(cells[0, :n], cells[1, :n], cells[2, :n], total)


@kernel
def _total(counts):
    total = 0.0
    for i in range(counts.size):
        total += counts[i]
    return total


@kernel
def _pooled(p, w, k):
    """Isotonic blocks: first predictions, weights and positives."""
    none = np.empty(0)
    first, _, weight, _, positives, _ = pool(p, p, w, none, k, none)
    return first, weight, positives


@kernel
def _parts(p, w, k, total, losses, found):
    """What losses are made of: see `calibrators.measures.decomposition.decompose_losses`."""
    _, weight, positives = _pooled(p, w, k)
    brier, log_loss, of_base, log_of_base = mean_losses(weight, positives)
    found[0], found[1] = _positive(losses[0] - brier), _positive(of_base - brier)
    found[2], found[3] = _positive(losses[1] - log_loss), _positive(log_of_base - log_loss)
    if math.isinf(losses[1]):
        found[2] = np.nan


@kernel(inline=True)
def _positive(x):
    return max(0.0, x)


@kernel
def _cells(p, w, k, edges, out):
    """The cells of predictions: their middles, weights and positives into the rows of `out`; returns their number.

    See `calibrators.measures.spread.spread_of_entries` and `join_spread`.
    """
    n, i, at = 0, 0, 0
    while i < p.size:
        low = p[i]
        at = first_at(edges, at, np.nextafter(low, np.inf))
        limit = edges[at] if at < edges.size else np.inf
        weight = positives = 0.0
        while i < p.size and p[i] < limit:
            weight += w[i]
            positives += k[i]
            i += 1
        out[0, n], out[1, n], out[2, n] = low + (p[i - 1] - low) / 2, weight, positives
        n += 1
    return n


@kernel
def _line(p, w, k, found):
    """Cox's line of cells: see `calibrators.measures.spread.cox`."""
    first, end = first_at(p, 0, np.nextafter(0.0, 1.0)), first_at(p, 0, 1.0)
    a, b, error_a, error_b = line(p[first:end], w[first:end], k[first:end], 0.0)
    found[0], found[1], found[2], found[3] = a, error_a, b, error_b


@kernel
def _mean_distance(p, w, k, total):
    """The ICI: see `calibrators.measures.spread.mean_distance`."""
    first, weight, positives = _pooled(p, w, k)
    components = np.empty(MAX_COMPONENTS)
    n, j = NO, 0
    for i in range(p.size):
        if j + 1 < first.size and p[i] >= first[j + 1]:
            j += 1
        level = min(positives[j] / weight[j], 1.0)
        n = add(components, n, w[i] * abs(p[i] - level))
    return rounded(components, n) / total
