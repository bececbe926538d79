"""Pointwise intervals of a curve's probabilities: quantiles of draws from the posterior.

A draw of the curve is a draw of its terms under one prior, which is drawn by evidence. A draw of isotonic
regression is fitted to positives drawn around the observed ones, with a draw of the curve as prior: the posterior of
the cells, projected on non-decreasing functions (Chakraborty & Ghosal 2021, "Coverage of credible intervals in
nonparametric monotone regression", Annals of Statistics 49). Draws of both are mixed with the shares of the map.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, lru_cache
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from calibrators.core.arrays import Array, Mask
from calibrators.core.curve import LEAST, TERMS, Cells, Curve, ScoreAxis, expit, log_odds, merge_cells
from calibrators.core.hashing import mixed
from calibrators.core.local_choice import STRENGTHS, isotonic_with_prior
from calibrators.core.map import CalibrationMap, Interval

DRAWS = 399
_LEVEL = 0.025
"""Share of the draws beyond either end of the interval."""

CELLS = 2000
"""Largest number of cells of the draws."""

_WEAK_SHARE, _WEAK_INFORMATION = 0.6, 300.0
"""Few observations cannot distinguish a curve from steps. So in `_WEAK_SHARE` of the draws, less if the information
exceeds `_WEAK_INFORMATION`, the curve is only a weak prior."""

_WEAK_STRENGTH, _WEAK_RATIO = 30.0, 0.5
"""Strength of the weak prior, and its largest ratio to the information: a stronger one would hide rare positives."""

_ENDS, _END_SHARE = 1 / TERMS, 0.5
"""Ranks at either end in which the cosines of the curve cannot bend, and the least share of the weak prior there."""

_MOST_BIAS = 0.5
"""Largest bias of the draws that is corrected, in standard deviations."""

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
        draws = _draw_curves(self.curve, merge_cells(self.cells, CELLS))
        positions, at_cells = draws.positions, self.cells.position
        p = np.clip(expit(self.curve.at(draws.cells.position)), LEAST, 1 - LEAST)
        information = float((draws.cells.weight * p * (1 - p)).sum())
        weak_share = _WEAK_SHARE / math.sqrt(max(1.0, information / _WEAK_INFORMATION))
        rank = np.interp(positions, at_cells, self.cells.rank)
        at_ends = (rank < _ENDS) | (rank > 1 - _ENDS)
        # Quasi-random sequences decide which draws are of the curve and which of isotonic regression.
        index = np.arange(DRAWS)[:, np.newaxis]
        weak = index * _SECOND_STEP % 1.0 < np.where(at_ends, max(weak_share, _END_SHARE), weak_share)
        draws.replace(weak, min(_WEAK_STRENGTH, _WEAK_RATIO * information))
        state, start = index * _FIRST_STEP % 1.0, np.zeros(positions.size)
        for share, strength in zip([] if self.share is None else self.share[1:], STRENGTHS, strict=False):
            stop = start + np.interp(positions, at_cells, share)
            draws.replace(~weak & (state >= start) & (state < stop), strength)
            start = stop
        lower, upper = draws.quantiles()
        return positions, np.minimum.accumulate(lower[::-1])[::-1], np.maximum.accumulate(upper)


class _Draws(NamedTuple):
    """Draws of log-odds at positions.

    positions : float64 array, shape (positions,). inner : slice at the cells
    curves, drawn : float64 arrays, shape (draws, positions): draws of the curve; the same, after `replace`
    excess : float64 array, shape (positions,): half of the number of replaced draws that are below the estimate,
        minus half of those above it
    """

    cells: Cells
    curve: Curve
    positions: Array
    inner: slice
    curves: Array
    drawn: Array
    excess: Array

    def replace(self, selected: Mask, strength: float) -> None:
        """Replace draws by draws of isotonic regression with draws of the curve as prior.

        selected : shape (draws, positions): which
        """
        cells, inner = self.cells, self.inner
        p = isotonic_with_prior(cells, expit(self.curve.at(cells.position)), strength)
        deviation, skewness = np.sqrt(cells.weight * p * (1 - p)), (1 - 2 * p) / 6
        normal = _normal(1, (DRAWS, CELLS))[:, : cells.position.size]
        for k in np.flatnonzero(selected.any(axis=1)).tolist():
            # The second term corrects for skewness, which is large for rare positives.
            noise = deviation * normal[k] + skewness * (normal[k] * normal[k] - 1)
            noisy, prior = cells._replace(positives=cells.positives + noise), self.curves[k]
            fitted = isotonic_with_prior(noisy, expit(prior[inner]), strength)
            odds = log_odds(np.clip(fitted, LEAST, 1 - LEAST))
            # Beyond the cells, continue parallel to the curve.
            low = prior[: inner.start] + (odds[0] - prior[inner.start])
            high = prior[inner.stop :] + (odds[-1] - prior[inner.stop - 1])
            self.drawn[k, selected[k]] = np.concatenate([low, odds, high])[selected[k]]
            self.excess[inner] += np.where(selected[k, inner], np.where(fitted < p, 0.5, -0.5), 0.0)

    def quantiles(self) -> tuple[Array, Array]:
        """Return both ends, without a correction of the bias that would narrow the interval.

        Isotonic regression is too high at the upper end of a flat range and too low at its lower end. Its draws are
        that twice, because they are fitted to the noise of the observations and to drawn noise. The end on the
        estimate's other side is moved as bias-corrected percentiles are (Efron 1987, Journal of the American
        Statistical Association 82).
        """
        ordered, column = np.sort(self.drawn, axis=0), np.arange(self.positions.size)

        def end(values: Array, excess: Array) -> Array:
            rank = _ranks()[(2 * excess).astype(np.int64) + DRAWS]
            below = rank.astype(np.int64)
            rest = rank - below
            return np.asarray(values[below, column] * (1 - rest) + values[below + 1, column] * rest)

        return end(ordered, self.excess), end(ordered[::-1], -self.excess)


@cache
def _ranks() -> Array:
    """Return the rank of the draw at the lower end, from 0, by twice the excess, from -`DRAWS` to `DRAWS`."""
    normal, ranks = NormalDist(), np.empty(2 * DRAWS + 1)
    for i in range(ranks.size):
        bias = normal.inv_cdf((i + 1) / (ranks.size + 1))
        level = normal.cdf(2 * min(0.0, max(-_MOST_BIAS, bias)) + normal.inv_cdf(_LEVEL))
        ranks[i] = max(0.0, level * (DRAWS + 1) - 1)
    return ranks


def _draw_curves(curve: Curve, cells: Cells) -> _Draws:
    knots, draws = curve.draws(_normal(0, (DRAWS, curve.thetas.shape[1])))
    low, high = knots[knots < cells.position[0]], knots[knots > cells.position[-1]]
    positions = np.concatenate([low, cells.position, high])
    inner = slice(low.size, low.size + cells.position.size)
    curves = np.stack([np.interp(positions, knots, draw) for draw in draws])
    return _Draws(cells, curve, positions, inner, curves, curves.copy(), np.zeros(positions.size))


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
