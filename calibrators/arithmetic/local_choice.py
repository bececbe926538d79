"""Choice of a curve, or of isotonic regression with it as prior, for each range of scores, by halves of the rows.

Where the truth is smooth the curve is many times better, and where it jumps isotonic regression is; a truth may do
either in different ranges. The curve, and isotonic regression for which it counts more and less, are fitted to all
observations and to two halves of them. Each half tests the fits to the other half, in bins along the score, and a
hidden Markov chain along the bins gives the probability of each in each bin.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from calibrators._kernels import likelihood as kernel
from calibrators.arithmetic.curve import (
    LEAST,
    Cells,
    Curve,
    clipped_log_odds,
    expit,
    fit_curve,
    log_odds,
    with_counts,
)
from calibrators.arithmetic.passes import Array

STRENGTHS = (300.0, 30.0)
"""Information that the curve counts for as the prior of isotonic regression."""

ENDS = 1.0
"""Positives added below the lowest score, and negatives above the highest: there the map is neither 0 nor 1."""

BINS = 1000
PRIORS = tuple(
    (1 - steps, steps * (1 - hard), steps * hard) for steps in (0.02, 0.5, 0.98) for hard in (0.1, 0.9)
)
RATES = (0.0, 3.0, 10.0)
"""The chain's rates, averaged by evidence: the odds of each state, and how often it is drawn anew along all bins."""

POWER = 0.5
"""Exponent of the halves' likelihoods: the two halves are not independent."""

PRIOR_OF_TOTAL = 5.0
"""Information that the total by the priors counts for, where expected positives are made as many as observed ones."""

_FEWEST = 2.0
_ROUNDS, _CLOSE = 50, 1e-12
_LEAST_GAIN, _LEAST_SHARE = -200.0, 1e-150


class Steps(NamedTuple):
    """Pairs of neighbouring cells between which isotonic regression may jump.

    cell : int64 array: the cell above. below, above : float64 arrays: places between the scores on either side
    """

    cell: npt.NDArray[np.int64]
    below: Array
    above: Array


@dataclass(frozen=True)
class Choice:
    """Curve and isotonic maps of cells, and how much of each the observations call for.

    Attributes
    ----------
    cells : of all observations
    curve : fitted to them
    maps : float64 array, shape (states, cells): probabilities by the curve, and by isotonic regression with it as
        prior, with each of `STRENGTHS`
    share : float64 array, shape (states, cells), in [0, 1]: of each
    steps : where it may jump
    held_out : float64 array, shape (states,): mean log losses on the half that each was not fitted to; NaN where
        there were too few observations for halves, so that the curve was taken
    """

    cells: Cells
    curve: Curve
    maps: Array
    share: Array
    steps: Steps
    held_out: Array

    @property
    def isotonic_share(self) -> float:
        """The share of the observations' weight that is given to isotonic maps."""
        return float((self.share[1:].sum(axis=0) * self.cells.weight).sum() / self.cells.weight.sum())

    @cached_property
    def _mixed(self) -> Array:
        return np.asarray(kernel.rising((self.share * self.maps).sum(axis=0), self.cells.weight))

    @cached_property
    def shift(self) -> float:
        """Shift of all log-odds with which as many positives are expected as were observed."""
        return shift_to_total(self.cells, self._mixed)

    def knots(self) -> tuple[Array, Array]:
        """Places and log-odds of the mixture of all, non-decreasing; beyond the cells it goes on as the curve does."""
        mixed = self._mixed
        inner = log_odds(np.clip(mixed, LEAST, 1 - LEAST))
        knots, f = self.curve.knots
        cells = self.cells.position
        ends = self.curve.at(cells[[0, -1]])
        low, high = knots < cells[0], knots > cells[-1]
        before, after = (
            self._step_log_odds(mixed, at, cell)
            for at, cell in ((self.steps.below, self.steps.cell - 1), (self.steps.above, self.steps.cell))
        )
        positions = np.concatenate([knots[low], cells, self.steps.below, self.steps.above, knots[high]])
        odds = np.concatenate(
            [f[low] + (inner[0] - ends[0]), inner, before, after, f[high] + (inner[-1] - ends[1])]
        )
        order = np.lexsort((odds, positions))
        positions, odds = positions[order], np.maximum.accumulate(odds[order])
        distinct = np.append(True, np.diff(positions) > 0)
        return positions[distinct], clipped_log_odds(odds[distinct] + self.shift)

    def _step_log_odds(self, mixed: Array, positions: Array, cell: npt.NDArray[np.int64]) -> Array:
        """Log-odds beside a step: isotonic maps have the level of their cell until there."""
        curve = self.share[0, cell] * (expit(self.curve.at(positions)) - self.maps[0, cell])
        low, high = mixed[self.steps.cell - 1], mixed[self.steps.cell]
        return log_odds(np.clip(np.clip(mixed[cell] + curve, low, high), LEAST, 1 - LEAST))


