"""The least that a fit could take, beside what it takes: reading, moving and sorting the rows, each alone.

    python benchmarks/make_log.py /tmp/logcal-bench/log100m
    python benchmarks/make_log.py /tmp/logcal-bench/weights100m --weights --tie-share 0.1
    python benchmarks/make_log.py /tmp/logcal-bench/segments100m --segments 10000
    python benchmarks/limits.py /tmp/logcal-bench/log100m /tmp/logcal-bench/weights100m /tmp/logcal-bench/segments100m

Columns 'weight' and 'segment' are used where a log has them. Two threads do each of these, and nothing else: pyarrow
reads the columns that the fit reads, and drops them; the bytes that these decode to are copied once; runs of two
million rows, which are there in memory, are sorted by the loop that the fit sorts them with. A fit sorts runs and then
ranges of scores, writes the runs and reads them; it starts and publishes, which the fit of 100,000 rows shows. All is
processor time, which other programs on the machine disturb less than the clock.
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

from calibrators.arithmetic.ordering import sort_pairs, sort_scores
from pipeline.sort.folding import bits_of_tags, sort_tagged

THREADS = 2
RUN_ROWS = 2_000_000
SORTED_RUNS = 8
COPIED_BYTES = 1 << 28


def main(arguments: list[str]) -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("logs", type=Path, nargs="+", help="written by make_log.py")
    parser.add_argument("--runs", type=int, default=3)
    given = parser.parse_args(arguments)
    print_machine()
    print(f"{'':16}  read  move  sort   sum  start   fit  of the sum")
    for log in given.logs:
        warm(log)
        limits = [
            _median(part, given.runs) for part in (_read, _move, _sort) for part in [partial(part, log)]
        ]
        with tempfile.TemporaryDirectory(dir=log.parent) as folder:
            small = Path(folder) / "small"
            small.mkdir()
            pq.write_table(_head(log, 100_000), small / "part.parquet")
            start = _median(partial(_fit, small, Path(folder)), given.runs)
            fit = _median(partial(_fit, log, Path(folder)), given.runs)
        numbers = (*limits, sum(limits), start, fit, fit / sum(limits))
        print(f"{log.name:16} {' '.join(f'{number:5.2f}' for number in numbers)}", flush=True)


def _median(part: Callable[[], float], runs: int) -> float:
    found = []
    for _ in range(runs):
        touch_memory()
        found.append(part())
    return statistics.median(found)


def _columns(log: Path) -> list[str]:
    there = pq.read_schema(next(log.glob("*.parquet"))).names
    return [name for name in ("score", "label", "weight", "segment") if name in there]


def _head(log: Path, rows: int) -> pa.Table:
    return pq.ParquetFile(next(log.glob("*.parquet"))).read_row_group(0, _columns(log)).slice(0, rows)


def _side_by_side(function: Callable[[Any], object], items: Iterable[Any]) -> float:
    with ThreadPoolExecutor(THREADS) as pool:
        start = time.process_time()
        for done in [pool.submit(function, item) for item in items]:
            done.result()
        return time.process_time() - start


def _read(log: Path) -> float:
    columns = _columns(log)

    def read(path: Path) -> None:
        with pq.ParquetFile(path, pre_buffer=False) as file:
            for _ in file.iter_batches(1 << 18, columns=columns, use_threads=False):
                pass

    return _side_by_side(read, sorted(log.glob("*.parquet")))


def _rows(log: Path) -> int:
    return sum(pq.read_metadata(path).num_rows for path in log.glob("*.parquet"))


def _move(log: Path) -> float:
    """Seconds to copy what is decoded: doubles, labels of a byte, and codes of four."""
    widths = {"score": 8, "label": 1, "weight": 8, "segment": 4}
    size = _rows(log) * sum(widths[name] for name in _columns(log))
    blocks = [np.ones(COPIED_BYTES, np.uint8) for _ in range(THREADS)]
    targets = [np.zeros(COPIED_BYTES, np.uint8) for _ in range(THREADS)]

    def copy(i: int) -> None:
        np.copyto(targets[i], blocks[i])

    _side_by_side(copy, range(THREADS))  # the memory is there, then
    return _side_by_side(copy, range(THREADS)) * size / (THREADS * COPIED_BYTES)


def _sort(log: Path) -> float:
    """Seconds to sort all rows in runs, of which some are."""
    paths = sorted(log.glob("*.parquet"))[:SORTED_RUNS]
    runs = [_prepared(pq.read_table(path, columns=_columns(log)).slice(0, RUN_ROWS)) for path in paths]
    rows = sum(run.rows for run in runs)
    return _side_by_side(_Run.sort, runs) * _rows(log) / rows


class _Run:
    """Rows in memory, and what sorts them in place of a fit."""

    def __init__(self, rows: int, sorting: list[Callable[[], object]]) -> None:
        self.rows = rows
        self.sorting = sorting

    def sort(self) -> None:
        for part in self.sorting:
            part()


def _prepared(table: pa.Table) -> _Run:
    score = np.array(table["score"], np.float64)
    label = np.array(table["label"])
    if "segment" in table.column_names:
        codes = pc.dictionary_encode(table["segment"]).combine_chunks()
        tag = 2 * np.array(codes.indices, np.int32) + label.astype(np.int32)
        return _Run(score.size, [partial(sort_tagged, score, tag, bits_of_tags(len(codes.dictionary)))])
    if "weight" in table.column_names:
        pairs = np.column_stack([score, np.array(table["weight"])])
        return _Run(score.size, [lambda: sort_pairs(pairs.copy())])
    classes = [score[label == value] for value in (0, 1)]
    return _Run(score.size, [partial(_sorted, own) for own in classes])


def _sorted(score: np.ndarray) -> None:
    sort_scores(score.copy())


def _fit(log: Path, folder: Path) -> float:
    own = folder / "fit"
    columns = [name for name in _columns(log) if name in ("weight", "segment")]
    settings = [f"log.{name}=[{name}]" if name == "segment" else f"log.{name}={name}" for name in columns]
    common = (f"log.path={log}", f"store.path={own}", "store.table=bench", f"scratch={folder}")
    try:
        fit = logcal("fit", *common, "cluster.workers=2", "calibrator.method=isotonic", *settings)
        return measure(fit).cpu_seconds
    finally:
        shutil.rmtree(own, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1:])
