"""Scratch space, and folders that belong to a living process."""

import errno
import os
import shutil
import socket
import stat
import uuid
from datetime import timedelta
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from logcal.errors import ConfigError, TemporaryError
from pipeline.files import folders, locks
from pipeline.files.blobs import Blob, Receipts, fetch, read_blob, receipts_in, write_blob
from pipeline.files.folders import Folder, check_free, check_writable, hold, make, remove, remove_dead
from pipeline.files.scratch import check_space, scratch_folder


def test_scratch_is_made_where_it_is_wanted_and_removed_after(tmp_path):
    base = tmp_path / "deep" / "scratch"
    with scratch_folder(str(base)) as made:
        path = Path(made)
        assert path.parent == base
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
        (path / "run").write_text("rows")
    assert list(base.iterdir()) == []


def test_without_a_setting_it_is_the_temporary_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with scratch_folder(None) as path:
        assert Path(path).parent == tmp_path


def test_what_dead_runs_of_this_host_left_is_removed(tmp_path):
    mine = tmp_path / f"logcal-scratch-{socket.gethostname()}-dead"
    another_hosts = tmp_path / "logcal-scratch-elsewhere-1"
    another_programs = tmp_path / "something"
    for folder in (mine, another_hosts, another_programs):
        folder.mkdir()
        (folder / "run").write_text("rows")
    with scratch_folder(str(tmp_path)) as living, scratch_folder(str(tmp_path)) as other:
        assert living != other
        assert Path(living).exists()
        assert not mine.exists()
    assert sorted(tmp_path.iterdir()) == sorted([another_hosts, another_programs])


def test_the_folder_of_a_killed_run_is_taken_over_by_one_that_does_the_same(tmp_path):
    with scratch_folder(str(tmp_path), "a") as made, scratch_folder(str(tmp_path), "a") as meanwhile:
        assert meanwhile != made
    path = Path(made)
    for taken, mode in ((True, 0o700), (False, 0o777)):
        path.mkdir(mode=0o700)
        path.chmod(mode)
        for name in ("run-000000-0000", "receipt-sort-000000", "bad-000000.parquet", "receipt-merge-000000"):
            (path / name).write_text("x")
        (path / "kept").mkdir()
        with scratch_folder(str(tmp_path), "a") as again:
            found = sorted(file.name for file in Path(again).iterdir())
            assert found == (
                ["bad-000000.parquet", "receipt-sort-000000", "run-000000-0000"] if taken else []
            )
        remove(path)
    path.mkdir(mode=0o700)
    with scratch_folder(str(tmp_path), "b") as other:
        assert other != made
        assert not path.exists()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("number", "kind", "message"),
    [
        (errno.ENOSPC, TemporaryError, "no space left .*free some"),
        (errno.EDQUOT, TemporaryError, "no space left"),
        (errno.ENOENT, ConfigError, "expected a folder that all workers see and can write to"),
        (errno.EACCES, ConfigError, "expected a folder that all workers see and can write to"),
        (errno.EIO, TemporaryError, "a file operation failed .*nothing was published"),
    ],
)
def test_file_operations_that_fail_in_scratch(tmp_path, number, kind, message):
    with pytest.raises(kind, match=f"scratch: .*{message}"), scratch_folder(str(tmp_path)):
        raise OSError(number, os.strerror(number))
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(OSError, match="not a file's"), scratch_folder(str(tmp_path)):
        raise OSError("not a file's")


def test_too_little_space(tmp_path, monkeypatch):
    free = shutil.disk_usage(tmp_path).free
    check_space(str(tmp_path / "new"), free // 2)
    with pytest.raises(TemporaryError, match=r"scratch: expected about .* GB of free space, found .* choose"):
        check_space(str(tmp_path / "new"), 2 * free)
    # A file system that knows no sizes.
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(0, 0, 0))
    check_free(tmp_path, 10, "scratch")


def test_a_folder_without_permission(tmp_path, monkeypatch):
    assert check_writable(tmp_path / "a" / "b", "x") == tmp_path
    monkeypatch.setattr(folders.os, "access", lambda path, mode: False)
    with pytest.raises(ConfigError, match=f"x: .*found no permission in {tmp_path}"):
        check_writable(tmp_path / "a" / "b", "x")


def test_a_held_folder_is_not_removed_as_dead(tmp_path):
    folder = tmp_path / "held"
    lock = make(folder)
    assert hold(folder) is None
    remove_dead(folder)
    assert folder.exists()
    os.close(lock)
    remove_dead(folder)
    assert list(tmp_path.iterdir()) == []
    remove_dead(folder)


def test_a_folder_that_is_written_to_while_it_is_removed(tmp_path, monkeypatch):
    folder = tmp_path / "folder"
    folder.mkdir()
    real = shutil.rmtree

    def slow(path, **options):
        # A task that outlives its run writes once more.
        with pytest.raises(FileNotFoundError):
            (folder / "late").write_text("x")
        real(path, **options)

    monkeypatch.setattr(shutil, "rmtree", slow)
    remove(folder)
    assert list(tmp_path.iterdir()) == []


