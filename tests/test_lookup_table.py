"""Lookup tables as files."""

import datetime as dt
import errno
import hashlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from calibrators.core.map import CalibrationMap
from logcal import reading, schema, storage
from logcal.errors import ConfigError, InputRejectedError, TemporaryError
from logcal.manifest import fingerprint
from logcal.reading import cached_table, read_table
from logcal.reading import read_facts as read_lookup_facts
from logcal.schema import apply_transform
from pipeline.table.lookup_table import plain_files

MAP = CalibrationMap.from_blocks(
    first=np.array([0.1, 0.3, 0.6]),
    last=np.array([0.2, 0.5, 0.6]),
    level=np.array([0.05, 1 / 3, 0.9]),
    weight=np.array([20.0, 30.0, 10.0]),
    positives=np.array([1.0, 10.0, 9.0]),
)
CONTENT = {
    "method": "isotonic",
    "parameters": {"strict": False, "b": [1, 2.5], "a": None},
    "score_transform": "sigmoid",
    "data": {"rows": 60, "window": "2026-01"},
}
FACTS = {"version": "000001-abc", **CONTENT}


def lookup_bytes(calibration_map, *, version, **facts):
    return plain_files(calibration_map, **facts).files(version)["lookup.parquet"]


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "lookup.parquet"
    path.write_bytes(lookup_bytes(MAP, **FACTS))
    return str(path)


def columns_of(calibration_map):
    return {name: getattr(calibration_map, name).tolist() for name in schema.LOOKUP_TABLE.names}


def test_reads_back_what_was_written(path):
    table = read_table(path)
    assert columns_of(table.map) == columns_of(MAP)
    assert table.facts == read_lookup_facts(path)
    facts = table.facts
    assert (facts.version, facts.method, facts.score_transform) == ("000001-abc", "isotonic", "sigmoid")
    assert facts.parameters == CONTENT["parameters"]
    assert facts.data == CONTENT["data"]
    assert facts.monotone
    assert facts.rows == 5
    assert facts.fingerprint == plain_files(MAP, **CONTENT).fingerprint


def test_file_has_the_documented_columns_and_keys(path):
    found = pq.read_schema(path)
    assert found.remove_metadata() == schema.LOOKUP_TABLE
    keys = {key.decode().removeprefix("logcal.") for key in found.metadata}
    assert keys == {
        "format_version", "features", "version", "method", "parameters", "score_transform", "monotone", "data",
        "fingerprint",
    }  # fmt: skip
    assert found.metadata[b"logcal.parameters"] == b'{"a":null,"b":[1,2.5],"strict":false}'
    assert pq.read_metadata(path).row_group(0).column(0).compression == "ZSTD"


def test_same_arguments_same_bytes(path, tmp_path):
    turned = dict(reversed(CONTENT["parameters"].items()))
    content = Path(path).read_bytes()
    assert content == lookup_bytes(MAP, **{**FACTS, "parameters": turned}) == lookup_bytes(MAP, **FACTS)
    assert content != lookup_bytes(MAP, **{**FACTS, "version": "000002-abc"})


def test_fingerprint_is_of_the_content_alone():
    # Changes when, and only when, the format of lookup tables does.
    assert (
        plain_files(MAP, **CONTENT).fingerprint
        == "a920c98522ae115ab9cc4e10dd408ee922c657e1443e81f577a62326a8fc0d04"
    )
    moved = CalibrationMap(**{**columns_of(MAP), "prob_lo": np.nextafter(MAP.prob_lo, 1.0)})
    others = {"method": "platt", "parameters": {}, "score_transform": "none", "data": {"rows": 61}}
    changed = [plain_files(MAP, **{**CONTENT, name: other}).fingerprint for name, other in others.items()]
    assert (
        len({plain_files(MAP, **CONTENT).fingerprint, plain_files(moved, **CONTENT).fingerprint, *changed})
        == 6
    )


def test_fingerprint_tells_types_orders_and_nulls_but_not_chunks():
    columns = [
        pa.array(["1", "2", None]), pa.array(["2", "1", None]), pa.array(["1", "2", "null"]), pa.array([1, 2, None]),
        pa.array([1, 2, None], pa.uint64()), pa.array(["2026-01-01", None]), pa.array([dt.date(2026, 1, 1), None]),
        pa.array(["a", "a", "b"]), pa.array(["a", "b", "b"]), pa.array([0.0, 1.0]), pa.array([-0.0, 1.0]),
        pa.array([True, False]), pa.nulls(2), pa.nulls(3), pa.array([], pa.string()),
    ]  # fmt: skip
    found = [fingerprint({}, pa.table({"a": column})) for column in columns]
    assert len(set(found)) == len(found)
    for column, digest in zip(columns, found, strict=True):
        padded = pa.concat_arrays([column[:1], column])[len(column[:1]) :]
        parts = pa.chunked_array([padded[:1], padded[1:]], column.type)
        assert fingerprint({}, pa.table({"a": parts})) == digest


def test_numbers_that_json_has_not_are_refused():
    with pytest.raises(ValueError, match="JSON"):
        lookup_bytes(MAP, **{**FACTS, "data": {"mean": float("nan")}})


def test_a_process_reads_a_table_once_while_it_stays_the_same(path, monkeypatch):
    reads = []
    read = reading.read_table
    monkeypatch.setattr(reading, "read_table", lambda p: reads.append(p) or read(p))
    first = cached_table(path)
    assert cached_table(path) is first
    assert reads == [path]
    Path(path).write_bytes(lookup_bytes(MAP, **{**FACTS, "version": "000002-longer"}))
    assert cached_table(path).facts.version == "000002-longer"
    assert len(reads) == 2


