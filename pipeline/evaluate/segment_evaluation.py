"""The evaluation of a log with segments: measures of all rows, and of each segment, before and after calibration.

Small segments have the largest calibration errors even if every probability is right. So segments are ranked by the
error *beyond chance*: their calibration error less the part that chance can explain; see `beyond_chance`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from calibrators.arithmetic.passes import Array, run_passes
from logcal.arrow_columns import as_column, as_numpy, column_of, nullable_column
from logcal.lookup_table import SegmentedLookup
from pipeline import schema
from pipeline.evaluate.evaluation import Evaluation, Sizes, evaluation_of, side_passes
from pipeline.evaluate.segment_numbers import FIELDS, segment_task_of
from pipeline.evaluate.significance import beyond_chance, observed_over_expected
from pipeline.execution import Executor, Graph
from pipeline.log import segment_values
from pipeline.sort.run_files import Integers
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
"""Segments that a report lists."""

BEYOND = "beyond_chance"

PICTURED = 6
"""Segments whose maps a report shows."""

UNSEEN = "unseen"
"""Origin of a segment that the table does not know: its rows go through a parent's map, or that of all rows."""


@dataclass(frozen=True)
class Side:
    """Measures of the segments' predictions, before or after calibration.

    rows : that it is measured on.
    values : float64 array, shape (segments, fields): measures, mean prediction, and what `beyond_chance` takes.
    """

    rows: SegmentRows
    values: Array

    def column(self, name: str) -> Array:
        """A measure of each segment; NaN where it does not exist."""
        return self.values[:, FIELDS.index(name)]


class _AddedSide(NamedTuple):
    """References to a side's rows, and to its segments' results."""

    rows: Any
    results: Any


def add_sides(
    graph: Graph,
    rows: SortedRows,
    again: SortPlan,
    predictor: Predictor,
    sizes: Sizes,
    known: SegmentCounts | None = None,
) -> list[Any]:
    """Add to a graph what measures each segment: of the scores, and, sorted again, of the probabilities.

    Parameters
    ----------
    rows : sorted by score; their segment columns are the table's, and their plan has `write`
    again : how to sort the calibrated probabilities, in a scratch folder of its own
    predictor : of the table
    known : of a log that has been summed up: what its rows were

    Returns
    -------
    references; see `finish_sides`
    """
    weighted, names = rows.weighted if known is None else known.weighted, predictor.columns
    added = SegmentRows.add(graph, rows, names, known)
    task = segment_task_of(sizes, weighted, tests=False)
    works, before = _add_side(graph, rows, added, task)
    with graph.named("-again"):
        # Of each segment's points, which are at hand, and not of the log's rows once more.
        total, numbered = add_order(graph, works, added.rows, predictor, again, weighted=weighted)
        rows = SortedRows(rows.log, again, total)
        added = SegmentRows.add_numbered(graph, rows, names, numbered)
        task = segment_task_of(sizes, weighted, tests=True)
        _, after = _add_side(graph, rows, added, task)
    return [before, after]


def _add_side(
    graph: Graph, rows: SortedRows, added: AddedRows, segment_task: SegmentTask[Array]
) -> tuple[list[Any], Any]:
    """Add to a graph what measures each segment; return references to works and to an `_AddedSide`."""
    task_bytes = rows.plan.bucket_bytes
    most = most_batches(rows.log.rows, ITEM_BYTES, task_bytes, 1, MOST_SEGMENTS)
    wanted = graph.task("wanted", _everyone, added.rows)
    works = add_batches(graph, added.merged, wanted, pooled=False, task_bytes=task_bytes, most=most)
    results = add_segment_tasks(graph, works, segment_task, rows.plan.scratch)
    return works, graph.task("side", _AddedSide, added.rows, results)


def _everyone(rows: SegmentRows) -> list[Any]:
    return [np.ones(len(rows.level.keys), np.bool_)]


def _side(found: _AddedSide, segment_task: SegmentTask[Array], executor: Executor) -> Side:
    values = np.empty((len(found.rows.level.keys), len(FIELDS)))
    [done] = finish_segment_tasks(found.results, 1, executor, segment_task)
    for codes, measured in done:
        values[codes] = measured
    return Side(found.rows, values)


