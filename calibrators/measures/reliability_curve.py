"""The reliability curve without bins: isotonic recalibration of probabilities (CORP), and its range under chance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from calibrators.core.arrays import Array, Integers
from calibrators.core.passes import Points, check_labels, check_number, check_scores, collapse
from calibrators.core.pava import pool_points
from calibrators.measures.decomposition import mean_losses

CELLS = 1000
"""Largest number of cells of neighbouring predictions from which labels are drawn."""


@dataclass(frozen=True)
class ReliabilityCurve:
    """Observed frequency as a function of the predicted probability, by isotonic regression.

    Attributes
    ----------
    predicted : float64 array, ascending: the lowest and the highest probability of each block
    observed : float64 array, of the same shape: the frequency of positives in the block
    miscalibration, discrimination, uncertainty : float >= 0
        Parts of the Brier score, which is miscalibration - discrimination + uncertainty.
    """

    predicted: Array
    observed: Array
    miscalibration: float
    discrimination: float
    uncertainty: float


@dataclass(frozen=True)
class ConsistencyBand:
    """Pointwise range of the reliability curve if every probability were right.

    Attributes
    ----------
    predicted, low, high : float64 arrays of one shape, ascending
    level : float in (0, 1)
    """

    predicted: Array
    low: Array
    high: Array
    level: float


def probability_points(
    labels: npt.ArrayLike, probabilities: npt.ArrayLike, sample_weight: npt.ArrayLike | None = None
) -> Points:
    """Make points of predicted probabilities. Raises ValueError as `collapse` does, and outside [0, 1]."""
    p = check_scores(probabilities)
    check_labels(labels, p.size)
    outside = np.flatnonzero((p < 0) | (p > 1))
    if outside.size:
        raise ValueError(
            f"probabilities: expected numbers in [0, 1], found {outside.size} others, the first {p[outside[0]]:g} at "
            f"index {outside[0]}: scores that are no probabilities have no reliability"
        )
    return collapse(p, labels, sample_weight)


def reliability_curve(points: Points) -> ReliabilityCurve:
    """Compute the curve and the decomposition of the Brier score. O(m).

    points : scores are probabilities in [0, 1]

    References
    ----------
    Dimitriadis, Gneiting & Jordan (2021), "Stable reliability diagrams for probabilistic classifiers", PNAS 118,
    e2016191118, doi:10.1073/pnas.2016191118.

    Examples
    --------
    >>> import numpy as np
    >>> from calibrators.core.passes import Points
    >>> curve = reliability_curve(Points(np.array([0.2, 0.4, 0.6]), np.full(3, 10.0), np.array([3.0, 2.0, 8.0])))
    >>> curve.predicted, curve.observed
    (array([0.2, 0.4, 0.6, 0.6]), array([0.25, 0.25, 0.8 , 0.8 ]))
    """
    blocks = pool_points(points)
    level = blocks.level
    recalibrated, _, base, _ = mean_losses(blocks)[0].tolist()
    p, weight, positives = points
    loss = float((positives * (1 - p) ** 2 + (weight - positives) * p**2).sum() / weight.sum())
    return ReliabilityCurve(
        predicted=np.column_stack([blocks.first, blocks.last]).ravel(),
        observed=np.repeat(level, 2),
        miscalibration=max(0.0, loss - recalibrated),
        discrimination=max(0.0, base - recalibrated),
        uncertainty=base,
    )


def consistency_band(
    points: Points, *, level: float = 0.9, draws: int = 200, seed: int = 0
) -> ConsistencyBand:
    """Simulate the range of the curve under chance alone: draw labels from the probabilities and recalibrate.

    Parameters
    ----------
    points : scores are probabilities in [0, 1]. Fractional weights are scaled to add up to Kish's effective number of
        rows, (sum of weights)**2 / sum of squares.
    level : float in (0, 1): share of the draws inside the band, at each prediction
    draws : int >= 1
    seed : int >= 0

    Notes
    -----
    Neighbouring predictions are joined into at most 1,000 cells of about equal weight. O(draws * cells + m).
    """
    if not 0 < level < 1:
        raise ValueError(f"level: expected a number in (0, 1), found {level!r}")
    check_number("draws", draws, "a whole number >= 1", 1, whole=True)
    p, rows = _cells(points)
    random = np.random.default_rng(seed)
    curves = np.empty((draws, p.size))
    for i in range(draws):
        positives = random.binomial(rows, p).astype(np.float64)
        blocks = pool_points(Points(p, rows.astype(np.float64), positives))
        curves[i] = blocks.level[np.searchsorted(blocks.first, p, side="right") - 1]
    low, high = np.quantile(curves, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return ConsistencyBand(p, low, high, level)


def _cells(points: Points) -> tuple[Array, Integers]:
    """Group neighbouring points into cells: distinct ascending mean probabilities, and numbers of rows."""
    weight = points.weight
    if not np.array_equal(weight, np.floor(weight)):
        weight = weight * (weight.sum() / np.square(weight).sum())
    before = np.concatenate([[0.0], np.cumsum(weight)[:-1]])
    cell = np.floor(before * (CELLS / weight.sum())).astype(np.int64)
    _, start = np.unique(cell, return_index=True)
    rows = np.add.reduceat(weight, start)
    p = np.add.reduceat(weight * points.score, start) / rows
    # Rounding may break the order of the means, or make two equal.
    p = np.maximum.accumulate(np.clip(p, 0.0, 1.0))
    counts = np.maximum(1, np.rint(rows)).astype(np.int64)
    distinct, first = np.unique(p, return_index=True)
    return distinct, np.add.reduceat(counts, first)
