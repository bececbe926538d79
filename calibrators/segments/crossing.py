"""Main effects of the last segment column, across all parents."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from calibrators.core.arrays import Array, Integers, Mask
from calibrators.segments.adjusting import Adjusted, BlockCells, adjust
from calibrators.segments.curves import EXTREME, MOST_INFORMATION, logistic_of

_ROUNDS = 2
"""Number of times that parents are estimated again."""

_CLOSE = 0.01
"""Mean change of parents' log odds that needs no other estimate of the values."""

_PER_UNIT = 32
"""Ranges per unit of log odds in which cells are merged: a mean probability changes by less than 1e-4 of itself."""

_PER_UNIT_OF_BASE = 4
"""The same for the log odds that slopes stretch."""


def cross(
    cells: BlockCells,
    value: Integers,
    parent: Integers,
    lines: tuple[Array, Array],
    before: tuple[Array, Array],
    processors: int = 1,
) -> tuple[Adjusted, tuple[Array, Array]]:
    """Estimate the main effect of the last column: one adjustment per value, common to all parents.

    Without it, the effect of a value would be estimated separately for each parent. Values that occur under one parent
    only are left out, since `adjust` estimates their effect.

    Parents were estimated without values, so that their curves have part of the values' effects. They are estimated
    again with the values' effects, and then the values again, in turns (backfitting). Shifts and slopes add up.

    Parameters
    ----------
    cells : cells of the segments, in the curve that all adjustments adjust
    value, parent : int64 arrays, shape (segments,): each segment's value in the last column, and its parent; no pair
        occurs twice
    lines : float64 arrays, shape (segments,): shift and slope by which each segment's parent adjusts the curve
    before : the same before the parent's own estimate, after effects across its own parents
    processors : see `adjust`

    Returns
    -------
    main effects : Adjusted
        One entry per segment, not per value: shift and slope for the value and for the parent estimated again; those of
        the parent alone for values that are left out. The other attributes are the values'.
    lines : those of parents estimated again, with which another call is faster

    Notes
    -----
    O(cells log cells).
    """
    sizes = np.diff(cells.starts)
    in_several = (np.bincount(value) > 1)[value] & (sizes > 0)
    nothing = np.zeros(sizes.size), np.zeros(sizes.size)
    if not in_several.any():
        none = np.zeros(sizes.size, np.bool_)
        return Adjusted((0.0, 0.0), *lines, none, certainty=np.zeros(sizes.size)), lines
    values, parents = _Groups(cells, value, in_several), _Groups(cells, parent, sizes > 0)
    logit = np.repeat(lines[0], sizes) + np.repeat(lines[1], sizes) * cells.logit
    of_cells = _information(np.clip(logit, -EXTREME, EXTREME), cells.weight)
    information, middle = cells.sums(of_cells), _mean(cells.logit, of_cells)

    def line(of_parent: tuple[Array, Array], of_value: tuple[Array, Array]) -> tuple[Array, Array]:
        slope = before[1] + of_parent[1] + of_value[1]
        rising = np.maximum(slope, 0.0)
        return before[0] + of_parent[0] + of_value[0] + (slope - rising) * middle, rising

    def at(effect: tuple[Array, Array]) -> Array:
        return effect[0] + effect[1] * middle

    estimated = of_parent = lines[0] - before[0], lines[1] - before[1]
    found, of_value = values.adjusted(*line(of_parent, nothing), processors)
    for _ in range(_ROUNDS if information.sum() < MOST_INFORMATION else 0):
        _, (shift, slope) = parents.adjusted(*line(nothing, of_value), processors)
        # What all parents have in common is left to the values: it depends on their errors, and would drift.
        slope = slope + _mean(estimated[1] - slope, information)
        shift = shift + _mean(at(estimated) - at((shift, slope)), information)
        moved = np.hypot(at((shift, slope)) - at(of_parent), slope - of_parent[1])
        of_parent = shift, slope
        if _mean(moved, information) <= _CLOSE:
            break
        found, of_value = values.adjusted(*line(of_parent, nothing), processors)
    shift, slope = line(of_parent, of_value)
    again = before[0] + of_parent[0], before[1] + of_parent[1]
    return replace(found, shift=shift, slope=slope), again


