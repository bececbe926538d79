"""Measures of segments: of many small segments at once, or of a large one in passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from calibrators.core.arrays import Array, Integers
from calibrators.core.double_double import twelve_digits
from calibrators.core.passes import Blocks, Pass, Points, run_passes, share_sweeps
from calibrators.measures.assessment import MEASURES
from calibrators.measures.certainty import error_bars_of_columns
from calibrators.measures.decomposition import chances_of_columns, mean_losses
from calibrators.measures.engine import (
    MeasureOptions,
    PredictionCells,
    Sums,
    accumulate_columns,
    cells_of_columns,
    column_passes,
    groups_of,
    pooled_columns,
)
from calibrators.measures.predictions import bin_edges, bins_as_table, measures_of_columns
from calibrators.measures.spread import Spread, lines, mean_distances
from pipeline import schema
from pipeline.evaluate.evaluation import Sizes
from pipeline.execution import tasks
from pipeline.sort.segment_tasks import SegmentTask
from pipeline.sort.segments import Slices

ENOUGH = 100
"""Number of rows of either label from which on a segment has Cox's line, the ICI, and decomposed losses."""

FIELDS = (
    *(*MEASURES, "mean_prediction", "weight", "positives", "gap", "variance", "largest"),
    *schema.SEGMENT_CERTAINTY,
)
"""Names of the measured numbers, in order; gap, variance and largest are arguments of `beyond_chance`."""

_BLOCK, _BLOCK_POINTS = 1024, 1 << 17
"""Number of segments and of points measured at a time: their arrays fit into the processor's cache."""


def segment_task_of(sizes: Sizes, weighted: bool, *, tests: bool) -> SegmentTask[Array]:
    """Make the segment task that measures segments: one row of numbers each, in the order of `FIELDS`.

    weighted : whether the log has weights
    tests : see `pipeline.evaluate.evaluation.side_passes`
    """
    bins, sampling_rate = sizes.bins, sizes.sampling_rate
    # Neither a log's weights nor those of sampled rows are counts of rows.
    finish = partial(_measured_fields, sizes, weighted or sampling_rate != 1.0, tests)
    options = [MeasureOptions(edges=bin_edges(bins), rate=sampling_rate)]
    if sampling_rate != 1.0:
        options.append(MeasureOptions(odds=sampling_rate))
    passes = partial(_passes, options, bins, tests)
    small = partial(_measure_small, options, bins, finish)
    return SegmentTask(small, next(passes()), partial(_measure_large, passes, finish))


Finish = Callable[[Sums, Sums, Callable[[Any], tuple[Any, Integers, Any]]], Array]
"""Function from sums before and after sampling, and a function for the isotonic blocks and cells of selected segments,
to the measured numbers."""


def _measure_small(options: list[MeasureOptions], bins: int, finish: Finish, segments: Slices) -> Array:
    points = Points(*segments.columns)
    out = [np.empty((0, len(FIELDS)))]
    first, count = 0, segments.starts.size - 1
    while first < count:
        tasks.check()
        end = int(np.searchsorted(segments.starts, segments.starts[first] + _BLOCK_POINTS))
        last = min(max(end, first + 1), first + _BLOCK, count)
        starts = segments.starts[first : last + 1]
        first = last
        batch = Points(*(column[starts[0] : starts[-1]] for column in points))
        starts = starts - starts[0]
        sums = [accumulate_columns(batch, starts, option, bins) for option in options]
        out.append(finish(sums[0], sums[-1], partial(_blocks_and_cells, batch, starts)))
    return np.concatenate(out)


def _blocks_and_cells(
    points: Points, starts: Integers, mask: Any
) -> tuple[Blocks, Integers, PredictionCells]:
    """Compute the isotonic blocks and the cells of the segments of a mask."""
    sizes = np.diff(starts)
    inside = np.repeat(mask, sizes)
    points = Points(*(column[inside] for column in points))
    cells = cells_of_columns(points, np.append(0, np.cumsum(sizes[mask])))
    return *pooled_columns(points, np.append(0, np.cumsum(sizes[mask]))), cells


