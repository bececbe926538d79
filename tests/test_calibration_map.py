"""The calibration map: evaluation, bounds, monotonicity, index."""

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.isotonic import IsotonicRegression

from calibrators import ENIR, CalibrationMap, HistogramBinning, Isotonic, project_isotonic
from calibrators.core.map import midpoints
from calibrators.isotonic.calibrator import largest_fall
from logcal.errors import CheckFailedError
from pipeline.fit.calibration import keep_monotone

finite = st.floats(allow_nan=False, allow_infinity=False)


def plain(rows: CalibrationMap, scores: np.ndarray) -> np.ndarray:
    """The definition, row by row."""
    i = np.searchsorted(rows.score_lo, scores, side="right") - 1
    with np.errstate(invalid="ignore", over="ignore"):
        line = rows.prob_lo[i] + rows.slope[i] * (scores - rows.anchor[i])
    return np.where(rows.slope[i] == 0, rows.prob_lo[i], line)


def blocks(scores: list[float], levels: list[float]) -> CalibrationMap:
    edges = np.array(scores)
    ones = np.ones(len(levels))
    return CalibrationMap.from_blocks(edges[0::2], edges[1::2], np.array(levels), ones, ones)


@st.composite
def monotone_maps(draw):
    scores = sorted(draw(st.lists(finite, min_size=2, max_size=40, unique=True)))
    scores = scores[: len(scores) // 2 * 2]
    levels = sorted(draw(st.lists(st.floats(0, 1), min_size=len(scores) // 2, max_size=len(scores) // 2)))
    return blocks(scores, levels)


@settings(deadline=None)  # numba takes its time at the first call
@given(monotone_maps(), st.lists(st.floats(allow_nan=False), min_size=1))
def test_the_map_is_its_rows_and_stays_in_bounds_and_order(rows, extra):
    around = np.concatenate([rows.score_lo, rows.score_hi, np.array(extra)])
    with np.errstate(over="ignore"):
        around = np.sort([around, np.nextafter(around, np.inf), np.nextafter(around, -np.inf)], axis=None)
    p = rows.predict(around)
    np.testing.assert_array_equal(p, plain(rows, around))
    np.testing.assert_array_equal(rows.predict_ascending(around), p)
    above = around > rows.score_hi[0]
    np.testing.assert_array_equal(rows.predict_ascending(around[above]), p[above])
    assert p.min() >= 0
    assert p.max() <= 1
    assert rows.monotone
    assert np.all(np.diff(p) >= 0)


def test_blocks_are_constant_and_gaps_linear():
    rows = blocks([0.1, 0.2, 0.4, 0.4], [0.25, 0.75])
    np.testing.assert_allclose(
        rows.predict([-np.inf, 0.0, 0.1, 0.2, 0.3, 0.4, 1.0, np.inf]), [0.25] * 4 + [0.5] + [0.75] * 3
    )
    assert rows.predict([0.2])[0] == 0.25
    assert np.isnan(rows.predict([np.nan])[0])
    assert rows.weight.sum() == 2


def test_a_gap_too_narrow_for_a_slope_is_a_step():
    tiny = 5e-324
    rows = blocks([0.0, 0.0, 3 * tiny, 3 * tiny], [0.0, 1.0])
    np.testing.assert_array_equal(rows.predict([0.0, tiny, 3 * tiny]), [0, 0, 1])
    wide = blocks([-1.7e308, -1.7e308, 1.7e308, 1.7e308], [0.0, 1.0])
    np.testing.assert_array_equal(wide.predict([-1.7e308, 0, 1.7e308]), [0, 0, 1])


@given(st.lists(finite, min_size=1, max_size=300, unique=True), st.randoms(use_true_random=False))
def test_the_index_finds_what_a_search_finds(edges, random):
    edges = np.unique(np.array(edges) + 0.0)
    level = np.array([random.random() for _ in range(edges.size + 1)])
    rows = CalibrationMap.from_bins(edges, level, np.ones(level.size), np.zeros(level.size))
    with np.errstate(over="ignore"):
        below = np.nextafter(edges, -np.inf)
    scores = np.concatenate([edges, below, [0.0, -0.0, np.inf, -np.inf], edges / 3])
    np.testing.assert_array_equal(rows.predict(scores), level[np.searchsorted(edges, scores, side="right")])


@given(finite, finite)
def test_midpoints_separate(a, b):
    low, high = min(a, b), max(a, b)
    if low < high:
        middle = midpoints(np.array([low]), np.array([high]))[0]
        assert low < middle <= high


def test_pickles_and_is_frozen():
    rows = blocks([0.1, 0.2, 0.4, 0.6], [0.25, 0.75])
    again = pickle.loads(pickle.dumps(rows))
    np.testing.assert_array_equal(again.predict([0.3]), rows.predict([0.3]))
    with pytest.raises(ValueError, match="read-only"):
        rows.prob_lo[0] = 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"score_lo": [0, 1]}, "-inf"),
        ({"score_hi": [2, np.inf]}, "gaps"),
        ({"prob_lo": [0.5, 1.5]}, r"\[0, 1\]"),
        ({"slope": [0, 1]}, "constant"),
        ({"weight": [1]}, "one length"),
        ({"anchor": [0, np.nan]}, "finite"),
    ],
)
def test_what_is_not_a_map_is_refused(change, message):
    good = {
        "score_lo": [-np.inf, 1], "score_hi": [1, np.inf], "prob_lo": [0.1, 0.9], "slope": [0, 0],
        "anchor": [0, 1], "weight": [1, 1], "positives": [0, 1],
    }  # fmt: skip
    columns = {name: np.array(value, float) for name, value in {**good, **change}.items()}
    with pytest.raises(ValueError, match=message):
        CalibrationMap(**columns)


# The isotonic projection of maps, against scikit-learn


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


def test_one_row():
    one = CalibrationMap.from_bins(np.empty(0), np.array([0.3]), np.ones(1), np.zeros(1))
    after, largest = project_isotonic(one)
    assert (after.prob_lo[0], largest) == (0.3, 0.0)
