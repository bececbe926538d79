"""Evidence of miscalibration of a published table's version on a day."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from calibrators.core.arrays import Array
from calibrators.core.passes import Pass, Points
from calibrators.measures.drift import Evidence, evidence_of, evidence_pass, evidence_sums
from logcal.reading import cached_table
from pipeline.execution import Executor
from pipeline.sort.score_table import ScoreTable, SortedRows, merge_rows
from pipeline.sort.segment_predictions import sums_of_predictions
from pipeline.sort.segment_rows import SegmentRows
from pipeline.table.lookup_table import Predictor


@dataclass(frozen=True)
class Watch:
    """Table to monitor, and settings of the test.

    lookup : path of the lookup table
    tolerance : factor up to which odds may be wrong
    sampling_rate : see `calibrators.core.sampling`
    """

    lookup: str
    tolerance: float
    sampling_rate: float = 1.0

    def predictor(self, columns: tuple[str, ...] = ()) -> Predictor:
        """Return a predictor with the table. columns : its segment columns."""
        return Predictor(self.lookup, columns, self.sampling_rate)


class DayEvidence(NamedTuple):
    """Evidence of a day.

    table : score table of the day
    total : evidence of all rows
    scores : number of the day's rows in each row of the lookup table; None with segments
    segments : evidence by key of the segment
    """

    table: ScoreTable
    total: Evidence
    scores: Array | None
    segments: dict[tuple[Any, ...], Evidence]


def day_evidence(day: SortedRows, executor: Executor, watch: Watch) -> DayEvidence:
    """Compute the evidence of a day from its sorted rows; with segments each row is predicted by its segment's map."""
    columns = day.log.columns.segments
    if not columns:
        table, (total, scores) = merge_rows(day, executor, _with_scores(watch))
        return DayEvidence(table, total, scores, {})
    rows = SegmentRows.of(day, executor, columns)
    function = partial(evidence_sums, tolerance=watch.tolerance)
    sums = sums_of_predictions(rows, watch.predictor(columns), executor, function)
    total = evidence_of([state for states in sums.values() for state in states])
    segments = {rows.level.keys[i]: evidence_of(states) for i, states in sorted(sums.items())}
    return DayEvidence(rows.table, total, None, segments)


def _with_scores(watch: Watch) -> Pass:
    request = evidence_pass(watch.predictor(), watch.tolerance)
    return Pass(partial(_evidence_and_scores, request.chunk, watch.lookup), partial(_both, request.combine))


def _evidence_and_scores(chunk: Any, lookup: str, points: Points) -> tuple[Any, Array]:
    edges = cached_table(lookup).map.score_hi
    rows = np.searchsorted(edges[:-1], points.score, side="right")
    counts: Array = np.bincount(rows, points.weight, edges.size).astype(np.float64)
    return chunk(points), counts


def _both(combine: Any, parts: Sequence[tuple[Any, Array]]) -> tuple[Evidence, Array]:
    scores: Array = np.sum([rows for _, rows in parts], axis=0, dtype=np.float64)
    return combine([evidence for evidence, _ in parts]), scores
