"""The evaluation of a log with segments: measures of all rows, and of each segment, before and after calibration.

Which segments are worst is said with chance allowed for: of many segments, thin ones have the largest calibration
errors even where every probability is right. The error *beyond chance* is what is left of a segment's calibration error
when that is taken off which chance can explain; see `beyond_chance`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from calibrators._kernels.accumulators import expansion_of
from calibrators.assessment import MEASURES, Assessment
from calibrators.measures import assessment_passes, run_passes
from calibrators.passes import Array, Pass, Points
from calibrators.sampling import weighing_negatives
from pipeline import schema
from pipeline.arrow_columns import as_column, column_of
from pipeline.evaluate.chance import beyond_chance, observed_over_expected
from pipeline.evaluate.evaluation import Evaluation, evaluate
from pipeline.execution import Executor
from pipeline.log import segment_values
from pipeline.log.logs import Log
from pipeline.sort.exchange import Slices
from pipeline.sort.runs import RunReceipt
from pipeline.sort.score_table import ScoreTable, SortPlan, sort_log
from pipeline.sort.segment_predictions import SegmentedComparison
from pipeline.sort.segment_rows import Known, SegmentRows
from pipeline.sort.segment_visits import Visit
from pipeline.sort.segments import Level
from pipeline.table.segment_lookup import SegmentedLookup

WORST = 10
"""Segments that a report lists."""

BEYOND = "beyond_chance"

PICTURED = 6
"""Segments whose maps a report shows."""

UNSEEN = "unseen"
"""What a segment is fitted on that the table does not know: its rows go through a parent's map, or that of all rows."""

_FIELDS = (*MEASURES, "mean_prediction", "weight", "positives", "gap", "variance", "largest")


@dataclass(frozen=True)
class Side:
    """What is measured of the segments' predictions, before or after calibration.

    rows : that it is measured on.
    values : float64 array, shape (segments, fields): measures, mean prediction, and what `beyond_chance` takes.
    """

    rows: SegmentRows
    values: Array

    @property
    def table(self) -> ScoreTable:
        """Of all rows."""
        return self.rows.table

    @property
    def level(self) -> Level:
        """The segments."""
        return self.rows.level

    def column(self, name: str) -> Array:
        """A measure of each segment; NaN where it does not exist."""
        return self.values[:, _FIELDS.index(name)]


Sort = Callable[[SortPlan, Executor], RunReceipt]
"""What sorts the rows that are measured."""


def measure_side(
    log: Log,
    plan: SortPlan,
    executor: Executor,
    bins: int,
    sort: Sort,
    names: tuple[str, ...],
    sampling_rate: float = 1.0,
    known: Known | None = None,
) -> Side:
    """Sort a log's predictions, write the table of all rows to `plan.write`, and measure each segment.

    names : of the segment columns

    The measures are exact, and so the same to the last bit however the work is cut.

    Raises
    ------
    InputRejectedError
        As `build_score_table`; too many segments.
    """
    rows = SegmentRows.of(log, plan, executor, sort(plan, executor), names, known)
    # No total weight is 0: weights, where a log has them, are not taken for counts.
    passes = partial(_passes, bins, 0 if rows.weighted or sampling_rate != 1 else None, sampling_rate)
    visit = Visit(
        small=partial(_measure_small, passes),
        first=next(passes()),
        large=partial(_measure_large, passes),
    )
    values = np.empty((len(rows.level.keys), len(_FIELDS)))
    for codes, found in rows.visit(executor, visit):
        values[codes] = found
    return Side(rows, values)


def _passes(
    bins: int, rows: int | None, sampling_rate: float, parts: Sequence[tuple[float, Array]] = ()
) -> Any:
    if sampling_rate == 1.0:
        return assessment_passes(bins=bins, histogram_bins=1, rows=rows, parts=parts)
    return weighing_negatives(assessment_passes(bins=bins, histogram_bins=1, rows=rows), sampling_rate)


def _measure_small(passes: Callable[..., Any], segments: Slices) -> Array:
    return np.array([_measure_points(passes, points) for points in segments.points()])


def _measure_points(passes: Callable[..., Any], points: Points) -> list[float]:
    # The weight is known: one pass may be enough.
    parts = [(float(points.score[0]), expansion_of(points.weight))]
    return _numbers(run_passes(passes(parts=parts), partial(_run, points)))


def _run(points: Points, request: Pass) -> Any:
    return request.combine([request.chunk(points)])


def _measure_large(passes: Callable[[], Any], points: int, run: Callable[[Pass], Any]) -> Array:
    return np.array([_numbers(run_passes(passes(), run))])


def _numbers(found: Assessment) -> list[float]:
    """An assessment in the order of `_FIELDS`."""
    measures = [getattr(found.measures, name) for name in MEASURES]
    groups = [
        (group.weight, group.frequency, group.mean_prediction, group.weight / group.effective_size)
        for group in found.by_frequency
        if group.frequency is not None and group.mean_prediction is not None
    ]
    values = [*measures, found.mean_prediction, found.weight, found.positives]
    numbers = [math.nan if value is None else value for value in values]
    if not groups:
        return [*numbers, math.nan, math.nan, math.nan]
    gap = math.fsum(weight * abs(frequency - p) for weight, frequency, p, _ in groups)
    # The variance within a group is largest if all its probabilities are the mean.
    variance = math.fsum(weight * row * p * (1 - p) for weight, _, p, row in groups)
    return [*numbers, gap, variance, max(row for *_, row in groups)]


