"""`logcal follow` with many known files: time of a listing, a start and a batch; and memory over many batches.

    python benchmarks/follow_known.py
    python benchmarks/follow_known.py --known 100000 --batches 1000

Times are measured in this process; memory is that of the command's processes while files arrive one by one.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import fsspec
import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from _measure import logcal, measure, print_machine

from pipeline.execution import ThreadExecutor
from pipeline.files.folders import Folder
from pipeline.follow.batch import Places, list_sources
from pipeline.follow.follower import Follower, Rules
from pipeline.follow.ledger import Done, Known, LeaseOwner, Ledger
from pipeline.score.scored_file import Scoring


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--known", type=int, default=100_000)
    parser.add_argument("--batches", type=int, default=1000)
    arguments = parser.parse_args()
    print_machine()
    with tempfile.TemporaryDirectory(prefix="logcal-follow-") as folder:
        root = Path(folder)
        write(root / "fitted" / "part.parquet", 200_000, 0)
        measure(logcal("fit", f"log.path={root}/fitted", f"store.path={root}/store", "store.table=t"))
        if arguments.known:
            known_files(root, arguments.known)
        if arguments.batches:
            memory(root, arguments.batches, ())
            memory(root, arguments.batches, ("cluster.kind=local", "cluster.workers=1"))


def write(path: Path, rows: int, seed: int) -> None:
    """Write a file that appears when it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    score = rng.random(rows)
    labels = (rng.random(rows) < score**2).astype(np.int8)
    hidden = path.with_name(f"_{path.name}")
    pq.write_table(pa.table({"score": score, "label": labels}), hidden)
    hidden.rename(path)


def known_files(root: Path, known: int) -> None:
    """Measure with a number of known files, in 100 daily folders."""
    log, output = root / "many", root / "scored"
    for i in range(known):
        for parent in (log, output):
            day = parent / f"date=2026-{1 + i % 100 // 25:02d}-{1 + i % 25:02d}"
            if i < 100:
                day.mkdir(parents=True)
            (day / f"{i:06d}.parquet").touch()
    filesystem = fsspec.filesystem("file")
    sources: list = []
    report(
        f"listing {known:,} files",
        timed(5, lambda: sources.append(list_sources(Folder.of(filesystem, str(log))))),
    )
    ledger = Ledger(Folder.of(filesystem, str(output)))
    ledger.begin({})
    batch = ledger.plan("v", sources[0])
    ledger.commit(batch, Done({s.name: Known(s.size, s.stamp, 1) for s in sources[0]}))
    # The last batch is never compacted: make it an empty one, as real batches have few files.
    ledger.commit(ledger.plan("v"), Done())
    ledger.compact()
    lookup = str(next(root.glob("store/t/versions/*/lookup.parquet")))
    owner = LeaseOwner(ledger.folder)

    def follower() -> Follower:
        places = Places(Folder.of(filesystem, str(log)), Folder.of(filesystem, str(output)))
        arguments = (lambda version: Scoring("score", lookup), lambda: "v", ThreadExecutor(2), owner)
        return Follower(places, Ledger(Folder.of(filesystem, str(output))), Rules(), *arguments)

    def start() -> Follower:
        started = follower()
        started.start()
        return started

    followers: list[Follower] = []
    report(f"start with {known:,} known files", timed(5, lambda: followers.append(start())))
    last = followers[-1]
    report(f"poll of all {known:,} files", timed(5, lambda: last.listing(complete=True)))
    costs = []
    for i in range(150):  # with a compaction
        write(log / "date=2026-04-25" / f"new-{i:04d}.parquet", 1000, i)
        change = last.listing(complete=True)
        costs += timed(1, lambda: last.run(change))  # noqa: B023
    owner.release()
    report("a batch of one file of 1,000 rows, without the poll", costs)
    shutil.rmtree(log)
    for folder in (output, output.with_name(f".{output.name}.logcal")):
        shutil.rmtree(folder)


def memory(root: Path, batches: int, settings: tuple[str, ...]) -> None:
    """Print the resident memory of the command and of its workers, over batches of one file each."""
    arriving, output = root / "one-by-one", root / "seen"
    arriving.mkdir()
    paths = (f"log.path={arriving}", f"output.path={output}", f"store.path={root}/store", "store.table=t")
    process = subprocess.Popen(
        logcal("follow", *paths, "follow.poll=10ms", *settings), stderr=subprocess.DEVNULL
    )
    tree = psutil.Process(process.pid)
    marks = {}
    began = time.perf_counter()
    try:
        for i in range(batches + 100):
            write(arriving / f"{i:05d}.parquet", 1000, i)
            while not (output / f"{i:05d}.parquet").exists():
                time.sleep(0.001)
            if i + 1 in (100, batches // 2 + 100, batches + 100):
                command = tree.memory_info().rss
                marks[i + 1] = (command, sum(p.memory_info().rss for p in tree.children(recursive=True)))
    finally:
        process.terminate()
        process.wait()
    seconds = time.perf_counter() - began
    shown = ", ".join(
        f"{at:,}: {command / 1e6:.1f} MB + {workers / 1e6:.1f} MB" for at, (command, workers) in marks.items()
    )
    print(
        f"memory after batches, {' '.join(settings) or 'threads'}, command + workers: {shown} ({seconds:.0f} s)"
    )
    for folder in (arriving, output, output.with_name(f".{output.name}.logcal")):
        shutil.rmtree(folder)


def timed(times: int, function: Callable[[], object]) -> list[tuple[float, float]]:
    """Return wall and processor seconds of several calls."""
    seconds = []
    for _ in range(times):
        began, used = time.perf_counter(), time.process_time()
        function()
        seconds.append((time.perf_counter() - began, time.process_time() - used))
    return seconds


def report(name: str, seconds: list[tuple[float, float]]) -> None:
    """Print median, minimum and maximum of wall and processor time."""
    clock, processor = ([1000 * second for second in column] for column in zip(*seconds, strict=True))
    print(
        f"{name}: {statistics.median(clock):.1f} ms ({min(clock):.1f} to {max(clock):.1f}), "
        f"processor {statistics.median(processor):.1f} ms ({min(processor):.1f} to {max(processor):.1f})",
        flush=True,
    )


if __name__ == "__main__":
    main()
