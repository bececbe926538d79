"""Measures of predictions, in passes over the parts of a score table; `in_memory` has them for arrays.

All numbers are computed from sums with more than 12 significant digits and rounded to 12. So they depend neither on the
order of the observations, nor on their division into parts, nor on whether repeated rows were added up.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from calibrators.core.arrays import Array, Integers, Mask
from calibrators.core.double_double import twelve_digits
from calibrators.core.passes import Pass, Points
from calibrators.core.sorting import stable_order
from calibrators.measures import kernels
from calibrators.measures.assessment import (
    MEASURES,
    Assessment,
    Histogram,
    Measures,
    ReliabilityBin,
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

AssessmentPasses = Generator[Pass, Any, Assessment]

THRESHOLD = 0.5
"""A probability at or above it predicts the label 1."""


def check_points(points: Points) -> tuple[Points, Integers]:
    """Check points in any order; return them in ascending order of the score, and their original positions.

    Raises
    ------
    ValueError
        Scores are not finite, weights not finite and > 0, positives not in [0, weight], or shapes differ.
    """
    p, w, k = (np.asarray(column, dtype=np.float64) + 0.0 for column in points)
    if p.ndim != 1 or p.size == 0:
        raise ValueError(f"score: expected shape (n,) with n >= 1, found shape {p.shape}")
    for name, column in (("weight", w), ("positives", k)):
        if column.shape != p.shape:
            raise ValueError(f"{name}: expected shape {p.shape} as the scores have, found {column.shape}")
    for name, valid, expected in (
        ("score", np.isfinite(p), "finite numbers"),
        ("weight", np.isfinite(w) & (w > 0), "finite numbers > 0"),
        ("positives", (k >= 0) & (k <= w), "numbers in [0, weight]"),
    ):
        if not valid.all():
            invalid = np.flatnonzero(~valid)
            raise ValueError(
                f"{name}: expected {expected}, found {invalid.size} others, the first at index {invalid[0]}"
            )
    if np.all(p[:-1] <= p[1:]):
        return Points(*(np.ascontiguousarray(column) for column in (p, w, k))), np.arange(p.size)
    order = stable_order(p)
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
    bins, histogram_bins, rows : see `calibrators.measures.in_memory.assess`
    parts : sequence of (float, array), optional
        First score and weight (as addends) of each part, if known. They save a pass if all weights are whole numbers;
        the results are the same.
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
    scores that are not probabilities, all parts for the histogram over their range). State: some hundred sums per part.
    """
    passes = measured_passes(MeasureOptions(predict, rate=rate), bins, histogram_bins, rows, parts)
    return (yield from passes)[0]


def measured_passes(
    options: MeasureOptions,
    bins: int = 10,
    histogram_bins: int = 50,
    rows: int | None = None,
    parts: Sequence[tuple[float, Array]] = (),
) -> Generator[Pass, Any, tuple[Assessment, Merged]]:
    """`assessment_passes` that also return the merged column. options : `edges` are filled in here."""
    for name, number in (("bins", bins), ("histogram_bins", histogram_bins)):
        if number < 1:
            raise ValueError(f"{name}: expected a whole number >= 1, found {number}")
    column = yield from column_passes(replace(options, edges=bin_edges(bins, histogram_bins)), bins, parts)
    if column.sums.probabilities[0]:
        histogram = _histogram([0.0, *_inner_edges(histogram_bins), 1.0], column.sums)
        return _assessment_of(column.sums, bins, histogram, rows), column
    edges = _edges_over(float(column.sums.low[0]), float(column.sums.high[0]), histogram_bins)
    histogram_options = MeasureOptions(options.predict, tuple(edges[1:-1].tolist()), options.rate)
    merged = yield Pass(partial(part_state, histogram_options, None), partial(merge, histogram_options, 1))
    return _assessment_of(column.sums, bins, _histogram(edges.tolist(), merged.sums), rows), column


def bin_edges(*counts: int) -> tuple[float, ...]:
    """Inner edges i / bins of equal-width bins of [0, 1], for each number of bins, and the threshold; ascending."""
    return tuple(sorted({THRESHOLD, *(edge for bins in counts for edge in _inner_edges(bins))}))


def _inner_edges(bins: int) -> list[float]:
    edges: list[float] = (np.arange(1, bins) / bins).tolist()
    return edges


def _edges_over(low: float, high: float, bins: int) -> Array:
    if low == high:
        low, high = low - max(0.5, abs(low) / 2), high + max(0.5, abs(high) / 2)
    t = np.arange(bins + 1) / bins
    # Not low + t * (high - low): the difference of two large doubles may be infinite.
    return np.maximum.accumulate(np.clip(low * (1 - t) + high * t, low, high))


# Results of all columns from their sums.


