"""Evaluation of a log with segments: measures of all rows and of each segment, before and after calibration.

Small segments have the largest calibration errors even if every probability is right. So segments are ranked by their
error *beyond chance*: the calibration error less the part that chance can explain; see `beyond_chance`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from calibrators.core.arrays import Array, Integers
from calibrators.core.passes import run_passes
from logcal.arrow_columns import as_column, as_numpy, column_of, nullable_column
from logcal.lookup_table import LookupTable
from pipeline import schema
from pipeline.evaluate.evaluation import Evaluation, Sizes, evaluation_of, side_passes
from pipeline.evaluate.segment_numbers import FIELDS, segment_task_of
from pipeline.evaluate.significance import beyond_chance, observed_over_expected
from pipeline.execution import Executor, Graph
from pipeline.log import segment_values
from pipeline.sort.score_table import SortedRows, SortPlan
from pipeline.sort.segment_predictions import SegmentedComparison, add_order
from pipeline.sort.segment_rows import AddedRows, SegmentCounts, SegmentRows
from pipeline.sort.segment_tasks import (
    ITEM_BYTES,
    MOST_SEGMENTS,
    SegmentTask,
    add_batches,
    add_segment_tasks,
    finish_segment_tasks,
    most_batches,
)
from pipeline.table.lookup_table import Predictor

WORST = 10
"""Largest number of segments that a report lists."""

MOST_MAPS = 6
"""Largest number of segments whose maps a report shows."""

UNSEEN = "unseen"
"""Source of the map of a segment that the table does not have: a parent's map, or that of all rows."""


@dataclass(frozen=True)
class Side:
    """Measures of the segments' predictions, before or after calibration.

    rows : the measured rows
    values : float64 array, shape (segments, fields): the numbers named in `FIELDS`
    bins : number of bins of the calibration errors
    """

    rows: SegmentRows
    values: Array
    bins: int

    @cached_property
    def columns(self) -> dict[str, Array]:
        """Each number of the segments, NaN where undefined: `FIELDS`, and those that follow from them.

        These are observed over expected with its 95 % interval and z, and the part of the calibration error that chance
        cannot explain.
        """
        columns = dict(zip(FIELDS, self.values.T, strict=True))
        names = ("gap", "variance", "largest", "weight", "positives", "mean_prediction")
        gap, variance, largest, weight, positives, mean = (columns[name] for name in names)
        columns["beyond_chance"] = beyond_chance(gap, variance, largest, self.bins) / weight
        return columns | observed_over_expected(weight, positives, mean, variance)


class _AddedSide(NamedTuple):
    """References to a side's rows and to its segments' results."""

    rows: Any
    results: Any


def add_sides(
    graph: Graph,
    rows: SortedRows,
    calibrated_plan: SortPlan,
    predictor: Predictor,
    sizes: Sizes,
    counts: SegmentCounts | None = None,
) -> list[Any]:
    """Add the measurement of each segment's scores, and of its probabilities, sorted once more, to a graph.

    Parameters
    ----------
    rows : sorted by score; their segment columns are the table's, and their plan has `write`
    calibrated_plan : plan of the sort by probability, in another scratch folder
    predictor : the table's predictions
    counts : row counts of the segments of a kept score table

    Returns
    -------
    references to the arguments of `finish_sides`
    """
    weighted, names = rows.weighted if counts is None else counts.weighted, predictor.columns
    added = SegmentRows.add(graph, rows, names, counts)
    task = segment_task_of(sizes, weighted, tests=False)
    works, before = _add_side(graph, rows, added, task)
    with graph.named("-again"):
        # This sorts the segments' points, which the first sort wrote; the log is not read again.
        total, numbered = add_order(graph, works, added.rows, predictor, calibrated_plan, weighted=weighted)
        rows = SortedRows(rows.log, calibrated_plan, total)
        added = SegmentRows.add_numbered(graph, rows, names, numbered)
        task = segment_task_of(sizes, weighted, tests=True)
        _, after = _add_side(graph, rows, added, task)
    return [before, after]


def _add_side(
    graph: Graph, rows: SortedRows, added: AddedRows, segment_task: SegmentTask[Array]
) -> tuple[list[Any], Any]:
    """Add the measurement of one side to a graph; return references to the segment tasks and to an `_AddedSide`."""
    task_bytes = rows.plan.bucket_bytes
    most = most_batches(rows.log.rows, ITEM_BYTES, task_bytes, 1, MOST_SEGMENTS)
    wanted = graph.task("wanted", _all_segments, added.rows)
    works = add_batches(graph, added.merged, wanted, pooled=False, task_bytes=task_bytes, most=most)
    results = add_segment_tasks(graph, works, segment_task, rows.plan.scratch)
    return works, graph.task("side", _AddedSide, added.rows, results)


def _all_segments(rows: SegmentRows) -> list[Any]:
    return [np.ones(len(rows.level.keys), np.bool_)]


def _finish_side(added: _AddedSide, sizes: Sizes, executor: Executor, *, tests: bool) -> Side:
    segment_task = segment_task_of(sizes, added.rows.weighted, tests=tests)
    values = np.empty((len(added.rows.level.keys), len(FIELDS)))
    [results] = finish_segment_tasks(added.results, 1, executor, segment_task)
    for codes, measured in results:
        values[codes] = measured
    return Side(added.rows, values, sizes.bins)


