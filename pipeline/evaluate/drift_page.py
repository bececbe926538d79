"""The history of a watched table as a page: observed over expected positives, and the evidence of drift."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from logcal.errors import counted
from pipeline.evaluate.day_ratios import DayRatio, ratio_figure
from pipeline.evaluate.page import render_page

TEMPLATE = "drift.html.j2"
_SHOWN = 60
"""Days in the figure and the table, the latest."""


def render_drift(
    title: str, days: Sequence[Mapping[str, Any]], alarms: Sequence[str], alpha: float, tolerance: float
) -> str:
    """Render the page: HTML without references to anything outside.

    Parameters
    ----------
    days : each with `day`, `rows`, `observed`, `expected`, `log_e`, `psi`, `ks` and `segments_alarmed`.
    alarms : sentences, the most important one first.
    alpha, tolerance : the alarm's false alarm rate in (0, 1), and the factor >= 1 up to which odds may be wrong.
    """
    latest = days[-_SHOWN:]
    ratios = [DayRatio.of(day) for day in latest]
    return render_page(
        TEMPLATE,
        title=title,
        headline=alarms[0] if alarms else f"No drift was found in {counted(len(days), 'day')}.",
        details=alarms[1:],
        kind="high" if alarms else "within",
        alpha=f"{100 * alpha:g}",
        limit=f"{1 / alpha:g}",
        tolerance=f"{tolerance:g}",
        figure=ratio_figure(ratios) if days else "",
        rows=list(zip(ratios, latest, strict=True))[::-1],
        distances=["psi", "ks"] if any(day["psi"] is not None for day in days) else [],
        segments=any(day["segments_alarmed"] for day in days),
        e_value=e_value,
        count=len(days),
        shown=len(latest),
    )


def e_value(log_e: float) -> str:
    """Write an e-value, given its logarithm; those that no reader compares any more as a bound."""
    if log_e >= math.log(1e6):
        return "over a million"
    return f"{math.exp(log_e):.3g}"