@pytest.mark.parametrize("read", [read_table, read_lookup_facts, cached_table])
def test_missing_file(tmp_path, read):
    with pytest.raises(InputRejectedError, match=r"none\.parquet: expected a lookup table, found no file"):
        read(str(tmp_path / "none.parquet"))


@pytest.mark.parametrize(
    ("error", "expected", "said"),
    [
        (OSError(errno.EIO, "Input/output error"), TemporaryError, "is unavailable .*run again"),
        (OSError("the store broke off"), TemporaryError, "its storage is unavailable .*run again"),
        (TimeoutError("timed out"), TemporaryError, "its storage is unavailable .*run again"),
        (PermissionError(errno.EACCES, "Permission denied"), ConfigError, "found no permission"),
        (IsADirectoryError(errno.EISDIR, "Is a directory"), InputRejectedError, "found no file"),
    ],
)
def test_a_table_that_its_storage_does_not_give_is_not_said_to_be_damaged(
    path, error, expected, said, monkeypatch
):
    def fails(_: str) -> bytes:
        raise error

    for read in (read_table, read_lookup_facts, cached_table):
        reading._read_cached.cache_clear()
        with monkeypatch.context() as patch:
            patch.setattr(storage, "read", fails)
            with pytest.raises(expected, match=f"{path}: expected a lookup table.*{said}"):
                read(path)
        assert read(path)


def rewritten(columns=None, metadata=None, drop=None):
    """Replace columns, or entries of the metadata, of a file."""

    def change(path):
        table = pq.read_table(path)
        entries = {k.decode(): v.decode() for k, v in table.schema.metadata.items()} | (metadata or {})
        entries.pop(drop, None)
        arrays = [pa.array((columns or {}).get(f.name, table.column(f.name)), f.type) for f in table.schema]
        pq.write_table(pa.table(arrays, schema=table.schema.with_metadata(entries)), path)

    return change


def with_content(content):
    return lambda path: Path(path).write_bytes(content)


GAP = [MAP.score_lo[0], np.nextafter(MAP.score_lo[1], 1.0), *MAP.score_lo[2:]]
CANNOT_BE_READ = [
    (with_content(b""), "found a file that cannot be read"),
    (with_content(b"score,label\n0.5,1\n"), "found a file that cannot be read"),
    (
        rewritten(metadata={"logcal.format_version": "5"}),
        "expected format_version 1, found 5: a newer version of logcal wrote it",
    ),
    (
        rewritten(metadata={"logcal.features": '["segments","rays","waves"]'}),
        "expected features among .*, found rays, waves: a newer version of logcal wrote it: use that version",
    ),
    (rewritten(metadata={"logcal.features": "null"}), "metadata, found them incomplete"),
    (rewritten(drop="logcal.format_version"), "found none"),
    (
        lambda path: pq.write_table(pq.read_table(path).replace_schema_metadata(None), path),
        "expected format_version 1, found none: publish it again",
    ),
]
IS_NO_TABLE = [
    (
        lambda path: pq.write_table(pa.table({"score": [0.5]}), path),
        r"with the columns score_lo double not null, .*; found",
    ),
    *(
        (rewritten(drop=f"logcal.{key}"), rf"metadata, found them incomplete \('{key}'\)")
        for key in ("features", "version", "method", "parameters", "score_transform", "monotone", "data")
    ),
    (
        rewritten(metadata={"logcal.score_transform": "probit"}),
        "expected a score transform among none, sigmoid, found",
    ),
    (rewritten({"score_lo": GAP}), "the file was changed after it was published"),
]


@pytest.mark.parametrize(
    ("read", "change", "said"),
    [
        *((read_table, *case) for case in [*CANNOT_BE_READ, *IS_NO_TABLE]),
        *((read_lookup_facts, *case) for case in CANNOT_BE_READ),
    ],
)
def test_what_is_no_lookup_table_is_refused(path, read, change, said):
    change(path)
    with pytest.raises(InputRejectedError, match=said):
        read(path)


def test_rows_that_are_no_map_are_refused_though_their_fingerprint_is_right(path, monkeypatch):
    rewritten({"score_lo": GAP})(path)
    monkeypatch.setattr(reading, "_check_fingerprint", lambda *_: None)
    with pytest.raises(InputRejectedError, match="without gaps or overlaps: publish it again"):
        read_table(path)


# Score transforms

GRID = np.arange(-800 * 64, 800 * 64 + 1) / 64


def test_none_changes_nothing_but_the_type():
    scores = np.array([3, -1, 7], dtype=np.int16)
    result = apply_transform(scores, "none")
    assert result.dtype == np.float64
    assert result.tolist() == [3.0, -1.0, 7.0]


def test_sigmoid_is_within_two_units_in_the_last_place():
    result = apply_transform(GRID, "sigmoid")
    x = GRID.astype(np.longdouble)
    e = np.exp(-np.abs(x))
    expected = np.where(x >= 0, 1 / (1 + e), e / (1 + e))
    error = np.abs(result - expected) / np.spacing(np.maximum(result, 5e-324))
    assert error.max() <= 2.0
    assert (np.diff(result) >= 0).all()


def test_sigmoid_has_the_same_bits_on_every_machine():
    digest = hashlib.sha256(apply_transform(GRID, "sigmoid").astype("<f8").tobytes()).hexdigest()
    assert digest == "7c8efbca6ae0a852c2a82a168f1f9c98aac88a7b19a96bf6d29f74869f0b9b4b"


def test_sigmoid_at_the_ends():
    result = apply_transform([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e308, -1e308, -745.0], "sigmoid")
    np.testing.assert_array_equal(result, [np.nan, 1.0, 0.0, 0.5, 0.5, 1.0, 0.0, 5e-324])
