"""Near-isotonic path, given its tree of merges: breakpoints, solutions, and their log likelihood."""

import numpy as np

from calibrators.core.compiled import kernel


@kernel
def merge_close(ascending, tolerance):
    """Return the lowest value of each group of values within a relative tolerance above it. O(n), in place."""
    n = 0
    for i in range(ascending.size):
        if n == 0 or ascending[i] > ascending[n - 1] * (1.0 + tolerance):
            ascending[n] = ascending[i]
            n += 1
    return ascending[:n].copy()


@kernel
def expand(lam, blocks, runs, tree):
    """Return the solution at lambda, read off the tree from the top.

    lam : float
    blocks : int: number of blocks of the solution
    runs : weights and positives of the runs
    tree : `falls`, see `near_isotonic.build`, and the output of `build`

    Returns
    -------
    last : int64 array, shape (blocks,): the last run of each block
    block_weight, block_positives, level : float64 arrays, shape (blocks,)
    """
    weight, positives = runs
    falls, death, child, total, ids = tree
    last = np.empty(blocks, np.int64)
    block_weight = np.empty(blocks)
    block_positives = np.empty(blocks)
    level = np.empty(blocks)
    # Gaps that are open at lambda and whose right child has not been visited.
    stack = np.empty(blocks, np.int64)
    block = 0
    left_falls = 0
    for root in range(ids.shape[0]):
        depth = 0
        node = np.int64(ids[root, 0])
        while True:
            while node >= 0 and death[node] > lam:
                stack[depth] = node
                depth += 1
                node = np.int64(child[node, 0])
            if node >= 0:
                w = total[node, 0]
                k = total[node, 1]
            else:
                w = weight[~node]
                k = positives[~node]
            end = np.int64(ids[root, 1]) if depth == 0 else stack[depth - 1]
            right_falls = 1 if falls[end] else 0
            # No multiplication for constant levels, because lambda may be infinite.
            p = k if left_falls == right_falls else k + lam * (left_falls - right_falls)
            last[block] = end
            block_weight[block] = w
            block_positives[block] = k
            level[block] = min(max(p / w, 0.0), 1.0)
            left_falls = right_falls
            block += 1
            if depth == 0:
                break
            depth -= 1
            node = np.int64(child[stack[depth], 1])
    return last, block_weight, block_positives, level


@kernel
def log_likelihood(level, weight, positives):
    """Return the sum of k log p + (w - k) log(1 - p), with 0 log 0 = 0, by compensated summation."""
    s = 0.0
    lost = 0.0
    for i in range(level.size):
        p = level[i]
        k = positives[i]
        x = 0.0
        if k > 0.0:
            x += k * np.log(p)
        if weight[i] > k:
            x += (weight[i] - k) * np.log1p(-p)
        t = s + x
        # All terms are negative, so the comparison finds the larger one in magnitude.
        lost += (s - t) + x if s <= x else (x - t) + s
        s = t
    return s if s == -np.inf else s + lost
