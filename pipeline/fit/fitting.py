"""Fit of a table to the rows of a source by a recipe; the result is ready to be published."""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass
from typing import Any, NamedTuple

from calibrators.core.intervals import ALPHA, NONE
from calibrators.core.map import CalibrationMap
from pipeline.days.source import Days, Source
from pipeline.execution import Executor, Graph
from pipeline.files.blobs import write_blob
from pipeline.files.folders import Folder
from pipeline.fit.calibration import (
    Fit,
    Recipe,
    fit_log,
    interval_of,
    keep_monotone,
    with_table_path,
)
from pipeline.fit.fall_warning import SegmentRanges, warn_of_fall, warn_of_segments_fall
from pipeline.fit.segment_fit import add_segment_fit, finish_segments
from pipeline.fit.self_check import check_all_rows, level_facts, no_check
from pipeline.sort.runs import RunReceipt
from pipeline.sort.score_table import ScoreTable, SortedRows, SortPlan, add_merge, without_segments
from pipeline.table.lookup_table import TableFiles, plain_files, segmented_files
from pipeline.table.published import LOOKUP
from pipeline.table.segment_maps import LevelFit, SegmentedFit

_logger = logging.getLogger("logcal")


@dataclass(frozen=True)
class Content:
    """A fitted table, ready to be published.

    Attributes
    ----------
    table : ScoreTable of the rows that it was fitted to
    whole : CalibrationMap or None: the map of all rows; None if they are too few
    facts : facts for the manifest
    files : content of its files
    """

    table: ScoreTable
    whole: CalibrationMap | None
    facts: dict[str, Any]
    files: TableFiles

    def write(self, folder: str, version: str = "candidate") -> str:
        """Write the table to a folder, for tasks that predict with it; return the lookup table's path."""
        Folder.at(folder).make()
        for name, content in self.files.files(version).items():
            write_blob(f"{folder}/{name}", [memoryview(content)])
        return f"{folder}/{LOOKUP}"


class GraphResult(NamedTuple):
    """Result of a fit's graph: the runs, without their segments; the days of a window; and the fit."""

    total: RunReceipt
    days: Days
    merged: Any


@dataclass(frozen=True)
class Fitting:
    """A fit of a table to a source's rows.

    Attributes
    ----------
    recipe : instructions for making the table
    source : the rows
    plan : plan of their sort; `write` is the path of the score table, if it is kept
    """

    recipe: Recipe
    source: Source
    plan: SortPlan

    def add(self, graph: Graph) -> Any:
        """Add to a graph all tasks of the fit that do not depend on the rows; return a reference to a `GraphResult`."""
        total, days = self.source.add(graph, self.plan)
        merged = self._add_rows(graph, total)
        if self.recipe.columns:
            # Each run lists most segments; these lists are no longer needed.
            total = graph.task("kept-runs", without_segments, total)
        return graph.task("found", GraphResult, total, days, merged)

    def fit(self, executor: Executor, total: RunReceipt | None = None) -> tuple[Content, Days]:
        """Fit the table.

        total : the runs, if the rows are sorted already

        Raises
        ------
        InputRejectedError, CheckFailedError, ConfigError
            See `fit_log` and `finish_segments`.
        """
        graph = Graph()
        if total is not None:
            merged = executor.compute(graph, self._add_rows(graph, total))
            result = GraphResult(total, Days(), merged)
        else:
            result = executor.compute(graph, self.add(graph))
        return self.finish(result, executor), result.days

    def _add_rows(self, graph: Graph, total: Any) -> Any:
        rows, recipe = self._rows(total), self.recipe
        if recipe.columns:
            return add_segment_fit(graph, recipe, rows)
        calibrator = recipe.calibrator()
        rows = with_table_path(rows, calibrator, recipe.interval)
        return add_merge(graph, rows, calibrator.first_pass())

    def _rows(self, total: Any) -> SortedRows:
        return SortedRows(self.source.sorted_log, self.plan, total)

    def finish(self, result: GraphResult, executor: Executor) -> Content:
        """Run the remaining passes. result : result of the graph."""
        rows, recipe = self._rows(result.total), self.recipe
        if not recipe.columns:
            fit = fit_log(
                recipe.calibrator(), rows, executor, recipe.interval, result.merged, recipe.sampling_rate
            )
            return plain_content(recipe, fit)
        return segmented_content(recipe, *finish_segments(recipe, rows, executor, result.merged))

    def drawn(self) -> Graph:
        """Return the fit's graph for a drawing: one pass stands for all passes, whose number depends on the rows."""
        graph = Graph()
        result = self.add(graph)
        rows = self._rows(None)
        if self.recipe.needs_table:
            parts = [(result, i) for i in range(rows.most_parts)]
            graph.task("combine-pass", list, graph.layer("pass", list, parts))
        return graph

    def scratch_bytes(self, *, write: bool = False) -> int:
        """Return the largest scratch space needed, in bytes. write : whether the score table is kept."""
        log = self.source.sorted_log
        needed = self.source.scratch_bytes(write=self.recipe.needs_table or write)
        # The merge also writes the points or blocks of each level's segments.
        return needed + len(self.recipe.columns) * 32 * log.rows

    def gathers(self) -> int:
        """Return the most bytes of task results of a pass over all rows that one process holds."""
        rows = self._rows(None)
        calibrator = self.recipe.calibrator()
        return int(calibrator.gathers(rows.log.rows, rows.most_parts, weighted=rows.weighted))


