"""The decision threshold: the probability from which on a case counts as positive."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from calibrators.arithmetic.passes import collapse

Array = npt.NDArray[np.float64]


class Threshold(NamedTuple):
    """A decision threshold.

    Attributes
    ----------
    value : cases with a probability >= value are decided positive; above 1 where no case should be.
    rate : classification rate that it has on the data it was chosen with, in [0, 1].
    """

    value: float
    rate: float


def best_threshold(
    probabilities: npt.ArrayLike, labels: npt.ArrayLike, sample_weight: npt.ArrayLike | None = None
) -> Threshold:
    """The threshold that maximises the classification rate.

    Parameters
    ----------
    probabilities : array-like, shape (n,), in [0, 1], n >= 1
    labels : array-like, shape (n,), bool or numbers in {0, 1}
    sample_weight : array-like, shape (n,), finite, > 0; default 1

    Returns
    -------
    Threshold
        All values between two neighbouring probabilities give the same decisions. The threshold is 0.5 if that is among
        the best values; otherwise the middle of the best gap, or of the one nearest to 0.5, or of the lower of two.
        Equal probabilities get the same decision. Independent of the order of the cases. O(n log n).

    Raises
    ------
    ValueError
        For probabilities outside [0, 1] and for what `Calibrator.fit` refuses.

    References
    ----------
    Alasalmi, Koskimäki, Suutala & Röning (2018), ICAART, section 5: "Threshold value used as prediction boundary was
    tuned with the calibrated training data to maximize classification rate."

    Examples
    --------
    >>> from calibrators.measures.threshold import best_threshold
    >>> best_threshold([0.1, 0.2, 0.3, 0.4], [0, 0, 1, 1])
    Threshold(value=0.25, rate=1.0)
    """
    p, weight, positives = collapse(probabilities, labels, sample_weight)
    if p[0] < 0 or p[-1] > 1:
        raise ValueError(f"probabilities: expected numbers in [0, 1], found {p[0]:g} to {p[-1]:g}")
    # Deciding positive from the i-th probability on is right for the negatives below and the positives above.
    gains = np.concatenate([[0.0], np.cumsum((weight - positives) - positives)])
    best = np.flatnonzero(gains == gains.max())
    lower = np.concatenate([[0.0], p])[best]
    upper = np.concatenate([p, [max(1.0, np.nextafter(p[-1], 2.0))]])[best]
    values = np.where((lower < 0.5) & (upper >= 0.5), 0.5, lower + (upper - lower) / 2)
    # The middle of neighbouring doubles may be the lower one, which would be decided positive too.
    values = np.where((values <= lower) & (best > 0), upper, values)
    value = float(values[np.argmin(np.abs(values - 0.5))])
    right = positives.sum() + gains.max()
    return Threshold(value, float(min(right / weight.sum(), 1.0)))
