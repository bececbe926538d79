"""Smooth calibration: its cells, its curve against optimisers and quadrature, its table."""

from __future__ import annotations

import itertools
import pickle

import numpy as np
import pytest
from common import wavy_rows
from scipy import special
from scipy.special import logit
from scipy.stats import binom

from calibrators import Beta, Isotonic, Smooth
from calibrators.auto.calibrator import CANDIDATES, Auto
from calibrators.auto.folded import FoldedPoints
from calibrators.base import Sampling
from calibrators.core import curve, fine_cells, local_choice
from calibrators.core.cumulative import layout_of, part_totals
from calibrators.core.fine_cells import FineCells, fine_cells_pass, split_cells
from calibrators.core.kernels import likelihood as kernel
from calibrators.core.kernels.drawn_cells import binomial_quantiles
from calibrators.core.passes import Points, collapse, in_memory, merge_passes
from calibrators.core.pava import pooling_pass
from jobs.fit_outcome import _choice_line


def observations(n, seed=0, decimals=None, truth=lambda z: 0.6 * z - 0.5):
    rng = np.random.default_rng(seed)
    z = 2 * rng.standard_normal(n)
    s = special.expit(z)
    y = rng.random(n) < special.expit(truth(z))
    return (s if decimals is None else np.round(s, decimals)), y


def in_parts(parts):
    request = pickle.loads(pickle.dumps(fine_cells_pass()))
    states = [request.chunk(part) for part in parts]
    cells = request.combine(states)
    for several in (2, 3):
        joined = [request.join(states[i : i + several]) for i in range(0, len(states), several)]
        assert_same(cells, request.combine(joined))
    return cells


def assert_same(one, other):
    for a, b in zip(one, other, strict=True):
        assert np.array_equal(a, b)


# Cells


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
    starts = np.searchsorted(points.score, cells.first)
    assert np.array_equal(cells.last, np.maximum.reduceat(points.score, starts))
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
    cells = curve.cells_on(curve.score_axis(fine, 1.0), fine)
    made = curve.fit_curve(cells)
    return cells, made, made.table(cells.clipped, cells.rank)[:, : 3 + curve.TERMS]


def mode_of(cells, table, variance):
    posterior = curve.Posterior(np.ascontiguousarray(table), cells.clipped, cells.weight, cells.positives)
    return posterior.mode(variance, np.zeros(variance.size))


def log_posterior(theta, x, cells, v):
    f = cells.clipped + x[:, : v.size] @ theta
    likelihood = cells.positives @ f - cells.weight @ np.logaddexp(0, f)
    return likelihood - 0.5 * (theta**2 / v).sum()


@pytest.mark.parametrize("number", [0, 12, 64])
def test_modes_are_stationary(number):
    cells, made, x = three_terms()
    v = curve._PRIORS[number].variance
    x, theta = x[:, : v.size], made.thetas[number, : v.size]
    p = special.expit(cells.clipped + x @ theta)
    # The posterior is concave: a Newton step that would gain nothing says that this is its mode.
    gradient = x.T @ (cells.positives - cells.weight * p) - theta / v
    step = np.linalg.solve((x.T * (cells.weight * p * (1 - p))) @ x + np.diag(1 / v), gradient)
    assert np.abs(x @ step).max() < 2e-3
    assert gradient @ step / 2 < 1e-4


def test_evidence_is_that_of_quadrature():
    cells, _, x = three_terms()
    evidence = []
    for tau in (1.0, 0.3):
        v = tau**2 * np.array([1.0, 0.25, 0.25])
        theta, found = mode_of(cells, x[:, :3], v)
        p = special.expit(cells.clipped + x[:, :3] @ theta)
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
    cells = curve.cells_on(curve.score_axis(fine, 1.0), fine)
    made = curve.fit_curve(cells)
    x = made.table(cells.clipped, cells.rank)[:, :3]
    theta, _ = mode_of(cells, x, np.full(3, 1e8))
    # Log-odds beyond what so few can verify are held.
    own = cells.clipped == cells.position
    assert own.sum() > 590
    expected = Beta().fit(s, y).predict(fine.first)
    assert special.expit(cells.clipped + x @ theta)[own] == pytest.approx(expected[own], abs=1e-3)


