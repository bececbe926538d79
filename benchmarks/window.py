"""A refit of a window of 30 days after one new day, against a fit of all days; DuckDB and Polars on the window's rows.

    python benchmarks/window.py /tmp/logcal-bench --rows 100000000

Makes a log of 31 hive partitions (`window-<rows>/date=.../`, which is kept), with `--rows` rows in a window of 30.
Contenders: a fit of the raw files; the first fit with a window, which makes 30 daily tables; the refit for the next
day, which only sorts that day; the same with a score grid. DuckDB and Polars sort the window's rows by score, as in
`fit.py`; they reuse nothing on the second day. Whole processes, start included; the page
cache is warm; runs are interleaved. Needs the `bench` extra.
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from _measure import Contender, logcal, measure_interleaved, print_machine, print_table, warm
from make_log import LogSpec, write_log

DAYS = 30
FIRST = dt.date(2026, 1, 1)

DUCKDB = """
import duckdb, sys
log, first, last, output, memory, scratch = sys.argv[1:]
connection = duckdb.connect()
connection.execute(f"SET memory_limit='{memory}'; SET threads=2; SET temp_directory='{scratch}'")
connection.execute(
    f"COPY (SELECT score, label FROM read_parquet('{log}/*/*.parquet', hive_partitioning=true) "
    f"WHERE date BETWEEN '{first}' AND '{last}' ORDER BY score) TO '{output}' (FORMAT parquet)"
)
"""
POLARS = """
import datetime, os, sys
os.environ["POLARS_MAX_THREADS"] = "2"
import polars
log, first, last, output = sys.argv[1:]
first, last = datetime.date.fromisoformat(first), datetime.date.fromisoformat(last)
rows = polars.scan_parquet(f"{log}/**/*.parquet", hive_partitioning=True)
rows.filter(polars.col("date").is_between(first, last)).select("score", "label").sort("score").sink_parquet(output)
"""


def day(index: int) -> str:
    """Return the date of a partition."""
    return (FIRST + dt.timedelta(days=index)).isoformat()


def make_days(folder: Path, rows: int) -> Path:
    """Make a log of 31 partitions of one file each, unless it exists."""
    log = folder / f"window-{rows}"
    if log.exists():
        return log
    flat = folder / f"window-{rows}-flat"
    write_log(flat, LogSpec(rows=rows * (DAYS + 1) // DAYS, files=DAYS + 1))
    for i, file in enumerate(sorted(flat.glob("*.parquet"))):
        partition = flat / f"date={day(i)}"
        partition.mkdir()
        file.rename(partition / file.name)
    return flat.rename(log)


class Bench:
    """Commands on one log, each with its own stores in a folder."""

    def __init__(self, log: Path, folder: Path) -> None:
        self.log = log
        self.folder = folder

    def fit(self, store: Path, *settings: str) -> list[str]:
        """Return the command of a fit."""
        common = (f"store.path={store}", "store.table=bench", f"scratch={self.folder}")
        return logcal("fit", *common, *settings)

    def window(self, store: Path, last: int, grid: str | None) -> list[str]:
        """Return the command of a fit of the 30 days up to a partition."""
        window = [
            f"log.path={self.log}",
            "window.column=date",
            f"window.last={DAYS}d",
            f"window.until={day(last)}",
        ]
        return self.fit(store, *window, *([f"score_table.grid={grid}"] if grid else []))

    def contenders(self, grid: str | None) -> list[Contender]:
        """Return the first fit with a window, and the refit after the next day."""
        name = f", grid {grid}" if grid else ""
        first, fitted, refitted = (self.folder / f"{kind}-{grid}" for kind in ("first", "fitted", "refitted"))
        if not fitted.exists():
            subprocess.run(self.window(fitted, DAYS - 1, grid), check=True, capture_output=True)
            size = _size(fitted / "bench" / "days")
            print(f"daily tables of the window{name}: {size / 1e6:,.0f} MB", flush=True)

        def restore() -> None:
            shutil.rmtree(refitted, ignore_errors=True)
            shutil.copytree(fitted, refitted, copy_function=_copy_or_link)

        return [
            Contender(f"logcal, first window{name}", self.window(first, DAYS - 1, grid), _removing(first)),
            Contender(f"logcal, one new day{name}", self.window(refitted, DAYS, grid), restore),
        ]

    def full(self) -> Contender:
        """Return a fit of the refit's days without a window."""
        store = self.folder / "full"
        paths = ", ".join(str(self.log / f"date={day(i)}") for i in range(1, DAYS + 1))
        return Contender("logcal, all files", self.fit(store, f"log.path=[{paths}]"), _removing(store))

    def peer(self, name: str) -> Contender:
        """Return another engine's sort of the window's rows."""
        output = self.folder / "sorted.parquet"
        arguments = [str(self.log), day(1), day(DAYS), str(output)]
        engine, _, memory = name.partition("-")
        if engine == "duckdb":
            arguments += [memory, str(self.folder / "spill")]
        code = DUCKDB if engine == "duckdb" else POLARS
        return Contender(name, [sys.executable, "-c", code, *arguments], _removing(output))


def _copy_or_link(source: str, target: str) -> None:
    """Copy a file; daily tables are linked, as they are never changed in place."""
    (os.link if "days" in Path(source).parts else shutil.copy2)(source, target)


def _removing(path: Path) -> Callable[[], None]:
    def remove() -> None:
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)

    return remove


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def main(arguments: list[str]) -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder for the log and scratch")
    parser.add_argument("--rows", type=int, default=100_000_000, help="rows in the window")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--grids", nargs="*", default=["1e-6"])
    parser.add_argument("--peers", nargs="*", default=["duckdb-8GB", "polars"])
    options = parser.parse_args(arguments)
    print_machine()
    log = make_days(options.folder, options.rows)
    print(f"{log}: {warm(log) / 1e6:,.0f} MB")
    folder = Path(tempfile.mkdtemp(prefix="logcal-window-", dir=options.folder))
    try:
        bench = Bench(log, folder)
        contenders = [bench.full(), *map(bench.peer, options.peers)]
        for grid in (None, *options.grids):
            contenders += bench.contenders(grid)
        print_table(measure_interleaved(contenders, options.runs), against=contenders[0].name)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main(sys.argv[1:])
