"""The report: an evaluation as one self-contained HTML page, to be read by people who calibrate nothing."""

from __future__ import annotations

import contextlib
import importlib
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from calibrators.arithmetic.calibration_map import CalibrationMap, Interval
from calibrators.measures.assessment import Measures
from pipeline.evaluate import report_tables
from pipeline.evaluate.certainty import certainty_rows
from pipeline.evaluate.evaluation import (
    Evaluation,
    changes,
    headline,
    ranking,
)
from pipeline.evaluate.judgement import compared, judge
from pipeline.evaluate.page import fact_groups, render_page
from pipeline.evaluate.report_figures import map_facts, report_figures, segment_figures

TEMPLATE = "report.html.j2"


def import_meanwhile() -> None:
    """Begin to import what a report is drawn with, in a thread: this process waits while workers measure.

    Python waits for the thread when it ends: one that is stopped amid a library of C++ aborts the process.
    """
    threading.Thread(target=_import, name="logcal-imports").start()


def _import() -> None:
    # What cannot be imported, such as for want of memory, is met again by whoever needs it.
    with contextlib.suppress(Exception):
        _import_all()


def _import_all() -> None:
    for module in ("matplotlib.backends.backend_svg", "matplotlib.figure", "jinja2"):
        importlib.import_module(module)


def render_report(
    evaluation: Evaluation,
    calibration_map: CalibrationMap,
    facts: Mapping[str, Any],
    *,
    title: str = "Calibration report",
    method: str = "calibration map",
    curves: Mapping[str, CalibrationMap] | None = None,
    comparison: Mapping[str, Measures] | None = None,
    notes: Sequence[str] = (),
    segments: Mapping[str, Any] | None = None,
    segment_maps: Mapping[str, tuple[str, CalibrationMap]] | None = None,
    interval: tuple[str, Interval] | None = None,
) -> str:
    """The page as text.

    Parameters
    ----------
    evaluation : Evaluation
    calibration_map : CalibrationMap
        The map that was evaluated.
    facts : mapping
        What the run was: names to values, or names of groups to such mappings, shown in this order.
    title : heading of the page
    method : name of the map in figures with several
    curves : further maps by name, to draw beside it
    comparison : measures of further methods by name, to compare in a table with before and after
    notes : sentences of warning, to show below the headline
    segments : of a log with segments, `SegmentedEvaluation.facts`; calibration_map is then that of all rows
    segment_maps : maps of segments to be shown, by the segment's name, each with what it was fitted to
    interval : of each row of the map, and its kind, to be shaded

    Returns
    -------
    str
        HTML without references to anything outside; the same text for the same arguments.
    """
    before, after = evaluation.before, evaluation.after
    return render_page(
        TEMPLATE,
        title=title,
        verdict=judge(after, evaluation.bars_after),
        comparison_sentence=None
        if evaluation.comparison is None
        else compared(evaluation.comparison, evaluation.against or "", "this version"),
        headline=headline(before.measures, after.measures),
        notes=list(notes),
        size=f"{ranking(before.measures, after.measures)} {report_tables.size_sentence(evaluation)}".strip(),
        tiles=report_tables.tiles(evaluation),
        changes=[report_tables.change_row(change) for change in changes(before.measures, after.measures)],
        reasons=report_tables.reasons(before.measures, after.measures),
        figures=report_figures(
            evaluation, {method: calibration_map, **(curves or {})}, None if interval is None else interval[1]
        ),
        map=map_facts(calibration_map, before) | {"interval": None if interval is None else interval[0]},
        certainty=certainty_rows(evaluation),
        comparison=report_tables.method_rows(evaluation, method, comparison or {}),
        segments=report_tables.segment_facts(segments),
        segment_maps=segment_figures(segment_maps or {}, before),
        width_rows=report_tables.paired_groups(before.by_width, after.by_width),
        frequency_rows=report_tables.paired_groups(before.by_frequency, after.by_frequency),
        weighted=after.weighted,
        probabilities=before.probabilities,
        facts=fact_groups(facts),
    )
