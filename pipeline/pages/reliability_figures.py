"""Figures of predictions in the report: reliability diagrams and histograms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from calibrators.core.arrays import Array, Mask
from calibrators.core.passes import Points
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
from pipeline.pages.figures import Tip, grid, interval_text, number_text, render, share_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def reliability_diagram(parts: Decomposition, side: Assessment, color: str, *, name: str, alt: str) -> str:
    """Draw the reliability curve without bins, its band under calibration, and a histogram of the predictions."""
    display = _display(parts, side)

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        grid(axes, "both")
        display.plot(ax=axes, color=color)
        axes.set_xticks(*percent_ticks())
        axes.set_yticks(*percent_ticks())

    return render(draw, (4.6, 4.3), name, alt)


def _display(parts: Decomposition, side: Assessment) -> ReliabilityDisplay:
    assert parts.reliability is not None
    columns = parts.reliability
    brier = (parts.brier.miscalibration or 0.0, parts.brier.discrimination, parts.brier.uncertainty)
    curve = ReliabilityCurve(np.array(columns.predicted), np.array(columns.observed), *brier)
    band = None
    if len(columns.at) > 1:
        at, low, high = (np.array(column) for column in (columns.at, columns.low, columns.high))
        band = ConsistencyBand(at, low, high, LEVEL)
    edges, weight = np.array(side.histogram.edges), np.array(side.histogram.weight)
    filled = weight > 0
    middle = (edges[:-1] + edges[1:])[filled] / 2
    return ReliabilityDisplay(
        curve, Points(middle, weight[filled], np.array(side.histogram.positives)[filled]), band=band
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
    """Draw the observed frequency of groups, with its interval, against the mean prediction.

    limits : limits of logit axes, which show 0.1 % and 1 % as far apart as 90 % and 99 %; groups beyond them are
        hollow. None: linear axes
    curve : reliability curve without bins, with its band; None: unknown
    """
    ends = (0.0, 1.0) if limits is None else (logit(limits[0]), logit(limits[1]))

    def scale(p: npt.ArrayLike) -> Array:
        return np.asarray(p) if limits is None else np.clip(logit(p), *ends)

    def draw(figure: Figure) -> list[Tip]:
        kind = "" if limits is None else " (logit axis)"
        axes = _square(figure, f"Predicted probability{kind}", f"Observed frequency{kind}")
        draw_reference(axes, *ends)
        if curve is not None:
            _draw_curve(axes, curve, color, scale)
        *columns, size = _columns(groups)
        x, y, low, high = map(scale, columns)
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
            axes.set_yticks(*logit_ticks(limits, percent, vertical=True))
            axes.tick_params(axis="x", pad=8)  # off the lowest label of the other axis
        return _tips(groups, x, y)

    return render(draw, (4.6, 4.3), name, alt)


def _draw_curve(axes: Axes, curve: Reliability, color: str, scale: Callable[[npt.ArrayLike], Array]) -> None:
    if len(curve.at) > 1:
        low, high = scale(curve.low), scale(curve.high)
        axes.fill_between(scale(curve.at), low, high, color=color, alpha=0.15, lw=0)
    axes.plot(scale(curve.predicted), scale(curve.observed), color=color, lw=1.4)


def _tips(groups: Sequence[ReliabilityBin], x: Array, y: Array) -> list[Tip]:
    """Return the tooltips of the groups that are not empty."""
    filled = [group for group in groups if group.frequency is not None]
    return [Tip(a, b, _tip_text(group)) for a, b, group in zip(x.tolist(), y.tolist(), filled, strict=True)]


def _tip_text(group: ReliabilityBin) -> str:
    assert group.mean_prediction is not None
    assert group.frequency is not None
    assert group.interval_low is not None
    assert group.interval_high is not None
    return (
        f"{number_text(group.weight)} in this group: predicted {share_text(group.mean_prediction)}, observed "
        f"{share_text(group.frequency)} ({interval_text(group.interval_low, group.interval_high)})"
    )


def logit_limits(sides: Sequence[Assessment]) -> tuple[float, float]:
    """Return limits of logit axes that contain all groups of all sides, within `LOWEST_SHOWN`."""
    values = [
        value
        for side in sides
        for group in side.by_frequency
        for value in (group.mean_prediction, group.frequency, group.interval_low, group.interval_high)
        if value is not None and 0 < value < 1
    ]
    low = max(LOWEST_SHOWN, min([0.01, *(value / 2 for value in values)]))
    high = min(1 - LOWEST_SHOWN, max([0.99, *(1 - (1 - value) / 2 for value in values)]))
    return low, high


def _beyond(values: Array, limits: tuple[float, float]) -> Mask:
    return (values < limits[0]) | (values > limits[1])


def any_beyond(sides: Sequence[Assessment], limits: tuple[float, float]) -> bool:
    """Return whether any point of the sides' logit diagrams lies beyond the axes."""
    return any(_beyond(column, limits).any() for side in sides for column in _columns(side.by_frequency)[:2])


def histogram(side: Assessment, color: str, *, name: str, alt: str, label: str) -> str:
    """Draw the share of the rows in each bin of the predictions, positives in a stronger colour."""
    counts = side.histogram
    display = HistogramDisplay(np.array(counts.edges), np.array(counts.weight), np.array(counts.positives))

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        grid(axes, "y")
        display.plot(ax=axes, color=color)
        axes.set_xlabel(score_label(label, score_unit(counts.edges[0], counts.edges[-1])))
        axes.yaxis.set_major_formatter(lambda value, _: percent(value))
        if side.probabilities:
            axes.set_xticks(*percent_ticks())
            axes.set_xlim(-0.02, 1.02)

    return render(draw, (4.6, 2.6), name, alt)


def _columns(groups: Sequence[ReliabilityBin]) -> tuple[Array, Array, Array, Array, Array]:
    """Return mean prediction, frequency, interval and marker size of the groups that are not empty."""
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
