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
    """Write a table, or so many rows of the good one."""
    table = GOOD.slice(0, table) if isinstance(table, int) else table
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
            r"'score' \(\$\[score\]\) is not in any file.* s, label, o",
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


# What lies below a log's folder


@pytest.fixture
def tree(tmp_path):
    write(tmp_path / "log" / "a.parquet")
    write(tmp_path / "elsewhere" / "day=2" / "b.parquet", 2)
    return tmp_path / "log"


def test_links_to_folders_and_files_are_followed(tree):
    (tree / "day=2").symlink_to(tree.parent / "elsewhere" / "day=2")
    write(tree.parent / "c", 1)
    (tree / "c.parquet").symlink_to(tree.parent / "c")
    log = open_log(str(tree), BOTH)
    assert [f.relative for f in log.files] == ["a.parquet", "c.parquet", "day=2/b.parquet"]
    assert log.rows == 6
    assert open_log(f"{tree}/*", BOTH).rows == 6


def test_a_log_that_is_itself_a_link(tree):
    (tree.parent / "link").symlink_to(tree)
    assert open_log(str(tree.parent / "link"), BOTH).rows == 3


def test_two_names_of_one_file_are_two_files(tree):
    (tree / "again.parquet").hardlink_to(tree / "a.parquet")
    assert open_log(str(tree), BOTH).rows == 6


@pytest.mark.parametrize(
    ("link", "target", "message"),
    [
        ("sub/up", "log", "the link sub/up leads back to a folder that it lies in"),
        ("self", "log", "the link self leads back"),
        ("latest", "log/sub", "latest and sub are one folder, whose rows would count twice"),
        ("z.parquet", "log/a.parquet", "z.parquet and a.parquet are one file, whose rows would count twice"),
        ("gone.parquet", "nowhere", "the link gone.parquet leads to .*nowhere, where there is nothing"),
    ],
)
def test_links_that_would_count_rows_twice_or_lose_them(tree, link, target, message):
    write(tree / "sub" / "x.parquet")
    (tree / link).symlink_to(tree.parent / target)
    with pytest.raises(InputRejectedError, match=message):
        open_log(str(tree), BOTH)


def test_links_that_lead_round_between_two_folders(tree):
    (tree / "one").mkdir()
    (tree / "two").mkdir()
    (tree / "one" / "to").symlink_to(tree / "two")
    (tree / "two" / "to").symlink_to(tree / "one")
    with pytest.raises(InputRejectedError, match="are one folder"):
        open_log(str(tree), BOTH)


@pytest.mark.parametrize("remote", [False, True])
def test_what_is_skipped_is_named(tree, remote):
    write(tree / "_temporary" / "x.parquet")
    (tree / "_SUCCESS").write_text("")
    (tree / "notes.txt").write_text("mine")
    path = str(tree)
    if remote:
        memory = fsspec.filesystem("memory")
        memory.put(str(tree), "/skipping", recursive=True)
        path = "memory://skipping"
    skipped = open_log(path, BOTH).skipped
    hidden = "_temporary/x.parquet" if remote else "_temporary/"
    assert sorted(skipped) == sorted(["_SUCCESS", hidden, "notes.txt"])
    # The log's bytes do not depend on what is skipped.
    assert open_log(path, BOTH).rows == 3


@pytest.mark.parametrize("remote", [False, True])
def test_parquet_files_of_other_names_are_refused(tree, remote):
    (tree / "a.parquet").rename(tree / "a.parquet.bak")
    write(tree / "b.parquet")
    write(tree / "000000_0")
    path = str(tree)
    if remote:
        fsspec.filesystem("memory").put(path, "/names", recursive=True)
        path = "memory://names"
    with pytest.raises(InputRejectedError, match=r"Parquet files with others \(000000_0, a.parquet.bak\)"):
        open_log(path, BOTH)
    # A glob says which.
    assert open_log(f"{path}/0*", BOTH).rows == 3


def test_two_columns_of_one_name(tmp_path):
    table = pa.Table.from_arrays(
        [pa.array([0.1, 0.2]), pa.array([0, 1]), pa.array([0.3, 0.4])], ["score", "label", "score"]
    )
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(InputRejectedError, match=r"column 'score' \(\$\[score\]\): expected one column of"):
        open_log(str(tmp_path), BOTH)
