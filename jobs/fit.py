"""The fit job: sort a log into a score table, fit a calibrator to it, publish its lookup table."""

from __future__ import annotations

import datetime as dt
import logging
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from calibrators.core.intervals import NONE, POSTERIOR, VENN_ABERS
from jobs.config.jobs import FitConfig
from jobs.config.naming import in_keys
from jobs.config.sections import AUTO_HOLDOUT, GateConfig, SegmentsConfig, whole_days
from jobs.fit_outcome import outcome_of
from jobs.gate import requirements
from jobs.outcome import Outcome, Plan, Startable
from jobs.resume import Finishing, older_data, prune, refuse, unfinished_version
from jobs.rows import (
    ANY,
    ChosenRows,
    Sorting,
    check_possible_days,
    columns_of,
    facts_of,
    label_lines,
    open_log_and_window,
    plan_of,
    row_settings,
    scratch_line,
    settings_of,
    source_line,
)
from logcal.errors import ConfigError, counted
from pipeline.classifier.provenance import generated_by
from pipeline.days.day_tables import DayTables
from pipeline.days.source import Days, Source, window_facts
from pipeline.days.suspect_days import SET_ASIDE, DayRule, findings_text
from pipeline.execution import Executor, Graph
from pipeline.files.folders import Folder, is_url, size
from pipeline.files.output import Output
from pipeline.files.scratch import scratch_folder
from pipeline.fit.calibration import Recipe
from pipeline.fit.fitting import Content, Fitting
from pipeline.fit.holdout import TRIAL, Trial, Trials
from pipeline.log.logs import cut
from pipeline.log.quarantine import RowRules
from pipeline.log.windows import Window, day_of
from pipeline.schema import SCORE_TABLE
from pipeline.sort.run_files import most_bytes
from pipeline.sort.score_table import scratch_bytes
from pipeline.table.journal import read_decisions
from pipeline.table.lookup_table import RESERVED, Predictor
from pipeline.table.map_change import MapChange
from pipeline.table.published import Version, run_id, segments_of, software
from pipeline.table.segment_maps import SegmentRules
from pipeline.table.store import TableStore

_logger = logging.getLogger("logcal")


def prepare(config: FitConfig, choice: ChosenRows = ANY) -> Prepared | Finishing:
    """Check everything that can be checked before the first task; reads footers only."""
    fitting = open_fitting(config, choice)
    log, window = fitting.source.log, fitting.source.window
    store = TableStore(config.store.path, config.store.table)
    Output.at(config.store.path, "store.path").check_apart(log.locations())
    store.check_writable()
    current = store.current()
    settings = settings_of(config, window)
    decisions = {} if window is None else read_decisions(store.folder)
    if window is not None:
        days = {day_of(day).isoformat() for day in window.days}
        optional: dict[str, Any] = {
            "half_life": whole_days(config.window.half_life),
            "min_labelled": config.window.min_labelled,
            "suspect_days": None if config.window.suspect_days == SET_ASIDE else config.window.suspect_days,
            "days": {day: entry.decision for day, entry in decisions.items() if day in days},
        }
        settings |= {key: value for key, value in optional.items() if value}
    identity = run_id("fit", log, settings)
    version = unfinished_version(store, identity, config)
    if version is not None:
        return Finishing(store, version, outcome_of, config.retention.versions)
    if window is not None:
        day_tables = _day_tables(config, store, window)
        rule = replace(
            fitting.source.rule,
            live=_live_predictor(config, current),
            decisions=decisions,
            **_earlier_days(current),
        )
        fitting = replace(fitting, source=replace(fitting.source, day_tables=day_tables, rule=rule))
    gate = config.gate.resolved(window=config.window, live=current is not None)
    needed = fitting.scratch_bytes(write=config.score_table.keep or gate.holds_out)
    if gate.holds_out:  # held-out rows that the current version was not fitted to are sorted separately
        needed += scratch_bytes(log, write=True)
    sorting = Sorting.of(config, log, identity, needed, sorts=1 + gate.holds_out)
    return Prepared(config, fitting, sorting, store, gate, None if current is None else current.name, choice)


