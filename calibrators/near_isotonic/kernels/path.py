"""The near-isotonic path (Tibshirani, Hoefling & Tibshirani 2011) as a tree of merges.

Between neighbouring *runs* (maximal ranges of points with equal y) lies a *gap*. As lambda grows, blocks of runs
only merge, so the path is one number per gap: the lambda at which it closes. A gap that falls (the left
level is the higher one) falls until it closes, and a gap that rises rises until then. So the runs determine which gaps
fall, and with it the level of every block at every lambda:

    p = (k + lambda * c) / w,    c = [left gap falls] - [right gap falls]

(equation 6 of Naeini & Cooper 2016). Closed gaps form a tree: the children of a gap are the nodes of its two blocks
when it closed. A node is the index of a gap, or ~r for the single run r. Each closed gap has the sums of the block that
it formed, so a solution is read off the tree from the top, at a cost proportional to its number of blocks.

Finding all merges in order of lambda needs a queue over all gaps and accesses memory at random. But most merges do
not depend on that order. If the blocks of the solution at some lambda are known (`taut_string`), the merges within a
block happen by that lambda independently of the other blocks, because the gaps at its ends do not change. So lambda
is doubled repeatedly, and each block of a solution is merged from those of the previous solution with its own short
queue. Blocks at both ends, and the last few blocks, are merged with a queue over all of them.
"""

import sys
from typing import Any, NamedTuple

import numpy as np

from calibrators.core.compiled import kernel
from calibrators.core.kernels.pava import level_difference
from calibrators.core.kernels.sums import add_pairs, divide_pairs, two_product
from calibrators.near_isotonic.kernels.taut_string import settled_ends

_EXACT = 2.0**53  # all integers below it are doubles
_LARGEST = sys.float_info.max
_SCANNED = 8  # number of blocks up to which a linear search finds the next merge
_SAME = 2.0**-40  # relative difference below which levels count as equal, unless all sums are integers


class PathState(NamedTuple):
    """Blocks of runs and closed gaps at a point of the path.

    block : float64 array, shape (2 or 4, r): weight and positives of each block, and their low parts
    ids : integer array, shape (r, 2): node and last run of each block
    falls : bool array, shape (r,): whether the gap after each run falls
    death : float64 array, shape (r - 1,): the lambda at which each gap closed
    child : integer array, shape (r - 1, 2): the two nodes that each closed gap joined
    total : float64 array, shape (r - 1, 2): weight and positives of the block that each closed gap formed
    exact : whether all sums are integers below 2**53; then there are no low parts
    """

    block: Any
    ids: Any
    falls: Any
    death: Any
    child: Any
    total: Any
    exact: bool


@kernel(inline=True)
def _falls(i, path):
    """Tell whether the gap after block i falls."""
    return path.falls[path.ids[i, 1]]


@kernel
def _meeting_lambda(i, j, left_falls, path):
    """Return the lambda at which the neighbouring blocks i and j meet, at least that at which both exist.

    That is the lambda of equation 8, by equation 6 (k_i w_j - k_j w_i) / (c_j w_i - c_i w_j), if no other gap closes
    before; infinite if the levels never meet.

    left_falls : whether the gap left of i falls
    """
    block, exact, falls = path.block, path.exact, _falls(i, path)
    wi, ki, wj, kj = block[0, i], block[1, i], block[0, j], block[1, j]
    wi_low = ki_low = wj_low = kj_low = 0.0
    if not exact:
        wi_low, ki_low, wj_low, kj_low = block[2, i], block[3, i], block[2, j], block[3, j]
    # The level of a block changes, towards both neighbours, unless both its gaps fall or both rise.
    i_moves, j_moves = left_falls != falls, _falls(j, path) != falls
    a, b = ki * wj, kj * wi
    if exact and a + b < _EXACT:
        # Exact products and sums: the quotient is correctly rounded.
        d = a - b if falls else b - a
        t = d / ((wj if i_moves else 0.0) + (wi if j_moves else 0.0))
    else:
        ah, al = two_product(ki, wj)
        bh, bl = two_product(kj, wi)
        al += ki * wj_low + ki_low * wj
        bl += kj * wi_low + kj_low * wi
        d, d_low = add_pairs(ah, al, -bh, -bl)
        if not exact and abs(d) <= _SAME * (a + b):
            d = d_low = 0.0
        if not falls:
            d, d_low = -d, -d_low
        w, w_low = (wj, wj_low) if i_moves else (0.0, 0.0)
        if j_moves:
            w, w_low = add_pairs(wi, wi_low, w, w_low) if i_moves else (wi, wi_low)
        t = divide_pairs(d, d_low, w, w_low)
    if not (i_moves or j_moves):
        # Constant levels meet immediately or never.
        t = 0.0 if d <= 0.0 else np.inf
    if path.ids[i, 0] >= 0:
        t = max(t, path.death[path.ids[i, 0]])
    if path.ids[j, 0] >= 0:
        t = max(t, path.death[path.ids[j, 0]])
    return t


