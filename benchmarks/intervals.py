"""How often an interval holds the true probability at a score, and how wide it is, where the truth is known.

    python benchmarks/intervals.py                     # the table of docs/statistics.md: some minutes
    python benchmarks/intervals.py --sizes 1000 --draws 100

Scores are normal on log-odds, at 20,000 places; numbers of rows and positives at each are drawn. 'posterior' is of
`auto` and of `smooth`, 'band' and 'venn_abers' of `isotonic`.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np
from _measure import print_machine
from scipy.special import expit, ndtri

from calibrators.arithmetic.passes import Points, run_in_memory
from calibrators.methods.intervals import interval_passes
from pipeline.fit.calibration import make_calibrator

PLACES = 20_000
TRUTHS = {
    "smooth": lambda z: 0.6 * z - 0.5 + 0.15 * np.sin(z),
    "steps": lambda z: 1.2 * np.floor(0.8 * z) + 0.5,
    "rare, waves": lambda z: z + 0.5 * np.sin(2 * z) - 5.2,
}
KINDS = (("posterior", "auto"), ("posterior", "smooth"), ("band", "isotonic"), ("venn_abers", "isotonic"))


def drawn(truth: str, rows: int, seed: int) -> tuple[Points, np.ndarray]:
    """Points of so many rows, and the true probability at each place."""
    rng = np.random.default_rng([seed, rows])
    z = 2 * ndtri((np.arange(PLACES) + 0.5) / PLACES)
    p = expit(TRUTHS[truth](z))
    weight = rng.multinomial(rows, np.full(PLACES, 1 / PLACES))
    positives = rng.binomial(weight, p)
    some = weight > 0
    score = expit(z - (5.2 if truth.startswith("rare") else 0.0))
    return Points(score[some], weight[some].astype(float), positives[some].astype(float)), np.stack(
        [score, p]
    )


def held(kind: str, method: str, points: Points, truth: np.ndarray) -> tuple[float, float] | None:
    """The share of the rows to come whose probability is held, and the mean width over their mean probability."""
    made = make_calibrator(method, {}).fit_points(points)
    one = made.calibration_map_
    if kind == "posterior":
        interval = made.posterior_.interval(one)
    else:
        interval = run_in_memory(interval_passes(kind, one), points)
    if interval is None:
        return None
    lower, upper = interval.at(one.score_hi, truth[0])
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
    given = parser.parse_args(arguments)
    print_machine()
    print("| truth | rows | draws | " + " | ".join(f"{kind} of {method}" for kind, method in KINDS) + " |")
    for truth in TRUTHS:
        for rows, share in zip(given.sizes, (1, 4, 10), strict=False):
            draws = max(1, given.draws // share)
            samples = [drawn(truth, rows, seed) for seed in range(draws)]
            samples = [(points, p) for points, p in samples if points.positives.sum() > 1]
            cells = []
            for kind, method in KINDS:
                found = [own for points, p in samples if (own := held(kind, method, points, p)) is not None]
                cover, width = np.mean(found, axis=0)
                error = np.std([c for c, _ in found]) / len(found) ** 0.5
                cells.append(f"{100 * cover:.1f} ± {100 * error:.1f} % ({width:.3f})")
            print(f"| {truth} | {rows:,} | {len(samples)} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
