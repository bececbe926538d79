"""Segments whose rates go with their sizes: partial pooling against an empirical-Bayes logistic regression.

    python benchmarks/segments_sizes.py                       # 20,000 to 1 million rows, three spreads, five seeds
    python benchmarks/segments_sizes.py --correlation 0       # sizes independent of rates

200 segments with log-normal sizes (standard deviation 1.5 in logs). Their shifts correlate with the logs of their
sizes, so large segments convert better. The truth of a segment is a line in the log odds of the score, which is the
regression's own form: it has random intercepts and slopes with a free mean and covariance, fitted by adaptive
Gauss-Hermite quadrature; probabilities are posterior means. It does not know that sizes go with rates. Scores are
rounded to .02 in log odds, so both see the same scores. The measure is the Kullback-Leibler divergence from the truth,
exactly over the scores' distribution, with rows weighed equally, and with segments weighed equally.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from _measure import print_machine
from scipy.optimize import minimize
from scipy.special import expit, logsumexp
from scipy.stats import norm
from segments_shrinkage import ours

SEGMENTS, CENTRE = 200, -2.5
X = np.arange(-150, 151) * 0.02
"""Scores' log odds, minus their centre."""

SHARE = np.diff(norm.cdf(np.append(X - 0.01, X[-1] + 0.01)))
SHARE = SHARE / SHARE.sum()
DESIGN = np.stack([np.ones_like(X), X])
FEW, MANY = 3, 7
"""Nodes for each dimension: for the likelihood, and for the probabilities."""


