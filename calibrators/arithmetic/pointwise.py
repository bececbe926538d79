"""Pointwise intervals of a curve's probabilities: quantiles of draws from the posterior.

A draw of the curve is a draw of its terms under one prior, which is drawn by the priors' evidence. A draw of isotonic
regression is fitted to positives drawn around the observed ones, with a draw of the curve as prior: the posterior of
the cells, projected on non-decreasing functions (Chakraborty & Ghosal 2021, "Coverage of credible intervals in
nonparametric monotone regression", Annals of Statistics 49). Draws of both are mixed as the map is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from calibrators.arithmetic.calibration_map import CalibrationMap, Interval
from calibrators.arithmetic.curve import LEAST, Cells, Curve, Places, expit, log_odds, pooled
from calibrators.arithmetic.hashing import mixed
from calibrators.arithmetic.local_choice import STRENGTHS, isotonic_with_prior
from calibrators.arithmetic.passes import Array

DRAWS = 399
_TAIL = 10
"""Rank of the draws at either end: a fortieth of them lies beyond the 10th."""

CELLS = 2000
"""Most cells of the draws."""

_DOUBT, _TELLING, _HARDLY = 0.5, 300.0, 30.0
"""Few observations cannot tell a curve from steps: so half of the draws, and fewer with more than 300 of information,
give the curve a weight of only 30."""

_FIRST_TURN, _SECOND_TURN = 0.6180339887498949, 0.7548776662466927


@dataclass(frozen=True)
class Pointwise:
    """The posterior of a curve, and of isotonic regression with the curve as prior.

    Attributes
    ----------
    places : where scores lie
    curve : the curve
    cells : of the observations
    share : float64 array, shape (states, cells): see `Choice`; None for the curve alone
    shift : added to log-odds
    """

    places: Places
    curve: Curve
    cells: Cells
    share: Array | None
    shift: float

    def interval(self, one: CalibrationMap) -> Interval:
        """Compute the interval of each row: lower end at its first score, upper end at its last; 95 % at each score.

        Time does not depend on the observations: 399 draws at 2,000 cells at most.
        """
        at, low, high = self._ends()
        edges = self.places.of(one.score_lo[1:])
        lower, upper = (
            expit(np.concatenate([column[:1], np.interp(edges, at, column), column[-1:]]) + self.shift)
            for column in (low, high)
        )
        begin, end = one.ends()
        return Interval(
            np.minimum(lower[:-1], np.minimum(begin, end)), np.maximum(upper[1:], np.maximum(begin, end))
        )

    def _ends(self) -> tuple[Array, Array, Array]:
        """Places, and both ends of the interval of log-odds there."""
        own = pooled(self.cells, CELLS)
        knots, draws = self.curve.draws(_normal(0, (DRAWS, self.curve.thetas.shape[1])))
        low, high = knots[knots < own.place[0]], knots[knots > own.place[-1]]
        at = np.concatenate([low, own.place, high])
        inner = slice(low.size, low.size + own.place.size)
        curve = np.stack([np.interp(at, knots, draw) for draw in draws])
        # Draws have no order: these are of the one, the others of the other.
        turn = np.arange(DRAWS)[:, np.newaxis]
        found = curve
        below = np.zeros(at.size)
        for share, strength in zip([] if self.share is None else self.share[1:], STRENGTHS, strict=False):
            if share.max() > 0:
                above = below + np.interp(at, self.cells.place, share)
                mine = (turn * _FIRST_TURN % 1.0 >= below) & (turn * _FIRST_TURN % 1.0 < above)
                found = np.where(mine, _isotonic_draws(own, self.curve, curve, inner, strength), found)
                below = above
        p = np.clip(expit(self.curve.at(own.place)), LEAST, 1 - LEAST)
        information = float((own.weight * p * (1 - p)).sum())
        doubt = _DOUBT / math.sqrt(max(1.0, information / _TELLING))
        isotonic = _isotonic_draws(own, self.curve, curve, inner, _HARDLY)
        found = np.where(turn * _SECOND_TURN % 1.0 < doubt, isotonic, found)
        found.sort(axis=0)
        lower, upper = found[_TAIL - 1], found[-_TAIL]
        return at, np.minimum.accumulate(lower[::-1])[::-1], np.maximum.accumulate(upper)


def _isotonic_draws(own: Cells, curve: Curve, draws: Array, inner: slice, strength: float) -> Array:
    """Log-odds of draws of isotonic regression with draws of the curve as prior. inner : those at the curve's cells."""
    p = isotonic_with_prior(own, expit(curve.at(own.place)), strength)
    normal = _normal(1, (len(draws), own.place.size))
    # Numbers of rare positives are skewed.
    noise = np.sqrt(own.weight * p * (1 - p)) * normal + (1 - 2 * p) / 6 * (normal * normal - 1)
    found = draws.copy()
    for k, draw in enumerate(draws):
        drawn = isotonic_with_prior(
            own._replace(positives=own.positives + noise[k]), expit(draw[inner]), strength
        )
        found[k, inner] = log_odds(np.clip(drawn, LEAST, 1 - LEAST))
    # Beyond the cells it goes on as the curve does.
    for beyond, end in ((slice(None, inner.start), inner.start), (slice(inner.stop, None), inner.stop - 1)):
        found[:, beyond] += (found[:, end] - draws[:, end])[:, np.newaxis]
    return found


def _normal(salt: int, shape: tuple[int, int]) -> Array:
    """Numbers as good as normal, the same on every machine: how many of 64 hashed bits are set, and a part of one."""
    key = np.arange(shape[0] * shape[1], dtype=np.uint64) + np.uint64(salt << 48)
    bits, more = mixed(key), mixed(~key)
    total = np.bitwise_count(bits) + (more >> np.uint64(11)) * 2.0**-53
    return np.asarray((total - 32.5) / math.sqrt(16 + 1 / 12)).reshape(shape)
