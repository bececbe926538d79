"""Adding up observations that share a score."""

import numpy as np

from calibrators._kernels.compiled import kernel
from calibrators._kernels.sums import MAX_COMPONENTS, add, rounded


@kernel
def merge_classes(negatives, positives, score, weight, hits):
    """Merge two sorted arrays of scores, one a class, into points; every observation has weight 1.

    score, weight, hits : float64 arrays with room for all observations, are filled with a point a distinct score

    Returns
    -------
    how many points there are
    """
    i = j = 0
    m = -1
    last = np.nan
    w = h = 0.0
    n, p = negatives.size, positives.size
    while i < n or j < p:
        # Which class comes next cannot be predicted, so nothing here branches on it.
        negative = j == p or (i < n and negatives[i] <= positives[j])
        s = negatives[i] if negative else positives[j]
        i += negative
        j += 1 - negative
        tied = s == last
        m += 1 - tied
        w = 1.0 + tied * w
        h = (1.0 - negative) + tied * h
        score[m] = last = s
        weight[m] = w
        hits[m] = h
    return m + 1


@kernel
def add_ties(entries, rounding, out, codes):
    """Add up entries, sorted by score and code, that share both: exactly, then rounded, or not rounded at all.

    Parameters
    ----------
    entries : four arrays:
        score, code, weight, positives : shape (n,). Entries of a score may be components of an expansion. The codes are
        int64, or there are none: then the score alone tells entries apart
    rounding : whether a tie becomes one entry, its sums rounded once; otherwise the components of its exact sums, as
        many as the longer of its two expansions has (one for whole numbers), padded with zeros; where these are more
        than its entries, the entries stay
    out, codes : float64 array, shape (3, n), and int64 array of the size of `code`, are filled

    Returns
    -------
    how many entries are left
    """
    score, code, weight, positives = entries
    n = score.size
    w = np.empty(MAX_COMPONENTS)
    k = np.empty(MAX_COMPONENTS)
    m = i = 0
    while i < n:
        start = i
        i += 1
        while i < n and score[i] == score[start] and (code.size == 0 or code[i] == code[start]):
            i += 1
        longest = nw = nk = 0
        if i - start > 1:
            for j in range(start, i):
                nw = add(w, nw, weight[j])
                nk = add(k, nk, positives[j])
            if rounding:
                w[0], k[0] = rounded(w, nw), rounded(k, nk)
                nw = nk = 1
            longest = max(nw, nk)
        own = longest == 0 or longest > i - start
        for j in range(i - start if own else longest):
            out[0, m] = score[start]
            if code.size > 0:
                codes[m] = code[start]
            if own:
                out[1, m], out[2, m] = weight[start + j], positives[start + j]
            else:
                out[1, m] = w[j] if j < nw else 0.0
                out[2, m] = k[j] if j < nk else 0.0
            m += 1
    return m
