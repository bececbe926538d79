"""Drift: the evidence against its formulas, the promise against simulated years, e-BH against its definition."""

import datetime as dt
import json
import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from common import over, prepared, run_job, write_log
from scipy.special import expit, logit
from scipy.stats import beta
from simulated_versions import LEVELS, Logs, alarms_without_drift, days_until_alarm, isotonic

import logcal
from calibrators import Isotonic, Points, collapse
from calibrators.core.passes import run_passes
from calibrators.measures.drift import CHANGES, DriftState, Evidence, alarms, evidence_pass, stability_index
from jobs.alarms import acknowledge
from logcal.errors import CheckFailedError, ConfigError, NothingToDoError
from logcal.reading import read_table
from pipeline.days import source
from pipeline.execution import InlineExecutor
from pipeline.files.folders import Folder
from pipeline.monitor.history import History, read_history
from pipeline.pages.day_pages import render_drift


def evidence(points, predict=None, tolerance=1.05, cuts=()):
    def passes():
        return (yield evidence_pass(predict, tolerance))

    return run_passes(passes(), over(points, *cuts))


def sample(n=4000, seed=0, weights=False):
    rng = np.random.default_rng(seed)
    p = np.sort(np.clip(rng.beta(0.3, 6.0, n), 1e-12, 1.0))
    w = rng.integers(1, 4, n).astype(float) if weights else np.ones(n)
    return Points(p, w, rng.binomial(w.astype(int), p).astype(float))


@pytest.mark.parametrize("tolerance", [1.0, 1.05, 1.5])
@pytest.mark.parametrize("weights", [False, True])
def test_evidence_is_the_log_likelihood_ratio(weights, tolerance):
    points = sample(weights=weights)
    p, w, k = points
    found = evidence(points, tolerance=tolerance, cuts=(10, 2000))
    for change, log in zip(CHANGES, found.logs, strict=True):
        z = logit(p) + math.copysign(math.log(tolerance), change)
        before, after = expit(z), expit(z + change)
        ratio = k @ np.log(after / before) + (w - k) @ (np.log1p(-after) - np.log1p(-before))
        assert log == pytest.approx(ratio, rel=1e-9, abs=1e-9)
    assert (found.rows, found.observed) == (w.sum(), k.sum())
    assert found.expected == pytest.approx(w @ p)
    assert evidence(points, tolerance=tolerance) == found


def test_a_label_that_was_called_impossible_alarms():
    points = Points(np.array([0.0, 0.5]), np.ones(2), np.array([1.0, 0.0]))
    state = DriftState().after(evidence(points))
    assert state.log_e == math.inf
    fine = Points(np.array([0.0, 1.0]), np.ones(2), np.array([0.0, 1.0]))
    assert math.isfinite(DriftState().after(evidence(fine)).log_e)


def test_the_state_is_the_mean_over_all_days_that_may_be_the_first():
    rng = np.random.default_rng(0)
    days = rng.normal(0, 1, (6, len(CHANGES)))
    state = DriftState()
    for t, logs in enumerate(days, 1):
        state = state.after(Evidence(tuple(logs), 1.0, 0.0, 0.0))
        starts = [np.exp(days[s - 1 : t].sum(0)) / (s * (s + 1)) for s in range(1, t + 1)]
        expected = np.sum(starts, 0).mean() + 1 / (t + 1)
        assert state.log_e == pytest.approx(math.log(expected))
    assert state.days == 6


def simulated(rng, days, shift, change_day=None, change=0.0):
    """E-values of a table of 20 levels with 1e5 rows a day at a rate of about 1 %, odds off by a factor exp(shift)."""
    p = expit(np.linspace(-7, -2, 20))
    rows = np.full(20, 5000)
    state, found = DriftState(), []
    for day in range(days):
        off = shift + (change if change_day is not None and day >= change_day else 0.0)
        k = rng.binomial(rows, expit(logit(p) + off)).astype(float)
        state = state.after(evidence(Points(p, rows.astype(float), k)))
        found.append(state.log_e)
    return np.array(found)


def simulated_years(rng, shifts, days):
    """The highest e-value of each of many years, all at once: as `simulated`, which takes a year at a time."""
    p = expit(np.linspace(-7, -2, 20))
    rows = np.full(20, 5000.0)
    zero, one = (np.array(evidence(Points(p, rows, k)).logs) for k in (np.zeros(20), np.eye(20)[0]))
    # Log likelihood ratios are lines in the positives, of the same slope at every probability.
    np.testing.assert_allclose(one - zero, CHANGES, atol=1e-9)
    off = expit(logit(p) + np.asarray(shifts)[:, None])
    logs, highest = np.full((len(off), len(CHANGES)), -np.inf), np.full(len(off), -np.inf)
    for t in range(1, days + 1):
        positives = rng.binomial(5000, off).sum(axis=1)
        logs = np.logaddexp(logs, -math.log(t * (t + 1))) + zero + positives[:, None] * np.array(CHANGES)
        mean = np.logaddexp.reduce(logs, axis=1) - math.log(len(CHANGES))
        highest = np.maximum(highest, np.logaddexp(mean, -math.log(t + 1)))
    return highest


