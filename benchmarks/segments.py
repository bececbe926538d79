"""`logcal fit` with a map for each of many segments, against the same fit without segments and engines that sort.

    python benchmarks/make_log.py /tmp/logcal-bench/segments100m --segments 10000
    python benchmarks/segments.py /tmp/logcal-bench/segments100m

The peers only sort, by segment and score; they make no lookup table. Whole processes, start included; the page
cache is warm; runs are interleaved. Needs the `bench` extra.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from _measure import Contender, clearing, logcal, measure_interleaved, print_machine, print_table, warm

DUCKDB = """
import duckdb, sys
log, output, memory, scratch = sys.argv[1:]
connection = duckdb.connect()
connection.execute(f"SET memory_limit='{memory}'; SET threads=2; SET temp_directory='{scratch}'")
query = f"SELECT segment, score, label FROM read_parquet('{log}/*.parquet') ORDER BY segment, score"
connection.execute(f"COPY ({query}) TO '{output}' (FORMAT parquet)")
"""

POLARS = """
import os, sys
os.environ["POLARS_MAX_THREADS"] = "2"
import polars
log, output = sys.argv[1:]
lazy = polars.scan_parquet(f"{log}/*.parquet").select("segment", "score", "label").sort("segment", "score")
lazy.sink_parquet(output)
"""


def main(arguments: list[str]) -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("log", type=Path, help="folder of the log")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--method", default="isotonic")
    parser.add_argument("--peers", nargs="*", default=["duckdb-8GB", "polars"])
    parser.add_argument("--scratch", type=Path, help="folder for outputs (default: the log's folder)")
    options = parser.parse_args(arguments)
    print_machine()
    print(f"{options.log}: {warm(options.log) / 1e6:,.0f} MB")
    folder = Path(tempfile.mkdtemp(prefix="logcal-segments-", dir=options.scratch or options.log.parent))

    clear = clearing(folder)

    def ours(name: str, *settings: str) -> Contender:
        store = (f"log.path={options.log}", f"store.path={folder / 'store'}", "store.table=bench")
        common = (*store, f"scratch={folder}", "cluster.workers=2", f"calibrator.method={options.method}")
        return Contender(name, logcal("fit", *common, *settings), clear)

    without = ours(f"logcal fit {options.method}")
    contenders = [without, ours("... for each segment", "log.segment=[segment]")]
    contenders += [_peer(name, options.log, folder, clear) for name in options.peers]
    try:
        print_table(measure_interleaved(contenders, options.runs), against=without.name)
    finally:
        shutil.rmtree(folder)


def _peer(name: str, log: Path, folder: Path, clear: Callable[[], None]) -> Contender:
    output = str(folder / "sorted.parquet")
    engine, _, memory = name.partition("-")
    if engine == "duckdb":
        command = [sys.executable, "-c", DUCKDB, str(log), output, memory, str(folder / "spill")]
    else:
        command = [sys.executable, "-c", POLARS, str(log), output]
    return Contender(name, command, clear)


if __name__ == "__main__":
    main(sys.argv[1:])
