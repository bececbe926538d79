"""Adding up observations that share a score."""

import numpy as np

from calibrators._kernels.compiled import kernel
from calibrators._kernels.copying import put
from calibrators._kernels.sums import MAX_COMPONENTS, add, rounded


@kernel
def merge_more(negatives, i, n, positives, j, p, score, weight, hits, m):
    """Merge negatives[i:n] and positives[j:p] into points, as `merge_classes` does, until there is no more room.

    score, weight, hits : float64 arrays of one size, are filled behind place m, or from m on where that point, which
        was made before, is tied with what comes; m = -1: there is none.

    Returns
    -------
    i, j : what comes next. m : the last point made; it may be tied with what comes
    """
    last = score[m] if m >= 0 else np.nan
    w = weight[m] if m >= 0 else 0.0
    h = hits[m] if m >= 0 else 0.0
    while m < score.size - 1 and (i < n or j < p):
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
    return i, j, m


@kernel
def _filled(score, weight, positives, m):
    """The first m of each."""
    if 2 * m > score.size:
        # Copying would cost more than the unused end.
        return score[:m], weight[:m], positives[:m]
    return score[:m].copy(), weight[:m].copy(), positives[:m].copy()


@kernel
def merge_classes(negatives, positives):
    """Points of two sorted arrays of scores, one a class; every observation has weight 1.

    Parameters
    ----------
    negatives, positives : float64 arrays, ascending
        The scores of the rows with label 0 and with label 1.

    Returns
    -------
    score, weight, positives : float64 arrays
        One entry a distinct score, ascending.
    """
    n, p = negatives.size, positives.size
    score = np.empty(n + p)
    weight = np.empty(n + p)
    hits = np.empty(n + p)
    _, _, m = merge_more(negatives, 0, n, positives, 0, p, score, weight, hits, -1)
    m += 1
    return _filled(score, weight, hits, m)


@kernel
def sum_ties(score, weight, positives):
    """Points of entries sorted by score: weight and positives of equal scores summed exactly, then rounded.

    An entry is any (score, weight, positives); entries of a score may be components of an expansion.
    """
    n = score.size
    out_score = np.empty(n)
    out_weight = np.empty(n)
    out_positives = np.empty(n)
    w = np.empty(MAX_COMPONENTS)
    k = np.empty(MAX_COMPONENTS)
    m = 0
    i = 0
    while i < n:
        s = score[i]
        if i + 1 == n or score[i + 1] != s:
            out_score[m], out_weight[m], out_positives[m] = s, weight[i], positives[i]
            m += 1
            i += 1
            continue
        nw = nk = 0
        while i < n and score[i] == s:
            nw = add(w, nw, weight[i])
            nk = add(k, nk, positives[i])
            i += 1
        out_score[m] = s
        out_weight[m] = rounded(w, nw)
        out_positives[m] = rounded(k, nk)
        m += 1
    return _filled(out_score, out_weight, out_positives, m)


@kernel
def expand_ties(score, weight, positives):
    """Shrink entries sorted by score without rounding: each tie becomes its exact sums' components.

    A tie of any length leaves as many entries as the longer of its two expansions (one for whole numbers),
    padded with zeros. Adding the result of several parts with `sum_ties` gives what all the entries together
    would have given.
    """
    n = score.size
    out_score = np.empty(n)
    out_weight = np.empty(n)
    out_positives = np.empty(n)
    w = np.empty(MAX_COMPONENTS)
    k = np.empty(MAX_COMPONENTS)
    m = 0
    i = 0
    while i < n:
        s = score[i]
        if i + 1 == n or score[i + 1] != s:
            out_score[m], out_weight[m], out_positives[m] = s, weight[i], positives[i]
            m += 1
            i += 1
            continue
        start = i
        nw = nk = 0
        while i < n and score[i] == s:
            nw = add(w, nw, weight[i])
            nk = add(k, nk, positives[i])
            i += 1
        longest = max(nw, nk)
        if longest > i - start:
            # The sums have more components than the tie has entries: keep the entries.
            for j in range(start, i):
                out_score[m] = s
                out_weight[m] = weight[j]
                out_positives[m] = positives[j]
                m += 1
            continue
        for j in range(longest):
            out_score[m] = s
            out_weight[m] = w[j] if j < nw else 0.0
            out_positives[m] = k[j] if j < nk else 0.0
            m += 1
    return _filled(out_score, out_weight, out_positives, m)


