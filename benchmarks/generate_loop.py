"""`logcal generate` against a joblib loop of the same fits; whole processes, in turns.

The loop splits, trains and scores, and saves the scores; generate also trains the shipped classifier, writes a log and
the classifier, and finds the decision thresholds.

    python benchmarks/generate_loop.py [--rows 50000] [--turns 3]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from _measure import Contender, logcal, measure_interleaved, print_machine, print_table
from generate import FEATURES, write_data

CLASSIFIERS = {
    "sklearn.linear_model.LogisticRegression": 20,
    "sklearn.ensemble.HistGradientBoostingClassifier": 60,
}

LOOP = """
import importlib, sys
import numpy as np, pyarrow.parquet as pq
from joblib import Parallel, delayed
from sklearn.model_selection import train_test_split
from threadpoolctl import threadpool_limits

data, name, repeats, output = sys.argv[1:]
module, _, kind = name.rpartition(".")
table = pq.read_table(data)
x = np.column_stack([table.column(c).to_numpy() for c in table.column_names if c != "label"])
y = table.column("label").to_numpy()

def scores_of(seed):
    train, test = train_test_split(np.arange(len(y)), train_size=0.7, random_state=seed)
    with threadpool_limits(1):
        fitted = getattr(importlib.import_module(module), kind)().fit(x[train], y[train])
    return fitted.predict_proba(x[test])[:, 1]

np.save(output, np.concatenate(Parallel(n_jobs=2)(delayed(scores_of)(seed) for seed in range(int(repeats) + 1))))
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--turns", type=int, default=3)
    arguments = parser.parse_args()
    print_machine()
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data.parquet"
        write_data(data, arguments.rows)
        for name, repeats in CLASSIFIERS.items():
            print(f"\n{name}, {repeats} repeats of {arguments.rows:,} rows x {FEATURES}, and one on all rows")
            results = measure_interleaved(
                [
                    Contender(
                        "joblib",
                        [sys.executable, "-c", LOOP, str(data), name, str(repeats), f"{folder}/s.npy"],
                    ),
                    _ours(data, name, repeats, Path(folder)),
                ],
                arguments.turns,
            )
            print_table(results, against="joblib")


def _ours(data: Path, name: str, repeats: int, folder: Path) -> Contender:
    output = folder / "generated"

    def clear() -> None:
        if output.exists():
            output.rename(tempfile.mkdtemp(dir=folder) + "/generated")

    settings = (
        f"data.path={data}",
        f"output.path={output}",
        f"estimator.class={name}",
        "estimator.imputation=none",
        f"generate.repeats={repeats}",
        "cluster.workers=2",
    )
    return Contender("logcal generate", logcal("generate", *settings), clear)


if __name__ == "__main__":
    main()
