"""The near-isotonic path, NearIsotonic and ENIR against isotonic regression and another ENIR, on one core.

    python benchmarks/near_isotonic.py [--sizes 1e5 1e6 1e7] [--repeats 5] [--netcal PYTHON]

Scores are sorted and distinct, labels Bernoulli(0.15 + 0.6 s + 0.2 sin 12 s). The timed part starts from sorted points
in memory and ends with the path or the fitted map; the peers get the sorted labels. Runs alternate, so that slow phases
of the machine affect all; medians and ratios to scikit-learn are printed. Peak memory is the increase in a separate
process (Linux). --netcal is the interpreter of an environment with netcal, whose ENIR gets 1000, 2000, ... rows until a
fit takes more than 20 seconds, or the sizes of --netcal-sizes.
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numba
import numpy as np
import scipy
import sklearn
from scipy.optimize import isotonic_regression as scipy_isotonic
from sklearn.isotonic import isotonic_regression as sklearn_isotonic

from calibrators.core.passes import Points
from calibrators.isotonic.calibrator import Isotonic
from calibrators.near_isotonic.calibrator import NearIsotonic
from calibrators.near_isotonic.enir import ENIR
from calibrators.near_isotonic.label_runs import join_runs, part_runs
from calibrators.near_isotonic.path import NearIsotonicPath

SKLEARN = "scikit-learn isotonic_regression"
SLOWEST_NETCAL_SECONDS = 20

NETCAL = """
import sys, time, warnings
warnings.simplefilter("ignore")
import numpy as np, netcal
from netcal.binning import ENIR
n = int(sys.argv[1])
rng = np.random.default_rng(0)
score = np.sort(rng.random(n))
label = (rng.random(n) < 0.15 + 0.6 * score + 0.2 * np.sin(12 * score)).astype(int)
start = time.perf_counter()
ENIR().fit(score, label)
print(time.perf_counter() - start, netcal.__version__)
"""


def make_points(n: int) -> Points:
    rng = np.random.default_rng(0)
    score = np.sort(rng.random(n))
    positives = (rng.random(n) < 0.15 + 0.6 * score + 0.2 * np.sin(12 * score)).astype(np.float64)
    return Points(score, np.ones(n), positives)


def find_path(points: Points) -> NearIsotonicPath:
    return NearIsotonicPath.of_runs(join_runs([part_runs(points)]))


CONTENDERS: dict[str, Callable[[Points], object]] = {
    SKLEARN: lambda points: sklearn_isotonic(points.positives),
    "scipy isotonic_regression": lambda points: scipy_isotonic(points.positives),
    "Isotonic": lambda points: Isotonic().fit_points(points),
    "near-isotonic path": find_path,
    "NearIsotonic(lam=1)": lambda points: NearIsotonic(lam=1.0).fit_points(points),
    "NearIsotonic(lam=50)": lambda points: NearIsotonic(lam=50.0).fit_points(points),
    "ENIR (path and averaging)": lambda points: ENIR().fit_points(points),
    'ENIR(reference="authors")': lambda points: ENIR(reference="authors").fit_points(points),
}


def seconds_of(work: Callable[[], object]) -> float:
    gc.collect()
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def compare(n: int, repeats: int) -> dict[str, float]:
    points = make_points(n)
    times: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    for round_ in range(repeats + 1):
        for name, work in CONTENDERS.items():
            seconds = seconds_of(lambda work=work: work(points))
            if round_ > 0:  # the first round compiles and touches memory
                times[name].append(seconds)
    return {name: statistics.median(values) for name, values in times.items()}


def facts(n: int) -> str:
    path = find_path(make_points(n))
    enir = ENIR().fit_points(make_points(n))
    runs = path.runs.first.size
    size = sum(
        column.nbytes for column in (path.breakpoints, path.degrees_of_freedom, *path.runs, *path._tree)
    )
    return (
        f"{runs:,} runs, {path.breakpoints.size:,} breakpoints, path {size / runs:.0f} bytes per run; "
        f"ENIR keeps {enir.models_.lam.size} models in {len(enir.calibration_map_):,} rows"
    )


def resident(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}")


def print_peak_memory(n: int) -> None:
    """Print the peak memory of building the path from runs, and ENIR from points; needs a separate process."""
    find_path(make_points(5000))
    points = make_points(n)
    before = resident("VmRSS")
    runs = join_runs([part_runs(points)])
    Path("/proc/self/clear_refs").write_text("5")
    NearIsotonicPath.of_runs(runs)
    path = resident("VmHWM") - before
    del runs
    gc.collect()
    ENIR().fit_points(make_points(5000))
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    ENIR().fit_points(points)
    enir = resident("VmHWM") - before
    r = part_runs(points).runs.first.size
    print(f"peak memory: path {path / r:.0f} bytes per run (runs included), ENIR {enir / r:.0f}")


def print_compile_time() -> None:
    """Print compile times; needs a separate process with an empty cache."""
    points = make_points(5000)
    first = {}
    for name in ["near-isotonic path", "NearIsotonic(lam=1)", "ENIR (path and averaging)"]:
        first[name] = seconds_of(lambda name=name: CONTENDERS[name](points))
    print("first call, nothing compiled yet: " + ", ".join(f"{name} {s:.1f} s" for name, s in first.items()))


def in_separate_process(*arguments: str, **environment: str) -> None:
    command = [sys.executable, __file__, *arguments]
    root = str(Path(__file__).resolve().parents[1])
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": root, **environment})


def race_netcal(python: str, sizes: list[int]) -> None:
    n = 1000
    for n in sizes or [1000 * 2**i for i in range(12)]:
        done = subprocess.run([python, "-c", NETCAL, str(n)], check=True, capture_output=True, text=True)
        seconds, version = done.stdout.split()[-2:]
        points = make_points(n)
        ENIR().fit_points(points)
        ours = statistics.median(
            seconds_of(lambda points=points: ENIR().fit_points(points)) for _ in range(9)
        )
        theirs = float(seconds)
        print(f"  n = {n:,}: netcal {version} {theirs:.2f} s, ENIR {ours:.5f} s, {theirs / ours:,.0f} times")
        if not sizes and theirs > SLOWEST_NETCAL_SECONDS:
            return


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", nargs="+", type=float, default=[1e5, 1e6, 1e7])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--netcal", help="interpreter that has netcal")
    parser.add_argument("--netcal-sizes", nargs="+", type=float, default=[])
    parser.add_argument("--peak-memory", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--compile-time", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peak_memory:
        print_peak_memory(options.peak_memory)
        return
    if options.compile_time:
        print_compile_time()
        return
    print(
        f"Python {platform.python_version()}, numpy {np.__version__}, numba {numba.__version__}, "
        f"scikit-learn {sklearn.__version__}, scipy {scipy.__version__}, {os.cpu_count()} cores"
    )
    with tempfile.TemporaryDirectory() as empty:
        in_separate_process("--compile-time", NUMBA_CACHE_DIR=empty)
    before: tuple[int, dict[str, float]] | None = None
    for n in [int(size) for size in options.sizes]:
        medians = compare(n, options.repeats)
        print(f"\nn = {n:,}: {facts(n)}", flush=True)
        if n >= 1_000_000:  # with fewer points, allocators reuse freed memory
            in_separate_process("--peak-memory", str(n))
        for name, seconds in medians.items():
            growth = ""
            if before is not None:
                exponent = np.log(seconds / before[1][name]) / np.log(n / before[0])
                growth = f"  n^{exponent:.2f} since n = {before[0]:,}"
            print(f"  {name:<32} {seconds:9.4f} s {seconds / medians[SKLEARN]:7.2f} x scikit-learn{growth}")
        before = (n, medians)
    if options.netcal:
        print("\nENIR of netcal")
        race_netcal(options.netcal, [int(size) for size in options.netcal_sizes])


if __name__ == "__main__":
    main()
