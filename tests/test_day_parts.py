"""Day tables in parts: whatever came when, and was changed or taken back, a fit gives the bytes of its raw log."""

from __future__ import annotations

import itertools
import os
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.sort import day_tables
from tests.test_windows import Shuffled, content, date_of, lookup, manifest, run, window

NAMES = ["a", "b", None, "c"]
_times = itertools.count(1_700_000_000)


def rows_of(seed: int, rows: int = 120) -> pa.Table:
    rng = np.random.default_rng(seed)
    score = np.where(rng.random(rows) < 0.4, 0.5, rng.integers(0, 400, rows) / 400)
    return pa.table(
        {
            "score": score,
            "label": (rng.random(rows) < score).astype(np.int8),
            "w": rng.choice([0.1, 1.0, 1e-9, 3e11], rows),
            "model": pa.array([NAMES[i] for i in rng.integers(0, 4, rows)]),
        }
    )


def put(log, day: int, name: str, table: pa.Table) -> None:
    """Write a file, later than all before it."""
    path = log / f"date={date_of(day)}" / f"{name}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=50)
    now = next(_times)
    os.utime(path, (now, now))


KINDS = {
    "plain": {"calibrator": {"method": "isotonic"}},
    "weights and segments": {
        "calibrator": {"method": "isotonic"},
        "log": {"weight": "w", "segment": ["model"]},
        "segments": {"min_rows": 20, "min_positives": 2},
    },
}


@pytest.mark.parametrize("kind", KINDS)
def test_files_that_come_change_and_go_in_any_order(tmp_path, kind, monkeypatch):
    monkeypatch.setattr(day_tables, "MOST_PARTS", 3)
    rng = np.random.default_rng(len(kind))
    log = tmp_path / "log"
    for day in range(4):
        put(log, day, "first", rows_of(day))
    for step in range(5):
        day = int(rng.integers(0, 4))
        there = sorted((log / f"date={date_of(day)}").glob("*.parquet"))
        action = rng.choice(["new", "new", "change", "remove"])
        if action == "new" or len(there) < 2:
            put(log, day, f"later-{step}", rows_of(100 + step))
        elif action == "change":
            put(log, day, there[0].stem, rows_of(200 + step))
        else:
            there[int(rng.integers(0, len(there)))].unlink()
        found = run(tmp_path, log, window=window("4d"), executor=Shuffled(), **KINDS[kind])
        shutil.rmtree(tmp_path / "raw", ignore_errors=True)
        assert content(found) == content(run(tmp_path, log, "raw", **KINDS[kind])), (step, action)


def test_only_the_new_files_of_an_open_day_are_sorted(tmp_path):
    log = tmp_path / "log"
    put(log, 0, "a", rows_of(0))
    sorted_rows = []
    for hour in range(8):
        put(log, 1, f"hour-{hour}", rows_of(10 + hour, rows=100))
        found = run(tmp_path, log, window=window("2d"))
        sorted_rows.append(manifest(found)["window"]["rows_sorted"])
    assert sorted_rows == [220, *[100] * 7]
    assert len(manifest(found)["window"]["days"][1]["tables"]) == 8
    assert manifest(found)["window"]["days"][1]["files"] == 8
    assert content(found) == content(run(tmp_path, log, "raw"))


@pytest.mark.parametrize("settings", [{}, {"score_table": {"grid": "1e-2"}}], ids=["runs", "counts"])
def test_a_day_that_is_closed_becomes_one_table_and_is_not_read_again(tmp_path, settings):
    log = tmp_path / "log"
    for hour in range(3):
        put(log, 0, f"hour-{hour}", rows_of(hour))
        run(tmp_path, log, window=window("3d"), **settings)
    for day in (1, 2):
        put(log, day, "a", rows_of(20 + day))
        found = run(tmp_path, log, window=window("3d"), **settings)
    assert [len(day["tables"]) for day in manifest(found)["window"]["days"]] == [1, 1, 1]
    assert manifest(found)["window"]["rows_sorted"] == 120
    days = tmp_path / "store" / "ads" / "days"
    assert len(list(days.glob(f"{date_of(0)}-*"))) == 1
    assert content(found) == content(run(tmp_path, log, "raw", **settings))
    # A late file is one part more, and merged at once.
    put(log, 0, "late", rows_of(99))
    late = run(tmp_path, log, window=window("3d"), **settings)
    assert manifest(late)["window"]["rows_sorted"] == 120
    assert [len(day["tables"]) for day in manifest(late)["window"]["days"]] == [1, 1, 1]


def test_files_of_several_days_give_each_day_its_rows_once(tmp_path):
    """A file that a shorter window took some days of is read again for the others alone."""
    log = tmp_path / "log"
    log.mkdir()
    for i in range(3):
        table = pa.concat_tables([rows_of(10 * i + day, rows=40) for day in range(4)])
        dates = pa.array(np.repeat([int(date_of(day).replace("-", "")) for day in range(4)], 40))
        table = table.append_column("date", dates).take(np.random.default_rng(i).permutation(160))
        pq.write_table(table, log / f"part-{i}.parquet")
        for last in ("2d", "4d"):
            found = run(tmp_path, log, window=window(last))
        assert lookup(found)
        assert content(found) == content(run(tmp_path, log, f"raw-{i}"))
