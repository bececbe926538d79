"""Every combination of what a fit can be asked for, in any layout and by tasks of any size, against fits in memory.

`make test` runs a sample, `make matrix` all of them.
"""

from __future__ import annotations

import datetime as dt
import functools
import itertools
import os
import random
import shutil
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from common import ANY_TABLE

from calibrators import METHODS, CalibrationMap
from calibrators.base import Line
from calibrators.core.check_cells import check_cells_pass
from calibrators.core.cumulative import layout_of, part_totals
from calibrators.core.passes import collapse, in_memory
from jobs import fit
from jobs.cluster.starting import starting_executor
from jobs.config.cluster import ClusterConfig
from jobs.config.jobs import FitConfig
from logcal.schema import LOGIT_FROM
from pipeline.execution import InlineExecutor, ThreadExecutor
from pipeline.files.folders import Folder
from pipeline.fit.calibration import make_calibrator
from pipeline.fit.self_check import check_all_rows
from pipeline.log import segment_values
from pipeline.sort import run_merging
from pipeline.sort.runs import round_scores
from pipeline.sort.score_table import SortPlan
from pipeline.table.segment_maps import SegmentRules
from tests.sorted_logs import maps_of_segments, without_refits

pytestmark = pytest.mark.usefixtures("guarded_arguments")

NAMES = tuple(CalibrationMap.__dataclass_fields__)
PARAMETERS = {
    "histogram": {"bins": 5},
    "near_isotonic": {"lam": 1.5},
    "sbb": {"max_cuts": 30},
    "abb": {"max_cuts": 30},
}
COLUMNS = ((), ("site",), ("model", "site"), ("model", "site", "date"))
KINDS = ("inline", "threads", "local", "store")
"""Executors; store: inline, with the store and scratch space in an object store."""
RULES = SegmentRules(25, 4)
DAYS = 4
LAYOUTS = ("days", "pieces", "shuffled", "joined")
"""A file a day; files of a few row groups, some of them empty; the rows of a day in another order, too; labels in other
files, which are joined by key."""
SIZES = ((60, 1500), (120, 3000), (10_000, 1 << 20))
"""Rows of a run and bytes of a bucket: small ones, so that there are many tasks, and more than all rows."""


class Case(NamedTuple):
    """A combination."""

    method: str
    kind: str
    window: bool
    columns: tuple[str, ...]
    weighted: bool
    grid: bool
    keep: bool
    quarantine: bool


ALL = [
    Case(*case) for case in itertools.product(METHODS, KINDS, *[(False, True)], COLUMNS, *[(False, True)] * 4)
]


def day_of(number: int) -> str:
    return (dt.date(2026, 3, 1) + dt.timedelta(days=number)).isoformat()


def rows_of_day(day: int, *, bad: bool) -> pa.Table:
    """Rows of a day, with ties, some of them at one score; each day has a segment that no other has."""
    rng = np.random.default_rng(day)
    n = 150
    score = np.where(rng.random(n) < 0.2, 0.25, rng.random(n) ** 2)
    label = (rng.random(n) < 0.1 + 0.8 * score).astype(float)
    weight = rng.lognormal(0, 2, n)
    missing = np.zeros(n, bool)
    if bad:
        missing[:3] = True
        label[3:5] = 2.0
        weight[5:7] = -1.0
        score[7] = np.inf
    site = [["a", "", None, "é"][i] for i in rng.integers(0, 4, n)]
    site[9] = f"only {day}"
    return pa.table(
        {
            "score": pa.array(score, mask=missing),
            "label": label,
            "w": weight,
            "model": pa.array(rng.integers(-1, 2, n), mask=rng.random(n) < 0.1),
            "site": pa.array(site, pa.string()),
        }
    )


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    """The same days with bad rows and without, by whether they have them, in each layout."""
    root = tmp_path_factory.mktemp("logs")
    for bad, layout, day in itertools.product((False, True), LAYOUTS, range(DAYS)):
        folder = root / str(bad) / layout / f"date={day_of(day)}"
        folder.mkdir(parents=True)
        table = rows_of_day(day, bad=bad)
        if layout == "joined":
            table = table.append_column("id", pa.array(np.arange(table.num_rows) + 1000 * day))
            order = np.random.default_rng(day).permutation(table.num_rows)
            outcomes = table.select(["id", "label"]).take(order)
            pq.write_table(outcomes, root / str(bad) / f"outcomes-{day}.parquet", row_group_size=40)
            table = table.drop_columns(["label"])
        if layout in ("days", "joined"):
            pq.write_table(table, folder / "part-0.parquet", row_group_size=40)
            continue
        rng = np.random.default_rng(day)
        if layout == "shuffled":
            table = table.take(rng.permutation(table.num_rows))
        edges = [0, *np.sort(rng.integers(0, table.num_rows + 1, 3)), table.num_rows, table.num_rows]
        for i, (a, b) in enumerate(itertools.pairwise(edges)):
            # File names in the other order than the rows.
            path, size = folder / f"{9 - i}.parquet", [1, 7, 100][day % 3]
            pq.write_table(table.slice(a, b - a), path, row_group_size=size)
    return root