@kernel
def _join(i, j, t, path):
    """Replace block i by the union of the neighbouring blocks i and j, formed at lambda t."""
    block, gap = path.block, path.ids[i, 1]
    path.death[gap] = t
    if path.exact:
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
def _copy_block(i, target, path):
    """Copy block i to index `target`."""
    for column in range(2 if path.exact else 4):
        path.block[column, target] = path.block[column, i]
    path.ids[target, 0] = path.ids[i, 0]
    path.ids[target, 1] = path.ids[i, 1]


@kernel
def _schedule(queue, entry, t, size, limit):
    """Set times[entry] = t and update the heap, which contains the entries with t <= limit. Return its new size.

    queue : tuple of the heap of entries, the slot of each entry in the heap or -1, and the times of the entries
    """
    heap, slots, times = queue
    times[entry] = t
    i = slots[entry]
    if t <= limit:
        if i < 0:
            i = size
            size += 1
    else:
        if i < 0:
            return size
        slots[entry] = -1
        size -= 1
        if i == size:
            return size
        entry, t = heap[size], times[heap[size]]
    # Restore the heap property, which only this entry may violate.
    while i > 0:
        up = (i - 1) >> 1
        if times[heap[up]] <= t:
            break
        heap[i] = heap[up]
        slots[heap[i]] = i
        i = up
    while True:
        down = 2 * i + 1
        if down >= size:
            break
        if down + 1 < size and times[heap[down + 1]] < times[heap[down]]:
            down += 1
        if times[heap[down]] >= t:
            break
        heap[i] = heap[down]
        slots[heap[i]] = i
        i = down
    heap[i] = entry
    slots[entry] = i
    return size


@kernel
def _merge_in_order(blocks, target, limit, path, queue):
    """Merge a range of blocks in order of their meeting lambdas, up to the limit.

    blocks : first block, and the end of the range
    target : index for the first of the resulting blocks
    queue : as in `_schedule`, then the following and the preceding block of each

    Returns
    -------
    index behind the last resulting block
    """
    first, stop = blocks
    heap, slots, times, after, before = queue
    heap_state = (heap, slots, times)
    size = 0
    for i in range(first, stop):
        after[i] = i + 1
        before[i] = i - 1
        slots[i] = -1
        if i + 1 < stop:
            left_falls = i > 0 and _falls(i - 1, path)
            size = _schedule(heap_state, i, _meeting_lambda(i, i + 1, left_falls, path), size, limit)
    while size > 0:
        i = np.int64(heap[0])
        j = np.int64(after[i])
        _join(i, j, times[i], path)
        following = np.int64(after[j])
        after[i] = following
        if following < stop:
            before[following] = i
        # The gap right of j is now right of i. The gaps on both sides of the union get new times.
        size = _schedule(heap_state, j, np.inf, size, limit)
        previous = np.int64(before[i])
        t = np.inf
        if following < stop:
            left_falls = previous >= 0 and _falls(previous, path)
            t = _meeting_lambda(i, following, left_falls, path)
        size = _schedule(heap_state, i, t, size, limit)
        if previous >= first:
            left_falls = before[previous] >= 0 and _falls(before[previous], path)
            t = _meeting_lambda(previous, i, left_falls, path)
            size = _schedule(heap_state, previous, t, size, limit)
    i = first
    while i < stop:
        _copy_block(i, target, path)
        target += 1
        i = np.int64(after[i])
    return target


