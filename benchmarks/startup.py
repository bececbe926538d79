"""What a run costs before it does anything: `logcal --help`, and a fit of 100,000 rows on threads and on processes.

    python benchmarks/startup.py

Whole processes with numba's cache warm; medians of runs in turns.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from _measure import Contender, measure_interleaved, print_machine, print_table

LOGCAL = str(Path(sys.executable).with_name("logcal"))
ROWS = 100_000
RUNS = 5


def main() -> None:
    """Measure, and print a table."""
    print_machine()
    folder = Path(tempfile.mkdtemp(prefix="logcal-startup-"))
    generator = np.random.default_rng(0)
    score = generator.random(ROWS)
    label = (generator.random(ROWS) < score).astype(np.int8)
    pq.write_table(pa.table({"score": score, "label": label}), folder / "log.parquet")
    store = ["--set", f"log.path={folder / 'log.parquet'}", "--set", f"store.path={folder / 'store'}"]
    fit = [LOGCAL, "fit", *store, "--set", "store.table=bench", "--set"]

    def clear() -> None:
        shutil.rmtree(folder / "store", ignore_errors=True)

    contenders = [
        Contender("python -c pass", [sys.executable, "-c", "pass"]),
        Contender("logcal --help", [LOGCAL, "--help"]),
        Contender("logcal fit, 100,000 rows, as it comes", [*fit, "cluster.kind=auto"], clear),
        Contender(
            "logcal fit, 100,000 rows, cluster.kind=local", [*fit, "cluster={kind: local, workers: 2}"], clear
        ),
    ]
    try:
        print_table(measure_interleaved(contenders, RUNS), against="python -c pass")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
