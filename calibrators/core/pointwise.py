"""Pointwise intervals of a curve's probabilities: quantiles of draws from the posterior.

A draw of the curve is a draw of its terms under one prior, which is drawn by evidence. A draw of isotonic
regression is fitted to positives drawn around the observed ones, with a draw of the curve as prior: the posterior of
the cells, projected on non-decreasing functions (Chakraborty & Ghosal 2021, "Coverage of credible intervals in
nonparametric monotone regression", Annals of Statistics 49). Draws of both are mixed with the shares of the map, with
more of isotonic regression where the observations cannot tell.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, lru_cache
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from calibrators.core.arrays import Array, Integers, Mask
from calibrators.core.curve import LEAST, TERMS, Cells, Curve, ScoreAxis, expit, log_odds, merge_cells
from calibrators.core.hashing import mixed
from calibrators.core.local_choice import isotonic_with_prior
from calibrators.core.map import CalibrationMap, Interval

DRAWS = 399
_LEVEL = 0.025
"""Share of the draws beyond either end of the interval."""

_RANKS = [round(_LEVEL * (DRAWS + 1)) - 1, DRAWS // 2, round((1 - _LEVEL) * (DRAWS + 1)) - 1]
_DEVIATIONS = 1.959963984540054
"""Ranks of the draws at the lower end, the median and the upper end; distance of an end in standard deviations."""

CELLS = 2000
"""Largest number of cells of the draws."""

_WEAK_INFORMATION = 400.0
"""Few observations cannot distinguish a curve from steps. So up to this information, the sum of w p (1 - p), all draws
are of isotonic regression; beyond it, at least the share (400 / information)^(3/4)."""

_STRENGTH, _RATIO = 5.0, 0.5
"""Strength of the curve as the prior of isotonic regression with enough observations; its ratio to the information with
few: the score then tells more than they do. A stronger prior would hide steps, and rare positives."""

_ENDS = ((1 / TERMS, 0.5), (4 / TERMS, 0.08))
"""Ranks at either end in which the cosines of the curve hardly bend, and the least share of isotonic draws there."""

_MOST_BIAS, _ENOUGH = 0.5, 80.0
"""Largest bias of the draws that is corrected, in standard deviations, and the information that is enough for it: with
few positives most of the bias is skewness."""

_PLACE, _PLACE_RATIO = 0.5, 0.02
"""Distance, as information, between a jump of the draws and of the truth; its largest ratio to all information."""

_GOLDEN = 0.6180339887498949


@dataclass(frozen=True)
class Pointwise:
    """Posterior of a curve, and of isotonic regression with the curve as prior.

    Attributes
    ----------
    axis : score axis
    curve : the curve
    cells : cells of the observations
    share : float64 array, shape (cells,): share of the curve in the map, see `Choice`; None for the curve alone
    shift : added to log-odds
    """

    axis: ScoreAxis
    curve: Curve
    cells: Cells
    share: Array | None
    shift: float

    def interval(self, fitted_map: CalibrationMap) -> Interval:
        """Compute 95 % intervals of each row: the lower end at its first score, the upper end at its last score.

        Time does not depend on the number of observations: there are 399 draws at up to 2,000 cells.
        """
        positions, low, high = self._ends()
        edges = self.axis.positions(fitted_map.score_lo[1:])
        lower, upper = (
            expit(np.concatenate([bound[:1], np.interp(edges, positions, bound), bound[-1:]]) + self.shift)
            for bound in (low, high)
        )
        begin, end = fitted_map.ends()
        return Interval(
            np.minimum(lower[:-1], np.minimum(begin, end)), np.maximum(upper[1:], np.maximum(begin, end))
        )

    def _ends(self) -> tuple[Array, Array, Array]:
        """Return positions, and both ends of the interval of log-odds there."""
        draws = _draw_curves(self.curve, merge_cells(self.cells, CELLS))
        positions, inner, at_cells = draws.positions, draws.inner, self.cells.position
        p = np.clip(expit(self.curve.at(draws.cells.position)), LEAST, 1 - LEAST)
        cumulative = np.cumsum(draws.cells.weight * p * (1 - p))
        information = float(cumulative[-1])
        few = min(1.0, _WEAK_INFORMATION / information)
        share = np.full(positions.size, math.sqrt(few * math.sqrt(few)))
        rank = np.interp(positions, at_cells, self.cells.rank)
        for width, least in _ENDS:
            share = np.where(np.minimum(rank, 1 - rank) < width, np.maximum(share, least), share)
        if self.share is not None:
            share += (1 - share) * np.interp(positions, at_cells, 1 - self.share)
        # A quasi-random sequence decides which draws are of the curve and which of isotonic regression.
        isotonic = np.arange(DRAWS)[:, np.newaxis] * _GOLDEN % 1.0 < share
        enough = min(1.0, information / _ENOUGH) ** 2
        draws.replace(isotonic, enough * _STRENGTH + (1 - enough) * _RATIO * information)
        lower, upper = draws.quantiles(enough * _MOST_BIAS)
        place = min(_PLACE, _PLACE_RATIO * information)
        for bound, shift, outer in ((lower, -place, np.minimum), (upper, place, np.maximum)):
            moved = np.interp(cumulative + shift, cumulative, bound[inner])
            bound[inner] = outer(bound[inner], moved)
        return positions, np.minimum.accumulate(lower[::-1])[::-1], np.maximum.accumulate(upper)


class _Draws(NamedTuple):
    """Draws of log-odds at positions.

    positions : float64 array, shape (positions,). inner : slice at the cells
    drawn : float64 array, shape (draws, positions): draws of the curve, until `replace`
    excess : int64 array, shape (positions,): number of replaced draws that are below the estimate, minus that of
        those above it
    """

    cells: Cells
    curve: Curve
    positions: Array
    inner: slice
    drawn: Array
    excess: Integers

    def replace(self, selected: Mask, strength: float) -> None:
        """Replace draws of the curve by draws of isotonic regression with these as prior.

        selected : shape (draws, positions): which
        """
        cells, inner = self.cells, self.inner
        p = isotonic_with_prior(cells, expit(self.curve.at(cells.position)), strength)
        deviation, skewness = np.sqrt(cells.weight * p * (1 - p)), (1 - 2 * p) / 6
        normal = _normal(1, (DRAWS, CELLS))[:, : cells.position.size]
        for k in np.flatnonzero(selected.any(axis=1)).tolist():
            # The second term corrects for skewness, which is large for rare positives.
            noise = deviation * normal[k] + skewness * (normal[k] * normal[k] - 1)
            noisy, prior = cells._replace(positives=cells.positives + noise), self.drawn[k]
            fitted = isotonic_with_prior(noisy, expit(prior[inner]), strength)
            odds = log_odds(np.clip(fitted, LEAST, 1 - LEAST))
            # Beyond the cells, continue parallel to the curve.
            low = prior[: inner.start] + (odds[0] - prior[inner.start])
            high = prior[inner.stop :] + (odds[-1] - prior[inner.stop - 1])
            prior[selected[k]] = np.concatenate([low, odds, high])[selected[k]]
            self.excess[inner] += np.where(selected[k, inner], np.where(fitted < p, 1, -1), 0)

    def quantiles(self, most_bias: float) -> tuple[Array, Array]:
        """Return both ends, without a correction of the bias that would narrow the interval.

        Isotonic regression is too high at the upper end of a flat range and too low at its lower end. Its draws are
        that twice, because they are fitted to the noise of the observations and to drawn noise. The end on the
        estimate's other side is moved as bias-corrected percentiles are (Efron 1987, Journal of the American
        Statistical Association 82). There are too few draws for such percentiles, so the distance from the median is
        stretched, on a scale on which the standard deviation of a rate hardly depends on the rate.

        most_bias : largest bias that is corrected, in standard deviations
        """
        low, middle, high = expit(np.partition(self.drawn, _RANKS, axis=0)[_RANKS, :] / 2)
        bias = _biases()[self.excess + DRAWS]
        below, above = (2 / _DEVIATIONS * np.clip(b, 0.0, most_bias) for b in (-bias, bias))
        ends = low - (middle - low) * below, high + (high - middle) * above
        least = math.sqrt(LEAST)
        lower, upper = (2 * log_odds(np.clip(end, least, 1 - least)) for end in ends)
        return lower, upper


@cache
def _biases() -> Array:
    """Return the bias of the draws in standard deviations by the excess, from -`DRAWS` to `DRAWS`."""
    size = 2 * DRAWS + 1
    return np.array([NormalDist().inv_cdf((i + 1) / (size + 1)) for i in range(size)])


def _draw_curves(curve: Curve, cells: Cells) -> _Draws:
    knots, draws = curve.draws(_normal(0, (DRAWS, curve.thetas.shape[1])))
    low, high = knots[knots < cells.position[0]], knots[knots > cells.position[-1]]
    positions = np.concatenate([low, cells.position, high])
    inner = slice(low.size, low.size + cells.position.size)
    curves = np.stack([np.interp(positions, knots, draw) for draw in draws])
    return _Draws(cells, curve, positions, inner, curves, np.zeros(positions.size, np.int64))


@lru_cache(2)
def _normal(salt: int, shape: tuple[int, int]) -> Array:
    """Return nearly normal numbers, the same on every machine, from the number of set bits of 64-bit hashes.

    They are half of the time of an interval, so they are kept (7 MB).
    """
    key = np.arange(shape[0] * shape[1], dtype=np.uint64) + np.uint64(salt << 48)
    bits, fraction = mixed(key), mixed(~key)
    total = np.bitwise_count(bits) + (fraction >> np.uint64(11)) * 2.0**-53
    normal = np.asarray((total - 32.5) / math.sqrt(16 + 1 / 12)).reshape(shape)
    normal.flags.writeable = False
    return normal