@pytest.fixture(scope="module")
def executors():
    """An executor of each kind; the cluster is started where it is first needed."""
    started = {"inline": InlineExecutor(), "threads": ThreadExecutor(2), "store": InlineExecutor()}
    contexts = []

    def executor(kind: str):
        if kind not in started:
            contexts.append(starting_executor(ClusterConfig(kind="local", workers=2, memory="1GiB")))
            started[kind] = contexts[0].__enter__()()
        return started[kind]

    yield executor
    for context in contexts:
        context.__exit__(None, None, None)


class Asked(NamedTuple):
    """What of a case its result depends on."""

    method: str
    window: bool
    columns: tuple[str, ...]
    weighted: bool
    grid: bool
    quarantine: bool


class Memory(NamedTuple):
    """Usable rows."""

    score: np.ndarray
    label: np.ndarray
    weight: np.ndarray
    keys: list[tuple]


@functools.cache
def rows_in_memory(asked: Asked) -> Memory:
    days = range(1, DAYS) if asked.window else range(DAYS)
    rows = [
        {**row, "date": day_of(day)}
        for day in days
        for row in rows_of_day(day, bad=asked.quarantine).to_pylist()
        if row["score"] is not None
        and np.isfinite(row["score"])
        and row["label"] in (0, 1)
        and (row["w"] > 0 or not asked.weighted)
    ]
    score, _ = round_scores(np.array([row["score"] for row in rows]), "1e-2" if asked.grid else "none")
    label = np.array([row["label"] for row in rows]) == 1
    weight = np.array([row["w"] if asked.weighted else 1.0 for row in rows])
    return Memory(score, label, weight, [tuple(row[name] for name in asked.columns) for row in rows])


@functools.cache
def expected_maps(asked: Asked) -> list[tuple[tuple, CalibrationMap | Line]]:
    """The maps of all levels, in order; of a segment whose map is a sigmoid, its two numbers."""
    score, label, weight, keys = rows_in_memory(asked)
    method = asked.method, PARAMETERS.get(asked.method)
    found = maps_of_segments(score, label, weight if asked.weighted else None, keys, RULES, *method)
    ordered = sorted(found, key=lambda key: (len(key), segment_values.order(key)))
    return [(key, found[key]) for key in ordered if not isinstance(found[key], str)]


