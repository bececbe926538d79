"""Sigmoids of the score, and the pass that evaluates their log loss.

This module does not import scikit-learn, because worker processes import it.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Generator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from calibrators.core.arrays import Array, Integers
from calibrators.core.cumulative import Layout
from calibrators.core.kernels import likelihood as kernel
from calibrators.core.passes import Pass, Points, T, blocks_of, run_in_memory

_STEEPEST = 2.0**20  # slope on the scale beyond which scaled scores are too inexact for the argument
_CLIP = 2.0**-53  # the distance of the largest double below 1 from 1


def logit(scores: Array) -> Array:
    """Compute log(s / (1 - s)) of scores in [0, 1], clipped to [2**-53, 1 - 2**-53]."""
    s = np.clip(scores, _CLIP, 1.0 - _CLIP)
    return np.log(s) - np.log1p(-s)


@dataclass(frozen=True)
class Scale:
    """Linear scale from the range of the scores, or of their logits, to [-1, 1]: x = (input - centre) / half."""

    input: str
    centre: float
    half: float

    @classmethod
    def of(cls, layout: Layout, kind: str) -> Scale:
        """Make the scale of a layout's scores, or of their logits."""
        first, last = float(layout.first[0]), layout.last
        if kind == "logit":
            layout.check_probabilities("input='logit'", "use input='score' for margins")
            first, last = logit(np.array([first, last]))
        centre = float(first / 2 + last / 2)
        return cls(kind, centre, float(max(last - centre, centre - first)))

    def x(self, scores: Array) -> Array:
        """Convert scores to scaled values."""
        if self.half == 0.0:
            return np.zeros(scores.shape)
        values = logit(scores) if self.input == "logit" else scores
        with np.errstate(over="ignore"):
            return (values - self.centre) / self.half


@dataclass(frozen=True)
class Sigmoid:
    """p = 1 / (1 + exp(-(a (x - shift) + b))), x the scaled score."""

    scale: Scale
    a: float
    b: float
    shift: float

    def argument(self, scores: Array) -> Array:
        """Compute the sigmoid's argument, a (x - shift) + b."""
        with np.errstate(over="ignore"):
            if abs(self.a) > _STEEPEST:
                # One score is far beyond all others, whose scaled values are nearly equal.
                values = logit(scores) if self.scale.input == "logit" else scores
                return self.a / self.scale.half * (values - self._centre) + self.b
            return self.a * (self.scale.x(scores) - self.shift) + self.b

    def probability(self, scores: Array) -> Array:
        """Compute the probabilities of scores."""
        return expit(self.argument(scores))

    def score(self, argument: Array) -> Array:
        """Invert `argument`, within the domain."""
        value = self._value(argument)
        if self.scale.input == "logit":
            return np.clip(expit(value), *self.domain())
        return np.clip(value, *self.domain())

    def domain(self) -> tuple[float, float]:
        """Return the lowest and the highest score for which the sigmoid is defined."""
        if self.scale.input == "logit":
            return _CLIP, 1.0 - _CLIP
        return -1e308, 1e308

    def relative_curvature(self, argument: Array) -> Array:
        """Compute the second derivative of p by the score over p (1 - p) (d argument / d score)**2."""
        curvature = -np.tanh(argument / 2)
        if self.scale.input == "logit":
            curvature = curvature + np.tanh(self._value(argument) / 2) * self.scale.half / self.a
        return curvature

    def _value(self, argument: Array) -> Array:
        """Compute the score, or its logit, at an argument."""
        with np.errstate(over="ignore"):
            if abs(self.a) > _STEEPEST:
                return self._centre + (argument - self.b) / (self.a / self.scale.half)
            return self.scale.centre + self.scale.half * (self.shift + (argument - self.b) / self.a)

    @property
    def _centre(self) -> float:
        """The score, or its logit, at `shift`."""
        return self.scale.centre + self.scale.half * self.shift

    def slope_and_intercept(self) -> tuple[float, float]:
        """Compute slope and intercept of the argument in the units of the input."""
        if self.a == 0.0:
            return 0.0, self.b
        with np.errstate(over="ignore"):
            slope, centre = np.divide([self.a, self.scale.centre], self.scale.half)
        return float(slope), float(self.b - self.a * (centre + self.shift))


def expit(z: Array) -> Array:
    """Compute 1 / (1 + exp(-z)) without overflow."""
    e = np.exp(-np.abs(z))
    return np.where(z >= 0, 1.0, e) / (1.0 + e)


class LossEvaluation(NamedTuple):
    """Log loss of a sigmoid, summed over the weights, its gradient and its Hessian."""

    loss: float
    by_a: float
    by_b: float
    by_aa: float
    by_ab: float
    by_bb: float


def _sums_in_part(
    sigmoid: Sigmoid,
    t1: tuple[float, float],
    t0: tuple[float, float],
    units: tuple[float, float],
    points: Points,
) -> Integers:
    """Sum the loss and its derivatives over a part. t1, t0 : Platt's targets of labels 1 and 0, and 1 minus these."""
    theta, sums = np.array([sigmoid.a, sigmoid.b]), np.zeros((len(LossEvaluation._fields), 2), np.int64)
    for score, weight, k in blocks_of(points):
        x = sigmoid.scale.x(score) - sigmoid.shift
        hit, miss = (k * a + (weight - k) * b for a, b in zip(t1, t0, strict=True))
        sums += kernel.loss_and_derivatives(x[None], hit, miss, theta, *units)
    return sums


