"""Shared parts of the displays: colours, axes, legends, and views of scores on linear or logit axes."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from calibrators.core.arrays import Array
from calibrators.core.map import CalibrationMap
from logcal.table import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes


BLUE, ORANGE, MUTED = "#1f5f99", "#b8501f", "#8a929b"
OTHERS = ("#2e7d5b", "#8a4f9e", "#b07d12", "#a33b5c", "#3d8c99", "#5c6b2f")
"""Colours of further lines, after blue and orange; safe for colour-blind readers."""

LOWEST_SHOWN = 1e-6
"""Probabilities nearer to 0 or 1 are drawn at the end of a logit axis."""

_TICKS = (0.5, 0.01, 0.99, 1e-4, 0.9999, 1e-6, 0.999999, 0.1, 0.9, 1e-3, 0.999, 1e-5, 0.99999)
"""Ticks of logit axes, in the order in which they get labels."""
_LETTER, _LINE = 0.024, 0.07
"""Width of a letter and height of a line of text, as fractions of an axis of at least three inches."""


def axes_of(ax: Axes | None) -> Axes:
    """Return the given axes, or new ones."""
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    axes: Axes = plt.subplots()[1]
    return axes


def next_color(axes: Axes, first: str = BLUE) -> str:
    """Return the first unused colour on the axes among `first`, blue, orange and others."""
    used = {line.get_color() for line in axes.get_lines() if line.get_gid() in ("reliability", "map")}
    palette = dict.fromkeys((first, BLUE, ORANGE, *OTHERS))
    return next((color for color in palette if color not in used), first)


def draw_reference(axes: Axes, low: float = 0.0, high: float = 1.0) -> None:
    """Draw the dashed diagonal between two points, once on the same axes."""
    if not any(line.get_gid() == "reference" for line in axes.get_lines()):
        axes.plot([low, high], [low, high], color=MUTED, lw=1, dashes=(4, 3), gid="reference")


def name_of(source: Any) -> str | None:
    """Return the name of a table or calibrator in legends; None for a map."""
    if isinstance(source, Table):
        return f"{source.facts.method}, {source.version}"
    return None if isinstance(source, CalibrationMap) else type(source).__name__


def logit(p: npt.ArrayLike) -> Any:
    """Return log(p / (1 - p)), infinite at 0 and 1. For drawing: `scipy.special` takes long to import."""
    odds = np.asarray(p, dtype=np.float64)
    with np.errstate(divide="ignore"):
        return np.log(odds) - np.log1p(-odds)


def logit_ticks(
    limits: tuple[float, float], text: Callable[[float], str], *, vertical: bool = False
) -> tuple[Array, list[str]]:
    """Choose the ticks of a logit axis, and label those whose labels do not overlap.

    text : function from a tick to its label
    vertical : whether it is the y axis, on which a label takes the height of a line instead of its width
    """
    shown = np.array([tick for tick in _TICKS if limits[0] * 0.999 <= tick <= 1 - (1 - limits[1]) * 0.999])
    low, high = logit(limits)
    positions = (logit(shown) - low) / (high - low)
    labels: list[str] = []
    taken: list[tuple[float, float]] = []
    for tick, position in zip(shown.tolist(), positions.tolist(), strict=True):
        label = text(tick)
        half = (_LINE if vertical else _LETTER * (len(label) + 1)) / 2
        fits = all(position + half <= left or right <= position - half for left, right in taken)
        labels.append(label if fits else "")
        if fits:
            taken.append((position - half, position + half))
    return logit(shown), labels


def percent(share: float) -> str:
    """Format a share of 1 as a percentage."""
    return f"{100 * share:.10g} %"


def percent_ticks() -> tuple[Array, list[str]]:
    """Return ticks and their labels from 0 to 100 %."""
    ticks = np.arange(6) / 5
    return ticks, [percent(tick) for tick in ticks]


def drop_unlabelled(labels: npt.ArrayLike, *columns: Any) -> tuple[Any, ...]:
    """Drop rows whose label is None or NaN, with a warning that counts them.

    Parameters
    ----------
    labels : array-like, shape (n,)
    columns : array-likes, shape (n,), or None

    Returns
    -------
    labels and columns of the other rows; None stays None
    """
    array = np.asarray(labels)
    if array.ndim != 1:
        return labels, *columns
    valid = np.asarray(pa.array(array, from_pandas=True).is_valid())
    if valid.all():
        return labels, *columns
    warnings.warn(f"{int((~valid).sum()):,} rows without a label were left out", stacklevel=3)
    array = array[valid]
    if array.dtype == object:
        array = array.astype(np.float64)
    return array, *(None if column is None else np.asarray(column)[valid] for column in columns)


EXACT_ROWS = 1500
"""Maps with more rows are drawn at this number of scores."""

_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class View:
    """View of the scores from `low` to `high` on linear or logit axes."""

    low: float
    high: float
    logit_axes: bool = False

    @property
    def unit(self) -> float:
        """Divisor of scores on linear axes."""
        return score_unit(self.low, self.high)

    def x(self, scores: Array) -> Array:
        """Return the positions of scores on the x axis."""
        return self.y(scores) if self.logit_axes else scores / self.unit

    def y(self, probabilities: Array) -> Array:
        """Return the positions of probabilities on the y axis."""
        if not self.logit_axes:
            return probabilities
        height: Array = logit(np.clip(probabilities, LOWEST_SHOWN, 1 - LOWEST_SHOWN))
        return height

    def grid(self, count: int) -> Array:
        """Return `count` scores at equal distances on the axis, ends included."""
        ends = self.x(np.array([self.low, self.high]))
        t = np.arange(count) / (count - 1)
        even = ends[0] * (1 - t) + ends[1] * t
        scores: Array = 1 / (1 + np.exp(-even)) if self.logit_axes else even * self.unit
        scores[[0, -1]] = self.low, self.high
        return np.clip(scores, self.low, self.high)

    def corners(self, calibration_map: CalibrationMap) -> Array:
        """Return the scores at which a map's line has corners; above `EXACT_ROWS` rows, a grid of that size."""
        if len(calibration_map) > EXACT_ROWS:
            return self.grid(EXACT_ROWS)
        edges = calibration_map.score_hi[:-1]
        edges = edges[(edges > self.low) & (edges < self.high)]
        # Scores on both sides of an edge make steps vertical. On logit axes, lines are curves and need a grid.
        grid = self.grid(200 if self.logit_axes else 2)
        return np.unique(np.concatenate([grid, np.nextafter(edges, -np.inf), edges]))

    def blocks(self, calibration_map: CalibrationMap) -> Array:
        """Return start, end and probability of the blocks in view, shape (blocks, 3); none above `EXACT_ROWS` rows."""
        if len(calibration_map) > EXACT_ROWS:
            return np.empty((0, 3))
        visible = (calibration_map.score_hi > self.low) & (calibration_map.score_lo < self.high)
        block = visible & (calibration_map.slope == 0) & (calibration_map.weight > 0)
        start = np.maximum(calibration_map.score_lo[block], self.low)
        end = np.minimum(calibration_map.score_hi[block], self.high)
        return np.column_stack([start, end, calibration_map.prob_lo[block]])

    def levels(self, calibration_map: CalibrationMap) -> Array:
        """Return the probabilities at the starts of the rows in view, which exclude most of a line from 0 to 1 %."""
        starts = calibration_map.score_lo
        return calibration_map.prob_lo[(starts >= self.low) & (starts < self.high)]


