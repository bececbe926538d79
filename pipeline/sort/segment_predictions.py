"""Predictions of tables for the rows of a log with segments: comparison of two tables, and sorting by probability."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from calibrators.core import sorting
from calibrators.core.arrays import Array, Integers
from calibrators.core.double_double import Pair
from calibrators.core.sorting import Coded
from calibrators.measures.comparison import Comparison, PairedDifference, comparison_of, pair_sums
from pipeline.execution import Executor, Graph
from pipeline.files.blobs import receipts_in
from pipeline.files.folders import Folder
from pipeline.log.segment_values import Key
from pipeline.sort.runs import RunReceipt, write_sections
from pipeline.sort.score_table import ScoreTable, SortedRows, SortPlan, add_up, merge_rows
from pipeline.sort.sections import Sections, UnitRows, WeightedRows
from pipeline.sort.segment_merge import Cutting
from pipeline.sort.segment_rows import SegmentRows, cut_all
from pipeline.sort.segment_tasks import SegmentBatch
from pipeline.sort.segments import Coding, Level, Slices, read_codes, write_codes
from pipeline.table.lookup_table import Predictor

MOST_WORSE = 10
"""Most segments named in a message."""


def _standard_errors(loss: PairedDifference) -> float:
    """Return the rise of a loss in standard errors."""
    if loss.difference is None or loss.error is None:
        return math.inf if math.isinf(loss.new) and not math.isinf(loss.old) else -math.inf
    if loss.error == 0:
        return math.copysign(math.inf, loss.difference) if loss.difference else 0.0
    return loss.difference / loss.error


def _chance_limit(segments: int) -> float:
    """Return the limit that the largest of n normal deviates exceeds as rarely as one deviate exceeds 3."""
    return -NormalDist().inv_cdf(NormalDist().cdf(-3.0) / max(1, segments))


def segments_text(worse: Sequence[Mapping[str, Any]]) -> str:
    """List segments of `SegmentedComparison.worse` with the rise of their log loss, for messages."""
    texts = []
    for segment in worse:
        name = ", ".join("null" if value is None else value for value in segment["segment"])
        difference = segment["log_loss_difference"]
        texts.append(f"{name} ({'infinite' if difference is None else format(difference, '+.2g')})")
    return "; ".join(texts)


class _Predictions(NamedTuple):
    """Predictor with the file of each segment's map (int32), by segment code; None if all have one map."""

    predictor: Predictor
    map_file: str | None

    def of(self, codes: Integers, slices: Slices) -> Array:
        """Return the probabilities of the points of some segments, segment after segment."""
        if self.map_file is None:
            return self.predictor.of_segments(slices.columns[0], None)
        first = int(codes[0])
        maps = read_codes(self.map_file, first, int(codes[-1]) + 1)[codes - first]
        return self.predictor.of_segments(slices.columns[0], np.repeat(maps, np.diff(slices.starts)))


def _prepare(rows: SegmentRows, predictor: Predictor, name: str) -> _Predictions:
    maps = predictor.map_indices(rows.names, rows.values)
    path = f"{rows.plan.scratch}/places-{name}"
    return _Predictions(predictor, None if maps is None else write_codes(path, maps))


@dataclass(frozen=True)
class SegmentDifference:
    """Difference of the log loss of two predictions for a segment. index : its code. weight : weight of its rows."""

    index: int
    weight: float
    log_loss: PairedDifference


