"""The sums of `measures` where weights are counts: the same numbers, several points at a time.

Sums are fixed-point numbers in the chunks of an accumulator (see `accumulators`): a double in [0, 1] is cut into its
multiples of 2**-18, 2**-50 and 2**-82, whose products with a count are whole numbers, and whatever is left below is
added by itself. As counts add up to at most 2**30, no chunk overflows.
"""

import numpy as np

from calibrators._kernels.accumulators import (
    CHUNKS,
    accumulate_product,
    drain,
    drain_part,
    whole_as_components,
)
from calibrators._kernels.compiled import kernel
from calibrators._kernels.logarithm import log_in_place
from calibrators._kernels.measures import TINY, add_losses
from calibrators._kernels.search import end_of_tie
from calibrators._kernels.sums import MAX_COMPONENTS

WEIGHTS, PRODUCTS, LOSSES = 0, 1, 2
"""How much `sums_of_counts` takes."""

_STRIP = 512
_WIDTH = 16
"""Components of a sum of counts, and of their products with doubles between 2**-200 and 1, which spans 283 bits: most
segments are small, and are asked for by the hundred thousand."""
_FIRST, _LAST = 24, 37
"""The chunks of products with doubles between 2**-200 and 1: from 2**-306 to 2**110."""
_TOP = 33  # the chunk whose lowest bit is 2**-18
_UNIT = 262144.0  # 2**18
_NEXT = 4294967296.0  # 2**32


@kernel
def add_products(values, factors, n, accumulator, slot, bits):
    """Add values[i] * factors[i]: values in [0, 1024), factors whole."""
    a = b = c = d = np.int64(0)
    more = np.int64(0)
    for i in range(n):
        f = np.int64(factors[i])
        x = values[i] * _UNIT
        top = np.int64(x)
        x = (x - np.float64(top)) * _NEXT
        second = np.int64(x)
        x = (x - np.float64(second)) * _NEXT
        third = np.int64(x)
        x = (x - np.float64(third)) * _NEXT
        last = np.int64(x)
        a += f * top
        b += f * second
        c += f * third
        d += f * last
        more |= np.int64(x != np.float64(last))
    accumulator[_TOP] += a
    accumulator[_TOP - 1] += b
    accumulator[_TOP - 2] += c
    accumulator[_TOP - 3] += d
    if more:
        for i in range(n):
            x = values[i] * _UNIT
            for _ in range(3):
                x = (x - np.floor(x)) * _NEXT
            x -= np.floor(x)
            if x != 0.0:
                # 2**-114
                accumulate_product(accumulator, slot, bits, factors[i], x * 4.81482486096809e-35)


@kernel
def _add_losses(p, hits, factors, n, work, squared, logs, slot, bits):
    """Squared errors and log losses of rows of one label a point, for TINY <= p < 1. hits : 1 where it is 1, else 0."""
    values, value_bits, rest, exponents = work
    for i in range(n):
        y = 1.0 - p[i] if hits[i] != 0.0 else p[i]
        values[i] = y * y
    add_products(values, factors, n, squared, slot, bits)
    for i in range(n):
        x = p[i]
        if hits[i] != 0.0:
            values[i], rest[i] = x, 0.0
        else:
            # What rounding 1 - x lost; log(y + rest) = log(y) + rest / y, and 1 / y = 2 - y nearly.
            y = 1.0 - x
            values[i], rest[i] = y, ((1.0 - y) - x) * (2.0 - y)
    log_in_place(values, value_bits, exponents, n)
    for i in range(n):
        values[i] = -(values[i] + rest[i])
    add_products(values, factors, n, logs, slot, bits)


@kernel
def _end_tie(ranks):
    rank, below, weight, hits = ranks
    ranks[0] = rank + hits * (2 * below + weight)
    ranks[1] = below + weight
    ranks[2] = ranks[3] = 0


@kernel
def _add_ranks(p, w, k, start, stop, ranks):
    """Add the points start, ..., stop - 1 to `measures.rank_sum`.

    ranks : int64 array: the sum, the weight below the last tie, and the weight and positives of that tie, which may
        go on.
    """
    ties = others = np.int64(0)
    # Also with what stands beside the strip.
    for i in range(max(start, 1), min(stop + 1, p.size)):
        ties |= np.int64(p[i] == p[i - 1])
    for i in range(start, stop):
        others |= np.int64(w[i] != 1.0)
    if ties:
        for i in range(start, stop):
            if i == 0 or p[i] != p[i - 1]:
                _end_tie(ranks)
            ranks[2] += np.int64(w[i])
            ranks[3] += np.int64(k[i])
        return
    _end_tie(ranks)
    rank, below = ranks[0], ranks[1]
    if others:
        for i in range(start, stop):
            a = np.int64(w[i])
            rank += np.int64(k[i]) * (2 * below + a)
            below += a
    else:
        for i in range(start, stop):
            rank += np.int64(k[i]) * (2 * (below + i - start) + 1)
        below += stop - start
    ranks[0], ranks[1] = rank, below


