"""The near-isotonic path (Tibshirani, Hoefling & Tibshirani 2011) as a tree of merges.

Between neighbouring *runs* (maximal stretches of points with equal y) lies a *gap*. As lambda grows, blocks of runs
only ever merge, so the whole path is one number a gap: the lambda at which it closes. A gap that falls (the left
level is the higher one) keeps falling until it closes, and so does one that rises; so whether it falls is known
from the runs, and with it the closed form of every block's level at every lambda:

    p = (k + lambda * c) / w,    c = [left gap falls] - [right gap falls].

Closed gaps form a tree: a gap's children are what its two blocks were when it closed. A node is the number of a
gap, or ~r for the single run r. Each gap keeps the sums of the block that its closing made, so that a solution is
read off the tree from the top, at a cost proportional to its blocks.

How the path is found. In order of lambda, it takes a queue over all gaps, and memory is touched at random. But most
merges do not care about that order. Neighbours i and j that meet at t, as things stand, do merge at t if neither
can change before. Let A(i) be a lower bound on the lambda at which i merges across its left gap, as long as i
itself is as it stands, and B(j) the same to the right; then t <= A(i) and t <= B(j) are enough. Bounds come from
the next neighbour's: h, left of i, keeps its motion until A(h) at least; from then on, whatever it has become, its
level is continuous and moves towards i by at most 1 / w_h, because blocks only gain weight. So

    A(i) = the meeting time of h and i if that is at most A(h), or if h already moves towards i at full speed;
    otherwise the meeting time if h started to move at full speed at A(h).

A sweep takes the times of all gaps, A from left to right and B from right to left, and merges what it may. The first
gap to close always may be (every bound is at least its time, by induction from the ends), so each sweep makes progress.
When a sweep achieves little, a heap does the rest.
"""

from typing import Any, NamedTuple

import numpy as np

from calibrators._kernels.compiled import kernel
from calibrators._kernels.pava import level_difference
from calibrators._kernels.sums import add_pairs, divide_pairs, two_product

_EXACT = 2.0**53  # whole numbers below this are doubles
_SAME = 2.0**-40  # relative difference below which levels count as equal, unless all is whole
_DOUBT = 2.0**-49  # relative error, with room to spare, of sums and products of a few doubles


class Merging(NamedTuple):
    """Blocks of runs on their way along the path.

    block : float64 array, shape (r, 2 or 4): weight and positives of each block, and their low parts
    ids : integer array, shape (r, 2): its node and its last run
    falls : bool array, shape (r,): whether the gap after each run falls
    death : float64 array, shape (r - 1,): the lambda at which each gap closed
    child, total : of each closed gap the nodes that it joined and the sums of the block
    whole : whether all sums are whole numbers below 2**53 (there are no low parts then)
    """

    block: Any
    ids: Any
    falls: Any
    death: Any
    child: Any
    total: Any
    whole: bool


@kernel(inline=True)
def _meeting(one, other, gaps, whole):
    """The lambda at which the levels of neighbours i and j meet, infinite if never, as things stand.

    one, other : of i and j positives and weight, each with its low part
    gaps : whether the gap between them falls, the one left of i, and the one right of j
    whole : whether all sums are whole numbers below 2**53 (the low parts are then not looked at).
    """
    ki, ki_low, wi, wi_low = one
    kj, kj_low, wj, wj_low = other
    falls, left, right = gaps
    # A block moves (and then towards any neighbour) unless the gaps on both its sides fall, or both rise.
    i_moves = left != falls
    j_moves = right != falls
    if falls:
        a = ki * wj
        b = kj * wi
    else:
        a = kj * wi
        b = ki * wj
    if whole and a + b < _EXACT:
        d = a - b
        if i_moves:
            # Exact products and sums: the quotient is correctly rounded.
            return d / (wj + wi) if j_moves else d / wj
        if j_moves:
            return d / wi
        # Constant levels meet now or never.
        return 0.0 if d <= 0.0 else np.inf
    ah, al = two_product(ki, wj)
    bh, bl = two_product(kj, wi)
    if not whole:
        al += ki * wj_low + ki_low * wj
        bl += kj * wi_low + kj_low * wi
    if not falls:
        ah, al, bh, bl = bh, bl, ah, al
    dh, dl = add_pairs(ah, al, -bh, -bl)
    if not whole and abs(dh) <= _SAME * (a + b):
        dh = dl = 0.0
    if i_moves:
        if j_moves:
            wh, wl = add_pairs(wi, wi_low, wj, wj_low)
            return divide_pairs(dh, dl, wh, wl)
        return divide_pairs(dh, dl, wj, wj_low)
    if j_moves:
        return divide_pairs(dh, dl, wi, wi_low)
    return 0.0 if dh <= 0.0 else np.inf


@kernel(inline=True)
def _falls(i, path):
    """Tell whether the gap after block i falls."""
    return path.falls[path.ids[i, 1]]


