"""Reliability diagram without bins, and histogram of the predicted probabilities."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from calibrators.base import Calibrator
from calibrators.core.arrays import Array
from calibrators.core.map import CalibrationMap
from calibrators.core.passes import Points, collapse
from calibrators.measures.reliability_curve import (
    ConsistencyBand,
    ReliabilityCurve,
    consistency_band,
    probability_points,
    reliability_curve,
)
from logcal.displays.view import (
    BLUE,
    ORANGE,
    axes_of,
    draw_reference,
    drop_unlabelled,
    name_of,
    next_color,
    score_label,
    score_unit,
)
from logcal.table import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_BINS = 50


@dataclass(eq=False, repr=False)
class ReliabilityDisplay:
    """Reliability diagram without bins: observed frequency against predicted probability, with a consistency band.

    The curve is the isotonic regression of the labels on the probabilities (CORP): where it runs above the diagonal,
    predictions are too low. The band is where, by chance, the curves of calibrated predictions lie.

    Parameters
    ----------
    curve : ReliabilityCurve
    points : Points
        The predictions, with labels summed over ties.
    band : ConsistencyBand or None
    name : str or None
        Name in the legend.

    Attributes
    ----------
    curve, points, band, name : the parameters
    ax_ : matplotlib Axes
    figure_ : matplotlib Figure
    line_ : matplotlib Line2D: the curve

    See Also
    --------
    from_predictions, from_estimator, from_table : make and draw a display.

    References
    ----------
    Dimitriadis, Gneiting & Jordan (2021), "Stable reliability diagrams for probabilistic classifiers", PNAS 118,
    e2016191118, doi:10.1073/pnas.2016191118.

    Examples
    --------
    >>> from logcal import ReliabilityDisplay
    >>> display = ReliabilityDisplay.from_predictions([0, 0, 1, 0, 1, 1], [0.1, 0.2, 0.3, 0.4, 0.6, 0.9])
    >>> display.curve.observed.round(2)
    array([0. , 0. , 0.5, 0.5, 1. , 1. ])
    """

    curve: ReliabilityCurve
    points: Points
    _: KW_ONLY
    band: ConsistencyBand | None = None
    name: str | None = None
    ax_: Axes = field(init=False)
    figure_: Figure = field(init=False)
    line_: Any = field(init=False)

    @classmethod
    def from_predictions(
        cls,
        labels: npt.ArrayLike,
        probabilities: npt.ArrayLike,
        *,
        sample_weight: npt.ArrayLike | None = None,
        name: str | None = None,
        band: float | None = 0.9,
        draws: int = 200,
        seed: int = 0,
        ax: Axes | None = None,
        **kwargs: Any,
    ) -> Self:
        """Draw the diagram of predictions and labels.

        Parameters
        ----------
        labels : array-like, shape (n,), bool or numbers in {0, 1}
            None or NaN: not known yet; these rows are left out, with a warning that counts them.
        probabilities : array-like, shape (n,), in [0, 1]
        sample_weight : array-like, shape (n,), finite, > 0; default 1
        name : str, optional
            Name in the legend.
        band : float in (0, 1) or None
            Pointwise level of the consistency band; None: no band.
        draws, seed : int
            Number of draws and random seed of the band's simulation.
        ax : matplotlib Axes, optional
            Axes to draw on; None: new ones.
        **kwargs : dict
            Arguments of `plot`.

        Returns
        -------
        ReliabilityDisplay

        Raises
        ------
        ValueError
            An array has values outside these ranges.
        """
        labels, probabilities, sample_weight = drop_unlabelled(labels, probabilities, sample_weight)
        points = probability_points(labels, probabilities, sample_weight)
        simulated = None if band is None else consistency_band(points, level=band, draws=draws, seed=seed)
        return cls(reliability_curve(points), points, band=simulated, name=name).plot(ax=ax, **kwargs)

    @classmethod
    def from_estimator(
        cls, estimator: Any, X: Any, y: npt.ArrayLike, *, name: str | None = None, **kwargs: Any
    ) -> Self:
        """Draw a fitted binary classifier's probabilities.

        Parameters
        ----------
        estimator : classifier with `predict_proba`, of two classes
        X : array-like, shape (n, features)
        y : array-like, shape (n,)
            Labels; the second of `estimator.classes_` is the positive one.
        name : str, optional
            Name in the legend. None: the estimator's class.
        **kwargs : dict
            Arguments of `from_predictions`.

        Returns
        -------
        ReliabilityDisplay
        """
        classes = np.asarray(estimator.classes_)
        if classes.size != 2:
            raise ValueError(f"estimator: expected a classifier of two classes, found {classes.size}")
        probabilities = np.asarray(estimator.predict_proba(X), dtype=np.float64)[:, 1]
        labels = np.asarray(y) == classes[1]
        return cls.from_predictions(labels, probabilities, name=name or type(estimator).__name__, **kwargs)

    @classmethod
    def from_table(
        cls,
        table: Table | CalibrationMap | Calibrator,
        scores: npt.ArrayLike,
        labels: npt.ArrayLike,
        *,
        segments: Any = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> Self:
        """Draw a table's probabilities of scores that it was not fitted to.

        Parameters
        ----------
        table : Table, CalibrationMap or fitted Calibrator
        scores : array-like, shape (n,)
        labels : array-like, shape (n,), bool or numbers in {0, 1}
        segments : optional
            Values of the segment columns, as in `Table.predict`.
        name : str, optional
            Name in the legend. None: the table's method and version.
        **kwargs : dict
            Arguments of `from_predictions`.

        Returns
        -------
        ReliabilityDisplay
        """
        if isinstance(table, Table):
            probabilities = table.predict(np.asarray(scores), segments)
        else:
            probabilities = table.predict(scores)
        # As in reports, calibrated probabilities are blue and others orange.
        axes = axes_of(kwargs.pop("ax", None))
        kwargs = {"color": next_color(axes), **kwargs}
        return cls.from_predictions(labels, probabilities, name=name or name_of(table), ax=axes, **kwargs)

    def plot(
        self,
        *,
        ax: Axes | None = None,
        name: str | None = None,
        ref_line: bool = True,
        band: bool = True,
        histogram: bool = True,
        decomposition: bool = True,
        **kwargs: Any,
    ) -> Self:
        """Draw the display.

        Parameters
        ----------
        ax : matplotlib Axes, optional
            Axes to draw on; None: new ones.
        name : str, optional
            Name in the legend; None: the display's name.
        ref_line : bool
            Whether to draw the diagonal, once on the same axes.
        band : bool
            Whether to draw the consistency band, if there is one.
        histogram : bool
            Whether to draw a histogram of the probabilities at the bottom.
        decomposition : bool
            Whether the legend shows the parts of the Brier score: MCB, DSC and UNC.
        **kwargs : dict
            Arguments of matplotlib's `plot` for the curve.

        Returns
        -------
        self
        """
        axes = self.ax_ = axes_of(ax)
        self.figure_ = axes.figure  # type: ignore[assignment]
        curve = self.curve
        if ref_line:
            draw_reference(axes)
        style = {"color": next_color(axes, ORANGE), "lw": 1.8, **kwargs}
        label = name if name is not None else self.name
        parts = f"MCB {curve.miscalibration:.4f}, DSC {curve.discrimination:.4f}, UNC {curve.uncertainty:.4f}"
        legend = [text for text in (label, parts if decomposition else None) if text]
        if legend:
            style.setdefault("label", "\n".join(legend))
        (self.line_,) = axes.plot(curve.predicted, curve.observed, gid="reliability", **style)
        color = self.line_.get_color()
        if band and self.band is not None:
            x, low, high = self.band.predicted, self.band.low, self.band.high
            axes.fill_between(x, low, high, color=color, alpha=0.15, lw=0)
        if histogram:
            weight, edges = np.histogram(self.points.score, _BINS, (0, 1), weights=self.points.weight)
            axes.stairs(0.12 * weight / weight.max(), edges, fill=True, color=color, alpha=0.35, lw=0)
        axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), aspect="equal")
        axes.set(xlabel="Predicted probability", ylabel="Observed frequency")
        if legend:
            axes.legend(loc="upper left", frameon=False, fontsize="small")
        return self


@dataclass(eq=False, repr=False)
class HistogramDisplay:
    """Histogram of the predicted probabilities, in different shades for label 1 and label 0.

    Parameters
    ----------
    edges : float64 array, shape (bins + 1,)
    weight, positives : float64 arrays, shape (bins,)
    name : str or None
        Title.

    Attributes
    ----------
    edges, weight, positives, name : the parameters
    ax_ : matplotlib Axes
    figure_ : matplotlib Figure

    Examples
    --------
    >>> from logcal import HistogramDisplay
    >>> HistogramDisplay.from_predictions([0, 1, 1], [0.1, 0.4, 0.9], bins=2).weight
    array([2., 1.])
    """

    edges: Array
    weight: Array
    positives: Array
    _: KW_ONLY
    name: str | None = None
    ax_: Axes = field(init=False)
    figure_: Figure = field(init=False)

    @classmethod
    def from_predictions(
        cls,
        labels: npt.ArrayLike,
        predictions: npt.ArrayLike,
        *,
        sample_weight: npt.ArrayLike | None = None,
        bins: int = _BINS,
        name: str | None = None,
        ax: Axes | None = None,
        **kwargs: Any,
    ) -> Self:
        """Draw the histogram of predictions.

        Parameters
        ----------
        labels : array-like, shape (n,), bool or numbers in {0, 1}
            None or NaN: not known yet; these rows are left out, with a warning that counts them.
        predictions : array-like of finite numbers, shape (n,)
            The bins cover [0, 1] if it contains all predictions, otherwise their range.
        sample_weight : array-like, shape (n,), finite, > 0; default 1
        bins : int >= 1
        name : str, optional
            Title.
        ax : matplotlib Axes, optional
        **kwargs : dict
            Arguments of `plot`.

        Returns
        -------
        HistogramDisplay
        """
        labels, predictions, sample_weight = drop_unlabelled(labels, predictions, sample_weight)
        points = collapse(predictions, labels, sample_weight)
        low, high = float(points.score[0]), float(points.score[-1])
        limits = (0.0, 1.0) if low >= 0 and high <= 1 else (low, high)
        weight, edges = np.histogram(points.score, bins, limits, weights=points.weight)
        positives, _ = np.histogram(points.score, bins, limits, weights=points.positives)
        return cls(edges, weight, positives, name=name).plot(ax=ax, **kwargs)

    def plot(self, *, ax: Axes | None = None, **kwargs: Any) -> Self:
        """Draw the display.

        Parameters
        ----------
        ax : matplotlib Axes, optional
            Axes to draw on; None: new ones.
        **kwargs : dict
            Arguments of matplotlib's `stairs` for both labels.

        Returns
        -------
        self
        """
        axes = self.ax_ = axes_of(ax)
        self.figure_ = axes.figure  # type: ignore[assignment]
        total = self.weight.sum()
        unit = score_unit(self.edges[0], self.edges[-1])
        edges = self.edges / unit
        # `stairs` draws one shape per label, ten times as fast as a hundred bars.
        style = {"color": BLUE, "lw": 0, "fill": True, **kwargs}
        share, positive = self.weight / total, self.positives / total
        axes.stairs(positive, edges, label="label 1", **style)
        axes.stairs(share, edges, baseline=positive, label="label 0", **{**style, "alpha": 0.32})
        axes.set(xlim=(edges[0], edges[-1]), xlabel=score_label("Prediction", unit), ylabel="Share of rows")
        axes.set_ylim(0, 1.15 * share.max())
        if self.name:
            axes.set_title(self.name)
        axes.legend(frameon=False, fontsize="small", loc="upper center", ncols=2)
        return self
