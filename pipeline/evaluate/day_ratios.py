"""Observed over expected positives, day by day: the numbers and the figure of the drift and the stream page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from logcal.displays.drawing import MUTED
from pipeline.evaluate.figures import AFTER, ALERT, day_axis, grid, render

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BEYOND_CHANCE = 2.576
"""Standard errors: chance alone exceeds them on one day in a hundred."""


@dataclass(frozen=True)
class DayRatio:
    """One day's observed and expected positives.

    Attributes
    ----------
    day : YYYY-MM-DD. rows, observed, expected : totals of the day, >= 0.
    """

    day: str
    rows: float
    observed: float
    expected: float

    @classmethod
    def of(cls, day: Mapping[str, Any]) -> DayRatio:
        """Read it from a day of a table's history."""
        return cls(str(day["day"]), *(float(day[name]) for name in ("rows", "observed", "expected")))

    @property
    def ratio(self) -> float:
        """Observed over expected; NaN if nothing was expected."""
        return self.observed / self.expected if self.expected > 0 else math.nan

    @property
    def error(self) -> float:
        """Standard error of the ratio if the table is right: that of a Poisson count, an upper bound."""
        return 1 / math.sqrt(self.expected) if self.expected > 0 else math.nan

    @property
    def beyond(self) -> bool:
        """True if the ratio differs from 1 by more than chance explains."""
        return abs(self.ratio - 1) > BEYOND_CHANCE * self.error


def excess_sentence(observed: float, expected: float) -> str:
    """Say in words by how much a table is off: "31 % more positives than predicted"."""
    if expected <= 0:
        return f"{observed:,.0f} positives where none was predicted"
    percent = 100 * abs(observed / expected - 1)
    size = f"{percent:.0f}" if percent >= 9.5 else f"{percent:.2g}"
    return f"{size} % {'more' if observed > expected else 'fewer'} positives than predicted"


def ratio_figure(days: Sequence[DayRatio]) -> str:
    """Draw the days' ratios over the range that chance explains, as an SVG element."""
    alt = "Observed over expected positives by day, and the range that chance explains on 19 of 20 days"
    return render(partial(_draw, days), (6.4, 2.8), "days", alt)


def _draw(days: Sequence[DayRatio], figure: Figure) -> None:
    axes = figure.subplots()
    known = [(i, day) for i, day in enumerate(days) if not math.isnan(day.ratio)]
    places = [i for i, _ in known]
    spread = [1.96 * day.error for _, day in known]
    # A single day has a band, too.
    edges = [-0.5, *(i + 0.5 for i in range(len(days)))]
    for i, width in zip(places, spread, strict=True):
        axes.fill_between(edges[i : i + 2], max(0.0, 1 - width), 1 + width, color=MUTED, alpha=0.25, lw=0)
    axes.axhline(1.0, color=MUTED, linestyle="--", linewidth=1)
    for beyond, color in ((False, AFTER), (True, ALERT)):
        shown = [(i, day.ratio) for i, day in known if day.beyond is beyond]
        axes.plot([i for i, _ in shown], [ratio for _, ratio in shown], "o", color=color, markersize=5)
    axes.set_ylabel("Observed over expected positives")
    day_axis(axes, [day.day for day in days])
    grid(axes, "y")
