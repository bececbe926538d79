"""The out-of-core sort: equal to sorting in memory, whatever the files, the parts and the workers."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.special
from common import write_log
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from calibrators import collapse
from calibrators.core.passes import Pass
from jobs.config.sections import ScoreTableConfig
from logcal.errors import InputRejectedError
from pipeline.days.source import Source
from pipeline.evaluate.kept_table import KeptTable, add_sort_kept
from pipeline.execution import Graph, InlineExecutor
from pipeline.files.folders import Folder
from pipeline.log.logs import Columns, cut, open_log
from pipeline.log.quarantine import RowRules
from pipeline.sort import run_files, score_table
from pipeline.sort.parts import write_points
from pipeline.sort.runs import round_scores
from pipeline.sort.score_table import SortedRows, SortPlan, add_merge, build_score_table, scratch_bytes
from tests.sorted_logs import assert_same, points_of

scores = st.one_of(
    st.sampled_from([0.0, -0.0, 0.25, 0.5, 1.0, -3.0, 1e-300, 2e-300, 1e300, 5e-324]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.floats(0, 1, width=16),
)
logs = st.lists(
    st.tuples(scores, st.integers(0, 1), st.sampled_from([0.1, 1.0, 1e-9, 1e12, 0.3, 7.5])),
    min_size=1,
    max_size=150,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    logs,
    st.booleans(),
    st.tuples(st.integers(1, 4), st.integers(1, 60)),
    st.integers(1, 80),
    st.integers(24, 2000),
    st.sampled_from([1, 2, 5, 1024]),
)
def test_equals_sorting_in_memory(tmp_path_factory, rows, weighted, cut, run_rows, bucket_bytes, stride):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_files, "SAMPLE_STRIDE", stride)
        check_equal_to_sorting_in_memory(tmp_path_factory, rows, weighted, cut, run_rows, bucket_bytes)


def check_equal_to_sorting_in_memory(tmp_path_factory, rows, weighted, cut, run_rows, bucket_bytes):
    files, group = cut
    score, label, weight = (np.array(column) for column in zip(*rows, strict=True))
    folder = tmp_path_factory.mktemp("log")
    path = write_log(folder / "log", {"score": score, "label": label, "w": weight}, files, group)
    log = open_log(path, Columns("score", "label", "w" if weighted else None))
    plan = SortPlan(folder, write=folder / "table", run_rows=run_rows, bucket_bytes=bucket_bytes)
    first = Pass(chunk=lambda points: points.score[0], combine=list)
    table, parts = build_score_table(log, plan, InlineExecutor(), first)
    expected = collapse(score, label, weight if weighted else None)
    assert_same(points_of(table), expected)
    assert parts == [part.first for part in table.parts]
    assert (table.rows, table.used, table.points) == (len(rows), len(rows), expected.score.size)
    assert table.used_positive == label.sum()
    assert (table.lowest, table.highest) == (expected.score[0], expected.score[-1])
    assert sum(run.stat().st_size for run in folder.glob("run-*")) <= scratch_bytes(log, write=False)


def sorted_table(folder, columns, *names, files=1, **plan):
    """A log's score table, of its columns score and label and those named."""
    log = open_log(write_log(folder / "log", columns, files), Columns("score", "label", *names))
    return build_score_table(log, SortPlan(folder, write=folder / "t", **plan), InlineExecutor())[0]


@pytest.mark.parametrize(
    "kind", [pa.float16(), pa.float32(), pa.int8(), pa.uint64(), pa.dictionary(pa.int32(), pa.float64())]
)
@pytest.mark.parametrize("label", [pa.bool_(), pa.int64(), pa.uint8(), pa.float32()])
def test_any_type_of_score_and_label(tmp_path, kind, label):
    values = [0, 1, 1, 2, 3, 3, 3]
    labels = [0, 1, 0, 1, 1, 0, 1]
    if pa.types.is_dictionary(kind):
        column = pa.array(values, pa.float64()).dictionary_encode()
    else:
        column = pa.array(np.array(values, kind.to_pandas_dtype()))
    table = sorted_table(tmp_path, {"score": column, "label": pa.array(labels).cast(label)})
    assert_same(points_of(table), collapse(values, labels))


