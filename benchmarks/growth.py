"""Growth of `logcal fit` with the log: seconds, peak memory and tasks at several sizes, and exponents.

    python benchmarks/growth.py /tmp/logcal-bench --rows 1e7 1e8 1e9

Logs are made as in `make_log.py`, with 2 million rows per file; the largest is deleted at the end unless `--keep` is
given. An exponent is the slope of log(seconds) over log(rows) between two sizes. The seconds include the start-up, so
exponents are lower than those of the computation.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from _measure import Measurement, logcal, measure, print_machine, touch_memory, warm
from make_log import LogSpec, write_log

FILE_ROWS = 2_000_000


def main(arguments: list[str]) -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder for the logs and scratch")
    parser.add_argument("--rows", type=float, nargs="+", default=[1e7, 1e8, 1e9])
    parser.add_argument("--methods", nargs="+", default=["isotonic"])
    parser.add_argument("--runs", type=int, default=3, help="runs per size; the largest has one")
    parser.add_argument("--keep", action="store_true", help="keep the largest log")
    options = parser.parse_args(arguments)
    print_machine()
    sizes = sorted(int(rows) for rows in options.rows)
    print("\nmethod        rows           median s  s per 1e8 rows  exponent  peak MB  tasks")
    for size in sizes:
        log = options.folder / f"growth-{size}"
        if not log.exists():
            write_log(log, LogSpec(rows=size, files=max(1, size // FILE_ROWS), row_groups=1))
        warm(log)
    for method in options.methods:
        _measure_method(method, options, sizes)
    if not options.keep:
        shutil.rmtree(options.folder / f"growth-{sizes[-1]}")


def _measure_method(method: str, options: argparse.Namespace, sizes: list[int]) -> None:
    seconds: dict[int, float] = {}
    for size in sizes:
        runs = options.runs if size < sizes[-1] else 1
        log = options.folder / f"growth-{size}"
        results = [_fit(log, method, options.folder) for _ in range(runs)]
        seconds[size] = statistics.median(result.seconds for result, _ in results)
        peak = max(result.peak_bytes for result, _ in results)
        last = max((other for other in seconds if other < size), default=None)
        exponent = math.log(seconds[size] / seconds[last]) / math.log(size / last) if last else math.nan
        print(
            f"{method:12}  {size:13,}  {seconds[size]:8.2f}  {seconds[size] * 1e8 / size:14.2f}  {exponent:8.2f}  "
            f"{peak / 1e6:7,.0f}  {results[0][1]}",
            flush=True,
        )


def _fit(log: Path, method: str, scratch: Path) -> tuple[Measurement, str]:
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        settings = {
            "log.path": log,
            "store.path": f"{folder}/store",
            "store.table": "bench",
            "scratch": folder,
            "cluster.workers": 2,
            "calibrator.method": method,
        }
        command = logcal("fit", *(f"{key}={value}" for key, value in settings.items()))
        tasks = _tasks(command)
        touch_memory()
        return measure(command), tasks


def _tasks(command: list[str]) -> str:
    """Return the numbers of tasks of the sort and the merge, from a dry run."""
    plan = subprocess.run([*command, "--dry-run", "--json"], capture_output=True, check=True, text=True)
    return " + ".join(re.findall(r"(\d+) tasks", " ".join(json.loads(plan.stdout)["stages"])))


if __name__ == "__main__":
    main(sys.argv[1:])
