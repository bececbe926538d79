"""Observed over expected positives day by day: their figure, and the page of a watched table."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from logcal.displays.view import MUTED
from logcal.errors import counted
from pipeline.pages.figures import AFTER, ALERT, INK, Tip, day_axis, grid, render, render_page

if TYPE_CHECKING:
    from matplotlib.figure import Figure


BEYOND_CHANCE = 2.576
"""Number of standard errors that chance alone exceeds on one day in a hundred."""


@dataclass(frozen=True)
class DayRatio:
    """Observed and expected positives of a day.

    Attributes
    ----------
    day : YYYY-MM-DD
    version : version of the table that the day was compared with
    rows, observed, expected : totals of the day, >= 0
    set_aside : whether a later fit left the day out
    """

    day: str
    version: str
    rows: float
    observed: float
    expected: float
    set_aside: bool = False

    @classmethod
    def of(cls, day: Mapping[str, Any]) -> DayRatio:
        """Make it from a day of a table's history."""
        rows, observed, expected = (float(day[name]) for name in ("rows", "observed", "expected"))
        return cls(str(day["day"]), str(day["version"]), rows, observed, expected, bool(day["set_aside"]))

    @property
    def ratio(self) -> float:
        """Observed over expected positives; NaN if none were expected."""
        return self.observed / self.expected if self.expected > 0 else math.nan

    @property
    def error(self) -> float:
        """Standard error of the ratio if the table is right: that of a Poisson count, which is an upper bound."""
        return 1 / math.sqrt(self.expected) if self.expected > 0 else math.nan

    @property
    def beyond(self) -> bool:
        """True if the ratio differs from 1 beyond chance."""
        return abs(self.ratio - 1) > BEYOND_CHANCE * self.error


def excess_sentence(observed: float, expected: float) -> str:
    """Describe the error of a table: "31 % more positives than predicted"."""
    if expected <= 0:
        return f"{observed:,.0f} positives where none was predicted"
    percent = 100 * abs(observed / expected - 1)
    size = f"{percent:.0f}" if percent >= 9.5 else f"{percent:.2g}"
    return f"{size} % {'more' if observed > expected else 'fewer'} positives than predicted"


def ratio_figure(days: Sequence[DayRatio], alarms: Collection[str] = ()) -> str:
    """Draw the ratios of the days, and the range that chance explains, as an SVG element.

    alarms : days with an alarm
    """
    alt = "Observed over expected positives by day, and the range that chance explains on 19 of 20 days"
    return render(partial(_draw, days, alarms), (8.0, 3.0), "days", alt)


def _draw(days: Sequence[DayRatio], alarms: Collection[str], figure: Figure) -> list[Tip]:
    axes = figure.subplots()
    drawn = [(i, day) for i, day in enumerate(days) if not math.isnan(day.ratio)]
    # Edges halfway between days, so that a single day has a band too.
    edges = [-0.5, *(i + 0.5 for i in range(len(days)))]
    for i, day in drawn:
        width = 1.96 * day.error
        axes.fill_between(edges[i : i + 2], max(0.0, 1 - width), 1 + width, color=MUTED, alpha=0.25, lw=0)
    axes.axhline(1.0, color=MUTED, linestyle="--", linewidth=1)
    # A few days far off do not flatten the others: they lie on the upper edge, as triangles.
    heights = sorted(max(day.ratio, 1 + 1.96 * day.error) for _, day in drawn) or [1.0]
    top = 1.3 * heights[len(heights) * 19 // 20]
    size = 5 if len(days) <= _FEW_DAYS else 3.5
    for i, day in drawn:
        color = ALERT if day.beyond else AFTER
        axes.plot(
            [i],
            [min(day.ratio, top)],
            "^" if day.ratio > top else "o",
            color=color,
            markerfacecolor="#ffffff" if day.set_aside else color,
            markersize=size,
        )
    low, high = axes.get_ylim()
    low -= 0.07 * (high - low)
    for i, day in enumerate(days):
        if day.day in alarms:
            axes.axvline(i, color=ALERT, linewidth=1.2, zorder=0)
        if i and day.version != days[i - 1].version:
            axes.plot([i - 0.5] * 2, [low, low + 0.05 * (high - low)], color=INK, linewidth=0.9)
    axes.set_ylim(low, high)
    axes.set_ylabel("Observed over expected positives")
    day_axis(axes, [day.day for day in days])
    grid(axes, "y")
    return [
        Tip(i, min(day.ratio, top), f"{day.day}: {day.ratio:.3f} under {day.version}") for i, day in drawn
    ]


_FEW_DAYS = 45
"""Number of days up to which they are drawn as large points."""
DAYS_SHOWN = 120
"""Number of days in a figure and its table: the latest ones."""


@dataclass(frozen=True)
class PageAlarm:
    """Alarm of a watched table, for its page.

    Attributes
    ----------
    day : the day that raised it
    version : version that the day was compared with
    message : what was found
    open : whether nobody has closed it, and it is recent
    closing : what closed it, if it is not open
    """

    day: str
    version: str
    message: str
    open: bool
    closing: str


def render_drift(
    title: str, days: Sequence[Mapping[str, Any]], alarms: Sequence[PageAlarm], alpha: float, tolerance: float
) -> str:
    """Render the page of a watched table: HTML without external references.

    Parameters
    ----------
    days : `day`, `version`, `rows`, `observed`, `expected`, `log_e`, `psi`, `ks`, `segments_alarmed` and `set_aside` of
        each day, in order
    alarms : all alarms, in order
    alpha : false alarm rate in (0, 1)
    tolerance : factor >= 1 up to which the table's odds may be wrong
    """
    latest = days[-DAYS_SHOWN:]
    ratios = [DayRatio.of(day) for day in latest]
    first = latest[0]["day"] if latest else ""
    shown = [alarm for alarm in alarms if alarm.day >= first or alarm.open][::-1]
    still = [alarm for alarm in shown if alarm.open]
    compared = counted(len(days), "day")
    headline = (
        f"Alarm of {still[0].day}: {still[0].message}" if still else f"No drift was found in {compared}."
    )
    if shown and not still:
        headline = f"No alarm is open; {compared} compared."
    return render_page(
        "drift.html.j2",
        title=title,
        headline=headline,
        details=[f"{counted(len(still) - 1, 'more alarm')} below."] if len(still) > 1 else [],
        kind="high" if still else "within",
        alarms=shown,
        alpha=f"{100 * alpha:g}",
        limit=f"{1 / alpha:g}",
        tolerance=f"{tolerance:g}",
        figure=ratio_figure(ratios, {alarm.day for alarm in shown}) if days else "",
        rows=list(zip(ratios, latest, strict=True))[::-1],
        distances=["psi", "ks"] if any(day["psi"] is not None for day in days) else [],
        segments=any(day["segments_alarmed"] for day in days),
        versions=len({day["version"] for day in latest}) > 1,
        aside=any(day["set_aside"] for day in latest),
        e_value=e_value,
        compared=f"{compared} {'was' if len(days) == 1 else 'were'}",
        count=len(days),
        shown=len(latest),
    )


def e_value(log_e: float) -> str:
    """Format an e-value, given its logarithm; from a million on as a bound."""
    if log_e >= math.log(1e6):
        return "over a million"
    e = math.exp(log_e)
    return f"{e:,.0f}" if e >= 100 else f"{e:.3g}"
