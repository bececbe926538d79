"""Coverage and width of the intervals, on simulated data with known true probabilities.

    python benchmarks/intervals.py                     # the tables of docs/statistics.md: an hour
    python benchmarks/intervals.py --sizes 5000 --draws 50 --truths smooth --kinds posterior

Scores are normal in log-odds, on a grid of 20,000 points; the numbers of rows and positives at each point are drawn.
'posterior' belongs to `auto` and `smooth`, 'band' and 'venn_abers' to `isotonic`. Coverage is the share of points
(future rows have each with equal probability) whose interval contains the truth: in all, in the tenths of the scores
and in the top 5 %, averaged over draws. Widths are divided by the mean truth in the same range. `rmse` is the root mean
square error of the map, divided likewise.
"""

from __future__ import annotations

import argparse
import csv
import sys
from pathlib import Path

import numpy as np
from _measure import print_machine
from scipy.special import expit, ndtri

from calibrators.base import Sampling
from calibrators.core.intervals import interval_passes
from calibrators.core.passes import Points, run_in_memory
from calibrators.core.sampling import sampling_weights
from pipeline.fit.calibration import make_calibrator

GRID = 20_000
RARE = -5.2
TRUTHS = {
    "smooth": lambda z: 0.6 * z - 0.5 + 0.15 * np.sin(z),
    "smooth, weights": lambda z: 0.6 * z - 0.5 + 0.15 * np.sin(z),
    "steps": lambda z: 1.2 * np.floor(0.8 * z) + 0.5,
    "three levels": lambda z: np.select([z < -1, z < 1.5], [-2.5, -1.0], 0.5),
    "rare, kink": lambda z: RARE + z - 0.8 * np.maximum(z - 2.5, 0),
    "rare, waves": lambda z: z + 0.5 * np.sin(2 * z) + RARE,
}
"""Log-odds of the truth by the log-odds of the score; 'weights': sampling weights, log-normal with sigma 0.7."""
KINDS = {
    "posterior": ("auto", "smooth"),
    "band": ("isotonic",),
    "venn_abers": ("isotonic",),
}
RANGES = [(0.0, 1.0), *((i / 10, (i + 1) / 10) for i in range(10)), (0.95, 1.0)]
COLUMNS = ("covered", "below", "above", "width", "square")


def draw(truth: str, rows: int, seed: int) -> tuple[Points, float, np.ndarray]:
    """Draw rows.

    Returns
    -------
    their points, the heaviest row's sampling weight, and the score and the true probability at each point of the grid
    """
    rng = np.random.default_rng([seed, rows])
    z = 2 * ndtri((np.arange(GRID) + 0.5) / GRID)
    p, score = expit(TRUTHS[truth](z)), expit(z + (RARE if truth.startswith("rare") else 0.0))
    if truth.endswith("weights"):
        at, own = rng.integers(0, GRID, rows), sampling_weights(np.exp(rng.normal(0, 0.7, rows)))
        weight = np.bincount(at, own, GRID)
        positives, heaviest = np.bincount(at, own * (rng.random(rows) < p[at]), GRID), float(own.max())
    else:
        weight = rng.multinomial(rows, np.full(GRID, 1 / GRID)).astype(float)
        positives, heaviest = rng.binomial(weight.astype(int), p).astype(float), 1.0
    some = weight > 0
    return Points(score[some], weight[some], positives[some]), heaviest, np.stack([score, p])


def measured(kind: str, method: str, points: Points, heaviest: float, truth: np.ndarray) -> np.ndarray | None:
    """Return the `COLUMNS` by range of scores, shape (5, ranges): see the module; None if there is no interval."""
    calibrator = make_calibrator(method, {}).fit_points(points, Sampling(heaviest=heaviest))
    map_ = calibrator.calibration_map_
    if kind == "posterior":
        interval = calibrator.posterior_.interval(map_)
    else:
        interval = run_in_memory(interval_passes(kind, map_, heaviest), points)
    if interval is None:
        return None
    lower, upper = interval.at(map_.score_hi, truth[0])
    below, above = truth[1] < lower, truth[1] > upper
    square = (map_.predict_ascending(truth[0]) - truth[1]) ** 2
    columns = np.stack([~below & ~above, below, above, upper - lower, square])
    found = [columns[:, slice(*(round(share * GRID) for share in ends))].mean(axis=1) for ends in RANGES]
    return np.stack(found, axis=1)


def row(truth: str, results: list[np.ndarray], digits: int = 3) -> list[str]:
    """Return coverage in all, lowest and highest in a tenth, in the top 5 %; widths in all and in the top 5 %."""
    z = 2 * ndtri((np.arange(GRID) + 0.5) / GRID)
    p = expit(TRUTHS[truth](z))
    mean = np.array([p[slice(*(round(share * GRID) for share in ends))].mean() for ends in RANGES])
    cover, _, _, width, square = np.mean(results, axis=0)
    tenths = cover[1:-1]
    percent = [f"{100 * x:.1f}" for x in (cover[0], tenths.min(), tenths.max(), cover[-1])]
    widths = [f"{x:.{digits}f}" for x in ((width / mean)[0], (width / mean)[-1])]
    errors = [f"{x:.{digits}f}" for x in ((np.sqrt(square) / mean)[0], (np.sqrt(square) / mean)[-1])]
    return [*percent, *widths, *errors]


def main(arguments: list[str]) -> None:
    """Measure, and print a table; with --lines also a line of CSV for each range."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sizes", nargs="+", type=int, default=[500, 5_000, 100_000, 10_000_000])
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="number of the first draw")
    parser.add_argument("--truths", nargs="+", default=list(TRUTHS), choices=TRUTHS)
    parser.add_argument("--kinds", nargs="+", default=["posterior"], choices=KINDS)
    parser.add_argument("--methods", nargs="+", default=["auto"])
    parser.add_argument("--lines", type=Path)
    options = parser.parse_args(arguments)
    print_machine()
    kinds = [(kind, method) for kind in options.kinds for method in KINDS[kind] if method in options.methods]
    print(
        "| truth | rows | draws | interval | all | lowest tenth | highest | top 5 % | width | top | rmse | top |"
    )
    print("|---" * 12 + "|")
    for truth in options.truths:
        for rows in options.sizes:
            samples = (
                draw(truth, rows, seed) for seed in range(options.first, options.first + options.draws)
            )
            samples = [sample for sample in samples if sample[0].positives.sum() > 1]
            for kind, method in kinds:
                found = [measured(kind, method, *sample) for sample in samples]
                results = [result for result in found if result is not None]
                cells = row(truth, results)
                name = f"{kind} of {method}"
                print(f"| {truth} | {rows:,} | {len(results)} | {name} | {' | '.join(cells)} |", flush=True)
                if options.lines:
                    with options.lines.open("a", newline="") as file:
                        for ends, column in zip(RANGES, np.mean(results, axis=0).T, strict=True):
                            csv.writer(file).writerow([truth, rows, name, *ends, len(results), *column])


if __name__ == "__main__":
    main(sys.argv[1:])
