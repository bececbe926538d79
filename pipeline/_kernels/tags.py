"""Rows with tags: a tag is twice the code of a row's segment, plus its label. Sorting, folding, scattering."""

import numpy as np

from calibrators._kernels.compiled import kernel
from calibrators._kernels.copying import put
from calibrators._kernels.order import bits_of, ordinal
from calibrators._kernels.sums import MAX_COMPONENTS, add, rounded

_ONE = np.uint64(1)


@kernel
def extent(raw):
    """The smallest and the largest `ordinal` of doubles. raw : uint64 array, their bits, one at least."""
    low = high = ordinal(raw[0])
    for i in range(1, raw.size):
        x = ordinal(raw[i])
        low = min(low, x)
        high = max(high, x)
    return low, high


@kernel
def count_pieces(raw, low, shift, counts):
    """Count doubles by the leading bits of their distance from `low`. counts : int64 array, added to."""
    for i in range(raw.size):
        counts[np.int64((ordinal(raw[i]) - low) >> shift)] += 1


@kernel
def scatter_keys(raw, tag, low, shift, bits, fill, keys):
    """Put rows where their piece is, as whole numbers: what the piece leaves of the score, and behind it the tag.

    fill : int64 array: where each piece begins; moved on. keys : uint64 array, shape (n,), is filled.
    """
    mask = (_ONE << shift) - _ONE
    for i in range(raw.size):
        distance = ordinal(raw[i]) - low
        piece = np.int64(distance >> shift)
        keys[fill[piece]] = ((distance & mask) << bits) | np.uint64(tag[i])
        fill[piece] += 1


@kernel
def read_keys(keys, ends, low, shift, bits, raw, tag):
    """The rows that `scatter_keys` made keys of. ends : int64 array, of each piece. raw, tag : are filled."""
    mask = (_ONE << bits) - _ONE
    start = 0
    for piece in range(ends.size):
        base = low + (np.uint64(piece) << shift)
        # Loops without a condition of their own are done with vector instructions.
        for i in range(start, ends[piece]):
            key = keys[i]
            raw[i] = bits_of(base + (key >> bits))
            tag[i] = np.int64(key & mask)
        start = ends[piece]


@kernel
def order_ties(order, score, tag):
    """Put the places of equal scores in the order of their tags. order : int64 array, by score; changed in place."""
    i = 0
    while i < order.size:
        start = i
        s = score[order[i]]
        before = tag[order[i]]
        ascending = True
        i += 1
        while i < order.size and score[order[i]] == s:
            t = tag[order[i]]
            ascending = ascending and before <= t
            before = t
            i += 1
        if not ascending:
            stretch = order[start:i].copy()
            put(order[start:], stretch[np.argsort(tag[stretch], kind="mergesort")])


@kernel
def sort_tied(score, tag):
    """Sort the tags of equal scores. score : array, ascending. tag : int64 array, changed in place."""
    i = 0
    while i < score.size:
        start = i
        ascending = True
        i += 1
        while i < score.size and score[i] == score[start]:
            ascending = ascending and tag[i - 1] <= tag[i]
            i += 1
        if not ascending:
            put(tag[start:], np.sort(tag[start:i]))


@kernel
def fold_tags(score, tag, shortest):
    """Take ties of at least `shortest` rows of one segment out of rows sorted by score and tag, in place.

    Returns
    -------
    n : the rows left at the front of `score` and `tag`
    score, code, weight, positives : of the entries, in order
    """
    reach = shortest - 1
    # A tie is counted where as many rows of it are left as are the fewest.
    m = 0
    for i in range(score.size - reach):
        if score[i + reach] == score[i] and tag[i + reach] >> 1 == tag[i] >> 1:
            last = i + reach + 1
            m += last == score.size or score[last] != score[i] or tag[last] >> 1 != tag[i] >> 1
    entries = np.empty((3, m))
    codes = np.empty(m, np.int64)
    if m == 0:
        return score.size, entries[0], codes, entries[1], entries[2]
    e = n = i = 0
    while i < score.size:
        s = score[i]
        code = tag[i] >> 1
        if i + reach >= score.size or score[i + reach] != s or tag[i + reach] >> 1 != code:
            # What is left of a shorter tie is a shorter tie.
            score[n] = s
            tag[n] = tag[i]
            n += 1
            i += 1
            continue
        start = i
        hits = 0
        while i < score.size and score[i] == s and tag[i] >> 1 == code:
            hits += tag[i] & 1
            i += 1
        entries[0, e] = s
        entries[1, e] = i - start
        entries[2, e] = hits
        codes[e] = code
        e += 1
    return n, entries[0], codes, entries[1], entries[2]


