"""Rows held out of a fit with segments: a row's probability is the one that `score` gives it, fallbacks included."""

import math
import shutil

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import log_loss, roc_auc_score

from calibrators.arithmetic.passes import Points
from pipeline.sort import division
from pipeline.sort.division import _salt

SHARE = 0.3
GATE = f"gate={{holdout: {SHARE}, min_rows: 100}}"


def countries(place, rows=4000, seed=0, *, digits=None, names=("at", "de", None)):
    """Predictions of three countries, each off in its own way, and some of one that is thin."""
    columns = place.predictions(rows, seed)
    random = np.random.default_rng(seed + 100)
    country = random.choice(np.array(names, object), rows, p=[0.6, 0.38, 0.02])
    power = np.array([{"at": 1.0, "de": 3.0}.get(name, 2.0) for name in country])
    columns["label"] = (random.random(rows) < columns["score"] ** power).astype(np.int8)
    if digits is not None:
        columns["score"] = np.round(columns["score"], digits)
    return {**columns, "country": country.tolist()}


def drawn(columns, share=SHARE, by=("country",)):
    """Which rows of a log without ties are held out."""
    label = np.asarray(columns["label"], float)
    keys = list(zip(*(columns[name] for name in by), strict=True)) if by else [()] * label.size
    salt = np.array([_salt(key) if key else 0 for key in keys], np.uint64)
    points = Points(np.asarray(columns["score"]), np.ones(label.size), label)
    negatives, positives = division.drawn(share, points, np.arange(label.size), salt)
    return negatives + positives > 0


def rows_of(columns, which):
    return {
        name: [value for value, there in zip(column, which, strict=True) if there]
        for name, column in columns.items()
    }


def probabilities(place, call, version, columns, name="asked"):
    """What `score` gives rows, in their order."""
    place.write_log(columns, name=name, files=1)
    output = place.root / f"{name}-{version}"
    paths = {"log__path": place.root / name, "output__path": output}
    call("score", f"store.version={version}", **paths).expect(0)
    found = pl.read_parquet(output / "part-0.parquet")["probability"].to_numpy()
    shutil.rmtree(output)
    return found


def manifest(place):
    return place.manifest(place.versions[-1])


@pytest.mark.parametrize("method", ["isotonic", "platt"])
def test_a_candidate_is_the_fit_without_the_rows_and_is_measured_as_score_predicts(place, call, method):
    columns = countries(place)
    place.write_log(columns)
    fit = ("log.segment=country", "segments.min_rows=200", f"calibrator.method={method}", "--json")
    done = call("fit", GATE.replace("}", ", refit: false}"), *fit).expect(0).json
    out = drawn(columns)
    place.write_log(rows_of(columns, ~out), name="rest")
    rest = (
        call("fit", *fit, "gate.min_rows=0", log__path=place.root / "rest", store__table="rest")
        .expect(0)
        .json
    )
    tables = [
        pq.read_table(place.store / name / "versions" / one["version"] / "lookup.parquet")
        for name, one in (("ads", done), ("rest", rest))
    ]
    assert tables[0].equals(tables[1])
    # Every row is somewhere.
    assert done["rows_used"] == rest["rows_used"] == (~out).sum()
    assert done["rows_read"] == 4000 == done["rows_used"] + done["rows_held_out"]
    held = done["gate"]["holdout"]
    p = probabilities(place, call, done["version"], rows_of(columns, out))
    y = columns["label"][out]
    assert (held["rows"], held["rows_positive"]) == (out.sum(), y.sum())
    assert held["log_loss"] == pytest.approx(log_loss(y, p), rel=1e-12)
    assert held["auc"] == pytest.approx(roc_auc_score(y, p), rel=1e-12)
    assert held["observed_to_expected"] == pytest.approx(y.sum() / p.sum(), rel=1e-12)
    raw = log_loss(y, columns["score"][out])
    assert held["against_raw"]["log_loss"]["old"] == pytest.approx(raw, rel=1e-12)


@pytest.mark.parametrize("before", ["none", "site,country"])
def test_the_current_version_predicts_as_score_does_whatever_its_segments(place, call, before):
    first, more = countries(place), countries(place, 3000, seed=1)
    for columns in (first, more):
        columns["site"] = ["a" if s < 0.7 else "b" for s in np.asarray(columns["score"])[::-1]]
    place.write_log(first)
    old = [] if before == "none" else [f"log.segment=[{before}]"]
    current = call("fit", *old, "segments.min_rows=100", "--json").expect(0).json["version"]
    place.write_log(more, name="log/more", files=1)
    fit = ("log.segment=country", "segments.min_rows=100", "--json")
    done = call("fit", GATE, *fit).expect(0).json
    held = done["gate"]["holdout"]
    out = drawn(more)
    asked, y = rows_of(more, out), more["label"][out]
    candidate = call("fit", GATE.replace("}", ", refit: false}"), *fit).expect(0).json["version"]
    p, q = (probabilities(place, call, version, asked) for version in (current, candidate))
    assert held["compared"]
    assert held["rows_compared"] == out.sum()
    loss = held["against_current"]["log_loss"]
    assert loss["old"] == pytest.approx(log_loss(y, p), rel=1e-12)
    assert loss["new"] == pytest.approx(log_loss(y, q), rel=1e-12)
    each = [-np.log(np.where(y == 1, one, 1 - one)) for one in (p, q)]
    assert loss["error"] == pytest.approx(np.std(each[1] - each[0]) / math.sqrt(y.size), rel=1e-9)


