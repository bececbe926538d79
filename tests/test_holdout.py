"""Rows held out of a fit: how they are drawn, and what a gate makes of them."""

import json
import math
import shutil
from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
from common import over, write_lookup
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import log_loss, roc_auc_score

from calibrators import Isotonic
from calibrators.core.passes import Points, collapse
from pipeline.fit.holdout import PlainRows, RowWeights, measure_held_out
from pipeline.sort import division
from pipeline.sort.division import _salt, divide_points
from pipeline.table.lookup_table import Predictor


@dataclass(frozen=True)
class Split:
    """A share of the points' rows, against the others."""

    share: float

    def held(self, points):
        return self._some(points, 1)

    def kept(self, points):
        return self._some(points, 0)

    def _some(self, points, side):
        found = divide_points(self.share, points)[side]
        return Points(*(column[found.weight > 0] for column in found))


def rows_of(points):
    return PlainRows(over(points), RowWeights(points.weight.sum(), points.positives.sum()))


# The draw

counts = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=30)


@given(counts, st.floats(0.01, 0.99), st.integers(0, 2**32))
def test_every_row_is_held_out_or_kept_and_a_part_is_drawn_as_the_whole(rows, share, seed):
    random = np.random.default_rng(seed)
    negatives, positives = np.array(rows, float).T
    there = negatives + positives > 0
    if not there.any():
        return
    negatives, positives = negatives[there], positives[there]
    score = np.sort(random.choice(10**6, negatives.size, replace=False)) / 10**6
    whole = Points(score, negatives + positives, positives)
    split = Split(share)
    total = {}
    for part in (split.held(whole), split.kept(whole)):
        assert (part.weight > 0).all()
        assert ((part.positives >= 0) & (part.positives <= part.weight)).all()
        for s, w, k in zip(*part, strict=True):
            total[s] = np.add(total.get(s, (0, 0)), (w, k))
    np.testing.assert_array_equal(np.array([total[s] for s in score]), np.column_stack(whole[1:]))
    # Evenly: of m equal rows share * m, less or more than one.
    held = dict(zip(split.held(whole).score, np.column_stack(split.held(whole)[1:]), strict=True))
    for s, n, k in zip(score, negatives, positives, strict=True):
        w, p = held.get(s, (0, 0))
        assert abs(p - share * k) < 1
        assert abs(w - p - share * n) < 1
    # Whatever part of the rows there is, what is held out of it is held out of the whole, and kept likewise.
    some = [np.floor(column * random.random()) for column in (negatives, positives)]
    less = Points(score, some[0] + some[1], some[1])
    less = Points(*(column[less.weight > 0] for column in less))
    for choose in (split.held, split.kept):
        outer = dict(zip(choose(whole).score, np.column_stack(choose(whole)[1:]), strict=True))
        for s, w, k in zip(*choose(less), strict=True):
            assert k <= outer[s][1]
            assert w - k <= outer[s][0] - outer[s][1]


def test_the_draw_looks_random_and_is_always_the_same():
    score = np.arange(100_000) / 100_000
    label = np.arange(100_000) % 3 == 0
    held = Split(0.2).held(collapse(score, label))
    assert abs(len(held.score) - 20_000) < 4 * math.sqrt(100_000 * 0.16)
    assert abs(held.positives.sum() - 0.2 * label.sum()) < 4 * math.sqrt(label.sum() * 0.16)
    assert abs(held.score.mean() - 0.5) < 0.01
    # For ever: what a version was judged on must be found again.
    assert [float(s) for s in held.score[:4]] == [0.00016, 0.00017, 0.00019, 0.00025]
    assert len(Split(0.2).held(Points(*(np.array([x]) for x in (-0.0, 1.0, 0.0)))).score) == len(
        Split(0.2).held(Points(*(np.array([x]) for x in (0.0, 1.0, 0.0)))).score
    )


