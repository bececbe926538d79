"""Windows: a fit from day tables equals a fit of the window's raw log, byte for byte, whatever was kept before."""

from __future__ import annotations

import datetime as dt
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from common import TEXT_VIEW, prepared, run_job
from hypothesis import given
from hypothesis import strategies as st

from jobs import fit
from logcal.errors import ConfigError, InputRejectedError, NothingToDoError
from pipeline.days import day_tables
from pipeline.days.day_profiles import factor
from pipeline.execution import InlineExecutor
from pipeline.files import clock
from pipeline.table.store import TableStore
from tests.sorted_logs import Shuffled
from tests.window_logs import FIRST, content, date_of, manifest, rows_of, run, window, write_day


def lookup(summary) -> bytes:
    return Path(summary["lookup_path"]).read_bytes()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    for day in range(5):
        write_day(tmp_path / "log", day, rows_of(day, 400))
    return tmp_path / "log"


def raw_days(root: Path, log: Path, first: int, last: int) -> list[str]:
    return [str(log / f"date={date_of(day)}") for day in range(first, last + 1)]


def test_only_new_and_changed_days_are_sorted(tmp_path, log):
    weighted = {"weight": "w"}
    assert run(tmp_path, log, window=window(), log=weighted)["window"]["days_sorted"] == 3
    write_day(log, 5, rows_of(5, 400))
    moved = run(tmp_path, log, window=window(), log=weighted)
    assert (moved["window"]["days_sorted"], moved["window"]["days_reused"]) == (1, 2)
    write_day(log, 4, rows_of(104, 90), "late")
    late = run(tmp_path, log, window=window(), log=weighted)
    assert [day["day"] for day in manifest(late)["window"]["days"] if day["sorted_now"]] == [date_of(4)]
    write_day(log, 3, rows_of(103, 50))
    changed = run(tmp_path, log, window=window(), log=weighted)
    assert [day["day"] for day in manifest(changed)["window"]["days"] if day["sorted_now"]] == [date_of(3)]
    (log / f"date={date_of(4)}" / "late.parquet").unlink()
    less = run(tmp_path, log, window=window(), log=weighted, executor=Shuffled())
    # The day's other files had a table of their own.
    assert [day["day"] for day in manifest(less)["window"]["days"] if day["sorted_now"]] == []
    raw = {"log": {"weight": "w", "path": raw_days(tmp_path, log, 3, 5)}}
    assert content(less) == content(run(tmp_path, log, "raw", **raw))
    kept = sorted(path.name[:10] for path in (tmp_path / "store" / "ads" / "days").iterdir())
    assert kept == [date_of(3), date_of(4), date_of(5)]


def test_a_change_outside_of_the_window_is_nothing_to_do(tmp_path, log):
    run(tmp_path, log, window=window())
    write_day(log, 0, rows_of(77, 400))
    with pytest.raises(NothingToDoError):
        run(tmp_path, log, window=window())


def test_files_of_days_outside_of_a_window_are_not_opened(tmp_path, log):
    first = content(run(tmp_path, log, window=window()))
    for day in (0, 1):
        (log / f"date={date_of(day)}" / "damaged.parquet").write_text("this is no Parquet file")
    assert content(run(tmp_path, log, "again", window=window())) == first
    assert content(run(tmp_path, log, "until", window=window(until=date_of(4)))) == first
    # Days without rows are none, and what a window of the days before them has is looked for again.
    for day in (5, 6, 7):
        write_day(log, day, rows_of(day, 0))
    with pytest.raises(InputRejectedError, match=r"damaged\.parquet"):
        run(tmp_path, log, "empty", window=window())
    for day in (0, 1):
        (log / f"date={date_of(day)}" / "damaged.parquet").unlink()
    assert content(run(tmp_path, log, "empty", window=window())) == first


@pytest.mark.parametrize("day", [2, 3, 4])
def test_any_day_of_a_window_is_set_aside_if_a_file_is_damaged(tmp_path, log, day):
    damaged = log / f"date={date_of(day)}" / "damaged.parquet"
    damaged.write_text("this is no Parquet file")
    os.utime(damaged, (1.0, 1.0))
    found = manifest(run(tmp_path, log, window=window(bad_days="set_aside")))["window"]
    assert [own["day"] for own in found["days_damaged"]] == [date_of(day)]
    files = {own["day"]: own["files"] for own in found["days"]}
    assert files == {date_of(number): int(number != day) for number in (2, 3, 4)}


