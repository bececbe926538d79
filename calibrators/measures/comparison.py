"""Paired differences between two predictions of the same rows, with their standard errors."""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from calibrators.arithmetic.double_double import Pair, twelve
from calibrators.arithmetic.passes import Array, Pass, Points
from calibrators.measures.engine import Integers, Predict, stacked, sum_terms


@dataclass(frozen=True)
class PairedDifference:
    """A mean loss of two predictions of the same rows.

    Attributes
    ----------
    old, new : float >= 0
        Mean losses; infinite where a label was given probability 0.
    difference : float or None
        new - old; below 0 the new predictions are better. None where either is infinite.
    error : float or None
        Its standard error: the rows are pairs, so that what both predictions have in common cancels.
    """

    old: float
    new: float
    difference: float | None
    error: float | None


@dataclass(frozen=True)
class Comparison:
    """Two predictions of the same rows.

    Weights count rows: one of 2 is the row twice.

    Attributes
    ----------
    weight, positives : float
    log_loss, brier : PairedDifference
    infinite_old, infinite_new : float >= 0
        Rows whose label was given probability 0.
    uncertainty : float >= 0
        The log loss of the share of positives as the prediction for every row (UNC).
    expected_old, expected_new : float >= 0
        Sums of the probabilities.
    moved : float >= 0
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
    moved: float

    def as_dict(self) -> dict[str, Any]:
        """For JSON: an infinite loss is None."""
        found = asdict(self)
        for loss in (found["log_loss"], found["brier"]):
            loss |= {name: None for name, value in loss.items() if value is not None and math.isinf(value)}
        return found


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
    >>> from calibrators.arithmetic.passes import Points, run_in_memory
    >>> points = Points(np.array([0.2, 0.6]), np.array([10.0, 10.0]), np.array([3.0, 6.0]))
    >>> found = run_in_memory(comparison_passes(None, lambda s: np.array([0.3, 0.6])), points)
    >>> round(found.log_loss.difference, 5), round(found.log_loss.error, 5)
    (-0.01408, 0.03918)
    """
    found: Comparison = yield Pass(partial(_chunk, old, new), comparison_of)
    return found


def _chunk(old: Predict | None, new: Predict | None, points: Points) -> Pair:
    score, w, k = points
    p, q = (score if predict is None else predict(score) for predict in (old, new))
    return pair_sums(p, q, w, k)[0]


def pair_sums(p: Array, q: Array, w: Array, k: Array, starts: Integers | None = None) -> Pair:
    """The sums that comparisons of predictions p and q of the same rows need.

    w, k : the rows' weights, and those of the rows with label 1. Any rows in any order.
    starts : where each of several columns begins, and the end; none is empty

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
        logs = [(-np.log(one), -np.log1p(-one)) for one in (p, q)]
    terms = [w, k, w * p, w * q, w * np.abs(p - q)]
    finite = []
    for one, (hit, miss) in zip((p, q), logs, strict=True):
        never, always = one <= 0, one >= 1
        terms.append(np.where(never, k, 0.0) + np.where(always, n, 0.0))
        finite.append((np.where(never, 0.0, hit), np.where(always, 0.0, miss)))
    both = [((p > 0) & (q > 0), (p < 1) & (q < 1)), (True, True)]
    for losses, sure in zip((finite, [((1 - one) ** 2, one**2) for one in (p, q)]), both, strict=True):
        terms += [k * hit + n * miss for hit, miss in losses]
        apart = [np.where(fine, new - old, 0.0) for fine, old, new in zip(sure, *losses, strict=True)]
        terms += [k * apart[0] + n * apart[1], k * apart[0] ** 2 + n * apart[1] ** 2]
    return terms


def comparison_of(parts: list[Pair]) -> Comparison:
    """The comparison over all parts of a column, from their `pair_sums`."""
    total = stacked(parts).total()
    weight, positives, expected_old, expected_new, moved, infinite_old, infinite_new, *losses = (
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
        moved=twelve(moved),
    )


def _paired(infinite: tuple[float, float], sums: list[float], weight: float) -> PairedDifference:
    """From the sums of both losses, of their differences, and of the squares of these."""
    before, after = (
        math.inf if some else twelve(loss / weight) for loss, some in zip(sums, infinite, strict=False)
    )
    if any(infinite):
        return PairedDifference(before, after, None, None)
    difference, squares = (value / weight for value in sums[2:])
    error = math.sqrt(max(0.0, squares - difference**2) / weight)
    return PairedDifference(before, after, twelve(difference), twelve(error))
