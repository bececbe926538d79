"""What lies below a log's folder: links are followed, nothing vanishes without being named."""

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from logcal.errors import InputRejectedError
from pipeline.log.logs import Columns, open_log

COLUMNS = Columns("score", "label")


def write(path, rows=3):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"score": [0.1] * rows, "label": [0, 1, 1][:rows]}), path)


@pytest.fixture
def folder(tmp_path):
    write(tmp_path / "log" / "a.parquet")
    write(tmp_path / "elsewhere" / "day=2" / "b.parquet", 2)
    return tmp_path / "log"


def test_links_to_folders_and_files_are_followed(folder):
    (folder / "day=2").symlink_to(folder.parent / "elsewhere" / "day=2")
    write(folder.parent / "c", 1)
    (folder / "c.parquet").symlink_to(folder.parent / "c")
    log = open_log(str(folder), COLUMNS)
    assert [f.relative for f in log.files] == ["a.parquet", "c.parquet", "day=2/b.parquet"]
    assert log.rows == 6
    assert open_log(f"{folder}/*", COLUMNS).rows == 6


def test_a_log_that_is_itself_a_link(folder):
    (folder.parent / "link").symlink_to(folder)
    assert open_log(str(folder.parent / "link"), COLUMNS).rows == 3


def test_two_names_of_one_file_are_two_files(folder):
    (folder / "again.parquet").hardlink_to(folder / "a.parquet")
    assert open_log(str(folder), COLUMNS).rows == 6


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
def test_links_that_would_count_rows_twice_or_lose_them(folder, link, target, message):
    write(folder / "sub" / "x.parquet")
    (folder / link).symlink_to(folder.parent / target)
    with pytest.raises(InputRejectedError, match=message):
        open_log(str(folder), COLUMNS)


def test_links_that_lead_round_between_two_folders(folder):
    (folder / "one").mkdir()
    (folder / "two").mkdir()
    (folder / "one" / "to").symlink_to(folder / "two")
    (folder / "two" / "to").symlink_to(folder / "one")
    with pytest.raises(InputRejectedError, match="are one folder"):
        open_log(str(folder), COLUMNS)


@pytest.mark.parametrize("remote", [False, True])
def test_what_is_skipped_is_named(folder, remote):
    write(folder / "_temporary" / "x.parquet")
    (folder / "_SUCCESS").write_text("")
    (folder / "notes.txt").write_text("mine")
    path = str(folder)
    if remote:
        memory = fsspec.filesystem("memory")
        memory.put(str(folder), "/skipping", recursive=True)
        path = "memory://skipping"
    skipped = open_log(path, COLUMNS).skipped
    hidden = "_temporary/x.parquet" if remote else "_temporary/"
    assert sorted(skipped) == sorted(["_SUCCESS", hidden, "notes.txt"])
    # The log's bytes do not depend on what is skipped.
    assert open_log(path, COLUMNS).rows == 3


@pytest.mark.parametrize("remote", [False, True])
def test_parquet_files_of_other_names_are_refused(folder, remote):
    (folder / "a.parquet").rename(folder / "a.parquet.bak")
    write(folder / "b.parquet")
    write(folder / "000000_0")
    path = str(folder)
    if remote:
        fsspec.filesystem("memory").put(path, "/names", recursive=True)
        path = "memory://names"
    with pytest.raises(InputRejectedError, match=r"Parquet files with others \(000000_0, a.parquet.bak\)"):
        open_log(path, COLUMNS)
    # A glob says which.
    assert open_log(f"{path}/0*", COLUMNS).rows == 3


def test_two_columns_of_one_name(tmp_path):
    table = pa.Table.from_arrays(
        [pa.array([0.1, 0.2]), pa.array([0, 1]), pa.array([0.3, 0.4])], ["score", "label", "score"]
    )
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(InputRejectedError, match=r"column 'score' \(log.score\): expected one column of"):
        open_log(str(tmp_path), COLUMNS)
