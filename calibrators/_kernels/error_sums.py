"""The sums behind error bars: of calibration in the large, of the AUC, and of the differences of two predictions.

Every sum is linear in weight and positives at a given prediction (but the AUC's, which take ties whole), and is exact
until it is rounded once, so neither cutting a part in two nor splitting a tie changes it. Arguments common to all:

p : float64 array, shape (m,), predictions in [0, 1]
w, k : float64 arrays, shape (m,), weight > 0 and positives in [0, weight]
counts : bool, whether both are counts (see `measures.COUNTS_LIMIT`)
"""

import numpy as np

from calibrators._kernels.accumulators import CHUNKS, accumulate_product, drain
from calibrators._kernels.compiled import kernel
from calibrators._kernels.count_sums import add_products
from calibrators._kernels.double_double import add_pairs, two_product
from calibrators._kernels.logarithm import log_in_place
from calibrators._kernels.measures import TINY
from calibrators._kernels.sums import MAX_COMPONENTS, add

STRIP = 512
_TOO_LARGE = 1024.0  # for `count_sums.add_products`
_WORD = np.int64(0xFFFFFFFF)
_WORD_SIZE = 4294967296.0


@kernel
def add_weighted(values, factors, n, counts, accumulator, slot, bits):
    """Add values[i] * factors[i] for i < n without rounding: values >= 0, finite; factors >= 0."""
    if counts:
        largest = 0.0
        for i in range(n):
            largest = max(largest, values[i])
        if largest < _TOO_LARGE:
            add_products(values, factors, n, accumulator, slot, bits)
            return
    for i in range(n):
        if values[i] != 0.0 and factors[i] != 0.0:
            accumulate_product(accumulator, slot, bits, factors[i], values[i])


@kernel
def drained(accumulators):
    """The sums of accumulators, as rows of expansions padded with zeros to one length."""
    out = np.zeros((accumulators.shape[0], MAX_COMPONENTS))
    widest = 1
    for q in range(accumulators.shape[0]):
        widest = max(widest, drain(accumulators[q], out[q]))
    return out[:, :widest].copy()


@kernel
def log_losses(p, n, hit, miss, bits, exponents):
    """-log(p) into hit and -log(1 - p) into miss, for i < n; infinity where the probability is 0.

    bits : the memory of `hit` and `miss` as int64 arrays. exponents : float64 scratch.

    Predictions below `measures.TINY` count as 0.
    """
    hit_bits, miss_bits = bits
    for i in range(n):
        x = p[i] if p[i] >= TINY else 0.0
        y = 1.0 - x
        hit[i] = x if x > 0.0 else 1.0
        miss[i] = y if y > 0.0 else 1.0
    log_in_place(hit, hit_bits, exponents, n)
    log_in_place(miss, miss_bits, exponents, n)
    for i in range(n):
        x = p[i] if p[i] >= TINY else 0.0
        y = 1.0 - x
        hit[i] = -hit[i] if x > 0.0 else np.inf
        # What rounding 1 - x lost; log(y + rest) = log(y) + rest / y, and 1 / y = 2 - y nearly.
        miss[i] = -(miss[i] + ((1.0 - y) - x) * (2.0 - y)) if y > 0.0 else np.inf


_UNIT = 262144.0  # 2**18
_NEXT = 4294967296.0  # 2**32
_FINEST = 2.0**-50


@kernel
def add_coarse(values, factors, n, counts, sums, accumulator, slot, bits):
    """Add values[i] * factors[i] for i < n, the values in [0, 1024) being cut to multiples of 2**-50 first.

    sums : int64 array, shape (2,): of counts, in units of 2**-18 and 2**-50. accumulator : of other factors.
    """
    if counts:
        a = b = np.int64(0)
        for i in range(n):
            f = np.int64(factors[i])
            x = values[i] * _UNIT
            top = np.int64(x)
            a += f * top
            b += f * np.int64((x - np.float64(top)) * _NEXT)
        sums[0] += a
        sums[1] += b
        return
    for i in range(n):
        x = values[i] * _UNIT
        top = np.floor(x)
        value = top * _NEXT + np.floor((x - top) * _NEXT)
        if value != 0.0 and factors[i] != 0.0:
            accumulate_product(accumulator, slot, bits, factors[i], value * _FINEST)