def test_years_at_once_are_years_one_by_one():
    rng, again = np.random.default_rng(4), np.random.default_rng(4)
    for _ in range(2):
        one = simulated(rng, 20, 0.03)
        assert simulated_years(again, [0.03], 20)[0] == pytest.approx(one.max())


def test_eight_hundred_years_keep_the_promise():
    """A table within tolerance ever alarms with probability at most alpha, though it is looked at every day."""
    alpha, years = 0.01, 800
    # Odds off by nearly all that is tolerated, either way, and right.
    shifts = np.resize([0.0487, -0.0487, 0.0], years)
    alarmed = int((simulated_years(np.random.default_rng(7), shifts, 365) >= math.log(1 / alpha)).sum())
    # Clopper and Pearson's upper limit, 95 %, for the chance of an alarm in a year.
    assert beta.ppf(0.95, alarmed + 1, years - alarmed) <= alpha


def test_tests_of_many_logs_at_once_are_the_history_s():
    """The simulation does what the calibrator and the history do."""
    rows = np.full(LEVELS, 1000.0)
    positives = (
        np.random.default_rng(5).binomial(1000, expit(np.linspace(-3, 1, LEVELS)), (3, LEVELS)).astype(float)
    )
    positives[:, 4:12] = positives[:, [12, 11, 10, 9, 8, 7, 6, 5]]
    for found, k in zip(isotonic(rows, positives), positives, strict=True):
        fitted = Isotonic().fit_points(Points(np.arange(LEVELS, dtype=float), rows, k))
        np.testing.assert_allclose(found, fitted.predict(np.arange(LEVELS)), rtol=1e-12)
    logs, history = Logs(6, 2), History({})
    for day in range(40):
        odds = logs.odds + (0.0 if day < 20 else 0.3)
        version, state = logs.version[0], logs.random.bit_generator.state
        k = logs.draw(odds)[0]
        logs.random.bit_generator.state = state
        alarm = logs.day(odds)
        name = f"{day:06d}"
        history = history.renewed(name, (), 0.01, ()).after(
            str(FIRST + dt.timedelta(day)),
            name,
            evidence(Points(version, logs.rows, k)),
            {},
            (None, None),
            0.01,
        )
        assert history.state.log_e == pytest.approx(logs.log_e[0], abs=1e-6)
        assert history.alarmed(0.01) == alarm[0]
    assert [alarm.day for alarm in history.alarms] == [alarm.days[0] for alarm in history.alarms]
    assert len(history.alarms) >= 1


def test_versions_that_change_daily_keep_the_promise():
    """Fitted to the days before; true odds stay, or are off each day's version by nearly all that is tolerated."""
    alpha, logs = 0.01, 400
    off = np.resize([0.0487, -0.0487, np.nan, np.nan], logs)
    alarmed = int((alarms_without_drift(8, logs, 180, off) > 0).sum())
    assert beta.ppf(0.95, alarmed + 1, logs - alarmed) <= alpha


def test_a_drift_is_found_as_fast_with_a_version_a_day():
    found = {daily: days_until_alarm(9, 40, math.log(1.49), daily=daily, limit=20) for daily in (False, True)}
    assert np.median(found[True]) <= np.median(found[False]) + 1
    assert np.isfinite(found[True]).all()


def test_a_change_is_found_within_days():
    rng, limit = np.random.default_rng(1), math.log(1 / 0.01)
    for _ in range(5):
        e = simulated(rng, 26, 0.0, change_day=20, change=math.log(1.49))
        assert e[:20].max() < limit
        assert int(np.argmax(e >= limit)) - 20 + 1 <= 3


def test_many_tables_by_the_definition():
    rng = np.random.default_rng(2)
    for _ in range(50):
        log_e = rng.normal(3, 4, 12)
        e = np.sort(np.exp(log_e))[::-1]
        count = max([k for k in range(1, 13) if e[k - 1] >= 12 / (k * 0.05)], default=0)
        expected = np.isin(np.arange(12), np.argsort(-log_e)[:count])
        assert alarms(log_e, 0.05).tolist() == expected.tolist()
    assert alarms([math.log(100.0)], 0.01).tolist() == [True]
    assert alarms([math.log(99.0)], 0.01).tolist() == [False]


