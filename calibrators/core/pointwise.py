"""Pointwise intervals of a curve's probabilities: quantiles of draws from the posterior.

A draw of the curve is a draw of its terms under one prior, which is drawn by evidence. A draw of isotonic
regression is fitted to positives drawn around the observed ones, with a draw of the curve as prior: the posterior of
the cells, projected on non-decreasing functions (Chakraborty & Ghosal 2021, "Coverage of credible intervals in
nonparametric monotone regression", Annals of Statistics 49). Draws of both are mixed with the shares of the map.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from calibrators.core.arrays import Array
from calibrators.core.curve import LEAST, Cells, Curve, ScoreAxis, expit, log_odds, merge_cells
from calibrators.core.hashing import mixed
from calibrators.core.local_choice import STRENGTHS, isotonic_with_prior
from calibrators.core.map import CalibrationMap, Interval

DRAWS = 399
_TAIL = 10
"""Rank, from either end, of the draw at the end of the interval: a fortieth of the draws are beyond it."""

CELLS = 2000
"""Largest number of cells of the draws."""

_WEAK_SHARE, _WEAK_INFORMATION, _WEAK_STRENGTH = 0.5, 300.0, 30.0
"""Few observations cannot distinguish a curve from steps. So in `_WEAK_SHARE` of the draws, less if the information
exceeds `_WEAK_INFORMATION`, the curve is a prior of strength `_WEAK_STRENGTH`."""

_FIRST_STEP, _SECOND_STEP = 0.6180339887498949, 0.7548776662466927


@dataclass(frozen=True)
class Pointwise:
    """Posterior of a curve, and of isotonic regression with the curve as prior.

    Attributes
    ----------
    axis : score axis
    curve : the curve
    cells : cells of the observations
    share : float64 array, shape (states, cells): see `Choice`; None for the curve alone
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
        cells = merge_cells(self.cells, CELLS)
        knots, draws = self.curve.draws(_normal(0, (DRAWS, self.curve.thetas.shape[1])))
        low, high = knots[knots < cells.position[0]], knots[knots > cells.position[-1]]
        positions = np.concatenate([low, cells.position, high])
        inner = slice(low.size, low.size + cells.position.size)
        curve = np.stack([np.interp(positions, knots, draw) for draw in draws])
        # A quasi-random sequence decides which draws are of the curve and which of isotonic regression.
        index = np.arange(DRAWS)[:, np.newaxis]
        drawn = curve
        start = np.zeros(positions.size)
        for share, strength in zip([] if self.share is None else self.share[1:], STRENGTHS, strict=False):
            if share.max() > 0:
                stop = start + np.interp(positions, self.cells.position, share)
                selected = (index * _FIRST_STEP % 1.0 >= start) & (index * _FIRST_STEP % 1.0 < stop)
                drawn = np.where(selected, _isotonic_draws(cells, self.curve, curve, inner, strength), drawn)
                start = stop
        p = np.clip(expit(self.curve.at(cells.position)), LEAST, 1 - LEAST)
        information = float((cells.weight * p * (1 - p)).sum())
        weak_share = _WEAK_SHARE / math.sqrt(max(1.0, information / _WEAK_INFORMATION))
        isotonic = _isotonic_draws(cells, self.curve, curve, inner, _WEAK_STRENGTH)
        drawn = np.where(index * _SECOND_STEP % 1.0 < weak_share, isotonic, drawn)
        drawn.sort(axis=0)
        lower, upper = drawn[_TAIL - 1], drawn[-_TAIL]
        return positions, np.minimum.accumulate(lower[::-1])[::-1], np.maximum.accumulate(upper)


def _isotonic_draws(cells: Cells, curve: Curve, draws: Array, inner: slice, strength: float) -> Array:
    """Return log-odds of draws of isotonic regression with draws of the curve as prior. inner : slice at the cells."""
    p = isotonic_with_prior(cells, expit(curve.at(cells.position)), strength)
    normal = _normal(1, (len(draws), cells.position.size))
    # The second term corrects for skewness, which is large for rare positives.
    noise = np.sqrt(cells.weight * p * (1 - p)) * normal + (1 - 2 * p) / 6 * (normal * normal - 1)
    drawn = draws.copy()
    for k, draw in enumerate(draws):
        fitted = isotonic_with_prior(
            cells._replace(positives=cells.positives + noise[k]), expit(draw[inner]), strength
        )
        drawn[k, inner] = log_odds(np.clip(fitted, LEAST, 1 - LEAST))
    # Beyond the cells, continue parallel to the curve.
    for beyond, end in ((slice(None, inner.start), inner.start), (slice(inner.stop, None), inner.stop - 1)):
        drawn[:, beyond] += (drawn[:, end] - draws[:, end])[:, np.newaxis]
    return drawn


def _normal(salt: int, shape: tuple[int, int]) -> Array:
    """Return nearly normal numbers, the same on every machine, from the number of set bits of 64-bit hashes."""
    key = np.arange(shape[0] * shape[1], dtype=np.uint64) + np.uint64(salt << 48)
    bits, fraction = mixed(key), mixed(~key)
    total = np.bitwise_count(bits) + (fraction >> np.uint64(11)) * 2.0**-53
    return np.asarray((total - 32.5) / math.sqrt(16 + 1 / 12)).reshape(shape)
