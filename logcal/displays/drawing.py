"""Shared parts of the displays: colours, axes, the line of no change, names for legends."""

from __future__ import annotations

import warnings
from collections.abc import Callable
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
