"""`logcal follow`: files a second, what a batch costs beside its files, listing and starting with many known files.

    python benchmarks/follow.py
    python benchmarks/follow.py --files 10000 --known 100000 --peers

One process, start included unless said otherwise. With `--peers` Spark Structured Streaming (file source and sink, the
lookup by a broadcast join, `Trigger.AvailableNow`) takes the same files in the same run; it needs pyspark where
SPARK_PYTHON points to, and Java.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from _measure import print_machine

from pipeline.follow.arrivals import list_sources
from pipeline.follow.ledger import Done, Known, Ledger

LOGCAL = [sys.executable, "-m", "jobs"]
ROOT = Path(__file__).parents[1]

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
    parser.add_argument("--known", type=int, default=100_000)
    parser.add_argument("--landings", type=int, default=30)
    parser.add_argument("--peers", action="store_true")
    arguments = parser.parse_args()
    print_machine()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        table(place)
        throughput(place, arguments.files, arguments.rows, peers=arguments.peers)
        known_files(place, arguments.known)
        latency(place, arguments.landings)


def table(place: Path) -> None:
    """Publish a table."""
    rng = np.random.default_rng(0)
    score = rng.random(200_000)
    (place / "log").mkdir()
    labels = (rng.random(score.size) < score**2).astype(np.int8)
    pq.write_table(pa.table({"score": score, "label": labels}), place / "log" / "part.parquet")
    logcal(place, "fit", "log.path=log", "store.path=store", "store.table=t")


def logcal(place: Path, job: str, *settings: str) -> float:
    """Run a job; return its seconds."""
    command = [*LOGCAL, job, *(part for setting in settings for part in ("--set", setting))]
    started = time.perf_counter()
    subprocess.run(command, cwd=place, env=environment(), check=True, capture_output=True)
    return time.perf_counter() - started


def environment() -> dict[str, str]:
    """Of this tree."""
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def write(path: Path, rows: int, seed: int) -> None:
    """A file lands."""
    hidden = path.with_name(f"_{path.name}")
    pq.write_table(pa.table({"score": np.random.default_rng(seed).random(rows)}), hidden)
    hidden.rename(path)


def throughput(place: Path, files: int, rows: int, *, peers: bool) -> None:
    """Take many small files at once."""
    arriving = place / "arriving"
    arriving.mkdir()
    for i in range(files):
        write(arriving / f"{i:06d}.parquet", rows, i)
    settings = (
        "log.path=arriving",
        "store.path=store",
        "store.table=t",
        "output.path=scored",
        "follow.once=true",
    )
    seconds = logcal(place, "follow", *settings)
    print(
        f"{files:,} files of {rows:,} rows: {seconds:.1f} s, {files / seconds:,.0f} files/s, start included"
    )
    batch = logcal(place, "score", *settings[:3], "output.path=batch")
    print(f"  `score` of the same files: {batch:.1f} s")
    if peers:
        lookup = next(place.glob("store/t/versions/*/lookup.parquet"))
        started = time.perf_counter()
        subprocess.run(
            [
                os.environ.get("SPARK_PYTHON", sys.executable),
                "-c",
                SPARK,
                str(arriving),
                str(lookup),
                "spark",
                "ck",
            ],
            cwd=place,
            check=True,
            capture_output=True,
        )
        spark = time.perf_counter() - started
        print(f"  Spark Structured Streaming: {spark:.1f} s, {files / spark:,.0f} files/s")
    for name in ("arriving", "scored", "scored.logcal", "batch", "spark", "ck"):
        shutil.rmtree(place / name, ignore_errors=True)


def known_files(place: Path, known: int) -> None:
    """What many known files cost a listing, a start and a batch."""
    folder = place / "many"
    days = [folder / f"date=2026-{month:02d}-{day:02d}" for month in range(1, 5) for day in range(1, 26)]
    for day in days:
        day.mkdir(parents=True)
        for i in range(known // len(days)):
            (day / f"{i:06d}.parquet").touch()
    filesystem = fsspec.filesystem("file")
    seconds = [_timed(lambda: list_sources(filesystem, str(folder))) for _ in range(5)]
    print(f"listing {known:,} files: {statistics.median(seconds):.2f} s")
    sources = list_sources(filesystem, str(folder))
    ledger = Ledger(filesystem, str(place / "known"))
    ledger.begin({})
    batch = ledger.plan("v")
    assert batch is not None
    ledger.commit(batch, Done({s.name: Known(s.size, s.stamp, 1) for s in sources}))
    ledger.compact()
    again = Ledger(filesystem, str(place / "known"))
    print(f"reading the ledger of {known:,} files: {_timed(again.load):.2f} s")
    costs = []
    for _ in range(50):
        started = time.perf_counter()
        batch = again.plan("v", sources[:10])
        assert batch is not None
        again.commit(batch, Done({s.name: Known(s.size, s.stamp, 1) for s in sources[:10]}))
        costs.append(time.perf_counter() - started)
    print(f"plan and done of a batch: {1000 * statistics.median(costs):.1f} ms")
    shutil.rmtree(folder)


def latency(place: Path, landings: int) -> None:
    """From a rename to a visible scored file, with files of a million rows."""
    arriving = place / "live"
    arriving.mkdir()
    prepared = place / "prepared.parquet"
    write(prepared, 1_000_000, 1)
    command = [*LOGCAL, "follow"]
    for setting in (
        "log.path=live",
        "store.path=store",
        "store.table=t",
        "output.path=out",
        "follow.poll=500ms",
    ):
        command += ["--set", setting]
    process = subprocess.Popen(command, cwd=place, env=environment(), stderr=subprocess.DEVNULL)
    seconds = []
    try:
        for i in range(landings):
            shutil.copy(prepared, arriving / "_next")
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
        f"1 M rows, from rename to visible, poll 0.5 s: median {statistics.median(late):.2f} s, "
        f"longest of {len(late)} {late[-1]:.2f} s"
    )


def _timed(function) -> float:
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
