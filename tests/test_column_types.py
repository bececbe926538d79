"""One meaning, several spellings: a log's files may differ in Arrow types, whichever writers made them."""

import datetime as dt
import itertools
import json
import shutil
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logcal.errors import InputRejectedError
from pipeline.log import decimals, nested
from pipeline.log.column_facts import find_roles, log_facts
from pipeline.log.column_types import meaning
from pipeline.log.logs import LABEL_NULL, LABEL_OTHER, Columns, label_codes, numbers, open_log, read_rows
from pipeline.log.segment_values import Encoder, number, unified_values
from pipeline.log.windows import choose_window
from tests.common import TEXT_VIEW

ROWS = 600
DICTIONARY = pa.dictionary(pa.int32(), pa.string())
WRITERS = {
    "pandas 2": [pa.float64(), pa.int64(), pa.string(), pa.int64(), pa.bool_(), pa.date32()],
    "pandas 3": [pa.float64(), pa.float64(), pa.large_string(), pa.int64(), pa.bool_(), pa.date32()],
    "categories": [pa.float32(), pa.int8(), DICTIONARY, pa.int8(), pa.bool_(), pa.string()],
    "Polars": [pa.float64(), pa.uint8(), TEXT_VIEW, pa.uint32(), pa.bool_(), pa.date32()],
    "DuckDB": [pa.decimal128(11, 10), pa.bool_(), pa.string(), pa.int32(), pa.bool_(), pa.date32()],
    "Spark": [pa.float32(), pa.int32(), pa.string(), pa.decimal128(10, 0), pa.bool_(), pa.large_string()],
}
"""Types that writers give the columns of `rows_of`."""


def rows_of(seed):
    """Scores that all types hold, labels of which some are missing, and segment columns."""
    random = np.random.default_rng(seed)
    step = random.integers(0, 1025, ROWS)
    label = random.random(ROWS) < step / 1024
    day = [dt.date(2026, 3, 1 + int(k)) for k in random.integers(0, 3, ROWS)]
    return {
        "score": [Decimal(int(k)) / 1024 for k in step],
        "label": [None if k % 7 == 0 else bool(y) for k, y in zip(step, label, strict=True)],
        "text": [[None, "a", "b", "é"][k] for k in random.integers(0, 4, ROWS)],
        "whole": random.integers(-0, 3, ROWS).tolist(),
        "flag": (random.random(ROWS) < 0.5).tolist(),
        "day": [str(value) for value in day],
    }


def column(values, kind):
    """Values as a writer writes them."""
    if pa.types.is_dictionary(kind):
        return pa.array(values, kind.value_type).dictionary_encode()
    if pa.types.is_floating(kind):
        return pa.array([None if value is None else float(value) for value in values], kind)
    if pa.types.is_integer(kind):
        return pa.array([None if value is None else int(value) for value in values], kind)
    if pa.types.is_date32(kind):
        return pa.array(values).cast(kind)
    if pa.types.is_decimal(kind):
        return pa.array([None if value is None else Decimal(value) for value in values], kind)
    return pa.array(values, pa.string()).cast(kind) if isinstance(values[0], str) else pa.array(values, kind)


def write(folder, files):
    """Write a file for each writer in `files`."""
    folder.mkdir(parents=True)
    for i, writer in enumerate(files):
        pairs = zip(rows_of(i).items(), WRITERS[writer], strict=True)
        table = pa.table({name: column(values, kind) for (name, values), kind in pairs})
        pq.write_table(table, folder / f"{i}.parquet")
    return folder


SEGMENTS = "log.segment=[text,whole,flag,day]"
FEW = ("segments.min_rows=20", "segments.min_positives=5")


def maps(place, table):
    """The schema and the rows of a published table, and of its segments, without what names the version."""
    [version] = (place.store / table / "versions").iterdir()
    tables = [pq.read_table(version / name) for name in ("lookup.parquet", "segments.parquet")]
    return [table.replace_schema_metadata(None) for table in tables]


def fit(place, name, files, *settings):
    write(place.root / name, files)
    place.job("fit", *settings, log__path=place.root / name, store__table=name).expect(0)
    return maps(place, name)


ONE_TYPE = ["pandas 2"] * len(WRITERS)


@pytest.fixture(scope="module")
def fitted(make_place, tmp_path_factory):
    """A place with the tables of a log in the types of one writer."""
    place = make_place(tmp_path_factory.mktemp("types"))
    return place, fit(place, "one", ONE_TYPE, SEGMENTS, *FEW)