# In a store


@pytest.fixture
def url():
    place = f"memory://{uuid.uuid4().hex}"
    yield place
    Folder.at(place).remove("")


def test_scratch_in_a_store_is_removed_after(url):
    with scratch_folder(url) as made, scratch_folder(url) as other:
        assert made.startswith(f"{Folder.at(url)}/logcal-scratch-")
        write_blob(f"{made}/run", [memoryview(b"rows")])
        write_blob(f"{other}/run", [memoryview(b"others")])
        assert read_blob(f"{made}/run") == b"rows"
    assert Folder.at(url).names() == []


def test_what_dead_runs_left_in_a_store_is_removed(url, monkeypatch):
    base = Folder.at(url)
    (base / "logcal-scratch-dead").write("run", b"rows")
    base.write("something", b"else")
    with scratch_folder(url) as living:
        assert base.names() == sorted([living.rpartition("/")[2], "something"])
        with scratch_folder(url):
            assert len(base.names()) == 3
        monkeypatch.setattr(locks, "LEASE", timedelta(0))
        with scratch_folder(url):
            assert len(base.names()) == 2
    assert base.names() == ["something"]


def test_blobs_of_a_store_are_read_by_ranges_and_say_what_is_missing(url):
    path = f"{url}/blob"
    write_blob(path, [memoryview(bytes(range(100))), memoryview(b"")])
    out = bytearray(10)
    with Blob(path) as blob:
        blob.read(20, memoryview(out))
        assert out == bytes(range(20, 30))
        with pytest.raises(TemporaryError, match="expected 105 bytes, found 100: run again"):
            blob.read(95, memoryview(out))
    with Blob(path, {5: b"0123456789"}) as blob:
        blob.read(5, memoryview(out))
        assert out == b"0123456789"
    with (
        Blob(f"{url}/gone") as blob,
        pytest.raises(TemporaryError, match="found that it has gone: run again"),
    ):
        blob.read(0, memoryview(out))
    assert read_blob(f"{url}/gone") is None


class Versioned(MemoryFileSystem):
    """A store whose reads fail, and what versions of fsspec make of that where ranges are asked for.

    given : with the bytes, whatever is asked for (2025.9 and older); raised : always; asked : as it is asked for.
    """

    protocol = "versioned"
    cachable = False
    way = "asked"
    error: Exception | None = None

    def cat_ranges(self, paths, starts, ends, max_gap=None, on_error="return", **kwargs):
        if self.error is None:
            return super().cat_ranges(paths, starts, ends, on_error=on_error)
        if self.way == "raised" or (self.way == "asked" and on_error == "raise"):
            raise self.error
        return [b"0123456789"[: ends[0] - starts[0]], *(self.error for _ in paths[1:])]


@pytest.mark.parametrize("way", ["given", "raised", "asked"])
@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(errno.EIO, "made to fail"), TemporaryError),
        (TimeoutError("made to fail"), TemporaryError),
        (FileNotFoundError(errno.ENOENT, "made to fail"), TemporaryError),
        (PermissionError(errno.EACCES, "made to fail"), ConfigError),
    ],
)
def test_ranges_that_a_store_does_not_give_are_an_error_with_any_version_of_fsspec(
    way, error, expected, monkeypatch
):
    fsspec.register_implementation("versioned", Versioned, clobber=True)
    path = "versioned://a-store/run"
    ranges = [(path, 0, 4), (path, 6, 9)]
    write_blob(path, [memoryview(b"0123456789")])
    assert fetch(ranges) == {path: {0: b"0123", 6: b"678"}}
    monkeypatch.setattr(Versioned, "way", way)
    monkeypatch.setattr(Versioned, "error", error)
    with pytest.raises(expected, match=path):
        fetch(ranges)


def test_a_file_of_a_store_is_copied_though_a_local_file_has_its_path(tmp_path):
    store = Folder.at(f"memory://{tmp_path}/source")
    store.write("part", b"of the store")
    local = Folder.at(tmp_path)
    local.write("source/part", b"of this machine")
    local.link(store, "part", "linked")
    assert local.read("linked") == b"of the store"


def test_receipts_in_a_store_are_believed_if_this_run_has_signed_them(url, tmp_path):
    mine, others = receipts_in(url), receipts_in(url)
    mine.write("receipt-0", b"call", b"content")
    assert mine.read("receipt-0", b"call") == b"content"
    assert others.read("receipt-0", b"call") is None
    # Nor as the result of another call.
    assert mine.read("receipt-0", b"callc") is None
    assert mine.read("receipt-0", b"other") is None
    assert mine.read("receipt-2", b"call") is None
    # A folder on this machine is this user's alone, and the next run takes it over.
    local = receipts_in(str(tmp_path))
    assert local == Receipts(str(tmp_path), b"")
    local.write("receipt-0", b"call", b"content")
    assert receipts_in(str(tmp_path)).read("receipt-0", b"call") == b"content"