@kernel
def calibration_rows(q, n, tests, rows, losses):
    """What `calibration_sums` multiplies with weights or positives, of the first n predictions, but for rows of ones.

    rows : float64 array, shape (11, n at least). losses : scratch of n at least: two float64 arrays, their memory as
    int64, and another
    """
    for i in range(n):
        a = q[i] if q[i] >= TINY else 0.0
        rows[2, i] = a
        rows[3, i] = a * (1.0 - a)
    if not tests:
        return
    hit, miss, hit_bits, miss_bits, exponents = losses
    log_losses(q, n, hit, miss, (hit_bits, miss_bits), exponents)
    for i in range(n):
        a, v = rows[2, i], rows[3, i]
        u = abs(1.0 - 2.0 * a)
        rows[4, i] = u
        rows[5, i] = a * u
        rows[6, i] = u * u * v
        x = abs(miss[i] - hit[i]) if v > 0.0 else 0.0
        rows[7, i] = x
        rows[8, i] = a * x
        rows[9, i] = v * x
        rows[10, i] = v * x * x


@kernel
def calibration_sums(p, w, k, counts, tests):
    """Sums over predictions that all lie in one of: [0, 0], (0, 1/2), [1/2, 1), [1, 1]. Shape (11, components).

    With v = p (1 - p), u = |1 - 2 p| and x = |logit p| (0 where p is 0 or 1) they are the sums of w, k, w p, w v, k u,
    w p u, w u u v, k x, w p x, w v x, w v x x; each factor of w or k cut to a multiple of 2**-50. Without `tests` the
    first four, and zeros.
    """
    accumulators = np.zeros((11, CHUNKS), np.int64)
    sums = np.zeros((11, 2), np.int64)
    slot = np.empty(1)
    bits = slot.view(np.uint64)
    rows = np.empty((11, STRIP))
    for i in range(STRIP):
        rows[0, i] = rows[1, i] = 1.0
    hit, miss = np.empty(STRIP), np.empty(STRIP)
    losses = (hit, miss, hit.view(np.int64), miss.view(np.int64), np.empty(STRIP))
    for start in range(0, p.size, STRIP):
        n = min(STRIP, p.size - start)
        q, weight, hits = p[start : start + n], w[start : start + n], k[start : start + n]
        calibration_rows(q, n, tests, rows, losses)
        for r in range(11 if tests else 4):
            factors = hits if r == 1 or r == 4 or r == 7 else weight
            if r < 2 and counts:
                for i in range(n):
                    sums[r, 0] += np.int64(factors[i])
            else:
                add_coarse(rows[r], factors, n, counts, sums[r], accumulators[r], slot, bits)
    if not counts:
        return drained(accumulators)
    out = drained_whole(accumulators)
    for r in range(11):
        _add_whole(out[r], sums[r, 0], 1.0 if r < 2 else 1.0 / _UNIT)
        _add_whole(out[r], sums[r, 1], _FINEST)
    return out


@kernel
def drained_whole(accumulators):
    """The sums of accumulators, as rows of expansions padded with zeros, with room for more."""
    out = np.zeros((accumulators.shape[0], MAX_COMPONENTS))
    for q in range(accumulators.shape[0]):
        drain(accumulators[q], out[q])
    return out


@kernel
def _untied_ones(p, w, k, start, stop):
    """Whether the points have weight 1, labels, and predictions that differ from each other and from what follows."""
    others = np.int64(0)
    for i in range(start, stop):
        others |= np.int64(w[i] != 1.0) | np.int64((k[i] != 0.0) & (k[i] != 1.0))
    for i in range(start, min(stop, p.size - 1)):
        others |= np.int64(p[i] == p[i + 1])
    return others == 0


@kernel
def _place_ones(k, start, stop, below, totals):
    """Add untied points of weight 1 to the sums; below : negatives and positives below them."""
    misses_below, hits_below = below
    a = b = c = d = e = f = g = np.int64(0)
    for i in range(start, stop):
        hit = np.int64(k[i])
        miss = 1 - hit
        place = 2 * misses_below
        square = place * place
        a += hit
        b += hit * place
        c += hit * (square >> 32)
        d += hit * (square & _WORD)
        place = 2 * hits_below
        square = place * place
        e += miss * place
        f += miss * (square >> 32)
        g += miss * (square & _WORD)
        misses_below += miss
        hits_below += hit
    totals[0] += a
    totals[1] += b
    totals[2] += c
    totals[3] += d
    totals[4] += stop - start - a
    totals[5] += e
    totals[6] += f
    totals[7] += g
    return misses_below, hits_below