@pytest.mark.parametrize("order", [1, -1])
def test_types_do_not_matter_to_a_fit(fitted, order):
    place, expected = fitted
    # The rows of a file come from its number, so the writers change and the rows do not.
    found = fit(place, f"mixed{order}".replace("-", "m"), [*WRITERS][::order], SEGMENTS, *FEW)
    for table, other in zip(found, expected, strict=True):
        assert table.schema == other.schema
        assert table.equals(other)
    types = [str(kind) for kind in found[0].schema.types[:4]]
    assert types == ["string", "int64", "bool", "date32[day]"]


def test_the_manifest_counts_files_by_type(fitted):
    place, _ = fitted
    write(place.root / "counted", [*WRITERS])
    place.job("fit", log__path=place.root / "counted", store__table="counted").expect(0)
    [version] = (place.store / "counted" / "versions").iterdir()
    log = json.loads((version / "manifest.json").read_text())["log"]
    assert log["column_types"]["score"] == {"decimal128(11, 10)": 1, "double": 3, "float": 2}
    assert log["columns"]["score"] == "double"


@pytest.mark.parametrize("job", ["score", "follow", "evaluate"])
def test_types_do_not_matter_to_a_job_that_uses_a_table(fitted, job):
    place, _ = fitted
    results = []
    for name, files in (("one", ONE_TYPE), ("any", [*WRITERS])):
        log, output = place.root / f"{name}-{job}", place.root / f"{name}-{job}-out"
        write(log, files)
        where = {"log__path": log, "output__path": output, "store__table": "one"}
        settings = {"follow": ["--once", "log.give_up=0s"], "evaluate": ["--json", SEGMENTS]}
        result = place.job(job, *settings.get(job, ()), **where).expect(0)
        if job == "evaluate":
            own = ("report", "run", "run_id", "seconds")
            results.append({key: value for key, value in result.json.items() if key not in own})
            assert results[-1]["rows_used"] > 3000
            continue
        written = [pq.read_table(output / f"{i}.parquet") for i in range(len(files))]
        types = [pq.read_schema(log / f"{i}.parquet").types for i in range(len(files))]
        assert [table.schema.types[:6] for table in written] == types
        results.append([table.column("probability").to_pylist() for table in written])
    assert results[0] == results[1]