def choose(cells: Cells, halves: Sequence[tuple[Array, Array]], steps: Steps) -> Choice:
    """The choice for cells of observations.

    halves : of each half the weight and the positives in each cell
    steps : where isotonic regression of all observations jumps
    """
    curve = fit_curve(cells)
    maps = _maps(curve, cells, cells.position)
    if min(min(positives.sum(), (weight - positives).sum()) for weight, positives in halves) < _FEWEST:
        share = np.zeros(maps.shape)
        share[0] = 1
        return Choice(cells, curve, maps, share, steps, np.full(len(maps), np.nan))
    gains = np.zeros(maps.shape)
    for (weight, positives), other_half in zip(halves, reversed(halves), strict=True):
        half_cells = with_counts(cells, weight, positives)
        p = np.clip(_maps(fit_curve(half_cells, curve), half_cells, cells.position), LEAST, 1 - LEAST)
        gains += other_half[1] * np.log(p) + (other_half[0] - other_half[1]) * np.log1p(-p)
    bin_index = np.minimum((cells.rank * BINS).astype(np.int64), BINS - 1)
    binned = np.stack([np.bincount(bin_index, gain, BINS) for gain in gains], axis=1)
    share = shares(np.asarray(POWER * binned))[bin_index].T
    return Choice(cells, curve, maps, share, steps, -gains.sum(axis=1) / cells.weight.sum())


def _maps(curve: Curve, cells: Cells, at: Array) -> Array:
    """Probabilities at places by a curve, and by isotonic regression of its cells with it as prior."""
    p = expit(curve.at(cells.position))
    isotonic = [np.interp(at, cells.position, isotonic_with_prior(cells, p, s)) for s in STRENGTHS]
    return np.stack([np.clip(expit(curve.at(at)), LEAST, 1 - LEAST), *isotonic])


def isotonic_with_prior(cells: Cells, probability: Array, strength: float) -> Array:
    """Isotonic regression of cells, with probabilities as prior that count for so much information."""
    p = np.clip(probability, LEAST, 1 - LEAST)
    information = float((cells.weight * p * (1 - p)).sum())
    c = strength / information if information > 0 else math.inf
    if not math.isfinite(c):
        return p
    weight = cells.weight * (1 + c)
    level = (cells.positives + c * cells.weight * p) / weight
    level, weight = (
        np.concatenate([[low], x, [high]]) for low, x, high in ((1.0, level, 0.0), (ENDS, weight, ENDS))
    )
    return np.asarray(kernel.rising(level, weight)[1:-1])


def shift_to_total(cells: Cells, probability: Array) -> float:
    """Shift of log-odds that makes the expected positives as many as the observed ones, the more the cells tell.

    With information of `PRIOR_OF_TOTAL` half of the shift is made: curves, whose prior is the score, and ends of
    isotonic regression expect some more positives than a few that there are, and few do not tell how many there are.
    """
    total, f = float(cells.positives.sum()), log_odds(np.clip(probability, LEAST, 1 - LEAST))
    information, shift = 0.0, 0.0
    for iteration in range(_ROUNDS if 0 < total < cells.weight.sum() else 0):
        p = expit(f + shift)
        slope = float((cells.weight * p * (1 - p)).sum())
        if not slope > 0:
            break
        information = information if iteration else slope
        step = max(-1.0, min(1.0, (total - float((cells.weight * p).sum())) / slope))
        shift += step
        if abs(step) < _CLOSE:
            break
    return shift * information / (information + PRIOR_OF_TOTAL)


def shares(gains: Array, priors: Sequence[Sequence[float]] = PRIORS, rates: Sequence[float] = RATES) -> Array:
    """Probability of each state in each bin, given log likelihoods.

    gains : float64 array, shape (bins, states). The state is drawn at the first bin with the probabilities of one of
    `priors`, and anew between bins with a probability of 1 - exp(-rate / bins); by evidence over all settings.
    """
    bins = len(gains)
    grid = [(prior, rate) for prior in priors for rate in rates]
    prior = np.array([initial for initial, _ in grid])
    redraw = 1 - np.exp(-np.array([rate for _, rate in grid]) / bins)[:, np.newaxis]
    # No state is ever out of the question: what underflows could not come back.
    likelihood = np.exp(np.maximum(gains - gains.max(axis=1, keepdims=True), _LEAST_GAIN))
    forward, evidence, state = np.empty((bins, *prior.shape)), np.zeros(len(grid)), prior
    for i in range(bins):
        if i:
            state = (1 - redraw) * state + redraw * prior
        state = state * likelihood[i]
        total = state.sum(axis=1, keepdims=True)
        state = np.maximum(state / total, _LEAST_SHARE)
        evidence += np.log(total[:, 0])
        forward[i] = state
    weight = np.exp(evidence - evidence.max())[:, np.newaxis]
    weight /= weight.sum()
    back, posterior = np.ones(prior.shape), np.empty(gains.shape)
    for i in range(bins - 1, -1, -1):
        joint = forward[i] * back
        posterior[i] = (weight * (joint / joint.sum(axis=1, keepdims=True))).sum(axis=0)
        back = back * likelihood[i]
        back = (1 - redraw) * back + redraw * (back * prior).sum(axis=1, keepdims=True)
        back = np.maximum(back / back.max(axis=1, keepdims=True), _LEAST_SHARE)
    return posterior
