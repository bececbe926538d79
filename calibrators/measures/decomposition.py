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

from calibrators._kernels import many_certainty, pava
from calibrators._kernels.block_losses import mean_losses
from calibrators._kernels.double_double import add_pairs
from calibrators.arithmetic import ties
from calibrators.arithmetic.exact_totals import Entries, exact
from calibrators.arithmetic.passes import Array, Blocks, Points
from calibrators.arithmetic.pooling import pool_points
from calibrators.measures.assessment import Assessment, ReliabilityBin

MOST_DRAWN = 20_000
"""Different predictions up to which labels are drawn from them."""

DRAWS = 200

SHOWN = 200
"""Predictions at which a consistency band is kept, about equally many rows apart."""

_STEPS = 2.0**20

LEVEL = 0.9
"""Of draws, the share that a consistency band holds at each of them."""


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
    return decompose_losses(blocks, drawn, measures.brier, measures.log_loss)


def decompose_losses(
    blocks: Blocks, drawn: Array, brier_score: float, log_score: float | None
) -> Decomposition:
    """The decomposition of mean losses of the same predictions."""
    best_brier, best_log, base_brier, base_log = mean_losses(blocks.weight, blocks.positives)
    null = _null(drawn) if drawn.size else None
    brier, log_loss, ici = (None, None, None) if null is None else null.chance
    parts = []
    losses = ((brier_score, best_brier, base_brier, brier), (log_score, best_log, base_log, log_loss))
    for score, recalibrated, uncertainty, own in losses:
        worse = None if score is None or math.isinf(score) else max(0.0, score - recalibrated)
        mean, high = own or (None, None)
        parts.append(LossParts(worse, max(0.0, uncertainty - recalibrated), uncertainty, mean, high))
    mean, high = ici or (None, None)
    curve = None if null is None else _reliability(blocks, null)
    return Decomposition(parts[0], parts[1], blocks.first.size, mean, high, curve)


def _reliability(blocks: Blocks, null: _Null) -> Reliability:
    shown = np.arange(blocks.first.size)
    if shown.size > SHOWN:
        # Those in which every so many rows end, and the first and last ones, which have the fewest.
        ends = np.cumsum(blocks.weight)
        shown = np.searchsorted(ends, np.linspace(0, ends[-1], SHOWN - 40))
        shown = np.unique(np.concatenate([np.arange(20), shown, np.arange(ends.size - 20, ends.size)]))
        shown = shown[shown < ends.size]
    # Twelve digits: where a prediction's rows lie in two parts, the last bits depend on it.
    level = [float(f"{one:.12g}") for one in blocks.level[shown].tolist()]
    columns = (
        np.stack([blocks.first[shown], blocks.last[shown]], axis=1).ravel(),
        np.repeat(np.array(level), 2),
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


class _Null(NamedTuple):
    """What chance alone does. chance : mean and 95 % point of MCB (Brier score, log loss) and of ICI; and the band."""

    chance: tuple[tuple[float, float], ...]
    at: Array
    low: Array
    high: Array


def _null(drawn: Array) -> _Null | None:
    """What draws of the labels from the predictions give. drawn : predictions, ascending, and their weights."""
    # Whole numbers of rows that add up to the weight, where weights are none; in steps of which sums are exact, so that
    # what parts have rounded decides nothing.
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
    for draw in range(DRAWS):
        k = random.binomial(n.astype(np.int64), p).astype(np.float64)
        pooled = pava.pool(score, score, n, none, k, none)
        given = k * (1 - p) ** 2 + (n - k) * p**2
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = -np.where(k > 0, k * np.log(p), 0.0) - np.where(k < n, (n - k) * np.log1p(-p), 0.0)
        curve = np.repeat(pooled[4] / pooled[2], np.diff(np.append(pooled[0], n.size)).astype(np.int64))
        found[draw, 0] = given.sum() - _brier(pooled[4], pooled[2]).sum()
        found[draw, 1] = logs.sum() - _log(pooled[4], pooled[2]).sum()
        found[draw, 2] = n @ np.abs(p - curve)
        curves[draw] = curve[shown]
    found /= n.sum()
    mean, high = found.mean(axis=0), np.quantile(found, 0.95, axis=0)
    band = np.quantile(curves, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return _Null(tuple(zip(mean.tolist(), high.tolist(), strict=True)), p[shown], *band)


# Calibration errors of groups, and what chance does to them.


def chance_error(groups: Sequence[ReliabilityBin]) -> float:
    """The expected calibration error that these groups would show by chance if every probability is right.

    The mean absolute deviation of a binomial count, 2 nu (1 - p) Bin(nu; m, p) with nu = floor(m p) + 1 (de Moivre), m
    the rows and p the mean of a group: an upper bound where probabilities vary within it.
    """
    return _chances(groups)[many_certainty.CHANCE_ERROR]


def debiased_squared_error(groups: Sequence[ReliabilityBin]) -> float | None:
    """The mean squared calibration error of groups, less what chance adds on average; below 0 by chance.

    Sum of (m / N) ((p - f)**2 - f (1 - f) / (m - 1)) over groups of m rows with mean p and frequency f.

    References
    ----------
    Kumar, Liang & Ma (2019), "Verified uncertainty calibration", NeurIPS, arXiv:1909.10155.
    """
    found = _chances(groups)[many_certainty.DEBIASED]
    return None if math.isnan(found) else found


def _chances(groups: Sequence[ReliabilityBin]) -> list[float]:
    """Both numbers, by the code that takes them of many columns."""
    filled = [group for group in groups if group.frequency is not None and group.mean_prediction is not None]
    rows = [(group.weight, group.mean_prediction, group.frequency) for group in filled]
    table = np.array(rows, np.float64).reshape(1, len(filled), 3)
    found = np.empty((1, many_certainty.CHANCES))
    many_certainty.chances_each(
        table, np.array([[group.effective_size for group in filled]], np.float64), found
    )
    numbers: list[float] = found[0].tolist()
    return numbers
