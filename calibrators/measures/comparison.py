"""Paired differences between two predictions of the same rows, with their standard errors."""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from calibrators.core.arrays import Array, Integers
from calibrators.core.double_double import Pair, twelve
from calibrators.core.passes import Pass, Points
from calibrators.measures.engine import Predict, stacked, sum_terms


@dataclass(frozen=True)
class PairedDifference:
    """Mean losses of two predictions of the same rows, and their difference.

    Attributes
    ----------
    old, new : float >= 0
        Mean losses; infinite where a label was given probability 0.
    difference : float or None
        new - old; below 0 the new predictions are better. None where either is infinite.
    error : float or None
        Standard error of the difference, from the differences of single rows.
    """

    old: float
    new: float
    difference: float | None
    error: float | None


@dataclass(frozen=True)
class Comparison:
    """Comparison of two predictions of the same rows.

    Weights count rows: a weight of 2 equals a repeated row.

    Attributes
    ----------
    weight, positives : float
    log_loss, brier : PairedDifference
    infinite_old, infinite_new : float >= 0
        Number of rows whose label was given probability 0.
    uncertainty : float >= 0
        Log loss if every row is predicted the share of positives (UNC).
    expected_old, expected_new : float >= 0
        Sums of the probabilities.
    absolute_difference : float >= 0
        The sum of |new - old|.
    """

    weight: float
    positives: float
    log_loss: PairedDifference
    brier: PairedDifference
    infinite_old: float
    infinite_new: float
    uncertainty: float
    expected_old: float
    expected_new: float
    absolute_difference: float

    def as_dict(self) -> dict[str, Any]:
        """For JSON: an infinite loss is None."""
        values = asdict(self)
        for loss in (values["log_loss"], values["brier"]):
            loss |= {name: None for name, value in loss.items() if value is not None and math.isinf(value)}
        return values


def comparison_passes(old: Predict | None, new: Predict | None) -> Generator[Pass, Any, Comparison]:
    """Yield the one pass over a score table that a `Comparison` needs, receive its result, return it.

    Parameters
    ----------
    old, new : callables from ascending scores to probabilities in [0, 1], in any order; picklable.
        None: the scores are the probabilities.

    Raises
    ------
    ValueError
        From the pass, for predictions outside [0, 1].

    Notes
    -----
    The error of the difference D of the mean losses is sqrt(sum w (d - D)**2) / N over the rows' differences d. O(m).

    Examples
    --------
    >>> import numpy as np
    >>> from calibrators.core.passes import Points, run_in_memory
    >>> points = Points(np.array([0.2, 0.6]), np.array([10.0, 10.0]), np.array([3.0, 6.0]))
    >>> comparison = run_in_memory(comparison_passes(None, lambda s: np.array([0.3, 0.6])), points)
    >>> round(comparison.log_loss.difference, 5), round(comparison.log_loss.error, 5)
    (-0.01408, 0.03918)
    """
    comparison: Comparison = yield Pass(partial(_chunk, old, new), comparison_of)
    return comparison


def _chunk(old: Predict | None, new: Predict | None, points: Points) -> Pair:
    score, w, k = points
    p, q = (score if predict is None else predict(score) for predict in (old, new))
    return pair_sums(p, q, w, k)[0]


def pair_sums(p: Array, q: Array, w: Array, k: Array, starts: Integers | None = None) -> Pair:
    """Compute the sums that comparisons of predictions p and q of the same rows need.

    w, k : weights of the rows, and of their positives; rows in any order
    starts : index of each column's first row, and the number of rows; no column is empty. None: one column

    Returns
    -------
    Pair, shape (columns, sums)

    Raises
    ------
    ValueError
        For predictions outside [0, 1].
    """
    for prediction in (p, q):
        if not (prediction.min() >= 0 and prediction.max() <= 1):
            raise ValueError("expected probabilities in [0, 1], found others")
    return sum_terms(_terms, (p, q, w, k), starts)


def _terms(p: Array, q: Array, w: Array, k: Array) -> list[Array]:
    n = w - k
    with np.errstate(divide="ignore"):
        logs = [(-np.log(chance), -np.log1p(-chance)) for chance in (p, q)]
    terms = [w, k, w * p, w * q, w * np.abs(p - q)]
    finite = []
    for chance, (hit, miss) in zip((p, q), logs, strict=True):
        never, always = chance <= 0, chance >= 1
        terms.append(np.where(never, k, 0.0) + np.where(always, n, 0.0))
        finite.append((np.where(never, 0.0, hit), np.where(always, 0.0, miss)))
    squared = [((1 - chance) ** 2, chance**2) for chance in (p, q)]
    both_finite = ((p > 0) & (q > 0), (p < 1) & (q < 1))
    for losses, masks in ((finite, both_finite), (squared, (True, True))):
        terms += [k * hit + n * miss for hit, miss in losses]
        hit, miss = (np.where(mask, new - old, 0.0) for mask, old, new in zip(masks, *losses, strict=True))
        terms += [k * hit + n * miss, k * hit**2 + n * miss**2]
    return terms


def comparison_of(parts: list[Pair]) -> Comparison:
    """Build the comparison of a column from the `pair_sums` of its parts."""
    total = stacked(parts).total()
    weight, positives, expected_old, expected_new, apart, infinite_old, infinite_new, *losses = (
        total.high.tolist()
    )
    share = positives / weight
    infinite = (infinite_old, infinite_new)
    return Comparison(
        weight=twelve(weight),
        positives=twelve(positives),
        log_loss=_paired(infinite, losses[:4], weight),
        brier=_paired((0.0, 0.0), losses[4:], weight),
        infinite_old=twelve(infinite_old),
        infinite_new=twelve(infinite_new),
        uncertainty=twelve(-sum(s * math.log(s) for s in (share, 1 - share) if s > 0)),
        expected_old=twelve(expected_old),
        expected_new=twelve(expected_new),
        absolute_difference=twelve(apart),
    )


def _paired(infinite: tuple[float, float], sums: list[float], weight: float) -> PairedDifference:
    """Build a difference. sums : of the old and the new losses, their differences, and their squares."""
    before, after = (
        math.inf if rows else twelve(loss / weight) for loss, rows in zip(sums, infinite, strict=False)
    )
    if any(infinite):
        return PairedDifference(before, after, None, None)
    difference, squares = (value / weight for value in sums[2:])
    error = math.sqrt(max(0.0, squares - difference**2) / weight)
    return PairedDifference(before, after, twelve(difference), twelve(error))
