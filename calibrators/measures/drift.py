"""Drift: sequential evidence, day by day, that a table's probabilities are no longer right.

A day's evidence for a change of the log odds by a is the likelihood ratio of its labels under the probabilities with
that change, against the nearest probabilities within the tolerance. The null hypothesis: given all days before, each
row's odds are right within the tolerance. Then its expectation given these days is at most 1. So the running product is
a supermartingale, and the probability that it ever reaches 1 / alpha is at most alpha (Ville), even if it is checked
every day.

The probabilities of a day may depend on the days before, but not on the day itself: they may come from another version
of a table each day, if that version was fitted before the day's rows were used. If the test begins anew after each
alarm, the probability of k false alarms is at most alpha^k.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from calibrators.core.arrays import Array, Integers, Mask
from calibrators.core.double_double import Pair, twelve, twelve_digits
from calibrators.core.passes import Pass, Points
from calibrators.measures.engine import Predict, stacked, sum_terms

CHANGES = (-0.7, -0.4, -0.2, -0.1, -0.05, 0.05, 0.1, 0.2, 0.4, 0.7)
"""Alternatives of the test: changes of the log odds beyond the tolerance."""

TOLERANCE = 1.05
"""Largest acceptable ratio of wrong to right odds."""


class Evidence(NamedTuple):
    """Evidence of one day.

    logs : tuple of float, one for each of `CHANGES`: log likelihood ratios; infinite if a row has a label to which the
        table gave probability 0
    rows, observed, expected : float: number of rows, positives, and the sum of the probabilities
    """

    logs: tuple[float, ...]
    rows: float
    observed: float
    expected: float


def evidence_pass(predict: Predict | None, tolerance: float = TOLERANCE) -> Pass:
    """Make the pass over a day's score table that yields its `Evidence`.

    Parameters
    ----------
    predict : scores to probabilities in [0, 1]; None: the scores are the probabilities. Picklable.
    tolerance : float >= 1

    Notes
    -----
    O(m). Does not depend on the division into parts. Weights count rows; rows must be independent.
    """
    return Pass(partial(_chunk, predict, tolerance), evidence_of)


def _chunk(predict: Predict | None, tolerance: float, points: Points) -> Pair:
    score, w, k = points
    return evidence_sums(score if predict is None else predict(score), w, k, tolerance)[0]


def evidence_sums(p: Array, w: Array, k: Array, tolerance: float, starts: Integers | None = None) -> Pair:
    """Compute the sums that evidence needs, for columns stored one after the other; shape (columns, sums)."""
    return sum_terms(partial(_terms, tolerance), (p, w, k), starts)


def _terms(tolerance: float, p: Array, w: Array, k: Array) -> list[Array]:
    impossible = ((p <= 0) & (k > 0)) | ((p >= 1) & (k < w))
    terms = [w, k, w * p, np.where(impossible, w, 0.0)]
    for change in CHANGES:
        shift = math.copysign(math.log(tolerance), change)
        # The logarithm of the normalisation, >= 0.
        low, high = sorted((math.exp(shift), math.exp(shift + change)))
        terms.append(w * np.log1p((high - low) * p / (1.0 - p + low * p)))
    return terms


def evidence_of(parts: list[Pair]) -> Evidence:
    """Compute the evidence of a column from the `evidence_sums` of its parts."""
    total = stacked(parts).total()
    weight, positives, expected, impossible = total.high[:4].tolist()
    # The log likelihood ratio: the change for each positive, minus the normalisation of every row.
    normalisation = total[4:] * np.where(np.array(CHANGES) > 0, -1.0, 1.0)
    logs = twelve_digits((Pair.of(np.array(CHANGES)) * positives + normalisation).high).tolist()
    if impossible:
        logs = [math.inf] * len(CHANGES)
    return Evidence(tuple(logs), twelve(weight), twelve(positives), twelve(expected))


@dataclass(frozen=True)
class DriftState:
    """Accumulated evidence of the days so far.

    Attributes
    ----------
    days : int
    log_e_values : tuple of float, one for each of `CHANGES`: logarithm of a mixture of the products of the evidence
        since each day, since any day may be the first of the change
    """

    days: int = 0
    log_e_values: tuple[float, ...] = (-math.inf,) * len(CHANGES)

    def after(self, evidence: Evidence) -> DriftState:
        """Return the state after one more day."""
        t = self.days + 1
        start = -math.log(t) - math.log(t + 1)
        logs = (
            float(np.logaddexp(log, start)) + new
            for log, new in zip(self.log_e_values, evidence.logs, strict=True)
        )
        return DriftState(t, tuple(logs))

    @property
    def log_e(self) -> float:
        """Logarithm of the e-value: mean over the changes, plus the mixture's share of future days."""
        future = -math.log(self.days + 1)
        mean = float(np.logaddexp.reduce(np.array(self.log_e_values))) - math.log(len(self.log_e_values))
        return float(np.logaddexp(mean, future))

    @property
    def direction(self) -> float:
        """Change of the log odds with the most evidence."""
        return CHANGES[int(np.argmax(self.log_e_values))]


def alarms(log_e: npt.ArrayLike, alpha: float) -> Mask:
    """Tell which e-values are alarms, with a false discovery rate of at most alpha (e-BH).

    Parameters
    ----------
    log_e : array-like, shape (n,): logarithms of current e-values; if n = 1, an e-value >= 1 / alpha is an alarm
    alpha : float in (0, 1)

    References
    ----------
    Wang & Ramdas (2022), "False discovery rate control with e-values", Journal of the Royal Statistical Society B 84,
    822-852, doi:10.1111/rssb.12489.

    Examples
    --------
    >>> alarms([0.0, 6.0, 5.0], 0.01).tolist()
    [False, True, False]
    """
    e = np.asarray(log_e, dtype=np.float64)
    order = np.argsort(-e, kind="stable")
    enough = e[order] >= math.log(e.size / alpha) - np.log(np.arange(1, e.size + 1))
    is_alarm = np.zeros(e.size, np.bool_)
    count = int(np.flatnonzero(enough)[-1]) + 1 if enough.any() else 0
    is_alarm[order[:count]] = True
    return is_alarm


def stability_index(reference: npt.ArrayLike, current: npt.ArrayLike) -> tuple[float, float]:
    """Measure the change of the distribution of scores: population stability index and largest distance (KS).

    Parameters
    ----------
    reference, current : array-likes, shape (cells,): weights of the same cells of scores, in ascending order

    Returns
    -------
    psi, ks : float >= 0
        PSI over at most 20 groups of cells of nearly equal reference weight, with half an observation added to each.
        Without a change it is about (1 / n + 1 / m) times a chi-square with 19 degrees of freedom.

    Examples
    --------
    >>> psi, ks = stability_index([50, 50], [40, 60])
    >>> round(psi, 3), round(ks, 3)
    (0.04, 0.1)
    """
    a, b = (np.asarray(column, dtype=np.float64) for column in (reference, current))
    share_a, share_b = np.cumsum(a) / a.sum(), np.cumsum(b) / max(b.sum(), 1.0)
    ks = float(np.max(np.abs(share_a - share_b)))
    ends = np.unique(np.searchsorted(share_a, np.arange(1, 20) / 20))
    starts = np.unique(np.append(0, ends[ends < a.size - 1] + 1))
    p, q = (np.add.reduceat(column, starts) + 0.5 for column in (a, b))
    p, q = p / p.sum(), q / q.sum()
    return float(np.sum((p - q) * np.log(p / q))), ks
