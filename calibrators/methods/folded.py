"""Cross-validation over points: the observations of each fold, and passes over the others.

The observations of a fold are a function of (seed, label, score, weight of the observations there) alone, so they
depend neither on the order of rows nor on their division into parts. Folds are not balanced along the scores:
observations inside a fold would then repeat the noise of those outside, and a method that follows noise would look
good.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from calibrators._kernels.drawn_cells import binomial_quantiles
from calibrators.arithmetic.cumulative import Layout
from calibrators.arithmetic.hashing import mixed
from calibrators.arithmetic.passes import Array, Pass, Points

_MANY = 2.0**40

_ROUNDING = 2.0**-40
"""Share of a weight that is rounding, and nothing that could be dealt."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class FoldedPoints:
    """Observations in folds, at random: each is in any fold with the same probability.

    The observations of one label at one score are alike, so their numbers in the folds are drawn (a multinomial, fold
    by fold). Of a weight that is no multiple of `heaviest` the rest goes to one fold.

    Parameters
    ----------
    layout : of all points
    folds : int >= 2
    seed : int in [0, 2**31)
    heaviest : float > 0, default 1
        The weight that is dealt as one observation: 1 where weights are counts, the largest weight of a row where they
        are sampling weights. Rows that share their score and label with no other are then in one fold, whole. Tied
        rows are dealt as if they were fewer and each had the largest weight. Their sum varies at most as much as such
        rows' sum, so what is held out is not positively correlated with what is trained on.
    """

    layout: Layout
    folds: int
    seed: int
    heaviest: float = 1.0

    def split(self, points: Points, fold: int) -> tuple[Points | None, Points | None]:
        """The points of a part outside a fold, and in it; None where there are none. O(points)."""
        negatives = points.weight - points.positives
        inside_positives = self._drawn(points.score, points.positives, 1, fold)
        inside_negatives = self._drawn(points.score, negatives, 0, fold)
        outside_positives = points.positives - inside_positives
        outside = outside_positives + (negatives - inside_negatives)
        return (
            _some(points.score, outside, outside_positives),
            _some(points.score, inside_positives + inside_negatives, inside_positives),
        )

    def _drawn(self, score: Array, weight: Array, label: int, fold: int) -> Array:
        """Return the weight of each point and label that a fold gets."""
        count = left = np.floor(weight / self.heaviest)
        rest = weight - left * self.heaviest
        rest[rest < _ROUNDING * weight] = 0.0
        key = mixed(score.view(np.uint64) ^ mixed(np.array([2 * self.seed + label], np.uint64)))
        for i in range(fold + 1):
            drawn = _binomial(left, 1 / (self.folds - i), _uniform(key, i))
            left = left - drawn
        home = np.floor(_uniform(key, self.folds) * self.folds)
        here = home == fold
        amount = drawn * self.heaviest + np.where(here, rest, 0.0)
        # Of all of it nothing is left to rounding: a point outside the fold would weigh a last bit.
        return np.where((drawn == count) & (here | (rest == 0)), weight, np.minimum(amount, weight))

    def over(
        self, passes: Generator[Pass, Any, Any], fold: int, *, inside: bool = False
    ) -> Generator[Pass, Any, Any]:
        """Passes carried out over the observations outside a fold, such as a calibrator's; or over those in it."""
        answer: Any = None
        while True:
            try:
                request = passes.send(answer)
            except StopIteration as stop:
                return stop.value
            answer = yield Pass(
                chunk=partial(_chunk, self, fold, inside, request.chunk, request.only),
                combine=partial(_combine, request.combine),
                only=None if request.only is None else self._parts_of(request.only),
            )

    def _parts_of(self, scores: frozenset[float]) -> frozenset[float]:
        """The first scores of the parts in which the given scores lie."""
        first = self.layout.first
        places = np.searchsorted(first, np.array(sorted(scores)), side="right") - 1
        return frozenset(first[places].tolist())


def _chunk(folded: FoldedPoints, fold: int, inside: bool, chunk: Any, only: Any, points: Points) -> Any:
    own = folded.split(points, fold)[inside]
    if own is None or (only is not None and float(own.score[0]) not in only):
        return None
    return (chunk(own),)


def _combine(combine: Any, states: list[Any]) -> Any:
    return combine([state[0] for state in states if state is not None])


def _uniform(key: npt.NDArray[np.uint64], number: int) -> Array:
    """A random number in [0, 1) for each key."""
    with np.errstate(over="ignore"):
        bits = mixed(key + np.uint64(number + 1) * _GOLDEN)
    return np.asarray((bits >> np.uint64(11)).astype(np.float64) * 2.0**-53)


def _binomial(count: Array, probability: float, uniform: Array) -> Array:
    """Binomial numbers from uniform ones; most counts are 0 or 1."""
    drawn = np.where(uniform < probability, count, 0.0)
    # Of very many the number is as good as normal, and what finds quantiles of binomials overflows.
    many = (count > _MANY) & (probability < 1)
    if many.any():
        from scipy.special import ndtri

        spread = np.sqrt(count[many] * probability * (1 - probability))
        drawn[many] = np.rint(count[many] * probability + spread * ndtri(uniform[many]))
    several = (count > 1) & (probability < 1) & ~many
    drawn[several] = binomial_quantiles(uniform[several], count[several], probability)
    return np.clip(drawn, 0.0, count)


def _some(score: Array, weight: Array, positives: Array) -> Points | None:
    some = weight > 0
    if not some.any():
        return None
    return Points(score[some], weight[some], np.minimum(positives, weight)[some])
