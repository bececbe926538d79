"""The best expected number of cuts of SBB and ABB: held-out log loss over data sets.

    python benchmarks/bayesian_binning_prior.py FOLDER [--repeats 5] [--size 600]

FOLDER contains a Parquet file per data set: feature columns and a 0/1 column `label` (a column `split` is ignored). In
each repeat a data set is shuffled and split into a training part, a calibration part of at most --size rows and a
held-out part of at most 5000. Gaussian naive Bayes and logistic regression are trained, their scores
calibrated with each candidate, and the log loss on the held-out part is averaged over repeats and classifiers. The
choice is the candidate with the lowest mean over data sets.
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from calibrators.bayesian_binning.abb import ABB
from calibrators.bayesian_binning.sbb import SBB
from calibrators.isotonic.calibrator import Isotonic
from calibrators.sigmoid.platt import Platt

CANDIDATES = [0.5, 1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 100, 200]
MOST_FEATURES = 500
MOST_ROWS = 20_000


def features_and_labels(path: Path) -> tuple[np.ndarray, np.ndarray]:
    table = pd.read_parquet(path)
    y = table.pop("label").to_numpy().astype(int)
    table = table.drop(columns=["split"], errors="ignore")
    numbers = pd.get_dummies(table, dummy_na=False).astype(float)
    return numbers.fillna(numbers.mean()).fillna(0.0).to_numpy(), y


def log_loss(p: np.ndarray, y: np.ndarray) -> float:
    p = np.clip(p, 1e-6, 1 - 1e-6)
    return float(-np.mean(np.log(np.where(y == 1, p, 1 - p))))


def splits(n: int, size: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    order = rng.permutation(n)[:MOST_ROWS]
    calibration = min(size, order.size // 3)
    train = max(order.size // 3, min(order.size - calibration - 5000, 5000))
    return order[:train], order[train : train + calibration], order[train + calibration :][:5000]


def losses(x: np.ndarray, y: np.ndarray, size: int, seed: int) -> list[dict[tuple[str, float], float]]:
    train, calibration, held_out = splits(y.size, size, np.random.default_rng(seed))
    if min(np.bincount(y[train], minlength=2).min(), np.bincount(y[calibration], minlength=2).min()) < 2:
        return []
    rows_of_losses = []
    for classifier in (GaussianNB(), make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))):
        classifier.fit(x[train], y[train])
        s, t = (classifier.predict_proba(x[rows])[:, 1] for rows in (calibration, held_out))
        row = {("none", 0.0): log_loss(t, y[held_out])}
        for name, method in (("isotonic", Isotonic()), ("platt", Platt("logit", max_error=1e-6))):
            row[name, 0.0] = log_loss(method.fit(s, y[calibration]).predict(t), y[held_out])
        for name, method in (("abb", ABB), ("sbb", SBB)):
            for cuts in CANDIDATES:
                fitted = method(expected_cuts=cuts).fit(s, y[calibration])
                row[name, cuts] = log_loss(fitted.predict(t), y[held_out])
        rows_of_losses.append(row)
    return rows_of_losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--size", type=int, default=600)
    options = parser.parse_args()
    table = {}
    for path in sorted(options.folder.glob("*.parquet")):
        x, y = features_and_labels(path)
        if x.shape[1] > MOST_FEATURES:
            continue
        rows = [row for seed in range(options.repeats) for row in losses(x, y, options.size, seed)]
        if rows:
            table[path.stem] = pd.DataFrame(rows).mean()
            print(path.stem, len(rows), flush=True)
    losses_by_set = pd.DataFrame(table).T
    losses_by_set.columns = pd.MultiIndex.from_tuples(losses_by_set.columns)
    print(f"\n{len(losses_by_set)} data sets, calibration parts of at most {options.size} rows")
    print(pd.DataFrame({"mean log loss": losses_by_set.mean()}).round(5).to_string())
    for name in ("abb", "sbb"):
        losses_of = losses_by_set[name]
        ranks = losses_of.rank(axis=1).mean()
        print(f"{name}: lowest mean at {losses_of.mean().idxmin():g}, lowest mean rank at {ranks.idxmin():g}")
        print(ranks.round(2).to_string())


if __name__ == "__main__":
    main()