def test_rows_with_weights_go_one_way_a_score_and_label():
    random = np.random.default_rng(0)
    points = collapse(random.random(5000), random.random(5000) < 0.5, random.random(5000))
    held, kept = Split(0.3).held(points), Split(0.3).kept(points)
    assert not set(held.score) & set(kept.score)
    assert 0.25 < held.weight.sum() / points.weight.sum() < 0.35


# What is measured


def test_a_sampled_log_is_predicted_as_it_was_sampled(tmp_path):
    random = np.random.default_rng(2)
    score = random.random(40_000)
    label = random.random(40_000) < score**2 / 4
    there = label | (random.random(40_000) < 0.1)
    one = Isotonic().fit(score, label).calibration_map_
    rows = rows_of(collapse(score[there], label[there]))
    path = write_lookup(tmp_path / "lookup.parquet", one)
    sampled = measure_held_out(Predictor(path, sampling_rate=0.1), rows)
    assert sampled.bars.ratio == pytest.approx(1, abs=0.03)
    assert measure_held_out(Predictor(path), rows).bars.ratio > 2


def test_nothing_is_measured_of_one_label():
    points = collapse(np.arange(10) / 10, np.zeros(10))
    one = Isotonic().fit(np.arange(10) / 10, np.arange(10) > 4).calibration_map_
    rows = rows_of(points)
    found = measure_held_out(one.predict_ascending, rows, current=one.predict_ascending, fresh=rows)
    assert (found.rows.weight, found.rows.positives, found.bars, found.against) == (10, 0, None, None)
    assert rows.size.weight == 10


# The gate


@pytest.fixture
def gated(call):
    return lambda *settings, **paths: call("fit", "gate={holdout: 0.3}", *settings, "--json", **paths)


def test_what_passes_is_fitted_to_all_rows(place, call, gated):
    place.write_log(place.predictions(4000))
    plain = call("fit", "--json", store__table="plain").expect(0).json
    done = gated().expect(0).json
    assert done["fingerprint"] == plain["fingerprint"]
    held = done["gate"]["holdout"]
    assert held["tested"]
    assert not held["compared"]
    assert 1100 < held["rows"] < 1300
    assert held["observed_to_expected"] == pytest.approx(1, abs=0.15)
    assert held["against_raw"]["log_loss"]["difference"] < 0
    other = gated("gate.refit=false").expect(0).json
    assert other["fingerprint"] != plain["fingerprint"]
    # The same log: there is nothing that the current version has not seen.
    (warning,) = other["gate"]["warnings"]
    assert warning.startswith("the table was not compared with the current version: expected at least 100")
    assert other["gate"]["holdout"]["rows"] == held["rows"]


def test_a_table_that_is_worse_on_rows_that_are_new_is_refused(place, call, gated):
    place.write_log(place.predictions(6000))
    first = gated().expect(0).json["version"]
    place.write_log(place.predictions(4000, seed=1), name="log/more", files=1)
    coarse = ("calibrator.method=histogram", "calibrator.params={bins: 2}")
    assert "held-out rows: 0." in call("fit", "gate={holdout: 0.3}", store__table="b").expect(0).stdout
    refused = gated(*coarse).expect(4, "gate.holdout: the log loss on held-out rows goes from", "worse than")
    assert refused.json["exit_code"] == 4
    assert place.current == first
    held = place.newest_manifest["gate"]["holdout"]
    assert held["compared"]
    assert 1100 < held["rows_compared"] < 1300
    assert 2800 < held["rows"] < 3200
    done = gated("calibrator.params={strict: true}").expect(0).json
    assert done["gate"]["holdout"]["compared"]
    assert place.current == done["version"]


def test_too_few_rows_are_published_with_a_warning(place, gated):
    place.write_log(place.predictions(300))
    done = gated("gate.min_rows=100").expect(0).json
    assert "the table was not judged: expected at least 100 held-out rows" in done["gate"]["warnings"][0]
    assert done["gate"]["holdout"]["tested"] is False


def days(place, lost=0.0):
    """Four days of a log; of the last day's positives a share is lost."""
    for day in range(1, 5):
        columns = place.predictions(2000, seed=day)
        if day == 4 and lost:
            positive = np.flatnonzero(columns["label"])
            columns["label"][positive[: int(lost * positive.size)]] = 0
        place.write_log(columns, name=f"log/date=2026-01-0{day}", files=1)


