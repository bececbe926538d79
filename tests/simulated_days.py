"""Days of an ordinary log, and of one with something wrong: for tests and for benchmarks/operation.py."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

WEEK = 7


def logit(p):
    """Log-odds."""
    return np.log(p / (1 - p))


def sigmoid(x):
    """Probability of log-odds."""
    return 1 / (1 + np.exp(-x))


class Day(NamedTuple):
    """Columns of a day's rows. known : whether a row has its label."""

    score: np.ndarray
    label: np.ndarray
    known: np.ndarray


def _another_model(day, rng):
    return day._replace(score=sigmoid(2.7 * logit(day.score) + 0.7 + rng.normal(0, 0.8, day.score.size)))


KINDS = {
    "inverted labels": lambda day, rng: day._replace(label=~day.label),
    "percent": lambda day, rng: day._replace(score=100 * day.score),
    "another model": _another_model,
    "leaked labels": lambda day, rng: day._replace(score=sigmoid(logit(day.score) + 3 * (day.label - 0.5))),
    "labels missing": lambda day, rng: day._replace(known=rng.random(day.score.size) < 0.3),
    "twice": lambda day, rng: Day(*(np.tile(column, 2) for column in day)),
    "half": lambda day, rng: Day(*(column[::2] for column in day)),
    "shuffled labels": lambda day, rng: day._replace(label=rng.permutation(day.label)),
    "one score": lambda day, rng: day._replace(score=np.full(day.score.size, 0.1)),
    "no positives": lambda day, rng: day._replace(label=np.zeros(day.label.size, bool)),
    "positives lost": lambda day, rng: day._replace(label=day.label & (rng.random(day.label.size) < 0.3)),
    "log-odds": lambda day, rng: day._replace(score=logit(day.score)),
}
"""What can be wrong with a day."""


def simulated_day(
    number: int,
    kind: str | None = None,
    *,
    rows: int = 20_000,
    day_sd: float = 0.1,
    week_sd: float = 0.0,
    drift: float = 0.0,
    seed: int = 3,
) -> Day:
    """A day of a log with about 11 % positives, whose scores are no probabilities.

    Parameters
    ----------
    day_sd, week_sd : standard deviations of the log-odds between days, and between days of the week
    drift : added to the log-odds of the labels
    """
    rng = np.random.default_rng([seed, number])
    weekday = np.random.default_rng([seed, 1_000_000]).normal(0, week_sd, WEEK)[number % WEEK]
    count = int(rows * np.exp(rng.normal(0, 0.05)))
    x = rng.normal(-2.5, 1.3, count)
    effect = rng.normal(0, day_sd) + weekday + drift
    day = Day(sigmoid(0.8 * x + 0.3), rng.random(count) < sigmoid(x + effect), np.ones(count, bool))
    return day if kind is None else KINDS[kind](day, rng)
