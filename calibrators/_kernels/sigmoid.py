"""The log loss of a sigmoid against Platt's targets and its derivatives, summed without regard to order."""

import numpy as np

from calibrators._kernels.compiled import kernel
from calibrators._kernels.log_loss_sums import BLOCK, add_product, add_whole, loss_and_two_derivatives

SUMS = 6


@kernel
def loss_and_derivatives(x, weight, positives, target_one, target_zero, a, b, scale, fine):
    """Sums over points of the log loss of sigmoid(a x + b), its gradient and its Hessian.

    Parameters
    ----------
    x, weight, positives : float64 arrays, shape (m,), m < 2**32; |x| <= 2
    target_one, target_zero : pairs (t, 1 - t) of float64: the targets of a positive and of a negative label
    scale : power of 2 with scale * (sum of the absolute terms) < 2**62
    fine : the same of the derivatives' terms alone

    Returns
    -------
    int64 array, shape (6, 2)
        Loss; d/da, d/db; d2/da2, d2/dadb, d2/db2: each as `log_loss_sums.add_whole` has it.
    """
    sums = np.zeros((SUMS, 2), np.int64)
    arguments, hits, misses, losses = np.empty(BLOCK), np.empty(BLOCK), np.empty(BLOCK), np.empty(BLOCK)
    slopes, curvatures = np.empty(BLOCK), np.empty(BLOCK)
    for start in range(0, x.size, BLOCK):
        m = min(BLOCK, x.size - start)
        z, hit, miss, loss = arguments[:m], hits[:m], misses[:m], losses[:m]
        by_b, by_bb = slopes[:m], curvatures[:m]
        for i in range(m):
            k = positives[start + i]
            rest = weight[start + i] - k
            z[i] = a * x[start + i] + b
            hit[i] = k * target_one[0] + rest * target_zero[0]
            miss[i] = k * target_one[1] + rest * target_zero[1]
        loss_and_two_derivatives(z, hit, miss, loss, by_b, by_bb)
        place = x[start : start + m]
        add_whole(loss, scale, sums[0])
        add_whole(by_b, fine, sums[2])
        add_product(by_b, place, by_b, fine, sums[1])
        add_whole(by_bb, fine, sums[5])
        add_product(by_bb, place, by_bb, fine, sums[4])
        add_product(by_bb, place, by_bb, fine, sums[3])
    return sums