def test_rising_is_isotonic_regression():
    from sklearn.isotonic import IsotonicRegression

    rng = np.random.default_rng(0)
    for n in (1, 2, 50):
        values, weights = rng.normal(size=n) + np.linspace(0, 2, n), rng.exponential(size=n) + 1e-9
        expected = IsotonicRegression().fit(np.arange(n), values, weights).predict(np.arange(n))
        assert kernel.isotonic_fit(values, weights) == pytest.approx(expected, abs=1e-9)


# The map


def exact(made, scores, axis):
    return curve.expit(np.interp(axis.positions(scores), *made.curve_.knots))


@pytest.mark.parametrize("max_error", [1e-4, 1e-9])
def test_map_is_the_curve(max_error):
    s, y = observations(3000)
    made = Smooth(max_error=max_error).fit(s, y)
    at = np.concatenate([np.linspace(0, 1, 20_001), special.expit(np.linspace(-40, 36, 5000))])
    expected = exact(made, at, curve.ScoreAxis(False, 0.0, 1.0))
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
    expected = exact(made, points.score, curve.ScoreAxis(False, 0.0, 1.0))
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
    found = Smooth().fit(s, y, sampling=Sampling(rate)).predict(s)
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


# The choice by cross-validated log loss, and place by place


def test_the_simplest_within_one_standard_error():
    auto = Auto(list(CANDIDATES)).fit(*wavy_rows(3000, decimals=4))
    best = min(auto.cross_validated_log_loss_, key=auto.cross_validated_log_loss_.get)
    assert auto.excess_[best] == (0.0, 0.0)
    fine = [name for name in CANDIDATES if auto.excess_[name][0] <= auto.excess_[name][1]]
    assert auto.chosen_ == fine[0]
    assert auto.excess_["platt"][0] > 3 * auto.excess_["platt"][1]
    for name, loss in auto.cross_validated_log_loss_.items():
        assert loss - auto.cross_validated_log_loss_[best] == pytest.approx(auto.excess_[name][0], abs=1e-15)


def test_the_map_is_the_chosen_methods_own_but_for_zeros_and_ones():
    from calibrators import ABB, BBQ, ENIR, Isotonic, Platt

    scores, labels = wavy_rows(800, decimals=4)
    auto = Auto(list(CANDIDATES)).fit(scores, labels)
    cls = {"platt": Platt, "isotonic": Isotonic, "enir": ENIR, "bbq": BBQ, "abb": ABB}[auto.chosen_]
    own = cls().fit(scores, labels).predict(scores)
    if auto.chosen_ != "isotonic":
        own = 1 / 1600 + (1 - 1 / 800) * own
    assert np.allclose(auto.predict(scores), own, atol=1e-15)


def test_neither_zero_nor_one_is_returned():
    scores = np.arange(100) / 100
    auto = Auto(candidates=["isotonic"], ends=0).fit(scores, scores >= 0.5)
    assert auto.predict([0.0, 0.2, 0.9, 1.0]) == pytest.approx([0.005, 0.005, 0.995, 0.995], abs=1e-15)
    assert auto.calibration_map_.monotone
    ends = Auto(candidates=["isotonic"]).fit(scores, scores >= 0.5)
    assert ends.predict([0.0, 1.0]).tolist() == pytest.approx([1 / 51, 50 / 51], abs=1e-15)


def test_the_losses_are_those_of_a_slow_cross_validation():
    from calibrators import Isotonic, Platt

    scores, labels = wavy_rows(300, decimals=4)
    auto = Auto(candidates=["platt", "isotonic"], folds=3).fit(scores, labels)
    points = collapse(scores, labels)
    folded = FoldedPoints(layout_of([part_totals(points)]), 3, 0)
    for name, cls in (("platt", Platt), ("isotonic", Isotonic)):
        total = 0.0
        for fold in range(3):
            training, inside = folded.split(points, fold)
            p = cls().fit_points(training).predict(inside.score)
            if name == "platt":
                p = 1 / 600 + (1 - 1 / 300) * p
            total -= np.sum(inside.positives * np.log(p) + (inside.weight - inside.positives) * np.log(1 - p))
        assert auto.cross_validated_log_loss_[name] == pytest.approx(total / 300, rel=1e-12)


