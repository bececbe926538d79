"""Recipes: all that says what a table becomes of a log's rows; and what comes of them, ready to be published."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from calibrators.arithmetic.calibration_map import CalibrationMap
from calibrators.methods.base import Calibrator
from calibrators.methods.intervals import ALPHA, NONE
from pipeline import schema
from pipeline.execution import Executor, Graph
from pipeline.files.blobs import write_blob
from pipeline.files.folders import Folder
from pipeline.fit.calibration import (
    Fit,
    first_request,
    fit_log,
    interval_of,
    keep_monotone,
    make_calibrator,
    where_written,
)
from pipeline.fit.segment_fit import add_segment_fit, finish_segments
from pipeline.log.logs import Log
from pipeline.sort.runs import RunReceipt
from pipeline.sort.score_table import ScoreTable, SortPlan, add_merge, add_sort
from pipeline.table.lookup_table import fingerprint, lookup_bytes
from pipeline.table.segment_lookup import SEGMENTS_FILE, segmented_files
from pipeline.table.segment_maps import SegmentedFit, SegmentRules

_logger = logging.getLogger("logcal")

LOOKUP_FILE = "lookup.parquet"


@dataclass(frozen=True)
class Content:
    """A fitted table, ready to be published.

    Attributes
    ----------
    table : ScoreTable: of the rows that it was fitted to
    whole : CalibrationMap or None: its map of all rows; None where they are too few
    facts : what a manifest says of it
    fingerprint : of all of it
    lookup_bytes : a version's name to the bytes of its lookup table
    beside : other files of the version, by name
    """

    table: ScoreTable
    whole: CalibrationMap | None
    facts: dict[str, Any]
    fingerprint: str
    lookup_bytes: Callable[[str], bytes]
    beside: dict[str, bytes] = field(default_factory=dict)

    def write(self, folder: str, version: str = "candidate") -> str:
        """Leave it in a folder, as a version is, for tasks that predict with it; return the lookup table's path."""
        Folder.at(folder).make()
        for name, content in {**self.beside, LOOKUP_FILE: self.lookup_bytes(version)}.items():
            write_blob(f"{folder}/{name}", [memoryview(content)])
        return f"{folder}/{LOOKUP_FILE}"