def test_the_manifest_names_keys_where_it_tells_why_a_day_was_left_out(tmp_path, log):
    rows = rows_of(3, 400).to_pydict()
    write_day(log, 3, pa.table({**rows, "label": [2] * 400}))
    found = manifest(run(tmp_path, log, window=window(bad_days="set_aside")))["window"]
    [damaged] = found["days_damaged"]
    assert damaged["day"] == date_of(3)
    assert "(log.label)" in damaged["reason"]
    assert "$" not in damaged["reason"]


def test_a_day_with_few_labels_is_set_aside_until_they_have_come(tmp_path):
    for day in range(8):
        rows = rows_of(day, 400).to_pydict()
        if day == 7:
            rows["label"] = [None if i % 3 else label for i, label in enumerate(rows["label"])]
        write_day(tmp_path / "log", day, pa.table(rows))
    found = run(tmp_path, tmp_path / "log", window=window(last="8d", suspect_days="set_aside"))
    [aside] = manifest(found)["window"]["days_set_aside"]
    few = "34% of the rows have a label, on other days about 100%: if labels come later, set log.labels.wait"
    assert (aside["day"], few in aside["reasons"]) == (date_of(7), True)


def test_the_manifest_accounts_for_days_rows_and_files(tmp_path, log):
    shutil.rmtree(log / f"date={date_of(2)}")
    write_day(log, 3, rows_of(33, 10), "late")
    found = manifest(run(tmp_path, log, window=window("4d")))
    days = found["window"]["days"]
    assert [(day["day"], day["rows_read"], day["files"]) for day in days] == [
        (date_of(1), 400, 1),
        (date_of(3), 410, 2),
        (date_of(4), 400, 1),
    ]
    assert found["window"]["days_missing"] == [date_of(2)]
    assert len(found["log"]["files"]) == 4
    assert found["data"]["rows_read"] == found["window"]["rows_sorted"] == 1210


def test_other_settings_make_other_day_tables_and_another_method_does_not(tmp_path, log):
    run(tmp_path, log, window=window())
    assert run(tmp_path, log, window=window(), calibrator={"method": "platt"})["window"]["days_sorted"] == 0
    other = run(tmp_path, log, window=window(), log={"score_transform": "sigmoid"})
    assert other["window"]["days_sorted"] == 3


def test_a_damaged_day_table_is_made_anew(tmp_path, log):
    run(tmp_path, log, window=window())
    days = sorted((tmp_path / "store" / "ads" / "days").iterdir())
    run_file = next(days[0].glob("run-*"))
    run_file.write_bytes(run_file.read_bytes()[:-8])
    (days[1] / "day.json").unlink()
    again = run(tmp_path, log, window=window(), calibrator={"method": "platt"})
    assert again["window"]["days_sorted"] == 2
    raw = {"log": {"path": raw_days(tmp_path, log, 2, 4)}, "calibrator": {"method": "platt"}}
    assert content(again) == content(run(tmp_path, log, "raw", **raw))


def test_what_fails_leaves_whole_days_and_no_half_ones(tmp_path, log, monkeypatch):
    finish, finished = day_tables.finish_day, []

    def breaks(*task):
        if finished:
            raise KeyboardInterrupt
        finished.append(finish(*task))
        return finished[-1]

    with monkeypatch.context() as patch:
        patch.setattr(day_tables, "finish_day", breaks)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, log, window=window())
    assert finished
    days = tmp_path / "store" / "ads" / "days"
    assert len(list(days.iterdir())) == 3
    (days / ".staging-left").mkdir()
    assert run(tmp_path, log, window=window())["window"]["days_sorted"] == 2
    assert len(list(days.iterdir())) == len(list(days.glob("*/day.json"))) == 3


def test_nothing_is_tidied_while_another_fit_uses_the_folder(tmp_path, log):
    run(tmp_path, log, window=window())
    write_day(log, 5, rows_of(5, 400))
    days = fit.DayTables(TableStore(str(tmp_path / "store"), "ads"), {})
    with days.in_use():
        run(tmp_path, log, window=window())
    assert len(days.folder.names()) == 4
    write_day(log, 6, rows_of(6, 400))
    run(tmp_path, log, window=window())
    assert len(days.folder.names()) == 3


