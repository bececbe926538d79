"""Correction of maps for logs in which rows of one label were sampled; sampling weights.

If a negative was kept with probability r, the odds in the log are 1 / r times those among all rows. So a map is
fitted to the existing rows, as counts, and then T(p) = p / (p + (1 - p) / r) is applied to it. A likelihood with
weights 1 / r would count one kept negative as many observations.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from calibrators.core.arrays import Array
from calibrators.core.cumulative import bin_counts, counts_below_pass, layout_pass
from calibrators.core.kernels.sums import exact_sum, expansion_of
from calibrators.core.map import CalibrationMap, gap_slopes
from calibrators.core.passes import Pass, Points, check_weights

MAX_ERROR = 1e-9
"""Largest distance of the corrected lines from the corrected curve."""


def odds_divided(probability: npt.ArrayLike, rate: float) -> Array:
    """Multiply the odds of probabilities by `rate`: T(p) = rate p / (1 - (1 - rate) p).

    rate : float > 0: the kept share of the negatives over that of the positives. The inverse rate reverses T.

    Examples
    --------
    >>> odds_divided([0.0, 0.5, 1.0], 0.01).round(4)
    array([0.    , 0.0099, 1.    ])
    """
    p = np.asarray(probability, dtype=np.float64)
    return np.minimum(rate * p / (rate * p + (1.0 - p)), 1.0)


def sampling_weights(sample_weight: npt.ArrayLike) -> Array:
    """Scale sampling weights (inverse sampling probabilities) so that they add up to the effective sample size.

    A sample with unequal weights has an effective sample size of n_eff = (sum w)^2 / sum w^2 (Kish 1965, Survey
    Sampling). Likelihoods, priors and standard errors take a weight of 2 for two observations. So the weights are
    multiplied by sum w / sum w^2 and then add up to n_eff. A common factor of the weights has no effect.

    Parameters
    ----------
    sample_weight : array-like of numbers > 0, shape (n,), n >= 1, from 1e-100 to 1e100

    Returns
    -------
    float64 array, shape (n,)
        Weights for `sample_weight` of `fit`.

    Raises
    ------
    ValueError
        If a weight is out of that range.

    Examples
    --------
    >>> sampling_weights([5.0, 5.0, 5.0])
    array([1., 1., 1.])
    >>> round(float(sampling_weights([1.0, 1.0, 2.0]).sum()), 3)
    2.667
    """
    w = np.asarray(sample_weight)
    if w.ndim != 1 or w.size == 0:
        raise ValueError(f"sample_weight: expected shape (n,) with n >= 1, found shape {w.shape}")
    w = check_weights(w, w.size)
    return w * effective_scale(math.fsum(w), math.fsum(w * w))


def effective_scale(weight: float, squares: float) -> float:
    """Return the factor of `sampling_weights`: the sum of the weights over the sum of their squares."""
    return weight / squares


def resampling_passes(fitted: CalibrationMap, rate: float) -> Generator[Pass, Any, CalibrationMap]:
    """Apply T to the map of a log with sampled rows; a generator that yields passes and returns the map of all rows.

    Parameters
    ----------
    fitted : the map of the rows of the log
    rate : float > 0: as in `odds_divided`

    Returns
    -------
    CalibrationMap
        T of each constant row. A line without observations between two constant rows connects their new levels; for
        isotonic regression this equals weights of 1 / rate for negatives. Other lines are divided into lines that are
        within `MAX_ERROR` of T of the line. The map is non-decreasing if `fitted` is. weight and positives are
        those of the log's rows.

    Notes
    -----
    Usually there is no pass. If lines with observations are divided, two passes count the observations of each piece.
    """
    if rate == 1.0:
        return fitted
    rows = _row_starts(fitted, rate)
    if rows.size == len(fitted):
        return _resampled_map(fitted, fitted.score_lo, fitted.weight, fitted.positives, rate)
    scores = np.concatenate([[-np.inf], rows[1:]])
    layout = yield layout_pass()
    counts = yield counts_below_pass(layout, scores[1:])
    return _resampled_map(fitted, scores, *bin_counts(layout, counts), rate)


def _row_starts(fitted: CalibrationMap, rate: float) -> Array:
    """Return the first scores of the rows, and of the additional rows into which lines are divided."""
    q = 1.0 - rate
    low, high = fitted.ends()
    flat = fitted.slope == 0
    gap = ~flat & (fitted.weight == 0)
    gap[1:-1] &= flat[:-2] & flat[2:]
    with np.errstate(divide="ignore", invalid="ignore"):
        start, end = ((1.0 - q * p) ** -0.5 for p in (low, high))
        pieces = np.ceil(np.abs(end - start) / np.sqrt(MAX_ERROR * abs(q) / rate))
    pieces = np.where(flat | gap, 1.0, np.maximum(pieces, 1.0)).astype(np.int64)
    row = np.repeat(np.arange(len(fitted)), pieces)
    step = np.arange(row.size) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    inner = step > 0
    row, step = row[inner], step[inner]
    at = start[row] + (end[row] - start[row]) * step / pieces[row]
    p = (1.0 - at**-2.0) / q
    scores = fitted.anchor[row] + (p - fitted.prob_lo[row]) / fitted.slope[row]
    scores = scores[(scores > fitted.score_lo[row]) & (scores < fitted.score_hi[row])]
    return np.union1d(fitted.score_lo, scores)


def _resampled_map(
    fitted: CalibrationMap, score_lo: Array, weight: Array, positives: Array, rate: float
) -> CalibrationMap:
    """Return the map with rows that begin at these scores, each constant or a line to the next row's level."""
    source = np.searchsorted(fitted.score_lo, score_lo, side="right") - 1
    slope, anchor = fitted.slope[source], fitted.anchor[source]
    # A line's anchor is the end of the block before it, or the score at which it was divided.
    first = score_lo == fitted.score_lo[source]
    anchor = np.where((slope != 0) & ~first, score_lo, anchor)
    with np.errstate(invalid="ignore"):
        level = fitted.prob_lo[source] + np.where(slope == 0, 0.0, slope * (anchor - fitted.anchor[source]))
    level = odds_divided(np.clip(level, 0.0, 1.0), rate)
    if fitted.monotone:
        level = np.maximum.accumulate(level)
    score_hi = np.append(score_lo[1:], np.inf)
    line = slope != 0
    target = np.append(level[1:], level[-1])
    slope = np.zeros(level.size)
    slope[line] = gap_slopes(anchor[line], score_hi[line], level[line], target[line])
    return CalibrationMap(score_lo, score_hi, level, slope, anchor, weight, positives)


