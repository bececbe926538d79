"""Taking the usable rows of a batch."""

from calibrators._kernels.compiled import kernel

_LARGEST = 1.7976931348623157e308


@kernel
def split_classes(score, label, negatives, positives, n, p):
    """Append the scores of usable rows to one array a class; return the new lengths.

    score : float64 array; usable when finite. label : uint8 array; usable when 0 or 1.
    negatives, positives : float64 arrays with room for score.size more entries after n and p.
    """
    for i in range(score.size):
        s = score[i] + 0.0  # -0.0 is 0.0
        z = label[i]
        if z <= 1 and abs(s) <= _LARGEST:
            # Written without a branch: labels are unpredictable.
            negatives[n] = s
            positives[p] = s
            n += 1 - z
            p += z
    return n, p