@dataclass(frozen=True)
class SegmentedEvaluation:
    """Measures of a log with segments.

    Attributes
    ----------
    whole : of all rows. columns : names of the segment columns. fitted_on : column of what each segment's map was
        fitted to.
    before, after : of the segments, which are the same on both sides. bins : of the calibration errors.
    """

    whole: Evaluation
    columns: tuple[str, ...]
    fitted_on: pa.Array
    before: Side
    after: Side
    bins: int

    def table(self, compared: SegmentedComparison | None = None, at: Integers | None = None) -> pa.Table:
        """A row a segment, in the order of `segment_values.order`. compared : these, with something else.

        at : places of segments: of these alone, in this order
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
        sides = (("before", self.before), ("after", self.after))
        own = {name: {BEYOND: self._beyond(side), **self._ratios(side)} for name, side in sides}
        for name in schema.SEGMENT_MEASURES:
            for side in ("before", "after"):
                values = own[side].get(name)
                if values is None:
                    values = getattr(self, side).column(name)
                columns.append(nullable_column(values[at]))
        columns += [nullable_column(self.after.column(name)[at]) for name in schema.SEGMENT_CERTAINTY]
        if compared is not None:
            columns += [column.take(as_column(at)) for column in self._differences(compared)]
        fields = zip(self.columns, level.types, strict=True)
        layout = schema.evaluated_segments(fields, compared=compared is not None)
        return pa.Table.from_arrays(columns, schema=layout)

    def _differences(self, compared: SegmentedComparison) -> list[pa.Array]:
        found = {one.index: one.log_loss for one in compared.segments}
        losses = [found.get(i) for i in range(len(self.before.rows.level.keys))]
        return [
            column_of([None if loss is None else getattr(loss, name) for loss in losses], pa.float64())
            for name in ("difference", "error")
        ]

    def _ratios(self, side: Side) -> dict[str, Array]:
        """Observed over expected of each segment, its 95 % interval, and in standard errors; NaN where it is none."""
        weight, mean, variance = (side.column(name) for name in ("weight", "mean_prediction", "variance"))
        return observed_over_expected(weight, side.column("positives"), mean, variance)

    def _beyond(self, side: Side) -> Array:
        """The calibration error of each segment that chance cannot explain."""
        gap, variance, largest = (side.column(name) for name in ("gap", "variance", "largest"))
        return beyond_chance(gap, variance, largest, self.bins) / side.column("weight")

    def worst(self) -> list[dict[str, Any]]:
        """The segments, at most `WORST`, with the largest errors beyond chance after calibration; then by rows.

        As in `table`, with the columns' values as text under "segment".
        """
        table = self.table(at=self._worst(WORST))
        count = len(self.columns)
        keys = zip(*(column.to_pylist() for column in table.columns[:count]), strict=True)
        measured = table.select(range(count, table.num_columns)).to_pylist()
        return [
            {"segment": [_text(value) for value in key], **row}
            for key, row in zip(keys, measured, strict=True)
        ]

    def _worst(self, most: int) -> Integers:
        error = self._beyond(self.after)
        order = np.lexsort((np.arange(error.size), -self.before.rows.level.rows, -error))
        return np.asarray(order[:most], np.int64)

    def flagged(self) -> tuple[list[pa.Array], list[str]]:
        """Keys, a column each, and what their maps were fitted to, of the segments that are most off, as in `worst`."""
        error = self._beyond(self.after)
        worst = self._worst(PICTURED)
        at, level = as_column(worst[error[worst] > 0]), self.before.rows.level
        keys = [column.take(at) for column in segment_values.arrays(level.keys, level.types)]
        return keys, self.fitted_on.take(at).to_pylist()

    @cached_property
    def facts(self) -> dict[str, Any]:
        """Numbers of segments by kind, and the worst of them."""
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
            "beyond_chance_before": int(np.count_nonzero(self._beyond(self.before) > 0)),
            "beyond_chance_after": int(np.count_nonzero(self._beyond(self.after) > 0)),
            "worst": self.worst(),
        }


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def finish_sides(
    sizes: Sizes, lookup: SegmentedLookup, found: Sequence[_AddedSide], executor: Executor
) -> SegmentedEvaluation:
    """Carry out the passes over large segments, and over all rows.

    lookup : the segmented table. found : what `add_sides` gave
    """
    before, after = (
        _side(one, segment_task_of(sizes, one.rows.weighted, tests=tests), executor)
        for one, tests in zip(found, (False, True), strict=True)
    )
    measured = (
        run_passes(
            side_passes(sizes, side.rows.table, tests=tests),
            partial(side.rows.table.run, executor=executor, stage="measure"),
        )
        for side, tests in ((before, False), (after, True))
    )
    whole = evaluation_of(before.rows.table.used, *measured)
    fitted_on = lookup.sources_of(before.rows.values, UNSEEN)
    return SegmentedEvaluation(whole, lookup.columns, fitted_on, before, after, sizes.bins)
