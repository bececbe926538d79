"""Measuring a published table on a log: its rows sorted by score, and, where calibration changes their order, again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from calibrators.measures.comparison import Comparison, comparison_passes
from calibrators.measures.predictions import run_passes
from logcal.errors import InputRejectedError
from logcal.lookup_table import LookupTable, SegmentedLookup
from pipeline.evaluate.evaluation import Evaluation, Run, Sizes, both_sides, evaluation_of, side_passes
from pipeline.evaluate.kept_table import KeptTable, add_sort_kept
from pipeline.evaluate.segment_evaluation import SegmentedEvaluation, add_sides, finish_sides
from pipeline.execution import Executor, Graph
from pipeline.files.folders import Folder
from pipeline.log.logs import Log
from pipeline.log.windows import Window
from pipeline.sort.score_table import (
    ScoreTable,
    SortedRows,
    SortPlan,
    add_merge,
    scratch_bytes,
)
from pipeline.sort.segment_predictions import SegmentedComparison, compare_predictions
from pipeline.sort.segment_rows import SegmentCounts, SegmentRows
from pipeline.sort.source import Source
from pipeline.table.lookup_table import Predictor


@dataclass(frozen=True)
class Against:
    """Other side of a comparison: another table, or the scores. predictor : of it."""

    name: str
    predictor: Predictor


@dataclass(frozen=True)
class Measured:
    """Result of the measurement of a table.

    table : of the log's scores. segments : of each of them, where the table has segments.
    compared : with something else, on the same rows, where rows have segments
    """

    table: ScoreTable
    evaluation: Evaluation
    segments: SegmentedEvaluation | None = None
    compared: SegmentedComparison | None = None


@dataclass(frozen=True)
class Measurement:
    """Plan of a measurement, and its rows.

    Attributes
    ----------
    log : Log
    path : of the lookup table
    lookup : it; of a table with segments the map of all rows
    segmented : the table, if it has segments
    kept, window : of a log that is a kept score table, and of one whose days are chosen
    bins : of the calibration errors
    sampling_rate : see `evaluate`
    against : what it is compared with
    """

    log: Log
    path: str
    lookup: LookupTable
    segmented: SegmentedLookup | None = None
    kept: KeptTable | None = None
    window: Window | None = None
    bins: int = 10
    sampling_rate: float = 1.0
    against: Against | None = None

    @property
    def one_sort(self) -> bool:
        """True if calibration keeps the order of all scores."""
        return self.segmented is None and self.lookup.facts.monotone

    @property
    def columns(self) -> tuple[str, ...]:
        """The table's segment columns."""
        return () if self.segmented is None else self.segmented.columns

    @property
    def needed(self) -> int:
        """Scratch space in bytes, at most."""
        log = self.log
        compared = bool(self._compared_columns) and self._compared_columns != self.columns
        if self.kept is not None:
            # Entries of 24 bytes a point, and the table; with segments what each leaves, twice.
            return (192 if self.kept.segments else 48 * self.sorts) * log.rows
        # With segments, each sort leaves their runs, and the parts of those that are cut.
        return (2 if self.columns or compared else 1) * self.sorts * scratch_bytes(log, write=True)

    @property
    def sorts(self) -> int:
        """Number of times that the log is sorted: by scores, by probabilities, and to compare."""
        if self._compared_columns and self._compared_columns != self.columns:
            return 3
        return 1 if self.one_sort else 2

    @property
    def _compared_columns(self) -> tuple[str, ...]:
        """The segment columns that say through which maps of both a row goes."""
        others = () if self.against is None else self.against.predictor.columns
        if self.kept is not None:
            return self.kept.segments if self.columns or others else ()
        return self.columns + tuple(name for name in others if name not in self.columns)

    def measure(self, plan: SortPlan, executor: Executor) -> Measured:
        """Sort and measure.

        plan : in a folder of its own, in scratch space

        Raises
        ------
        InputRejectedError
            As `build_score_table`; scores that are no probabilities, to compare with.
        """
        for scratch in (own.scratch for own in self._plans(plan)):
            Folder.at(scratch).make()
        graph = Graph()
        found = executor.compute(graph, self.add(graph, plan))
        if self.segmented is None:
            table, evaluation, run = self._plain(found, executor)
            segments = None
        else:
            segments = finish_sides(self._sizes, self.segmented, found, executor)
            table, evaluation = segments.before.rows.table, segments.whole
            run = partial(table.run, executor=executor, stage="measure")
        if self.against is None:
            return Measured(table, evaluation, segments)
        if self.against.predictor.path is None and not evaluation.before.probabilities:
            raise InputRejectedError(
                f"evaluate.against: expected raw scores in [0, 1], found {evaluation.before.lowest:.6g} to "
                f"{evaluation.before.highest:.6g}, which are no probabilities: compare with another version"
            )
        rows = None if segments is None else segments.before.rows
        found, compared = self._compare(self.against, run, rows, plan, executor)
        evaluation = replace(evaluation, comparison=found, against=self.against.name)
        return Measured(table, evaluation, segments, compared)

    def _plans(self, plan: SortPlan) -> tuple[SortPlan, SortPlan]:
        """Plan the sort of the scores, and of the probabilities if calibration changes their order."""
        plan = replace(plan, transform=self.lookup.facts.score_transform, write=f"{plan.scratch}/before")
        return plan, replace(_inside(plan, "calibrated"), lookup=self.path)

    def add(self, graph: Graph, plan: SortPlan) -> Any:
        """Add to a graph all that does not depend on the rows; return a reference to what `measure` goes on with."""
        plans = self._plans(plan)
        if self.segmented is None:
            return graph.task("measured", list, self._add_plain(graph, *plans))
        rows, predictor = self._add_sorted(graph, plans[0], self.columns), Predictor(self.path, self.columns)
        sides = add_sides(graph, rows, plans[1], predictor, self._sizes, self._known)
        return graph.task("measured", list, sides)

    def _plain(self, found: tuple[Any, ...], executor: Executor) -> tuple[ScoreTable, Evaluation, Run]:
        """Measure a table without segments."""
        (table, _), *others = found
        run = partial(table.run, executor=executor, stage="measure")
        if self.one_sort:
            before, after = run_passes(both_sides(self._sizes, Predictor(self.path), table), run)
        else:
            again = others[0][0]
            run_after = partial(again.run, executor=executor, stage="measure")
            before = run_passes(side_passes(self._sizes, table, tests=False), run)
            after = run_passes(side_passes(self._sizes, again), run_after)
        return table, evaluation_of(table.used, before, after), run

    @property
    def _sizes(self) -> Sizes:
        return Sizes(self.bins, self.sampling_rate)

    def _add_plain(self, graph: Graph, plan: SortPlan, again: SortPlan) -> list[Any]:
        """Add to a graph what sorts the rows of a table without segments.

        Returns
        -------
        references to the score table; where calibration changes the order of the scores, to that of the calibrated
        probabilities as well
        """
        found = [add_merge(graph, self._add_sorted(graph, plan))]
        if not self.one_sort:
            with graph.named("-again"):
                found.append(add_merge(graph, self._add_sorted(graph, again)))
        return found

    def _compare(
        self,
        against: Against,
        run: Run,
        rows: SegmentRows | None,
        plan: SortPlan,
        executor: Executor,
    ) -> tuple[Comparison, SegmentedComparison | None]:
        """Both on the same rows. rows : of the table's segments, where they are sorted."""
        rate = self.sampling_rate
        new, old = Predictor(self.path, self.columns, rate), replace(against.predictor, sampling_rate=rate)
        columns = self._compared_columns
        if not columns:
            passes = comparison_passes(None if old.path is None else old, new)
            return run_passes(passes, run), None
        if rows is None or rows.names != columns:
            graph = Graph()
            inside = _inside(plan, "compared")
            Folder.at(inside.scratch).make()
            own = self._add_sorted(graph, inside, columns)
            rows = executor.compute(graph, SegmentRows.add(graph, own, columns, self._known).rows)
        found = compare_predictions(rows, old, new, executor)
        return found.whole, found

    @property
    def _known(self) -> SegmentCounts | None:
        return None if self.kept is None else SegmentCounts(self.kept.rows_of_segments(), self.kept.weighted)

    def _add_sorted(self, graph: Graph, plan: SortPlan, columns: tuple[str, ...] = ()) -> SortedRows:
        """Add to a graph what makes runs of the log's rows, or those of the window; or of a kept table's points.

        columns : of segments
        """
        if self.kept is not None:
            return SortedRows(self.log, plan, add_sort_kept(graph, self.kept, self.log, columns, plan))
        log = replace(self.log, columns=replace(self.log.columns, segments=columns))
        window = None if self.window is None else replace(self.window, log=log)
        return SortedRows(log, plan, Source(log, window).add(graph, plan).total)


def _inside(plan: SortPlan, name: str) -> SortPlan:
    """A further sort of the same rows, whose bad ones have been kept."""
    scratch = f"{plan.scratch}/{name}"
    return replace(plan, scratch=scratch, write=f"{scratch}/table", rules=replace(plan.rules, keep=False))
