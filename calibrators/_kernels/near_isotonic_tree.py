"""Reading the near-isotonic path: breakpoints, solutions off the tree of merges, and their likelihood."""

import numpy as np

from calibrators._kernels.compiled import kernel


@kernel
def pool_close(ascending, tolerance):
    """The first of every stretch of values that lie within a relative tolerance above it. O(n), in place."""
    n = 0
    for i in range(ascending.size):
        if n == 0 or ascending[i] > ascending[n - 1] * (1.0 + tolerance):
            ascending[n] = ascending[i]
            n += 1
    return ascending[:n].copy()


@kernel
def expand(lam, blocks, runs, tree):
    """The solution at lambda: so many blocks, read off the tree from the top.

    runs : their weights and positives. tree : whether the gap after each falls, and what `build` gives

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
    # Gaps that are open at lambda and whose right child is still to come.
    stack = np.empty(blocks, np.int64)
    b = 0
    left = 0
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
            right = 1 if falls[end] else 0
            # Blocks that do not move must not see a lambda that may be infinite.
            p = k if left == right else k + lam * (left - right)
            last[b] = end
            block_weight[b] = w
            block_positives[b] = k
            level[b] = min(max(p / w, 0.0), 1.0)
            left = right
            b += 1
            if depth == 0:
                break
            depth -= 1
            node = np.int64(child[stack[depth], 1])
    return last, block_weight, block_positives, level


@kernel
def log_likelihood(level, weight, positives):
    """Sum of k log p + (w - k) log(1 - p), with 0 log 0 = 0, by compensated summation."""
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
        # Terms are negative: the larger one in magnitude loses nothing.
        lost += (s - t) + x if s <= x else (x - t) + s
        s = t
    return s if s == -np.inf else s + lost
