"""Pages of days: of a stream, and of a watched table; observed over expected positives, day by day."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from logcal.displays.view import MUTED
from logcal.errors import counted
from pipeline.evaluate.figures import AFTER, ALERT, day_axis, fact_text, grid, render, render_page

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


_DAYS_SHOWN = 60
"""Days in the figure and the table, the latest."""
_REFUSED_SHOWN = 50
_BATCH_COLUMNS = {
    "files": "Files",
    "rows": "Rows",
    "null_rows": "Null rows",
    "unseen_rows": "Unseen rows",
    "refused": "Refused",
    "waiting": "Not readable yet",
    "left": "Left",
    "seconds": "Seconds",
}
_ALWAYS = ("files", "rows", "seconds")


def render_stream(
    title: str,
    facts: Mapping[str, Any],
    refused: Mapping[str, str],
    batches: Sequence[tuple[str, Mapping[str, Any]]],
    days: Sequence[Mapping[str, Any]],
) -> str:
    """Render the page: HTML without references to anything outside.

    Parameters
    ----------
    facts : the stream's state by name: counts of files, the last batch, the table. Zeros and None are left out.
    refused : the reason for each refused file.
    batches : the last ones, when each ended and its counts, the oldest first.
    days : each with `day`, `version`, `rows`, and `observed` and `expected` positives, in order.
    """
    latest = list(days[-_DAYS_SHOWN:])
    ratios = [DayRatio.of(day) for day in latest]
    strange = bool(ratios) and ratios[-1].beyond
    rows = [{**report, "at": at, "refused": len(report["refused"])} for at, report in reversed(batches)]
    columns = {
        name: label
        for name, label in _BATCH_COLUMNS.items()
        if name in _ALWAYS or any(row[name] for row in rows)
    }
    return render_page(
        "stream.html.j2",
        title=title,
        headline=_state(facts, len(refused)),
        details=_details(refused, ratios[-1] if strange else None),
        kind="high" if refused or strange else "within",
        facts=[(name, fact_text(value)) for name, value in facts.items() if value not in (0, None, "")],
        figure=ratio_figure(ratios) if ratios else "",
        days=list(zip(ratios, latest, strict=True))[::-1],
        count=len(days),
        batches=rows,
        batch_columns=columns,
        refused=sorted(refused.items())[:_REFUSED_SHOWN] if len(refused) > 1 else [],
        refused_count=len(refused),
    )


def _state(facts: Mapping[str, Any], refused: int) -> str:
    """Say in one sentence how many files are scored, and how many are not."""
    said = [f"{counted(facts.get('files scored') or 0, 'file')} scored"]
    for count, state in (
        (facts.get("files to score") or 0, "to score"),
        (facts.get("files not readable yet") or 0, "not readable yet"),
        (refused, "refused"),
    ):
        if count:
            said.append(f"{count:,} {state}")
    return f"{', '.join(said)}{'' if len(said) > 1 else '; nothing is waiting'}."


def _details(refused: Mapping[str, str], strange: DayRatio | None) -> list[str]:
    said = []
    if len(refused) == 1:
        said += [f"Refused: {name}: {reason}" for name, reason in refused.items()]
    if strange is not None:
        excess = excess_sentence(strange.observed, strange.expected)
        said.append(f"On {strange.day} there were {excess}, which chance does not explain.")
    return said


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
    latest = days[-_DAYS_SHOWN:]
    ratios = [DayRatio.of(day) for day in latest]
    return render_page(
        "drift.html.j2",
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
        compared=f"{counted(len(days), 'day')} {'was' if len(days) == 1 else 'were'}",
        count=len(days),
        shown=len(latest),
    )


def e_value(log_e: float) -> str:
    """Write an e-value, given its logarithm; those that no reader compares any more as a bound."""
    if log_e >= math.log(1e6):
        return "over a million"
    e = math.exp(log_e)
    return f"{e:,.0f}" if e >= 100 else f"{e:.3g}"
