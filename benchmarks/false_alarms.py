"""How often the check of a fit against its own rows flags honest fits, and how often it finds wrong ones.

    python benchmarks/false_alarms.py plain --logs 3000                 # 300 to 100,000 rows
    python benchmarks/false_alarms.py plain --logs 300 --rows 6 6       # a million rows
    python benchmarks/false_alarms.py segments --logs 500               # the job `fit`, 2 to 10,000 segments
    python benchmarks/false_alarms.py crossed --logs 300                # the job `fit`, two or three columns
    python benchmarks/false_alarms.py power --logs 100                  # wrong methods on tests/adversarial_logs.py

Honest logs have a smooth, stepped or rare truth that never falls, with or without ties, with no weights, sampling
weights or random counts. Each is fitted with `auto` and with another method that can follow its truth; plain fits in
memory with the functions of the job. A flag is a significant range before `auto` falls back; 'by chance' are those in
which the map is nearer to the truth than the rows are. With segments `auto` or `isotonic` is fitted, and a flag is what
`gate.agreement` refuses; the reasons are printed. The limit is the upper end of a 95 % interval (Clopper and Pearson)
of the share.

Crossed: up to 10,000 values of one column and 100 of another shift the score's log odds, with or without a shift of
each pair; 10,000 to a million rows. Every third log is extended: sizes of both columns follow a power law, and by
chance it has sampling weights or 1 or 10 % of the negatives, ties, values of the second column that occur with a
quarter of the first's only, and a third column.

Power: by the deviance that a map's error in its worst range would have without noise, over the limit, the share of maps
that are flagged.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from _measure import print_machine
from scipy.special import expit, logit
from scipy.stats import beta

import logcal
from calibrators import collapse
from calibrators.base import Sampling
from calibrators.core.map import CalibrationMap
from calibrators.core.passes import Points, in_memory
from calibrators.core.sampling import sampling_weights
from calibrators.measures.falls import proven_fall
from calibrators.measures.fit_check import cells_of_scores, check_fit
from jobs.gate.agreement import disagreement
from pipeline.fit.calibration import make_calibrator
from pipeline.fit.self_check import CellCollector, Checked, check_all_rows

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from adversarial_logs import scored_log

TRUTHS = {
    "score": lambda z: z,
    "line": lambda z: 1.3 * z + 0.4,
    "waves": lambda z: z + 0.4 * np.sin(2 * z),
    "kink": lambda z: z - 0.8 * np.maximum(z - 1, 0),
    "steps": lambda z: 1.2 * np.floor(0.8 * z) + 0.5,
    "jump": lambda z: z + (z > 0.5),
    "flat": lambda z: np.full_like(z, -1.0),
}
ANY = ("isotonic", "strict", "enir", "near_isotonic")
FOLLOW = {"score": ("smooth", "beta"), "line": ("smooth", "beta"), "waves": ("smooth",), "kink": ("smooth",)}
"""Methods that can follow every truth, and further ones by truth."""
PARAMETERS = {"strict": ("isotonic", {"strict": True})}
WEIGHTS = ("none", "none", "sampling", "counts")
SEGMENTS = (2, 30, 1000, 10_000)
DECADES = {"segments": (3.0, 5.0), "crossed": (4.0, 6.0)}
GROUPS = {
    "plain": ("method", "weights", "truth", "ties"),
    "segments": ("method", "weights", "truth", "segments"),
    "crossed": ("method", "extended", "weights", "ties", "partial", "columns", "pairs"),
}
"""Facts by which results are counted."""
WRONG = ("platt", "beta", "histogram", "smooth")
EDGES = (0.0, 0.5, 1.0, 1.25, 1.5, 2.0, np.inf)


def drawn_weights(kind: str, rows: int, random: np.random.Generator) -> np.ndarray | None:
    """Draw weights that do not depend on the label; None: no weights."""
    if kind == "sampling":
        return np.exp(random.normal(0, random.uniform(0.2, 1.2), rows))
    return random.choice([1.0, 2.0, 5.0], rows) if kind == "counts" else None


def rounded(z: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Round the scores of log odds to 1 to 3 digits; return their log odds."""
    return logit(np.clip(expit(z).round(random.integers(1, 4)), 0.001, 0.999))


