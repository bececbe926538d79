"""Weights and mean places of points in narrow bins, summed without regard to order."""

import numpy as np

from calibrators._kernels.compiled import kernel

SUMS = 4


@kernel
def add_moments(x, weight, positives, bins, first, unit, sums):
    """Add points to the sums of their bins: bins equally wide parts of [-1, 1], of which `sums` holds some.

    Each term is rounded to a multiple of 1 / unit; from there on sums are whole numbers, so they are the same for any
    order and grouping.

    Parameters
    ----------
    x, weight, positives : float64 arrays, shape (m,); x in [-1, 1]
    bins, first : int: how many there are, and the index of the first in `sums`
    unit : power of 2 with unit * (sum of all weights) < 2**62
    sums : int64 array, shape (bins from `first` to that of the last point, 4), changed
        Of the points with label 0, then of those with label 1: the weight, and the weight times the distance from the
        bin's middle, in halves of a bin.
    """
    for i in range(x.size):
        place = (x[i] + 1.0) * (bins / 2)
        j = min(max(np.int64(place), 0), bins - 1)
        distance = 2.0 * (place - j) - 1.0
        k = positives[i]
        rest = weight[i] - k
        sums[j - first, 0] += np.int64(np.rint(rest * unit))
        sums[j - first, 1] += np.int64(np.rint(rest * distance * unit))
        sums[j - first, 2] += np.int64(np.rint(k * unit))
        sums[j - first, 3] += np.int64(np.rint(k * distance * unit))
