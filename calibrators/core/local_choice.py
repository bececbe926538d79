"""Choice between a curve, steps and isotonic regression with the curve as prior, for each range of scores.

The curve is much better where the truth is smooth, isotonic regression where it jumps, and averaged binnings where it
has few levels; all can occur in one log. They are fitted to all observations and to two halves of them. The fits to
each half are tested on the other half, in bins along the score. A hidden Markov chain along the bins, or the curve
everywhere, gives the probability of each of these states in each bin.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from calibrators.core.arrays import Array, Integers
from calibrators.core.curve import (
    LEAST,
    Cells,
    Curve,
    clipped_log_odds,
    expit,
    fit_curve,
    log_odds,
    with_counts,
)
from calibrators.core.kernels import binnings
from calibrators.core.kernels import likelihood as kernel

STRENGTHS = (300.0, 30.0)
"""Strengths of the curve as the prior of isotonic regression, as information."""

STRENGTH_OF_STEPS = 60.0
"""Strength of the curve as the prior of averaged steps, as information."""

CUTS = 20.0
"""Expected number of steps among the cells, before the labels are seen."""

MOST_BLOCKS = 1000
"""Isotonic blocks of which steps are made; a truth with few levels has fewer at any number of observations."""

ENDS = 1.0
"""Positives added below the lowest score, and negatives above the highest, so that the map is neither 0 nor 1."""

BINS = 1000
PRIORS = tuple(
    (1 - steps, steps * few, steps * (1 - few) * (1 - hard), steps * (1 - few) * hard)
    for steps in (0.02, 0.5, 0.98)
    for few in (0.02, 0.5)
    for hard in (0.1, 0.9)
)
RATES = (0.0, 3.0, 10.0)
"""Settings of the chain, averaged by evidence: prior probabilities of the states, and expected number of times that the
state is drawn again along all bins."""

POWER = 0.5
"""Exponent of the halves' likelihoods, because the two halves are not independent."""

EVEN_INFORMATION = 300.0
"""Information, the sum of w p (1 - p), at which a log has any steps with prior probability 1/2."""

PRIOR_OF_TOTAL, LARGEST_PART = 5.0, 0.5
"""Strength, as information, of the expected number of positives in `shift_to_total`, and the largest part of the shift.
The whole shift follows the noise of the total: with 300 rows it was some tenth of the excess on truths that the score
describes."""

MOST_ERRORS = 2.0
"""Largest shift in `shift_to_total`, in standard errors of the total: a larger one would spread a local error."""

_FEWEST = 2.0
_MOST_STEPS, _SMALLEST_STEP = 50, 1e-12
_LEAST_GAIN, _LEAST_SHARE = -200.0, 1e-150


class Steps(NamedTuple):
    """Steps: pairs of neighbouring cells between which isotonic regression may jump.

    cell : int64 array: index of the cell above each step
    below, above : float64 arrays: positions of the last score below and of the first score above each step
    """

    cell: Integers
    below: Array
    above: Array


@dataclass(frozen=True)
class Choice:
    """Curve, steps and isotonic maps of cells, and the posterior share of each.

    Attributes
    ----------
    cells : cells of all observations
    curve : curve fitted to them
    maps : float64 array, shape (states, cells): probabilities by the curve, by averaged steps, and by isotonic
        regression with it as prior, with each of `STRENGTHS`
    share : float64 array, shape (states, cells), in [0, 1]: share of each map
    steps : steps between cells
    held_out : float64 array, shape (states,): mean held-out log loss of each map; NaN if there are too few
        observations for two halves and the curve is used
    """

    cells: Cells
    curve: Curve
    maps: Array
    share: Array
    steps: Steps
    held_out: Array

    @property
    def isotonic_share(self) -> float:
        """Mean share of steps and isotonic maps, weighted by the observations."""
        return float((self.share[1:].sum(axis=0) * self.cells.weight).sum() / self.cells.weight.sum())

    @cached_property
    def _mixed(self) -> Array:
        return np.asarray(kernel.isotonic_fit((self.share * self.maps).sum(axis=0), self.cells.weight))

    @cached_property
    def shift(self) -> float:
        """Shift of the log-odds of the mixture, see `shift_to_total`."""
        return shift_to_total(self.cells, self._mixed)

    def knots(self) -> tuple[Array, Array]:
        """Return positions and non-decreasing log-odds of the mixture; beyond the cells it is parallel to the curve."""
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

    def _step_log_odds(self, mixed: Array, positions: Array, cell: Integers) -> Array:
        """Return log-odds at a side of the steps. Isotonic maps are constant from the cell to there."""
        curve = self.share[0, cell] * (expit(self.curve.at(positions)) - self.maps[0, cell])
        low, high = mixed[self.steps.cell - 1], mixed[self.steps.cell]
        return log_odds(np.clip(np.clip(mixed[cell] + curve, low, high), LEAST, 1 - LEAST))


