"""The fit job: a log's rows, sorted into a score table; a calibrator fitted to it; its lookup table published."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from calibrators.methods.intervals import NONE, VENN_ABERS
from jobs.config.jobs import FitConfig
from jobs.gate.hold_out import TRIAL, Trial, Trials, can_compare, check_holdout
from jobs.gate.requirements import change_of, held_out_line, judge, judge_held_out
from jobs.log_columns import columns_of
from jobs.resume import Finishing, left_to_do, older_data, prune, refuse
from jobs.run import Outcome, Plan
from jobs.windows import open_dated
from logcal.errors import ConfigError
from pipeline.classifier.origin import generated_by
from pipeline.execution import Executor, Graph
from pipeline.files.folders import Folder
from pipeline.files.output import Output
from pipeline.files.scratch import check_space, scratch_folder
from pipeline.files.writable import check_free, check_writable, size
from pipeline.fit.calibration import needs_table
from pipeline.fit.recipe import Content, Recipe
from pipeline.fit.segment_fit import leans
from pipeline.log.logs import Log, cut
from pipeline.log.quarantine import RowRules, check_place, keep_parts
from pipeline.log.windows import Window
from pipeline.schema import SCORE_TABLE
from pipeline.sort.day_tables import DayTable, DayTables, add_up_days
from pipeline.sort.decay import weigh_days, with_weights
from pipeline.sort.label_coverage import covered
from pipeline.sort.run_files import most_bytes
from pipeline.sort.runs import RunReceipt
from pipeline.sort.score_table import SortPlan, add_sort, most_parts, scratch_bytes, sort_log
from pipeline.sort.window_facts import planned_facts, window_facts
from pipeline.table.identity import run_id, software
from pipeline.table.map_change import MapChange
from pipeline.table.segment_lookup import RESERVED
from pipeline.table.segment_maps import SegmentRules
from pipeline.table.store import TableStore
from pipeline.table.version import Version

_logger = logging.getLogger("logcal")


def prepare(config: FitConfig, without: Collection[str] = ()) -> Prepared | Finishing:
    """Check everything that can be checked before the first task; reads footers only.

    without : names of files of the log that are passed over, see `open_log`
    """
    calibrator = recipe_of(config).calibrator()
    columns = columns_of(config.log, config.log.segment)
    _check_segments(config)
    _warn_of_rules(config)
    check_interval(config)
    check_holdout(config)
    log, window = open_dated(config.window, config.log.path, columns, without)
    store = TableStore(config.store.path, config.store.table)
    Output(config.store.path, "store.path").check_apart(log.filesystem, log.places())
    store.check_writable()
    current = store.current()
    # The log's files count, not how they were named.
    settings = config.model_dump(
        mode="json",
        exclude={
            "store": True,
            "retention": True,
            "scratch": True,
            "cluster": True,
            "record": True,
            "log": {"path"},
            "window": True,
        },
    )
    if window is not None:
        # The days count, not how they were chosen.
        settings["window"] = [window.column, window.first, window.last]
        if config.window.half_life is not None:
            settings["half_life"] = config.window.half_life_days
        if config.window.min_labelled:
            settings["min_labelled"] = config.window.min_labelled
    identity = run_id("fit", log, settings)
    wants_candidate = config.store.publish == "candidate"
    keep = config.retention.versions
    made = left_to_do(store, identity, candidate=wants_candidate, force=config.store.force, keep=keep)
    seen = None if current is None else current.name
    if made is not None:
        until = config.window.until is not None
        refuse([] if config.store.force else older_data(made.manifest, current, seen, until=until), made)
        return Finishing(store, made, _outcome, keep)
    quarantine = None
    if config.log.quarantine_path is not None:
        quarantine = Output(f"{config.log.quarantine_path.rstrip('/')}/{identity}", "log.quarantine_path")
        quarantine.check_apart(log.filesystem, log.places())
        check_place(quarantine, identity)
    days = None if window is None else _day_tables(config, store, window)
    held_out = config.gate.holdout is not None
    weighted = config.log.weight is not None or config.window.half_life is not None
    more = needs_table(calibrator, weighted, config.calibrator.interval)
    write = held_out or config.score_table.keep or more
    needed = scratch_bytes(log, write=write)
    if days is not None:
        needed -= scratch_bytes(log, write=False)
    if config.window.half_life is not None:
        needed += most_bytes(log.rows, weighted=True, segmented=bool(config.log.segment))
    if held_out:  # rows that the current version has not seen are sorted by themselves
        needed += scratch_bytes(log, write=True)
    # What the merge leaves of each level's segments.
    needed += len(config.log.segment) * 32 * log.rows
    check_space(config.scratch, needed)
    return Prepared(config, log, store, identity, quarantine, needed, window, days, seen, without)


def recipe_of(config: FitConfig) -> Recipe:
    """What of a configuration says how a table is made of rows."""
    leaning = config.segments.shrinkage == "auto" and leans(
        config.calibrator.method, config.calibrator.params
    )
    enough = config.segments.positives(leaning)
    return Recipe(
        config.calibrator.method,
        config.calibrator.params,
        config.log.score_transform,
        config.log.sampling_rate,
        config.calibrator.monotone,
        config.log.segment,
        SegmentRules(config.segments.min_rows, enough, leaning),
        {**config.segments.model_dump(), "min_positives": enough},
        config.calibrator.interval,
    )


def _day_tables(config: FitConfig, store: TableStore, window: Window) -> DayTables:
    """The store's day tables, with room for those that the fit will make."""
    rows = config.log.model_dump(include={"score", "label", "weight", "score_transform"})
    if config.log.sampling:
        rows["weights"] = config.log.weights
    rows["segments"] = list(config.log.segment)
    rows["grid"] = config.score_table.grid
    settings = {**rows, "column": window.column, "keep_bad": config.log.quarantine_path is not None}
    days = DayTables(store, settings)
    new = {file for files in days.unsorted(window).values() for file in files}
    rows_new = sum(
        group.rows
        for file, groups in window.files
        if (file.path, file.size, file.stamp) in new
        for group in groups
    )
    needed = most_bytes(rows_new, config.log.weight is not None, bool(config.log.segment))
    if days.folder.local:
        check_free(check_writable(Path(days.folder.root), "store.path"), needed, "store.path")
    return days