def _total(units: tuple[float, float], parts: list[Integers]) -> LossEvaluation:
    loss, derivatives = (whole_totals(unit, parts) for unit in units)
    return LossEvaluation(loss[0], *derivatives[1:])


def whole_totals(unit: float, parts: list[Integers]) -> list[float]:
    """Add up the parts' sums of `kernel.loss_and_derivatives`, correctly rounded."""
    totals = [
        sum((int(high) << kernel.LOW_BITS) + int(low) for high, low in rows)
        for rows in zip(*parts, strict=True)
    ]
    return [math.ldexp(float(total), -kernel.LOW_BITS) / unit for total in totals]


def evaluation_pass(layout: Layout, sigmoid: Sigmoid) -> Pass:
    """Make the pass that yields the `LossEvaluation` of a sigmoid against Platt's targets."""
    n1, n0 = layout.positives, max(layout.weight - layout.positives, 0.0)
    t1 = ((n1 + 1.0) / (n1 + 2.0), 1.0 / (n1 + 2.0))
    t0 = (1.0 / (n0 + 2.0), (n0 + 1.0) / (n0 + 2.0))
    # Bound of a term per unit of weight: x - shift lies in [-2, 2].
    largest = layout.weight * (2.0 * abs(sigmoid.a) + abs(sigmoid.b) + 4.0)
    if abs(sigmoid.a) <= _STEEPEST:
        units = (_unit(largest), _unit(largest))
    else:  # the derivatives by a steep slope are tiny
        units = (_unit(largest), _unit(4.0 * layout.weight))
    return Pass(chunk=partial(_sums_in_part, sigmoid, t1, t0, units), combine=partial(_total, units))


def _unit(largest: float) -> float:
    """Return the inverse of the unit to which terms are rounded, for sums up to `largest`."""
    return 2.0 ** min(60 - math.frexp(largest)[1], 1000)


# Points of narrow bins, which stand for all points.

_BINS = 1 << 15

FEWEST_POINTS = 1 << 17
"""Number of points from which on bins are faster than sweeps over the points."""

_STEEPEST_BIN = 2.0**-8  # change of the argument over half a bin up to which bins are exact
_LOST = 1e-14  # share of a label's weight that may be lost in rounding


class _Moments(NamedTuple):
    """Sums of `kernel.add_moments` for the bins from `first` on."""

    first: int
    sums: Integers


def binned_pass(layout: Layout, scale: Scale) -> Pass:
    """Make the pass that yields two points per bin and label with the moments, up to the third, of the points there.

    These are the nodes and weights of Gauss's quadrature: sums of smooth functions of the scaled score change only by
    the order of the fourth power of the bin width. The scores of these `Points` are scaled ones and do not ascend.
    """
    unit = 2.0 ** (60 - math.frexp(layout.weight)[1])
    return Pass(partial(_moments, scale, unit), partial(_nodes, unit))


def stand_for_all(nodes: Points, layout: Layout, slope: float) -> bool:
    """Tell whether sums over the points of `binned_pass` are those over all points, within some 1e-13.

    slope : bound of the change of the sigmoid's argument by the scaled score
    """
    n1, n0 = layout.positives, layout.weight - layout.positives
    positives = nodes.positives.sum()
    lost = abs(n1 - positives) > _LOST * n1 or abs(n0 - (nodes.weight.sum() - positives)) > _LOST * n0
    return slope / _BINS <= _STEEPEST_BIN and not lost


def _moments(scale: Scale, unit: float, points: Points) -> _Moments:
    ends = (scale.x(points.score[[0, -1]]) + 1.0) * (_BINS / 2)
    first, last = np.clip(ends.astype(np.int64), 0, _BINS - 1).tolist()
    sums = np.zeros((last - first + 1, 2, kernel.MOMENTS), np.int64)
    for block in blocks_of(points):
        kernel.add_moments((scale.x(block.score), block.weight, block.positives), _BINS, first, unit, sums)
    return _Moments(first, sums)


def _nodes(unit: float, parts: list[_Moments]) -> Points:
    sums = np.zeros((_BINS, 2, kernel.MOMENTS), np.int64)
    for part in parts:
        sums[part.first : part.first + len(part.sums)] += part.sums
    bin_, label = np.nonzero(sums[..., 0])
    weight, *moments = sums[bin_, label].T / unit
    mean, square, cube = (moment / weight for moment in moments)
    variance = np.maximum(square - mean**2, 0.0)
    third = cube - 3 * mean * square + 2 * mean**3
    # The nodes' distances from the mean are the roots of d^2 - skew d - variance.
    skew = np.clip(np.divide(third, variance, out=np.zeros(mean.size), where=variance > 0), -2.0, 2.0)
    root = np.sqrt(skew**2 / 4 + variance)
    upper = skew / 2 + root
    share = np.divide(upper, 2 * root, out=np.ones(mean.size), where=root > 0) * weight
    x = ((bin_ + 0.5) * 2 + mean + np.stack([skew / 2 - root, upper])) / _BINS - 1.0
    weights = np.stack([share, weight - share])
    return Points(x.ravel(), weights.ravel(), np.where(label == 1, weights, 0.0).ravel())


def solved(passes: Generator[Pass, Any, T], points: Points) -> T:
    """Run passes on points in memory and return their result, without convergence warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return run_in_memory(passes, points)