def test_lost_positives_are_noticed(place, call):
    days(place, lost=0.5)
    refused = call("fit", "window.column=date", "window.suspect_days=use", "gate={holdout: 1d}", "--json")
    refused.expect(4, "gate.holdout: expected about", "positives on held-out rows", "more than chance")
    assert not (place.store / "ads" / "CURRENT").exists()


def test_what_does_not_go_with_a_holdout(place, call):
    days(place)
    for settings, said in (
        (("gate.holdout=1d",), "expected window.column with a number of days"),
        (("gate.holdout=30d", "window.column=date"), "expected fewer days than window.last (30d)"),
    ):
        call("fit", *settings).expect(2, said)


# Rows held out of a fit with segments

SHARE = 0.3
GATE = f"gate={{holdout: {SHARE}, min_rows: 100}}"


def countries(place, rows=4000, seed=0):
    """Predictions of three countries, each off in its own way, the last of them thin, in two sites."""
    columns = place.predictions(rows, seed)
    random = np.random.default_rng(seed + 100)
    country = random.choice(np.array(["at", "de", None], object), rows, p=[0.6, 0.38, 0.02])
    power = np.array([{"at": 1.0, "de": 3.0}.get(name, 2.0) for name in country])
    columns["label"] = (random.random(rows) < columns["score"] ** power).astype(np.int8)
    site = random.choice(["a", "b"], rows)
    return {**columns, "country": country.tolist(), "site": site.tolist()}


def drawn(columns, share=SHARE, by=("country",)):
    """Which rows of a log without ties are held out."""
    label = np.asarray(columns["label"], float)
    keys = list(zip(*(columns[name] for name in by), strict=True)) if by else [()] * label.size
    salt = np.array([_salt(key) if key else 0 for key in keys], np.uint64)
    points = Points(np.asarray(columns["score"]), np.ones(label.size), label)
    negatives, positives = division.draw_held_out(share, points, np.arange(label.size), salt)
    return negatives + positives > 0


def rows_at(columns, which):
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


@pytest.mark.parametrize("method", ["isotonic", "platt"])
def test_a_candidate_is_the_fit_without_the_rows_and_is_measured_as_score_predicts(place, call, method):
    columns = countries(place)
    place.write_log(columns)
    fit = ("log.segment=country", "segments.min_rows=200", f"calibrator.method={method}", "--json")
    done = call("fit", GATE.replace("}", ", refit: false}"), *fit).expect(0).json
    out = drawn(columns)
    place.write_log(rows_at(columns, ~out), name="rest")
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
    p = probabilities(place, call, done["version"], rows_at(columns, out))
    y = columns["label"][out]
    assert (held["rows"], held["rows_positive"]) == (out.sum(), y.sum())
    assert held["log_loss"] == pytest.approx(log_loss(y, p), rel=1e-12)
    assert held["auc"] == pytest.approx(roc_auc_score(y, p), rel=1e-12)
    assert held["observed_to_expected"] == pytest.approx(y.sum() / p.sum(), rel=1e-12)
    raw = log_loss(y, columns["score"][out])
    assert held["against_raw"]["log_loss"]["old"] == pytest.approx(raw, rel=1e-12)


