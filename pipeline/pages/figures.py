"""HTML pages and their figures: rendering of templates, formats of facts, and SVG without external references."""

from __future__ import annotations

import datetime as dt
import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from calibrators.core.map import CalibrationMap, Interval
from logcal.displays import MapDisplay
from logcal.displays.view import BLUE, MUTED, ORANGE, OTHERS, View, percent_ticks, set_logit_axes
from pipeline.files import clock
from pipeline.files.records import jsonable

if TYPE_CHECKING:
    from markupsafe import Markup
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


MISSING = "–"
_CODE = re.compile(r"`([^`<>]+)`")
_UNBROKEN = re.compile(r"\d{4}-\d\d-\d\d(?: \d\d:\d\d:\d\d UTC)?|\d{6}-[0-9a-f]{12}|[\d.,]+ %|e-value")
"""Dates, versions, percentages and e-values, which are not broken across lines."""


def render_page(
    template: str, filters: Mapping[str, Callable[..., str]] | None = None, **content: Any
) -> str:
    """Render a page: HTML without external references; the same text for the same content at the same second.

    template : name of a template in pipeline/pages/templates that extends page.html.j2
    filters : further filters of the template
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("pipeline.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "whole": _unbroken,
        "fact": fact_text,
        "measure": measure_text,
        "change": change_text,
        "share": share_text,
        "number": number_text,
        "utc": utc_text,
        **(filters or {}),
    }
    return environment.get_template(template).render({"missing": MISSING, "written": clock.now(), **content})


def utc_text(time: dt.datetime) -> str:
    """Format a time, such as '2026-01-31 06:30:00 UTC'."""
    return f"{time.astimezone(dt.UTC):%Y-%m-%d %H:%M:%S} UTC"


def _unbroken(text: str) -> Markup:
    """Escape a text, keep its dates, versions, percentages and e-values on one line, and set commands as code."""
    from markupsafe import Markup, escape

    escaped = _CODE.sub(r"<code>\1</code>", str(escape(text)))
    return Markup(_UNBROKEN.sub(r'<span class="whole">\g<0></span>', escaped))  # noqa: S704 - it is escaped


def fact_groups(facts: Mapping[str, Any]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return groups of facts as (heading, rows); facts without a group come first, with an empty heading."""
    ungrouped = {name: value for name, value in facts.items() if not isinstance(value, Mapping)}
    groups = {name: value for name, value in facts.items() if name not in ungrouped}
    return [
        (heading.replace("_", " "), [(key.replace("_", " "), fact_text(item)) for key, item in rows.items()])
        for heading, rows in ({"": ungrouped} | groups).items()
        if rows
    ]


def fact_text(value: Any) -> str:
    """Format a fact for display."""
    value = jsonable(value)
    if value is None:
        return MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.6g}"
    if isinstance(value, dict):
        return ", ".join(f"{key} = {fact_text(item)}" for key, item in value.items()) or "none"
    if isinstance(value, list):
        return ", ".join(fact_text(item) for item in value) or "none"
    return str(value)


# Formats of the report's numbers.


def measure_text(value: float | None) -> str:
    """Format a measure; None becomes a dash."""
    if value is None:
        return MISSING
    if math.isinf(value):
        return "∞"
    return f"{value:.4f}" if value == 0 or abs(value) >= 5e-4 else f"{value:.2g}"


def change_text(value: float | None) -> str:
    """Format a difference of measures, with its sign."""
    text = MISSING if value is None else f"{value:+.4f}"
    return "0.0000" if text in ("+0.0000", "-0.0000") else text.replace("-", "−")


def interval_text(low: float, high: float) -> str:
    """Format an interval of fractions in percent."""
    low_text, high_text = _percent(low), _percent(high)
    return f"{low_text} %" if low_text == high_text else f"{low_text} – {high_text} %"


def share_text(value: float) -> str:
    """Format a fraction in percent."""
    return f"{_percent(value)} %"


def _percent(value: float) -> str:
    """Format a fraction in percent, with more digits close to 0 and 100."""
    percent = 100 * value
    distance = min(percent, 100 - percent)
    if distance <= 0 or round(percent, 9) == round(percent):
        return f"{percent:.0f}"
    if distance < 0.001:
        return "<0.001" if percent < 50 else ">99.999"
    return f"{percent:.{1 if distance >= 1 else 1 - math.floor(math.log10(distance))}f}"


def number_text(value: float) -> str:
    """Format a count or a sum of weights."""
    whole = value == round(value) or abs(value) >= 1e4
    return f"{value:,.0f}" if whole and abs(value) < 1e15 else f"{value:,.4g}"


BEFORE, AFTER, ALERT = ORANGE, BLUE, "#a12b2b"
GRID, INK = "#e3e6ea", "#2b3138"

_VARIABLES = {
    BEFORE: "before",
    AFTER: "after",
    ALERT: "bad",
    GRID: "grid",
    MUTED: "muted",
    INK: "ink",
    "#ffffff": "paper",
    **{color: f"other-{i + 1}" for i, color in enumerate(OTHERS)},
}
"""CSS variables of colours: one figure serves the light and the dark page."""
_COLORS = re.compile("|".join(_VARIABLES))

