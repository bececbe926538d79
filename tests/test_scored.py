"""Scored logs: nothing of the log changes, every row gets the map's probability."""

import json
import tracemalloc
import uuid
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from common import write_lookup
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from calibrators.core.map import CalibrationMap
from logcal.errors import ConfigError, InputRejectedError, NothingToDoError, TemporaryError
from logcal.schema import apply_transform
from pipeline.days.records import digest_of
from pipeline.execution import InlineExecutor
from pipeline.files.folders import Folder
from pipeline.files.requests import SmallFiles
from pipeline.follow.batch import SCORED, Places, score_arrivals
from pipeline.follow.ledger import SourceFile
from pipeline.log import log_files
from pipeline.log.logs import Columns, open_log
from pipeline.score import scored_file
from pipeline.score.ranges import CalibrationRange, RangeCount
from pipeline.score.scored import check_output, score_log, scored_output
from pipeline.score.scored_file import Scoring, score_file

STEPS = CalibrationMap.from_bins(
    np.array([0.2, 0.5, 0.8]), np.array([0.01, 0.3, 0.6, 0.9]), np.ones(4), np.full(4, 0.5)
)
SLOPES = CalibrationMap.from_knots(
    np.array([0.1, 0.4, 0.9]), np.array([0.05, 0.3, 0.95]), np.ones(4), np.full(4, 0.5)
)
NAN, INF = np.nan, np.inf


@pytest.fixture(params=["steps", "slopes"])
def calibration_map(request):
    return {"steps": STEPS, "slopes": SLOPES}[request.param]


@pytest.fixture
def scoring(tmp_path):
    return Scoring("score", write_lookup(tmp_path / "lookup.parquet", SLOPES, "000007-abc"))


def write_log(folder, tables, **options):
    for name, table in tables.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path, **options)
    return open_log(str(folder), Columns("score"))


def scores(rows, seed=0):
    return np.random.default_rng(seed).random(rows)


def run(log, scoring, output, executor=None, run_id="run", **options):
    return score_log(
        log, scoring, scored_output(str(output)), executor or InlineExecutor(), run_id=run_id, **options
    )


