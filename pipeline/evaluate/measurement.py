"""Measuring a published table on a log: its rows sorted by score, and, where calibration changes their order, again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from calibrators.comparison import Comparison, comparison_passes
from calibrators.measures import run_passes
from pipeline.errors import InputRejectedError
from pipeline.evaluate.evaluation import Evaluation, Run, evaluate
from pipeline.evaluate.kept_table import KeptTable, sort_by_probability, sort_kept
from pipeline.evaluate.segment_evaluation import SegmentedEvaluation, evaluate_segments
from pipeline.execution import Executor
from pipeline.log.logs import Log
from pipeline.log.windows import Window
from pipeline.sort.runs import RunReceipt
from pipeline.sort.score_table import ScoreTable, SortPlan, build_score_table, scratch_bytes, sort_log
from pipeline.sort.segment_predictions import SegmentedComparison, compare_predictions
from pipeline.sort.segment_rows import Known, SegmentRows
from pipeline.sort.window_sort import sort_window
from pipeline.table.lookup_table import LookupTable
from pipeline.table.predictor import Predictor
from pipeline.table.segment_lookup import SegmentedLookup


@dataclass(frozen=True)
class Against:
    """What a table is compared with: another one, or the scores. predictor : of it."""

    name: str
    predictor: Predictor


@dataclass(frozen=True)
class Measured:
    """What a table was found to be worth.

    table : of the log's scores. segments : of each of them, where the table has segments.
    compared : with something else, on the same rows, where rows have segments
    """

    table: ScoreTable
    evaluation: Evaluation
    segments: SegmentedEvaluation | None = None
    compared: SegmentedComparison | None = None


@dataclass(frozen=True)
class Measurement:
    """What is measured, and on which rows.

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
        """Whether calibration keeps the order of all scores."""
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
            # Entries of 24 bytes a point, and the table sorted by probability; with segments what each leaves, twice.
            return (192 if self.kept.segments else 0 if self.one_sort else 48) * log.rows
        if self.columns or compared:
            # Two sorts, each with the segments' runs and the parts of those that are cut; and one to compare.
            return (6 if compared else 4) * scratch_bytes(log, write=True)
        return (1 if self.one_sort else 2) * scratch_bytes(log, write=True)

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
        transform = self.lookup.facts.score_transform
        plan = replace(plan, transform=transform, write=plan.scratch / "before")
        # Where calibration changes the order of the scores, the probabilities are sorted for themselves.
        again = replace(_inside(plan, "calibrated"), lookup=self.path, write=plan.scratch / "after")
        if self.segmented is None:
            table, evaluation, run = self._plain(plan, again, executor)
            segments = None
        else:
            sort = partial(self._sorted, columns=self.columns)
            segments = evaluate_segments(
                self.log,
                self.segmented,
                (plan, again),
                executor,
                self.bins,
                sort,
                self.sampling_rate,
                self._known,
            )
            table, evaluation = segments.before.table, segments.whole
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

    def _plain(
        self, plan: SortPlan, again: SortPlan, executor: Executor
    ) -> tuple[ScoreTable, Evaluation, Run]:
        """Of a table without segments."""
        if self.kept is None or self.kept.segments:
            table, _ = build_score_table(self.log, plan, executor, total=self._sorted(plan, executor))
        else:
            table = self.kept.table(self.log)
        run = partial(table.run, executor=executor, stage="measure")
        asked = partial(evaluate, run, rows=table.used, bins=self.bins, parts=table.weights)
        asked = partial(asked, sampling_rate=self.sampling_rate)
        if self.one_sort:
            return table, asked(Predictor(self.path)), run
        if self.kept is None or self.kept.segments:
            total = self._sorted(again, executor)
        else:
            total = sort_by_probability(table, self.path, again.scratch, executor)
        after, _ = build_score_table(self.log, again, executor, total=total)
        run_after = partial(after.run, executor=executor, stage="measure")
        return table, asked(run_after=run_after, parts_after=after.weights), run

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
            own = _inside(plan, "compared")
            total = self._sorted(own, executor, columns)
            log = self.log if self.kept is not None else _by_segment(self.log, columns)
            rows = SegmentRows.of(log, own, executor, total, columns, self._known)
        found = compare_predictions(rows, old, new, executor)
        return found.whole, found

    @property
    def _known(self) -> Known | None:
        return None if self.kept is None else Known(self.kept.rows_of_segments(), self.kept.weighted)

    def _sorted(self, plan: SortPlan, executor: Executor, columns: tuple[str, ...] = ()) -> RunReceipt:
        """The log's rows, or those of the window, as runs; or a kept table's points. columns : of segments."""
        if self.kept is not None:
            return sort_kept(self.kept, self.log, columns, plan, executor)
        log = _by_segment(self.log, columns)
        if self.window is None:
            return sort_log(log, plan, executor)
        return sort_window(replace(self.window, log=log), plan, executor)


def _by_segment(log: Log, columns: tuple[str, ...]) -> Log:
    return replace(log, columns=replace(log.columns, segments=columns))


def _inside(plan: SortPlan, name: str) -> SortPlan:
    """A further sort of the same rows, whose bad ones have been kept."""
    scratch: Path = plan.scratch / name
    scratch.mkdir()
    return replace(plan, scratch=scratch, write=scratch / "table", rules=replace(plan.rules, keep=False))
