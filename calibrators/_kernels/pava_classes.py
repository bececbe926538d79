"""Pool adjacent violators over the scores of either class, stretches of one label at a time."""

import numpy as np

from calibrators._kernels.compiled import kernel


@kernel(inline=True)
def first_not_below(values, i, stop, bound):
    """The first place from i on whose value is not below a bound. values : ascending up to `stop`."""
    # Eight at a time: where so short a stretch ends cannot be predicted.
    while i + 8 <= stop:
        count = 0
        for d in range(8):
            count += values[i + d] < bound
        i += count
        if count < 8:
            return i
    while i < stop and values[i] < bound:
        i += 1
    return i


@kernel(inline=True)
def _joined(stack, top, a, w, k):
    """The last block, from score `a` on, once those of stack[:top] that do not stand lower have joined it."""
    while top > 0 and stack[top - 1, 3] * w >= k * stack[top - 1, 2]:
        top -= 1
        a = stack[top, 0]
        w += stack[top, 2]
        k += stack[top, 3]
    return top, a, w, k


@kernel
def pool_classes(negatives, positives):
    """Isotonic blocks of rows without weights, without the points in between.

    negatives, positives : float64 arrays, the scores of either class, ascending; from 1 to 2**26 - 1 together

    Returns
    -------
    blocks : float64 array, shape (blocks, 4): first, last, weight, positives. How many scores both classes have.
    """
    i = j = top = 0
    n, p = negatives.size, positives.size
    # As many blocks as rows at most; memory that is not written to is none.
    stack = np.empty((n + p, 4))
    both = 0
    # The last block is held apart: most points join it.
    a = b = w = k = 0.0
    while i < n or j < p:
        # Neighbours of one label are one block: those with label 0 never stand higher than what comes before.
        s = positives[j] if j < p else np.inf
        start = i
        i = first_not_below(negatives, i, n, s)
        if i > start:
            a = negatives[start] if w == 0.0 else a
            b = negatives[i - 1]
            w += i - start
            top, a, w, k = _joined(stack, top, a, w, k)
        s = negatives[i] if i < n else np.inf
        start = j
        j = first_not_below(positives, j, p, s)
        hits = weight = float(j - start)
        if j > start:
            first, last = positives[start], positives[j - 1]
        elif i < n and j < p:
            # A score of both.
            first = last = s
            weight = -float(i)
            while i < n and negatives[i] == s:
                i += 1
            while j < p and positives[j] == s:
                j += 1
            hits = float(j - start)
            weight += i + hits
            both += 1
        else:
            break
        if k * weight < hits * w:
            stack[top, 0], stack[top, 1], stack[top, 2], stack[top, 3] = a, b, w, k
            top += 1
            a, b, w, k = first, last, weight, hits
            continue
        a = first if w == 0.0 else a
        b = last
        w += weight
        k += hits
        top, a, w, k = _joined(stack, top, a, w, k)
    stack[top, 0], stack[top, 1], stack[top, 2], stack[top, 3] = a, b, w, k
    return stack[: top + 1].copy(), both
