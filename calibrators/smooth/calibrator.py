"""Smooth calibration: curves averaged by their evidence."""

from __future__ import annotations

import math
from typing import Any

from calibrators.base import Calibrator, Needs
from calibrators.core.curve import Curve, cells_on, clipped_log_odds, fit_curve, score_axis
from calibrators.core.fine_cells import FineCells, fine_cells_pass, gathered_bytes
from calibrators.core.passes import Passes
from calibrators.core.pointwise import Pointwise
from calibrators.core.tabulate import check_max_error, tabulate_curve


class Smooth(Calibrator):
    """A smooth rising curve, with the score itself as its prior; the evidence decides how far it departs from it.

    log-odds f = z + a + b (z - m) + c (q - k) + sum of h_j cos(pi j u) over j = 1, ..., 64. z: the score's log-odds,
    clipped to the logarithm of the number of observations, since N of them cannot verify odds far beyond N; for margins
    (scores outside [0, 1]) the margin minus the median, in units of the interquartile range over that of a normal
    distribution. q = log sigma(z) + log sigma(-z); m, k: means. u: the mean of the score's ranks among the positives
    and among the negatives. Without the cosines this is beta calibration. a, b, c and h_j have normal priors with mean
    0 and 65 settings of the variances, from 'the score is right' to 'nothing is known'; the curve is the average over
    all settings by their evidence. Pooling adjacent violators makes it rise; the expected positives of each pooled
    range do not change.

    Best if the truth is smooth, with any number of observations; if it jumps, `auto` is better.

    Parameters
    ----------
    max_error : float in [1e-12, 0.1], default 1e-9
        As for `Platt`, except within a cell, where the map is linear.

    Attributes
    ----------
    curve_ : Curve
        The curve behind the map: cells, modes and shares of the prior settings.

    Notes
    -----
    One pass, which gathers the observations in at most some 33,000 cells; these are pooled into at most 800, to which
    65 curves are fitted by Newton's method. The time of the fits does not depend on the number of observations. Neither
    0 nor 1 is ever returned. Ties are one point, weights count as repeated rows.

    References
    ----------
    Kull, Silva Filho & Flach (2017): the first three terms. MacKay (1992), "Bayesian interpolation", Neural
    Computation 4, 415-447: evidence. Brummer & du Preez (2006): odds against priors of the two labels.

    Examples
    --------
    >>> import numpy as np
    >>> from calibrators import Smooth
    >>> scores = np.repeat([0.1, 0.5, 0.9], 100)
    >>> labels = np.arange(300) % 100 < np.repeat([20, 50, 80], 100)
    >>> Smooth().fit(scores, labels).predict([0.1, 0.5, 0.9]).round(2)
    array([0.19, 0.5 , 0.81])
    """

    needs = Needs(one_pass=True, posterior=True, resampling=False)

    curve_: Curve

    def __init__(self, max_error: float = 1e-9) -> None:
        self.max_error = max_error

    def facts(self) -> dict[str, Any]:
        """Return the curve's distance from the score, averaged over the prior settings."""
        return self.curve_.averages()

    def check_parameters(self) -> None:
        """Raise ValueError if `max_error` is outside [1e-12, 0.1]."""
        check_max_error(self.max_error)

    def gathers(self, points: int, parts: int, *, weighted: bool = False) -> float:
        """See `Calibrator.gathers`: the cells of all parts."""
        return super().gathers(0, parts) + gathered_bytes(points, parts)

    def _passes(self) -> Passes:
        fine: FineCells = yield fine_cells_pass()
        self.fine_cells_ = fine
        axis = score_axis(fine, self.sampling_.rate)
        cells, shift = cells_on(axis, fine), math.log(self.sampling_.rate)
        self.curve_ = fit_curve(cells)
        self.posterior_ = Pointwise(axis, self.curve_, cells, None, shift)
        knots, log_odds = self.curve_.knots
        return tabulate_curve(fine, axis, (knots, clipped_log_odds(log_odds)), shift, float(self.max_error))