@kernel
def fold_signed(score, code, signed, shortest):
    """The same of weighted rows sorted by score and code, without rounding; as `ties.fold_signed`.

    A tie becomes its exact sums' components. Where these would take more memory than the rows (32 bytes each, and 24),
    it stays.
    """
    reach = shortest - 1
    long = 0
    for i in range(score.size - reach):
        long += score[i + reach] == score[i] and code[i + reach] == code[i]
    # A tie of n rows counts n - reach times, and leaves fewer than 3 entries for every 4 rows.
    room = long * shortest
    entries = np.empty((3, room))
    codes = np.empty(room, np.int64)
    if long == 0:
        return score.size, entries[0], codes, entries[1], entries[2]
    w = np.empty(MAX_COMPONENTS)
    k = np.empty(MAX_COMPONENTS)
    m = n = i = 0
    while i < score.size:
        s = score[i]
        c = code[i]
        if i + reach >= score.size or score[i + reach] != s or code[i + reach] != c:
            # As in `fold_tags`.
            score[n] = s
            code[n] = c
            signed[n] = signed[i]
            n += 1
            i += 1
            continue
        start = i
        while i < score.size and score[i] == s and code[i] == c:
            i += 1
        nw = nk = 0
        for j in range(start, i):
            x = signed[j]
            nw = add(w, nw, abs(x))
            nk = add(k, nk, max(x, 0.0))
        longest = max(nw, nk)
        if 4 * longest >= 3 * (i - start):
            for j in range(start, i):
                score[n] = s
                code[n] = c
                signed[n] = signed[j]
                n += 1
            continue
        for j in range(longest):
            entries[0, m] = s
            entries[1, m] = w[j] if j < nw else 0.0
            entries[2, m] = k[j] if j < nk else 0.0
            codes[m] = c
            m += 1
    return n, entries[0, :m].copy(), codes[:m].copy(), entries[1, :m].copy(), entries[2, :m].copy()


@kernel
def recode(column, table, labelled):
    """Replace a run's own codes by those of all runs, in place.

    column : uint64 array: codes, or tags where labelled is 1. table : int32 array: the new code of each old one.
    """
    for i in range(column.size):
        x = np.int64(column[i])
        column[i] = np.uint64((np.int64(table[x >> labelled]) << labelled) | (x & labelled))


@kernel
def merge_entries(score, tag, entry_score, entry_code, entry_weight, entry_positives):
    """Rows of weight 1 and entries, both sorted by score and code, as entries in that order.

    Returns
    -------
    score, code, weight, positives
    """
    n, m = score.size, entry_score.size
    out = np.empty((3, n + m))
    codes = np.empty(n + m, np.int64)
    i = j = 0
    for at in range(n + m):
        rows_first = j == m
        if i < n and j < m:
            s, t = score[i], entry_score[j]
            rows_first = s < t or (s == t and tag[i] >> 1 < entry_code[j])
        if rows_first:
            out[0, at] = score[i]
            codes[at] = tag[i] >> 1
            out[1, at] = 1.0
            out[2, at] = tag[i] & 1
            i += 1
        else:
            out[0, at] = entry_score[j]
            codes[at] = entry_code[j]
            out[1, at] = entry_weight[j]
            out[2, at] = entry_positives[j]
            j += 1
    return out[0], codes, out[1], out[2]


@kernel
def split_tags(score, tag):
    """The scores of rows with label 0, and those with label 1, in their order."""
    negatives = np.empty(score.size + 1)
    positives = np.empty(score.size + 1)
    n = p = 0
    for i in range(score.size):
        z = tag[i] & 1
        # Written without a branch: labels are unpredictable.
        negatives[n] = positives[p] = score[i]
        n += 1 - z
        p += z
    return negatives[:n], positives[:p]


@kernel
def count_groups(code, shift, group_of, counts):
    """Count rows by group. code : int64 array, codes, or tags where shift is 1. counts : int64 array, added to.

    group_of : int32 array: the group of each code, -1 for those that nobody wants.
    """
    for i in range(code.size):
        g = group_of[code[i] >> shift]
        if g >= 0:
            counts[g] += 1