@kernel
def sum_signed(score, signed):
    """Points of weighted rows sorted by score: as `sum_ties`, with weights that are negative where the label is 0."""
    n = score.size
    out_score = np.empty(n)
    out_weight = np.empty(n)
    out_positives = np.empty(n)
    w = np.empty(MAX_COMPONENTS)
    k = np.empty(MAX_COMPONENTS)
    m = 0
    i = 0
    while i < n:
        s = score[i]
        out_score[m] = s
        if i + 1 == n or score[i + 1] != s:
            x = signed[i]
            out_weight[m] = abs(x)
            out_positives[m] = max(x, 0.0)
            m += 1
            i += 1
            continue
        nw = nk = 0
        while i < n and score[i] == s:
            x = signed[i]
            nw = add(w, nw, abs(x))
            nk = add(k, nk, max(x, 0.0))
            i += 1
        out_weight[m] = rounded(w, nw)
        out_positives[m] = rounded(k, nk)
        m += 1
    return _filled(out_score, out_weight, out_positives, m)


@kernel
def _next_tie(score, start):
    """The first place from `start` on whose score the next one has, too; the end where there is none.

    A loop of its own: among what ties need it takes four times as long, and most scores are of one row.
    """
    for i in range(start, score.size - 1):
        if score[i] == score[i + 1]:
            return i
    return score.size


@kernel
def fold_signed(score, signed, shortest):
    """Take ties of at least `shortest` rows out of weighted rows sorted by score, in place, without rounding.

    A tie becomes entries, as in `expand_ties`; where these would take more memory than the rows (24 bytes each, and
    16), it stays.

    Returns
    -------
    n : the rows left at the front of `score` and `signed`
    score, weight, positives : float64 arrays, the entries, ascending
    """
    room = 16
    entries = np.empty((3, room))
    w = np.empty(MAX_COMPONENTS)
    k = np.empty(MAX_COMPONENTS)
    m = n = i = 0
    while i < score.size:
        start = i
        i = _next_tie(score, i)
        for j in range(start if n < start else i, i):
            score[n + j - start] = score[j]
            signed[n + j - start] = signed[j]
        n += i - start
        if i == score.size:
            break
        s = score[i]
        start = i
        while i < score.size and score[i] == s:
            i += 1
        nw = nk = 0
        if i - start >= shortest:
            for j in range(start, i):
                x = signed[j]
                nw = add(w, nw, abs(x))
                nk = add(k, nk, max(x, 0.0))
        longest = max(nw, nk)
        if longest == 0 or 3 * longest >= 2 * (i - start):
            for j in range(start, i):
                score[n] = s
                signed[n] = signed[j]
                n += 1
            continue
        if m + longest > room:
            wider = np.empty((3, 2 * room + longest))
            for row in range(3):
                put(wider[row], entries[row, :m])
            entries = wider
            room = wider.shape[1]
        for j in range(longest):
            entries[0, m] = s
            entries[1, m] = w[j] if j < nw else 0.0
            entries[2, m] = k[j] if j < nk else 0.0
            m += 1
    return n, entries[0, :m].copy(), entries[1, :m].copy(), entries[2, :m].copy()


@kernel
def unsigned(signed):
    """Weights, and weights of positives, shape (n, 2), of signed weights."""
    out = np.empty((signed.size, 2))
    for i in range(signed.size):
        out[i, 0] = abs(signed[i])
        out[i, 1] = max(signed[i], 0.0)
    return out
