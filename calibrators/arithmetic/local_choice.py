"""Choice of a curve, or of isotonic regression with it as prior, for each range of scores, by halves of the rows.

Where the truth is smooth the curve is many times better, and where it jumps isotonic regression is; a truth may do
either in different ranges. Both are fitted to all observations and to two halves of them. Each half tests the fits to
the other half, in bins along the score, and a hidden Markov chain along the bins gives the probability of either in
each bin.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from calibrators._kernels import curve as kernel
from calibrators.arithmetic.curve import (
    LEAST,
    Cells,
    Curve,
    expit,
    fitted,
    held_log_odds,
    log_odds,
    with_counts,
)
from calibrators.arithmetic.passes import Array

STRENGTH = 3000.0
"""Information that the curve counts for as the prior of isotonic regression."""

BINS = 1000
PRIORS = (0.02, 0.5, 0.98)
RATES = (0.0, 3.0, 10.0)
"""The chain's rates, averaged by evidence: the odds of leaning, and how often it is drawn anew along all bins."""

POWER = 0.5
"""Exponent of the halves' likelihoods: the two halves are not independent."""

_FEWEST = 2.0
_LEAST_GAIN, _LEAST_SHARE = -200.0, 1e-150


@dataclass(frozen=True)
class Choice:
    """Curve and leaning map of cells, and how much of either the observations call for.

    Attributes
    ----------
    cells : of all observations
    curve : fitted to them
    maps : float64 array, shape (2, cells): probabilities by the curve, and by isotonic regression with it as prior
    share : float64 array, shape (cells,), in [0, 1]: of the second one
    held_out : float64 array, shape (2,): mean log losses of both on the half that each was not fitted to; NaN where
        there were too few observations for halves, so that the curve was taken
    """

    cells: Cells
    curve: Curve
    maps: Array
    share: Array
    held_out: Array

    @property
    def leaning(self) -> float:
        """The share of the observations' weight that is given to the leaning map."""
        return float((self.share * self.cells.weight).sum() / self.cells.weight.sum())

    def knots(self) -> tuple[Array, Array]:
        """Places and log-odds of the mixture of both, non-decreasing; beyond the cells it goes on as the curve does."""
        mixed = (1 - self.share) * self.maps[0] + self.share * self.maps[1]
        own = log_odds(np.clip(kernel.rising(mixed, self.cells.weight), LEAST, 1 - LEAST))
        place, f = self.curve.knots
        cells = self.cells.place
        ends = self.curve.at(cells[[0, -1]])
        low, high = place < cells[0], place > cells[-1]
        places = np.concatenate([place[low], cells, place[high]])
        odds = np.concatenate([f[low] + (own[0] - ends[0]), own, f[high] + (own[-1] - ends[1])])
        distinct = np.append(True, np.diff(places) > 0)
        return places[distinct], held_log_odds(odds[distinct])


def chosen(cells: Cells, halves: Sequence[tuple[Array, Array]] | None) -> Choice:
    """The choice for cells of observations.

    halves : of each half the weight and the positives in each cell; None where there are too few observations
    """
    curve = fitted(cells)
    maps = _both(curve, cells, cells.place)
    if halves is None or min(_rarer(*half) for half in halves) < _FEWEST:
        return Choice(cells, curve, maps, np.zeros(cells.place.size), np.full(2, np.nan))
    gains = np.zeros(maps.shape)
    for (weight, positives), judge in zip(halves, reversed(halves), strict=True):
        own = with_counts(cells, weight, positives)
        p = np.clip(_both(fitted(own, curve), own, cells.place), LEAST, 1 - LEAST)
        gains += judge[1] * np.log(p) + (judge[0] - judge[1]) * np.log1p(-p)
    at = np.minimum((cells.rank * BINS).astype(np.int64), BINS - 1)
    binned = np.stack([np.bincount(at, one, BINS) for one in gains], axis=1)
    return Choice(
        cells, curve, maps, shares(np.asarray(POWER * binned))[at], -gains.sum(axis=1) / cells.weight.sum()
    )


def _rarer(weight: Array, positives: Array) -> float:
    return float(min(positives.sum(), (weight - positives).sum()))


def _both(curve: Curve, cells: Cells, at: Array) -> Array:
    """Probabilities at places by a curve, and by isotonic regression of its cells with the curve as prior."""
    level = leaning(cells, expit(curve.at(cells.place)))
    smooth = np.clip(expit(curve.at(at)), LEAST, 1 - LEAST)
    return np.stack([smooth, np.interp(at, cells.place, level)])


def leaning(cells: Cells, probability: Array, strength: float = STRENGTH) -> Array:
    """Isotonic regression of cells with probabilities as the prior, which count as so much information."""
    p = np.clip(probability, LEAST, 1 - LEAST)
    information = float((cells.weight * p * (1 - p)).sum())
    c = strength / information if information > 0 else math.inf
    if not math.isfinite(c):
        return p
    positives = cells.positives + c * cells.weight * p
    return np.asarray(kernel.rising(positives / (cells.weight * (1 + c)), cells.weight))


def shares(gains: Array, priors: Sequence[float] = PRIORS, rates: Sequence[float] = RATES) -> Array:
    """Probability of the second of two states in each bin, given log likelihoods of both.

    gains : float64 array, shape (bins, 2). The state is drawn at the first bin, the second with a probability of
    `priors`, and anew between bins with a probability of 1 - exp(-rate / bins); by evidence over all settings.
    """
    bins = len(gains)
    grid = [(prior, rate) for prior in priors for rate in rates]
    prior = np.array([(1 - p, p) for p, _ in grid])
    move = 1 - np.exp(-np.array([rate for _, rate in grid]) / bins)[:, np.newaxis]
    # Neither state is ever out of the question: what underflows could not come back.
    like = np.exp(np.maximum(gains - gains.max(axis=1, keepdims=True), _LEAST_GAIN))
    forward, evidence, state = np.empty((bins, *prior.shape)), np.zeros(len(grid)), prior
    for i in range(bins):
        if i:
            state = (1 - move) * state + move * prior
        state = state * like[i]
        total = state.sum(axis=1, keepdims=True)
        state = np.maximum(state / total, _LEAST_SHARE)
        evidence += np.log(total[:, 0])
        forward[i] = state
    weight = np.exp(evidence - evidence.max())
    weight /= weight.sum()
    back, found = np.ones(prior.shape), np.empty(bins)
    for i in range(bins - 1, -1, -1):
        joint = forward[i] * back
        found[i] = (weight * (joint[:, 1] / joint.sum(axis=1))).sum()
        back = back * like[i]
        back = (1 - move) * back + move * (back * prior).sum(axis=1, keepdims=True)
        back = np.maximum(back / back.max(axis=1, keepdims=True), _LEAST_SHARE)
    return np.asarray(np.clip(found, 0.0, 1.0))