@kernel
def _merge_few(first, stop, limit, times, path):
    """Merge a few blocks into one in order of their meeting lambdas, by linear search. times : scratch array."""
    for i in range(first, stop - 1):
        times[i] = _meeting_lambda(i, i + 1, i > 0 and _falls(i - 1, path), path)
    while stop - first > 1:
        i = first
        for h in range(first + 1, stop - 1):
            if times[h] < times[i]:
                i = h
        _join(i, i + 1, min(times[i], limit), path)
        stop -= 1
        for h in range(i + 1, stop):
            _copy_block(h + 1, h, path)
            times[h] = times[h + 1]
        if i + 1 < stop:
            times[i] = _meeting_lambda(i, i + 1, i > 0 and _falls(i - 1, path), path)
        if i > first:
            times[i - 1] = _meeting_lambda(i - 1, i, i > 1 and _falls(i - 2, path), path)


@kernel
def _merge_settled(m, lam, path, queue):
    """Merge m blocks to those of the solution at lambda, except at both ends. Return the new number of blocks."""
    falls = np.empty(m, np.bool_)
    for i in range(m):
        falls[i] = _falls(i, path)
    block, none = path.block, np.empty(0)
    sums = (block[0][:m], none, block[1][:m], none)
    if not path.exact:
        sums = (block[0][:m], block[2][:m], block[1][:m], block[3][:m])
    ends = settled_ends(sums, falls, lam, path.exact and lam == np.floor(lam))
    target = e = first = 0
    while first < m:
        if e < ends.size and ends[e] < first:
            e += 1
        stop = ends[e] + 1 if 0 < e < ends.size else first + 1
        if stop - first <= _SCANNED:
            _merge_few(first, stop, lam, queue[2], path)
            _copy_block(first, target, path)
            target += 1
        else:
            target = _merge_in_order((first, stop), target, _LARGEST, path, queue)
        first = stop
    return target


@kernel
def falling_gaps(weight, positives):
    """Tell for each run whether the gap after it falls, shape (r,); the last entry is False. O(r)."""
    r = weight.size
    falls = np.zeros(r, np.bool_)
    for i in range(r - 1):
        left, right = (positives[i], 0.0, weight[i], 0.0), (positives[i + 1], 0.0, weight[i + 1], 0.0)
        falls[i] = level_difference(left, right) > 0.0
    return falls


@kernel
def build(sums, falls, exact, lambdas, few, index):
    """Build the tree of merges of runs (or of blocks at which a path starts), up to some lambda.

    Parameters
    ----------
    sums : float64 arrays: weight and positives, shape (r,), r >= 1, and their low parts, shape (r, 2), or (0, 2)
        if there are none
    falls : bool array, shape (r,): whether the gap after each run falls; the last entry is False
    exact : bool: whether all sums are integers below 2**53
    lambdas : float, float: the first lambda > 0 for which the blocks of the solution are computed, and the finite
        lambda at which the tree ends
    few : int >= 1: number of blocks from which on one queue is used for all of them
    index : integer array of shape (0,) with the dtype of indices of runs

    Returns
    -------
    death : float64 array, shape (r - 1,): the lambda at which each gap closes; infinite for gaps that stay open
    child : integer array, shape (r - 1, 2): the nodes that the gap joined; undefined for gaps that stay open
    total : float64 array, shape (r - 1, 2): weight and positives of the block formed; 0 for gaps that stay open
    ids : integer array, shape (blocks, 2): node and last run of each block at the limit

    O(r log r) time at worst; for the labels of a log, O(r).
    """
    m = falls.size
    lam, limit = lambdas
    weight, positives, low = sums
    block, ids = np.zeros((2 if exact else 4, m)), np.empty((m, 2), index.dtype)
    # Zeros, because callers scale all entries.
    death, child, total = np.empty(m - 1), np.empty((m - 1, 2), index.dtype), np.zeros((m - 1, 2))
    # Entry by entry: numba takes 2 s to compile the assignment of an array, for its error message.
    for i in range(m):
        block[0, i], block[1, i] = weight[i], positives[i]
        if not exact and low.size > 0:
            block[2, i], block[3, i] = low[i, 0], low[i, 1]
        ids[i, 0], ids[i, 1] = ~i, i
        if i > 0:
            death[i - 1] = np.inf
    path = PathState(block, ids, falls, death, child, total, exact)
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
