"""Holdout: a candidate is fitted without some rows and compared on them with the current version."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from calibrators.core.arrays import Array
from calibrators.core.passes import Pass, run_passes
from calibrators.measures.certainty import ErrorBars, error_bar_passes
from calibrators.measures.comparison import Comparison, comparison_passes
from logcal.errors import InputRejectedError
from pipeline.days.day_tables import DayTable
from pipeline.days.source import Days, Source
from pipeline.days.suspect_days import EVERY_DAY
from pipeline.execution import Executor
from pipeline.files.folders import Folder
from pipeline.files.records import jsonable
from pipeline.fit.fitting import Content, Fitting
from pipeline.log.log_files import FittedFiles
from pipeline.log.logs import Log
from pipeline.log.windows import day_of
from pipeline.sort.division import divide
from pipeline.sort.runs import RunReceipt
from pipeline.sort.score_table import SortedRows, SortPlan, merge_rows
from pipeline.sort.segment_predictions import compare_predictions, order_predictions
from pipeline.sort.segment_rows import SegmentRows
from pipeline.table.lookup_table import Predictor
from pipeline.table.published import Version, fitted_until, segments_of

TRIAL = "trial"
"""Name of the folder in scratch space."""

Run = Callable[[Pass], Any]
"""Function that runs a pass over the parts of a score table."""

Predict = Callable[[Array], Array]


@dataclass(frozen=True)
class RowWeights:
    """Total weight of rows, and weight of the rows with label 1."""

    weight: float
    positives: float

    @property
    def rarer(self) -> float:
        """Weight of the rarer label."""
        return min(self.positives, self.weight - self.positives)


@dataclass(frozen=True)
class PlainRows:
    """Rows without segments.

    run : runs passes over their score table
    size : number of rows
    monotone : whether the measured map never decreases
    """

    run: Run
    size: RowWeights
    monotone: bool = True

    def bars(self, new: Predict) -> ErrorBars | None:
        """Compute error bars of probabilities; None if their order is not that of the scores."""
        return run_passes(error_bar_passes(new), self.run) if self.monotone else None

    def compare(self, old: Predict | None, new: Predict) -> tuple[Comparison, list[dict[str, Any]]]:
        """Compare two predictions of the rows. old : None: the scores."""
        return run_passes(comparison_passes(old, new), self.run), []


@dataclass(frozen=True)
class SegmentedRows:
    """Rows with segments: each has its segment's map. folder : scratch folder for sorts by probability."""

    rows: SegmentRows
    folder: str
    executor: Executor

    @property
    def size(self) -> RowWeights:
        """Number of rows."""
        return RowWeights(self.rows.table.weight, self.rows.table.positives)

    def bars(self, new: Predictor) -> ErrorBars:
        """Compute error bars of probabilities."""
        table = order_predictions(self.rows, new, self.folder, self.executor)
        run = partial(table.run, executor=self.executor, stage="holdout")
        bars: ErrorBars = run_passes(error_bar_passes(), run)
        return bars

    def compare(self, old: Predictor | None, new: Predictor) -> tuple[Comparison, list[dict[str, Any]]]:
        """Compare two predictions of the rows; also list the segments in which the new one is worse beyond chance."""
        comparison = compare_predictions(self.rows, old or Predictor(), new, self.executor)
        return comparison.whole, comparison.worse()


HeldOutRows = PlainRows | SegmentedRows


