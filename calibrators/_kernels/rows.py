"""From rows in any order to sorted runs, and from sorted runs to points."""

import numpy as np
from numba import njit

_LARGEST = 1.7976931348623157e308


@njit(cache=True, nogil=True)
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


@njit(cache=True, nogil=True)
def keep_weighted(score, label, weight, out_score, out_weight, out_positives, n):
    """Append usable weighted rows; return the new length. A weight is usable when finite and > 0."""
    for i in range(score.size):
        s = score[i] + 0.0
        w = weight[i]
        z = label[i]
        if z <= 1 and abs(s) <= _LARGEST and 0.0 < w <= _LARGEST:
            out_score[n] = s
            out_weight[n] = w
            out_positives[n] = w if z == 1 else 0.0
            n += 1
    return n


@njit(cache=True, nogil=True)
def fold_ties(negatives, positives, shortest):
    """Take ties of at least `shortest` rows out of two sorted arrays, in place.

    Returns
    -------
    n, p : the lengths of what is left at the front of `negatives` and `positives`
    score, weight, hits : float64 arrays, one entry a tie that was taken out, ascending
    """
    score = np.empty(16)
    weight = np.empty(16)
    hits = np.empty(16)
    m = n = p = 0
    i = j = 0
    while i < negatives.size or j < positives.size:
        if j == positives.size or (i < negatives.size and negatives[i] <= positives[j]):
            s = negatives[i]
        else:
            s = positives[j]
        i0, j0 = i, j
        while i < negatives.size and negatives[i] == s:
            i += 1
        while j < positives.size and positives[j] == s:
            j += 1
        if (i - i0) + (j - j0) < shortest:
            for _ in range(i0, i):
                negatives[n] = s
                n += 1
            for _ in range(j0, j):
                positives[p] = s
                p += 1
            continue
        if m == score.size:
            score = np.concatenate((score, np.empty(m)))
            weight = np.concatenate((weight, np.empty(m)))
            hits = np.concatenate((hits, np.empty(m)))
        score[m] = s
        weight[m] = (i - i0) + (j - j0)
        hits[m] = j - j0
        m += 1
    return n, p, score[:m].copy(), weight[:m].copy(), hits[:m].copy()


@njit(cache=True, nogil=True)
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
    return score[:m].copy(), weight[:m].copy(), positives[:m].copy()
