"""Weighted sums of scores over blocks of neighbouring points, exactly."""

import numpy as np

from calibrators._kernels.compiled import kernel
from calibrators._kernels.copying import put
from calibrators._kernels.sums import MAX_COMPONENTS, add, rounded


@kernel
def block_expansions(values, ends):
    """The exact sum of each block of values as an expansion.

    ends : int64 array, shape (blocks,), ascending: where each block ends (exclusive).

    Returns
    -------
    components : float64 array: the expansions one after another
    lengths : int64 array, shape (blocks,)
    """
    out = np.empty(values.size)
    lengths = np.empty(ends.size, np.int64)
    components = np.empty(MAX_COMPONENTS)
    used = i = 0
    for block in range(ends.size):
        n = 0
        while i < ends[block]:
            n = add(components, n, values[i])
            i += 1
        # No expansion is longer than what it was made of, so there is room.
        put(out[used:], components[:n])
        used += n
        lengths[block] = n
    return out[:used].copy(), lengths


@kernel
def block_sums(components, ends):
    """The correctly rounded sum of each block of components (of expansions, in any grouping)."""
    out = np.empty(ends.size)
    total = np.empty(MAX_COMPONENTS)
    i = 0
    for block in range(ends.size):
        n = 0
        while i < ends[block]:
            n = add(total, n, components[i])
            i += 1
        out[block] = rounded(total, n)
    return out
