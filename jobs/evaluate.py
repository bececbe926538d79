"""The evaluate job: measures of a labelled log before and after calibration, as a report."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from calibrators.assessment import Measures
from calibrators.calibration_map import CalibrationMap
from calibrators.passes import Pass
from jobs.config import EvaluateConfig
from jobs.judging import Against, check_earlier, check_in_sample, check_required, find_against, unmet
from jobs.limits import check_transform
from jobs.run import Outcome, Plan
from jobs.windows import place_of, window_days, window_of
from pipeline.errors import ConfigError, InputRejectedError
from pipeline.evaluate.evaluation import (
    Evaluation,
    PublishedMap,
    changes,
    evaluate,
    headline,
    run_document,
)
from pipeline.evaluate.in_sample import InSample, in_sample, of_same_rows
from pipeline.evaluate.judgement import compared
from pipeline.evaluate.kept_table import KeptTable, kept_table, sort_by_probability, sort_kept
from pipeline.evaluate.reliability import RELIABILITY_FILE, reliability_table
from pipeline.evaluate.report import import_meanwhile, render_report, segment_name
from pipeline.evaluate.segment_evaluation import Known, SegmentedEvaluation, evaluate_segments
from pipeline.execution import Executor, Graph
from pipeline.files.json_text import jsonable, to_json
from pipeline.files.output import Output
from pipeline.files.scratch import check_space, scratch_folder
from pipeline.files.secrets import without_secrets
from pipeline.log.logs import Columns, Log, cut, open_log
from pipeline.log.quarantine import RowRules, check_place, keep_parts
from pipeline.log.windows import Window
from pipeline.sort.runs import RunReceipt
from pipeline.sort.score_table import (
    ScoreTable,
    SortPlan,
    add_merge,
    add_sort,
    build_score_table,
    scratch_bytes,
    sort_log,
)
from pipeline.sort.window_runs import sort_window
from pipeline.table.identity import run_id, software
from pipeline.table.lookup_table import LookupTable, read_lookup_table
from pipeline.table.published import PublishedTable
from pipeline.table.segment_lookup import SEGMENTS_FILE, SegmentedLookup, read_segmented_lookup
from pipeline.table.version import Version, check_segment_types, segments_of

REPORT, RUN = "report.html", "run.json"
FITTED = (
    "every_boundary_considered",
    "models_averaged",
    "slope",
    "intercept",
    "largest_monotone_repair",
    "chosen",
    "cross_validated_log_loss",
)
"""Facts of the fit that the report shows where there are any."""


def prepare(config: EvaluateConfig) -> Prepared:
    """Check everything that can be checked before the first task; reads footers only."""
    store = PublishedTable(config.store.path, config.store.table)
    version = store.version(config.store.version)
    store.verify(version)
    _check_segments(config, version)
    against = find_against(config, store, version)
    columns = segments_of(version)
    segmented = read_segmented_lookup(version.lookup_path) if columns else None
    if segmented is None:
        lookup = read_lookup_table(version.lookup_path)
    else:
        lookup = LookupTable(segmented.whole, segmented.facts)
    transform = lookup.facts.score_transform
    check_transform(config.log.score_transform, transform)
    kept = kept_table(config.log.path)
    if kept is None:
        log = open_log(
            config.log.path, Columns(config.log.score, config.log.label, config.log.weight, columns)
        )
        check_segment_types(version, log)
    else:
        _check_kept(kept, transform, columns)
        log = kept.files()
    window = _window(config, log, kept)
    if window is not None:
        log = window.log
    # The log's files count, not how they were named.
    settings = config.model_dump(
        mode="json",
        exclude={
            "store": True,
            "scratch": True,
            "cluster": True,
            "record": True,
            "report": True,
            "log": {"path"},
            "window": True,
            "evaluate": {"last"},
        },
    )
    if against is not None:
        settings["against"] = [against.name, against.path]
    if window is not None:
        # The days count, not how they were chosen.
        settings["window"] = [window.column, window.first, window.last]
    settings["version"] = [config.store.table, version.name, version.manifest["fingerprint"]]
    identity = run_id("evaluate", log, settings)
    output = Output(
        place_of(config.report.path, "report.path", window),
        "report.path",
        replace=config.report.mode == "replace",
    )
    output.check_apart(log.filesystem, log.places())
    check_earlier(output, identity)
    output.check(identity)
    seen = (
        in_sample(log, version.manifest, None if window is None else window_days(window))
        if kept is None
        else of_same_rows(kept.manifest["data"], version.manifest)
    )
    check_in_sample(config, seen, version)
    quarantine = None
    if config.log.quarantine_path is not None:
        quarantine = Output(f"{config.log.quarantine_path.rstrip('/')}/{identity}", "log.quarantine_path")
        quarantine.check_apart(log.filesystem, log.places())
        check_place(quarantine, identity)
    needed = _scratch_needed(log, kept, monotone=lookup.facts.monotone)
    check_space(config.scratch, needed)
    return Prepared(
        config,
        log,
        version,
        lookup,
        identity,
        output,
        quarantine,
        needed,
        kept,
        segmented,
        against,
        seen,
        window,
    )


def _window(config: EvaluateConfig, log: Log, kept: KeptTable | None) -> Window | None:
    if kept is not None and config.window.column is not None:
        raise ConfigError(
            f"window.column: expected null with a kept score table, whose rows have no days, found "
            f"{config.window.column!r}: leave it out, or evaluate on the log"
        )
    return window_of(config.window, log, config.evaluate.last)


def _check_kept(kept: KeptTable, transform: str, segments: tuple[str, ...]) -> None:
    if segments and kept.segments != segments:
        raise ConfigError(
            f"log.path: expected a log with the columns {', '.join(segments)}, which the table's segments are of, "
            f"found a score table, which has {', '.join(kept.segments) or 'none'}: evaluate on the log"
        )
    if kept.transform != transform:
        raise ConfigError(
            f"log.path: expected a score table of scores with the transform '{transform}', as the table was fitted "
            f"with, found '{kept.transform}': evaluate on the log"
        )


def _scratch_needed(log: Log, kept: KeptTable | None, *, monotone: bool) -> int:
    if kept is not None:
        # Entries of 24 bytes a point, and the table sorted by probability; with segments what each leaves, twice.
        return (192 if kept.segments else 0 if monotone else 48) * log.rows
    if log.columns.segments:
        # Two sorts, each with the segments' runs and the parts of those that are cut.
        return 4 * scratch_bytes(log, write=True)
    return (1 if monotone else 2) * scratch_bytes(log, write=True)


def _check_segments(config: EvaluateConfig, version: Version) -> None:
    segments = segments_of(version)
    if config.log.segment and config.log.segment != segments:
        wanted = (
            f"those of the table, {', '.join(segments)}"
            if segments
            else "none, since the table has no segments"
        )
        raise ConfigError(
            f"log.segment: expected {wanted}, found {', '.join(config.log.segment)}: leave it out"
        )


@dataclass(frozen=True)
class Prepared:
    """An evaluation that can start."""

    config: EvaluateConfig
    log: Log
    version: Version
    lookup: LookupTable
    identity: str
    output: Output
    quarantine: Output | None
    needed: int
    kept: KeptTable | None = None
    segmented: SegmentedLookup | None = None
    against: Against | None = None
    seen: InSample = field(default_factory=lambda: InSample(0, 0.0))
    window: Window | None = None

    @property
    def _one_sort(self) -> bool:
        """Whether calibration keeps the order of all scores."""
        return self.segmented is None and self.lookup.facts.monotone

    @property
    def threads(self) -> bool:
        """Its tasks sort, merge and measure in compiled code."""
        return True

    @property
    def plan(self) -> Plan:
        """What the evaluation would do."""
        log = self.log
        again = () if self._one_sort else ("sort and merge again, by calibrated probability",)
        return Plan(
            job="evaluate",
            stages=(
                *self._sorting,
                *again,
                "measure: one or two passes over the score table",
                f"report: write {REPORT} and {RUN}",
            ),
            reads=(
                f"{', '.join(self.config.log.path)}: {log.described()}",
                self.version.lookup_path,
            ),
            writes=(
                self.output.url,
                f"scratch ({self.config.scratch or 'temporary folder'}): up to {self.needed:,} bytes, removed after",
            ),
            facts={
                "files": len(log.files),
                "rows": log.rows,
                "bytes": log.size,
                "columns": log.types,
                "table": self.config.store.table,
                "version": self.version.name,
                "run_id": self.identity,
                **({} if self.window is None else {"window": window_days(self.window)}),
            },
        )

    @property
    def _sorting(self) -> tuple[str, ...]:
        if self.kept is not None:
            return ()
        log = self.log
        sizes = SortPlan(Path()).within(self.config.cluster.memory_bytes, log.rows)
        tasks = len(cut(log, sizes.run_rows))
        return (
            f"sort: read {', '.join(log.columns.names)} and write sorted runs ({tasks} tasks)",
            "merge: write the score table to scratch",
        )

    def execute(self, executor: Executor) -> Outcome:
        """Measure, and write the report."""
        return self.compare(executor, {}, {})

    def compare(
        self, executor: Executor, curves: Mapping[str, CalibrationMap], comparison: Mapping[str, Measures]
    ) -> Outcome:
        """`execute`, with further methods' maps and measures in the report."""
        started = time.perf_counter()
        import_meanwhile()
        table, evaluation, segments = self._measured(executor)
        seen = self.seen or of_same_rows(table.facts(), self.version.manifest)
        check_in_sample(self.config, seen, self.version)
        failed = unmet(self.config, evaluation)
        facts = self._facts(table, time.perf_counter() - started)
        page = render_report(
            evaluation,
            self.lookup.map,
            facts,
            title=f"Calibration of {self.config.store.table}",
            method=self.lookup.facts.method,
            curves=curves,
            comparison=comparison,
            segments=None if segments is None else segments.facts(),
            segment_maps=self._segment_maps(segments),
            notes=[
                *([seen.sentence(self.version.name)] if seen else []),
                *(f"Not as required: {p}." for p in failed),
            ],
        )
        document = {
            "in_sample": bool(seen),
            "in_sample_share": seen.share,
            "required": self.config.evaluate.require,
            "failed": failed,
            **run_document(evaluation, facts),
        }
        contents = {REPORT: page.encode(), RELIABILITY_FILE: _parquet(reliability_table(evaluation))}
        if segments is not None:
            document["segments"] = segments.facts()
            contents[SEGMENTS_FILE] = _parquet(segments.table())
        contents[RUN] = to_json(document).encode()
        with self.output.writing(self.identity, list(contents)) as staging:
            for name, content in contents.items():
                staging.filesystem.pipe_file(staging.target(name), content)
            staging.files += list(contents)
            staging.facts = {
                "table": self.config.store.table,
                "table_version": self.version.name,
                "failed": failed,
            }
        check_required(failed, self.output.root)
        return self._outcome(evaluation, table, segments, seen)

    def _segment_maps(
        self, segments: SegmentedEvaluation | None
    ) -> dict[str, tuple[str, CalibrationMap]] | None:
        """The maps of segments that are off beyond chance, for the report."""
        if segments is None or self.segmented is None:
            return None
        return {
            segment_name([None if value is None else str(value) for value in key]): (
                fitted_on,
                self.segmented.map_of(key),
            )
            for key, fitted_on in segments.flagged()
        }

    def graph(self) -> Graph:
        """What the evaluation would compute first: the sort, unless a kept table is measured; its sweeps follow."""
        graph = Graph()
        plan = SortPlan(Path()).within(self.config.cluster.memory_bytes, self.log.rows)
        if self.kept is None:
            add_merge(graph, self.log, plan, None, add_sort(graph, self.log, plan))
        else:
            parts = [(file.path,) for file in self.log.files]
            graph.task("combine", list, graph.layer("measure", str, parts))
        return graph

    def measure(self, executor: Executor) -> tuple[ScoreTable, Evaluation]:
        """Measure, and write nothing but quarantined rows."""
        table, evaluation, _ = self._measured(executor)
        return table, evaluation

    def _measured(self, executor: Executor) -> tuple[ScoreTable, Evaluation, SegmentedEvaluation | None]:
        with scratch_folder(self.config.scratch) as scratch:
            table, evaluation, segments = self._measure(executor, scratch)
            if self.quarantine is not None and table.bad.total:
                keep_parts(scratch, self.quarantine, self.identity)
        return table, evaluation, segments

    def _measure(
        self, executor: Executor, scratch: Path
    ) -> tuple[ScoreTable, Evaluation, SegmentedEvaluation | None]:
        log_config = self.config.log
        rules = RowRules(
            quarantine=log_config.on_bad_rows == "quarantine",
            max_fraction=log_config.max_bad_fraction,
            keep=self.quarantine is not None,
        )
        transform = self.lookup.facts.score_transform
        plan = SortPlan(scratch, transform=transform, rules=rules, write=scratch / "before")
        plan = plan.within(self.config.cluster.memory_bytes, self.log.rows)
        bins = self.config.evaluate.bins
        # Where calibration changes the order of the scores, the probabilities are sorted for themselves.
        again = replace(
            plan,
            scratch=scratch / "calibrated",
            lookup=self.version.lookup_path,
            write=scratch / "after",
            rules=replace(rules, keep=False),
        )
        again.scratch.mkdir()
        if self.segmented is not None:
            segments = evaluate_segments(
                self.log,
                self.segmented,
                (plan, again),
                executor,
                bins,
                self._sorted,
                log_config.sampling_rate,
                self._known,
            )
            return segments.before.table, segments.whole, segments  # segments are compared with nothing
        if self.kept is None or self.kept.segments:
            table, _ = build_score_table(self.log, plan, executor, total=self._sorted(plan, executor))
        else:
            table = self.kept.table(self.log)
        run = partial(table.run, executor=executor, stage="measure")
        if self._one_sort:
            predict = PublishedMap(self.version.lookup_path)
            evaluation = evaluate(
                run,
                predict,
                rows=table.used,
                bins=bins,
                parts=table.weights,
                sampling_rate=log_config.sampling_rate,
            )
            return table, self._compared(evaluation, run), None
        if self.kept is None or self.kept.segments:
            total = self._sorted(again, executor)
        else:
            total = sort_by_probability(table, self.version.lookup_path, again.scratch, executor)
        after, _ = build_score_table(self.log, again, executor, total=total)
        run_after = partial(after.run, executor=executor, stage="measure")
        evaluation = evaluate(
            run,
            run_after=run_after,
            rows=table.used,
            bins=bins,
            parts=table.weights,
            parts_after=after.weights,
            sampling_rate=log_config.sampling_rate,
        )
        return table, self._compared(evaluation, run), None

    def _compared(self, evaluation: Evaluation, run: Callable[[Pass], Any]) -> Evaluation:
        """The evaluation, beside what evaluate.against names."""
        if self.against is None:
            return evaluation
        if self.against.path is None and not evaluation.before.probabilities:
            raise InputRejectedError(
                f"evaluate.against: expected raw scores in [0, 1], found {evaluation.before.lowest:.6g} to "
                f"{evaluation.before.highest:.6g}, which are no probabilities: compare with another version"
            )
        comparison = self.against.compare(run, self.version.lookup_path)
        return replace(evaluation, comparison=comparison, against=self.against.name)

    @property
    def _known(self) -> Known | None:
        return None if self.kept is None else Known(self.kept.rows_of_segments(), self.kept.weighted)

    @property
    def _days(self) -> str:
        assert self.window is not None
        days = window_days(self.window)
        return f"{days['column']} from {days['first']} to {days['last']}"

    def _sorted(self, plan: SortPlan, executor: Executor) -> RunReceipt:
        """The log's rows, or those of the window, as runs; or a kept table's points of segments."""
        if self.kept is not None:
            columns = () if self.segmented is None else self.segmented.columns
            return sort_kept(self.kept, self.log, columns, plan, executor)
        if self.window is None:
            return sort_log(self.log, plan, executor)
        return sort_window(self.window, plan, executor)

    def _facts(self, table: ScoreTable, seconds: float) -> dict[str, Any]:
        lookup = self.lookup.facts
        left_out = {"quarantined_by_reason"}
        if self.log.columns.weight is None:
            left_out |= {"weight", "positives"}  # rows_used, rows_positive
        return {
            "Log": {
                "path": without_secrets(", ".join(self.config.log.path)),
                **({} if self.window is None else {"window": self._days}),
                "files": len(self.log.files),
                "files skipped": len(self.log.skipped),
                **{key: value for key, value in table.facts().items() if key not in left_out},
                **{f"quarantined: {reason}": count for reason, count in table.bad.in_order().items()},
            },
            "Lookup table": {
                "table": self.config.store.table,
                "version": self.version.name,
                "published": self.version.manifest["created"],
                "method": lookup.method,
                "parameters": lookup.parameters,
                "score transform": lookup.score_transform,
                "monotone": lookup.monotone,
                "rows": lookup.rows,
                "fitted to rows": lookup.data.get("rows_used"),
                **{name: lookup.data[name] for name in FITTED if name in lookup.data},
                "fingerprint": lookup.fingerprint,
            },
            "Run": {
                "id": self.identity,
                "finished": datetime.now(UTC).isoformat(timespec="seconds"),
                "seconds": round(seconds, 2),
                **software(),
            },
        }

    def _outcome(
        self,
        evaluation: Evaluation,
        table: ScoreTable,
        segments: SegmentedEvaluation | None,
        seen: InSample,
    ) -> Outcome:
        before, after = evaluation.before.measures, evaluation.after.measures
        found = evaluation.as_dict()
        report = f"{self.output.url}/{REPORT}"
        summary = {
            "table": self.config.store.table,
            "version": self.version.name,
            "report": report,
            "run": f"{self.output.url}/{RUN}",
            "verdict": found["verdict"],
            "beyond_chance": found["after"]["judgement"]["beyond_chance"],
            "in_sample": bool(seen),
            "in_sample_share": seen.share,
            "headline": headline(before, after),
            "before": before.as_dict(),
            "after": after.as_dict(),
            "run_id": self.identity,
            **({} if self.window is None else {"window": window_days(self.window)}),
            **table.facts(),
        }
        if evaluation.comparison is not None:
            summary["comparison"] = jsonable(found["comparison"])
        lines = [
            *([seen.sentence(self.version.name)] if seen else []),
            found["verdict"],
            *([] if evaluation.comparison is None else [self._comparison_line(evaluation)]),
            headline(before, after),
            "",
            *measures_table(before, after),
            "",
        ]
        if segments is not None:
            facts = segments.facts()
            summary["segments"] = jsonable(facts)
            lines += [*_segment_lines(facts), ""]
        lines.append(f"report: {report}")
        return Outcome(summary=summary, lines=lines)

    def _comparison_line(self, evaluation: Evaluation) -> str:
        assert evaluation.comparison is not None
        return compared(evaluation.comparison, evaluation.against or "", f"version {self.version.name}")