def check_interval(config: FitConfig) -> None:
    """Raise ConfigError for what an interval does not go with."""
    kind = config.calibrator.interval
    if kind == NONE:
        return
    if config.log.segment and recipe_of(config).rules.lean:
        raise ConfigError(
            "calibrator.interval: expected segments that borrow no strength, found segments.shrinkage=auto: the "
            "probabilities of a segment are then made of other segments' rows, too, which no interval of its own rows "
            "describes, and most segments have no rows in the table; set segments.shrinkage=none for an interval of "
            "each map, made of the rows that it is fitted to"
        )
    if kind == VENN_ABERS and not leans(config.calibrator.method, config.calibrator.params):
        raise ConfigError(
            f"calibrator.interval: expected method isotonic (not strict) with venn_abers, found "
            f"{config.calibrator.method}: Venn-Abers prediction is made of isotonic regressions; band goes with any"
        )


def _check_segments(config: FitConfig) -> None:
    reserved = {*RESERVED, *(SCORE_TABLE.names if config.score_table.keep else [])}
    taken = [name for name in config.log.segment if name in reserved]
    if taken:
        raise ConfigError(
            f"log.segment: expected names that the lookup table does not use itself, found {', '.join(taken)}: "
            "rename the column in the log"
        )


def _warn_of_rules(config: FitConfig) -> None:
    """Say what of the rules of segments does not count."""
    if config.log.segment and "min_rows" in config.segments.model_fields_set and recipe_of(config).rules.lean:
        _logger.warning(
            "segments.min_rows does not count where segments borrow strength (segments.shrinkage=auto): set "
            "segments.min_positives, from which on a segment has a map of its own, or segments.shrinkage=none"
        )


