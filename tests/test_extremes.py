"""Numbers at the ends of what doubles hold: an answer or a clear refusal, and no write beyond an array's end."""

import json

import numpy as np
import pytest
from common import assert_same_map, over, simulated

from calibrators import METHODS, Isotonic, collapse, project_isotonic
from calibrators.core.kernels import sums
from pipeline.fit.calibration import make_calibrator

ROWS = 400


def sample(scores=None, seed=0):
    u, label = simulated(ROWS, seed)
    return (u if scores is None else scores[(u * scores.size).astype(int)]), label


def fitted(method, score, label, weight=None):
    return make_calibrator(method, {}).fit(score, label, weight).calibration_map_


def expect_sound(rows, score):
    assert rows.problem() is None
    p = rows.predict(score)
    assert ((p >= 0) & (p <= 1)).all()


def test_weights_out_of_range_are_refused():
    score, label = sample()
    weights = np.ones(ROWS)
    for weight in (1.7e308, 1e101, 1e-101, 5e-324, -1.0, np.inf, np.nan):
        weights[[5, 300]] = weight
        with pytest.raises(ValueError, match="expected numbers from 1e-100 to 1e"):
            fitted("isotonic", score, label, weights)


@pytest.mark.parametrize("method", sorted(METHODS))
def test_weights_at_the_ends_of_the_range(method):
    score, label = sample()
    for weights in ([1e-100], [1e100], [1e-100, 1.0, 1e100])[2 if method in ("auto", "smooth") else 0 :]:
        weight = np.random.default_rng(1).choice(weights, ROWS)
        if method == "bbq" and weights[-1] == 1e100:
            with pytest.raises(ValueError, match="weights that add up to"):
                fitted(method, score, label, weight)
            continue
        expect_sound(fitted(method, score, label, weight), score)


def test_isotonic_levels_at_the_ends_of_the_range():
    """A common factor of the weights changes nothing: so powers of two, which change no digit, change no bit."""
    score, label = sample()
    weight = np.random.default_rng(2).random(ROWS)
    expected = Isotonic(ends=0).fit(score, label, weight).calibration_map_.predict(score)
    for factor in (2.0**-320, 2.0**-100, 2.0**300):
        scaled = Isotonic(ends=0).fit(score, label, weight * factor).calibration_map_
        assert scaled.monotone
        np.testing.assert_array_equal(scaled.predict(score), expected)


LARGEST = np.finfo(float).max
SCORES = {
    "near the largest double": np.linspace(0.5, 1.0, 400) * LARGEST,
    "near the smallest double": -np.linspace(0.5, 1.0, 400)[::-1] * LARGEST,
    "both": np.concatenate([-np.linspace(0.5, 1.0, 200)[::-1], np.linspace(0.5, 1.0, 200)]) * LARGEST,
    "denormal": np.arange(1, 401) * 5e-324,
    "both, and ordinary": np.concatenate([[-LARGEST], np.linspace(-1, 1, 398), [LARGEST]]),
}


@pytest.mark.parametrize("method", sorted(METHODS.keys() - {"bbq"}))
def test_scores_at_the_ends_of_doubles(method):
    for kind, scores in SCORES.items():
        score, label = sample(scores)
        if method == "beta" and kind != "denormal":
            with pytest.raises(ValueError, match=r"expected numbers in \[0, 1\]"):
                fitted(method, score, label)
            continue
        rows = fitted(method, score, label)
        expect_sound(rows, score)
        repaired, _ = project_isotonic(rows)
        assert repaired.monotone
        expect_sound(repaired, score)


@pytest.mark.parametrize("scores", SCORES)
def test_groups_of_large_scores_do_not_depend_on_parts(scores):
    points = collapse(*sample(SCORES[scores]))
    whole = make_calibrator("dgg", {}).fit_points(points).calibration_map_
    in_parts = make_calibrator("dgg", {}).fit_passes(over(points, 3, 150, 151))
    assert_same_map(in_parts.calibration_map_, whole)


def test_a_slope_beyond_the_largest_double_is_none_in_the_manifest(place, call):
    """The map is right all the same; the manifest is JSON, which has no infinity."""
    score, label = sample(SCORES["denormal"])
    place.write_log({"score": score, "label": label}, files=1)
    call("fit", "calibrator.method=platt", "calibrator.monotone=repair").expect(0)
    call("score").expect(0)
    (path,) = place.store.rglob("manifest.json")
    assert json.loads(path.read_text())["data"]["slope"] is None


def test_a_sum_beyond_the_largest_double_stays_within_its_array():
    guarded = np.full(3 * sums.MAX_COMPONENTS, 7.0)
    n = 0
    for x in [1.0, LARGEST, LARGEST, 1e-300, *np.random.default_rng(0).random(500)]:
        n = sums.add(guarded[: sums.MAX_COMPONENTS], n, x)
        assert n < sums.MAX_COMPONENTS
    assert (guarded[sums.MAX_COMPONENTS :] == 7.0).all()
    assert np.isnan(sums.rounded(guarded, n))
