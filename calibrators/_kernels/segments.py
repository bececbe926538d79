"""Rows of many segments: scattering them by segment, and applying each segment's own map."""

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def scatter(code, rank, label, classes, ends, positions):
    """Where each row goes when rows are ordered by class and, within a class, by the rank of their segment.

    Parameters
    ----------
    code : int32 array, shape (n,). rank : int64 array: of each code, in [0, segments).
    label : uint8 array, shape (n,): 0 or 1
    classes : 2 to tell the labels apart, 1 not to
    ends : int64 array, shape (classes * segments + 1,), zeros: becomes the places where each slice begins
    positions : int64 array, shape (n,), is filled
    """
    segments = (ends.size - 1) // classes
    for i in range(code.size):
        ends[rank[code[i]] + (classes - 1) * segments * label[i] + 1] += 1
    for j in range(1, ends.size):
        ends[j] += ends[j - 1]
    fill = ends[:-1].copy()
    for i in range(code.size):
        slot = rank[code[i]] + (classes - 1) * segments * label[i]
        positions[i] = fill[slot]
        fill[slot] += 1


@njit(cache=True, nogil=True)
def place(source, starts, target, fill, out):
    """Copy slices of a run to where their segments are gathered.

    source : float64 array. starts : int64 array, shape (slices + 1,): slice i is source[starts[i]:starts[i + 1]].
    target : int64 array, shape (slices,): the segment that slice i belongs to, or -1.
    fill : int64 array, a segment's next free place in `out`; moved on.
    """
    for i in range(target.size):
        t = target[i]
        if t >= 0:
            n = starts[i + 1] - starts[i]
            out[fill[t] : fill[t] + n] = source[starts[i] : starts[i + 1]]
            fill[t] += n


@njit(cache=True, nogil=True)
def apply(scores, start, stop, score_hi, prob_lo, slope, anchor, out):
    """Evaluate the map in rows start[i], ..., stop[i] - 1 at scores[i]; NaN stays NaN. O(log rows) a score."""
    for i in range(scores.size):
        s = scores[i]
        if np.isnan(s):
            out[i] = np.nan
            continue
        j = start[i]
        end = stop[i] - 1
        while j < end:
            mid = (j + end) >> 1
            if score_hi[mid] <= s:
                j = mid + 1
            else:
                end = mid
        # An infinite score in a constant row would give 0 * inf.
        out[i] = prob_lo[j] if slope[j] == 0.0 else prob_lo[j] + slope[j] * (s - anchor[j])