@kernel(inline=True)
def _add_to_segment(p, w, k, squares, start, stop, depth, total, products, slot, bits):
    """Add the points start, ..., stop - 1 to a segment's weight, positives and squares, and to its products."""
    weight = hits = square = np.int64(0)
    for i in range(start, stop):
        a = np.int64(w[i])
        weight += a
        hits += np.int64(k[i])
        square += a * a
    if squares.size:
        square = np.int64(0)
        for i in range(start, stop):
            square += squares[i]
    total[0] += weight
    total[1] += hits
    total[2] += square
    if depth == WEIGHTS:
        return
    if p[start] < TINY or p[stop - 1] >= 1.0:
        for i in range(start, stop):
            if p[i] >= TINY:
                accumulate_product(products, slot, bits, w[i], p[i])
    else:
        add_products(p[start:stop], w[start:stop], stop - start, products, slot, bits)


@kernel
def _add_strip(q, v, h, label, misses, work, squared, logs, infinite, slot, bits):
    """Add the losses of a strip's points. label, misses : scratch for as many numbers."""
    n = q.size
    if q[0] < TINY or q[n - 1] >= 1.0:
        add_losses(q, v, h, squared, logs, infinite, slot, bits, work)
        return
    mixed = np.int64(0)
    for i in range(n):
        mixed |= np.int64((h[i] != 0.0) & (v[i] != h[i]))
    if not mixed:
        _add_losses(q, h, v, n, work, squared, logs, slot, bits)
        return
    for i in range(n):
        label[i], misses[i] = 1.0, v[i] - h[i]
    _add_losses(q, label, h, n, work, squared, logs, slot, bits)
    for i in range(n):
        label[i] = 0.0
    _add_losses(q, label, misses, n, work, squared, logs, slot, bits)


@kernel
def sums_of_counts(p, w, k, squares, bounds, depth):
    """The sums of `measures.segment_sums`, `loss_sums` and `rank_sum`, where w and k are counts.

    Parameters
    ----------
    p, w, k : as there. A point may stand for several that were tied.
    squares : int64 array, shape (m,): for each point the sum of the squares of the weights that were added up; shape
        (0,): the squares of w.
    bounds : int64 array, shape (segments + 1,): where each segment begins, and m.
    depth : `WEIGHTS`: p may be any numbers, and only weights, positives, squares and the rank sum are taken;
        `PRODUCTS`: p in [0, 1], and weights times p as well; `LOSSES`: and the losses.

    Returns
    -------
    arrays, shapes (segments, 4, components), (3, components), (components,)
    """
    segments = bounds.size - 1
    sums = np.zeros((segments, 4, _WIDTH))
    accumulators = np.zeros((4, CHUNKS), np.int64)
    products, squared, logs, infinite = accumulators[0], accumulators[1], accumulators[2], accumulators[3]
    slot = np.empty(1)
    bits = slot.view(np.uint64)
    values = np.empty(_STRIP)
    work = (values, values.view(np.int64), np.empty(_STRIP), np.empty(_STRIP))
    label, misses = np.empty(_STRIP), np.empty(_STRIP)
    ranks, total = np.zeros(4, np.int64), np.zeros(3, np.int64)
    j = 0
    while j < segments:
        # Small neighbours share a strip.
        after = j + 1
        while after < segments and bounds[after + 1] - bounds[j] <= _STRIP:
            after += 1
        for start in range(bounds[j], bounds[after], _STRIP):
            stop = min(start + _STRIP, bounds[after])
            for s in range(j, after):
                low, high = max(start, bounds[s]), min(stop, bounds[s + 1])
                if low < high:
                    _add_to_segment(p, w, k, squares, low, high, depth, total, products, slot, bits)
                    if high == bounds[s + 1]:
                        whole_as_components(total[0], sums[s, 0])
                        whole_as_components(total[1], sums[s, 1])
                        drain_part(products, _FIRST, _LAST, sums[s, 2])
                        whole_as_components(total[2], sums[s, 3])
                        total[0] = total[1] = total[2] = 0
            _add_ranks(p, w, k, start, stop, ranks)
            if depth == LOSSES:
                q, v, h = p[start:stop], w[start:stop], k[start:stop]
                _add_strip(q, v, h, label, misses, work, squared, logs, infinite, slot, bits)
        j = after
    _end_tie(ranks)
    losses = np.zeros((3, MAX_COMPONENTS))
    drain(squared, losses[0])
    drain(logs, losses[1])
    drain(infinite, losses[2])
    rank = np.zeros(MAX_COMPONENTS)
    whole_as_components(ranks[0], rank)
    return (
        _narrow(sums.reshape(-1, _WIDTH)).reshape(segments, 4, -1),
        _narrow(losses),
        _narrow(rank.reshape(1, -1))[0],
    )


@kernel
def _narrow(rows):
    """Without the columns that are zero in all rows."""
    width = 1
    for r in range(rows.shape[0]):
        for c in range(width, rows.shape[1]):
            if rows[r, c] != 0.0:
                width = c + 1
    return rows[:, :width].copy()


@kernel
def join_ties(p, w, k):
    """Points with equal p joined, as arrays p, w, k and the sums of the squares of the weights (int64).

    w, k : counts.
    """
    m = p.size
    n = 0
    for i in range(m):
        n += np.int64(i == 0 or p[i] != p[i - 1])
    q, v, h, squares = np.empty(n), np.empty(n), np.empty(n), np.empty(n, np.int64)
    i = 0
    for r in range(n):
        stop = end_of_tie(p, i)
        weight = hits = square = np.int64(0)
        for j in range(i, stop):
            a = np.int64(w[j])
            weight += a
            hits += np.int64(k[j])
            square += a * a
        q[r], v[r], h[r], squares[r] = p[i], float(weight), float(hits), square
        i = stop
    return q, v, h, squares
