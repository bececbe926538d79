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


def test_nothing_to_read(folder):
    (folder.parent / "empty").mkdir()
    with pytest.raises(InputRejectedError, match="found nothing"):
        open_log(str(folder.parent / "empty"), BOTH)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            GOOD.rename_columns(["s", "label", "o"]),
            r"'score' \(log.score\) is not in any file.* columns s, label, o",
        ),
        (GOOD.slice(0, 0), "expected rows, found none in 1 file"),
    ],
)
def test_columns_that_cannot_be_used(tmp_path, table, message):
    with pytest.raises(InputRejectedError, match=message):
        open_log(write(tmp_path / "log.parquet", table), BOTH)


def test_files_may_differ_in_other_columns(tmp_path):
    write(tmp_path / "log" / "a.parquet")
    write(tmp_path / "log" / "c.parquet", GOOD.append_column("more", [[1, 2, 3]]))
    assert open_log(str(tmp_path / "log"), BOTH).rows == 6


def test_a_file_without_rows_is_no_problem_among_others(tmp_path):
    write(tmp_path / "log" / "a.parquet")
    write(tmp_path / "log" / "b.parquet", GOOD.slice(0, 0))
    assert open_log(str(tmp_path / "log"), BOTH).rows == 3
