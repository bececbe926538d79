"""Parallel efficiency of `logcal generate` with two workers, for repeats that take more than 5 seconds.

The data are simulated numbers and a label, equal in every run. Times are those of the jobs' manifests, without the
cluster's start; runs with one and two workers alternate. Efficiency is the time with one worker over twice the time
with two. On a busy machine it says little; the share of the time in which both workers train is then an upper bound on
logcal's own efficiency.

    python benchmarks/generate.py [--rows 60000] [--trees 60] [--repeats 11] [--turns 3]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

FEATURES = 20


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=60_000)
    parser.add_argument("--trees", type=int, default=60)
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--turns", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data.parquet"
        write_data(data, arguments.rows)
        seconds: dict[int, list[float]] = {1: [], 2: []}
        repeats: list[float] = []
        busy: list[float] = []
        for turn in range(arguments.turns):
            for workers, times in seconds.items():
                manifest = run(data, Path(folder) / f"out-{turn}-{workers}", workers, arguments)
                times.append(manifest["seconds"])
                tasks = [file["seconds"] for file in manifest["files"]]
                if workers == 1:
                    repeats += tasks
                else:
                    busy.append((sum(tasks) + manifest["classifier_seconds"]) / (2 * manifest["seconds"]))
    ratios = [alone / (2 * both) for alone, both in zip(seconds[1], seconds[2], strict=True)]
    print(f"{arguments.rows:,} rows, {FEATURES} features, random forests of {arguments.trees} trees")
    print(
        f"{arguments.repeats} repeats of {statistics.median(repeats):.1f} s (one worker), and one on all rows"
    )
    for workers, times in seconds.items():
        print(f"{workers} workers: {statistics.median(times):.1f} s ({min(times):.1f} to {max(times):.1f})")
    print(f"share of the time in which two workers trained: {statistics.median(busy):.2f}")
    print(f"parallel efficiency: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


def write_data(path: Path, rows: int) -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(FEATURES, rows))
    chance = 1 / (1 + np.exp(-values[:5].sum(axis=0)))
    columns = {f"x{i}": column for i, column in enumerate(values)}
    pq.write_table(pa.table({**columns, "label": (rng.random(rows) < chance).astype(np.int8)}), path)


def run(data: Path, output: Path, workers: int, arguments: argparse.Namespace) -> dict:
    settings = [
        f"data.path={data}",
        f"output.path={output}",
        "estimator.class=sklearn.ensemble.RandomForestClassifier",
        f"estimator.params={{n_estimators: {arguments.trees}, min_samples_leaf: 20}}",
        "estimator.imputation=none",
        f"generate.repeats={arguments.repeats}",
        "cluster.kind=local",
        f"cluster.workers={workers}",
    ]
    command = [
        sys.executable,
        "-m",
        "jobs",
        "generate",
        *(part for text in settings for part in ("--set", text)),
    ]
    subprocess.run(command, check=True, capture_output=True)
    return json.loads((output / "_logcal.json").read_text())


if __name__ == "__main__":
    main()
