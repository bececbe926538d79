"""How `logcal fit` grows with the log: seconds, peak memory, tasks and scratch at several sizes, and exponents.

    python benchmarks/growth.py /tmp/logcal-bench --rows 1e7 1e8 1e9

Logs are made as `make_log.py` makes them, 2 million rows a file, each once, and the largest is deleted after it was
measured (`--keep` leaves it). An exponent is the slope of log(seconds) over log(rows) between two sizes; with the
start-up's constant in them, exponents are below those of the work alone. Whole processes, start included.
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
    parser.add_argument("folder", type=Path, help="for the logs, and for scratch")
    parser.add_argument("--rows", type=float, nargs="+", default=[1e7, 1e8, 1e9])
    parser.add_argument("--methods", nargs="+", default=["isotonic"])
    parser.add_argument("--runs", type=int, default=3, help="of each size but the largest, which has one")
    parser.add_argument("--keep", action="store_true", help="leave the largest log where it is")
    given = parser.parse_args(arguments)
    print_machine()
    sizes = sorted(int(rows) for rows in given.rows)
    print("\nmethod        rows           median s  s per 1e8 rows  exponent  peak MB  tasks")
    for size in sizes:
        log = given.folder / f"growth-{size}"
        if not log.exists():
            write_log(log, LogSpec(rows=size, files=max(1, size // FILE_ROWS), row_groups=1))
        warm(log)
    for method in given.methods:
        _measure_method(method, given, sizes)
    if not given.keep:
        shutil.rmtree(given.folder / f"growth-{sizes[-1]}")


def _measure_method(method: str, given: argparse.Namespace, sizes: list[int]) -> None:
    seconds: dict[int, float] = {}
    for size in sizes:
        runs = given.runs if size < sizes[-1] else 1
        log = given.folder / f"growth-{size}"
        results = [_fit(log, method, given.folder) for _ in range(runs)]
        seconds[size] = statistics.median(result.seconds for result, _ in results)
        peak = max(result.peak_bytes for result, _ in results)
        below = max((other for other in seconds if other < size), default=None)
        exponent = math.log(seconds[size] / seconds[below]) / math.log(size / below) if below else math.nan
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
    """Of the sort and of the merge, as a dry run tells them."""
    plan = subprocess.run([*command, "--dry-run", "--json"], capture_output=True, check=True, text=True)
    return " + ".join(re.findall(r"(\d+) tasks", " ".join(json.loads(plan.stdout)["stages"])))


if __name__ == "__main__":
    main(sys.argv[1:])