@kernel
def placements_of_counts(p, w, k):
    """`placement_sums` where w and k are counts."""
    totals = np.zeros(8, np.int64)
    below = hits_below = np.int64(0)
    i = 0
    plain = 0  # as far as was looked for points that are neither tied nor weighed
    while i < p.size:
        if i >= plain and (i == 0 or p[i] != p[i - 1]):
            plain = min(i + STRIP, p.size)
            if _untied_ones(p, w, k, i, plain):
                below, hits_below = _place_ones(k, i, plain, (below, hits_below), totals)
                i = plain
                continue
        weight = hits = np.int64(0)
        first = p[i]
        while i < p.size and p[i] == first:
            weight += np.int64(w[i])
            hits += np.int64(k[i])
            i += 1
        misses = weight - hits
        if hits > 0:
            place = 2 * below + misses
            square = place * place
            totals[0] += hits
            totals[1] += hits * place
            totals[2] += hits * (square >> 32)
            totals[3] += hits * (square & _WORD)
        if misses > 0:
            place = 2 * hits_below + hits
            square = place * place
            totals[4] += misses
            totals[5] += misses * place
            totals[6] += misses * (square >> 32)
            totals[7] += misses * (square & _WORD)
        below += misses
        hits_below += hits
    out = np.zeros((6, MAX_COMPONENTS))
    for side in range(2):
        for q in range(2):
            _add_whole(out[3 * side + q], totals[4 * side + q], 1.0)
        _add_whole(out[3 * side + 2], totals[4 * side + 3], 1.0)
        _add_whole(out[3 * side + 2], totals[4 * side + 2], _WORD_SIZE)
    return out


@kernel
def _add_whole(components, total, unit):
    """Add total * unit to an expansion that is padded with zeros; total : int64 >= 0, unit : a power of two."""
    n = 0
    while components[n] != 0.0:
        n += 1
    n = add(components, n, float(total & _WORD) * unit)
    n = add(components, n, float(total >> 32) * _WORD_SIZE * unit)
    for i in range(n, components.size):
        components[i] = 0.0


@kernel
def _add_placement(accumulators, first, weight, place, slot, bits):
    """Add a weight, its product with its place, and with the square of that; both are double-doubles."""
    for a in weight:
        if a == 0.0:
            continue
        accumulate_product(accumulators[first], slot, bits, a, 1.0)
        high, low = place
        for b in (high, low):
            if b != 0.0:
                accumulate_product(accumulators[first + 1], slot, bits, a, b)
        for c, d in ((high, high), (2.0 * high, low), (low, low)):
            upper, lower = two_product(c, d)
            if upper != 0.0:
                accumulate_product(accumulators[first + 2], slot, bits, a, upper)
            if lower != 0.0:
                accumulate_product(accumulators[first + 2], slot, bits, a, lower)


@kernel
def placement_sums(p, w, k):
    """What the variance of the AUC is made of. p : ascending. Shape (6, components).

    A positive's place is twice the negatives below it and once those tied with it, a negative's the same of positives,
    both within p. The sums of the positives, of positives times place and times its square; then of the negatives.
    """
    accumulators = np.zeros((6, CHUNKS), np.int64)
    slot = np.empty(1)
    bits = slot.view(np.uint64)
    below, hits_below = (0.0, 0.0), (0.0, 0.0)
    i = 0
    while i < p.size:
        misses, hits = (0.0, 0.0), (0.0, 0.0)
        first = p[i]
        while i < p.size and p[i] == first:
            hits = add_pairs(hits[0], hits[1], k[i], 0.0)
            rest_high, rest_low = add_pairs(w[i], 0.0, -k[i], 0.0)
            misses = add_pairs(misses[0], misses[1], rest_high, rest_low)
            i += 1
        place = add_pairs(2.0 * below[0], 2.0 * below[1], misses[0], misses[1])
        _add_placement(accumulators, 0, hits, place, slot, bits)
        place = add_pairs(2.0 * hits_below[0], 2.0 * hits_below[1], hits[0], hits[1])
        _add_placement(accumulators, 3, misses, place, slot, bits)
        below = add_pairs(below[0], below[1], misses[0], misses[1])
        hits_below = add_pairs(hits_below[0], hits_below[1], hits[0], hits[1])
    return drained(accumulators)


