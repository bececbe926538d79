"""`logcal evaluate` on a kept score table and on the log; DuckDB and Polars measure only the scores.

    python benchmarks/evaluate.py /tmp/logcal-bench/log100m

logcal measures scores and calibrated probabilities and draws a report. The peers do half of that: they compute the
Brier score, log loss, AUC (from ranks; scores without ties) and calibration error of the log's scores. The error over
ten groups of equally many rows needs a sort, as in logcal. Their numbers are compared with logcal's. Whole processes,
start included; the page cache is warm; medians of interleaved runs. Needs the `bench` extra.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from _measure import Contender, logcal, measure, measure_interleaved, print_machine, print_table, warm

DUCKDB = """
import duckdb, json, sys
log, memory, scratch, output = sys.argv[1:]
connection = duckdb.connect()
connection.execute(f"SET memory_limit='{memory}'; SET threads=2; SET temp_directory='{scratch}'")
rows, positives = connection.execute(f"SELECT count(*), sum(label) FROM read_parquet('{log}/*.parquet')").fetchone()
sums = connection.execute(f'''
    WITH ranked AS (
        SELECT score, label, row_number() OVER (ORDER BY score) AS place FROM read_parquet('{log}/*.parquet')
    )
    SELECT (place - 1) * 10 // {rows} AS bin, count(*), sum(label), sum(score), sum((score - label) ** 2),
        -sum(CASE WHEN label = 1 THEN ln(score) ELSE ln(1 - score) END), sum(place * label)
    FROM ranked GROUP BY bin ORDER BY bin
''').fetchall()
json.dump([rows, int(positives), [[float(x) for x in row] for row in sums]], open(output, "w"))
"""
POLARS = """
import json, os, sys
os.environ["POLARS_MAX_THREADS"] = "2"
import polars
from polars import col
log, output = sys.argv[1:]
scanned = polars.scan_parquet(f"{log}/*.parquet").select("score", col("label").cast(polars.Int64))
rows, positives = scanned.select(polars.len(), col("label").sum()).collect().row(0)
loss = polars.when(col("label") == 1).then(col("score").log()).otherwise((1 - col("score")).log())
place = col("place") + 1
sums = (
    scanned.sort("score").with_row_index("place")
    .with_columns((col("place").cast(polars.Int64) * 10 // rows).alias("bin"), (-loss).alias("loss"))
    .group_by("bin").agg(
        polars.len(), col("label").sum().alias("hits"), col("score").sum().alias("scores"),
        ((col("score") - col("label")) ** 2).sum().alias("squares"), col("loss").sum(),
        (place.cast(polars.Int64) * col("label")).sum().alias("ranks"),
    )
    .sort("bin").collect(engine="streaming")
)
json.dump([rows, positives, [[float(x) for x in row] for row in sums.rows()]], open(output, "w"))
"""


def measures_of(path: Path) -> dict[str, float]:
    """Compute the measures from a peer's sums per group."""
    rows, positives, sums = json.loads(path.read_text())
    squares, losses, ranks = (math.fsum(column) for column in list(zip(*sums, strict=True))[4:])
    pairs = positives * (rows - positives)
    return {
        "brier": squares / rows,
        "log_loss": losses / rows,
        "auc": (ranks - positives * (positives + 1) / 2) / pairs,
        "ece_frequency": math.fsum(abs(group[2] - group[3]) for group in sums) / rows,
    }


def main(arguments: list[str]) -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("log", type=Path, help="written by make_log.py")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--peers", nargs="*", default=["duckdb-8GB", "polars"])
    options = parser.parse_args(arguments)
    print_machine()
    print(f"{options.log}: {warm(options.log) / 1e6:,.0f} MB")
    folder = Path(tempfile.mkdtemp(prefix="logcal-evaluate-", dir=options.log.parent))
    try:
        _compare(options, folder)
    finally:
        shutil.rmtree(folder)


def _compare(options: argparse.Namespace, folder: Path) -> None:
    store = [f"store.path={folder / 'store'}", "store.table=bench", "cluster.workers=2", f"scratch={folder}"]
    measure(logcal("fit", *store, f"log.path={options.log}", "score_table.keep=true"))
    (score_table,) = (folder / "store").rglob("score_table")
    print(f"kept score table: {warm(score_table) / 1e6:,.0f} MB")
    output = folder / "report"
    ours = {"logcal evaluate, kept score table": score_table, "logcal evaluate, log": options.log}
    contenders = [
        Contender(
            name, logcal("evaluate", *store, f"log.path={log}", f"report.path={output}"), _removing(output)
        )
        for name, log in ours.items()
    ]
    for name in options.peers:
        engine, _, memory = name.partition("-")
        code, limits = (DUCKDB, [memory, str(folder / "spill")]) if engine == "duckdb" else (POLARS, [])
        command = [sys.executable, "-c", code, str(options.log), *limits, str(folder / f"{name}.json")]
        contenders.append(Contender(name, command, lambda: None))
    print_table(measure_interleaved(contenders, options.runs), against=contenders[0].name)
    measured = json.loads((output / "run.json").read_text())["evaluation"]["before"]["measures"]
    for name in options.peers:
        for measure_name, value in measures_of(folder / f"{name}.json").items():
            assert math.isclose(value, measured[measure_name], rel_tol=1e-6), (name, measure_name, value)
        print(f"{name}: its Brier score, log loss, AUC and calibration error equal logcal's")


def _removing(path: Path) -> Callable[[], None]:
    return lambda: shutil.rmtree(path, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1:])
