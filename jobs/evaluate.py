"""The evaluate job: measures of a labelled log before and after calibration, as a report."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Any

from calibrators.core.map import CalibrationMap
from jobs import present
from jobs.config.jobs import EvaluateConfig
from jobs.config.sections import whole_days
from jobs.gate import limits
from jobs.outcome import REPORT, RUN, Outcome, Plan, Startable
from jobs.rows import (
    ANY,
    JOB,
    ChosenRows,
    Sorting,
    columns_of,
    dated_path,
    label_lines,
    open_log_and_window,
    settings_of,
    window_of,
)
from logcal.errors import ConfigError, InputRejectedError
from logcal.reading import SEGMENTS_FILE
from pipeline.evaluate.evaluation import Sizes
from pipeline.evaluate.kept_table import InSample, KeptTable, in_sample, in_sample_by_totals, kept_table
from pipeline.evaluate.measurement import Measured, Measurement
from pipeline.evaluate.report import (
    RELIABILITY_FILE,
    reliability_table,
    render_report,
    segment_name,
)
from pipeline.evaluate.significance import required_values, unmet_requirements
from pipeline.execution import Executor, Graph
from pipeline.files.output import Output
from pipeline.files.records import to_json
from pipeline.files.scratch import scratch_folder
from pipeline.files.storage import without_secrets
from pipeline.log import segment_values
from pipeline.log.logs import Columns, Log
from pipeline.log.windows import Window, window_days
from pipeline.sort.score_table import ScoreTable
from pipeline.sort.segment_predictions import SegmentedComparison
from pipeline.table.published import Version, run_id, with_segments_of


def prepare(config: EvaluateConfig, choice: ChosenRows = ANY) -> Prepared:
    """Check everything that can be checked before the first task; reads footers only."""
    store, version, lookup = limits.load_measured_table(config)
    columns = lookup.columns
    against = limits.find_against(config, store, version)
    other_columns = () if against is None else against.predictor.columns
    score_table = kept_table(config.log.path)
    window = None
    if score_table is None:
        log, window = _open(config, columns, other_columns, choice)
        log = with_segments_of(version, log)
        window = None if window is None else replace(window, log=log)
    else:
        _check_kept(score_table, lookup.facts.score_transform, columns, other_columns, config.window.column)
        log = score_table.files()
    sizes = Sizes(config.evaluate.bins, config.log.sampling_rate)
    measurement = Measurement(log, version.lookup_path, lookup, sizes, score_table, window, against)
    settings = settings_of(config, window)
    if against is not None:
        settings["against"] = against.name
    settings["version"] = [config.store.table, version.name, version.manifest["fingerprint"]]
    identity = run_id("evaluate", log, settings)
    output = Output.at(
        dated_path(config.report.path.replace(JOB, "evaluate"), "report.path", window),
        "report.path",
        replace=config.report.mode == "replace",
    )
    output.check_apart(log.locations())
    limits.check_earlier(output, identity)
    if score_table is None:
        overlap = in_sample(log, version.manifest, window)
    else:
        overlap = in_sample_by_totals(score_table.manifest["data"], version.manifest)
    if overlap and not config.evaluate.allow_in_sample:
        limits.check_measured(output, None if window is None else window_days(window), version)
        limits.check_in_sample(overlap, version)
    output.check(identity)
    sorting = Sorting.of(config, log, identity, measurement.needed, sorts=measurement.sorts)
    return Prepared(config, version, measurement, output, sorting, overlap)


def _open(
    config: EvaluateConfig, columns: tuple[str, ...], other_columns: tuple[str, ...], choice: ChosenRows
) -> tuple[Log, Window | None]:
    """Open the files of the days to measure; check that they have the columns that a comparison needs.

    columns : the table's segment columns
    other_columns : segment columns of the version that it is compared with
    """
    log_columns = columns_of(config, columns, choice.newest)
    last, days = config.evaluate.last, whole_days(config.evaluate.last)
    # The newest day with labels is to be found among all days of the window, unless the caller knows it.
    labelled = last is not None and log_columns.labels is not None and choice.newest is None
    length = None if labelled else days
    log, window = open_log_and_window(config, log_columns, choice, length)
    if labelled and window is not None:
        # Half of the labels is enough, so that the next run ends with another day.
        share = config.window.min_labelled / 2
        window = window_of(config.window, replace(log, columns=replace(log.columns, date=None)), last, share)
        log = log if window is None else window.log
    missing = tuple(name for name in other_columns if name not in columns)
    if missing:
        try:
            segments = Columns(config.log.score, segments=columns + missing)
            open_log_and_window(config, segments, choice, length)
        except InputRejectedError as error:
            raise InputRejectedError(
                f"evaluate.against: expected a log with the columns {', '.join(missing)}, which say through which maps "
                f"of {config.evaluate.against} its rows go: {error}"
            ) from None
    return log, window


def _check_kept(
    table: KeptTable, transform: str, segments: tuple[str, ...], compared: tuple[str, ...], dates: str | None
) -> None:
    if dates is not None:
        raise ConfigError(
            f"window.column: expected null with a kept score table, whose rows have no days, found {dates!r}: "
            "leave it out, or evaluate on the log"
        )
    found = f"found a score table, which has {', '.join(table.segments) or 'none'}: evaluate on the log"
    if segments and table.segments != segments:
        raise ConfigError(
            f"log.path: expected a log with the table's segment columns {', '.join(segments)}, {found}"
        )
    if not set(compared) <= set(table.segments):
        raise ConfigError(
            f"evaluate.against: expected a log with its segment columns {', '.join(compared)}, {found}"
        )
    if table.transform != transform:
        raise ConfigError(
            f"log.path: expected a score table of scores with the transform '{transform}', as the table was fitted "
            f"with, found '{table.transform}': evaluate on the log"
        )


@dataclass(frozen=True)
class Prepared(Startable):
    """An evaluation that can start."""

    config: EvaluateConfig
    version: Version
    measurement: Measurement
    output: Output
    sorting: Sorting
    overlap: InSample = field(default_factory=lambda: InSample(0, 0.0))

    @property
    def plan(self) -> Plan:
        """Plan of the evaluation."""
        again = () if self.measurement.one_sort else ("sort and merge again, by calibrated probability",)
        return self.sorting.planned(
            "evaluate",
            *again,
            "measure: one or two passes over the score table",
            f"report: write {REPORT} and {RUN}",
            reads=self.version.lookup_path,
            writes=(self.output.url,),
            columns=self.measurement.log.types,
            table=self.config.store.table,
            version=self.version.name,
            **self._window,
        )

    def execute(self, executor: Executor) -> Outcome:
        """Measure the table and write the report."""
        started = time.perf_counter()
        with scratch_folder(self.config.scratch) as scratch:
            measured = self.measurement.measure(self.sorting.plan(scratch), executor)
            self.sorting.keep_bad(scratch, measured.table.bad.total)
        table, evaluation, segments = measured.table, measured.evaluation, measured.segments
        lookup = self.measurement.lookup
        interval = None if lookup.facts.interval is None else lookup.interval
        overlap = self.overlap or in_sample_by_totals(table.facts(), self.version.manifest)
        if not self.config.evaluate.allow_in_sample:
            limits.check_in_sample(overlap, self.version)
        required = self.config.evaluate.require
        failed = unmet_requirements(required, required_values(evaluation.after, evaluation.bars_after))
        facts = self._facts(table, started)
        page = render_report(
            evaluation,
            lookup.map,
            facts,
            title=f"Evaluation of table {self.config.store.table}",
            segments=None if segments is None else segments.facts,
            segment_maps=self._segment_maps(measured),
            interval=None if interval is None else (str(lookup.facts.interval), interval),
            agreement=self.version.manifest.get("agreement"),
            notes=[
                *([overlap.sentence(self.version.name)] if overlap else []),
                *present.comparison_lines(measured, "this version")[1:],
                *(f"Not as required: {p}." for p in failed),
            ],
        )
        result = evaluation.as_dict()
        if evaluation.comparison is not None:
            result["comparison"] = present.comparison_facts(measured)
        document = {
            "in_sample": bool(overlap),
            "in_sample_share": overlap.share,
            "required": required,
            "failed": failed,
            "facts": facts,
            "evaluation": result,
        }
        contents = {
            REPORT: page.encode(),
            RELIABILITY_FILE: present.as_parquet(reliability_table(evaluation)),
        }
        if segments is not None:
            document["segments"] = segments.facts
            contents[SEGMENTS_FILE] = present.as_parquet(segments.table(self._same_segments(measured)))
        contents[RUN] = to_json(document).encode()
        entry: dict[str, Any] = {
            "table": self.config.store.table,
            "table_version": self.version.name,
            "failed": failed,
        }
        entry["measured"] = present.measured_facts(measured)
        self.output.publish(self.sorting.identity, contents, {**entry, "window": self._window.get("window")})
        limits.check_required(failed, self.output.root)
        return self._outcome(measured, overlap)

    @property
    def window(self) -> Window | None:
        """Days to measure; None: the whole log."""
        return self.measurement.window

    @property
    def _window(self) -> dict[str, Any]:
        window = self.measurement.window
        return {} if window is None else {"window": window_days(window)}

    @staticmethod
    def _same_segments(measured: Measured) -> SegmentedComparison | None:
        """Return the comparison by segment if it has the measured table's segments, otherwise None."""
        comparison, segments = measured.compared, measured.segments
        same = comparison and segments and comparison.keys == segments.before.rows.level.keys
        return comparison if same else None

    def _segment_maps(self, measured: Measured) -> dict[str, tuple[str, CalibrationMap]] | None:
        """Return the maps of segments with errors beyond chance, for the report."""
        if measured.segments is None:
            return None
        keys, sources = measured.segments.flagged()
        names = [
            segment_name([None if value is None else str(value) for value in key])
            for key in segment_values.keys_of(keys)
        ]
        return dict(zip(names, zip(sources, self.measurement.lookup.maps_of(keys), strict=True), strict=True))

    def graph(self) -> Graph:
        """Graph of the evaluation, without passes over the score table and comparisons."""
        graph = Graph()
        self.measurement.add(graph, self.sorting.plan())
        return graph

    def _facts(self, table: ScoreTable, started: float) -> dict[str, Any]:
        # rows_used, rows_positive
        left_out = ("weight", "positives") if self.measurement.log.columns.weight is None else ()
        days = self._window.get("window")
        window = {"window": f"{days['column']} from {days['first']} to {days['last']}"} if days else {}
        return {
            "Log": {
                "path": without_secrets(", ".join(self.config.log.path)),
                **window,
                "files": len(self.measurement.log.files),
                "files skipped": len(self.measurement.log.skipped),
                **present.row_facts(table, left_out),
            },
            "Lookup table": present.table_facts(
                self.config.store.table, self.version, self.measurement.lookup.facts
            ),
            "Run": present.run_facts(self.sorting.identity, started),
        }

    def _outcome(self, measured: Measured, overlap: InSample) -> Outcome:
        report = f"{self.output.url}/{REPORT}"
        summary = {
            "table": self.config.store.table,
            "version": self.version.name,
            "report": report,
            "run": f"{self.output.url}/{RUN}",
            "run_id": self.sorting.identity,
            **self._window,
            **present.summary_of(measured, overlap),
            "measured": present.measured_facts(measured),
        }
        lines = [*present.lines_of(measured, overlap, self.version), *label_lines(self.config.log, summary)]
        return Outcome(summary=summary, lines=[*lines, f"report: {report}"])