@pytest.mark.parametrize(("before", "after"), [("", "country"), ("site,country", "country"), ("country", "")])
def test_the_current_version_predicts_as_score_does_whatever_its_segments(place, call, before, after):
    first, more = countries(place), countries(place, 8000, seed=1)
    for columns in (first, more):
        columns["site"] = ["a" if s < 0.7 else "b" for s in np.asarray(columns["score"])[::-1]]
    place.write_log(first)
    own = ("segments.min_rows=100", "--json")
    current = call("fit", f"log.segment=[{before}]", *own).expect(0).json["version"]
    place.write_log(more, name="log/more", files=1)
    fit = (f"log.segment=[{after}]", *own)
    ended = (0,) if after else (4, "worse than the current version")
    call("fit", GATE, *fit).expect(*ended)
    gate = place.newest_manifest["gate"]
    held = gate["holdout"]
    out = drawn(more, by=("country",) if after else ())
    asked, y = rows_at(more, out), more["label"][out]
    call("fit", GATE.replace("}", ", refit: false}"), *fit).expect(*ended)
    candidate = place.newest_manifest["version"]
    p, q = (probabilities(place, call, version, asked) for version in (current, candidate))
    assert held["compared"]
    assert held["rows_compared"] == out.sum()
    loss = held["against_current"]["log_loss"]
    assert loss["old"] == pytest.approx(log_loss(y, p), rel=1e-12)
    assert loss["new"] == pytest.approx(log_loss(y, q), rel=1e-12)
    each = [-np.log(np.where(y == 1, one, 1 - one)) for one in (p, q)]
    assert loss["error"] == pytest.approx(np.std(each[1] - each[0]) / math.sqrt(y.size), rel=1e-9)
    if not after:
        # Which countries it is worse for is said.
        worse = {tuple(one["segment"]) for one in held["segments_worse"]}
        assert worse
        assert worse <= {("at",), ("de",)}
        assert any("worse than the current version's beyond chance" in text for text in gate["warnings"])


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
    own = ("window.column=date", "log.segment=country", "segments.min_rows=100", "--json")
    fit = (*own, "gate={holdout: 1d}")
    call("fit", *fit).expect(0)
    plain = call("fit", *own, store__table="b")
    assert plain.expect(0).json["fingerprint"] == place.newest_manifest["fingerprint"]
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
    own = division.draw_held_out(share, finer, np.zeros(negatives.size, np.int64), salts)
    whole = Points(score[:1], *(np.array([column.sum()]) for column in finer[1:]))
    for mine, all_of_them, held in zip(
        own, division.draw_held_out(share, whole, None, salts[:1]), (negatives, positives), strict=True
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
    change = place.newest_manifest["gate"]["change"]
    new = place.newest_manifest["version"]
    p, q = (probabilities(place, call, version, swapped) for version in (old, new))
    assert change["mean"] == pytest.approx(np.abs(p - q).mean(), rel=0.02)
    assert change["mean_new"] == pytest.approx(q.mean(), rel=0.02)
    assert change["largest"] == pytest.approx(np.abs(p - q).max(), rel=0.02)
    # The same from a table of one map, whose rows say nothing of countries.
    plain = call("fit", "--json").expect(0).json["version"]
    call("fit", *fit).expect(0)
    change = place.newest_manifest["gate"]["change"]
    p = probabilities(place, call, plain, swapped)
    assert change["mean"] == pytest.approx(np.abs(p - q).mean(), rel=0.02)
    assert place.newest_manifest["fingerprint"] == place.manifest(new)["fingerprint"]


def test_tables_of_other_segments_change_by_an_unknown_amount(place, call):
    columns = countries(place)
    columns["site"] = ["a" if s < 0.7 else "b" for s in columns["score"]]
    place.write_log(columns)
    call("fit", "log.segment=country", "segments.min_rows=100").expect(0)
    done = call("fit", "log.segment=site", "--json").expect(0, "how far the probability changes is not known")
    assert "change" not in done.json["gate"]


# A table compared with another on the same rows, where either has segments


@pytest.fixture
def versions(place, call):
    """Three versions of a table: without segments, of countries, of sites and countries; and rows of the day after."""
    place.write_log(countries(place, 2500))
    found = {}
    for name, segment in (("plain", "[]"), ("country", "[country]"), ("both", "[site, country]")):
        fit = call("fit", f"log.segment={segment}", "segments.min_rows=150", "--json")
        found[name] = fit.expect(0).json["version"]
    new = countries(place, 2000, seed=1)
    new["country"][:20] = ["fr"] * 20  # a country that no table knows
    place.write_log(new, name="new")
    return found, new


@pytest.mark.parametrize(
    ("mine", "other"), [("country", "plain"), ("plain", "country"), ("both", "country"), ("country", "raw")]
)
def test_both_predict_as_score_does(place, call, versions, mine, other):
    found, new = versions
    label = np.asarray(new["label"])
    settings = (f"store.version={found[mine]}", f"evaluate.against={found.get(other, 'raw')}")
    done = call("evaluate", *settings, "--json", log__path=place.root / "new").expect(0).json
    q = probabilities(place, call, found[mine], new)
    p = np.asarray(new["score"]) if other == "raw" else probabilities(place, call, found[other], new)
    loss = done["comparison"]["log_loss"]
    assert loss["old"] == pytest.approx(log_loss(label, p), rel=1e-12)
    assert loss["new"] == pytest.approx(log_loss(label, q), rel=1e-12)
    assert loss["new"] == pytest.approx(done["after"]["log_loss"], rel=1e-12)
    each = np.array([-np.log(np.where(label == 1, one, 1 - one)) for one in (p, q)])
    difference = each[1] - each[0]
    assert loss["error"] == pytest.approx(np.std(difference) / math.sqrt(label.size), rel=1e-9)
    # Segment by segment, where these are the table's own.
    run = json.loads((place.output / "run.json").read_text())
    assert run["evaluation"]["comparison"]["log_loss"] == loss
    if mine == "country" and other != "both":
        assert done["segments"]["unseen_rows"] == 20
        assert "the table does not know: 20" in (place.output / "report.html").read_text()
        assert run["segments"]["worst"] == done["segments"]["worst"]
        table = pq.read_table(place.output / "segments.parquet").to_pylist()
        country = np.array(new["country"], object)
        for row in table:
            own = difference[country == row["country"]]
            assert row["log_loss_difference"] == pytest.approx(own.mean(), rel=1e-9, abs=1e-15)
            error = np.std(own) / math.sqrt(own.size)
            assert row["log_loss_difference_error"] == pytest.approx(error, rel=1e-6, abs=1e-12)
    if (mine, other) == ("plain", "country"):
        assert ["de"] in [one["segment"] for one in done["comparison"]["segments_worse"]]
        assert "in 2 of the segments: " in (place.output / "report.html").read_text()
    if (mine, other) == ("country", "plain"):
        assert done["comparison"]["segments_worse"] == []


def test_a_kept_table_of_segments_is_a_log_to_compare_on(place, call):
    place.write_log(countries(place, 2500))
    first = call("fit", "--json").expect(0).json["version"]
    own = ("log.segment=country", "segments.min_rows=150", "score_table.keep=true")
    kept = call("fit", *own, "--json").expect(0)
    version = kept.json["version"]
    table = place.store / "ads" / "versions" / version / "score_table"
    settings = (f"store.version={version}", f"evaluate.against={first}", "--json")
    one = call("evaluate", *settings, log__path=table).expect(0).json
    two = call("evaluate", *settings, output__path=place.root / "two").expect(0).json
    assert one["comparison"] == two["comparison"]
    turned = (f"store.version={first}", f"evaluate.against={version}", "--json")
    found = call("evaluate", *turned, log__path=table, output__path=place.root / "3").json["comparison"]
    assert found["log_loss"]["difference"] == -one["comparison"]["log_loss"]["difference"]
    sites = call("fit", "log.segment=site", "--json").expect(0).json["version"]
    wrong = (f"store.version={version}", f"evaluate.against={sites}")
    call("evaluate", *wrong, log__path=table, output__path=place.root / "4").expect(
        2, "evaluate.against: expected a log"
    )


def test_a_log_that_does_not_say_the_others_segments(place, call, versions):
    found, new = versions
    place.write_log({name: column for name, column in new.items() if name != "site"}, name="siteless")
    settings = (f"store.version={found['country']}", f"evaluate.against={found['both']}")
    refused = call("evaluate", *settings, log__path=place.root / "siteless")
    refused.expect(3, "evaluate.against: expected a log with the columns site")
    assert not place.output.exists()
