"""The sums behind the evidence of drift: see `calibrators.measures.drift`."""

import numpy as np

from calibrators._kernels.accumulators import CHUNKS
from calibrators._kernels.compiled import kernel
from calibrators._kernels.error_sums import STRIP, add_weighted, drained
from calibrators._kernels.logarithm import log_in_place
from calibrators._kernels.measures import TINY, counts_and_whole


@kernel
def drift_sums(p, w, k, odds):
    """Exact sums over points, in any order. Shape (4 + changes, components).

    p : float64 array, shape (m,), predictions in [0, 1]. w, k : weight and positives.
    odds : float64 array, shape (changes, 2): factors of the odds before and after the change.

    Of w, k, w p, of what the predictions call impossible, and for each change, a and b being its factors, of
    w |log((1 - p + b p) / (1 - p + a p))|.
    """
    changes = odds.shape[0]
    accumulators = np.zeros((4 + changes, CHUNKS), np.int64)
    slot = np.empty(1)
    bits = slot.view(np.uint64)
    values, rest, exponents, ones = np.empty((4, STRIP))
    value_bits = values.view(np.int64)
    for i in range(ones.size):
        ones[i] = 1.0
    counts, _ = counts_and_whole(w, k)
    for start in range(0, p.size, STRIP):
        n = min(STRIP, p.size - start)
        q, weight, hits = p[start : start + n], w[start : start + n], k[start : start + n]
        add_weighted(ones, weight, n, counts, accumulators[0], slot, bits)
        add_weighted(ones, hits, n, counts, accumulators[1], slot, bits)
        for i in range(n):
            values[i] = q[i] if q[i] >= TINY else 0.0
            rest[i] = 0.0
            if (values[i] == 0.0 and hits[i] > 0.0) or (values[i] == 1.0 and hits[i] < weight[i]):
                rest[i] = 1.0
        add_weighted(values, weight, n, counts, accumulators[2], slot, bits)
        add_weighted(rest, weight, n, counts, accumulators[3], slot, bits)
        for j in range(changes):
            a, b = odds[j]
            for i in range(n):
                x = q[i] if q[i] >= TINY else 0.0
                low = 1.0 - x + min(a, b) * x
                u = (max(a, b) - min(a, b)) * x / low
                y = 1.0 + u
                # What rounding 1 + u lost: log(y + rest) = log(y) + rest / y nearly.
                rest[i] = ((1.0 - y) + u) / y
                values[i] = y
            log_in_place(values, value_bits, exponents, n)
            for i in range(n):
                values[i] = max(values[i] + rest[i], 0.0)
            add_weighted(values, weight, n, counts, accumulators[4 + j], slot, bits)
    return drained(accumulators)