@kernel
def join_pairs(p, q, w, k):
    """Neighbours with equal p and equal q joined; w and k are counts."""
    m = p.size
    n = -1
    out = np.empty((4, m))
    for i in range(m):
        if i == 0 or p[i] != p[i - 1] or q[i] != q[i - 1]:
            n += 1
            out[0, n], out[1, n], out[2, n], out[3, n] = p[i], q[i], 0.0, 0.0
        out[2, n] += w[i]
        out[3, n] += k[i]
    return out[:, : n + 1].copy()


@kernel
def _loss_rows(rows, first, hit, miss, n):
    """Losses into rows first to first + 2, and the infinite ones, as ones, into the three after."""
    for i in range(n):
        rows[first, i] = hit[i] if hit[i] < np.inf else 0.0
        rows[first + 1, i] = rows[first + 2, i] = miss[i] if miss[i] < np.inf else 0.0
        rows[first + 3, i] = 0.0 if hit[i] < np.inf else 1.0
        rows[first + 4, i] = rows[first + 5, i] = 0.0 if miss[i] < np.inf else 1.0


@kernel
def _square_rows(rows, first, hit, miss, other_hit, other_miss, n):
    """Squares of the differences of losses, where both are finite."""
    for i in range(n):
        finite = hit[i] < np.inf and other_hit[i] < np.inf
        d = hit[i] - other_hit[i] if finite else 0.0
        rows[first, i] = d * d
        finite = miss[i] < np.inf and other_miss[i] < np.inf
        d = miss[i] - other_miss[i] if finite else 0.0
        rows[first + 1, i] = rows[first + 2, i] = d * d


@kernel
def comparison_sums(p, q, w, k, counts):
    """What the differences of two predictions p and q of the same rows are made of. Shape (35, components).

    Three rows each are the sums of k f1, w f0, k f0, where f1 is taken of a positive and f0 of a negative; so
    that a loss's sum is the first and the second less the third.

    0 to 5: log losses of p, where finite, and the number of the infinite ones; 6 to 11: of q; 12 to 14: squares of
    their differences; 15 to 20, 21 to 26, 27 to 29: the same of squared errors, of which none is infinite.
    30 to 34: w, k, w p, w q, w |p - q|.
    """
    accumulators = np.zeros((35, CHUNKS), np.int64)
    slot = np.empty(1)
    bits = slot.view(np.uint64)
    rows = np.empty((35, STRIP))
    hit, miss, other_hit, other_miss, exponents = np.empty((5, STRIP))
    for start in range(0, p.size, STRIP):
        n = min(STRIP, p.size - start)
        a, b = p[start : start + n], q[start : start + n]
        weight, hits = w[start : start + n], k[start : start + n]
        log_losses(a, n, hit, miss, (hit.view(np.int64), miss.view(np.int64)), exponents)
        other_bits = (other_hit.view(np.int64), other_miss.view(np.int64))
        log_losses(b, n, other_hit, other_miss, other_bits, exponents)
        _loss_rows(rows, 0, hit, miss, n)
        _loss_rows(rows, 6, other_hit, other_miss, n)
        _square_rows(rows, 12, hit, miss, other_hit, other_miss, n)
        for i in range(n):
            x, y = a[i] if a[i] >= TINY else 0.0, b[i] if b[i] >= TINY else 0.0
            hit[i], miss[i] = (1.0 - x) * (1.0 - x), x * x
            other_hit[i], other_miss[i] = (1.0 - y) * (1.0 - y), y * y
            rows[30, i] = rows[31, i] = 1.0
            rows[32, i], rows[33, i], rows[34, i] = x, y, abs(x - y)
        _loss_rows(rows, 15, hit, miss, n)
        _loss_rows(rows, 21, other_hit, other_miss, n)
        _square_rows(rows, 27, hit, miss, other_hit, other_miss, n)
        for r in range(35):
            of_weight = r % 3 == 1 if r < 30 else r != 31
            add_weighted(rows[r], weight if of_weight else hits, n, counts, accumulators[r], slot, bits)
    return drained(accumulators)