@pytest.mark.parametrize("folds", [2, 5])
def test_each_observation_is_in_one_fold(folds):
    points = collapse(*wavy_rows(501, decimals=4))
    folded = FoldedPoints(layout_of([part_totals(points)]), folds, seed=4)
    total, positives = np.zeros(points.score.size), np.zeros(points.score.size)
    for fold in range(folds):
        outside, inside = folded.split(points, fold)
        place = np.searchsorted(points.score, inside.score)
        total[place] += inside.weight
        positives[place] += inside.positives
        assert inside.weight.sum() + outside.weight.sum() == 501
        assert abs(inside.weight.sum() - 501 / folds) < 5 * np.sqrt(501 / folds)
    assert np.array_equal(total, points.weight)
    assert np.array_equal(positives, points.positives)


@pytest.mark.parametrize("probability", [0.1, 1 / 3, 0.5])
def test_ties_are_dealt_by_quantiles_of_binomials(probability):
    generator = np.random.default_rng(0)
    count = np.floor(10 ** generator.uniform(0, 8, 2000))
    uniform = generator.random(2000)
    expected = binom.ppf(uniform, count, probability)
    assert np.array_equal(binomial_quantiles(uniform, count, probability), expected)


def test_scores_outside_the_unit_interval_leave_bbq_out():
    scores, labels = wavy_rows(300, decimals=4)
    auto = Auto(list(CANDIDATES)).fit(10 * scores - 5, labels)
    assert "bbq" not in auto.cross_validated_log_loss_
    assert len(auto.cross_validated_log_loss_) == len(CANDIDATES) - 1
    with pytest.raises(ValueError, match="name another candidate"):
        Auto(candidates=["bbq"]).fit([-1.0, 2.0], [0, 1])


def test_one_positive_cannot_be_compared():
    auto = Auto(list(CANDIDATES)).fit([0.1, 0.2, 0.3], [0, 0, 1])
    assert auto.chosen_ == "platt"
    assert auto.cross_validated_log_loss_ == {}


# Place by place


def expit(f):
    return 1 / (1 + np.exp(-f))


def normal(n, truth, seed=0):
    random = np.random.default_rng(seed)
    z = 2 * random.standard_normal(n)
    return expit(z), random.random(n) < expit(truth(z))


def excess(fitted, truth, seed=100):
    scores, _ = normal(20_000, truth, seed)
    p, q = fitted.predict(scores), expit(truth(np.log(scores / (1 - scores))))
    return np.mean(q * np.log(q / p) + (1 - q) * np.log((1 - q) / (1 - p)))


TRUTHS = {
    "smooth": lambda z: 0.6 * z - 0.5,
    "steps": lambda z: np.floor(z * 0.8) * 1.2 + 0.5,
    "both": lambda z: np.where(z < 0, 0.8 * z, 2.5 + 0.2 * (np.floor(3 * z))),
}


def test_curve_where_the_truth_is_smooth_and_steps_where_it_jumps():
    found = {name: Auto().fit(*normal(200_000, truth)) for name, truth in TRUTHS.items()}
    assert found["smooth"].chosen_ == "smooth"
    assert found["smooth"].isotonic_share_ < 0.05
    assert found["steps"].isotonic_share_ > 0.8
    assert 0.05 < found["both"].isotonic_share_ < 0.95
    assert found["both"].chosen_ == "both"
    for name, auto in found.items():
        assert auto.cross_validated_log_loss_.keys() == {"smooth", "isotonic"}
        truth = TRUTHS[name]
        both = [excess(made.fit(*normal(200_000, truth)), truth) for made in (Smooth(), Isotonic())]
        assert excess(auto, TRUTHS[name]) < 1.3 * min(both) + 1e-6