def test_bad_rows_of_kept_days_are_counted_and_written_again(tmp_path, log):
    table = rows_of(3, 400)
    bad = pa.array([None, float("nan"), *table["score"].to_pylist()[2:]], pa.float64())
    write_day(log, 3, table.set_column(0, "score", bad))
    rules = {"on_bad_rows": "quarantine", "quarantine_path": str(tmp_path / "bad")}
    for method, sorted_days in (("isotonic", 3), ("platt", 0)):
        found = run(tmp_path, log, window=window(), log=rules, calibrator={"method": method})
        assert found["window"]["days_sorted"] == sorted_days
        assert found["quarantined_by_reason"] == {"score_null": 1, "score_nan": 1}
        kept = pq.read_table(tmp_path / "bad" / found["run_id"])
        assert sorted(kept["reason"].to_pylist()) == ["score_nan", "score_null"]
    with pytest.raises(InputRejectedError, match="2 of 1,200 rows cannot be used"):
        run(tmp_path, log, window=window())


@pytest.mark.parametrize(
    ("settings", "error", "text"),
    [
        ({"window": {"column": "day"}}, InputRejectedError, "expected a column 'day' or folders named day="),
        ({"window": {"column": "score"}}, InputRejectedError, "found double"),
        (
            {"window": window(until="2025-06-30")},
            InputRejectedError,
            r"2026-01-01 to 2026-01-05; set \$\[until\]",
        ),
    ],
)
def test_errors_say_what_to_do(tmp_path, log, settings, error, text):
    with pytest.raises(error, match=text):
        run(tmp_path, log, **settings)


def test_a_day_without_rows_between_others_is_to_be_delivered_or_excluded(tmp_path, log):
    folder = log / f"date={date_of(2)}"
    for file in folder.iterdir():
        pq.write_table(pq.read_table(file).slice(0, 0), file)
    with pytest.raises(InputRejectedError, match=r"found none: .*; deliver them, or leave the days out with"):
        run(tmp_path, log, window=window(last="1d", until=date_of(2)))


def test_a_folder_that_is_no_date_is_named(tmp_path, log):
    (log / f"date={date_of(1)}").rename(log / "date=__HIVE_DEFAULT_PARTITION__")
    with pytest.raises(InputRejectedError, match=r"leave it out of \$\[paths\]"):
        run(tmp_path, log, window=window())


def column_log(folder: Path, kind: str, seed: int = 0, nulls: bool = False) -> pa.Table:
    """A log of six days whose files and row groups cut through days."""
    tables = [rows_of(day, 300 + 10 * day) for day in range(6)]
    table = pa.concat_tables(tables)
    days = np.repeat(np.arange(6), [t.num_rows for t in tables])
    rng = np.random.default_rng(seed)
    near = np.clip(days + rng.integers(-1, 2, days.size), 0, 5)
    seconds = rng.integers(0, 86_400, days.size)
    mask = rng.random(days.size) < 0.02 if nulls else None
    table = table.append_column("date", dates(near, seconds, kind, mask))
    table = table.append_column("true_day", pa.array(near))
    folder.mkdir(parents=True)
    for i in range(4):
        start, stop = table.num_rows * i // 4, table.num_rows * (i + 1) // 4
        pq.write_table(table.slice(start, stop - start), folder / f"part-{i}.parquet", row_group_size=170)
    return table


def dates(day, second, kind: str, mask=None) -> pa.Array:
    second = np.datetime64(FIRST, "s") + 86_400 * np.asarray(day) + second
    moments = pa.array(second, pa.timestamp("s"), mask=mask)
    if kind in ("date32", "date64"):
        return moments.cast(pa.date32()).cast(kind)
    if kind == "text":
        return moments.cast(pa.string())
    if kind == "dictionary":
        return moments.cast(pa.date32()).cast(pa.string()).dictionary_encode()
    if kind == "int":
        return pc.strftime(moments, "%Y%m%d").cast(pa.int32())
    unit, _, zone = kind.partition("/")
    return moments.cast(pa.timestamp(unit, zone or None))


@pytest.mark.parametrize(
    "kind", ["s", "ms", "us", "ns", "us/Asia/Tokyo", "date32", "date64", "int", "text", "dictionary"]
)
def test_rows_are_divided_by_a_columns_days(tmp_path, kind):
    table = column_log(tmp_path / "log", kind)
    day = table["true_day"].to_numpy()
    inside = table.filter(pa.array((day >= 2) & (day <= 4)))
    (tmp_path / "inside").mkdir()
    pq.write_table(inside, tmp_path / "inside" / "rows.parquet")
    weighted = {"weight": "w"}
    found = run(
        tmp_path, tmp_path / "log", log=weighted, window=window(until=date_of(4)), executor=Shuffled()
    )
    assert lookup(found) == lookup(run(tmp_path, tmp_path / "inside", "raw", log=weighted))
    assert found["window"]["days_sorted"] == 3
    latest = run(tmp_path, tmp_path / "log", log=weighted, window=window())
    assert latest["window"]["last"] == date_of(5)
    assert (latest["window"]["days_sorted"], latest["window"]["days_reused"]) == (1, 2)


