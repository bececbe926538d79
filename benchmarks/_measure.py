"""Measurement of commands that run alternately: wall time of the process, and peak memory of its process tree."""

from __future__ import annotations

import importlib.metadata
import mmap
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

LOGCAL = str(Path(sys.executable).with_name("logcal"))
INTERVAL_SECONDS = 0.05
TOUCHED_BYTES = 4 << 30
PACKAGES = ("dask", "distributed", "duckdb", "fsspec", "numba", "numpy", "pandas", "polars", "pyarrow")


@dataclass(frozen=True)
class Measurement:
    """Measurement of one run of a command.

    peak_bytes : peak of the summed resident memory of all processes, sampled; shared pages count in each process
    cpu_seconds : processor time of all processes, sampled: up to one interval of each process is missing
    """

    seconds: float
    peak_bytes: int
    cpu_seconds: float = 0.0


@dataclass(frozen=True)
class Contender:
    """Command to be measured. `before` is called before each run, untimed: it clears the output."""

    name: str
    command: Sequence[str]
    before: Callable[[], None] = lambda: None


def logcal(job: str, *settings: str) -> list[str]:
    """Return the command that runs a job in this environment."""
    return [LOGCAL, job, *(word for setting in settings for word in ("--set", setting))]


def clearing(folder: Path) -> Callable[[], None]:
    """Return a function that empties a folder."""

    def clear() -> None:
        for path in folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    return clear


def measure(command: Sequence[str]) -> Measurement:
    """Run a command and measure it; RuntimeError with the end of its output if it fails."""
    with tempfile.TemporaryFile() as printed:
        start = time.perf_counter()
        process = subprocess.Popen(
            list(command), stdout=printed, stderr=subprocess.STDOUT, env=_environment()
        )
        tree = psutil.Process(process.pid)
        peak = 0
        spent: dict[int, float] = {}
        while process.poll() is None:
            peak = max(peak, _resident(tree, spent))
            try:
                process.wait(INTERVAL_SECONDS)
            except subprocess.TimeoutExpired:
                continue
        seconds = time.perf_counter() - start
        if process.returncode != 0:
            printed.seek(0)
            text = printed.read().decode(errors="replace")[-2000:]
            raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}:\n{text}")
    return Measurement(seconds, peak, sum(spent.values()))


def _environment() -> dict[str, str]:
    """Return the environment of a user, in which imports cache their bytecode."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def _resident(tree: psutil.Process, spent: dict[int, float]) -> int:
    """Return the resident memory of all processes; store their processor time in `spent`, by process."""
    total = 0
    try:
        for process in [tree, *tree.children(recursive=True)]:
            try:
                total += process.memory_info().rss
                times = process.cpu_times()
                spent[process.pid] = times.user + times.system
            except psutil.NoSuchProcess:
                continue
    except psutil.NoSuchProcess:
        pass
    return total


def touch_memory(size: int = TOUCHED_BYTES) -> None:
    """Allocate memory, write to it and free it.

    A virtual machine returns memory that is unused for some seconds to its host. The first write to it is then ten
    times as slow: 2.6 s per gigabyte instead of 0.2 s.
    """
    with mmap.mmap(-1, size) as memory:
        if hasattr(mmap, "MADV_HUGEPAGE"):
            memory.madvise(mmap.MADV_HUGEPAGE)
        for page in range(0, size, mmap.PAGESIZE):
            memory[page] = 1


def measure_interleaved(contenders: Sequence[Contender], runs: int) -> dict[str, list[Measurement]]:
    """Measure contenders in turns, after one untimed turn, so that slow phases of the machine affect all of them."""
    results: dict[str, list[Measurement]] = {contender.name: [] for contender in contenders}
    for turn in range(runs + 1):
        for contender in contenders:
            contender.before()
            touch_memory()
            os.sync()  # this run must not wait for earlier runs' writes
            result = measure(contender.command)
            if turn:
                results[contender.name].append(result)
                print(
                    f"  {contender.name}: {result.seconds:.2f} s, {result.peak_bytes / 1e6:,.0f} MB",
                    flush=True,
                )
    return results


def print_table(results: dict[str, list[Measurement]], against: str) -> None:
    """Print medians, ranges, processor time, peak memory, and the median ratio to one contender in the same turn."""
    base = [m.seconds for m in results[against]]
    width = max(map(len, results))
    print(f"\n{'':{width}}  median s  (min to max)     ratio  CPU s  peak MB")
    for name, runs in results.items():
        seconds = sorted(m.seconds for m in runs)
        median = statistics.median(seconds)
        spread = f"({seconds[0]:.2f} to {seconds[-1]:.2f})"
        peak = max(m.peak_bytes for m in runs) / 1e6
        ratio = statistics.median(m.seconds / other for m, other in zip(runs, base, strict=True))
        spent = statistics.median(m.cpu_seconds for m in runs)
        print(f"{name:{width}}  {median:8.2f}  {spread:15}  {ratio:5.2f}  {spent:5.1f}  {peak:7,.0f}")


def print_machine() -> None:
    """Print the processor, memory, platform and versions."""
    versions = []
    for package in PACKAGES:
        try:
            versions.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    print(
        f"{os.cpu_count()} CPUs ({_processor()}), {psutil.virtual_memory().total / 1e9:.0f} GB, {platform.platform()}"
    )
    print(f"Python {platform.python_version()}, {', '.join(versions)}")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "?")


def warm(folder: Path) -> int:
    """Read a folder's Parquet files into the page cache; return their size in bytes."""
    size = 0
    for path in sorted(folder.rglob("*.parquet")):
        with path.open("rb") as file:
            while block := file.read(1 << 24):
                size += len(block)
    return size