@dataclass(frozen=True)
class SegmentedComparison:
    """Comparison of two predictions for all rows, and for each segment with rows. keys : keys of the segments."""

    whole: Comparison
    segments: list[SegmentDifference]
    keys: Sequence[Key] = field(repr=False)

    def worse(self) -> list[dict[str, Any]]:
        """Return `worst` for JSON, with the columns' values as text."""
        return [
            {
                "segment": [None if value is None else str(value) for value in self.keys[segment.index]],
                "weight": segment.weight,
                "log_loss_difference": segment.log_loss.difference,
                "error": segment.log_loss.error,
            }
            for segment in self.worst()
        ]

    def worst(self) -> list[SegmentDifference]:
        """Return at most `MOST_WORSE` segments in which the new predictions are worse than the old ones beyond chance.

        Segments are sorted by the rise of the log loss in standard errors; those with a new infinite loss come first.
        With equal predictions any segment is returned once in 740 comparisons, for any number of segments.
        """
        deviations = [(segment, _standard_errors(segment.log_loss)) for segment in self.segments]
        limit = _chance_limit(len(deviations))
        deviations = [(segment, z) for segment, z in deviations if z > limit]
        deviations.sort(key=lambda item: (-item[1], item[0].index))
        return [segment for segment, _ in deviations[:MOST_WORSE]]


def compare_predictions(
    rows: SegmentRows, old: Predictor, new: Predictor, executor: Executor
) -> SegmentedComparison:
    """Compare two tables, or a table and the scores, on the same rows, each with its segment's map.

    The result does not depend on how rows are divided into files and tasks.

    Raises
    ------
    ValueError
        A prediction is outside [0, 1].
    """
    parts, sums_by_segment = _sums_of(rows, {"old": old, "new": new}, executor, pair_sums)
    differences = [_difference(code, pairs) for code, pairs in sorted(sums_by_segment.items())]
    return SegmentedComparison(comparison_of(parts), differences, rows.level.keys)


def _difference(index: int, parts: list[Pair]) -> SegmentDifference:
    comparison = comparison_of(parts)
    return SegmentDifference(index, comparison.weight, comparison.log_loss)


def sums_of_predictions(
    rows: SegmentRows, predictor: Predictor, executor: Executor, function: Callable[..., Pair]
) -> dict[int, list[Pair]]:
    """Compute sums over each segment's points with predictions as scores; return them by segment code.

    A large segment has several sums, one per task.

    function : function of predictions, weights, positives and `starts` of the segments to a Pair of shape
        (segments, sums); picklable
    """
    return _sums_of(rows, {"segment": predictor}, executor, function)[1]


def _sums_of(
    rows: SegmentRows, predictors: Mapping[str, Predictor], executor: Executor, function: Callable[..., Pair]
) -> tuple[list[Pair], dict[int, list[Pair]]]:
    """Compute the sums of each task, and of each segment; see `sums_of_predictions`. predictors : by file name."""
    prepared = [_prepare(rows, predictor, name) for name, predictor in predictors.items()]
    parts: list[Pair] = []
    by_segment: dict[int, list[Pair]] = {}
    for codes, sums in rows.map(executor, partial(_summed, prepared, function)):
        parts.append(sums.total())
        for i, code in enumerate(codes.tolist()):
            by_segment.setdefault(code, []).append(sums[i])
    return parts, by_segment


def _summed(
    tables: Sequence[_Predictions],
    function: Callable[..., Pair],
    index: int,
    codes: Integers,
    slices: Slices,
) -> tuple[Integers, Pair]:
    _, weight, positives = slices.columns
    probabilities = (predictions.of(codes, slices) for predictions in tables)
    return codes, function(*probabilities, weight, positives, starts=slices.starts)


def order_predictions(rows: SegmentRows, predictor: Predictor, folder: str, executor: Executor) -> ScoreTable:
    """Return the score table of all rows with their probabilities as scores.

    folder : folder for the runs and the table
    """
    Folder.at(folder).make()
    function = partial(_order, _prepare(rows, predictor, "order"), folder)
    total = _receipt_of(rows.table, rows.map(executor, function))
    plan = replace(rows.plan, scratch=folder, write=f"{folder}/score_table")
    return merge_rows(SortedRows(rows.log, plan, total), executor)[0]


