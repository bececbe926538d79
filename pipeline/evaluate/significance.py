"""Conclusions from an evaluation: the direction and size of a table's error, and whether chance explains it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibrators.core.arrays import Array
from calibrators.measures.assessment import Assessment, ReliabilityBin, wilson_intervals
from calibrators.measures.certainty import ErrorBars
from calibrators.measures.comparison import Comparison
from calibrators.measures.decomposition import chance_error
from pipeline.schema import RATIOS

SURE = 3.0
"""Number of standard errors from which on a difference is beyond chance: chance exceeds it once in 370 times."""
UNSURE = 2.0
"""Number of standard errors up to which a difference may be chance."""

HIGHER_IS_BETTER = ("auc", "accuracy")
"""Measures with a required minimum; the absolute values of all others have a required maximum."""
FURTHER_LIMITS = ("calibration_in_the_large", "log_ratio", "ratio_z", "spiegelhalter_z")
"""Values with limits in addition to the measures; see `required_values`."""


@dataclass(frozen=True)
class Conclusion:
    """Conclusion about a table.

    Attributes
    ----------
    headline : sentence about all rows together
    detail : sentence about groups of rows
    kind : "right", "low" or "high" (all rows together), "off" (in groups), or "unknown"
    beyond_chance : whether the error is beyond chance
    """

    headline: str
    detail: str
    kind: str
    beyond_chance: bool

    @property
    def sentence(self) -> str:
        """Headline and detail."""
        return f"{self.headline} {self.detail}".strip()


def judge(after: Assessment, bars: ErrorBars | None) -> Conclusion:
    """Judge calibrated predictions: direction and size of the error of all rows together, then in groups."""
    if bars is None or bars.expected is None or not after.probabilities or not after.weight:
        return Conclusion("The predictions are not probabilities.", "", "unknown", False)
    predicted, observed = bars.expected / after.weight, bars.observed / after.weight
    z = bars.ratio_z
    in_groups, beyond = _in_groups(after)
    if z is None:
        differs = not math.isclose(predicted, observed, rel_tol=1e-12)
        headline = f"The table predicts {_percent(predicted)}; {_percent(observed)} were observed."
        return Conclusion(headline, "", "off" if differs else "right", differs)
    if abs(z) < UNSURE:
        share = f"{_percent(predicted)} predicted, {_percent(observed)} observed"
        headline = f"The table is right on average: {share} (within chance, {_z(z)})."
        return Conclusion(headline, in_groups, "off" if beyond else "right", beyond)
    direction = "low" if z > 0 else "high"
    size = (
        f"The table predicts {percentage_points(abs(observed - predicted))} points too {direction}: "
        f"{_percent(predicted)} against {_percent(observed)} observed"
    )
    if abs(z) < SURE:
        headline = f"{size} (chance rarely explains this, {_z(z)})."
        return Conclusion(headline, in_groups, "off" if beyond else "right", beyond)
    return Conclusion(f"{size} (beyond chance, {_z(z)}).", in_groups, direction, True)


def _in_groups(after: Assessment) -> tuple[str, bool]:
    """Describe the error in groups; also return whether it is beyond chance."""
    error = after.measures.ece_frequency
    if error is None:
        return "", False
    chance = chance_error(after.by_frequency)
    text = (
        f"In groups of similar predictions its error is {percentage_points(error)} points on average; "
        f"chance alone gives about {percentage_points(chance)}"
    )
    beyond = excess_error(after.by_frequency) > 0
    return f"{text}{': beyond chance' if beyond else ''}.", beyond


def excess_error(groups: Sequence[ReliabilityBin]) -> float:
    """Compute the part of the calibration error that chance cannot explain; see `beyond_chance`."""
    filled = [
        (g.weight, g.frequency, g.mean_prediction, g.weight / g.effective_size)
        for g in groups
        if g.frequency is not None and g.mean_prediction is not None
    ]
    if not filled:
        return 0.0
    gap = math.fsum(w * abs(f - p) for w, f, p, _ in filled)
    variance = math.fsum(w * row * p * (1 - p) for w, _, p, row in filled)
    excess = beyond_chance(gap, variance, max(row for *_, row in filled), len(groups))
    return float(excess) / math.fsum(w for w, *_ in filled)


def comparison_sentence(comparison: Comparison, old: str, new: str) -> str:
    """Compare two predictions of the same rows in a sentence."""
    loss = comparison.log_loss
    if loss.difference is None or loss.error is None:
        infinite = [
            name for name, rows in ((old, comparison.infinite_old), (new, comparison.infinite_new)) if rows
        ]
        return (
            f"On the same rows the log loss of {' and '.join(infinite)} is infinite: a label was given probability 0. "
            f"The Brier score of {new} is {comparison.brier.new:.5f}, of {old} {comparison.brier.old:.5f}."
        )
    direction = "lower" if loss.difference < 0 else "higher"
    text = (
        f"On the same rows the log loss of {new} is {abs(loss.difference):.5f} {direction} than that of {old} "
        f"(standard error {loss.error:.5f})"
    )
    if loss.difference == 0:
        return f"On the same rows {new} and {old} have the same log loss."
    return f"{text}: {chance_text(loss.difference, loss.error)}."


def chance_text(difference: float, error: float) -> str:
    """Say whether chance explains a difference. error : its standard error."""
    return "beyond chance" if abs(difference) > UNSURE * error else "chance may explain it"


def required_values(after: Assessment, bars: ErrorBars | None) -> dict[str, float | None]:
    """Return all values that can have limits: the measures and `FURTHER_LIMITS`.

    calibration_in_the_large is the mean prediction - the observed share, log_ratio is log(observed / expected), and
    ratio_z and spiegelhalter_z are those of `ErrorBars`.
    """
    measures = {k: v for k, v in vars(after.measures).items() if k != "reasons"}
    further: dict[str, float | None] = dict.fromkeys(FURTHER_LIMITS)
    if bars is not None and bars.expected is not None:
        further["calibration_in_the_large"] = (bars.expected - bars.observed) / after.weight
        further["ratio_z"], further["spiegelhalter_z"] = bars.ratio_z, bars.spiegelhalter_z
        if bars.ratio is not None:
            further["log_ratio"] = math.log(bars.ratio) if bars.ratio > 0 else -math.inf
    return measures | further


def unmet_requirements(required: Mapping[str, float], values: Mapping[str, float | None]) -> list[str]:
    """Return a message for each unmet requirement."""
    messages = []
    for name, limit in required.items():
        value = values[name]
        least = name in HIGHER_IS_BETTER
        expected = f"{name}: expected at {'least' if least else 'most'} {limit:g}"
        if value is None:
            messages.append(f"{expected}, found none")
        elif math.isnan(value) or (value < limit if least else abs(value) > limit):
            messages.append(f"{expected}, found {value:.6g}")
    return messages


def significance_facts(after: Assessment, bars: ErrorBars | None) -> dict[str, Any]:
    """Return the verdict as a dict for JSON."""
    verdict = judge(after, bars)
    return {
        "verdict": verdict.sentence,
        "kind": verdict.kind,
        "beyond_chance": verdict.beyond_chance,
        "chance_error": chance_error(after.by_frequency) if after.by_frequency else None,
        "error_bars": None if bars is None else bars.as_dict(),
    }


def _z(z: float) -> str:
    text = f"{z:.3g}" if abs(z) < 1000 else f"{z:.0f}"
    return f"z = {text.replace('-', '−')}"


def percentage_points(share: float) -> str:
    """Format a fraction in percentage points, with at least two significant digits."""
    percent = 100 * share
    if percent < 5e-9 or percent >= 10:
        return f"{percent:.1f}"
    return f"{percent:.{min(8, 1 - math.floor(math.log10(percent)))}f}"


def _percent(share: float) -> str:
    return f"{percentage_points(share)} %"


# The part of calibration errors that chance explains.

Numbers = Array | float

DOUBT = 0.05
"""Probability that any segment has an error beyond chance if all segments are calibrated."""


def beyond_chance(gap: Numbers, variance: Numbers, largest: Numbers, groups: int) -> Array:
    """Compute the part of summed calibration gaps that chance cannot explain.

    Parameters
    ----------
    gap : float64 array, shape (segments,), or a number
        Sum over the segment's groups of |positives - sum of p|.
    variance : as gap
        Variance of the segment's positives if its probabilities are right: the sum of p * (1 - p).
    largest : as gap
        Largest weight of a row of the segment.
    groups : int
        Largest number of groups of a segment.

    Returns
    -------
    float64 array, shape (segments,), >= 0; NaN where gap is NaN.
        Excess of the gap over a bound. If all segments are calibrated, the probability that any gap exceeds its bound
        is at most `DOUBT`. Predictions and groups are treated as fixed and labels as independent, so rows that the
        maps were fitted to look better than they are.

    Notes
    -----
    The sum of absolute gaps is the largest of the 2**groups sums with signs. Each of these is a sum of independent
    terms with mean 0 and at most `largest`, so Bernstein's inequality bounds it; a union bound covers all sums of all
    segments. Unlike a normal approximation, the bound holds for rare positives too.

    References
    ----------
    Boucheron, Lugosi & Massart (2013), "Concentration inequalities", theorem 2.10,
    doi:10.1093/acprof:oso/9780199535255.001.0001.
    """
    c = groups * math.log(2) + math.log(max(1, np.size(gap)) / DOUBT)
    bound = np.multiply(largest, c / 3) + np.sqrt(
        np.multiply(largest, c / 3) ** 2 + np.multiply(variance, 2 * c)
    )
    return np.asarray(np.where(np.isnan(gap), np.nan, np.maximum(gap - bound, 0.0)))


def observed_over_expected(
    weight: Array,
    positives: Array,
    mean: Array,
    variance: Array,
) -> dict[str, Array]:
    """Compute observed over expected positives of segments; see `calibrators.measures.certainty.ErrorBars`.

    Parameters
    ----------
    weight, positives : float64 arrays, shape (segments,): number of rows and of rows with label 1; weights count rows
    mean : float64 array, shape (segments,): mean probability of the segment's rows
    variance : as in `beyond_chance`

    Returns
    -------
    ratio, ratio_low, ratio_high : O / E and Wilson's 95 % interval; NaN if E is 0
    ratio_z : (O - E) / sqrt(V); the variance V is computed from groups, which bound it from above, so |z| is not too
        large
    """
    frequency = positives / weight
    low, high = wilson_intervals(frequency, weight)
    # Divide by NaN instead of 0.
    expected, error = np.where(mean > 0, mean, np.nan), np.sqrt(np.where(variance > 0, variance, np.nan))
    values = [*(number / expected for number in (frequency, low, high)), (positives - weight * mean) / error]
    return dict(zip(RATIOS, values, strict=True))