def measures_of_columns(sums: Sums, groups: Groups, bins: int) -> dict[str, Array]:
    """Compute the `MEASURES` of columns, their mean prediction, weight and positives; NaN where one does not exist.

    groups : groups of equal weight. bins : number of bins of equal width
    """
    weight, positives = sums.of(kernels.WEIGHT), sums.of(kernels.POSITIVES)
    proper = np.where(sums.probabilities, weight.high, np.nan)
    halves = bins_of(sums, [0.0, THRESHOLD, 1.0])
    correct = halves.weight[:, 0] - halves.positives[:, 0] + halves.positives[:, 1]
    infinite = sums.of(kernels.INFINITE).high > 0
    with np.errstate(all="ignore"):
        brier = sums.of(kernels.BRIER).high / proper
        errors = [calibration_errors(g) for g in (groups, bins_of(sums, [0.0, *_inner_edges(bins), 1.0]))]
        measures = {
            "auc": areas_under_roc(sums),
            "accuracy": correct / proper,
            "brier": brier,
            "rmse": np.sqrt(brier),
            "log_loss": np.where(
                infinite & ~np.isnan(proper), np.inf, sums.of(kernels.LOG_LOSS).high / proper
            ),
        }
        for grouping, (mean, largest) in zip(("frequency", "width"), errors, strict=True):
            measures[f"ece_{grouping}"] = np.where(np.isnan(proper), np.nan, mean)
            measures[f"mce_{grouping}"] = np.where(np.isnan(proper), np.nan, largest)
        measures["mean_prediction"] = sums.of(kernels.PREDICTED).high / proper
        measures |= {"weight": weight.high, "positives": positives.high}
    return {name: twelve_digits(values) for name, values in measures.items()}


def calibration_errors(groups: Groups) -> tuple[Array, Array]:
    """Compute the expected and the maximum calibration error of columns over their groups."""
    weight = np.where(groups.weight > 0, groups.weight, np.nan)
    with np.errstate(all="ignore"):
        gap = np.where(groups.weight > 0, groups.gap, 0.0)
        return gap.sum(axis=1) / groups.weight.sum(axis=1), np.fmax.reduce(gap / weight, axis=1)


def areas_under_roc(sums: Sums) -> Array:
    """Compute the AUC of columns; NaN where all labels are equal."""
    hits, misses = sums.ranked
    with np.errstate(all="ignore"):
        pairs = 2.0 * hits.high * misses.high
        return np.where(pairs > 0, sums.of(kernels.HIT_PLACEMENTS).high / pairs, np.nan)


def bins_as_table(groups: Groups, weighted: Mask) -> dict[str, Array]:
    """Compute the numbers of groups, shape (columns, groups), by their names in `ReliabilityBin`; NaN if empty.

    weighted : shape (columns,): False if the weights count rows
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


# Results of one column.


def _assessment_of(sums: Sums, bins: int, histogram: Histogram, rows: int | None) -> Assessment:
    proper, weighted = bool(sums.probabilities[0]), _weighted(sums, rows)
    low, high = float(sums.low[0]), float(sums.high[0])
    # Scores that are not probabilities may overflow in the other measures, which are then not used.
    with np.errstate(all="ignore"):
        groups = groups_of(sums)
        values = {name: float(column[0]) for name, column in measures_of_columns(sums, groups, bins).items()}
    reasons, widths = auc_reason(sums), [0.0, *_inner_edges(bins), 1.0]
    if not proper:
        reason = f"not taken, because scores from {low:g} to {high:g} are not probabilities"
        reasons |= dict.fromkeys((name for name in MEASURES if name != "auc"), reason)
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


def auc_reason(sums: Sums) -> dict[str, str]:
    """Give the reason why a column has no AUC, if it has none."""
    hits, misses = sums.ranked
    if hits.high[0] > 0 and misses.high[0] > 0:
        return {}
    return {"auc": f"not defined, because all rows have label {0 if hits.high[0] == 0 else 1}"}


def _weighted(sums: Sums, rows: int | None) -> bool:
    # Whole weights > 0 that add up to the number of rows are all 1.
    return not sums.integral[0] or (rows is not None and bool(sums.of(kernels.WEIGHT).high[0] != rows))


def _reliability(borders: list[float], groups: Groups, weighted: bool) -> tuple[ReliabilityBin, ...]:
    table = bins_as_table(groups, np.array([weighted]))
    with np.errstate(all="ignore"):
        intervals = wilson_intervals(table["frequency"], table["effective_size"])
    table |= dict(zip(("interval_low", "interval_high"), intervals, strict=True))
    table = {name: twelve_digits(column) for name, column in table.items()}
    bins = []
    for i, (lower, upper) in enumerate(pairwise(borders)):
        row: dict[str, Any] = {name: float(column[0, i]) for name, column in table.items()}
        if math.isnan(row["weight"]):
            row = dict.fromkeys(row) | dict.fromkeys(("weight", "positives", "effective_size"), 0.0)
        bins.append(ReliabilityBin(lower=lower, upper=upper, **row))
    return tuple(bins)


def _histogram(edges: list[float], sums: Sums) -> Histogram:
    bins = bins_of(sums, edges)
    return Histogram(
        edges=tuple(edges),
        weight=tuple(twelve_digits(bins.weight[0]).tolist()),
        positives=tuple(twelve_digits(bins.positives[0]).tolist()),
    )
