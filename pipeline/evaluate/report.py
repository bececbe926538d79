"""Report: an evaluation as one self-contained HTML page, for readers who are not calibration specialists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from calibrators.core.map import CalibrationMap, Interval
from calibrators.measures.assessment import Assessment, Measures
from calibrators.measures.certainty import Certainty
from calibrators.measures.decomposition import Decomposition, chance_error
from logcal.arrow_columns import column_of
from logcal.displays.view import EXACT_ROWS, View, logit_view
from pipeline import schema
from pipeline.evaluate.evaluation import (
    MEASURE_LABELS,
    Evaluation,
    changes,
    headline,
    ranking,
)
from pipeline.evaluate.significance import (
    HIGHER_IS_BETTER,
    UNSURE,
    comparison_sentence,
    excess_error,
    judge,
    percentage_points,
)
from pipeline.pages.figures import (
    AFTER,
    BEFORE,
    fact_groups,
    interval_text,
    map_figure,
    number_text,
    render_page,
    share_text,
)
from pipeline.pages.reliability_figures import (
    any_beyond,
    group_diagram,
    histogram,
    logit_limits,
    reliability_diagram,
)
from pipeline.pages.residual_figures import residual_figures
from pipeline.table.segment_maps import SOURCES


def digits(value: float | None, form: str = ".4f") -> str:
    """Format a number of the table of error bars, one that rounds to 0 in exponent notation; None becomes empty."""
    if value is None:
        return ""
    text = f"{value:{form}}"
    if value != 0 and float(text) == 0:
        text = f"{value:.1e}"
    return text.replace("-", "−")


def render_report(
    evaluation: Evaluation,
    calibration_map: CalibrationMap,
    facts: Mapping[str, Any],
    *,
    title: str = "Calibration report",
    notes: Sequence[str] = (),
    segments: Mapping[str, Any] | None = None,
    segment_maps: Mapping[str, tuple[str, CalibrationMap]] | None = None,
    interval: tuple[str, Interval] | None = None,
    agreement: Mapping[str, Any] | None = None,
) -> str:
    """Render the page as text.

    Parameters
    ----------
    evaluation : Evaluation
    calibration_map : CalibrationMap
        The map that was evaluated; for a log with segments, that of all rows.
    facts : mapping
        Facts about the run: names to values, or names of groups to such mappings, in the order of display.
    title : heading of the page
    notes : warnings to show below the headline
    segments : `SegmentedEvaluation.facts` of a log with segments
    segment_maps : kind of source and map of each segment to show, by the segment's name
    interval : kind and interval of the map's rows, to be shaded
    agreement : the manifest's facts of the check of the fit against its own rows; None: there are none

    Returns
    -------
    str
        HTML without external references; the same text for the same arguments.
    """
    before, after = evaluation.before, evaluation.after
    return render_page(
        "report.html.j2",
        title=title,
        filters={"segment": segment_name, "points": percentage_points, "digits": digits},
        evaluation=evaluation,
        interval=interval_text,
        chance_error=chance_error,
        excess_error=excess_error,
        unsure=UNSURE,
        sources=SOURCES,
        verdict=judge(after, evaluation.bars_after),
        comparison_sentence=None
        if evaluation.comparison is None
        else comparison_sentence(evaluation.comparison, evaluation.against or "", "this version"),
        headline=headline(evaluation),
        notes=list(notes),
        size=f"{ranking(evaluation)} {size_sentence(evaluation)}".strip(),
        changes=changes(evaluation),
        higher_is_better=HIGHER_IS_BETTER,
        reasons=reasons(before.measures, after.measures),
        figures=report_figures(evaluation, calibration_map, None if interval is None else interval[1]),
        map=map_facts(calibration_map, before) | {"interval": None if interval is None else interval[0]},
        segments=segments,
        segment_maps=segment_figures(segment_maps or {}, before),
        residuals=residual_figures(agreement),
        facts=fact_groups(facts),
    )


# The figures of the report, by section.


def report_figures(
    evaluation: Evaluation, calibration_map: CalibrationMap, interval: Interval | None = None
) -> dict[str, Any]:
    """Draw the figures: SVG elements by section, with the names of the sides and flags for their captions."""
    limits = logit_limits([evaluation.before, evaluation.after])
    sides = [
        ("before", evaluation.before, _parts(evaluation.certainty_before), BEFORE),
        ("after", evaluation.after, _parts(evaluation.certainty_after), AFTER),
    ]
    probable = [side for side in sides if side[1].probabilities]
    return {
        "reliability": [(side[0], _reliability(*side)) for side in probable],
        "binless": all(parts is not None for _, _, parts, _ in probable),
        "logit": [(side[0], _logit(*side, limits)) for side in probable],
        "beyond": any_beyond([evaluation.before, evaluation.after], limits),
        "histograms": [(name, _histogram(name, side, color)) for name, side, _, color in sides],
        "map": _map_figures(evaluation.before, calibration_map, interval),
    }


def _parts(certainty: Certainty | None) -> Decomposition | None:
    """Return the decomposition for a diagram without bins; None for sampled logs."""
    parts = None if certainty is None else certainty.decomposition
    return None if parts is None or parts.reliability is None else parts


def _reliability(name: str, side: Assessment, parts: Decomposition | None, color: str) -> str:
    """Draw a reliability diagram without bins; in bins for sampled logs, whose rows have weights."""
    alt = f"Reliability diagram {name} calibration: observed frequency against predicted probability"
    if parts is None:
        return group_diagram(side.by_width, color, name=f"rel-{name}", alt=alt)
    return reliability_diagram(parts, side, color, name=f"rel-{name}", alt=alt)


def _logit(
    name: str, side: Assessment, parts: Decomposition | None, color: str, limits: tuple[float, float]
) -> str:
    alt = f"Reliability diagram {name} calibration: observed frequency against predicted probability, logit axes"
    curve = None if parts is None else parts.reliability
    return group_diagram(side.by_frequency, color, name=f"log-{name}", alt=alt, limits=limits, curve=curve)


def _histogram(name: str, side: Assessment, color: str) -> str:
    label = "Predicted probability" if side.probabilities else "Score"
    alt = f"Histogram of the predictions {name} calibration"
    return histogram(side, color, name=f"hist-{name}", alt=alt, label=label)


def _map_figures(before: Assessment, calibration_map: CalibrationMap, interval: Interval | None) -> list[str]:
    alt = "The calibration map: calibrated probability against score"
    edges = before.histogram.edges
    curves = {"calibration map": calibration_map}
    drawn = [map_figure(curves, View(edges[0], edges[-1]), name="map", alt=alt, interval=interval)]
    if before.probabilities:
        view = logit_view(calibration_map)
        alt += ", logit axes"
        drawn.append(map_figure(curves, view, name="map-logit", alt=alt, interval=interval))
    return drawn


def segment_figures(
    maps: Mapping[str, tuple[str, CalibrationMap]], before: Assessment
) -> list[tuple[str, str, str]]:
    """Return the name, the kind of source, and the figure of each map."""
    edges = before.histogram.edges
    view = View(edges[0], edges[-1])
    return [
        (
            name,
            fitted_on,
            map_figure({name: segment_map}, view, name=f"map-{i}", alt=f"The calibration map of {name}"),
        )
        for i, (name, (fitted_on, segment_map)) in enumerate(maps.items())
    ]


def map_facts(calibration_map: CalibrationMap, before: Assessment) -> dict[str, Any]:
    """Return the facts for the caption of the map."""
    constant = int(((calibration_map.slope == 0) & (calibration_map.weight > 0)).sum())
    lowest, highest = calibration_map.predict([before.lowest, before.highest]).tolist()
    return {
        "rows": f"{len(calibration_map):,}",
        "blocks": f"{constant:,}" if constant else None,
        "monotone": calibration_map.monotone,
        "from": f"{number_text(before.lowest)} to {number_text(before.highest)}",
        "ends": f"{share_text(lowest)} to {share_text(highest)}",
        "thinned": len(calibration_map) > EXACT_ROWS,
    }


def size_sentence(evaluation: Evaluation) -> str:
    """State the number of measured rows, their weight, and the share with label 1."""
    share = f"{100 * evaluation.positives / evaluation.weight:.3g} %"
    rows = evaluation.rows
    if rows is None:
        return f"Total weight {number_text(evaluation.weight)}; {share} of it has label 1."
    weight = f" of total weight {number_text(evaluation.weight)}" if evaluation.before.weighted else ""
    return f"Measured on {rows:,} rows{weight}; {share} have label 1."


def reasons(before: Measures, after: Measures) -> list[str]:
    """Return the reasons why measures are missing or infinite, each once."""
    lines: dict[str, list[str]] = {}
    for side, measures in (("before", before), ("after", after)):
        for name, reason in measures.reasons.items():
            lines.setdefault(f"{side} calibration: {reason}.", []).append(MEASURE_LABELS[name])
    return [
        f"{labels[0] if len(labels) == 1 else f'{len(labels)} measures'} {reason}"
        for reason, labels in lines.items()
    ]


def segment_name(values: Sequence[str | None]) -> str:
    """Join a segment's values into one name."""
    return ", ".join("null" if value is None else value for value in values)


# The reliability table: predicted and observed, group by group, as Parquet.

RELIABILITY_FILE = "reliability.parquet"


def reliability_table(evaluation: Evaluation) -> pa.Table:
    """Return one row per group: before and after calibration, each by equal counts and by equal width."""
    rows = [
        (side, kind, i, *(getattr(group, name) for name in schema.RELIABILITY.names[3:]))
        for side, assessment in (("before", evaluation.before), ("after", evaluation.after))
        for kind, groups in (("frequency", assessment.by_frequency), ("width", assessment.by_width))
        for i, group in enumerate(groups)
    ]
    columns = list(zip(*rows, strict=True)) or [()] * len(schema.RELIABILITY)
    arrays = [column_of(list(c), f.type) for c, f in zip(columns, schema.RELIABILITY, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema.RELIABILITY)
