"""Statistics against other packages: differences of the numbers, seconds and memory.

    python benchmarks/statistics_peers.py                       # the table of docs/benchmarks.md
    python benchmarks/statistics_peers.py --sizes 10000 100000 --patience 30

In memory, on one core, each measurement in its own process; time and memory of imports, compilation and data are
excluded. A peer that takes longer than --patience seconds is not run at larger sizes. Peers that are not installed are
skipped: pip install venn-abers probcal betacal relplot model-diagnostics.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Callable

import numpy as np
from scipy.special import expit

AT = np.linspace(0.005, 0.6, 50)
"""Scores at which maps are compared."""


def sample(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw probabilities that are somewhat too high, and labels."""
    rng = np.random.default_rng(0)
    p = expit(rng.normal(-2, 1.5, rows))
    return p, (rng.random(rows) < p**1.2).astype(np.int64)


# Computations: functions from probabilities and labels to numbers.


def _fitted(name: str, **parameters):
    def compute(p, y):
        from pipeline.fit.calibration import make_calibrator

        return make_calibrator(name, parameters).fit(p, y).predict(AT)

    return compute


def _probcal(name: str):
    def compute(p, y):
        import probcal

        return getattr(probcal, name)().fit(p, y).predict_proba(AT)

    return compute


def _sklearn_isotonic(p, y):
    from sklearn.isotonic import IsotonicRegression

    return IsotonicRegression(out_of_bounds="clip").fit(p, y).predict(AT)


def _betacal(p, y):
    from betacal import BetaCalibration

    return BetaCalibration("abm").fit(p.reshape(-1, 1), y).predict(AT)


def _our_venn_abers(p, y):
    from calibrators import Isotonic, collapse
    from calibrators.core.intervals import venn_abers_pass

    points = collapse(p, y)
    map_ = Isotonic(ends=0).fit_points(points).calibration_map_
    request = venn_abers_pass(map_)
    interval = request.combine([request.chunk(points)])
    # Compare at the first score of blocks, where the table's row has the interval of the score itself.
    rows = np.flatnonzero(map_.weight > 0)[1:-1]
    first = points.score[np.searchsorted(points.score, map_.score_lo[rows])]
    chosen = np.linspace(0, rows.size - 1, 20).astype(int)
    return interval.lower[rows][chosen], first[chosen]


def _venn_abers(p, y):
    from venn_abers import VennAbers

    at = _AT_BLOCKS
    peer = VennAbers()
    peer.fit(np.column_stack([1 - p, p]), y)
    return peer.predict_proba(np.column_stack([1 - at, at]))[1][:, 0]


def _probcal_venn_abers(p, y):
    import probcal

    return probcal.VennAbersCalibrator().fit(p, y).predict_interval(_AT_BLOCKS)[:, 0]


def _spread(p, y):
    from calibrators.core.passes import Points
    from calibrators.measures.engine import cells_of_columns
    from calibrators.measures.predictions import check_points
    from calibrators.measures.spread import Spread

    points, _ = check_points(Points(p, np.ones(len(p)), y))
    return Spread.of(cells_of_columns(points, np.array([0, len(p)])))


def _our_parts(p, y):
    from calibrators.core.passes import Points, run_in_memory
    from calibrators.measures.decomposition import decompose
    from calibrators.measures.engine import MeasureOptions
    from calibrators.measures.predictions import check_points, measured_passes

    points, _ = check_points(Points(p, np.ones(len(p)), y))
    measures, column = run_in_memory(measured_passes(MeasureOptions(blocks=True)), points)
    return _parts(decompose(column.blocks, np.empty((0, 2)), measures))


def _parts(decomposition):
    return [
        getattr(loss, name)
        for loss in (decomposition.brier, decomposition.log_loss)
        for name in ("miscalibration", "discrimination", "uncertainty")
    ]


def _our_draws(p, y):
    from calibrators.measures.in_memory import certainty

    return _parts(certainty(y, p).decomposition)


def _model_diagnostics(p, y):
    from model_diagnostics.scoring import LogLoss, SquaredError, decompose

    parts = []
    for function in (SquaredError(), LogLoss()):
        row = decompose(y, p, scoring_function=function)
        parts += [row[name][0] for name in ("miscalibration", "discrimination", "uncertainty")]
    return parts


def _probcal_corp(bands):
    def compute(p, y):
        import probcal

        result = probcal.corp_reliability(y, p, bands=bands)
        return [
            getattr(result, f"{loss}_{part}")
            for loss in ("brier", "log_loss")
            for part in ("mcb", "dsc", "unc")
        ]

    return compute


def _our_smooth(p, y):
    from calibrators.measures.spread import smooth_ece

    return [smooth_ece(_spread(p, y))]