def test_a_table_without_segments_is_compared_with_one_that_has_some(place, call):
    first, more = countries(place), countries(place, 8000, seed=1)
    place.write_log(first)
    current = call("fit", "log.segment=country", "segments.min_rows=100", "--json").expect(0).json["version"]
    place.write_log(more, name="log/more", files=1)
    refused = call("fit", GATE, "--json").expect(4, "worse than the current version")
    assert refused.json["exit_code"] == 4
    held = manifest(place)["gate"]["holdout"]
    out = drawn(more, by=())
    asked, y = rows_of(more, out), more["label"][out]
    p = probabilities(place, call, current, asked)
    assert held["against_current"]["log_loss"]["old"] == pytest.approx(log_loss(y, p), rel=1e-12)
    assert held["rows_compared"] == out.sum()
    # Which countries it is worse for is said.
    assert {tuple(one["segment"]) for one in held["segments_worse"]} <= {("at",), ("de",)}
    assert held["segments_worse"]
    assert any(
        "worse than the current version's beyond chance" in text
        for text in manifest(place)["gate"]["warnings"]
    )


def test_a_log_without_the_current_versions_segments_is_not_compared(place, call):
    place.write_log(countries(place))
    call("fit", "log.segment=country", "segments.min_rows=100").expect(0)
    shutil.rmtree(place.log)
    place.write_log(place.predictions(5000, seed=3))
    done = call("fit", GATE, "--json").expect(0, "cannot be compared with the current version")
    assert done.json["gate"]["holdout"]["compared"] is False


def test_the_last_days_of_each_country_are_held_out(place, call):
    days = [countries(place, 2000, seed=day) for day in range(4)]
    for day, columns in enumerate(days, 1):
        place.write_log(columns, name=f"log/date=2026-01-0{day}", files=1)
    fit = (
        "window.column=date",
        "log.segment=country",
        "segments.min_rows=100",
        "gate={holdout: 1d}",
        "--json",
    )
    call("fit", *fit).expect(0)
    plain = call(
        "fit",
        "window.column=date",
        "log.segment=country",
        "segments.min_rows=100",
        "--json",
        store__table="b",
    )
    assert plain.expect(0).json["fingerprint"] == manifest(place)["fingerprint"]
    current = place.versions[-1]
    new = countries(place, 2000, seed=9)
    place.write_log(new, name="log/date=2026-01-05", files=1)
    done = call("fit", *fit).expect(0).json
    held = done["gate"]["holdout"]
    assert (held["rows"], held["rows_compared"]) == (2000, 2000)
    p = probabilities(place, call, current, new)
    assert held["against_current"]["log_loss"]["old"] == pytest.approx(log_loss(new["label"], p), rel=1e-12)
    # Fitted to the other days alone, every row of which is counted.
    last = call("fit", *fit, "gate.refit=false").expect(0).json
    assert (last["rows_used"], last["rows_held_out"], last["rows_read"]) == (8000, 2000, 10000)


cells = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), min_size=1, max_size=12)


@given(cells, st.floats(0.01, 0.99), st.integers(0, 2**63))
def test_points_of_one_cell_are_drawn_as_one(rows, share, salt):
    """Where a cell's rows lie in finer segments, as many are held out in all as if they did not."""
    negatives, positives = np.array(rows, float).T
    if not (negatives + positives).any():
        return
    score = np.full(negatives.size, 0.25)
    finer = Points(score, negatives + positives, positives)
    salts = np.full(negatives.size, salt, np.uint64)
    own = division.drawn(share, finer, np.zeros(negatives.size, np.int64), salts)
    whole = Points(score[:1], *(np.array([column.sum()]) for column in finer[1:]))
    for mine, all_of_them, held in zip(
        own, division.drawn(share, whole, None, salts[:1]), (negatives, positives), strict=True
    ):
        assert ((mine >= 0) & (mine <= held) & (mine == np.floor(mine))).all()
        assert mine.sum() == all_of_them[0]


def test_the_change_is_that_of_the_maps_that_rows_go_through(place, call):
    columns = countries(place, 6000)
    place.write_log(columns)
    fit = ("log.segment=country", "segments.min_rows=500", "--json")
    old = call("fit", *fit).expect(0).json["version"]
    # Two countries change places, and all rows together stay as they were.
    names = {"at": "de", "de": "at", None: None}
    swapped = {**columns, "country": [names[name] for name in columns["country"]]}
    shutil.rmtree(place.log)
    place.write_log(swapped)
    refused = call("fit", *fit, "gate={max_change: 0.2}").expect(4, "gate.max_change: expected 0.2 at most")
    assert refused.json["exit_code"] == 4
    change = manifest(place)["gate"]["change"]
    new = manifest(place)["version"]
    p, q = (probabilities(place, call, version, swapped) for version in (old, new))
    assert change["mean"] == pytest.approx(np.abs(p - q).mean(), rel=0.02)
    assert change["mean_new"] == pytest.approx(q.mean(), rel=0.02)
    assert change["largest"] == pytest.approx(np.abs(p - q).max(), rel=0.02)
    # The same from a table of one map, whose rows say nothing of countries.
    plain = call("fit", "--json").expect(0).json["version"]
    call("fit", *fit).expect(0)
    change = manifest(place)["gate"]["change"]
    p = probabilities(place, call, plain, swapped)
    assert change["mean"] == pytest.approx(np.abs(p - q).mean(), rel=0.02)
    assert manifest(place)["fingerprint"] == place.manifest(new)["fingerprint"]


def test_tables_of_other_segments_change_by_an_unknown_amount(place, call):
    columns = countries(place)
    columns["site"] = ["a" if s < 0.7 else "b" for s in columns["score"]]
    place.write_log(columns)
    call("fit", "log.segment=country", "segments.min_rows=100").expect(0)
    done = call("fit", "log.segment=site", "--json").expect(0, "how far the probability changes is not known")
    assert "change" not in done.json["gate"]
