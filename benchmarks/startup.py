"""Start-up time: `logcal --help`, and fits of 100,000 rows on threads and on processes.

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
from _measure import LOGCAL, Contender, logcal, measure_interleaved, print_machine, print_table

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
    store = (f"log.path={folder / 'log.parquet'}", f"store.path={folder / 'store'}", "store.table=bench")

    def clear() -> None:
        shutil.rmtree(folder / "store", ignore_errors=True)

    contenders = [
        Contender("python -c pass", [sys.executable, "-c", "pass"]),
        Contender("logcal --help", [LOGCAL, "--help"]),
        Contender("logcal fit, 100,000 rows, defaults", logcal("fit", *store), clear),
        Contender(
            "logcal fit, 100,000 rows, cluster.kind=local",
            logcal("fit", *store, "cluster={kind: local, workers: 2}"),
            clear,
        ),
    ]
    try:
        print_table(measure_interleaved(contenders, RUNS), against="python -c pass")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
