"""Label runs: maximal ranges of neighbouring points with equal y = positives / weight."""

import math

import numpy as np

from calibrators.core.compiled import kernel
from calibrators.core.kernels.sums import two_product


@kernel
def run_starts(weight, positives):
    """Return the index of the first point of each run; levels are compared exactly."""
    out = np.empty(weight.size, np.int64)
    runs = 0
    for i in range(weight.size):
        same = False
        if i > 0:
            w1, k1, w2, k2 = weight[i - 1], positives[i - 1], weight[i], positives[i]
            if k1 == 0.0 or k2 == 0.0:
                same = k1 == k2
            elif k1 == w1 or k2 == w2:
                same = k1 == w1 and k2 == w2
            else:
                # Mantissas, because their products neither overflow nor underflow.
                (ma, ea), (mb, eb), (mc, ec), (md, ed) = (
                    math.frexp(k1), math.frexp(w2), math.frexp(k2), math.frexp(w1),
                )  # fmt: skip
                shift = (ea + eb) - (ec + ed)
                p, p_low = two_product(math.ldexp(ma, shift), mb)
                q, q_low = two_product(mc, md)
                same = abs(shift) <= 1 and p == q and p_low == q_low
        if not same:
            out[runs] = i
            runs += 1
    return out[:runs].copy()
