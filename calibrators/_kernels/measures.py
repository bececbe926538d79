"""Sums over a part of the points in ascending order of their predictions, without rounding.

Every sum is linear in weight and positives at a given prediction and is returned as an expansion (see `sums`), so
that neither cutting a part in two nor splitting a tie changes it. Arguments common to all:

p : float64 array, shape (m,), ascending predictions; equal neighbours are a tie
w, k : float64 arrays, shape (m,), weight > 0 and positives in [0, weight]

Where w and k are counts, that is whole numbers with a sum of at most `COUNTS_LIMIT`, `count_sums` takes the same sums
several times as fast.
"""

import numpy as np

from calibrators._kernels.accumulators import (
    CHUNKS,
    accumulate,
    accumulate_product,
    drain,
)
from calibrators._kernels.compiled import kernel
from calibrators._kernels.copying import put
from calibrators._kernels.logarithm import log_in_place
from calibrators._kernels.sums import MAX_COMPONENTS, add

COUNTS_LIMIT = 2.0**30
"""Twice its square fits an int64."""

_MANY = 2.0**31
_STRIP = 1024

TINY = 2.0**-200
"""Predictions below count as 0, but in the log loss of positives: their products stay exact."""

_SUBNORMAL = 2.0**-1022
_UP = 2.0**64
_LOG_UP = 44.3614195558364998  # of _UP


@kernel
def counts_and_whole(w, k):
    """Whether all numbers are whole, and whether they are counts (above)."""
    total = np.int64(0)
    for start in range(0, w.size, _STRIP):
        broken = np.int64(0)
        # Without branches and in whole numbers, so that it is several at a time.
        for i in range(start, min(start + _STRIP, w.size)):
            broken += np.int64(w[i] != np.floor(w[i])) + np.int64(k[i] != np.floor(k[i]))
            total += np.int64(min(w[i], _MANY))
        if broken != 0:
            return False, False
    return total <= COUNTS_LIMIT, True


@kernel
def ascending(p):
    """Whether no prediction lies below the one before."""
    falls = np.int64(0)
    for i in range(1, p.size):
        falls += np.int64(not p[i - 1] <= p[i])
    return falls == 0


@kernel
def segment_sums(p, w, k, edges):
    """Sums per segment, the predictions with edges[j - 1] <= p < edges[j]: shape (segments, 4, components).

    The four are: weight, positives, weight times prediction, squares of the weights.
    """
    segments = edges.size + 1
    out = np.zeros((segments, 4, MAX_COMPONENTS))
    accumulators = np.zeros((4, CHUNKS), np.int64)
    weights, hits, products, squares = accumulators[0], accumulators[1], accumulators[2], accumulators[3]
    slot = np.empty(1)
    bits = slot.view(np.uint64)
    m = p.size
    widest = 1
    i = 0
    for j in range(segments):
        limit = edges[j] if j < edges.size else np.inf
        start = i
        while i < m and p[i] < limit:
            x = p[i] if p[i] >= TINY else 0.0
            accumulate(weights, slot, bits, w[i])
            accumulate(hits, slot, bits, k[i])
            accumulate_product(products, slot, bits, w[i], x)
            accumulate_product(squares, slot, bits, w[i], w[i])
            i += 1
        if i > start:
            for q in range(4):
                widest = max(widest, drain(accumulators[q], out[j, q]))
    return out[:, :, :widest].copy()


@kernel
def add_losses(p, w, k, squared, logs, infinite, slot, bits, work):
    """Add squared errors, log losses where finite, and the weight of the infinite ones, to accumulators.

    work : scratch: float64 arrays `values`, the same memory as int64, and two more.
    """
    values, value_bits, _, exponents = work
    for i in range(p.size):
        hits, misses = k[i], w[i] - k[i]
        # w >= k >= 0, so this is what rounding the difference lost.
        rest = (w[i] - misses) - k[i]
        x = p[i]
        small = x if x >= TINY else 0.0
        if hits > 0.0:
            if x > 0.0:
                values[0] = x if x >= _SUBNORMAL else x * _UP
                log_in_place(values, value_bits, exponents, 1)
                loss = -values[0] if x >= _SUBNORMAL else _LOG_UP - values[0]
                accumulate_product(squared, slot, bits, hits, (1.0 - x) * (1.0 - x))
                accumulate_product(logs, slot, bits, hits, loss)
            else:
                accumulate(squared, slot, bits, hits)
                accumulate(infinite, slot, bits, hits)
        if misses > 0.0:
            if x < 1.0:
                y = 1.0 - small
                values[0] = y
                log_in_place(values, value_bits, exponents, 1)
                # As in `count_sums`.
                loss = -(values[0] + ((1.0 - y) - small) * (2.0 - y))
                accumulate_product(squared, slot, bits, misses, small * small)
                accumulate_product(logs, slot, bits, misses, loss)
                if rest != 0.0:
                    accumulate_product(squared, slot, bits, rest, small * small)
                    accumulate_product(logs, slot, bits, rest, loss)
            else:
                accumulate(squared, slot, bits, misses)
                accumulate(infinite, slot, bits, misses)
                if rest != 0.0:
                    accumulate(squared, slot, bits, rest)
                    accumulate(infinite, slot, bits, rest)


