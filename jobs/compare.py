"""The compare job: compare methods by cross-validation on a log, as a table in the terminal and as a page."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from calibrators import METHODS
from calibrators.auto.cross_validation import CrossValidation, cross_validation_passes
from calibrators.base import Calibrator, Sampling
from calibrators.core.passes import run_passes
from jobs.config.jobs import CompareConfig
from jobs.outcome import REPORT, RUN, Outcome, Plan, Startable
from jobs.present import row_facts, run_facts
from jobs.rows import Sorting, columns_of, label_lines, page_folder, settings_of
from logcal.comparison import comparison_headline, comparison_lines, suitable
from logcal.errors import ConfigError, InputRejectedError
from pipeline.execution import Executor, Graph
from pipeline.files.output import Output
from pipeline.files.records import to_json
from pipeline.files.scratch import scratch_folder
from pipeline.fit.calibration import check_table, make_calibrator
from pipeline.log.logs import Log, open_log
from pipeline.pages.comparison_page import comparison_document, render_comparison
from pipeline.sort.score_table import (
    ScoreTable,
    SortedRows,
    add_merge,
    add_sort,
    build_score_table,
    scratch_bytes,
)
from pipeline.table.published import run_id

_OF_GENERATED_LOGS = ("dg", "dgg")


def prepare(config: CompareConfig) -> Prepared:
    """Check everything that can be checked before the first task; reads footers only."""
    calibrators = _calibrators(config)
    log = open_log(config.log.path, columns_of(config, ()))
    identity = run_id("compare", log, settings_of(config))
    output = None
    if (folder := page_folder(config.report.path, "compare")) is not None:
        output = Output.at(folder, "report.path")
        output.check_apart(log.locations())
        output.check(identity)
    sorting = Sorting.of(config, log, identity, scratch_bytes(log, write=True))
    return Prepared(config, log, calibrators, output, sorting)


def _calibrators(config: CompareConfig) -> dict[str, Calibrator]:
    calibrators = {}
    for name in config.compare.methods:
        if name in _OF_GENERATED_LOGS:
            raise ConfigError(
                f"compare.methods: expected methods for any log, found {name}, which is for logs that `logcal "
                "generate` made: leave it out"
            )
        keys = ("compare.methods", f"compare.params.{name}")
        calibrators[name] = make_calibrator(name, config.compare.params.get(name, {}), keys=keys)
    return calibrators


@dataclass(frozen=True)
class Prepared(Startable):
    """A comparison that can start."""

    config: CompareConfig
    log: Log
    calibrators: Mapping[str, Calibrator]
    output: Output | None
    sorting: Sorting

    @property
    def plan(self) -> Plan:
        """Plan of the comparison."""
        folds, methods = self.config.compare.folds, list(self.calibrators)
        return self.sorting.planned(
            "compare",
            f"compare: fit {', '.join(methods)} to the rows outside each of {folds} folds, measure inside",
            writes=() if self.output is None else (self.output.url,),
            methods=methods,
            folds=folds,
        )

    def graph(self) -> Graph:
        """Graph of the comparison, with one pass; the number of passes depends on the rows."""
        graph = Graph()
        plan = self.sorting.plan()
        rows = SortedRows(self.log, plan, add_sort(graph, self.log, plan))
        merged = add_merge(graph, rows._replace(plan=replace(plan, write=plan.scratch)))
        parts = [(merged, i) for i in range(rows.most_parts)]
        graph.task("combine-compare", list, graph.layer("compare", list, parts))
        return graph

    def execute(self, executor: Executor) -> Outcome:
        """Compare the methods, and write the page if report.path is set."""
        started = time.perf_counter()
        with scratch_folder(self.config.scratch) as scratch:
            table, comparison, notes = self._compare(executor, scratch)
            self.sorting.keep_bad(scratch, table.bad.total)
        compare = self.config.compare
        facts = {
            "Log": {
                "path": ", ".join(self.config.log.path),
                "files": len(self.log.files),
                **row_facts(table),
            },
            "Comparison": {"folds": compare.folds, "seed": compare.seed, "parameters": compare.params},
            "Run": run_facts(self.sorting.identity, started),
        }
        summary = {
            **comparison_document(comparison),
            "headline": comparison_headline(comparison),
            "notes": notes,
            **table.facts(),
            **table.label_facts(),
            "run_id": self.sorting.identity,
        }
        others = [name for name in METHODS if name not in {*self.calibrators, *_OF_GENERATED_LOGS}]
        lines = [comparison_headline(comparison), "", *comparison_lines(comparison), "", *notes]
        lines += (
            [f"not compared: {', '.join(others)} (set compare.methods to compare them)"] if others else []
        )
        lines += label_lines(self.config.log, summary)
        if self.output is None:
            return Outcome(summary, [*lines, "the same as a page: --set report.path=FOLDER"])
        page = render_comparison(comparison, facts, notes=notes)
        run = to_json({"facts": facts, "comparison": comparison_document(comparison)})
        self.output.publish(self.sorting.identity, {REPORT: page.encode(), RUN: run.encode()})
        summary["report"] = f"{self.output.url}/{REPORT}"
        return Outcome(summary, [*lines, f"report: {summary['report']}"])

    def _compare(self, executor: Executor, scratch: str) -> tuple[ScoreTable, CrossValidation, list[str]]:
        log = self.config.log
        plan = replace(self.sorting.plan(scratch, log.score_transform), write=f"{scratch}/score_table")
        table, _ = build_score_table(self.log, plan, executor)
        check_table(table)
        calibrators, notes = self._suitable(table)
        passes = cross_validation_passes(
            calibrators,
            folds=self.config.compare.folds,
            seed=self.config.compare.seed,
            sampling=Sampling(log.sampling_rate, table.heaviest),
        )
        try:
            number = itertools.count(1)
            comparison: CrossValidation = run_passes(
                passes, lambda request: table.run(request, executor, f"compare all, pass {next(number)}")
            )
        except ValueError as error:
            raise InputRejectedError(f"the log does not suit the comparison: {error}") from None
        return table, comparison, notes

    def _suitable(self, table: ScoreTable) -> tuple[dict[str, Calibrator], list[str]]:
        """Return the calibrators that support the range of the scores, and notes on the others."""
        calibrators, notes = suitable(self.calibrators, table.lowest, table.highest)
        if self.config.log.segment:
            notes.insert(0, "segments were ignored: methods were compared on all rows together")
        if not calibrators:
            raise ConfigError(f"compare.methods: no method is left; {notes[-1]}")
        return calibrators, notes