def test_stability_of_what_has_not_moved():
    rng = np.random.default_rng(3)
    reference = rng.multinomial(100_000, np.full(500, 1 / 500))
    psi = [stability_index(reference, rng.multinomial(50_000, np.full(500, 1 / 500)))[0] for _ in range(200)]
    assert np.mean(psi) == pytest.approx(19 * (1 / 100_000 + 1 / 50_000), rel=0.15)
    assert stability_index(reference, reference) == (0.0, 0.0)
    assert stability_index([1, 1], [0, 10])[1] == pytest.approx(0.5)


# The monitor job through its own functions

FIRST = dt.date(2026, 1, 1)


def test_a_last_cell_of_much_weight_is_a_group():
    reference, current = np.array([2.0, 3.0, 95.0]), np.array([5.0, 5.0, 90.0])
    p, q = ((np.array([5.0, 95.0]) + 0.5) / 101, (np.array([10.0, 90.0]) + 0.5) / 101)
    assert stability_index(reference, current)[0] == pytest.approx(np.sum((p - q) * np.log(p / q)))


def write_day(folder, number, *, shift=0.0, rows=3000, missing=0, parts=1):
    rng = np.random.default_rng(number)
    score = rng.random(rows).round(3)
    odds = np.exp(shift) * score**2 / (1.001 - score**2)
    label = [bool(v) for v in rng.random(rows) < odds / (1 + odds)]
    known = pa.array([None] * missing + label[missing:], pa.bool_())
    columns = {"score": score, "label": known, "part": np.arange(rows) % parts}
    write_log(folder / f"date={FIRST + dt.timedelta(days=number)}", columns)
    return score, np.array(label)


@pytest.fixture
def place(tmp_path):
    for number in range(3):
        write_day(tmp_path / "fitted", number, parts=2)
    return tmp_path


def publish(place, *more):
    return run_job(
        "fit", *more, log={"path": place / "fitted"}, store={"path": place / "store", "table": "t"}
    )


def planned(place, *more):
    own = {"log": {"path": place / "log"}, "store": {"path": place / "store", "table": "t"}}
    return prepared("monitor", *more, window={"column": "date"}, **own)


def look(place, *more):
    return planned(place, *more).execute(InlineExecutor())


def test_each_day_is_looked_at_once_and_the_state_goes_on(place):
    published = publish(place)
    days = [write_day(place / "log", number) for number in (10, 11)]
    first = look(place)
    assert first.summary["days"] == 2
    assert not first.summary["alarm"]
    with pytest.raises(NothingToDoError, match="no day of the log is after 2026-01-12"):
        planned(place)
    days.append(write_day(place / "log", 12))
    found = look(place)
    assert found.summary["days"] == 3
    calibration_map = read_table(published["lookup_path"]).map
    state = DriftState()
    for score, label in days:
        state = state.after(over(collapse(score, label))(evidence_pass(calibration_map.predict_ascending)))
    assert found.summary["log_e"] == state.log_e
    history = json.loads((place / "store/t/monitor/history.json").read_text())
    assert len(history["state"]["log_e_values"]) + 1 == 11
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
        planned(place)
    html = (place / "page/report.html").read_text()
    assert "the table underestimates" in html
    assert "Segments alarmed" not in html
    document = json.loads((place / "page/run.json").read_text())
    assert document["alarm"] is True
    assert document["history"][0]["log_e"] < math.log(100) < document["history"][1]["log_e"]
    # Whoever asks for a page after the alarm gets it.
    late = f"report.path={place / 'late'}"
    assert "write the page" in planned(place, late).plan.stages[0]
    with pytest.raises(CheckFailedError, match="the table underestimates"):
        look(place, late)
    assert (place / "late/report.html").read_text().partition("</time>")[2] == html.partition("</time>")[2]