_STYLE = {
    "svg.hashsalt": "logcal",
    "svg.fonttype": "none",
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "xtick.color": INK,
    "ytick.color": INK,
    "text.color": INK,
    "figure.facecolor": "none",
    "axes.facecolor": "white",
}
_FONTS = "system-ui, -apple-system, 'Segoe UI', 'Liberation Sans', Arial, sans-serif"


def grid(axes: Axes, axis: Any) -> None:
    """Draw faint lines instead of tick marks. axis : "x", "y" or "both"."""
    axes.grid(axis=axis, color=GRID, lw=0.8)
    axes.tick_params(length=0)
    axes.tick_params(axis="x", pad=7)


class Tip(NamedTuple):
    """Tooltip of a point of a figure. x, y : data coordinates of the axes."""

    x: float
    y: float
    text: str


def render(
    draw: Callable[[Figure], Sequence[Tip] | None], size: tuple[float, float], name: str, alt: str
) -> str:
    """Draw a figure with a size in inches; return its SVG element, scalable and labelled.

    draw : draws on the figure; may return tooltips for points of its first axes
    """
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    buffer = io.StringIO()
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_STYLE)
        figure = Figure(figsize=size, dpi=_DPI)
        FigureCanvasSVG(figure)
        # Fixed margins in inches: a layout that measures labels would draw each figure twice.
        width, height = size
        figure.subplots_adjust(0.85 / width, 0.55 / height, 1 - 0.15 / width, 1 - 0.35 / height)
        tips = draw(figure) or ()
        for axes in figure.axes:
            for line in axes.get_lines():
                line.set_gid(None)  # ids must be unique within a page
            # A horizontal label above the axis is readable and needs no margin.
            axes.set_title(axes.get_ylabel(), loc="left", fontsize=10)
            axes.set_ylabel("")
        figure.savefig(
            buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None}
        )
        circles = [_circle(figure, tip) for tip in tips]
    return _inline(buffer.getvalue(), name, alt).replace("</svg>", f"{''.join(circles)}</svg>")


_DPI = 72
"""Dots per inch: one SVG unit is one point."""


def _circle(figure: Figure, tip: Tip) -> str:
    """Return an invisible circle around a point; browsers show its title as a tooltip."""
    from markupsafe import escape

    x, y = figure.axes[0].transData.transform((tip.x, tip.y))
    y = figure.bbox.height - y
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="9" fill="transparent"><title>{escape(tip.text)}</title></circle>'


def day_axis(axes: Axes, days: Sequence[str]) -> None:
    """Label the x axis with at most about ten of the days (YYYY-MM-DD), by month and day, and with their years."""
    step = max(1, math.ceil(len(days) / 10))
    axes.set_xticks(range(0, len(days), step), [day[5:] for day in days[::step]])
    years = sorted({day[:4] for day in days})
    axes.set_xlabel(f"Day of {' to '.join(dict.fromkeys((years[0], years[-1])))}" if years else "")


def _inline(text: str, name: str, alt: str) -> str:
    """Turn an SVG document into an element of a page: no prolog, no fixed size, ids that are unique in the page."""
    from markupsafe import escape

    head, text = text[text.index("<svg") :].strip().split(">", 1)
    head = re.sub(r' (?:width|height)="[^"]*"', "", head)
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = text.replace('xlink:href="#', f'xlink:href="#{name}-').replace("url(#", f"url(#{name}-")
    text = text.replace("'DejaVu Sans'", _FONTS)
    text = _COLORS.sub(lambda color: f"var(--{_VARIABLES[color[0]]}, {color[0]})", text)
    return f'{head} role="img" aria-label="{escape(alt)}">{text}'


# Figures of calibration maps.

_DASHES: tuple[Any, ...] = ((5, 2), (1.2, 1.2), (7, 2, 1.2, 2), (3, 1.2))


def map_figure(
    curves: Mapping[str, CalibrationMap],
    view: View,
    *,
    name: str,
    alt: str,
    interval: Interval | None = None,
) -> str:
    """Draw calibrated probability against score, as SVG; the first map with its blocks.

    curves : maps by label
    interval : interval of the rows of the first map, to be shaded
    """

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        grid(axes, "both")
        for i, (label, calibration_map) in enumerate(curves.items()):
            MapDisplay.from_calibrator(
                calibration_map,
                limits=(view.low, view.high),
                logit_axes=view.logit_axes,
                interval=interval if i == 0 else None,
                ax=axes,
                blocks=i == 0,
                lw=1.6,
                label=label if len(curves) > 1 else None,
                **_style(i),
            )
        if view.logit_axes:
            set_logit_axes(axes, view, np.concatenate([view.levels(other) for other in curves.values()]))
        else:
            low, high = view.low / view.unit, view.high / view.unit
            margin = 0.02 * (high - low)
            axes.set(xlim=(low - margin, high + margin))
            axes.set_yticks(*percent_ticks())
        if len(curves) > 1:
            axes.legend(frameon=False, loc="upper left", fontsize=9)

    return render(draw, (4.6, 3.9), name, alt)


def _style(i: int) -> dict[str, Any]:
    """Return the style of the i-th curve: all but the first are dashed and on top."""
    if i == 0:
        return {"color": AFTER}
    return {
        "color": OTHERS[(i - 1) % len(OTHERS)],
        "dashes": _DASHES[(i - 1) % len(_DASHES)],
        "zorder": 5,
    }
