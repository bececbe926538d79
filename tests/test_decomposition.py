"""The parts of losses against scikit-learn's isotonic regression, chance against enumeration and simulation."""

import itertools

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.isotonic import IsotonicRegression
from sklearn.metrics import brier_score_loss, log_loss

from calibrators import collapse, measures
from calibrators.assessment import ReliabilityBin
from calibrators.decomposition import _mean_deviation, chance_error, debiased_squared_error, decompose
from calibrators.error_bars import assurance_passes
from calibrators.measures import assess, run_passes
from calibrators.passes import Points
from calibrators.reliability_curve import consistency_band


def sample(n=2000, seed=0, digits=None, power=1.5):
    rng = np.random.default_rng(seed)
    p = np.sort(np.clip(rng.beta(0.5, 1.5, n), 1e-6, 1 - 1e-6))
    p = p if digits is None else p.round(digits)
    return Points(p, np.ones(n), (rng.random(n) < p**power).astype(float))


def parts_of(points, cuts=(), predict=None):
    borders = [0, *sorted({c for c in cuts if 0 < c < points.score.size}), points.score.size]
    pieces = [Points(*(column[a:b].copy() for column in points)) for a, b in itertools.pairwise(borders)]
    run = lambda request: request.combine([request.chunk(piece) for piece in pieces])  # noqa: E731
    bars, corp, _ = run_passes(assurance_passes(predict), run)
    p = points.score if predict is None else predict(points.score)
    return bars, decompose(*corp, assess(p, points.weight, points.positives))


@pytest.mark.parametrize("digits", [None, 2, 1])
def test_parts_of_losses_equal_those_of_scikit_learns_isotonic_regression(digits):
    points = sample(digits=digits)
    p, _, z = points
    found = parts_of(points, (5, 300))[1]
    recalibrated = np.clip(IsotonicRegression().fit(p, z).predict(p), 0.0, 1.0)
    base = np.full(p.size, z.mean())
    for parts, loss in ((found.brier, brier_score_loss), (found.log_loss, log_loss)):
        clipped = np.clip(recalibrated, 1e-300, 1.0)
        score, best, unknown = (
            loss(z, np.column_stack([1 - q, q]) if loss is log_loss else q)
            for q in (np.clip(p, 1e-300, 1 - 1e-16), clipped, base)
        )
        assert parts.miscalibration == pytest.approx(score - best, abs=1e-12)
        assert parts.discrimination == pytest.approx(unknown - best, abs=1e-12)
        assert parts.uncertainty == pytest.approx(unknown, abs=1e-12)


@given(
    st.lists(st.tuples(st.integers(0, 12), st.booleans(), st.integers(1, 3)), min_size=1, max_size=30),
    st.lists(st.integers(1, 29), max_size=4),
    st.booleans(),
)
@settings(max_examples=100, deadline=None)
def test_no_bit_depends_on_the_parts(rows, cuts, mapped):
    s, z, w = (np.array(column, float) for column in zip(*sorted(rows), strict=True))
    points = Points(s / 12, w, w * z)
    predict = _coarse if mapped else None
    assert parts_of(points, cuts, predict) == parts_of(points, (), predict)


def _coarse(scores):
    return np.floor(scores * 4) / 4


def test_chance_shows_what_right_probabilities_show():
    rng = np.random.default_rng(2)
    p = np.sort(rng.beta(0.5, 1.5, 3000))
    found = [
        parts_of(Points(p, np.ones(p.size), (rng.random(p.size) < p).astype(float)))[1] for _ in range(60)
    ]
    for name in ("brier", "log_loss"):
        shown = np.array([getattr(one, name).miscalibration for one in found])
        expected = getattr(found[0], name)
        assert shown.mean() == pytest.approx(expected.chance, rel=0.1)
        assert 0.85 <= np.mean(shown <= expected.chance_95) <= 1.0


