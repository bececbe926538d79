"""The report's figures, as SVG text: the same text every time, and nothing in it that is not in the page.

Drawn with matplotlib's figure objects, without its global state; matplotlib is imported when a figure is drawn.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from calibrators.assessment import Assessment, ReliabilityBin
from calibrators.decomposition import Reliability
from calibrators.passes import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BEFORE = "#b8501f"
AFTER = "#1f5f99"
GRID, MUTED, INK = "#e3e6ea", "#8a929b", "#2b3138"

OTHERS = ("#2e7d5b", "#8a4f9e", "#b07d12", "#a33b5c", "#3d8c99", "#5c6b2f")
"""Of further lines, after `BEFORE` and `AFTER`."""

_VARIABLES = {
    BEFORE: "before",
    AFTER: "after",
    GRID: "grid",
    MUTED: "muted",
    INK: "ink",
    "#ffffff": "paper",
    **{color: f"other-{i + 1}" for i, color in enumerate(OTHERS)},
}
"""Colours that pages have variables for, so that a figure is drawn once for light and dark."""
_COLORS = re.compile("|".join(_VARIABLES))

LOWEST_SHOWN = 1e-6
"""Probabilities nearer to 0 or 1 are drawn on the border of a logit axis."""

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
_TICKS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999, 0.999999)


def logit(p: npt.ArrayLike) -> Any:
    """log(p / (1 - p)) of probabilities, infinite at 0 and 1. For drawing: `scipy.special` takes long to import."""
    odds = np.asarray(p, dtype=np.float64)
    with np.errstate(divide="ignore"):
        return np.log(odds) - np.log1p(-odds)


def reliability_diagram(
    groups: Sequence[ReliabilityBin],
    color: str,
    *,
    name: str,
    alt: str,
    curve: Reliability | None = None,
) -> str:
    """Observed frequency, with its interval, against mean prediction on probability axes.

    curve : without bins, with the band in which it would lie by chance
    """

    def draw(figure: Figure) -> None:
        axes = _square(figure, "Predicted probability", "Observed frequency")
        axes.plot([0, 1], [0, 1], color=MUTED, lw=1, dashes=(4, 3))
        _draw_curve(axes, curve, color, np.asarray)
        x, y, low, high, size = _columns(groups)
        axes.vlines(x, low, high, color=color, lw=1.4, alpha=0.75)
        if curve is None:
            axes.plot(x, y, color=color, lw=1, alpha=0.5)
        axes.scatter(x, y, s=size, color=color, edgecolor="white", linewidth=0.8, zorder=3, clip_on=False)
        axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
        ticks = np.arange(6) / 5
        axes.set_xticks(ticks, [percent(t) for t in ticks])
        axes.set_yticks(ticks, [percent(t) for t in ticks])

    return render(draw, (4.6, 4.3), name, alt)


def _draw_curve(axes: Axes, curve: Reliability | None, color: str, scale: Callable[[Any], Any]) -> None:
    if curve is None:
        return
    if len(curve.at) > 1:
        axes.fill_between(
            scale(curve.at), scale(curve.low), scale(curve.high), color=MUTED, alpha=0.25, linewidth=0
        )
    axes.plot(scale(curve.predicted), scale(curve.observed), color=color, lw=1.6)


def logit_diagram(
    groups: Sequence[ReliabilityBin],
    color: str,
    limits: tuple[float, float],
    *,
    name: str,
    alt: str,
    curve: Reliability | None = None,
) -> str:
    """The same on logit axes, where 0.1 % and 1 % are as far apart as 90 % and 99 %."""

    def draw(figure: Figure) -> None:
        axes = _square(figure, "Predicted probability (logit axis)", "Observed frequency (logit axis)")
        a, b = logit(limits[0]), logit(limits[1])
        axes.plot([a, b], [a, b], color=MUTED, lw=1, dashes=(4, 3))
        _draw_curve(axes, curve, color, lambda p: np.clip(logit(p), a, b))
        columns = _columns(groups)
        x, y, low, high = (np.clip(logit(column), a, b) for column in columns[:4])
        beyond = np.array(
            [_is_beyond(x, limits) or _is_beyond(y, limits) for x, y in zip(*columns[:2], strict=True)]
        )
        axes.vlines(x, low, high, color=color, lw=1.4, alpha=0.75, clip_on=False)
        if curve is None:
            axes.plot(x, y, color=color, lw=1, alpha=0.5, clip_on=False)
        for chosen, face in ((~beyond, color), (beyond, "white")):
            axes.scatter(
                x[chosen], y[chosen], s=columns[4][chosen], facecolor=face, zorder=3, clip_on=False,
                edgecolor=color if face == "white" else "white", linewidth=1.4 if face == "white" else 0.8,
            )  # fmt: skip
        axes.set(xlim=(a, b), ylim=(a, b))
        axes.set_xticks(*logit_ticks(limits, percent))
        axes.set_yticks(*logit_ticks(limits, percent))

    return render(draw, (4.6, 4.3), name, alt)


def logit_limits(sides: Sequence[Assessment]) -> tuple[float, float]:
    """Limits of logit axes on which all groups of all sides can be told apart, within `LOWEST_SHOWN`."""
    seen = [
        value
        for side in sides
        for group in side.by_frequency
        for value in (group.mean_prediction, group.frequency, group.interval_low, group.interval_high)
        if value is not None and 0 < value < 1
    ]
    low = max(LOWEST_SHOWN, min([0.01, *(value / 2 for value in seen)]))
    high = min(1 - LOWEST_SHOWN, max([0.99, *(1 - (1 - value) / 2 for value in seen)]))
    return low, high


def _is_beyond(value: float, limits: tuple[float, float]) -> bool:
    return not limits[0] <= value <= limits[1]


def any_beyond(sides: Sequence[Assessment], limits: tuple[float, float]) -> bool:
    """Whether a point of the sides' logit diagrams lies beyond the axes."""
    return any(
        value is not None and _is_beyond(value, limits)
        for side in sides
        for group in side.by_frequency
        for value in (group.mean_prediction, group.frequency)
    )


