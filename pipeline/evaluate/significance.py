"""Conclusions from an evaluation: the direction and size of a table's error, and whether chance explains it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from calibrators.measures.assessment import Assessment, ReliabilityBin, wilson_intervals
from calibrators.measures.certainty import ErrorBars
from calibrators.measures.comparison import Comparison
from calibrators.measures.decomposition import chance_error
from pipeline.schema import RATIOS

SURE = 3.0
"""Standard errors beyond which chance is no explanation: it goes there once in 370 times."""
UNSURE = 2.0

HIGHER_IS_BETTER = ("auc", "accuracy")
"""Measures that must be at least what is required; of all others the absolute value may be at most that."""
OWN_LIMITS = ("calibration_in_the_large", "log_ratio", "ratio_z", "spiegelhalter_z")
"""Limits that can be required beside the measures; see `required_values`."""


@dataclass(frozen=True)
class Verdict:
    """Conclusion about a table.

    Attributes
    ----------
    headline, detail : sentences, of all rows together and of groups
    kind : "right", "low", "high" (all in all), "off" (in groups), or "unknown"
    beyond_chance : whether chance is no explanation
    """

    headline: str
    detail: str
    kind: str
    beyond_chance: bool

    @property
    def sentence(self) -> str:
        """All of it."""
        return f"{self.headline} {self.detail}".strip()


def judge(after: Assessment, bars: ErrorBars | None) -> Verdict:
    """Conclude from calibrated predictions: direction and size overall, then in groups."""
    if bars is None or bars.expected is None or not after.probabilities or not after.weight:
        return Verdict("The predictions are not probabilities.", "", "unknown", False)
    predicted, observed = bars.expected / after.weight, bars.observed / after.weight
    z = bars.ratio_z
    in_groups, beyond = _in_groups(after)
    if z is None:
        differs = not math.isclose(predicted, observed, rel_tol=1e-12)
        said = f"The table predicts {_percent(predicted)}; {_percent(observed)} were observed."
        return Verdict(said, "", "off" if differs else "right", differs)
    if abs(z) < UNSURE:
        share = f"{_percent(predicted)} predicted, {_percent(observed)} observed"
        large = f"The table is right on average: {share} (within chance, {_z(z)})."
        return Verdict(large, in_groups, "off" if beyond else "right", beyond)
    way = "low" if z > 0 else "high"
    size = (
        f"The table predicts {points(abs(observed - predicted))} points too {way}: {_percent(predicted)} against "
        f"{_percent(observed)} observed"
    )
    if abs(z) < SURE:
        said = f"{size} (chance rarely explains this, {_z(z)})."
        return Verdict(said, in_groups, "off" if beyond else "right", beyond)
    return Verdict(f"{size} (beyond chance, {_z(z)}).", in_groups, way, True)


def _in_groups(after: Assessment) -> tuple[str, bool]:
    """Describe the error in groups, and tell whether it is beyond chance."""
    error = after.measures.ece_frequency
    if error is None:
        return "", False
    chance = chance_error(after.by_frequency)
    text = (
        f"In groups of similar predictions its error is {points(error)} points on average; chance alone gives "
        f"about {points(chance)}"
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


def compared(comparison: Comparison, old: str, new: str) -> str:
    """Two predictions of the same rows, in a sentence."""
    loss = comparison.log_loss
    if loss.difference is None or loss.error is None:
        infinite = [
            name for name, rows in ((old, comparison.infinite_old), (new, comparison.infinite_new)) if rows
        ]
        return (
            f"On the same rows the log loss of {' and '.join(infinite)} is infinite: a label was given probability 0. "
            f"The Brier score of {new} is {comparison.brier.new:.5f}, of {old} {comparison.brier.old:.5f}."
        )
    way = "lower" if loss.difference < 0 else "higher"
    text = (
        f"On the same rows the log loss of {new} is {abs(loss.difference):.5f} {way} than that of {old} (standard "
        f"error {loss.error:.5f})"
    )
    if loss.difference == 0:
        return f"On the same rows {new} and {old} have the same log loss."
    sure = loss.error == 0 or abs(loss.difference) >= SURE * loss.error
    return f"{text}: {'beyond chance' if sure else 'chance may explain it'}."


def required_values(after: Assessment, bars: ErrorBars | None) -> dict[str, float | None]:
    """All that can be required: the measures, and of error bars.

    calibration_in_the_large : mean prediction - observed share. log_ratio : log(observed / expected). ratio_z,
    spiegelhalter_z : as in `ErrorBars`.
    """
    measures = {k: v for k, v in vars(after.measures).items() if k != "reasons"}
    own: dict[str, float | None] = dict.fromkeys(OWN_LIMITS)
    if bars is not None and bars.expected is not None:
        own["calibration_in_the_large"] = (bars.expected - bars.observed) / after.weight
        own["ratio_z"], own["spiegelhalter_z"] = bars.ratio_z, bars.spiegelhalter_z
        if bars.ratio is not None:
            own["log_ratio"] = math.log(bars.ratio) if bars.ratio > 0 else -math.inf
    return measures | own


def failed(required: Mapping[str, float], found: Mapping[str, float | None]) -> list[str]:
    """List the unmet requirements in words."""
    said = []
    for name, limit in required.items():
        value = found[name]
        least = name in HIGHER_IS_BETTER
        wanted = f"{name}: expected at {'least' if least else 'most'} {limit:g}"
        if value is None:
            said.append(f"{wanted}, found none")
        elif math.isnan(value) or (value < limit if least else abs(value) > limit):
            said.append(f"{wanted}, found {value:.6g}")
    return said


def significance_facts(after: Assessment, bars: ErrorBars | None) -> dict[str, Any]:
    """The judgement for machines."""
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


def points(share: float) -> str:
    """A share of 1 in percentage points, with two significant digits at least."""
    percent = 100 * share
    if percent < 5e-9 or percent >= 10:
        return f"{percent:.1f}"
    return f"{percent:.{min(8, 1 - math.floor(math.log10(percent)))}f}"


def _percent(share: float) -> str:
    return f"{points(share)} %"


# How much of calibration errors chance explains.

Numbers = npt.NDArray[np.float64] | float

DOUBT = 0.05
"""The chance that any segment at all, each of them calibrated, has an error beyond chance."""


def beyond_chance(gap: Numbers, variance: Numbers, largest: Numbers, groups: int) -> npt.NDArray[np.float64]:
    """Compute the part of summed calibration gaps that chance cannot explain.

    Parameters
    ----------
    gap : float64 array, shape (segments,), or a number
        Of each segment the sum over its groups of |positives - sum of p|.
    variance : of each, of its sum of the labels if every probability is right: the sum of p * (1 - p).
    largest : of each, the largest weight of a row.
    groups : of a segment, at most

    Returns
    -------
    float64 array, shape (segments,), >= 0; NaN where gap is.
        What lies above the bound that the gaps of calibrated segments pass, any of them, with a chance of `DOUBT` at
        most. The predictions and the groups are taken as given, the labels as independent: rows that the maps were
        fitted to look better than they are.

    Notes
    -----
    The sum of absolute gaps is the largest of the 2**groups sums with signs, and each of them is a sum of independent
    terms of mean 0, none above `largest`: Bernstein's inequality, and the union of them and of all segments. It holds
    for rare positives too, where a normal approximation does not.

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
    weight: npt.NDArray[np.float64],
    positives: npt.NDArray[np.float64],
    mean: npt.NDArray[np.float64],
    variance: npt.NDArray[np.float64],
) -> dict[str, npt.NDArray[np.float64]]:
    """Observed over expected positives of segments, as `calibrators.measures.certainty.ErrorBars` has them of
    all rows.

    Parameters
    ----------
    weight, positives : float64 arrays, shape (segments,): of the rows. Weights count rows.
    mean : of each, of its probabilities. variance : as in `beyond_chance`

    Returns
    -------
    ratio, ratio_low, ratio_high : O / E and Wilson's 95 % interval; NaN where nothing was expected
    ratio_z : (O - E) / sqrt(V), V the variance, which groups of rows bound from above: so it is never too far from 0
    """
    frequency = positives / weight
    low, high = wilson_intervals(frequency, weight)
    # NaN where there is no number, or one of 0.
    expected, error = np.where(mean > 0, mean, np.nan), np.sqrt(np.where(variance > 0, variance, np.nan))
    found = [*(number / expected for number in (frequency, low, high)), (positives - weight * mean) / error]
    return dict(zip(RATIOS, found, strict=True))
