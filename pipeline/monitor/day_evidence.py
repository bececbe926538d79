"""The evidence of drift in one day of a log: of all rows, and of each segment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from calibrators.arithmetic.double_double import Pair
from calibrators.arithmetic.passes import Array, Pass, Points
from calibrators.arithmetic.sampling import OddsDivided, odds_divided
from calibrators.measures.drift import Evidence, evidence_of, evidence_pass, evidence_sums
from calibrators.measures.engine import Integers, Predict
from pipeline.execution import Executor
from pipeline.sort.score_table import ScoreTable, SortedRows, merge_rows
from pipeline.sort.segment_predictions import sums_of_predictions
from pipeline.sort.segment_rows import SegmentRows
from pipeline.table.lookup_table import Predictor, cached_lookup_table


@dataclass(frozen=True)
class TableMap:
    """The map of a lookup table, to predict with on any worker: tasks carry the path, not the map."""

    path: str

    def __call__(self, scores: Array) -> Array:
        """Probabilities of ascending scores; the table is read once a process."""
        return cached_lookup_table(self.path).map.predict_ascending(scores)


@dataclass(frozen=True)
class Watch:
    """Table under watch, and its settings.

    lookup : path of the lookup table
    tolerance : factor up to which odds may be wrong. sampling_rate : see `calibrators.arithmetic.sampling`.
    """

    lookup: str
    tolerance: float
    sampling_rate: float = 1.0

    def request(self) -> Pass:
        """The pass over a day's score table, where the table has no segments."""
        predict: Predict = TableMap(self.lookup)
        if self.sampling_rate != 1.0:
            predict = OddsDivided(1 / self.sampling_rate, predict)
        return evidence_pass(predict, self.tolerance)

    def sums(self, p: Array, w: Array, k: Array, starts: Integers) -> Pair:
        """The sums of segments' evidence, from what is predicted."""
        p = p if self.sampling_rate == 1.0 else odds_divided(p, 1 / self.sampling_rate)
        return evidence_sums(p, w, k, self.tolerance, starts)


class DayEvidence(NamedTuple):
    """Evidence of a day.

    table : its score table. whole : of all rows. scores : rows in each row of the lookup table, or None with segments.
    segments : keys to evidence
    """

    table: ScoreTable
    whole: Evidence
    scores: npt.NDArray[np.float64] | None
    segments: dict[tuple[Any, ...], Evidence]


def day_evidence(day: SortedRows, executor: Executor, watch: Watch) -> DayEvidence:
    """The evidence of a day whose rows are sorted by their scores; with segments each row goes through its own map."""
    columns = day.log.columns.segments
    if not columns:
        table, (whole, scores) = merge_rows(day, executor, _with_scores(watch))
        return DayEvidence(table, whole, scores, {})
    rows = SegmentRows.of(day, executor, columns)
    sums = sums_of_predictions(rows, Predictor(watch.lookup, columns), executor, watch.sums)
    whole = evidence_of([state for own in sums.values() for state in own])
    found = {rows.level.keys[place]: evidence_of(own) for place, own in sorted(sums.items())}
    return DayEvidence(rows.table, whole, None, found)


def _with_scores(watch: Watch) -> Pass:
    request = watch.request()
    return Pass(partial(_evidence_and_scores, request.chunk, watch.lookup), partial(_both, request.combine))


def _evidence_and_scores(chunk: Any, lookup: str, points: Points) -> tuple[Any, Array]:
    edges = cached_lookup_table(lookup).map.score_hi
    rows = np.searchsorted(edges[:-1], points.score, side="right")
    counts: Array = np.bincount(rows, points.weight, edges.size).astype(np.float64)
    return chunk(points), counts


def _both(combine: Any, parts: Sequence[tuple[Any, Array]]) -> tuple[Evidence, Array]:
    scores: Array = np.sum([rows for _, rows in parts], axis=0, dtype=np.float64)
    return combine([evidence for evidence, _ in parts]), scores
