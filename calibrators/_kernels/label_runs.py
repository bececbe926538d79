"""Label runs: maximal ranges of neighbouring points with equal y = positives / weight."""

import math

import numpy as np

from calibrators._kernels.compiled import kernel
from calibrators._kernels.pava import first_not_below
from calibrators._kernels.sums import two_product


@kernel
def same_level(w1, k1, w2, k2):
    """Tell whether k1 / w1 equals k2 / w2 exactly; the relation is transitive."""
    if k1 == 0.0 or k2 == 0.0:
        return k1 == k2
    if k1 == w1 or k2 == w2:
        return k1 == w1 and k2 == w2
    # Mantissas, because their products neither overflow nor underflow.
    (ma, ea), (mb, eb), (mc, ec), (md, ed) = math.frexp(k1), math.frexp(w2), math.frexp(k2), math.frexp(w1)
    shift = (ea + eb) - (ec + ed)
    if abs(shift) > 1:
        return False
    p, p_low = two_product(math.ldexp(ma, shift), mb)
    q, q_low = two_product(mc, md)
    return p == q and p_low == q_low


@kernel
def run_starts(weight, positives):
    """Return the index of the first point of each run."""
    out = np.empty(weight.size, np.int64)
    runs = 0
    for i in range(weight.size):
        if i == 0 or not same_level(weight[i - 1], positives[i - 1], weight[i], positives[i]):
            out[runs] = i
            runs += 1
    return out[:runs].copy()


@kernel
def class_runs(negatives, positives):
    """Find the label runs of rows without weights directly from the scores of both classes. O(rows).

    negatives, positives : float64 arrays, the ascending scores of each class; from 1 to 2**26 - 1 rows together

    Returns
    -------
    first, last, weight, hits : float64 arrays, shape (runs,): first and last score, rows, and rows with label 1
    both : int: number of scores that occur in both classes
    """
    i = j = r = both = 0
    n, p = negatives.size, positives.size
    # Each run but one contains a row of the rarer class, or has a neighbour that does.
    most = 2 * min(n, p) + 1
    first, last, weight, hits = np.empty(most), np.empty(most), np.empty(most), np.empty(most)
    while i < n or j < p:
        start = i
        i = first_not_below(negatives, i, n, positives[j] if j < p else np.inf)
        if i > start:
            first[r], last[r], weight[r], hits[r] = negatives[start], negatives[i - 1], i - start, 0.0
            r += 1
        s = negatives[i] if i < n else np.inf
        start = j
        j = first_not_below(positives, j, p, s)
        if j > start:
            first[r], last[r], weight[r], hits[r] = positives[start], positives[j - 1], j - start, j - start
            r += 1
        elif i < n and j < p:
            # A score that occurs in both classes.
            w = -float(i)
            while i < n and negatives[i] == s:
                i += 1
            while j < p and positives[j] == s:
                j += 1
            both += 1
            k = float(j - start)
            w += i + k
            if r > 0 and same_level(weight[r - 1], hits[r - 1], w, k):
                last[r - 1] = s
                weight[r - 1] += w
                hits[r - 1] += k
            else:
                first[r], last[r], weight[r], hits[r] = s, s, w, k
                r += 1
    return first[:r], last[:r], weight[:r], hits[:r], both