@functools.cache
def expected_facts(asked: Asked) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the manifest says of the fit to all rows, and of its check against them."""
    rows = rows_in_memory(asked)
    calibrator = make_calibrator(asked.method, PARAMETERS.get(asked.method, {}))
    points = collapse(rows.score, rows.label, rows.weight if asked.weighted else None)
    fitted = calibrator.fit_points(points)
    cells = None
    if not fitted.needs.constant_rows and fitted.fine_cells_ is None:
        cells = in_memory(points)(check_cells_pass(layout_of([part_totals(points)])))
    checked = check_all_rows(fitted, cells, lambda fitted: (fitted, 0.0))
    return fitted.facts(), checked.facts()


def check(case: Case, root: Path, logs: Path, executor, patch) -> None:
    """Fit a log of some layout by tasks of some sizes, and compare what was published."""
    drawn = random.Random(str(case))
    layout, (run_rows, bucket_bytes) = drawn.choice(LAYOUTS), drawn.choice(SIZES)
    # Outcomes fit a task, or are split.
    sizes = {
        "run_rows": run_rows,
        "bucket_bytes": bucket_bytes,
        "label_bytes": drawn.choice((1 << 12, 1 << 28)),
    }
    patch.setattr(SortPlan, "within", lambda plan, *_: replace(plan, **sizes))
    without_refits(patch)
    # Whether runs are merged twice.
    patch.setattr(run_merging, "MOST_READS", drawn.choice((1, 1 << 22)))
    place = f"memory://{uuid.uuid4().hex}" if case.kind == "store" else str(root)
    outcomes = f"{logs}/{case.quarantine}/outcomes-*.parquet"
    labels = {"key": "id", "labels": {"path": outcomes, "label": "label"}}
    config = {
        "log": {
            "path": str(logs / str(case.quarantine) / layout),
            "weight": "w" if case.weighted else None,
            **(labels if layout == "joined" else {}),
            "segment": list(case.columns),
            "on_bad_rows": "quarantine" if case.quarantine else "fail",
            "max_bad_fraction": 0.5,
            "quarantine_path": str(root / "bad") if case.quarantine else None,
        },
        "store": {"path": f"{place}/store", "table": "t"},
        "calibrator": {"method": case.method, "params": PARAMETERS.get(case.method, {}), "monotone": "allow"},
        "segments": {"shrinkage": "none", "min_rows": RULES.min_rows, "min_positives": RULES.min_positives},
        "score_table": {"keep": case.keep, "grid": "1e-2" if case.grid else "none"},
        "window": {"column": "date", "last": "3d", "suspect_days": "use"} if case.window else {},
        "gate": ANY_TABLE,
        "scratch": f"{place}/scratch",
        "cluster": {"kind": "inline" if case.kind == "store" else case.kind},
    }
    prepared = fit.prepare(FitConfig.model_validate(config))
    made = prepared.execute(executor(case.kind)).summary
    asked = Asked(*(getattr(case, name) for name in Asked._fields))
    rows, found = rows_in_memory(asked), expected_maps(asked)
    expected = [(key, one) for key, one in found if isinstance(one, CalibrationMap)]
    version = Folder.at(made["lookup_path"].rpartition("/")[0])
    manifest = version.read_json("manifest.json")
    if not case.columns:
        facts, agreement = expected_facts(asked)
        assert facts == {name: manifest["data"].get(name) for name in facts}, case
        assert agreement == manifest["agreement"], case
    lookup = pq.read_table(pa.BufferReader(version.read("lookup.parquet")))
    for name in NAMES:
        own = np.concatenate([getattr(one, name) for _, one in expected])
        assert lookup[name].to_numpy().tobytes() == own.tobytes(), (case, name)
    keys = [key for key, _ in expected]
    of_row = np.repeat(np.arange(len(keys)), [len(one) for _, one in expected])
    for i, name in enumerate(case.columns):
        values = pa.array([key[i] if i < len(key) else None for key in keys], lookup.schema.field(name).type)
        assert lookup[name].combine_chunks().equals(values.take(pa.array(of_row)).cast(values.type))
    check_lines(version, case, {key: one for key, one in found if isinstance(one, Line)})
    assert manifest["max_gathered_bytes"] > 0
    assert made["rows_used"] == rows.score.size
    bad = 0 if not case.quarantine else sum(made["quarantined_by_reason"].values())
    assert made["rows_read"] == rows.score.size + bad
    if case.quarantine:
        assert pq.read_table(root / "bad" / made["run_id"]).num_rows == bad > 0
    if case.keep:
        check_kept(version / "score_table", rows)
    assert Folder.at(place).names() == ["store"] if case.kind == "store" else not os.listdir(root / "scratch")  # noqa: PTH208
    if case.kind == "store":
        Folder.at(place).remove("store")


def check_lines(version: Folder, case: Case, lines: dict[tuple, Line]) -> None:
    """Segments with sigmoids have their numbers in the table beside."""
    if not lines:
        return
    table = pq.read_table(pa.BufferReader(version.read("segments.parquet")))
    found = {}
    for row in table.to_pylist():
        level = row["segment_level"]
        if row["fitted_level"] == level and row["logit_from"] != "map":
            of = LOGIT_FROM.index(row["logit_from"])
            key = tuple(row[name] for name in case.columns[:level])
            found[key] = Line(of, row["logit_shift"], row["logit_slope"])
    assert found == lines


def check_kept(folder: Folder, rows: Memory) -> None:
    parts = [pq.read_table(pa.BufferReader(folder.read(name))) for name in folder.names()]
    found = pa.concat_tables(parts)
    expected = {}
    for key in set(rows.keys):
        at = np.array([other == key for other in rows.keys])
        points = collapse(rows.score[at], rows.label[at], rows.weight[at])
        expected |= {(*key, score): (w, k) for score, w, k in zip(*(c.tolist() for c in points), strict=True)}
    *names, weight, positives = (column.to_pylist() for column in found.columns)
    values = list(zip(weight, positives, strict=True))
    assert dict(zip(zip(*names, strict=True), values, strict=True)) == expected
    assert len(values) == len(expected)


SAMPLE = [
    random.Random(f"{method} {i}").choice([case for case in ALL if case.method == method])
    for method in METHODS
    for i in range(2)
]


@pytest.mark.parametrize("case", SAMPLE, ids=str)
def test_a_sample_of_all_combinations(case, tmp_path, logs, executors, monkeypatch):
    check(case, tmp_path, logs, executors, monkeypatch)


# A method is one test, and so in one process: what is expected is the same for all executors.
@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_all_combinations(method, tmp_path, logs, executors, monkeypatch):
    wrong = []
    for i, case in enumerate(case for case in ALL if case.method == method):
        place = tmp_path / str(i)
        place.mkdir()
        try:
            check(case, place, logs, executors, monkeypatch)
        except Exception as error:  # noqa: BLE001 - all of them are told
            wrong.append((case, error))
        shutil.rmtree(place)
    assert not wrong, f"{len(wrong)} of {i + 1} cases, such as {wrong[:3]}"
