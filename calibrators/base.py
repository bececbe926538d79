"""The contract of every calibrator, and the input checks, once.

A calibrator sees *points*: one entry a distinct score, ascending, with the weight and the positives of the
observations that share it. It fits in *passes*: sweeps that turn each part of the points into a small state and
combine the states in score order. In memory there is one part; on a score table there are as many as the table
has, in as many processes as there are. The calibrator does not know which, so its result cannot depend on it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError

from calibrators._kernels import ties
from calibrators.calibration_map import CalibrationMap

Array = npt.NDArray[np.float64]


class Points(NamedTuple):
    """Observations with ties added up.

    Attributes
    ----------
    score : float64 array, shape (m,), strictly ascending, finite
    weight : float64 array, shape (m,), > 0: the sum of the weights at the score, correctly rounded
    positives : float64 array, shape (m,), in [0, weight]: the same for the positive labels
    """

    score: Array
    weight: Array
    positives: Array


@dataclass(frozen=True)
class Pass:
    """One sweep over the parts of a score table.

    Parameters
    ----------
    chunk : callable
        Points of a part (never empty) to a small state. Picklable, pure.
    combine : callable
        The list of the parts' states, in ascending order of their scores, to what the pass yields. Must not
        depend on where the parts were cut.
    only : frozenset of float, optional
        The first scores of the parts that the pass needs; None for all. Whoever carries it out may leave the
        other parts unread: `combine` then sees fewer states.
    """

    chunk: Callable[[Points], Any]
    combine: Callable[[list[Any]], Any]
    only: frozenset[float] | None = None


Passes = Generator[Pass, Any, CalibrationMap]


class Calibrator(BaseEstimator, ABC):
    """A calibrator of binary scores: `fit(scores, labels)`, `predict(scores)`.

    Subclasses take their parameters in `__init__` as scikit-learn does, and implement `_passes`. They may
    implement `check_parameters`.

    Attributes
    ----------
    calibration_map_ : CalibrationMap
        The fitted map; `predict` is its `predict`.
    n_observations_ : float
        Sum of the weights.
    """

    single_pass: bool = False
    """Whether `_passes` asks for exactly one pass: then a score table need not be written for it."""

    calibration_map_: CalibrationMap

    def fit(
        self, scores: npt.ArrayLike, labels: npt.ArrayLike, sample_weight: npt.ArrayLike | None = None
    ) -> Self:
        """Fit to observations in any order.

        Parameters
        ----------
        scores : array-like of numbers, shape (n,), finite, n >= 1
        labels : array-like, shape (n,), bool or numbers in {0, 1}
        sample_weight : array-like, shape (n,), finite, > 0; default 1. A weight of 2 equals a repeated row.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            For input or parameters outside these ranges.

        Notes
        -----
        O(n log n) for the sort, then what `fit_points` costs.
        """
        return self.fit_points(collapse(scores, labels, sample_weight))

    def fit_points(self, points: Points) -> Self:
        """Fit to points in memory (checked by the caller: `collapse` makes them)."""
        return self.fit_passes(lambda request: request.combine([request.chunk(points)]))

    def fit_passes(self, run: Callable[[Pass], Any]) -> Self:
        """Fit with passes that `run` carries out over the parts of a score table."""
        self.check_parameters()
        passes = self._passes()
        try:
            request = next(passes)
            while True:
                request = passes.send(run(request))
        except StopIteration as stop:
            self.calibration_map_ = stop.value
        self.n_observations_ = float(self.calibration_map_.weight.sum())
        return self

    def predict(self, scores: npt.ArrayLike) -> Array:
        """Calibrated probabilities in [0, 1], float64, in the shape of `scores`; NaN for NaN.

        Raises
        ------
        sklearn.exceptions.NotFittedError
        """
        if not hasattr(self, "calibration_map_"):
            raise NotFittedError(f"this {type(self).__name__} is not fitted yet: call fit first")
        return self.calibration_map_.predict(scores)

    def check_parameters(self) -> None:
        """Raise ValueError, naming the parameter, its range and what was given, if one is out of range."""

    @abstractmethod
    def _passes(self) -> Passes:
        """Yield the passes needed, receive their results, return the map."""


def collapse(
    scores: npt.ArrayLike, labels: npt.ArrayLike, sample_weight: npt.ArrayLike | None = None
) -> Points:
    """Check observations and add up ties.

    Parameters
    ----------
    scores, labels, sample_weight
        As in `Calibrator.fit`.

    Returns
    -------
    Points
        -0.0 counts as 0.0. Independent of the order of the observations: sums of weights are exact before
        they are rounded once. O(n log n) time, O(n) memory.

    Raises
    ------
    ValueError
        Naming what was expected and what was found.
    """
    s = check_scores(scores)
    z = check_labels(labels, s.size)
    if sample_weight is None:
        return Points(*ties.merge_classes(np.sort(s[~z]), np.sort(s[z])))
    w = _check_weights(sample_weight, s.size)
    order = np.argsort(s)
    s, w, z = s[order], w[order], z[order]
    # Correct rounding is monotone, so positives <= weight survives it.
    return Points(*ties.sum_ties(s, w, np.where(z, w, 0.0)))


def check_scores(scores: npt.ArrayLike) -> Array:
    """Scores as a float64 array of shape (n,), n >= 1, finite, without -0.0."""
    s = np.asarray(scores)
    if s.ndim != 1 or s.size == 0:
        raise ValueError(f"scores: expected shape (n,) with n >= 1, found shape {s.shape}")
    if s.dtype.kind not in "fiub":
        raise ValueError(f"scores: expected numbers, found dtype {s.dtype}")
    s = s.astype(np.float64)
    bad = np.flatnonzero(~np.isfinite(s))
    if bad.size:
        raise ValueError(
            f"scores: expected finite numbers, found {bad.size} NaN or infinite, the first at index {bad[0]}"
        )
    s += 0.0
    return s


def check_labels(labels: npt.ArrayLike, n: int) -> npt.NDArray[np.bool_]:
    """Labels as a boolean array of shape (n,)."""
    z = np.asarray(labels)
    if z.shape != (n,):
        raise ValueError(f"labels: expected shape ({n},) as the scores have, found {z.shape}")
    if z.dtype.kind == "b":
        return z
    if z.dtype.kind not in "fiu":
        raise ValueError(f"labels: expected bool or numbers in {{0, 1}}, found dtype {z.dtype}")
    ones = z == 1
    bad = np.flatnonzero(~(ones | (z == 0)))
    if bad.size:
        raise ValueError(
            f"labels: expected 0 or 1, found {bad.size} others, the first {z[bad[0]]} at index {bad[0]}"
        )
    return ones


def _check_weights(sample_weight: npt.ArrayLike, n: int) -> Array:
    w = np.asarray(sample_weight)
    if w.shape != (n,):
        raise ValueError(f"sample_weight: expected shape ({n},) as the scores have, found {w.shape}")
    if w.dtype.kind not in "fiub":
        raise ValueError(f"sample_weight: expected numbers, found dtype {w.dtype}")
    w = w.astype(np.float64)
    bad = np.flatnonzero(~(np.isfinite(w) & (w > 0)))
    if bad.size:
        raise ValueError(
            f"sample_weight: expected finite numbers > 0, found {bad.size} others, "
            f"the first {w[bad[0]]} at index {bad[0]}"
        )
    return w


class Blocks(NamedTuple):
    """Pooled neighbours: float64 arrays, shape (blocks,), ascending; sums as double-doubles (high + low)."""

    first: Array
    last: Array
    weight: Array
    weight_low: Array
    positives: Array
    positives_low: Array

    @property
    def level(self) -> Array:
        """Frequency of positives in each block, in [0, 1]."""
        return np.minimum(self.positives / self.weight, 1.0)
