"""Measurement of a published table on a log, whose rows are sorted by score and, if necessary, by probability."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from calibrators.core.passes import run_passes
from calibrators.measures.comparison import Comparison, comparison_passes
from logcal.errors import InputRejectedError
from logcal.lookup_table import LookupTable
from pipeline.days.source import Source
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
from pipeline.table.lookup_table import Predictor


@dataclass(frozen=True)
class Against:
    """Other side of a comparison: another table, or the scores. predictor : its predictions."""

    name: str
    predictor: Predictor


@dataclass(frozen=True)
class Measured:
    """Result of the measurement of a table.

    table : score table of the log
    segments : evaluation by segment, if the table has segments
    compared : comparison by segment on the same rows, if there is one and rows have segments
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
    path : path of the lookup table
    lookup : the lookup table
    sizes : settings of the measures
    kept : the kept score table, if the log is one
    window : the window, if only some days of the log are measured
    against : the other side of the comparison, if there is one
    """

    log: Log
    path: str
    lookup: LookupTable
    sizes: Sizes
    kept: KeptTable | None = None
    window: Window | None = None
    against: Against | None = None

    @property
    def one_sort(self) -> bool:
        """True if one sort suffices, because calibration keeps the order of all scores."""
        return not self.columns and self.lookup.facts.monotone

    @property
    def columns(self) -> tuple[str, ...]:
        """The table's segment columns."""
        return self.lookup.columns

    @property
    def needed(self) -> int:
        """Largest scratch space needed, in bytes."""
        log = self.log
        compared = bool(self._compared_columns) and self._compared_columns != self.columns
        if self.kept is not None:
            # Entries of 24 bytes per point, and the table; with segments also their points, for both sorts.
            return (192 if self.kept.segments else 48 * self.sorts) * log.rows
        # With segments, each sort also writes their runs, and the parts of segments that are cut.
        return (2 if self.columns or compared else 1) * self.sorts * scratch_bytes(log, write=True)

    @property
    def sorts(self) -> int:
        """Number of sorts of the log: by score, by probability, and for the comparison."""
        if self._compared_columns and self._compared_columns != self.columns:
            return 3
        return 1 if self.one_sort else 2

    @property
    def _compared_columns(self) -> tuple[str, ...]:
        """The segment columns that select the maps of both sides of the comparison."""
        other_columns = () if self.against is None else self.against.predictor.columns
        if self.kept is not None:
            return self.kept.segments if self.columns or other_columns else ()
        return self.columns + tuple(name for name in other_columns if name not in self.columns)

    def measure(self, plan: SortPlan, executor: Executor) -> Measured:
        """Sort and measure.

        plan : sort in a scratch folder of the measurement

        Raises
        ------
        InputRejectedError
            As `build_score_table`; the comparison is with scores that are no probabilities.
        """
        for side_plan in self._plans(plan):
            Folder.at(side_plan.scratch).make()
        graph = Graph()
        results = executor.compute(graph, self.add(graph, plan))
        if not self.columns:
            table, evaluation, run = self._unsegmented(results, executor)
            segments = None
        else:
            segments = finish_sides(self.sizes, self.lookup, results, executor)
            table, evaluation = segments.before.rows.table, segments.whole
            run = partial(table.run, executor=executor, stage="measure")
        if self.against is None:
            return Measured(table, evaluation, segments)
        if self.against.predictor.path is None and not evaluation.before.probabilities:
            raise InputRejectedError(
                f"$[against]: expected raw scores in [0, 1], found {evaluation.before.lowest:.6g} to "
                f"{evaluation.before.highest:.6g}, which are no probabilities: compare with another version"
            )
        rows = None if segments is None else segments.before.rows
        comparison, compared = self._compare(self.against, run, rows, plan, executor)
        evaluation = replace(evaluation, comparison=comparison, against=self.against.name)
        return Measured(table, evaluation, segments, compared)

    def _plans(self, plan: SortPlan) -> tuple[SortPlan, SortPlan]:
        """Plan the sort by score, and the sort by probability."""
        plan = replace(plan, transform=self.lookup.facts.score_transform, write=f"{plan.scratch}/before")
        return plan, replace(_further_plan(plan, "calibrated"), lookup=self.path)

    def add(self, graph: Graph, plan: SortPlan) -> Any:
        """Add to a graph all tasks that do not depend on the rows; return a reference to their results."""
        plans = self._plans(plan)
        if not self.columns:
            tables = [add_merge(graph, self._add_sorted(graph, plans[0]))]
            if not self.one_sort:
                with graph.named("-again"):
                    tables.append(add_merge(graph, self._add_sorted(graph, plans[1])))
            return graph.task("measured", list, tables)
        rows, predictor = self._add_sorted(graph, plans[0], self.columns), Predictor(self.path, self.columns)
        sides = add_sides(graph, rows, plans[1], predictor, self.sizes, self._counts)
        return graph.task("measured", list, sides)

    def _unsegmented(self, tables: tuple[Any, ...], executor: Executor) -> tuple[ScoreTable, Evaluation, Run]:
        """Measure a table without segments."""
        (table, _), *others = tables
        run = partial(table.run, executor=executor, stage="measure")
        if self.one_sort:
            before, after = run_passes(both_sides(self.sizes, Predictor(self.path), table), run)
        else:
            calibrated = others[0][0]
            run_after = partial(calibrated.run, executor=executor, stage="measure")
            before = run_passes(side_passes(self.sizes, table, tests=False), run)
            after = run_passes(side_passes(self.sizes, calibrated), run_after)
        return table, evaluation_of(table.used, before, after), run

    def _compare(
        self,
        against: Against,
        run: Run,
        rows: SegmentRows | None,
        plan: SortPlan,
        executor: Executor,
    ) -> tuple[Comparison, SegmentedComparison | None]:
        """Compare both sides on the same rows. rows : sorted rows of the table's segments, if it has segments."""
        rate = self.sizes.sampling_rate
        new, old = Predictor(self.path, self.columns, rate), replace(against.predictor, sampling_rate=rate)
        columns = self._compared_columns
        if not columns:
            passes = comparison_passes(None if old.path is None else old, new)
            return run_passes(passes, run), None
        if rows is None or rows.names != columns:
            graph = Graph()
            plan = _further_plan(plan, "compared")
            Folder.at(plan.scratch).make()
            by_score = self._add_sorted(graph, plan, columns)
            rows = executor.compute(graph, SegmentRows.add(graph, by_score, columns, self._counts).rows)
        comparison = compare_predictions(rows, old, new, executor)
        return comparison.whole, comparison

    @property
    def _counts(self) -> SegmentCounts | None:
        return None if self.kept is None else SegmentCounts(self.kept.rows_of_segments(), self.kept.weighted)

    def _add_sorted(self, graph: Graph, plan: SortPlan, columns: tuple[str, ...] = ()) -> SortedRows:
        """Add the sort of the log's rows, of those in the window, or of a kept table's points to a graph.

        columns : segment columns
        """
        if self.kept is not None:
            return SortedRows(self.log, plan, add_sort_kept(graph, self.kept, self.log, columns, plan))
        log = replace(self.log, columns=replace(self.log.columns, segments=columns))
        window = None if self.window is None else replace(self.window, log=log)
        return SortedRows(log, plan, Source(log, window).add(graph, plan).total)


def _further_plan(plan: SortPlan, name: str) -> SortPlan:
    """Plan a further sort of the same rows, whose bad rows have been quarantined already."""
    scratch = f"{plan.scratch}/{name}"
    return replace(plan, scratch=scratch, write=f"{scratch}/table", rules=replace(plan.rules, keep=False))
