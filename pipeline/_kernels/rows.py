"""Taking the usable rows of a batch."""

import numpy as np

from calibrators._kernels.compiled import kernel

_LARGEST = 1.7976931348623157e308

HEAVIEST_COUNTED = float(1 << 15)
"""Of weights that are counted: sums of them, times a factor of 16 bits, are exact."""

_BITS = 64
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_OTHER = np.uint64(0xC2B2AE3D27D4EB4F)


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


@kernel
def count_rows(score, label, code, weight, table, left):
    """Add rows up by score and code in a hash table with open addressing (Knuth 1998, 6.4, algorithm L).

    Parameters
    ----------
    score, label : see `split_classes`. code : int32 array, or empty. weight : float64 array, or empty
    table : uint64 array, shape (2 ** k + 1, 4), zeros at first: of each score its bits and one more, its code, and the
        weights of its rows with label 0 and with label 1. The last row: how many scores there are, how many rows were
        counted, and how many of them have label 1.
    left : int64 array of the rows' size, is filled with the places of rows that are not counted: unusable ones, those
        whose weight is no whole number or too large, and those of scores that came when the table was half full

    Returns
    -------
    how many are left
    """
    slots = table.shape[0] - 1
    shift = np.uint64(_BITS)
    while slots >> (_BITS - np.int64(shift)):
        shift -= np.uint64(1)
    shift += np.uint64(1)
    filled, n, ones = np.int64(table[slots, 0]), 0, np.uint64(0)
    for i in range(score.size):
        s = score[i] + 0.0  # -0.0 is 0.0
        z = label[i]
        w = weight[i] if weight.size else 1.0
        if not (z <= 1 and abs(s) <= _LARGEST and 1.0 <= w <= HEAVIEST_COUNTED and w == np.floor(w)):
            left[n] = i
            n += 1
            continue
        key = np.float64(s).view(np.uint64) + np.uint64(1)
        c = np.uint64(code[i]) if code.size else np.uint64(0)
        at = np.int64(((key + c * _OTHER) * _GOLDEN) >> shift)
        while table[at, 0] and not (table[at, 0] == key and table[at, 1] == c):
            at = (at + 1) & (slots - 1)
        if not table[at, 0]:
            if 2 * filled >= slots:
                left[n] = i
                n += 1
                continue
            table[at, 0], table[at, 1] = key, c
            filled += 1
        table[at, 2 + z] += np.uint64(w)
        ones += np.uint64(z)
    table[slots, 0] = filled
    table[slots, 1] += np.uint64(score.size - n)
    table[slots, 2] += ones
    return n
