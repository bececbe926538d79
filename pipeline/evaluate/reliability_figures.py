"""The report's figures of predictions: reliability, and how often each prediction is made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from calibrators.arithmetic.passes import Array, Points
from calibrators.measures.assessment import Assessment, ReliabilityBin
from calibrators.measures.decomposition import LEVEL, Decomposition, Reliability
from calibrators.measures.reliability_curve import ConsistencyBand, ReliabilityCurve
from logcal.displays import HistogramDisplay, ReliabilityDisplay
from logcal.displays.view import (
    LOWEST_SHOWN,
    draw_reference,
    logit,
    logit_ticks,
    percent,
    percent_ticks,
    score_label,
    score_unit,
)
from pipeline.evaluate.figures import Tip, grid, interval_text, number_text, render, share_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def reliability_diagram(found: Decomposition, side: Assessment, color: str, *, name: str, alt: str) -> str:
    """The curve without bins, where chance alone would put it, and how often each probability is predicted."""
    display = _display(found, side)

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        grid(axes, "both")
        display.plot(ax=axes, color=color)
        axes.set_xticks(*percent_ticks())
        axes.set_yticks(*percent_ticks())

    return render(draw, (4.6, 4.3), name, alt)


def _display(found: Decomposition, side: Assessment) -> ReliabilityDisplay:
    assert found.reliability is not None
    columns = found.reliability
    parts = (found.brier.miscalibration or 0.0, found.brier.discrimination, found.brier.uncertainty)
    curve = ReliabilityCurve(np.array(columns.predicted), np.array(columns.observed), *parts)
    band = None
    if len(columns.at) > 1:
        at, low, high = (np.array(column) for column in (columns.at, columns.low, columns.high))
        band = ConsistencyBand(at, low, high, LEVEL)
    edges, weight = np.array(side.histogram.edges), np.array(side.histogram.weight)
    seen = weight > 0
    middle = (edges[:-1] + edges[1:])[seen] / 2
    return ReliabilityDisplay(
        curve, Points(middle, weight[seen], np.array(side.histogram.positives)[seen]), band=band
    )


def group_diagram(
    groups: Sequence[ReliabilityBin],
    color: str,
    *,
    name: str,
    alt: str,
    limits: tuple[float, float] | None = None,
    curve: Reliability | None = None,
) -> str:
    """Observed frequency of groups, with its interval, against mean prediction.

    limits : of logit axes, where 0.1 % and 1 % are as far apart as 90 % and 99 %; groups beyond are hollow. None: plain
    curve : without bins, with its band; None: not known
    """
    ends = (0.0, 1.0) if limits is None else (logit(limits[0]), logit(limits[1]))

    def place(p: npt.ArrayLike) -> Array:
        return np.asarray(p) if limits is None else np.clip(logit(p), *ends)

    def draw(figure: Figure) -> list[Tip]:
        kind = "" if limits is None else " (logit axis)"
        axes = _square(figure, f"Predicted probability{kind}", f"Observed frequency{kind}")
        draw_reference(axes, *ends)
        if curve is not None:
            _draw_curve(axes, curve, color, place)
        *columns, size = _columns(groups)
        x, y, low, high = map(place, columns)
        axes.vlines(x, low, high, color=color, lw=1.4, alpha=0.75, clip_on=False)
        if curve is None:
            axes.plot(x, y, color=color, lw=1, alpha=0.5, clip_on=False)
        beyond = np.any([_beyond(column, limits or ends) for column in columns[:2]], axis=0)
        for chosen, face in ((~beyond, color), (beyond, "white")):
            axes.scatter(
                x[chosen], y[chosen], s=size[chosen], facecolor=face, zorder=3, clip_on=False,
                edgecolor=color if face == "white" else "white", linewidth=1.4 if face == "white" else 0.8,
            )  # fmt: skip
        if limits is None:
            axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
            axes.set_xticks(*percent_ticks())
            axes.set_yticks(*percent_ticks())
        else:
            axes.set(xlim=ends, ylim=ends)
            axes.set_xticks(*logit_ticks(limits, percent))
            axes.set_yticks(*logit_ticks(limits, percent, upright=True))
            axes.tick_params(axis="x", pad=8)  # off the lowest label of the other axis
        return _tips(groups, x, y)

    return render(draw, (4.6, 4.3), name, alt)


def _draw_curve(axes: Axes, curve: Reliability, color: str, place: Callable[[npt.ArrayLike], Array]) -> None:
    if len(curve.at) > 1:
        low, high = place(curve.low), place(curve.high)
        axes.fill_between(place(curve.at), low, high, color=color, alpha=0.15, lw=0)
    axes.plot(place(curve.predicted), place(curve.observed), color=color, lw=1.4)


def _tips(groups: Sequence[ReliabilityBin], x: Array, y: Array) -> list[Tip]:
    """Describe each group."""
    filled = [group for group in groups if group.frequency is not None]
    return [Tip(a, b, _told(group)) for a, b, group in zip(x.tolist(), y.tolist(), filled, strict=True)]


def _told(group: ReliabilityBin) -> str:
    assert group.mean_prediction is not None
    assert group.frequency is not None
    assert group.interval_low is not None
    assert group.interval_high is not None
    return (
        f"{number_text(group.weight)} in this group: predicted {share_text(group.mean_prediction)}, observed "
        f"{share_text(group.frequency)} ({interval_text(group.interval_low, group.interval_high)})"
    )


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


def _beyond(values: Array, limits: tuple[float, float]) -> npt.NDArray[np.bool_]:
    return (values < limits[0]) | (values > limits[1])


def any_beyond(sides: Sequence[Assessment], limits: tuple[float, float]) -> bool:
    """Tell whether a point of the sides' logit diagrams lies beyond the axes."""
    return any(_beyond(column, limits).any() for side in sides for column in _columns(side.by_frequency)[:2])


def histogram(side: Assessment, color: str, *, name: str, alt: str, label: str) -> str:
    """Share of the rows per bin of the predictions, positives set off."""
    found = side.histogram
    display = HistogramDisplay(np.array(found.edges), np.array(found.weight), np.array(found.positives))

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        grid(axes, "y")
        display.plot(ax=axes, color=color)
        axes.set_xlabel(score_label(label, score_unit(found.edges[0], found.edges[-1])))
        axes.yaxis.set_major_formatter(lambda value, _: percent(value))
        if side.probabilities:
            axes.set_xticks(*percent_ticks())
            axes.set_xlim(-0.02, 1.02)

    return render(draw, (4.6, 2.6), name, alt)


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
