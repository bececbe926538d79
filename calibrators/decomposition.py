"""What a loss is made of: miscalibration, discrimination and uncertainty (CORP), and what chance alone would show.

The recalibrated probabilities are the isotonic regression of the labels on the predictions, which needs no bins. Ties
of predictions are one point, wherever parts were cut.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from calibrators._kernels import pava, ties
from calibrators._kernels.double_double import add_pairs
from calibrators.assessment import Assessment, ReliabilityBin
from calibrators.exact_totals import Entries, exact
from calibrators.passes import Array, Blocks, Points
from calibrators.pooling import pool_points

MOST_DRAWN = 20_000
"""Different predictions up to which labels are drawn from them."""

DRAWS = 200


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
        where more than `MOST_DRAWN` of these differ.
    """

    miscalibration: float | None
    discrimination: float
    uncertainty: float
    chance: float | None = None
    chance_95: float | None = None


@dataclass(frozen=True)
class Decomposition:
    """The parts of the Brier score and of the log loss.

    brier, log_loss : LossParts. blocks : int: levels of the recalibrated predictions.

    References
    ----------
    Dimitriadis, Gneiting & Jordan (2021), "Stable reliability diagrams for probabilistic classifiers", PNAS 118,
    e2016191118, doi:10.1073/pnas.2016191118.
    """

    brier: LossParts
    log_loss: LossParts
    blocks: int

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


class CorpState(NamedTuple):
    """What a pass keeps of a part: isotonic blocks of its predictions but the first and the last, which may go on.

    low_tie, high_tie : Blocks of one block; the latter None where there is one prediction only.
    drawn : (predictions, 2), the different predictions and their weights, where they are few; else None.
    """

    low_tie: Blocks
    between: Blocks | None
    high_tie: Blocks | None
    drawn: Array | None


def corp_of_entries(entries: Entries) -> CorpState:
    """The state of a part whose predictions are known: in [0, 1], ascending."""
    p, w, k = entries[:3]
    start, stop = int(np.searchsorted(p, p[0], side="right")), int(np.searchsorted(p, p[-1]))
    between = None
    joined = _joined(p, w, k)
    if start < stop:
        between = pool_points(Points(*(column[1:-1] for column in joined)))
    return CorpState(
        _tie(entries.of(slice(start))),
        between,
        _tie(entries.of(slice(stop, None))) if stop > 0 else None,
        np.column_stack(joined[:2]) if joined.score.size <= MOST_DRAWN else None,
    )


def _joined(p: Array, w: Array, k: Array) -> Points:
    """One point a prediction."""
    if np.all(p[:-1] < p[1:]):
        return Points(p, w, k)
    return Points(*ties.sum_ties(p, w, k))


def _tie(entries: Entries) -> Blocks:
    sums = entries.sums(np.empty(0))[0]
    columns = [np.array([entries.p[0]])] * 2
    for row in (sums[0], sums[1]):
        total = exact(row)
        high = float(total)
        columns += [np.array([high]), np.array([float(total - Fraction(high))])]
    return Blocks(*columns)


def join_corp(states: list[CorpState]) -> tuple[Blocks, Array]:
    """The isotonic blocks of parts in ascending order of their predictions, and what is drawn from, if anything."""
    pieces: list[Blocks] = []
    for state in states:
        for piece in (state.low_tie, state.between, state.high_tie):
            if piece is None:
                continue
            if pieces and piece.first[0] == pieces[-1].last[-1]:
                pieces[-1] = _added(pieces[-1], piece)
            else:
                pieces.append(piece)
    columns = [np.concatenate(column) for column in zip(*pieces, strict=True)]
    blocks = Blocks(*pava.pool(*columns))
    return blocks, _drawn(states)


def _drawn(states: list[CorpState]) -> Array:
    found = [state.drawn for state in states if state.drawn is not None]
    if len(found) < len(states):
        return np.empty((0, 2))
    p, weight = np.concatenate(found).T
    starts = np.flatnonzero(np.append(True, p[1:] != p[:-1]))
    if starts.size > MOST_DRAWN:
        return np.empty((0, 2))
    return np.column_stack([p[starts], np.add.reduceat(weight, starts)])


def _added(one: Blocks, other: Blocks) -> Blocks:
    """The same tie of two parts: each is one block of one prediction."""
    sums = [
        add_pairs(*(float(column[0]) for column in (one[j], one[j + 1], other[j], other[j + 1])))
        for j in (2, 4)
    ]
    return Blocks(one.first, one.last, *(np.array([value]) for pair in sums for value in pair))


