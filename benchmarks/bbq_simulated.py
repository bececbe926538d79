"""BBQ on the simulated data of its paper, against the numbers that the authors' code printed.

    python benchmarks/bbq_simulated.py simulated_bbq.parquet

The file contains the 1000 training and 1000 test points that the authors published with their code
(github.com/pakdaman/calibration, BBQ/data.mat): two features, `label`, and `split` (train or test). BBQ is fitted to
the training scores: sigmoids of the margins of a linear SVM (C = 1).
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.special import expit
from sklearn.svm import SVC

from calibrators.binning.bbq import BBQ
from calibrators.measures.in_memory import measure

AUTHORS = {
    "scores": (0.5313, 0.6530, 0.5135, 0.2681, 0.8180),
    "BBQ": (0.8585, 0.7860, 0.3840, 0.0438, 0.1522),
}
METHODS = {
    "paper": BBQ(),
    "paper, all models": BBQ(rho=None),
    "per bin": BBQ(prior="per_bin"),
    "authors": BBQ(reference="authors"),
}


def print_measures(name: str, probability: np.ndarray, label: np.ndarray) -> None:
    m = measure(label, probability)
    print_row(name, (m.auc, m.accuracy, m.rmse, m.ece_frequency, m.mce_frequency))


def print_row(name: str, values: tuple[float, ...]) -> None:
    print(f"{name:<32}" + "".join(f"{value:9.4f}" for value in values))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    table = pd.read_parquet(parser.parse_args().data)
    train = (table.pop("split") == "train").to_numpy()
    y = table.pop("label").to_numpy()
    X = table.to_numpy()
    svm = SVC(C=1, kernel="linear").fit(X[train], y[train])
    s, t = (expit(svm.decision_function(X[rows])) for rows in (train, ~train))
    print(" " * 32 + "".join(f"{name:>9}" for name in ("AUC", "ACC", "RMSE", "ECE", "MCE")))
    print_measures("scores", t, y[~train])
    for name, method in METHODS.items():
        print_measures(f"BBQ ({name})", method.fit(s, y[train]).predict(t), y[~train])
    for name, values in AUTHORS.items():
        print_row(f"printed by the authors: {name}", values)


if __name__ == "__main__":
    main()
