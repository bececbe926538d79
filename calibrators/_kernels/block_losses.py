"""Losses of the recalibrated predictions (CORP), from their blocks; the same to the last bit on every machine."""

from calibrators._kernels.compiled import kernel
from calibrators._kernels.double_double import two_sum
from calibrators._kernels.log_odds import log_of, log_of_rest


@kernel
def mean_losses(weight, positives):
    """Brier score and log loss of each block's frequency, and of that of all: four means over the rows.

    weight, positives : float64 arrays, shape (blocks,). Sums are kept with what rounding takes of them.
    """
    total = total_low = hits = hits_low = squares = squares_low = logs = logs_low = 0.0
    for i in range(weight.size):
        w, k = weight[i], positives[i]
        total, rest = two_sum(total, w)
        total_low += rest
        hits, rest = two_sum(hits, k)
        hits_low += rest
        squares, rest = two_sum(squares, _brier(w, k))
        squares_low += rest
        logs, rest = two_sum(logs, _log(w, k))
        logs_low += rest
    total, hits = total + total_low, hits + hits_low
    return (
        (squares + squares_low) / total,
        (logs + logs_low) / total,
        _brier(total, hits) / total,
        _log(total, hits) / total,
    )


@kernel(inline=True)
def _brier(w, k):
    return k * (1.0 - k / w)


@kernel(inline=True)
def _log(w, k):
    c = min(k / w, 1.0)
    loss = 0.0
    if k > 0.0:
        loss -= k * log_of(c)
    if k < w and c < 1.0:
        loss -= (w - k) * log_of_rest(c)
    return loss
