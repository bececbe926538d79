"""The daily job: every row of every complete day is scored once, whatever arrives, fails or is interrupted."""

import contextlib
import datetime as dt
import json
import os
import threading

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from arriving_days import Arriving
from prometheus_client.parser import text_string_to_metric_families

import logcal
from jobs.alarms import acknowledge
from jobs.day_list import listing
from jobs.registry import JOBS
from jobs.run import run_job
from jobs.tables import decide_on, list_days
from logcal.errors import ConfigError, InputRejectedError, LogcalError, NothingToDoError, TemporaryError
from pipeline.days.files import LogDays
from pipeline.days.records import DONE, EVALUATE, FAILED, FIT, SCORE, DayRecord, DayRecords, digest_of
from pipeline.days.states import DayRules, day_states
from pipeline.files import clock, folders
from pipeline.files.folders import Folder
from pipeline.files.locks import locking
from pipeline.files.output import LocalOutput
from pipeline.log.log_files import LogFile
from pipeline.log.windows import day_number
from pipeline.monitor.history import read_history
from pipeline.table.journal import Decision

GATE = {"min_rows": 0, "min_positives": 0, "max_rows_drop": 1, "ranking": False, "holdout": "none"}
ROWS = 300


class Daily:
    """A log of days, and its daily job at times that the test sets."""

    def __init__(self, root, monkeypatch):
        self.root, self.monkeypatch = root, monkeypatch
        self.time, self.states, self.lines, self.message, self.facts = None, {}, [], "", {}

    def part(self, day, number, *, score="score", rows=ROWS, seed=0, **more):
        """Write a file of a day in March; returns its path."""
        rng = np.random.default_rng([day, number, seed])
        x = rng.normal(-1.2, 1.3, rows)
        columns = {score: 1 / (1 + np.exp(-x)), "label": rng.random(rows) < 1 / (1 + np.exp(0.3 - 0.8 * x))}
        folder = self.root / f"log/date=2026-03-{day:02}"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"part-{number}.parquet"
        ids = np.arange(rows) + 1_000_000 * day + 10_000 * number
        pq.write_table(pa.table({**columns, "id": ids, **more}), path)
        return path

    def day(self, *days):
        """Write the four files of days."""
        for day in days:
            for number in range(4):
                self.part(day, number)

    def config(self, **sections):
        values = {
            "log": {"path": str(self.root / "log")},
            "store": {"path": str(self.root / "store"), "table": "ads"},
            "window": {"column": "date", "last": "7d", "suspect_days": "use"},
            "calibrator": {"method": "isotonic"},
            "gate": GATE,
            "report": {"path": str(self.root / "reports/{day}"), "mode": "replace"},
            "output": {"path": str(self.root / "scored/{day}"), "mode": "replace"},
            "cluster": {"kind": "inline"},
        }
        for name, keys in sections.items():
            values[name] = {**values.get(name, {}), **keys}
        return values

    def run(self, day, time="06:30", **sections):
        """Run the job in the morning of a day in March; returns the exit code."""
        self.time = dt.datetime.fromisoformat(f"2026-03-{day:02}T{time}:00+00:00")
        self.monkeypatch.setattr(clock, "now", lambda: self.time)
        self.message = ""
        try:
            self.facts = logcal.run("days", self.config(**sections)).facts
        except LogcalError as error:
            self.message = str(error)
            self.facts = {} if error.outcome is None else error.outcome.summary
            return error.exit_code
        return 0

    def begin(self, day):
        """Run the job for the first time."""
        return self.run(day, days={"new": True})

    @property
    def scored(self):
        """Number of scored rows by day in March; every row once."""
        files = (self.root / "scored").rglob("*.parquet")
        rows = pl.concat([pl.read_parquet(file, columns=["id"], hive_partitioning=False) for file in files])
        assert rows["id"].n_unique() == rows.height
        counts = rows.group_by(pl.col("id") // 1_000_000).len().rows()
        return dict(sorted(counts))

    def records(self, day):
        return DayRecords(Folder.at(self.root / "store/ads")).read().get(f"2026-03-{day:02}", {})

    def run_file(self, day, *options):
        """Run the command on day.yaml in the morning of a day in March; returns the exit code."""
        now = dt.datetime(2026, 3, day, 6, 30, tzinfo=dt.UTC)
        self.monkeypatch.setattr(clock, "now", lambda: now)
        return run_job(JOBS["days"], [str(self.root / "day.yaml")], options, dry_run=False, as_json=False)

    def state(self, day, **sections):
        return {entry["day"]: entry for entry in self.list(**sections)["days"]}[f"2026-03-{day:02}"]

    def list(self, **sections):
        return list_days(str(self.root / "store"), "ads", self.files(**sections)).summary

    def files(self, **sections):
        """Write the configuration; returns its path in a list."""
        file = self.root / "day.yaml"
        file.write_text(json.dumps(self.config(**sections)))
        return [str(file)]

    def exclude_file(self, name, **sections):
        """Exclude a file; returns the exit code."""
        try:
            decide_on(
                str(self.root / "store"),
                "ads",
                f"file:{name}",
                "exclude",
                "half a file",
                self.files(**sections),
            )
        except LogcalError as error:
            return error.exit_code
        return 0

    @property
    def versions(self):
        return sorted(path.name for path in (self.root / "store/ads/versions").iterdir())


def metrics(file, **labels):
    """Metrics of a file for Prometheus with some labels: pairs of other labels and value, by name."""
    found = {}
    for family in text_string_to_metric_families(file.read_text()):
        for sample in family.samples:
            if labels.items() <= sample.labels.items():
                other = {key: value for key, value in sample.labels.items() if key not in labels}
                found.setdefault(sample.name, []).append((other, sample.value))
    return found


@pytest.fixture
def daily(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Daily(tmp_path, monkeypatch)


@pytest.mark.system
def test_days_that_arrive_file_by_file_are_scored_whole_once_they_are_complete(daily):
    daily.day(*range(1, 6))
    daily.part(6, 0)
    assert daily.run(6) == 2
    assert "give --new" in daily.message
    assert daily.begin(6) == 0
    assert daily.scored == {5: 4 * ROWS}
    assert [daily.run(6), daily.run(6)] == [99, 99]
    assert daily.begin(6) == 2
    for number in (1, 2, 3):
        daily.part(6, number)
    daily.part(7, 0)
    assert daily.run(7) == 0
    assert daily.scored == {5: 4 * ROWS, 6: 4 * ROWS}
    assert daily.facts["states"]["arriving"] == 1
    for number in (1, 2, 3):
        daily.part(7, number)
    daily.day(8, 9)
    renamed = daily.part(9, 1, score="score_v2")
    assert daily.run(10) == 4
    assert daily.scored == dict.fromkeys((5, 6, 7, 8), 4 * ROWS)
    # Both days were measured with the version of before, and scored with the one that was fitted to them.
    live = daily.versions[-1]
    for day in (7, 8):
        assert daily.records(day)["evaluate"][-1].version == daily.versions[-2]
        assert daily.records(day)[SCORE][-1].version == live
    assert daily.state(9)["state"] == "set_aside"
    assert "column 'score' (log.score) is not in 1 of 4 files" in daily.state(9)["reason"]
    assert "set log.score" not in daily.state(9)["reason"]
    assert daily.run(10) == 4
    assert daily.versions[-1] == live
    # An excluded day's files are not opened: they are no Parquet any more, and nothing says so.
    decide_on(str(daily.root / "store"), "ads", "2026-03-09", "exclude", "renamed by mistake")
    assert daily.run(10) == 99
    # A late file: its day is sorted and scored again, whole, and both are recorded.
    daily.part(8, 7)
    assert daily.run(10, "07:30") == 0
    assert daily.scored == {5: 4 * ROWS, 6: 4 * ROWS, 7: 4 * ROWS, 8: 5 * ROWS}
    assert [record.version for record in daily.records(8)[SCORE]] == [live, daily.versions[-1]]
    # The mended day comes in.
    renamed.unlink()
    daily.part(9, 1)
    assert daily.run(10, "08:30") == 0
    assert daily.scored[9] == 4 * ROWS


@pytest.mark.system
def test_a_day_whose_files_are_being_written_is_arriving_until_they_are_old(daily):
    """One file without a footer, or the name of a copy."""
    daily.day(*range(1, 6))
    half = daily.part(6, 0)
    whole = half.read_bytes()
    half.write_bytes(whole[:-50])
    copied = half.with_name("part-1.parquet._COPYING_")
    copied.write_bytes(whole)
    started = dt.datetime(2026, 3, 7, 6, 29, tzinfo=dt.UTC).timestamp()
    for path in (half, copied):
        os.utime(path, (started, started))
    assert daily.run(7, days={"new": True}) == 0
    assert daily.facts["states"]["arriving"] == 1
    half.write_bytes(whole)
    assert daily.run(7, "06:31") == 99
    assert daily.facts["states"]["arriving"] == 1
    copied.unlink()
    half.write_bytes(whole[:-50])
    os.utime(half, (started, started))
    assert daily.run(7, "06:35") == 4
    assert daily.facts["states"]["set_aside"] == 1


@pytest.mark.system
def test_a_day_with_another_models_scores_is_scored_and_left_to_a_person(daily):
    daily.day(*range(1, 7))
    assert daily.begin(7) == 0
    path = daily.part(7, 0, rows=4 * ROWS)
    table = pq.read_table(path)
    other = 1 / (1 + np.exp(-np.random.default_rng(7).normal(0.5, 0.2, 4 * ROWS)))
    pq.write_table(table.set_column(0, "score", pa.array(other)), path)
    written = {"score": {"max_shift": 0.5, "on_shift": "write"}}
    for _ in range(2):
        assert daily.run(8, **written) == 4
        assert daily.state(7)["attention"]
        assert "from those that the table was fitted to" in daily.state(7)["reason"]
    assert daily.scored[7] == 4 * ROWS
    decide_on(str(daily.root / "store"), "ads", "2026-03-07", "include", "a new model")
    assert daily.run(8, **written) in (0, 99)


@pytest.mark.system
def test_the_test_for_drift_goes_on_over_daily_versions_and_an_alarm_needs_a_person(daily):
    daily.day(*range(1, 6))
    assert daily.begin(6) == 0
    for day in (6, 7):
        daily.day(day)
        assert daily.run(day + 1) == 0
    path = daily.part(8, 0, rows=4 * ROWS)
    table = pq.read_table(path)
    pq.write_table(table.set_column(1, "label", pa.array(np.arange(4 * ROWS) % 4 > 0)), path)
    checked = {"window": {"suspect_days": "set_aside"}}
    assert daily.run(9, **checked) == 4
    assert "`logcal days acknowledge` closes an alarm of drift" in daily.message
    assert "logcal days acknowledge 2026-03-08" in daily.state(8)["reason"]
    daily.day(9)
    assert daily.run(10, **checked) == 4
    assert daily.state(9)["state"] == "done"
    history = read_history(Folder.at(daily.root / "store/ads"))
    assert [(day.day[-2:], day.set_aside) for day in history.days] == [
        ("06", False), ("07", False), ("08", True), ("09", False),
    ]  # fmt: skip
    assert len({day.version for day in history.days}) == 4
    assert [alarm.day for alarm in history.alarms] == ["2026-03-08"]
    assert history.state.days == 1
    assert [day.version for day in history.days] == [
        daily.records(day)["evaluate"][-1].version for day in (6, 7, 8, 9)
    ]
    page = (daily.root / "reports/monitor/report.html").read_text()
    assert "Alarm of" in page
    assert "left out" in page
    acknowledge(str(daily.root / "store"), "ads", "2026-03-08", "the labels were wrong")
    assert daily.state(8)["state"] == "set_aside"
    assert daily.run(10, **checked) == 4
    decide_on(str(daily.root / "store"), "ads", "2026-03-08", "exclude", "the labels were wrong")
    assert daily.run(10, **checked) == 99


@pytest.mark.system
def test_metrics_count_the_days_in_each_state(daily):
    """Prometheus' own parser reads them; an attempt that fails keeps the days of the last one."""
    daily.day(*range(1, 6), 7)
    file = daily.root / "logcal.prom"
    told = {"record": {"prometheus": str(file)}}
    assert daily.run(8, days={"new": True, "begin": "2026-03-03"}, **told) == 4
    found = metrics(file, job="days")
    states = {labels["state"]: value for labels, value in found["logcal_days"]}
    assert states == daily.facts["states"]
    assert states["missing"] == 1
    assert states["done"] == 4
    assert [value for _, value in found["logcal_last_exit_code"]] == [4]
    assert "logcal_day_observed_over_expected" not in found  # there was no table to measure
    daily.day(8)
    assert daily.run(9, **told) == 4
    found = metrics(file, job="days")
    [(_, ratio)] = found["logcal_day_observed_over_expected"]
    rows = {labels["kind"]: value for labels, value in found["logcal_rows"]}
    assert rows["rows"] == 4 * ROWS  # although a day is missing
    assert ratio == pytest.approx(daily.state(8)["observed_over_expected"])
    [(_, time)] = found["logcal_day_observed_over_expected_timestamp_seconds"]
    assert time == dt.datetime(2026, 3, 8, tzinfo=dt.UTC).timestamp()
    with locking(Folder.at(daily.root / "store/ads/daily")):
        assert daily.run(9, **told) == 75
    assert metrics(file, job="days")["logcal_days"]


@pytest.mark.system
def test_a_missing_day_needs_a_person_unless_no_rows_are_expected(daily):
    daily.day(2, 3, 4, 5)  # 2 March 2026 is a Monday
    assert daily.begin(6) == 0
    daily.day(9)
    workdays = {"weekdays": ["mon", "tue", "wed", "thu", "fri"]}
    assert daily.run(10, days=workdays) == 4
    assert [entry["day"] for entry in daily.facts["days"] if entry["state"] == "missing"] == ["2026-03-06"]
    assert daily.run(10) == 4
    missing = [entry["day"][-2:] for entry in daily.facts["days"] if entry["state"] == "missing"]
    assert missing == ["06", "07", "08"]
    decide_on(str(daily.root / "store"), "ads", "2026-03-06", "exclude", "no traffic")
    assert daily.run(10, days=workdays) == 99
    assert daily.scored == {5: 4 * ROWS, 9: 4 * ROWS}


@pytest.mark.system
def test_two_runs_at_once_and_a_backfill(daily):
    daily.day(1, 2, 3, 4)
    from jobs.daily import only_run

    with (
        only_run(Folder.at(daily.root / "store/ads/daily")),
        pytest.raises(TemporaryError, match="another run"),
    ):
        logcal.run("days", daily.config(days={"new": True}))
    # All days up to the 3rd are complete, and no later one is done.
    backfill = {"window": {"column": "date", "last": "7d", "until": "2026-03-03", "suspect_days": "use"}}
    assert daily.run(3, "01:00", days={"new": True, "begin": "2026-03-02"}, **backfill) == 0
    assert daily.scored == {2: 4 * ROWS, 3: 4 * ROWS}
    assert daily.run(3, "01:00", **backfill) == 99
    assert daily.run(5) == 0
    assert daily.scored == {2: 4 * ROWS, 3: 4 * ROWS, 4: 4 * ROWS}


@pytest.mark.system
@pytest.mark.parametrize("fit_each_day", [False, True])
def test_a_run_killed_after_any_step_goes_on_and_repeats_nothing(daily, fit_each_day):
    """Each run is killed after one result more than the one before, before it has recorded it."""
    daily.day(1, 2, 3)
    assert daily.begin(4) == 0
    daily.day(4, 5)
    real, kills = DayRecords.add, 0
    days = {"days": {"fit_each_day": fit_each_day}}

    def add(self, records, *, at):
        if any(record.step in ("evaluate", "monitor", FIT, SCORE) for record in records):
            at.append(records)
            if len(at) == kills:
                raise KeyboardInterrupt
        return real(self, records)

    results = {}
    for kills in range(1, 20):
        seen = []
        daily.monkeypatch.setattr(
            DayRecords, "add", lambda self, records, seen=seen: add(self, records, at=seen)
        )
        try:
            code = daily.run(6, **days)
        except KeyboardInterrupt:
            code = 130
        results[kills] = code
        if code != 130:
            break
    daily.monkeypatch.setattr(DayRecords, "add", real)
    assert results[kills] in (0, 99)
    assert kills > 1
    assert daily.run(6, **days) == 99
    assert daily.scored == {3: 4 * ROWS, 4: 4 * ROWS, 5: 4 * ROWS}
    assert len(daily.versions) == (3 if fit_each_day else 2)
    for day in (4, 5):
        counts = {step: len(found) for step, found in daily.records(day).items() if step != "compared"}
        assert counts == {"evaluate": 1, "monitor": 1, FIT: 1, SCORE: 1}


@pytest.mark.system
def test_a_run_killed_before_a_scored_days_manifest_is_repaired_by_the_next(daily):
    daily.day(1, 2, 3)
    assert daily.begin(4) == 0
    daily.day(4)

    def killed(self):
        if self._renamed() is not None:
            raise KeyboardInterrupt

    with daily.monkeypatch.context() as patched:
        patched.setattr(LocalOutput, "settle", killed)
        with pytest.raises(KeyboardInterrupt):
            daily.run(5)
    beside = daily.root / ".scored.logcal"
    assert [path.name for path in (beside / "2026-03-04").iterdir()] == ["unfinished.json"]
    assert daily.run(5) == 0
    assert daily.scored == {3: 4 * ROWS, 4: 4 * ROWS}
    assert {path.relative_to(beside).as_posix() for path in beside.rglob("*.json")} == {
        "2026-03-03/manifest.json",
        "2026-03-04/manifest.json",
    }


@pytest.mark.system
def test_days_that_arrive_at_random_hours_are_what_an_oracle_says(tmp_path, monkeypatch):
    """A short form of `benchmarks/operation.py arriving`; two runs are killed within a write."""
    monkeypatch.setattr(clock, "now", clock.now)  # restored at the end
    bad = {6: "missing", 7: "unreadable", 9: "renamed", 10: "twice"}
    simulation = Arriving(tmp_path, 12, 200, bad=bad, missed=frozenset({6}), kills={9: 5, 11: 12})
    simulation.simulate()
    assert simulation.check()["days"] == 6
    assert set(simulation.codes) == {0, 4}


@pytest.mark.system
def test_a_day_with_unusable_rows_or_pages_costs_itself_and_is_tried_once(daily):
    daily.day(1, 2, 3)
    assert daily.begin(4) == 0
    daily.day(4, 5, 6)
    daily.part(4, 1, rows=ROWS, label=np.full(ROWS, 7))  # labels of no binary outcome
    path = daily.part(6, 2)
    content = bytearray(path.read_bytes())
    content[4:900] = bytes(896)  # pages that no footer tells of
    path.write_bytes(content)
    assert daily.run(7) == 4
    assert daily.scored == {3: 4 * ROWS, 4: 4 * ROWS, 5: 4 * ROWS}
    assert "label_not_0_or_1: 300 rows" in daily.state(4)["reason"]
    assert daily.state(5)["state"] == "done"
    assert daily.state(6)["state"] == "set_aside"
    used = json.loads((daily.root / f"store/ads/versions/{daily.versions[-1]}/manifest.json").read_text())[
        "window"
    ]
    assert {day["day"][-2:] for day in used["days"] if day["rows_used"]} == {"01", "02", "03", "05"}
    before = {path: path.stat().st_mtime_ns for path in daily.root.rglob("*.jsonl")}
    assert daily.run(7) == 4
    assert {path: path.stat().st_mtime_ns for path in daily.root.rglob("*.jsonl")} == before
    assert len(daily.versions) == 2
    # Mended files come in.
    daily.day(4, 6)
    assert daily.run(8, "02:00") == 0
    assert daily.scored == dict.fromkeys((3, 4, 5, 6), 4 * ROWS)


@pytest.mark.system
def test_the_commands_write_the_same_records(daily):
    daily.day(1, 2, 3)
    assert daily.begin(4) == 0
    daily.day(4)
    one_day = {"evaluate": {"last": "1d"}, "score": {"last": "1d"}}
    for job in ("evaluate", "monitor", "fit", "score"):
        logcal.run(job, daily.config(**one_day))
    counts = {step: len(found) for step, found in daily.records(4).items() if step != "compared"}
    assert counts == {"evaluate": 1, "monitor": 1, FIT: 1, SCORE: 1}
    assert daily.records(4)["evaluate"][0].facts["labelled"] == 4 * ROWS
    assert daily.run(5) == 99
    assert daily.scored == {3: 4 * ROWS, 4: 4 * ROWS}


@pytest.mark.system
def test_rows_that_a_column_dates_are_scored_once_although_files_have_rows_of_two_days(daily):
    def part(name, first, last, number):
        """A file with rows from one time to another, in days of March."""
        when = np.datetime64("2026-03-01", "us") + (
            np.linspace(first - 1, last - 1, ROWS, endpoint=False) * 86_400e6
        ).astype("timedelta64[us]")
        path = daily.part(31, number, made=when)
        path.rename(daily.root / f"log/{name}.parquet")

    dated = {"window": {"column": "made", "last": "7d", "suspect_days": "use"}}
    for number, name in enumerate("abc", 1):
        part(name, number, number + 1, number)
    part("d", 3.9, 4.2, 4)
    assert daily.run(4, days={"new": True}, **dated) == 0

    def total():
        return sum(daily.scored.values())

    assert total() == 2 * ROWS  # c and d
    part("e", 4.2, 4.95, 5)
    part("f", 4.95, 5.1, 6)
    assert daily.run(5, **dated) == 0
    assert total() == 4 * ROWS
    assert daily.run(5, **dated) == 99
    # A file whose days cannot be told is named. The days between its neighbours wait; what can be done is done.
    part("g", 5.1, 6, 7)
    part("i", 6, 7, 8)
    part("j", 7.2, 8, 9)
    unknown = daily.root / "log/h.parquet"
    unknown.write_bytes(b"PAR1 and nothing of a file PAR1")
    assert daily.run(8, **dated) == 4
    assert "h.parquet), so that the days around count as arriving" in daily.message
    states = {entry["day"][-2:]: entry["state"] for entry in daily.list(**dated)["days"]}
    assert [day for day, state in states.items() if state == "arriving"] == ["05", "06"]
    assert daily.list(**dated)["files_without_day"].keys() == {"h.parquet"}
    assert total() == 5 * ROWS  # with j
    # A person excludes it: then no job opens it, until it changes.
    assert daily.exclude_file("h.parquet", **dated) == 0
    assert daily.run(8, **dated) == 0
    assert total() == 7 * ROWS
    assert daily.list(**dated)["files_excluded"] == {"h.parquet": "half a file"}
    assert daily.run(8, **dated) == 99
    for job in ("fit", "evaluate", "monitor", "score"):
        with contextlib.suppress(NothingToDoError):
            logcal.run(job, daily.config(evaluate={"last": "1d"}, score={"last": "1d"}, **dated))
    assert daily.exclude_file("nothing.parquet", **dated) == 2
    part("h", 6.5, 6.6, 10)
    assert daily.run(8, "07:30", **dated) == 0
    assert total() == 8 * ROWS


# Records


def test_records_outlive_what_was_cut_off_and_refuse_what_is_damaged(tmp_path):
    records = DayRecords(Folder.at(tmp_path / "ads"))
    first = DayRecord("2026-03-01", FIT, "abc", version="000001-a", facts={"rows": {"used": 3}})
    records.add([first])
    file = tmp_path / "ads/days.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])  # all of a line but its end
    records.add([first])
    assert len(records.read()["2026-03-01"][FIT]) == 2
    for end in range(len(whole) - 1):
        file.write_bytes(whole[:end])
        assert records.read() == {}
        records.add([first])
        [found] = records.read()["2026-03-01"][FIT]
        assert (found.files, found.version, found.facts) == ("abc", "000001-a", {"rows": {"used": 3}})
    file.write_bytes(whole.replace(b"abc", b"abd"))
    with pytest.raises(InputRejectedError, match=r"line 1 of days\.jsonl damaged"):
        records.read()


def test_a_record_that_another_process_adds_meanwhile_is_kept(tmp_path, monkeypatch):
    records, complete = DayRecords(Folder.at(tmp_path / "ads")), folders._complete
    other = threading.Thread(target=records.add, args=([DayRecord("2026-03-02", SCORE)],))

    def interrupted(content):
        if not other.ident:
            other.start()
            other.join(0.5)
        return complete(content)

    monkeypatch.setattr(folders, "_complete", interrupted)
    records.add([DayRecord("2026-03-01", SCORE)])
    other.join()
    assert sorted(records.read()) == ["2026-03-01", "2026-03-02"]


# States

NOW = dt.datetime(2026, 3, 10, 6, 30, tzinfo=dt.UTC)
TODAY = day_number(NOW.date())


def log_of(days, **changed):
    files = []
    spans = {}
    for day in days:
        name = f"d{day}.parquet"
        files.append(LogFile(f"/log/{name}", name, 10, changed.get(f"d{day}", "1")))
        spans[name] = day, day
    return LogDays.of_spans(files, spans)


def words(log, records=None, decisions=None, now=NOW, **rules):
    found = day_states(log, decisions or {}, records or {}, DayRules(**rules), now)
    return {entry.day - TODAY: entry.state for entry in found.days}


def done(log, *days, steps=("evaluate", "monitor", FIT, SCORE), begin=-9):
    records = {dt.date(2026, 3, 10) + dt.timedelta(begin): {"begin": [DayRecord("", "begin")]}}
    found = {}
    name = str(next(iter(records)))
    found[name] = {"begin": [DayRecord(name, "begin", at="2026-01-01")]}
    for day in days:
        name = str(dt.date(2026, 3, 10) + dt.timedelta(day))
        digest = digest_of(log.of(TODAY + day).files)
        entry = {step: [DayRecord(name, step, digest, DONE, at="2026-03-09")] for step in steps}
        found[name] = {**found.get(name, {}), **entry}
    return found


def test_a_day_is_complete_some_hours_after_its_end():
    log = log_of([TODAY - 1, TODAY])
    assert words(log) == {-1: "unscored", 0: "arriving"}
    assert words(log, now=NOW - dt.timedelta(hours=3, minutes=31)) == {-1: "arriving", 0: "arriving"}
    assert words(log, now=NOW - dt.timedelta(hours=3, minutes=30)) == {-1: "unscored", 0: "arriving"}
    assert words(log, until=TODAY) == {-1: "before", 0: "unscored"}
    assert words(log, marker="_SUCCESS") == {-1: "arriving", 0: "arriving"}


def test_days_missing_excluded_and_done():
    log = log_of([TODAY - 4, TODAY - 1])
    records = done(log, -4, -1, begin=-5)
    assert words(log, records) == {-5: "missing", -4: "done", -3: "missing", -2: "missing", -1: "done"}
    decisions = {"2026-03-07": Decision("exclude", "so", "2026-03-08")}
    assert words(log, records, decisions)[-3] == "excluded"
    weekdays = frozenset({0})  # 2026-03-09 is a Monday
    assert words(log, records, weekdays=weekdays) == {-4: "done", -1: "done"}


def test_many_missing_days_in_a_row_are_one_line():
    log = log_of([TODAY - 9, TODAY - 5, TODAY - 2])
    decisions = {"2026-03-07": Decision("exclude", "so", "2026-03-08")}
    found = day_states(log, decisions, done(log, -9, -5, -2), DayRules(), NOW)
    names = [line.partition("  ")[0] for line in listing(found, log)[1]]
    assert names == [
        "2026-03-01", "2026-03-02 to 2026-03-04, 3 days", "2026-03-05", "2026-03-06", "2026-03-07", "2026-03-08",
        "2026-03-09",
    ]  # fmt: skip


def test_a_changed_day_is_left_again_within_the_lookback_and_once_a_week():
    log = log_of([TODAY - 6, TODAY - 1])
    records = done(log, -6, -1)
    changed = log_of([TODAY - 6, TODAY - 1], **{f"d{TODAY - 6}": "2", f"d{TODAY - 1}": "2"})
    compared = {
        "2026-03-08": {"compared": [DayRecord("2026-03-08", "compared", at="2026-03-08T06:30:00+00:00")]}
    }
    assert words(changed, records | compared) | {-6: "done", -1: "unscored"} == words(
        changed, records | compared
    )
    assert words(changed, records)[-6] == "unscored"
    old = {"2026-03-03": {"compared": [DayRecord("2026-03-03", "compared", at="2026-03-03T06:30:00+00:00")]}}
    assert words(changed, records | old)[-6] == "unscored"


def test_labels_that_wait_leave_the_day_scored():
    log = log_of([TODAY - 2, TODAY - 1])
    records = done(log, -2, -1, steps=(SCORE,))
    assert words(log, records, known_day=TODAY - 2)[-1] == "labels_waiting"
    assert words(log, records, known_day=TODAY - 2)[-2] == "unmeasured"
    assert words(log, records, label_wait=dt.timedelta(days=1))[-1] == "labels_waiting"
    failed = DayRecord(
        "2026-03-09", FIT, digest_of(log.of(TODAY - 1).files), FAILED, at="2026-03-10", message="x"
    )
    found = day_states(
        log, {}, {**records, "2026-03-09": {**records["2026-03-09"], FIT: [failed]}}, DayRules(), NOW
    )
    assert (found.days[-1].state, found.days[-1].attention) == ("failed", True)
    assert FIT in found.days[-1].todo


def test_paths_of_outputs_name_the_day():
    from jobs.config.jobs import DaysConfig
    from jobs.config.loading import load

    settings = ["log.path=l", "store.path=s", "store.table=t", "window.column=date", "report.path=r"]
    with pytest.raises(ConfigError, match=r"report.path.*expected a path with \{day\}, such as r/\{day\}"):
        load(DaysConfig, [], [*settings, "output.path=o/{day}"])


@pytest.mark.system
def test_labels_in_the_log_are_complete_some_time_after_their_day(daily):
    """A day is scored at once; every job that needs labels waits for `log.labels.wait`."""
    daily.day(1, 2, 3, 4)
    waiting = {"log": {"labels": {"wait": "2d"}}}
    assert daily.run(5, "07:00", days={"new": True, "begin": "2026-03-03"}, **waiting) == 0
    assert daily.scored == {3: 4 * ROWS, 4: 4 * ROWS}
    assert daily.facts["states"]["labels_waiting"] == 2  # the second of March ended two days ago
    fitted = [day for day in range(1, 5) if FIT in daily.records(day)]
    assert fitted == [1, 2]
    daily.day(5)
    assert daily.run(6, "07:00", **waiting) == 0
    assert EVALUATE in daily.records(3)
    assert EVALUATE not in daily.records(4)
    # The commands do the same, also without the daily job.
    facts = logcal.run("fit", daily.config(store={"table": "own"}, **waiting)).facts
    manifest = json.loads((daily.root / f"store/own/versions/{facts['version']}/manifest.json").read_text())
    assert manifest["window"]["last"] == "2026-03-03"
    facts = logcal.run("evaluate", daily.config(evaluate={"last": "1d"}, **waiting)).facts
    assert facts["window"]["last"] == "2026-03-03"
    with pytest.raises(InputRejectedError, match=r"all rows after 2026-02-24 wait for their labels"):
        logcal.run("fit", daily.config(log={"labels": {"wait": "9d"}}))
    with pytest.raises(ConfigError, match=r"log\.labels\.wait: expected labels\.path, or window\.column"):
        logcal.run(
            "fit", daily.config(log={"labels": {"wait": "9d"}}, window={"column": None, "last": "30d"})
        )


@pytest.mark.system
def test_a_fault_of_a_file_that_a_column_dates_costs_its_days_in_each_job(daily):
    """The files of other days are not opened, once their days are known."""
    dated = {"window": {"column": "made", "last": "7d", "suspect_days": "use"}}

    def part(day, **more):
        when = np.datetime64(f"2026-03-{day:02}", "us") + np.arange(ROWS).astype("timedelta64[m]")
        path = daily.part(day, 0, made=when, **more)
        path.rename(daily.root / f"log/{day:02}.parquet")

    for day in range(1, 6):
        part(day)
    part(3, score="score_v2")
    assert daily.run(5, days={"new": True, "begin": "2026-03-02"}, **dated) == 4
    assert daily.scored == {2: ROWS, 4: ROWS}
    # The fault of a day that is not complete yet is none of the others'.
    part(6)
    part(7, score="score_v2")
    assert daily.run(7, **dated) == 4
    assert daily.scored == dict.fromkeys((2, 4, 5, 6), ROWS)
    assert daily.state(6, **dated)["steps"][EVALUATE]["outcome"] == DONE
    # The commands alone, too: only the days that they use.
    own = {
        "output": {"path": str(daily.root / "own/{day}")},
        "report": {"path": str(daily.root / "page/{day}")},
    }
    day = {**dated, "window": {**dated["window"], "until": "2026-03-05"}}
    for job in ("evaluate", "score"):
        logcal.run(
            job,
            daily.config(
                evaluate={"last": "1d", "allow_in_sample": True}, score={"last": "1d"}, **own, **day
            ),
        )
    with pytest.raises(InputRejectedError, match="score_v2"):
        logcal.run("score", daily.config(score={"last": "1d"}, **own, **dated))


@pytest.mark.system
def test_a_fit_ends_with_the_newest_day_though_an_older_one_is_excluded(daily):
    dated = {"window": {"column": "made", "last": "7d", "suspect_days": "use"}}
    for day in range(1, 6):
        when = np.datetime64(f"2026-03-{day:02}", "us") + np.arange(ROWS).astype("timedelta64[m]")
        daily.part(day, 0, made=when).rename(daily.root / f"log/{day:02}.parquet")
    assert daily.run(6, days={"new": True}, **dated) == 0
    decide_on(str(daily.root / "store"), "ads", "2026-03-03", "exclude", "so")
    version = logcal.run("fit", daily.config(**dated)).facts["version"]
    window = json.loads((daily.root / f"store/ads/versions/{version}/manifest.json").read_text())["window"]
    assert window["last"] == "2026-03-05"
    assert [entry["day"] for entry in window["days_excluded"]] == ["2026-03-03"]


@pytest.mark.system
def test_a_moved_folder_has_the_same_days(daily, monkeypatch):
    """Configuration, log and store together: nothing is sorted, scored or fitted again."""
    here = daily.root = daily.root / "here"
    daily.day(1, 2, 3)
    values = daily.config(log={"path": "log"}, store={"path": "store"})
    values |= {"report": {"path": "reports/{day}"}, "output": {"path": "scored/{day}", "mode": "replace"}}
    (here / "day.yaml").write_text(json.dumps(values))
    assert daily.run_file(4, "days.new=true") == 0
    daily.day(4, 5)
    decide_on(str(here / "store"), "ads", "2026-03-01", "exclude", "a bad day")
    assert daily.run_file(6) == 0
    listed = list_days(str(here / "store"), "ads", [str(here / "day.yaml")]).summary
    tables = sorted(path.name for path in (here / "store/ads/days").iterdir())
    versions, records = daily.versions, (here / "store/ads/days.jsonl").read_bytes()
    daily.root = here.parent / "moved/there"
    daily.root.parent.mkdir()
    here.rename(daily.root)
    assert daily.run_file(6) == 99
    assert list_days(str(daily.root / "store"), "ads", [str(daily.root / "day.yaml")]).summary == listed
    assert sorted(path.name for path in (daily.root / "store/ads/days").iterdir()) == tables
    assert daily.versions == versions
    assert (daily.root / "store/ads/days.jsonl").read_bytes() == records