@kernel
def _meet(i, j, left, path):
    """Meeting time of the neighbouring blocks i and j; left: whether the gap left of i falls.

    Not before either was formed: a meeting time that rounding puts before that means now.
    """
    block, gaps = path.block, (_falls(i, path), left, _falls(j, path))
    if path.whole:
        t = _meeting((block[i, 1], 0.0, block[i, 0], 0.0), (block[j, 1], 0.0, block[j, 0], 0.0), gaps, True)
    else:
        one = (block[i, 1], block[i, 3], block[i, 0], block[i, 2])
        t = _meeting(one, (block[j, 1], block[j, 3], block[j, 0], block[j, 2]), gaps, False)
    if path.ids[i, 0] >= 0:
        t = max(t, path.death[path.ids[i, 0]])
    if path.ids[j, 0] >= 0:
        t = max(t, path.death[path.ids[j, 0]])
    return t


@kernel
def _earliest(t, change, free, other, moves, path):
    """A lower bound on the meeting of two neighbours, one of them free to change from `change` on.

    t : when they meet if neither changes
    free, other : the blocks
    moves : whether they move as they stand
    """
    free_moves, other_moves = moves
    k_free, w_free = path.block[free, 1], path.block[free, 0]
    k_other, w_other = path.block[other, 1], path.block[other, 0]
    # Whether the free one has the higher level.
    upper = _falls(free, path) if free < other else not _falls(other, path)
    if free_moves or t <= change:
        return t
    # The free one stays where it is until `change`, then moves at full speed.
    change = max(change, 0.0)
    if upper:
        a = (k_free + change) * w_other
        b = k_other * w_free
    else:
        a = k_other * w_free
        b = (k_free - change) * w_other
    d = (a - b) - _DOUBT * (abs(a) + abs(b))
    speed = w_other + w_free if other_moves else w_other
    return max(change, d / speed * (1.0 - _DOUBT))


@kernel
def _join(i, j, t, path):
    """Put the union of the neighbouring blocks i and j, formed at t, in the place of i."""
    block, gap = path.block, path.ids[i, 1]
    path.death[gap] = t
    if path.whole:
        block[i, 0] += block[j, 0]
        block[i, 1] += block[j, 1]
    else:
        path.block[i, 0], path.block[i, 2] = add_pairs(
            path.block[i, 0], path.block[i, 2], path.block[j, 0], path.block[j, 2]
        )
        path.block[i, 1], path.block[i, 3] = add_pairs(
            path.block[i, 1], path.block[i, 3], path.block[j, 1], path.block[j, 3]
        )
    path.child[gap, 0] = path.ids[i, 0]
    path.child[gap, 1] = path.ids[j, 0]
    path.total[gap, 0] = path.block[i, 0]
    path.total[gap, 1] = path.block[i, 1]
    path.ids[i, 0] = gap
    path.ids[i, 1] = path.ids[j, 1]


@kernel
def _move(i, o, path):
    """Copy block i to place o."""
    for column in range(2 if path.whole else 4):
        path.block[o, column] = path.block[i, column]
    path.ids[o, 0] = path.ids[i, 0]
    path.ids[o, 1] = path.ids[i, 1]


@kernel
def _bounds(m, path):
    """Meeting times of neighbours, A and B of each of the m blocks: see the module. Shape (m,).

    A block merges across its left gap not before A, and across its right gap not before B, while it does not change.
    """
    times, left, right = np.empty(m), np.empty(m), np.empty(m)
    left[0] = right[m - 1] = np.inf
    for i in range(1, m):
        before, gap, after = i > 1 and _falls(i - 2, path), _falls(i - 1, path), _falls(i, path)
        times[i] = _meet(i - 1, i, before, path)
        left[i] = _earliest(times[i], left[i - 1], i - 1, i, (before != gap, after != gap), path)
    for i in range(m - 1, 0, -1):
        before, gap, after = i > 1 and _falls(i - 2, path), _falls(i - 1, path), _falls(i, path)
        right[i - 1] = _earliest(times[i], right[i], i, i - 1, (after != gap, before != gap), path)
    return times, left, right


@kernel
def _sweep(m, limit, path):
    """Merge neighbours that may be merged whatever the order, each block once. Returns the number of blocks left."""
    times, left, right = _bounds(m, path)
    o = 0
    joined = False
    for i in range(1, m):
        t = times[i]
        joined = not joined and t <= limit and t <= left[i - 1] and t <= right[i]
        if joined:
            _join(o, i, t, path)
        else:
            o += 1
            _move(i, o, path)
    return o + 1


@kernel(inline=True)
def _sift(queue, i, size):
    """Restore the order of the heap around its i-th entry, if that is where it is broken."""
    heap, place, t = queue
    p = heap[i]
    x = t[p]
    while i > 0:
        up = (i - 1) >> 1
        if t[heap[up]] <= x:
            break
        heap[i] = heap[up]
        place[heap[i]] = i
        i = up
    while True:
        down = 2 * i + 1
        if down >= size:
            break
        if down + 1 < size and t[heap[down + 1]] < t[heap[down]]:
            down += 1
        if t[heap[down]] >= x:
            break
        heap[i] = heap[down]
        place[heap[i]] = i
        i = down
    heap[i] = p
    place[p] = i