@pytest.mark.parametrize("steps", [1.0, 0.3])
def test_shares_are_those_of_all_paths(steps):
    """Every path of states through few bins, one by one."""

    random = np.random.default_rng(0)
    gains = random.normal(size=(6, 3))
    rate, chance = 2.0, np.array([0.6, 0.3, 0.1])
    move = 1 - np.exp(-rate / 6)
    # The first state is that of all bins, or there is a chain.
    total = (1 - steps) * np.exp(gains[:, 0].sum())
    found = np.tile([total, 0.0, 0.0], (6, 1))
    for path in itertools.product(range(3), repeat=6):
        p = steps * chance[path[0]]
        for one, other in itertools.pairwise(path):
            p *= (1 - move) * (one == other) + move * chance[other]
        p *= np.exp(sum(gains[i, state] for i, state in enumerate(path)))
        total += p
        found += p * (np.array(path)[:, np.newaxis] == np.arange(3))
    assert local_choice.shares(gains, steps, (chance,), (rate,)) == pytest.approx(found / total, rel=1e-12)


def test_a_smooth_truth_rarely_has_steps():
    """Seeded draws: on average the map is nearly as near to the truth as the curve, and few have many steps."""
    many, both = 0, []
    for seed in range(8):
        truth = TRUTHS["smooth"]
        scores, labels = normal(2000, truth, seed)
        auto = Auto().fit(scores, labels)
        many += auto.isotonic_share_ > 0.5
        both.append([excess(auto, truth), excess(Smooth().fit(scores, labels), truth)])
    assert many <= 1
    mean = np.mean(both, axis=0)
    assert mean[0] < 1.1 * mean[1]


@pytest.mark.parametrize("weighted", [False, True])
def test_averaged_steps_are_the_mean_of_all_binnings_of_isotonic_blocks(weighted):
    from sklearn.isotonic import IsotonicRegression

    from calibrators.bayesian_binning.reference import Binning, abb

    random = np.random.default_rng(1)
    position, p = np.linspace(-2, 2, 40), np.linspace(0.1, 0.9, 40)
    weight = random.lognormal(0, 1, 40) if weighted else random.integers(1, 9, 40).astype(float)
    positives = weight * random.beta(2, 2, 40) if weighted else random.binomial(weight.astype(int), p) + 0.0
    cells = curve._cells(position, position, weight, positives)
    level = IsotonicRegression().fit(position, positives / weight, sample_weight=weight).predict(position)
    block = np.unique(np.round(level, 12), return_inverse=True)[1]
    of_block = [np.bincount(block, x) for x in (weight, positives)]
    chance, binnings = local_choice.CUTS / (local_choice.CUTS + 40), []
    for cut in itertools.product([False, True], repeat=block.max()):
        of_bin = np.concatenate([[0], np.cumsum(cut)])
        n, n1 = (np.bincount(of_bin, x) for x in of_block)
        score = sum(cut) * np.log(chance) + special.betaln(n1 + 1, n - n1 + 1).sum()
        binnings.append(Binning([0] * len(n), score, ((n1 + 1) / (n + 2))[of_bin]))
    mean, _ = abb(binnings)
    c = local_choice.STRENGTH_OF_STEPS / np.sum(weight * p * (1 - p))
    expected = (np.maximum.accumulate(mean)[block] + c * p) / (1 + c)
    assert (np.diff(mean) > 0).all()
    assert 3 < len(mean) < 15
    assert local_choice.averaged_steps(cells, p) == pytest.approx(expected, rel=1e-9)


def test_few_levels_are_found_that_isotonic_regression_splits():
    def truth(z):
        return np.select([z < -1, z < 1.5], [-2.5, -1.0], 0.5)

    both = []
    for seed in range(6):
        fits = [made.fit(*normal(3000, truth, seed)) for made in (Auto(), Isotonic())]
        both.append([excess(fit, truth) for fit in fits])
    mean = np.mean(both, axis=0)
    assert mean[0] < 0.9 * mean[1]


