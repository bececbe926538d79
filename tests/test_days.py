"""Days are described, compared with one another, set aside, and decided on by hand."""

import datetime as dt
import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated_days import KINDS, simulated_day

import logcal
from jobs.tables import decide_on, list_days
from logcal.errors import ConfigError, InputRejectedError
from pipeline.days.day_profiles import Profile, cell_of, middle_of
from pipeline.days.files import DayFiles
from pipeline.days.states import DayRules
from pipeline.days.suspect_days import (
    LIMIT,
    NUMBERS,
    DayFacts,
    Finding,
    _faults_of_day,
    _similar,
    suspect_days,
)
from pipeline.files.folders import Folder
from pipeline.table.journal import DECISIONS, read_decisions


def day(number, kind=None, **more):
    score, label, known = simulated_day(number, kind, **more)
    profile = Profile.of(score[known], np.ones(known.sum()), label[known].astype(float))
    return DayFacts(number, score.size, int((~known).sum()), profile)


def found(days, **more):
    return [finding.day for finding in suspect_days(days, **more) if not finding.drift]


def test_ordinary_days_are_used():
    days = [day(number) for number in range(30)]
    assert [found(days[last - 6 : last + 1]) for last in range(6, 30)] == [[]] * 24


@pytest.mark.parametrize("kind", KINDS)
def test_a_bad_day_is_set_aside_and_the_next_one_is_used(kind):
    days = [day(number, kind if number == 9 else None) for number in range(11)]
    assert found(days[3:10]) == [9]
    assert found(days[4:11]) == [9]
    (finding,) = suspect_days(days[3:10])
    assert all(reason and reason[0] != " " for reason in finding.reasons)


FINAL = ["inverted labels", "percent", "leaked labels", "labels missing", "twice", "no positives"]


@pytest.mark.parametrize("kind", FINAL)
def test_what_no_drift_explains_never_comes_in(kind):
    days = [day(number, kind if number in (8, 9) else None) for number in range(11)]
    assert found(days[4:11]) == [8, 9]


def test_a_day_whose_labels_all_wait_is_compared():
    unlabelled = DayFacts(2, 1000, 1000, Profile.total([]))
    assert found([unlabelled, *(day(number) for number in range(3, 10))]) == [2]


def test_scores_that_do_not_rank_are_not_called_inverted():
    """By chance the AUC of an honest day is two standard errors below one half once in 44 days."""
    score = np.arange(2000) / 2000
    for quarter, faulty in ((0.23, False), (0.12, True)):
        # Of 400 positives this share lies in each of the upper two quarters; 0.25 would be an AUC of one half.
        share = np.repeat([0.5 - quarter, 0.5 - quarter, quarter, quarter], 500)
        label = ((np.arange(2000) * 377 % 500) < 400 * share).astype(float)
        profile = Profile.of(score, np.ones(2000), label)
        reasons = _faults_of_day(DayFacts(1, 2000, 0, profile), [])
        assert any("inverted" in reason for reason in reasons) is faulty


def test_days_that_all_come_twice_are_counts_of_pairs():
    assert found([day(number, "twice") for number in range(7)]) == []


def test_days_alike_differ_by_the_variation_of_two_days():
    first, second = day(1), replace(day(1), day=2)
    for number in NUMBERS:
        for distance, alike in ((1.3, True), (1.5, False)):
            values = {n.name: (0.0, 0.0) for n in NUMBERS}
            other = values | {number.name: (distance * LIMIT * number.floor, 0.0)}
            # Of the distribution of scores the profiles themselves are compared.
            same = alike or number.name == "scores"
            assert _similar(first, second, {1: values, 2: other}) is same


def test_two_days_alike_are_drift():
    days = [day(number, drift=1.2 * (number >= 9), day_sd=0.0) for number in range(12)]
    assert found(days[3:10]) == [9]
    assert found(days[4:11]) == []
    assert [(own.day, own.drift, bool(own.reasons)) for own in suspect_days(days[4:11])] == [
        (9, True, True),
        (10, True, True),
    ]
    assert found(days[5:12]) == []


def test_a_bad_first_day_is_known_from_the_third_on():
    days = [day(number, "labels missing" if number == 0 else None) for number in range(4)]
    assert found(days[:1]) == []
    assert found(days[:3]) == [0]


@pytest.mark.parametrize(("labelled", "complete"), [(0, False), (749, False), (750, True), (None, True)])
def test_labels_are_complete_from_the_share_that_is_asked_for(labelled, complete):
    rules = DayRules(min_labelled=0.75)
    files = DayFiles(20454, rows=1000, labelled=labelled)
    assert rules.labels_complete(files, dt.datetime(2026, 1, 3, tzinfo=dt.UTC)) is complete


def test_labels_that_usually_come_later_are_no_fault():
    days = [day(number, "labels missing" if number == 6 else None) for number in range(7)]
    assert found(days) == [6]
    assert found([own if own.day < 6 else replace(own, usual_share=0.3) for own in days]) == []


def write(log, number, name="a", *, of=None, kind=None, rows=3000):
    """Write a simulated day, or that of another number, as a file of a day."""
    score, label, _ = simulated_day(number if of is None else of, kind, rows=rows, day_sd=0.0)
    folder = log / f"date=2026-01-{number:02}"
    folder.mkdir(parents=True, exist_ok=True)
    columns = {"score": score, "label": label, "c": np.arange(score.size) % 2}
    pq.write_table(pa.table(columns), folder / f"{name}.parquet")