@pytest.mark.parametrize(("m", "p"), [(1, 0.3), (7, 0.5), (40, 0.01), (1000, 0.2), (10, 0.999), (5, 0.0)])
def test_mean_deviation_of_a_binomial_count(m, p):
    k = np.arange(m + 1)
    expected = scipy.stats.binom.pmf(k, m, p) @ np.abs(k - m * p) / m
    assert _mean_deviation(m, p) == pytest.approx(expected, rel=1e-10)


def test_errors_of_groups_and_what_chance_does_to_them():
    rng = np.random.default_rng(4)
    p = np.repeat(np.linspace(0.02, 0.4, 10), 300)
    shown, squared = [], []
    for _ in range(200):
        found = assess(p, None, (rng.random(p.size) < p).astype(float))
        shown.append(found.measures.ece_frequency)
        squared.append(debiased_squared_error(found.by_frequency))
    assert np.mean(shown) == pytest.approx(chance_error(found.by_frequency), rel=0.05)
    assert np.mean(squared) == pytest.approx(0.0, abs=4 * np.std(squared) / np.sqrt(200))
    assert min(squared) < 0 < max(squared)


def test_groups_that_say_nothing():
    empty = ReliabilityBin(0.0, 0.1, 0.0, 0.0, None, None, 0.0, None, None)
    assert chance_error((empty,)) == 0.0
    assert debiased_squared_error((empty,)) is None


def test_the_band_holds_right_probabilities_and_shows_wrong_ones():
    rng = np.random.default_rng(5)
    p = np.sort(rng.beta(0.5, 1.5, 3000))
    inside, ici = [], []
    for _ in range(40):
        found = measures.certainty(p, None, rng.random(p.size) < p)
        curve = found.decomposition.reliability
        level = np.interp(curve.at, curve.predicted, curve.observed)
        inside.append(np.mean((level >= curve.low) & (level <= curve.high)))
        ici.append(found.agreement.ici)
    assert np.mean(inside) == pytest.approx(0.9, abs=0.04)
    assert np.mean(ici) == pytest.approx(found.decomposition.ici_chance, rel=0.1)
    assert np.mean(np.array(ici) > found.decomposition.ici_chance_95) < 0.2
    theirs = consistency_band(collapse(p, np.zeros(p.size)), level=0.9)
    for name in ("low", "high"):
        ours = np.interp(theirs.predicted, curve.at, getattr(curve, name))
        assert np.abs(ours - getattr(theirs, name)).mean() < 0.01
    wrong = measures.certainty(p**2, None, rng.random(p.size) < p)
    curve = wrong.decomposition.reliability
    assert np.mean(np.interp(curve.at, curve.predicted, curve.observed) > curve.high) > 0.8
    assert wrong.agreement.ici > wrong.decomposition.ici_chance_95


def test_weights_that_are_no_counts_are_drawn_as_so_many_rows():
    rng = np.random.default_rng(6)
    p = np.sort(rng.random(4000))
    quarter = measures.certainty(p, np.full(p.size, 0.25), 0.25 * (rng.random(p.size) < p))
    few = np.sort(rng.random(1000))
    whole = measures.certainty(few, None, rng.random(1000) < few)
    assert quarter.decomposition.ici_chance == pytest.approx(whole.decomposition.ici_chance, rel=0.15)


def test_measures_of_arrays_are_those_of_passes():
    points = sample(500, digits=2)
    shuffled = np.random.default_rng(0).permutation(500)
    p, w, z = (column[shuffled] for column in points)
    bars, parts = parts_of(points)
    assert measures.error_bars(p, w, z) == bars
    assert measures.certainty(p, None, z).decomposition == parts
    better = measures.compare(p, p**1.5, None, z).log_loss
    assert better.new == pytest.approx(log_loss(z, p**1.5))
    assert better.difference == pytest.approx(better.new - better.old)
    with pytest.raises(ValueError, match="new: expected probabilities"):
        measures.compare(p, p * 2, None, z)
    with pytest.raises(AttributeError):
        _ = measures.no_such_measure
