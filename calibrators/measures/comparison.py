"""Paired differences between two predictions of the same rows, with their standard errors."""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np

from calibrators._kernels import error_sums as kernels
from calibrators._kernels.accumulators import merge
from calibrators._kernels.measures import counts_and_whole
from calibrators.arithmetic.exact_totals import Predict, exact
from calibrators.arithmetic.passes import Array, Pass, Points


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


def comparison_passes(
    old: Predict | None, new: Predict | None, *, scale: float = 1.0
) -> Generator[Pass, Any, Comparison]:
    """Yield the one pass over a score table that a `Comparison` needs, receive its result, return it.

    Parameters
    ----------
    old, new : callables from ascending scores to probabilities in [0, 1], in any order; picklable.
        None: the scores are the probabilities.
    scale : float > 0
        Each weight counts so many rows.

    Raises
    ------
    ValueError
        From the pass, for predictions outside [0, 1].

    Notes
    -----
    The difference D of the mean losses is that of exact sums; its error is sqrt(sum w (d - D)**2) / N over the rows'
    differences d. O(m); state: 35 sums a part.

    Examples
    --------
    >>> import numpy as np
    >>> from calibrators.arithmetic.passes import Points, run_in_memory
    >>> points = Points(np.array([0.2, 0.6]), np.array([10.0, 10.0]), np.array([3.0, 6.0]))
    >>> found = run_in_memory(comparison_passes(None, lambda s: np.array([0.3, 0.6])), points)
    >>> round(found.log_loss.difference, 5), round(found.log_loss.error, 5)
    (-0.01408, 0.03918)
    """
    found: Comparison = yield Pass(partial(_chunk, old, new), partial(comparison_of, scale=scale))
    return found


def _chunk(old: Predict | None, new: Predict | None, points: Points) -> Array:
    score, w, k = points
    p, q = (score if predict is None else predict(score) for predict in (old, new))
    return pair_sums(p, q, w, k)


def pair_sums(p: Array, q: Array, w: Array, k: Array) -> Array:
    """What a comparison of predictions p and q of the same rows is made of.

    w, k : the rows' weights, and those of the rows with label 1. Any rows in any order: `comparison_of` takes the sums
    of all parts.

    Raises
    ------
    ValueError
        For predictions outside [0, 1].
    """
    for prediction in (p, q):
        if not (prediction.min() >= 0 and prediction.max() <= 1):
            raise ValueError("expected probabilities in [0, 1], found others")
    counts, _ = counts_and_whole(w, k)
    if counts:
        p, q, w, k = kernels.join_pairs(p, q, w, k)
    sums: Array = kernels.comparison_sums(p, q, w, k, counts)
    return sums


def _add(parts: list[Array]) -> list[Fraction]:
    return [exact(row) for row in merge(np.concatenate(parts, axis=1))]


def join_sums(parts: list[Array]) -> Array:
    """The sums of several parts as one part's: exact."""
    joined: Array = merge(np.concatenate(parts, axis=1))
    return joined


def comparison_of(parts: list[Array], scale: float = 1.0) -> Comparison:
    """The comparison over all parts, from their `pair_sums`. scale : see `comparison_passes`."""
    sums, size = _add(parts), Fraction(scale)
    # A sum over rows of either label.
    both = [sums[j] + sums[j + 1] - sums[j + 2] for j in range(0, 30, 3)]
    old_log, old_infinite, new_log, new_infinite, log_squares = both[:5]
    old_brier, _, new_brier, _, brier_squares = both[5:]
    weight, positives, expected_old, expected_new, moved = sums[30:]
    share = positives / weight
    return Comparison(
        weight=float(weight * size),
        positives=float(positives * size),
        log_loss=_paired((old_log, old_infinite), (new_log, new_infinite), log_squares, weight, size),
        brier=_paired((old_brier, Fraction(0)), (new_brier, Fraction(0)), brier_squares, weight, size),
        infinite_old=float(old_infinite * size),
        infinite_new=float(new_infinite * size),
        uncertainty=-sum(float(s) * math.log(s) for s in (share, 1 - share) if s > 0),
        expected_old=float(expected_old * size),
        expected_new=float(expected_new * size),
        moved=float(moved * size),
    )


def _paired(
    old: tuple[Fraction, Fraction],
    new: tuple[Fraction, Fraction],
    squares: Fraction,
    weight: Fraction,
    size: Fraction,
) -> PairedDifference:
    before, after = (math.inf if infinite else float(loss / weight) for loss, infinite in (old, new))
    if old[1] or new[1]:
        return PairedDifference(before, after, None, None)
    difference = (new[0] - old[0]) / weight
    variance = max(Fraction(0), squares / weight - difference**2) / (weight * size)
    return PairedDifference(before, after, float(difference), math.sqrt(variance))