def test_days_that_a_fit_set_aside_for_good_stay_aside_until_nothing_else_is_left(tmp_path):
    """Another model's scores, day after day, become what days are like only after a whole window, or by a person."""
    log, store = tmp_path / "log", tmp_path / "store"

    def fit():
        logcal.run(
            "fit",
            {
                "log": {"path": str(log)},
                "store": {"path": str(store), "table": "ads"},
                "window": {"column": "date", "last": "5d"},
                "gate": {"holdout": "none"},
            },
        )
        version = (store / "ads/CURRENT").read_text().strip()
        manifest = json.loads((store / f"ads/versions/{version}/manifest.json").read_text())
        aside = manifest["window"].get("days_set_aside", [])
        assert all(own["final"] for own in aside)
        return [int(own["day"][-2:]) - 1 for own in aside]

    for number in range(5):
        write(log, number + 1, of=number)
    assert fit() == []
    for number in range(5, 8):
        write(log, number + 1, of=number, kind="another model")
        assert fit() == list(range(5, number + 1))
    days = [day(number, "another model", rows=3000, day_sd=0.0) for number in range(5, 8)]
    kept = [Finding(number, final=True) for number in range(5, 8)]
    before = suspect_days([day(4, rows=3000), *days], remembered=kept)
    assert [finding.day for finding in before] == [5, 6, 7]
    assert suspect_days(days, remembered=before) == []
    # A person lets one in, and those like it come in with it.
    decide_on(str(store), "ads", "2026-01-07", "include", "the new model")
    assert fit() == []


def test_the_order_of_days_does_not_matter():
    days = [day(number, "half" if number == 2 else None) for number in range(6)]
    assert found(days) == found(days[::-1]) == [2]


@given(
    st.lists(
        st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([0.0, -0.0, 0.5, 1.0]),
        min_size=1,
        max_size=60,
    ),
    st.integers(0, 2**32 - 1),
)
def test_profiles_add_up_and_keep_the_order(scores, seed):
    rng = np.random.default_rng(seed)
    score = np.array(scores)
    label = rng.integers(0, 2, score.size).astype(float)
    whole = Profile.of(score, np.ones(score.size), label)
    part = rng.integers(0, 3, score.size)
    parts = [Profile.of(score[part == i], np.ones((part == i).sum()), label[part == i]) for i in range(3)]
    again = Profile.total(parts)
    assert all(np.array_equal(a, b) for a, b in zip(whole, again, strict=True))
    assert whole.weight.sum() == score.size
    assert whole.positives.sum() == label.sum()
    order = np.argsort(score, kind="stable")
    assert np.all(np.diff(cell_of(score[order])) >= 0)
    assert np.array_equal(cell_of(middle_of(whole.cell)), whole.cell) or 0.0 in np.abs(whole.score)


def test_decisions_hold_until_the_files_of_the_day_change(tmp_path):
    log, store = tmp_path / "log", str(tmp_path / "store")

    def excluded(segment=None):
        window = {"column": "date", "last": "4d", "suspect_days": "use"}
        table = {"path": store, "table": "ads"}
        of_log = {"path": str(log), "segment": segment or []}
        facts = {"log": of_log, "store": table, "window": window, "gate": {"holdout": "none"}}
        logcal.run("fit", facts | {"calibrator": {"method": "platt"}})
        newest = max((tmp_path / "store/ads/versions").iterdir())
        found = json.loads((newest / "manifest.json").read_text())["window"].get("days_excluded", [])
        return [(own["day"][-2:], own["reason"]) for own in found]

    for number in (1, 2, 3):
        write(log, number, rows=1500)
    write(log, 3, "b", rows=1500)
    excluded()
    decide_on(store, "ads", "2026-01-03", "exclude", "labels came twice")
    decide_on(store, "ads", "20260105", "exclude", "will be a holiday")
    assert excluded() == [("03", "labels came twice")]
    assert excluded(["c"]) == [("03", "labels came twice")]
    write(log, 4, rows=1500)
    write(log, 5, rows=1500)  # the tables of a day before are merged
    assert excluded() == [("03", "labels came twice"), ("05", "will be a holiday")]
    assert [row["holds"] for row in list_days(store, "ads").summary["decisions"]] == [True, True]
    decide_on(store, "ads", "2026-01-05", None, "")
    write(log, 3, "c", rows=1500)
    assert excluded() == []
    (line,) = list_days(store, "ads").lines
    assert "labels came twice (no longer: the day's files changed)" in line


def test_what_is_no_day_or_no_decision_is_said(tmp_path):
    (tmp_path / "ads").mkdir()
    (tmp_path / "ads" / "CURRENT").write_text("000001-abc")
    with pytest.raises(ConfigError, match="such as 2026-01-31, found 'yesterday'"):
        decide_on(str(tmp_path), "ads", "yesterday", "exclude", "x")
    for content in ("[1]", "{", json.dumps({"2026-01-31": {"decision": "exclude"}}), "[" * 100_000):
        (tmp_path / "ads" / DECISIONS).write_text(content)
        with pytest.raises(InputRejectedError, match=r"days\.json"):
            read_decisions(Folder.at(tmp_path / "ads"))
