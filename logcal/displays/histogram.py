"""Histogram of the predicted probabilities."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from calibrators.arithmetic.passes import collapse
from logcal.displays.drawing import BLUE, Array, axes_of, labelled
from logcal.displays.view import score_label, score_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BINS = 50


class HistogramDisplay:
    """Histogram of the predicted probabilities, with label 1 and label 0 in different colours.

    Parameters
    ----------
    edges : float64 array, shape (bins + 1,)
    weight, positives : float64 arrays, shape (bins,)
    name : str or None
        For the title.

    Attributes
    ----------
    edges, weight, positives, name : as given
    ax_ : matplotlib Axes
    figure_ : matplotlib Figure

    Examples
    --------
    >>> from logcal import HistogramDisplay
    >>> HistogramDisplay.from_predictions([0, 1, 1], [0.1, 0.4, 0.9], bins=2).weight
    array([2., 1.])
    """

    ax_: Axes
    figure_: Figure

    def __init__(self, edges: Array, weight: Array, positives: Array, *, name: str | None = None) -> None:
        self.edges = edges
        self.weight = weight
        self.positives = positives
        self.name = name

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
        """Draw predictions.

        Parameters
        ----------
        labels : array-like, shape (n,), bool or numbers in {0, 1}
            None or NaN: not known yet; these rows are left out, with a warning that counts them.
        predictions : array-like of finite numbers, shape (n,)
            Drawn over [0, 1] where all lie in it, otherwise over their range.
        sample_weight : array-like, shape (n,), finite, > 0; default 1
        bins : int >= 1
        name : str, optional
            For the title.
        ax : matplotlib Axes, optional
        **kwargs : dict
            For `plot`.

        Returns
        -------
        HistogramDisplay
        """
        labels, predictions, sample_weight = labelled(labels, predictions, sample_weight)
        points = collapse(predictions, labels, sample_weight)
        low, high = float(points.score[0]), float(points.score[-1])
        limits = (0.0, 1.0) if low >= 0 and high <= 1 else (low, high)
        weight, edges = np.histogram(points.score, bins, limits, weights=points.weight)
        positives, _ = np.histogram(points.score, bins, limits, weights=points.positives)
        return cls(edges, weight, positives, name=name).plot(ax=ax, **kwargs)

    def plot(self, *, ax: Axes | None = None, **kwargs: Any) -> Self:
        """Draw it.

        Parameters
        ----------
        ax : matplotlib Axes, optional
            To draw on; None: new ones.
        **kwargs : dict
            Of both shapes, as matplotlib's `stairs` takes them.

        Returns
        -------
        self
        """
        axes = self.ax_ = axes_of(ax)
        self.figure_ = axes.figure  # type: ignore[assignment]
        total = self.weight.sum()
        unit = score_unit(self.edges[0], self.edges[-1])
        edges = self.edges / unit
        # One shape each: bars would be a hundred, and take ten times as long.
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
