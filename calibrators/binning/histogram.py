"""Histogram binning (Zadrozny & Elkan 2001), also called quantile binning."""

from __future__ import annotations

import numpy as np

from calibrators.base import Calibrator
from calibrators.core.cumulative import bin_counts, cuts_pass, equal_frequency_targets, layout_pass
from calibrators.core.map import CalibrationMap
from calibrators.core.passes import Passes, check_number


class HistogramBinning(Calibrator):
    """Histogram binning: equal-frequency bins of the scores, whose levels are their frequencies of positives.

    Bin j of B ends after the first score whose cumulative weight reaches N j / B, N the sum of the weights: an edge
    inside a tie moves to its end, so there may be fewer bins than B. An edge is the midpoint of the
    gap between the two neighbouring scores, the upper bin closed below; the outer bins reach to infinity. The map
    is a step function and need not be monotone. Scores may be any finite numbers.

    A reference for comparisons rather than a choice: in simulations its excess loss is 5.9 times the best method's in
    the median, since ten bins cannot follow rare positives (docs/methods.md).

    Parameters
    ----------
    bins : int >= 1, default 10
        Number of bins, B.
    smoothing : float >= 0, finite, default 0
        Laplace smoothing: a bin's level is (positives + smoothing) / (weight + 2 smoothing).

    Notes
    -----
    Two passes: the totals of each part, then its edges with the cumulative counts there. O(m + bins) time,
    O(bins) memory besides the points of one part.

    References
    ----------
    Zadrozny & Elkan (2001), "Obtaining calibrated probability estimates from decision trees and naive Bayesian
    classifiers", ICML.

    Examples
    --------
    >>> from calibrators.binning.histogram import HistogramBinning
    >>> HistogramBinning(bins=2).fit([0.1, 0.2, 0.3, 0.4], [0, 1, 1, 1]).predict([0.24, 0.25])
    array([0.5, 1. ])
    """

    def __init__(self, bins: int = 10, smoothing: float = 0.0) -> None:
        self.bins = bins
        self.smoothing = smoothing

    def check_parameters(self) -> None:
        """Raise ValueError if `bins` is not a whole number >= 1 or `smoothing` not a finite number >= 0."""
        check_number("bins", self.bins, "a whole number >= 1", 1, whole=True)
        check_number("smoothing", self.smoothing, "a finite number >= 0", 0)

    def gathers(self, points: int, parts: int, *, weighted: bool = False) -> float:
        """See `Calibrator.gathers`: one entry per bin."""
        return super().gathers(min(2 * points, 2 * int(self.bins)), parts)

    def _passes(self) -> Passes:
        layout = yield layout_pass()
        cuts = yield cuts_pass(layout, equal_frequency_targets(layout.weight, int(self.bins)))
        weight, positives = bin_counts(layout, cuts.counts)
        smoothing = float(self.smoothing)
        level = np.minimum((positives + smoothing) / (weight + 2 * smoothing), 1.0)
        return CalibrationMap.from_bins(cuts.edges, level, weight, positives)
