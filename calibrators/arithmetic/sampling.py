"""Correction for sampled logs, where rows of one label were kept by chance: from the log's odds to those of all rows.

Where a negative was kept with probability r, the odds in the log are 1 / r times those among all rows. So a map is
fitted to the existing rows, as counts, and then T(p) = p / (p + (1 - p) / r) is applied to it. A likelihood with
weights 1 / r would count one kept negative as many observations.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from calibrators._kernels.sums import exact_sum, expansion_of
from calibrators.arithmetic.calibration_map import CalibrationMap, gap_slopes
from calibrators.arithmetic.cumulative import bin_counts, counts_below_pass, layout_pass
from calibrators.arithmetic.passes import Array, Pass, Points, check_weights

MAX_ERROR = 1e-9
"""Largest distance of a line that was cut from the curve that it became."""


def odds_divided(probability: npt.ArrayLike, rate: float) -> Array:
    """T(p) = rate p / (1 - (1 - rate) p): probabilities with odds times `rate`.

    rate : float > 0: the share of negatives that was kept over the share of positives. Its inverse undoes it.

    Examples
    --------
    >>> odds_divided([0.0, 0.5, 1.0], 0.01).round(4)
    array([0.    , 0.0099, 1.    ])
    """
    p = np.asarray(probability, dtype=np.float64)
    return np.minimum(rate * p / (rate * p + (1.0 - p)), 1.0)


def sampling_weights(sample_weight: npt.ArrayLike) -> Array:
    """Weights that say how many others a row stands for, as weights that count observations.

    Rows drawn with unequal probabilities are worth fewer than as many drawn alike: n_eff = (sum w)^2 / sum w^2
    (Kish 1965, Survey Sampling). What counts observations, such as a likelihood, a prior or a standard error, takes a
    weight of 2 for two; so weights are multiplied by sum w / sum w^2, and then add up to n_eff. It does not matter by
    what they were multiplied before.

    Parameters
    ----------
    sample_weight : array-like of numbers > 0, shape (n,), n >= 1, from 1e-100 to 1e100

    Returns
    -------
    float64 array, shape (n,)
        For `sample_weight` of `fit`.

    Raises
    ------
    ValueError
        For weights out of that range.

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
    """The factor of `sampling_weights`: the sum of the weights over that of their squares."""
    return weight / squares


def resampling_passes(fitted: CalibrationMap, rate: float) -> Generator[Pass, Any, CalibrationMap]:
    """Yield the passes that a map of all rows needs, none as a rule, receive their results, return the map.

    Parameters
    ----------
    fitted : the map of the rows of the log
    rate : float > 0: as in `odds_divided`

    Returns
    -------
    CalibrationMap
        T of each constant row; a line between two constant rows without observations is drawn anew between their
        levels, which for isotonic regression is the same as weighing each negative 1 / rate. Other lines are cut so
        that they are within `MAX_ERROR` of T of the line. Non-decreasing where `fitted` is. weight and positives are
        those of the log's rows.

    Notes
    -----
    No pass, unless lines with observations are cut: then two, which count what lies between the cuts.
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
    """The first scores of the rows, with those of further rows that lines are cut into."""
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
    """The map with rows from these scores, each constant, or a line to the next one's level."""
    source = np.searchsorted(fitted.score_lo, score_lo, side="right") - 1
    slope, anchor = fitted.slope[source], fitted.anchor[source]
    # A line is anchored where it begins to rise: at the end of the block before it, or where it was cut.
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
    """The exact sums of rows' weights and of their squares (each rounded once), as expansions.

    largest : float64 array, shape (1,): the largest weight; empty where it is not known any more
    """

    weight: Array
    squares: Array
    largest: Array = np.empty(0)

    @property
    def scale(self) -> float:
        """Return the factor by which weights add up to the effective sample size."""
        return effective_scale(float(exact_sum(self.weight)), float(exact_sum(self.squares)))

    @property
    def heaviest(self) -> float:
        """The largest weight, once multiplied; not more than that where it is known."""
        largest = self.largest.max() if self.largest.size else np.sqrt(exact_sum(self.squares))
        return float(largest) * self.scale


def sums_of(weight: Array) -> WeightSums:
    """Sum the weights of some rows."""
    return WeightSums(
        expansion_of(weight), expansion_of(weight * weight), weight.max(initial=0.0, keepdims=True)
    )


def add_sums(parts: Sequence[WeightSums | None]) -> WeightSums | None:
    """Add the sums of several; None if no weights are sampling weights. Exact, whatever the order."""
    known_sums = [part for part in parts if part is not None]
    if not known_sums:
        return None
    weight, squares, largest = (np.concatenate(column) for column in zip(*known_sums, strict=True))
    unknown = not all(part.largest.size for part in known_sums)
    heaviest = np.empty(0) if unknown else largest.max(keepdims=True)
    return WeightSums(expansion_of(weight), expansion_of(squares), heaviest)


def scaled(points: Points, scale: float) -> Points:
    """Points with their weights multiplied, each rounded once: of a label that all had, all have it still."""
    if scale == 1.0:
        return points
    return Points(points.score, points.weight * scale, points.positives * scale)
