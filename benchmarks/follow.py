"""`logcal follow`: files per second, a backlog against `score`, and the delay from a new file to its scored file.

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
    parser.add_argument("--backlog", type=Path, help="a log to score as a backlog")
    parser.add_argument("--peers", action="store_true")
    arguments = parser.parse_args()
    print_machine()
    with tempfile.TemporaryDirectory(prefix="logcal-follow-") as folder:
        root = Path(folder)
        write(root / "log" / "part.parquet", 200_000, 0)
        measure(logcal("fit", f"log.path={root}/log", *table(root)))
        if arguments.files:
            throughput(root, arguments.files, arguments.rows, arguments.runs, peers=arguments.peers)
        if arguments.backlog:
            backlog(root, arguments.backlog, arguments.runs)
        if arguments.landings:
            latency(root, arguments.landings)


def table(root: Path) -> tuple[str, str]:
    """Return the settings of the table."""
    return f"store.path={root}/store", "store.table=t"


def write(path: Path, rows: int, seed: int) -> None:
    """Write a file that appears when it is complete."""
    path.parent.mkdir(exist_ok=True)
    rng = np.random.default_rng(seed)
    score = rng.random(rows)
    labels = (rng.random(rows) < score**2).astype(np.int8)
    hidden = path.with_name(f"_{path.name}")
    pq.write_table(pa.table({"score": score, "label": labels}), hidden)
    hidden.rename(path)


def contenders(root: Path, log: Path, refit: tuple[str, ...]) -> list[Contender]:
    """Return jobs that follow a log, follow it with a refit, and score it."""
    settings = (f"log.path={log}", *table(root))

    def clear() -> None:
        # Move instead of deleting: after many deletions ext4 takes twenty times as long to create a file.
        aside = Path(tempfile.mkdtemp(prefix="aside-", dir=root))
        for name in ("scored", ".scored.logcal", "batch", ".batch.logcal", "spark", "checkpoint"):
            if (root / name).exists():
                (root / name).rename(aside / name)

    once = (*settings, f"output.path={root}/scored", "follow.once=true")
    jobs = [Contender("logcal follow --once", logcal("follow", *once), clear)]
    if refit:
        jobs.append(Contender("... and refit the table", logcal("follow", *once, *refit), clear))
    jobs.append(Contender("logcal score", logcal("score", *settings, f"output.path={root}/batch"), clear))
    return jobs


def throughput(root: Path, files: int, rows: int, runs: int, *, peers: bool) -> None:
    """Measure many small files that are present at the start."""
    arriving = root / "arriving"
    for i in range(files):
        write(arriving / f"{i:06d}.parquet", rows, i)
    print(f"{files:,} files of {rows:,} rows")
    # A refit is always due, and its result is never reused.
    refit = ("refit.rows=1", "gate.max_change=null", "store.force=true")
    jobs = contenders(root, arriving, refit)
    if peers:
        lookup = next(root.glob("store/t/versions/*/lookup.parquet"))
        spark = [os.environ.get("SPARK_PYTHON", sys.executable), "-c", SPARK]
        jobs.append(
            Contender(
                "Spark Structured Streaming",
                [*spark, str(arriving), str(lookup), f"{root}/spark", f"{root}/checkpoint"],
                jobs[0].before,
            )
        )
    results = measure_interleaved(jobs, runs)
    print_table(results, against="logcal follow --once")
    for name, all_runs in results.items():
        seconds, processor = (
            statistics.median(m.seconds for m in all_runs),
            statistics.median(m.cpu_seconds for m in all_runs),
        )
        print(f"  {name}: {files / seconds:,.0f} files/s, {files / processor:,.0f} files per CPU second")
    shutil.rmtree(arriving)


def backlog(root: Path, log: Path, runs: int) -> None:
    """Measure an existing log, against `score`."""
    print(f"{log}: {warm(log) / 1e6:,.0f} MB")
    results = measure_interleaved(contenders(root, log, ()), runs)
    print_table(results, against="logcal score")
    for name, all_runs in results.items():
        print(f"  {name}: {statistics.median(m.cpu_seconds for m in all_runs):.1f} processor s")


def latency(root: Path, landings: int) -> None:
    """Measure the time from a rename to the visible scored file, with files of a million rows."""
    arriving = root / "live"
    prepared = root / "prepared" / "million.parquet"
    write(prepared, 1_000_000, 1)
    arriving.mkdir()
    command = logcal(
        "follow",
        f"log.path={arriving}",
        *table(root),
        f"output.path={root}/out",
        "follow.poll=500ms",
    )
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    seconds = []
    rng = np.random.default_rng(0)
    try:
        for i in range(landings):
            shutil.copy(prepared, arriving / "_next")
            # Files arrive at random times between two polls.
            time.sleep(rng.random() / 2)
            target = root / "out" / f"{i:04d}.parquet"
            started = time.perf_counter()
            (arriving / "_next").rename(arriving / target.name)
            while not target.exists():
                threading.Event().wait(0.002)
            seconds.append(time.perf_counter() - started)
    finally:
        process.terminate()
        process.wait()
    # The first file waits for the process to start.
    delays = sorted(seconds[1:])
    print(
        f"1 M rows, from rename to visible, poll 0.5 s, {len(delays)} files: median {statistics.median(delays):.2f} s, "
        f"p99 {delays[math.ceil(0.99 * len(delays)) - 1]:.2f} s, longest {delays[-1]:.2f} s"
    )


if __name__ == "__main__":
    main()
