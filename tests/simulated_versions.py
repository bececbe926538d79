"""Many simulated logs at once, whose table gets a new version each day: for tests and for benchmarks/operation.py.

A log has 20 scores with the same number of rows each day. The version of a day is isotonic regression, with finite
ends, of the days of the window before it; or, for comparison, of the first window for ever.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import expit, logit

from calibrators.measures.drift import CHANGES, TOLERANCE, evidence_sums

LEVELS, WINDOW = 20, 28


def isotonic(rows, positives):
    """Isotonic regression with a positive below the lowest and a negative above the highest score, of logs at once.

    By the max-min formula. rows : shape (levels,); positives : shape (logs, levels); levels of the regression, as these
    """
    edge = np.ones((len(positives), 1))
    w = np.concatenate([[1.0], rows, [1.0]])
    k = np.concatenate([edge, positives, 0 * edge], axis=1)
    sums_w, sums_k = np.append(0.0, np.cumsum(w)), np.concatenate([0 * edge, np.cumsum(k, axis=1)], axis=1)
    n = w.size
    level = np.full(k.shape, -np.inf)
    for first in range(n):
        means = (sums_k[:, first + 1 :] - sums_k[:, [first]]) / (sums_w[first + 1 :] - sums_w[first])
        least = np.minimum.accumulate(means[:, ::-1], axis=1)[:, ::-1]
        level[:, first:] = np.maximum(level[:, first:], least)
    return level[:, 1:-1]


def evidence(p, rows, positives):
    """Evidence of a day of each log, shape (logs, changes)."""
    w = np.tile(rows, len(p))
    starts = np.arange(len(p) + 1) * rows.size
    total = evidence_sums(p.ravel(), w, positives.ravel(), TOLERANCE, starts).high
    k = positives.sum(axis=1, keepdims=True)
    return np.array(CHANGES) * k - np.sign(CHANGES) * total[:, 4:]


class Logs:
    """Simulated logs with the state of each one's test.

    Parameters
    ----------
    rate : about the share of positives
    rows : number of rows a day
    daily : whether there is a new version each day; else the first one stays
    """

    def __init__(self, seed, logs, rate=0.01, rows=100_000, *, daily=True):
        self.random, self.daily = np.random.default_rng(seed), daily
        self.rows = np.full(LEVELS, rows // LEVELS, float)
        x = np.linspace(-2.5, 2.5, LEVELS)
        shift = logit(rate) - logit(expit(x).mean())
        for _ in range(30):
            shift += logit(rate) - logit(expit(x + shift).mean())
        self.odds = np.tile(x + shift, (logs, 1))
        self.past = [self.draw(self.odds) for _ in range(WINDOW)]
        self.version = self.fitted()
        self.days = np.zeros(logs, int)
        self.log_m = np.full((logs, len(CHANGES)), -np.inf)

    def draw(self, odds):
        """Positives of a day."""
        return self.random.binomial(self.rows.astype(int), expit(odds)).astype(float)

    def fitted(self):
        """Version fitted to the last days."""
        return isotonic(WINDOW * self.rows, np.sum(self.past[-WINDOW:], axis=0))

    def day(self, odds, alpha=0.01):
        """Test a day of each log with true log odds; return which raise an alarm, whose tests begin anew."""
        positives = self.draw(odds)
        t = self.days + 1
        start = -np.log(t * (t + 1.0))[:, None]
        self.log_m = np.logaddexp(self.log_m, start) + evidence(self.version, self.rows, positives)
        self.days = t
        mean = np.logaddexp.reduce(self.log_m, axis=1) - math.log(len(CHANGES))
        self.log_e = np.logaddexp(mean, -np.log(t + 1.0))
        alarm = self.log_e >= math.log(1 / alpha)
        if self.daily:
            self.past = [*self.past[1 - WINDOW :], positives]
            self.version = self.fitted()
            self.log_m[alarm], self.days[alarm] = -np.inf, 0
        return alarm


def alarms_without_drift(seed, logs, days, off, rate=0.01):
    """Number of alarms of each log without drift.

    off : for each log, the true log odds less those of the day's version; NaN: the true odds stay, whatever the version
    """
    simulated, count = Logs(seed, logs, rate), np.zeros(logs, int)
    off = np.asarray(off, float)[:, None]
    for _ in range(days):
        odds = np.where(np.isnan(off), simulated.odds, logit(simulated.version) + np.nan_to_num(off))
        count += simulated.day(odds)
    return count


def days_until_alarm(seed, logs, change, *, daily, begin=60, limit=120, slope=0.0, rate=0.01):
    """Days from a change of the log odds to the first alarm after it: infinite without one; NaN with one before it.

    change : step of the log odds from day `begin` on
    slope : further change on each day from then on
    """
    simulated, found = Logs(seed, logs, rate, daily=daily), np.full(logs, np.inf)
    for day in range(begin + limit):
        after = max(0, day - begin + 1)
        alarm = simulated.day(simulated.odds + (change + slope * after if after else 0.0))
        found = np.where(alarm & np.isinf(found), after or np.nan, found)
    return found
