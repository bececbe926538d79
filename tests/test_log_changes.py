"""A log that changes while it is read: named and refused, never half read, and never a signal."""

import os
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from common import write_lookup

from calibrators import Isotonic
from logcal.errors import FileChangedError, InputRejectedError
from pipeline.log import log_files
from pipeline.log.logs import Columns, open_log, read_rows
from pipeline.score import scored_file
from pipeline.score.scored_file import Scoring, score_file

pytestmark = pytest.mark.system

BOTH = Columns("score", "label")
ROWS = 400_000


def table(seed=0, rows=ROWS):
    random = np.random.default_rng(seed)
    return pa.table({"score": random.random(rows), "label": random.integers(0, 2, rows)})


@pytest.fixture
def log(tmp_path):
    """A log of one file, opened: larger than what is read at a time."""
    (tmp_path / "log").mkdir()
    pq.write_table(table(), tmp_path / "log" / "a.parquet", compression="none", use_dictionary=False)
    return open_log(str(tmp_path / "log"), BOTH)


def truncate(path):
    os.truncate(path, 1_000_000)


def swap(path):
    pq.write_table(table(1), f"{path}.new", compression="none", use_dictionary=False)
    os.utime(f"{path}.new", (1e9, 1e9))
    Path(f"{path}.new").replace(path)


def write_into(path):
    with Path(path).open("r+b") as file:
        file.seek(2_000_000)
        file.write(bytes(1000))
    os.utime(path, (1e9, 1e9))


def remove(path):
    Path(path).unlink()


def whole(log):
    [file] = log.files
    return file.piece(tuple(range(len(file.row_groups))), 0, file.rows)


@pytest.mark.parametrize("change", [truncate, swap, write_into])
def test_a_change_between_plan_and_read(log, change):
    change(log.files[0].path)
    with pytest.raises(InputRejectedError, match=r"a\.parquet: expected the file as it was.*found it"):
        list(read_rows(log.filesystem, whole(log), BOTH))


@pytest.mark.parametrize("change", [truncate, swap])
def test_a_change_is_seen_where_pyarrow_does_not_know_the_number_of_a_file(log, change, monkeypatch):
    class Former(pa.OSFile):
        def fileno(self):
            raise AttributeError("'pyarrow.lib.OSFile' object has no attribute 'handle'")

    monkeypatch.setattr(log_files.pa, "OSFile", Former)
    assert sum(rows.score.size for rows in read_rows(log.filesystem, whole(log), BOTH)) == ROWS
    change(log.files[0].path)
    with pytest.raises(InputRejectedError, match="found it changed"):
        list(read_rows(log.filesystem, whole(log), BOTH))


def test_a_file_that_is_gone(log):
    remove(log.files[0].path)
    with pytest.raises(InputRejectedError, match=r"a\.parquet: expected the file that was there"):
        list(read_rows(log.filesystem, whole(log), BOTH))


def test_a_fifo_in_the_place_of_a_file_is_not_waited_for(tmp_path):
    path = str(tmp_path / "a.parquet")
    pq.write_table(pa.table({"score": [0.5], "label": [1]}), path)
    opened = open_log(path, Columns("score", "label"))
    state = opened.files[0].state
    Path(path).unlink()
    os.mkfifo(path)
    for door in (log_files.open_parquet, log_files.open_bytes, log_files.open_small):
        with pytest.raises(FileChangedError), door(opened.filesystem, path, state):
            pass


@pytest.mark.parametrize("change", [truncate, write_into])
def test_a_change_during_the_read(log, change):
    rows = read_rows(log.filesystem, whole(log), BOTH)
    next(rows)
    change(log.files[0].path)
    with pytest.raises(
        InputRejectedError, match=r"a\.parquet: expected the file as it was.*found it"
    ) as raised:
        list(rows)
    # It is being written: the same command may succeed later.
    assert raised.value.exit_code == 75


@pytest.mark.parametrize("change", [swap, remove])
def test_another_file_of_its_name_during_the_read_does_no_harm(log, change):
    rows = read_rows(log.filesystem, whole(log), BOTH)
    found = [next(rows)]
    change(log.files[0].path)
    found += list(rows)
    np.testing.assert_array_equal(np.concatenate([r.score for r in found]), table()["score"].to_numpy())


@contextmanager
def changed_at(monkeypatch, when, change):
    """Change the file after its n-th check."""
    checks = []
    check = log_files._check_unchanged

    def noticing(filesystem, path, source, seen, **options):
        check(filesystem, path, source, seen, **options)
        checks.append(path)
        if len(checks) == when:
            change(path)

    monkeypatch.setattr(log_files, "_check_unchanged", noticing)
    yield


@pytest.mark.parametrize("change", [truncate, write_into])
@pytest.mark.parametrize("when", [1, 2])
@pytest.mark.parametrize("most", [0, scored_file.HELD_BYTES])
def test_a_change_while_a_file_is_scored(log, lookup, tmp_path, monkeypatch, change, when, most):
    monkeypatch.setattr(scored_file, "HELD_BYTES", most)
    target = str(tmp_path / "scored.parquet")
    task = (log.filesystem, log.files[0], log.filesystem, target, Scoring("score", lookup))
    with changed_at(monkeypatch, when, change), pytest.raises(InputRejectedError, match=r"found it changed"):
        score_file(*task)
    assert not list(tmp_path.glob("*scored.parquet*"))


@pytest.fixture
def lookup(tmp_path):
    calibrator = Isotonic().fit(np.array([0.1, 0.5, 0.9]), np.array([0, 1, 1]))
    return write_lookup(tmp_path / "lookup.parquet", calibrator.calibration_map_)
