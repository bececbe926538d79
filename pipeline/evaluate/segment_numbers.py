"""Measures of segments: numbers from their points, of many at once, or of a large one in passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from calibrators.arithmetic.double_double import twelve_digits
from calibrators.arithmetic.passes import Array, Blocks, Pass, Points, run_passes
from calibrators.measures.assessment import MEASURES
from calibrators.measures.certainty import error_bars_of_columns
from calibrators.measures.decomposition import chances_of_columns, mean_losses
from calibrators.measures.engine import (
    Cells,
    MeasureOptions,
    Sums,
    accumulate_columns,
    cells_of_columns,
    column_passes,
    groups_of,
    pooled_columns,
)
from calibrators.measures.predictions import bin_edges, bins_as_table, measures_of_columns, share_sweeps
from calibrators.measures.spread import Spread, lines, mean_distances
from pipeline import schema
from pipeline.evaluate.evaluation import Sizes
from pipeline.execution import tasks
from pipeline.sort.run_files import Integers
from pipeline.sort.segment_tasks import SegmentTask
from pipeline.sort.segments import Slices

ENOUGH = 100
"""Rows of either label from which on a segment has Cox's line, the ICI, and what its losses are made of."""

FIELDS = (
    *(*MEASURES, "mean_prediction", "weight", "positives", "gap", "variance", "largest"),
    *schema.SEGMENT_CERTAINTY,
)
"""Columns in this order; `beyond_chance` takes gap, variance and largest."""

_BLOCK, _BLOCK_POINTS = 1024, 1 << 17
"""Segments, and points of them, that are measured at a time: arrays stay in the processor's cache."""


def segment_task_of(sizes: Sizes, weighted: bool, *, tests: bool) -> SegmentTask[Array]:
    """Make the segment task that measures segments: a row of numbers each, in the order of `FIELDS`.

    weighted : whether the log has weights. tests : see `side_passes` of the evaluation
    """
    bins, sampling_rate = sizes
    # Weights are not counts of rows, neither a log's own nor those of sampled rows.
    finish = partial(_numbers, bins, weighted or sampling_rate != 1.0, sampling_rate, tests)
    wanted = [MeasureOptions(edges=bin_edges(bins), rate=sampling_rate)]
    if sampling_rate != 1.0:
        wanted.append(MeasureOptions(odds=sampling_rate))
    passes = partial(_passes, wanted, bins, tests)
    return SegmentTask(
        partial(_measure_small, wanted, bins, finish), next(passes()), partial(_measure_large, passes, finish)
    )


Finish = Callable[[Sums, Sums, Callable[[Any], tuple[Any, Integers, Any]]], Array]
"""Sums of all rows and of those that there are, and of some segments their isotonic blocks and cells, to numbers."""


def _measure_small(wanted: list[MeasureOptions], bins: int, finish: Finish, segments: Slices) -> Array:
    points = Points(*segments.columns)
    out = [np.empty((0, len(FIELDS)))]
    first, count = 0, segments.starts.size - 1
    while first < count:
        tasks.check()
        most = int(np.searchsorted(segments.starts, segments.starts[first] + _BLOCK_POINTS))
        last = min(max(most, first + 1), first + _BLOCK, count)
        starts = segments.starts[first : last + 1]
        first = last
        here = Points(*(column[starts[0] : starts[-1]] for column in points))
        starts = starts - starts[0]
        sums = [accumulate_columns(here, starts, one, bins) for one in wanted]
        out.append(finish(sums[0], sums[-1], partial(_blocks_and_cells, here, starts)))
    return np.concatenate(out)


def _blocks_and_cells(points: Points, starts: Integers, some: Any) -> tuple[Blocks, Integers, Cells]:
    """Compute blocks and cells of some segments."""
    sizes = np.diff(starts)
    inside = np.repeat(some, sizes)
    points = Points(*(column[inside] for column in points))
    cells = cells_of_columns(points, np.append(0, np.cumsum(sizes[some])))
    return *pooled_columns(points, np.append(0, np.cumsum(sizes[some]))), cells


def _passes(wanted: list[MeasureOptions], bins: int, tests: bool) -> Any:
    """Passes over a segment in several parts."""
    last = replace(wanted[-1], blocks=tests and wanted[-1].odds == 1.0, cells=tests)
    return share_sweeps(*(column_passes(one, bins) for one in (*wanted[:-1], last)))


def _measure_large(
    passes: Callable[[], Any], finish: Finish, points: int, run: Callable[[Pass], Any]
) -> Array:
    columns = run_passes(passes(), run)
    blocks, cells = columns[-1].blocks, columns[-1].cells

    def taken(_: Any) -> tuple[Any, Integers, Any]:
        return blocks, np.array([0, 0 if blocks is None else blocks.first.size]), cells

    return finish(columns[0].sums, columns[-1].sums, taken)


def _numbers(
    bins: int, weighted: bool, rate: float, tests: bool, sums: Sums, rows: Sums, taken: Callable[[Any], Any]
) -> Array:
    """Numbers of segments, shape (segments, fields)."""
    groups = groups_of(sums)
    measures = measures_of_columns(sums, groups, bins)
    table = bins_as_table(groups, ~sums.integral | weighted)
    weight, p = table["weight"], table["mean_prediction"]
    with np.errstate(all="ignore"):
        row = weight / table["effective_size"]
        apart = weight * np.abs(table["frequency"] - p)
        # The variance within a group is largest if all its probabilities are the mean.
        spread = (
            np.nansum(apart, axis=1),
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
        measures |= _lines_and_parts(rate, measures, enough & proper, taken)
    nothing = np.full(measures["weight"].size, np.nan)
    return np.stack([measures.get(name, nothing) for name in FIELDS], axis=1)


def _lines_and_parts(
    rate: float, found: dict[str, Array], some: Any, taken: Callable[[Any], Any]
) -> dict[str, Array]:
    """Cox's line, and of rows that are not sampled the ICI and the parts of losses, of some segments."""
    out = {name: np.full(some.size, np.nan) for name in (*schema.SEGMENT_PARTS, *schema.SEGMENT_LINE, "ici")}
    if not some.any():
        return out
    blocks, starts, cells = taken(some)
    spread = Spread.of(cells)
    line = lines(spread, rate)
    for name, i in zip(schema.SEGMENT_LINE, (0, 2, 1, 3), strict=True):
        out[name][some] = line[:, i]
    if rate != 1.0:
        return out
    out["ici"][some] = mean_distances(spread)
    of_blocks = mean_losses(blocks, starts)
    own = []
    for i, name in enumerate(("brier", "log_loss")):
        score = np.where(np.isinf(found[name]), np.nan, found[name])[some]
        own += [score - of_blocks[:, i], of_blocks[:, i + 2] - of_blocks[:, i]]
    for name, values in zip(schema.SEGMENT_PARTS, own, strict=True):
        out[name][some] = twelve_digits(np.maximum(values, 0.0))
    return out