@dataclass(frozen=True)
class Recipe:
    """How a table is made of rows.

    Attributes
    ----------
    method, parameters, sampling_rate : see `make_calibrator`
    transform : of the scores
    monotone : see `keep_monotone`
    columns, rules : the segment columns, if there are any, and which segments have maps of their own
    settings : of segments, for the manifest
    interval : of each row of a table, one of `calibrators.methods.intervals.KINDS`; of segments that borrow no strength
    """

    method: str
    parameters: dict[str, Any]
    transform: str
    sampling_rate: float = 1.0
    monotone: str = "allow"
    columns: tuple[str, ...] = ()
    rules: SegmentRules = field(default_factory=SegmentRules)
    settings: dict[str, Any] = field(default_factory=dict)
    interval: str = NONE

    def calibrator(self) -> Calibrator:
        """A new one. Errors: as `make_calibrator`."""
        return make_calibrator(self.method, self.parameters, self.sampling_rate)

    def fit(
        self,
        log: Log,
        plan: SortPlan,
        executor: Executor,
        total: RunReceipt | None = None,
        keep: str | None = None,
    ) -> Content:
        """Fit a table to a log's rows, or to those of runs that are there already.

        total : see `build_score_table`. keep : folder for the score table, if it is wanted. Errors: as `fit_log` and
        `fit_segments`.
        """
        graph = Graph()
        source = add_sort(graph, log, plan) if total is None else total
        merged = executor.compute(graph, self.add_fit(graph, log, plan, source, keep))
        return self.finish(merged, log, plan, executor, total, keep)

    def add_fit(self, graph: Graph, log: Log, plan: SortPlan, total: Any, keep: str | None = None) -> Any:
        """Add to a graph all of a fit that does not depend on the rows; return a reference to what `finish` takes.

        total : the runs, or a reference to them; otherwise as `fit`
        """
        calibrator = self.calibrator()
        if self.columns:
            return add_segment_fit(
                graph, calibrator, log, plan, self.rules, self.monotone, total, keep, self.interval
            )
        plan = replace(plan, write=where_written(calibrator, log, plan, keep, self.interval))
        return add_merge(graph, log, plan, first_request(calibrator, self.interval), total)

    def finish(
        self,
        merged: Any,
        log: Log,
        plan: SortPlan,
        executor: Executor,
        total: RunReceipt | None = None,
        keep: str | None = None,
    ) -> Content:
        """Carry out the passes that are left; otherwise as `fit`. merged : what the graph gave."""
        calibrator = self.calibrator()
        if not self.columns:
            fit = fit_log(
                calibrator, log, plan, executor, keep=keep, total=total, merged=merged, interval=self.interval
            )
            return self._plain(fit)
        found = finish_segments(
            calibrator, log, plan, executor, self.rules, self.monotone, merged, total, self.interval
        )
        # What was chosen for all rows holds for the segments too.
        return self._segmented(*found, calibrator.facts() if self.method == "auto" else {})

    def _plain(self, fit: Fit) -> Content:
        one, repair = keep_monotone(fit.calibrator.calibration_map_, self.monotone)
        content = self._content(
            {**fit.table.facts(), "largest_monotone_repair": repair, **fit.calibrator.facts()}
        )
        interval = interval_of(fit, one)
        if self.interval != NONE and interval is None:
            _logger.warning(
                "calibrator.interval: the observations refute that the true probability never decreases with the "
                "score, by more than chance in one table of %.0f explains: there is no band, and the table has no "
                "prob_lower and prob_upper",
                1 / ALPHA,
            )
        facts = {**content, "monotone": one.monotone, "lookup_rows": len(one), **_course(fit)}
        if self.interval != NONE:
            facts["interval"] = self.interval if interval is not None else "refuted"
        if interval is not None:
            facts["format_version"] = schema.SECOND_FORMAT_VERSION
            content["interval"] = (self.interval, interval)
        return Content(
            fit.table,
            one,
            facts,
            fingerprint(one, **content),
            lambda name: lookup_bytes(one, version=name, **content),
        )

    def _segmented(self, fit: SegmentedFit, of_all: Fit, chosen: dict[str, Any]) -> Content:
        content = self._content({**of_all.table.facts(), "largest_monotone_repair": fit.repair, **chosen})
        files = segmented_files(fit, self.columns, content)
        segments = {
            "columns": list(self.columns),
            "count": len(fit.levels[-1].keys),
            **self.settings,
            "fitted_on": files.sources,
            "reasons": files.reasons,
        }
        if fit.variances:
            segments["variances"] = [
                {"level": i, "shift": shift, "slope": slope}
                for i, (shift, slope) in enumerate(fit.variances, 1)
            ]
            segments["variances_across"] = [
                {"level": level.level, "shift": level.crossed[0], "slope": level.crossed[1]}
                for level in fit.levels[2:]
            ]
        facts = {**content, "monotone": fit.monotone, "lookup_rows": files.rows, "segments": segments}
        if fit.interval != NONE:
            facts["interval"] = fit.interval
            segments["intervals_refuted"] = fit.refuted
        if fit.refuted:
            _logger.warning(
                "calibrator.interval: the observations of %s of the segments' maps refute that the true probability "
                "never decreases with the score, by more than chance in one of %.0f explains: there is no band for "
                "them, and their rows say from 0 to 1",
                f"{fit.refuted:,}",
                1 / ALPHA,
            )
        return Content(
            of_all.table,
            None if fit.identity else fit.levels[0].maps.first(),
            {**facts, "format_version": files.format_version, **_course(of_all)},
            files.fingerprint,
            files.lookup_bytes,
            {SEGMENTS_FILE: files.segments},
        )

    def _content(self, data: dict[str, Any]) -> dict[str, Any]:
        if self.sampling_rate != 1:
            data = {**data, "sampling_rate": self.sampling_rate}
        return {
            "method": self.method,
            "parameters": self.parameters,
            "score_transform": self.transform,
            "data": data,
        }


def _course(fit: Fit) -> dict[str, Any]:
    """How a fit went: what it gathered, and where its path began. It may depend on sizes of tasks."""
    path = fit.calibrator.path_facts()
    return {"gathered": {"bytes": fit.gathered}, **({"path": path} if path else {})}