def _relplot(p, y):
    import relplot

    return [relplot.smECE(p, y)]


def _probcal_smooth(p, y):
    from probcal.metrics import smooth_ece

    return [smooth_ece(y, p)]


def _our_tests(p, y):
    from calibrators.measures.in_memory import error_bars
    from calibrators.measures.spread import lines

    return [error_bars(y, p).spiegelhalter_z, lines(_spread(p, y))[0, 1]]


def _probcal_tests(p, y):
    from probcal.metrics import calibration_slope, spiegelhalter_z

    test = spiegelhalter_z(y, p)
    return [getattr(test, "z", getattr(test, "statistic", None)), calibration_slope(y, p)]


Compute = Callable[[np.ndarray, np.ndarray], object]

TASKS: dict[str, dict[str, Compute]] = {
    "isotonic regression": {
        "logcal": _fitted("isotonic", ends=0),
        "scikit-learn": _sklearn_isotonic,
        "probcal": _probcal("IsotonicCalibrator"),
    },
    "beta calibration": {
        "logcal": _fitted("beta"),
        "betacal": _betacal,
        "probcal": _probcal("BetaCalibrator"),
    },
    "Venn-Abers": {
        "logcal": lambda p, y: _our_venn_abers(p, y)[0],
        "venn-abers": _venn_abers,
        "probcal": _probcal_venn_abers,
    },
    "CORP, both losses": {
        "logcal": _our_parts,
        "model-diagnostics": _model_diagnostics,
        "probcal": _probcal_corp(None),
    },
    "the same with 200 draws for the band": {"logcal": _our_draws, "probcal": _probcal_corp("consistency")},
    "smooth calibration error": {"logcal": _our_smooth, "relplot": _relplot, "probcal": _probcal_smooth},
    "Spiegelhalter's z, Cox's slope": {"logcal": _our_tests, "probcal": _probcal_tests},
}

_AT_BLOCKS = np.empty(0)


def measure_here(task: str, package: str, rows: int) -> dict[str, object]:
    """Measure in this process."""
    global _AT_BLOCKS  # noqa: PLW0603
    warnings.simplefilter("ignore")
    compute = TASKS[task][package]
    small = sample(2000)
    if task == "Venn-Abers":
        _AT_BLOCKS = _our_venn_abers(*small)[1]
    compute(*small)
    p, y = sample(rows)
    if task == "Venn-Abers":
        _AT_BLOCKS = _our_venn_abers(p, y)[1]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    numbers = compute(p, y)
    seconds = time.perf_counter() - began
    kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    numbers = np.asarray(numbers, np.float64).ravel().tolist()
    return {"seconds": seconds, "mb": kib / 1024, "numbers": numbers}


def measure(task: str, package: str, rows: int, patience: float) -> dict[str, object] | None:
    """Measure in a separate process; None if that takes too long or fails."""
    command = [sys.executable, __file__, "--one", task, package, str(rows)]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "POLARS_MAX_THREADS": "1",
    }
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=patience, env=environment
        )
    except subprocess.TimeoutExpired:
        return None
    if done.returncode:
        print(f"<!-- {task}, {package}, {rows}: {done.stderr.strip().splitlines()[-1][:150]} -->", flush=True)
        return None
    return json.loads(done.stdout.splitlines()[-1])


def main(arguments: list[str]) -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", nargs="*", type=int, default=[10_000, 100_000, 1_000_000, 10_000_000])
    parser.add_argument("--tasks", nargs="*", default=list(TASKS))
    parser.add_argument("--patience", type=float, default=60)
    parser.add_argument("--one", nargs=3)
    options = parser.parse_args(arguments)
    if options.one:
        task, package, rows = options.one
        print(json.dumps(measure_here(task, package, int(rows))))
        return
    from _measure import print_machine

    print_machine()
    sizes = " | ".join(f"{size:,}" for size in options.sizes)
    print(f"\n| | | {sizes} | MB more | largest difference |\n|---|---|{'---|' * len(options.sizes)}---|---|")
    for task in options.tasks:
        ours: dict[int, np.ndarray] = {}
        for package in TASKS[task]:
            cells, memory, difference, slow = [], "", 0.0, False
            for rows in options.sizes:
                result = None if slow else measure(task, package, rows, options.patience)
                slow = result is None
                if result is None:
                    cells.append("")
                    continue
                numbers = np.array(result["numbers"])
                ours.setdefault(rows, numbers)
                difference = max(difference, float(np.abs(numbers - ours[rows]).max()))
                cells.append(f"{result['seconds']:.3g}")
                memory = f"{result['mb']:.0f}"
            shown = "" if package == "logcal" else f"{difference:.1e}"
            print(f"| {task} | {package} | {' | '.join(cells)} | {memory} | {shown} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
