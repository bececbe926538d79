"""Folds for cross-validation over points, and passes over the observations outside or inside a fold.

The observations of a fold depend only on the seed, the label, the score and the weight of the observations with this
score, not on the order of rows or their division into parts. Folds are not balanced along the scores: observations
inside a fold would then repeat the noise of those outside, which would favour methods that follow noise.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from calibrators.core.arrays import Array
from calibrators.core.cumulative import Layout
from calibrators.core.hashing import mixed
from calibrators.core.kernels.drawn_cells import binomial_quantiles
from calibrators.core.passes import Pass, Points

_MANY = 2.0**40

_ROUNDING = 2.0**-40
"""Share of a weight below which a remainder is rounding error."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class FoldedPoints:
    """Random division of observations into folds with equal probabilities.

    The observations of one label at one score are exchangeable, so their numbers in the folds are drawn (a multinomial,
    fold by fold). If a weight is not a multiple of `heaviest`, the remainder goes to one fold.

    Parameters
    ----------
    layout : layout of all points
    folds : int >= 2
    seed : int in [0, 2**31)
    heaviest : float > 0, default 1
        The weight that counts as one observation: 1 if weights are counts, the largest weight of a row if they are
        sampling weights. A row that shares its score and label with no other is then in one fold entirely. Tied rows
        are divided as if they were fewer rows of the largest weight. Their sum varies at most as much as the sum of
        such rows, so held-out observations are not positively correlated with those of the training.
    """

    layout: Layout
    folds: int
    seed: int
    heaviest: float = 1.0

    def split(self, points: Points, fold: int) -> tuple[Points | None, Points | None]:
        """Divide the points of a part into those outside and those inside a fold; None if there are none. O(points)."""
        negatives = points.weight - points.positives
        inside_positives = self._drawn(points.score, points.positives, 1, fold)
        inside_negatives = self._drawn(points.score, negatives, 0, fold)
        outside_positives = points.positives - inside_positives
        outside = outside_positives + (negatives - inside_negatives)
        return (
            _nonempty_points(points.score, outside, outside_positives),
            _nonempty_points(points.score, inside_positives + inside_negatives, inside_positives),
        )

    def _drawn(self, score: Array, weight: Array, label: int, fold: int) -> Array:
        """Draw the weight of each point, for one label, that is inside a fold."""
        count = remaining = np.floor(weight / self.heaviest)
        remainder = weight - remaining * self.heaviest
        remainder[remainder < _ROUNDING * weight] = 0.0
        key = mixed(score.view(np.uint64) ^ mixed(np.array([2 * self.seed + label], np.uint64)))
        for i in range(fold + 1):
            drawn = _binomial(remaining, 1 / (self.folds - i), _uniform(key, i))
            remaining = remaining - drawn
        home = np.floor(_uniform(key, self.folds) * self.folds)
        is_home = home == fold
        amount = drawn * self.heaviest + np.where(is_home, remainder, 0.0)
        # If the fold gets everything, return the weight itself: rounding would leave a last bit outside the fold.
        return np.where((drawn == count) & (is_home | (remainder == 0)), weight, np.minimum(amount, weight))

    def over(
        self, passes: Generator[Pass, Any, Any], fold: int, *, inside: bool = False
    ) -> Generator[Pass, Any, Any]:
        """Run passes over the observations outside a fold, or over those inside."""
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
        """Find the first scores of the parts that contain the given scores."""
        first = self.layout.first
        parts = np.searchsorted(first, np.array(sorted(scores)), side="right") - 1
        return frozenset(first[parts].tolist())


def _chunk(folded: FoldedPoints, fold: int, inside: bool, chunk: Any, only: Any, points: Points) -> Any:
    selected = folded.split(points, fold)[inside]
    if selected is None or (only is not None and float(selected.score[0]) not in only):
        return None
    return (chunk(selected),)


def _combine(combine: Any, states: list[Any]) -> Any:
    return combine([state[0] for state in states if state is not None])


def _uniform(key: npt.NDArray[np.uint64], number: int) -> Array:
    """Compute a pseudo-random number in [0, 1) for each key."""
    with np.errstate(over="ignore"):
        bits = mixed(key + np.uint64(number + 1) * _GOLDEN)
    return np.asarray((bits >> np.uint64(11)).astype(np.float64) * 2.0**-53)


def _binomial(count: Array, probability: float, uniform: Array) -> Array:
    """Convert uniform numbers to binomial ones; most counts are 0 or 1."""
    drawn = np.where(uniform < probability, count, 0.0)
    # Very large counts use the normal approximation, since the binomial quantile function overflows.
    many = (count > _MANY) & (probability < 1)
    if many.any():
        from scipy.special import ndtri

        spread = np.sqrt(count[many] * probability * (1 - probability))
        drawn[many] = np.rint(count[many] * probability + spread * ndtri(uniform[many]))
    several = (count > 1) & (probability < 1) & ~many
    drawn[several] = binomial_quantiles(uniform[several], count[several], probability)
    return np.clip(drawn, 0.0, count)


def _nonempty_points(score: Array, weight: Array, positives: Array) -> Points | None:
    filled = weight > 0
    if not filled.any():
        return None
    return Points(score[filled], weight[filled], np.minimum(positives, weight)[filled])
