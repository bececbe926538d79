"""From rows in any order to sorted runs, and from sorted runs to points."""

import numpy as np

from calibrators._kernels.compiled import kernel
from calibrators._kernels.copying import put

_LARGEST = 1.7976931348623157e308
_STRIP = 1024
LOWEST_WEIGHT, HIGHEST_WEIGHT = 1e-100, 1e100  # as `calibrators.arithmetic.passes` has them


@kernel
def split_classes(score, label, negatives, positives, n, p):
    """Append the scores of usable rows to one array a class; return the new lengths.

    score : float64 array; usable when finite. label : uint8 array; usable when 0 or 1.
    negatives, positives : float64 arrays with room for score.size more entries after n and p.
    """
    for i in range(score.size):
        s = score[i] + 0.0  # -0.0 is 0.0
        z = label[i]
        if z <= 1 and abs(s) <= _LARGEST:
            # Written without a branch: labels are unpredictable.
            negatives[n] = s
            positives[p] = s
            n += 1 - z
            p += z
    return n, p


@kernel
def keep_weighted(score, label, weight, out, n):
    """Append usable weighted rows; return the new length. A weight is usable from 1e-100 to 1e100.

    out : shape (capacity, 2): the score; and the weight, negative where the label is 0.
    """
    for i in range(score.size):
        s = score[i] + 0.0
        w = weight[i]
        z = label[i]
        if z <= 1 and abs(s) <= _LARGEST and LOWEST_WEIGHT <= w <= HIGHEST_WEIGHT:
            out[n, 0] = s
            out[n, 1] = w if z == 1 else -w
            n += 1
    return n


@kernel
def fold_ties(values, shortest):
    """Take ties of at least `shortest` >= 2 out of a sorted array, in place. O(n).

    Returns
    -------
    n : the length of what is left at the front of `values`
    value, count : float64 arrays, one entry a tie that was taken out, ascending
    """
    reach = shortest - 1
    most = values.size // shortest
    value = np.empty(most)
    count = np.empty(most, np.int64)
    begins = np.zeros(reach + _STRIP, np.uint8)
    kept = np.empty(_STRIP, np.uint8)
    m = n = 0
    for first in range(0, values.size, _STRIP):
        strip = values[first : first + _STRIP]
        ahead = values[first + reach : first + reach + _STRIP]
        rows = strip.size
        # Whether a tie reaches from a row to the row `reach` behind it; of the strip before, its last rows.
        for i in range(reach):
            begins[i] = begins[_STRIP + i]
        now = begins[reach:]
        for i in range(ahead.size):
            now[i] = strip[i] == ahead[i]
        now[ahead.size :] = 0
        kept[:] = 1
        for r in range(shortest):
            part = begins[r : r + _STRIP]
            for i in range(_STRIP):
                kept[i] &= part[i] ^ 1
        staying = 0
        for i in range(rows):
            staying += kept[i]
        if staying == rows:
            if n < first:
                put(values[n:], strip)
            n += rows
            continue
        for i in range(rows):
            if now[i] != begins[reach - 1 + i]:
                if now[i]:
                    value[m] = strip[i]
                    count[m] = first + i
                    m += 1
                else:
                    count[m - 1] = first + i + reach - count[m - 1]
        if staying:
            for i in range(rows):
                # Written without a branch: it belongs to the next row where this one does not stay.
                values[n] = strip[i]
                n += kept[i]
    return n, value[:m].copy(), count[:m].astype(np.float64)


@kernel
def merge_points(score_a, weight_a, positives_a, score_b, weight_b, positives_b):
    """Points of two sorted sets of points with whole-number weights."""
    n = score_a.size + score_b.size
    score = np.empty(n)
    weight = np.empty(n)
    positives = np.empty(n)
    i = j = m = 0
    while i < score_a.size or j < score_b.size:
        take_a = j == score_b.size or (i < score_a.size and score_a[i] <= score_b[j])
        take_b = i == score_a.size or (j < score_b.size and score_b[j] <= score_a[i])
        s = score_a[i] if take_a else score_b[j]
        w = k = 0.0
        if take_a:
            w += weight_a[i]
            k += positives_a[i]
            i += 1
        if take_b:
            w += weight_b[j]
            k += positives_b[j]
            j += 1
        score[m] = s
        weight[m] = w
        positives[m] = k
        m += 1
    return score[:m], weight[:m], positives[:m]