def open_fitting(config: FitConfig, choice: ChosenRows = ANY) -> Fitting:
    """Check a configuration and return its fit, without day tables and scratch space.

    Raises
    ------
    ConfigError, InputRejectedError
        The configuration or the log's footers do not suit.
    """
    recipe = recipe_of(config)
    _check_segments(config)
    _check_interval(recipe)
    if (
        config.log.segment
        and recipe.rules.partial_pooling
        and config.segments.min_rows != SegmentsConfig().min_rows
    ):
        _logger.warning(
            "segments.min_rows has no effect with partial pooling (segments.shrinkage=auto): set "
            "segments.min_positives, the positives that a segment needs for its own map, or segments.shrinkage=none"
        )
    columns = columns_of(config, config.log.segment, choice.newest)
    log, window = open_log_and_window(config, columns, choice)
    check_possible_days(config.log, window)
    weighted = config.log.weight is not None
    by_age = config.log.waits_by_age
    # A day with too many unusable rows is left out, as one with a damaged file.
    set_aside = config.window.bad_days == "set_aside"
    rows = (
        RowRules(config.log.on_bad_rows == "quarantine", config.log.max_bad_fraction) if set_aside else None
    )
    rule = DayRule(
        config.window.min_labelled, config.window.suspect_days, weighted=weighted, by_age=by_age, rows=rows
    )
    source = Source(log, window, half_life=whole_days(config.window.half_life), rule=rule)
    return Fitting(recipe, source, plan_of(config, log, transform=config.log.score_transform))


def _earlier_days(current: Version | None) -> dict[str, Any]:
    """Return facts about the days of the current version's fit, as attributes of `DayRule`.

    shares : share of a day's rows that had a label, by the day's age
    remembered : days set aside for reasons other than drift, with their tables and the reasons
    """
    window = None if current is None else current.manifest.get("window")
    if window is None:
        return {}
    days = {day["day"]: day for day in window["days"]}
    aside = {day["day"]: day for day in window.get("days_set_aside", ())}
    last = dt.date.fromisoformat(window["last"])
    shares = {
        (last - dt.date.fromisoformat(name)).days: day["rows_usable"] / day["rows_read"]
        for name, day in days.items()
        if name not in aside and day["rows_read"]
    }
    final = [name for name, entry in aside.items() if entry.get("final") and name in days]
    remembered = {name: (frozenset(days[name]["tables"]), aside[name]["reasons"]) for name in final}
    return {"shares": shares, "remembered": remembered}


def _live_predictor(config: FitConfig, current: Version | None) -> Predictor | None:
    """Return the current version as a predictor; None if it has segments or another score transform."""
    if current is None or current.manifest["score_transform"] != config.log.score_transform:
        return None
    return None if segments_of(current) else Predictor(current.lookup_path, (), config.log.sampling_rate)


def recipe_of(config: FitConfig) -> Recipe:
    """Return the recipe of a configuration's table."""
    recipe = Recipe(
        config.calibrator.method,
        config.calibrator.params,
        config.log.score_transform,
        config.log.sampling_rate,
        config.calibrator.monotone,
        config.log.segment,
        interval=config.calibrator.interval,
    )
    pooling = recipe.supports_partial_pooling and config.segments.shrinkage == "auto"
    min_positives = config.segments.positives(pooling)
    rules = SegmentRules(config.segments.min_rows, min_positives, pooling)
    settings = {**config.segments.model_dump(), "min_positives": min_positives}
    return replace(recipe, rules=rules, settings=settings).settled()


def _day_tables(config: FitConfig, store: TableStore, window: Window) -> DayTables:
    """Open the store's day tables; check that there is space for those that the fit adds."""
    rows = {**row_settings(config.log), "score_transform": config.log.score_transform}
    if config.log.sampling:
        rows["weights"] = config.log.weights
    rows["segments"] = list(config.log.segment)
    rows["grid"] = config.score_table.grid
    settings = {**rows, "column": window.column, "keep_bad": config.log.quarantine_path is not None}
    days = DayTables(store, settings)
    new = {file for files in days.unsorted(window).values() for file in files}
    rows_new = sum(group.rows for file, groups in window.files if file.identity in new for group in groups)
    needed = most_bytes(rows_new, config.log.weight is not None, bool(config.log.segment))
    days.folder.check_writable("store.path", needed)
    return days