class _Groups:
    """Segments in groups that have one adjustment each.

    cells : cells of the segments
    of : int64 array, shape (segments,): each segment's group
    chosen : mask of the segments that are in a group
    """

    def __init__(self, cells: BlockCells, of: Integers, chosen: Mask) -> None:
        self._cells, self._chosen = cells, np.flatnonzero(chosen)
        group, self._of = np.unique(of[chosen], return_inverse=True)
        self._groups = group.size

    def adjusted(self, shift: Array, slope: Array, processors: int) -> tuple[Adjusted, tuple[Array, Array]]:
        """Adjust groups, after each segment's shift and slope, which are not stretched.

        Return the adjustments, of which `outlying` and `certainty` are by segment, and what each segment's group adds
        to its shift and its slope; 0 for segments in no group.
        """
        sizes = np.diff(self._cells.starts)
        logit = np.repeat(shift, sizes) + np.repeat(slope, sizes) * self._cells.logit
        np.clip(logit, -EXTREME, EXTREME, out=logit)
        starts, logit, weight, positives, base = self._merged(logit, sizes) or self._sorted(logit)
        centre = np.full(self._groups, _mean(base, _information(logit, weight)))
        found = adjust(BlockCells(starts, centre, logit, weight, positives, base), processors)
        added = np.zeros((2, sizes.size))
        added[:, self._chosen] = found.shift[self._of], found.slope[self._of] - 1.0
        outlying, certainty = np.zeros(sizes.size, np.bool_), np.zeros(sizes.size)
        outlying[self._chosen], certainty[self._chosen] = found.outlying[self._of], found.certainty[self._of]
        return replace(found, outlying=outlying, certainty=certainty), (added[0], added[1])

    def _sorted(self, logit: Array) -> tuple[Integers, Array, Array, Array, Array]:
        """Return the groups' starts and columns of cells: each segment's, one after the other."""
        order = np.argsort(self._of, kind="stable")
        base = self._cells.logit
        cells = self._cells._replace(logit=logit, part_stretched=base).selected(self._chosen[order])
        starts = cells.starts[np.searchsorted(self._of[order], np.arange(self._groups + 1))]
        return starts, cells.logit, cells.weight, cells.positives, cells.stretched

    def _merged(self, logit: Array, sizes: Integers) -> tuple[Integers, Array, Array, Array, Array] | None:
        """Return the same with cells of nearly equal log odds merged; None if this leaves more than half of them."""
        base, weight = self._cells.logit, self._cells.weight
        fine, coarse = (logit - logit.min()) * _PER_UNIT, (base - base.min()) * _PER_UNIT_OF_BASE
        columns = int(coarse.max()) + 1
        places = (int(fine.max()) + 1) * columns
        if 2 * places * self._groups > logit.size:
            return None
        group = np.full(sizes.size, self._groups)  # those in no group are merged behind the others
        group[self._chosen] = self._of
        index = np.repeat(group * places, sizes)
        index += fine.astype(np.int64) * columns
        index += coarse.astype(np.int64)
        summed = weight * logit, weight, self._cells.positives, weight * base
        sums = np.stack([np.bincount(index, column, places * (self._groups + 1)) for column in summed])
        filled = np.flatnonzero(sums[1, : places * self._groups] > 0)
        sums = sums[:, filled]
        sums[0] /= sums[1]
        sums[3] /= sums[1]
        return np.searchsorted(filled, places * np.arange(self._groups + 1)), *sums


def _information(logit: Array, weight: Array) -> Array:
    p = logistic_of(logit)
    return weight * p * (1.0 - p)


def _mean(values: Array, weight: Array) -> float:
    return float((weight * values).sum() / weight.sum())
