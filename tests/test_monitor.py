"""The monitor job through its own functions: days once each, alarms, segments, what is kept and what is refused."""

import datetime as dt
import json
import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from common import over

import logcal
from calibrators.arithmetic.passes import collapse
from calibrators.measures.drift import DriftState, evidence_pass
from jobs import fit, monitor
from jobs.config.jobs import FitConfig, MonitorConfig
from jobs.config.loading import load
from logcal.errors import CheckFailedError, ConfigError, NothingToDoError
from pipeline.evaluate.day_pages import render_drift
from pipeline.execution import InlineExecutor
from pipeline.sort import source
from pipeline.table.lookup_table import read_lookup_table

FIRST = dt.date(2026, 1, 1)


def write_day(folder, number, *, shift=0.0, rows=3000, missing=0, parts=1):
    rng = np.random.default_rng(number)
    score = rng.random(rows).round(3)
    odds = np.exp(shift) * score**2 / (1.001 - score**2)
    label = [bool(v) for v in rng.random(rows) < odds / (1 + odds)]
    table = pa.table(
        {
            "score": score,
            "label": pa.array([None] * missing + label[missing:], pa.bool_()),
            "part": np.arange(rows) % parts,
        }
    )
    place = folder / f"date={FIRST + dt.timedelta(days=number)}"
    place.mkdir(parents=True)
    pq.write_table(table, place / "rows.parquet")
    return score, np.array(label)


@pytest.fixture
def place(tmp_path):
    for number in range(3):
        write_day(tmp_path / "fitted", number, parts=2)
    return tmp_path


def publish(place, *more):
    settings = [
        f"log.path={place / 'fitted'}", f"store.path={place / 'store'}", "store.table=t", *more,
    ]  # fmt: skip
    return fit.prepare(load(FitConfig, settings=settings)).execute(InlineExecutor()).summary


def prepared(place, *more):
    settings = [
        f"log.path={place / 'log'}", f"store.path={place / 'store'}", "store.table=t", "window.column=date", *more,
    ]  # fmt: skip
    return monitor.prepare(load(MonitorConfig, settings=settings))


def look(place, *more):
    return prepared(place, *more).execute(InlineExecutor())


def test_each_day_is_looked_at_once_and_the_state_goes_on(place):
    published = publish(place)
    days = [write_day(place / "log", number) for number in (10, 11)]
    first = look(place)
    assert first.summary["days"] == 2
    assert not first.summary["alarm"]
    with pytest.raises(NothingToDoError, match="no day of the log is after 2026-01-12"):
        prepared(place)
    days.append(write_day(place / "log", 12))
    found = look(place)
    assert found.summary["days"] == 3
    calibration_map = read_lookup_table(published["lookup_path"]).map
    state = DriftState()
    for score, label in days:
        state = state.after(over(collapse(score, label))(evidence_pass(calibration_map.predict_ascending)))
    assert found.summary["log_e"] == state.log_e
    history = json.loads((place / "store/t/monitor" / f"{published['version']}.json").read_text())
    assert len(history["state"]["logs"]) + 1 == 11
    assert [day["day"] for day in history["days"]] == ["2026-01-11", "2026-01-12", "2026-01-13"]
    assert 0 < history["days"][0]["psi"] < 0.1
    assert history["days"][0]["observed"] == days[0][1].sum()


def test_drift_is_an_alarm_that_stays_on(place):
    publish(place)
    write_day(place / "log", 10)
    write_day(place / "log", 11, shift=0.5)
    page = f"report.path={place / 'page'}"
    with pytest.raises(CheckFailedError, match=r"Since 2026-01-12 the table underestimates: \d+ % more"):
        look(place, page)
    with pytest.raises(CheckFailedError, match="the table underestimates"):
        prepared(place)
    html = (place / "page/report.html").read_text()
    assert "the table underestimates" in html
    assert "Segments alarmed" not in html
    document = json.loads((place / "page/run.json").read_text())
    assert document["alarm"] is True
    assert document["history"][0]["log_e"] < math.log(100) < document["history"][1]["log_e"]
    # Whoever asks for a page after the alarm gets it.
    late = f"report.path={place / 'late'}"
    assert "write the page" in prepared(place, late).plan.stages[0]
    with pytest.raises(CheckFailedError, match="the table underestimates"):
        look(place, late)
    assert (place / "late/report.html").read_text() == html


def test_a_page_without_new_days_and_without_an_alarm_is_written_and_nothing_else(place):
    publish(place)
    write_day(place / "log", 10)
    look(place)
    with pytest.raises(NothingToDoError, match="no day of the log is after"):
        look(place, f"report.path={place}/{{day}}")
    assert "No drift was found in" in (place / "monitor/report.html").read_text()


