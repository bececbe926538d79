"""Held-out losses of calibrators on predictions of real data sets, by pairs of methods and by size.

    python benchmarks/arena.py                                # data sets of scikit-learn
    python benchmarks/arena.py --data FOLDER --half confirm   # and a Parquet file per data set, with a column `label`
    python benchmarks/arena.py --methods auto isotonic beta --largest 5000

Six kinds of models are trained on a third of each data set (at most 2,500 rows). Calibrators are fitted to the scores
of most other rows and evaluated on the rest. Sets with fewer than 3,000 rows are divided twice; large sets are also
used with fewer rows. A win rate is over all pairs of methods and experiments in which both have a result; its 95 %
interval is a bootstrap over data sets. Excess is over the best method of an experiment. `--half` takes every second
data set in alphabetical order: methods are developed on one half and confirmed on the other.

Peers (betacal, splinecalib, catboost, lightgbm, venn-abers) take part if they are installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from _measure import print_machine
from sklearn import datasets
from sklearn.ensemble import ExtraTreesClassifier, HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.impute import SimpleImputer
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from pipeline.fit.calibration import make_calibrator

TRAINING, CALIBRATION, TEST = 2500, 50_000, 25_000
SIZES = (400, 2000, 12_000)
FEWEST = 5
LEAST = 1e-9
DRAWS = 2000
PARTS = {"all": (0, 10**9), "below 1,000": (0, 1000), "to 10,000": (1000, 10_001), "above": (10_001, 10**9)}
LOWEST_LOG = np.log(np.finfo(np.float32).tiny)

CANDIDATES = ["platt", "isotonic", "enir", "bbq", "abb"]
OURS = {
    "auto": ("auto", {}),
    "smooth": ("smooth", {"max_error": 1e-6}),
    "isotonic": ("isotonic", {}),
    "strict": ("isotonic", {"strict": True}),
    "abb": ("abb", {}),
    "enir": ("enir", {}),
    "bbq": ("bbq", {}),
    "beta": ("beta", {}),
    "platt, logit": ("platt", {"input": "logit"}),
    "auto, candidates": ("auto", {"candidates": CANDIDATES}),
}

Predict = Callable[[np.ndarray], np.ndarray]


class Experiment(NamedTuple):
    """Scores and labels of the rows for calibration and of the rows for testing."""

    name: str
    data: str
    scores: np.ndarray
    labels: np.ndarray
    test_scores: np.ndarray
    test_labels: np.ndarray


# Methods


def ours(method: str, parameters: dict[str, Any]) -> Callable[[np.ndarray, np.ndarray], Predict]:
    return lambda s, y: make_calibrator(method, parameters).fit(s, y).predict


def logit(s: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.clip(np.log(s), LOWEST_LOG, 0) - np.clip(np.log1p(-s), LOWEST_LOG, 0)


def logistic(*powers: int) -> Callable[[np.ndarray, np.ndarray], Predict]:
    def fit(s: np.ndarray, y: np.ndarray) -> Predict:
        def features(t: np.ndarray) -> np.ndarray:
            return np.stack([logit(t) ** power for power in powers], axis=1)

        model = LogisticRegression(C=np.inf, fit_intercept=False).fit(features(s), y)
        return lambda t: model.predict_proba(features(t))[:, 1]

    return fit


def plain_isotonic(s: np.ndarray, y: np.ndarray) -> Predict:
    return IsotonicRegression(out_of_bounds="clip").fit(s, y).predict


def betacal(s: np.ndarray, y: np.ndarray) -> Predict:
    from betacal import BetaCalibration

    return BetaCalibration("abm").fit(s, y).predict


def spline(s: np.ndarray, y: np.ndarray) -> Predict:
    from splinecalib import SplineCalib

    model = SplineCalib()
    model.fit(np.stack([1 - s, s], axis=1), y.astype(int))

    def predict(t: np.ndarray) -> np.ndarray:
        p = model.calibrate(np.stack([1 - t, t], axis=1))
        return p[:, 1] if p.ndim == 2 else p

    return predict


def catboost(s: np.ndarray, y: np.ndarray) -> Predict:
    from catboost import CatBoostClassifier

    model = CatBoostClassifier(
        verbose=0,
        allow_writing_files=False,
        iterations=100,
        depth=3,
        monotone_constraints="(1)",
        thread_count=1,
    ).fit(logit(s)[:, None], y.astype(int))
    return lambda t: model.predict_proba(logit(t)[:, None])[:, 1]


def venn_abers(s: np.ndarray, y: np.ndarray) -> Predict:
    from venn_abers import VennAbers

    model = VennAbers()
    model.fit(np.stack([1 - s, s], axis=1), y.astype(int))
    return lambda t: model.predict_proba(np.stack([1 - t, t], axis=1))[0][:, 1]


PEERS = {
    "as it is": (None, lambda s, y: lambda t: t),
    "scikit-learn isotonic": (None, plain_isotonic),
    "logistic": (None, logistic(0, 1)),
    "quadratic logistic": (None, logistic(0, 1, 2)),
    "betacal": ("betacal", betacal),
    "splinecalib": ("splinecalib", spline),
    "catboost, monotone": ("catboost", catboost),
    "venn-abers": ("venn_abers", venn_abers),
}


def methods(chosen: list[str]) -> dict[str, Callable[[np.ndarray, np.ndarray], Predict]]:
    """Return the chosen methods, or all; print which peers are not installed."""
    fits = {name: ours(*arguments) for name, arguments in OURS.items()}
    for name, (package, fit) in PEERS.items():
        if package is None or importlib.util.find_spec(package):
            fits[name] = fit
        else:
            print(f"{name}: {package} is not installed")
    return {name: fit for name, fit in fits.items() if not chosen or name in chosen}


# Predictions


def tables(folder: str | None) -> Iterator[tuple[str, Callable[[], tuple[np.ndarray, np.ndarray]]]]:
    """Yield the names of data sets with functions that read them."""
    digits = datasets.load_digits()
    yield "sk_breast", lambda: datasets.load_breast_cancer(return_X_y=True)
    yield "sk_digits_high", lambda: (digits.data, digits.target >= 5)
    yield "sk_digits_eight", lambda: (digits.data, digits.target == 8)
    for number, (rows, rate, flips) in enumerate(
        [(6000, 0.5, 0.1), (20_000, 0.1, 0.02), (60_000, 0.02, 0.01)]
    ):
        yield (
            f"sk_made_{number}",
            lambda rows=rows, rate=rate, flips=flips: datasets.make_classification(
                rows, 20, n_informative=8, weights=[1 - rate], flip_y=flips, class_sep=0.8, random_state=0
            ),
        )
    for path in sorted(Path(folder).glob("*.parquet")) if folder else []:
        yield path.stem, lambda path=path: read(path)


def read(path: Path) -> tuple[np.ndarray, np.ndarray]:
    frame = pd.read_parquet(path)
    most = TRAINING + CALIBRATION + TEST
    if len(frame) > most:
        frame = frame.sample(most, random_state=0)
    y = frame.pop("label").to_numpy().astype(bool)
    frame = frame.drop(columns=["split"], errors="ignore")
    text = [c for c in frame if not pd.api.types.is_numeric_dtype(frame[c])]
    frame = pd.get_dummies(frame, columns=text)
    return frame.loc[:, frame.notna().any()].to_numpy(np.float32, na_value=np.nan), y


def models(seed: int) -> dict[str, Any]:
    scaled = [SimpleImputer(strategy="median"), StandardScaler()]
    boosted: Any = HistGradientBoostingClassifier(max_iter=60, max_leaf_nodes=15, random_state=seed)
    if importlib.util.find_spec("lightgbm"):
        import lightgbm

        boosted = lightgbm.LGBMClassifier(
            n_estimators=60, num_leaves=15, min_child_samples=10, n_jobs=1, verbose=-1
        )
    trees = RandomForestClassifier if seed % 2 else ExtraTreesClassifier
    return {
        "boosted": boosted,
        "forest": make_pipeline(
            SimpleImputer(strategy="median"), trees(60, min_samples_leaf=2, random_state=seed)
        ),
        "linear": make_pipeline(*scaled, LogisticRegression(max_iter=200)),
        "bayes": make_pipeline(*scaled, GaussianNB()),
        "network": make_pipeline(*scaled, MLPClassifier((32,), max_iter=40, random_state=seed)),
        "neighbours": make_pipeline(
            *scaled, KNeighborsClassifier(15, weights="distance" if seed % 2 else "uniform")
        ),
    }


def predictions(name: str, x: np.ndarray, y: np.ndarray, number: int) -> Iterator[Experiment]:
    rng = np.random.default_rng(number)
    train = min(TRAINING, len(y) // 3)
    cal = min(CALIBRATION, int((0.65 if len(y) > 40_000 else 0.6) * (len(y) - train)))
    for split in range(2 if len(y) < 3000 else 1):
        order = rng.permutation(len(y))
        a, b, c = order[:train], order[train : train + cal], order[train + cal :]
        if min(y[a].sum(), (~y[a]).sum()) < FEWEST or len(c) < 80:
            continue
        for kind, model in models(number + split).items():
            model.fit(x[a], y[a])
            p = model.predict_proba(x[np.concatenate([b, c])])[:, 1].astype(np.float64)
            for n in [cal, *(size for size in SIZES if cal > max(2.4 * size, 4000))]:
                few = min(y[b[:n]].sum(), n - y[b[:n]].sum())
                if few >= FEWEST and np.unique(p[:n]).size >= FEWEST:
                    yield Experiment(f"{name} {kind} {split} {n}", name, p[:n], y[b[:n]], p[cal:], y[c])


def losses(p: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Log loss and Brier score."""
    p = np.clip(p, LEAST, 1 - LEAST)
    return -float(np.mean(np.where(y, np.log(p), np.log1p(-p)))), float(np.mean((p - y) ** 2))


