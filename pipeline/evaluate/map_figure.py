"""The figure of calibration maps: calibrated probability against score."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrators.arithmetic.calibration_map import CalibrationMap, Interval
from logcal.displays import MapDisplay
from logcal.displays.drawing import OTHERS, percent_ticks
from logcal.displays.view import View, set_logit_axes
from pipeline.evaluate.figures import AFTER, grid, render

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DASHES: tuple[Any, ...] = ((5, 2), (1.2, 1.2), (7, 2, 1.2, 2), (3, 1.2))


def map_figure(
    curves: Mapping[str, CalibrationMap],
    view: View,
    *,
    name: str,
    alt: str,
    interval: Interval | None = None,
) -> str:
    """Calibrated probability against score, as SVG; the first curve is drawn with its blocks.

    interval : of each row of the first map, shaded
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
    """Of the i-th curve: all but the first are dashed, and on top."""
    if i == 0:
        return {"color": AFTER}
    return {
        "color": OTHERS[(i - 1) % len(OTHERS)],
        "dashes": _DASHES[(i - 1) % len(_DASHES)],
        "zorder": 5,
    }
