"""Types of the measures of predictions, and the decision threshold."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from calibrators.core.arrays import Array
from calibrators.core.passes import collapse

Z_95 = 1.959963984540054
"""The 97.5 % point of the standard normal distribution."""


@dataclass(frozen=True)
class Measures:
    """Measures of predictions; None where a measure does not exist, with the reason in `reasons`.

    Attributes
    ----------
    auc : float in [0, 1]
        Area under the ROC curve; ties between a positive and a negative count 1/2. Needs both classes.
    accuracy : float in [0, 1]
        Share of the weight whose label is predicted; a probability >= 0.5 predicts 1.
    brier, rmse : float in [0, 1]
        Mean squared difference between probability and label, and its root.
    log_loss : float >= 0
        Mean of -log of the probability given to the label, natural logarithm. Not clipped: infinite when a
        label was given probability 0.
    ece_frequency, mce_frequency : float in [0, 1]
        Expected and maximum calibration error over equal-frequency groups (`Assessment.by_frequency`): mean
        and maximum of |frequency of positives - mean probability|, the mean weighted by the groups' weights.
    ece_width, mce_width : float in [0, 1]
        The same over equal-width bins (`Assessment.by_width`). Empty bins do not count.
    reasons : dict
        Name of a measure that is None or infinite to the reason.
    """

    auc: float | None
    accuracy: float | None = None
    brier: float | None = None
    rmse: float | None = None
    log_loss: float | None = None
    ece_frequency: float | None = None
    mce_frequency: float | None = None
    ece_width: float | None = None
    mce_width: float | None = None
    reasons: dict[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """For JSON: an infinite log loss is the string "Infinity"; None means that it does not exist."""
        values = asdict(self)
        if self.log_loss is not None and math.isinf(self.log_loss):
            values["log_loss"] = "Infinity"
        return values


MEASURES = tuple(name for name in Measures.__dataclass_fields__ if name != "reasons")
"""The names of the measures."""


@dataclass(frozen=True)
class ReliabilityBin:
    """Reliability bin: predictions that are close to each other, and their outcomes.

    Attributes
    ----------
    lower, upper : float
        Equal-width bins: lower <= probability < upper, the last bin closed. Equal-frequency groups: the last
        probability of the previous group (of the first group, the lowest of all) and the last of this group; a
        tie across a border is divided between both groups.
    weight, positives : float >= 0
    mean_prediction, frequency : float in [0, 1], or None for an empty bin
        Weighted mean of the probabilities, and share of positives.
    effective_size : float >= 0
        Number of observations for the interval. If weights count rows, the weight; else Kish's effective size
        (sum of weights)**2 / (sum of squares), with a distinct score as one observation: if weighted rows share
        scores, the interval is too wide, never too narrow.
    interval_low, interval_high : float in [0, 1], or None for an empty bin
        Wilson's 95 % interval of the frequency.
    """

    lower: float
    upper: float
    weight: float
    positives: float
    mean_prediction: float | None
    frequency: float | None
    effective_size: float
    interval_low: float | None
    interval_high: float | None


@dataclass(frozen=True)
class Histogram:
    """Weight and positives of predictions in bins of equal width.

    Attributes
    ----------
    edges : tuple of float, ascending, one more than bins; a bin contains its lower edge, the last also its upper.
    weight, positives : tuples of float >= 0
    """

    edges: tuple[float, ...]
    weight: tuple[float, ...]
    positives: tuple[float, ...]


@dataclass(frozen=True)
class Assessment:
    """Measures, reliability tables and histogram of one column of predictions.

    Attributes
    ----------
    weight, positives : float: totals
    weighted : bool: False if the weights count rows
    lowest, highest : float: range of the predictions
    mean_prediction : float in [0, 1], or None where the predictions are not probabilities
    measures : Measures
    by_width, by_frequency : tuples of ReliabilityBin, ascending; empty where the predictions are not probabilities
    histogram : Histogram: over [0, 1], or over the predictions' range where they are not probabilities
    """

    weight: float
    positives: float
    weighted: bool
    lowest: float
    highest: float
    mean_prediction: float | None
    measures: Measures
    by_width: tuple[ReliabilityBin, ...]
    by_frequency: tuple[ReliabilityBin, ...]
    histogram: Histogram

    @property
    def probabilities(self) -> bool:
        """True if all predictions lie in [0, 1]."""
        return self.mean_prediction is not None

    def as_dict(self) -> dict[str, Any]:
        """For JSON: numbers, strings, lists and None."""
        return asdict(self) | {"measures": self.measures.as_dict()}


def wilson_interval(frequency: float, size: float) -> tuple[float, float]:
    """Wilson's 95 % score interval of a proportion.

    Parameters
    ----------
    frequency : float in [0, 1]
    size : float > 0: number of observations, or their effective number

    Returns
    -------
    low, high : float in [0, 1], low <= frequency <= high

    References
    ----------
    Wilson (1927), "Probable inference, the law of succession, and statistical inference",
    doi:10.1080/01621459.1927.10502953.

    Examples
    --------
    >>> wilson_interval(0.5, 100)
    (0.4038315303659956, 0.5961684696340044)
    """
    low, high = wilson_intervals(np.array([frequency]), np.array([size]))
    return float(low[0]), float(high[0])


def wilson_intervals(frequency: Array, size: Array) -> tuple[Array, Array]:
    """`wilson_interval` of many proportions."""
    squared = Z_95 * Z_95
    center = (frequency + squared / (2 * size)) / (1 + squared / size)
    half = np.sqrt(frequency * (1 - frequency) / size + (Z_95 / (2 * size)) ** 2)
    half *= Z_95 / (1 + squared / size)
    low = np.where(frequency == 0, 0.0, np.minimum(frequency, np.maximum(0.0, center - half)))
    high = np.where(frequency == 1, 1.0, np.maximum(frequency, np.minimum(1.0, center + half)))
    return low, high


class DecisionThreshold(NamedTuple):
    """A decision threshold.

    Attributes
    ----------
    value : cases with a probability >= value are decided positive; above 1 if no case should be.
    rate : classification rate on the data from which the threshold was chosen, in [0, 1].
    """

    value: float
    rate: float


def best_threshold(
    probabilities: npt.ArrayLike, labels: npt.ArrayLike, sample_weight: npt.ArrayLike | None = None
) -> DecisionThreshold:
    """Choose the threshold that maximises the classification rate.

    Parameters
    ----------
    probabilities : array-like, shape (n,), in [0, 1], n >= 1
    labels : array-like, shape (n,), bool or numbers in {0, 1}
    sample_weight : array-like, shape (n,), finite, > 0; default 1

    Returns
    -------
    Threshold
        All values between two neighbouring probabilities give the same decisions. The threshold is 0.5 if that is among
        the best values; otherwise the middle of the best gap. Of several, the gap nearest to 0.5 wins, then the lower.
        Equal probabilities get the same decision. Independent of the order of the cases. O(n log n).

    Raises
    ------
    ValueError
        For probabilities outside [0, 1] and for inputs that `Calibrator.fit` rejects.

    References
    ----------
    Alasalmi, Koskimäki, Suutala & Röning (2018), ICAART, section 5: "Threshold value used as prediction boundary was
    tuned with the calibrated training data to maximize classification rate."

    Examples
    --------
    >>> from calibrators.measures.assessment import best_threshold
    >>> best_threshold([0.1, 0.2, 0.3, 0.4], [0, 0, 1, 1])
    DecisionThreshold(value=0.25, rate=1.0)
    """
    p, weight, positives = collapse(probabilities, labels, sample_weight)
    if p[0] < 0 or p[-1] > 1:
        raise ValueError(f"probabilities: expected numbers in [0, 1], found {p[0]:g} to {p[-1]:g}")
    # Deciding positive from the i-th probability on is correct for the negatives below and the positives above.
    gains = np.concatenate([[0.0], np.cumsum((weight - positives) - positives)])
    best = np.flatnonzero(gains == gains.max())
    lower = np.concatenate([[0.0], p])[best]
    upper = np.concatenate([p, [max(1.0, np.nextafter(p[-1], 2.0))]])[best]
    values = np.where((lower < 0.5) & (upper >= 0.5), 0.5, lower + (upper - lower) / 2)
    # The middle of neighbouring doubles may be the lower one, which would be decided positive too.
    values = np.where((values <= lower) & (best > 0), upper, values)
    value = float(values[np.argmin(np.abs(values - 0.5))])
    correct = positives.sum() + gains.max()
    return DecisionThreshold(value, float(min(correct / weight.sum(), 1.0)))