def test_a_new_file_changes_the_days_that_it_holds_and_no_others(tmp_path):
    column_log(tmp_path / "log", "us")
    run(tmp_path, tmp_path / "log", window=window("6d"))
    late = rows_of(9, 40).append_column("date", dates([4] * 20 + [5] * 20, [7] * 40, "us"))
    late = late.append_column("true_day", pa.array([4] * 20 + [5] * 20))
    pq.write_table(late, tmp_path / "log" / "late.parquet")
    found = run(tmp_path, tmp_path / "log", window=window("6d"), executor=Shuffled())
    assert [d["day"] for d in manifest(found)["window"]["days"] if d["sorted_now"]] == [
        date_of(4),
        date_of(5),
    ]
    assert content(found) == content(run(tmp_path, tmp_path / "log", "raw"))


@pytest.mark.parametrize("kind", ["us", "date32", "int", "text"])
def test_rows_without_a_date_are_bad_rows(tmp_path, kind):
    column_log(tmp_path / "log", kind, nulls=True)
    table = pq.read_table(tmp_path / "log")
    nulls = table["date"].null_count
    rules = {"on_bad_rows": "quarantine", "max_bad_fraction": 0.5, "quarantine_path": str(tmp_path / "bad")}
    found = run(tmp_path, tmp_path / "log", log=rules, window=window("6d"))
    assert found["quarantined_by_reason"] == {"date_null": nulls}
    assert found["rows_read"] == table.num_rows == found["rows_used"] + nulls
    kept = pq.read_table(tmp_path / "bad" / found["run_id"])
    for file, row, score in zip(*(kept[name].to_pylist() for name in ("file", "row", "score")), strict=True):
        assert pq.read_table(file)["score"][row].as_py() == score
    with pytest.raises(InputRejectedError, match="date_null"):
        run(tmp_path, tmp_path / "log", window=window("6d"))


@pytest.mark.parametrize(
    ("dated", "text"),
    [
        (pa.array(["2026-01-01", "soon"]), "found 2026-01-01 to soon"),
        (pa.array([20260101, 17]), "found 17 to 20260101"),
        (pa.nulls(2, pa.date32()), "found nulls only"),
    ],
)
def test_a_column_that_holds_no_dates_is_named(tmp_path, dated, text):
    (tmp_path / "log").mkdir()
    table = pa.table({"score": [0.1, 0.2], "label": [0, 1], "date": dated})
    pq.write_table(table, tmp_path / "log" / "part.parquet")
    with pytest.raises(InputRejectedError, match=text):
        run(tmp_path, tmp_path / "log", window=window())


@pytest.mark.parametrize("options", [{"write_statistics": False}, {"use_deprecated_int96_timestamps": True}])
def test_the_dates_of_a_file_without_statistics_are_read(tmp_path, options):
    column_log(tmp_path / "log", "us", nulls=True)
    rules = {"on_bad_rows": "quarantine", "max_bad_fraction": 0.5}
    expected = run(tmp_path, tmp_path / "log", "first", log=rules, window=window())
    path = tmp_path / "log" / "part-1.parquet"
    pq.write_table(pq.read_table(path), path, row_group_size=170, **options)
    found = run(tmp_path, tmp_path / "log", "second", log=rules, window=window())
    assert content(found) == content(expected)
    assert found["quarantined_by_reason"] == expected["quarantined_by_reason"]
    pq.write_table(
        pa.table({**rows_of(1, 2).to_pydict(), "date": ["soon", "late"]}), path, write_statistics=False
    )
    with pytest.raises(InputRejectedError, match=r"part-1\.parquet: expected dates, .* found other values"):
        run(tmp_path, tmp_path / "log", window=window())


