"""The history of a watched table as a page: the evidence day by day, and how far the scores have moved."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from logcal.displays.drawing import MUTED
from pipeline.evaluate.figures import AFTER, day_axis, grid, render
from pipeline.evaluate.page import MISSING, render_page

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TEMPLATE = "drift.html.j2"
_SHOWN = 60
"""Days in the table, the latest first."""


def render_drift(
    title: str, days: Sequence[Mapping[str, Any]], alarms: Sequence[str], alpha: float, tolerance: float
) -> str:
    """The page as text: HTML without references to anything outside.

    days : of each `day`, `rows`, `observed`, `expected`, `log_e`, `psi`, `ks` and `segments_alarmed`
    alarms : in words. alpha, tolerance : what an alarm means
    """
    return render_page(
        TEMPLATE,
        title=title,
        headline="Alarm: the table's probabilities no longer come true." if alarms else "No alarm.",
        detail=_sentence("; ".join(alarms)),
        kind="high" if alarms else "within",
        alpha=f"{100 * alpha:g}",
        limit=f"{1 / alpha:g}",
        tolerance=f"{tolerance:g}",
        figure=render(
            partial(_draw, days, alpha),
            (6.4, 2.6),
            "evidence",
            "The e-value after each day, and the alarm's limit",
        ),
        rows=[_row(day) for day in reversed(days[-_SHOWN:])],
        count=len(days),
        shown=min(len(days), _SHOWN),
    )


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _row(day: Mapping[str, Any]) -> dict[str, str]:
    ratio = day["observed"] / day["expected"] if day["expected"] > 0 else None
    return {
        "day": str(day["day"]),
        "rows": f"{day['rows']:,.0f}",
        "observed": f"{day['observed']:,.0f}",
        "expected": f"{day['expected']:,.1f}",
        "ratio": MISSING if ratio is None else f"{ratio:.3f}",
        "e": _e(day["log_e"]),
        "psi": MISSING if day["psi"] is None else f"{day['psi']:.4f}",
        "ks": MISSING if day["ks"] is None else f"{day['ks']:.4f}",
        "segments": f"{day['segments_alarmed']:,}",
    }


def _e(log_e: float) -> str:
    if math.isinf(log_e):
        return "∞"
    return f"{math.exp(log_e):.3g}" if abs(log_e) < 20 else f"10^{log_e / math.log(10):.0f}"


def _draw(days: Sequence[Mapping[str, Any]], alpha: float, figure: Figure) -> None:
    axes = figure.subplots()
    limit = math.log10(1 / alpha)
    values = [min(day["log_e"] / math.log(10), 3 * limit) for day in days]
    axes.plot(range(len(values)), values, color=AFTER, marker="o", markersize=3, linewidth=1.2)
    axes.axhline(limit, color=MUTED, linestyle="--", linewidth=1)
    axes.set_ylabel("e-value (power of 10)")
    day_axis(axes, [str(day["day"]) for day in days])
    grid(axes, "y")
