"""Drawing points by their hashes, so that every order and grouping of parts draws the same ones.

Of many points the k with the largest weight / u are drawn, u a number in (0, 1] that is a function of the score alone
(priority sampling: Duffield, Lund & Thorup 2007). The largest of a part hold those of the whole that lie in it.
"""

import numpy as np

from calibrators._kernels.compiled import kernel
from calibrators._kernels.pava import first_not_below

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


@kernel
def likely_points(score, bits, weight, least, room, salt):
    """The points whose priorities are at least so high.

    Parameters
    ----------
    score, weight : float64 arrays, shape (m,); weights >= 0; rows of weight 0 are never drawn
    bits : the memory of `score` as uint64
    least : float >= 0. room : int: of points, at most
    salt : uint64: another one draws others

    Returns
    -------
    float64 array, shape (points, 2): priorities and scores, ascending by score; and how many there are, more than
    points where there is no room
    """
    found = np.empty((room, 2))
    size = 0
    for i in range(score.size):
        w = weight[i]
        if w > 0.0:
            u = _uniform(bits[i], salt)
            # Most are told apart without a division.
            if u * least <= w * _ROUNDED and w / u >= least:
                if size < room:
                    found[size, 0], found[size, 1] = w / u, score[i]
                size += 1
    return found[: min(size, room)], size


@kernel
def likely_in_class(score, bits, least, room, salt):
    """`likely_points` of rows of weight 1, ascending: a score's weight is the number of rows there."""
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
            if size < room:
                found[size, 0], found[size, 1] = w / u, s
            size += 1
    return found[: min(size, room)], size


@kernel
def distinct_in_either(one, other):
    """Count the different scores of two ascending arrays together."""
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
def binomial_quantiles(uniform, count, probability):
    """The least k with P(X <= k) >= u for binomial X. O(sqrt(count)) each.

    Masses are summed as multiples of the largest, outwards from it; scipy's quantiles are the same, but take 0.4 s to
    import.

    Parameters
    ----------
    uniform : float64 array, shape (m,), in [0, 1)
    count : float64 array, shape (m,), whole numbers >= 0
    probability : float in (0, 1)
    """
    found = np.empty(count.size)
    odds = probability / (1.0 - probability)
    for i in range(count.size):
        n = count[i]
        mode = min(np.floor((n + 1.0) * probability), n)
        below, mass, k = 0.0, 1.0, mode
        while k > 0.0 and mass > 1e-20:
            mass *= k / ((n - k + 1.0) * odds)
            k -= 1.0
            below += mass
        above, mass, k = 0.0, 1.0, mode
        while k < n and mass > 1e-20:
            mass *= (n - k) / (k + 1.0) * odds
            k += 1.0
            above += mass
        wanted = uniform[i] * (below + 1.0 + above)
        k, mass, reached = mode, 1.0, below + 1.0
        while k > 0.0 and mass > 1e-20 and reached - mass >= wanted:
            reached -= mass
            mass *= k / ((n - k + 1.0) * odds)
            k -= 1.0
        while k < n and mass > 1e-20 and reached < wanted:
            mass *= (n - k) / (k + 1.0) * odds
            k += 1.0
            reached += mass
        found[i] = k
    return found
