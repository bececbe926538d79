"""Drawing points by their hashes, so that every order and grouping of parts draws the same ones.

Of many points the k with the largest weight / u are drawn, u a number in (0, 1] that is a function of the score alone
(priority sampling: Duffield, Lund & Thorup 2007). The largest of a part hold those of the whole that lie in it.
"""

import numpy as np

from calibrators._kernels.compiled import kernel
from calibrators._kernels.pava_classes import first_not_below

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31, _S11 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11)
_ROUNDED = 1.0 + 1e-12


@kernel(inline=True)
def _uniform(bits, salt):
    """A number in (0, 1] of the bits of a score: the finaliser of splitmix64 (Steele, Lea & Flood 2014)."""
    x = (bits ^ salt) + _GOLDEN
    x = (x ^ (x >> _S30)) * _FIRST
    x = (x ^ (x >> _S27)) * _SECOND
    x = x ^ (x >> _S31)
    return (np.float64(x >> _S11) + 1.0) * 2.0**-53


@kernel(inline=True)
def _before(p, s, q, t):
    """Whether priority p at score s comes before priority q at score t: less is worth less."""
    return p < q or (p == q and s > t)


@kernel
def _offer(heap, size, priority, score):
    """Put a point into a heap, the least priority on top; the top leaves a heap that is full. Return its size."""
    if size < heap.shape[0]:
        i = size
        size += 1
        while i > 0:
            up = (i - 1) >> 1
            if not _before(priority, score, heap[up, 0], heap[up, 1]):
                break
            heap[i, 0], heap[i, 1] = heap[up, 0], heap[up, 1]
            i = up
        heap[i, 0], heap[i, 1] = priority, score
        return size
    if not _before(heap[0, 0], heap[0, 1], priority, score):
        return size
    i = 0
    while True:
        down = 2 * i + 1
        if down >= size:
            break
        if down + 1 < size and _before(heap[down + 1, 0], heap[down + 1, 1], heap[down, 0], heap[down, 1]):
            down += 1
        if not _before(heap[down, 0], heap[down, 1], priority, score):
            break
        heap[i, 0], heap[i, 1] = heap[down, 0], heap[down, 1]
        i = down
    heap[i, 0], heap[i, 1] = priority, score
    return size


@kernel
def draw_points(score, bits, weight, most, salt):
    """Draw points by weight.

    Parameters
    ----------
    score, weight : float64 arrays, shape (m,); weights >= 0, of which those that are 0 are never drawn
    bits : the memory of `score` as uint64
    most : int >= 1
    salt : uint64: another one draws others

    Returns
    -------
    float64 array, shape (drawn, 2), drawn <= most: priorities and scores, in no order
    """
    heap = np.empty((most, 2))
    size = 0
    for i in range(score.size):
        w = weight[i]
        if w > 0.0:
            u = _uniform(bits[i], salt)
            # Most are told apart without a division.
            if size < most or u * heap[0, 0] <= w * _ROUNDED:
                size = _offer(heap, size, w / u, score[i])
    return heap[:size].copy()


@kernel
def likely_in_class(score, bits, least, room, salt):
    """Of rows of weight 1, ascending, the points whose priorities are at least so high; none where there is no room.

    A score's weight is the number of rows there. Returns a float64 array, shape (points, 2), priorities and scores.
    """
    found = np.empty((room, 2))
    size = i = 0
    n = score.size
    while i < n:
        s = score[i]
        start = i
        i += 1
        while i < n and score[i] == s:
            i += 1
        w = np.float64(i - start)
        u = _uniform(bits[start], salt)
        if u * least <= w * _ROUNDED and w / u >= least:
            if size == room:
                return found[:0].copy()
            found[size, 0], found[size, 1] = w / u, s
            size += 1
    return found[:size].copy()


@kernel
def draw_class(score, bits, most, salt):
    """`draw_points` of rows of weight 1, ascending."""
    heap = np.empty((most, 2))
    size = i = 0
    n = score.size
    while i < n:
        s = score[i]
        start = i
        i += 1
        while i < n and score[i] == s:
            i += 1
        w = np.float64(i - start)
        u = _uniform(bits[start], salt)
        if size < most or u * heap[0, 0] <= w * _ROUNDED:
            size = _offer(heap, size, w / u, s)
    return heap[:size].copy()


@kernel
def distinct_in_either(one, other):
    """How many different scores there are in two ascending arrays together."""
    i, n = 0, one.size
    found = min(n, 1) + min(other.size, 1)
    for k in range(1, n):
        found += one[k] != one[k - 1]
    for k in range(1, other.size):
        found += other[k] != other[k - 1]
    for j in range(other.size):
        s = other[j]
        if j > 0 and s == other[j - 1]:
            continue
        i = first_not_below(one, i, n, s)
        if i < n and one[i] == s:
            found -= 1
    return found


@kernel
def first_distinct(values, most):
    """The first different values of ascending ones, `most` at most."""
    out = np.empty(most)
    found = 0
    for i in range(values.size):
        if found == 0 or values[i] != out[found - 1]:
            if found == most:
                break
            out[found] = values[i]
            found += 1
    return out[:found].copy()


@kernel
def last_distinct(values, most):
    """The last different values of ascending ones, `most` at most, descending."""
    out = np.empty(most)
    found = 0
    for i in range(values.size - 1, -1, -1):
        if found == 0 or values[i] != out[found - 1]:
            if found == most:
                break
            out[found] = values[i]
            found += 1
    return out[:found].copy()
