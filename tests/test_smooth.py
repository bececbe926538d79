"""Smooth calibration: its cells, its curve against optimisers and quadrature, its table."""

import itertools
import pickle

import numpy as np
import pytest
from scipy import optimize, special

from calibrators import Beta, Smooth
from calibrators._kernels import likelihood as kernel
from calibrators.arithmetic import curve, fine_cells
from calibrators.arithmetic.fine_cells import FineCells, fine_cells_pass
from calibrators.arithmetic.passes import collapse


def observations(n, seed=0, decimals=None, truth=lambda z: 0.6 * z - 0.5):
    rng = np.random.default_rng(seed)
    z = 2 * rng.standard_normal(n)
    s = special.expit(z)
    y = rng.random(n) < special.expit(truth(z))
    return (s if decimals is None else np.round(s, decimals)), y


def in_parts(parts):
    request = pickle.loads(pickle.dumps(fine_cells_pass()))
    return request.combine([request.chunk(part) for part in parts])


def assert_same(one, other):
    for a, b in zip(one, other, strict=True):
        assert np.array_equal(a, b)


# Cells


@pytest.mark.parametrize("decimals", [None, 4, 2])
def test_cells_of_classes_are_those_of_points(decimals):
    s, y = observations(60_000, decimals=decimals, truth=lambda z: z - 3)
    request = fine_cells_pass()
    cuts = [-np.inf, 0.1, 0.11, 0.5, np.inf]
    states, points = [], 0
    for low, high in itertools.pairwise(cuts):
        own = (s > low) & (s <= high)
        state, found = request.classes(np.sort(s[own & ~y]), np.sort(s[own & y]))
        states.append(state)
        points += found
    assert points == np.unique(s).size
    assert_same(in_parts([collapse(s, y)]), request.combine(states))


def test_cells_hold_what_lies_in_them():
    s, y = observations(200_000, truth=lambda z: z - 5)
    points = collapse(s, y)
    cells = in_parts([points])
    assert cells.first.size <= fine_cells.MOST_CELLS
    assert np.all(cells.first <= cells.last)
    assert np.all(cells.last[:-1] < cells.first[1:])
    at = np.searchsorted(cells.first, points.score, side="right") - 1
    assert np.array_equal(cells.weight, np.bincount(at, points.weight))
    assert np.array_equal(cells.positives, np.bincount(at, points.positives))
    assert np.array_equal(
        cells.last, np.maximum.reduceat(points.score, np.searchsorted(points.score, cells.first))
    )
    # Nearly equal shares of either label: the largest of some 16,000 random gaps.
    for column in (cells.positives, cells.weight - cells.positives):
        assert column.max() <= max(column.sum() * 20 / fine_cells.DRAWN, 1)


def test_few_points_are_cells():
    s, y = observations(5000)
    points = collapse(s, y)
    assert_same(in_parts([points]), FineCells(points.score, points.score, points.weight, points.positives))


# The curve


def three_terms(n=400, seed=3):
    """Cells and the basis of the first three terms."""
    s, y = observations(n, seed)
    fine = in_parts([collapse(s, y)])
    cells = curve.cells_on(curve.places_of(fine, 1.0), fine)
    made = curve.fitted(cells)
    return cells, made, made.table(cells.held, cells.rank)[:, : 3 + curve.TERMS]


def mode_of(cells, table, variance):
    posterior = curve.Posterior(np.ascontiguousarray(table), cells.held, cells.weight, cells.positives)
    return posterior.mode(variance, np.zeros(variance.size))


def log_posterior(theta, x, cells, v):
    f = cells.held + x[:, : v.size] @ theta
    likelihood = cells.positives @ f - cells.weight @ np.logaddexp(0, f)
    return likelihood - 0.5 * (theta**2 / v).sum()


@pytest.mark.parametrize("number", [0, 12, 64])
def test_modes_are_those_of_an_optimiser(number):
    cells, made, x = three_terms()
    v = curve._PRIORS[number].variance
    size = v.size
    # In units of the prior, where it is well conditioned.
    found = optimize.minimize(
        lambda t: -log_posterior(t * np.sqrt(v), x, cells, v),
        np.zeros(size),
        jac=lambda t: (
            -np.sqrt(v)
            * (
                x[:, :size].T
                @ (
                    cells.positives
                    - cells.weight * special.expit(cells.held + x[:, :size] @ (t * np.sqrt(v)))
                )
                - t / np.sqrt(v)
            )
        ),
        method="BFGS",
        options={"gtol": 1e-8},
    )
    ours = x[:, :size] @ made.thetas[number, :size]
    assert ours == pytest.approx(x[:, :size] @ (found.x * np.sqrt(v)), abs=2e-3)
    assert log_posterior(made.thetas[number, :size], x, cells, v) == pytest.approx(-found.fun, abs=1e-4)


