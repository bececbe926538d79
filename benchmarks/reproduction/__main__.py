"""The experiments of the papers that the methods come from, and their tables beside ours: docs/reproduction.md.

    python -m benchmarks.reproduction OUTPUT [--quick] [--data FOLDER]

Each experiment on a data set has a result file, which is written when it is done. A run that is started again goes on
from there.
"""

import argparse
import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from benchmarks.reproduction.experiments import (
    EXPERIMENTS,
    Settings,
    done,
    plan_tasks,
    read_results,
    run_tasks,
)
from benchmarks.reproduction.report import write_report
from benchmarks.reproduction.times import run_times

TIMES = "times"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.reproduction", description=__doc__.partition(":")[0]
    )
    parser.add_argument(
        "output", type=Path, help="folder of the results; it may hold those of an earlier run"
    )
    parser.add_argument(
        "--quick", action="store_true", help="2 runs, 3 folds, sets cut to 1,000 rows: some minutes"
    )
    parser.add_argument(
        "--data", type=Path, default=Path(__file__).parent / "sets", help="folder of the data sets"
    )
    parser.add_argument(
        "--experiments", nargs="+", choices=(*EXPERIMENTS, TIMES), default=(*EXPERIMENTS, TIMES)
    )
    parser.add_argument(
        "--runs", type=int, help="runs of each experiment, each with other random numbers (10)"
    )
    parser.add_argument(
        "--large-runs", type=int, help="at most so many of what takes long: sets of over 2,000 rows"
    )
    parser.add_argument("--folds", type=int, help="folds of the cross-validation on real data (10)")
    parser.add_argument(
        "--max-rows", type=int, help="larger sets are cut to so many rows, others in each run"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes (one a processor)")
    return parser.parse_args()


def main() -> None:
    asked = arguments()
    runs, folds, rows = (2, 3, 1000) if asked.quick else (10, 10, None)
    settings = Settings(
        asked.seed, asked.runs or runs, asked.folds or folds, asked.max_rows or rows, asked.large_runs
    )
    tasks, missing = plan_tasks(
        asked.data, settings, [name for name in EXPERIMENTS if name in asked.experiments]
    )
    results = asked.output / "results"
    results.mkdir(parents=True, exist_ok=True)
    before = sum(done(task, results) for task in tasks)
    print(f"{len(tasks):,} experiments, {before:,} of them done before", file=sys.stderr)
    # Not forked: libraries that compute with threads do not survive it.
    with ProcessPoolExecutor(asked.workers, multiprocessing.get_context("spawn")) as pool:
        run_tasks(tasks, asked.data, results, pool)
        times = []
        if TIMES in asked.experiments:
            times = run_times(results / TIMES, 10_000 if asked.quick else 1_000_000, asked.seed, pool)
    print(write_report(read_results(tasks, results), settings, missing, asked.output, times))


if __name__ == "__main__":
    main()
