"""Uncertainty of measures of predictions: error bars, tests of calibration, decompositions, comparisons."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from calibrators.core.arrays import Array
from calibrators.core.double_double import twelve, twelve_digits
from calibrators.core.passes import Pass, share_sweeps
from calibrators.measures import kernels
from calibrators.measures.assessment import Z_95, Assessment, wilson_intervals
from calibrators.measures.decomposition import Decomposition, debiased_squared_error, decompose
from calibrators.measures.engine import MeasureOptions, Merged, Predict, Sums, column_passes
from calibrators.measures.predictions import areas_under_roc, auc_reason, measured_passes
from calibrators.measures.spread import Agreement, Spread, agreement


@dataclass(frozen=True)
class ErrorBars:
    """Error bars of measures of predictions; None where a number does not exist, with the reason in `reasons`.

    Weights count rows: a weight of 2 equals a repeated row.

    Attributes
    ----------
    observed, expected : float >= 0
        Positives, O, and the sum of the probabilities, E.
    ratio, ratio_low, ratio_high : float >= 0
        O / E, and its 95 % interval: Wilson's of O / N over E / N, with N the rows.
    ratio_z : float
        (O - E) / sqrt(V), V the sum of p (1 - p): standard normal if every probability is right.
        These numbers, from `observed` on, describe all rows. If a log contains only a share r of the negatives, each
        counts 1 / r, which adds p**2 (1 - p) (1 / r - 1) to V and reduces the interval's N accordingly.
    spiegelhalter_z : float
        Spiegelhalter's statistic: standard normal if every probability is right.
    score_test, score_test_p : float
        Score test of (a, b) = (0, 1) in logit P = a + b logit p, chi-square with 2 degrees of freedom, and its
        p-value. Rows with p of 0 or 1 are left out.
    left_out : float >= 0
        Number of rows left out of the score test.
    auc, auc_error, auc_low, auc_high : float
        Area under the ROC curve, DeLong's standard error, and 1.96 errors to either side, clipped to [0, 1].

    References
    ----------
    Cox (1958), "Two further applications of a model for binary regression", Biometrika 45, 562-565.
    Spiegelhalter (1986), "Probabilistic prediction in patient management and clinical trials", Statistics in Medicine
    5, 421-433, doi:10.1002/sim.4780050506.
    DeLong, DeLong & Clarke-Pearson (1988), "Comparing the areas under two or more correlated receiver operating
    characteristic curves", Biometrics 44, 837-845, doi:10.2307/2531595.
    """

    observed: float
    expected: float | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    ratio_z: float | None = None
    spiegelhalter_z: float | None = None
    score_test: float | None = None
    score_test_p: float | None = None
    left_out: float | None = None
    auc: float | None = None
    auc_error: float | None = None
    auc_low: float | None = None
    auc_high: float | None = None
    reasons: dict[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """For JSON: finite numbers, strings and None."""
        return asdict(self)


def error_bar_passes(predict: Predict | None = None) -> Generator[Pass, Any, ErrorBars]:
    """Yield the one pass over a score table that `ErrorBars` need, receive its result, return them.

    Parameters
    ----------
    predict : callable, optional
        Applied to the scores first; must not decrease with the score. None: the scores are the predictions; if any
        lies outside [0, 1], only the AUC and its error are computed.

    Raises
    ------
    ValueError
        From the pass, if predict decreases.
    """
    column = yield from column_passes(MeasureOptions(predict))
    return error_bars_of(column.sums)


def area_under_roc(weight: Array, positives: Array) -> tuple[float | None, float | None]:
    """Compute the AUC of groups of tied rows, ascending, and DeLong's standard error, without compiled code.

    The AUC is None if a label has no rows, the error None if a label has at most one row.
    """
    negatives = weight - positives
    hits, misses = float(positives.sum()), float(negatives.sum())
    if not (hits > 0 and misses > 0):
        return None, None
    # For a positive, the share of the negatives below it, ties counting 1/2; for a negative, vice versa.
    below, above = (
        (np.cumsum(counts) - counts / 2) / total for counts, total in ((negatives, misses), (positives, hits))
    )
    auc = float((positives * below).sum()) / hits
    if hits <= 1 or misses <= 1:
        return twelve(auc), None
    variance = float((positives * (below - auc) ** 2).sum()) / (hits * (hits - 1))
    variance += float((negatives * (above - (1 - auc)) ** 2).sum()) / (misses * (misses - 1))
    return twelve(auc), twelve(math.sqrt(variance))


def error_bars_of(sums: Sums, rows: Sums | None = None, *, tests: bool = True) -> ErrorBars:
    """Compute the error bars of one column.

    sums : sums that describe all rows
    rows : for a log of sampled rows, the sums of the sampled rows with the log's odds; None: the same as `sums`
    tests : whether to compute the tests of single predictions
    """
    numbers = {name: float(values[0]) for name, values in error_bars_of_columns(sums, rows or sums).items()}
    values: dict[str, Any] = {name: None if math.isnan(value) else value for name, value in numbers.items()}
    values["reasons"] = reasons = _reasons(sums, values)
    if not tests and values["expected"] is not None:
        values |= dict.fromkeys(("spiegelhalter_z", "score_test", "score_test_p", "left_out"))
        reason = "not computed for predictions before calibration"
        reasons |= dict.fromkeys(("spiegelhalter_z", "score_test"), reason)
    return ErrorBars(**values)


def _reasons(sums: Sums, values: dict[str, Any]) -> dict[str, str]:
    reasons = auc_reason(sums)
    if not reasons and values["auc_error"] is None:
        reasons["auc_error"] = "not defined, because one of the labels has one row only"
    missing = {
        "ratio": "not defined, because every probability is 0",
        "ratio_z": "not defined, because every probability is 0 or 1",
        "spiegelhalter_z": "not defined, because every probability is 0, 1/2 or 1",
        "score_test": "not defined, because it needs two different probabilities between 0 and 1",
    }
    if values["expected"] is None:
        missing = dict.fromkeys(("expected", *missing), "not taken, because the scores are not probabilities")
    return reasons | {name: reason for name, reason in missing.items() if values[name] is None}


def error_bars_of_columns(sums: Sums, rows: Sums) -> dict[str, Array]:
    """Compute the numbers of `ErrorBars` of columns, by name; NaN where one does not exist. See `error_bars_of`."""
    proper = np.where(sums.probabilities, 1.0, np.nan)
    with np.errstate(all="ignore"):
        numbers = _calibration_in_the_large(sums, proper) | _tests(rows, proper) | _auc(rows)
    return {name: twelve_digits(values) for name, values in numbers.items()}


def _auc(sums: Sums) -> dict[str, Array]:
    hits, misses = sums.ranked
    defined = (hits.high > 0) & (misses.high > 0)
    auc = areas_under_roc(sums)
    variance: Any = 0.0
    for rows, other, linear, quadratic in (
        (hits, misses, kernels.HIT_PLACEMENTS, kernels.HIT_SQUARES),
        (misses, hits, kernels.MISS_PLACEMENTS, kernels.MISS_SQUARES),
    ):
        total = sums.of(linear)
        spread = (rows * sums.of(quadratic) - total * total).high / (2.0 * other.high * rows.high) ** 2
        # The number of rows minus one, in the scale of the ranking.
        variance += np.maximum(spread, 0.0) / np.where(rows.high > sums.scale, rows.high - sums.scale, np.nan)
    error = np.where(defined, np.sqrt(variance * sums.scale), np.nan)
    low, high = np.maximum(0.0, auc - Z_95 * error), np.minimum(1.0, auc + Z_95 * error)
    return {"auc": auc, "auc_error": error, "auc_low": low, "auc_high": high}


def _calibration_in_the_large(sums: Sums, proper: Array) -> dict[str, Array]:
    observed, weight = sums.of(kernels.POSITIVES).high, sums.of(kernels.WEIGHT).high
    expected, variance = sums.of(kernels.PREDICTED).high * proper, sums.of(kernels.VARIANCE).high * proper
    positive_expected = np.where(expected > 0, expected, np.nan)
    # A sample of the negatives carries as much information as fewer unsampled rows.
    information_share = np.where(variance > 0, sums.of(kernels.INFORMATION).high / variance, 1.0)
    low, high = wilson_intervals(observed / weight, weight * information_share)
    return {
        "observed": observed,
        "expected": expected,
        "ratio": observed / positive_expected,
        "ratio_low": low * weight / positive_expected,
        "ratio_high": high * weight / positive_expected,
        "ratio_z": sums.of(kernels.RESIDUAL).high / np.sqrt(np.where(variance > 0, variance, np.nan)),
    }


def _tests(sums: Sums, proper: Array) -> dict[str, Array]:
    spread = sums.of(kernels.SIGNED_VARIANCE).high * proper
    # In units of the total weight, whose third power may overflow.
    unit = np.ldexp(1.0, -np.frexp(sums.of(kernels.WEIGHT).high)[1])
    terms = (kernels.INNER, kernels.SLOPE, kernels.INFORMATION, kernels.CROSS, kernels.SLOPE_INFORMATION)
    u, along, a, b, c = (sums.of(term) * unit for term in terms)
    product = a * c
    determinant = (product - b * b).high
    # Two distinct probabilities that differ by more than rounding.
    regular = (a.high > 0) & (determinant > 1e-12 * product.high)
    test = (u * u * c - u * along * b * 2.0 + along * along * a).high / np.where(regular, determinant, np.nan)
    test = np.maximum(test, 0.0) / unit * proper
    return {
        "spiegelhalter_z": sums.of(kernels.SIGNED).high / np.sqrt(np.where(spread > 0, spread, np.nan)),
        "score_test": test,
        "score_test_p": np.exp(-test / 2),
        "left_out": sums.of(kernels.LEFT_OUT).high * proper,
    }


@dataclass(frozen=True)
class Certainty:
    """Decompositions of the losses and agreement with outcomes of one column of predictions.

    Attributes
    ----------
    decomposition : Decomposition or None
        Decomposition of the Brier score and the log loss, its size under chance alone, and the reliability curve with
        its band; None for scores that are not probabilities, and for sampled logs.
    debiased_squared_error : float or None
        Mean squared calibration error over equal-count groups minus its bias by chance; may be negative.
    agreement : Agreement or None
        Cox's line, ICI and smooth calibration error; None for scores that are not probabilities.
    """

    decomposition: Decomposition | None
    debiased_squared_error: float | None
    agreement: Agreement | None = None

    @classmethod
    def of(cls, column: Merged, assessment: Assessment, rate: float = 1.0) -> Certainty:
        """Compute it from a column of predictions and its assessment."""
        spread = None if column.cells is None else Spread.of(column.cells)
        decomposition = None
        if column.blocks is not None and spread is not None:
            predictions = np.column_stack([spread.p, spread.weight])
            decomposition = decompose(column.blocks, predictions, assessment)
        outcome_agreement = None if spread is None else agreement(spread, rate)
        return cls(decomposition, debiased_squared_error(assessment.by_frequency), outcome_agreement)


def certainty_passes(
    predict: Predict | None,
    bins: int = 10,
    histogram_bins: int = 50,
    rows: int | None = None,
    parts: Sequence[tuple[float, Array]] = (),
    *,
    rate: float = 1.0,
    tests: bool = True,
) -> Generator[Pass, Any, tuple[Assessment, ErrorBars, Certainty]]:
    """Yield the passes that measure one column of predictions, receive their results, return all measures.

    predict, bins, histogram_bins, rows, parts, rate : see `predictions.assessment_passes`
    tests : whether to compute the tests of single predictions
    """
    if rate == 1.0:
        options = MeasureOptions(predict, blocks=True, cells=True)
        assessed, column = yield from measured_passes(options, bins, histogram_bins, rows, parts)
        return assessed, error_bars_of(column.sums, tests=tests), Certainty.of(column, assessed)
    # Measures describe all rows, tests use the sampled rows.
    all_rows = measured_passes(MeasureOptions(predict, rate=rate), bins, histogram_bins, rows)
    sampled = column_passes(MeasureOptions(predict, odds=rate, cells=True))
    (assessed, column), sampled_column = yield from share_sweeps(all_rows, sampled)
    return (
        assessed,
        error_bars_of(column.sums, sampled_column.sums, tests=tests),
        Certainty.of(sampled_column, assessed, rate),
    )
