"""Second fit of a log's segments, without the rows of outlying segments in the map of all rows.

Outlying segments bend the map of all rows: if half of the rows have inverted labels, it is flat, and no shift or slope
of it fits the others. So does a large segment with one score, such as the default of a model that is missing there:
neighbouring scores would have its rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from calibrators.core.arrays import Mask
from pipeline.execution import Executor, Graph
from pipeline.files.folders import Folder
from pipeline.fit.calibration import Recipe
from pipeline.fit.pooled_segments import Numbered, PooledLevels, add_pooled, pooled_pass
from pipeline.fit.shared_maps import LEAST_LEFT
from pipeline.sort.score_table import SortedRows, add_merge
from pipeline.sort.segment_tasks import cut_levels
from pipeline.sort.segments import write_codes
from pipeline.table.segment_maps import LevelFit

LEAST_SHARE = 0.01
"""Share of the positives or of the negatives from which such segments are left out of the map of all rows."""

_MOST_FITS = 3

_MOST_LEFT_OUT = 0.5
"""Share of the positives or of the negatives from which on segments with one score are used: the others are few."""


def fit_without_outliers(
    recipe: Recipe, rows: SortedRows, executor: Executor, numbered: Numbered, pooled: PooledLevels
) -> PooledLevels:
    """Fit again without the rows of such segments in the map of all rows, until no others are found.

    They adjust the new map, too. The outlying ones stay named.

    Parameters
    ----------
    pooled : result of the first fit

    Notes
    -----
    Up to three more merges of the log, if outlying segments together, or a segment with one score, have a share of 1 %
    of either label; otherwise none.
    """
    left_out = outlying = np.zeros(numbered.segments.coding.count, np.bool_)
    for number in range(_MOST_FITS):
        contradicting = outlying | _codes(numbered, [fit.outlying for fit in pooled[0]])
        found = left_out | contradicting | _codes(numbered, [_large(fit, fit.one_range) for fit in pooled[0]])
        if not _many(numbered, left_out, found):
            break
        left_out, outlying = found, contradicting
        pooled = _fit(recipe, rows, executor, numbered, left_out, f"{rows.plan.scratch}/usual-{number}")
    return _named(numbered, outlying, pooled)


def _codes(numbered: Numbered, of_levels: Sequence[Sequence[int]]) -> Mask:
    """Return the mask of the codes whose segment on some level is among those of the level."""
    codes = np.zeros(numbered.segments.coding.count, np.bool_)
    for level, chosen in zip(numbered.segments.levels, of_levels, strict=True):
        mask = np.zeros(len(level.keys), np.bool_)
        mask[chosen] = True
        codes |= mask[level.of]
    return codes


def _large(fit: LevelFit, segments: Sequence[int]) -> list[int]:
    """Select the segments with a notable share of either label; none if they have most of it."""
    labels = np.stack([fit.positives, fit.rows - fit.positives])
    shares = labels[:, segments] / np.maximum(labels.sum(axis=1, keepdims=True), 1)
    large = (shares > LEAST_SHARE).any(axis=0)
    few = shares[:, large].sum(axis=1).max() < _MOST_LEFT_OUT
    return np.array(segments, np.int64)[large].tolist() if few else []


def _many(numbered: Numbered, before: Mask, found: Mask) -> bool:
    """Tell whether newly found segments have a notable share of the rows, and the others have enough."""
    level = numbered.segments.levels[-1]
    first = np.unique(level.of, return_index=True)[1]
    labels = np.stack([level.positives, level.rows - level.positives])
    new, left = ((labels * mask[first]).sum(axis=1) for mask in (found & ~before, ~found))
    return bool((new > LEAST_SHARE * labels.sum(axis=1)).any() and left.min() >= LEAST_LEFT)


def _fit(
    recipe: Recipe,
    rows: SortedRows,
    executor: Executor,
    numbered: Numbered,
    left_out: Mask,
    scratch: str,
) -> PooledLevels:
    Folder.at(scratch).make()
    flags = write_codes(f"{scratch}/left-out", left_out.astype(np.int32))
    cutting = cut_levels(
        numbered.segments, numbered.wanted, scratch, pooled=None, weighted=numbered.cutting.weighted
    )._replace(left_out=flags)
    rows = rows._replace(plan=replace(rows.plan, scratch=scratch, write=None))
    graph, calibrator = Graph(), recipe.calibrator()
    first = add_merge(graph, rows, pooled_pass(calibrator), cutting)
    fitted: PooledLevels = executor.compute(
        graph, add_pooled(graph, calibrator, recipe.sampling_rate, first, numbered, rows)
    )
    return fitted


def _named(numbered: Numbered, outlying: Mask, pooled: PooledLevels) -> PooledLevels:
    """Name the segments that were outlying in an earlier fit."""
    levels = []
    for level, fit in zip(numbered.segments.levels, pooled[0], strict=True):
        codes = np.bincount(level.of[outlying], minlength=len(fit.keys))
        whole = (codes > 0) & (codes == np.bincount(level.of, minlength=len(fit.keys)))
        named = np.union1d(np.flatnonzero(whole), np.array(fit.outlying, np.int64))
        levels.append(replace(fit, outlying=named.tolist()))
    return PooledLevels(levels, *pooled[1:])
