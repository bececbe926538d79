"""Measures of predictions, in memory and in passes over the parts of a score table.

All numbers are rounded to 12 significant digits of sums that have more digits. So they depend neither on the order of
the observations, nor on their division into parts, nor on whether repeated rows were added up.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Generator, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from calibrators._kernels import measures as kernels
from calibrators.arithmetic.double_double import twelve_digits
from calibrators.arithmetic.ordering import ascending
from calibrators.arithmetic.passes import Array, Pass, Points, run_in_memory, run_passes, side_by_side
from calibrators.measures.assessment import (
    MEASURES,
    Assessment,
    Histogram,
    Measures,
    ReliabilityBin,
    wilson_interval,
    wilson_intervals,
)
from calibrators.measures.engine import (
    Groups,
    MeasureOptions,
    Merged,
    Predict,
    Sums,
    bins_of,
    column_passes,
    groups_of,
    merge,
    part_state,
)

if TYPE_CHECKING:
    from calibrators.measures.certainty import Certainty, ErrorBars, certainty, compare, error_bars
    from calibrators.measures.comparison import Comparison
    from calibrators.measures.decomposition import Decomposition
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
    "Predict",
    "ReliabilityBin",
    "assess",
    "assessment_passes",
    "certainty",
    "compare",
    "error_bars",
    "measure",
    "run_passes",
    "side_by_side",
    "wilson_interval",
]

AssessmentPasses = Generator[Pass, Any, Assessment]

_ELSEWHERE = {
    "Agreement": "spread",
    "Certainty": "certainty",
    "Comparison": "comparison",
    "Decomposition": "decomposition",
    "ErrorBars": "certainty",
    "certainty": "certainty",
    "compare": "certainty",
    "error_bars": "certainty",
}
"""Names that are measures, too, by the module that they are in: those import this one."""


def __getattr__(name: str) -> Any:
    if name not in _ELSEWHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"calibrators.measures.{_ELSEWHERE[name]}"), name)


THRESHOLD = 0.5
"""A probability at or above it predicts the label 1."""


def measure(
    probability: npt.ArrayLike,
    weight: npt.ArrayLike | None,
    positives: npt.ArrayLike,
    bins: int = 10,
) -> Measures:
    """Measures of predictions in memory. See `assess`.

    Examples
    --------
    >>> measure([0.1, 0.4, 0.4, 0.8], None, [0, 0, 1, 1]).auc
    0.875
    """
    return assess(probability, weight, positives, bins=bins).measures


def assess(
    probability: npt.ArrayLike,
    weight: npt.ArrayLike | None,
    positives: npt.ArrayLike,
    *,
    bins: int = 10,
    histogram_bins: int = 50,
    rows: int | None = None,
) -> Assessment:
    """Measures, reliability tables and histogram of predictions in memory.

    Parameters
    ----------
    probability : array-like, shape (n,), finite, in any order
        Predictions; equal ones are a tie. If any lies outside [0, 1] they are scores, not probabilities: only
        measures of the ranking are taken.
    weight : array-like, shape (n,), finite, > 0; None for 1
        A weight of 2 equals a repeated row.
    positives : array-like, shape (n,), in [0, weight]
        The weight of the label 1: where an entry is one row, its label times its weight.
    bins, histogram_bins : int >= 1
    rows : int, optional
        Number of rows behind the weights, if known: weights that are whole numbers but do not add up to it are
        weights, not counts (it matters to the intervals of the reliability tables only).

    Returns
    -------
    Assessment

    Raises
    ------
    ValueError
        For arrays outside these ranges.

    Notes
    -----
    O(n log n) for the sort, else O(n). Weights may range from 1e-100 to 1e100.
    """
    points, _ = check_predictions(probability, weight, positives)
    parts = [(float(points.score[0]), points.weight.sum(keepdims=True))]
    passes = assessment_passes(bins=bins, histogram_bins=histogram_bins, rows=rows, parts=parts)
    return run_in_memory(passes, points)


def check_predictions(
    probability: npt.ArrayLike, weight: npt.ArrayLike | None, positives: npt.ArrayLike
) -> tuple[Points, npt.NDArray[np.int64]]:
    """Predictions in ascending order, and their places before; see `assess`. Raises ValueError as it does."""
    p = np.asarray(probability, dtype=np.float64) + 0.0
    if p.ndim != 1 or p.size == 0:
        raise ValueError(f"probability: expected shape (n,) with n >= 1, found shape {p.shape}")
    w = np.ones(p.size) if weight is None else np.asarray(weight, dtype=np.float64)
    k = np.asarray(positives, dtype=np.float64) + 0.0
    for name, column in (("weight", w), ("positives", k)):
        if column.shape != p.shape:
            raise ValueError(f"{name}: expected shape {p.shape} as probability has, found {column.shape}")
    for name, fine, wanted in (
        ("probability", np.isfinite(p), "finite numbers"),
        ("weight", np.isfinite(w) & (w > 0), "finite numbers > 0"),
        ("positives", (k >= 0) & (k <= w), "numbers in [0, weight]"),
    ):
        if not fine.all():
            bad = np.flatnonzero(~fine)
            raise ValueError(
                f"{name}: expected {wanted}, found {bad.size} others, the first at index {bad[0]}"
            )
    if np.all(p[:-1] <= p[1:]):
        return Points(*(np.ascontiguousarray(column) for column in (p, w, k))), np.arange(p.size)
    order = ascending(p)
    return Points(p[order], w[order], k[order]), order


def assessment_passes(
    predict: Predict | None = None,
    *,
    bins: int = 10,
    histogram_bins: int = 50,
    rows: int | None = None,
    parts: Sequence[tuple[float, Array]] = (),
    rate: float = 1.0,
) -> AssessmentPasses:
    """Yield the passes over a score table that an `Assessment` needs, receive their results, return it.

    Parameters
    ----------
    predict : callable, optional
        Applied to the scores first; must not decrease with the score (`CalibrationMap.predict` of a monotone
        map). None: the scores are the predictions.
    bins, histogram_bins, rows : see `assess`
    parts : sequence of (float, array), optional
        Where they are known: of each part the first score and the weight, as addends. They save a pass where all
        weights are whole numbers; no number depends on them.
    rate : float > 0
        For a log of sampled rows: the kept share of the negatives divided by the kept share of the positives. Measures
        describe all rows: a negative weighs 1 / rate.

    Raises
    ------
    ValueError
        For bins < 1; from a pass, if predict decreases.

    Notes
    -----
    Two passes, or one with `parts`. The second needs the few parts in which an equal-frequency group ends (or, for
    scores that are not probabilities, all parts for the histogram over their range). State: some hundred sums a part.
    """
    passes = measured_passes(MeasureOptions(predict, rate=rate), bins, histogram_bins, rows, parts)
    return (yield from passes)[0]


def measured_passes(
    wanted: MeasureOptions,
    bins: int = 10,
    histogram_bins: int = 50,
    rows: int | None = None,
    parts: Sequence[tuple[float, Array]] = (),
) -> Generator[Pass, Any, tuple[Assessment, Merged]]:
    """`assessment_passes`, with the column that the assessment is made of. wanted : its edges are filled in."""
    for name, number in (("bins", bins), ("histogram_bins", histogram_bins)):
        if number < 1:
            raise ValueError(f"{name}: expected a whole number >= 1, found {number}")
    column = yield from column_passes(replace(wanted, edges=bin_edges(bins, histogram_bins)), bins, parts)
    if column.sums.probabilities[0]:
        fine = _histogram([0.0, *_inner(histogram_bins), 1.0], column.sums)
        return _assessed(column.sums, bins, fine, rows), column
    edges = _edges_over(float(column.sums.low[0]), float(column.sums.high[0]), histogram_bins)
    again = MeasureOptions(wanted.predict, tuple(edges[1:-1].tolist()), wanted.rate)
    found = yield Pass(partial(part_state, again, None), partial(merge, again, 1))
    return _assessed(column.sums, bins, _histogram(edges.tolist(), found.sums), rows), column


def bin_edges(*several: int) -> tuple[float, ...]:
    """Edges of so many bins of equal width of [0, 1], but 0 and 1, and the threshold: doubles nearest to i / bins."""
    return tuple(sorted({THRESHOLD, *(edge for bins in several for edge in _inner(bins))}))


def _inner(bins: int) -> list[float]:
    found: list[float] = (np.arange(1, bins) / bins).tolist()
    return found


def _edges_over(low: float, high: float, bins: int) -> Array:
    if low == high:
        low, high = low - max(0.5, abs(low) / 2), high + max(0.5, abs(high) / 2)
    t = np.arange(bins + 1) / bins
    # Not low + t * (high - low): the difference of two large doubles may be infinite.
    return np.maximum.accumulate(np.clip(low * (1 - t) + high * t, low, high))


# From sums to results, of all columns at once.


def measures_of_columns(sums: Sums, groups: Groups, bins: int) -> dict[str, Array]:
    """The `MEASURES` of columns of predictions, and the mean prediction; NaN where there is no such number.

    groups : of equal weight. bins : of equal width
    """
    weight, positives = sums.of(kernels.WEIGHT), sums.of(kernels.POSITIVES)
    proper = np.where(sums.probabilities, weight.high, np.nan)
    halves = bins_of(sums, [0.0, THRESHOLD, 1.0])
    right = halves.weight[:, 0] - halves.positives[:, 0] + halves.positives[:, 1]
    infinite = sums.of(kernels.INFINITE).high > 0
    with np.errstate(all="ignore"):
        brier = sums.of(kernels.BRIER).high / proper
        errors = [calibration_errors(own) for own in (groups, bins_of(sums, [0.0, *_inner(bins), 1.0]))]
        found = {
            "auc": areas_under_roc(sums),
            "accuracy": right / proper,
            "brier": brier,
            "rmse": np.sqrt(brier),
            "log_loss": np.where(
                infinite & ~np.isnan(proper), np.inf, sums.of(kernels.LOG_LOSS).high / proper
            ),
        }
        for how, (mean, largest) in zip(("frequency", "width"), errors, strict=True):
            found[f"ece_{how}"] = np.where(np.isnan(proper), np.nan, mean)
            found[f"mce_{how}"] = np.where(np.isnan(proper), np.nan, largest)
        found["mean_prediction"] = sums.of(kernels.PREDICTED).high / proper
        found |= {"weight": weight.high, "positives": positives.high}
    return {name: twelve_digits(values) for name, values in found.items()}


def calibration_errors(groups: Groups) -> tuple[Array, Array]:
    """Expected and maximum calibration error of columns over their groups."""
    weight = np.where(groups.weight > 0, groups.weight, np.nan)
    with np.errstate(all="ignore"):
        apart = np.where(groups.weight > 0, groups.gap, 0.0)
        return apart.sum(axis=1) / groups.weight.sum(axis=1), np.fmax.reduce(apart / weight, axis=1)


def areas_under_roc(sums: Sums) -> Array:
    """AUC of columns; NaN for one class."""
    hits, misses = sums.ranked
    with np.errstate(all="ignore"):
        pairs = 2.0 * hits.high * misses.high
        return np.where(pairs > 0, sums.of(kernels.HIT_PLACES).high / pairs, np.nan)


def bins_as_table(groups: Groups, weighted: npt.NDArray[np.bool_]) -> dict[str, Array]:
    """Numbers of groups, shape (columns, groups), by their names in `ReliabilityBin`; NaN of empty ones.

    weighted : of columns, whether weights are something else than counts of rows
    """
    weight = np.where(groups.weight > 0, groups.weight, np.nan)
    with np.errstate(all="ignore"):
        size = np.where(weighted[:, None], weight / groups.squares * weight, weight)
        return {
            "weight": weight,
            "positives": groups.positives,
            "mean_prediction": groups.predicted / weight,
            "frequency": np.clip(groups.positives / weight, 0.0, 1.0),
            "effective_size": size,
        }


# Of one column.


def _assessed(sums: Sums, bins: int, histogram: Histogram, rows: int | None) -> Assessment:
    proper, weighted = bool(sums.probabilities[0]), _weighted(sums, rows)
    low, high = float(sums.low[0]), float(sums.high[0])
    # Scores that are no probabilities may be as large as doubles are: of those the AUC alone is taken.
    with np.errstate(all="ignore"):
        groups = groups_of(sums)
        values = {name: float(own[0]) for name, own in measures_of_columns(sums, groups, bins).items()}
    reasons, widths = one_label(sums), [0.0, *_inner(bins), 1.0]
    if not proper:
        why = f"not taken, because scores from {low:g} to {high:g} are not probabilities"
        reasons |= dict.fromkeys((name for name in MEASURES if name != "auc"), why)
    elif math.isinf(values["log_loss"]):
        infinite = float(sums.of(kernels.INFINITE).high[0])
        reasons["log_loss"] = (
            f"infinite, because rows of weight {infinite:g} have a label that was given probability 0"
        )
    measures: dict[str, Any] = {name: None if math.isnan(values[name]) else values[name] for name in MEASURES}
    return Assessment(
        weight=values["weight"],
        positives=values["positives"],
        weighted=weighted,
        lowest=low,
        highest=high,
        mean_prediction=values["mean_prediction"] if proper else None,
        measures=Measures(**measures, reasons=reasons),
        by_width=_reliability(widths, bins_of(sums, widths), weighted) if proper else (),
        by_frequency=_reliability([low, *sums.ties[0, :, 0].tolist(), high], groups, weighted)
        if proper
        else (),
        histogram=histogram,
    )


def one_label(sums: Sums) -> dict[str, str]:
    """Why there is no AUC, if there is none."""
    hits, misses = sums.ranked
    if hits.high[0] > 0 and misses.high[0] > 0:
        return {}
    return {"auc": f"not defined, because all rows have label {0 if hits.high[0] == 0 else 1}"}


def _weighted(sums: Sums, rows: int | None) -> bool:
    # Whole weights > 0 that add up to the number of rows are all 1.
    return not sums.whole[0] or (rows is not None and bool(sums.of(kernels.WEIGHT).high[0] != rows))


def _reliability(borders: list[float], groups: Groups, weighted: bool) -> tuple[ReliabilityBin, ...]:
    table = bins_as_table(groups, np.array([weighted]))
    with np.errstate(all="ignore"):
        ends = wilson_intervals(table["frequency"], table["effective_size"])
    table |= dict(zip(("interval_low", "interval_high"), ends, strict=True))
    table = {name: twelve_digits(column) for name, column in table.items()}
    found = []
    for i, (lower, upper) in enumerate(pairwise(borders)):
        row: dict[str, Any] = {name: float(column[0, i]) for name, column in table.items()}
        if math.isnan(row["weight"]):
            row = dict.fromkeys(row) | dict.fromkeys(("weight", "positives", "effective_size"), 0.0)
        found.append(ReliabilityBin(lower=lower, upper=upper, **row))
    return tuple(found)


def _histogram(edges: list[float], sums: Sums) -> Histogram:
    bins = bins_of(sums, edges)
    return Histogram(
        edges=tuple(edges),
        weight=tuple(twelve_digits(bins.weight[0]).tolist()),
        positives=tuple(twelve_digits(bins.positives[0]).tolist()),
    )
