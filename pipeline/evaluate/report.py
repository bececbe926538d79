"""The report: an evaluation as one self-contained HTML page, to be read by people who calibrate nothing."""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calibrators.assessment import Assessment, Measures, ReliabilityBin
from calibrators.calibration_map import CalibrationMap, Interval
from calibrators.certainty import Certainty
from calibrators.decomposition import Reliability, chance_error
from pipeline.evaluate import figures
from pipeline.evaluate.certainty import certainty_rows
from pipeline.evaluate.evaluation import (
    MEASURE_FACTS,
    Change,
    Evaluation,
    changes,
    headline,
    ranking,
)
from pipeline.evaluate.figures import AFTER, BEFORE
from pipeline.evaluate.judgement import compared, excess_error, judge, points
from pipeline.evaluate.map_figure import EXACT_ROWS, View, logit_view, map_figure
from pipeline.evaluate.page import MISSING, fact_groups, render_page
from pipeline.files.folders import write_whole

TEMPLATE = "report.html.j2"


@dataclass(frozen=True)
class _Cell:
    """A number in a table, as text; `best` sets it off."""

    text: str
    best: bool = False


def import_meanwhile() -> None:
    """Begin to import what a report is drawn with, in a thread: this process waits while workers measure."""
    threading.Thread(target=_import, name="logcal-imports", daemon=True).start()


def _import() -> None:
    # What cannot be imported, such as for want of memory, is met again by whoever needs it.
    with contextlib.suppress(Exception):
        _import_all()


def _import_all() -> None:
    for module in ("matplotlib.backends.backend_svg", "matplotlib.figure", "jinja2"):
        importlib.import_module(module)


def write_report(
    path: str | os.PathLike[str],
    evaluation: Evaluation,
    calibration_map: CalibrationMap,
    facts: Mapping[str, Any],
    *,
    title: str = "Calibration report",
    method: str = "calibration map",
    curves: Mapping[str, CalibrationMap] | None = None,
    comparison: Mapping[str, Measures] | None = None,
    notes: Sequence[str] = (),
) -> None:
    """Write the report of an evaluation to a local path; a file there is replaced as a whole.

    Parameters
    ----------
    path : path of the HTML file
    evaluation, calibration_map, facts, title, method, curves, comparison, notes
        See `render_report`.
    """
    text = render_report(
        evaluation,
        calibration_map,
        facts,
        title=title,
        method=method,
        curves=curves,
        comparison=comparison,
        notes=notes,
    )
    write_whole(Path(path), text.encode())


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
        size=f"{ranking(before.measures, after.measures)} {_size(evaluation)}".strip(),
        tiles=_tiles(evaluation),
        changes=[_change_row(change) for change in changes(before.measures, after.measures)],
        reasons=_reasons(before.measures, after.measures),
        figures=_figures(
            evaluation, {method: calibration_map, **(curves or {})}, None if interval is None else interval[1]
        ),
        map=_map_facts(calibration_map, before) | {"interval": None if interval is None else interval[0]},
        certainty=certainty_rows(evaluation),
        comparison=_comparison(evaluation, method, comparison or {}),
        segments=_segments(segments),
        segment_maps=_segment_figures(segment_maps or {}, before),
        width_rows=_paired(before.by_width, after.by_width),
        frequency_rows=_paired(before.by_frequency, after.by_frequency),
        weighted=after.weighted,
        probabilities=before.probabilities,
        facts=fact_groups(facts),
    )


def _size(evaluation: Evaluation) -> str:
    share = f"{100 * evaluation.positives / evaluation.weight:.3g} %"
    rows = evaluation.rows
    if rows is None:
        return f"Total weight {_number(evaluation.weight)}, of which {share} have label 1."
    weight = f" of total weight {_number(evaluation.weight)}" if evaluation.before.weighted else ""
    return f"Measured on {rows:,} rows{weight}, of which {share} have label 1."


# Measures.


def _measure(name: str, value: float | None) -> str:
    if value is None:
        return MISSING
    if math.isinf(value):
        return "∞"
    return f"{value:.4f}" if value == 0 or abs(value) >= 5e-4 else f"{value:.2g}"


