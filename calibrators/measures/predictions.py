"""Measures of predictions, in memory and in passes over the parts of a score table.

Everything is computed from sums that are exact until they are rounded once, so the numbers do not depend on the
order of the observations, on how they were cut into parts, or on whether repeated rows were added up.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Generator, Sequence
from fractions import Fraction
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from calibrators.arithmetic import exact_totals
from calibrators.arithmetic.exact_totals import NOTHING, Predict, Sums, Totals
from calibrators.arithmetic.ordering import ascending
from calibrators.arithmetic.passes import Array, Pass, Points, run_in_memory, run_passes
from calibrators.measures.assessment import (
    MEASURES,
    Assessment,
    Histogram,
    Measures,
    ReliabilityBin,
    wilson_interval,
)

if TYPE_CHECKING:
    from calibrators.measures.certainty import Certainty, certainty, compare, error_bars
    from calibrators.measures.comparison import Comparison
    from calibrators.measures.decomposition import Decomposition
    from calibrators.measures.error_bars import ErrorBars
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
    "ErrorBars": "error_bars",
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
    passes = assessment_passes(bins=bins, histogram_bins=histogram_bins, rows=rows)
    found: Assessment = run_in_memory(passes, points)
    return found


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


def side_by_side(*several: Generator[Pass, Any, Any]) -> Generator[Pass, Any, tuple[Any, ...]]:
    """Carry out several passes in the same sweeps over the same parts; return what each returns, in order."""
    results: list[Any] = [None] * len(several)
    answers: dict[int, Any] = dict.fromkeys(range(len(several)))
    while True:
        requests = {}
        for i, answer in answers.items():
            try:
                requests[i] = several[i].send(answer)
            except StopIteration as stop:
                results[i] = stop.value
        if not requests:
            return tuple(results)
        together = list(requests.values())
        needed = [request.only for request in together]
        states = yield Pass(
            chunk=partial(_each, [request.chunk for request in together]),
            combine=_transposed,
            only=None
            if None in needed
            else frozenset().union(*(only for only in needed if only is not None)),
        )
        columns = states or [[]] * len(together)
        answers = {
            i: request.combine(list(column))
            for (i, request), column in zip(requests.items(), columns, strict=True)
        }


def _each(chunks: list[Callable[[Points], Any]], points: Points) -> list[Any]:
    return [chunk(points) for chunk in chunks]


def _transposed(states: list[list[Any]]) -> list[tuple[Any, ...]]:
    return list(zip(*states, strict=True))


def assessment_passes(
    predict: Predict | None = None,
    *,
    bins: int = 10,
    histogram_bins: int = 50,
    rows: int | None = None,
    parts: Sequence[tuple[float, Array]] = (),
) -> AssessmentPasses:
    """Yield the passes over a score table that an `Assessment` needs, receive their results, return it.

    Parameters
    ----------
    predict : callable, optional
        Applied to the scores first; must not decrease with the score (`CalibrationMap.predict` of a monotone
        map). None: the scores are the predictions.
    bins, histogram_bins, rows : see `assess`
    parts : sequence of (float, array), optional
        Where they are known: of each part the first score and the exact weight, an expansion (see
        `_kernels.sums`). They save a pass where all weights are whole numbers; no number depends on them.

    Raises
    ------
    ValueError
        For bins < 1; from a pass, if predict decreases.

    Notes
    -----
    Two passes, or one with `parts`. The second needs the few parts in which an equal-frequency group ends (or, for
    scores that are not probabilities, all parts for the histogram over their range). State: some hundred sums a part.
    """
    for name, number in (("bins", bins), ("histogram_bins", histogram_bins)):
        if number < 1:
            raise ValueError(f"{name}: expected a whole number >= 1, found {number}")
    edges = np.unique(np.concatenate([_inner(bins), _inner(histogram_bins), [THRESHOLD]]))
    expected = exact_totals.expected_targets(parts, bins) if parts else None
    totals = yield Pass(partial(exact_totals.first_chunk, predict, edges, expected), exact_totals.add_up)
    if not totals.probabilities:
        edges = _edges_over(totals.lowest, totals.highest, histogram_bins)
        sums = yield Pass(partial(exact_totals.histogram_chunk, edges[1:-1]), exact_totals.add_sums)
        return _assess_scores(totals, _histogram(edges, sums), rows)
    targets = exact_totals.targets_of(totals, bins)
    if expected is not None and exact_totals.same_targets(expected, targets):
        found = exact_totals.not_none(totals.ends)
    else:
        found = yield Pass(
            partial(exact_totals.second_chunk, predict, targets),
            exact_totals.not_none,
            only=frozenset(targets),
        )
    return _assess_probabilities(totals, edges, found, (bins, histogram_bins), rows)


def _inner(bins: int) -> Array:
    """Edges of equal-width bins of [0, 1] but 0 and 1: the doubles nearest to i / bins."""
    return np.arange(1, bins) / bins


def _edges_over(low: float, high: float, bins: int) -> Array:
    if low == high:
        low, high = low - max(0.5, abs(low) / 2), high + max(0.5, abs(high) / 2)
    t = np.arange(bins + 1) / bins
    # Not low + t * (high - low): the difference of two large doubles may be infinite.
    return np.maximum.accumulate(np.clip(low * (1 - t) + high * t, low, high))


# From sums to results.


def _assess_probabilities(
    totals: Totals, edges: Array, found: list[exact_totals.Ends], sizes: tuple[int, int], rows: int | None
) -> Assessment:
    bins, histogram_bins = sizes
    weighted = _weighted(totals, rows)
    ends, groups = exact_totals.groups_of(totals, found)
    borders = [totals.lowest, *ends, totals.highest]
    widths = np.concatenate([[0.0], _inner(bins), [1.0]])
    by_width = _regroup(edges, totals.segments, widths)
    fine = np.concatenate([[0.0], _inner(histogram_bins), [1.0]])
    return Assessment(
        weight=float(totals.total.weight),
        positives=float(totals.total.positives),
        weighted=weighted,
        lowest=totals.lowest,
        highest=totals.highest,
        mean_prediction=float(totals.total.predicted / totals.total.weight),
        measures=_measures(totals, edges, groups, by_width),
        by_width=_reliability(widths.tolist(), by_width, weighted),
        by_frequency=_reliability(borders, groups, weighted),
        histogram=_histogram(fine, _regroup(edges, totals.segments, fine)),
    )


def _measures(totals: Totals, edges: Array, groups: list[Sums], by_width: list[Sums]) -> Measures:
    weight = totals.total.weight
    below, above = _regroup(edges, totals.segments, np.array([0.0, THRESHOLD, 1.0]))
    brier = float(totals.squared / weight)
    auc, reasons = _auc(totals)
    if totals.infinite:
        reasons["log_loss"] = (
            f"infinite, because rows of weight {float(totals.infinite):g} have a label that was given probability 0"
        )
    ece_frequency, mce_frequency = calibration_errors(groups)
    ece_width, mce_width = calibration_errors(by_width)
    return Measures(
        auc=auc,
        accuracy=float((below.weight - below.positives + above.positives) / weight),
        brier=brier,
        rmse=brier**0.5,
        log_loss=float("inf") if totals.infinite else float(totals.logs / weight),
        ece_frequency=ece_frequency,
        mce_frequency=mce_frequency,
        ece_width=ece_width,
        mce_width=mce_width,
        reasons=reasons,
    )


def _auc(totals: Totals) -> tuple[float | None, dict[str, str]]:
    auc = area_under_roc(totals.rank, totals.total.weight, totals.total.positives)
    label = 0 if totals.total.positives == 0 else 1
    return auc, {} if auc is not None else {"auc": f"not defined, because all rows have label {label}"}


def _assess_scores(totals: Totals, histogram: Histogram, rows: int | None) -> Assessment:
    auc, reasons = _auc(totals)
    why = f"not taken, because scores from {totals.lowest:g} to {totals.highest:g} are not probabilities"
    reasons.update((name, why) for name in MEASURES if name != "auc")
    return Assessment(
        weight=float(totals.total.weight),
        positives=float(totals.total.positives),
        weighted=_weighted(totals, rows),
        lowest=totals.lowest,
        highest=totals.highest,
        mean_prediction=None,
        measures=Measures(auc=auc, reasons=reasons),
        by_width=(),
        by_frequency=(),
        histogram=histogram,
    )


def _weighted(totals: Totals, rows: int | None) -> bool:
    # Whole weights > 0 that add up to the number of rows are all 1.
    return not totals.whole or (rows is not None and totals.total.weight != rows)


def _regroup(edges: Array, segments: list[Sums], borders: Array) -> list[Sums]:
    """Sums of the segments between consecutive borders, each of which but the outer ones is an edge."""
    cuts = [0, *(np.searchsorted(edges, borders[1:-1]) + 1).tolist(), len(segments)]
    out = []
    for start, stop in pairwise(cuts):
        sums = NOTHING
        for segment in segments[start:stop]:
            sums = sums.plus(segment)
        out.append(sums)
    return out


def _reliability(borders: list[float], groups: list[Sums], weighted: bool) -> tuple[ReliabilityBin, ...]:
    return tuple(
        reliability_bin(low, high, sums, weighted=weighted)
        for (low, high), sums in zip(pairwise(borders), groups, strict=True)
    )


def _histogram(edges: Array, sums: list[Sums]) -> Histogram:
    return Histogram(
        edges=tuple(edges.tolist()),
        weight=tuple(float(group.weight) for group in sums),
        positives=tuple(float(group.positives) for group in sums),
    )


def reliability_bin(lower: float, upper: float, sums: Sums, *, weighted: bool) -> ReliabilityBin:
    """A bin of the reliability table from its sums."""
    if sums.weight == 0:
        return ReliabilityBin(lower, upper, 0.0, 0.0, None, None, 0.0, None, None)
    frequency = float(sums.positives / sums.weight)
    size = float(sums.weight**2 / sums.squares if weighted else sums.weight)
    low, high = wilson_interval(frequency, size)
    return ReliabilityBin(
        lower=lower,
        upper=upper,
        weight=float(sums.weight),
        positives=float(sums.positives),
        mean_prediction=float(sums.predicted / sums.weight),
        frequency=frequency,
        effective_size=size,
        interval_low=low,
        interval_high=high,
    )


def calibration_errors(groups: Sequence[Sums]) -> tuple[float, float]:
    """Expected and maximum calibration error over groups."""
    filled = [group for group in groups if group.weight > 0]
    gaps = [abs(group.positives - group.predicted) for group in filled]
    total = sum((group.weight for group in filled), Fraction(0))
    largest = max(gap / group.weight for gap, group in zip(gaps, filled, strict=True))
    return float(sum(gaps, Fraction(0)) / total), float(largest)


def area_under_roc(rank_sum: Fraction, weight: Fraction, positives: Fraction) -> float | None:
    """AUC from the sum over ties of positives * (2 * weight below + weight of the tie); None for one class.

    The sum counts every pair of a positive with anything not above it, twice where below; among positives alone
    that is positives**2.
    """
    pairs = 2 * positives * (weight - positives)
    return float((rank_sum - positives**2) / pairs) if pairs else None
