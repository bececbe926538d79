"""Divergence of probabilities from a known truth, from 10,000 to 100 million rows: docs/truths.csv.

    python benchmarks/truths.py --sizes 10000 100000 --draws 8
    python benchmarks/truths.py --sizes 100000000 --draws 2 --truths steps
    python benchmarks/truths.py --rare --draws 24       # expected over observed positives of a log

Scores are normal in log-odds, on a grid of a million points; the numbers of rows and positives at each point are drawn,
so a hundred million rows take as long as a million. The measure is the excess of the expected log loss over the
truth's, 1e-6 nats, with its standard error over draws. All methods see the same draws. The last column is the ratio of
the first method to the best of the others whose own form is not the truth, with its standard error by paired draws.

    smooth   a beta curve
    steps    eleven levels
    waves    log-odds that rise in waves; 2 % positives
    jump     the beta curve, with a jump of 1 in its log-odds
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
import warnings

import numpy as np
from _measure import print_machine
from arena import venn_abers
from scipy.optimize import brentq
from scipy.special import expit, ndtri

from calibrators.base import Sampling
from calibrators.core.passes import Points
from pipeline.fit.calibration import make_calibrator

GRID, SMALL_GRID = 1_000_000, 200_000


def skewed(z: np.ndarray) -> np.ndarray:
    return 1.6 * np.log(expit(z)) - 0.4 * np.log(expit(-z)) + 0.5


TRUTHS = {
    "smooth": (skewed, 0.0),
    "steps": (lambda z: 1.2 * np.floor(0.8 * z) + 0.5, 0.0),
    "waves": (lambda z: z + 0.8 * np.sin(2 * z), -5.2),
    "jump": (lambda z: skewed(z) + 1.0 * (z > 0.7), 0.0),
}
METHODS = {
    "auto": ("auto", {}),
    "smooth": ("smooth", {}),
    "isotonic": ("isotonic", {}),
    "strict": ("isotonic", {"strict": True}),
    "beta": ("beta", {}),
    "abb": ("abb", {}),
    "platt": ("platt", {}),
    "logistic": ("platt", {"input": "logit"}),
}
FORMS = {"smooth": ("beta",)}
"""Methods whose own form a truth has: the first method is compared with the best of the others."""
CONTENDERS = [*METHODS, *(["venn-abers"] if importlib.util.find_spec("venn_abers") else [])]
MOST_ROWS = 2_000_000
RARE = {  # rows, share of positives, sampling rate of the negatives
    "10 in 10,000": (10_000, 1e-3, 1.0),
    "100 in 10,000": (10_000, 1e-2, 1.0),
    "100 in 100,000": (100_000, 1e-3, 1.0),
    "20 in 20,000, 10 % of negatives": (20_000, 1e-3, 0.1),
    "1,000 in 1,000,000, 1 %": (1_000_000, 1e-3, 0.01),
    "200 in 2,000,000, 0.1 %": (2_000_000, 1e-4, 0.001),
}
SHAPES = {
    "as it is": lambda z: z,
    "halved": lambda z: 0.5 * z,
    "skewed": skewed,
    "steps": TRUTHS["steps"][0],
    "waves": TRUTHS["waves"][0],
}


def draw_rows(truth: str, rows: int, draw: int) -> tuple[Points, np.ndarray, np.ndarray]:
    """Draw rows; return their points, and the score and the true probability at each point of the grid."""
    log_odds, shift = TRUTHS[truth]
    z = 2 * ndtri((np.arange(GRID) + 0.5) / GRID)
    p, score = expit(log_odds(z) + shift), expit(z + shift)
    rng = np.random.default_rng([list(TRUTHS).index(truth), rows, draw])
    weight = rng.poisson(rows / GRID, GRID)
    positives = rng.binomial(weight, p)
    some = weight > 0
    return Points(score[some], weight[some].astype(float), positives[some].astype(float)), score, p


def predicted(name: str, points: Points, score: np.ndarray) -> np.ndarray:
    if name == "venn-abers":  # the package takes rows instead of counts
        if points.weight.sum() > MOST_ROWS:
            return np.full(score.size, np.nan)
        rows = np.repeat(points.score, points.weight.astype(int))
        counts = np.column_stack([points.positives, points.weight - points.positives]).ravel().astype(int)
        return venn_abers(rows, np.repeat(np.arange(counts.size) % 2 == 0, counts))(score)
    method, parameters = METHODS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make_calibrator(method, parameters).fit_points(points).predict(score)


def excess(p: np.ndarray, q: np.ndarray) -> float:
    """Return the mean divergence from the truth p, 1e-6 nats."""
    q = np.clip(q, 1e-12, 1 - 1e-12)
    return 1e6 * float(np.mean(p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))))


def ratio(samples: np.ndarray, others: list[int], methods: list[str]) -> str:
    """Return the ratio of the first method's mean excess to the least of the others'."""
    if not others:
        return ""
    best = others[int(np.nanargmin(samples[:, others].mean(axis=0)))]
    first, least = samples[:, 0], samples[:, best]
    quotient = first.mean() / least.mean()
    error = np.std(first - quotient * least, ddof=1) / len(samples) ** 0.5 / least.mean()
    return f"{quotient:.2f} ± {error:.2f} ({methods[best]})"


def totals(case: str, shape: str, method: str, draw: int) -> float:
    """Return the ratio of expected to observed positives of a log with rare positives."""
    rows, rate, sampling = RARE[case]
    z = 2 * ndtri((np.arange(SMALL_GRID) + 0.5) / SMALL_GRID)
    eta = SHAPES[shape](z)
    p = expit(eta + brentq(lambda shift: expit(eta + shift).mean() - rate, -60, 20))
    score = expit(z + np.log(rate / (1 - rate)))
    rng = np.random.default_rng([rows, draw, list(SHAPES).index(shape)])
    weight = rng.multinomial(rows, np.full(SMALL_GRID, 1 / SMALL_GRID))
    positives = rng.binomial(weight, p)
    weight = positives + rng.binomial(weight - positives, sampling)
    some = weight > 0
    points = Points(score[some], weight[some].astype(float), positives[some].astype(float))
    name, parameters = METHODS[method]
    expected = make_calibrator(name, parameters).fit_points(points, Sampling(sampling)).predict(score).mean()
    return float(expected * rows / positives.sum())


def rare(methods: list[str], draws: int) -> None:
    """Print the mean ratio of the worst shape, as CSV."""
    print(",".join(["rare events", "draws", *methods]))
    for case in RARE:
        cells = []
        for method in methods:
            ratios = np.array([[totals(case, shape, method, k) for k in range(draws)] for shape in SHAPES])
            worst = int(np.argmax(np.abs(np.log(ratios.mean(axis=1)))))
            error = ratios[worst].std(ddof=1) / draws**0.5
            cells.append(f"{ratios[worst].mean():.3f} ± {error:.3f}")
        print(f'"{case}",{draws},{",".join(cells)}', flush=True)


def main(arguments: list[str]) -> None:
    """Measure, and print lines of CSV."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", nargs="+", type=int, default=[10_000, 100_000, 1_000_000, 100_000_000])
    parser.add_argument("--truths", nargs="+", default=list(TRUTHS), choices=TRUTHS)
    parser.add_argument("--methods", nargs="+", default=CONTENDERS, choices=CONTENDERS)
    parser.add_argument("--draws", type=int, default=4)
    parser.add_argument("--rare", action="store_true")
    options = parser.parse_args(arguments)
    print_machine()
    if options.rare:
        rare([name for name in options.methods if name in METHODS], options.draws)
        return
    print(",".join(["truth", "rows", "draws", *options.methods, "seconds of the first", "ratio"]))
    for rows in options.sizes:
        for truth in options.truths:
            others = [i for i, n in enumerate(options.methods) if i and n not in FORMS.get(truth, ())]
            samples, seconds = [], 0.0
            for draw in range(options.draws):
                points, score, p = draw_rows(truth, rows, draw)
                start = time.process_time()
                row = [excess(p, predicted(options.methods[0], points, score))]
                seconds += time.process_time() - start
                samples.append(row + [excess(p, predicted(n, points, score)) for n in options.methods[1:]])
            mean, error = np.mean(samples, axis=0), np.std(samples, axis=0, ddof=1) / options.draws**0.5
            cells = [f"{m:.1f} ± {e:.1f}" for m, e in zip(mean, error, strict=True)]
            print(
                ",".join(
                    [
                        *(truth, str(rows), str(options.draws), *cells, f"{seconds / options.draws:.1f}"),
                        ratio(np.array(samples), others, options.methods),
                    ]
                ),
                flush=True,
            )


if __name__ == "__main__":
    main(sys.argv[1:])
