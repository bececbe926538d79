"""Processor time of a fit against a lower bound: reading, copying and sorting the rows, each by itself.

    python benchmarks/make_log.py /tmp/logcal-bench/log100m
    python benchmarks/make_log.py /tmp/logcal-bench/weights100m --weights --tie-share 0.1
    python benchmarks/make_log.py /tmp/logcal-bench/segments100m --segments 10000
    python benchmarks/limits.py /tmp/logcal-bench/log100m /tmp/logcal-bench/weights100m /tmp/logcal-bench/segments100m

Columns 'weight' and 'segment' are used if a log has them. Two threads do each of these by itself: pyarrow reads and
drops the fit's columns; the decoded bytes are copied once; runs of two million rows in memory are sorted by the fit's
own loop. A fit also sorts ranges of scores, writes and reads the runs, starts and publishes; the fit of 100,000 rows
shows the last two. All times are processor time, which other programs disturb less than wall time.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from _measure import logcal, measure, print_machine, touch_memory, warm

from calibrators.core.keys import sort_rows

THREADS = 2
RUN_ROWS = 2_000_000
SORTED_RUNS = 8
COPIED_BYTES = 1 << 28


def main(arguments: list[str]) -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("logs", type=Path, nargs="+", help="written by make_log.py")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args(arguments)
    print_machine()
    print(f"{'':16}  read  move  sort   sum  start   fit  of the sum")
    for log in options.logs:
        warm(log)
        limits = [
            _median(part, options.runs) for part in (_read, _move, _sort) for part in [partial(part, log)]
        ]
        with tempfile.TemporaryDirectory(dir=log.parent) as folder:
            small = Path(folder) / "small"
            small.mkdir()
            pq.write_table(_head(log, 100_000), small / "part.parquet")
            start = _median(partial(_fit, small, Path(folder)), options.runs)
            fit = _median(partial(_fit, log, Path(folder)), options.runs)
        numbers = (*limits, sum(limits), start, fit, fit / sum(limits))
        print(f"{log.name:16} {' '.join(f'{number:5.2f}' for number in numbers)}", flush=True)


def _median(part: Callable[[], float], runs: int) -> float:
    seconds = []
    for _ in range(runs):
        touch_memory()
        seconds.append(part())
    return statistics.median(seconds)


def _columns(log: Path) -> list[str]:
    present = pq.read_schema(next(log.glob("*.parquet"))).names
    return [name for name in ("score", "label", "weight", "segment") if name in present]


def _head(log: Path, rows: int) -> pa.Table:
    return pq.ParquetFile(next(log.glob("*.parquet"))).read_row_group(0, _columns(log)).slice(0, rows)


def _in_parallel(function: Callable[[Any], object], items: Iterable[Any]) -> float:
    with ThreadPoolExecutor(THREADS) as pool:
        start = time.process_time()
        for future in [pool.submit(function, item) for item in items]:
            future.result()
        return time.process_time() - start


def _read(log: Path) -> float:
    columns = _columns(log)

    def read(path: Path) -> None:
        with pq.ParquetFile(path, pre_buffer=False) as file:
            for _ in file.iter_batches(1 << 18, columns=columns, use_threads=False):
                pass

    return _in_parallel(read, sorted(log.glob("*.parquet")))


def _rows(log: Path) -> int:
    return sum(pq.read_metadata(path).num_rows for path in log.glob("*.parquet"))


def _move(log: Path) -> float:
    """Return the seconds to copy the decoded columns: doubles, labels of 1 byte, codes of 4 bytes."""
    widths = {"score": 8, "label": 1, "weight": 8, "segment": 4}
    size = _rows(log) * sum(widths[name] for name in _columns(log))
    blocks = [np.ones(COPIED_BYTES, np.uint8) for _ in range(THREADS)]
    targets = [np.zeros(COPIED_BYTES, np.uint8) for _ in range(THREADS)]

    def copy(i: int) -> None:
        np.copyto(targets[i], blocks[i])

    _in_parallel(copy, range(THREADS))  # allocates the memory
    return _in_parallel(copy, range(THREADS)) * size / (THREADS * COPIED_BYTES)


def _sort(log: Path) -> float:
    """Return the seconds to sort all rows in runs, extrapolated from some runs."""
    paths = sorted(log.glob("*.parquet"))[:SORTED_RUNS]
    runs = [_prepared(pq.read_table(path, columns=_columns(log)).slice(0, RUN_ROWS)) for path in paths]
    rows = sum(run.rows for run in runs)
    return _in_parallel(_Run.sort, runs) * _rows(log) / rows


class _Run:
    """Run of rows in memory, with the functions that sort it."""

    def __init__(self, rows: int, sorting: list[Callable[[], object]]) -> None:
        self.rows = rows
        self.sorting = sorting

    def sort(self) -> None:
        for part in self.sorting:
            part()


def _prepared(table: pa.Table) -> _Run:
    score = np.array(table["score"], np.float64)
    tag = np.array(table["label"]).astype(np.int32)
    if "segment" in table.column_names:
        codes = pc.dictionary_encode(table["segment"]).combine_chunks()
        tag += 2 * np.array(codes.indices, np.int32)
    if "weight" in table.column_names:
        weight = np.array(table["weight"], np.float64)
        return _Run(score.size, [lambda: sort_rows(score.copy(), tag.copy(), weight.copy())])
    return _Run(score.size, [lambda: sort_rows(score.copy(), tag.copy())])


def _fit(log: Path, folder: Path) -> float:
    store = folder / "fit"
    columns = [name for name in _columns(log) if name in ("weight", "segment")]
    settings = [f"log.{name}=[{name}]" if name == "segment" else f"log.{name}={name}" for name in columns]
    common = (f"log.path={log}", f"store.path={store}", "store.table=bench", f"scratch={folder}")
    try:
        fit = logcal("fit", *common, "cluster.workers=2", "calibrator.method=isotonic", *settings)
        return measure(fit).cpu_seconds
    finally:
        shutil.rmtree(store, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1:])
