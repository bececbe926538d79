"""Smooth calibration: a curve averaged by evidence."""

from __future__ import annotations

import math
from typing import Any

from calibrators.arithmetic.curve import Curve, cells_on, fitted, held_log_odds, places_of
from calibrators.arithmetic.fine_cells import FineCells, fine_cells_pass, gathered_bytes
from calibrators.arithmetic.passes import Passes
from calibrators.arithmetic.pointwise import Pointwise
from calibrators.arithmetic.tabulate import check_max_error, tabulated_curve
from calibrators.methods.base import Calibrator


class Smooth(Calibrator):
    """A smooth rising curve whose prior is the score itself and which bends as far as the evidence lets it.

    log-odds f = z + a + b (z - m) + c (q - k) + sum of h_j cos(pi j u) over j = 1, ..., 64. z: the score's log-odds,
    held within the logarithm of the number of observations, since N of them cannot verify odds far beyond N; of margins
    (scores outside [0, 1]) the margin less the median, in units of the quartiles' distance over that of a normal
    distribution. q = log sigma(z) + log sigma(-z); m, k: means. u: the mean of the score's ranks among the positives
    and among the negatives. Without the cosines this is beta calibration. a, b, c and h_j have normal priors around 0
    of 65 settings, from 'the score is right' to 'nothing is known'; the curve is the average over all of them by their
    evidence. It is made to rise by pooling adjacent violators.

    Best where the truth is smooth, at any number of observations; where it jumps, `auto` is better.

    Parameters
    ----------
    max_error : float in [1e-12, 0.1], default 1e-9
        As for `Platt`, where rows of the map may be that short: within a cell the map is a line.

    Attributes
    ----------
    curve_ : Curve
        What the map was made of: its cells, modes and the shares of the priors.

    Notes
    -----
    One pass, which leaves some 33,000 cells at most of all observations; 65 fits by Newton's method to at most 800
    cells that these are pooled into: their time does not depend on the number of observations. Neither 0 nor 1 is ever
    returned. Ties are one point, weights count as repeated rows.

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

    single_pass = True
    has_posterior = True
    fits_all_rows = True

    curve_: Curve

    def __init__(self, max_error: float = 1e-9) -> None:
        self.max_error = max_error

    def facts(self) -> dict[str, Any]:
        """Average distance of the curve from the score that the evidence allows."""
        return self.curve_.averages()

    def check_parameters(self) -> None:
        """Raise ValueError if `max_error` is outside [1e-12, 0.1]."""
        check_max_error(self.max_error)

    def gathers(self, points: int, parts: int, *, weighted: bool = False) -> float:
        """See `Calibrator.gathers`: cells."""
        return super().gathers(0, parts) + gathered_bytes(points, parts)

    def _passes(self) -> Passes:
        fine: FineCells = yield fine_cells_pass()
        places = places_of(fine, self.sampling_rate)
        cells, shift = cells_on(places, fine), math.log(self.sampling_rate)
        self.curve_ = fitted(cells)
        self.posterior_ = Pointwise(places, self.curve_, cells, None, shift)
        place, f = self.curve_.knots
        return tabulated_curve(fine, places, (place, held_log_odds(f)), shift, float(self.max_error))