def decompose(blocks: Blocks, drawn: Array, found: Assessment) -> Decomposition | None:
    """The decomposition of what was measured of the same predictions; None where they are no probabilities."""
    measures = found.measures
    if measures.brier is None:
        return None
    total, positives = float(blocks.weight.sum()), float(blocks.positives.sum())
    chance = _chance(drawn) if drawn.size else (None, None)
    parts = []
    for loss, score, null in zip((_brier, _log), (measures.brier, measures.log_loss), chance, strict=True):
        recalibrated = float(loss(blocks.positives, blocks.weight).sum()) / total
        uncertainty = float(loss(np.array([positives]), np.array([total]))[0]) / total
        worse = None if score is None or math.isinf(score) else max(0.0, score - recalibrated)
        mean, high = (None, None) if null is None else null
        parts.append(LossParts(worse, max(0.0, uncertainty - recalibrated), uncertainty, mean, high))
    return Decomposition(parts[0], parts[1], blocks.first.size)


def _brier(k: Array, w: Array) -> Array:
    """The loss of the frequency, summed over the rows of each block."""
    return np.asarray(k * (1.0 - k / w))


def _log(k: Array, w: Array) -> Array:
    c = np.minimum(k / w, 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        one, zero = np.where(k > 0, k * np.log(c), 0.0), np.where(k < w, (w - k) * np.log1p(-c), 0.0)
    return np.asarray(-one - zero)


def _chance(drawn: Array) -> tuple[tuple[float, float], tuple[float, float]] | tuple[None, None]:
    """Mean and 95 % point of MCB over draws from the predictions, of the Brier score and of the log loss."""
    rows = np.round(drawn[:, 1])
    some = rows > 0
    if not some.any():
        return None, None
    p, n = drawn[some, 0], rows[some]
    score = np.arange(n.size, dtype=np.float64)
    random = np.random.default_rng(0)
    none, found = np.empty(0), np.empty((DRAWS, 2))
    for draw in range(DRAWS):
        k = random.binomial(n.astype(np.int64), p).astype(np.float64)
        pooled = pava.pool(score, score, n, none, k, none)
        given = k * (1 - p) ** 2 + (n - k) * p**2
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = -np.where(k > 0, k * np.log(p), 0.0) - np.where(k < n, (n - k) * np.log1p(-p), 0.0)
        found[draw, 0] = given.sum() - _brier(pooled[4], pooled[2]).sum()
        found[draw, 1] = logs.sum() - _log(pooled[4], pooled[2]).sum()
    found /= n.sum()
    high = np.quantile(found, 0.95, axis=0)
    mean = found.mean(axis=0)
    return (float(mean[0]), float(high[0])), (float(mean[1]), float(high[1]))


# Calibration errors of groups, and what chance does to them.


def chance_error(groups: Sequence[ReliabilityBin]) -> float:
    """The expected calibration error that these groups would show by chance if every probability is right.

    The mean absolute deviation of a binomial count, 2 nu (1 - p) Bin(nu; m, p) with nu = floor(m p) + 1 (de Moivre), m
    the rows and p the mean of a group: an upper bound where probabilities vary within it.
    """
    filled = [group for group in groups if group.mean_prediction is not None]
    if not filled:
        return 0.0
    total = math.fsum(group.weight for group in filled)
    gaps = (
        group.weight * _mean_deviation(group.effective_size, group.mean_prediction or 0.0) for group in filled
    )
    return math.fsum(gaps) / total


def _mean_deviation(size: float, p: float) -> float:
    """E|k - m p| / m of a binomial k."""
    m = max(1, round(size))
    if p <= 0 or p >= 1:
        return 0.0
    nu = math.floor(m * p) + 1
    if nu > m:
        return 0.0
    log = (
        math.lgamma(m + 1)
        - math.lgamma(nu + 1)
        - math.lgamma(m - nu + 1)
        + nu * math.log(p)
        + (m - nu) * math.log1p(-p)
    )
    return 2 * nu * (1 - p) * math.exp(log) / m


def debiased_squared_error(groups: Sequence[ReliabilityBin]) -> float | None:
    """The mean squared calibration error of groups, less what chance adds on average; below 0 by chance.

    Sum of (m / N) ((p - f)**2 - f (1 - f) / (m - 1)) over groups of m rows with mean p and frequency f.

    References
    ----------
    Kumar, Liang & Ma (2019), "Verified uncertainty calibration", NeurIPS, arXiv:1909.10155.
    """
    filled = [group for group in groups if group.frequency is not None and group.mean_prediction is not None]
    if not filled or any(group.effective_size <= 1 for group in filled):
        return None
    total = math.fsum(group.weight for group in filled)
    terms = []
    for group in filled:
        f, p = group.frequency or 0.0, group.mean_prediction or 0.0
        terms.append(group.weight * ((p - f) ** 2 - f * (1 - f) / (group.effective_size - 1)))
    return math.fsum(terms) / total
