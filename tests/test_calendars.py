"""Time zones: zoneinfo and pandas say which day a timestamp belongs to."""

import datetime as dt
import json
from contextvars import copy_context
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import logcal
from logcal.errors import ConfigError, LogcalError
from pipeline.days.files import LogDays
from pipeline.days.states import DayRules, day_states
from pipeline.files import clock
from pipeline.labels.outcomes import LabelSource, Outcomes
from pipeline.log.calendars import DAY, Calendar, local_bounds, local_times, start_of
from pipeline.log.log_files import LogFile
from pipeline.log.windows import day_limits, day_number, day_of, days_of

ZONES = (
    "Europe/Berlin", "America/New_York", "America/St_Johns", "Asia/Kolkata", "Pacific/Apia", "Africa/Casablanca",
    "America/Sao_Paulo", "Australia/Lord_Howe", "America/Havana", "Asia/Tokyo", "Africa/Cairo",
)  # fmt: skip
"""St. John's set its clocks back from 00:01 to 23:01 of the day before, until 2011; Apia had no 30 December 2011;
Sao Paulo and Havana had days without a midnight, or with two."""
GATE = {"min_rows": 0, "min_positives": 0, "max_rows_drop": 1, "ranking": False, "holdout": "none"}


def days_by_zoneinfo(times, zone):
    return [day_number(dt.datetime.fromtimestamp(t // 1_000_000, ZoneInfo(zone)).date()) for t in times]


def hours(first, last, step=1):
    """Times from one day to another, every `step` minutes, in microseconds."""
    count = (dt.date.fromisoformat(last) - dt.date.fromisoformat(first)).days * 1440 // step
    return day_number(dt.date.fromisoformat(first)) * DAY + np.arange(count) * (step * 60_000_000)


@pytest.mark.parametrize("zone", ZONES)
@given(st.lists(st.integers(-(10**15), 4 * 10**15), min_size=1, max_size=50))
def test_local_times_are_those_of_zoneinfo(zone, times):
    found = local_times(np.array(times), zone)
    assert (found // DAY).tolist() == days_by_zoneinfo(times, zone)
    seconds = [
        dt.datetime.fromtimestamp(t // 1_000_000, ZoneInfo(zone)).replace(tzinfo=dt.UTC).timestamp()
        for t in times
    ]
    assert (found // 1_000_000).tolist() == seconds


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("year", [2010, 2011, 2026])
def test_days_of_a_year_to_the_minute_and_their_bounds(zone, year):
    times = hours(f"{year}-01-01", f"{year + 1}-01-01", 10)
    times = np.unique(np.concatenate([times, times + 60_000_000, times + 61_000_000]))
    days = local_times(times, zone) // DAY
    expected = (
        pd.to_datetime(times, unit="us", utc=True).tz_convert(ZoneInfo(zone)).tz_localize(None).normalize()
    )
    assert (days == expected.to_numpy().astype("datetime64[D]").astype(int)).all()
    for first, last in np.random.default_rng(0).integers(0, len(times), (100, 2)).tolist():
        first, last = min(first, last), max(first, last)
        low, high = local_bounds(int(times[first]), int(times[last]), zone)
        inside = days[first : last + 1]
        assert low // DAY == inside.min()
        assert high // DAY == inside.max()


def test_days_have_23_24_or_25_hours():
    for zone in ("Europe/Berlin", "America/New_York", "America/Sao_Paulo"):
        lengths = set()
        for day in range(day_number(dt.date(2018, 1, 1)), day_number(dt.date(2019, 1, 1))):
            begin, end = start_of(day, zone), start_of(day + 1, zone)
            # The day begins with its first second.
            assert days_by_zoneinfo([begin - 1_000_000, begin, end - 1_000_000], zone) == [day - 1, day, day]
            lengths.add((end - begin) // 3_600_000_000)
        assert lengths == {23, 24, 25}


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_columns_with_a_time_zone_have_its_days_and_others_those_written(unit):
    times = hours("2026-03-28", "2026-03-31")
    zoned = pa.array(times, pa.timestamp("us", "UTC")).cast(pa.timestamp(unit, "America/New_York"))
    found = days_of(zoned, "Europe/Berlin")
    assert found.tolist() == days_by_zoneinfo(times.tolist(), "Europe/Berlin")
    assert (days_of(zoned) == times // DAY).all()
    assert (days_of(zoned.cast(pa.timestamp(unit)), "Europe/Berlin") == times // DAY).all()
    nulls = pa.concat_arrays([pa.nulls(1, zoned.type), zoned])
    assert days_of(nulls, "Europe/Berlin")[1:].tolist() == found.tolist()


def test_tomorrow_is_that_of_the_zone(monkeypatch):
    monkeypatch.setattr(clock, "now", lambda: dt.datetime(2026, 3, 7, 20, tzinfo=dt.UTC))
    last = {zone: day_limits(Calendar("tomorrow", zone)).last for zone in ("UTC", "Asia/Tokyo")}
    assert {zone: day_of(day).day for zone, day in last.items()} == {"UTC": 8, "Asia/Tokyo": 9}


def test_a_day_is_complete_some_hours_after_its_end_in_the_zone():
    days = [day_number(dt.date(2026, 3, day)) for day in (28, 29)]  # the 29th has 23 hours in Berlin
    files = [LogFile(f"/log/{day}", f"{day}", 10, "1") for day in days]
    log = LogDays.of_spans(files, {str(day): (day, day) for day in days}, zone="Europe/Berlin")

    def newest(now, zone):
        states = day_states(log, {}, {}, DayRules(zone=zone), dt.datetime.fromisoformat(now))
        return None if states.newest is None else day_of(states.newest).day

    assert newest("2026-03-30T00:59+00:00", "Europe/Berlin") == 28  # 02:59 in Berlin
    assert newest("2026-03-30T01:00+00:00", "Europe/Berlin") == 29
    assert newest("2026-03-30T02:59+00:00", "UTC") == 28
    assert newest("2026-03-29T02:00+00:00", "Europe/Berlin") == 28
    assert newest("2026-03-29T01:59+00:00", "Europe/Berlin") is None


@given(st.integers(0, 10 * DAY), st.floats(0, 1), st.sampled_from([0, 3_600_000_000, 5 * DAY // 2]))
def test_the_last_day_with_known_labels_is_that_of_the_zone(offset, share, wait):
    zone, until = "Europe/Berlin", start_of(day_number(dt.date(2026, 3, 25)), "UTC") + offset
    source = LabelSource(("x",), ("k",), ("k",), time="t", predicted="t", wait=wait)
    found = Outcomes(source, until=until, zone=zone).known_day(share)
    known = []
    for day in range(found - 3, found + 4):
        begin, end = start_of(day, zone), start_of(day + 1, zone)
        # The first share of the day's time, at least its first microsecond, has waited long enough.
        if begin + 1 + round(share * (end - begin - 1)) + wait <= until:
            known.append(day)
    assert found == max(known)


# Jobs


class Zoned:
    """A log whose timestamps have a time zone, two files a day by UTC, over a change of the clocks."""

    zone = "Europe/Berlin"
    days = ("2026-03-26", "2026-03-31")

    def __init__(self, root, kind=None):
        self.root = root
        rng = np.random.default_rng(0)
        self.times = hours(*self.days, 4)
        rows = self.times.size
        score = rng.random(rows)
        self.made = pa.array(self.times, pa.timestamp("us", "UTC"))
        columns = {
            "score": score,
            "label": rng.random(rows) < score,
            "made": self.made,
            "id": np.arange(rows),
        }
        if kind is not None:
            columns["made"] = kind(self.made)
        self.table = pa.table(columns)
        (root / "log").mkdir()
        for i, first in enumerate(range(0, rows, 180)):
            pq.write_table(self.table.slice(first, 180), root / f"log/{i:02}.parquet", row_group_size=50)

    def config(self, **sections):
        values = {
            "log": {"path": str(self.root / "log")},
            "store": {"path": str(self.root / "store"), "table": "t"},
            "window": {"column": "made", "last": "9d", "timezone": self.zone, "suspect_days": "use"},
            "calibrator": {"method": "isotonic"},
            "gate": GATE,
            "cluster": {"kind": "inline"},
        }
        for name, keys in sections.items():
            values[name] = {**values.get(name, {}), **keys}
        return values

    @property
    def rows_by_day(self):
        """Rows of each day, by pandas."""
        local = self.made.to_pandas().dt.tz_convert(self.zone).dt.date.astype(str)
        return local.value_counts().to_dict()


def code_of(job, config):
    try:
        return logcal.run(job, config).facts and 0
    except LogcalError as error:
        return error.exit_code


def manifest_of(log, version):
    return json.loads((log.root / f"store/t/versions/{version}/manifest.json").read_text())


def test_fits_use_the_days_of_the_zone_and_keep_them_apart_from_those_of_another(tmp_path):
    log = Zoned(tmp_path)
    facts = logcal.run("fit", log.config()).facts
    window = manifest_of(log, facts["version"])["window"]
    assert window["timezone"] == "Europe/Berlin"
    assert {day["day"]: day["rows_used"] for day in window["days"]} == log.rows_by_day
    # 23 hours on the 29th, of 15 rows each; the log ends at 01:56 of the 31st, in Berlin.
    assert [log.rows_by_day[f"2026-03-{day}"] for day in (28, 29, 30, 31)] == [360, 345, 360, 30]
    one = logcal.run(
        "fit", log.config(window={"until": "2026-03-29", "last": "1d"}, store={"force": True})
    ).facts
    [day] = manifest_of(log, one["version"])["window"]["days"]
    assert (day["rows_used"], day["sorted_now"]) == (345, False)
    utc = logcal.run("fit", log.config(window={"timezone": "UTC"}, store={"force": True})).facts
    window = manifest_of(log, utc["version"])["window"]
    assert "timezone" not in window
    assert {day["rows_used"] for day in window["days"]} == {360}
    assert all(day["sorted_now"] for day in window["days"])
    # All rows are the same, however they are divided.
    tables = [tmp_path / f"store/t/versions/{run['version']}/lookup.parquet" for run in (utc, facts)]
    assert pq.read_table(tables[0]).equals(pq.read_table(tables[1]))


def test_each_job_has_the_days_of_the_zone(tmp_path):
    log = Zoned(tmp_path)
    before = {"until": "2026-03-28"}
    assert code_of("fit", log.config(window=before)) == 0
    report = {"report": {"path": str(tmp_path / "report/{day}")}}
    facts = logcal.run(
        "evaluate", log.config(**report, evaluate={"last": "1d"}, window={"until": "2026-03-29"})
    ).facts
    assert facts["measured"]["rows"] == 345
    facts = logcal.run("monitor", log.config(window={"until": "2026-03-30"})).facts
    assert (facts["days"], facts["last_day"]) == (2, "2026-03-30")
    output = {"output": {"path": str(tmp_path / "scored/{day}")}}
    facts = logcal.run(
        "score", log.config(**output, score={"last": "1d"}, window={"until": "2026-03-30"})
    ).facts
    assert (tmp_path / "scored/2026-03-30").is_dir()
    # Files are scored whole: those with a row of the day, which begins at 22:00 of the 29th in UTC.
    local = log.made.to_pandas().dt.tz_convert(log.zone).dt.date.astype(str).to_numpy()
    files = {int(i) // 180 for i in np.flatnonzero(local == "2026-03-30")}
    assert facts["rows"] == 180 * len(files)


def test_a_program_keeps_no_setting_of_a_job_that_it_has_run(tmp_path):
    log = Zoned(tmp_path)
    before = dict(copy_context())
    logcal.run("fit", log.config(log={"give_up": "1h"}, window={"newest": "2026-04-05", "timezone": "Asia/Tokyo"},
                                 store={"table": "other"}))  # fmt: skip
    with pytest.raises(LogcalError):
        logcal.run("fit", log.config(log={"give_up": "1h", "score": "absent"}))
    assert dict(copy_context()) == before
    day = manifest_of(log, logcal.run("fit", log.config()).facts["version"])["window"]["last"]
    assert day == "2026-03-31"


KINDS = {
    "timestamps without one": lambda made: made.cast(pa.timestamp("us")),
    "dates": lambda made: made.cast(pa.timestamp("us")).cast(pa.date32()),
    "text": lambda made: pa.array(
        [str(day) for day in made.cast(pa.timestamp("us")).cast(pa.date32()).to_pylist()]
    ),
    "numbers": lambda made: pa.array(
        [int(f"{day:%Y%m%d}") for day in made.cast(pa.timestamp("us")).cast(pa.date32()).to_pylist()]
    ),
}


@pytest.mark.parametrize("kind", [*KINDS, "folders"])
def test_a_zone_is_refused_where_days_are_as_written(tmp_path, kind):
    log = Zoned(tmp_path, KINDS.get(kind))
    if kind == "folders":
        days = tmp_path / "log/made=2026-03-26"
        days.mkdir()
        for file in (tmp_path / "log").glob("*.parquet"):
            pq.write_table(pq.read_table(file).drop_columns("made"), days / file.name)
            file.unlink()
    outputs = {
        "report": {"path": str(tmp_path / "reports/{day}")},
        "output": {"path": str(tmp_path / "scored/{day}")},
    }
    days = {"days": {"new": True}, **outputs}
    for job, sections in {"fit": {}, "days": days}.items():
        with pytest.raises(
            ConfigError, match=r"window\.timezone=Europe/Berlin: expected timestamps with a time zone"
        ):
            logcal.run(job, log.config(**sections))
    assert code_of("fit", log.config(window={"timezone": "UTC"})) == 0
    for job, name in {"score": "output", "evaluate": "report", "monitor": ""}.items():
        with pytest.raises(ConfigError, match=r"these days are as written; leave window\.timezone out"):
            logcal.run(job, log.config(**({name: outputs[name]} if name else {})))


def test_an_unknown_zone_is_refused_with_a_similar_name(tmp_path):
    log = Zoned(tmp_path)
    with pytest.raises(
        ConfigError, match=r"window\.timezone.*found 'Europe/Berln': did you mean Europe/Berlin\?"
    ):
        logcal.run("fit", log.config(window={"timezone": "Europe/Berln"}))
    with pytest.raises(ConfigError, match=r"window\.timezone: only goes with window\.column"):
        logcal.run("fit", log.config(window={"column": None}))


def test_one_file_without_a_zone_costs_itself(tmp_path):
    log = Zoned(tmp_path)
    table = log.table.slice(0, 180)
    table = table.set_column(2, "made", table["made"].cast(pa.timestamp("us")))
    pq.write_table(table, tmp_path / "log/00.parquet")
    with pytest.raises(LogcalError, match=r"00\.parquet: expected timestamps with a time zone") as caught:
        logcal.run("fit", log.config())
    assert caught.value.exit_code == 3
    facts = logcal.run("fit", log.config(window={"bad_days": "set_aside"})).facts
    window = manifest_of(log, facts["version"])["window"]
    assert sum(day["rows_used"] for day in window["days"]) == len(log.table) - 180


def test_joined_labels_wait_by_the_days_of_the_zone(tmp_path):
    log = Zoned(tmp_path)
    (tmp_path / "outcomes").mkdir()
    positive = log.table.filter(log.table["label"])
    # Outcomes come an hour later, known up to 30 March 12:00 in Berlin.
    known = pa.table(
        {
            "id": positive["id"],
            "time": pa.array(
                np.asarray(positive["made"].cast(pa.int64())) + 3_600_000_000, pa.timestamp("us", "UTC")
            ),
        }
    )
    end = start_of(day_number(dt.date(2026, 3, 30)), "Europe/Berlin") + DAY // 2
    known = known.filter(pa.array(np.asarray(known["time"].cast(pa.int64())) <= end))
    pq.write_table(known, tmp_path / "outcomes/a.parquet")
    labels = {"path": str(tmp_path / "outcomes"), "time": "time", "wait": "2h"}
    facts = logcal.run(
        "fit", log.config(log={"key": ["id"], "labels": labels}, window={"min_labelled": 1.0})
    ).facts
    window = manifest_of(log, facts["version"])["window"]
    used = {day["day"] for day in window["days"] if day["rows_used"]}
    assert used == {f"2026-03-{day}" for day in (26, 27, 28, 29)}
    assert [day["day"] for day in window["days_unlabelled"]] == ["2026-03-30", "2026-03-31"]


def test_the_daily_job_does_the_days_of_the_zone(tmp_path, monkeypatch):
    log = Zoned(tmp_path)
    outputs = {
        "report": {"path": str(tmp_path / "reports/{day}"), "mode": "replace"},
        "output": {"path": str(tmp_path / "scored/{day}"), "mode": "replace"},
    }

    def run(now, **sections):
        monkeypatch.setattr(clock, "now", lambda: dt.datetime.fromisoformat(f"2026-03-{now}+00:00"))
        try:
            return logcal.run("days", log.config(**outputs, **sections)).facts["states"]["arriving"]
        except LogcalError as error:
            return error.exit_code

    def days():
        return {path.name: pq.read_table(path).num_rows for path in sorted((tmp_path / "scored").iterdir())}

    # It is 2:59 in Berlin: the 29th is not complete.
    assert run("30T00:59", days={"new": True, "begin": "2026-03-27"}) == 3
    assert list(days()) == ["2026-03-27", "2026-03-28"]
    assert run("30T01:00") == 2
    assert list(days()) == ["2026-03-27", "2026-03-28", "2026-03-29"]
    assert run("30T01:00") == 99
    # In another zone days have other rows: what was done with the others is not done with these.
    assert run("31T07:00", window={"timezone": "America/New_York"}) == 0
    records = (tmp_path / "store/t/days.jsonl").read_text().splitlines()
    digests = {
        (entry["day"], entry["files"]) for entry in map(json.loads, records) if entry["step"] == "score"
    }
    assert len([day for day, _ in digests if day == "2026-03-29"]) == 2


def folders_of_days(root, zone, kind="UTC"):
    """Write a log of folders by the days of a zone, with timestamps beside them; returns the number of rows."""
    times = hours("2026-03-26", "2026-03-31", 15)
    days = local_times(times, zone) // DAY
    rng = np.random.default_rng(1)
    score = rng.random(times.size)
    table = pa.table(
        {
            "score": score,
            "label": rng.random(times.size) < score,
            "made": pa.array(times, pa.timestamp("us", "UTC")).cast(pa.timestamp("us", kind)),
        }
    )
    for day in np.unique(days).tolist():
        folder = root / f"log/day={day_of(day)}"
        folder.mkdir(parents=True)
        pq.write_table(table.filter(days == day), folder / "a.parquet")


@pytest.mark.parametrize(
    ("zone", "kind"),
    [("Europe/Berlin", "UTC"), ("Europe/Madrid", "Europe/Madrid"), ("Asia/Kathmandu", "UTC")],
)
def test_init_proposes_the_zone_of_the_folders_days(place, zone, kind):
    folders_of_days(place.root, zone, kind)
    result = place.run("init", "--daily", "log", "ads", "--json").expect(0).json
    assert result["settings"]["window.column"] == "made"
    assert result["settings"]["window.timezone"] == zone
    place.run("days", "run", "--config", "ads/day.yaml", "--new", "--until", "2026-03-30",
              "--set", "gate.min_rows=0", "--set", "gate.min_positives=0").expect(0)  # fmt: skip
    scored = pq.read_table(place.root / "ads/scored/2026-03-30")
    assert scored.num_rows == pq.read_table(place.root / "log/day=2026-03-30/a.parquet").num_rows


def test_init_says_utc_where_the_folders_have_its_days_or_no_zones(place):
    folders_of_days(place.root, "UTC")
    result = place.run("init", "--daily", "log", "ads", "--json").expect(0).json
    assert (result["settings"]["window.column"], result["settings"]["window.timezone"]) == ("day", "UTC")
    assert "timezone: UTC" in (place.root / "ads/day.yaml").read_text()