@dataclass(frozen=True)
class SegmentedEvaluation:
    """Measures of a log with segments.

    Attributes
    ----------
    whole : of all rows. columns : names of the segment columns. fitted_on : what each segment's map was fitted to.
    before, after : of the segments, which are the same on both sides. bins : of the calibration errors.
    """

    whole: Evaluation
    columns: tuple[str, ...]
    fitted_on: tuple[str, ...]
    before: Side
    after: Side
    bins: int

    def table(self, compared: SegmentedComparison | None = None) -> pa.Table:
        """A row a segment, in the order of `segment_values.order`. compared : these, with something else."""
        level = self.before.level
        columns: list[pa.Array] = [
            *segment_values.arrays(level.keys, level.types),
            as_column(level.rows),
            as_column(level.positives),
            column_of(self.fitted_on, pa.string()),
        ]
        sides = (("before", self.before), ("after", self.after))
        own = {name: {BEYOND: self._beyond(side), **self._ratios(side)} for name, side in sides}
        for name in schema.SEGMENT_MEASURES:
            for side in ("before", "after"):
                values = own[side].get(name)
                if values is None:
                    values = getattr(self, side).column(name)
                columns.append(column_of([None if np.isnan(v) else v for v in values.tolist()], pa.float64()))
        if compared is not None:
            columns += self._differences(compared)
        fields = zip(self.columns, level.types, strict=True)
        layout = schema.evaluated_segments(fields, compared=compared is not None)
        return pa.Table.from_arrays(columns, schema=layout)

    def _differences(self, compared: SegmentedComparison) -> list[pa.Array]:
        found = {one.place: one.log_loss for one in compared.segments}
        losses = [found.get(i) for i in range(len(self.before.level.keys))]
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
        table = self.table()
        error = self._beyond(self.after)
        order = np.lexsort((np.arange(error.size), -self.before.level.rows, -error))[:WORST]
        rows = table.take(as_column(order)).to_pylist()
        keys = [self.before.level.keys[i] for i in order.tolist()]
        measured = table.schema.names[len(self.columns) :]
        return [
            {"segment": [_text(value) for value in key], **{name: row[name] for name in measured}}
            for key, row in zip(keys, rows, strict=True)
        ]

    def flagged(self) -> list[tuple[tuple[Any, ...], str]]:
        """Keys, and what their maps were fitted to, of the segments that are most off beyond chance, as in `worst`."""
        error = self._beyond(self.after)
        order = np.lexsort((np.arange(error.size), -self.before.level.rows, -error))[:PICTURED]
        return [(tuple(self.before.level.keys[i]), self.fitted_on[i]) for i in order.tolist() if error[i] > 0]

    def facts(self) -> dict[str, Any]:
        """How many segments there are, of what kind, and the worst of them."""
        level = self.before.level
        unseen = np.array([kind == UNSEEN for kind in self.fitted_on], np.bool_)
        return {
            "columns": list(self.columns),
            "count": len(level.keys),
            "fitted_on": {kind: self.fitted_on.count(kind) for kind in sorted(set(self.fitted_on))},
            "unseen_rows": int(level.rows[unseen].sum()),
            "beyond_chance_before": int(np.count_nonzero(self._beyond(self.before) > 0)),
            "beyond_chance_after": int(np.count_nonzero(self._beyond(self.after) > 0)),
            "worst": self.worst(),
        }


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def evaluate_segments(
    log: Log,
    lookup: SegmentedLookup,
    plans: tuple[SortPlan, SortPlan],
    executor: Executor,
    bins: int,
    sort: Sort | None = None,
    sampling_rate: float = 1.0,
    known: Known | None = None,
) -> SegmentedEvaluation:
    """Measure a log's predictions before and after calibration, of all rows and of each segment.

    Parameters
    ----------
    log : whose segment columns are the table's
    lookup : the segmented table
    plans : how to sort the scores, and the calibrated probabilities (with `lookup`, in a scratch folder of its own);
        both with `write`
    bins : of the calibration errors
    sort : what sorts the log's rows, or some of them; None: `sort_log`
    sampling_rate : see `evaluate`
    known : of a log that has been summed up: what its rows were
    """
    sort = sort or partial(sort_log, log)
    names = lookup.columns
    before, after = (
        measure_side(log, plan, executor, bins, sort, names, sampling_rate, known) for plan in plans
    )
    run, run_after = (partial(side.table.run, executor=executor, stage="measure") for side in (before, after))
    whole = evaluate(run, run_after=run_after, rows=before.table.used, bins=bins, sampling_rate=sampling_rate)
    fitted_on = tuple(lookup.known.get(key, UNSEEN) for key in before.level.keys)
    return SegmentedEvaluation(whole, lookup.columns, fitted_on, before, after, bins)