BAD = {
    "score": pa.array([0.1, None, float("nan"), float("inf"), 0.5, 0.6, 0.7, 0.8, 0.9, 0.2]),
    "label": pa.array([0, 1, 1, 1, None, 7, 1, 1, 0, 1]),
    "w": pa.array([1.0, 1, 1, 1, 1, 1, 0, -1, 2, None]),
}


def test_bad_rows_are_counted_by_their_first_reason_and_kept(tmp_path):
    rules = RowRules(quarantine=True, max_fraction=0.9, keep=True)
    table = sorted_table(tmp_path, BAD, "w", files=2, rules=rules)
    assert table.bad.in_order() == {
        "score_null": 1, "score_nan": 1, "score_infinite": 1, "label_not_0_or_1": 1,
        "weight_null": 1, "weight_not_positive": 2,
    }  # fmt: skip
    assert table.waiting == 1
    assert table.rows == table.used + table.bad.total + table.waiting
    assert table.facts()["rows_waiting"] == 1
    assert_same(points_of(table), collapse([0.1, 0.9], [0, 0], [1.0, 2.0]))
    kept = pa.concat_tables([pq.read_table(p) for p in sorted(tmp_path.glob("bad-*.parquet"))])
    assert kept.num_rows == 7
    assert kept.column("row").to_pylist() == [1, 2, 3, 0, 1, 2, 4]
    assert str(table.bad.examples["label_not_0_or_1"][0]).startswith("label=7 at ")


def test_rows_without_a_label_wait_for_it(tmp_path):
    columns = {"score": [0.1, None, 0.3, float("nan")], "label": pa.array([0, None, 1, None])}
    table = sorted_table(tmp_path, columns)
    assert (table.rows, table.used, table.waiting, table.bad.total) == (4, 2, 2, 0)
    unlabelled = {"score": [0.1, 0.2], "label": pa.array([None, None], pa.int8())}
    with pytest.raises(InputRejectedError, match=r"found none among 2 \(2 of them wait for their label"):
        sorted_table(tmp_path / "none", unlabelled)


@pytest.mark.parametrize("segments", [(), ("g",)])
def test_weights_beyond_what_sums_can_hold(tmp_path, segments):
    columns = {"score": np.arange(7) / 7, "label": [0, 1] * 3 + [1], "g": ["a", "b"] * 3 + ["a"]}
    columns["w"] = [9.9e-101, 1e-100, 1.0, 1e100, 1.01e100, 1.7e308, float("inf")]
    log = open_log(write_log(tmp_path / "log", columns), Columns("score", "label", "w", segments))
    plan = SortPlan(tmp_path, rules=RowRules(quarantine=True, max_fraction=1))
    found = Source(log).sort(plan, InlineExecutor()).total
    assert (found.used, found.bad.in_order()) == (3, {"weight_infinite": 1, "weight_out_of_range": 3})


def test_sigmoid_of_margins_but_infinite_margins_are_bad(tmp_path):
    margins = [-800.0, -1.0, 0.0, 2.0, 800.0, float("inf")]
    rules = RowRules(quarantine=True, max_fraction=1)
    columns = {"score": margins, "label": [0, 0, 1, 1, 1, 1]}
    table = sorted_table(tmp_path, columns, transform="sigmoid", rules=rules)
    np.testing.assert_allclose(points_of(table).score, scipy.special.expit(margins[:5]), rtol=1e-15)
    assert table.bad.counts == {"score_infinite": 1}


def test_tasks_are_runs_of_row_groups_and_small_files_share_one(tmp_path):
    columns = {"score": np.arange(100.0), "label": np.arange(100) % 2}
    log = open_log(write_log(tmp_path / "log", columns, 10, 4), Columns("score", "label"))
    tasks = cut(log, 24)
    covered = [(p.path, g) for task in tasks for p in task for g in p.row_groups]
    assert covered == [(f.path, g) for f in log.files for g in range(len(f.row_groups))]
    assert all(sum(p.rows for p in task) <= 24 for task in tasks)
    assert len(tasks) <= 6
    assert [p.first_row for task in cut(log, 4) for p in task][:4] == [0, 4, 8, 0]


