"""A day is one configuration and three commands; the next day, a late correction and a refusal, too."""

import json
import shutil
import textwrap
from functools import partial

import dask.dataframe
import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset
import pytest

from jobs.init import init
from jobs.registry import JOBS
from jobs.run import run_job
from jobs.tables import decide_on, list_days, list_versions
from pipeline.files.output import LocalOutput
from pipeline.table.published import PublishedTable, days_fitted

DAY = """
log: {path: log, on_bad_rows: quarantine}
store: {path: store, table: ads}
window: {column: date, last: 28d}
evaluate: {last: 1d, against: previous, require: {calibration_in_the_large: 0.1}, allow_in_sample: false}
report: {path: "reports/{day}"}
score: {last: 1d, max_outside_range: 0.05}
output: {path: "scored/{day}", mode: replace}
record: {prometheus: logcal.prom}
cluster: {kind: inline}
"""


def _with_duckdb(folder):
    with duckdb.connect() as connection:
        return connection.execute(f"SELECT count(*) FROM read_parquet('{folder}/**/*.parquet')").fetchone()[0]


READERS = {
    "pandas": lambda folder: len(pd.read_parquet(folder)),
    "pyarrow.dataset": lambda folder: pyarrow.dataset.dataset(folder).count_rows(),
    "polars": lambda folder: pl.read_parquet(folder).height,
    "duckdb": _with_duckdb,
}
"""Rows that readers find in a folder of which they know nothing but the name."""


@pytest.fixture
def day(place, monkeypatch):
    """Run a job with the day's configuration."""
    monkeypatch.chdir(place.root)
    (place.root / "day.yaml").write_text(textwrap.dedent(DAY))
    return partial(run_with, "day.yaml")


def run_with(file, job, *settings, also=()):
    return run_job(JOBS[job], [file, *also], settings, dry_run=False, as_json=False)


def write_day(place, number, shift=0.0, scale=1.0, rows=2000):
    random = np.random.default_rng(number)
    z = random.normal(size=rows)
    label = random.random(rows) < 1 / (1 + np.exp(-z - shift))
    columns = {"score": scale / (1 + np.exp(-z)), "label": label}
    place.write_log(columns, files=1, name=f"log/date=2026-01-{number:02}")


def run_json(place, number):
    return json.loads((place.root / f"reports/2026-01-{number:02}/run.json").read_text())


def test_a_day_and_the_next_and_a_correction(place, day):
    write_day(place, 1)
    assert [day(job) for job in ("fit", "score")] == [0, 0]
    write_day(place, 2)
    assert [day(job) for job in ("evaluate", "fit", "score")] == [0, 0, 0]
    found = run_json(place, 2)
    assert (found["in_sample"], found["failed"]) == (False, [])
    assert found["evaluation"]["rows"] == 2000
    days = ["2026-01-01", "2026-01-02"]
    for folder in ("scored", ".scored.logcal"):
        assert sorted(path.name for path in (place.root / folder).iterdir()) == days
    for read in READERS.values():
        assert read(str(place.root / "scored")) == 4000
        assert read(str(place.root / "scored/2026-01-02")) == 2000
    # The same again is nothing to do; after the fit the day's rows are in sample.
    assert [day(job) for job in ("fit", "score")] == [99, 99]
    # A late correction: the same day once more, with the table that it makes.
    before = pl.read_parquet(place.root / "scored" / "2026-01-02/")
    write_day(place, 2, rows=2100)
    assert [day(job) for job in ("fit", "score")] == [0, 0]
    after = pl.read_parquet(place.root / "scored" / "2026-01-02/")
    assert (before.height, after.height) == (2000, 2100)
    assert before["table_version"][0] != after["table_version"][0]
    metrics = (place.root / "logcal.prom").read_text()
    assert 'logcal_last_exit_code{job="score",table="ads"} 0' in metrics