class WeightSums(NamedTuple):
    """Exact sums of rows' weights and of their squares (each rounded once), as expansions.

    largest : float64 array, shape (1,): the largest weight; empty if it is unknown
    """

    weight: Array
    squares: Array
    largest: Array = np.empty(0)

    @property
    def scale(self) -> float:
        """Factor by which the weights add up to the effective sample size."""
        return effective_scale(float(exact_sum(self.weight)), float(exact_sum(self.squares)))

    @property
    def heaviest(self) -> float:
        """Largest weight after scaling; an upper bound of it if `largest` is unknown."""
        largest = self.largest.max() if self.largest.size else np.sqrt(exact_sum(self.squares))
        return float(largest) * self.scale


def sums_of(weight: Array) -> WeightSums:
    """Sum the weights of some rows."""
    return WeightSums(
        expansion_of(weight), expansion_of(weight * weight), weight.max(initial=0.0, keepdims=True)
    )


def add_sums(parts: Sequence[WeightSums | None]) -> WeightSums | None:
    """Add the sums of several parts, exactly in any order; return None if no weights are sampling weights."""
    known_sums = [part for part in parts if part is not None]
    if not known_sums:
        return None
    weight, squares, largest = (np.concatenate(column) for column in zip(*known_sums, strict=True))
    unknown = not all(part.largest.size for part in known_sums)
    heaviest = np.empty(0) if unknown else largest.max(keepdims=True)
    return WeightSums(expansion_of(weight), expansion_of(squares), heaviest)


def scaled(points: Points, scale: float) -> Points:
    """Multiply the points' weight and positives by `scale`, each rounded once, so that equal ones stay equal."""
    if scale == 1.0:
        return points
    return Points(points.score, points.weight * scale, points.positives * scale)