def measures_table(before: Measures, after: Measures) -> list[str]:
    """The measures side by side, as lines of text."""
    rows = changes(before, after)
    width = max(len(change.facts.label) for change in rows)
    lines = [f"{'':{width}}  {'before':>8}  {'after':>8}"]
    for change in rows:
        cells = "  ".join("       –" if v is None else f"{v:8.4f}" for v in (change.before, change.after))
        lines.append(f"{change.facts.label:{width}}  {cells}  {change.verdict}".rstrip())
    return lines


def _segment_lines(facts: Mapping[str, Any]) -> list[str]:
    """What is said of segments, as lines of text."""
    unseen = f", {facts['unseen_rows']:,} rows of unseen ones" if facts["unseen_rows"] else ""
    beyond = f"{facts['beyond_chance_before']:,} of them before, {facts['beyond_chance_after']:,} after"
    lines = [f"{facts['count']:,} segments of {', '.join(facts['columns'])}{unseen}"]
    lines.append(f"calibration errors beyond chance: in {beyond}")
    for row in facts["worst"]:
        if row["beyond_chance_after"]:
            name = ", ".join("null" if value is None else value for value in row["segment"])
            errors = (
                f"ECE {row['ece_frequency_after']:.4f}, {row['beyond_chance_after']:.4f} of it beyond chance"
            )
            lines.append(f"  {name}: {errors} ({row['rows']:,} rows, map of: {row['fitted_on']})")
    return lines


def _parquet(table: pa.Table) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    return buffer.getvalue()
