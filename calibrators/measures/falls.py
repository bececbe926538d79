"""Proof that the share of positives falls somewhere as the score rises, so that no rising map can follow it."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from calibrators.core.arrays import Array
from calibrators.core.fine_cells import FineCells
from calibrators.core.kernels.likelihood import isotonic_fit
from calibrators.measures.dispersion import MOST
from calibrators.measures.fit_check import normal_limit, roots

ERROR_RATE = 1e-3
"""Largest probability that a fall is reported though the truth never falls."""

LEAST_FALL = 0.1
"""Least fall, in log-odds, that is reported."""


class Fall(NamedTuple):
    """Two neighbouring ranges of scores, the upper with a smaller share of positives.

    first, turn, begin, last : first and last score of the lower range, and of the upper range
    before, after : shares of positives in the lower and in the upper range
    weight : weight of the observations of the upper range
    root : signed root of the deviance, a number of standard errors
    """

    first: float
    turn: float
    begin: float
    last: float
    before: float
    after: float
    weight: float
    root: float

    def facts(self) -> dict[str, float]:
        """Return a dict for JSON; what is not a score is rounded to 12 significant digits."""
        scores = dict(zip(_SCORES, self[:4], strict=True))
        return scores | {name: float(f"{x:.12g}") for name, x in zip(_NUMBERS, self[4:], strict=True)}


_SCORES = ("lower_first_score", "lower_last_score", "upper_first_score", "upper_last_score")
_NUMBERS = ("lower_share", "upper_share", "upper_weight", "deviance_residual")


def proven_fall(cells: FineCells, dispersion: float = 1.0, heaviest: float = 1.0) -> Fall | None:
    """Find the most significant fall of the share of positives; None if chance explains all. O(cells).

    Isotonic regression pools where shares fall. Each of its blocks is divided at each cell, and the deviance of two
    shares from one is compared with the limit for as many tests as there are pairs of cells.

    cells : cells of the observations
    dispersion, heaviest : see `FitCheck` and `calibrators.base.Sampling`: both reduce what counts as an observation
    """
    scale = max(dispersion, _of_rows(cells)) * max(1.0, heaviest)
    weight, positives = cells.weight / scale, cells.positives / scale
    split = _largest_fall(weight, positives)
    if split.root <= _limit(weight.size):
        return None
    begin, at, end = split.begin, split.at, split.end
    (w_left, k_left), (w_right, k_right) = split.sums
    fall = math.log(max(k_left, 0.5) / max(w_left - k_left, 0.5))
    fall -= math.log(max(k_right, 0.5) / max(w_right - k_right, 0.5))
    if fall < LEAST_FALL:
        return None
    return Fall(
        first=float(cells.first[begin]),
        turn=float(cells.last[at]),
        begin=float(cells.first[at + 1]),
        last=float(cells.last[end]),
        before=k_left / w_left,
        after=k_right / w_right,
        weight=w_right * scale,
        root=split.root,
    )


def levels_between_falls(weight: Array, positives: Array) -> tuple[Array, Array]:
    """Fit isotonic regression, and the same where it begins anew after each proven fall. O(cells) for each fall.

    weight, positives : float64 arrays, shape (cells,): of cells ascending by score; weights > 0 count observations

    Returns
    -------
    both fits; they are the same array if no fall is proven
    """
    limit, first = _limit(weight.size), _largest_fall(weight, positives)
    if first.root <= limit:
        return first.level, first.level
    result, parts = first.level.copy(), [(0, first)]
    while parts:
        start, split = parts.pop()
        size, turn = split.level.size, split.at + 1
        if split.root <= limit:
            result[start : start + size] = split.level
            continue
        for low, high in ((start, start + turn), (start + turn, start + size)):
            parts.append((low, _largest_fall(weight[low:high], positives[low:high])))
    return first.level, result


class _Split(NamedTuple):
    """The most significant fall within a block of isotonic regression.

    begin, at, end : first cell of the block, last one before the fall, last one of the block
    sums : weight and positives of both sides
    root : signed root of the deviance; 0: no fall
    level : float64 array, shape (cells,): isotonic regression
    """

    begin: int
    at: int
    end: int
    sums: tuple[tuple[float, float], tuple[float, float]]
    root: float
    level: Array


def _limit(cells: int) -> float:
    """Return the limit of roots for as many tests as there are pairs of cells."""
    return float(normal_limit(cells**2, ERROR_RATE))


def _largest_fall(weight: Array, positives: Array) -> _Split:
    level = np.asarray(isotonic_fit(positives / weight, weight))
    starts = np.flatnonzero(np.diff(level, prepend=-1.0))
    block = np.repeat(np.arange(starts.size), np.diff(np.append(starts, level.size)))
    left = [_sums_in_blocks(column, starts, block) for column in (weight, positives)]
    whole = [np.add.reduceat(column, starts)[block] for column in (weight, positives)]
    right = [np.maximum(of_block - of_left, 0.0) for of_block, of_left in zip(whole, left, strict=True)]
    inner = np.append(block[1:] == block[:-1], False) & (right[0] > 0)
    mean = whole[1] / whole[0]
    parts = [roots(w, k, w * mean) for w, k in (left, right)]
    root = np.where(inner & (parts[0] > 0) & (parts[1] < 0), np.hypot(*parts), 0.0)
    at = int(np.argmax(root))
    begin, end = int(starts[block[at]]), int(np.append(starts, level.size)[block[at] + 1]) - 1
    sums = [(float(w[at]), float(k[at])) for w, k in (left, right)]
    return _Split(begin, at, end, (sums[0], sums[1]), float(root[at]), level)


def _of_rows(cells: FineCells) -> float:
    """Estimate the over-dispersion from single scores at which little of either label is expected.

    One rare positive row of large weight must not be taken for many rows: with weights w independent of the label the
    sum of k (k - e) over that of k (1 - p) is that of w**2 over that of w. k : positives, e = w p : expected ones. In
    larger cells a fall looks alike; those between sampled scores lack the labels that were sampled, which looks alike,
    too. Returns a number from 1 to 10; for rows of weight 1 and different scores 1.
    """
    level = np.asarray(isotonic_fit(cells.positives / cells.weight, cells.weight))
    small = (cells.first == cells.last) & (cells.weight * level * (1 - level) < 1.0)
    found = 1.0
    for of_label, p in ((cells.positives, level), (cells.weight - cells.positives, 1 - level)):
        k, p, w = of_label[small], p[small], cells.weight[small]
        expected = float((k * (1 - p)).sum())
        if expected > 0:
            found = max(found, float((k * (k - w * p)).sum()) / expected)
    return min(found, MOST)


def _sums_in_blocks(column: Array, starts: Any, block: Any) -> Array:
    """Return cumulative sums that begin anew with each block."""
    total = np.cumsum(column)
    return np.asarray(total - np.append(0.0, total)[starts][block])
