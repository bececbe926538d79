"""Main effects of the last segment column, across all parents."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from calibrators.core.arrays import Integers
from calibrators.segments.adjusting import Adjusted, BlockCells, adjust
from calibrators.segments.curves import logistic_of


def cross(cells: BlockCells, value: Integers, parent: Integers, processors: int = 1) -> Adjusted:
    """Estimate the main effect of the last column: one adjustment per value, common to all parents.

    Without it, the effect of a value would be estimated separately for each parent. Values that occur under one parent
    only are left out, since `adjust` estimates their effect.

    Parameters
    ----------
    cells : cells of the segments
    value, parent : int64 arrays, shape (segments,): each segment's value in the last column, and its parent
    processors : see `adjust`

    Returns
    -------
    Adjusted
        One entry per segment, not per value: shift 0 and slope 1 for values that are left out. O(cells log cells).
    """
    sizes = np.diff(cells.starts)
    pairs = np.unique(np.stack([value, parent]), axis=1)[0]
    in_several = (np.bincount(pairs, minlength=value.max(initial=0) + 1) > 1)[value] & (sizes > 0)
    result = Adjusted((0.0, 0.0), np.zeros(sizes.size), np.ones(sizes.size), np.zeros(sizes.size, np.bool_))
    if not in_several.any():
        return result
    shared, group = np.unique(value[in_several], return_inverse=True)
    cell_mask = np.repeat(in_several, sizes)
    cell_group = np.repeat(group, sizes[in_several])
    order = np.argsort(cell_group, kind="stable")
    logit, weight, positives = (
        column[cell_mask][order] for column in (cells.logit, cells.weight, cells.positives)
    )
    p = logistic_of(logit)
    information = weight * p * (1.0 - p)
    centre = float((information * logit).sum() / information.sum())
    starts = np.searchsorted(cell_group[order], np.arange(shared.size + 1))
    adjusted = adjust(BlockCells(starts, np.full(shared.size, centre), logit, weight, positives), processors)
    result.shift[in_several], result.slope[in_several] = adjusted.shift[group], adjusted.slope[group]
    result.outlying[in_several] = adjusted.outlying[group]
    return replace(result, variances=adjusted.variances, pivot=adjusted.pivot, typical=adjusted.typical)