def test_days_of_files_of_several_types_are_merged(tmp_path):
    """Dates and segments are spelled otherwise in each file; the days' tables are one log's."""
    column_log(tmp_path / "log", "us")
    segments = {"segment": ["model", "k"]}
    kinds = ["us", "date32", "text", "ns/UTC"]
    texts = [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string()), TEXT_VIEW]
    wholes = [pa.int64(), pa.int8(), pa.decimal128(19, 0), pa.uint32()]
    for i in range(4):
        path = tmp_path / "log" / f"part-{i}.parquet"
        table = pq.read_table(path)
        table = table.append_column("k", pa.array(np.arange(table.num_rows) % 3))
        pq.write_table(table, path, row_group_size=170)
    expected = run(tmp_path, tmp_path / "log", "first", log=segments, window=window())
    for i in range(4):
        path = tmp_path / "log" / f"part-{i}.parquet"
        table = pq.read_table(path)
        dates_of = {"date32": pa.date32(), "text": pa.string(), "ns/UTC": pa.timestamp("ns", "UTC")}
        for name, kind in (("date", dates_of.get(kinds[i])), ("model", texts[i]), ("k", wholes[i])):
            if kind is not None:
                column = table[name].combine_chunks()
                column = column.dictionary_encode() if pa.types.is_dictionary(kind) else column.cast(kind)
                table = table.set_column(table.column_names.index(name), name, column)
        pq.write_table(table, path, row_group_size=170)
    for _ in range(2):  # anew, and from the days' tables
        found = run(tmp_path, tmp_path / "log", "second", log=segments, window=window())
        assert content(found) == content(expected)
        late = pa.table({**rows_of(3, 50).to_pydict(), "k": [1] * 50, "date": [FIRST + dt.timedelta(5)] * 50})
        pq.write_table(late, tmp_path / "log" / "late.parquet")
        expected = run(tmp_path, tmp_path / "log", "third", log=segments, window=window())


def test_dates_that_are_none_between_dates_are_bad_rows(tmp_path):
    (tmp_path / "log").mkdir()
    dated = pa.array([20260131, 20260232, 20260301, 20260228] * 30)
    table = rows_of(1, 120).append_column("date", dated)
    pq.write_table(table, tmp_path / "log" / "part.parquet")
    rules = {"on_bad_rows": "quarantine", "max_bad_fraction": 0.5}
    found = run(tmp_path, tmp_path / "log", log=rules, window=window("31d"))
    assert found["quarantined_by_reason"] == {"date_invalid": 30}


@pytest.mark.parametrize("divided", [False, True])
def test_weights_out_of_range_are_bad_rows_however_days_lie_in_files(tmp_path, divided):
    """As in a log without a window: they are neither used nor waiting for their label."""
    (tmp_path / "log").mkdir()
    table = rows_of(1, 120)
    weight = np.ones(120)
    weight[[3, 50]], weight[[7, 90, 110]] = 1e101, 1e-101
    table = table.set_column(table.column_names.index("w"), "w", pa.array(weight))
    days = pa.array([20260131, 20260201] * 60 if divided else [20260131] * 120)
    pq.write_table(table.append_column("date", days), tmp_path / "log" / "part.parquet")
    rules = {"weight": "w", "on_bad_rows": "quarantine", "max_bad_fraction": 0.5}
    found = run(tmp_path, tmp_path / "log", log=rules, window=window("2d"))
    assert found["quarantined_by_reason"] == {"weight_out_of_range": 5}
    assert found["rows_used"] == 115
    assert "rows_waiting" not in found
    with pytest.raises(InputRejectedError, match="weight_out_of_range"):
        run(tmp_path, tmp_path / "log", log={"weight": "w"}, window=window("2d"))


def test_two_fits_at_once_on_one_store(tmp_path, log):
    sections = [{"calibrator": {"method": method}, "window": window()} for method in ("isotonic", "platt")]
    with ThreadPoolExecutor(2) as pool:
        # Both have looked before either has made a day.
        barrier = threading.Barrier(2)

        class Together(InlineExecutor):
            def run(self, stage, function, tasks):
                if stage == "days":
                    barrier.wait(240)
                return super().run(stage, function, tasks)

        found = list(pool.map(lambda one: run(tmp_path, log, executor=Together(), **one), sections))
    raw = {"log": {"path": raw_days(tmp_path, log, 2, 4)}}
    for summary, one in zip(found, sections, strict=True):
        assert content(summary) == content(run(tmp_path, log, "raw", **raw, calibrator=one["calibrator"]))
    kept = sorted(path.name[:10] for path in (tmp_path / "store" / "ads" / "days").iterdir())
    assert kept == [date_of(2), date_of(3), date_of(4)]