def test_a_moved_folder_is_the_same_table(place, monkeypatch, capsys, caplog):
    """Configuration, log and store together: the same decisions and history, nothing sorted or published again."""
    caplog.set_level("INFO", "logcal")
    first, second = place.root / "here", place.root / "elsewhere" / "there"
    place.root = first
    for number in range(1, 9):
        write_day(place, number)
    (first / "day.yaml").write_text(textwrap.dedent(DAY))
    jobs = ("evaluate", "monitor", "fit", "score")
    monkeypatch.chdir(place.root.parent)
    run = partial(run_with, "here/day.yaml")
    assert [run(job) for job in jobs] == [99, 99, 0, 0]
    assert f"new table ads in {first}/store/ads: no earlier versions here" in caplog.text
    caplog.clear()
    write_day(place, 9)
    assert [run(job) for job in jobs] == [0, 0, 0, 0]
    decide_on(str(first / "store"), "ads", "2026-01-03", "exclude", "a bad day")
    assert run("fit") == 0
    listed = list_versions(str(first / "store"), "ads").summary
    decided = list_days(str(first / "store"), "ads").lines
    tables = sorted(path.name for path in (first / "store/ads/days").iterdir())
    assert run("score") == 0
    second.parent.mkdir()
    first.rename(second)
    monkeypatch.chdir(second)
    for file in ("day.yaml", str(second / "day.yaml")):
        assert [run_with(file, job) for job in jobs] == [99, 99, 99, 99]
    assert "new table" not in caplog.text
    assert list_versions("store", "ads").summary == listed
    assert list_days("store", "ads").lines == decided
    assert "no longer" not in "".join(decided)
    assert sorted(path.name for path in (second / "store/ads/days").iterdir()) == tables
    # The version was fitted to these rows, wherever they are.
    assert run_with("day.yaml", "evaluate", "report.path=elsewhere") == 4
    assert "rows are in files that version" in capsys.readouterr().err


def test_an_older_day_run_again_has_nothing_to_do(place, day, capsys):
    for number in (1, 2):
        write_day(place, number)
        assert day("fit") == 0
    newest = place.current
    assert day("fit", "window.until=2026-01-01") == 99
    assert f"which {newest} with newer days has replaced" in capsys.readouterr().err
    assert day("fit", "window.until=2026-01-01", "store.force=true") == 0
    assert place.current == place.versions[0]


@pytest.mark.parametrize("time", [None, "made"])
def test_days_whose_outcomes_come_later_are_evaluated_and_monitored_before_a_fit_has_them(
    place, monkeypatch, time
):
    """As `init --daily` sets it up; each day arrives with the outcomes that are known at its end."""
    monkeypatch.chdir(place.root)
    random, known = np.random.default_rng(3), []
    settings = ["log.key=key", "log.labels.path=outcomes", "log.labels.time=at", "log.labels.wait=1d"]
    settings += ["cluster.kind=inline", *([f"log.time={time}"] if time else [])]

    run = partial(run_with, "job/day.yaml")

    def history():
        found = json.loads((place.root / "job/tables/log/monitor/history.json").read_text())
        return [own["day"] for own in found["days"]]

    (place.root / "outcomes").mkdir()
    table = PublishedTable(str(place.root / "job/tables"), "log")
    for number in range(1, 7):
        midnight = np.datetime64(f"2026-01-{number:02}", "us")
        z = random.normal(size=1500)
        key = np.arange(1500) + 1500 * number
        made = midnight + np.append(random.integers(0, 86_400, 1499), 86_399).astype("timedelta64[s]")
        score = 1 / (1 + np.exp(-z))
        columns = {"key": key, "score": score, "made": made}
        place.write_log(columns, files=1, name=f"log/date={midnight.astype('datetime64[D]')}")
        one = random.random(1500) < score
        at = made[one] + random.integers(60, 86_400, one.sum()).astype("timedelta64[s]")
        known.append(pa.table({"key": key[one], "at": at}))
        outcomes = pl.from_arrow(pa.concat_tables(known)).filter(
            pl.col("at") < midnight + np.timedelta64(86_399, "s")
        )
        outcomes.write_parquet(place.root / "outcomes/o.parquet")
        if number == 1:
            init("log", "job", settings, daily=True)
        if number < 4:
            continue
        if number == 4:  # days 1 and 2 are known, and of the times of day 3 all but the last
            assert [run(job) for job in ("evaluate", "monitor", "fit", "score")] == [99, 99, 0, 0]
            continue
        live = table.current()
        fitted = days_fitted(live.manifest)
        assert [run(job) for job in ("evaluate", "monitor", "fit", "score")] == [0, 0, 0, 0]
        report = place.root / f"job/reports/2026-01-{number - 1 if time else number - 2:02}/run.json"
        assert json.loads(report.read_text())["in_sample_share"] == 0
        # All days whose labels became known after a fit, of times the last one but for its last row: each once.
        assert history() == [f"2026-01-{day:02}" for day in range(3, number if time else number - 1)]
        assert fitted[-1] == f"2026-01-{number - 3:02}"
        assert run("evaluate") == 99 if time is None else run("evaluate") == 0
    said = list_versions(str(place.root / "job/tables"), "log").lines[-1]
    assert "to 2026-01-06 without 2 days (last day fitted to: 2026-01-04)" in said
    assert run("evaluate", "window.last=1d") == 99  # whose rows all wait
    # Days that the fit has used are in sample.
    assert run("evaluate", "evaluate.last=3d", "report.path=other") == 4


