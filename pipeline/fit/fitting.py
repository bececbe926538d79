"""Fits: a table made from the rows of a source by a recipe, ready to be published."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from calibrators.arithmetic.calibration_map import CalibrationMap
from calibrators.methods.intervals import ALPHA, NONE
from logcal import schema
from logcal.manifest import fingerprint
from logcal.reading import SEGMENTS_FILE
from pipeline.execution import Executor, Graph
from pipeline.files.blobs import write_blob
from pipeline.files.folders import Folder
from pipeline.fit.calibration import (
    Fit,
    Recipe,
    fit_log,
    interval_of,
    keep_monotone,
    placed,
)
from pipeline.fit.segment_fit import add_segment_fit, finish_segments
from pipeline.sort.runs import RunReceipt
from pipeline.sort.score_table import ScoreTable, SortedRows, SortPlan, add_merge, without_segments
from pipeline.sort.source import Days, Source
from pipeline.table.lookup_table import lookup_bytes, segmented_files
from pipeline.table.segment_maps import SegmentedFit

_logger = logging.getLogger("logcal")

LOOKUP_FILE = "lookup.parquet"


@dataclass(frozen=True)
class Content:
    """A fitted table, ready to be published.

    Attributes
    ----------
    table : ScoreTable: of the rows that it was fitted to
    whole : CalibrationMap or None: its map of all rows; None where they are too few
    facts : of it, for the manifest
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


class Found(NamedTuple):
    """Result of a fit's graph: the runs, without facts about segments; a window's days; and the fit."""

    total: RunReceipt
    days: Days
    merged: Any


@dataclass(frozen=True)
class Fitting:
    """A fit of a table to a source's rows.

    Attributes
    ----------
    recipe : how the table is made
    source : the rows
    plan : where and how they are sorted; its `write` is where the score table is kept, if it is wanted
    """

    recipe: Recipe
    source: Source
    plan: SortPlan

    def add(self, graph: Graph) -> Any:
        """Add to a graph all of the fit that does not depend on the rows; return a reference to a `Found`."""
        total, days = self.source.add(graph, self.plan)
        merged = self._add_rows(graph, total)
        if self.recipe.columns:
            # Each run holds most names of segments: they are no longer needed, and are let go.
            total = graph.task("kept-runs", without_segments, total)
        return graph.task("found", Found, total, days, merged)

    def fit(self, executor: Executor, total: RunReceipt | None = None) -> tuple[Content, Days]:
        """Fit the table.

        total : the runs, where they are there already

        Raises
        ------
        InputRejectedError, CheckFailedError, ConfigError
            See `fit_log` and `finish_segments`.
        """
        graph = Graph()
        if total is not None:
            merged = executor.compute(graph, self._add_rows(graph, total))
            found = Found(total, Days(), merged)
        else:
            found = executor.compute(graph, self.add(graph))
        return self.finish(found, executor), found.days

    def _add_rows(self, graph: Graph, total: Any) -> Any:
        rows, recipe = self._rows(total), self.recipe
        if recipe.columns:
            return add_segment_fit(graph, recipe, rows)
        calibrator = recipe.calibrator()
        rows = placed(rows, calibrator, recipe.interval)
        return add_merge(graph, rows, calibrator.first_pass())

    def _rows(self, total: Any) -> SortedRows:
        return SortedRows(self.source.sorted_log, self.plan, total)

    def finish(self, found: Found, executor: Executor) -> Content:
        """Carry out the passes that are left. found : what the graph gave."""
        rows, recipe = self._rows(found.total), self.recipe
        if not recipe.columns:
            fit = fit_log(recipe.calibrator(), rows, executor, recipe.interval, found.merged)
            return plain_content(recipe, fit)
        return segmented_content(recipe, *finish_segments(recipe, rows, executor, found.merged))

    def drawn(self) -> Graph:
        """The fit's graph for a drawing: of the passes whose number depends on the rows, one stands for all."""
        graph = Graph()
        found = self.add(graph)
        rows = self._rows(None)
        if self.recipe.needs_table:
            parts = [(found, i) for i in range(rows.most_parts)]
            graph.task("combine-pass", list, graph.layer("pass", list, parts))
        return graph

    def scratch_bytes(self, *, write: bool = False) -> int:
        """Scratch space that the fit needs at most. write : whether the score table is wanted in any case."""
        log = self.source.sorted_log
        more = self.recipe.needs_table
        needed = self.source.scratch_bytes(write=more or write)
        # What the merge leaves of each level's segments.
        return needed + len(self.recipe.columns) * 32 * log.rows

    def gathers(self) -> int:
        """Bytes that one process holds at most of what tasks leave of a pass over all rows."""
        rows = self._rows(None)
        calibrator = self.recipe.calibrator()
        return int(calibrator.gathers(rows.log.rows, rows.most_parts, weighted=rows.weighted))


def plain_content(recipe: Recipe, fit: Fit) -> Content:
    """The table of a fit to all rows."""
    one, repair = keep_monotone(fit.calibrator.calibration_map_, recipe.monotone)
    content = _content(
        recipe, {**fit.table.facts(), "largest_monotone_repair": repair, **fit.calibrator.facts()}
    )
    interval = interval_of(fit, one)
    if recipe.interval != NONE and interval is None:
        _logger.warning(
            "calibrator.interval: the observations refute that the true probability never decreases with the "
            "score, by more than chance in one table of %.0f explains: there is no band, and the table has no "
            "prob_lower and prob_upper",
            1 / ALPHA,
        )
    facts = {**content, "monotone": one.monotone, "lookup_rows": len(one), **_course(fit)}
    if recipe.interval != NONE:
        facts["interval"] = recipe.interval if interval is not None else "refuted"
    if interval is not None:
        facts["format_version"] = schema.SECOND_FORMAT_VERSION
        content["interval"] = (recipe.interval, interval)
    return Content(
        fit.table,
        one,
        facts,
        fingerprint(one, **content),
        lambda name: lookup_bytes(one, version=name, **content),
    )


def segmented_content(recipe: Recipe, fit: SegmentedFit, of_all: Fit) -> Content:
    """The table of a fit to segments."""
    chosen = of_all.calibrator.facts() if recipe.method == "auto" else {}
    content = _content(recipe, {**of_all.table.facts(), "largest_monotone_repair": fit.repair, **chosen})
    files = segmented_files(fit, recipe.columns, content)
    segments = {
        "columns": list(recipe.columns),
        "count": len(fit.levels[-1].keys),
        **recipe.settings,
        "fitted_on": files.sources,
        "reasons": files.reasons,
    }
    if fit.variances:
        segments["variances"] = [
            {"level": i, "shift": shift, "slope": slope, **level.bent}
            for level, (i, (shift, slope)) in zip(fit.levels[1:], enumerate(fit.variances, 1), strict=True)
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


def _content(recipe: Recipe, data: dict[str, Any]) -> dict[str, Any]:
    if recipe.sampling_rate != 1:
        data = {**data, "sampling_rate": recipe.sampling_rate}
    return {
        "method": recipe.method,
        "parameters": recipe.parameters,
        "score_transform": recipe.transform,
        "data": data,
    }


def _course(fit: Fit) -> dict[str, Any]:
    """Course of a fit: the start of its path. It may depend on sizes of tasks."""
    path = fit.calibrator.path_facts()
    return {"path": path} if path else {}