@kernel
def loss_sums(p, w, k):
    """Sums of the squared errors, of the log losses where finite, and the weight of the infinite ones: (3, c).

    The log loss of a row is infinite where p = 0 and the label is 1, or p = 1 and the label is 0.
    """
    out = np.zeros((3, MAX_COMPONENTS))
    accumulators = np.zeros((3, CHUNKS), np.int64)
    slot, values = np.empty(1), np.empty(1)
    work = (values, values.view(np.int64), np.empty(1), np.empty(1))
    add_losses(p, w, k, accumulators[0], accumulators[1], accumulators[2], slot, slot.view(np.uint64), work)
    widest = 1
    for q in range(3):
        widest = max(widest, drain(accumulators[q], out[q]))
    return out[:, :widest].copy()


@kernel
def rank_sum(p, w, k):
    """The sum over ties of positives * (2 * weight below the tie + weight of the tie), as an expansion."""
    out = np.zeros(MAX_COMPONENTS)
    accumulator = np.zeros(CHUNKS, np.int64)
    slot = np.empty(1)
    bits = slot.view(np.uint64)
    below = np.empty(MAX_COMPONENTS)
    weight = np.empty(MAX_COMPONENTS)
    hits = np.empty(MAX_COMPONENTS)
    n_below = 0
    m = p.size
    i = 0
    while i < m:
        first = i
        n_weight = n_hits = 0
        while i < m and p[i] == p[first]:
            n_weight = add(weight, n_weight, w[i])
            n_hits = add(hits, n_hits, k[i])
            i += 1
        for a in range(n_hits):
            for b in range(n_below):
                accumulate_product(accumulator, slot, bits, hits[a], 2.0 * below[b])
            for b in range(n_weight):
                accumulate_product(accumulator, slot, bits, hits[a], weight[b])
        for b in range(n_weight):
            n_below = add(below, n_below, weight[b])
    return out[: max(1, drain(accumulator, out))].copy()


@kernel
def _crossings_of_counts(w, carry, targets):
    out = np.full(targets.size, w.size - 1, np.int64)
    before = np.int64(carry)
    j = 0
    for i in range(w.size):
        before += np.int64(w[i])
        while j < targets.size and before >= targets[j]:
            out[j] = i
            j += 1
        if j == targets.size:
            break
    return out


@kernel
def crossings(w, carry, targets, counts):
    """For each target the first index at which the exact cumulative weight reaches it.

    carry : expansion of the weight before w[0]. targets : float64 array, ascending, all within reach.
    """
    if counts and (carry.size == 0 or (carry.size == 1 and carry[0] == np.floor(carry[0]))):
        return _crossings_of_counts(w, carry[0] if carry.size > 0 else 0.0, targets)
    components = np.empty(MAX_COMPONENTS + 1)
    scratch = np.empty(MAX_COMPONENTS + 1)
    n = carry.size
    put(components, carry)
    out = np.full(targets.size, w.size - 1, np.int64)
    j = 0
    for i in range(w.size):
        n = add(components, n, w[i])
        while j < targets.size:
            # The largest component decides all but near-ties.
            if components[n - 1] < 0.999999 * targets[j]:
                break
            put(scratch, components[:n])
            rest = add(scratch, n, -targets[j])
            if rest > 0 and scratch[rest - 1] < 0.0:
                break
            out[j] = i
            j += 1
        if j == targets.size:
            break
    return out
