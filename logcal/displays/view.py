"""Shared parts of the displays: colours, axes, legends; scores between two ends, on plain or logit axes."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from calibrators.arithmetic.calibration_map import CalibrationMap
from logcal.table import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes


Array = npt.NDArray[np.float64]

BLUE, ORANGE, MUTED = "#1f5f99", "#b8501f", "#8a929b"
OTHERS = ("#2e7d5b", "#8a4f9e", "#b07d12", "#a33b5c", "#3d8c99", "#5c6b2f")
"""Colours of further lines, after blue and orange; colour-blind readers can distinguish them."""

LOWEST_SHOWN = 1e-6
"""Probabilities nearer to 0 or 1 are drawn on the border of a logit axis."""

_TICKS = (0.5, 0.01, 0.99, 1e-4, 0.9999, 1e-6, 0.999999, 0.1, 0.9, 1e-3, 0.999, 1e-5, 0.99999)
"""Ticks of logit axes, those first whose labels matter most."""
_LETTER, _LINE = 0.024, 0.07
"""Width of a letter and height of a line, as shares of an axis of three inches or more."""


def axes_of(ax: Axes | None) -> Axes:
    """The axes that were given, or new ones."""
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    made: Axes = plt.subplots()[1]
    return made


def next_color(axes: Axes, first: str = BLUE) -> str:
    """Choose the first of blue, orange and others that no display has used on the axes; before these, `first`."""
    used = {line.get_color() for line in axes.get_lines() if line.get_gid() in ("reliability", "map")}
    palette = dict.fromkeys((first, BLUE, ORANGE, *OTHERS))
    return next((color for color in palette if color not in used), first)


def draw_reference(axes: Axes, low: float = 0.0, high: float = 1.0) -> None:
    """The dashed diagonal between two places, once on the same axes."""
    if not any(line.get_gid() == "reference" for line in axes.get_lines()):
        axes.plot([low, high], [low, high], color=MUTED, lw=1, dashes=(4, 3), gid="reference")


def name_of(of: Any) -> str | None:
    """Return a legend's name for a table or calibrator."""
    if isinstance(of, Table):
        return f"{of.facts.method}, {of.version}"
    return None if isinstance(of, CalibrationMap) else type(of).__name__


def logit(p: npt.ArrayLike) -> Any:
    """log(p / (1 - p)) of probabilities, infinite at 0 and 1. For drawing: `scipy.special` takes long to import."""
    odds = np.asarray(p, dtype=np.float64)
    with np.errstate(divide="ignore"):
        return np.log(odds) - np.log1p(-odds)


def logit_ticks(
    limits: tuple[float, float], text: Callable[[float], str], *, upright: bool = False
) -> tuple[Array, list[str]]:
    """Choose the ticks of a logit axis and label those whose labels do not touch one another.

    upright : whether the axis is the vertical one, on which labels need a line's height instead of their width
    """
    shown = np.array([tick for tick in _TICKS if limits[0] * 0.999 <= tick <= 1 - (1 - limits[1]) * 0.999])
    low, high = logit(limits)
    places = (logit(shown) - low) / (high - low)
    labels: list[str] = []
    ends: list[tuple[float, float]] = []
    for tick, place in zip(shown.tolist(), places.tolist(), strict=True):
        label = text(tick)
        half = (_LINE if upright else _LETTER * (len(label) + 1)) / 2
        free = all(place + half <= left or right <= place - half for left, right in ends)
        labels.append(label if free else "")
        if free:
            ends.append((place - half, place + half))
    return logit(shown), labels


def percent(share: float) -> str:
    """A share of 1 on an axis."""
    return f"{100 * share:.10g} %"


def percent_ticks() -> tuple[Array, list[str]]:
    """Places and labels from 0 to 100 %."""
    ticks = np.arange(6) / 5
    return ticks, [percent(tick) for tick in ticks]


def labelled(labels: npt.ArrayLike, *columns: Any) -> tuple[Any, ...]:
    """Rows whose label is known: None and NaN are labels that are not known yet, and a warning says how many.

    Parameters
    ----------
    labels : array-like, shape (n,)
    columns : array-likes, shape (n,), or None, which stays

    Returns
    -------
    labels and columns without these rows
    """
    array = np.asarray(labels)
    if array.ndim != 1:
        return labels, *columns
    known = np.asarray(pa.array(array, from_pandas=True).is_valid())
    if known.all():
        return labels, *columns
    warnings.warn(f"{int((~known).sum()):,} rows without a label were left out", stacklevel=3)
    left = array[known]
    if left.dtype == object:
        left = left.astype(np.float64)
    return left, *(None if column is None else np.asarray(column)[known] for column in columns)


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
        """Scores at which a map's line has corners: exact up to `EXACT_ROWS` rows, else as many places."""
        if len(calibration_map) > EXACT_ROWS:
            return self.grid(EXACT_ROWS)
        edges = calibration_map.score_hi[:-1]
        edges = edges[(edges > self.low) & (edges < self.high)]
        # Both sides of an edge, so that steps are upright; on logit axes what is straight is bent.
        more = self.grid(200 if self.logit_axes else 2)
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
