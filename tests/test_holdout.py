"""Rows held out of a fit: how they are drawn, and what a gate makes of them."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
from common import over, write_lookup
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import log_loss, roc_auc_score

from calibrators import Isotonic
from calibrators.arithmetic.passes import Points
from pipeline.fit.holdout import PlainRows, Rows, measure_held_out
from pipeline.sort.division import sides
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
        found = sides(self.share, points)[side]
        return Points(*(column[found.weight > 0] for column in found))


def points_of(score, label, weight=None):
    weight = np.ones(len(score)) if weight is None else weight
    scores, place = np.unique(np.asarray(score, float), return_inverse=True)
    return Points(scores, np.bincount(place, weight), np.bincount(place, weight * np.asarray(label)))


def rows_of(points, *cuts):
    return PlainRows(over(points, *cuts), Rows(points.weight.sum(), points.positives.sum()))


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
    held = Split(0.2).held(points_of(score, label))
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
    points = points_of(random.random(5000), random.random(5000) < 0.5, random.random(5000))
    held, kept = Split(0.3).held(points), Split(0.3).kept(points)
    assert not set(held.score) & set(kept.score)
    assert 0.25 < held.weight.sum() / points.weight.sum() < 0.35


# What is measured


def test_measures_are_those_of_the_rows_that_are_held_out():
    random = np.random.default_rng(1)
    score = random.random(4000)
    label = random.random(4000) < score**2
    points, split = points_of(score, label), Split(0.25)
    held_scores = set(split.held(points).score)
    out = np.array([s in held_scores for s in score])
    old, new = (
        Isotonic(ends=1).fit(score[:1000] ** power, label[:1000]).calibration_map_ for power in (1, 1.5)
    )
    results = [
        measure_held_out(
            new.predict_ascending,
            rows_of(split.held(points), *cuts),
            current=old.predict_ascending,
            fresh=rows_of(split.held(points), *cuts),
            probabilities=True,
        )
        for cuts in ((), (7, 500, 501, 899))
    ]
    assert results[0].as_dict() == results[1].as_dict()
    found = results[0]
    p, q, y = old.predict(score[out]), new.predict(score[out]), label[out]
    assert (found.rows.weight, found.rows.positives) == (out.sum(), y.sum())
    assert found.loss == pytest.approx(log_loss(y, q), rel=1e-12)
    assert found.bars.auc == pytest.approx(roc_auc_score(y, q), rel=1e-12)
    assert found.against.log_loss.difference == pytest.approx(log_loss(y, q) - log_loss(y, p), rel=1e-9)
    each = [-np.log(np.where(y, one, 1 - one)) for one in (p, q)]
    assert found.against.log_loss.error == pytest.approx(
        np.std(each[1] - each[0]) / math.sqrt(out.sum()), rel=1e-9
    )
    assert found.raw.log_loss.old == pytest.approx(log_loss(y, score[out]), rel=1e-12)


def test_a_sampled_log_is_predicted_as_it_was_sampled(tmp_path):
    random = np.random.default_rng(2)
    score = random.random(40_000)
    label = random.random(40_000) < score**2 / 4
    there = label | (random.random(40_000) < 0.1)
    one = Isotonic().fit(score, label).calibration_map_
    rows = rows_of(points_of(score[there], label[there]))
    path = write_lookup(tmp_path / "lookup.parquet", one)
    sampled = measure_held_out(Predictor(path, sampling_rate=0.1), rows)
    assert sampled.bars.ratio == pytest.approx(1, abs=0.03)
    assert measure_held_out(Predictor(path), rows).bars.ratio > 2


def test_nothing_is_measured_of_one_label():
    points = points_of(np.arange(10) / 10, np.zeros(10))
    one = Isotonic().fit(np.arange(10) / 10, np.arange(10) > 4).calibration_map_
    rows = rows_of(points)
    found = measure_held_out(one.predict_ascending, rows, current=one.predict_ascending, fresh=rows)
    assert (found.rows.weight, found.rows.positives, found.bars, found.against) == (10, 0, None, None)
    assert rows.size.weight == 10


# The gate


@pytest.fixture
def gated(call):
    return lambda *settings, **paths: call("fit", "gate={holdout: 0.3}", *settings, "--json", **paths)


def manifest(place):
    return place.manifest(place.versions[-1])


def test_what_passes_is_fitted_to_all_rows(place, call, gated):
    place.write_log(place.predictions(4000))
    plain = call("fit", "--json", store__table="plain").expect(0).json
    done = gated().expect(0).json
    assert done["fingerprint"] == plain["fingerprint"]
    held = done["gate"]["holdout"]
    assert held["judged"]
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
    held = manifest(place)["gate"]["holdout"]
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
    assert done["gate"]["holdout"]["judged"] is False


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
    refused.expect(
        4, "gate.holdout: expected about", "positives on held-out rows", "more than chance explains"
    )
    assert not (place.store / "ads" / "CURRENT").exists()


def test_what_does_not_go_with_a_holdout(place, call):
    days(place)
    for settings, said in (
        (("gate.holdout=1d",), "expected window.column with a number of days"),
        (("gate.holdout=30d", "window.column=date"), "expected fewer days than window.last (30d)"),
    ):
        call("fit", *settings).expect(2, said)
