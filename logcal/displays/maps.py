"""Calibration maps: calibrated probability against score."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from calibrators.base import Calibrator
from calibrators.core.arrays import Array
from calibrators.core.map import CalibrationMap, Interval
from logcal.displays.view import (
    View,
    axes_of,
    draw_reference,
    linear_view,
    logit_view,
    name_of,
    next_color,
    score_label,
    set_logit_axes,
)
from logcal.table import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_NARROW = 0.004  # fraction of the axis: narrower blocks are drawn as dots


@dataclass(eq=False, repr=False)
class MapDisplay:
    """Display of a calibration map: calibrated probability against score.

    Parameters
    ----------
    score, probability : float64 arrays of one shape
        Corners of the line, ascending in score.
    name : str or None
        Name in the legend.
    blocks : float64 array, shape (blocks, 3), or None
        Start, end and probability of blocks: ranges of scores with one probability.
    band : tuple of two float64 arrays, or None
        The lowest and the highest probability at each corner.
    logit_axes : bool
        Whether both axes are logit axes; scores are then probabilities.

    Attributes
    ----------
    score, probability, name, blocks, band : the parameters
    ax_ : matplotlib Axes
    figure_ : matplotlib Figure
    line_ : matplotlib Line2D

    Examples
    --------
    >>> from calibrators import Isotonic
    >>> from logcal import MapDisplay
    >>> display = MapDisplay.from_calibrator(Isotonic().fit([0.1, 0.4, 0.6, 0.8], [0, 1, 0, 1]))
    >>> bool(display.probability.min() >= 0)
    True
    """

    score: Array
    probability: Array
    _: KW_ONLY
    name: str | None = None
    blocks: Array | None = None
    band: tuple[Array, Array] | None = None
    logit_axes: bool = False
    ax_: Axes = field(init=False)
    figure_: Figure = field(init=False)
    line_: Any = field(init=False)

    @property
    def _view(self) -> View:
        return View(float(self.score[0]), float(self.score[-1]), self.logit_axes)

    @classmethod
    def from_calibrator(
        cls,
        calibrator: Calibrator | CalibrationMap,
        *,
        limits: tuple[float, float] | None = None,
        logit_axes: bool = False,
        interval: Interval | None = None,
        name: str | None = None,
        ax: Axes | None = None,
        **kwargs: Any,
    ) -> Self:
        """Draw a fitted calibrator's map.

        Parameters
        ----------
        calibrator : fitted Calibrator, or CalibrationMap
        limits : tuple of two floats, optional
            Scores to draw between. None: 0 and 1 if all edges of rows lie between them, otherwise the outermost edges;
            on logit axes the limits show all edges.
        logit_axes : bool
            Whether to use logit axes; for maps of probabilities.
        interval : Interval, optional
            Interval of each row of the map, to be shaded.
        name : str, optional
            Name in the legend. None: the calibrator's class.
        ax : matplotlib Axes, optional
        **kwargs : dict
            Arguments of `plot`.

        Returns
        -------
        MapDisplay
        """
        map_ = calibrator if isinstance(calibrator, CalibrationMap) else calibrator.calibration_map_
        view = logit_view(map_) if logit_axes and limits is None else linear_view(map_, limits)
        view = View(view.low, view.high, logit_axes)
        score = view.corners(map_)
        band = None if interval is None else interval.at(map_.score_hi, score)
        display = cls(
            score,
            map_.predict(score),
            name=name or name_of(calibrator),
            blocks=view.blocks(map_),
            band=band,
            logit_axes=logit_axes,
        )
        return display.plot(ax=ax, **kwargs)

    @classmethod
    def from_table(
        cls,
        table: Table,
        *,
        limits: tuple[float, float] | None = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> Self:
        """Draw a published table's map, against transformed scores; with segments, the map of all rows.

        Parameters
        ----------
        table : Table
            Result of `logcal.load`.
        limits, name : as in `from_calibrator`
        **kwargs : dict
            Arguments of `from_calibrator` and `plot`.

        Returns
        -------
        MapDisplay
        """
        return cls.from_calibrator(table.map, limits=limits, name=name or name_of(table), **kwargs)

    def plot(
        self,
        *,
        ax: Axes | None = None,
        name: str | None = None,
        ref_line: bool = True,
        blocks: bool = False,
        **kwargs: Any,
    ) -> Self:
        """Draw the map.

        Parameters
        ----------
        ax : matplotlib Axes, optional
            Axes to draw on; None: new ones.
        name : str, optional
            Name in the legend; None: the display's name.
        ref_line : bool
            Whether to draw the diagonal, for scores in [0, 1]; once on the same axes.
        blocks : bool
            Whether to draw blocks as thick lines.
        **kwargs : dict
            Arguments of matplotlib's `plot` for the line.

        Returns
        -------
        self
        """
        axes = self.ax_ = axes_of(ax)
        self.figure_ = axes.figure  # type: ignore[assignment]
        view = self._view
        if ref_line and view.low >= 0 and view.high <= 1:
            draw_reference(axes, *view.x(np.array([view.low, view.high])).tolist())
        style = {"color": next_color(axes), "lw": 1.8, "zorder": 4, **kwargs}
        label = name if name is not None else self.name
        if label:
            style.setdefault("label", label)
        x = view.x(self.score)
        (self.line_,) = axes.plot(x, view.y(self.probability), gid="map", **style)
        if self.band is not None:
            low, high = (view.y(end) for end in self.band)
            axes.fill_between(x, low, high, color=self.line_.get_color(), alpha=0.16, lw=0, zorder=2)
        if blocks:
            self._draw_blocks()
        if view.logit_axes:
            set_logit_axes(axes, view, self.probability)
        else:
            axes.set(
                xlabel=score_label("Score", view.unit), ylabel="Calibrated probability", ylim=(-0.02, 1.02)
            )
        if label:
            axes.legend(loc="upper left", frameon=False, fontsize="small")
        return self

    def _draw_blocks(self) -> None:
        """Draw blocks as thick lines, or as dots if they are too narrow to see."""
        if self.blocks is None:
            return
        view, color = self._view, self.line_.get_color()
        start, end = (view.x(self.blocks[:, i]) for i in range(2))
        level = view.y(self.blocks[:, 2])
        self.ax_.hlines(level, start, end, color=color, lw=3.2, zorder=4)
        narrow = end - start < _NARROW * np.ptp(view.x(np.array([view.low, view.high])))
        self.ax_.scatter(start[narrow], level[narrow], s=6, color=color, zorder=4)
