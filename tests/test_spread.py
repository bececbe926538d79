"""Cox's line, distances to the recalibrated probability, smooth error: from cells, against what these stand for."""

from __future__ import annotations

import numpy as np
import pytest
from common import evaluate, over
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize
from scipy.special import expit, logit
from sklearn.isotonic import IsotonicRegression

from calibrators.arithmetic.passes import collapse
from calibrators.measures.certainty import ErrorBars
from calibrators.measures.engine import Wanted, column_passes
from calibrators.measures.predictions import run_passes
from calibrators.measures.spread import Spread, agreement, distances, lines, smooth_ece
from pipeline.evaluate.significance import observed_over_expected


def spread_of(p, label, weight=None, cuts=()):
    points = collapse(p, label, weight)
    return Spread.of(run_passes(column_passes(Wanted(cells=True)), over(points, *cuts)).cells)


def cox(spread, rate=1.0):
    """Intercept and slope, and their errors; None without them."""
    intercept, slope, *errors = lines(spread, rate)[0].tolist()
    return None if np.isnan(slope) else ((intercept, slope), tuple(errors))


def sample(seed, n=4000, digits=2):
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
    assert "no line parts" in agreement(parted).reasons["slope"]


def test_sampled_negatives_move_the_intercept():
    p, y = sample(2)
    rate = 0.1
    spread = spread_of(p, y)
    plain, sampled = cox(spread), cox(spread, rate)
    assert sampled[0][1] == pytest.approx(plain[0][1])
    assert sampled[0][0] == pytest.approx(plain[0][0] + np.log(rate))
    assert sampled[1] == pytest.approx(plain[1])
    assert agreement(spread, rate).ici is None


@pytest.mark.parametrize(("digits", "tolerance"), [(2, 1e-12), (None, 1e-3)])
def test_distances_are_those_of_isotonic_regression(digits, tolerance):
    p, y = sample(3, digits=digits)
    apart = np.abs(p - IsotonicRegression().fit_transform(p, y))
    expected = [apart.mean(), *np.quantile(apart, [0.5, 0.9], method="inverted_cdf")]
    np.testing.assert_allclose(distances(spread_of(p, y)), expected, atol=tolerance)


@pytest.mark.parametrize("seed", [4, 5])
def test_the_smooth_error_is_the_width_at_which_it_is_the_error(seed):
    """By its definition: residuals at their places, a Gaussian reflected at both ends, an integral on a fine grid."""
    p, y = sample(seed, n=500)
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


def test_segments_ratios_are_those_of_all_rows():
    rng = np.random.default_rng(6)
    p = np.full(800, 0.2)
    y = rng.random(800) < 0.25
    bars = ErrorBars(float(y.sum()))
    found = observed_over_expected(
        np.array([800.0, 3.0]),
        np.array([y.sum(), 0.0]),
        np.array([0.2, 0.0]),
        np.array([(p * (1 - p)).sum(), 0.0]),
    )
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
    from calibrators.measures import engine

    p, _ = sample(8, digits=None)
    y = (np.random.default_rng(8).random(p.size) < p).astype(int)
    points = collapse(p, y)
    one = Isotonic().fit_points(points).calibration_map_

    def chance():
        found = evaluate(over(points), one, rows=p.size)
        return found.certainty_before.decomposition.log_loss.chance

    few = chance()
    monkeypatch.setattr(engine, "MOST_DRAWN", 100)
    assert chance() == pytest.approx(few, rel=0.05)