def _passes(options: list[MeasureOptions], bins: int, tests: bool) -> Any:
    """Yield the passes over a segment in several parts."""
    last = replace(options[-1], blocks=tests and options[-1].odds == 1.0, cells=tests)
    return share_sweeps(*(column_passes(option, bins) for option in (*options[:-1], last)))


def _measure_large(
    passes: Callable[[], Any], finish: Finish, points: int, run: Callable[[Pass], Any]
) -> Array:
    columns = run_passes(passes(), run)
    blocks, cells = columns[-1].blocks, columns[-1].cells

    def blocks_of(_: Any) -> tuple[Any, Integers, Any]:
        return blocks, np.array([0, 0 if blocks is None else blocks.first.size]), cells

    return finish(columns[0].sums, columns[-1].sums, blocks_of)


def _measured_fields(
    sizes: Sizes, weighted: bool, tests: bool, sums: Sums, rows: Sums, blocks: Callable[[Any], Any]
) -> Array:
    """Compute the numbers of segments, shape (segments, fields)."""
    groups = groups_of(sums)
    measures = measures_of_columns(sums, groups, sizes.bins)
    table = bins_as_table(groups, ~sums.integral | weighted)
    weight, p = table["weight"], table["mean_prediction"]
    with np.errstate(all="ignore"):
        row = weight / table["effective_size"]
        gaps = weight * np.abs(table["frequency"] - p)
        # The variance within a group is largest if all its probabilities are the mean.
        spread = (
            np.nansum(gaps, axis=1),
            np.nansum(weight * row * p * (1 - p), axis=1),
            np.fmax.reduce(row, axis=1),
        )
    proper = sums.probabilities
    for name, values in zip(("gap", "variance", "largest"), spread, strict=True):
        measures[name] = np.where(proper, twelve_digits(values), np.nan)
    if tests:
        bars = error_bars_of_columns(sums, rows)
        measures |= {name: bars[name] for name in ("auc_error", "spiegelhalter_z", "score_test_p")}
        chances = zip(("chance_error", "debiased_squared_error"), chances_of_columns(table), strict=True)
        measures |= {name: np.where(proper, values, np.nan) for name, values in chances}
        enough = np.minimum(measures["positives"], measures["weight"] - measures["positives"]) >= ENOUGH
        measures |= _lines_and_parts(sizes.sampling_rate, measures, enough & proper, blocks)
    missing = np.full(measures["weight"].size, np.nan)
    return np.stack([measures.get(name, missing) for name in FIELDS], axis=1)


def _lines_and_parts(
    rate: float, measures: dict[str, Array], mask: Any, blocks_of: Callable[[Any], Any]
) -> dict[str, Array]:
    """Compute Cox's line and, without sampling, the ICI and the parts of losses of the segments of a mask."""
    out = {name: np.full(mask.size, np.nan) for name in (*schema.SEGMENT_PARTS, *schema.SEGMENT_LINE, "ici")}
    if not mask.any():
        return out
    blocks, starts, cells = blocks_of(mask)
    spread = Spread.of(cells)
    line = lines(spread, rate)
    for name, i in zip(schema.SEGMENT_LINE, (0, 2, 1, 3), strict=True):
        out[name][mask] = line[:, i]
    if rate != 1.0:
        return out
    out["ici"][mask] = mean_distances(spread)
    block_losses = mean_losses(blocks, starts)
    parts = []
    for i, name in enumerate(("brier", "log_loss")):
        score = np.where(np.isinf(measures[name]), np.nan, measures[name])[mask]
        parts += [score - block_losses[:, i], block_losses[:, i + 2] - block_losses[:, i]]
    for name, values in zip(schema.SEGMENT_PARTS, parts, strict=True):
        out[name][mask] = twelve_digits(np.maximum(values, 0.0))
    return out