def linear_view(calibration_map: CalibrationMap, limits: tuple[float, float] | None) -> View:
    """Return the view between limits; by default from 0 to 1, or between the outermost edges if any is outside."""
    if limits is None:
        edges = calibration_map.score_hi[:-1]
        inside = edges.size == 0 or (edges[0] >= 0 and edges[-1] <= 1)
        limits = (0.0, 1.0) if inside else (float(edges[0]), float(edges[-1]))
        if limits[0] == limits[1]:
            limits = (limits[0] - 0.5, limits[1] + 0.5)
    return View(*limits)


def logit_view(calibration_map: CalibrationMap) -> View:
    """Return the view of a map of probabilities that shows its outermost edges, as far as `LOWEST_SHOWN`."""
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
    """Return the label of an axis of scores."""
    return label if unit == 1 else f"{label} / {unit:g}"


def set_logit_axes(axes: Axes, view: View, levels: Array) -> None:
    """Set limits, ticks and labels of logit axes so that the maps' levels can be distinguished."""
    inside = levels[(levels > 0) & (levels < 1)]
    low = max(LOWEST_SHOWN, np.min(0.7 * inside, initial=0.01))
    high = min(1 - LOWEST_SHOWN, np.max(1 - 0.7 * (1 - inside), initial=0.99))
    axes.set(xlim=(logit(view.low), logit(view.high)), ylim=(logit(low), logit(high)))
    axes.set(xlabel="Score (logit axis)", ylabel="Calibrated probability (logit axis)")
    axes.set_xticks(*logit_ticks((view.low, view.high), _tick_label))
    axes.set_yticks(*logit_ticks((low, high), percent, vertical=True))


def _tick_label(tick: float) -> str:
    """Format a tick: 0.01, but 10⁻⁴ and 1−10⁻⁴."""
    distance = min(tick, 1 - tick)
    if distance > 5e-3:
        return f"{tick:g}"
    power = "10" + str(round(math.log10(distance))).translate(_SUPERSCRIPTS)
    return power if tick < 0.5 else f"1−{power}"
