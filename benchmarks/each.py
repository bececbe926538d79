"""Many tables: one `logcal fit --each FILE...` against a command for each file; processor time and memory.

    python benchmarks/each.py [TABLES]

Fits of 200,000 rows, whole processes with numba's cache warm, median of three turns. Some files are fitted by a command
each; their mean stands for the others.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from _measure import LOGCAL, print_machine

ROWS = 200_000
TABLES = 60
SINGLE = 10
TURNS = 3


def main() -> None:
    """Measure, and print the ratio."""
    print_machine()
    tables = int(sys.argv[1]) if len(sys.argv) > 1 else TABLES
    folder = Path(tempfile.mkdtemp(prefix="logcal-each-"))
    try:
        files = [_write(folder, number) for number in range(tables)]
        _run(folder, "fit", "--each", *files)
        ratios = []
        for _ in range(TURNS):
            one, peak = _run(folder, "fit", "--each", *files)
            _, few = _run(folder, "fit", "--each", *files[: tables // 10])
            single = [_run(folder, "fit", "--config", file) for file in files[:SINGLE]]
            several = tables * statistics.mean(seconds for seconds, _ in single)
            ratios.append(one / several)
            print(
                f"one command {one:.1f} s, {tables} commands {several:.1f} s, ratio {one / several:.3f}; "
                f"peak of {tables} files {peak:,.0f} MB, of {tables // 10} files {few:,.0f} MB, "
                f"of one command {statistics.median(memory for _, memory in single):,.0f} MB",
                flush=True,
            )
        print(f"median ratio {statistics.median(ratios):.3f}")
    finally:
        shutil.rmtree(folder)


def _write(folder: Path, number: int) -> str:
    """Write a log and its configuration; return the configuration's path."""
    generator = np.random.default_rng(number)
    score = generator.random(ROWS)
    label = (generator.random(ROWS) < score).astype(np.int8)
    pq.write_table(pa.table({"score": score, "label": label}), folder / f"{number}.parquet")
    file = folder / f"{number}.yaml"
    file.write_text(f"log: {{path: {number}.parquet}}\nstore: {{path: store, table: table-{number}}}\n")
    return str(file)


def _run(folder: Path, *arguments: str) -> tuple[float, float]:
    """Run fits of tables that do not exist; return processor seconds and peak memory in MB."""
    if "--each" in arguments:
        shutil.rmtree(folder / "store", ignore_errors=True)
    else:
        shutil.rmtree(folder / f"store/table-{Path(arguments[-1]).stem}", ignore_errors=True)
    process = subprocess.Popen([LOGCAL, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{arguments} ended with {process.returncode}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1000


if __name__ == "__main__":
    main()
