"""Isotonic regression of a score table in memory, against scipy and scikit-learn on the same sorted arrays.

    python benchmarks/isotonic.py 1e7 1e8

Scores are sorted and distinct, labels Bernoulli(0.15 + 0.6 s + 0.2 sin 12 s); one thread; median of interleaved runs.
logcal returns the calibration map; the peers return fitted values.
"""

from __future__ import annotations

import statistics
import sys
import time

import numpy as np
from _measure import print_machine
from scipy.optimize import isotonic_regression as scipy_isotonic
from sklearn.isotonic import isotonic_regression as sklearn_isotonic

from calibrators import Isotonic, Points

RUNS = 5


def main(arguments: list[str]) -> None:
    """Measure, and print a table."""
    print_machine()
    print(f"{'rows':>12}  {'scipy s':>8}  {'scikit-learn':>12}  {'ours':>8}  {'ours / scipy':>12}")
    for text in arguments or ["1e6", "1e7"]:
        rows = int(float(text))
        generator = np.random.default_rng(0)
        score = np.sort(generator.random(rows))
        labels = (generator.random(rows) < 0.15 + 0.6 * score + 0.2 * np.sin(12 * score)).astype(np.float64)
        points = Points(score, np.ones(rows), labels)
        contenders = {
            "scipy": lambda y=labels, p=points: scipy_isotonic(y, weights=p.weight),
            "scikit-learn": lambda y=labels, p=points: sklearn_isotonic(y, sample_weight=p.weight),
            "ours": lambda p=points: Isotonic().fit_points(p),
        }
        seconds: dict[str, list[float]] = {name: [] for name in contenders}
        for turn in range(RUNS + 1):
            for name, run in contenders.items():
                start = time.perf_counter()
                run()
                if turn:
                    seconds[name].append(time.perf_counter() - start)
        ratio = statistics.median(a / b for a, b in zip(seconds["ours"], seconds["scipy"], strict=True))
        median = {name: statistics.median(times) for name, times in seconds.items()}
        print(
            f"{rows:12,}  {median['scipy']:8.3f}  {median['scikit-learn']:12.3f}  {median['ours']:8.3f}  {ratio:12.2f}"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