def test_the_segment_that_drifts_is_named(place):
    publish(place, "log.segment=part", "segments.min_rows=10")
    for number in (10, 11, 12):
        write_day(place / "log", number, parts=2)
        file = next((place / "log").glob(f"date={FIRST + dt.timedelta(days=number)}/*"))
        table = pq.read_table(file, partitioning=None)
        part, label = table["part"].to_numpy(), table["label"].to_numpy(zero_copy_only=False).astype(bool)
        label |= (part == 1) & (np.random.default_rng(number).random(part.size) < 0.1)
        pq.write_table(table.set_column(1, "label", pa.array(label)), file)
    with pytest.raises(
        CheckFailedError,
        match=r"In 1 of 2 segments the positives differ from the prediction, most clearly in 1 \(more\)",
    ):
        look(place)


def test_days_without_all_labels_are_left_for_later(place):
    publish(place)
    write_day(place / "log", 10)
    write_day(place / "log", 11, missing=5)
    write_day(place / "log", 12)
    found = look(place)
    assert found.summary["last_day"] == "2026-01-11"
    assert any("2026-01-12 has 5 rows without a label yet" in line for line in found.lines)


def test_days_that_the_table_was_fitted_to_are_passed_over(place):
    publish(place, "window.column=date")
    for number in (1, 2, 3):
        write_day(place / "log", number)
    assert look(place).summary["last_day"] == "2026-01-04"
    history = next((place / "store/t/monitor").glob("*.json"))
    assert len(json.loads(history.read_text())["days"]) == 1


def test_other_settings_do_not_add_to_the_same_evidence(place):
    publish(place)
    write_day(place / "log", 10)
    look(place)
    write_day(place / "log", 11)
    with pytest.raises(ConfigError, match="move the file away to begin anew"):
        prepared(place, "monitor.tolerance=1.2")


@pytest.mark.parametrize(
    ("setting", "message"),
    [("log.weight=part", "independent rows"), ("window.column=null", "the column that dates the rows")],
)
def test_what_cannot_be_told_is_refused(place, setting, message):
    publish(place)
    write_day(place / "log", 10)
    with pytest.raises(ConfigError, match=message):
        prepared(place, setting)


def test_a_sampled_log_is_watched_at_its_own_odds(place):
    publish(place, "log.negative_sampling_rate=0.1")
    write_day(place / "log", 10)
    with pytest.raises(CheckFailedError):
        look(place)
    next((place / "store/t/monitor").glob("*.json")).unlink()
    assert not look(place, "log.negative_sampling_rate=0.1").summary["alarm"]


@pytest.mark.parametrize(
    "settings",
    [
        (),
        ("score_table.grid=1e-2",),
        ("log.segment=part",),
        ("log.segment=part", "log.negative_sampling_rate=0.5"),
    ],
)
def test_days_that_a_fit_has_kept_are_read_there(place, settings, monkeypatch):
    publish(place, *settings)
    write_day(place / "log", 10, parts=2)
    write_day(place / "log", 11, parts=2)
    rates = [one for one in settings if "rate" in one]
    look(place, *rates)
    history = place / "store" / "t" / "monitor"
    [anew] = [path.read_text() for path in history.glob("*.json")]
    for path in history.glob("*.json"):
        path.unlink()
    # Another fit keeps the days sorted, and publishes nothing that is looked at.
    kept = [
        f"log.path={place / 'log'}",
        "window.column=date",
        "window.last=5d",
        "store.publish=candidate",
        *settings,
    ]
    publish(place, *kept)
    monkeypatch.setattr(source, "add_scratch_days", None)
    look(place, *rates)
    [found] = [path.read_text() for path in history.glob("*.json")]
    assert found == anew
    # A file that came since is in no day table.
    monkeypatch.undo()
    write_day(place / "log", 12, parts=2)
    look(place, *rates)


def test_segments_say_what_their_rows_say(place):
    publish(place, "log.segment=part")
    score, label = write_day(place / "log", 10, parts=2)
    summary = look(place).summary
    [path] = (place / "store" / "t" / "monitor").glob("*.json")
    segments = json.loads(path.read_text())["segments"]
    table = logcal.load(str(place / "store"), "t")
    part = np.arange(score.size) % 2
    p = table.predict(score, {"part": part})
    for value, state in zip((0, 1), segments, strict=True):
        mine = part == value
        alone = over(collapse(p[mine], label[mine]))(evidence_pass(None))
        assert DriftState().after(alone).logs == pytest.approx(tuple(state["logs"]), rel=1e-12)
    whole = over(collapse(p, label))(evidence_pass(None))
    assert DriftState().after(whole).log_e == pytest.approx(summary["log_e"], rel=1e-12)


def test_the_page_has_no_distances_of_scores_where_no_day_has_any():
    day = {
        "day": "2026-01-01",
        "rows": 100,
        "observed": 5,
        "expected": 4.5,
        "log_e": 0.1,
        "segments_alarmed": 0,
    }
    page = render_drift("t", [{**day, "psi": None, "ks": None}], [], 0.01, 1.05)
    assert "PSI" not in page
    assert '<td class="num">1.111</td>' in page
    assert "PSI" in render_drift("t", [{**day, "psi": 0.1, "ks": 0.2}], [], 0.01, 1.05)