def choose(cells: Cells, halves: Sequence[tuple[Array, Array]], steps: Steps) -> Choice:
    """Fit curve, steps and isotonic maps to cells and choose between them.

    halves : weight and positives in each cell, of each half of the observations
    steps : steps of the isotonic regression of all observations
    """
    curve = fit_curve(cells)
    maps = _maps(curve, cells, cells.position)
    information = float((cells.weight * maps[0] * (1 - maps[0])).sum())
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
    share = shares(np.asarray(POWER * binned), prior_of_steps(information))[bin_index].T
    return Choice(cells, curve, maps, share, steps, -gains.sum(axis=1) / cells.weight.sum())


def _maps(curve: Curve, cells: Cells, at: Array) -> Array:
    """Return probabilities at positions by a curve, and by steps and isotonic regression of cells with it as prior."""
    p = expit(curve.at(cells.position))
    fitted = [averaged_steps(cells, p), *(isotonic_with_prior(cells, p, strength) for strength in STRENGTHS)]
    return np.stack(
        [np.clip(expit(curve.at(at)), LEAST, 1 - LEAST), *(np.interp(at, cells.position, x) for x in fitted)]
    )


def averaged_steps(cells: Cells, probability: Array) -> Array:
    """Average all binnings of the blocks of isotonic regression, and mix the mean with a prior of these probabilities.

    Isotonic regression has a block for each chance increase. Each binning has its posterior probability as for ABB,
    with `CUTS` steps expected among the cells, and each bin the level (positives + 1) / (weight + 2).
    """
    p = np.clip(probability, LEAST, 1 - LEAST)
    c = _observations_of_prior(cells, p, STRENGTH_OF_STEPS)
    level = np.asarray(kernel.isotonic_fit(cells.positives / cells.weight, cells.weight))
    first = np.flatnonzero(np.diff(level, prepend=-1.0) > 0)
    if not math.isfinite(c):
        return p
    if first.size <= MOST_BLOCKS:
        weight, positives = (np.add.reduceat(x, first) for x in (cells.weight, cells.positives))
        cut = np.full(first.size, math.log(CUTS / (CUTS + cells.weight.size)))
        cut[-1] = 0.0
        scores = (weight - positives, positives, cut, np.zeros(first.size), np.empty(0))
        mean, _ = binnings.average_levels(*scores, binnings.log_sums_below(*scores))
        rising = kernel.isotonic_fit(mean, weight)
        level = np.repeat(rising, np.diff(first, append=cells.weight.size))
    return np.asarray((level + c * p) / (1 + c))


def _observations_of_prior(cells: Cells, probability: Array, strength: float) -> float:
    """Return the number of a prior's observations for each one of the cells; infinite if these have no information."""
    information = float((cells.weight * probability * (1 - probability)).sum())
    return strength / information if information > 0 else math.inf


def isotonic_with_prior(cells: Cells, probability: Array, strength: float) -> Array:
    """Fit isotonic regression to cells, with a prior of these probabilities and this strength as information."""
    p = np.clip(probability, LEAST, 1 - LEAST)
    c = _observations_of_prior(cells, p, strength)
    if not math.isfinite(c):
        return p
    weight = cells.weight * (1 + c)
    level = (cells.positives + c * cells.weight * p) / weight
    level, weight = (
        np.concatenate([[low], x, [high]]) for low, x, high in ((1.0, level, 0.0), (ENDS, weight, ENDS))
    )
    return np.asarray(kernel.isotonic_fit(level, weight)[1:-1])


