"""Searching ascending numbers from a place that is near the one looked for."""

from calibrators._kernels.compiled import kernel


@kernel
def first_at(values, start, limit):
    """The first place from `start` on with a value of at least `limit`: in steps that double, then by bisection.

    values : float64 array, ascending, without NaN. O(log of the distance).
    """
    if start == values.size or values[start] >= limit:
        return start
    low, step = start, 1
    while low + step < values.size and values[low + step] < limit:
        low += step
        step *= 2
    high = min(low + step, values.size)
    while high - low > 1:
        middle = (low + high) >> 1
        if values[middle] < limit:
            low = middle
        else:
            high = middle
    return high
