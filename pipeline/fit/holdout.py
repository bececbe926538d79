"""Holding rows out of a fit: a candidate is fitted without them, and measured on them beside the current version."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from calibrators.arithmetic.passes import Array, Pass
from calibrators.measures.certainty import ErrorBars, error_bar_passes
from calibrators.measures.comparison import Comparison, comparison_passes
from calibrators.measures.predictions import run_passes
from logcal.errors import InputRejectedError
from pipeline.execution import Executor
from pipeline.files.folders import Folder
from pipeline.files.records import jsonable
from pipeline.fit.fitting import Content, Fitting
from pipeline.log.logs import Log
from pipeline.log.windows import day_of
from pipeline.sort.day_tables import DayTable
from pipeline.sort.division import divide
from pipeline.sort.runs import RunReceipt
from pipeline.sort.score_table import SortedRows, SortPlan, merge_rows
from pipeline.sort.segment_predictions import compare_predictions, order_predictions
from pipeline.sort.segment_rows import SegmentRows
from pipeline.sort.source import Days, Source
from pipeline.sort.suspect_days import EVERY_DAY
from pipeline.table.lookup_table import Predictor
from pipeline.table.published import Version, fitted_until, segments_of

TRIAL = "trial"
"""Folder in scratch space."""

Run = Callable[[Pass], Any]
"""Carries out a pass over the parts of a score table."""

Predict = Callable[[Array], Array]


@dataclass(frozen=True)
class Rows:
    """Number of rows: their weight, and that of those with label 1."""

    weight: float
    positives: float

    @property
    def rarer(self) -> float:
        """Weight of the rarer label."""
        return min(self.positives, self.weight - self.positives)


@dataclass(frozen=True)
class PlainRows:
    """Rows without segments.

    run : carries passes out over their score table. size : how many they are
    monotone : whether what is measured never decreases with the score
    """

    run: Run
    size: Rows
    monotone: bool = True

    def bars(self, new: Predict) -> ErrorBars | None:
        """Error bars of probabilities; None if their order is not that of the scores."""
        return run_passes(error_bar_passes(new), self.run) if self.monotone else None

    def compare(self, old: Predict | None, new: Predict) -> tuple[Comparison, list[dict[str, Any]]]:
        """Two predictions of the rows."""
        return run_passes(comparison_passes(old, new), self.run), []


@dataclass(frozen=True)
class SegmentedRows:
    """Rows with segments: each goes through its segment's map. folder : for what is sorted in another order."""

    rows: SegmentRows
    folder: str
    executor: Executor

    @property
    def size(self) -> Rows:
        """Number of rows."""
        return Rows(self.rows.table.weight, self.rows.table.positives)

    def bars(self, new: Predictor) -> ErrorBars:
        """Error bars of probabilities."""
        table = order_predictions(self.rows, new, self.folder, self.executor)
        run = partial(table.run, executor=self.executor, stage="holdout")
        found: ErrorBars = run_passes(error_bar_passes(), run)
        return found

    def compare(self, old: Predictor | None, new: Predictor) -> tuple[Comparison, list[dict[str, Any]]]:
        """Two predictions of the rows, and the segments in which the new one is worse beyond chance."""
        found = compare_predictions(self.rows, old or Predictor(), new, self.executor)
        return found.whole, found.worse()


Measured = PlainRows | SegmentedRows