def _with_dask(folder):
    return len(dask.dataframe.read_parquet(folder))


def test_outputs_in_one_folder_are_read_by_its_name(place, day):
    """Without {day} the manifests, a stream's ledger and run records lie in the folder that readers take whole."""
    for number in (1, 2):
        write_day(place, number)
    assert day("fit") == 0
    days = [f"scored/2026-01-{number:02}" for number in (1, 2)]
    for path in days:
        assert day("score", f"output.path={path}", f"log.path=log/date={path[-10:]}/*.parquet") == 0
    follow = ("log.path=log", "store.path=store", "store.table=ads", "output.path=scored/stream")
    assert run_job(JOBS["follow"], [], [*follow, "follow.once=true"], dry_run=False, as_json=False) == 0
    compare = ["log.path=log", "report.path=scored/page", "compare.methods=[isotonic, platt]"]
    assert run_job(JOBS["compare"], [], compare, dry_run=False, as_json=False) == 0
    beside = {path.name for path in (place.root / "scored").iterdir() if path.name.startswith(".")}
    assert beside == {".2026-01-01.logcal", ".2026-01-02.logcal", ".stream.logcal", ".page.logcal"}
    shutil.rmtree(place.root / "scored/page")
    folder = str(place.root / "scored")
    for name in ("pandas", "pyarrow.dataset"):
        assert READERS[name](folder) == 8000, name
    assert _with_dask(folder) == 8000
    assert READERS["polars"](f"{folder}/**/*.parquet") == _with_duckdb(folder) == 8000


def test_a_day_that_is_being_scored_is_seen_by_no_reader(place, day, monkeypatch):
    write_day(place, 1)
    assert [day(job) for job in ("fit", "score")] == [0, 0]
    write_day(place, 2)
    rows = []
    real = LocalOutput._place

    def look(self, folder, root):
        rows.extend(read(str(place.root / "scored")) for read in READERS.values())
        real(self, folder, root)

    monkeypatch.setattr(LocalOutput, "_place", look)
    assert day("score") == 0
    assert rows == [2000] * len(READERS)


def test_a_drifted_day_is_refused_and_so_are_percent(place, day):
    write_day(place, 1)
    assert day("fit") == 0
    write_day(place, 2, shift=1.0)
    assert day("evaluate") == 4
    assert run_json(place, 2)["failed"][0].startswith("calibration_in_the_large")
    assert "points too low" in run_json(place, 2)["evaluation"]["verdict"]
    assert day("evaluate") == 4
    write_day(place, 3, scale=100.0)
    assert day("score") == 4
    assert not (place.root / "scored" / "2026-01-03").exists()


def test_a_report_can_be_replaced(place, day):
    write_day(place, 1)
    assert day("fit") == 0
    write_day(place, 2)
    assert day("evaluate") == 0
    write_day(place, 2, rows=1500)
    assert day("evaluate") == 2
    assert day("evaluate", "report.mode=replace") == 0
    assert run_json(place, 2)["evaluation"]["rows"] == 1500


def test_a_days_place_needs_a_window(place, day, capsys):
    write_day(place, 1)
    assert day("fit") == 0
    assert day("score", "window.column=null", "score.last=null") == 2
    assert "output.path: expected a path without {day}" in capsys.readouterr().err


COUNTRIES = """
log: {path: log, segment: country, on_bad_rows: quarantine}
gate: {holdout: 1d}
segments: {min_rows: 300}
"""
"""What makes a map for each country of the day, behind a gate."""


