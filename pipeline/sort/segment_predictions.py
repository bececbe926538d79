"""Predictions of tables for the rows of a log with segments: compared pair by pair, or put in their order."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from calibrators.arithmetic import ordering
from calibrators.arithmetic.double_double import Pair
from calibrators.arithmetic.ordering import Coded
from calibrators.arithmetic.passes import Array
from calibrators.measures.comparison import Comparison, PairedDifference, comparison_of, pair_sums
from pipeline.execution import Executor, Graph
from pipeline.files.blobs import receipts_in
from pipeline.files.folders import Folder
from pipeline.log.segment_values import Key
from pipeline.sort.folding import coded_sections, merge_entries, tagged_sections
from pipeline.sort.run_files import Integers, Sections, write_run
from pipeline.sort.runs import RunReceipt, write_points_run
from pipeline.sort.score_table import ScoreTable, SortedRows, SortPlan, add_up, merge_rows
from pipeline.sort.segment_merge import Cutting
from pipeline.sort.segment_rows import SegmentRows, cut_all
from pipeline.sort.segment_tasks import Work
from pipeline.sort.segments import Coding, Level, Slices, read_codes, write_codes
from pipeline.table.lookup_table import Predictor

MOST_WORSE = 10
"""Segments that are named."""


def _errors(loss: PairedDifference) -> float:
    """Return the rise of a loss in standard errors."""
    if loss.difference is None or loss.error is None:
        return math.inf if math.isinf(loss.new) and not math.isinf(loss.old) else -math.inf
    if loss.error == 0:
        return math.copysign(math.inf, loss.difference) if loss.difference else 0.0
    return loss.difference / loss.error


def _errors_of_chance(segments: int) -> float:
    """Standard errors that the largest of so many normal deviates passes as rarely as one passes 3."""
    return -NormalDist().inv_cdf(NormalDist().cdf(-3.0) / max(1, segments))


def in_words(worse: Sequence[Mapping[str, Any]]) -> str:
    """The segments of `SegmentedComparison.worse`, with what their log loss has risen by."""
    found = []
    for one in worse:
        name = ", ".join("null" if value is None else value for value in one["segment"])
        difference = one["log_loss_difference"]
        found.append(f"{name} ({'infinite' if difference is None else format(difference, '+.2g')})")
    return "; ".join(found)


class _Predicting(NamedTuple):
    """A predictor for segments. places : of each segment its map, in a file of int32; None: one map for all."""

    predictor: Predictor
    places: str | None

    def of(self, codes: Integers, slices: Slices) -> Array:
        """Probabilities of the points of some segments, segment after segment."""
        if self.places is None:
            return self.predictor.of_segments(slices.columns[0], None)
        first = int(codes[0])
        own = read_codes(self.places, first, int(codes[-1]) + 1)[codes - first]
        return self.predictor.of_segments(slices.columns[0], np.repeat(own, np.diff(slices.starts)))


def _predicting(rows: SegmentRows, predictor: Predictor, name: str) -> _Predicting:
    places = predictor.places(rows.names, rows.values)
    path = f"{rows.plan.scratch}/places-{name}"
    return _Predicting(predictor, None if places is None else write_codes(path, places))


@dataclass(frozen=True)
class SegmentDifference:
    """The log loss of two predictions of a segment's rows. place : among the level's. weight : of the rows."""

    place: int
    weight: float
    log_loss: PairedDifference


@dataclass(frozen=True)
class SegmentedComparison:
    """Two predictions of the same rows: of all of them, and of each segment that has rows. keys : of the level."""

    whole: Comparison
    segments: list[SegmentDifference]
    keys: Sequence[Key] = field(repr=False)

    def worse(self) -> list[dict[str, Any]]:
        """`worst` for JSON, with the columns' values as text."""
        return [
            {
                "segment": [None if value is None else str(value) for value in self.keys[one.place]],
                "weight": one.weight,
                "log_loss_difference": one.log_loss.difference,
                "error": one.log_loss.error,
            }
            for one in self.worst()
        ]

    def worst(self) -> list[SegmentDifference]:
        """Segments in which the new predictions are worse than the old ones beyond chance, at most `MOST_WORSE`.

        The worst first, in standard errors; where they have an infinite loss and the old ones have none, before all.
        None is named by chance alone, of however many, but once in 740 times.
        """
        found = [(one, _errors(one.log_loss)) for one in self.segments]
        sure = _errors_of_chance(len(found))
        found = [(one, z) for one, z in found if z > sure]
        return [one for one, z in sorted(found, key=lambda item: (-item[1], item[0].place))[:MOST_WORSE]]


def compare_predictions(
    rows: SegmentRows, old: Predictor, new: Predictor, executor: Executor
) -> SegmentedComparison:
    """Compare two tables, or a table and the scores, on the same rows: each row goes through its segment's map.

    The same however rows, files and tasks are cut.

    Raises
    ------
    ValueError
        Predictions outside [0, 1].
    """
    parts, cut = _sums_of(rows, {"old": old, "new": new}, executor, pair_sums)
    found = [_difference(code, own) for code, own in sorted(cut.items())]
    return SegmentedComparison(comparison_of(parts), found, rows.level.keys)


def _difference(place: int, parts: list[Pair]) -> SegmentDifference:
    one = comparison_of(parts)
    return SegmentDifference(place, one.weight, one.log_loss)


def sums_of_predictions(
    rows: SegmentRows, predictor: Predictor, executor: Executor, function: Callable[..., Pair]
) -> dict[int, list[Pair]]:
    """Sums of each segment's points with predictions for scores, by its place; several of one that tasks share.

    function : of predictions, weights, positives and where each segment's begin, to a Pair of shape (segments, sums);
        picklable
    """
    return _sums_of(rows, {"segment": predictor}, executor, function)[1]


