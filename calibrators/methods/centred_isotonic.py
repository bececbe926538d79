"""Centred isotonic regression: isotonic blocks shrunk to points, so that the map increases strictly."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from calibrators._kernels import moments as kernel
from calibrators.arithmetic.calibration_map import CalibrationMap
from calibrators.arithmetic.cumulative import (
    Layout,
    PartTotals,
    bin_counts,
    counts_below_pass,
    layout_of,
    part_totals,
    summable,
)
from calibrators.arithmetic.passes import Blocks, Pass, Passes, Points
from calibrators.arithmetic.pooling import pool_blocks, pool_ends, pool_points

Array = npt.NDArray[np.float64]


class _State(NamedTuple):
    """Isotonic blocks of a part, the exact sums of weight times score in each, and the part's totals."""

    blocks: Blocks
    components: Array
    lengths: npt.NDArray[np.int64]
    totals: PartTotals


class _Centred(NamedTuple):
    blocks: Blocks
    level: Array
    centre: Array
    layout: Layout


def centred_passes(ends: float) -> Passes:
    """The passes of centred isotonic regression, on the pooling of isotonic regression with these `ends`."""
    fitted: _Centred = yield Pass(chunk=_pool_part, combine=partial(_join_parts, ends))
    scores, levels = _knots(fitted)
    counts = yield counts_below_pass(fitted.layout, scores)
    return CalibrationMap.from_knots(scores, levels, *bin_counts(fitted.layout, counts))


def _pool_part(points: Points) -> _State:
    blocks = pool_points(points)
    ends = np.searchsorted(points.score, blocks.last, side="right")
    with np.errstate(over="ignore"):
        components, lengths = kernel.block_expansions(summable(points.score * points.weight), ends)
    return _State(blocks, components, lengths, part_totals(points))


def _join_parts(ends: float, parts: list[_State]) -> _Centred:
    blocks, level = pool_ends(pool_blocks([part.blocks for part in parts]), ends)
    lasts = np.concatenate([part.blocks.last for part in parts])
    stops = np.cumsum(np.concatenate([part.lengths for part in parts]))
    stops = stops[np.searchsorted(lasts, blocks.last)]
    sums = kernel.block_sums(np.concatenate([part.components for part in parts]), stops)
    centre = sums / blocks.weight
    # Sums of products beyond the largest double: the middle of the block.
    centre = np.where(np.isfinite(centre), centre, blocks.first / 2 + blocks.last / 2)
    centre = np.clip(centre, blocks.first, blocks.last)
    return _Centred(blocks, level, centre, layout_of([part.totals for part in parts]))


def _knots(fitted: _Centred) -> tuple[Array, Array]:
    """One knot at the centre of each block; both ends of a block at level 0 or 1, which cannot be crossed."""
    blocks, level = fitted.blocks, fitted.level
    flat = (level == 0.0) | (level == 1.0)
    left, right = np.where(flat, blocks.first, fitted.centre), np.where(flat, blocks.last, fitted.centre)
    scores = np.column_stack([left, right]).ravel()
    distinct = np.append(True, np.diff(scores) > 0)
    return scores[distinct], np.repeat(level, 2)[distinct]
