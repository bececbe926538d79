"""A stream as a page: how it stands, whether its table's probabilities came true day by day, its last batches."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from logcal.displays.drawing import MUTED
from pipeline.evaluate.figures import AFTER, BEFORE, day_axis, grid, render
from pipeline.evaluate.page import MISSING, fact_text, render_page

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TEMPLATE = "stream.html.j2"
_SHOWN = 60
"""Days, the latest."""

_REFUSED_SHOWN = 50
_BEYOND_CHANCE = 2.576
"""Standard errors: chance alone goes beyond them on one day of a hundred."""


def render_stream(
    title: str,
    facts: Mapping[str, Any],
    refused: Mapping[str, str],
    batches: Sequence[tuple[str, Mapping[str, Any]]],
    days: Sequence[Mapping[str, Any]],
) -> str:
    """The page as text: HTML without references to anything outside.

    Parameters
    ----------
    facts : how the stream stands
    refused : files that were refused, and why
    batches : the last ones, when each ended and its counts, the oldest first
    days : of each `day`, its `version`, `rows`, and `observed` and `expected` positives, in order
    """
    found = [_day(day) for day in days[-_SHOWN:]]
    headline = _headline(refused, found)
    return render_page(
        TEMPLATE,
        title=title,
        headline=headline,
        kind="within" if headline == _ALL_WELL else "high",
        facts=[(name, fact_text(value)) for name, value in facts.items()],
        figure=render(
            partial(_draw, found),
            (6.4, 2.6),
            "days",
            "Observed over expected positives, day by day, with bars of 95 %",
        )
        if found
        else "",
        days=list(reversed(found)),
        count=len(days),
        batches=[_batch(at, report) for at, report in reversed(batches)],
        refused=sorted(refused.items())[:_REFUSED_SHOWN],
        refused_count=len(refused),
    )


_ALL_WELL = "Every file was scored."


def _headline(refused: Mapping[str, str], days: Sequence[Mapping[str, Any]]) -> str:
    said = []
    if refused:
        said.append(
            f"{len(refused):,} files were refused, {min(refused)} the first of them."
            if len(refused) > 1
            else f"The file {min(refused)} was refused."
        )
    if days and days[-1]["beyond"]:
        last = days[-1]
        said.append(
            f"On {last['day']} there were {last['direction']} positives than expected, beyond chance."
        )
    return " ".join(said) or _ALL_WELL


def _day(day: Mapping[str, Any]) -> dict[str, Any]:
    """A day's ratio, with the interval of a count whose mean is its variance: positives are rare, or it is too wide."""
    observed, expected = float(day["observed"]), float(day["expected"])
    known = expected > 0
    ratio = observed / expected if known else math.nan
    error = math.sqrt(expected) / expected if known else math.nan
    z = (ratio - 1) / error if known else 0.0
    return {
        "day": str(day["day"]),
        "version": str(day["version"]),
        "rows": f"{day['rows']:,.0f}",
        "observed": f"{observed:,.0f}",
        "expected": f"{expected:,.1f}",
        "ratio": MISSING if not known else f"{ratio:.3f}",
        "value": ratio,
        "error": error,
        "beyond": abs(z) > _BEYOND_CHANCE,
        "direction": "more" if z > 0 else "fewer",
    }


def _batch(at: str, report: Mapping[str, Any]) -> dict[str, str]:
    counts = ("number", "files", "rows", "null_rows", "unseen_rows", "waiting", "left")
    return {
        "at": at,
        "version": str(report["version"]),
        "refused": f"{len(report['refused']):,}",
        "seconds": f"{report['seconds']:.2f}",
        **{name: f"{report[name]:,}" for name in counts},
    }


def _draw(days: Sequence[Mapping[str, Any]], figure: Figure) -> None:
    axes = figure.subplots()
    axes.axhline(1.0, color=MUTED, linestyle="--", linewidth=1)
    for beyond, color in ((False, AFTER), (True, BEFORE)):
        places = [i for i, day in enumerate(days) if day["beyond"] is beyond and not math.isnan(day["value"])]
        if places:
            axes.errorbar(
                places,
                [days[i]["value"] for i in places],
                yerr=[1.96 * days[i]["error"] for i in places],
                color=color,
                fmt="o",
                markersize=4,
                linewidth=1.2,
            )
    axes.set_ylabel("Observed over expected")
    day_axis(axes, [day["day"] for day in days])
    grid(axes, "y")
