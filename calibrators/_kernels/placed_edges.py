"""Edges of equal-frequency binnings in a part whose place among all observations, each of weight 1, is known."""

import math

import numpy as np

from calibrators._kernels.binnings import first_target_beyond
from calibrators._kernels.compiled import kernel


@kernel
def mark_edges_of_ones(m, before, bins, numerators, denominators, total):
    """What `binnings.mark_edges` does, where the part's m points all have weight 1: point i is observation before + i.

    before, total : int64.
    """
    marked = np.zeros(m, np.bool_)
    most = min(before + m, total - 1)
    for model in range(bins.size):
        numerator = numerators[model]
        denominator = denominators[model]
        j = first_target_beyond(float(before), numerator, denominator)
        while j < bins[model]:
            number = math.ceil(numerator * j / denominator)
            if number > most:
                break
            marked[number - before - 1] = True
            j += 1
    return marked


@kernel
def read_marks(score, weight, positives, ones, marked, below, above, weight_to, positives_to):
    """Write the scores of the marked points and of their successors, and the sums of whole numbers up to each.

    Nothing is known of what succeeds the last point: NaN. ones : whether all weights are 1; they are not read then.
    """
    w = np.int64(0)
    k = np.int64(0)
    n = 0
    for i in range(marked.size):
        w += 1 if ones else np.int64(weight[i])
        k += np.int64(positives[i])
        if marked[i]:
            below[n] = score[i]
            above[n] = score[i + 1] if i + 1 < score.size else np.nan
            weight_to[n] = w
            positives_to[n] = k
            n += 1
