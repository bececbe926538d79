"""A day is one configuration and three commands; the next day, a late correction and a refusal, too."""

import json
import textwrap

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

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


@pytest.fixture
def day(place, call):
    """Run a job with the day's configuration."""
    (place.root / "day.yaml").write_text(textwrap.dedent(DAY))
    from jobs.registry import JOBS
    from jobs.run import run_job

    def run(job, *settings):
        return run_job(JOBS[job], ["day.yaml"], settings, dry_run=False, as_json=False)

    return run


def write_day(place, number, shift=0.0, scale=1.0, rows=2000):
    random = np.random.default_rng(number)
    z = random.normal(size=rows)
    label = random.random(rows) < 1 / (1 + np.exp(-z - shift))
    folder = place.root / "log" / f"date=2026-01-{number:02}"
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"score": scale / (1 + np.exp(-z)), "label": label}), folder / "a.parquet")


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
    assert sorted(path.name for path in (place.root / "scored").iterdir()) == [
        "2026-01-01", "2026-01-01.logcal", "2026-01-02", "2026-01-02.logcal"
    ]  # fmt: skip
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
