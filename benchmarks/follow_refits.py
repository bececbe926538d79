"""Refits by `logcal follow`: a window of 30 closed days of 100,000 rows, and an open day.

    python benchmarks/follow_refits.py
    python benchmarks/follow_refits.py --files 1440 --rows 1000

Refits run in this process, which has imported the libraries, as the command has. Wall and processor seconds.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from _measure import print_machine

from jobs import fit
from jobs.config.jobs import FitConfig
from pipeline.execution import ThreadExecutor

OPEN = "2026-01-31"


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=int, default=1440, help="files of the open day")
    parser.add_argument("--rows", type=int, default=1000, help="rows of each of these files")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    print_machine()
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder), arguments.files, arguments.rows, arguments.repeats)


def measure(root: Path, files: int, rows: int, repeats: int) -> None:
    """Measure refits when no file of the open day is sorted, all but the last 60 are, and all but the last one are."""
    log = root / "log"
    for day in range(1, 31):
        write(log / f"date=2026-01-{day:02d}" / "part.parquet", 100_000, day)
    for i in range(files):
        write(log / f"date={OPEN}" / f"{i:06d}.parquet", rows, 100 + i)
    closed = root / "closed"
    refit(root, closed, until="2026-01-30")
    print(f"30 closed days of 100,000 rows, {files:,} files of {rows:,} rows of an open day, threads")
    names = sorted((log / f"date={OPEN}").iterdir())
    for new in (files, 60, 1):
        before = root / f"before-{new}"
        shutil.copytree(closed, before)
        if new < files:
            without(names[files - new :], lambda: refit(root, before))  # noqa: B023
        report(f"refit, {new:,} files of the open day are new", time_refits(root, before, repeats))


def time_refits(root: Path, before: Path, repeats: int) -> list[tuple[float, float]]:
    """Time refits on copies of a store."""
    seconds = []
    for i in range(repeats):
        store = root / f"store-{i}"
        shutil.copytree(before, store)
        seconds.append(timed(lambda: refit(root, store)))  # noqa: B023
        shutil.rmtree(store)
    return seconds


def without(names: list[Path], function: Callable[[], None]) -> None:
    """Call a function while some files are hidden."""
    for path in names:
        path.rename(path.with_name(f"_{path.name}"))
    function()
    for path in names:
        path.with_name(f"_{path.name}").rename(path)


def refit(root: Path, store: Path, until: str | None = None) -> None:
    """Refit as `logcal follow` does."""
    fit.prepare(config_of(root / "log", store, until)).execute(ThreadExecutor(os.cpu_count() or 1))


def config_of(log: Path, store: Path, until: str | None = None) -> FitConfig:
    """Return the configuration of a fit to the last 31 days."""
    return FitConfig.model_validate(
        {
            "log": {"path": str(log)},
            "store": {"path": str(store), "table": "t"},
            "window": {"column": "date", "last": "31d", "until": until},
            "gate": {"max_change": None},
        }
    )


def write(path: Path, rows: int, seed: int) -> None:
    """Write a file of a log."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    score = rng.random(rows)
    labels = (rng.random(rows) < score**2).astype(np.int8)
    pq.write_table(pa.table({"score": score, "label": labels}), path)


def timed(function: Callable[[], None]) -> tuple[float, float]:
    """Return wall and processor seconds of a call."""
    started, used = time.perf_counter(), time.process_time()
    function()
    return time.perf_counter() - started, time.process_time() - used


def report(name: str, seconds: list[tuple[float, float]]) -> None:
    """Print median, minimum and maximum of wall time, and the median of processor time."""
    clock, processor = zip(*seconds, strict=True)
    print(
        f"{name}: {statistics.median(clock):.2f} s ({min(clock):.2f} to {max(clock):.2f}), "
        f"{statistics.median(processor):.2f} processor s"
    )


if __name__ == "__main__":
    main()