@dataclass(frozen=True)
class HeldOut:
    """Measurement of a candidate on rows that it was not fitted to.

    Attributes
    ----------
    rows : number of held-out rows
    bars : error bars of the candidate's probabilities; None if their order is not that of the scores
    loss : the candidate's mean log loss
    expected : sum of the candidate's probabilities
    against : comparison with the current table on rows that neither was fitted to; None: not compared
    fresh : number of rows of that comparison
    raw : comparison with the scores, if these are probabilities
    current : whether there is a current table
    worse : segments in which the candidate is worse than the current table beyond chance
    """

    rows: RowWeights
    bars: ErrorBars | None = None
    loss: float | None = None
    expected: float | None = None
    against: Comparison | None = None
    fresh: RowWeights = RowWeights(0.0, 0.0)
    raw: Comparison | None = None
    current: bool = False
    worse: list[dict[str, Any]] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return a dict for JSON."""
        return {
            "rows": self.rows.weight,
            "rows_positive": self.rows.positives,
            "log_loss": jsonable(self.loss),
            "observed_to_expected": self.rows.positives / self.expected if self.expected else None,
            "auc": None if self.bars is None else self.bars.auc,
            "auc_error": None if self.bars is None else self.bars.auc_error,
            "rows_compared": self.fresh.weight,
            "against_current": None if self.against is None else self.against.as_dict(),
            "against_raw": None if self.raw is None else self.raw.as_dict(),
            "segments_worse": self.worse,
        }


def measure_held_out(
    new: Any,
    rows: HeldOutRows,
    *,
    current: Any = None,
    fresh: HeldOutRows | None = None,
    probabilities: bool = False,
) -> HeldOut:
    """Measure a candidate on held-out rows.

    Parameters
    ----------
    new : the candidate's predictions: a `Predict` for `PlainRows`, a `Predictor` for `SegmentedRows`
    rows : rows that the candidate was not fitted to
    current : the current table's predictions, as `new`
    fresh : rows that neither table was fitted to
    probabilities : whether the scores are probabilities
    """
    size = rows.size
    if size.rarer == 0:
        return HeldOut(size, current=current is not None)
    same, _ = rows.compare(new, new)
    result = HeldOut(size, rows.bars(new), same.log_loss.new, same.expected_new, current=current is not None)
    if probabilities:
        result = replace(result, raw=rows.compare(None, new)[0])
    if current is None or fresh is None:
        return result
    if fresh.size.rarer == 0:
        return replace(result, fresh=fresh.size)
    against, worse = fresh.compare(current, new)
    return replace(result, fresh=fresh.size, against=against, worse=worse)


@dataclass(frozen=True)
class Trial:
    """A candidate, and its measurement on rows that it was not fitted to.

    content : the candidate; None if there are no rows to fit it to
    positives : weight of the rows with label 1 that it was fitted to
    """

    content: Content | None
    held_out: HeldOut
    positives: float


@dataclass(frozen=True)
class Trials:
    """Trials of candidates on held-out rows of a log.

    Attributes
    ----------
    last : number of last days of a window to hold out; 0: hold out a share of all rows
    share : that share, in (0, 1)
    refit : whether the published table is fitted to all rows, so that the trial may lack a candidate
    fitting : the fit to all rows
    executor : Executor
    days : days of the source
    current : the current version, if there is one
    comparable : whether the log has the segment columns of the current version
    """

    last: int
    share: float | None
    refit: bool
    fitting: Fitting
    executor: Executor
    days: Days
    current: Version | None
    comparable: bool = True

    def of(self, total: RunReceipt) -> Trial:
        """Fit a candidate without the held-out rows, and measure it on them.

        total : runs of all rows

        Raises
        ------
        InputRejectedError
            The calibrator refuses the remaining rows.
        """
        training, held_out = self._divide_by_day() if self.last else self._divide(total, "divided")
        if not training.used and self.refit:
            return Trial(None, HeldOut(RowWeights(0.0, 0.0)), 0)
        if not training.used:
            raise InputRejectedError(
                "$[holdout]: expected rows that are not held out, found none: hold out less, or set $[refit]"
            )
        plan = replace(self._plan("kept"), write=None)
        if not self.refit:
            plan = replace(plan, write=self.fitting.plan.write, keep=self.fitting.plan.keep)
        try:
            fitting = replace(self.fitting, plan=plan)
            content, _ = fitting.fit(self.executor, training)
        except InputRejectedError as error:
            raise InputRejectedError(f"$[holdout]: of the rows that are not held out: {error}") from None
        recipe, positives = self.fitting.recipe, content.table.positives
        if not held_out.used:
            return Trial(content, HeldOut(RowWeights(0.0, 0.0)), positives)
        path = content.write(self._plan("candidate").scratch)
        rows = self._rows("held", held_out, content, recipe.columns)
        current = self._predictor()
        result = measure_held_out(
            Predictor(path, recipe.columns, recipe.sampling_rate),
            rows,
            current=current,
            fresh=None if current is None else self._fresh(held_out, content, current.columns),
            probabilities=held_out.lowest >= 0 and held_out.highest <= 1,
        )
        return Trial(content, result, positives)

    def _predictor(self) -> Predictor | None:
        """Return the predictions of the live version, if it has the transform of the scores."""
        recipe = self.fitting.recipe
        if self.current is None or self.current.manifest["score_transform"] != recipe.transform:
            return None
        return Predictor(self.current.lookup_path, segments_of(self.current), recipe.sampling_rate)

    @property
    def _log(self) -> Log:
        return self.fitting.source.sorted_log

    def _divide(self, total: RunReceipt, name: str) -> tuple[RunReceipt, RunReceipt]:
        assert self.share is not None
        weighted, columns = self._log.columns.weight is not None, len(self.fitting.recipe.columns)
        return divide(total, self._plan(name), self.executor, self.share, weighted=weighted, columns=columns)

    @property
    def _tables(self) -> list[DayTable]:
        return [table for table in self.days.used if table.receipt.rows]

    def _divide_by_day(self) -> tuple[RunReceipt, RunReceipt]:
        first_day = self._first_day
        training = self._sort_days("earlier", [table for table in self._tables if table.day < first_day])
        held_out = self._sort_days("last", [table for table in self._tables if table.day >= first_day])
        training.held_out = {"rows_held_out": held_out.used}
        training.rows += held_out.rows
        training.bad.merge(held_out.bad)
        return training, held_out

    @property
    def _first_day(self) -> int:
        """The first held-out day."""
        days = [table.day for table in self._tables if table.receipt.used]
        return max(days or [table.day for table in self._tables]) - self.last + 1

    def _sort_days(self, name: str, tables: list[DayTable]) -> RunReceipt:
        if not any(table.receipt.used for table in tables):
            return RunReceipt()
        return self._sort(name, Source(self._log, self.fitting.source.window, tables=tables))

    def _sort(self, name: str, source: Source) -> RunReceipt:
        total: RunReceipt = source.sort(self._plan(name), self.executor).total
        return total

    def _rows(self, name: str, total: RunReceipt, content: Content, columns: tuple[str, ...]) -> HeldOutRows:
        """Prepare sorted rows for measurement. columns : their segment columns."""
        rows = SortedRows(self._log, self._plan(name), total)
        if columns:
            segments = SegmentRows.of(rows, self.executor, columns)
            return SegmentedRows(segments, f"{rows.plan.scratch}/in-order", self.executor)
        table, _ = merge_rows(rows, self.executor)
        run = partial(table.run, executor=self.executor, stage="holdout")
        return PlainRows(
            run, RowWeights(table.weight, table.positives), monotone=bool(content.facts["monotone"])
        )

    def _fresh(self, held_out: RunReceipt, content: Content, current: tuple[str, ...]) -> HeldOutRows | None:
        """Return the held-out rows that the current version was not fitted to; None if there are none.

        current : the current version's segment columns; columns that the candidate lacks are read from the log
        """
        columns = self.fitting.recipe.columns
        missing = tuple(name for name in current if name not in columns)
        source, all_rows = self._fresh_source()
        if source is None or not self.comparable:
            return None
        if all_rows and not missing:
            return self._rows("fresh", held_out, content, columns)
        if missing:
            log = replace(source.log, columns=replace(source.log.columns, segments=columns + missing))
            window = None if source.window is None else replace(source.window, log=log)
            total = self._sort("fresh", replace(source, log=log, window=window, tables=None))
        elif source.tables is not None:
            total = self._sort_days("fresh", list(source.tables))
        else:
            total = self._sort("fresh", source)
        if not total.used:
            return None
        if not self.last:
            total = self._divide(total, "fresh-divided")[1]
        return self._rows("fresh-held", total, content, columns + missing) if total.used else None

    def _plan(self, name: str) -> SortPlan:
        """Plan a sort in a separate folder, since names of runs and parts are unique only within a sort."""
        plan = self.fitting.plan
        scratch = f"{plan.scratch}/{TRIAL}/{name}"
        Folder.at(scratch).make()
        rules = replace(plan.rules, keep=False)  # the fit quarantines them itself
        return replace(plan, scratch=scratch, write=f"{scratch}/score_table", keep=False, rules=rules)

    def _fresh_source(self) -> tuple[Source | None, bool]:
        """Return the rows that the current version was not fitted to; and whether these are all rows."""
        source = self.fitting.source
        if source.window is not None:
            tables = [t for t in self._tables if not self.last or t.day >= self._first_day]
            fresh = [table for table in tables if not self._fitted_to_day(table.day)]
            days = frozenset(table.day for table in fresh)
            if not fresh:
                return None, not tables
            source = replace(source, day_tables=None, rule=EVERY_DAY, tables=fresh, only=days)
            return source, len(fresh) == len(tables)
        log, fitted = source.log, self._fitted
        files = tuple(file for file in log.files if file not in fitted)
        if not any(file.rows for file in files):
            return None, False
        return Source(replace(log, files=files)), len(files) == len(log.files)

    @property
    def _fitted(self) -> FittedFiles:
        """The files that the current version was fitted to."""
        sources = [] if self.current is None else self.current.manifest["log"]["files"]
        return FittedFiles(sources)

    def _fitted_to_day(self, day: int) -> bool:
        """Return whether the live version may have been fitted to rows of a day."""
        manifest = {} if self.current is None else self.current.manifest
        if window := manifest.get("window"):
            return bool(window["first"] <= day_of(day).isoformat() <= fitted_until(manifest))
        fitted = self._fitted
        return any(file in fitted for file in self._log.files)
