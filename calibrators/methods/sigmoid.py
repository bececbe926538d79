"""A sigmoid of the score, and the pass that evaluates its log loss.

Without scikit-learn: worker processes import this.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Generator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from calibrators._kernels import likelihood as kernel
from calibrators.arithmetic.cumulative import Layout
from calibrators.arithmetic.passes import Pass, Points, T, blocks_of, run_in_memory

Array = npt.NDArray[np.float64]

_STEEPEST = 2.0**20  # on the scale, beyond which a place on it says too little of the argument
_CLIP = 2.0**-53  # the distance of the largest double below 1 from 1


def logit(scores: Array) -> Array:
    """log(s / (1 - s)) of scores in [0, 1], clipped to [2**-53, 1 - 2**-53]."""
    s = np.clip(scores, _CLIP, 1.0 - _CLIP)
    return np.log(s) - np.log1p(-s)


@dataclass(frozen=True)
class Scale:
    """The scores' range brought to [-1, 1]: x = (input - centre) / half."""

    input: str
    centre: float
    half: float

    @classmethod
    def of(cls, layout: Layout, kind: str) -> Scale:
        """The scale of these points' scores, or of their logits."""
        first, last = float(layout.first[0]), layout.last
        if kind == "logit":
            layout.check_probabilities("input='logit'", "use input='score' for margins")
            first, last = logit(np.array([first, last]))
        centre = float(first / 2 + last / 2)
        return cls(kind, centre, float(max(last - centre, centre - first)))

    def scores(self, x: Array) -> Array:
        """The scores at places on the scale."""
        values = self.centre + self.half * x
        return expit(values) if self.input == "logit" else values

    def x(self, scores: Array) -> Array:
        """The scores, or their logits, on the scale."""
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
        """The sigmoid's argument, a (x - shift) + b."""
        with np.errstate(over="ignore"):
            if abs(self.a) > _STEEPEST:
                # One score is far beyond all others, which are all but one place on the scale.
                values = logit(scores) if self.scale.input == "logit" else scores
                return self.a / self.scale.half * (values - self._centre) + self.b
            return self.a * (self.scale.x(scores) - self.shift) + self.b

    def probability(self, scores: Array) -> Array:
        """The sigmoid itself, shape as the scores."""
        return expit(self.argument(scores))

    def score(self, argument: Array) -> Array:
        """The inverse of `argument`, within the scores that there are."""
        value = self._value(argument)
        if self.scale.input == "logit":
            return np.clip(expit(value), *self.domain())
        return np.clip(value, *self.domain())

    def domain(self) -> tuple[float, float]:
        """The lowest and highest score that the sigmoid is defined for."""
        if self.scale.input == "logit":
            return _CLIP, 1.0 - _CLIP
        return -1e308, 1e308

    def relative_curvature(self, argument: Array) -> Array:
        """Second derivative of p by the score over p (1 - p) (d argument / d score)**2."""
        curvature = -np.tanh(argument / 2)
        if self.scale.input == "logit":
            curvature = curvature + np.tanh(self._value(argument) / 2) * self.scale.half / self.a
        return curvature

    def _value(self, argument: Array) -> Array:
        """The score, or its logit, at an argument."""
        with np.errstate(over="ignore"):
            if abs(self.a) > _STEEPEST:
                return self._centre + (argument - self.b) / (self.a / self.scale.half)
            return self.scale.centre + self.scale.half * (self.shift + (argument - self.b) / self.a)

    @property
    def _centre(self) -> float:
        """The score, or its logit, at `shift`."""
        return self.scale.centre + self.scale.half * self.shift

    def slope_and_intercept(self) -> tuple[float, float]:
        """Slope and intercept of the argument, in the input's own units."""
        if self.a == 0.0:
            return 0.0, self.b
        with np.errstate(over="ignore"):
            slope, centre = np.divide([self.a, self.scale.centre], self.scale.half)
        return float(slope), float(self.b - self.a * (centre + self.shift))


def expit(z: Array) -> Array:
    """1 / (1 + exp(-z)) without overflow."""
    e = np.exp(-np.abs(z))
    return np.where(z >= 0, 1.0, e) / (1.0 + e)


class Evaluation(NamedTuple):
    """Log loss of a sigmoid, summed over the weights, its gradient and its Hessian."""

    loss: float
    by_a: float
    by_b: float
    by_aa: float
    by_ab: float
    by_bb: float


