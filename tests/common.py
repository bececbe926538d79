"""What tests of many files do: simulate rows, cut points into parts, compare maps, write logs and lookup tables."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from distributed import Client, LocalCluster

from calibrators import CalibrationMap, Points
from calibrators.core.passes import Pass, run_passes
from jobs.config.loading import Values, load_values, read_values
from jobs.registry import JOBS
from pipeline.evaluate.evaluation import Evaluation, Sizes, both_sides, evaluation_of, side_passes
from pipeline.execution import Executor, Graph, InlineExecutor
from pipeline.fit.calibration import Fit, Recipe
from pipeline.fit.segment_fit import add_segment_fit, finish_segments
from pipeline.sort.score_table import SortedRows
from pipeline.table.lookup_table import plain_files
from pipeline.table.segment_maps import SegmentedFit

FACTS = {"method": "isotonic", "parameters": {}, "score_transform": "none", "data": {}}
"""Of lookup tables that no fit made."""
ANY_TABLE = {
    "min_rows": 0,
    "min_positives": 0,
    "max_rows_drop": 1.0,
    "ranking": False,
    "agreement": False,
    "holdout": "none",
}
"""A gate that lets any table pass: logs of tests are small."""


def _text_view() -> pa.DataType:
    """The type of Polars' texts where pyarrow writes it, or else one that is written by any version."""
    try:
        pq.write_table(pa.table({"a": pa.array(["b"], pa.string_view())}), pa.BufferOutputStream())
    except pa.ArrowNotImplementedError:
        return pa.large_string()
    return pa.string_view()


TEXT_VIEW = _text_view()


def wave(score: np.ndarray) -> np.ndarray:
    """A truth that rises on the whole, and falls at times."""
    return 0.15 + 0.6 * score + 0.2 * np.sin(12 * score)


def wavy_rows(n: int, seed: int = 0, decimals: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Scores in [0, 1], and labels that are positive as often as the wave says."""
    random = np.random.default_rng(seed)
    score = random.random(n)
    score = score if decimals is None else np.round(score, decimals)
    return score, random.random(n) < wave(score)


def simulated(
    n: int, seed: Any = 0, *, power: float = 1.0, decimals: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Scores in [0, 1], and labels that are positive as often as a power of the score says."""
    random = np.random.default_rng(seed)
    score = random.random(n) if decimals is None else np.round(random.random(n), decimals)
    return score, random.random(n) < score**power


def predictions(rows: int = 3000, seed: Any = 0, **more: Any) -> dict[str, Any]:
    """Columns of an ordinary log: scores without ties, labels that are positive more often where the score is high."""
    score, label = simulated(rows, seed, power=2)
    return {"score": score, "label": label.astype(np.int8), **more}


def cut(points: Points, places: Iterable[int]) -> list[Points]:
    """Points in parts that begin at these places; those outside, and the same again, count for nothing."""
    inside = {int(place) for place in places if 0 < place < points.score.size}
    edges = [0, *sorted(inside), points.score.size]
    return [Points(*(column[a:b].copy() for column in points)) for a, b in pairwise(edges)]


def over(points: Points, *places: int) -> Callable[[Pass], Any]:
    """Carries passes out over points in parts, as a score table does."""
    parts = cut(points, places)

    def run(request: Pass) -> Any:
        wanted = [part for part in parts if request.only is None or float(part.score[0]) in request.only]
        states = [request.chunk(part) for part in wanted]
        if request.join is not None:
            states = [request.join(states[i : i + 2]) for i in range(0, len(states), 2)]
        return request.combine(states)

    return run


def evaluate(
    run: Callable[[Pass], Any],
    predict: Any = None,
    *,
    run_after: Callable[[Pass], Any] | None = None,
    rows: int | None = None,
    **sizes: Any,
) -> Evaluation:
    """An evaluation of points in parts, by a map that does not decrease or by points of the probabilities."""
    table: Any = SimpleNamespace(used=rows, weights=())
    asked = Sizes(**sizes)
    if run_after is None:
        function = getattr(predict, "predict_ascending", predict)
        return evaluation_of(rows, *run_passes(both_sides(asked, function, table), run))
    sides = [side_passes(asked, table, tests=False), side_passes(asked, table)]
    both = zip(sides, (run, run_after), strict=True)
    return evaluation_of(rows, *(run_passes(own, by) for own, by in both))


def fit_segments(recipe: Recipe, rows: SortedRows, executor: Executor) -> tuple[SegmentedFit, Fit]:
    """The maps of segments, and the fit to all rows, as a job fits them."""
    graph = Graph()
    merged = executor.compute(graph, add_segment_fit(graph, recipe, rows))
    return finish_segments(recipe, rows, executor, merged)


def assert_same_map(found: CalibrationMap, expected: CalibrationMap) -> None:
    """To the last bit."""
    for name in CalibrationMap.__dataclass_fields__:
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)


def write_log(
    folder: Path, columns: Any, files: int = 1, row_group_size: int = 1 << 20, **options: Any
) -> str:
    """Write a table, or columns, as a log of several files; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    table = columns if isinstance(columns, pa.Table) else pa.table(columns)
    edges = np.linspace(0, table.num_rows, files + 1).astype(int)
    for i, (a, b) in enumerate(pairwise(edges)):
        part = folder / f"part-{i}.parquet"
        pq.write_table(table.slice(a, b - a), part, row_group_size=row_group_size, **options)
    return str(folder)


def prepared(job: str, *settings: str, files: Iterable[Any] = (), **sections: Any) -> Any:
    """A job of this process, from files, sections and settings, each over those before."""
    registered = JOBS[job]
    given = [f"{name}={json.dumps(values, default=str)}" for name, values in sections.items()]
    values = Values(read_values(files, [*given, *settings]).values)
    config = load_values(registered.config_class(), values)
    return registered.load_module().prepare(config)


def run_job(job: str, *settings: str, executor: Executor | None = None, **more: Any) -> dict[str, Any]:
    """Run a job in this process; returns its summary."""
    return prepared(job, *settings, **more).execute(executor or InlineExecutor()).summary


def write_lookup(path: Path, calibration_map: CalibrationMap, version: str = "000001-a", **facts: Any) -> str:
    """Write a lookup table, alone; returns its path."""
    path.write_bytes(plain_files(calibration_map, **{**FACTS, **facts}).files(version)["lookup.parquet"])
    return str(path)


@contextmanager
def two_workers(**options: Any) -> Iterator[Client]:
    """A client of a cluster of two workers in this process."""
    own = {"n_workers": 2, "threads_per_worker": 1, "processes": False, "dashboard_address": ":0"}
    with LocalCluster(**own, **options) as cluster, Client(cluster) as client:
        yield client


def run_command(*arguments: Any, ends: int | None = 0, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own. ends : the exit code that it must have; None: any."""
    done = subprocess.run([*map(str, arguments)], capture_output=True, text=True, check=False, **options)
    assert ends is None or done.returncode == ends, done.stderr[-3000:]
    return done


def python(code: str, *arguments: Any, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run Python in a process of its own, which must end well."""
    return run_command(sys.executable, "-c", code, *arguments, **options)
