"""Coverage and width of the intervals, on simulated data with known true probabilities.

    python benchmarks/intervals.py                     # the table of docs/statistics.md: some minutes
    python benchmarks/intervals.py --sizes 1000 --draws 100

Scores are normal in log-odds, on a grid of 20,000 points; the numbers of rows and positives at each point are drawn.
'posterior' belongs to `auto` and `smooth`, 'band' and 'venn_abers' to `isotonic`.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np
from _measure import print_machine
from scipy.special import expit, ndtri

from calibrators.core.intervals import interval_passes
from calibrators.core.passes import Points, run_in_memory
from pipeline.fit.calibration import make_calibrator

GRID = 20_000
TRUTHS = {
    "smooth": lambda z: 0.6 * z - 0.5 + 0.15 * np.sin(z),
    "steps": lambda z: 1.2 * np.floor(0.8 * z) + 0.5,
    "rare, waves": lambda z: z + 0.5 * np.sin(2 * z) - 5.2,
}
KINDS = (("posterior", "auto"), ("posterior", "smooth"), ("band", "isotonic"), ("venn_abers", "isotonic"))


def draw(truth: str, rows: int, seed: int) -> tuple[Points, np.ndarray]:
    """Draw rows; return their points, and the score and the true probability at each point of the grid."""
    rng = np.random.default_rng([seed, rows])
    z = 2 * ndtri((np.arange(GRID) + 0.5) / GRID)
    p = expit(TRUTHS[truth](z))
    weight = rng.multinomial(rows, np.full(GRID, 1 / GRID))
    positives = rng.binomial(weight, p)
    some = weight > 0
    score = expit(z - (5.2 if truth.startswith("rare") else 0.0))
    return Points(score[some], weight[some].astype(float), positives[some].astype(float)), np.stack(
        [score, p]
    )


def coverage(kind: str, method: str, points: Points, truth: np.ndarray) -> tuple[float, float] | None:
    """Return the share of future rows whose interval covers the truth, and the mean width over the mean probability."""
    calibrator = make_calibrator(method, {}).fit_points(points)
    map_ = calibrator.calibration_map_
    if kind == "posterior":
        interval = calibrator.posterior_.interval(map_)
    else:
        interval = run_in_memory(interval_passes(kind, map_), points)
    if interval is None:
        return None
    lower, upper = interval.at(map_.score_hi, truth[0])
    return float(np.mean((lower <= truth[1]) & (truth[1] <= upper))), float(
        np.mean(upper - lower) / truth[1].mean()
    )


def main(arguments: list[str]) -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sizes", nargs="+", type=int, default=[1_000, 100_000, 10_000_000])
    parser.add_argument(
        "--draws", type=int, default=40, help="at the smallest size; a quarter, then a tenth of it"
    )
    options = parser.parse_args(arguments)
    print_machine()
    print("| truth | rows | draws | " + " | ".join(f"{kind} of {method}" for kind, method in KINDS) + " |")
    for truth in TRUTHS:
        for rows, share in zip(options.sizes, (1, 4, 10), strict=False):
            draws = max(1, options.draws // share)
            samples = [draw(truth, rows, seed) for seed in range(draws)]
            samples = [(points, p) for points, p in samples if points.positives.sum() > 1]
            cells = []
            for kind, method in KINDS:
                results = [coverage(kind, method, points, p) for points, p in samples]
                results = [result for result in results if result is not None]
                cover, width = np.mean(results, axis=0)
                error = np.std([c for c, _ in results]) / len(results) ** 0.5
                cells.append(f"{100 * cover:.1f} ± {100 * error:.1f} % ({width:.3f})")
            print(f"| {truth} | {rows:,} | {len(samples)} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
