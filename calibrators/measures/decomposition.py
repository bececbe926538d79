"""Decomposition of a loss: miscalibration, discrimination and uncertainty (CORP), and the part of chance alone.

The recalibrated probabilities are the isotonic regression of the labels on the predictions, which needs no bins. Ties
of predictions are one point, wherever parts were cut.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from calibrators._kernels import pava
from calibrators.arithmetic.double_double import Pair, sums_of_runs, twelve, twelve_digits
from calibrators.arithmetic.passes import Array, Blocks
from calibrators.measures.assessment import Assessment, ReliabilityBin

DRAWS = 200

SHOWN = 200
"""Predictions at which a consistency band is kept, about equally many rows apart."""

_STEPS = 2.0**20

LEVEL = 0.9
"""Share of draws that a consistency band holds at each prediction."""


@dataclass(frozen=True)
class LossParts:
    """A mean loss S = miscalibration - discrimination + uncertainty.

    Attributes
    ----------
    miscalibration : float >= 0 or None (infinite loss)
        MCB: how much of the loss the best non-decreasing map of the predictions would take away. Chance inflates it:
        see `chance` and `chance_95`.
    discrimination : float >= 0
        DSC: what the recalibrated predictions gain over the base rate.
    uncertainty : float >= 0
        UNC: the loss of the base rate for every row.
    chance, chance_95 : float >= 0 or None
        Mean, and 95 % point, of MCB if every probability is right, over 200 draws of labels from the predictions. None
        where more than `engine.MOST_DRAWN` of these differ.
    """

    miscalibration: float | None
    discrimination: float
    uncertainty: float
    chance: float | None = None
    chance_95: float | None = None


@dataclass(frozen=True)
class Reliability:
    """The reliability curve without bins, and where it would lie if every probability were right.

    Attributes
    ----------
    predicted, observed : lists of float: the recalibrated predictions (CORP), from the lowest to the highest
        prediction of each block; of very many blocks about `SHOWN`.
    at, low, high : lists of float: the consistency band: at each of these predictions `LEVEL` of the curves that 200
        draws of the labels give lie from low to high
    """

    predicted: list[float]
    observed: list[float]
    at: list[float]
    low: list[float]
    high: list[float]


@dataclass(frozen=True)
class Decomposition:
    """The parts of the Brier score and of the log loss.

    brier, log_loss : LossParts. blocks : int: levels of the recalibrated predictions.
    ici_chance, ici_chance_95 : float or None: as `LossParts.chance`, of the mean distance to the recalibrated
        predictions (ICI).
    reliability : Reliability or None: the curve, with its consistency band

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


def decompose(blocks: Blocks, drawn: Array, found: Assessment) -> Decomposition:
    """The decomposition of what was measured of the same predictions, which are probabilities."""
    best_brier, best_log, base_brier, base_log = mean_losses(blocks)[0].tolist()
    null = _null(drawn) if drawn.size else None
    brier, log_loss, ici = (None, None, None) if null is None else null.chance
    parts = []
    losses = (
        (found.measures.brier, best_brier, base_brier, brier),
        (found.measures.log_loss, best_log, base_log, log_loss),
    )
    for score, recalibrated, uncertainty, own in losses:
        worse = None if score is None or math.isinf(score) else twelve(max(0.0, score - recalibrated))
        mean, high = own or (None, None)
        better = twelve(max(0.0, uncertainty - recalibrated))
        parts.append(LossParts(worse, better, twelve(uncertainty), mean, high))
    mean, high = ici or (None, None)
    curve = None if null is None else _reliability(blocks, null)
    return Decomposition(parts[0], parts[1], blocks.first.size, mean, high, curve)


def mean_losses(blocks: Blocks, starts: npt.NDArray[np.int64] | None = None) -> Array:
    """Brier score and log loss of each block's frequency, and of that of all: means over the rows of columns.

    starts : where each column's blocks begin, and the end; None: all are of one. Shape (columns, 4).
    """
    w, k = blocks.weight, blocks.positives
    starts = np.array([0, w.size]) if starts is None else starts
    weight, positives = sums_of_runs(w, starts), sums_of_runs(k, starts)
    of_blocks = [sums_of_runs(loss(k, w), starts) for loss in (_brier, _log)]
    found = [*of_blocks, _brier(positives, weight), _log(positives, weight)]
    return np.stack(found, axis=1) / weight[:, None]