@dataclass(frozen=True)
class Prepared:
    """A fit that can start."""

    config: FitConfig
    log: Log
    store: TableStore
    identity: str
    quarantine: Output | None
    needed: int
    window: Window | None = None
    days: DayTables | None = None
    seen: str | None = None
    """What CURRENT held at the start."""
    without: Collection[str] = ()

    @property
    def threads(self) -> bool:
        """Its tasks sort, merge and fit in compiled code."""
        return True

    @property
    def plan(self) -> Plan:
        """What the fit would do."""
        log = self.log
        config = self.config
        sort = SortPlan("").within(config.cluster.memory_bytes, log.rows)
        merged = self.needed if self.days is None else scratch_bytes(log, write=False)
        runs, buckets = len(cut(log, sort.run_rows)), max(1, merged // sort.bucket_bytes)
        where = "write sorted runs to scratch"
        facts: dict[str, Any] = {}
        if self.window is not None and self.days is not None:
            facts["window"] = planned = planned_facts(self.window, self.days)
            where = f"keep {planned['days_to_sort']} of {len(self.window.days)} days sorted in the store"
        return Plan(
            job="fit",
            stages=(
                f"sort: read {', '.join(log.columns.names)} and {where} ({'at most ' if facts else ''}{runs} tasks)",
                f"merge: add up ties and fit {config.calibrator.method} (about {buckets} tasks)",
                f"combine: gather what they leave in one process (at most {size(self._most_gathered)})",
                "publish: write a new version, then point CURRENT to it",
            ),
            reads=(f"{', '.join(config.log.path)}: {log.described()}",),
            writes=(
                f"{self.store.url}/versions/",
                *((f"{self.days.folder}/",) if self.days else ()),
                *((self.quarantine.url,) if self.quarantine else ()),
                f"scratch ({config.scratch or 'temporary folder'}): up to {self.needed:,} bytes, removed after",
            ),
            facts={
                "files": len(log.files),
                "rows": log.rows,
                "bytes": log.size,
                "columns": log.types,
                "method": config.calibrator.method,
                "params": config.calibrator.params,
                "run_id": self.identity,
                "current_version": self.store.current_name(),
                "gathers_at_most_bytes": self._most_gathered,
                **facts,
            },
        )

    def graph(self) -> Graph:
        """What the fit would compute; a further pass, of those whose number depends on the rows, stands for all."""
        graph = Graph()
        recipe, log = recipe_of(self.config), self.log
        plan = SortPlan("scratch").within(self.config.cluster.memory_bytes, log.rows)
        if self.window is None or self.days is None:
            total = add_sort(graph, log, plan)
        else:
            days, _ = self.days.add_sort(graph, self.window, self.days.unsorted(self.window), plan)
            if self.config.window.half_life is not None:
                days, log = graph.layer("weigh", list, [(day,) for day in days]), with_weights(log)
            total = graph.task("check", list, days)
        merged = recipe.add_fit(graph, log, plan, total)
        if needs_table(recipe.calibrator(), log.columns.weight is not None, recipe.interval):
            parts = [(merged, i) for i in range(most_parts(log, plan, total))]
            graph.task("combine-pass", list, graph.layer("pass", list, parts))
        return graph

    def execute(self, executor: Executor) -> Outcome:
        """Fit and publish."""
        started = time.perf_counter()
        config = self.config
        rules = RowRules(
            quarantine=config.log.on_bad_rows == "quarantine",
            max_fraction=config.log.max_bad_fraction,
            keep=self.quarantine is not None,
        )
        sizes = SortPlan("").within(config.cluster.memory_bytes, self.log.rows)
        same = f"{self.identity} {sizes.run_rows} {software()}"
        with scratch_folder(config.scratch, same) as scratch:
            sort = replace(
                sizes,
                scratch=scratch,
                transform=config.log.score_transform,
                grid=config.score_table.grid,
                rules=rules,
            )
            keep = f"{scratch}/kept" if config.score_table.keep else None
            if self.window is None or self.days is None:
                return self._fit(sort, keep, executor, started, None, {}, ())
            with self.days.in_use():
                tables = self.days.sort(self.window, sort, executor)
                facts = {"window": window_facts(self.window, tables)}
                if self.quarantine is not None:
                    self.days.collect_bad(tables, scratch)
                fitting = self
                weighed, thin = covered(tables, config.window.min_labelled)
                if thin:
                    facts["window"]["days_unlabelled"] = thin
                if (half_life := config.window.half_life_days) is not None:
                    facts["window"]["half_life"] = half_life
                    weighed = weigh_days(weighed, self.window.last, half_life, sort, executor)
                    fitting = replace(self, log=with_weights(self.log))
                total = add_up_days(weighed, sort, executor)
                filled = tuple(table for table in weighed if table.receipt.rows)
                outcome = fitting._fit(sort, keep, executor, started, total, facts, filled)
            self.days.tidy(self.window, tables)
        return outcome

    def _fit(
        self,
        sort: SortPlan,
        keep: str | None,
        executor: Executor,
        started: float,
        total: RunReceipt | None,
        more: dict[str, Any],
        days: tuple[DayTable, ...],
    ) -> Outcome:
        """Fit to the log's runs, or to those that are there already, and publish."""
        gate = self.config.gate
        recipe = recipe_of(self.config)
        trial = None
        if gate.holdout is not None:
            total = total or sort_log(self.log, sort, executor)
            current = self.store.current()
            place = (self.config, recipe, self.log, self.window, sort, executor, days)
            trials = Trials(*place, current, can_compare(self.config, current, self.without))
            trial = trials.of(total, None if gate.refit else keep)
        if trial is not None and trial.content is not None and not gate.refit:
            content = trial.content
        else:
            content = recipe.fit(self.log, sort, executor, total, keep)
        self._keep_bad(sort.scratch, content.table.bad.total)
        _free_runs(sort.scratch)
        change = change_of(content, self.store.current(), f"{sort.scratch}/content")
        version = self._publish(content, keep, time.perf_counter() - started, more, trial, change)
        return _outcome(content.table.facts(), version)

    def _keep_bad(self, scratch: str, bad: int) -> None:
        if self.quarantine is not None and bad:
            keep_parts(scratch, self.quarantine, self.identity)

    def _publish(
        self,
        content: Content,
        keep: str | None,
        seconds: float,
        more: dict[str, Any],
        trial: Trial | None,
        change: MapChange | None,
    ) -> Version:
        """Publish, unless the gate or what is current by now speaks against it."""
        config = self.config
        manifest = self._manifest(content.facts, content.table.bad.total, seconds) | more
        held_out = None if trial is None else judge_held_out(config.gate, trial.held_out, trial.positives)
        data, current = content.facts["data"], self.store.current()
        verdict = judge(config.gate, data, content.whole, change, current, held_out)
        manifest |= verdict.manifest()
        until = config.window.until is not None

        def refusals(current: Version | None) -> list[dict[str, Any]]:
            force = config.store.force
            return [] if force else older_data(manifest, current, self.seen, until=until)

        wanted = config.store.publish == "candidate"
        version = self.store.publish(
            content.fingerprint,
            content.lookup_bytes,
            manifest,
            keep,
            content.beside,
            candidate=wanted,
            refuse=refusals,
        )
        refuse(version.refusals, version)
        prune(self.store, config.retention.versions)
        return version

    @property
    def _most_gathered(self) -> int:
        """Bytes that one process holds at most of what tasks leave of a pass over all rows."""
        parts = most_parts(
            self.log, SortPlan("").within(self.config.cluster.memory_bytes, self.log.rows), None
        )
        weighted = self.log.columns.weight is not None
        return int(recipe_of(self.config).calibrator().gathers(self.log.rows, parts, weighted=weighted))

    def _manifest(self, content: dict[str, Any], bad: int, seconds: float) -> dict[str, Any]:
        config = self.config
        return {
            "run_id": self.identity,
            **content,
            "gathered": {"at_most_bytes": self._most_gathered, **content["gathered"]},
            "log": {
                "path": list(config.log.path),
                "columns": self.log.types,
                "generated_by": generated_by(self.log),
                **self.log.sources(),
            },
            "quarantine": self.quarantine.url if self.quarantine and bad else None,
            "config": config.model_dump(mode="json"),
            "started": (datetime.now(UTC) - timedelta(seconds=seconds)).isoformat(),
            "seconds": round(seconds, 3),
            "software": software(),
        }


def _free_runs(scratch: str) -> None:
    """Give the space of the runs back before the version is written."""
    place = Folder.at(scratch)
    if not place.local:  # in a store it costs little for a moment more
        return
    # Receipts first: a run that takes over what a killed one left believes them.
    for patterns in (("receipt-*",), ("run-*", "segments-*", "level-*", "codes", "score_table", TRIAL)):
        for name in place.matching(*patterns):
            place.remove(name)


def _outcome(facts: dict[str, Any], version: Version) -> Outcome:
    summary = {
        "table": version.manifest["table"],
        "version": version.name,
        "published_as": version.manifest.get("publish", "current"),
        "previous_version": version.manifest["previous_version"],
        "lookup_path": version.lookup_path,
        "method": version.manifest["method"],
        "monotone": version.manifest["monotone"],
        "lookup_rows": version.manifest["lookup_rows"],
        "fingerprint": version.manifest["fingerprint"],
        "run_id": version.manifest["run_id"],
        "gate": version.manifest.get("gate"),
        **facts,
    }
    segments, window = version.manifest.get("segments"), version.manifest.get("window")
    if window is not None:
        summary["window"] = {key: value for key, value in window.items() if key != "days"}
    if segments is not None:
        summary["segments"] = segments
    shape = "monotone" if summary["monotone"] else "not monotone"
    used = (
        f"{facts['rows_used']:,} of {facts['rows_read']:,} rows, {facts['rows_positive']:,} of them positive"
        f"{', ' + format(facts['rows_waiting'], ',') + ' waiting for their label' if facts.get('rows_waiting') else ''}"
    )
    lines = [
        f"{'kept as a candidate:' if version.candidate else 'published'} {summary['table']} version {version.name}",
        f"  {summary['method']}: {summary['lookup_rows']:,} rows, {shape}",
        f"  from {used}, {facts['distinct_scores']:,} distinct scores",
        f"  {version.lookup_path}",
    ]
    if segments is not None:
        sources = ", ".join(f"{count:,} on {name}" for name, count in segments["fitted_on"].items())
        lines.insert(2, f"  {segments['count']:,} segments of {', '.join(segments['columns'])}: {sources}")
    held_out = held_out_line(version.manifest.get("gate") or {})
    if held_out is not None:
        lines.insert(-1, f"  {held_out}")
    if "largest_score_move" in facts:
        lines.insert(
            3,
            f"  scores were rounded to {version.manifest['config']['score_table']['grid']}: the largest "
            f"move is {facts['largest_score_move']:.3g}",
        )
    if window is not None:
        lines.insert(
            2,
            f"  {window['first']} to {window['last']}: {window['days_sorted']} days sorted now, "
            f"{window['days_reused']} kept from earlier fits, {len(window['days_missing'])} without rows",
        )
    return Outcome(summary=summary, lines=lines)