def kept(fitted: CalibrationMap) -> tuple[CalibrationMap, float]:
    return fitted, 0.0


def checked(method: str, points: Points, heaviest: float) -> tuple[Checked, Any]:
    """Fit in memory and check as the job does; return also the cells of the check."""
    name, parameters = PARAMETERS.get(method, (method, {}))
    calibrator, run = make_calibrator(name, parameters), in_memory(points)
    collector = CellCollector(calibrator)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        calibrator.fit_passes(lambda request: collector.run(request, run), Sampling(heaviest=heaviest))
        collector.finish(run)
        found = check_all_rows(calibrator, collector.cells, kept)
    return found, (calibrator.fine_cells_ if collector.cells is None else collector.cells)


def plain(number: int, decades: tuple[float, float]) -> list[dict[str, Any]]:
    """Draw an honest log; return a result for each of two methods."""
    random = np.random.default_rng([17, number])
    rows, name = int(10 ** random.uniform(*decades)), str(random.choice(list(TRUTHS)))
    centre, ties = float(random.choice([0, -2, -4, -6])), bool(random.random() < 0.3)
    z = random.normal(centre, random.uniform(0.7, 2), rows)
    if ties:
        z = rounded(z, random)
    truth, kind = expit(TRUTHS[name](z - centre) + centre), str(random.choice(WEIGHTS))
    label, weight = random.random(rows) < truth, drawn_weights(kind, rows, random)
    if not 0 < label.sum() < rows or np.unique(z).size == 1:
        return []
    own = sampling_weights(weight) if kind == "sampling" else weight
    heaviest = float(own.max()) if kind == "sampling" else 1.0
    points = collapse(expit(z), label, own)
    other = str(random.choice([*ANY, *FOLLOW.get(name, ())]))
    results = []
    for method in ("auto", other):
        found, cells = checked(method, points, heaviest)
        first = found.before or found.check
        fall = None if cells is None else proven_fall(cells, found.check.dispersion, heaviest)
        result = {
            "rows": rows,
            "truth": name,
            "centre": centre,
            "ties": ties,
            "weights": kind,
            "method": method,
        }
        flags = [
            nearer(misfit, expit(z), np.ones(rows) if own is None else own, truth) for misfit in first.misfits
        ]
        results.append(result | {"number": number, "flags": flags, "fall": fall is not None})
        results[-1]["excess"] = round(first.largest.excess, 3) if first.largest else 0.0
    return results


def nearer(misfit: Any, score: np.ndarray, weight: np.ndarray, truth: np.ndarray) -> bool:
    """Whether a map's positives in a flagged range are nearer to the truth's than the observed ones."""
    inside = (score >= misfit.first) & (score <= misfit.last)
    right = float((weight[inside] * truth[inside]).sum())
    return abs(misfit.expected - right) < abs(misfit.positives - right)


def segmented(number: int, decades: tuple[float, float], folder: Path) -> list[dict[str, Any]]:
    """Draw an honest log with segments, fit it with the job; return a result."""
    random = np.random.default_rng([19, number])
    segments = SEGMENTS[number % len(SEGMENTS)]
    rows = max(int(10 ** random.uniform(*decades)), 5 * segments)
    share = random.choice([1.0, 0.0]) + 1 / (np.arange(segments) + 3.0) ** 1.1
    segment = random.choice(segments, rows, p=share / share.sum())
    spread, name = float(random.choice([0, 0.3, 0.7, 1.5])), str(random.choice(list(TRUTHS)))
    centre, kind = float(random.choice([0, -2, -4])), str(random.choice(WEIGHTS))
    z = random.normal(centre, random.uniform(0.7, 3), rows)
    truth = expit(TRUTHS[name](z - centre) + centre + random.normal(0, spread, segments)[segment])
    label, weight = random.random(rows) < truth, drawn_weights(kind, rows, random)
    method = "auto" if number % 3 else "isotonic"
    columns = {"score": expit(z), "label": label.astype(np.int8), "segment": segment}
    settings = {} if weight is None else {"weight": "weight", "weights": kind}
    flags = refused(folder, method, columns | ({} if weight is None else {"weight": weight}), settings)
    return [
        {
            "rows": rows, "truth": name, "centre": centre, "weights": kind, "method": method, "spread": spread,
            "segments": segments, "number": number, "flags": flags,
        }
    ]  # fmt: skip