def _reliability(blocks: Blocks, null: _Null) -> Reliability:
    shown = np.arange(blocks.first.size)
    if shown.size > SHOWN:
        # Those in which every so many rows end, and the first and last ones, which have the fewest.
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
    """The loss of the frequency, summed over the rows of each block."""
    return np.asarray(k * (1.0 - k / w))


def _log(k: Array, w: Array) -> Array:
    c = np.minimum(k / w, 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        one, zero = np.where(k > 0, k * np.log(c), 0.0), np.where(k < w, (w - k) * np.log1p(-c), 0.0)
    return np.asarray(-one - zero)


_MOST_DRAWN = 2.0**62


class _Null(NamedTuple):
    """Effect of chance alone. chance : mean and 95 % point of MCB (Brier score, log loss) and of ICI; and the band."""

    chance: tuple[tuple[float, float], ...]
    at: Array
    low: Array
    high: Array


def _null(drawn: Array) -> _Null | None:
    """Draw labels from the predictions and measure them. drawn : predictions, ascending, and their weights."""
    # Without weights: whole numbers of rows that add up to the weight. They are rounded to steps whose sums are exact,
    # so rounding within parts decides nothing.
    steps = np.round(drawn[:, 1] * _STEPS) / _STEPS
    rows = np.diff(np.round(np.cumsum(np.append(0.0, steps))))
    some = rows > 0
    if not some.any():
        return None
    p, n = drawn[some, 0], rows[some]
    score = np.arange(n.size, dtype=np.float64)
    shown = np.unique(np.searchsorted(np.cumsum(n), np.linspace(0, n.sum(), SHOWN)).clip(max=n.size - 1))
    random = np.random.default_rng(0)
    none, found, curves = np.empty(0), np.empty((DRAWS, 3)), np.empty((DRAWS, shown.size))
    counts, of_hits, of_misses = np.minimum(n, _MOST_DRAWN).astype(np.int64), (1 - p) ** 2, p**2
    with np.errstate(divide="ignore"):
        log_p, log_q = np.log(p), np.log1p(-p)
    for draw in range(DRAWS):
        # Of more rows chance moves less than a billionth.
        k = np.where(n > _MOST_DRAWN, n * p, random.binomial(counts, p).astype(np.float64))
        pooled = pava.pool(score, score, n, none, k, none)
        given = k * of_hits + (n - k) * of_misses
        with np.errstate(invalid="ignore"):
            logs = -np.where(k > 0, k * log_p, 0.0) - np.where(k < n, (n - k) * log_q, 0.0)
        curve = np.repeat(pooled[4] / pooled[2], np.diff(np.append(pooled[0], n.size)).astype(np.int64))
        found[draw, 0] = given.sum() - _brier(pooled[4], pooled[2]).sum()
        found[draw, 1] = logs.sum() - _log(pooled[4], pooled[2]).sum()
        found[draw, 2] = n @ np.abs(p - curve)
        curves[draw] = curve[shown]
    found /= n.sum()
    mean, high = (twelve_digits(one) for one in (found.mean(axis=0), np.quantile(found, 0.95, axis=0)))
    band = twelve_digits(np.quantile(curves, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0))
    return _Null(tuple(zip(mean.tolist(), high.tolist(), strict=True)), p[shown], *band)


# Calibration errors of groups, and what chance does to them.


def chance_error(groups: Sequence[ReliabilityBin]) -> float:
    """The expected calibration error that these groups would show by chance if every probability is right.

    The mean absolute deviation of a binomial count, 2 nu (1 - p) Bin(nu; m, p) with nu = floor(m p) + 1 (de Moivre), m
    the rows and p the mean of a group: an upper bound where probabilities vary within it.
    """
    return float(chances_of_columns(_table(groups))[0][0])


def debiased_squared_error(groups: Sequence[ReliabilityBin]) -> float | None:
    """The mean squared calibration error of groups, less what chance adds on average; below 0 by chance.

    Sum of (m / N) ((p - f)**2 - f (1 - f) / (m - 1)) over groups of m rows with mean p and frequency f.

    References
    ----------
    Kumar, Liang & Ma (2019), "Verified uncertainty calibration", NeurIPS, arXiv:1909.10155.
    """
    found = float(chances_of_columns(_table(groups))[1][0])
    return None if math.isnan(found) else found


def _table(groups: Sequence[ReliabilityBin]) -> dict[str, Array]:
    names = ("weight", "mean_prediction", "frequency", "effective_size")
    return {name: np.array([[getattr(one, name) for one in groups]], np.float64) for name in names}


def chances_of_columns(table: dict[str, Array]) -> tuple[Array, Array]:
    """`chance_error` and `debiased_squared_error` of columns; NaN of the latter where a group has one row.

    table : arrays of shape (columns, groups) by their names in `ReliabilityBin`; groups without weight do not count
    """
    weight = np.where(table["weight"] > 0, table["weight"], 0.0)
    filled, total = weight > 0, weight.sum(axis=1)
    size, p, f = (
        np.where(filled, table[name], 0.5) for name in ("effective_size", "mean_prediction", "frequency")
    )
    with np.errstate(all="ignore"):
        squared = weight * ((p - f) ** 2 - f * (1 - f) / np.where(size > 1, size - 1, np.nan))
        apart = np.where(filled, weight * mean_deviation(size, p), 0.0).sum(axis=1)
        debiased = np.where(filled, squared, 0.0).sum(axis=1) / total
        chance = np.where(total > 0, apart / total, 0.0)
    return twelve_digits(chance), twelve_digits(debiased)


def mean_deviation(size: Array, p: Array) -> Array:
    """E|k - m p| / m of a binomial k, m the size rounded, at least 1: 2 p (1 - p) Bin(floor(m p); m - 1, p).

    De Moivre's formula, 2 nu (1 - p) Bin(nu; m, p) / m with nu = floor(m p) + 1. The probability by saddle points,
    which loses no digits of large counts: Loader (2000), "Fast and accurate computation of binomial probabilities".
    """
    m = np.maximum(1.0, np.rint(size))
    # Exactly: a small count of the other label would show what rounding leaves of a large one.
    product = Pair.of(m) * p
    x = np.floor(product.high) - ((product.high == np.floor(product.high)) & (product.low < 0))
    n, y = m - 1.0, m - 1.0 - x
    apart = ((x - product.high) - product.low) + p
    with np.errstate(all="ignore"):
        exponent = _stirling(n) - _stirling(x) - _stirling(y) - _deviance(x, apart) - _deviance(y, -apart)
        inside = np.exp(np.minimum(0.0, exponent)) * np.sqrt(n / (2.0 * np.pi * x * y))
        chance = np.where(x == 0, np.exp(n * np.log1p(-p)), np.where(y == 0, np.exp(n * np.log(p)), inside))
    return np.where((p > 0) & (p < 1), 2.0 * p * (1.0 - p) * np.where(n == 0, 1.0, chance), 0.0)


_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
_RESTS = [math.lgamma(n + 1) - (n + 0.5) * math.log(n) + n - _HALF_LOG_2PI for n in range(1, 16)]
_STIRLING = np.array([0.0, *_RESTS])


def _stirling(n: Array) -> Array:
    """log(n!) less Stirling's formula, of whole numbers n > 0."""
    s = 1.0 / (n * n)
    series = (1 / 12 - (1 / 360 - (1 / 1260 - (1 / 1680 - 1 / 1188 * s) * s) * s) * s) / n
    return np.where(n > 15, series, _STIRLING[np.clip(n, 0, 15).astype(np.int64)])


def _deviance(x: Array, apart: Array) -> Array:
    """Half the deviance of counts, x log(x / mean) + mean - x, x > 0 less than 1 `apart` from its mean."""
    mean = x - apart
    v = apart / (x + mean)
    total, term = apart * v, 2.0 * x * v
    for j in range(3, 22, 2):
        term = term * v * v
        total = total + term / j
    # Of a few rows there are no digits to lose.
    return np.where(np.abs(v) < 0.1, total, x * np.log(x / mean) - apart)