def histogram(side: Assessment, color: str, *, name: str, alt: str, label: str) -> str:
    """Share of the rows per bin of the predictions, positives set off."""
    found = side.histogram
    unit = score_unit(found.edges[0], found.edges[-1])
    edges = np.array(found.edges) / unit
    label = score_label(label, unit)
    share = np.array(found.weight) / side.weight
    positive = np.array(found.positives) / side.weight

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        grid(axes, "y")
        # One shape each: bars would be a hundred, and take ten times as long.
        filled: dict[str, Any] = {"edges": edges, "fill": True, "color": color, "linewidth": 0}
        axes.stairs(positive, label="label 1", **filled)
        axes.stairs(share, baseline=positive, alpha=0.32, label="label 0", **filled)
        axes.set(xlim=(edges[0], edges[-1]), xlabel=label, ylabel="Share of rows")
        axes.set_ylim(0, 1.15 * share.max())
        axes.yaxis.set_major_formatter(lambda value, _: percent(value))
        if side.probabilities:
            axes.set_xticks(np.arange(6) / 5, [percent(t) for t in np.arange(6) / 5])
        axes.legend(frameon=False, loc="upper center", ncols=2)

    return render(draw, (4.6, 2.6), name, alt)


def score_unit(low: float, high: float) -> float:
    """What to divide scores by to draw them: 1, or a power of 10 for scores whose differences may overflow."""
    largest = max(abs(low), abs(high))
    return 1.0 if largest < 1e100 else 10.0 ** math.floor(math.log10(largest))


def score_label(label: str, unit: float) -> str:
    """The label of an axis of scores."""
    return label if unit == 1 else f"{label} / {unit:g}"


