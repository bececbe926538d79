"""What many known files cost `logcal follow`: a listing, a start, a batch; and its memory over many batches.

    python benchmarks/follow_known.py
    python benchmarks/follow_known.py --known 100000 --batches 1000

The first in this process; memory is that of the command's processes while files arrive one by one.
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
        place = Path(folder)
        write(place / "fitted" / "part.parquet", 200_000, 0)
        measure(logcal("fit", f"log.path={place}/fitted", f"store.path={place}/store", "store.table=t"))
        if arguments.known:
            known_files(place, arguments.known)
        if arguments.batches:
            memory(place, arguments.batches, ())
            memory(place, arguments.batches, ("cluster.kind=local", "cluster.workers=1"))


def write(path: Path, rows: int, seed: int) -> None:
    """A file lands."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    score = rng.random(rows)
    labels = (rng.random(rows) < score**2).astype(np.int8)
    hidden = path.with_name(f"_{path.name}")
    pq.write_table(pa.table({"score": score, "label": labels}), hidden)
    hidden.rename(path)


def known_files(place: Path, known: int) -> None:
    """With so many known files, in 100 days."""
    log, output = place / "many", place / "scored"
    for i in range(known):
        for root in (log, output):
            day = root / f"date=2026-{1 + i % 100 // 25:02d}-{1 + i % 25:02d}"
            if i < 100:
                day.mkdir(parents=True)
            (day / f"{i:06d}.parquet").touch()
    filesystem = fsspec.filesystem("file")
    sources: list = []
    say(f"listing {known:,} files", again(5, lambda: sources.append(list_sources(filesystem, str(log)))))
    ledger = Ledger(filesystem, str(output))
    ledger.begin({})
    batch = ledger.plan("v", sources[0])
    ledger.commit(batch, Done({s.name: Known(s.size, s.stamp, 1) for s in sources[0]}))
    # The last batch stays as it is: no real one is of so many files.
    ledger.commit(ledger.plan("v"), Done())
    ledger.compact()
    lookup = str(next(place.glob("store/t/versions/*/lookup.parquet")))
    owner = LeaseOwner(ledger.folder)

    def follower() -> Follower:
        places = Places(filesystem, str(log), filesystem, str(output))
        given = (lambda version: Scoring("score", lookup), lambda: "v", ThreadExecutor(2), owner)
        return Follower(places, Ledger(filesystem, str(output)), Rules(), *given)

    def start() -> Follower:
        found = follower()
        found.start()
        return found

    started: list[Follower] = []
    say(f"start with {known:,} known files", again(5, lambda: started.append(start())))
    one = started[-1]
    say(f"a look at all {known:,} files", again(5, lambda: one.listing(complete=True)))
    costs = []
    for i in range(150):  # with a compaction
        write(log / "date=2026-04-25" / f"new-{i:04d}.parquet", 1000, i)
        change = one.listing(complete=True)
        costs += again(1, lambda: one.run(change))  # noqa: B023
    owner.release()
    say("a batch of one file of 1,000 rows, beside the look", costs)
    shutil.rmtree(log)
    for folder in (output, Path(f"{output}.logcal")):
        shutil.rmtree(folder)


def memory(place: Path, batches: int, settings: tuple[str, ...]) -> None:
    """Resident memory of the command, and of its workers, over batches of one file each."""
    arriving, output = place / "one-by-one", place / "seen"
    arriving.mkdir()
    paths = (f"log.path={arriving}", f"output.path={output}", f"store.path={place}/store", "store.table=t")
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
                own = tree.memory_info().rss
                marks[i + 1] = (own, sum(p.memory_info().rss for p in tree.children(recursive=True)))
    finally:
        process.terminate()
        process.wait()
    seconds = time.perf_counter() - began
    shown = ", ".join(
        f"{at:,}: {own / 1e6:.1f} MB + {others / 1e6:.1f} MB" for at, (own, others) in marks.items()
    )
    print(
        f"memory after batches, {' '.join(settings) or 'threads'}, command + others: {shown} ({seconds:.0f} s)"
    )
    for folder in (arriving, output, Path(f"{output}.logcal")):
        shutil.rmtree(folder)


def again(times: int, function: Callable[[], object]) -> list[tuple[float, float]]:
    """Seconds, and processor seconds, of several calls."""
    found = []
    for _ in range(times):
        began, used = time.perf_counter(), time.process_time()
        function()
        found.append((time.perf_counter() - began, time.process_time() - used))
    return found


def say(what: str, seconds: list[tuple[float, float]]) -> None:
    """The median of some measurements, and the least and the most; on a busy machine processor time says more."""
    clock, processor = ([1000 * second for second in column] for column in zip(*seconds, strict=True))
    print(
        f"{what}: {statistics.median(clock):.1f} ms ({min(clock):.1f} to {max(clock):.1f}), "
        f"processor {statistics.median(processor):.1f} ms ({min(processor):.1f} to {max(processor):.1f})",
        flush=True,
    )


if __name__ == "__main__":
    main()