def _sums_of(
    rows: SegmentRows, predictors: Mapping[str, Predictor], executor: Executor, function: Callable[..., Pair]
) -> tuple[list[Pair], dict[int, list[Pair]]]:
    """Sums of each task's points, and of each segment's. predictors : by names of files; see `sums_of_predictions`."""
    predicting = [_predicting(rows, own, name) for name, own in predictors.items()]
    parts: list[Pair] = []
    found: dict[int, list[Pair]] = {}
    for codes, sums in rows.map(executor, partial(_summed, predicting, function)):
        parts.append(sums.total())
        for i, code in enumerate(codes.tolist()):
            found.setdefault(code, []).append(sums[i])
    return parts, found


def _summed(
    predicting: Sequence[_Predicting],
    function: Callable[..., Pair],
    index: int,
    codes: Integers,
    slices: Slices,
) -> tuple[Integers, Pair]:
    _, weight, positives = slices.columns
    found = (own.of(codes, slices) for own in predicting)
    return codes, function(*found, weight, positives, starts=slices.starts)


def order_predictions(rows: SegmentRows, predictor: Predictor, folder: str, executor: Executor) -> ScoreTable:
    """The score table of what is predicted: of all rows in the order of their probabilities.

    folder : for the runs and the table
    """
    Folder.at(folder).make()
    function = partial(_order, _predicting(rows, predictor, "order"), folder)
    total = _receipt_of(rows.table, rows.map(executor, function))
    plan = replace(rows.plan, scratch=folder, write=f"{folder}/score_table")
    return merge_rows(SortedRows(rows.log, plan, total), executor)[0]


def _order(predicting: _Predicting, folder: str, index: int, codes: Integers, slices: Slices) -> RunReceipt:
    _, weight, positives = slices.columns
    return write_points_run(predicting.of(codes, slices), weight, positives, folder, index)


def _receipt_of(table: ScoreTable, receipts: Sequence[RunReceipt]) -> RunReceipt:
    """Runs of predictions as those of the rows that they are of."""
    found = add_up(list(receipts))
    return replace(found, rows=table.rows, used=table.used, used_positive=table.used_positive, bad=table.bad)


def add_order(
    graph: Graph, works: Sequence[Any], rows: Any, predictor: Predictor, plan: SortPlan, *, weighted: bool
) -> tuple[Any, Any]:
    """Add to a graph what sorts predictions, from the points of segments: `place -> order-i -> ordered`.

    The log's rows need not be read again, nor their segments be told apart: most of what another sort would take. Nor
    need a map be monotone, or as many points be left as there were.

    Parameters
    ----------
    works : of `add_works`, of points. rows : SegmentRows of them, or a reference
    predictor : of the segments' maps
    plan : how to sort the predictions, in a scratch folder of its own
    weighted : whether rows have weights

    Returns
    -------
    references to a RunReceipt, and to what `SegmentRows.add_numbered` takes
    """
    placed = graph.task("place", _predicting, rows, predictor, "again")
    tasks = [(work, placed, plan.scratch, i, weighted) for i, work in enumerate(works)]
    found = graph.layer("order", _order_coded, tasks, receipts=receipts_in(plan.scratch))
    ordered = graph.task("ordered", _put_together, rows, found, plan.scratch)
    total = graph.task("total", operator.itemgetter(0), ordered)
    return total, graph.task("numbered", operator.itemgetter(1), ordered)


def _order_coded(
    work: Work | None, predicting: _Predicting, folder: str, index: int, weighted: bool
) -> tuple[RunReceipt, Integers] | None:
    """Leave the predictions of a task's segments as a run with codes of its own; return the segment of each, too."""
    if work is None:
        return None
    slices = work.items()
    score = predicting.of(work.codes, slices)
    code = np.repeat(np.arange(work.codes.size), np.diff(slices.starts))
    # A map leaves few different predictions of a segment, and mostly side by side.
    score, code, weight, positives = ordering.expand_coded(ordering.Coded(score, code, *slices.columns[1:]))
    # Entries are the largest: what may be one row is left as one. Components of one sum may not.
    apart = (np.diff(score) != 0) | (np.diff(code) != 0)
    alone = np.append(True, apart) & np.append(apart, True) & ((positives == 0) | (positives == weight))
    if not weighted:
        alone &= weight == 1
    sections = Sections()
    if alone.any() and weighted:
        signed = np.where(positives > 0, weight, -weight)
        sections = coded_sections(score[alone], code[alone], signed[alone])
    elif alone.any():
        tag = 2 * code[alone] + positives[alone].astype(np.int64)
        sections = tagged_sections(score[alone], tag, work.codes.size)
    others = [column[~alone] for column in (score, code, weight, positives)]
    entries = ordering.expand_coded(merge_entries(sections.coded_entries, Coded(*others)))
    sections = sections._replace(coded_entries=entries)
    run = write_run(f"{folder}/run-{index:06d}-0000", sections)
    return RunReceipt([run], lowest=float(score.min()), highest=float(score.max())), work.codes


def _put_together(
    rows: SegmentRows, found: list[tuple[RunReceipt, Integers] | None], scratch: str
) -> tuple[RunReceipt, tuple[Level, Cutting]]:
    receipts, codes = zip(*(one for one in found if one is not None), strict=True)
    total = _receipt_of(rows.table, receipts)
    starts = np.cumsum([0, *(own.size for own in codes)]).tolist()
    path = write_codes(f"{scratch}/codes", np.concatenate(codes).astype(np.int32))
    coding = Coding(path, tuple(starts), len(rows.level.keys))
    return total, (rows.level, cut_all(rows.level, coding, scratch, weighted=rows.weighted))