def _tiles(evaluation: Evaluation) -> list[dict[str, str]]:
    after, bars = evaluation.after, evaluation.bars_after
    measures, raw = after.measures, evaluation.before.measures
    tiles = []
    if bars is not None and bars.expected is not None:
        verdict = judge(after, bars)
        way = {"low": "too low", "high": "too high"}.get(verdict.kind, "within chance")
        interval = ""
        if bars.ratio is not None and bars.ratio_low is not None and bars.ratio_high is not None:
            interval = (
                f"; observed over predicted {bars.ratio:.3g} ({bars.ratio_low:.3g} to {bars.ratio_high:.3g})"
            )
        tiles.append(
            {
                "label": "Predicted and observed",
                "value": f"{_share(bars.expected / after.weight)} : {_share(bars.observed / after.weight)}",
                "hint": f"all rows together{interval}",
                "verdict": way,
                "kind": "bad" if verdict.kind in ("low", "high") else "good",
            }
        )
    if measures.ece_frequency is not None:
        beyond = excess_error(after.by_frequency) > 0
        was = "" if raw.ece_frequency is None else f"; the raw scores: {points(raw.ece_frequency)} %"
        tiles.append(
            {
                "label": "Calibration error (ECE)",
                "value": f"{points(measures.ece_frequency)} %",
                "hint": f"by chance alone about {points(chance_error(after.by_frequency))} %{was}",
                "verdict": "beyond chance" if beyond else "within chance",
                "kind": "bad" if beyond else "good",
            }
        )
    loss = (
        measures.reasons.get("log_loss")
        or f"price of confident mistakes; the raw scores: {_measure('', raw.log_loss)}"
    )
    tiles.append(_plain_tile("Log loss", _measure("log_loss", measures.log_loss), loss))
    hint = "how well rows with label 1 are put above the others"
    if bars is not None and bars.auc_low is not None and bars.auc_high is not None:
        hint += f"; 95 % interval {bars.auc_low:.3f} to {bars.auc_high:.3f}"
    tiles.append(_plain_tile("Ranking (AUC)", _measure("auc", measures.auc), hint))
    return tiles


def _plain_tile(label: str, value: str, hint: str) -> dict[str, str]:
    return {"label": label, "value": value, "hint": hint, "verdict": "", "kind": ""}


def _change_row(change: Change) -> dict[str, str]:
    difference = MISSING
    if change.difference is not None:
        difference = f"{change.difference:+.4f}".replace("-", "−")
        if change.verdict == "unchanged":
            difference = "0.0000"
    return {
        "label": change.facts.label,
        "meaning": change.facts.meaning,
        "better": "higher" if change.facts.higher_is_better else "lower",
        "before": _measure(change.name, change.before),
        "after": _measure(change.name, change.after),
        "difference": difference,
        "verdict": change.verdict,
    }


def _reasons(before: Measures, after: Measures) -> list[str]:
    """Why measures are missing or infinite, each reason once."""
    lines: dict[str, list[str]] = {}
    for side, measures in (("before", before), ("after", after)):
        for name, reason in measures.reasons.items():
            lines.setdefault(f"{side} calibration: {reason}.", []).append(MEASURE_FACTS[name].label)
    return [
        f"{labels[0] if len(labels) == 1 else f'{len(labels)} measures'} {reason}"
        for reason, labels in lines.items()
    ]


def _comparison(
    evaluation: Evaluation, method: str, others: Mapping[str, Measures]
) -> list[dict[str, Any]] | None:
    """A row a method, with the best of each measure set off; None without others."""
    if not others:
        return None
    rows = {"before calibration": evaluation.before.measures, method: evaluation.after.measures, **others}
    table = []
    best = {name: _best(name, list(rows.values())) for name in MEASURE_FACTS}
    for label, measures in rows.items():
        values = [(name, getattr(measures, name)) for name in MEASURE_FACTS]
        cells = [
            _Cell(_measure(name, value), value is not None and value == best[name]) for name, value in values
        ]
        table.append({"label": label, "cells": cells})
    return table


def _best(name: str, rows: list[Measures]) -> float | None:
    values = [value for value in (getattr(measures, name) for measures in rows) if value is not None]
    if not values:
        return None
    return max(values) if MEASURE_FACTS[name].higher_is_better else min(values)


def segment_name(values: Sequence[str | None]) -> str:
    """A segment's values as one name."""
    return ", ".join("null" if value is None else value for value in values)


def _segments(facts: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """What the section on segments says; None without segments."""
    if facts is None:
        return None
    worst = [
        {
            "name": segment_name(row["segment"]),
            "rows": f"{row['rows']:,}",
            "positives": f"{row['rows_positive']:,}",
            "fitted_on": row["fitted_on"],
            "flagged": bool(row["beyond_chance_after"]),
            "cells": [
                _measure(name, row[f"{name}_{side}"])
                for name in ("ece_frequency", "beyond_chance", "log_loss")
                for side in ("before", "after")
            ],
        }
        for row in facts["worst"]
    ]
    numbers = {
        name: f"{facts[name]:,}"
        for name in ("count", "unseen_rows", "beyond_chance_before", "beyond_chance_after")
    }
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in facts["fitted_on"].items())
    return {**numbers, "columns": ", ".join(facts["columns"]), "fitted_on": kinds, "worst": worst}


# Figures.