# Tables


def wins(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    won = (first < second) + 0.5 * (first == second)
    return np.where(np.isnan(first) | np.isnan(second), np.nan, won)


def interval(won: np.ndarray, names: np.ndarray, rng: np.random.Generator) -> tuple[float, float]:
    """Return the 95 % bootstrap interval, over data sets, of a win rate. won : shape (experiments, other methods)."""
    sums = pd.DataFrame({"w": np.nansum(won, axis=1), "n": (~np.isnan(won)).sum(axis=1)}).groupby(names).sum()
    drawn = sums.to_numpy()[rng.integers(0, len(sums), (DRAWS, len(sums)))].sum(axis=1)
    low, high = np.quantile(drawn[:, 0] / drawn[:, 1], [0.025, 0.975])
    return float(low), float(high)


def summary(results: pd.DataFrame) -> None:
    """Print win rates, excess and seconds by size; and the win rate of the first method over each other one."""
    rng = np.random.default_rng(0)
    first = results.method.iloc[0]
    for part, (low, high) in PARTS.items():
        chosen = results[(results.rows >= low) & (results.rows < high)]
        if not len(chosen):
            continue
        wide = chosen.pivot_table(index="experiment", columns="method", values="log_loss", sort=False)
        brier = chosen.pivot_table(index="experiment", columns="method", values="brier", sort=False)
        names = chosen.drop_duplicates("experiment").set_index("experiment").data.loc[wide.index].to_numpy()
        seconds = chosen.groupby("method").seconds.mean()
        excess = 1e3 * wide.sub(wide.min(axis=1), axis=0).mean()
        excess_brier = 1e3 * brier.sub(brier.min(axis=1), axis=0).mean()
        print(f"\n{part}: {len(wide)} experiments, {len(set(names))} data sets")
        print(
            "| method | wins | excess log loss, 1e-3 | excess Brier, 1e-3 | wins of the first over it | s |"
        )
        print("|---|---|---|---|---|---|")
        rows = []
        for name in wide:
            losses_of = wide[[name]].to_numpy()
            won = wins(losses_of, wide.drop(columns=name).to_numpy())
            beaten = ""
            if name != first:
                pair = wins(wide[[first]].to_numpy(), losses_of)
                beaten = "{:.2f} [{:.2f}, {:.2f}]".format(np.nanmean(pair), *interval(pair, names, rng))
            limits = "[{:.2f}, {:.2f}]".format(*interval(won, names, rng))
            cells = (
                f"{np.nanmean(won):.3f} {limits} | {excess[name]:.2f} | {excess_brier[name]:.2f} | {beaten}"
            )
            rows.append((np.nanmean(won), f"| {name} | {cells} | {seconds[name]:.3f} |"))
        print("\n".join(row for _, row in sorted(rows, reverse=True)))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", help="a folder of Parquet files, each a data set")
    parser.add_argument(
        "--half", choices=("develop", "confirm"), help="every second data set in alphabetical order"
    )
    parser.add_argument(
        "--methods", nargs="*", default=[], help="names as in the table; the first is compared"
    )
    parser.add_argument("--largest", type=int, default=CALIBRATION, help="most calibration rows")
    parser.add_argument("--csv", help="a file for all losses")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    print_machine()
    contenders = methods(options.methods)
    rows = []
    for number, (name, make) in enumerate(sorted(tables(options.data))):
        if options.half and (number % 2 == 0) != (options.half == "develop"):
            continue
        x, y = make()
        for e in predictions(name, np.asarray(x, np.float32), np.asarray(y).astype(bool), number):
            if len(e.labels) > options.largest:
                continue
            for method, fit in contenders.items():
                start = time.process_time()
                try:
                    loss, brier = losses(np.asarray(fit(e.scores, e.labels)(e.test_scores)), e.test_labels)
                except Exception as error:  # noqa: BLE001  a peer that fails has no result, and is printed
                    print(f"{method} on {e.name}: {error!r:.150}")
                    loss = brier = np.nan
                rows.append((method, e.name, e.data, len(e.labels), loss, brier, time.process_time() - start))
    columns = ["method", "experiment", "data", "rows", "log_loss", "brier", "seconds"]
    results = pd.DataFrame(rows, columns=columns)
    if options.csv:
        results.to_csv(options.csv, index=False)
    summary(results)


if __name__ == "__main__":
    main()