def write_countries(place, number, rows=4000, **off):
    """A day of two countries, a folder each. off : by how much the odds of a country are off."""
    random = np.random.default_rng(number)
    z = random.normal(size=rows)
    country = random.choice(["at", "de"], rows)
    shift = np.array([off.get(name, {"at": 0.0, "de": 1.0}[name]) for name in country])
    label = random.random(rows) < 1 / (1 + np.exp(-z - shift))
    for name in ("at", "de"):
        own = country == name
        columns = {"score": 1 / (1 + np.exp(-z[own])), "label": label[own]}
        place.write_log(columns, files=1, name=f"log/date=2026-01-{number:02}/country={name}")


def test_a_day_of_countries_goes_through_the_gate(place, day, capsys):
    (place.root / "countries.yaml").write_text(COUNTRIES)
    day = partial(day, also=["countries.yaml"])

    def whole_day():
        return [day(job) for job in ("evaluate", "fit", "score")]

    def gate():
        return place.manifest()["gate"]

    write_countries(place, 1)
    assert [day(job) for job in ("fit", "score")] == [0, 0]
    # There are no other days to fit to: that is said.
    assert "the table was not judged" in gate()["warnings"][0]
    write_countries(place, 2)
    assert whole_day() == [0, 0, 0]
    found = gate()["holdout"]
    assert (found["tested"], found["compared"], found["rows_compared"]) == (True, True, 4000)
    scored = pl.read_parquet(place.root / "scored" / "2026-01-02/")
    means = dict(scored.group_by("country").agg((pl.col("probability") - pl.col("label")).mean()).rows())
    assert all(abs(error) < 0.03 for error in means.values())
    write_countries(place, 3)
    assert whole_day() == [0, 0, 0]
    run = run_json(place, 3)
    assert run["evaluation"]["comparison"]["against"].startswith("version 000001")
    assert {row["segment"][0] for row in run["segments"]["worst"]} == {"at", "de"}
    # One country's labels are lost: the report names it, and no table of such a day goes live; rows are scored.
    write_countries(place, 4, de=-2.0)
    assert whole_day() == [4, 0, 0]
    manifest = place.manifest()
    assert [own["day"] for own in manifest["window"]["days_set_aside"]] == ["2026-01-04"]
    assert manifest["window"]["left_out"] == {"set_aside": {"days": 1, "rows": 4000}}
    used = {own["day"][-2:]: own["rows_used"] for own in manifest["window"]["days"]}
    assert used == {"01": 4000, "02": 4000, "03": 4000, "04": 0}
    assert sum(used.values()) == manifest["data"]["rows_used"]
    said = capsys.readouterr().out
    assert "2026-01-01 to 2026-01-04: 3 days used, 1 day set aside; 1 sorted now" in said
    assert "from 12,000 of 16,000 rows" in said
    assert f"the same table as version {manifest['previous_version']}" in said
    listed = place.run("tables", "list", "--store", place.store, "--table", "ads").expect(0).stdout
    assert "2026-01-01 to 2026-01-04 without 1 day" in listed
    # Where strange days are used, the gate refuses the table.
    before = (place.store / "ads" / "CURRENT").read_text()
    assert day("fit", "window.suspect_days=use") == 4
    assert (place.store / "ads" / "CURRENT").read_text() == before
    [worst, other] = run_json(place, 4)["segments"]["worst"]
    assert (worst["segment"], worst["beyond_chance_after"] > 0.1) == (["de"], True)
    assert other["beyond_chance_after"] == 0
    assert pl.read_parquet(place.root / "scored" / "2026-01-04/").height == 4000
    assert 'logcal_last_exit_code{job="fit",table="ads"} 4' in (place.root / "logcal.prom").read_text()
    # Two alike are drift: both are used, and the manifest says so.
    write_countries(place, 5, de=-2.0)
    assert day("fit") == 0
    drift = place.manifest()["window"]["days_of_drift"]
    assert [own["day"] for own in drift] == ["2026-01-04", "2026-01-05"]
    assert "of the rows are positive, on other days about" in drift[0]["reasons"][0]
    table = ("--store", place.store, "--table", "ads")
    for command in (("days", "list"), ("tables", "show")):
        assert (
            f"2026-01-05 used as drift: {drift[1]['reasons'][0]}"
            in place.run(*command, *table).expect(0).stdout
        )