def test_sizes_of_the_work_for_logs_and_memory_of_any_size(tmp_path):
    plan = SortPlan(tmp_path)
    assert replace(plan.within(2 << 30, 10**9), label_bytes=plan.label_bytes) == plan
    small = plan.within(256 << 20, 10**9)
    assert small.bucket_bytes < plan.bucket_bytes
    assert small.run_rows < plan.run_rows
    large = plan.within(4 << 30, 10**10)
    assert 10**10 / plan.run_rows > score_table.MOST_RUNS
    assert 10**10 / large.run_rows == pytest.approx(score_table.MOST_RUNS)
    assert large.bucket_bytes / large.run_rows == pytest.approx(plan.bucket_bytes / plan.run_rows)
    # More than the memory allows is never asked for.
    assert plan.within(256 << 20, 10**12) == small
    assert plan.within(1 << 40, 10**12).bucket_bytes * 8 < 1 << 40


def test_row_groups_of_a_kept_table_are_sorted_one_by_one(tmp_path):
    points = collapse(np.random.default_rng(0).random(1000), np.arange(1000) % 2, np.ones(1000))
    path = tmp_path / "score_table" / "part.parquet"
    path.parent.mkdir()
    write_points(points, path)
    pq.write_table(pq.read_table(path), path, row_group_size=300)
    files = {"score_table/part.parquet": {"bytes": path.stat().st_size, "sha256": "x"}}
    data = dict.fromkeys(
        ("rows_read", "rows_used", "rows_positive", "distinct_scores", "weight", "positives", "lowest_score"),
        0,
    )
    data |= {"highest_score": 1, "quarantined_by_reason": {}}
    kept = KeptTable(Folder.at(tmp_path), {"files": files, "data": data})
    log = kept.files()
    assert log.files[0].row_groups == (300, 300, 300, 100)
    graph, plan = Graph(), SortPlan(str(tmp_path), write=str(tmp_path / "sorted"))
    total = add_sort_kept(graph, kept, log, (), plan)
    table, _ = InlineExecutor().compute(graph, add_merge(graph, SortedRows(log, plan, total)))
    assert_same(points_of(table), points)


@pytest.mark.parametrize(
    ("grid", "expected"),
    [
        ("none", [0.125, 0.1, -2.5e-7, 1e300, 7.0]),
        ("float32", [0.125, float(np.float32(0.1)), float(np.float32(-2.5e-7)), 1e300, 7.0]),
        ("1e-2", [0.12, 0.1, 0.0, 1e300, 7.0]),
        ("1e-7", [0.125, 0.1, -2e-7, 1e300, 7.0]),
    ],
)
def test_scores_go_to_the_nearest_of_the_grid(grid, expected):
    score = np.array([0.125, 0.1, -2.5e-7, 1e300, 7.0])
    rounded, move = round_scores(score, grid)
    np.testing.assert_array_equal(rounded, expected)
    assert move == np.abs(rounded - score).max()
    special = np.array([np.nan, np.inf, -np.inf])
    np.testing.assert_array_equal(round_scores(special, grid)[0], special)


@pytest.mark.parametrize("power", range(1, 10))
def test_the_nearest_of_the_grid_is_that_of_exact_fractions(power):
    unit = Fraction(1, 10**power)
    rng = np.random.default_rng(power)
    halves = (rng.integers(-(10**power), 10**power, 300) + 0.5) / 10.0**power
    score = np.concatenate(
        [halves, np.nextafter(halves, 1), np.nextafter(halves, -1), [0.05, 0.15, 0.25, 0.5]]
    )
    rounded, _ = round_scores(score, f"1e-{power}")
    exact = [round(Fraction(s) / unit) / 10.0**power for s in score.tolist()]
    np.testing.assert_array_equal(rounded, exact)


@pytest.mark.parametrize(
    ("given", "kept"), [("1e-6", "1e-6"), (1e-6, "1e-6"), (0.001, "1e-3"), (0.5, None), ("1e-10", None)]
)
def test_a_grid_may_be_written_as_a_number(given, kept):
    if kept is None:
        with pytest.raises(ValueError, match="power of ten"):
            ScoreTableConfig.model_validate({"grid": given})
    else:
        assert ScoreTableConfig.model_validate({"grid": given}).grid == kept