def _figures(
    evaluation: Evaluation, curves: Mapping[str, CalibrationMap], interval: Interval | None = None
) -> dict[str, Any]:
    before, after = evaluation.before, evaluation.after
    sides = [
        ("before", before, BEFORE, _curve(evaluation.certainty_before)),
        ("after", after, AFTER, _curve(evaluation.certainty_after)),
    ]
    limits = figures.logit_limits([before, after])
    found: dict[str, Any] = {"reliability": [], "logit": [], "histograms": [], "map": []}
    for name, side, color, curve in sides:
        if side.probabilities:
            alt = f"Reliability diagram {name} calibration: observed frequency against predicted probability"
            found["reliability"].append(
                (
                    name,
                    figures.reliability_diagram(
                        side.by_width, color, name=f"rel-{name}", alt=alt, curve=curve
                    ),
                )
            )
            found["logit"].append(
                (
                    name,
                    figures.logit_diagram(
                        side.by_frequency,
                        color,
                        limits,
                        name=f"log-{name}",
                        alt=f"{alt}, logit axes",
                        curve=curve,
                    ),
                )
            )
        label = "Predicted probability" if side.probabilities else "Score"
        alt = f"Histogram of the predictions {name} calibration"
        found["histograms"].append(
            (name, figures.histogram(side, color, name=f"hist-{name}", alt=alt, label=label))
        )
    found["curves"] = any(curve is not None for *_, curve in sides)
    found["beyond"] = figures.any_beyond([before, after], limits)
    found["map"] = _map_figures(before, curves, interval)
    return found


def _curve(certainty: Certainty | None) -> Reliability | None:
    found = None if certainty is None else certainty.decomposition
    return None if found is None else found.reliability


def _map_figures(
    before: Assessment, curves: Mapping[str, CalibrationMap], interval: Interval | None
) -> list[str]:
    alt = "The calibration map: calibrated probability against score"
    edges = before.histogram.edges
    drawn = [map_figure(curves, View(edges[0], edges[-1]), name="map", alt=alt, interval=interval)]
    if before.probabilities:
        view = logit_view(next(iter(curves.values())))
        alt += ", logit axes"
        drawn.append(map_figure(curves, view, name="map-logit", alt=alt, interval=interval))
    return drawn


def _segment_figures(
    maps: Mapping[str, tuple[str, CalibrationMap]], before: Assessment
) -> list[tuple[str, str, str]]:
    """Name, what it was fitted to, and picture of each map."""
    edges = before.histogram.edges
    view = View(edges[0], edges[-1])
    return [
        (
            name,
            fitted_on,
            map_figure({name: found}, view, name=f"map-{i}", alt=f"The calibration map of {name}"),
        )
        for i, (name, (fitted_on, found)) in enumerate(maps.items())
    ]


def _map_facts(calibration_map: CalibrationMap, before: Assessment) -> dict[str, Any]:
    """What the caption of the map says."""
    constant = int(((calibration_map.slope == 0) & (calibration_map.weight > 0)).sum())
    lowest, highest = calibration_map.predict([before.lowest, before.highest]).tolist()
    return {
        "rows": f"{len(calibration_map):,}",
        "blocks": f"{constant:,}" if constant else None,
        "monotone": calibration_map.monotone,
        "from": f"{_number(before.lowest)} to {_number(before.highest)}",
        "ends": f"{_share(lowest)} to {_share(highest)}",
        "thinned": len(calibration_map) > EXACT_ROWS,
    }


# Tables.


def _paired(before: Sequence[ReliabilityBin], after: Sequence[ReliabilityBin]) -> list[dict[str, Any]]:
    """Rows of the reliability table, before beside after."""
    pairs = zip(before, after, strict=True) if before else ((None, group) for group in after)
    return [
        {"number": i, "range": _range(group_after), "before": _bin(group), "after": _bin(group_after)}
        for i, (group, group_after) in enumerate(pairs, 1)
    ]


def _range(group: ReliabilityBin) -> str:
    return _interval(group.lower, group.upper)


def _bin(group: ReliabilityBin | None) -> dict[str, str] | None:
    if group is None:
        return None
    if group.frequency is None or group.mean_prediction is None:
        return {"weight": "0", "range": "", "predicted": "", "observed": "", "interval": "", "outside": ""}
    assert group.interval_low is not None
    assert group.interval_high is not None
    inside = group.interval_low <= group.mean_prediction <= group.interval_high
    return {
        "weight": _number(group.weight),
        "range": _range(group),
        "predicted": _share(group.mean_prediction),
        "observed": _share(group.frequency),
        "interval": _interval(group.interval_low, group.interval_high),
        "outside": "" if inside else "outside",
    }


def _interval(low: float, high: float) -> str:
    low_text, high_text = _percent(low), _percent(high)
    return f"{low_text} %" if low_text == high_text else f"{low_text} – {high_text} %"


def _share(value: float) -> str:
    return f"{_percent(value)} %"


def _percent(value: float) -> str:
    """A share of 1 in percent, with more digits close to 0 and 100."""
    percent = 100 * value
    rest = min(percent, 100 - percent)
    if rest <= 0 or round(percent, 9) == round(percent):
        return f"{percent:.0f}"
    if rest < 0.001:
        return "<0.001" if percent < 50 else ">99.999"
    return f"{percent:.{1 if rest >= 1 else 1 - math.floor(math.log10(rest))}f}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == round(value) and abs(value) < 1e15 else f"{value:,.4g}"