def quadrature(nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the nodes of a plane, and the logs of their weights over the normal density."""
    node, weight = np.polynomial.hermite_e.hermegauss(nodes)
    pairs, log_weight = np.array(list(itertools.product(node, node))), np.log(weight / weight.sum())
    return pairs, (log_weight[:, np.newaxis] + log_weight).ravel() + 0.5 * (pairs**2).sum(axis=1)


class RandomLines:
    """Logistic regression with a random intercept and slope for each segment.

    rows, positives : float arrays, shape (segments, scores)
    """

    def __init__(self, rows: np.ndarray, positives: np.ndarray) -> None:
        self._rows, self._positives = rows, positives
        self._theta = np.zeros((rows.shape[0], 2))
        self._theta[:] = CENTRE, 1.0

    def fit(self) -> np.ndarray:
        """Maximise the marginal likelihood; return the posterior means of the probabilities."""
        start = np.array([CENTRE, 1.0, np.log(0.5), 0.0, np.log(0.2)])
        found = minimize(lambda v: -self._nodes(v, FEW)[0], start, method="Nelder-Mead",
                         options={"xatol": 1e-3, "fatol": 1e-3, "maxfev": 2000, "adaptive": True})  # fmt: skip
        _, theta, log_mass = self._nodes(found.x, MANY)
        mass = np.exp(log_mass - logsumexp(log_mass, axis=1, keepdims=True))
        result = np.zeros_like(self._rows)
        for j in range(mass.shape[1]):
            result += mass[:, j, np.newaxis] * expit(theta[:, j] @ DESIGN)
        return result

    def _nodes(self, v: np.ndarray, nodes: int) -> tuple[float, np.ndarray, np.ndarray]:
        """Return the log marginal likelihood, and segments' nodes with the logs of their masses."""
        pairs, log_weight = quadrature(nodes)
        mean, root = v[:2], np.array([[np.exp(v[2]), 0.0], [v[3], np.exp(v[4])]])
        precision = np.linalg.inv(root @ root.T + 1e-10 * np.eye(2))
        self._theta, information = self._modes(mean, precision)
        spread = np.linalg.inv(np.linalg.cholesky(information)).transpose(0, 2, 1)
        theta = self._theta[:, np.newaxis] + pairs @ spread.transpose(0, 2, 1)
        log_mass = np.empty(theta.shape[:2])
        for j in range(theta.shape[1]):
            eta, away = theta[:, j] @ DESIGN, theta[:, j] - mean
            data = (self._positives * eta - self._rows * np.logaddexp(0.0, eta)).sum(axis=1)
            log_mass[:, j] = data - 0.5 * np.einsum("si,ij,sj->s", away, precision, away)
        scale = 0.5 * np.linalg.slogdet(precision)[1] - 0.5 * np.linalg.slogdet(information)[1]
        log_mass += log_weight
        return float((logsumexp(log_mass, axis=1) + scale).sum()), theta, log_mass

    def _modes(self, mean: np.ndarray, precision: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Find the likeliest lines by Newton's method, and minus the second derivatives there."""
        theta = self._theta
        for _ in range(50):
            p = expit(theta @ DESIGN)
            weight = self._rows * p * (1 - p)
            information = np.einsum("sb,ib,jb->sij", weight, DESIGN, DESIGN) + precision
            gradient = (self._positives - self._rows * p) @ DESIGN.T - (theta - mean) @ precision
            step = np.linalg.solve(information, gradient[..., np.newaxis])[..., 0]
            theta = theta + np.clip(step, -1.0, 1.0)
            if np.abs(step).max() < 1e-8:
                break
        return theta, information


def measured(rows: int, spread: float, correlation: float, seed: int) -> list[float]:
    """Draw a log and fit it with both; return their divergences: rows weighed equally, and segments."""
    random = np.random.default_rng([45, seed])
    size = random.normal(size=SEGMENTS)
    share = np.exp(1.5 * size) / np.exp(1.5 * size).sum()
    other = random.normal(size=SEGMENTS)
    shift = spread * (correlation * size + np.sqrt(1 - correlation**2) * other)
    slope = np.maximum(1.0 + 0.2 * random.normal(size=SEGMENTS), 0.1)
    truth = expit(CENTRE + shift[:, np.newaxis] + slope[:, np.newaxis] * X)
    segment = random.choice(SEGMENTS, rows, p=share)
    score = random.choice(X.size, rows, p=SHARE)
    label = random.random(rows) < truth[segment, score]
    counts, positives = np.zeros((SEGMENTS, X.size)), np.zeros((SEGMENTS, X.size))
    np.add.at(counts, (segment, score), 1.0)
    np.add.at(positives, (segment, score), label)

    folder = Path(tempfile.mkdtemp(prefix="logcal-sizes-"))
    try:
        (folder / "log").mkdir()
        table = pa.table({"score": X[score] + CENTRE, "label": label.astype(np.int8), "b": segment})
        pq.write_table(table, folder / "log" / "part-0.parquet")
        grid = np.tile(X + CENTRE, SEGMENTS), {"b": np.repeat(np.arange(SEGMENTS), X.size)}
        q = ours(folder, "t", ("b",), (), grid)[2].reshape(truth.shape)
    finally:
        shutil.rmtree(folder)
    known = (
        counts.sum(axis=1) > 0
    )  # an unseen segment has the map of all rows, and no effect in the regression
    result = []
    for p in (q, RandomLines(counts, positives).fit()):
        by_segment = np.array([divergence_over(t, e) for t, e in zip(truth, p, strict=True)])
        result += [float(by_segment[known] @ share[known] / share[known].sum()), by_segment[known].mean()]
    return result


def divergence_over(p: np.ndarray, q: np.ndarray) -> float:
    """Return the divergence over the distribution of scores, 1e-5 nats."""
    q = np.clip(q, 1e-9, 1 - 1e-9)
    return 1e5 * float(SHARE @ (p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))))


def main(arguments: list[str]) -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="*", default=[20_000, 200_000, 1_000_000])
    parser.add_argument("--spreads", type=float, nargs="*", default=[0.5, 1.0, 1.5])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--correlation", type=float, default=0.8)
    options = parser.parse_args(arguments)
    print_machine()
    print("| rows | spread | auto, rows | regression | ratio | auto, segments | regression | ratio |")
    print("|---" * 8 + "|")
    for rows, spread in itertools.product(options.rows, options.spreads):
        runs = [measured(rows, spread, options.correlation, seed) for seed in range(options.seeds)]
        a, b, c, d = np.mean(runs, axis=0)
        print(
            f"| {rows:,} | {spread} | {a:.1f} | {c:.1f} | {a / c:.2f} | {b:.1f} | {d:.1f} | {b / d:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1:])
