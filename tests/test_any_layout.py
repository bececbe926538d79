"""The published table's bytes, for random logs in random layouts and with work of random sizes."""

import shutil
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobs import fit
from jobs.config.jobs import FitConfig
from jobs.config.loading import load
from pipeline.execution import InlineExecutor
from pipeline.fit.calibration import make_calibrator
from pipeline.sort.score_table import SortPlan
from pipeline.table.lookup_table import read_lookup_table

METHODS = {
    "isotonic": {},
    "near_isotonic": {"lam": 2.0},
    "enir": {},
    "bbq": {},
    "abb": {"max_cuts": 20},
    "histogram": {"bins": 7},
    "platt": {},
    "smooth": {"max_error": 0.0001},
}


@st.composite
def logs(draw):
    """Columns of a log: scores with or without ties, of skewed or even sizes; weights of some kind."""
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    n = draw(st.integers(2, 600))
    score = draw(
        st.sampled_from(
            [
                random.random(n),
                random.random(n) ** 8,
                random.random(n).round(1),
                np.where(random.random(n) < 0.6, 0.25, random.random(n)),
            ]
        )
    )
    label = random.random(n) < 0.1 + 0.8 * score
    # Both classes, and two scores.
    score[:2], label[:2] = (0.3, 0.7), (True, False)
    columns = {"score": score, "label": label}
    weight = draw(st.sampled_from([None, random.integers(1, 5, n).astype(float), random.lognormal(0, 2, n)]))
    if weight is not None:
        columns["weight"] = weight
    return columns


@st.composite
def layouts(draw, rows):
    """In which order rows come, at which of them files end (some empty), and how large row groups are."""
    order = np.random.default_rng(draw(st.integers(0, 2**32))).permutation(rows)
    ends = sorted(draw(st.lists(st.integers(0, rows), max_size=12)))
    return order, [0, *ends, rows], draw(st.sampled_from([1, 7, 100, 10_000]))


def write(folder, columns, layout):
    order, edges, group = layout
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    table = pa.table({name: column[order] for name, column in columns.items()})
    for i, (a, b) in enumerate(pairwise(edges)):
        # File names in the other order than the rows.
        pq.write_table(table.slice(a, b - a), folder / f"{99 - i}.parquet", row_group_size=group)


def published(root, columns, method):
    """Bytes of the lookup table, and its map."""
    shutil.rmtree(root / "store", ignore_errors=True)
    settings = [
        f"log.path={root / 'log'}", f"store.path={root / 'store'}", "store.table=t",
        "gate={min_rows: 0, min_positives: 0, max_rows_drop: 1, ranking: false}",
        f"calibrator.method={method}", f"calibrator.params={METHODS[method]}", f"scratch={root}",
        *(["log.weight=weight"] if "weight" in columns else []),
    ]  # fmt: skip
    outcome = fit.prepare(load(FitConfig, settings=settings)).execute(InlineExecutor())
    (lookup,) = (root / "store").rglob("lookup.parquet")
    return lookup.read_bytes(), read_lookup_table(outcome.summary["lookup_path"]).map


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_bytes_do_not_depend_on_layout_or_sizes_and_are_those_of_memory(tmp_path, monkeypatch, data):
    columns = data.draw(logs(), label="log")
    method = data.draw(st.sampled_from(sorted(METHODS)), label="method")
    rows = columns["score"].size
    found = []
    for _ in range(2):
        run_rows = data.draw(st.sampled_from([16, 100, 10_000]), label="run_rows")
        bucket = data.draw(st.sampled_from([200, 3000, 1_000_000]), label="bucket_bytes")
        with monkeypatch.context() as patch:
            patch.setattr(
                SortPlan,
                "within",
                lambda plan, *_, r=run_rows, b=bucket: replace(plan, run_rows=r, bucket_bytes=b),
            )
            write(tmp_path / "log", columns, data.draw(layouts(rows), label="layout"))
            found.append(published(tmp_path, columns, method))
    (one, one_map), (other, _) = found
    assert one == other
    expected = make_calibrator(method, METHODS[method]).fit(
        columns["score"], columns["label"], columns.get("weight")
    )
    for name in one_map.__dataclass_fields__:
        np.testing.assert_array_equal(getattr(one_map, name), getattr(expected.calibration_map_, name))
