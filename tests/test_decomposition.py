"""The parts of losses against scikit-learn's isotonic regression, chance against enumeration and simulation."""

import math
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from common import over
from hypothesis import given
from hypothesis import strategies as st
from sklearn.isotonic import IsotonicRegression
from sklearn.metrics import brier_score_loss, log_loss

import calibrators.measures.predictions as measures
from calibrators import collapse
from calibrators.arithmetic import ties
from calibrators.arithmetic.passes import Blocks, Points
from calibrators.measures.assessment import ReliabilityBin
from calibrators.measures.certainty import certain_passes
from calibrators.measures.decomposition import (
    chance_error,
    debiased_squared_error,
    mean_deviation,
    mean_losses,
)
from calibrators.measures.predictions import run_passes
from calibrators.measures.reliability_curve import consistency_band


def sample(n=2000, seed=0, digits=None, power=1.5):
    rng = np.random.default_rng(seed)
    p = np.sort(np.clip(rng.beta(0.5, 1.5, n), 1e-6, 1 - 1e-6))
    p = p if digits is None else p.round(digits)
    return Points(p, np.ones(n), (rng.random(n) < p**power).astype(float))


def parts_of(points, cuts=(), predict=None):
    points = Points(*ties.sum_ties(*points))
    _, bars, certainty = run_passes(certain_passes(predict), over(points, *cuts))
    return bars, certainty.decomposition


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


@pytest.mark.system
def test_chance_shows_what_right_probabilities_show():
    rng = np.random.default_rng(2)
    p = np.sort(rng.beta(0.5, 1.5, 1000))
    found = [
        parts_of(Points(p, np.ones(p.size), (rng.random(p.size) < p).astype(float)))[1] for _ in range(40)
    ]
    for name in ("brier", "log_loss"):
        shown = np.array([getattr(one, name).miscalibration for one in found])
        expected = getattr(found[0], name)
        assert shown.mean() == pytest.approx(expected.chance, rel=0.1)
        assert 0.85 <= np.mean(shown <= expected.chance_95) <= 1.0


@given(st.lists(st.tuples(st.integers(1, 2**40), st.floats(0, 1)), min_size=1, max_size=20))
def test_losses_of_blocks_are_their_formulas(blocks):
    rows = [(w, round(w * share)) for w, share in blocks]

    def log_loss(w, k):
        return -sum((part * (Decimal(part) / w).ln() for part in (k, w - k) if part), Decimal(0))

    total = tuple(map(sum, zip(*rows, strict=True)))
    wanted = [
        sum(map(loss, *zip(*some, strict=True))) / total[0]
        for some in (rows, [total])
        for loss in (lambda w, k: Decimal(k) * (w - k) / w, log_loss)
    ]
    w, k = np.array(rows, float).T.copy()
    zero = np.zeros(w.size)
    found = mean_losses(Blocks(zero, zero, w, zero, k, zero), np.array([0, w.size]))[0]
    np.testing.assert_allclose(found, np.array(wanted, float), rtol=1e-12, atol=1e-15)


_probabilities = st.one_of(
    st.floats(0.0, 1.0),
    st.floats(-300.0, 0.0).map(lambda x: 10.0**x),
    st.floats(-15.9, -0.1).map(lambda x: 1.0 - 10.0**x),
)


def deviation(size, p):
    return float(mean_deviation(np.array([size]), np.array([p]))[0])


@given(st.integers(1, 60), _probabilities)
def test_mean_deviation_of_a_count_is_that_of_all_its_values(m, p):
    exact = Fraction(p)
    wanted = sum(
        math.comb(m, k) * exact**k * (1 - exact) ** (m - k) * abs(Fraction(k, m) - exact)
        for k in range(m + 1)
    )
    assert deviation(float(m), p) == pytest.approx(float(wanted), rel=1e-11, abs=1e-320)


def log_factorial(n):
    """To some 25 digits."""
    if n < 50:
        return Decimal(math.factorial(n)).ln()
    series = zip((12, -360, 1260, -1680, 1188), (1, 3, 5, 7, 9), strict=True)
    rest = sum(1 / (divisor * Decimal(n) ** power) for divisor, power in series)
    rest += -Decimal(691) / 360360 / Decimal(n) ** 11 + 1 / (156 * Decimal(n) ** 13)
    twice_pi = 2 * Decimal("3.14159265358979323846264338327950288419717")
    return (Decimal(n) + Decimal("0.5")) * Decimal(n).ln() - n + twice_pi.ln() / 2 + rest


@given(st.integers(1, 2**30), _probabilities | st.floats(0.0, 1.0, width=16), st.floats(-0.49, 0.49))
def test_mean_deviation_of_large_counts_is_de_moivres(m, p, more):
    wanted = Decimal(0)
    if 0 < p < 1:
        with localcontext(prec=400):  # of 1 - p no digit is lost
            q = 1 - Decimal(p)
        with localcontext(prec=40):
            nu = math.floor(Fraction(p) * m) + 1
            ways = log_factorial(m) - log_factorial(nu) - log_factorial(m - nu)
            wanted = 2 * nu * q * (ways + nu * Decimal(p).ln() + (m - nu) * q.ln()).exp() / m
    assert deviation(m + more, p) == pytest.approx(float(wanted), rel=1e-11, abs=1e-320)


def test_mean_deviation_of_no_rows_is_that_of_one():
    assert deviation(0.2, 0.25) == 0.375


_groups = st.lists(st.tuples(st.integers(2, 40), st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=12)


@given(_groups, st.floats(0.1, 3.0))
def test_errors_of_groups_are_their_formulas(groups, scale):
    table = [ReliabilityBin(0, 1, m * scale, m * f, p, f, float(m), 0, 1) for m, p, f in groups]
    whole = sum(Fraction(one.weight) for one in table)
    shown = squared = Fraction(0)
    for one in table:
        p, f = Fraction(one.mean_prediction), Fraction(one.frequency)
        terms = (p - f) ** 2 - f * (1 - f) / (Fraction(one.effective_size) - 1)
        squared += Fraction(one.weight) * terms
        m = int(one.effective_size)
        deviation = (
            math.comb(m, k) * p**k * (1 - p) ** (m - k) * abs(Fraction(k, m) - p) for k in range(m + 1)
        )
        shown += Fraction(one.weight) * sum(deviation)
    assert chance_error(table) == pytest.approx(float(shown / whole), rel=1e-11, abs=1e-300)
    assert debiased_squared_error(table) == pytest.approx(float(squared / whole), rel=1e-11, abs=1e-15)


def test_groups_that_say_nothing():
    empty = ReliabilityBin(0.0, 0.1, 0.0, 0.0, None, None, 0.0, None, None)
    assert chance_error((empty,)) == 0.0
    assert debiased_squared_error((empty,)) is None
    one, two = (ReliabilityBin(0.0, 0.1, m, 0.0, 0.5, 0.0, m, 0.0, 0.1) for m in (1.0, 2.0))
    assert debiased_squared_error((two, one)) is None
    assert debiased_squared_error((two, empty)) == 0.25
    assert chance_error((two, empty, one)) == pytest.approx((2 * 0.25 + 0.5) / 3)


@pytest.mark.system
def test_the_band_holds_right_probabilities_and_shows_wrong_ones():
    rng = np.random.default_rng(5)
    p = np.sort(rng.beta(0.5, 1.5, 1500))
    inside, ici = [], []
    for _ in range(30):
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
