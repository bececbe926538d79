"""`logcal follow`: files a second, a backlog beside `score`, and how soon a file is scored that lands.

    python benchmarks/follow.py
    python benchmarks/follow.py --files 10000 --peers --backlog /tmp/logcal-bench/log100m

Whole processes, start included. With `--peers` Spark Structured Streaming (file source and sink, the lookup by a
broadcast join, `Trigger.AvailableNow`) takes the same files in the same run; it needs pyspark where SPARK_PYTHON points
to, and Java.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from _measure import Contender, logcal, measure, measure_interleaved, print_machine, print_table, warm

SPARK = """
import sys
from pyspark.sql import SparkSession, functions as f
log, lookup, output, checkpoint = sys.argv[1:]
session = (SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
           .config("spark.driver.memory", "4g").getOrCreate())
table = f.broadcast(session.read.parquet(lookup))
rows = session.readStream.schema("score double").option("maxFilesPerTrigger", 1000).parquet(log)
scored = rows.join(table, (rows.score >= table.score_lo) & (rows.score < table.score_hi)).select(
    "score", (f.col("prob_lo") + f.col("slope") * (f.col("score") - f.col("anchor"))).alias("probability"))
(scored.writeStream.format("parquet").option("path", output).option("checkpointLocation", checkpoint)
 .trigger(availableNow=True).start().awaitTermination())
session.stop()
"""


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--landings", type=int, default=200, help="at least 2: the first waits for the start")
    parser.add_argument("--backlog", type=Path, help="a log to take as a backlog")
    parser.add_argument("--peers", action="store_true")
    arguments = parser.parse_args()
    print_machine()
    with tempfile.TemporaryDirectory(prefix="logcal-follow-") as folder:
        place = Path(folder)
        write(place / "log" / "part.parquet", 200_000, 0)
        measure(logcal("fit", f"log.path={place}/log", *table(place)))
        if arguments.files:
            throughput(place, arguments.files, arguments.rows, arguments.runs, peers=arguments.peers)
        if arguments.backlog:
            backlog(place, arguments.backlog, arguments.runs)
        if arguments.landings:
            latency(place, arguments.landings)


def table(place: Path) -> tuple[str, str]:
    """The table to score with."""
    return f"store.path={place}/store", "store.table=t"


def write(path: Path, rows: int, seed: int) -> None:
    """A file lands."""
    path.parent.mkdir(exist_ok=True)
    rng = np.random.default_rng(seed)
    score = rng.random(rows)
    labels = (rng.random(rows) < score**2).astype(np.int8)
    hidden = path.with_name(f"_{path.name}")
    pq.write_table(pa.table({"score": score, "label": labels}), hidden)
    hidden.rename(path)


def contenders(place: Path, log: Path, refit: tuple[str, ...]) -> list[Contender]:
    """Following a log, with a refit too, and scoring it."""
    settings = (f"log.path={log}", *table(place))

    def clear() -> None:
        # Put aside and not deleted: soon after many deletions ext4 takes twenty times as long to create a file.
        aside = Path(tempfile.mkdtemp(prefix="aside-", dir=place))
        for name in ("scored", "scored.logcal", "batch", "batch.logcal", "spark", "checkpoint"):
            if (place / name).exists():
                (place / name).rename(aside / name)

    once = (*settings, f"output.path={place}/scored", "follow.once=true")
    found = [Contender("logcal follow --once", logcal("follow", *once), clear)]
    if refit:
        found.append(Contender("... and refit the table", logcal("follow", *once, *refit), clear))
    found.append(Contender("logcal score", logcal("score", *settings, f"output.path={place}/batch"), clear))
    return found


def throughput(place: Path, files: int, rows: int, runs: int, *, peers: bool) -> None:
    """Take many small files at once."""
    arriving = place / "arriving"
    for i in range(files):
        write(arriving / f"{i:06d}.parquet", rows, i)
    print(f"{files:,} files of {rows:,} rows")
    # Always due, and never found done before.
    refit = ("refit.rows=1", "gate.max_change=null", "store.force=true")
    found = contenders(place, arriving, refit)
    if peers:
        lookup = next(place.glob("store/t/versions/*/lookup.parquet"))
        spark = [os.environ.get("SPARK_PYTHON", sys.executable), "-c", SPARK]
        found.append(
            Contender(
                "Spark Structured Streaming",
                [*spark, str(arriving), str(lookup), f"{place}/spark", f"{place}/checkpoint"],
                found[0].before,
            )
        )
    results = measure_interleaved(found, runs)
    print_table(results, against="logcal follow --once")
    for name, all_runs in results.items():
        seconds, processor = (
            statistics.median(m.seconds for m in all_runs),
            statistics.median(m.cpu_seconds for m in all_runs),
        )
        print(f"  {name}: {files / seconds:,.0f} files/s, {files / processor:,.0f} files a processor second")
    shutil.rmtree(arriving)


def backlog(place: Path, log: Path, runs: int) -> None:
    """Take a log that is there already, beside `score`."""
    print(f"{log}: {warm(log) / 1e6:,.0f} MB")
    results = measure_interleaved(contenders(place, log, ()), runs)
    print_table(results, against="logcal score")
    for name, all_runs in results.items():
        print(f"  {name}: {statistics.median(m.cpu_seconds for m in all_runs):.1f} processor s")


def latency(place: Path, landings: int) -> None:
    """From a rename to a visible scored file, with files of a million rows."""
    arriving = place / "live"
    prepared = place / "prepared" / "million.parquet"
    write(prepared, 1_000_000, 1)
    arriving.mkdir()
    command = logcal(
        "follow",
        f"log.path={arriving}",
        *table(place),
        f"output.path={place}/out",
        "follow.poll=500ms",
    )
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    seconds = []
    rng = np.random.default_rng(0)
    try:
        for i in range(landings):
            shutil.copy(prepared, arriving / "_next")
            # So that files land at any moment between two looks.
            time.sleep(rng.random() / 2)
            target = place / "out" / f"{i:04d}.parquet"
            started = time.perf_counter()
            (arriving / "_next").rename(arriving / target.name)
            while not target.exists():
                threading.Event().wait(0.002)
            seconds.append(time.perf_counter() - started)
    finally:
        process.terminate()
        process.wait()
    # The first waits for the process to start.
    late = sorted(seconds[1:])
    print(
        f"1 M rows, from rename to visible, poll 0.5 s, {len(late)} landings: median {statistics.median(late):.2f} s, "
        f"p99 {late[math.ceil(0.99 * len(late)) - 1]:.2f} s, longest {late[-1]:.2f} s"
    )


if __name__ == "__main__":
    main()
