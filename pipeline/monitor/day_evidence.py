"""The evidence of drift in one day of a log: of all rows, and of each segment."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from calibrators.drift import Evidence, evidence_pass
from calibrators.measures import run_passes
from calibrators.passes import Array, Pass, Points
from calibrators.sampling import OddsDivided
from pipeline.execution import Executor
from pipeline.log.logs import Log
from pipeline.sort.exchange import Slices
from pipeline.sort.runs import RunReceipt
from pipeline.sort.score_table import ScoreTable, SortPlan, build_score_table
from pipeline.sort.segment_visits import Visit, cut_levels, visit_segments
from pipeline.sort.segments import number_segments
from pipeline.table.lookup_table import cached_lookup_table


@dataclass(frozen=True)
class TableMap:
    """The map of a lookup table, to predict with on any worker: tasks carry the path, not the map."""

    path: str

    def __call__(self, scores: Array) -> Array:
        """Probabilities of ascending scores; the table is read once a process."""
        return cached_lookup_table(self.path).map.predict_ascending(scores)


@dataclass(frozen=True)
class Watch:
    """What is watched, and how.

    lookup : path of the lookup table; None where the scores that are read are probabilities already (segments).
    tolerance : factor up to which odds may be wrong. sampling_rate : see `calibrators.sampling`.
    """

    lookup: str | None
    tolerance: float
    sampling_rate: float = 1.0

    def request(self) -> Pass:
        """The pass over a day's score table."""
        predict = None if self.lookup is None else TableMap(self.lookup)
        if self.sampling_rate == 1.0:
            return evidence_pass(predict, self.tolerance)
        return evidence_pass(OddsDivided(1 / self.sampling_rate, predict), self.tolerance)


class DayEvidence(NamedTuple):
    """What a day says.

    table : its score table. whole : of all rows. scores : rows in each row of the lookup table, or None with segments.
    segments : keys to evidence
    """

    table: ScoreTable
    whole: Evidence
    scores: npt.NDArray[np.float64] | None
    segments: dict[tuple[Any, ...], Evidence]


def day_evidence(
    log: Log, plan: SortPlan, executor: Executor, total: RunReceipt, watch: Watch
) -> DayEvidence:
    """The evidence of a day whose rows are sorted: those of its scores, or with segments of its probabilities."""
    if not log.columns.segments:
        request = _with_scores(watch)
        table, (whole, scores) = build_score_table(log, plan, executor, request, total)
        return DayEvidence(table, whole, scores, {})
    segments = number_segments(total.runs, plan.scratch)
    level = segments.levels[-1]
    everyone = np.ones(len(level.keys), np.bool_)
    cutting = cut_levels(segments, [(level, everyone)], plan.scratch, pooled=False, weighted=False)
    request = watch.request()
    table, whole = build_score_table(log, plan, executor, request, total, cutting)
    visit = Visit(small=partial(_small, watch), first=request, large=partial(_large, watch))
    found: dict[tuple[Any, ...], Evidence] = {}
    [files] = table.exchanged
    for codes, evidence in visit_segments(files, executor, visit, everyone, plan.bucket_bytes):
        for code, own in zip(codes.tolist(), evidence, strict=True):
            found[level.keys[code]] = own
    return DayEvidence(table, whole, None, found)


def _with_scores(watch: Watch) -> Pass:
    request = watch.request()
    return Pass(partial(_evidence_and_scores, request.chunk, watch.lookup), partial(_both, request.combine))


def _evidence_and_scores(chunk: Any, lookup: str | None, points: Points) -> tuple[Any, Array]:
    assert lookup is not None
    edges = cached_lookup_table(lookup).map.score_hi
    rows = np.searchsorted(edges[:-1], points.score, side="right")
    counts: Array = np.bincount(rows, points.weight, edges.size).astype(np.float64)
    return chunk(points), counts


def _both(combine: Any, parts: Sequence[tuple[Any, Array]]) -> tuple[Evidence, Array]:
    scores: Array = np.sum([rows for _, rows in parts], axis=0, dtype=np.float64)
    return combine([evidence for evidence, _ in parts]), scores


def _passes(watch: Watch) -> Generator[Pass, Any, Evidence]:
    return (yield watch.request())


def _small(watch: Watch, segments: Slices) -> list[Evidence]:
    return [run_passes(_passes(watch), partial(_run, points)) for points in segments.points()]


def _run(points: Points, request: Pass) -> Any:
    return request.combine([request.chunk(points)])


def _large(watch: Watch, points: int, run: Callable[[Pass], Any]) -> list[Evidence]:
    return [run_passes(_passes(watch), run)]