def _order(predictions: _Predictions, folder: str, index: int, codes: Integers, slices: Slices) -> RunReceipt:
    _, weight, positives = slices.columns
    score = predictions.of(codes, slices)
    sums = Coded(score, np.zeros(score.size, np.int32), weight, positives)
    return write_sections(Sections(sums=sums), folder, index)


def _receipt_of(table: ScoreTable, receipts: Sequence[RunReceipt]) -> RunReceipt:
    """Add up receipts of runs of predictions, with the row counts of the rows' score table."""
    total = add_up(list(receipts))
    return replace(total, rows=table.rows, used=table.used, used_positive=table.used_positive, bad=table.bad)


def add_order(
    graph: Graph, batches: Sequence[Any], rows: Any, predictor: Predictor, plan: SortPlan, *, weighted: bool
) -> tuple[Any, Any]:
    """Add tasks that sort predictions, from the points of segments: `place -> order-i -> ordered`.

    The log's rows are not read and encoded again, which would take most of the time of another sort. Maps need not be
    monotone, and may merge points.

    Parameters
    ----------
    batches : references from `add_batches`, with points as items. rows : their SegmentRows, or a reference
    predictor : predictor with the segments' maps
    plan : plan for sorting the predictions, with another scratch folder
    weighted : whether rows have weights

    Returns
    -------
    references to a RunReceipt, and to the argument `numbered` of `SegmentRows.add_numbered`
    """
    placed = graph.task("place", _prepare, rows, predictor, "again")
    tasks = [(batch, placed, plan.scratch, i, weighted) for i, batch in enumerate(batches)]
    results = graph.layer("order", _order_coded, tasks, receipts=receipts_in(plan.scratch))
    ordered = graph.task("ordered", _collect_order, rows, results, plan.scratch)
    total = graph.task("total", operator.itemgetter(0), ordered)
    return total, graph.task("numbered", operator.itemgetter(1), ordered)


def _order_coded(
    batch: SegmentBatch | None, predictions: _Predictions, folder: str, index: int, weighted: bool
) -> tuple[RunReceipt, Integers] | None:
    """Write the predictions for a batch as a run; return its receipt and the segment of each code of the run."""
    if batch is None:
        return None
    slices = batch.items()
    score = predictions.of(batch.codes, slices)
    code = np.repeat(np.arange(batch.codes.size, dtype=np.int32), np.diff(slices.starts))
    # A map gives few different predictions in a segment, mostly in neighbouring points.
    sums = sorting.expand_coded(Coded(score, code, *slices.columns[1:]))
    score, code, weight, positives = sums
    # Points that can be single rows are written as rows, which are smaller than sums. Components of a sum cannot.
    differs = (np.diff(score) != 0) | (np.diff(code) != 0)
    single = np.append(True, differs) & np.append(differs, True) & ((positives == 0) | (positives == weight))
    if not weighted:
        single &= weight == 1
    sections = Sections(sums=Coded(*(column[~single] for column in sums)))
    score, tag, weight = score[single], 2 * code[single] + (positives[single] > 0), weight[single]
    if weighted:
        sections = sections._replace(weighted=WeightedRows(score, tag.astype(np.int32), weight))
    else:
        sections = sections._replace(rows=UnitRows(score, tag.astype(np.int32)))
    return write_sections(sections, folder, index), batch.codes


def _collect_order(
    rows: SegmentRows, results: list[tuple[RunReceipt, Integers] | None], scratch: str
) -> tuple[RunReceipt, tuple[Level, Cutting]]:
    receipts, codes = zip(*(result for result in results if result is not None), strict=True)
    total = _receipt_of(rows.table, receipts)
    starts = np.cumsum([0, *(part.size for part in codes)]).tolist()
    path = write_codes(f"{scratch}/codes", np.concatenate(codes).astype(np.int32))
    coding = Coding(path, tuple(starts), len(rows.level.keys))
    return total, (rows.level, cut_all(rows.level, coding, scratch, weighted=rows.weighted))
