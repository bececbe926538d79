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
merges do not care about that order: where the blocks of the solution at some lambda are known (`taut_string`), what
lies within one of them merges by then, whatever happens outside, since the gaps at its ends do not change. So lambda
is doubled again and again, and each block of a solution is made from those of the one before with a queue of its own,
a short one. Blocks at both ends, and the last few, are left to a queue over all of them.
"""

from typing import Any, NamedTuple

import numpy as np

from calibrators._kernels.compiled import kernel
from calibrators._kernels.pava import level_difference
from calibrators._kernels.sums import add_pairs, divide_pairs, two_product
from calibrators._kernels.taut_string import settled

_EXACT = 2.0**53  # whole numbers below this are doubles
_SCANNED = 8  # blocks of which the next to merge is found by looking at all
_SAME = 2.0**-40  # relative difference below which levels count as equal, unless all is whole


class Merging(NamedTuple):
    """Blocks of runs on their way along the path.

    block : float64 array, shape (2 or 4, r): weight and positives of each block, and their low parts
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
        t = _meeting((block[1, i], 0.0, block[0, i], 0.0), (block[1, j], 0.0, block[0, j], 0.0), gaps, True)
    else:
        one = (block[1, i], block[3, i], block[0, i], block[2, i])
        t = _meeting(one, (block[1, j], block[3, j], block[0, j], block[2, j]), gaps, False)
    if path.ids[i, 0] >= 0:
        t = max(t, path.death[path.ids[i, 0]])
    if path.ids[j, 0] >= 0:
        t = max(t, path.death[path.ids[j, 0]])
    return t


@kernel
def _join(i, j, t, path):
    """Put the union of the neighbouring blocks i and j, formed at t, in the place of i."""
    block, gap = path.block, path.ids[i, 1]
    path.death[gap] = t
    if path.whole:
        block[0, i] += block[0, j]
        block[1, i] += block[1, j]
    else:
        path.block[0, i], path.block[2, i] = add_pairs(
            path.block[0, i], path.block[2, i], path.block[0, j], path.block[2, j]
        )
        path.block[1, i], path.block[3, i] = add_pairs(
            path.block[1, i], path.block[3, i], path.block[1, j], path.block[3, j]
        )
    path.child[gap, 0] = path.ids[i, 0]
    path.child[gap, 1] = path.ids[j, 0]
    path.total[gap, 0] = path.block[0, i]
    path.total[gap, 1] = path.block[1, i]
    path.ids[i, 0] = gap
    path.ids[i, 1] = path.ids[j, 1]


@kernel
def _move(i, o, path):
    """Copy block i to place o."""
    for column in range(2 if path.whole else 4):
        path.block[column, o] = path.block[column, i]
    path.ids[o, 0] = path.ids[i, 0]
    path.ids[o, 1] = path.ids[i, 1]


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
def _merge_in_order(blocks, o, limit, path, queue):
    """Merge the blocks from one to before another in order of their meeting times, up to the limit.

    o : where the first that is left goes. queue : what `_schedule` takes, and the neighbours of each block
    Returns the place behind the last.
    """
    first, stop = blocks
    heap, place, times, after, before = queue
    waiting = (heap, place, times)
    size = 0
    for i in range(first, stop):
        after[i] = i + 1
        before[i] = i - 1
        place[i] = -1
        if i + 1 < stop:
            left = i > 0 and _falls(i - 1, path)
            size = _schedule(waiting, i, _meet(i, i + 1, left, path), size, limit)
    while size > 0:
        i = np.int64(heap[0])
        j = np.int64(after[i])
        _join(i, j, times[i], path)
        nxt = np.int64(after[j])
        after[i] = nxt
        if nxt < stop:
            before[nxt] = i
        # The gap right of j is now right of i; those on both sides of the union close at other times than before.
        size = _schedule(waiting, j, np.inf, size, limit)
        previous = np.int64(before[i])
        t = np.inf
        if nxt < stop:
            left = previous >= 0 and _falls(previous, path)
            t = _meet(i, nxt, left, path)
        size = _schedule(waiting, i, t, size, limit)
        if previous >= first:
            left = before[previous] >= 0 and _falls(before[previous], path)
            t = _meet(previous, i, left, path)
            size = _schedule(waiting, previous, t, size, limit)
    i = first
    while i < stop:
        _move(i, o, path)
        o += 1
        i = np.int64(after[i])
    return o