@kernel
def _schedule(queue, p, t, size, limit):
    """Set times[p] = t and bring the heap in line: p is in it exactly if t <= limit. Returns the new size.

    queue : heap of numbers, the place of each in it or -1, and their times
    """
    heap, place, times = queue
    times[p] = t
    i = place[p]
    if t <= limit:
        if i < 0:
            i = size
            size += 1
            heap[i] = p
        _sift(queue, i, size)
    elif i >= 0:
        place[p] = -1
        size -= 1
        if i < size:
            heap[i] = heap[size]
            _sift(queue, i, size)
    return size


@kernel
def _merge_in_order(m, limit, path):
    """Merge the m blocks in order of their meeting times, up to the limit. Returns the number of blocks left."""
    times = np.full(m, np.inf)
    after = np.empty(m, path.ids.dtype)
    before = np.empty(m, path.ids.dtype)
    heap = np.empty(m, path.ids.dtype)
    place = np.empty(m, path.ids.dtype)
    queue = (heap, place, times)
    size = 0
    for i in range(m):
        after[i] = i + 1
        before[i] = i - 1
        place[i] = -1
        if i + 1 < m:
            left = i > 0 and _falls(i - 1, path)
            t = _meet(i, i + 1, left, path)
            size = _schedule(queue, i, t, size, limit)
    while size > 0:
        i = np.int64(heap[0])
        j = np.int64(after[i])
        _join(i, j, times[i], path)
        nxt = np.int64(after[j])
        after[i] = nxt
        if nxt < m:
            before[nxt] = i
        # The gap right of j is now right of i; those on both sides of the union close at other times than before.
        size = _schedule(queue, j, np.inf, size, limit)
        previous = np.int64(before[i])
        t = np.inf
        if nxt < m:
            left = previous >= 0 and _falls(previous, path)
            t = _meet(i, nxt, left, path)
        size = _schedule(queue, i, t, size, limit)
        if previous >= 0:
            left = before[previous] >= 0 and _falls(before[previous], path)
            t = _meet(previous, i, left, path)
            size = _schedule(queue, previous, t, size, limit)
    o = 0
    i = 0
    while i < m:
        _move(i, o, path)
        o += 1
        i = np.int64(after[i])
    return o


@kernel
def falling(weight, positives):
    """Tell for each run whether the gap after it falls, shape (r,); the last entry is False. O(r)."""
    r = weight.size
    falls = np.zeros(r, np.bool_)
    for i in range(r - 1):
        one, other = (positives[i], 0.0, weight[i], 0.0), (positives[i + 1], 0.0, weight[i + 1], 0.0)
        falls[i] = level_difference(one, other) > 0.0
    return falls


@kernel
def begin(weight, positives, low, whole, index):
    """The blocks before anything has merged: their sums, and node and last run of each. O(r)."""
    r = weight.size
    block = np.empty((r, 2 if whole else 4))
    ids = np.empty((r, 2), index.dtype)
    for i in range(r):
        block[i, 0] = weight[i]
        block[i, 1] = positives[i]
        if not whole:
            block[i, 2] = low[i, 0] if low.shape[0] > 0 else 0.0
            block[i, 3] = low[i, 1] if low.shape[0] > 0 else 0.0
        ids[i, 0] = ~i
        ids[i, 1] = i
    return block, ids


@kernel
def merge_sure(m, limit, few, path):
    """Sweep until at most `few` blocks are left or a sweep achieves little. Returns the number of blocks left."""
    before = 2 * m
    while m > few and 32 * (before - m) >= m:
        before = m
        m = _sweep(m, limit, path)
    return m


@kernel
def build(sums, falls, whole, limit, few, index):
    """The tree of merges of runs (or of blocks that a path is continued from), up to the lambda `limit`.

    Parameters
    ----------
    sums : float64 arrays: weight and positives, shape (r,), r >= 1, and the low parts of both, shape (r, 2), or (0, 2)
        where there are none
    falls : bool array, shape (r,): whether the gap after each falls; the last entry is False
    whole : bool: whether all are whole numbers with sums below 2**53
    limit : float >= 0, finite
    few : int >= 1: so many blocks are left to the heap
    index : integer array of shape (0,), whose dtype numbers the runs

    Returns
    -------
    death : float64 array, shape (r - 1,): the lambda at which each gap closes; infinite if not up to the limit
    child : integer array, shape (r - 1, 2): the nodes that the gap joined; undefined for gaps that stay open
    total : float64 array, shape (r - 1, 2): weight and positives of the block formed; 0 for gaps that stay open
    ids : integer array, shape (blocks, 2): node and last run of each block at the limit

    O(r log r) time at worst; for the labels of a log, O(r).
    """
    r = falls.size
    block, ids = begin(*sums, whole, index)
    death = np.full(r - 1, np.inf)
    child = np.empty((r - 1, 2), index.dtype)
    total = np.zeros((r - 1, 2))  # callers scale all of it: what happens to lie in memory could overflow
    path = Merging(block, ids, falls, death, child, total, whole)
    m = merge_sure(r, limit, few, path)
    m = _merge_in_order(m, limit, path)
    return death, child, total, ids[:m].copy()