def test_the_test_goes_on_over_versions_and_begins_anew_after_an_alarm(place):
    """Each day is compared with the version that was live before a fit read it; an alarm stays until it is closed."""

    def fit(*more):
        gate = "gate={max_rows_drop: 1, holdout: none, agreement: false}"
        window = ("window.column=date", "window.last=1d", "window.suspect_days=use")
        store = {"path": place / "store", "table": "t"}
        return run_job("fit", *window, gate, *more, log={"path": place / "log"}, store=store)["version"]

    def history():
        return read_history(Folder.at(place / "store/t"))

    page = f"report.path={place / 'page'}"
    write_day(place / "log", 10)
    first = fit()
    write_day(place / "log", 11)
    look(place, page)
    second = fit()
    write_day(place / "log", 12)
    found = look(place, page)
    assert found.summary["tested"] == {"2026-01-13": second}
    assert (found.summary["days"], history().state.days) == (2, 2)
    write_day(place / "log", 13, shift=0.7)
    with pytest.raises(
        CheckFailedError, match=r"Since 2026-01-1\d the table underestimates.*days acknowledge 2026-01-14"
    ):
        look(place, page)
    # The fit has come before the test: the day is compared with the version before it.
    third = fit()
    write_day(place / "log", 14, shift=0.7)
    fit()
    found = look(place, page)
    assert found.summary["tested"] == {"2026-01-15": third}
    assert not found.summary["alarm"]
    assert [(day.day, day.version) for day in history().days] == [
        ("2026-01-12", first), ("2026-01-13", second), ("2026-01-14", second), ("2026-01-15", third),
    ]  # fmt: skip
    assert history().state.days == 1
    html = (place / "page/report.html").read_text()
    assert "Alarm of <span" in html
    assert "2026-01-14</span>: Since" in html
    with pytest.raises(
        ConfigError, match="found 2026-01-13: alarms that nobody has closed are of 2026-01-14"
    ):
        acknowledge(str(place / "store"), "t", "2026-01-13", "x")
    assert (
        acknowledge(str(place / "store"), "t", "2026-01-14", "a <sale>").summary["alarm"]["version"] == second
    )
    with pytest.raises(NothingToDoError):
        look(place, page)
    html = (place / "page/report.html").read_text()
    assert "No alarm is open" in html
    assert "a &lt;sale&gt;" in html


def test_an_alarm_that_a_person_closes_begins_the_test_anew(place):
    publish(place)
    for number in (10, 11):
        write_day(place / "log", number, shift=0.5)
    with pytest.raises(CheckFailedError):
        look(place)
    acknowledge(str(place / "store"), "t", "2026-01-12", "known")
    with pytest.raises(NothingToDoError):
        planned(place)
    write_day(place / "log", 12, shift=0.5)
    with pytest.raises(CheckFailedError, match="days acknowledge 2026-01-13"):
        look(place)
    history = read_history(Folder.at(place / "store/t"))
    assert [alarm.days for alarm in history.alarms] == [("2026-01-11", "2026-01-12"), ("2026-01-13",)]
    assert history.state.days == 1
    assert [alarm.day for alarm in history.open_alarms({"2026-01-11"})] == ["2026-01-13"]
    late = Evidence((0.0,) * len(CHANGES), 10.0, 1.0, 1.0)
    for day, left in (("2026-02-10", 2), ("2026-02-11", 1), ("2026-02-12", 0)):
        following = history.renewed("v", (), 0.01, ()).after(day, "v", late, {}, (None, None), 0.01)
        assert len(following.open_alarms(())) == left


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


def test_other_settings_do_not_add_to_the_same_evidence(place, caplog):
    publish(place)
    write_day(place / "log", 10)
    look(place)
    write_day(place / "log", 11)
    found = look(place, "monitor.tolerance=1.2")
    assert "the test begins anew, since tolerance was 1.05 and is 1.2" in caplog.text
    assert found.summary["days"] == 2
    history = read_history(Folder.at(place / "store/t"))
    assert history.state.days == 1


@pytest.mark.parametrize(
    ("setting", "message"),
    [("log.weight=part", "independent rows"), ("window.column=null", "the column that dates the rows")],
)
def test_what_cannot_be_told_is_refused(place, setting, message):
    publish(place)
    write_day(place / "log", 10)
    with pytest.raises(ConfigError, match=message):
        planned(place, setting)


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
    kept = ["window.column=date", "window.last=5d", "store.publish=candidate", *settings]
    publish(place, f"log.path={place / 'log'}", *kept)
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
        assert DriftState().after(alone).log_e_values == pytest.approx(
            tuple(state["log_e_values"]), rel=1e-12
        )
    whole = over(collapse(p, label))(evidence_pass(None))
    assert DriftState().after(whole).log_e == pytest.approx(summary["log_e"], rel=1e-12)


def test_the_page_has_no_distances_of_scores_where_no_day_has_any():
    day = {"day": "2026-01-01", "rows": 100, "observed": 5, "expected": 4.5, "log_e": 0.1}
    day |= {"segments_alarmed": 0, "version": "000001-a", "set_aside": False}
    page = render_drift("t", [{**day, "psi": None, "ks": None}], [], 0.01, 1.05)
    assert "PSI" not in page
    assert '<td class="num">1.111</td>' in page
    assert "PSI" in render_drift("t", [{**day, "psi": 0.1, "ks": 0.2}], [], 0.01, 1.05)
