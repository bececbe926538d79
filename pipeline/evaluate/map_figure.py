"""The figure of calibration maps: calibrated probability against score."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrators.calibration_map import CalibrationMap, Interval
from calibrators.passes import Array
from pipeline.evaluate.figures import (
    AFTER,
    LOWEST_SHOWN,
    MUTED,
    OTHERS,
    grid,
    logit,
    logit_ticks,
    percent,
    render,
    score_label,
    score_unit,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

EXACT_ROWS = 1500
"""Maps of more rows are drawn at this many places."""

_DASHES: tuple[Any, ...] = ((5, 2), (1.2, 1.2), (7, 2, 1.2, 2), (3, 1.2))


@dataclass(frozen=True)
class View:
    """What a figure shows: scores from `low` to `high`, on plain or logit axes."""

    low: float
    high: float
    logit_axes: bool = False

    @property
    def unit(self) -> float:
        """What scores are divided by on plain axes."""
        return score_unit(self.low, self.high)

    def place(self, scores: Array) -> Array:
        """Where scores lie on the axis."""
        return self.height(scores) if self.logit_axes else scores / self.unit

    def height(self, probabilities: Array) -> Array:
        """Where probabilities lie on the upright axis."""
        if not self.logit_axes:
            return probabilities
        height: Array = logit(np.clip(probabilities, LOWEST_SHOWN, 1 - LOWEST_SHOWN))
        return height

    def between(self, count: int) -> Array:
        """Scores that lie evenly on the axis, ends included."""
        ends = self.place(np.array([self.low, self.high]))
        t = np.arange(count) / (count - 1)
        even = ends[0] * (1 - t) + ends[1] * t
        scores: Array = 1 / (1 + np.exp(-even)) if self.logit_axes else even * self.unit
        scores[[0, -1]] = self.low, self.high
        return np.clip(scores, self.low, self.high)


def logit_view(calibration_map: CalibrationMap) -> View:
    """The view of a map of probabilities in which its outermost edges can be seen, within `LOWEST_SHOWN`."""
    edges = calibration_map.score_hi[:-1]
    edges = edges[(edges > 0) & (edges < 1)]
    low = max(LOWEST_SHOWN, np.min(edges / 2, initial=0.01))
    high = min(1 - LOWEST_SHOWN, np.max(1 - (1 - edges) / 2, initial=0.99))
    return View(float(low), float(high), logit_axes=True)


def map_figure(
    curves: Mapping[str, CalibrationMap],
    view: View,
    *,
    name: str,
    alt: str,
    interval: Interval | None = None,
) -> str:
    """Calibrated probability against score, as SVG; the first curve is drawn with its blocks, and on top.

    interval : of each row of the first map, shaded
    """

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        grid(axes, "both")
        if view.low >= 0 and view.high <= 1:
            ends = view.place(np.array([view.low, view.high]))
            axes.plot(ends, ends, color=MUTED, lw=1, dashes=(4, 3), label="no change")
        if interval is not None:
            _draw_interval(axes, view, next(iter(curves.values())), interval)
        for i, (label, calibration_map) in enumerate(curves.items()):
            _draw_curve(axes, view, i, label, calibration_map)
        _draw_blocks(axes, view, next(iter(curves.values())))
        _set_axes(axes, view, np.concatenate([_levels(other, view) for other in curves.values()]))
        if len(curves) > 1:
            axes.legend(frameon=False, loc="upper left", fontsize=9)

    return render(draw, (4.6, 3.9), name, alt)


def _levels(calibration_map: CalibrationMap, view: View) -> Array:
    """Where the rows in view begin: unlike the line, these do not pass everything between levels 0 and 1 %."""
    return calibration_map.prob_lo[
        (calibration_map.score_lo >= view.low) & (calibration_map.score_lo < view.high)
    ]


def _draw_curve(axes: Axes, view: View, i: int, label: str, calibration_map: CalibrationMap) -> None:
    x, y = curve(calibration_map, view)
    style: dict[str, Any] = {"color": AFTER, "zorder": 4}
    if i > 0:
        style = {
            "color": OTHERS[(i - 1) % len(OTHERS)],
            "dashes": _DASHES[(i - 1) % len(_DASHES)],
            "zorder": 5,
        }
    axes.plot(view.place(x), view.height(y), lw=1.6, label=label, **style)


def _draw_interval(axes: Axes, view: View, calibration_map: CalibrationMap, interval: Interval) -> None:
    x, _ = curve(calibration_map, view)
    lower, upper = (view.height(end) for end in interval.at(calibration_map.score_hi, x))
    axes.fill_between(view.place(x), lower, upper, color=AFTER, alpha=0.16, lw=0, zorder=2)


def _draw_blocks(axes: Axes, view: View, calibration_map: CalibrationMap) -> None:
    """Set off the blocks of scores that share a probability; blocks too narrow to see become dots."""
    if len(calibration_map) > EXACT_ROWS:
        return
    seen = (calibration_map.score_hi > view.low) & (calibration_map.score_lo < view.high)
    block = seen & (calibration_map.slope == 0) & (calibration_map.weight > 0)
    left = view.place(np.maximum(calibration_map.score_lo[block], view.low))
    right = view.place(np.minimum(calibration_map.score_hi[block], view.high))
    level = view.height(calibration_map.prob_lo[block])
    axes.hlines(level, left, right, color=AFTER, lw=3.2, zorder=4)
    narrow = right - left < 0.004 * np.ptp(view.place(np.array([view.low, view.high])))
    axes.scatter(left[narrow], level[narrow], s=6, color=AFTER, zorder=4)


def curve(calibration_map: CalibrationMap, view: View) -> tuple[Array, Array]:
    """Scores and probabilities of a map as a line: exact up to `EXACT_ROWS` rows, else at as many places."""
    if len(calibration_map) > EXACT_ROWS:
        x = view.between(EXACT_ROWS)
        return x, calibration_map.predict(x)
    edges = calibration_map.score_hi[:-1]
    edges = edges[(edges > view.low) & (edges < view.high)]
    # Both sides of an edge, so that steps are upright; on logit axes what is straight is bent.
    more = view.between(200 if view.logit_axes else 2)
    x = np.unique(np.concatenate([more, np.nextafter(edges, -np.inf), edges]))
    return x, calibration_map.predict(x)


def _set_axes(axes: Axes, view: View, levels: Array) -> None:
    if not view.logit_axes:
        low, high = view.low / view.unit, view.high / view.unit
        margin = 0.02 * (high - low)
        axes.set(xlim=(low - margin, high + margin), ylim=(-0.02, 1.02))
        axes.set(xlabel=score_label("Score", view.unit), ylabel="Calibrated probability")
        axes.set_yticks(np.arange(6) / 5, [percent(t) for t in np.arange(6) / 5])
        return
    inside = levels[(levels > 0) & (levels < 1)]
    low = max(LOWEST_SHOWN, np.min(0.7 * inside, initial=0.01))
    high = min(1 - LOWEST_SHOWN, np.max(1 - 0.7 * (1 - inside), initial=0.99))
    axes.set(xlim=(logit(view.low), logit(view.high)), ylim=(logit(low), logit(high)))
    axes.set(xlabel="Score (logit axis)", ylabel="Calibrated probability (logit axis)")
    axes.set_xticks(*logit_ticks((view.low, view.high), _short))
    axes.set_yticks(*logit_ticks((low, high), percent))


def _short(tick: float) -> str:
    """0.01, but 10⁻⁴ and 1−10⁻⁴."""
    rest = min(tick, 1 - tick)
    if rest > 5e-3:
        return f"{tick:g}"
    power = "10" + str(round(math.log10(rest))).translate(_RAISED)
    return power if tick < 0.5 else f"1−{power}"


_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
