"""The figures of the report, by section."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from calibrators.arithmetic.calibration_map import CalibrationMap, Interval
from calibrators.measures.assessment import Assessment
from calibrators.measures.certainty import Certainty
from calibrators.measures.decomposition import Decomposition
from logcal.displays.view import EXACT_ROWS, View, logit_view
from pipeline.evaluate.evaluation import Evaluation
from pipeline.evaluate.figures import AFTER, BEFORE
from pipeline.evaluate.map_figure import map_figure
from pipeline.evaluate.numbers import number_text, share_text
from pipeline.evaluate.reliability_figures import (
    any_beyond,
    group_diagram,
    histogram,
    logit_diagram,
    logit_limits,
    reliability_diagram,
)


def report_figures(
    evaluation: Evaluation, curves: Mapping[str, CalibrationMap], interval: Interval | None = None
) -> dict[str, Any]:
    """SVG elements by section, with names of the sides, and what their captions have to say of them."""
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
        "map": _map_figures(evaluation.before, curves, interval),
    }


def _parts(certainty: Certainty | None) -> Decomposition | None:
    """What is drawn without bins; None of sampled logs."""
    found = None if certainty is None else certainty.decomposition
    return None if found is None or found.reliability is None else found


def _reliability(name: str, side: Assessment, parts: Decomposition | None, color: str) -> str:
    """Without bins where that is known; of sampled logs in bins, whose rows can be weighed."""
    alt = f"Reliability diagram {name} calibration: observed frequency against predicted probability"
    if parts is None:
        return group_diagram(side.by_width, color, name=f"rel-{name}", alt=alt)
    return reliability_diagram(parts, side, color, name=f"rel-{name}", alt=alt)


def _logit(
    name: str, side: Assessment, parts: Decomposition | None, color: str, limits: tuple[float, float]
) -> str:
    alt = f"Reliability diagram {name} calibration: observed frequency against predicted probability, logit axes"
    curve = None if parts is None else parts.reliability
    return logit_diagram(side.by_frequency, color, limits, name=f"log-{name}", alt=alt, curve=curve)


def _histogram(name: str, side: Assessment, color: str) -> str:
    label = "Predicted probability" if side.probabilities else "Score"
    alt = f"Histogram of the predictions {name} calibration"
    return histogram(side, color, name=f"hist-{name}", alt=alt, label=label)


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


def segment_figures(
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


def map_facts(calibration_map: CalibrationMap, before: Assessment) -> dict[str, Any]:
    """What the caption of the map says."""
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
