"""The isotonic projection of maps, against scikit-learn."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.isotonic import IsotonicRegression

from calibrators import ENIR, CalibrationMap, HistogramBinning, Isotonic, Platt, project_isotonic
from calibrators.methods.isotonic import largest_fall
from logcal.errors import CheckFailedError
from pipeline.fit.calibration import keep_monotone


def fitted(calibrator, n=400, weighted=False):
    rng = np.random.default_rng(5)
    s = rng.random(n)
    z = rng.random(n) < 0.3 + 0.2 * s + 0.2 * np.sin(12 * s)
    return calibrator.fit(s, z, rng.exponential(size=n) if weighted else None).calibration_map_


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("calibrator", [ENIR(shrink=0), HistogramBinning(bins=25)])
def test_levels_become_their_weighted_isotonic_regression(calibrator, weighted):
    before = fitted(calibrator, weighted=weighted)
    assert not before.monotone
    assert largest_fall(before) > 0
    after, largest = project_isotonic(before)
    assert after.monotone
    assert largest_fall(after) == 0
    block = before.weight > 0
    level, weight = before.prob_lo[block], before.weight[block]
    expected = IsotonicRegression().fit_transform(np.arange(level.size), level, sample_weight=weight)
    np.testing.assert_allclose(after.prob_lo[after.weight > 0], expected, rtol=0, atol=1e-14)
    assert largest == pytest.approx(np.abs(expected - level).max())
    np.testing.assert_array_equal(after.score_lo[after.weight > 0], before.score_lo[block])
    assert weight @ expected == pytest.approx(weight @ level)
    assert project_isotonic(after) == (after, 0.0)


def test_what_the_policies_do():
    falling, rising = fitted(HistogramBinning(bins=25)), fitted(Isotonic())
    for policy in ("allow", "repair", "require"):
        assert keep_monotone(rising, policy) == (rising, 0.0)
    assert keep_monotone(falling, "allow") == (falling, 0.0)
    repaired, largest = keep_monotone(falling, "repair")
    assert repaired.monotone
    assert largest > 0
    with pytest.raises(CheckFailedError, match=r"decreases \(by 0\.\d+ at most\): nothing was published"):
        keep_monotone(falling, "require")


def test_a_falling_curve_becomes_its_mean():
    ends, levels = np.array([0.0, 1.0]), np.array([0.9, 0.1])
    falling = CalibrationMap.from_knots(ends, levels, np.array([0.0, 5.0, 0.0]), np.array([0.0, 2.0, 0.0]))
    after, largest = project_isotonic(falling)
    assert after.monotone
    np.testing.assert_allclose(after.predict([-1.0, 0.0, 0.5, 2.0]), 0.5)
    assert largest == pytest.approx(0.4)


@given(
    st.lists(st.floats(0, 1), min_size=2, max_size=12),
    st.lists(st.integers(0, 9), min_size=13, max_size=13),
    st.sampled_from([1.0, 5e-324, 1e-310, 1e308]),
)
def test_any_curve_of_knots_becomes_monotone_and_keeps_its_mean(levels, weight, unit):
    scores = np.arange(1, len(levels) + 1) * (unit / 20 if unit == 1e308 else unit)
    weight = np.array(weight[: len(levels) + 1], float)
    weight[0] += 1
    curve = CalibrationMap.from_knots(scores, np.array(levels), weight, np.zeros(weight.size))
    after, largest = project_isotonic(curve)
    assert after.monotone
    assert largest_fall(after) == 0
    assert 0 <= largest <= 1
    if unit == 1.0:
        mean = [rows.weight @ (sum(rows.ends()) / 2) for rows in (curve, after)]
        assert mean[0] == pytest.approx(mean[1], abs=1e-9)
    if curve.monotone:
        assert after is curve
    edges = [x for lo in after.score_lo[1:] for x in (np.nextafter(lo, -np.inf), lo)]
    assert (np.diff(after.predict(edges)) >= 0).all()


def test_a_falling_sigmoid_is_repaired():
    rng = np.random.default_rng(0)
    score = rng.random(500)
    sigmoid = Platt().fit(score, rng.random(500) > score).calibration_map_
    after, _ = project_isotonic(sigmoid)
    assert after.monotone
    np.testing.assert_allclose(after.predict(score), np.full(500, sigmoid.predict(score).mean()), atol=0.01)


def test_a_rising_curve_stays():
    rising = fitted(Platt())
    assert project_isotonic(rising) == (rising, 0.0)


def test_one_row():
    one = CalibrationMap.from_bins(np.empty(0), np.array([0.3]), np.ones(1), np.zeros(1))
    after, largest = project_isotonic(one)
    assert (after.prob_lo[0], largest) == (0.3, 0.0)
