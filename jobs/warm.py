"""The warm command: run small jobs of every kind, so that all kernels are compiled in advance."""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from calibrators import METHODS
from calibrators.core import compiled
from calibrators.core.kernels import pava
from jobs.config.loading import Values, load_values, read_values
from jobs.outcome import Outcome
from jobs.progress import quiet, reporting
from jobs.registry import JOBS
from pipeline.execution import InlineExecutor

SIZES = {"log": 150_000, "little": 6_000}
"""Rows of the two logs: more than one task takes with the least memory, so that parts are merged, and fewer."""
_FILES = 3
_TABLE = "warm"


class Case(NamedTuple):
    """Settings of a fit, and the jobs that use its table."""

    fit: tuple[str, ...]
    later_jobs: tuple[tuple[str, ...], ...] = ()
    """Jobs after the fit: name and settings each. Another fit is compared with the first one's table."""


def warm() -> Outcome:
    """Run all cases on generated logs; return the number of compiled kernels and the cache folder."""
    started = time.perf_counter()
    cache = pava.pool_groups.stats.cache_path
    work = [(name, case) for name in SIZES for case in cases()]
    with tempfile.TemporaryDirectory(prefix="logcal-warm-") as folder, reporting() as report:
        for name, rows in SIZES.items():
            (Path(folder) / name).mkdir()
            _write_log(Path(folder) / name / "log", rows)
        report("warm", 0, len(work))
        for number, (name, case) in enumerate(work):
            _run(number, case, Path(folder) / name)
            report("warm", number + 1, len(work))
    new, total = (sum(map(len, names.values())) for names in (compiled.newly_compiled(), compiled.used()))
    seconds = time.perf_counter() - started
    nowhere = compiled.CACHE_FAULT or "no folder can be written to: set LOGCAL_CACHE"
    location = f"kept in {Path(cache).parent}" if cache else f"kept nowhere, since {nowhere}"
    summary = {"compiled": new, "kernels": total, "seconds": round(seconds, 1), "cache": cache}
    return Outcome(summary, [f"{new} of {total} kernels compiled in {seconds:.0f} s, {location}"])


def cases() -> Iterator[Case]:
    """Yield cases of all methods, weights, types of columns, segments, windows, grids and kept tables."""
    measured = (("score",), ("evaluate",))
    for method in METHODS:
        # A coarse grid suffices: these methods reduce the scores to some thousand points at most.
        few = ("score_table.grid=0.01",) if method in ("sbb", "abb", "auto") else ()
        yield Case((f"calibrator.method={method}", *few), measured if method == "isotonic" else ())
        yield Case((f"calibrator.method={method}", "log.weight=weight", *few))
    weighted = ("log.weight=weight",)
    raw = (("evaluate", "evaluate.against=raw"),)
    either: tuple[tuple[str, ...], ...] = ((), weighted)
    yield Case(("log.score=distinct",), (("score",), ("evaluate", *weighted)))
    yield Case(("log.score=distinct", *weighted, "score_table.keep=true"), (("evaluate",),))
    for method in ("platt", "near_isotonic"):
        yield Case(("log.score=distinct", f"calibrator.method={method}"))
    yield Case(("log.weight=whole", "score_table.keep=true"), (("evaluate",),))
    yield Case(("log.score=float", "log.label=flag", "score_table.grid=float32"), measured)
    yield Case(("log.score=margin", "log.score_transform=sigmoid"), measured)
    isotonic = "calibrator.method=isotonic"
    for params in ("{ends: 0, strict: true}", "{ends: 0}"):
        yield Case((isotonic, f"calibrator.params={params}"), measured)
    for extra in either:
        yield Case(("gate.holdout=0.2", *extra), raw)
        yield Case(("gate.holdout=0.2", "log.segment=[text]", *extra), raw)
    yield Case(("log.negative_sampling_rate=0.1",), (("evaluate",),))
    for segments in ("[text]", "[number]", "[many]", "[text, number]", "[many, number]"):
        for extra in either:
            yield Case((f"log.segment={segments}", *extra), measured)
    yield Case(("log.segment=[text]",), (("fit", *weighted),))
    some = ("[text]", "[many]", "[many, number]")
    for segments, extra in product(some, either):
        yield Case((f"log.segment={segments}", "log.score=distinct", *extra), (("evaluate",),))
    for segments, score, extra in product(some, ((), ("log.score=distinct",)), either):
        yield Case((f"log.segment={segments}", "segments.shrinkage=none", *score, *extra))
    for kind, extra in (("posterior", ()), ("band", (isotonic,)), ("venn_abers", (isotonic,))):
        settings = ("log.score=distinct", f"calibrator.interval={kind}", *extra)
        yield Case(settings, (("score", "output.interval=true"), ("evaluate",)))
    yield Case(("log.segment=[text]", "calibrator.method=platt"))
    yield Case(("log.segment=[text]", isotonic, "calibrator.params={ends: 0}"))
    for extra in either:
        yield Case(("log.segment=[many, number]", isotonic, *extra))
    window = ("window.column=day", "window.last=2d")
    yield Case(window)
    for setting in ("window.half_life=1d", *weighted, "score_table.grid=float32", "log.segment=[text]"):
        yield Case((*window, setting))


def _run(number: int, case: Case, folder: Path) -> None:
    """Run a case on the log in a folder, with its own table. Each job ignores the keys of others."""
    shared = (
        f"log.path={folder / 'log'}",
        f"store.path={folder / 'store'}",
        f"store.table={_TABLE}-{number}",
        f"scratch={folder}",
        "cluster.kind=inline",
        "cluster.memory=256MiB",
        "log.on_bad_rows=quarantine",
        "gate.on_fail=warn",
    )
    for i, (job, *settings) in enumerate((("fit",), *case.later_jobs)):
        output = folder / f"output-{number}-{i}"
        _run_job(job, (*shared, f"output.path={output}", f"report.path={output}", *case.fit, *settings))


def _run_job(name: str, settings: tuple[str, ...]) -> None:
    job = JOBS[name]
    # Messages about these tables and logs are of no interest.
    with quiet(logging.WARNING):
        config = load_values(job.config_class(), Values(read_values((), settings).values))
        job.load_module().prepare(config).execute(InlineExecutor())


def _write_log(folder: Path, rows_in_all: int) -> None:
    """Write a log with ties, and columns of all types."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    for i in range(_FILES):
        rows = rows_in_all // _FILES
        distinct = rng.random(rows)
        score = np.where(rng.random(rows) < 0.2, 0.5, distinct.round(4))
        label = rng.random(rows) < distinct**2
        columns: dict[str, Any] = {
            "score": score,
            "distinct": distinct,
            "float": score.astype(np.float32),
            "margin": 6 * score - 3,
            "label": label.astype(np.int8),
            "flag": label,
            "weight": rng.exponential(size=rows) + 0.1,
            "whole": rng.integers(1, 5, rows).astype(float),
            "text": rng.choice(np.array(["a", "b", "c"]), rows),
            "many": np.minimum(rng.geometric(0.02, rows), 300).astype(str),  # some have few rows
            "number": rng.integers(0, 3, rows),
            "day": np.datetime64("2026-01-01") + rng.integers(0, 3, rows),
        }
        columns["score"][:3] = np.nan  # so that some rows are unusable
        pq.write_table(pa.table(columns), folder / f"part-{i}.parquet")