def rich_table(rows, seed=0):
    """A column of nearly every type that Parquet holds, with nulls."""
    rng = np.random.default_rng(seed)

    def some(values, kind=None):
        return pa.array([None if i % 5 == 3 else value for i, value in enumerate(values)], kind)

    numbers = range(rows)
    moments = [datetime(2026, 1, 1 + i % 28, i % 24, tzinfo=UTC) for i in numbers]
    columns = {
        "score": pa.array(rng.random(rows)),
        "bool": some([i % 2 == 0 for i in numbers]),
        "float16": some([np.float16(i) for i in numbers], pa.float16()),
        "uint64": some([2**64 - 1 - i for i in numbers], pa.uint64()),
        "decimal": some([Decimal(i) / 100 for i in numbers], pa.decimal128(20, 3)),
        "wide": some([Decimal(i) for i in numbers], pa.decimal256(50, 0)),
        "naive": some([moment.replace(tzinfo=None) for moment in moments], pa.timestamp("ns")),
        "zoned": some(moments, pa.timestamp("us", "Europe/Paris")),
        "date": some([moment.date() for moment in moments]),
        "duration": some(list(numbers), pa.duration("ms")),
        "time": some(list(numbers), pa.time64("ns")),
        "binary": some([bytes([i % 256]) * (i % 7) for i in numbers]),
        "fixed": some([i.to_bytes(4, "big") for i in numbers], pa.binary(4)),
        "large": some([f"text {i}" for i in numbers], pa.large_string()),
        "category": some(["red", "green", "blue"] * (rows // 3 + 1))[:rows].dictionary_encode(),
        "list": some([[i, None] * (i % 3) for i in numbers], pa.list_(pa.int32())),
        "struct": some([{"a": i, "b": [{"c": "x"}]} for i in numbers]),
        "map": some([[("k", i)] for i in numbers], pa.map_(pa.string(), pa.int64())),
        "uuid": pa.array([uuid.UUID(int=i).bytes for i in numbers], pa.uuid()),
        "null": pa.nulls(rows),
        "a.b": some(list(numbers)),
    }
    return pa.table(columns)


@pytest.mark.parametrize(
    "options",
    [
        {"row_group_size": 400},
        {"compression": "zstd", "use_dictionary": ["category"], "write_page_index": True},
        {"compression": {"score": "none", "large": "gzip"}, "data_page_version": "2.0"},
        {"use_deprecated_int96_timestamps": True, "store_schema": False, "version": "1.0"},
        {
            "column_encoding": {"score": "BYTE_STREAM_SPLIT", "uint64": "DELTA_BINARY_PACKED"},
            "use_dictionary": False,
        },
        {"write_page_checksum": True, "sorting_columns": [pq.SortingColumn(4)]},
    ],
)
def test_every_column_keeps_its_bytes(tmp_path, scoring, options):
    tables = {"day=1/a.parquet": rich_table(1000), "day=2/b.parquet": rich_table(37, 1)}
    log = write_log(tmp_path / "log", tables, **options)
    run(log, scoring, tmp_path / "out")
    for name in tables:
        source, result = tmp_path / "log" / name, tmp_path / "out" / name
        before, after = pq.ParquetFile(source), pq.ParquetFile(result)
        with before, after:
            body = source.stat().st_size - before.metadata.serialized_size - 8
            assert result.read_bytes()[:body] == source.read_bytes()[:body]
            count = len(before.schema)
            for group in range(before.num_row_groups):
                for column in range(count):
                    old, new = (f.metadata.row_group(group).column(column) for f in (before, after))
                    assert new.to_dict() == old.to_dict()
                added = [after.metadata.row_group(group).column(count + i) for i in (0, 1)]
                codec = before.metadata.row_group(group).column(0).compression
                assert [(c.path_in_schema, c.compression) for c in added] == [
                    ("probability", codec),
                    ("table_version", codec),
                ]
            old, new = before.read(), after.read()
        assert new.drop_columns(["probability", "table_version"]).equals(old)
        assert new.schema.names == [*old.schema.names, "probability", "table_version"]
        assert new.schema.field("probability").type == pa.float64()
        assert new.schema.field("table_version").type == pa.string()
        assert set(new.column("table_version").to_pylist()) == {"000007-abc"}
        expected = SLOPES.predict(old.column("score").to_numpy())
        np.testing.assert_array_equal(new.column("probability").to_numpy(), expected)


def test_pandas_gets_its_index_back(tmp_path, scoring):
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(
        {"score": [0.1, 0.9], "kind": pd.Categorical(["x", "y"])},
        index=pd.MultiIndex.from_tuples([("u", 1), ("v", 2)], names=["user", "item"]),
    )
    (tmp_path / "log").mkdir()
    frame.to_parquet(tmp_path / "log" / "a.parquet")
    run(open_log(str(tmp_path / "log"), Columns("score")), scoring, tmp_path / "out")
    result = pd.read_parquet(tmp_path / "out" / "a.parquet")
    pd.testing.assert_frame_equal(result[["score", "kind"]], frame)
    assert result["probability"].tolist() == SLOPES.predict([0.1, 0.9]).tolist()


def scored_column(tmp_path, column, calibration_map, row_group_size=1000, **facts):
    """A column that was scored, as a table, and how many rows it had and how many of them had no score."""
    lookup = write_lookup(tmp_path / "lookup.parquet", calibration_map, **facts)
    tables = {"a.parquet": pa.table({"score": column})}
    log = write_log(tmp_path / "log", tables, row_group_size=row_group_size)
    scored = run(log, Scoring("score", lookup), tmp_path / "out")
    return pq.read_table(tmp_path / "out" / "a.parquet"), scored.counts[:2]


@pytest.mark.parametrize("kind", ["float16", "float32", "float64", "int8", "uint16", "int64"])
def test_score_columns_of_any_number(tmp_path, calibration_map, kind):
    kind = np.dtype(kind)
    values = np.array([0, 1, 0, 1, 1, 0]) if kind.kind in "iu" else np.linspace(0, 1, 300)
    values = values.astype(kind)
    table, counts = scored_column(tmp_path, values, calibration_map)
    found = table.column("probability").to_numpy()
    assert found.tobytes() == calibration_map.predict(values.astype(np.float64)).tobytes()
    assert counts == (values.size, 0)


def test_null_and_nan_get_no_probability_and_infinities_the_ends(tmp_path, calibration_map):
    column = pa.array([0.3, None, NAN, INF, -INF, -0.0, 0.0, 1e300])
    table, counts = scored_column(tmp_path, column, calibration_map, 3)
    low, high, at_zero = calibration_map.predict([-1e300, 1e300, 0.0])
    assert table.column("probability").to_pylist() == [
        calibration_map.predict(0.3), None, None, high, low, at_zero, at_zero, high,
    ]  # fmt: skip
    assert table.column("table_version").null_count == 0
    assert table.column("score").to_pylist()[1] is None
    assert counts == (8, 2)


def test_margins_go_through_the_sigmoid(tmp_path):
    margins = np.array([-3.0, 0.0, 0.7, 40.0, INF, -INF])
    table, _ = scored_column(tmp_path, margins, SLOPES, score_transform="sigmoid")
    found = table.column("probability").to_numpy()
    assert found.tobytes() == SLOPES.predict(apply_transform(margins, "sigmoid")).tobytes()


def test_row_groups_longer_than_a_page(tmp_path, monkeypatch):
    monkeypatch.setattr(scored_file, "PAGE_ROWS", 100)
    values = scores(1050)
    values[::13] = NAN
    found = scored_column(tmp_path, values, SLOPES, 700)[0].column("probability").to_numpy()
    np.testing.assert_array_equal(found, SLOPES.predict(values))


def test_manifest(tmp_path, scoring):
    tables = {
        "b.parquet": pa.table({"score": [0.5, NAN]}),
        "day=1/a.parquet": pa.table({"score": [0.5]}),
        "day=2/none.parquet": pa.table({"score": pa.array([], pa.float64())}),
    }
    log = write_log(tmp_path / "log", tables)
    scored = run(log, scoring, tmp_path / "out", table="ads")
    manifest = json.loads((tmp_path / ".out.logcal" / "manifest.json").read_text())
    files, skipped = manifest.pop("files"), manifest.pop("files_skipped")
    assert (skipped, manifest.pop("files_skipped_names")) == (0, [])
    assert manifest.pop("log_files") == digest_of(log.files)
    assert manifest == {
        "run_id": "run",
        "table": "ads",
        "table_version": "000007-abc",
        "score": "score",
        "columns": ["probability", "table_version"],
        "columns_not_read": [],
        "rows": 3,
        "null_rows": 1,
        "unseen_rows": 0,
        "rows_below_range": 0,
        "rows_above_range": 0,
    }
    assert files == [{"path": file.path, **file.counts._asdict()} for file in scored.files]
    assert [(f.path, *f.counts[:2]) for f in scored.files] == [
        ("b.parquet", 2, 1), ("day=1/a.parquet", 1, 0), ("day=2/none.parquet", 0, 0),
    ]  # fmt: skip
    assert all((tmp_path / "out" / f.path).stat().st_size == f.counts.bytes for f in scored.files)
    assert scored.counts.bytes == sum(f.counts.bytes for f in scored.files)
    assert open_log(str(tmp_path / "out"), Columns("probability")).rows == 3


def test_object_stores(tmp_path, scoring):
    filesystem = fsspec.filesystem("memory")
    table = pa.table({"score": scores(300)})
    try:
        for name in ("day=1/a.parquet", "day=2/b.parquet"):
            with filesystem.open(f"/scored/log/{name}", "wb") as file:
                pq.write_table(table, file, row_group_size=100)
        log = open_log("memory://scored/log", Columns("score"))
        scored = run(log, scoring, "memory://scored/out")
        assert {f.removeprefix("/scored/out/") for f in filesystem.find("/scored/out")} == {
            "day=1/a.parquet", "day=2/b.parquet",
        }  # fmt: skip
        assert filesystem.find("/scored/.out.logcal") == ["/scored/.out.logcal/manifest.json"]
        local = run(log, scoring, tmp_path / "local")
        assert local.files == scored.files
        for file in scored.files:
            own = filesystem.cat_file(f"/scored/out/{file.path}")
            assert own == (tmp_path / "local" / file.path).read_bytes()
            assert len(own) == file.counts.bytes
        with pytest.raises(NothingToDoError):
            run(log, scoring, "memory://scored/out")
        for overlapping in ("memory://scored/log/out", "memory://scored/log", "memory://scored"):
            with pytest.raises(ConfigError, match="expected a folder apart from the log"):
                run(log, scoring, overlapping)
    finally:
        filesystem.rm("/scored", recursive=True)


@pytest.mark.parametrize("place", ["", "memory://scored/"])
@pytest.mark.parametrize("rows", [300, 300_000])
@pytest.mark.parametrize("spoiled", ["values", "codes", "version"])
def test_an_output_that_reads_otherwise_than_it_was_written_is_not_published(
    tmp_path, scoring, monkeypatch, place, rows, spoiled
):
    """One bit of what is written differs."""
    score = np.arange(rows) % 4 / 4 if spoiled == "codes" else scores(rows)
    log = write_log(tmp_path / "log", {"a.parquet": pa.table({"score": score})})
    encode, constant = scored_file.encode_chunk, scored_file.constant_chunk

    def other_values(name, column, codec, *, indexed):
        bits = column.to_numpy().copy().view(np.int64)
        bits[rows // 2] ^= 1
        return encode(name, pa.chunked_array([bits.view(np.float64)]), codec, indexed=indexed)

    if spoiled == "version":
        monkeypatch.setattr(
            scored_file, "constant_chunk", lambda name, v, *a, **k: constant(name, v[:-1], *a, **k)
        )
    else:
        monkeypatch.setattr(scored_file, "encode_chunk", other_values)
    column = "table_version" if spoiled == "version" else "probability"
    with pytest.raises(
        TemporaryError, match=f"a.parquet: .*found other values of .*{column}.* in row group 0"
    ):
        run(log, scoring, f"{place or tmp_path}/out")
    assert not list(tmp_path.rglob("out*"))
    assert not fsspec.filesystem("memory").exists("/scored")


def test_the_name_of_a_writer_of_another_form_stays(tmp_path, scoring):
    """By it readers know the files of parquet-mr before 1.2.9, whose dictionaries they mend (PARQUET-816)."""
    table = pa.table({"score": scores(300)})
    log = write_log(tmp_path / "log", {"a.parquet": table})
    path = tmp_path / "log" / "a.parquet"
    content, name = path.read_bytes(), pq.read_metadata(path).created_by.encode()
    assert content.count(name) == 1
    fields = content[: content.index(name) - 1]
    length = int.from_bytes(content[-8:-4], "little") - len(name) + len(b"parquet-mr")
    content = (
        fields + bytes([len(b"parquet-mr")]) + b"parquet-mr" + content[content.index(name) + len(name) : -8]
    )
    path.write_bytes(content + length.to_bytes(4, "little") + b"PAR1")
    run(open_log(str(path), Columns("score")), scoring, tmp_path / "out")
    assert pq.read_metadata(tmp_path / "out" / "a.parquet").created_by == "parquet-mr"
    assert log.rows == 300


@pytest.mark.parametrize("held", [True, False])
def test_damage_in_a_column_that_is_only_copied(tmp_path, scoring, monkeypatch, held):
    """It stays a copy, and the manifest says that the column was not read; with `verify` the file is refused."""
    monkeypatch.setattr(scored_file, "HELD_BYTES", 1 << 22 if held else 0)
    table = pa.table({"x": np.arange(300.0), "score": scores(300), "text": ["a"] * 300})
    log = write_log(tmp_path / "log", {"a.parquet": table}, use_dictionary=False, write_page_checksum=True)
    verifying = replace(scoring, verify=True)
    run(log, verifying, tmp_path / "whole")
    assert json.loads((tmp_path / ".whole.logcal/manifest.json").read_text())["columns_not_read"] == []
    damage(tmp_path / "log" / "a.parquet", group=0)
    log = open_log(str(tmp_path / "log"), Columns("score"))
    run(log, scoring, tmp_path / "copied")
    assert json.loads((tmp_path / ".copied.logcal/manifest.json").read_text())["columns_not_read"] == [
        "text",
        "x",
    ]
    with pytest.raises(
        InputRejectedError, match=r"a\.parquet: expected columns that can be read .* found 'x'"
    ):
        run(log, verifying, tmp_path / "refused")
    assert not list(tmp_path.glob("*refused*"))


def damage(path, group=1):
    """Overwrite the middle of the second row group's scores."""
    column = pq.read_metadata(path).row_group(group).column(0)
    with Path(path).open("r+b") as file:
        file.seek((column.dictionary_page_offset or column.data_page_offset) + 2)
        file.write(b"\xff" * 20)


@pytest.mark.parametrize("place", ["local", "memory"])
def test_a_file_that_breaks_leaves_nothing_and_is_named(tmp_path, scoring, place):
    tables = {f"{i}.parquet": pa.table({"score": scores(500, i)}) for i in range(3)}
    log = write_log(tmp_path / "log", tables, row_group_size=250)
    damage(tmp_path / "log" / "1.parquet")
    log = open_log(str(tmp_path / "log"), Columns("score"))
    output = str(tmp_path / "out") if place == "local" else "memory://broken/out"
    with pytest.raises(
        InputRejectedError,
        match=r"log/1\.parquet: expected a Parquet file, found one that cannot be read \(.*write it again",
    ):
        run(log, scoring, output)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["log", "lookup.parquet"]
    assert not fsspec.filesystem("memory").find("/broken")


@pytest.mark.parametrize(
    ("name", "column", "setting"),
    [
        ("a.parquet", "probability", r"set \$\[probability\] to another name"),
        ("a.parquet", "Probability", r"set \$\[probability\] to another name"),
        ("a.parquet", "table_version", r"set \$\[version_column\] to another name"),
        ("probability=1/a.parquet", "other", r"set \$\[probability\] to another name"),
    ],
)
def test_columns_that_are_there_already(tmp_path, scoring, name, column, setting):
    log = write_log(tmp_path / "log", {name: pa.table({"score": [0.5], column: [1.0]})})
    with pytest.raises(InputRejectedError, match=setting):
        run(log, scoring, tmp_path / "out")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["log", "lookup.parquet"]


def test_new_columns_of_one_name():
    with pytest.raises(ConfigError, match=r"\$\[probability\]: expected another name than that of"):
        Scoring("score", "lookup.parquet", "Table_Version")


def test_a_single_file_and_a_glob_may_be_scored_beside_themselves(tmp_path, scoring):
    write_log(
        tmp_path / "log",
        {"a.parquet": pa.table({"score": [0.5]}), "b.txt.parquet": pa.table({"score": [0.1]})},
    )
    for path in ("a.parquet", "*.txt.parquet"):
        log = open_log(str(tmp_path / "log" / path), Columns("score"))
        output = tmp_path / "log" / f"out-{len(path)}"
        assert run(log, scoring, output).counts.rows == 1
        with pytest.raises(ConfigError, match="apart from the log"):
            check_output(log, scored_output(log.files[0].path), "run")


def test_files_that_would_get_one_name(tmp_path, scoring):
    for folder in ("one", "two"):
        write_log(tmp_path / folder, {"a.parquet": pa.table({"score": [0.5]})})
    log = open_log([str(tmp_path / "one"), str(tmp_path / "two")], Columns("score"))
    with pytest.raises(ConfigError, match=r"found several named a\.parquet: score the folders one by one"):
        run(log, scoring, tmp_path / "out")


@pytest.mark.parametrize("options", [{}, {"write_page_index": True}, {"write_page_checksum": True}])
@pytest.mark.parametrize("protocol", ["file", "memory"])
def test_a_file_that_is_held_gets_the_bytes_of_one_that_is_read_in_pieces(
    tmp_path, scoring, monkeypatch, options, protocol
):
    write_log(tmp_path / "log", {"a.parquet": rich_table(3000)}, row_group_size=700, **options)
    filesystem, source = fsspec.filesystem(protocol), str(tmp_path / "log" / "a.parquet")
    if protocol == "memory":
        filesystem.pipe_file("/held/a.parquet", Path(source).read_bytes())
        source = "/held/a.parquet"
    log = open_log(f"{protocol}://{source}", Columns("score"))
    size, found = log.files[0].size, []
    # The last one holds it just so.
    for most in (0, size - 1, size):
        monkeypatch.setattr(scored_file, "HELD_BYTES", most)
        target = tmp_path / f"{most}.parquet"
        counts = score_file(filesystem, log.files[0], LocalFileSystem(), str(target), scoring)
        found.append((counts, target.read_bytes()))
    assert found[0] == found[1] == found[2]
    assert pq.read_table(tmp_path / f"{size}.parquet").num_rows == 3000


class Counting(MemoryFileSystem):
    """A store that notes what it is asked for, and has a file replaced once it was read."""

    cachable = False

    def __init__(self, replaced=None):
        super().__init__()
        self.asked, self.replaced = Counter(), replaced

    def cat_file(self, path, start=None, end=None, **options):
        self.asked["GET"] += 1
        data = super().cat_file(path, start, end, **options)
        if path == self.replaced:
            self.replaced = None
            fsspec.filesystem("memory").pipe_file(path, data)
        return data

    def info(self, path, **options):
        self.asked["HEAD"] += 1
        return super().info(path, **options)

    def ls(self, path, **options):
        self.asked["LIST"] += 1
        return super().ls(path, **options)

    def open(self, *arguments, **options):
        raise AssertionError("a small file is read whole")


def test_a_small_file_of_a_store_is_one_request(tmp_path, scoring, monkeypatch):
    """A folder of several is listed once more in the end, and then a file that was replaced is found out."""
    names = [f"{'many' if i else 'one'}/{i}.parquet" for i in range(13)]
    write_log(tmp_path / "log", {name: rich_table(30, i) for i, name in enumerate(names)})
    memory = fsspec.filesystem("memory")
    for name in names:
        memory.pipe_file(f"/once/{name}", (tmp_path / "log" / name).read_bytes())
    log = replace(open_log("memory:///once", Columns("score")), filesystem=Counting())
    stamps = [SourceFile(file.relative, file.size, file.stamp) for file in log.files]
    assert run(log, scoring, tmp_path / "scored").counts.rows == 390
    # At first, what the footers were read from is still there.
    assert log.filesystem.asked == {"HEAD": 1, "LIST": 1}
    store = Counting()
    for folder in ("one", "many"):
        (tmp_path / folder).mkdir()
    outcomes = score_arrivals(tuple(stamps), Places(Folder.of(store, "/once"), Folder.at(tmp_path)), scoring)
    assert {outcome.kind for outcome in outcomes} == {SCORED}
    assert store.asked == {"GET": 13}
    for name in (names[0], names[5]):
        changed = replace(open_log("memory:///once", Columns("score")), filesystem=Counting(f"/once/{name}"))
        monkeypatch.setattr(log_files, "SMALL_FILES", SmallFiles())
        with pytest.raises(
            InputRejectedError, match=f"{name}: expected the file as it was.*found it changed"
        ):
            run(changed, scoring, tmp_path / "changed")
        assert not list(tmp_path.glob("*changed*"))
    memory.store.clear()


@pytest.mark.system
@pytest.mark.parametrize("distinct", [4_000_000, 3])
def test_memory_is_that_of_a_row_groups_new_columns(tmp_path, scoring, distinct):
    """A small file of very many rows does not take more."""
    rows = 4_000_000
    table = pa.table({"score": np.resize(scores(distinct), rows)})
    log = write_log(tmp_path / "log", {"a.parquet": table}, row_group_size=rows)
    assert (log.files[0].size <= scored_file.HELD_BYTES) == (distinct == 3)
    score = (LocalFileSystem(), log.files[0], LocalFileSystem(), str(tmp_path / "out"), scoring)
    score_file(*score)  # compiled loops and imports are not what is measured
    before, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    pa.set_memory_pool(pool)
    tracemalloc.start()
    try:
        score_file(*score)
        peak = tracemalloc.get_traced_memory()[1] + pool.max_memory()
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(before)
    assert peak < rows * 8 * (3 if distinct > 3 else 1.5)


# Scoring refuses what does not fit the table, and a scored folder is read by whoever reads Parquet

ROWS = 2000


def write_new(place, score, **columns):
    return place.write_log({"score": np.asarray(score, np.float64), **columns}, files=2, name="new")


def manifest(place):
    return json.loads((place.root / ".output.logcal" / "manifest.json").read_text())


def test_scores_outside_the_range_are_counted_and_said(fitted, call):
    new = write_new(fitted, [-np.inf, -1.0, 0.5, np.nan, 2.0, np.inf, 3.0, 0.25])
    done = call("score", "--json", "score.max_outside_range=0.7", log__path=new).expect(
        0, "WARNING", "5 rows (62.5 %) with scores outside", ": 2 below 0.", ", 3 above 0."
    )
    assert (done.json["rows_below_range"], done.json["rows_above_range"]) == (2, 3)
    found = manifest(fitted)
    assert (found["rows_below_range"], found["rows_above_range"], found["null_rows"]) == (2, 3, 1)
    assert sum(file["rows_above_range"] for file in found["files"]) == 3


def test_percent_instead_of_shares_is_refused_by_default(fitted, call):
    new = write_new(fitted, np.linspace(0, 100, ROWS))
    before = fitted.tree()
    call("score", log__path=new).expect(
        4, "score.max_outside_range: expected at most 0.5", "are they percent?", "nothing was written"
    )
    assert fitted.tree() == before
    call("score", "score.max_outside_range=1", log__path=new).expect(0, "WARNING")
    half = fitted.write_log({"score": [0.2, 0.3, 20.0, 30.0]}, files=1, name="half")
    call("score", log__path=half, output__path=fitted.root / "half-scored").expect(0, "WARNING")


def test_follow_refuses_a_file_in_percent_by_name(fitted, call):
    new = fitted.write_log({"score": np.linspace(0, 1, 50)}, files=1, name="arriving")
    pq.write_table(pa.table({"score": np.linspace(0, 100, 50)}), new / "percent.parquet")
    done = fitted.job("follow", "--once", log__path=new, output__path=fitted.output)
    done.expect(3, "percent.parquet", "score.max_outside_range", "are they percent?")
    assert [path.name for path in fitted.output.glob("*.parquet")] == ["part-0.parquet"]
    status = fitted.job("follow", "--status", "--json", log__path=new, output__path=fitted.output).json
    assert set(status["refused"]) == {"percent.parquet"}
    fitted.job(
        "follow", "--once", "score.max_outside_range=1", log__path=new, output__path=fitted.root / "all"
    ).expect(0)


def test_few_rows_outside_are_no_reason_to_warn(fitted, call):
    new = write_new(fitted, [*np.linspace(0.1, 0.9, ROWS), 7.0])
    done = call("score", log__path=new).expect(0)
    assert "WARNING" not in done.stderr
    assert "1 row (" in done.stdout


@pytest.mark.parametrize("own", ["log.score_transform=sigmoid", "score_table.grid=1e-1"])
def test_the_range_is_that_of_scores_as_they_were_transformed_or_rounded(place, call, own):
    columns = place.predictions()
    if "sigmoid" in own:
        columns["score"] = np.log(columns["score"] / (1 - columns["score"]))
    place.write_log(columns)
    call("fit", own).expect(0)
    done = call("score", "--json", "score.max_outside_range=0").expect(0)
    assert (done.json["rows_below_range"], done.json["rows_above_range"]) == (0, 0)


@pytest.mark.parametrize("own", ["none", "sigmoid"])
def test_a_transform_that_contradicts_the_tables(place, call, own):
    place.write_log()
    call("fit", f"log.score_transform={own}").expect(0)
    other = {"none": "sigmoid", "sigmoid": "none"}[own]
    for job in ("score", "evaluate"):
        call(job, f"log.score_transform={other}").expect(2, f"fitted with '{own}', found '{other}'")
        call(job, f"log.score_transform={own}", output__path=place.root / job).expect(0)


def test_unseen_segments(place, call):
    columns = place.predictions()
    place.write_log({**columns, "country": np.array(["at", "be"])[np.arange(3000) % 2]})
    call("fit", "log.segment=country").expect(0)
    new = write_new(place, np.linspace(0.1, 0.9, 100), country=["at"] * 90 + ["zz"] * 10)
    call("score", "score.max_unseen=0.05", log__path=new).expect(4, "score.max_unseen: expected at most 0.05")
    assert not place.output.exists()
    call("score", "score.max_unseen=0.1", log__path=new).expect(0, "WARNING", "10 rows (10 %) of segments")


def test_a_new_table_scores_in_place_of_the_old(fitted, call):
    call("score").expect(0)
    first = fitted.current
    call("fit", "calibrator.method=histogram").expect(0)
    call("score").expect(2, "the result of another run", "set output.mode=replace")
    assert manifest(fitted)["table_version"] == first
    call("score", "output.mode=replace").expect(0)
    call("score", "output.mode=replace").expect(99)
    assert manifest(fitted)["table_version"] == fitted.current != first
    assert set(pq.read_table(fitted.output)["table_version"].to_pylist()) == {fitted.current}
    there = {path.name for path in fitted.root.iterdir()}
    assert there == {"log", "output", ".output.logcal", "scratch", "store"}


def test_a_replacement_that_is_refused_leaves_the_old(fitted, call):
    call("score").expect(0)
    before = fitted.tree()
    new = write_new(fitted, np.linspace(0, 100, ROWS))
    shutil_tree = {name: digest for name, digest in fitted.tree().items() if name.startswith("new")}
    settings = ("output.mode=replace", "score.max_outside_range=0.05")
    call("score", *settings, log__path=new).expect(4)
    assert fitted.tree() == before | shutil_tree


def test_scores_at_the_ends_of_the_range_are_inside():
    count = RangeCount(CalibrationRange(0.2, 0.8))
    count.add(np.array([0.1, 0.2, 0.2, np.nan, 0.5, 0.8, 0.9, 0.9]))
    assert (count.below, count.above, count.outside) == (1, 2, 3)
    assert (count.lowest, count.highest) == (0.1, 0.9)