def _check_interval(recipe: Recipe) -> None:
    """Raise ConfigError if the method or the segments do not support the interval."""
    if recipe.interval == NONE:
        return
    if recipe.columns and recipe.rules.partial_pooling:
        raise ConfigError(
            "calibrator.interval: expected segments.shrinkage=none with segments, found segments.shrinkage=auto: "
            "partial pooling also uses other segments' rows, which an interval of the segment's own rows does not "
            "describe"
        )
    if recipe.interval == POSTERIOR and not recipe.has_posterior:
        raise ConfigError(
            f"calibrator.interval: expected method auto (without candidates and segments) or smooth with posterior, "
            f"found {recipe.method}{' with segments' if recipe.columns else ''}: other methods have no posterior; band "
            "goes with any, and auto chooses a supported one"
        )
    if recipe.interval == VENN_ABERS and not recipe.isotonic:
        raise ConfigError(
            f"calibrator.interval: expected method isotonic (not strict) with venn_abers, found {recipe.method}: "
            "Venn-Abers prediction is made of isotonic regressions; band goes with any"
        )


def _check_segments(config: FitConfig) -> None:
    reserved = {*RESERVED, *(SCORE_TABLE.names if config.score_table.keep else [])}
    conflicts = [name for name in config.log.segment if name in reserved]
    if conflicts:
        raise ConfigError(
            f"log.segment: expected names that the lookup table does not use itself, found {', '.join(conflicts)}: "
            "rename the column in the log"
        )


