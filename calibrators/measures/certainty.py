"""Uncertainty of the measures of predictions beside their error bars, also of arrays."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from calibrators.arithmetic.passes import Array, Pass, run_in_memory
from calibrators.measures.assessment import Assessment
from calibrators.measures.comparison import Comparison, comparison_of, pair_sums
from calibrators.measures.decomposition import Decomposition, debiased_squared_error, decompose
from calibrators.measures.engine import Merged, Predict, Wanted, column_passes
from calibrators.measures.error_bars import ErrorBars, error_bar_passes, error_bars_of
from calibrators.measures.predictions import check_predictions, measured_passes, side_by_side
from calibrators.measures.spread import Agreement, Spread, agreement


@dataclass(frozen=True)
class Certainty:
    """Uncertainty of the measures of one column of predictions, beside their error bars.

    Attributes
    ----------
    decomposition : Decomposition or None
        Of the Brier score and the log loss, with what chance alone would do, and the reliability curve with its band;
        None for scores that are no probabilities, and for sampled logs.
    debiased_squared_error : float or None
        The mean squared calibration error over equal-count groups, less what chance adds; below 0 by chance.
    agreement : Agreement or None
        Cox's line, ICI and smooth calibration error; None for scores that are no probabilities.
    """

    decomposition: Decomposition | None
    debiased_squared_error: float | None
    agreement: Agreement | None = None

    @classmethod
    def of(cls, column: Merged, found: Assessment, rate: float = 1.0) -> Certainty:
        """From a column of predictions and its assessment."""
        spread = None if column.cells is None else Spread.of(column.cells)
        parts = None
        if column.blocks is not None and column.drawn is not None and spread is not None:
            # Of too many predictions to draw labels from each, from cells of 1/512 of log-odds.
            drawn = column.drawn if column.drawn.size else np.column_stack([spread.p, spread.weight])
            parts = decompose(column.blocks, drawn, found)
        agreed = None if spread is None else agreement(spread, rate)
        return cls(parts, debiased_squared_error(found.by_frequency), agreed)


def error_bars(
    probability: npt.ArrayLike, weight: npt.ArrayLike | None, positives: npt.ArrayLike
) -> ErrorBars:
    """Observed over expected, tests of calibration, and the AUC's error, of predictions in memory.

    Parameters
    ----------
    probability, weight, positives : see `calibrators.measures.predictions.assess`

    Notes
    -----
    O(n log n) for the sort, else O(n); the same numbers as `logcal evaluate` writes.

    Examples
    --------
    >>> bars = error_bars([0.1, 0.4, 0.4, 0.8], None, [0, 0, 1, 1])
    >>> bars.observed, round(bars.expected, 9), bars.auc
    (2.0, 1.7, 0.875)
    """
    points, _ = check_predictions(probability, weight, positives)
    found: ErrorBars = run_in_memory(error_bar_passes(), points)
    return found


def certainty(
    probability: npt.ArrayLike, weight: npt.ArrayLike | None, positives: npt.ArrayLike
) -> Certainty:
    """Decompose losses and compute Cox's line, ICI and smooth ECE, each beside chance, in memory.

    Parameters and notes as `error_bars`; 200 draws of labels take some tenths of a second.

    Examples
    --------
    >>> found = certainty([0.1, 0.4, 0.4, 0.8], None, [0, 0, 1, 1])
    >>> found.decomposition.brier.uncertainty
    0.25
    """
    points, _ = check_predictions(probability, weight, positives)
    found: Certainty = run_in_memory(certain_passes(None), points)[2]
    return found


def compare(
    old: npt.ArrayLike, new: npt.ArrayLike, weight: npt.ArrayLike | None, positives: npt.ArrayLike
) -> Comparison:
    """Two predictions of the same rows, by the paired differences of their losses.

    Parameters
    ----------
    old, new : array-likes of probabilities in [0, 1], shape (n,)
    weight, positives : see `calibrators.measures.predictions.assess`

    Raises
    ------
    ValueError
        For arrays outside these ranges.

    Examples
    --------
    >>> compare([0.5, 0.5], [0.25, 0.75], None, [0, 1]).log_loss.difference < 0
    True
    """
    columns = []
    for name, column in (("old", old), ("new", new)):
        points, order = check_predictions(column, weight, positives)
        if points.score[0] < 0 or points.score[-1] > 1:
            raise ValueError(f"{name}: expected probabilities in [0, 1], found {points.score[[0, -1]]}")
        back = np.argsort(order)
        columns.append([one[back] for one in points])
    (p, w, k), (q, *_) = columns
    return comparison_of([pair_sums(p, q, w, k)[0]])


def certain_passes(
    predict: Predict | None,
    bins: int = 10,
    histogram_bins: int = 50,
    rows: int | None = None,
    parts: Sequence[tuple[float, Array]] = (),
    *,
    rate: float = 1.0,
    tests: bool = True,
) -> Generator[Pass, Any, tuple[Assessment, ErrorBars, Certainty]]:
    """Yield the passes that take everything of one column of predictions, receive their results, return it.

    predict, bins, histogram_bins, rows, parts, rate : see `predictions.assessment_passes`
    tests : whether to take the tests of single predictions
    """
    if rate == 1.0:
        wanted = Wanted(predict, blocks=True, cells=True)
        assessed, column = yield from measured_passes(wanted, bins, histogram_bins, rows, parts)
        return assessed, error_bars_of(column.sums, tests=tests), Certainty.of(column, assessed)
    # Measures are of all rows, tests of those that there are.
    all_rows = measured_passes(Wanted(predict, rate=rate), bins, histogram_bins, rows)
    sampled = column_passes(Wanted(predict, odds=rate, cells=True))
    (assessed, column), sampled_column = yield from side_by_side(all_rows, sampled)
    return (
        assessed,
        error_bars_of(column.sums, sampled_column.sums, tests=tests),
        Certainty.of(sampled_column, assessed, rate),
    )