@pytest.mark.parametrize("state", [2, 3])
def test_prior_is_isotonic_regression_with_the_curves_observations_added(state):
    from sklearn.isotonic import IsotonicRegression

    scores, labels = normal(3000, TRUTHS["steps"])
    choice = Auto().fit(scores, labels).choice_
    cells = choice.cells
    p = choice.maps[0]
    c = local_choice.STRENGTHS[state - 2] / np.sum(cells.weight * p * (1 - p))
    x = np.concatenate([cells.position, cells.position, [-1e3, 1e3]])
    y = np.concatenate([cells.positives / cells.weight, p, [1, 0]])
    w = np.concatenate([cells.weight, c * cells.weight, [1, 1]])
    # Ties are joined before they are pooled.
    expected = IsotonicRegression().fit(x, y, sample_weight=w).predict(cells.position)
    assert choice.maps[state] == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("weighted", [False, True])
def test_cells_are_cut_where_isotonic_blocks_begin(weighted):
    random = np.random.default_rng(0)
    scores, labels = normal(200_000, TRUTHS["steps"])
    points = collapse(scores, labels, random.lognormal(0, 1, scores.size) if weighted else None)
    fine, blocks = in_memory(points)(merge_passes([fine_cells_pass(), pooling_pass()]))
    found = split_cells(fine, blocks)
    assert found.first.size > fine.first.size
    assert np.isin(blocks.first, found.first).all()
    starts = np.searchsorted(points.score, found.first)
    assert np.array_equal(found.last, points.score[np.append(starts[1:], points.score.size) - 1])
    for own, of_points in ((found.weight, points.weight), (found.positives, points.positives)):
        assert own == pytest.approx(np.add.reduceat(of_points, starts), rel=1e-6, abs=1e-6)


def test_segments_have_isotonic_regression_or_is_pooled_with_the_map_in_its_blocks():
    assert repr(Auto(ends=0.5).for_segments()) == "Isotonic(ends=0.5)"
    assert not Auto(["platt"]).needs.partial_pooling
    rng = np.random.default_rng(3)
    scores = np.sort(rng.random(30_000))
    labels = rng.random(30_000) < scores**2
    above = Auto().fit(scores, labels)
    found, level = above.block_ranges(), Auto().fit(scores, labels).predict(scores)
    np.testing.assert_array_equal(above.predict(scores), level)
    from sklearn.isotonic import IsotonicRegression

    blocks = IsotonicRegression().fit_transform(scores, labels)
    starts = np.flatnonzero(np.append(True, np.diff(blocks) > 0))
    weight = np.diff(np.append(starts, 30_000))
    means = np.add.reduceat(level, starts) / weight
    # Neighbours whose log-odds are in the same sixteenth are one.
    first = np.flatnonzero(np.diff(np.floor(16 * logit(means)), prepend=-np.inf))
    assert 1 < first.size < starts.size
    np.testing.assert_array_equal(found.edges, np.append(-np.inf, scores[starts[first[1:]]]))
    np.testing.assert_array_equal(found.weight, np.add.reduceat(weight, first))
    expected = np.add.reduceat(means * weight, first) / found.weight
    np.testing.assert_allclose(found.level, expected, rtol=1e-3)  # cells are several points


@pytest.mark.parametrize(("rows", "rate"), [(400, 0.5), (20_000, 0.0005), (3, 0.5)])
def test_as_many_positives_are_expected_as_there_were_the_more_there_are(rows, rate):
    from scipy.optimize import brentq
    from sklearn.isotonic import IsotonicRegression

    rng = np.random.default_rng(rows)
    scores = rng.random(rows)
    labels = rng.permutation(rows) < rate * rows  # the scores' mean is a half
    auto = Auto().fit(scores, labels)
    choice, weight, total = auto.choice_, auto.choice_.cells.weight, labels.sum()
    mixed = (choice.share * choice.maps).sum(axis=0)
    f = logit(IsotonicRegression().fit_transform(np.arange(weight.size), mixed, sample_weight=weight))
    whole = brentq(lambda shift: weight @ expit(f + shift) - total, -9, 9, xtol=1e-14)
    information = weight @ (expit(f) * expit(-f))
    assert choice.shift == pytest.approx(whole * min(0.5, information / (information + 5)), rel=1e-6)
    assert auto.predict(scores).sum() == pytest.approx(weight @ expit(f + choice.shift), rel=1e-3)