@dataclass(frozen=True)
class HeldOut:
    """Value of a table on rows that it was not fitted to.

    Attributes
    ----------
    rows : that it was measured on. bars : of its probabilities; None where they cannot be had. loss : its mean log
        loss. expected : the sum of its probabilities.
    against : the current table and it, on those rows that neither was fitted to; None: not compared.
    fresh : the rows of that comparison. raw : the scores and it, where scores are probabilities.
    current : whether there is a current table. worse : segments in which it is worse than that one beyond chance.
    """

    rows: Rows
    bars: ErrorBars | None = None
    loss: float | None = None
    expected: float | None = None
    against: Comparison | None = None
    fresh: Rows = Rows(0.0, 0.0)
    raw: Comparison | None = None
    current: bool = False
    worse: list[dict[str, Any]] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
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
    rows: Measured,
    *,
    current: Any = None,
    fresh: Measured | None = None,
    probabilities: bool = False,
) -> HeldOut:
    """Measure a table on held-out rows.

    Parameters
    ----------
    new : what predicts with it, as the rows take it
    rows : that it was not fitted to
    current, fresh : another table's, and those rows that neither was fitted to
    probabilities : whether the scores are probabilities
    """
    held = rows.size
    if held.rarer == 0:
        return HeldOut(held, current=current is not None)
    same, _ = rows.compare(new, new)
    found = HeldOut(held, rows.bars(new), same.log_loss.new, same.expected_new, current=current is not None)
    if probabilities:
        found = replace(found, raw=rows.compare(None, new)[0])
    if current is None or fresh is None:
        return found
    both = fresh.size
    if both.rarer == 0:
        return replace(found, fresh=both)
    against, worse = fresh.compare(current, new)
    return replace(found, fresh=both, against=against, worse=worse)


@dataclass(frozen=True)
class Trial:
    """A candidate and what it is worth on the rows that it was not fitted to.

    content : None where there is nothing to fit it to
    positives : rows with label 1 that it was fitted to, as weights count them
    """

    content: Content | None
    held_out: HeldOut
    positives: float