REFUSED = {
    "score as text": ("score", "text", ["expected numbers", "string"]),
    "text beside whole numbers": ("g", "text", ["expected values of one kind", "string in 1 file"]),
    "a decimal that is not whole": ("g", "half", ["expected whole numbers within int64", "1.5"]),
    "a decimal beyond int64": ("g", "huge", ["expected whole numbers within int64"]),
    "text that is no date": ("d", "text", ["expected dates such as 2026-01-31", "'x'"]),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_refused_is_refused_in_every_job(place, kind):
    name, change, phrases = REFUSED[kind]
    values = {"score": np.arange(400) / 400, "label": np.arange(400) % 3 == 0}
    values["g"] = np.arange(400) % 2
    values["d"] = pa.array([dt.date(2026, 3, 1)] * 400)
    place.write_log(values, files=1)
    segment = "log.segment=d" if name == "d" else "log.segment=g"
    place.job("fit", segment, *FEW).expect(0)
    changed = {
        "text": pa.array(["x"] * 400),
        "half": pa.array([Decimal("1.5")] * 400, pa.decimal128(5, 1)),
        "huge": pa.array([Decimal(2**63)] * 400, pa.decimal128(20, 0)),
    }[change]
    pq.write_table(pa.table({**values, name: changed}), place.log / "part-1.parquet")
    place.job("fit", segment, *FEW).expect(3, *phrases)
    phrases = [phrase for phrase in phrases if "one kind" not in phrase and "1 file" not in phrase]
    place.job("score").expect(3, *phrases)
    place.job("evaluate", segment, "evaluate.allow_in_sample=true").expect(3, *phrases)
    place.job("follow", "--once", "log.give_up=0s", output__path=place.root / "stream").expect(3, *phrases)


# Values

digits = (
    st.integers(-(10**38) + 1, 10**38 - 1) | st.integers(-(10**15), 10**15) | st.sampled_from([2**53 + 1])
)


@given(st.lists(digits, min_size=1, max_size=8), st.integers(0, 38), st.sampled_from([128, 256]))
def test_decimals_are_the_nearest_doubles(unscaled, scale, width):
    kind = pa.decimal128(38, scale) if width == 128 else pa.decimal256(60, scale)
    values = [Decimal(f"{n}E-{scale}") for n in unscaled]
    for array in (pa.array([None, *values], kind)[1:], pa.array(values, kind)):
        expected = [float(Fraction(n, 10**scale)) for n in unscaled]
        assert numbers(array).tolist() == expected
        assert decimals.are(array, 1).tolist() == [value == 1 for value in values]


def test_labels_of_any_type():
    codes = [0, 1, LABEL_NULL, LABEL_OTHER]
    almost = Decimal("1.00000000000000000001")
    values = pa.array([Decimal(0), Decimal(1), None, almost], pa.decimal128(30, 20))
    assert label_codes(values).tolist() == codes
    assert label_codes(pa.array([0.0, 1.0, None, 0.5])).tolist() == codes
    assert label_codes(pa.nulls(2)).tolist() == [LABEL_NULL] * 2
    assert label_codes(pa.array([False, True, None])).tolist() == codes[:3]


def test_segments_of_runs_have_one_type_whatever_came_first():
    parts = [pa.array([5], pa.int8()), pa.nulls(1), pa.array([2**40]), pa.array([7], pa.uint64())]
    for order in itertools.permutations(parts):
        columns = [part for [part] in unified_values([[part] for part in order])]
        assert {column.type for column in columns} == {pa.int64()}
        encoder = Encoder(["g"])
        for part in order:
            encoder.encode(pa.record_batch({"g": part}))
        assert encoder.types == (pa.int64(),)
        assert {key[0] for key in encoder.keys} == {5, None, 2**40, 7}
    dates = unified_values([[pa.array(["2026-03-01"])], [pa.array([dt.date(2026, 3, 2)])]])
    assert [part[0].type for part in dates] == [pa.date32()] * 2
    assert number([pa.nulls(3)]).types == (pa.string(),)


def test_numbers_beyond_int64():
    large = pa.array([2**63, 1], pa.uint64())
    for parts in ([large, pa.array([3], pa.int8())], [pa.array([3], pa.int8()), large]):
        assert unified_values([[part] for part in parts])[0][0].type == pa.uint64()
        encoder = Encoder(["g"])
        for part in parts:
            encoder.encode(pa.record_batch({"g": part}))
        assert encoder.types == (pa.uint64(),)
        assert sorted(key[0] for key in encoder.keys) == [1, 3, 2**63]
    with pytest.raises(InputRejectedError, match="fit one type of 64 bits"):
        unified_values([[large], [pa.array([-1])]])
    encoder = Encoder(["g"])
    encoder.encode(pa.record_batch({"g": large}))
    with pytest.raises(InputRejectedError, match="fit one type of 64 bits"):
        encoder.encode(pa.record_batch({"g": pa.array([-(2**63)])}))


TYPES = [
    pa.string(), pa.large_string(), pa.string_view(), DICTIONARY, pa.int8(), pa.uint64(), pa.bool_(), pa.float32(),
    pa.float64(), pa.decimal128(5, 1), pa.decimal256(50, 0), pa.date32(), pa.timestamp("us"),
    pa.timestamp("ns", "UTC"), pa.binary(), pa.null(), pa.list_(pa.int8()), pa.duration("s"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("role", "refused"),
    [
        ("score", ["string", "bool", "null", "binary", "date32[day]"]),
        ("label", ["string", "binary", "date32[day]"]),
        ("segment", ["float", "double", "binary", "timestamp[us]"]),
        ("key", ["float", "double", "null"]),
        ("time", ["string", "int8", "null"]),
    ],
)
def test_types_without_a_meaning(role, refused):
    without = {str(kind) for kind in TYPES if meaning(role, kind) is None}
    assert without >= {*refused, "duration[s]"}
    assert meaning(role, pa.list_(pa.int8())) is None


@pytest.mark.parametrize("writer", ["DuckDB", "Polars", "Spark"])
def test_the_roles_of_columns_do_not_depend_on_types(tmp_path, writer):
    roles = find_roles(log_facts(str(write(tmp_path / "log", [writer]))).columns)
    assert [roles.score[0].name, roles.label[0].name] == ["score", "label"]


# Fields of structs, and keys of folders


def test_a_field_of_a_struct_is_a_column_and_a_column_of_that_name_wins(place):
    columns = place.predictions(600)
    columns["g"] = pa.array(["a", "b"] * 300)
    place.write_log(columns)
    settings = ("log.score=pred.score", "log.segment=pred.meta.g", "store.table=nested", *FEW)
    place.job("fit", "log.segment=g", *FEW).expect(0)
    plain = pa.table(columns)
    shutil.rmtree(place.log)
    meta = pa.StructArray.from_arrays([plain["g"].combine_chunks()], ["g"])
    pred = pa.StructArray.from_arrays([plain["score"].combine_chunks(), meta], ["score", "meta"])
    place.write_log({"pred": pred, "label": plain["label"]})
    place.job("fit", *settings).expect(0)
    one, other = maps(place, "ads")[0], maps(place, "nested")[0]
    assert other.rename_columns(one.column_names).equals(one)
    place.job("score", settings[0], "store.table=nested").expect(0)
    scored = pq.read_table(place.output)
    assert scored.schema.names == ["pred", "label", "probability", "table_version"]
    assert scored["probability"].null_count == 0
    shutil.rmtree(place.log)
    place.write_log({"pred": pred, "pred.score": 1 - plain["score"].to_numpy(), "label": plain["label"]})
    place.job("fit", "log.score=pred.score", "store.table=flat").expect(0)
    [version] = (place.store / "flat" / "versions").iterdir()
    facts = json.loads((version / "manifest.json").read_text())["data"]
    assert facts["lowest_score"] == 1 - max(columns["score"])


def test_a_struct_that_is_null_has_no_score():
    pred = pa.array([{"score": 0.5}, None, {"score": None}])
    batch = nested.with_columns(pa.record_batch({"pred": pred}), ["pred.score", "pred.other", "x"])
    assert batch.column("pred.score").to_pylist() == [0.5, None, None]
    assert batch.schema.names == ["pred", "pred.score"]


@pytest.mark.parametrize(
    ("folder", "values", "fits"),
    [
        ("k=7", pa.array([7] * 4, pa.int8()), True),
        ("k=7", pa.array([Decimal(7)] * 4), True),
        ("k=a b", pa.array(["a b"] * 4).dictionary_encode(), True),
        ("k=true", pa.array([True] * 4), True),
        ("k=2026-03-01", pa.array([dt.date(2026, 3, 1)] * 4), True),
        ("k=__HIVE_DEFAULT_PARTITION__", pa.nulls(4, pa.string()), True),
        ("k=7", pa.array([7, 7, 8, 7]), False),
        ("k=a", pa.array(["a", None, "a", "a"]), False),
        ("k=2026-03-01", pa.array([dt.date(2026, 3, 2)] * 4), False),
    ],
)
def test_keys_of_folders_that_are_columns_too(tmp_path, folder, values, fits):
    path = tmp_path / folder / "a.parquet"
    path.parent.mkdir()
    pq.write_table(pa.table({"score": [0.1, 0.2, 0.3, 0.4], "label": [0, 1, 0, 1], "k": values}), path)
    log = open_log(str(tmp_path), Columns("score", "label", segments=("k",)))
    [file] = log.files
    read = read_rows(log.filesystem, file.piece((0,), 0, 4), log.columns)
    if fits:
        assert sum(rows.score.size for rows in read) == 4
    else:
        with pytest.raises(
            InputRejectedError, match=rf"a.parquet: column 'k': expected .* {folder}, in every row"
        ):
            list(read)


@pytest.mark.parametrize("dated", ["2026-03-01", "2026-03-02"])
def test_days_of_folders_that_are_columns_too(tmp_path, dated):
    path = tmp_path / "day=2026-03-01" / "a.parquet"
    path.parent.mkdir()
    day = pa.array([dt.datetime.fromisoformat(f"{dated}T05:00")] * 2, pa.timestamp("us"))
    pq.write_table(pa.table({"score": [0.1, 0.2], "label": [0, 1], "day": day}), path)
    log = open_log(str(tmp_path), Columns("score", "label"))
    if dated == "2026-03-01":
        assert not choose_window(log, "day", 1, None).mixed
    else:
        with pytest.raises(InputRejectedError, match="expected the day of its folder, day=2026-03-01"):
            choose_window(log, "day", 1, None)
