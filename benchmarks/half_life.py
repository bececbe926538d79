"""The best half-life by drift: tables fitted to the last days of a drifting log, evaluated on the next day.

    python benchmarks/half_life.py

The truth of a day is logit(p) = intercept + slope * logit(score), with beta distributed scores; intercept and slope
walk at random from day to day, or jump once. For each day, a table is fitted to the days before, exponentially decayed
with each half-life. Its excess log loss on the day is the mean divergence of its probabilities from the truth, in
thousandths. Means over days and walks; standard errors over walks.
"""

from __future__ import annotations

import argparse

import numpy as np
from _measure import print_machine

from calibrators import Isotonic
from calibrators.core.arrays import Array

HALF_LIVES = (1, 2, 4, 7, 14, 28, None)
WINDOW = 56
SPEEDS = (0.0, 0.01, 0.03, 0.1)
"""Standard deviations per day of the intercept's walk in log odds; the slope's is a third of it."""


def main() -> None:
    """Print a table for each number of rows a day."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, nargs="*", default=[1_000, 20_000], help="rows per day")
    parser.add_argument("--walks", type=int, default=5)
    parser.add_argument("--days", type=int, default=10, help="evaluated days of each walk")
    arguments = parser.parse_args()
    print_machine()
    for rows in arguments.rows:
        names = " | ".join("none" if h is None else f"{h}d" for h in HALF_LIVES)
        print(
            f"\n{rows:,} rows a day, window.last {WINDOW}d\n\n| drift a day | {names} |\n"
            f"|---|{'---|' * len(HALF_LIVES)}"
        )
        for label, speed in [
            *((f"{speed:g}", speed) for speed in SPEEDS),
            ("a jump of 0.3, 5 days ago", None),
        ]:
            excess = np.array([walk(rows, speed, arguments.days, seed) for seed in range(arguments.walks)])
            mean, error = excess.mean(axis=0), excess.std(axis=0, ddof=1) / np.sqrt(len(excess))
            best = int(mean.argmin())
            cells = (
                f"**{m:.2f}** ± {e:.2f}" if i == best else f"{m:.2f}"
                for i, (m, e) in enumerate(zip(mean, error, strict=True))
            )
            print(f"| {label} | {' | '.join(cells)} |", flush=True)


def walk(rows: int, speed: float | None, days: int, seed: int) -> Array:
    """Return the mean excess log loss with each half-life, in thousandths."""
    rng = np.random.default_rng([seed, rows])
    total = WINDOW + days
    if speed is None:
        days, total = 1, WINDOW + 1
        intercept, slope = np.where(np.arange(total) >= total - 6, 0.3, 0.0), np.ones(total)
    else:
        intercept = np.cumsum(rng.normal(0, speed, total))
        slope = np.exp(np.cumsum(rng.normal(0, speed / 3, total)))
    score = np.clip(rng.beta(1, 6, (total, rows)), 1e-6, 1 - 1e-6)
    truth = 1 / (1 + np.exp(-(intercept[:, None] - 0.3 + slope[:, None] * np.log(score / (1 - score)))))
    label = (rng.random((total, rows)) < truth).astype(np.float64)
    excess = np.zeros((days, len(HALF_LIVES)))
    for i, day in enumerate(range(total - days, total)):
        before = slice(day - WINDOW, day)
        age = np.repeat(np.arange(WINDOW, 0, -1.0), rows)
        for k, half_life in enumerate(HALF_LIVES):
            weight = None if half_life is None else 0.5 ** (age / half_life)
            fitted = Isotonic().fit(score[before].ravel(), label[before].ravel(), sample_weight=weight)
            excess[i, k] = 1000 * divergence(truth[day], np.asarray(fitted.predict(score[day])))
    return excess.mean(axis=0)


def divergence(truth: Array, predicted: Array) -> float:
    """Return the mean Kullback-Leibler divergence of probabilities from the truth, in nats."""
    q = np.clip(predicted, 1e-12, 1 - 1e-12)
    return float(np.mean(truth * np.log(truth / q) + (1 - truth) * np.log((1 - truth) / (1 - q))))


if __name__ == "__main__":
    main()