@dataclass(frozen=True)
class Prepared(Startable):
    """A fit that can start.

    Attributes
    ----------
    gate : the gate's configuration, with `auto` resolved
    live_at_start : name of the version that was live when the run began
    choice : the files and days that another job chose
    """

    config: FitConfig
    fitting: Fitting
    sorting: Sorting
    store: TableStore
    gate: GateConfig
    live_at_start: str | None = None
    choice: ChosenRows = ANY

    @property
    def plan(self) -> Plan:
        """Plan of the fit."""
        config, source, sort = self.config, self.fitting.source, self.fitting.plan
        log, day_tables, quarantine = source.log, source.day_tables, self.sorting.quarantine
        merged = self.sorting.needed if day_tables is None else scratch_bytes(log, write=False)
        runs, buckets = len(cut(log, sort.run_rows)), max(1, merged // sort.bucket_bytes)
        sort_stage, at_most = "write sorted runs to scratch", ""
        window = {} if source.window is None else {"window": source.planned()}
        if source.window is not None:
            at_most, new = "at most ", window["window"]["days_to_sort"]
            sort_stage = f"keep {new} of {len(source.window.days)} days sorted in the store"
        return Plan(
            job="fit",
            stages=(
                f"sort: read {', '.join(log.columns.names)} and {sort_stage} ({at_most}{counted(runs, 'task')})",
                f"merge: add up ties and fit {config.calibrator.method} (about {counted(buckets, 'task')})",
                f"combine: gather the results in one process (at most {size(self.fitting.gathers())})",
                "publish: write a new version, then point CURRENT to it",
            ),
            reads=(source_line(config, log),),
            writes=(
                f"{self.store.url}/versions/",
                *((f"{day_tables.folder}/",) if day_tables else ()),
                *((quarantine.url,) if quarantine else ()),
                scratch_line(config, self.sorting.needed),
            ),
            facts={
                **facts_of(log),
                "columns": log.types,
                "method": config.calibrator.method,
                "params": config.calibrator.params,
                "run_id": self.sorting.identity,
                "current_version": self.store.current_name(),
                "max_gathered_bytes": self.fitting.gathers(),
                **window,
            },
        )

    def graph(self) -> Graph:
        """Graph of the fit."""
        return self.fitting.drawn()

    def execute(self, executor: Executor) -> Outcome:
        """Fit and publish."""
        started, source = time.perf_counter(), self.fitting.source
        if not self.store.names():
            # A moved folder, or a mistyped name, would otherwise look like any other run.
            _logger.info("new table %s in %s: no earlier versions here", self.store.table, self.store.url)
        plan = self.sorting.plan(transform=self.config.log.score_transform)
        scratch_key = f"{self.sorting.identity} {plan.run_rows} {software()}"
        with ExitStack() as stack:
            scratch = stack.enter_context(scratch_folder(self.config.scratch, scratch_key))
            if source.day_tables is not None:
                stack.enter_context(source.day_tables.in_use())
            keep = f"{scratch}/kept" if self.config.score_table.keep else None
            fitting = replace(
                self.fitting, plan=replace(plan, scratch=scratch, write=keep, keep=keep is not None)
            )
            content, days, trial = self._fit(fitting, executor)
            self.sorting.keep_bad(scratch, content.table.bad.total)
            _remove_runs(scratch)
            change = requirements.change_of(content, self.store.current(), f"{scratch}/content")
            manifest = self._manifest(content, time.perf_counter() - started)
            if source.window is not None:
                # Its reasons and texts of errors name settings.
                manifest["window"] = in_keys(window_facts(source, days))
            if days.set_aside:
                _logger.warning(
                    "set aside %s; to use a day anyway: `logcal days include`", findings_text(days.set_aside)
                )
            if days.drift:
                message = f"suspect days, since two in a row are alike: {findings_text(days.drift)}"
                _logger.warning("used %s; `logcal days exclude` leaves a day out", message)
            held_out = None
            if trial is not None:
                spread = days.spread if self.gate.days else 0.0
                by_user = self.config.gate.holdout != AUTO_HOLDOUT
                held_out = requirements.judge_held_out(
                    self.gate, trial.held_out, trial.positives, spread, by_user=by_user
                )
            version = self._publish(content, manifest, keep, held_out, change)
        if source.window is not None and source.day_tables is not None:
            source.day_tables.tidy(source.window, days.tables)
        outcome = outcome_of(content.table.facts(), version)
        outcome.lines[-1:-1] = [f"  {line}" for line in label_lines(self.config.log, manifest)]
        return outcome

    def _fit(self, fitting: Fitting, executor: Executor) -> tuple[Content, Days, Trial | None]:
        """Fit the table; with held-out rows, also the trial that was fitted without them."""
        gate = self.gate
        if not gate.holds_out:
            return *fitting.fit(executor), None
        total, days = fitting.source.sort(replace(fitting.plan, write=None), executor)
        current = self.store.current()
        comparable = requirements.can_compare(self.config, current, self.choice)
        trials = Trials(gate.days, gate.share, gate.refit, fitting, executor, days, current, comparable)
        trial = trials.of(total)
        if trial.content is not None and not gate.refit:
            return trial.content, days, trial
        return fitting.fit(executor, total)[0], days, trial

    def _publish(
        self,
        content: Content,
        manifest: dict[str, Any],
        keep: str | None,
        held_out: requirements.Verdict | None,
        change: MapChange | None,
    ) -> Version:
        """Publish the table, unless the gate or a newer live version forbids it."""
        config = self.config
        manifest |= requirements.judge(config, content, change, self.store.current(), held_out).manifest()
        version = self.store.publish(
            content.files.fingerprint,
            content.files.files,
            manifest,
            keep,
            candidate=config.store.publish == "candidate",
            refuse=lambda current: older_data(manifest, current, self.live_at_start, config),
        )
        refuse(version.refusals, version)
        prune(self.store, config.retention.versions)
        return version

    def _manifest(self, content: Content, seconds: float) -> dict[str, Any]:
        config, log, quarantine = self.config, self.fitting.source.log, self.sorting.quarantine
        return {
            "run_id": self.sorting.identity,
            **content.facts,
            "max_gathered_bytes": self.fitting.gathers(),
            "log": {
                "path": list(config.log.path),
                "columns": log.types,
                "generated_by": generated_by(log),
                **log.sources(),
            },
            **content.table.label_facts(),
            "quarantine": quarantine.url if quarantine and content.table.bad.total else None,
            "config": config.model_dump(mode="json"),
            "started": (datetime.now(UTC) - timedelta(seconds=seconds)).isoformat(),
            "seconds": round(seconds, 3),
            "software": software(),
        }


def _remove_runs(scratch: str) -> None:
    """Remove the sorted runs from local scratch space before the version is written."""
    if is_url(scratch):  # space in an object store is cheap
        return
    folder = Folder.at(scratch)
    # Receipts first: a run that continues a killed one trusts them.
    names = folder.matching("run-*", "segments-*", "level-*", "codes", "score_table", TRIAL)
    for name in [*folder.matching("receipt-*"), *names]:
        folder.remove(name)
