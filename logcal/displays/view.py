"""View of calibration maps: scores between two ends, on plain or logit axes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from calibrators.arithmetic.calibration_map import CalibrationMap
from logcal.displays.drawing import LOWEST_SHOWN, Array, logit, logit_ticks, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

EXACT_ROWS = 1500
"""Maps of more rows are drawn at this many places."""

_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class View:
    """Scores from `low` to `high`, on plain or logit axes."""

    low: float
    high: float
    logit_axes: bool = False

    @property
    def unit(self) -> float:
        """Divisor of scores on plain axes."""
        return score_unit(self.low, self.high)

    def place(self, scores: Array) -> Array:
        """Return the positions of scores on the horizontal axis."""
        return self.height(scores) if self.logit_axes else scores / self.unit

    def height(self, probabilities: Array) -> Array:
        """Return the positions of probabilities on the vertical axis."""
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

    def corners(self, calibration_map: CalibrationMap) -> Array:
        """Scores at which a map's line has corners: exact up to `EXACT_ROWS` rows, else as many places."""
        if len(calibration_map) > EXACT_ROWS:
            return self.between(EXACT_ROWS)
        edges = calibration_map.score_hi[:-1]
        edges = edges[(edges > self.low) & (edges < self.high)]
        # Both sides of an edge, so that steps are upright; on logit axes what is straight is bent.
        more = self.between(200 if self.logit_axes else 2)
        return np.unique(np.concatenate([more, np.nextafter(edges, -np.inf), edges]))

    def blocks(self, calibration_map: CalibrationMap) -> Array:
        """From, to and level of the ranges in view that share a probability, shape (blocks, 3); none of many."""
        if len(calibration_map) > EXACT_ROWS:
            return np.empty((0, 3))
        seen = (calibration_map.score_hi > self.low) & (calibration_map.score_lo < self.high)
        block = seen & (calibration_map.slope == 0) & (calibration_map.weight > 0)
        left = np.maximum(calibration_map.score_lo[block], self.low)
        right = np.minimum(calibration_map.score_hi[block], self.high)
        return np.column_stack([left, right, calibration_map.prob_lo[block]])

    def levels(self, calibration_map: CalibrationMap) -> Array:
        """Starts of the rows in view: unlike the line, these do not pass everything between levels 0 and 1 %."""
        begins = calibration_map.score_lo
        return calibration_map.prob_lo[(begins >= self.low) & (begins < self.high)]


def plain_view(calibration_map: CalibrationMap, limits: tuple[float, float] | None) -> View:
    """The view between limits; without them from 0 to 1 where all ends of rows lie there, else to the outermost."""
    if limits is None:
        ends = calibration_map.score_hi[:-1]
        inside = ends.size == 0 or (ends[0] >= 0 and ends[-1] <= 1)
        limits = (0.0, 1.0) if inside else (float(ends[0]), float(ends[-1]))
        if limits[0] == limits[1]:
            limits = (limits[0] - 0.5, limits[1] + 0.5)
    return View(*limits)


def logit_view(calibration_map: CalibrationMap) -> View:
    """The view of a map of probabilities in which its outermost edges can be seen, within `LOWEST_SHOWN`."""
    edges = calibration_map.score_hi[:-1]
    edges = edges[(edges > 0) & (edges < 1)]
    low = max(LOWEST_SHOWN, np.min(edges / 2, initial=0.01))
    high = min(1 - LOWEST_SHOWN, np.max(1 - (1 - edges) / 2, initial=0.99))
    return View(float(low), float(high), logit_axes=True)


def score_unit(low: float, high: float) -> float:
    """Return the divisor of scores for drawing: 1, or a power of 10 for scores whose differences may overflow."""
    largest = max(abs(low), abs(high))
    return 1.0 if largest < 1e100 else 10.0 ** math.floor(math.log10(largest))


def score_label(label: str, unit: float) -> str:
    """The label of an axis of scores."""
    return label if unit == 1 else f"{label} / {unit:g}"


def set_logit_axes(axes: Axes, view: View, levels: Array) -> None:
    """Limits, ticks and labels of logit axes on which levels of maps can be told apart."""
    inside = levels[(levels > 0) & (levels < 1)]
    low = max(LOWEST_SHOWN, np.min(0.7 * inside, initial=0.01))
    high = min(1 - LOWEST_SHOWN, np.max(1 - 0.7 * (1 - inside), initial=0.99))
    axes.set(xlim=(logit(view.low), logit(view.high)), ylim=(logit(low), logit(high)))
    axes.set(xlabel="Score (logit axis)", ylabel="Calibrated probability (logit axis)")
    axes.set_xticks(*logit_ticks((view.low, view.high), _short))
    axes.set_yticks(*logit_ticks((low, high), percent, upright=True))


def _short(tick: float) -> str:
    """0.01, but 10⁻⁴ and 1−10⁻⁴."""
    rest = min(tick, 1 - tick)
    if rest > 5e-3:
        return f"{tick:g}"
    power = "10" + str(round(math.log10(rest))).translate(_RAISED)
    return power if tick < 0.5 else f"1−{power}"
