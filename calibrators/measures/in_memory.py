"""Measures of predictions in memory, with the arguments of scikit-learn's metrics: labels first, then probabilities.

The numbers are those that `logcal evaluate` writes. Sums of rows, and probabilities as labels, go through the functions
of `Points`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from calibrators.core.arrays import Array
from calibrators.core.passes import Points, run_in_memory
from calibrators.measures.assessment import (
    MEASURES,
    Assessment,
    Histogram,
    Measures,
    ReliabilityBin,
    wilson_interval,
)
from calibrators.measures.certainty import Certainty, ErrorBars, certainty_passes, error_bar_passes
from calibrators.measures.comparison import Comparison, comparison_of, pair_sums
from calibrators.measures.decomposition import Decomposition
from calibrators.measures.predictions import assessment_passes, check_points
from calibrators.measures.spread import Agreement

__all__ = [
    "MEASURES",
    "Agreement",
    "Assessment",
    "Certainty",
    "Comparison",
    "Decomposition",
    "ErrorBars",
    "Histogram",
    "Measures",
    "ReliabilityBin",
    "assess",
    "assess_points",
    "certainty",
    "certainty_points",
    "compare",
    "error_bars",
    "error_bars_points",
    "measure",
    "measure_points",
    "wilson_interval",
]


def measure(
    y_true: npt.ArrayLike,
    y_prob: npt.ArrayLike,
    sample_weight: npt.ArrayLike | None = None,
    *,
    bins: int = 10,
) -> Measures:
    """Compute measures of predictions.

    Parameters
    ----------
    y_true, y_prob, sample_weight, bins : see `assess`

    Returns
    -------
    Measures

    Raises
    ------
    ValueError
        For arrays outside the ranges that `assess` documents.

    Examples
    --------
    >>> measure([0, 0, 1, 1], [0.1, 0.4, 0.4, 0.8]).auc
    0.875
    """
    return assess(y_true, y_prob, sample_weight, bins=bins).measures


def measure_points(points: Points, *, bins: int = 10) -> Measures:
    """Compute measures of sums of rows, or of predictions with probabilities as labels.

    Parameters
    ----------
    points, bins : see `assess_points`

    Returns
    -------
    Measures

    Raises
    ------
    ValueError
        For arrays outside the ranges that `assess_points` documents.

    Examples
    --------
    >>> from calibrators import Points
    >>> soft = Points([0.2, 0.7], [1, 1], [0.1, 0.8])  # labels of 0.1 and 0.8
    >>> round(measure_points(soft).brier, 12)
    0.135
    """
    return assess_points(points, bins=bins).measures


def assess(
    y_true: npt.ArrayLike,
    y_prob: npt.ArrayLike,
    sample_weight: npt.ArrayLike | None = None,
    *,
    bins: int = 10,
    histogram_bins: int = 50,
) -> Assessment:
    """Compute measures, reliability tables and histogram of predictions.

    Parameters
    ----------
    y_true : array-like, shape (n,), of 0 and 1, or bool
        Labels.
    y_prob : array-like, shape (n,), finite, in any order
        Predictions; equal ones are a tie. If any lies outside [0, 1] they are scores, not probabilities: only
        the AUC is computed.
    sample_weight : array-like, shape (n,), finite, >= 0; None for 1
        A weight of 2 equals a repeated row; a row of weight 0 is left out. Other weights are in [1e-100, 1e100].
    bins, histogram_bins : int >= 1

    Returns
    -------
    Assessment

    Raises
    ------
    ValueError
        For arrays outside these ranges, such as labels and predictions in the other order.

    Notes
    -----
    O(n log n) for the sort, else O(n).

    Examples
    --------
    >>> assess([0, 0, 1, 1], [0.1, 0.4, 0.4, 0.8]).positives
    2.0
    """
    rows = None if sample_weight is not None else np.size(y_prob)
    points = _points(y_true, y_prob, sample_weight)
    return assess_points(points, bins=bins, histogram_bins=histogram_bins, rows=rows)


def assess_points(
    points: Points, *, bins: int = 10, histogram_bins: int = 50, rows: int | None = None
) -> Assessment:
    """Compute measures, reliability tables and histogram of sums of rows.

    Parameters
    ----------
    points : Points of shape (n,), in any order
        Predictions as scores; weights, finite and > 0; positives in [0, weight]: the weight of label 1. A row whose
        label is a probability y has positives y times its weight.
    bins, histogram_bins : int >= 1
    rows : int, optional
        Number of rows, if known: whole weights that do not add up to it are weights, not counts of rows. Used only
        for the intervals of the reliability tables.

    Returns
    -------
    Assessment

    Raises
    ------
    ValueError
        For arrays outside these ranges.
    """
    points, _ = check_points(points)
    parts = [(float(points.score[0]), points.weight.sum(keepdims=True))]
    passes = assessment_passes(bins=bins, histogram_bins=histogram_bins, rows=rows, parts=parts)
    return run_in_memory(passes, points)


def error_bars(
    y_true: npt.ArrayLike, y_prob: npt.ArrayLike, sample_weight: npt.ArrayLike | None = None
) -> ErrorBars:
    """Compute observed over expected, tests of calibration, and the AUC's error.

    Parameters
    ----------
    y_true, y_prob, sample_weight : see `assess`

    Returns
    -------
    ErrorBars

    Raises
    ------
    ValueError
        For arrays outside the ranges that `assess` documents.

    Notes
    -----
    O(n log n) for the sort, else O(n).

    Examples
    --------
    >>> bars = error_bars([0, 0, 1, 1], [0.1, 0.4, 0.4, 0.8])
    >>> bars.observed, round(bars.expected, 9), bars.auc
    (2.0, 1.7, 0.875)
    """
    return error_bars_points(_points(y_true, y_prob, sample_weight))


def error_bars_points(points: Points) -> ErrorBars:
    """Compute the `error_bars` of sums of rows; see `assess_points`.

    Parameters
    ----------
    points : Points of shape (n,)

    Returns
    -------
    ErrorBars
    """
    return run_in_memory(error_bar_passes(), check_points(points)[0])


def certainty(
    y_true: npt.ArrayLike, y_prob: npt.ArrayLike, sample_weight: npt.ArrayLike | None = None
) -> Certainty:
    """Decompose losses and compute Cox's line, ICI and smooth ECE.

    Parameters
    ----------
    y_true, y_prob, sample_weight : see `assess`

    Returns
    -------
    Certainty

    Raises
    ------
    ValueError
        For arrays outside the ranges that `assess` documents.

    Notes
    -----
    As `error_bars`; 200 draws of labels take some tenths of a second.

    Examples
    --------
    >>> uncertainty = certainty([0, 0, 1, 1], [0.1, 0.4, 0.4, 0.8])
    >>> uncertainty.decomposition.brier.uncertainty
    0.25
    """
    return certainty_points(_points(y_true, y_prob, sample_weight))


def certainty_points(points: Points) -> Certainty:
    """Compute the `certainty` of sums of rows; see `assess_points`.

    Parameters
    ----------
    points : Points of shape (n,)

    Returns
    -------
    Certainty
    """
    return run_in_memory(certainty_passes(None), check_points(points)[0])[2]


def compare(
    y_true: npt.ArrayLike,
    y_prob: npt.ArrayLike,
    y_prob_other: npt.ArrayLike,
    sample_weight: npt.ArrayLike | None = None,
) -> Comparison:
    """Compare two predictions of the same rows by the paired differences of their losses, the other minus the first.

    Parameters
    ----------
    y_true, sample_weight : see `assess`
    y_prob, y_prob_other : array-likes of probabilities in [0, 1], shape (n,)

    Returns
    -------
    Comparison

    Raises
    ------
    ValueError
        For arrays outside these ranges.

    Examples
    --------
    >>> compare([0, 1], [0.5, 0.5], [0.25, 0.75]).log_loss.difference < 0
    True
    """
    columns = []
    for name, column in (("y_prob", y_prob), ("y_prob_other", y_prob_other)):
        points, order = check_points(_points(y_true, column, sample_weight))
        if points.score[0] < 0 or points.score[-1] > 1:
            raise ValueError(f"{name}: expected probabilities in [0, 1], found {points.score[[0, -1]]}")
        inverse = np.argsort(order)
        columns.append([values[inverse] for values in points])
    (p, w, k), (q, *_) = columns
    return comparison_of([pair_sums(p, q, w, k)[0]])


def _points(y_true: npt.ArrayLike, y_prob: npt.ArrayLike, sample_weight: npt.ArrayLike | None) -> Points:
    """Make points of labels, predictions and weights; rows of weight 0 are left out."""
    given: dict[str, Any] = {"y_true": y_true, "y_prob": y_prob}
    if sample_weight is not None:
        given["sample_weight"] = sample_weight
    arrays = {name: np.asarray(values, dtype=np.float64) for name, values in given.items()}
    for name, array in arrays.items():
        if array.ndim != 1 or array.size == 0 or array.shape != arrays["y_true"].shape:
            shapes = ", ".join(f"{other}: {values.shape}" for other, values in arrays.items())
            raise ValueError(f"{name}: expected arrays of one shape (n,), n >= 1, found {shapes}")
    label, probability = arrays["y_true"], arrays["y_prob"]
    wrong = np.flatnonzero((label != 0) & (label != 1))
    if wrong.size:
        raise ValueError(
            f"y_true: expected labels 0 and 1, found {label[wrong[0]]} at index {wrong[0]}; the order is y_true, "
            "y_prob, sample_weight; sums of rows and probabilities as labels go through the functions of Points"
        )
    if not np.isfinite(probability).all():
        raise ValueError(
            f"y_prob: expected finite numbers, found {probability[~np.isfinite(probability)][0]}"
        )
    weight: Array = arrays.get("sample_weight", np.ones(label.size))
    if not (np.isfinite(weight) & (weight >= 0)).all() or not weight.any():
        raise ValueError("sample_weight: expected finite numbers >= 0, not all 0")
    used = weight > 0
    return Points(probability[used], weight[used], (label * weight)[used])
