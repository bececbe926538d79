"""The log loss of beta calibration and its derivatives, summed without regard to order."""

import numpy as np

from calibrators._kernels.compiled import kernel
from calibrators._kernels.log_loss_sums import BLOCK, add_product, add_whole, loss_and_two_derivatives

SUMS = 10


@kernel
def loss_and_derivatives(u, v, weight, positives, a, b, c, scale):
    """Sums over points of the log loss of sigmoid(a u + b v + c), its gradient and its Hessian.

    As `sigmoid.loss_and_derivatives`. Returns int64, shape (10, 2): loss; d/da, d/db, d/dc; d2/da2, d2/dadb, d2/dadc,
    d2/db2, d2/dbdc, d2/dc2.
    """
    sums = np.zeros((SUMS, 2), np.int64)
    arguments, misses, losses = np.empty(BLOCK), np.empty(BLOCK), np.empty(BLOCK)
    slopes, curvatures, products = np.empty(BLOCK), np.empty(BLOCK), np.empty(BLOCK)
    for start in range(0, u.size, BLOCK):
        m = min(BLOCK, u.size - start)
        z, miss, loss = arguments[:m], misses[:m], losses[:m]
        by_c, by_cc, term = slopes[:m], curvatures[:m], products[:m]
        x, y, hit = u[start : start + m], v[start : start + m], positives[start : start + m]
        for i in range(m):
            z[i] = a * x[i] + b * y[i] + c
            miss[i] = weight[start + i] - hit[i]
        loss_and_two_derivatives(z, hit, miss, loss, by_c, by_cc)
        add_whole(loss, scale, sums[0])
        add_product(by_c, x, term, scale, sums[1])
        add_product(by_c, y, term, scale, sums[2])
        add_whole(by_c, scale, sums[3])
        add_product(by_cc, y, term, scale, sums[8])
        add_product(term, y, term, scale, sums[7])
        add_product(by_cc, x, term, scale, sums[6])
        add_product(term, y, by_c, scale, sums[5])
        add_product(term, x, term, scale, sums[4])
        add_whole(by_cc, scale, sums[9])
    return sums