def with_fallback(rows):
    """Frequencies equal the scores, without noise, except at 0.5: eleven times the rows, few positive."""
    scores = np.arange(1, 100) / 100
    weight = np.full(99, rows / 109)
    positives = weight * scores
    weight[49] += 10 * rows / 109
    positives[49] += 0.02 * 10 * rows / 109
    return Points(scores, np.round(weight), np.round(positives))


@pytest.mark.parametrize("rows", [1e5, 1e6, 1e9])
def test_one_wrong_score_moves_no_other(rows):
    points = with_fallback(rows)
    auto, isotonic = (made.fit_points(points) for made in (Auto(), Isotonic()))
    assert abs(auto.choice_.shift) < 1e-3
    difference = np.abs(auto.predict(points.score) - isotonic.predict(points.score))
    assert points.weight @ difference < 1e-3 * rows
    # Beside the range that is pooled the curve may differ by about a standard error of one score's rows.
    assert difference.max() < max(1e-3, 1 / np.sqrt(rows / 109))
    for made in (auto, Smooth().fit_points(points)):
        expected = points.weight * made.predict(points.score)
        assert expected.sum() == pytest.approx(points.positives.sum(), abs=0.1 * np.sqrt(rows))
        pooled = np.isclose(isotonic.predict(points.score), isotonic.predict(0.5), rtol=1e-9)
        assert expected[pooled].sum() == pytest.approx(points.positives[pooled].sum(), rel=0.01)


def test_pooling_a_curve_keeps_the_expected_positives():
    z = np.linspace(-4, 4, 400)
    weight = np.random.default_rng(0).exponential(1000, 400)
    positives = weight * expit(z + 2.5 * np.sin(2 * z))
    cells = curve._cells(z, z, weight, positives)
    made = curve.fit_curve(cells)
    _, clipped, basis, inner = made._knots
    free = expit(clipped + basis @ curve._average(made.share, made.thetas))[inner]
    risen = expit(np.interp(z, *made.knots))
    assert np.all(np.diff(risen) >= 0)
    starts = np.flatnonzero(np.diff(risen, prepend=-1) > 0)
    pooled = np.diff(np.append(starts, 400)) > 1
    assert pooled.sum() >= 2
    np.testing.assert_allclose(
        np.add.reduceat(weight * risen, starts), np.add.reduceat(weight * free, starts), rtol=1e-9
    )
    for normal in np.random.default_rng(1).normal(size=(3, 1, made.thetas.shape[1])):
        assert np.all(np.diff(made.draws(normal)[1][0]) >= 0)


@pytest.mark.parametrize("method", [Auto, Smooth])
@pytest.mark.parametrize("rows", [3000, 300_000])
def test_the_total_is_right_with_a_dip(method, rows):
    rng = np.random.default_rng(rows)
    scores = rng.random(rows)
    labels = rng.random(rows) < np.where((scores > 0.7) & (scores < 0.8), 0.02, scores)
    expected = method().fit(scores, labels).predict(scores).sum()
    assert abs(expected - labels.sum()) < 0.5 * np.sqrt(labels.sum())


def test_too_few_rows_for_halves_have_the_curve():
    auto = Auto().fit([0.1, 0.2, 0.3], [0, 0, 1])
    assert (auto.chosen_, auto.isotonic_share_, auto.cross_validated_log_loss_) == ("smooth", 0.0, {})
    scores = [0.1, 0.2, 0.3]
    curve = logit(Smooth().fit(scores, [0, 0, 1]).predict(scores))
    assert auto.predict(scores) == pytest.approx(expit(curve + auto.choice_.shift))


@pytest.mark.parametrize(
    ("share", "said"),
    [(0.0, "0 %"), (0.0011, "0.11 %"), (0.9989, "99.9 %"), (0.9999, "99.9 %"), (1.0, "100 %")],
)
def test_a_fit_says_all_rows_only_of_all(share, said):
    line = _choice_line({"isotonic_share": share, "cross_validated_log_loss": {}})
    assert line.startswith(f"auto: isotonic steps for {said} of the log's rows")
