"""Taking the usable rows of a batch."""

import numpy as np

from calibrators._kernels.compiled import kernel

_LARGEST = 1.7976931348623157e308

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
def count_rows(score, label, code, table, codes, left):
    """Count rows by score and code in a hash table with open addressing (Knuth 1998, 6.4, algorithm L).

    A slot is two words, side by side in memory: a score is mostly found by one look at what is far away.

    Parameters
    ----------
    score, label : see `split_classes`. code : int32 array, or empty
    table : uint64 array, shape (2 ** k + 1, 2), zeros at first: of each score its bits and one more, and its rows with
        label 0 and, 32 bits higher, with label 1. The last row begins with how many scores there are.
    codes : int32 array, shape (2 ** k,): of each score its code; or empty
    left : int64 array of the rows' size, is filled with the places of rows that are not counted: unusable ones, and
        those of scores that came when the table was half full

    Returns
    -------
    how many are left
    """
    slots = table.shape[0] - 1
    shift = np.uint64(_BITS)
    while slots >> (_BITS + 1 - np.int64(shift)):
        shift -= np.uint64(1)
    filled, n = np.int64(table[slots, 0]), 0
    for i in range(score.size):
        s = score[i] + 0.0  # -0.0 is 0.0
        z = label[i]
        if not (z <= 1 and abs(s) <= _LARGEST):
            left[n] = i
            n += 1
            continue
        key = np.float64(s).view(np.uint64) + np.uint64(1)
        c = code[i] if code.size else np.int32(0)
        at = np.int64(((key + np.uint64(c) * _OTHER) * _GOLDEN) >> shift)
        while table[at, 0] and not (table[at, 0] == key and (code.size == 0 or codes[at] == c)):
            at = (at + 1) & (slots - 1)
        if not table[at, 0]:
            if 2 * filled >= slots:
                left[n] = i
                n += 1
                continue
            table[at, 0] = key
            if code.size:
                codes[at] = c
            filled += 1
        table[at, 1] += np.uint64(1) << (np.uint64(z) << np.uint64(5))
    table[slots, 0] = filled
    return n
