"""Decomposition of a loss: miscalibration, discrimination and uncertainty (CORP), and miscalibration by chance alone.

The recalibrated probabilities are the isotonic regression of the labels on the predictions, which needs no bins. Tied
predictions are one point, even across parts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from calibrators.core.arrays import Array, Integers
from calibrators.core.double_double import Pair, sums_of_runs, twelve, twelve_digits
from calibrators.core.kernels import pava
from calibrators.core.passes import Blocks
from calibrators.measures.assessment import Assessment, ReliabilityBin

DRAWS = 200

SHOWN = 200
"""Number of predictions at which a consistency band is kept, about equally many rows apart."""

_STEPS = 2.0**20

LEVEL = 0.9
"""Share of draws inside the consistency band, at each prediction."""


@dataclass(frozen=True)
class LossParts:
    """Parts of a mean loss S = miscalibration - discrimination + uncertainty.

    Attributes
    ----------
    miscalibration : float >= 0 or None (infinite loss)
        MCB: reduction of the loss by the best non-decreasing map of the predictions. Chance inflates it: see `chance`
        and `chance_95`.
    discrimination : float >= 0
        DSC: reduction of the loss of the base rate by the recalibrated predictions.
    uncertainty : float >= 0
        UNC: loss if every row is predicted the base rate.
    chance, chance_95 : float >= 0 or None
        Mean and 95 % point of MCB if every probability is right, over 200 draws of labels from the predictions. None
        if they were not drawn.
    """

    miscalibration: float | None
    discrimination: float
    uncertainty: float
    chance: float | None = None
    chance_95: float | None = None


@dataclass(frozen=True)
class Reliability:
    """Reliability curve without bins, with its consistency band: its range if every probability were right.

    Attributes
    ----------
    predicted, observed : lists of float: lowest and highest prediction of each block, and its recalibrated
        prediction (CORP) twice; of very many blocks about `SHOWN`
    at, low, high : lists of float: predictions, and the range of `LEVEL` of the curves of 200 draws of labels there
    """

    predicted: list[float]
    observed: list[float]
    at: list[float]
    low: list[float]
    high: list[float]


@dataclass(frozen=True)
class Decomposition:
    """Parts of the Brier score and of the log loss.

    brier, log_loss : LossParts
    blocks : int: number of distinct recalibrated predictions
    ici_chance, ici_chance_95 : float or None: as `LossParts.chance`, for the mean distance between predictions and
        recalibrated predictions (ICI)
    reliability : Reliability or None

    References
    ----------
    Dimitriadis, Gneiting & Jordan (2021), "Stable reliability diagrams for probabilistic classifiers", PNAS 118,
    e2016191118, doi:10.1073/pnas.2016191118.
    """

    brier: LossParts
    log_loss: LossParts
    blocks: int
    ici_chance: float | None = None
    ici_chance_95: float | None = None
    reliability: Reliability | None = None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def decompose(blocks: Blocks, distinct: Array, assessment: Assessment) -> Decomposition:
    """Decompose the losses of predictions that are probabilities.

    blocks : isotonic blocks of the predictions. distinct : distinct predictions, ascending, and their weights, from
    which labels are drawn; empty: none are drawn. assessment : measures of the same predictions
    """
    best_brier, best_log, base_brier, base_log = mean_losses(blocks)[0].tolist()
    null = _null(distinct) if distinct.size else None
    brier, log_loss, ici = (None, None, None) if null is None else null.chance
    parts = []
    losses = (
        (assessment.measures.brier, best_brier, base_brier, brier),
        (assessment.measures.log_loss, best_log, base_log, log_loss),
    )
    for score, recalibrated, uncertainty, simulated in losses:
        worse = None if score is None or math.isinf(score) else twelve(max(0.0, score - recalibrated))
        mean, high = simulated or (None, None)
        better = twelve(max(0.0, uncertainty - recalibrated))
        parts.append(LossParts(worse, better, twelve(uncertainty), mean, high))
    mean, high = ici or (None, None)
    curve = None if null is None else _reliability(blocks, null)
    return Decomposition(parts[0], parts[1], blocks.first.size, mean, high, curve)


def mean_losses(blocks: Blocks, starts: Integers | None = None) -> Array:
    """Mean Brier score and log loss of columns, of the blocks' frequencies and of the base rate. Shape (columns, 4).

    starts : index of each column's first block, and the number of blocks; None: one column
    """
    w, k = blocks.weight, blocks.positives
    starts = np.array([0, w.size]) if starts is None else starts
    weight, positives = sums_of_runs(w, starts), sums_of_runs(k, starts)
    block_losses = [sums_of_runs(loss(k, w), starts) for loss in (_brier, _log)]
    losses = [*block_losses, _brier(positives, weight), _log(positives, weight)]
    return np.stack(losses, axis=1) / weight[:, None]


def _reliability(blocks: Blocks, null: _Null) -> Reliability:
    shown = np.arange(blocks.first.size)
    if shown.size > SHOWN:
        # Blocks at equal steps of rows, and the 20 outermost at each end, which have the fewest rows.
        ends = np.cumsum(blocks.weight)
        shown = np.searchsorted(ends, np.linspace(0, ends[-1], SHOWN - 40))
        shown = np.unique(np.concatenate([np.arange(20), shown, np.arange(ends.size - 20, ends.size)]))
        shown = shown[shown < ends.size]
    columns = (
        np.stack([blocks.first[shown], blocks.last[shown]], axis=1).ravel(),
        np.repeat(twelve_digits(blocks.level[shown]), 2),
    )
    return Reliability(*(column.tolist() for column in (*columns, null.at, null.low, null.high)))


def _brier(k: Array, w: Array) -> Array:
    """Brier score of the frequency, summed over the rows of each block."""
    return np.asarray(k * (1.0 - k / w))


def _log(k: Array, w: Array) -> Array:
    """Log loss of the frequency, summed over the rows of each block."""
    c = np.minimum(k / w, 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        hits, misses = np.where(k > 0, k * np.log(c), 0.0), np.where(k < w, (w - k) * np.log1p(-c), 0.0)
    return np.asarray(-hits - misses)


_MOST_DRAWN = 2.0**62


class _Null(NamedTuple):
    """Effect of chance alone: mean and 95 % point of MCB (Brier score, log loss) and of ICI; the consistency band."""

    chance: tuple[tuple[float, float], ...]
    at: Array
    low: Array
    high: Array


def _null(distinct: Array) -> _Null | None:
    """Draw labels from distinct predictions and measure these. distinct : predictions, ascending, and weights."""
    # Replace weights by whole numbers of rows with the same sum. Weights are first rounded to steps whose sums are
    # exact, so that the result does not depend on the parts.
    steps = np.round(distinct[:, 1] * _STEPS) / _STEPS
    rows = np.diff(np.round(np.cumsum(np.append(0.0, steps))))
    filled = rows > 0
    if not filled.any():
        return None
    p, n = distinct[filled, 0], rows[filled]
    score = np.arange(n.size, dtype=np.float64)
    shown = np.unique(np.searchsorted(np.cumsum(n), np.linspace(0, n.sum(), SHOWN)).clip(max=n.size - 1))
    random = np.random.default_rng(0)
    empty, draws, curves = np.empty(0), np.empty((DRAWS, 3)), np.empty((DRAWS, shown.size))
    counts, hit_losses, miss_losses = np.minimum(n, _MOST_DRAWN).astype(np.int64), (1 - p) ** 2, p**2
    with np.errstate(divide="ignore"):
        log_p, log_q = np.log(p), np.log1p(-p)
    for i in range(DRAWS):
        # With more rows the random deviation is below a billionth.
        k = np.where(n > _MOST_DRAWN, n * p, random.binomial(counts, p).astype(np.float64))
        pooled = pava.pool(score, score, n, empty, k, empty)
        brier = k * hit_losses + (n - k) * miss_losses
        with np.errstate(invalid="ignore"):
            logs = -np.where(k > 0, k * log_p, 0.0) - np.where(k < n, (n - k) * log_q, 0.0)
        curve = np.repeat(pooled[4] / pooled[2], np.diff(np.append(pooled[0], n.size)).astype(np.int64))
        draws[i, 0] = brier.sum() - _brier(pooled[4], pooled[2]).sum()
        draws[i, 1] = logs.sum() - _log(pooled[4], pooled[2]).sum()
        draws[i, 2] = n @ np.abs(p - curve)
        curves[i] = curve[shown]
    draws /= n.sum()
    mean, high = (twelve_digits(v) for v in (draws.mean(axis=0), np.quantile(draws, 0.95, axis=0)))
    band = twelve_digits(np.quantile(curves, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0))
    return _Null(tuple(zip(mean.tolist(), high.tolist(), strict=True)), p[shown], *band)


# Calibration errors of groups by chance.


def chance_error(groups: Sequence[ReliabilityBin]) -> float:
    """Compute the expected calibration error of groups by chance, if every probability is right.

    The mean absolute deviation of a binomial count, 2 nu (1 - p) Bin(nu; m, p) with nu = floor(m p) + 1 (de Moivre), m
    the rows and p the mean of a group: an upper bound if probabilities vary within the group.
    """
    return float(chances_of_columns(_table(groups))[0][0])


def debiased_squared_error(groups: Sequence[ReliabilityBin]) -> float | None:
    """Compute the mean squared calibration error of groups minus its expectation by chance; may be negative.

    Sum of (m / N) ((p - f)**2 - f (1 - f) / (m - 1)) over groups of m rows with mean p and frequency f.

    References
    ----------
    Kumar, Liang & Ma (2019), "Verified uncertainty calibration", NeurIPS, arXiv:1909.10155.
    """
    error = float(chances_of_columns(_table(groups))[1][0])
    return None if math.isnan(error) else error


def _table(groups: Sequence[ReliabilityBin]) -> dict[str, Array]:
    names = ("weight", "mean_prediction", "frequency", "effective_size")
    return {name: np.array([[getattr(group, name) for group in groups]], np.float64) for name in names}


def chances_of_columns(table: dict[str, Array]) -> tuple[Array, Array]:
    """Compute `chance_error` and `debiased_squared_error` of columns; the latter is NaN if a group has one row.

    table : arrays of shape (columns, groups) by their names in `ReliabilityBin`; groups without weight are ignored
    """
    weight = np.where(table["weight"] > 0, table["weight"], 0.0)
    filled, total = weight > 0, weight.sum(axis=1)
    size, p, f = (
        np.where(filled, table[name], 0.5) for name in ("effective_size", "mean_prediction", "frequency")
    )
    with np.errstate(all="ignore"):
        squared = weight * ((p - f) ** 2 - f * (1 - f) / np.where(size > 1, size - 1, np.nan))
        deviation = np.where(filled, weight * mean_deviation(size, p), 0.0).sum(axis=1)
        debiased = np.where(filled, squared, 0.0).sum(axis=1) / total
        chance = np.where(total > 0, deviation / total, 0.0)
    return twelve_digits(chance), twelve_digits(debiased)


def mean_deviation(size: Array, p: Array) -> Array:
    """E|k - m p| / m of a binomial k, m the size rounded, at least 1: 2 p (1 - p) Bin(floor(m p); m - 1, p).

    De Moivre's formula, 2 nu (1 - p) Bin(nu; m, p) / m with nu = floor(m p) + 1. The probability by saddle points,
    which loses no digits of large counts: Loader (2000), "Fast and accurate computation of binomial probabilities".
    """
    m = np.maximum(1.0, np.rint(size))
    # Exact, since the rounding error of a large product would be large relative to a small count of the other label.
    product = Pair.of(m) * p
    x = np.floor(product.high) - ((product.high == np.floor(product.high)) & (product.low < 0))
    n, y = m - 1.0, m - 1.0 - x
    delta = ((x - product.high) - product.low) + p
    with np.errstate(all="ignore"):
        exponent = _stirling(n) - _stirling(x) - _stirling(y) - _deviance(x, delta) - _deviance(y, -delta)
        inside = np.exp(np.minimum(0.0, exponent)) * np.sqrt(n / (2.0 * np.pi * x * y))
        chance = np.where(x == 0, np.exp(n * np.log1p(-p)), np.where(y == 0, np.exp(n * np.log(p)), inside))
    return np.where((p > 0) & (p < 1), 2.0 * p * (1.0 - p) * np.where(n == 0, 1.0, chance), 0.0)


_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
_STIRLING_ERRORS = [math.lgamma(n + 1) - (n + 0.5) * math.log(n) + n - _HALF_LOG_2PI for n in range(1, 16)]
_STIRLING = np.array([0.0, *_STIRLING_ERRORS])


def _stirling(n: Array) -> Array:
    """Return log(n!) minus Stirling's formula, for whole numbers n > 0."""
    s = 1.0 / (n * n)
    series = (1 / 12 - (1 / 360 - (1 / 1260 - (1 / 1680 - 1 / 1188 * s) * s) * s) * s) / n
    return np.where(n > 15, series, _STIRLING[np.clip(n, 0, 15).astype(np.int64)])


def _deviance(x: Array, delta: Array) -> Array:
    """Half the deviance of counts x > 0, x log(x / mean) + mean - x. delta : x - mean, less than 1."""
    mean = x - delta
    v = delta / (x + mean)
    total, term = delta * v, 2.0 * x * v
    for j in range(3, 22, 2):
        term = term * v * v
        total = total + term / j
    # With few rows the difference is large and loses no digits.
    return np.where(np.abs(v) < 0.1, total, x * np.log(x / mean) - delta)
