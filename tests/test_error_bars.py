"""Error bars against brute force and textbook formulas; and the same however the points are cut."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
import scipy.special
import scipy.stats
import sklearn.metrics
from common import evaluate, over
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize
from scipy.special import expit, logit
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import brier_score_loss, log_loss

import calibrators.measures.in_memory as measures
from calibrators import Points, collapse
from calibrators.core import sorting
from calibrators.core.passes import run_passes
from calibrators.measures import engine
from calibrators.measures.assessment import ReliabilityBin
from calibrators.measures.certainty import ErrorBars, area_under_roc, certainty_passes, error_bar_passes
from calibrators.measures.comparison import comparison_passes
from calibrators.measures.decomposition import (
    chance_error,
    debiased_squared_error,
    mean_deviation,
)
from calibrators.measures.engine import MeasureOptions, column_passes
from calibrators.measures.reliability_curve import consistency_band
from calibrators.measures.spread import Spread, agreement, distances, lines, smooth_ece
from pipeline.evaluate.significance import observed_over_expected


def points_of(p, w, z):
    order = np.argsort(p, kind="stable")
    return Points(p[order], w[order], (w * z)[order])


def sample(n=3000, *, seed=0, digits=None, weights="one", power=1.3):
    rng = np.random.default_rng(seed)
    p = np.clip(rng.beta(0.5, 1.5, n), 1e-9, 1 - 1e-9)
    if digits is not None:
        p = p.round(digits)
    z = (rng.random(n) < p**power).astype(float)
    w = {"one": np.ones(n), "counts": rng.integers(1, 5, n) * 1.0, "real": rng.gamma(2.0, size=n)}[weights]
    return points_of(p, w, z)


def bars(points, predict=None, cuts=(), **options):
    return run_passes(error_bar_passes(predict, **options), over(points, *cuts))


def compared(points, old=None, new=None, cuts=(), **options):
    return run_passes(comparison_passes(old, new, **options), over(points, *cuts))


def squared(scores):
    return scores**2


def halved(scores):
    return scores / 2


def placements(p, w, k):
    """The AUC by all pairs of rows, and the spread of the shares that each positive and each negative wins."""
    n = w - k
    wins = (p[:, None] > p) + 0.5 * (p[:, None] == p)
    a, b = wins @ n / n.sum(), k @ wins / k.sum()
    auc = k @ a / k.sum()
    return auc, k @ (a - auc) ** 2, n @ (b - auc) ** 2


@pytest.mark.parametrize(
    ("digits", "weights"), [(None, "one"), (2, "one"), (1, "counts"), (None, "counts"), (1, "real")]
)
def test_auc_and_its_error_are_delongs_by_all_pairs(digits, weights):
    points = sample(800, digits=digits, weights=weights)
    p, w, k = points
    found = bars(points, cuts=(100, 300, 301))
    auc, *squares = placements(*points)
    variance = sum(s / (size * (size - 1)) for s, size in zip(squares, (k.sum(), (w - k).sum()), strict=True))
    assert found.auc == pytest.approx(auc, rel=1e-11)
    if weights != "counts":
        theirs = sklearn.metrics.roc_auc_score(k > 0, p, sample_weight=w)
        assert auc == pytest.approx(theirs, rel=1e-11)
    assert found.auc_error == pytest.approx(math.sqrt(variance), rel=1e-11)
    assert found.auc_low == pytest.approx(auc - 1.96 * math.sqrt(variance), abs=1e-5)


@pytest.mark.parametrize("weights", ["one", "counts", "real"])
def test_few_groups_are_ranked_as_by_the_engine(weights):
    points = sample(400, digits=2, weights=weights)
    groups = Points(*sorting.sum_ties(*points))
    found = area_under_roc(groups.weight, groups.positives)
    wanted = bars(points)
    assert found == pytest.approx((wanted.auc, wanted.auc_error), rel=1e-11)
    assert area_under_roc(np.array([2.0, 3.0]), np.array([2.0, 3.0])) == (None, None)
    assert area_under_roc(np.array([2.0, 3.0]), np.array([0.0, 1.0])) == (pytest.approx(0.75), None)


@pytest.mark.parametrize("weights", ["one", "counts", "real"])
def test_observed_over_expected_and_tests_equal_their_formulas(weights):
    points = sample(weights=weights)
    p, w, k = points
    found = bars(points)
    observed, expected, v = k.sum(), w @ p, w * p * (1 - p)
    assert found.observed == pytest.approx(observed)
    assert found.ratio == pytest.approx(observed / expected)
    assert found.ratio_z == pytest.approx((observed - expected) / math.sqrt(v.sum()))
    spiegelhalter = ((k - w * p) * (1 - 2 * p)).sum() / math.sqrt((v * (1 - 2 * p) ** 2).sum())
    assert found.spiegelhalter_z == pytest.approx(spiegelhalter)
    x = scipy.special.logit(p)
    u = np.array([(k - w * p).sum(), (x * (k - w * p)).sum()])
    information = np.array([[v.sum(), (v * x).sum()], [(v * x).sum(), (v * x * x).sum()]])
    test = u @ np.linalg.solve(information, u)
    assert found.score_test == pytest.approx(test, rel=1e-9)
    assert found.score_test_p == pytest.approx(scipy.stats.chi2.sf(test, 2), rel=1e-8)
    if weights == "one":
        wilson = scipy.stats.binomtest(int(observed), p.size).proportion_ci(method="wilson")
        assert found.ratio_low == pytest.approx(wilson.low / p.mean())
        assert found.ratio_high == pytest.approx(wilson.high / p.mean())


@pytest.mark.parametrize("unit", [1e100, 1e-100])
def test_weights_at_the_ends_of_their_range_are_measured(unit):
    points = sample(400, digits=2, weights="counts")
    far = Points(points.score, points.weight * unit, points.positives * unit)
    near, found = bars(points, cuts=(30, 200)), bars(far, cuts=(30, 200))
    assert found.auc == near.auc
    assert found.ratio == near.ratio
    assert found.observed == pytest.approx(near.observed * unit)
    # A variance is in the unit of the weights, and a standard error in its root.
    for name in ("ratio_z", "spiegelhalter_z"):
        assert getattr(found, name) == pytest.approx(getattr(near, name) * math.sqrt(unit))
    assert found.score_test == pytest.approx(near.score_test * unit)
    if unit > 1:
        _, first, second = placements(*points)
        k = points.positives.sum()
        variance = first / k**2 + second / (points.weight.sum() - k) ** 2
        assert found.auc_error == pytest.approx(math.sqrt(variance / unit))
    compared_far, compared_near = compared(far, halved, squared), compared(points, halved, squared)
    assert compared_far.log_loss.difference == compared_near.log_loss.difference


@pytest.mark.parametrize("weights", ["one", "counts", "real"])
def test_paired_differences_equal_their_formulas(weights):
    points = sample(weights=weights)
    p, w, k = points
    found = compared(points, halved, squared, cuts=(7, 2000))
    n = w - k
    losses = {
        "log_loss": [(-np.log(q), -np.log1p(-q)) for q in (p / 2, p**2)],
        "brier": [((1 - q) ** 2, q**2) for q in (p / 2, p**2)],
    }
    for name, (old, new) in losses.items():
        paired = getattr(found, name)
        d1, d0 = new[0] - old[0], new[1] - old[1]
        difference = (k @ d1 + n @ d0) / w.sum()
        error = math.sqrt(k @ (d1 - difference) ** 2 + n @ (d0 - difference) ** 2) / w.sum()
        assert paired.old == pytest.approx((k @ old[0] + n @ old[1]) / w.sum())
        assert paired.new == pytest.approx((k @ new[0] + n @ new[1]) / w.sum())
        assert paired.difference == pytest.approx(difference)
        assert paired.error == pytest.approx(error)
    share = k.sum() / w.sum()
    assert found.uncertainty == pytest.approx(scipy.stats.entropy([share, 1 - share]))
    assert found.expected_old == pytest.approx(w @ p / 2)
    assert found.absolute_difference == pytest.approx(w @ np.abs(p**2 - p / 2))


def test_equal_predictions_do_not_differ():
    found = compared(sample(500), squared, squared)
    assert (found.log_loss.difference, found.log_loss.error, found.absolute_difference) == (0.0, 0.0, 0.0)


def test_an_infinite_loss_is_counted_and_no_difference():
    points = Points(np.array([0.0, 0.5, 1.0]), np.array([4.0, 4.0, 4.0]), np.array([3.0, 2.0, 4.0]))
    found = compared(points, halved, None)
    assert (found.infinite_old, found.infinite_new) == (3.0, 3.0)
    assert found.log_loss.difference is None
    assert found.as_dict()["log_loss"]["new"] is None
    assert found.brier.difference is not None
    fine = Points(np.array([0.0, 1.0]), np.array([2.0, 2.0]), np.array([0.0, 2.0]))
    assert compared(fine, None, None).log_loss.new == 0.0


def test_what_does_not_exist_has_a_reason():
    ones = Points(np.array([0.2, 0.4]), np.ones(2), np.ones(2))
    found = bars(ones)
    assert found.auc is None
    assert "all rows have label 1" in found.reasons["auc"]
    certain = bars(Points(np.array([0.0, 1.0]), np.full(2, 3.0), np.array([1.0, 3.0])))
    assert certain.left_out == 6.0
    assert {"ratio_z", "spiegelhalter_z", "score_test"} <= certain.reasons.keys()
    scores = bars(Points(np.array([-2.0, 3.0]), np.full(2, 3.0), np.array([1.0, 3.0])), cuts=(1,))
    assert scores.expected is None
    assert scores.auc == pytest.approx(0.875)
    assert "not probabilities" in scores.reasons["ratio"]


def test_maps_that_leave_probabilities_are_refused():
    with pytest.raises(ValueError, match="probabilities in"):
        compared(Points(np.array([-1.0, 2.0]), np.ones(2), np.ones(2)), None, None)


# The parts of losses against scikit-learn's isotonic regression, chance against enumeration and simulation


def parts_of(points, cuts=(), predict=None):
    points = Points(*sorting.sum_ties(*points))
    _, bars, certainty = run_passes(certainty_passes(predict), over(points, *cuts))
    return bars, certainty.decomposition


@pytest.mark.parametrize("digits", [None, 2, 1])
def test_parts_of_losses_equal_those_of_scikit_learns_isotonic_regression(digits):
    points = sample(2000, digits=digits, power=1.5)
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
    found = [parts_of(Points(p, np.ones(p.size), 1.0 * (rng.random(p.size) < p)))[1] for _ in range(40)]
    for name in ("brier", "log_loss"):
        shown = np.array([getattr(one, name).miscalibration for one in found])
        expected = getattr(found[0], name)
        assert shown.mean() == pytest.approx(expected.chance, rel=0.1)
        assert 0.85 <= np.mean(shown <= expected.chance_95) <= 1.0


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
        terms = (math.comb(m, k) * p**k * (1 - p) ** (m - k) * abs(Fraction(k, m) - p) for k in range(m + 1))
        shown += Fraction(one.weight) * sum(terms)
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
        found = measures.certainty(rng.random(p.size) < p, p)
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
    wrong = measures.certainty(rng.random(p.size) < p, p**2)
    curve = wrong.decomposition.reliability
    assert np.mean(np.interp(curve.at, curve.predicted, curve.observed) > curve.high) > 0.8
    assert wrong.agreement.ici > wrong.decomposition.ici_chance_95


def test_measures_of_arrays_are_those_of_passes():
    points = sample(500, digits=2, power=1.5)
    shuffled = np.random.default_rng(0).permutation(500)
    p, w, z = (column[shuffled] for column in points)
    bars, parts = parts_of(points)
    assert measures.error_bars_points(Points(p, w, z)) == bars
    assert measures.certainty(z, p).decomposition == parts
    better = measures.compare(z, p, p**1.5).log_loss
    assert better.new == pytest.approx(log_loss(z, p**1.5))
    assert better.difference == pytest.approx(better.new - better.old)
    with pytest.raises(ValueError, match="y_prob_other: expected probabilities"):
        measures.compare(z, p, p * 2)


# Cox's line, distances to the recalibrated probability, smooth error


def spread_of(p, label, weight=None, cuts=()):
    points = collapse(p, label, weight)
    return Spread.of(run_passes(column_passes(MeasureOptions(cells=True)), over(points, *cuts)).cells)


def cox(spread, rate=1.0):
    """Intercept and slope, and their errors; None without them."""
    intercept, slope, *errors = lines(spread, rate)[0].tolist()
    return None if np.isnan(slope) else ((intercept, slope), tuple(errors))


def labelled(seed, n=4000, digits=2):
    rng = np.random.default_rng(seed)
    p = rng.beta(0.7, 2, n).clip(1e-9, 1 - 1e-9)
    p = p if digits is None else p.round(digits).clip(0.01, 0.99)
    return p, (rng.random(n) < expit(0.3 + 0.8 * logit(p))).astype(int)


_cells = st.lists(
    st.tuples(
        st.floats(1e-12, 1 - 1e-12) | st.sampled_from([5e-324, 1e-300, 1e-8, 0.5, 1 - 2**-53]),
        st.floats(0.5, 1e6),
        st.floats(0.01, 0.99) | st.sampled_from([0.0, 1.0]),
    ),
    min_size=2,
    max_size=30,
    unique_by=lambda cell: cell[0],
)


@given(_cells)
def test_nothing_is_left_to_gain_at_coxs_line(cells):
    p, w, share = np.array(sorted(cells)).T
    found = cox(Spread(p, w, w * share))
    if found is None:
        return
    (a, b), errors = found
    # Newton's step from there, in more digits.
    p, w, k = (np.longdouble(column) for column in (p, w, w * share))
    x = np.log(p) - np.log1p(-p)
    eta = a + b * x
    with np.errstate(over="ignore"):
        q, v = 1 / (1 + np.exp(-eta)), w / (2 + np.exp(-eta) + np.exp(eta))
    g, along, one, across, square = (
        terms.sum() for terms in (k - w * q, x * (k - w * q), v, v * x, v * x * x)
    )
    determinant = one * square - across**2
    steps = np.array([square * g - across * along, one * along - across * g]) / determinant
    digits = one * square / determinant
    assert np.abs(steps).max() <= (1e-11 + 1e-13 * float(digits)) * (1 + max(abs(a), abs(b)))
    wanted = np.sqrt(np.array([square, one]) / determinant)
    np.testing.assert_allclose(errors, wanted.astype(float), rtol=1e-8 + 1e-13 * float(digits))


def test_where_there_is_no_line():
    none = np.zeros(4)
    assert cox(Spread(np.array([0.2]), np.array([9.0]), np.array([3.0]))) is None
    assert cox(Spread(np.linspace(0.1, 0.9, 4), none + 5, none)) is None
    assert cox(Spread(np.array([0.0, 1.0]), np.array([3.0, 4.0]), np.array([1.0, 2.0]))) is None
    # Labels that a line parts have no finite maximum.
    parted = Spread(np.linspace(0.1, 0.9, 4), none + 5, np.array([0.0, 0, 5, 5]))
    assert cox(parted) is None
    assert "no threshold separates" in agreement(parted).reasons["slope"]


def test_sampled_negatives_move_the_intercept():
    p, y = labelled(2)
    rate = 0.1
    spread = spread_of(p, y)
    plain, sampled = cox(spread), cox(spread, rate)
    assert sampled[0][1] == pytest.approx(plain[0][1])
    assert sampled[0][0] == pytest.approx(plain[0][0] + np.log(rate))
    assert sampled[1] == pytest.approx(plain[1])
    assert agreement(spread, rate).ici is None


def test_intervals_of_sampled_logs_hold_right_probabilities():
    """A tenth of the negatives is kept: they say less about the number of negatives than they weigh."""
    rng = np.random.default_rng(5)
    inside = 0
    for _ in range(400):
        p = rng.beta(2.0, 2.0, 3000)
        y = rng.random(p.size) < p
        kept = y | (rng.random(p.size) < 0.1)
        points = points_of(p[kept], np.ones(kept.sum()), y[kept].astype(float))
        _, found, _ = run_passes(certainty_passes(None, rate=0.1), over(points))
        inside += found.ratio_low <= 1 <= found.ratio_high
    assert 370 <= inside <= 396


def close_predictions(distinct, n=20_000):
    """Predictions so close together that many share 1/512 of log odds, with labels that do not follow them."""
    rng = np.random.default_rng(8)
    values = np.sort(rng.uniform(0.30, 0.36, distinct))
    p = rng.choice(values, n)
    return p, (rng.random(n) < expit(3 * (logit(p) - logit(0.33)))).astype(int)


@pytest.mark.parametrize("cuts", [(), (3, 3, 90)])
def test_close_predictions_are_not_merged(cuts):
    p, y = close_predictions(200)
    assert np.unique(p).size == 200 > 1.5 * np.unique(np.floor(512 * logit(p))).size
    spread = spread_of(p, y, cuts=cuts)
    apart = np.abs(p - IsotonicRegression().fit_transform(p, y))
    expected = [apart.mean(), *np.quantile(apart, [0.5, 0.9], method="inverted_cdf")]
    np.testing.assert_allclose(distances(spread), expected, rtol=1e-11)
    line = LogisticRegression(C=np.inf, tol=1e-12, solver="newton-cholesky").fit(logit(p)[:, None], y)
    np.testing.assert_allclose(cox(spread)[0], [line.intercept_[0], line.coef_[0, 0]], rtol=1e-6)


@pytest.mark.parametrize("most", [199, 200])
def test_cells_do_not_depend_on_the_parts(monkeypatch, most):
    """Parts below the limit whose sum is above it are put into cells of log odds, as one part is."""
    monkeypatch.setattr(engine, "MOST_DISTINCT", most)
    p, y = close_predictions(200, n=3000)
    whole = spread_of(p, y)
    assert (whole.p.size == 200) == (most == 200)
    for cuts in ((1,), (50, 100, 150), (7, 199)):
        for a, b in zip(spread_of(p, y, cuts=cuts)[:3], whole[:3], strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("digits", "most", "tolerance"), [(2, 100, 1e-12), (None, 20_000, 1e-12), (None, 100, 1e-3)]
)
def test_distances_are_those_of_isotonic_regression(monkeypatch, digits, most, tolerance):
    monkeypatch.setattr(engine, "MOST_DISTINCT", most)
    p, y = labelled(3, digits=digits)
    apart = np.abs(p - IsotonicRegression().fit_transform(p, y))
    expected = [apart.mean(), *np.quantile(apart, [0.5, 0.9], method="inverted_cdf")]
    np.testing.assert_allclose(distances(spread_of(p, y)), expected, atol=tolerance)


@pytest.mark.parametrize("seed", [4, 5])
def test_the_smooth_error_is_the_width_at_which_it_is_the_error(seed):
    """By its definition: residuals at their places, a Gaussian reflected at both ends, an integral on a fine grid."""
    p, y = labelled(seed, n=500)
    found = smooth_ece(spread_of(p, y))
    t = np.linspace(0, 1, 1501)
    values, where = np.unique(p, return_inverse=True)
    residual = np.bincount(where, y - p) / p.size

    def error(width):
        total = np.zeros(t.size)
        for image in (values, -values, 2 - values):
            total += (residual * np.exp(-0.5 * ((t[:, None] - image) / width) ** 2)).sum(axis=1)
        return np.trapezoid(np.abs(total), t) / (width * np.sqrt(2 * np.pi))

    assert found == pytest.approx(optimize.brentq(lambda h: error(h) - h, 1e-3, 1), abs=1e-4)


@pytest.mark.parametrize(("p", "positives"), [(1e-4, 60.0), (1 - 1e-4, 940.0)])
def test_the_smooth_error_counts_the_whole_residual_at_an_end(p, positives):
    spread = Spread(np.array([p]), np.array([1000.0]), np.array([positives]))
    assert smooth_ece(spread) == pytest.approx(0.0599, abs=1e-6)


def test_segments_ratios_are_those_of_all_rows():
    rng = np.random.default_rng(6)
    p = np.full(800, 0.2)
    y = rng.random(800) < 0.25
    bars = ErrorBars(float(y.sum()))
    of_two = [(800.0, 3.0), (y.sum(), 0.0), (0.2, 0.0), ((p * (1 - p)).sum(), 0.0)]
    found = observed_over_expected(*map(np.array, of_two))
    from calibrators.measures.assessment import wilson_interval

    low, high = wilson_interval(y.mean(), 800)
    assert bars.observed == y.sum()
    np.testing.assert_allclose(
        [found[name][0] for name in ("ratio", "ratio_low", "ratio_high", "ratio_z")],
        [y.mean() / 0.2, low / 0.2, high / 0.2, (y.sum() - 160) / np.sqrt(128)],
    )
    assert all(np.isnan(column[1]) for column in found.values())


def test_chance_is_known_of_very_many_predictions_too(monkeypatch):
    from calibrators import Isotonic

    p, _ = labelled(8, digits=None)
    y = (np.random.default_rng(8).random(p.size) < p).astype(int)
    points = collapse(p, y)
    one = Isotonic().fit_points(points).calibration_map_

    def chance():
        found = evaluate(over(points), one, rows=p.size)
        return found.certainty_before.decomposition.log_loss.chance

    few = chance()
    monkeypatch.setattr(engine, "MOST_DISTINCT", 100)
    assert chance() == pytest.approx(few, rel=0.05)