def test_evidence_is_that_of_quadrature():
    cells, _, x = three_terms()
    evidence = []
    for tau in (1.0, 0.3):
        v = tau**2 * np.array([1.0, 0.25, 0.25])
        theta, found = mode_of(cells, x[:, :3], v)
        p = special.expit(cells.held + x[:, :3] @ theta)
        hessian = (x[:, :3].T * (cells.weight * p * (1 - p))) @ x[:, :3] + np.diag(1 / v)
        axes = np.linalg.cholesky(np.linalg.inv(hessian))
        at, w = np.polynomial.hermite_e.hermegauss(15)
        total = 0.0
        peak = log_posterior(theta, x, cells, v)
        for i in range(15):
            for j in range(15):
                for k in range(15):
                    step = np.array([at[i], at[j], at[k]])
                    value = log_posterior(theta + axes @ step, x, cells, v) - peak
                    total += w[i] * w[j] * w[k] * np.exp(value + 0.5 * step @ step)
        exact = peak + np.log(total * np.linalg.det(axes)) - 0.5 * np.log(2 * np.pi * v).sum()
        evidence.append((found, exact))
    (one, one_exact), (other, other_exact) = evidence
    assert one == pytest.approx(one_exact, abs=0.02)
    assert one - other == pytest.approx(one_exact - other_exact, abs=0.01)


def test_without_bends_and_with_a_wide_prior_it_is_beta_calibration():
    s, y = observations(600, truth=lambda z: 1.3 * np.log(special.expit(z)) - 0.6 * np.log(special.expit(-z)))
    fine = in_parts([collapse(s, y)])
    cells = curve.cells_on(curve.places_of(fine, 1.0), fine)
    made = curve.fitted(cells)
    x = made.table(cells.held, cells.rank)[:, :3]
    theta, _ = mode_of(cells, x, np.full(3, 1e8))
    # Log-odds beyond what so few can verify are held.
    own = cells.held == cells.place
    assert own.sum() > 590
    expected = Beta().fit(s, y).predict(fine.first)
    assert special.expit(cells.held + x @ theta)[own] == pytest.approx(expected[own], abs=1e-3)


def test_rising_is_isotonic_regression():
    from sklearn.isotonic import IsotonicRegression

    rng = np.random.default_rng(0)
    for n in (1, 2, 50):
        values, weights = rng.normal(size=n) + np.linspace(0, 2, n), rng.exponential(size=n) + 1e-9
        expected = IsotonicRegression().fit(np.arange(n), values, weights).predict(np.arange(n))
        assert kernel.rising(values, weights) == pytest.approx(expected, abs=1e-9)


# The map


def exact(made, scores, places):
    return curve.expit(np.interp(places.of(scores), *made.curve_.knots))


@pytest.mark.parametrize("max_error", [1e-4, 1e-9])
def test_map_is_the_curve(max_error):
    s, y = observations(3000)
    made = Smooth(max_error=max_error).fit(s, y)
    at = np.concatenate([np.linspace(0, 1, 20_001), special.expit(np.linspace(-40, 36, 5000))])
    expected = exact(made, at, curve.Places(False, 0.0, 1.0))
    miss = np.abs(made.predict(at) - expected)
    assert miss.max() <= max_error
    # And relative to small probabilities.
    assert np.all(miss <= np.maximum(1e5 * max_error * np.minimum(expected, 1 - expected), 1e-15))
    if max_error == 1e-4:
        assert len(made.calibration_map_) < 1000


def test_map_of_very_many_points_is_the_curve_but_for_lines_within_cells():
    s, y = observations(100_000)
    made = Smooth().fit(s, y)
    points = collapse(s, y)
    expected = exact(made, points.score, curve.Places(False, 0.0, 1.0))
    assert np.abs(made.predict(points.score) - expected).max() < 1e-4
    assert made.calibration_map_.monotone


def test_margins_of_any_scale_give_the_same_probabilities():
    s, y = observations(2000)
    margins = special.logit(s)
    one = Smooth().fit(margins, y).predict(margins)
    for scale, shift in ((1e-3, 7.0), (1e6, -1e6)):
        other = Smooth().fit(margins * scale + shift, y).predict(margins * scale + shift)
        assert other == pytest.approx(one, abs=1e-6)
    assert one == pytest.approx(Smooth().fit(s, y).predict(s), abs=0.05)


def test_sampled_negatives_are_odds_of_the_sample():
    s, y = observations(4000)
    rate = 0.1
    sampled = Smooth()
    sampled.sampling_rate = rate
    found = sampled.fit(s, y).predict(s)
    # The same labels, of scores that say what is to be expected among the rows that there are.
    lifted = special.expit(special.logit(s) - np.log(rate))
    odds = special.logit(Smooth().fit(lifted, y).predict(lifted)) + np.log(rate)
    assert special.logit(found) == pytest.approx(odds, abs=1e-3)


def test_atoms_at_zero_and_one():
    rng = np.random.default_rng(0)
    s = np.concatenate([np.zeros(300), np.ones(300), rng.random(400)])
    y = rng.random(1000) < np.concatenate(
        [np.full(300, 0.05), np.full(300, 0.9), np.clip(s[600:], 0.1, 0.85)]
    )
    p = Smooth().fit(s, y).predict([0.0, 1.0])
    assert p == pytest.approx([y[:300].mean(), y[300:600].mean()], abs=0.04)