def _columns(groups: Sequence[ReliabilityBin]) -> tuple[Array, Array, Array, Array, Array]:
    """Mean prediction, frequency, interval and size of the mark of the groups that are not empty."""
    filled = [group for group in groups if group.frequency is not None]
    columns = [
        np.array([getattr(group, name) for group in filled], dtype=np.float64)
        for name in ("mean_prediction", "frequency", "interval_low", "interval_high", "weight")
    ]
    share = columns[4] / columns[4].sum()
    return columns[0], columns[1], columns[2], columns[3], 24 + 130 * share


def _square(figure: Figure, xlabel: str, ylabel: str) -> Axes:
    axes = figure.add_subplot()
    axes.set_box_aspect(1)
    axes.set(xlabel=xlabel, ylabel=ylabel)
    grid(axes, "both")
    return axes


def grid(axes: Axes, which: Any) -> None:
    """Faint lines instead of tick marks."""
    axes.grid(axis=which, color=GRID, lw=0.8)
    axes.tick_params(length=0)
    axes.tick_params(axis="x", pad=7)


def logit_ticks(limits: tuple[float, float], text: Callable[[float], str]) -> tuple[Array, list[str]]:
    """Places and labels for a logit axis; where they are many, every other label."""
    shown = [tick for tick in _TICKS if limits[0] * 0.999 <= tick <= 1 - (1 - limits[1]) * 0.999]
    labels = [text(tick) if len(shown) <= 7 or tick in _SPARSE else "" for tick in shown]
    return logit(np.array(shown)), labels


_SPARSE = (1e-6, 1e-4, 1e-2, 0.5, 0.99, 0.9999, 0.999999)


def percent(share: float) -> str:
    """A share of 1 on an axis."""
    return f"{100 * share:.10g} %"


def render(draw: Callable[[Figure], None], size: tuple[float, float], name: str, alt: str) -> str:
    """Draw on a figure of a size in inches and return its SVG element, scalable and labelled."""
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    buffer = io.StringIO()
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_STYLE)
        figure = Figure(figsize=size)
        FigureCanvasSVG(figure)
        figure.subplots_adjust(**_margins(*size))
        draw(figure)
        for axes in figure.axes:
            # Upright above the axis: that can be read, and needs no margin as wide as the widest number.
            axes.set_title(axes.get_ylabel(), loc="left", fontsize=10)
            axes.set_ylabel("")
        figure.savefig(
            buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None}
        )
    return _inline(buffer.getvalue(), name, alt)


def day_axis(axes: Axes, days: Sequence[str]) -> None:
    """Days, as YYYY-MM-DD, along the first axis: some of them by month and day, with the years they are of."""
    step = max(1, math.ceil(len(days) / 10))
    axes.set_xticks(range(0, len(days), step), [day[5:] for day in days[::step]])
    years = sorted({day[:4] for day in days})
    axes.set_xlabel(f"Day of {' to '.join(dict.fromkeys((years[0], years[-1])))}" if years else "")


def _margins(width: float, height: float) -> dict[str, float]:
    """Around one pair of axes, the same in all figures: measuring their labels would draw each figure twice."""
    left, bottom, right, top = 0.85, 0.55, 0.15, 0.35  # inches
    return {
        "left": left / width,
        "bottom": bottom / height,
        "right": 1 - right / width,
        "top": 1 - top / height,
    }


def _inline(text: str, name: str, alt: str) -> str:
    """An SVG document as an element of a page: no prolog, no fixed size, names that occur once in the page."""
    from markupsafe import escape

    text = text[text.index("<svg") :].strip()
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = text.replace('xlink:href="#', f'xlink:href="#{name}-').replace("url(#", f"url(#{name}-")
    text = text.replace("'DejaVu Sans'", _FONTS)
    head = re.compile(
        r'<svg ([^>]*?)height="[^"]*"([^>]*?)width="[^"]*"|<svg ([^>]*?)width="[^"]*"([^>]*?)height="[^"]*"'
    )
    text = head.sub(lambda m: "<svg " + "".join(group or "" for group in m.groups()), text, count=1)
    text = _COLORS.sub(lambda found: f"var(--{_VARIABLES[found[0]]}, {found[0]})", text)
    return text.replace("<svg ", f'<svg role="img" aria-label="{escape(alt)}" ', 1)