@dataclass(frozen=True)
class Trials:
    """Trials of candidates on held-out rows of a log.

    Attributes
    ----------
    last : rows of so many last days of a window are held out; 0: a share of all rows. share : in (0, 1)
    refit : whether the table is then fitted to all rows, so that no candidate is needed
    fitting : the fit to all rows. days : the source's. current : the current version.
    comparable : whether the log has the columns of the current version's segments
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
        """Try a candidate out.

        total : all rows' runs

        Raises
        ------
        InputRejectedError
            What is left does not suit the calibrator.
        """
        kept, held = self._last_days() if self.last else self._share(total, "divided")
        if not kept.used and self.refit:
            return Trial(None, HeldOut(Rows(0.0, 0.0)), 0)
        if not kept.used:
            raise InputRejectedError(
                "gate.holdout: expected rows that are not held out, found none: hold out less, or set gate.refit"
            )
        keep = None if self.refit else self.fitting.plan.write
        try:
            fitting = replace(self.fitting, plan=replace(self._place("kept"), write=keep))
            content, _ = fitting.fit(self.executor, kept)
        except InputRejectedError as error:
            raise InputRejectedError(f"gate.holdout: of the rows that are not held out: {error}") from None
        recipe, positives = self.fitting.recipe, content.table.positives
        if not held.used:
            return Trial(content, HeldOut(Rows(0.0, 0.0)), positives)
        path = content.write(self._place("candidate").scratch)
        rows = self._measured("held", held, content, recipe.columns)
        current = self._predictor()
        found = measure_held_out(
            Predictor(path, recipe.columns, recipe.sampling_rate),
            rows,
            current=current,
            fresh=None if current is None else self._fresh(held, content, current.columns),
            probabilities=held.lowest >= 0 and held.highest <= 1,
        )
        return Trial(content, found, positives)

    def _predictor(self) -> Predictor | None:
        """Predictor of the live version, if it takes the rows' scores."""
        recipe = self.fitting.recipe
        if self.current is None or self.current.manifest["score_transform"] != recipe.transform:
            return None
        return Predictor(self.current.lookup_path, segments_of(self.current), recipe.sampling_rate)

    @property
    def _log(self) -> Log:
        return self.fitting.source.sorted_log

    def _share(self, total: RunReceipt, name: str) -> tuple[RunReceipt, RunReceipt]:
        assert self.share is not None
        weighted, columns = self._log.columns.weight is not None, len(self.fitting.recipe.columns)
        return divide(total, self._place(name), self.executor, self.share, weighted=weighted, columns=columns)

    @property
    def _tables(self) -> list[DayTable]:
        return [table for table in self.days.used if table.receipt.rows]

    def _last_days(self) -> tuple[RunReceipt, RunReceipt]:
        begin = self._first_held
        kept = self._some_days("earlier", [table for table in self._tables if table.day < begin])
        held = self._some_days("last", [table for table in self._tables if table.day >= begin])
        kept.held_out = {"rows_held_out": held.used}
        kept.rows += held.rows
        kept.bad.merge(held.bad)
        return kept, held

    @property
    def _first_held(self) -> int:
        known = [table.day for table in self._tables if table.receipt.used]
        return max(known or [table.day for table in self._tables]) - self.last + 1

    def _some_days(self, name: str, tables: list[DayTable]) -> RunReceipt:
        if not any(table.receipt.used for table in tables):
            return RunReceipt()
        found: RunReceipt = self._sorted(name, Source(self._log, self.fitting.source.window, tables=tables))
        return found

    def _sorted(self, name: str, source: Source) -> RunReceipt:
        found: RunReceipt = source.sort(self._place(name), self.executor).total
        return found

    def _measured(self, name: str, total: RunReceipt, content: Content, columns: tuple[str, ...]) -> Measured:
        """Rows as they are measured. columns : their segments'."""
        rows = SortedRows(self._log, self._place(name), total)
        if columns:
            segments = SegmentRows.of(rows, self.executor, columns)
            return SegmentedRows(segments, f"{rows.plan.scratch}/in-order", self.executor)
        table, _ = merge_rows(rows, self.executor)
        run = partial(table.run, executor=self.executor, stage="holdout")
        return PlainRows(run, Rows(table.weight, table.positives), monotone=bool(content.facts["monotone"]))

    def _fresh(self, held: RunReceipt, content: Content, others: tuple[str, ...]) -> Measured | None:
        """The rows that neither the candidate nor the current version was fitted to; None where there are none.

        others : the current version's segment columns; where the candidate has not all of them, rows are read again.
        """
        columns = self.fitting.recipe.columns
        more = tuple(name for name in others if name not in columns)
        source, everything = self._unseen()
        if source is None or not self.comparable:
            return None
        if everything and not more:
            return self._measured("fresh", held, content, columns)
        if more:
            log = replace(source.log, columns=replace(source.log.columns, segments=columns + more))
            window = None if source.window is None else replace(source.window, log=log)
            total = self._sorted("fresh", replace(source, log=log, window=window, tables=None))
        elif source.tables is not None:
            total = self._some_days("fresh", list(source.tables))
        else:
            total = self._sorted("fresh", source)
        if not total.used:
            return None
        if not self.last:
            total = self._share(total, "fresh-divided")[1]
        return self._measured("fresh-held", total, content, columns + more) if total.used else None

    def _place(self, name: str) -> SortPlan:
        """A sort in a folder of its own: names of runs and parts are not unique in all of scratch space."""
        plan = self.fitting.plan
        scratch = f"{plan.scratch}/{TRIAL}/{name}"
        Folder.at(scratch).make()
        rules = replace(plan.rules, keep=False)  # the fit itself has kept them
        return replace(plan, scratch=scratch, write=f"{scratch}/score_table", rules=rules)

    def _unseen(self) -> tuple[Source | None, bool]:
        """The rows that the current version was not fitted to, held out or not; and whether these are all."""
        source = self.fitting.source
        if source.window is not None:
            tables = [t for t in self._tables if not self.last or t.day >= self._first_held]
            fresh = [table for table in tables if not self._seen_day(table.day)]
            only = frozenset(table.day for table in fresh)
            found = (
                replace(source, day_tables=None, rule=EVERY_DAY, tables=fresh, only=only) if fresh else None
            )
            return found, len(fresh) == len(tables)
        log = source.log
        files = tuple(file for file in log.files if (file.path, file.size, file.rows) not in self._seen)
        if not any(file.rows for file in files):
            return None, False
        return Source(replace(log, files=files)), len(files) == len(log.files)

    @property
    def _seen(self) -> set[tuple[Any, ...]]:
        """The files that the current version was fitted to."""
        sources = [] if self.current is None else self.current.manifest["log"]["files"]
        return {(file["path"], file["bytes"], file["rows"]) for file in sources}

    def _seen_day(self, day: int) -> bool:
        """Tell whether the live version may have been fitted to rows of a day."""
        manifest = {} if self.current is None else self.current.manifest
        if window := manifest.get("window"):
            return bool(window["first"] <= day_of(day).isoformat() <= fitted_until(manifest))
        return any((file.path, file.size, file.rows) in self._seen for file in self._log.files)
