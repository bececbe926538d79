"""Priority sampling of points by their hashes; quantiles of binomial distributions.

The sample is the k points with the highest priority weight / u, where u in (0, 1] is a hash of the score (Duffield,
Lund & Thorup 2007). So it does not depend on the order or division of the points: those of the sample that lie in a
part are among the k points of the part with the highest priority.
"""

import numpy as np

from calibrators.core.compiled import kernel

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31, _S11 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11)
_ROUNDED = 1.0 + 1e-12


@kernel
def candidate_points(bits, weight, others, least, room, salt):
    """Return the points with a priority of at least `least`, the first `room` of them.

    Parameters
    ----------
    bits : uint64 array, shape (m,): the bits of the scores
    weight, others : float64 arrays, shape (m,); weight - others >= 0 is the weight of the rows to draw from;
        if `others` is empty, it is `weight`. Rows of weight 0 are never drawn
    least : float >= 0
    room : int: largest number of points to return
    salt : uint64: seed of the hash, the finaliser of splitmix64 (Steele, Lea & Flood 2014)

    Returns
    -------
    int64 and float64 arrays, shape (points,): indices, ascending, and priorities
    int : number of points with such a priority, which may exceed `room`
    """
    index, priority = np.empty(room, np.int64), np.empty(room)
    size = 0
    subtract = others.size > 0
    for i in range(bits.size):
        w = weight[i]
        if subtract:
            w -= others[i]
        if w > 0.0:
            x = (bits[i] ^ salt) + _GOLDEN
            x = (x ^ (x >> _S30)) * _FIRST
            x = (x ^ (x >> _S27)) * _SECOND
            x = x ^ (x >> _S31)
            u = (np.float64(x >> _S11) + 1.0) * 2.0**-53
            # A multiplication decides most cases without a division.
            if u * least <= w * _ROUNDED and w / u >= least:
                if size < room:
                    index[size], priority[size] = i, w / u
                size += 1
    return index[:size], priority[:size], size


@kernel
def binomial_quantiles(uniform, count, probability):
    """Return the least k with P(X <= k) >= u for binomial X. O(sqrt(count)) each.

    Probabilities are summed outwards from the mode, relative to the one there. scipy's quantiles are the same, but
    take 0.4 s to import.

    Parameters
    ----------
    uniform : float64 array, shape (m,), in [0, 1)
    count : float64 array, shape (m,), integers >= 0
    probability : float in (0, 1)
    """
    quantiles = np.empty(count.size)
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
        target = uniform[i] * (below + 1.0 + above)
        k, mass, reached = mode, 1.0, below + 1.0
        while k > 0.0 and mass > 1e-20 and reached - mass >= target:
            reached -= mass
            mass *= k / ((n - k + 1.0) * odds)
            k -= 1.0
        while k < n and mass > 1e-20 and reached < target:
            mass *= (n - k) / (k + 1.0) * odds
            k += 1.0
            reached += mass
        quantiles[i] = k
    return quantiles
