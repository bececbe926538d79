"""Drift: evidence, day by day, that a table's probabilities are no longer right, which may be looked at every day.

A day's evidence for a change of the log odds by a is the likelihood ratio of its labels under the probabilities with
that change, against the nearest probabilities that are still within the tolerance. While all odds are right within the
tolerance its expectation is at most 1, so the running product is a supermartingale, and the chance that it ever reaches
1 / alpha is at most alpha (Ville), however often it is looked at.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from calibrators._kernels import drift as kernel
from calibrators._kernels.accumulators import merge
from calibrators.arithmetic.exact_totals import Predict, exact
from calibrators.arithmetic.passes import Array, Pass, Points

CHANGES = (-0.7, -0.4, -0.2, -0.1, -0.05, 0.05, 0.1, 0.2, 0.4, 0.7)
"""The changes of the log odds that are looked for, beyond the tolerance."""

TOLERANCE = 1.05
"""Factor up to which odds may be wrong."""


class Evidence(NamedTuple):
    """The evidence of one day.

    logs : tuple of float, one of each of `CHANGES`: log likelihood ratios; infinite where a row got a label that the
        table called impossible.
    rows, observed, expected : float: rows, positives, and the sum of the probabilities
    """

    logs: tuple[float, ...]
    rows: float
    observed: float
    expected: float


def evidence_pass(predict: Predict | None, tolerance: float = TOLERANCE) -> Pass:
    """The pass over a day's score table that yields its `Evidence`.

    Parameters
    ----------
    predict : scores to probabilities in [0, 1]; None: the scores are the probabilities. Picklable.
    tolerance : float >= 1

    Notes
    -----
    O(m); exact sums, so the same to the last bit however the day was cut. Weights count rows; rows must be independent.
    """
    shifts = tuple((a, math.copysign(math.log(tolerance), a)) for a in CHANGES)
    odds = np.array([(math.exp(shift), math.exp(shift + a)) for a, shift in shifts])
    return Pass(partial(_chunk, predict, odds), _add)


def _chunk(predict: Predict | None, odds: Array, points: Points) -> Array:
    score, w, k = points
    p = score if predict is None else predict(score)
    sums: Array = kernel.drift_sums(p, w, k, odds)
    return sums


def _add(parts: list[Array]) -> Evidence:
    weight, positives, expected, impossible, *rows = [
        exact(row) for row in merge(np.concatenate(parts, axis=1))
    ]
    logs = [_log_ratio(a, positives, rows[j]) for j, a in enumerate(CHANGES)]
    if impossible:
        logs = [math.inf] * len(CHANGES)
    return Evidence(tuple(logs), float(weight), float(positives), float(expected))


def _log_ratio(change: float, positives: Fraction, lost: Fraction) -> float:
    """Log likelihood ratio: each positive has gained the change, and every row the normalisation has lost."""
    return float(Fraction(change) * positives - (lost if change > 0 else -lost))


@dataclass(frozen=True)
class DriftState:
    """What the days so far say: eleven numbers.

    Attributes
    ----------
    days : int
    logs : tuple of float, one of each of `CHANGES`: the logarithm of the product of the days' evidence, started on
        each day with a share of the whole, so that any day may be the first of the change.
    """

    days: int = 0
    logs: tuple[float, ...] = (-math.inf,) * len(CHANGES)

    def after(self, evidence: Evidence) -> DriftState:
        """The state after one day more."""
        t = self.days + 1
        start = -math.log(t) - math.log(t + 1)
        moved = (
            float(np.logaddexp(log, start)) + own for log, own in zip(self.logs, evidence.logs, strict=True)
        )
        return DriftState(t, tuple(moved))

    @property
    def log_e(self) -> float:
        """The logarithm of the e-value: mean over the changes, and what is left for days to come."""
        rest = -math.log(self.days + 1)
        mean = float(np.logaddexp.reduce(np.array(self.logs))) - math.log(len(self.logs))
        return float(np.logaddexp(mean, rest))

    @property
    def direction(self) -> float:
        """The change of the log odds with the most evidence."""
        return CHANGES[int(np.argmax(self.logs))]


def alarms(log_e: npt.ArrayLike, alpha: float) -> npt.NDArray[np.bool_]:
    """Which of several e-values are alarms, with a share of false ones of at most alpha (e-BH).

    Parameters
    ----------
    log_e : array-like, shape (n,): logarithms of current e-values; of one table, n = 1: an alarm from 1 / alpha on
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
    found = np.zeros(e.size, np.bool_)
    count = int(np.flatnonzero(enough)[-1]) + 1 if enough.any() else 0
    found[order[:count]] = True
    return found


def stability_index(reference: npt.ArrayLike, now: npt.ArrayLike) -> tuple[float, float]:
    """How far the distribution of scores has moved: the population stability index, and the largest distance (KS).

    Parameters
    ----------
    reference, now : array-likes, shape (cells,): weights of the same cells of scores, in ascending order

    Returns
    -------
    psi, ks : float >= 0
        PSI over at most 20 cells of nearly equal reference weight, joined from the given ones, half an observation
        added to each. If nothing has changed it is about (1 / n + 1 / m) times a chi-square with 19 degrees of freedom.

    Examples
    --------
    >>> psi, ks = stability_index([50, 50], [40, 60])
    >>> round(psi, 3), round(ks, 3)
    (0.04, 0.1)
    """
    a, b = (np.asarray(column, dtype=np.float64) for column in (reference, now))
    share_a, share_b = np.cumsum(a) / a.sum(), np.cumsum(b) / max(b.sum(), 1.0)
    ks = float(np.max(np.abs(share_a - share_b)))
    ends = np.unique(np.searchsorted(share_a, np.arange(1, 20) / 20))
    starts = np.unique(np.append(0, ends[ends < a.size - 1] + 1))
    p, q = (np.add.reduceat(column, starts) + 0.5 for column in (a, b))
    p, q = p / p.sum(), q / q.sum()
    return float(np.sum((p - q) * np.log(p / q))), ks