def shift_to_total(cells: Cells, probability: Array) -> float:
    """Return half the shift of log-odds with which the expected number of positives equals the observed one, or less.

    Curves, whose prior is the score, and the ends of isotonic regression expect more positives than a few observed
    ones; but few observations do not determine the number. So the part is information / (information + 5), at most
    `LARGEST_PART`, and the shift at most `MOST_ERRORS` standard errors.
    """
    total, f = float(cells.positives.sum()), log_odds(np.clip(probability, LEAST, 1 - LEAST))
    information, shift = 0.0, 0.0
    for iteration in range(_MOST_STEPS if 0 < total < cells.weight.sum() else 0):
        p = expit(f + shift)
        slope = float((cells.weight * p * (1 - p)).sum())
        if not slope > 0:
            break
        information = information if iteration else slope
        step = max(-1.0, min(1.0, (total - float((cells.weight * p).sum())) / slope))
        shift += step
        if abs(step) < _SMALLEST_STEP:
            break
    most = MOST_ERRORS / math.sqrt(information) if information > 0 else 0.0
    part = min(LARGEST_PART, information / (information + PRIOR_OF_TOTAL))
    return max(-most, min(most, part * shift))


def prior_of_steps(information: float) -> float:
    """Return the prior probability that a log has any steps: J / (J + information), J = `EVEN_INFORMATION`.

    Chance favours isotonic regression in some of many ranges of a smooth truth. The more observations, the larger is
    the error of these steps beside the curve's own, and the stronger the evidence for true ones. Few observations
    cannot tell; on real data a mixture is then better than the curve.
    """
    return EVEN_INFORMATION / (EVEN_INFORMATION + information)


def shares(
    gains: Array,
    steps: float,
    priors: Sequence[Sequence[float]] = PRIORS,
    rates: Sequence[float] = RATES,
) -> Array:
    """Return the probability of each state in each bin, by the forward-backward algorithm, averaged by evidence.

    With prior probability 1 - `steps` the first state is that of all bins: a penalty against chains that chance makes
    likelier in some of many bins. For one half and likelihoods that are not raised to a power, the mean likelihood
    ratio under the first state is 1, so that it exceeds (1 - steps) / steps with probability of at most
    steps / (1 - steps) (Markov's inequality); with two halves and powers this is a guide, not a bound.

    gains : float64 array, shape (bins, states): log likelihoods
    steps : prior probability of the chain, in (0, 1]
    priors : probabilities of the states at the first bin, and when the state is drawn again
    rates : the state is drawn again between neighbouring bins with probability 1 - exp(-rate / bins)
    """
    bins = len(gains)
    grid = [(prior, rate) for prior in priors for rate in rates]
    prior = np.array([initial for initial, _ in grid])
    redraw = 1 - np.exp(-np.array([rate for _, rate in grid]) / bins)[:, np.newaxis]
    # A lower bound, because a probability that underflows would remain 0.
    relative = np.maximum(gains - gains.max(axis=1, keepdims=True), _LEAST_GAIN)
    likelihood = np.exp(relative)
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
    chain = evidence.max() + math.log(float(weight.mean()))
    weight /= weight.sum()
    back, posterior = np.ones(prior.shape), np.empty(gains.shape)
    for i in range(bins - 1, -1, -1):
        joint = forward[i] * back
        posterior[i] = (weight * (joint / joint.sum(axis=1, keepdims=True))).sum(axis=0)
        back = back * likelihood[i]
        back = (1 - redraw) * back + redraw * (back * prior).sum(axis=1, keepdims=True)
        back = np.maximum(back / back.max(axis=1, keepdims=True), _LEAST_SHARE)
    against = (1 - steps) / steps * math.exp(min(float(relative[:, 0].sum()) - chain, -_LEAST_GAIN))
    posterior /= 1 + against
    posterior[:, 0] += against / (1 + against)
    return posterior
