"""Calibration maps: calibrated probability against score."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from calibrators.arithmetic.calibration_map import CalibrationMap, Interval
from calibrators.methods.base import Calibrator
from logcal.displays.view import (
    Array,
    View,
    axes_of,
    draw_reference,
    logit_view,
    name_of,
    next_color,
    plain_view,
    score_label,
    set_logit_axes,
)
from logcal.table import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_NARROW = 0.004  # of the axis: what is narrower is drawn as a dot


@dataclass(eq=False, repr=False)
class MapDisplay:
    """A calibration map: calibrated probability against score.

    Parameters
    ----------
    score, probability : float64 arrays of one shape
        Corners of the line, ascending in score.
    name : str or None
        For the legend.
    blocks : float64 array, shape (blocks, 3), or None
        From, to and probability of ranges of scores that share one.
    band : tuple of two float64 arrays, or None
        The lowest and the highest probability at each corner.
    logit_axes : bool
        Whether 0.1 % and 1 % are as far apart as 90 % and 99 %; scores are then probabilities.

    Attributes
    ----------
    score, probability, name, blocks, band : as given
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
            Scores to draw between. None: 0 and 1 where all ends of rows lie between them, otherwise the outermost; on
            logit axes so that all ends of rows can be seen.
        logit_axes : bool
            For maps of probabilities: whether both ends are stretched.
        interval : Interval, optional
            Of each row of the map, to be shaded.
        name : str, optional
            None: the calibrator's class.
        ax : matplotlib Axes, optional
        **kwargs : dict
            For `plot`.

        Returns
        -------
        MapDisplay
        """
        own = calibrator if isinstance(calibrator, CalibrationMap) else calibrator.calibration_map_
        view = logit_view(own) if logit_axes and limits is None else plain_view(own, limits)
        view = View(view.low, view.high, logit_axes)
        score = view.corners(own)
        band = None if interval is None else interval.at(own.score_hi, score)
        made = cls(
            score,
            own.predict(score),
            name=name or name_of(calibrator),
            blocks=view.blocks(own),
            band=band,
            logit_axes=logit_axes,
        )
        return made.plot(ax=ax, **kwargs)

    @classmethod
    def from_table(
        cls,
        table: Table,
        *,
        limits: tuple[float, float] | None = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> Self:
        """Draw a published table's map, from scores as its transform makes them; with segments that of all rows.

        Parameters
        ----------
        table : Table
            As `logcal.load` gives it.
        limits, name : as in `from_calibrator`
        **kwargs : dict
            For `from_calibrator`, and `plot`.

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
        """Draw it.

        Parameters
        ----------
        ax : matplotlib Axes, optional
            To draw on; None: new ones.
        name : str, optional
            For the legend, instead of the display's own.
        ref_line : bool
            Whether to draw, for scores in [0, 1], the line that leaves scores as they are; once on the same axes.
        blocks : bool
            Whether to draw scores that share a probability as a thick line.
        **kwargs : dict
            Of the line, as matplotlib's `plot` takes them.

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
        place = view.x(self.score)
        (self.line_,) = axes.plot(place, view.y(self.probability), gid="map", **style)
        if self.band is not None:
            low, high = (view.y(end) for end in self.band)
            axes.fill_between(place, low, high, color=self.line_.get_color(), alpha=0.16, lw=0, zorder=2)
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
        """Blocks too narrow to see become dots."""
        if self.blocks is None:
            return
        view, color = self._view, self.line_.get_color()
        left, right = (view.x(self.blocks[:, i]) for i in range(2))
        level = view.y(self.blocks[:, 2])
        self.ax_.hlines(level, left, right, color=color, lw=3.2, zorder=4)
        narrow = right - left < _NARROW * np.ptp(view.x(np.array([view.low, view.high])))
        self.ax_.scatter(left[narrow], level[narrow], s=6, color=color, zorder=4)
