"""Data sets of features: kinds of columns, what footers tell, and what only the rows tell."""

import datetime as dt

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from common import write_log

from logcal.errors import InputRejectedError
from pipeline.classifier.features import Feature, Roles, as_frame, open_features
from pipeline.execution import InlineExecutor
from pipeline.generate.feature_facts import MOST_CATEGORIES, gather_facts, keys_of, times_of

LABEL = [0, 1] * 6


def opened(folder, columns, **roles):
    return open_features(write_log(folder, {"label": LABEL, **columns}), Roles("label", **roles))


KINDS = {
    "number": [
        pa.array(range(12), pa.int8()),
        pa.array(range(12), pa.uint64()),
        pa.array(np.arange(12), pa.float32()),
        pa.array([True, False] * 6),
    ],
    "category": [
        pa.array(["a", "b"] * 6),
        pa.array(["a", None] * 6, pa.large_string()),
        pa.array(["a", "b"] * 6).dictionary_encode(),
    ],
}


@pytest.mark.parametrize(
    ("kind", "column"),
    [(k, c) for k, columns in KINDS.items() for c in columns],
    ids=lambda x: str(getattr(x, "type", x)),
)
def test_kinds_of_columns(tmp_path, kind, column):
    table = opened(tmp_path, {"x": column})
    assert table.features == (Feature("x", kind),)
    frame = as_frame(pq.read_table(tmp_path / "part-0.parquet"), table.features)
    values = column.to_pylist()
    if kind == "number":
        assert frame["x"].dtype == np.float64
        assert frame["x"].tolist() == [float(value) for value in values]
    else:
        assert frame["x"].tolist() == [None if value is None else str(value) for value in values]


def test_nulls_are_nan_in_numbers_and_none_in_categories():
    batch = pa.table({"x": pa.array([1, None], pa.int16()), "c": ["a", None]})
    frame = as_frame(batch, (Feature("x", "number"), Feature("c", "category")))
    assert np.isnan(frame["x"][1])
    assert frame["c"][1] is None


def test_whole_numbers_may_be_named_as_categories(tmp_path):
    table = opened(tmp_path, {"code": [10, 20] * 6, "x": np.arange(12.0)}, categories=("code",))
    assert table.features == (Feature("code", "category"), Feature("x", "number"))
    with pytest.raises(InputRejectedError, match=r"column 'x' \(\$\[categories\]\): expected text or whole"):
        opened(tmp_path, {"x": np.arange(12.0)}, categories=("x",))


def test_features_are_what_has_no_other_role(tmp_path):
    columns = {name: np.arange(12) for name in ("id", "day", "x", "y", "z", "kept")}
    table = opened(tmp_path, columns, exclude=("y",), row_id="id", time="day", keep=("kept",))
    assert [feature.name for feature in table.features] == ["x", "z"]
    assert set(table.names) == {"label", "id", "day", "x", "z", "kept"}
    assert [f.name for f in opened(tmp_path, columns, features=("z", "day"), time="day").features] == [
        "z",
        "day",
    ]


@pytest.mark.parametrize("value", [[1], {"a": 1}, b"x", dt.datetime(2024, 1, 1, tzinfo=dt.UTC)], ids=str)
def test_other_columns_are_refused(tmp_path, value):
    with pytest.raises(InputRejectedError, match="column 'x': expected a feature of numbers, booleans or"):
        opened(tmp_path, {"x": [value] * 12})


def test_no_features_are_left(tmp_path):
    with pytest.raises(InputRejectedError, match="expected feature columns, found none"):
        opened(tmp_path, {})


def test_a_category_of_too_many_values_is_refused(tmp_path):
    rows = MOST_CATEGORIES + 1
    path = write_log(tmp_path, {"label": np.arange(rows) % 2, "name": [f"n{i}" for i in range(rows)]})
    table = open_features(path, Roles("label"))
    with pytest.raises(InputRejectedError, match="column 'name': expected at most 1,000 categories, found"):
        gather_facts(table, InlineExecutor())
    path = write_log(tmp_path, {"label": np.arange(rows) % 2, "name": [f"n{i // 2}" for i in range(rows)]})
    gather_facts(open_features(path, Roles("label")), InlineExecutor())


@pytest.mark.parametrize("role", ["row_id", "group", "time"])
def test_nulls_have_no_place_among_keys(tmp_path, role):
    key = pa.array(range(12), mask=np.arange(12) == 5)
    table = opened(tmp_path, {"x": np.arange(12), "key": key}, **{role: "key"})
    with pytest.raises(InputRejectedError, match=rf"column 'key' \(\$\[{role}\]\): expected values, found 1"):
        gather_facts(table, InlineExecutor())


def test_keys_depend_on_the_value_and_not_on_its_type():
    batch = pa.table({"a": pa.array([-1, 5], pa.int8()), "b": pa.array([-1, 5], pa.int64())})
    assert np.array_equal(keys_of(batch, "a"), keys_of(batch, "b"))
    texts = pa.array(["x", "y", "x"])
    batch = pa.table({"a": texts, "b": texts.dictionary_encode()})
    assert np.array_equal(keys_of(batch, "a"), keys_of(batch, "b"))
    assert keys_of(batch, "a")[0] == keys_of(batch, "a")[2] != keys_of(batch, "a")[1]
    assert keys_of(batch, None) is None


TIMES = [pa.int16(), pa.float64(), pa.timestamp("ms", "UTC"), pa.date32(), pa.time64("us")]


@pytest.mark.parametrize("kind", TIMES, ids=str)
def test_times_keep_their_order(kind):
    column = pa.array([30, -10, 20], kind)
    assert np.argsort(times_of(pa.table({"t": column}), "t")).tolist() == [1, 2, 0]