def _sums_in_part(
    sigmoid: Sigmoid,
    one: tuple[float, float],
    zero: tuple[float, float],
    units: tuple[float, float],
    points: Points,
) -> npt.NDArray[np.int64]:
    at, sums = np.array([sigmoid.a, sigmoid.b]), np.zeros((len(Evaluation._fields), 2), np.int64)
    for score, weight, k in blocks_of(points):
        x = sigmoid.scale.x(score) - sigmoid.shift
        hit, miss = (k * a + (weight - k) * b for a, b in zip(one, zero, strict=True))
        sums += kernel.loss_and_derivatives(x[None], hit, miss, at, *units)
    return sums


def _total(units: tuple[float, float], parts: list[npt.NDArray[np.int64]]) -> Evaluation:
    loss, derivatives = (whole_totals(unit, parts) for unit in units)
    return Evaluation(loss[0], *derivatives[1:])


def whole_totals(unit: float, parts: list[npt.NDArray[np.int64]]) -> list[float]:
    """Add up the sums of parts that `log_loss.add_whole` made, correctly rounded."""
    totals = [
        sum((int(high) << kernel.LOW_BITS) + int(low) for high, low in rows)
        for rows in zip(*parts, strict=True)
    ]
    return [math.ldexp(float(total), -kernel.LOW_BITS) / unit for total in totals]


def evaluation_pass(layout: Layout, sigmoid: Sigmoid) -> Pass:
    """The pass that yields the `Evaluation` of a sigmoid against Platt's targets."""
    n1, n0 = layout.positives, max(layout.weight - layout.positives, 0.0)
    one = ((n1 + 1.0) / (n1 + 2.0), 1.0 / (n1 + 2.0))
    zero = (1.0 / (n0 + 2.0), (n0 + 1.0) / (n0 + 2.0))
    # No term exceeds its weight times this; x - shift lies in [-2, 2].
    largest = layout.weight * (2.0 * abs(sigmoid.a) + abs(sigmoid.b) + 4.0)
    if abs(sigmoid.a) <= _STEEPEST:
        units = (_unit(largest), _unit(largest))
    else:  # derivatives by so steep a slope are tiny
        units = (_unit(largest), _unit(4.0 * layout.weight))
    return Pass(chunk=partial(_sums_in_part, sigmoid, one, zero, units), combine=partial(_total, units))


def _unit(largest: float) -> float:
    """Return the inverse of the unit to which sums up to this limit are rounded."""
    return 2.0 ** min(60 - math.frexp(largest)[1], 1000)


# A start for Newton's method that is all but the end: the optimum of the points in narrow bins.

_BINS = 1 << 15

FEWEST_POINTS = 1 << 17
"""Below this many, sweeps over the points cost less than what they are left for."""


class _Moments(NamedTuple):
    """The sums of `kernel.add_moments` for the bins from `first` on."""

    first: int
    sums: npt.NDArray[np.int64]


def binned_pass(layout: Layout, scale: Scale) -> Pass:
    """The pass that yields, for each bin and label, one point at the mean place of the points there: `Points` whose
    scores repeat and do not ascend. What is smooth on the scale differs by squares of a bin's width, however many
    points share a score.
    """
    unit = 2.0 ** (60 - math.frexp(layout.weight)[1])
    return Pass(partial(_moments, scale, unit), partial(_points, scale, unit))


def _moments(scale: Scale, unit: float, points: Points) -> _Moments:
    ends = (scale.x(points.score[[0, -1]]) + 1.0) * (_BINS / 2)
    first, last = np.clip(ends.astype(np.int64), 0, _BINS - 1).tolist()
    sums = np.zeros((last - first + 1, kernel.SUMS), np.int64)
    for some in blocks_of(points):
        kernel.add_moments((scale.x(some.score), some.weight, some.positives), _BINS, first, unit, sums)
    return _Moments(first, sums)


def _points(scale: Scale, unit: float, parts: list[_Moments]) -> Points:
    sums = np.zeros((_BINS, kernel.SUMS), np.int64)
    for part in parts:
        sums[part.first : part.first + len(part.sums)] += part.sums
    weight, distance = sums[:, [0, 2]] / unit, sums[:, [1, 3]] / unit
    some = weight > 0
    middle = (np.arange(_BINS)[:, np.newaxis] + 0.5) * (2 / _BINS) - 1.0
    x = (middle + np.divide(distance, weight, out=np.zeros(weight.shape), where=some) / _BINS)[some]
    positives = np.where([False, True], weight, 0.0)
    return Points(scale.scores(x), weight[some], positives[some])


def solved(passes: Generator[Pass, Any, T], points: Points) -> T:
    """Run a generator of passes on points in memory and return its result, also without an optimum."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return run_in_memory(passes, points)