@kernel
def _merge_few(first, stop, limit, times, path):
    """Make a few blocks one, in order of their meeting times: quicker than a heap. times : holds them meanwhile."""
    for i in range(first, stop - 1):
        times[i] = _meet(i, i + 1, i > 0 and _falls(i - 1, path), path)
    while stop - first > 1:
        i = first
        for h in range(first + 1, stop - 1):
            if times[h] < times[i]:
                i = h
        _join(i, i + 1, min(times[i], limit), path)
        stop -= 1
        for h in range(i + 1, stop):
            _move(h + 1, h, path)
            times[h] = times[h + 1]
        if i + 1 < stop:
            times[i] = _meet(i, i + 1, i > 0 and _falls(i - 1, path), path)
        if i > first:
            times[i - 1] = _meet(i - 1, i, i > 1 and _falls(i - 2, path), path)


@kernel
def _merge_settled(m, lam, path, queue):
    """Merge the m blocks to those of the solution at lambda, except at both ends. Returns the number of blocks left."""
    falls = np.empty(m, np.bool_)
    for i in range(m):
        falls[i] = _falls(i, path)
    block, none = path.block, np.empty(0)
    sums = (block[0][:m], none, block[1][:m], none)
    if not path.whole:
        sums = (block[0][:m], block[2][:m], block[1][:m], block[3][:m])
    ends = settled(sums, falls, lam, _EXACT if path.whole and lam == np.floor(lam) else 0.0)
    o = e = first = 0
    while first < m:
        if e < ends.size and ends[e] < first:
            e += 1
        stop = ends[e] + 1 if 0 < e < ends.size else first + 1
        if stop - first <= _SCANNED:
            _merge_few(first, stop, lam, queue[2], path)
            _move(first, o, path)
            o += 1
        else:
            o = _merge_in_order((first, stop), o, np.finfo(np.float64).max, path, queue)
        first = stop
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
def _begin(sums, falls, whole, index):
    """The blocks before anything has merged. O(r)."""
    weight, positives, low = sums
    r = falls.size
    block = np.empty((2 if whole else 4, r))
    ids = np.empty((r, 2), index.dtype)
    block[0], block[1] = weight, positives
    for i in range(r):
        if not whole:
            block[2, i] = low[i, 0] if low.shape[0] > 0 else 0.0
            block[3, i] = low[i, 1] if low.shape[0] > 0 else 0.0
        ids[i, 0] = ~i
        ids[i, 1] = i
    death = np.full(r - 1, np.inf)
    child = np.empty((r - 1, 2), index.dtype)
    total = np.zeros((r - 1, 2))  # callers scale all of it: what happens to lie in memory could overflow
    return Merging(block, ids, falls, death, child, total, whole)


@kernel
def build(sums, falls, whole, reach, few, index):
    """The tree of merges of runs (or of blocks that a path is continued from), up to some lambda.

    Parameters
    ----------
    sums : float64 arrays: weight and positives, shape (r,), r >= 1, and the low parts of both, shape (r, 2), or (0, 2)
        where there are none
    falls : bool array, shape (r,): whether the gap after each falls; the last entry is False
    whole : bool: whether all are whole numbers with sums below 2**53
    reach : float, float: the lambda at which the blocks of the solution are found first, > 0, and that up to which the
        tree goes, finite
    few : int >= 1: so many blocks are left to the queue over all of them
    index : integer array of shape (0,), whose dtype numbers the runs

    Returns
    -------
    death : float64 array, shape (r - 1,): the lambda at which each gap closes; infinite if not up to the limit
    child : integer array, shape (r - 1, 2): the nodes that the gap joined; undefined for gaps that stay open
    total : float64 array, shape (r - 1, 2): weight and positives of the block formed; 0 for gaps that stay open
    ids : integer array, shape (blocks, 2): node and last run of each block at the limit

    O(r log r) time at worst; for the labels of a log, O(r).
    """
    m = falls.size
    lam, limit = reach
    path = _begin(sums, falls, whole, index)
    numbers = np.empty((4, m), index.dtype)
    queue = (numbers[0], numbers[1], np.empty(m), numbers[2], numbers[3])
    idle = 0
    while m > few and lam <= limit and idle < 4:
        before = m
        m = _merge_settled(m, lam, path, queue)
        idle = 0 if m < 0.99 * before else idle + 1
        lam *= 2.0
    m = _merge_in_order((0, m), 0, limit, path, queue)
    return path.death, path.child, path.total, path.ids[:m].copy()
