"""Which half-life: tables fitted to the last days of a log that drifts, judged on the day that follows.

    python benchmarks/half_life.py

The truth of a day is logit(p) = intercept + slope * logit(score) on scores of a beta distribution; both walk at random
from day to day, or jump once. Each day a table is fitted to the days before it, weighed down by age with each
half-life, and judged on the day itself by its excess log loss: the mean divergence of its probabilities from the truth,
in thousandths, which is zero for the truth. Means over days and over walks; the error is that of the walks.
"""

from __future__ import annotations

import argparse

import numpy as np
import numpy.typing as npt
from _measure import print_machine

from calibrators import Isotonic

HALF_LIVES = (1, 2, 4, 7, 14, 28, None)
WINDOW = 56
SPEEDS = (0.0, 0.01, 0.03, 0.1)
"""Standard deviations, a day, of the intercept's walk in log odds; the slope's is a third of it."""

Array = npt.NDArray[np.float64]


def main() -> None:
    """Print a table for each number of rows a day."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, nargs="*", default=[1_000, 20_000], help="a day")
    parser.add_argument("--walks", type=int, default=5)
    parser.add_argument("--days", type=int, default=10, help="that are judged, of each walk")
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
            found = np.array([walk(rows, speed, arguments.days, seed) for seed in range(arguments.walks)])
            mean, error = found.mean(axis=0), found.std(axis=0, ddof=1) / np.sqrt(len(found))
            best = int(mean.argmin())
            cells = (
                f"**{m:.2f}** ± {e:.2f}" if i == best else f"{m:.2f}"
                for i, (m, e) in enumerate(zip(mean, error, strict=True))
            )
            print(f"| {label} | {' | '.join(cells)} |", flush=True)


def walk(rows: int, speed: float | None, days: int, seed: int) -> Array:
    """The mean excess log loss with each half-life, in thousandths."""
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
    found = np.zeros((days, len(HALF_LIVES)))
    for i, day in enumerate(range(total - days, total)):
        before = slice(day - WINDOW, day)
        age = np.repeat(np.arange(WINDOW, 0, -1.0), rows)
        for k, half_life in enumerate(HALF_LIVES):
            weight = None if half_life is None else 0.5 ** (age / half_life)
            fitted = Isotonic().fit(score[before].ravel(), label[before].ravel(), sample_weight=weight)
            found[i, k] = 1000 * divergence(truth[day], np.asarray(fitted.predict(score[day])))
    return found.mean(axis=0)


def divergence(truth: Array, said: Array) -> float:
    """The mean Kullback-Leibler divergence of probabilities from the truth, in nats."""
    low = np.clip(said, 1e-12, 1 - 1e-12)
    return float(np.mean(truth * np.log(truth / low) + (1 - truth) * np.log((1 - truth) / (1 - low))))


if __name__ == "__main__":
    main()