def test_a_dry_run_says_how_many_days_would_be_sorted(tmp_path, log):
    run(tmp_path, log, window=window(until=date_of(3)))
    store = {"path": tmp_path / "store", "table": "ads"}
    planned = prepared("fit", log={"path": log}, store=store, window=window())
    plan = planned.plan
    assert plan.facts["window"]["days_to_sort"] == 1
    assert "keep 1 of 3 days sorted in the store" in plan.stages[0]
    layers = {layer.stage: len(layer.tasks) for layer in planned.graph().layers.values()}
    assert layers["days"] == 1
    assert {"sort", "merge", "combine"} <= layers.keys()


# With segments


def with_segments(table: pa.Table, seed: int, names: list[str | None]) -> pa.Table:
    rng = np.random.default_rng(seed)
    model = pa.array([names[i] for i in rng.integers(0, len(names), table.num_rows)], pa.string())
    site = pa.array(rng.integers(-1, 2, table.num_rows), mask=rng.random(table.num_rows) < 0.1)
    return table.set_column(3, "model", model).append_column("site", site)


# In other jobs


def evaluated(root: Path, path, name: str, *, log=None, **sections):
    own = {"store": {"path": root / "store", "table": "ads"}, "report": {"path": root / name}}
    log = {"path": path, **(log or {})}
    return run_job("evaluate", log=log, scratch=root, executor=Shuffled(), **own, **sections)


@pytest.mark.parametrize(("segment", "method"), [([], "histogram"), (["model"], "isotonic")])
def test_a_window_is_measured_as_its_raw_log(tmp_path, segment, method):
    log = tmp_path / "log"
    for day in range(4):
        write_day(log, day, with_segments(rows_of(day, 400), day, ["a", None, "b"][: 1 + day % 3]))
    mixed = pa.concat_tables(with_segments(rows_of(day, 100), day, ["b"]) for day in (1, 3))
    dates = pa.array(np.repeat([date_of(1), date_of(3)], 100))
    pq.write_table(mixed.append_column("date", dates), tmp_path / "log" / "mixed.parquet", row_group_size=60)
    run(tmp_path, log, log={"segment": segment}, calibrator={"method": method})
    found = evaluated(tmp_path, log, "window", window=window("2d"))
    assert found["window"] == {"column": "date", "first": date_of(2), "last": date_of(3)}
    assert found["rows_read"] == 900
    own = mixed.append_column("date", dates).filter(pc.equal(dates, date_of(3)))
    (tmp_path / "own").mkdir()
    pq.write_table(own, tmp_path / "own" / "own.parquet")
    raw = evaluated(tmp_path, [*raw_days(tmp_path, log, 2, 3), str(tmp_path / "own")], "raw")
    assert found["after"] == raw["after"]
    assert found["before"] == raw["before"]
    if segment:
        assert (tmp_path / "window" / "segments.parquet").read_bytes() == (
            tmp_path / "raw" / "segments.parquet"
        ).read_bytes()


def test_bad_rows_of_a_measured_window_are_kept(tmp_path, log):
    run(tmp_path, log)
    for day in (1, 4):
        table = rows_of(day, 400)
        bad = pa.array([None, *table["score"].to_pylist()[1:]], pa.float64())
        write_day(log, day, table.set_column(0, "score", bad))
    rules = {"on_bad_rows": "quarantine", "quarantine_path": str(tmp_path / "bad")}
    found = evaluated(tmp_path, log, "window", window=window(), log=rules)
    assert found["quarantined_by_reason"] == {"score_null": 1}
    assert (
        pq.read_table(tmp_path / "bad" / found["run_id"])["file"]
        .to_pylist()[0]
        .endswith(f"date={date_of(4)}/part-0.parquet")
    )


def test_files_that_may_hold_rows_of_a_window_are_scored_whole(tmp_path, log):
    run(tmp_path, log)
    dates = pa.array(np.repeat([date_of(0), date_of(3)], 200))
    pq.write_table(rows_of(7, 400).append_column("date", dates), log / "mixed.parquet")
    own = {"store": {"path": tmp_path / "store", "table": "ads"}, "output": {"path": tmp_path / "scored"}}
    found = run_job("score", log={"path": log}, window=window("2d"), **own)
    assert found["window"] == {"column": "date", "first": date_of(3), "last": date_of(4)}
    names = [str(path.relative_to(tmp_path / "scored")) for path in (tmp_path / "scored").rglob("*.parquet")]
    days = [f"date={date_of(day)}/part-0.parquet" for day in (3, 4)]
    assert sorted(names) == sorted([*days, "mixed.parquet"])
    assert found["rows"] == 1200