@kernel
def scatter_ranks(score, tag, group_of, fill, distinct, out):
    """Put rows sorted by score in the order of their groups: each its score's rank, twice, plus its label.

    fill : int64 array: where each group begins in `out`; moved on.
    distinct : float64 array with room for all: is filled with the distinct scores.
    out : uint32 array

    Returns how many distinct scores there are.
    """
    rank = -1
    last = np.nan
    for i in range(score.size):
        s = score[i]
        rank += s != last
        distinct[rank] = last = s
        g = group_of[tag[i] >> 1]
        if g >= 0:
            out[fill[g]] = np.uint32(2 * rank + (tag[i] & 1))
            fill[g] += 1
    return rank + 1


@kernel
def scatter_points(score, code, weight, positives, group_of, fill, out):
    """Put points sorted by score in the order of their groups. out : float64 array, shape (3, n), is filled."""
    for i in range(score.size):
        g = group_of[code[i]]
        if g >= 0:
            at = fill[g]
            out[0, at] = score[i]
            out[1, at] = weight[i]
            out[2, at] = positives[i]
            fill[g] = at + 1


@kernel
def points_of_ranks(rows, starts, distinct, out, ends):
    """Add up the ties of each group.

    rows : uint32 array as `scatter_ranks` fills it; those of group g are rows[starts[g]:starts[g + 1]].
    out : float64 array, shape (3, n), is filled with scores, weights and positives
    ends : int64 array, shape (groups,), is filled: where each group's points end
    """
    m = -1
    for g in range(starts.size - 1):
        last = -1
        for i in range(starts[g], starts[g + 1]):
            rank = np.int64(rows[i] >> 1)
            if rank != last:
                m += 1
                out[0, m] = distinct[rank]
                out[1, m] = 0.0
                out[2, m] = 0.0
                last = rank
            out[1, m] += 1.0
            out[2, m] += rows[i] & 1
        ends[g] = m + 1


@kernel
def sum_groups(score, code, weight, positives, group_of):
    """Points of entries sorted by score and code: the exact sums of equal scores and groups, rounded once.

    group_of : as in `count_groups`; it never falls where codes ascend, but for those that nobody wants.

    Returns
    -------
    score, group, weight, positives, shape (m,); group is -1 for what nobody wants
    """
    n = score.size
    out = np.empty((3, n))
    group = np.empty(n, np.int64)
    w = np.empty(MAX_COMPONENTS)
    k = np.empty(MAX_COMPONENTS)
    m = i = 0
    while i < n:
        s = score[i]
        g = group_of[code[i]]
        start = i
        nw = nk = 0
        i += 1
        while i < n and score[i] == s and group_of[code[i]] == g:
            i += 1
        out[0, m] = s
        group[m] = g
        if i - start == 1:
            out[1, m] = weight[start]
            out[2, m] = positives[start]
        else:
            for j in range(start, i):
                nw = add(w, nw, weight[j])
                nk = add(k, nk, positives[j])
            out[1, m] = rounded(w, nw)
            out[2, m] = rounded(k, nk)
        m += 1
    return out[0, :m], group[:m], out[1, :m], out[2, :m]


@kernel
def expand_ties(score, code, weight, positives):
    """Shrink entries sorted by score and code without rounding, as `ties.expand_ties` does those sorted by score."""
    n = score.size
    out = np.empty((3, n))
    codes = np.empty(n, np.int64)
    w = np.empty(MAX_COMPONENTS)
    k = np.empty(MAX_COMPONENTS)
    m = i = 0
    while i < n:
        s = score[i]
        c = code[i]
        start = i
        nw = nk = 0
        while i < n and score[i] == s and code[i] == c:
            i += 1
        if i - start > 1:
            for j in range(start, i):
                nw = add(w, nw, weight[j])
                nk = add(k, nk, positives[j])
        longest = max(nw, nk)
        if longest == 0 or longest > i - start:
            # Alone, or the sums have more components than the tie has entries: keep the entries.
            for j in range(start, i):
                out[0, m] = s
                codes[m] = c
                out[1, m] = weight[j]
                out[2, m] = positives[j]
                m += 1
            continue
        for j in range(longest):
            out[0, m] = s
            codes[m] = c
            out[1, m] = w[j] if j < nw else 0.0
            out[2, m] = k[j] if j < nk else 0.0
            m += 1
    return out[0, :m].copy(), codes[:m].copy(), out[1, :m].copy(), out[2, :m].copy()


@kernel
def place(source, starts, fill, out):
    """Copy each segment's items to where they are gathered. starts : int64 array, shape (segments + 1,).

    fill : int64 array: the next free place of each segment in `out`; moved on.
    """
    for g in range(fill.size):
        n = starts[g + 1] - starts[g]
        at = fill[g]
        put(out[at:], source[starts[g] : starts[g + 1]])
        fill[g] = at + n
