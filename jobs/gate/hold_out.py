"""Holding rows out of a fit: a candidate is fitted without them, and measured on them beside the current version."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

from jobs.config.jobs import FitConfig
from logcal.errors import ConfigError, InputRejectedError
from pipeline.execution import Executor
from pipeline.files.folders import Folder
from pipeline.fit.holdout import HeldOut, Measured, PlainRows, Rows, SegmentedRows, measure_held_out
from pipeline.fit.recipe import Content, Recipe
from pipeline.log.logs import Columns, Log, open_log
from pipeline.log.windows import Window, day_of
from pipeline.sort.day_tables import DayTable, add_up_days
from pipeline.sort.division import Split, divide
from pipeline.sort.runs import RunReceipt
from pipeline.sort.score_table import SortPlan, add_up, build_score_table, sort_log
from pipeline.sort.segment_rows import SegmentRows
from pipeline.sort.window_sort import sort_window
from pipeline.table.predictor import Predictor
from pipeline.table.version import Version, segments_of

_logger = logging.getLogger("logcal")

TRIAL = "trial"
"""Folder in scratch space."""


def check_holdout(config: FitConfig) -> None:
    """Check that rows can be held out.

    Raises
    ------
    ConfigError
        They cannot.
    """
    gate = config.gate
    if gate.holdout is None:
        return
    if gate.days and config.window.column is None:
        raise ConfigError(
            f"gate.holdout: expected window.column with a number of days, found {gate.holdout} without it: which rows "
            "are the last is what it says; or hold out a share such as 0.2"
        )
    if gate.days >= config.window.length and gate.days:
        raise ConfigError(
            f"gate.holdout: expected fewer days than window.last ({config.window.last}), found {gate.holdout}: no day "
            "would be left to fit to"
        )


def can_compare(config: FitConfig, current: Version | None, without: Collection[str] = ()) -> bool:
    """Whether rows that are held out say through which maps of the current version they go; if not, it is warned."""
    others = () if current is None else segments_of(current)
    more = tuple(name for name in others if name not in config.log.segment)
    if config.gate.holdout is None or not more:
        return True
    own = Columns(config.log.score, config.log.label, config.log.weight, config.log.segment + more)
    try:
        open_log(config.log.path, own, without)
    except InputRejectedError as error:
        _logger.warning(
            "gate: the table cannot be compared with the current version, which has segments of %s: %s",
            ", ".join(others),
            error,
        )
        return False
    return True


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
class _Source:
    """Rows that are to be sorted: of some files, or, with a window, of some days."""

    log: Log
    window: Window | None
    days: tuple[int, ...]

    def sort(self, plan: SortPlan, executor: Executor) -> RunReceipt:
        """As `sort_log`."""
        if self.window is None:
            return sort_log(self.log, plan, executor)
        window = replace(self.window, log=self.log)
        receipts = []
        for i, (first, last) in enumerate(_stretches(self.days)):
            own = _inside(plan, f"days-{i}")
            receipts.append(sort_window(replace(window, first=first, last=last), own, executor))
        return add_up(receipts)


def _stretches(days: Sequence[int]) -> Iterator[tuple[int, int]]:
    """First and last of days that follow one another."""
    days = sorted(days)
    ends = [i for i, (a, b) in enumerate(pairwise(days), 1) if b != a + 1]
    for start, stop in pairwise([0, *ends, len(days)]):
        yield days[start], days[stop - 1]


def _inside(plan: SortPlan, name: str) -> SortPlan:
    """The sort in a folder of its own: names of runs and parts are not unique in all of scratch space."""
    scratch = f"{plan.scratch}/{name}"
    Folder.at(scratch).make()
    rules = replace(plan.rules, keep=False)  # the fit itself has kept them
    return replace(plan, scratch=scratch, write=f"{scratch}/score_table", rules=rules)


@dataclass(frozen=True)
class Trials:
    """How a log's rows are held out and candidates tried on them.

    Attributes
    ----------
    recipe : for the candidate. tables : of the log's days, with a window. current : the current version.
    comparable : whether the log has the columns of the current version's segments
    """

    config: FitConfig
    recipe: Recipe
    log: Log
    window: Window | None
    sort: SortPlan
    executor: Executor
    tables: tuple[DayTable, ...]
    current: Version | None
    comparable: bool = True

    def of(self, total: RunReceipt, keep: str | None = None) -> Trial:
        """Try a candidate out.

        total : all rows' runs. keep : folder for the candidate's score table, if it is wanted.

        Raises
        ------
        InputRejectedError
            What is left does not suit the calibrator.
        """
        kept, held = self._last_days() if self.config.gate.days else self._share(total, "divided")
        if not kept.used and self.config.gate.refit:
            return Trial(None, HeldOut(Rows(0.0, 0.0)), 0)
        if not kept.used:
            raise InputRejectedError(
                "gate.holdout: expected rows that are not held out, found none: hold out less, or set gate.refit"
            )
        try:
            content = self.recipe.fit(
                self.log, replace(self._place("kept"), write=None), self.executor, kept, keep
            )
        except InputRejectedError as error:
            raise InputRejectedError(f"gate.holdout: of the rows that are not held out: {error}") from None
        rate = self.config.log.sampling_rate
        columns = self.recipe.columns
        positives = content.table.positives
        if not held.used:
            return Trial(content, HeldOut(Rows(0.0, 0.0)), positives)
        new = Predictor(content.write(self._place("candidate").scratch), columns, rate)
        rows = self._measured("held", held, content, columns)
        current = self._predictor(rate)
        fresh = None if current is None else self._fresh(held, content, current.columns)
        found = measure_held_out(
            new,
            rows,
            current=current,
            fresh=fresh,
            probabilities=held.lowest >= 0 and held.highest <= 1,
        )
        return Trial(content, found, positives)

    def _predictor(self, rate: float) -> Predictor | None:
        """Of the current version, where the rows' scores are what it takes."""
        if (
            self.current is None
            or self.current.manifest["score_transform"] != self.config.log.score_transform
        ):
            return None
        return Predictor(self.current.lookup_path, segments_of(self.current), rate)

    def _share(self, total: RunReceipt, name: str) -> tuple[RunReceipt, RunReceipt]:
        share = self.config.gate.share
        assert share is not None
        return divide(
            total,
            self._place(name),
            self.executor,
            Split(share),
            weighted=self.log.columns.weight is not None,
            columns=len(self.recipe.columns),
        )

    def _last_days(self) -> tuple[RunReceipt, RunReceipt]:
        begin = self._first_held
        kept = self._days("earlier", [table for table in self.tables if table.day < begin])
        held = self._days("last", [table for table in self.tables if table.day >= begin])
        kept.held_out = {"rows_held_out": held.used}
        kept.rows += held.rows
        kept.bad.merge(held.bad)
        return kept, held

    @property
    def _first_held(self) -> int:
        return max(table.day for table in self.tables) - self.config.gate.days + 1

    def _days(self, name: str, tables: list[DayTable]) -> RunReceipt:
        if not any(table.receipt.used for table in tables):
            return RunReceipt()
        return add_up_days(tables, self._place(name), self.executor)

    def _measured(self, name: str, total: RunReceipt, content: Content, columns: tuple[str, ...]) -> Measured:
        """Rows as they are measured. columns : their segments'."""
        plan = self._place(name)
        if columns:
            rows = SegmentRows.of(self.log, plan, self.executor, total, columns)
            return SegmentedRows(rows, f"{plan.scratch}/in-order", self.executor)
        table = build_score_table(self.log, plan, self.executor, None, total)[0]
        run = partial(table.run, executor=self.executor, stage="holdout")
        return PlainRows(run, monotone=bool(content.facts["monotone"]))

    def _fresh(self, held: RunReceipt, content: Content, others: tuple[str, ...]) -> Measured | None:
        """The rows that neither the candidate nor the current version was fitted to; None where there are none.

        others : the current version's segment columns; where the candidate has not all of them, rows are read again.
        """
        columns = self.recipe.columns
        columns += tuple(name for name in others if name not in columns)
        source, everything = self._unseen()
        if source is None or not self.comparable:
            return None
        again = len(columns) > len(self.recipe.columns)
        if everything and not again:
            return self._measured("fresh", held, content, columns)
        total = (
            self._sorted_again(source, columns) if again or self.window is None else self._fresh_days(source)
        )
        if not total.used:
            return None
        if not self.config.gate.days:
            total = self._share(total, "fresh-divided")[1]
        return self._measured("fresh", total, content, columns) if total.used else None

    def _sorted_again(self, source: _Source, columns: tuple[str, ...]) -> RunReceipt:
        log = replace(source.log, columns=replace(source.log.columns, segments=columns))
        return replace(source, log=log).sort(self._place("fresh-sorted"), self.executor)

    def _fresh_days(self, source: _Source) -> RunReceipt:
        wanted = set(source.days)
        return self._days("fresh-days", [table for table in self.tables if table.day in wanted])

    def _place(self, name: str) -> SortPlan:
        return _inside(self.sort, f"{TRIAL}/{name}")

    def _unseen(self) -> tuple[_Source | None, bool]:
        """The rows that the current version was not fitted to, held out or not; and whether these are all."""
        if self.window is not None:
            days = [table.day for table in self.tables]
            if self.config.gate.days:
                days = [day for day in days if day >= self._first_held]
            fresh = [day for day in days if not self._seen_day(day)]
            source = _Source(self.log, self.window, tuple(sorted(set(fresh)))) if fresh else None
            return source, len(fresh) == len(days)
        files = tuple(file for file in self.log.files if (file.path, file.size, file.rows) not in self._seen)
        if not any(file.rows for file in files):
            return None, False
        return _Source(replace(self.log, files=files), None, ()), len(files) == len(self.log.files)

    @property
    def _seen(self) -> set[tuple[Any, ...]]:
        """The files that the current version was fitted to."""
        sources = [] if self.current is None else self.current.manifest["log"]["files"]
        return {(file["path"], file["bytes"], file["rows"]) for file in sources}

    def _seen_day(self, day: int) -> bool:
        """Whether the current version may have been fitted to rows of a day."""
        window = None if self.current is None else self.current.manifest.get("window")
        if window is not None:
            return bool(window["first"] <= day_of(day).isoformat() <= window["last"])
        return any((file.path, file.size, file.rows) in self._seen for file in self.log.files)
