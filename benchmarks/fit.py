"""`logcal fit` against DuckDB and Polars, which write the log's rows sorted by score, and against Spark.

    python benchmarks/make_log.py /tmp/logcal-bench/log100m
    python benchmarks/fit.py /tmp/logcal-bench/log100m
    python benchmarks/fit.py /tmp/logcal-bench/log100m --methods isotonic bbq --peers

DuckDB and Polars only sort; they make no lookup table. `duckdb-groups-8GB`, `polars-groups`, `datafusion-groups` and
`chdb-groups` sum ties, as the first half of a fit does: `GROUP BY score`, sorted. Spark (`--peers
spark-12g`, with pyspark where SPARK_PYTHON points to, and Java) fits its isotonic regression. Whole processes, start
included; the page cache is warm; runs are interleaved. Needs the `bench` extra.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from _measure import Contender, clearing, logcal, measure_interleaved, print_machine, print_table, warm

SPARK_PYTHON = os.environ.get("SPARK_PYTHON", sys.executable)

DUCKDB = """
import duckdb, sys
log, output, memory, scratch, query = sys.argv[1:]
connection = duckdb.connect()
connection.execute(f"SET memory_limit='{memory}'; SET threads=2; SET temp_directory='{scratch}'")
connection.execute(f"COPY ({query} ORDER BY score) TO '{output}' (FORMAT parquet)")
"""
_ROWS = "SELECT score, label FROM read_parquet('{log}/*.parquet')"
_GROUPS = "SELECT score, count(*) AS w, sum(label) AS k FROM read_parquet('{log}/*.parquet') GROUP BY score"
POLARS = """
import os, sys
os.environ["POLARS_MAX_THREADS"] = "2"
import polars
log, output, groups = sys.argv[1:]
rows = polars.scan_parquet(f"{log}/*.parquet").select("score", "label")
if groups:
    rows = rows.group_by("score").agg(polars.len().alias("w"), polars.col("label").cast(polars.Int64).sum().alias("k"))
rows.sort("score").sink_parquet(output)
"""
DATAFUSION = """
import sys
import datafusion
log, output, query = sys.argv[1:]
context = datafusion.SessionContext(datafusion.SessionConfig().with_target_partitions(2))
context.register_parquet("log", log)
context.sql(f"{query} ORDER BY score").write_parquet(output)
"""
CHDB = """
import sys
import chdb
output, query = sys.argv[1:]
chdb.query(f"{query} ORDER BY score INTO OUTFILE '{output}' FORMAT Parquet SETTINGS max_threads = 2")
"""
SPARK = """
import sys
from pyspark.ml.regression import IsotonicRegression
from pyspark.sql import SparkSession
log, output, memory, scratch = sys.argv[1:]
session = (
    SparkSession.builder.master("local[2]")
    .config("spark.driver.memory", memory)
    .config("spark.local.dir", scratch)
    .config("spark.ui.enabled", "false")
    .getOrCreate()
)
rows = session.read.parquet(log).selectExpr("score", "cast(label as double) as label")
model = IsotonicRegression(featuresCol="score", labelCol="label").fit(rows)
print(model.boundaries.size)
session.stop()
"""


def main(arguments: list[str]) -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("log", type=Path, help="written by make_log.py")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--methods", nargs="+", default=["isotonic"], help="ratios are to the first one")
    parser.add_argument("--keep", action="store_true", help="also a fit that keeps the sorted score table")
    parser.add_argument("--processes", action="store_true", help="also a fit on worker processes")
    parser.add_argument("--weight", help="also a fit with this weight column")
    parser.add_argument("--peers", nargs="*", default=["duckdb-8GB", "duckdb-2GB", "polars"])
    parser.add_argument("--scratch", type=Path, help="folder for outputs (default: the log's folder)")
    options = parser.parse_args(arguments)
    print_machine()
    print(f"{options.log}: {warm(options.log) / 1e6:,.0f} MB")
    folder = Path(tempfile.mkdtemp(prefix="logcal-fit-", dir=options.scratch or options.log.parent))

    clear = clearing(folder)

    def ours(name: str, *settings: str, method: str = options.methods[0]) -> Contender:
        store = (f"log.path={options.log}", f"store.path={folder / 'store'}", "store.table=bench")
        common = (*store, f"scratch={folder}", "cluster.workers=2", f"calibrator.method={method}")
        return Contender(name, logcal("fit", *common, *settings), clear)

    contenders = [_peer(name, options.log, folder, clear) for name in options.peers]
    contenders += [ours(f"logcal fit {method}", method=method) for method in options.methods]
    if options.keep:
        contenders.append(ours("... and keep the score table", "score_table.keep=true"))
    if options.processes:
        contenders.append(ours("... on worker processes", "cluster.kind=local"))
    if options.weight:
        contenders.append(ours("... with weights", f"log.weight={options.weight}"))
    try:
        print_table(measure_interleaved(contenders, options.runs), against=contenders[0].name)
    finally:
        shutil.rmtree(folder)


def _peer(name: str, log: Path, folder: Path, clear: Callable[[], None]) -> Contender:
    output = str(folder / "sorted.parquet")
    engine, *rest = name.split("-")
    groups, memory = "groups" in rest, rest[-1] if rest else ""
    if engine == "duckdb":
        query = (_GROUPS if groups else _ROWS).format(log=log)
        command = [sys.executable, "-c", DUCKDB, str(log), output, memory, str(folder / "spill"), query]
    elif engine == "datafusion":
        query = (_GROUPS if groups else _ROWS).replace("read_parquet('{log}/*.parquet')", "log")
        command = [sys.executable, "-c", DATAFUSION, str(log), output, query]
    elif engine == "chdb":
        query = (_GROUPS if groups else _ROWS).format(log=log).replace("read_parquet(", "file(")
        command = [sys.executable, "-c", CHDB, output, query]
    elif engine == "spark":
        command = [SPARK_PYTHON, "-c", SPARK, str(log), output, memory, str(folder)]
    else:
        command = [sys.executable, "-c", POLARS, str(log), output, "groups" if groups else ""]
    return Contender(name, command, clear)


if __name__ == "__main__":
    main(sys.argv[1:])