def test_kept_tables_have_no_days(tmp_path, log):
    kept = Path(run(tmp_path, log, score_table={"keep": True})["lookup_path"]).parent / "score_table"
    with pytest.raises(ConfigError, match=r"^window.column: expected null"):
        evaluated(tmp_path, kept, "kept", window=window())


# Day tables in parts


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
        write_day(log, day, rows_of(day), "first")
    for step in range(5):
        day = int(rng.integers(0, 4))
        there = sorted((log / f"date={date_of(day)}").glob("*.parquet"))
        action = rng.choice(["new", "new", "change", "remove"])
        if action == "new" or len(there) < 2:
            write_day(log, day, rows_of(100 + step), f"later-{step}")
        elif action == "change":
            write_day(log, day, rows_of(200 + step), there[0].stem)
        else:
            there[int(rng.integers(0, len(there)))].unlink()
        found = run(tmp_path, log, window=window("4d"), executor=Shuffled(), **KINDS[kind])
        shutil.rmtree(tmp_path / "raw", ignore_errors=True)
        assert content(found) == content(run(tmp_path, log, "raw", **KINDS[kind])), (step, action)


@pytest.mark.parametrize("settings", [{}, {"score_table": {"grid": "1e-2"}}], ids=["runs", "counts"])
def test_of_an_open_day_only_new_files_are_sorted_and_a_closed_one_becomes_one_table(tmp_path, settings):
    log = tmp_path / "log"

    def fitted():
        found = run(tmp_path, log, window=window("3d"), **settings)
        own = manifest(found)["window"]
        return found, own["rows_sorted"], [len(day["tables"]) for day in own["days"]]

    for hour in range(6):
        write_day(log, 0, rows_of(10 + hour), f"hour-{hour}")
        assert fitted()[1:] == (120, [hour + 1])
    for day in (1, 2):
        write_day(log, day, rows_of(20 + day), "a")
        found, *said = fitted()
    assert said == [120, [1, 1, 1]]
    assert len(list((tmp_path / "store" / "ads" / "days").glob(f"{date_of(0)}-*"))) == 1
    # A late file is one part more, and merged at once.
    write_day(log, 0, rows_of(99), "late")
    found, *said = fitted()
    assert said == [120, [1, 1, 1]]
    assert manifest(found)["window"]["days"][0]["files"] == 7
    assert content(found) == content(run(tmp_path, log, "raw", **settings))


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


# Decay


SOME_SEGMENTS = {"log": {"segment": ["model"]}, "segments": {"min_rows": 20, "min_positives": 2}}
DECAYED = {
    "isotonic": {},
    "weights": {"log": {"weight": "w"}},
    "bbq": {"calibrator": {"method": "bbq"}},
    "grid": {"score_table": {"grid": "1e-2"}},
    "segments": SOME_SEGMENTS,
    "platt and segments": {**SOME_SEGMENTS, "calibrator": {"method": "platt"}},
}


@pytest.mark.parametrize("kind", DECAYED)
def test_equals_a_weighted_fit(tmp_path, kind):
    sections = DECAYED[kind]
    rng = np.random.default_rng(0)
    for day in range(5):
        weights = rng.integers(1, 1000, 300) / 8 if kind == "weights" else np.ones(300)
        for name, unit in (("log", 1), ("raw-log", factor(4 - day, 3))):
            table = rows_of(day, rows=300).set_column(2, "w", pa.array(weights * unit))
            write_day(tmp_path / name, day, table, "a")
    found = run(tmp_path, tmp_path / "log", window=window("5d", half_life="3d"), **sections)
    weighted = {**sections, "log": {**sections.get("log", {}), "weight": "w"}}
    assert content(found) == content(run(tmp_path, tmp_path / "raw-log", "raw", **weighted))
    assert manifest(found)["window"]["half_life"] == 3
    # It was kept as it is: without a half-life nothing is sorted again.
    plain = run(tmp_path, tmp_path / "log", window=window("5d"), **sections)
    assert plain["window"]["days_sorted"] == 0
    assert content(plain) == content(run(tmp_path, tmp_path / "log", "plain", **sections))


