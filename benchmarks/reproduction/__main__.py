"""The experiments of the methods' papers, and tables that compare their results with ours: docs/reproduction.md.

    python -m benchmarks.reproduction OUTPUT [--quick] [--data FOLDER]

Each experiment on a data set writes a result file when it is done; a restarted run continues from there.
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
        "output", type=Path, help="folder of the results, possibly with those of an earlier run"
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
    parser.add_argument("--runs", type=int, help="runs of each experiment, each with another seed (10)")
    parser.add_argument(
        "--large-runs", type=int, help="maximum number of runs for sets with more than 2,000 rows"
    )
    parser.add_argument("--folds", type=int, help="folds of the cross-validation on real data (10)")
    parser.add_argument(
        "--max-rows", type=int, help="larger sets are cut to this size, with other rows in each run"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes (one per processor)")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    runs, folds, rows = (2, 3, 1000) if options.quick else (10, 10, None)
    settings = Settings(
        options.seed,
        options.runs or runs,
        options.folds or folds,
        options.max_rows or rows,
        options.large_runs,
    )
    tasks, missing = plan_tasks(
        options.data, settings, [name for name in EXPERIMENTS if name in options.experiments]
    )
    results = options.output / "results"
    results.mkdir(parents=True, exist_ok=True)
    before = sum(done(task, results) for task in tasks)
    print(f"{len(tasks):,} experiments, {before:,} of them done before", file=sys.stderr)
    # Spawn processes: libraries with threads do not survive a fork.
    with ProcessPoolExecutor(options.workers, multiprocessing.get_context("spawn")) as pool:
        run_tasks(tasks, options.data, results, pool)
        times = []
        if TIMES in options.experiments:
            times = run_times(results / TIMES, 10_000 if options.quick else 1_000_000, options.seed, pool)
    print(write_report(read_results(tasks, results), settings, missing, options.output, times))


if __name__ == "__main__":
    main()