@dataclass(frozen=True)
class SegmentedEvaluation:
    """Measures of a log with segments.

    Attributes
    ----------
    whole : evaluation of all rows
    columns : names of the segment columns
    fitted_on : the source of each segment's map, see `pipeline.table.segment_maps.SOURCES`
    before, after : measures of the segments; both sides have the same segments
    """

    whole: Evaluation
    columns: tuple[str, ...]
    fitted_on: pa.Array
    before: Side
    after: Side

    def table(self, compared: SegmentedComparison | None = None, at: Integers | None = None) -> pa.Table:
        """Return one row per segment, in the order of `segment_values.order`.

        compared : comparison of the same segments with another table
        at : positions of the segments to return, in this order; None: all
        """
        level = self.before.rows.level
        keys = segment_values.arrays(level.keys, level.types)
        fitted_on = self.fitted_on
        if at is None:
            at = np.arange(level.rows.size)
        else:
            keys = [column.take(as_column(at)) for column in keys]
            fitted_on = fitted_on.take(as_column(at))
        columns: list[pa.Array] = [
            *keys,
            as_column(level.rows[at]),
            as_column(level.positives[at]),
            fitted_on,
        ]
        sides = (self.before.columns, self.after.columns)
        measured = [side[name] for name in schema.SEGMENT_MEASURES for side in sides]
        measured += [self.after.columns[name] for name in schema.SEGMENT_CERTAINTY]
        columns += [nullable_column(values[at]) for values in measured]
        if compared is not None:
            columns += [column.take(as_column(at)) for column in self._differences(compared)]
        fields = zip(self.columns, level.types, strict=True)
        layout = schema.evaluated_segments(fields, compared=compared is not None)
        return pa.Table.from_arrays(columns, schema=layout)

    def _differences(self, compared: SegmentedComparison) -> list[pa.Array]:
        by_segment = {segment.index: segment.log_loss for segment in compared.segments}
        losses = [by_segment.get(i) for i in range(len(self.before.rows.level.keys))]
        return [
            column_of([None if loss is None else getattr(loss, name) for loss in losses], pa.float64())
            for name in ("difference", "error")
        ]

    def worst(self) -> list[dict[str, Any]]:
        """Return the segments with the largest errors beyond chance after calibration, then the largest segments.

        At most `WORST` rows of `table`, with the values of the segment columns as text under "segment".
        """
        table = self.table(at=self._worst(WORST))
        count = len(self.columns)
        keys = zip(*(column.to_pylist() for column in table.columns[:count]), strict=True)
        measured = table.select(range(count, table.num_columns)).to_pylist()
        return [
            {"segment": [_text(value) for value in key], **row}
            for key, row in zip(keys, measured, strict=True)
        ]

    def _worst(self, count: int) -> Integers:
        error = self.after.columns["beyond_chance"]
        order = np.lexsort((np.arange(error.size), -self.before.rows.level.rows, -error))
        return np.asarray(order[:count], np.int64)

    def flagged(self) -> tuple[list[pa.Array], list[str]]:
        """Return keys, by column, and map sources of the worst segments with errors beyond chance."""
        error = self.after.columns["beyond_chance"]
        worst = self._worst(MOST_MAPS)
        at, level = as_column(worst[error[worst] > 0]), self.before.rows.level
        keys = [column.take(at) for column in segment_values.arrays(level.keys, level.types)]
        return keys, self.fitted_on.take(at).to_pylist()

    @cached_property
    def facts(self) -> dict[str, Any]:
        """Counts of segments by the source of their map, and the worst segments."""
        level = self.before.rows.level
        coded = self.fitted_on.dictionary_encode()
        codes, kinds = as_numpy(coded.indices), coded.dictionary.to_pylist()
        counts = dict(zip(kinds, np.bincount(codes, minlength=len(kinds)).tolist(), strict=True))
        unseen = codes == (kinds.index(UNSEEN) if UNSEEN in kinds else -1)
        return {
            "columns": list(self.columns),
            "count": len(level.keys),
            "fitted_on": {kind: counts[kind] for kind in sorted(counts)},
            "unseen_rows": int(level.rows[unseen].sum()),
            "beyond_chance_before": _beyond_chance(self.before),
            "beyond_chance_after": _beyond_chance(self.after),
            "worst": self.worst(),
        }


def _beyond_chance(side: Side) -> int | None:
    """Count the segments with errors beyond chance; None if the scores are not probabilities."""
    error = side.columns["beyond_chance"]
    return None if np.isnan(error).all() else int(np.count_nonzero(error > 0))


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def finish_sides(
    sizes: Sizes, lookup: LookupTable, added: Sequence[_AddedSide], executor: Executor
) -> SegmentedEvaluation:
    """Run the passes over large segments and over all rows.

    lookup : the segmented table
    added : results of the tasks of `add_sides`
    """
    before, after = (
        _finish_side(side, sizes, executor, tests=tests)
        for side, tests in zip(added, (False, True), strict=True)
    )
    measured = (
        run_passes(
            side_passes(sizes, side.rows.table, tests=tests),
            partial(side.rows.table.run, executor=executor, stage="measure"),
        )
        for side, tests in ((before, False), (after, True))
    )
    evaluation = evaluation_of(before.rows.table.used, *measured)
    fitted_on = lookup.sources_of(before.rows.values, UNSEEN)
    return SegmentedEvaluation(evaluation, lookup.columns, fitted_on, before, after)
