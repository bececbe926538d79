"""Divergence from the truth on 400 logs that break assumptions of calibrators: the worst log, not the mean.

    python benchmarks/adversarial.py                               # the defaults, 400 logs
    python benchmarks/adversarial.py --methods auto isotonic smooth --logs 100
    python benchmarks/adversarial.py --harsh --first 70000 --logs 300   # several departures in each log

Half of the logs of tests/adversarial_logs.py have 2 to 2,000 segments, of which some are odd (one label only, inverted,
separated, at one score, shifted); the others have scores with jumps, dips, waves, plateaus, fallback scores, two models
mixed, truncated or rounded scores. Fits are the job `fit` with the gate's limits on sizes off. Reference: for each log
the better of one isotonic map and an isotonic map per segment. The measure is the mean Kullback-Leibler divergence from
the truth, over the rows of ordinary segments; without segments, its excess over that of the best map that rises.
Harsh logs have one or two segment columns, scores and truths that differ between segments, odd segments, rounded scores
and weights at once; with two columns an isotonic map per pair is a third reference.

Printed for each method: how many fits were refused; the share of logs above 1.5 times the reference plus 5e-5 nats, and
above 3 times plus 1e-3; median, 95th percentile and worst divergence in 1e-3 nats; the largest deviations of expected
over observed positives from 1, of all rows, and of segments with 2,500 rows of each label.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from _measure import print_machine

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from adversarial_logs import divergence, fitted, harsh_log, reference, scored_log, segmented_log, totals

MOST, RUINED = (1.5, 5e-5), (3.0, 1e-3)
COLUMNS = (
    "method", "logs", "refused", "above 1.5 x", "above 3 x", "median", "95 %", "worst", "all rows", "segments"
)  # fmt: skip


def measured(number: int, methods: list[str], most_rows: float, harsh: bool) -> dict[str, Any] | None:
    """Measure one log with each method; None if it has fewer than 20 rows of a label, or odd segments only."""
    logging.disable(logging.CRITICAL)
    draw = scored_log if number % 2 else segmented_log
    log = harsh_log(number, most_rows) if harsh else draw(number // 2, most_rows)
    if min(log.label.sum(), (~log.label).sum()) < 20 or np.isnan(log.truth).all():
        return None
    result = {"number": number, **log.facts, "positives": int(log.label.sum()), "reference": reference(log)}
    with tempfile.TemporaryDirectory(prefix="logcal-adversarial-") as folder:
        for method in methods:
            p = fitted(log, method, Path(folder) / "fit")
            if isinstance(p, str):
                result[method] = {"refused": p}
            else:
                of_all, of_segments = totals(log, p)
                result[method] = {"divergence": divergence(log, p), "all": of_all, "segments": of_segments}
    return result


def exceeds(result: dict[str, Any], method: str, limit: tuple[float, float]) -> bool:
    """Whether a published map is further from the truth than a limit allows."""
    least = limit[0] * max(result["reference"], 0.0) + limit[1]
    return result[method].get("divergence", 0.0) > least


def summary(results: list[dict[str, Any]], method: str) -> list[str]:
    """Return a method's row of the table."""
    published = [r for r in results if "divergence" in r[method]]
    if not published:
        return [method, str(len(results)), str(len(results)), *["–"] * 7]
    loss = 1e3 * np.array([r[method]["divergence"] for r in published])
    worst = [
        max((r[method][kind] for r in published if r["positives"] >= least), key=abs, default=0.0)
        for kind, least in (("all", 0), ("segments", 0))
    ]
    shares = [
        f"{100 * np.mean([exceeds(r, method, limit) for r in published]):.1f} %" for limit in (MOST, RUINED)
    ]
    spread = [f"{value:.2f}" for value in (np.median(loss), np.quantile(loss, 0.95), loss.max())]
    return [
        method, str(len(results)), str(len(results) - len(published)), *shares, *spread,
        *(f"{100 * value:+.2f} %" for value in worst),
    ]  # fmt: skip


def main(arguments: list[str]) -> None:
    """Measure, and print a table; with --lines, also a line of JSON a log."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--logs", type=int, default=400)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--methods", nargs="+", default=["auto"])
    parser.add_argument("--most-rows", type=float, help="default 10^5.2, harsh 10^5.3")
    parser.add_argument("--harsh", action="store_true")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--lines", type=Path)
    options = parser.parse_args(arguments)
    print_machine()
    numbers = range(options.first, options.first + options.logs)
    with ProcessPoolExecutor(options.processes) as pool, contextlib.ExitStack() as stack:
        lines = stack.enter_context((options.lines or Path(os.devnull)).open("w"))
        results = []
        most_rows = options.most_rows or 10 ** (5.3 if options.harsh else 5.2)
        given = (options.methods, most_rows, options.harsh)
        for result in pool.map(measured, numbers, *([value] * len(numbers) for value in given)):
            if result is not None:
                results.append(result)
                print(json.dumps(result), file=lines, flush=True)
    for title, kind in (("with segments", True), ("without segments", False))[: 1 if options.harsh else 2]:
        print(f"\n{title}\n\n| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|")
        for method in options.methods:
            print(
                "| " + " | ".join(summary([r for r in results if ("segments" in r) == kind], method)) + " |"
            )


if __name__ == "__main__":
    main(sys.argv[1:])
