"""Jobs on a store that takes 20 ms to answer each request: python benchmarks/latency.py FOLDER.

The store is a file system that sleeps before each request to a local folder, and counts requests. The peer reads the
same bytes with 8 threads, one request per file.
"""

from __future__ import annotations

import argparse
import collections
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from _measure import print_machine

from jobs import fit, follow, score
from jobs.config.jobs import FitConfig, FollowConfig, ScoreConfig
from pipeline.execution import ThreadExecutor

SECONDS = 0.02
COUNTS: collections.Counter[str] = collections.Counter()
_LOCK = threading.Lock()


def request(kind: str) -> None:
    """Count a request, and wait as long as a store takes."""
    with _LOCK:
        COUNTS[kind] += 1
    time.sleep(SECONDS)


class SlowStore(fsspec.AbstractFileSystem):
    """Object store in a local folder: a request is a listing, a range of an object, or a put object."""

    protocol = "slow"
    root_marker = "/"
    local = fsspec.filesystem("file")

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(item) for item in path]
        return str(path).removeprefix("slow://") or "/"

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> Any:
        """List a folder."""
        request("list")
        return self.local.ls(path, detail=detail)

    def find(
        self, path: str, maxdepth: Any = None, withdirs: bool = False, detail: bool = False, **_: Any
    ) -> Any:
        """List all files below a folder: a request per 1,000 objects."""
        objects = self.local.find(path, maxdepth=maxdepth, withdirs=withdirs, detail=detail)
        for _page in range(1 + len(objects) // 1000):
            request("list")
        return objects

    def info(self, path: str, **kwargs: Any) -> Any:
        """Get an object's size and time."""
        request("head")
        return self.local.info(path)

    def cat_file(self, path: str, start: Any = None, end: Any = None, **kwargs: Any) -> bytes:
        """Get an object, or a range of it."""
        request("get")
        data: bytes = self.local.cat_file(path, start, end)
        return data

    def cat_ranges(self, paths: Any, starts: Any, ends: Any, **kwargs: Any) -> list[bytes]:
        """Get ranges, 16 at a time."""
        with ThreadPoolExecutor(16) as pool:
            return list(pool.map(self.cat_file, paths, starts, ends))

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        """Put an object."""
        request("put")
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with Path(path).open("xb" if mode == "create" else "wb") as file:
            file.write(value)

    def rm_file(self, path: str) -> None:
        """Remove an object."""
        request("delete")
        self.local.rm_file(path)

    def rm(self, path: Any, recursive: bool = False, maxdepth: Any = None) -> None:
        """Remove objects, up to 1,000 with one request."""
        request("delete")
        self.local.rm(path, recursive=recursive)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Do nothing: a store has no folders."""

    def _open(self, path: str, mode: str = "rb", block_size: Any = None, **kwargs: Any) -> Any:
        if mode != "rb":
            return _Put(self, path)
        return _Get(self, path, mode, block_size or 5 << 20, **kwargs)


class _Get(fsspec.spec.AbstractBufferedFile):
    def _fetch_range(self, start: int, end: int) -> bytes:
        return self.fs.cat_file(self.path, start, end)


class _Put(fsspec.spec.io.BytesIO):
    def __init__(self, store: SlowStore, path: str) -> None:
        super().__init__()
        self.store, self.path = store, path

    def close(self) -> None:
        """Put the written bytes."""
        if not self.closed:
            self.store.pipe_file(self.path, self.getvalue())
        super().close()


def measure(name: str, job: Any, config: Any, baseline: float) -> None:
    """Run a job on threads and print a line."""
    COUNTS.clear()
    begun, worked = time.perf_counter(), time.process_time()
    job.prepare(config).execute(ThreadExecutor(2))
    seconds, worked = time.perf_counter() - begun, time.process_time() - worked
    ratio = f"{seconds / baseline:5.2f} of the reads  {worked:5.2f} processor s"
    print(f"{name:8s} {seconds:6.2f} s  {ratio}  {dict(COUNTS)}", flush=True)


def main() -> None:
    """Make a log, and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--files", type=int, default=500)
    parser.add_argument("--rows", type=int, default=10_000, help="rows of each file")
    options = parser.parse_args()
    print_machine()
    fsspec.register_implementation("slow", SlowStore, clobber=True)
    root = options.folder / "latency"
    shutil.rmtree(root, ignore_errors=True)
    (root / "log").mkdir(parents=True)
    random = np.random.default_rng(0)
    for i in range(options.files):
        s = random.beta(0.5, 2.5, options.rows)
        table = pa.table({"score": s, "label": (random.random(options.rows) < s).astype(np.int8)})
        pq.write_table(table, root / "log" / f"{i:05d}.parquet")
    store = SlowStore()
    paths = sorted(str(path) for path in (root / "log").iterdir())
    with ThreadPoolExecutor(8) as pool:
        begun = time.perf_counter()
        size = sum(map(len, pool.map(store.cat_file, paths)))
        baseline = time.perf_counter() - begun
    print(f"{options.files} files, {size / 1e6:.0f} MB: {baseline:.2f} s in 8 parallel reads")
    log = {"path": f"slow://{root}/log"}
    destination = {"path": f"slow://{root}/store", "table": "t"}
    common = {"log": log, "store": destination, "scratch": str(root / "scratch")}
    (root / "scratch").mkdir()
    config = {**common, "calibrator": {"method": "isotonic"}, "gate": {"holdout": "none"}}
    warm = {
        **config,
        "log": {"path": str(root / "log" / "00000.parquet")},
        "store": {**destination, "table": "warm"},
    }
    fit.prepare(FitConfig.model_validate(warm)).execute(ThreadExecutor(2))
    measure("fit", fit, FitConfig.model_validate(config), baseline)
    output = {"path": f"slow://{root}/scored"}
    config = ScoreConfig.model_validate({"log": log, "store": destination, "output": output})
    measure("score", score, config, baseline)
    followed = {"log": log, "store": destination, "output": {"path": f"slow://{root}/followed"}}
    config = FollowConfig.model_validate({**followed, "follow": {"once": True, "max_files": 1000}})
    measure("follow", follow, config, baseline)


if __name__ == "__main__":
    main()