def refused(folder: Path, method: str, columns: dict[str, np.ndarray], settings: dict[str, Any]) -> list[str]:
    """Fit a log with the job; return why the gate would refuse the table. settings : of `log`."""
    segments = [name for name in columns if name not in ("score", "label", "weight")]
    log = {"path": str(folder / "log"), "segment": segments, **settings}
    (folder / "log").mkdir()
    pq.write_table(pa.table(columns), folder / "log" / "part-0.parquet")
    config = {
        "log": log,
        "store": {"path": str(folder / "store"), "table": "t"},
        "calibrator": {"method": method},
        "gate": {"min_rows": 0, "min_positives": 0, "ranking": False, "agreement": False},
        "cluster": {"kind": "inline"},
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = logcal.run("fit", config)
    manifest = json.loads((Path(made.facts["lookup_path"]).parent / "manifest.json").read_text())
    reason = disagreement(manifest["agreement"])
    return [] if reason is None else [reason]


def crossed(number: int, decades: tuple[float, float], folder: Path) -> list[dict[str, Any]]:
    """Draw an honest log with two or three segment columns, fit it with the job; return a result."""
    random = np.random.default_rng([23, number])
    rows, extended = int(10 ** random.uniform(*decades)), number % 3 == 0
    values = [int(10 ** random.uniform(0.5, min(4, np.log10(rows) - 1))), int(10 ** random.uniform(0.5, 2))]
    spreads = [float(random.choice([0.3, 0.7, 1.2])), float(random.choice([0.2, 0.5, 1.0]))]
    centre, pairs = float(random.choice([0, -2, -4])), float(random.choice([0, 0.3]))
    weighted, ties, partial, third = random.random(4) < (np.array([0.6, 0.3, 0.5, 0.3]) if extended else 0)
    kind = str(random.choice(["sampling", "negatives"])) if weighted else "none"
    if third:
        values, spreads = [*values, int(10 ** random.uniform(0.5, 1.3))], [*spreads, 0.3]
    columns = [drawn_values(count, rows, place, extended, random) for place, count in enumerate(values)]
    if partial:
        width = max(2, values[1] // 4)
        columns[1] = (random.integers(0, values[1], values[0])[columns[0]] + columns[1] % width) % values[1]
    z = random.normal(centre, 1.2, rows)
    if ties:
        z = rounded(z, random)
    odds = z + random.normal(0, pairs, values[:2])[columns[0], columns[1]]
    for column, count, spread in zip(columns, values, spreads, strict=True):
        odds += random.normal(0, spread, count)[column]
    label, method = random.random(rows) < expit(odds), "isotonic" if number % 2 else "auto"
    log = {"score": expit(z), "label": label.astype(np.int8), **dict(zip("abc", columns, strict=False))}
    settings: dict[str, Any] = {}
    if kind == "sampling":
        log["weight"] = np.asarray(drawn_weights(kind, rows, random))
        settings = {"weight": "weight", "weights": kind}
    if kind == "negatives":
        rate = float(random.choice([0.01, 0.1]))
        kept, settings = label | (random.random(rows) < rate), {"negative_sampling_rate": rate}
        log = {name: column[kept] for name, column in log.items()}
    facts = {
        "rows": rows, "centre": centre, "weights": kind, "method": method, "values": values, "spreads": spreads,
        "pairs": pairs, "extended": extended, "ties": bool(ties), "partial": bool(partial), "columns": len(values),
    }  # fmt: skip
    flags = refused(folder, method, log, settings)
    return [facts | {"positives": int(label.sum()), "number": number, "flags": flags}]


def drawn_values(count: int, rows: int, place: int, skewed: bool, random: np.random.Generator) -> np.ndarray:
    """Draw a column's values: sizes are log-normal in the first column, equal in others; skewed: of a power law."""
    share = np.exp(random.normal(size=count)) if place == 0 else np.ones(count)
    if skewed:
        share = random.permutation(1 / (np.arange(count) + 3.0) ** random.uniform(0.7, 1.5))
    return random.choice(count, rows, p=share / share.sum())


def power(number: int, method: str, most_rows: float) -> tuple[float, bool] | None:
    """Return excess without noise, and whether the map is flagged; None if the log has too few positives."""
    log = scored_log(number, most_rows)
    if min(log.label.sum(), (~log.label).sum()) < 20:
        return None
    points = collapse(log.score, log.label, log.weight)
    found, cells = checked(method, points, 1.0)
    if cells is None:
        return None
    weight = np.ones(log.score.size) if log.weight is None else log.weight
    cell = np.searchsorted(cells.first, log.score, side="right") - 1
    positives = np.bincount(cell, weight * log.truth, cells.first.size)
    exact = check_fit(cells_of_scores(cells._replace(positives=positives), found.fitted.predict_ascending))
    effect = np.sqrt((weight**2).sum() / weight.sum())
    return exact.largest.excess / effect if exact.largest else 0.0, bool(found.check.misfits)


def summary(results: list[dict[str, Any]], by: str) -> None:
    print(f"\n| {by} | fits | flagged | by chance | falls |\n|---|---|---|---|---|")
    for value in sorted({str(r[by]) for r in results}):
        some = [r for r in results if str(r[by]) == value]
        print(f"| {value} {counts(some)}")


def counts(results: list[dict[str, Any]]) -> str:
    flagged = sum(bool(r["flags"]) for r in results)
    chance = sum(any(flag is True for flag in r["flags"]) for r in results)
    falls = sum(r.get("fall", False) for r in results)
    most = [
        1000 * float(beta.ppf(0.95 if k == 0 else 0.975, k + 1, len(results) - k)) for k in (flagged, falls)
    ]
    return (
        f"| {len(results):,} | {flagged} (at most {most[0]:.2f} in 1,000) | {chance} "
        f"| {falls} (at most {most[1]:.2f} in 1,000) |"
    )


def main(arguments: list[str]) -> None:
    """Measure, and print tables; with --lines also a line of JSON a fit."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["plain", "segments", "crossed", "power"])
    parser.add_argument("--logs", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument(
        "--rows", nargs=2, type=float, help="decades; default 2.5 to 5, segments 3 to 5, crossed 4 to 6"
    )
    parser.add_argument("--lines", type=Path)
    options = parser.parse_args(arguments)
    decades = tuple(options.rows or DECADES.get(options.what, (2.5, 5.0)))
    logging.disable(logging.CRITICAL)
    print_machine()
    numbers = range(options.first, options.first + options.logs)
    if options.what == "power":
        for method in WRONG:
            pairs = [power(number, method, 10 ** decades[1]) for number in numbers]
            tally = Counter(
                (int(np.searchsorted(EDGES, pair[0], side="right")) - 1, pair[1]) for pair in pairs if pair
            )
            cells = [f"{tally[i, True]} of {tally[i, True] + tally[i, False]}" for i in range(len(EDGES) - 1)]
            print(f"| {method} | {' | '.join(cells)} |", flush=True)
        return
    results: list[dict[str, Any]] = []
    with contextlib.ExitStack() as stack:
        lines = stack.enter_context((options.lines or Path(os.devnull)).open("a"))
        for number in numbers:
            with tempfile.TemporaryDirectory(prefix="logcal-alarms-") as folder:
                draw = {"segments": segmented, "crossed": crossed}.get(options.what)
                found = draw(number, decades, Path(folder)) if draw else plain(number, decades)
            results += found
            for result in found:
                print(json.dumps(result), file=lines, flush=True)
    print(f"\nall {counts(results)}")
    for by in GROUPS[options.what]:
        summary(results, by)
    for result in results:
        if options.what != "plain" and result["flags"]:
            print(f"\n{result}")


if __name__ == "__main__":
    main(sys.argv[1:])
