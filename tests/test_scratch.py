"""Scratch space, and folders that belong to a living process."""

import errno
import os
import shutil
import socket
import stat

import pytest

from pipeline.errors import ConfigError, TemporaryError
from pipeline.files import writable
from pipeline.files.locks import hold, make, remove, remove_dead
from pipeline.files.scratch import check_space, scratch_folder
from pipeline.files.writable import check_free, check_writable, size


def test_scratch_is_made_where_it_is_wanted_and_removed_after(tmp_path):
    base = tmp_path / "deep" / "scratch"
    with scratch_folder(str(base)) as path:
        assert path.parent == base
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
        (path / "run").write_text("rows")
    assert list(base.iterdir()) == []


def test_scratch_is_removed_after_an_error_too(tmp_path):
    def sort(path):
        (path / "run").write_text("rows")
        raise KeyError

    with pytest.raises(KeyError), scratch_folder(str(tmp_path)) as path:
        sort(path)
    assert list(tmp_path.iterdir()) == []


def test_without_a_setting_it_is_the_temporary_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with scratch_folder(None) as path:
        assert path.parent == tmp_path


def test_what_dead_runs_of_this_host_left_is_removed(tmp_path):
    mine = tmp_path / f"logcal-scratch-{socket.gethostname()}-dead"
    another_hosts = tmp_path / "logcal-scratch-elsewhere-1"
    another_programs = tmp_path / "something"
    for folder in (mine, another_hosts, another_programs):
        folder.mkdir()
        (folder / "run").write_text("rows")
    with scratch_folder(str(tmp_path)) as living, scratch_folder(str(tmp_path)) as other:
        assert living != other
        assert living.exists()
        assert not mine.exists()
    assert sorted(tmp_path.iterdir()) == sorted([another_hosts, another_programs])


def test_the_folder_of_a_killed_run_is_taken_over_by_one_that_does_the_same(tmp_path):
    with scratch_folder(str(tmp_path), "a") as path, scratch_folder(str(tmp_path), "a") as meanwhile:
        assert meanwhile != path
    for taken, mode in ((True, 0o700), (False, 0o777)):
        path.mkdir(mode=0o700)
        path.chmod(mode)
        for name in ("run-000000-0000", "receipt-sort-000000", "bad-000000.parquet", "receipt-merge-000000"):
            (path / name).write_text("x")
        (path / "kept").mkdir()
        with scratch_folder(str(tmp_path), "a") as again:
            found = sorted(file.name for file in again.iterdir())
            assert found == (
                ["bad-000000.parquet", "receipt-sort-000000", "run-000000-0000"] if taken else []
            )
        remove(path)
    path.mkdir(mode=0o700)
    with scratch_folder(str(tmp_path), "b") as other:
        assert other != path
        assert not path.exists()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("number", "kind", "message"),
    [
        (errno.ENOSPC, TemporaryError, "no space left in .*free some"),
        (errno.EDQUOT, TemporaryError, "no space left"),
        (errno.ENOENT, ConfigError, "expected a folder that all workers see and can write to"),
        (errno.EACCES, ConfigError, "expected a folder that all workers see and can write to"),
        (errno.EIO, TemporaryError, "a file operation failed: .*nothing was published"),
    ],
)
def test_file_operations_that_fail_in_scratch(tmp_path, number, kind, message):
    with pytest.raises(kind, match=f"scratch: {message}"), scratch_folder(str(tmp_path)):
        raise OSError(number, os.strerror(number))
    with pytest.raises(OSError, match="not a file's"), scratch_folder(str(tmp_path)):
        raise OSError("not a file's")


@pytest.mark.parametrize(
    "check", [lambda path: check_space(path, 0), lambda path: scratch_folder(path).__enter__()]
)
def test_places_where_no_scratch_can_be(tmp_path, check):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="scratch: expected a folder that can be written to"):
        check(str(tmp_path / "file" / "deep"))
    with pytest.raises(ConfigError, match="mounted file system, found the URL s3://bucket/x"):
        check("s3://bucket/x")


def test_too_little_space(tmp_path, monkeypatch):
    free = shutil.disk_usage(tmp_path).free
    check_space(str(tmp_path / "new"), free // 2)
    with pytest.raises(
        TemporaryError, match=r"scratch: expected about .* GB of free space, found .* choose a place"
    ):
        check_space(str(tmp_path / "new"), 2 * free)
    # A file system that knows no sizes.
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(0, 0, 0))
    check_free(tmp_path, 10, "scratch")


def test_a_folder_without_permission(tmp_path, monkeypatch):
    assert check_writable(tmp_path / "a" / "b", "x") == tmp_path
    monkeypatch.setattr(writable.os, "access", lambda path, mode: False)
    with pytest.raises(ConfigError, match=f"x: .*found no permission in {tmp_path}"):
        check_writable(tmp_path / "a" / "b", "x")


def test_sizes():
    assert [size(n) for n in (0, 999, 1500, 2_000_000, 3e9)] == [
        "0 bytes",
        "999 bytes",
        "1.5 kB",
        "2.0 MB",
        "3.0 GB",
    ]


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
