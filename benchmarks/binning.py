"""The binning calibrators and Platt scaling on one core, against scikit-learn and, if installed, netcal.

    python benchmarks/binning.py [--sizes 1e6 1e7] [--repeats 5] [--only BBQ] [--netcal PYTHON]

Scores are sorted and distinct, labels Bernoulli(0.15 + 0.6 s + 0.2 sin 12 s). The timed part starts from sorted points
in memory and ends with the fitted map. BBQ is timed in full and without the cumulative counts, which any method on
quantiles needs: the totals, and the counts at the models' edges. SBB and ABB are timed exact at 10,000 distinct
scores, and with their 2000 cut points at every size. Peak memory is the increase in a separate process (Linux).
--netcal is the interpreter of an environment with netcal, whose BBQ and histogram binning get 1000, 10,000 and 100,000
rows. Runs alternate; medians are printed.
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
from sklearn.calibration import _sigmoid_calibration
from sklearn.isotonic import isotonic_regression

from calibrators.base import Calibrator
from calibrators.bayesian_binning.abb import ABB
from calibrators.bayesian_binning.sbb import SBB
from calibrators.binning import family as binnings
from calibrators.binning import kernels as kernel
from calibrators.binning.bbq import BBQ, select_models
from calibrators.binning.family import Edges, Family
from calibrators.binning.histogram import HistogramBinning
from calibrators.core.cumulative import Layout, layout_of, part_totals
from calibrators.core.passes import Points
from calibrators.sigmoid.platt import Platt

NETCAL = """
import sys, time, warnings
warnings.simplefilter("ignore")
import numpy as np, netcal
from netcal.binning import BBQ, HistogramBinning
n = int(sys.argv[2])
rng = np.random.default_rng(0)
score = np.sort(rng.random(n))
label = (rng.random(n) < 0.15 + 0.6 * score + 0.2 * np.sin(12 * score)).astype(int)
method = {"BBQ": BBQ, "HistogramBinning": lambda: HistogramBinning(10)}[sys.argv[1]]
start = time.perf_counter()
method().fit(score, label)
print(time.perf_counter() - start, netcal.__version__)
"""


def make_points(n: int) -> Points:
    rng = np.random.default_rng(0)
    score = np.sort(rng.random(n))
    positives = (rng.random(n) < 0.15 + 0.6 * score + 0.2 * np.sin(12 * score)).astype(np.float64)
    return Points(score, np.ones(n), positives)


class PreparedBBQ:
    """BBQ without the computation of its cumulative counts."""

    def __init__(self, points: Points) -> None:
        self.reached = np.cumsum(points.weight)
        self.layout: Layout = layout_of([part_totals(points)])
        self.family: Family = binnings.binning_family(self.layout.weight, 10.0, authors=False, per_bin=False)
        edges_pass = binnings.edges_pass(self.layout, self.family, None)
        self.edges: Edges = edges_pass.combine([edges_pass.chunk(points)])

    def mark_edges(self) -> None:
        total = self.layout.weight
        index = (self.reached, kernel.bucket_index(self.reached, 0.0, total), 0.0, total)
        kernel.mark_edges(index, self.family.models, np.zeros(self.reached.size, np.bool_))

    def fit(self) -> None:
        """Find the edges, score the models, select and average them."""
        self.mark_edges()
        scores, _ = binnings.log_marginal_likelihoods(self.layout, self.family, self.edges)
        selected, weight = select_models(scores, 0.001, authors=False)
        binnings.average(self.layout, self.family, self.edges, selected, weight)

    def facts(self) -> str:
        models, bins = self.family.bins.size, int(self.family.bins.sum())
        size = self.edges.cuts.nbytes + self.edges.low.nbytes
        edges = f"{len(self.edges.cuts):,} distinct edges in {size / 1e6:.0f} MB"
        return f"BBQ: {models:,} models, {bins:,} bins, {edges}"


def contenders(points: Points, prepared: PreparedBBQ) -> dict[str, Callable[[], object]]:
    def fitting(calibrator: Calibrator) -> Callable[[], object]:
        return lambda: calibrator.fit_points(points)

    return {
        "scikit-learn isotonic_regression": lambda: isotonic_regression(points.positives),
        "scikit-learn sigmoid calibration": lambda: _sigmoid_calibration(points.score, points.positives),
        "Platt": fitting(Platt()),
        "HistogramBinning": fitting(HistogramBinning()),
        "BBQ": fitting(BBQ()),
        "BBQ after the cumulative counts": prepared.fit,
        'BBQ(reference="authors")': fitting(BBQ(reference="authors")),
        "SBB, 2000 cut points": fitting(SBB()),
        "ABB, 2000 cut points": fitting(ABB()),
    }


def seconds_of(work: Callable[[], object]) -> float:
    gc.collect()
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def medians(works: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in works}
    for round_ in range(repeats + 1):
        for name, work in works.items():
            seconds = seconds_of(work)
            if round_ > 0:  # the first round compiles and touches memory
                times[name].append(seconds)
    return {name: statistics.median(values) for name, values in times.items()}


def resident(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}")


METHODS: dict[str, Callable[[], Calibrator]] = {
    "Platt": Platt,
    "HistogramBinning": HistogramBinning,
    "BBQ": BBQ,
    "SBB": SBB,
    "ABB": ABB,
}


def print_peak_memory(n: int) -> None:
    """Print the peak memory of each fit beyond the points; needs a separate process."""
    points = make_points(n)
    gained = []
    for name, method in METHODS.items():
        method().fit_points(make_points(5000))
        gc.collect()
        before = resident("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")
        method().fit_points(points)
        gained.append(f"{name} {(resident('VmHWM') - before) / 1e6:.0f} MB")
    size = sum(column.nbytes for column in points) / 1e6
    print(f"  peak memory beyond the points' {size:.0f} MB: " + ", ".join(gained))


def print_compile_time() -> None:
    """Print compile times; needs a separate process with an empty cache."""
    points = make_points(5000)
    first = {name: seconds_of(lambda m=method: m().fit_points(points)) for name, method in METHODS.items()}
    print("first call, nothing compiled yet: " + ", ".join(f"{name} {s:.1f} s" for name, s in first.items()))


def in_separate_process(*arguments: str, **environment: str) -> None:
    command = [sys.executable, __file__, *arguments]
    root = str(Path(__file__).resolve().parents[1])
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": root, **environment})


def race_netcal(python: str) -> None:
    for name in ("BBQ", "HistogramBinning"):
        for n in (1000, 10_000, 100_000):
            done = subprocess.run(
                [python, "-c", NETCAL, name, str(n)], check=True, capture_output=True, text=True
            )
            seconds, version = done.stdout.split()[-2:]
            points = make_points(n)
            ours = statistics.median(
                seconds_of(lambda points=points, name=name: METHODS[name]().fit_points(points))
                for _ in range(9)
            )
            print(
                f"  {name}, n = {n:,}: netcal {version} {float(seconds):.3f} s, here {ours:.5f} s, "
                f"{float(seconds) / ours:,.0f} times"
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", nargs="+", type=float, default=[1e6, 1e7])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", default="", help="methods whose names contain this")
    parser.add_argument("--netcal", help="interpreter that has netcal")
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
    points = make_points(10_000)
    exact = {
        "SBB, exact": lambda: SBB(max_cuts=10_000).fit_points(points),
        "ABB, exact": lambda: ABB(max_cuts=10_000).fit_points(points),
    }
    print("\nn = 10,000")
    for name, seconds in medians(exact, options.repeats).items():
        print(f"  {name:<34} {seconds:9.4f} s")
    for n in [int(size) for size in options.sizes]:
        points = make_points(n)
        prepared = PreparedBBQ(points)
        print(f"\nn = {n:,}; {prepared.facts()}", flush=True)
        in_separate_process("--peak-memory", str(n))
        works = contenders(points, prepared)
        works = {name: work for name, work in works.items() if options.only in name}
        for name, seconds in medians(works, options.repeats).items():
            print(f"  {name:<34} {seconds:9.4f} s", flush=True)
    if options.netcal:
        print("\nnetcal")
        race_netcal(options.netcal)


if __name__ == "__main__":
    main()
