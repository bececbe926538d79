"""Finding a log's files and checking what their footers tell."""

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from logcal.errors import InputRejectedError
from pipeline.log.logs import Columns, open_log, read_rows

GOOD = pa.table({"score": [0.1, 0.2, 0.3], "label": [0, 1, 1], "other": ["a", "b", None]})
BOTH = Columns("score", "label")


def write(path, table=GOOD):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)
    return str(path)


@pytest.fixture
def folder(tmp_path):
    write(tmp_path / "log" / "date=2026-01-02" / "b.parquet")
    write(tmp_path / "log" / "date=2026-01-01" / "a.parquet")
    (tmp_path / "log" / "_SUCCESS").write_text("")
    write(tmp_path / "log" / ".hidden" / "x.parquet", pa.table({"x": [1]}))
    write(tmp_path / "log" / "_temporary" / "x.parquet", pa.table({"x": [1]}))
    return tmp_path / "log"


def test_a_folder_with_hive_partitions(folder):
    log = open_log(str(folder), BOTH)
    assert [f.relative for f in log.files] == ["date=2026-01-01/a.parquet", "date=2026-01-02/b.parquet"]
    assert log.rows == 6
    assert log.types == {"score": "double", "label": "int64"}
    assert all(f.size > 0 and f.stamp for f in log.files)


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("log/date=2026-01-01/a.parquet", ["a.parquet"]),
        ("log/date=*/*.parquet", ["date=2026-01-01/a.parquet", "date=2026-01-02/b.parquet"]),
        ("log/date=*", ["date=2026-01-01/a.parquet", "date=2026-01-02/b.parquet"]),
        ("log/**/b.parquet", ["date=2026-01-02/b.parquet"]),
    ],
)
def test_files_and_globs(folder, pattern, names):
    assert [f.relative for f in open_log(str(folder.parent / pattern), BOTH).files] == names


def test_several_paths(folder):
    log = open_log([str(folder / "date=2026-01-01"), str(folder / "date=2026-01-02" / "b.parquet")], BOTH)
    assert log.rows == 6


def test_a_url():
    memory = fsspec.filesystem("memory")
    with memory.open("/test_logs/a.parquet", "wb") as file:
        pq.write_table(GOOD, file)
    log = open_log("memory://test_logs", BOTH)
    assert (log.rows, log.local) == (3, False)
    [piece] = [p for f in log.files for p in [f.path]]
    assert piece == "/test_logs/a.parquet"


def test_only_the_used_columns_are_read(folder):
    log = open_log(str(folder), BOTH)
    [rows] = read_rows(log.filesystem, log.files[0].piece((0,), 0, 3), BOTH)
    assert rows.batch.schema.names == ["score", "label"]
    np.testing.assert_array_equal(rows.score, [0.1, 0.2, 0.3])
    np.testing.assert_array_equal(rows.label, [0, 1, 1])


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nowhere", "no such file or directory"),
        ("log/*.nothing", "no files match"),
        ("csv", r"expected files ending in .parquet.* found 2 other files \(a.csv, b.csv\)"),
        ("empty", "found nothing"),
    ],
)
def test_nothing_to_read(folder, path, message):
    (folder.parent / "csv").mkdir()
    (folder.parent / "csv" / "a.csv").write_text("score,label\n1,0\n")
    (folder.parent / "csv" / "b.csv").write_text("score,label\n1,0\n")
    (folder.parent / "empty").mkdir()
    with pytest.raises(InputRejectedError, match=message):
        open_log(str(folder.parent / path), BOTH)


def test_all_problems_are_said_at_once(folder):
    good = (folder / "date=2026-01-01" / "a.parquet").read_bytes()
    (folder / "truncated.parquet").write_bytes(good[:-40])
    (folder / "nought.parquet").write_bytes(b"")
    write(folder / "unlabelled.parquet", GOOD.drop_columns("label"))
    with pytest.raises(InputRejectedError) as caught:
        open_log(str(folder), BOTH)
    message = str(caught.value)
    assert f"{folder}/truncated.parquet: expected a Parquet file, found one that cannot be read" in message
    assert f"{folder}/nought.parquet: expected a Parquet file, found an empty one" in message
    assert "column 'label' (log.label) is not in 1 of 3 files (unlabelled.parquet)" in message
    assert "a.parquet: " not in message


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            GOOD.rename_columns(["s", "label", "o"]),
            r"'score' \(log.score\) is not in any file.* columns s, label, o",
        ),
        (
            GOOD.set_column(1, "label", [["a", "b", "c"]]),
            "expected booleans, or numbers 0 and 1.*found string",
        ),
        (GOOD.set_column(0, "score", [["a", "b", "c"]]), "'score'.*expected numbers.*found string"),
        (
            GOOD.set_column(0, "score", GOOD["score"].cast(pa.decimal128(30, 20))),
            r"expected numbers \(a float or integer type\), found decimal128",
        ),
        (GOOD.slice(0, 0), "expected rows, found none in 1 files"),
    ],
)
def test_columns_that_cannot_be_used(tmp_path, table, message):
    with pytest.raises(InputRejectedError, match=message):
        open_log(write(tmp_path / "log.parquet", table), BOTH)


def test_types_that_differ_between_files(tmp_path):
    write(tmp_path / "log" / "a.parquet")
    write(tmp_path / "log" / "b.parquet", GOOD.set_column(0, "score", GOOD["score"].cast(pa.float32())))
    write(tmp_path / "log" / "c.parquet", GOOD.append_column("more", [[1, 2, 3]]))
    with pytest.raises(
        InputRejectedError, match=r"double in 2 files \(a.parquet, c.parquet\); float in 1 files"
    ):
        open_log(str(tmp_path / "log"), BOTH)
    (tmp_path / "log" / "b.parquet").unlink()
    assert open_log(str(tmp_path / "log"), BOTH).rows == 6


def test_a_file_without_rows_is_no_problem_among_others(tmp_path):
    write(tmp_path / "log" / "a.parquet")
    write(tmp_path / "log" / "b.parquet", GOOD.slice(0, 0))
    assert open_log(str(tmp_path / "log"), BOTH).rows == 3


def test_a_file_whose_pages_are_damaged_is_named(tmp_path):
    path = write(
        tmp_path / "log.parquet", pa.table({"score": np.arange(9000.0), "label": np.arange(9000) % 2})
    )
    data = bytearray((tmp_path / "log.parquet").read_bytes())
    data[4:400] = b"\xff" * 396
    (tmp_path / "log.parquet").write_bytes(data)
    log = open_log(path, BOTH)
    with pytest.raises(
        InputRejectedError,
        match=r"log.parquet: expected a Parquet file, found one that cannot be read .*: write it again",
    ):
        list(read_rows(log.filesystem, log.files[0].piece((0,), 0, 9000), BOTH))