def plain_content(recipe: Recipe, fit: Fit) -> Content:
    """Make the table of a fit without segments."""
    checked = check_all_rows(
        fit.calibrator, fit.checked, functools.partial(keep_monotone, policy=recipe.monotone)
    )
    final_map = checked.fitted
    data = {**fit.table.facts(), "largest_monotone_repair": checked.repair, **fit.calibrator.facts()}
    table_facts = _table_facts(recipe, data)
    interval = interval_of(fit, final_map)
    if recipe.interval != NONE and interval is None:
        _logger.warning(
            "$[recipe.interval]: the observations refute that the true probability never decreases with the "
            "score (chance explains this in at most one table of %.0f): there is no band, and the table has no "
            "prob_lower and prob_upper",
            1 / ALPHA,
        )
    facts = {**table_facts, "monotone": final_map.monotone, "lookup_rows": len(final_map), **_path_facts(fit)}
    facts["agreement"] = checked.facts()
    facts["proven_fall"] = None
    if final_map.monotone:
        facts["proven_fall"] = warn_of_fall(fit.calibrator, fit.checked, checked.check.dispersion)
    if recipe.interval != NONE:
        facts["interval"] = recipe.interval if interval is not None else "refuted"
    pair = None if interval is None else (recipe.interval, interval)
    files = plain_files(final_map, pair, **table_facts)
    return Content(fit.table, final_map, {**facts, "features": files.facts["features"]}, files)


def segmented_content(recipe: Recipe, fit: SegmentedFit, overall: Fit) -> Content:
    """Make the table of a fit to segments. overall : the fit to all rows."""
    choice = overall.calibrator.facts() if recipe.method == "auto" else {}
    data = {**overall.table.facts(), "largest_monotone_repair": fit.repair, **choice}
    table_facts = _table_facts(recipe, data)
    files = segmented_files(fit, recipe.columns, table_facts)
    segments = {
        "columns": list(recipe.columns),
        "count": len(fit.levels[-1].keys),
        **recipe.settings,
        "fitted_on": files.sources,
        "reasons": files.reasons,
    }
    if fit.variances:
        segments["variances"] = [
            {"level": i, "shift": shift, "slope": slope, **level.bend_facts}
            for level, (i, (shift, slope)) in zip(fit.levels[1:], enumerate(fit.variances, 1), strict=True)
        ]
        segments["variances_across"] = [
            {"level": level.level, "shift": level.variances_across[0], "slope": level.variances_across[1]}
            for level in fit.levels[2:]
        ]
        segments["outlying"] = [
            {"level": level.level, "count": len(level.outlying), "names": _names(level)}
            for level in fit.levels[1:]
        ]
    if fit.users is not None:
        segments["rows_of_shared_map"] = fit.users
        _logger.warning(
            "segments without a map of their own contradict the map of all rows, which those with their own bend: it "
            "was fitted to their %s rows instead",
            f"{fit.users:,}",
        )
    if fit.parents:
        segments["parents_refitted"] = fit.parents
        _logger.warning(
            "segments without a map of their own contradict their parents' maps, which those with their own bend: %s "
            "fitted to them alone",
            "1 parent's map was" if fit.parents == 1 else f"{fit.parents:,} parents' maps were",
        )
    facts = {
        **table_facts,
        "monotone": fit.monotone,
        "lookup_rows": files.table.num_rows,
        "segments": segments,
    }
    facts["agreement"] = {
        **(no_check() if overall.agreement is None else overall.agreement.facts()),
        **level_facts(fit.levels[1:], fit.shared, overall.agreement, overall.calibrator.sampling_.heaviest),
    }
    facts["proven_fall"] = None
    if overall.agreement is not None and overall.agreement.fitted.monotone:
        check = overall.agreement.check
        ranges = SegmentRanges.of(check, fit.levels[-1].checked)
        facts["proven_fall"] = warn_of_fall(overall.calibrator, overall.checked, check.dispersion, ranges)
    if facts["proven_fall"] is None:
        warn_of_segments_fall(facts["agreement"]["levels"])
    if fit.interval != NONE:
        facts["interval"] = fit.interval
        segments["intervals_refuted"] = fit.refuted
    if fit.refuted:
        _logger.warning(
            "$[recipe.interval]: the observations of %s of the segments' maps refute that the true probability "
            "never decreases with the score (chance explains this in at most one map of %.0f): these maps have no "
            "band, and their rows have prob_lower 0 and prob_upper 1",
            f"{fit.refuted:,}",
            1 / ALPHA,
        )
    return Content(
        overall.table,
        None if fit.identity else fit.levels[0].maps.first(),
        {**facts, "features": files.facts["features"], **_path_facts(overall)},
        files,
    )


_MOST_NAMES = 10


def _names(level: LevelFit) -> list[list[str | None]]:
    """Return the keys of the segments that contradict the others, the largest first, at most ten."""
    largest = sorted(level.outlying, key=lambda i: (-int(level.rows[i]), i))[:_MOST_NAMES]
    return [[None if value is None else str(value) for value in level.keys[i]] for i in largest]


def _table_facts(recipe: Recipe, data: dict[str, Any]) -> dict[str, Any]:
    if recipe.sampling_rate != 1:
        data = {**data, "sampling_rate": recipe.sampling_rate}
    return {
        "method": recipe.method,
        "parameters": recipe.parameters,
        "score_transform": recipe.transform,
        "data": data,
    }


def _path_facts(fit: Fit) -> dict[str, Any]:
    """Return the start of the fit's path, which may depend on the sizes of tasks."""
    path = fit.calibrator.path_facts()
    return {"path": path} if path else {}