@given(st.integers(0, 300), st.integers(1, 400))
def test_factors_have_sixteen_bits_and_are_next_to_exact(age, half_life):
    found = factor(age, half_life)
    assert 0 < found <= 1
    assert Fraction(found).numerator < 2**16 + 1
    assert found == pytest.approx(2.0 ** (-age / half_life), rel=2.0**-16)
    assert factor(age + 1, half_life) <= found


def test_it_only_goes_with_a_window(tmp_path):
    with pytest.raises(ConfigError, match="only goes with"):
        run(tmp_path, tmp_path, window={"half_life": "7d"})


def test_a_half_life_that_makes_rows_vanish_is_refused(tmp_path):
    write_day(tmp_path / "log", 0, rows_of(0), "a")
    with pytest.raises(ConfigError, match="at least a 300th"):
        run(tmp_path, tmp_path / "log", window=window("301d", half_life="1d"))


# Days that cannot be


def impossible(place, days, rows=500, name="log/bad.parquet"):
    """Write a file whose rows have these days in turn."""
    score = np.random.default_rng(len(days)).random(rows * len(days))
    columns = {"score": score, "label": score > 0.5, "day": pa.array(days * rows, pa.date32())}
    path = place.root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, row_group_size=rows)


GOOD = [dt.date(2026, 3, day) for day in range(1, 6)]
QUARANTINE = ("log.on_bad_rows=quarantine", "log.max_bad_fraction=0.5")


@pytest.mark.parametrize("day", [dt.date(9999, 12, 31), dt.date(1970, 1, 1), dt.date(2026, 3, 8)])
@pytest.mark.parametrize("alone", [True, False])
def test_a_day_that_cannot_be_is_a_bad_row_and_moves_no_window(place, call, day, alone, monkeypatch):
    monkeypatch.setattr(clock, "now", lambda: dt.datetime(2026, 3, 6, tzinfo=dt.UTC))
    impossible(place, GOOD, name="log/good.parquet")
    measured = ("window.column=day", "window.last=5d", "--json")
    dated = (*measured, "window.suspect_days=use")
    only = call("fit", *dated, "store.table=good").expect(0).json
    impossible(place, [day] if alone else [day, GOOD[3]])
    before = place.tree()
    call("fit", *dated).expect(3, "- day_out_of_range: 500 rows, such as day=", str(day))
    assert place.tree() == before
    call("evaluate", *measured, "store.table=good").expect(3, "- day_out_of_range: 500 rows, such as day=")
    found = call("fit", *dated, *QUARANTINE).expect(0).json
    window = found["window"]
    assert (window["first"], window["last"]) == (only["window"]["first"], only["window"]["last"])
    assert found["quarantined_by_reason"] == {"day_out_of_range": 500}
    assert found["rows_used"] == only["rows_used"] + (0 if alone else 500)
    assert found["rows_read"] == found["rows_used"] + 500
    call("fit", *dated, *QUARANTINE).expect(99)
    if day.year == 2026:
        # It becomes possible; the rows are then read again.
        monkeypatch.setattr(clock, "now", lambda: dt.datetime(2026, 3, 8, tzinfo=dt.UTC))
        later = call("fit", *dated, "window.last=8d").expect(0).json
        assert (later["window"]["last"], later["rows_quarantined"]) == ("2026-03-08", 0)
        assert later["rows_used"] == found["rows_used"] + 500


def test_simulated_days_may_be_any_and_folders_count_too(place, call, monkeypatch):
    monkeypatch.setattr(clock, "now", lambda: dt.datetime(2026, 3, 6, tzinfo=dt.UTC))
    for day in ("2026-03-01", "2026-03-02", "9999-12-31"):
        place.write_log(place.predictions(500), files=1, name=f"log/date={day}")
    dated = ("window.column=date", "window.last=5d", "window.suspect_days=use", "--json")
    call("fit", *dated).expect(3, "- day_out_of_range: 500 rows, such as date=9999-12-31")
    found = call("fit", *dated, *QUARANTINE).expect(0).json
    assert (found["window"]["last"], found["quarantined_by_reason"]) == (
        "2026-03-02",
        {"day_out_of_range": 500},
    )
    found = call("fit", *dated, "window.newest=any", "store.force=true").expect(0).json
    assert (found["window"]["last"], found["rows_used"]) == ("9999-12-31", 500)
    call("fit", *dated, "window.newest=2026-02-28").expect(3, "found only others", "window.newest=any")
    call("fit", *dated, "window.newest=soon").expect(2, "expected a date such as 2026-01-31")
