"""Platt scaling against scikit-learn, and it and beta calibration against certificates of their optimum."""

import numpy as np
import pytest
from scipy.special import expit, logit
from sklearn.calibration import _sigmoid_calibration

import calibrators.sigmoid.beta
import calibrators.sigmoid.platt
from calibrators.base import Sampling
from calibrators.core.passes import Points
from calibrators.core.sampling import odds_divided
from calibrators.sigmoid.beta import Beta
from calibrators.sigmoid.platt import Platt


def observations(n, seed, kind="logit"):
    rng = np.random.default_rng(seed)
    s = rng.random(n)
    z = rng.random(n) < 0.05 + 0.7 * s**2
    if kind == "score":
        s = 3 * logit(s) + 1
    return s, z, rng.lognormal(0, 1, n)


def inputs(scores, kind):
    return logit(scores) if kind == "logit" else scores


@pytest.mark.parametrize("kind", ["score", "logit"])
@pytest.mark.parametrize("weighted", [False, True])
def test_equals_scikit_learn(kind, weighted):
    s, z, w = observations(3000, 0, kind)
    w = w if weighted else None
    a, b = _sigmoid_calibration(inputs(s, kind), z.astype(float), w)
    fitted = Platt(kind).fit(s, z, w)
    assert fitted.slope_ == pytest.approx(-a, rel=1e-6)
    assert fitted.intercept_ == pytest.approx(-b, rel=1e-6)


@pytest.mark.parametrize("kind", ["score", "logit"])
@pytest.mark.parametrize("max_error", [1e-2, 1e-5, 1e-9, 1e-11])
def test_table_is_within_the_stated_error_of_the_sigmoid(kind, max_error):
    s, z, _ = observations(2000, 2, kind)
    fitted = Platt(kind, max_error=max_error).fit(s, z)
    knots = fitted.calibration_map_.score_hi[:-1]
    inside = [knots[:-1] + share * np.diff(knots) for share in np.linspace(0.1, 0.9, 9)]
    outside = [-3.0, -1e3, -1e9, 1e9, 1e3] if kind == "score" else [1e-17, 1e-15, 1 - 1e-15]
    at = np.concatenate([s, knots, *inside, np.array(outside)])
    x = inputs(np.clip(at, 2.0**-53, 1 - 2.0**-53), kind) if kind == "logit" else at
    assert np.abs(fitted.predict(at) - expit(fitted.slope_ * x + fitted.intercept_)).max() <= max_error
    assert fitted.calibration_map_.monotone


def test_table_is_no_longer_than_it_needs_to_be():
    s, z, _ = observations(2000, 3, "score")
    # The integral of sqrt(|f''| / 8 / error) over a sigmoid f, the least that chords between its points can do.
    grid = np.linspace(-54, 54, 400_001)
    p = expit(-np.abs(grid))
    error = np.maximum(np.minimum(1e-9, 1e-4 * p), np.where(grid > 0, 1e-15, 3e-24))
    least = np.trapezoid(np.sqrt(np.abs(p * (1 - p) * (1 - 2 * p)) / 8 / error), grid)
    assert len(Platt().fit(s, z).calibration_map_) < 1.1 * least


def test_decreasing_sigmoid():
    s, z, _ = observations(500, 4)
    up, down = Platt().fit(s, z), Platt().fit(s, ~z)
    assert down.slope_ == pytest.approx(-up.slope_, rel=1e-10)
    assert down.predict(s) == pytest.approx(1 - up.predict(s), abs=2e-9)


def test_separable_labels_converge_to_the_targets():
    s = np.linspace(-1, 1, 1000)
    fitted = Platt().fit(s, s > 0)
    assert fitted.predict(s[s > 0]).sum() + fitted.predict(s[s <= 0]).sum() == pytest.approx(500, abs=1e-4)
    assert fitted.predict([-1.0, 1.0]) == pytest.approx([0, 1], abs=1e-6)


def test_constant_where_scores_or_labels_are():
    assert Platt().fit(np.linspace(0, 1, 9), np.ones(9)).predict([-5, 0.3]).tolist() == [10 / 11, 10 / 11]
    # Targets 3/4 (twice) and 1/3: the optimum is their mean.
    assert Platt().fit([2, 2, 2], [1, 1, 0]).predict([0.0]) == pytest.approx((2 * 3 / 4 + 1 / 3) / 3)


def test_logit_needs_probabilities():
    with pytest.raises(ValueError, match=r"input='logit' expected numbers in \[0, 1\], found them from -1"):
        Platt("logit").fit([-1.0, 0.5], [0, 1])
    assert np.isfinite(Platt("logit").fit([0.0, 0.5, 1.0], [0, 1, 1]).predict([0.0, 1.0])).all()


def test_small_probabilities_are_right_to_four_digits():
    rng = np.random.default_rng(0)
    s = rng.normal(-6, 4, 20_000)
    z = rng.random(s.size) < expit(1.5 * s)
    fitted = Platt().fit(s, z)
    at = (np.linspace(-44, 30, 5001) - fitted.intercept_) / fitted.slope_
    exact = expit(fitted.slope_ * at + fitted.intercept_)
    assert np.max(np.abs(fitted.predict(at) / exact - 1)) < 1.1e-4
    assert len(fitted.calibration_map_) < 40_000


@pytest.mark.parametrize("label", [0, 1])
@pytest.mark.parametrize("far", [1e6, -1e6, 1e8, -1e10])
def test_one_score_far_beyond_all_others(far, label):
    rng = np.random.default_rng(0)
    s = np.append(rng.normal(size=2000), far)
    y = np.append(rng.random(2000) < expit(1.5 * s[:-1]), label == 1).astype(int)
    # Many rows a score, so that the others decide, or do not, against what the one costs.
    w = np.append(np.full(2000, 1e5), 1.0)
    fitted = Platt().fit(s, y, w)  # a warning would be an error
    assert fitted.n_evaluations_ < 20
    total, n1 = w.sum(), (w * y).sum()
    t = np.where(y == 1, (n1 + 1) / (n1 + 2), 1 / (total - n1 + 2))
    # The loss is convex: a Newton step that would gain nothing says that this is its minimum.
    theta, z = parameters(fitted), fitted.slope_ * s + fitted.intercept_
    rest, v = w * (expit(z) - t) / total, w * expit(z) * expit(-z) / total
    gradient = np.array([(rest * s).sum(), rest.sum()])
    hessian = np.array([[(v * s * s).sum(), (v * s).sum()], [(v * s).sum(), v.sum()]])
    unit = 1 / np.sqrt(np.diag(hessian))
    step = unit * np.linalg.solve(hessian * np.outer(unit, unit), gradient * unit)
    loss = np.sum(w * (np.logaddexp(0, z) - t * z)) / total
    assert gradient @ step / 2 <= loss * 1e-12
    if abs(far) < 1e7:  # flatter, the loss tells the slope to few digits
        assert (np.abs(step) <= 1e-6 * np.abs(theta) + 1e-7).all()


# Beta calibration against the conditions of its optimum


def sample(n=3000, seed=0, a=0.6, b=1.4, c=-0.5):
    rng = np.random.default_rng(seed)
    s = np.clip(rng.beta(0.8, 1.2, n), 1e-9, 1 - 1e-9)
    return s, rng.random(n) < expit(a * np.log(s) - b * np.log1p(-s) + c)


@pytest.mark.parametrize(
    ("a", "b", "weighted"),
    [(0.6, 1.4, False), (0.6, 1.4, True), (-0.5, 1.0, False), (1.0, -0.5, True), (-1.0, -1.0, False)],
)
def test_the_optimum_has_no_gradient_and_a_negative_parameter_is_zero(a, b, weighted):
    s, z = sample(a=a, b=b)
    w = np.random.default_rng(1).exponential(size=s.size) if weighted else np.ones(s.size)
    fitted = Beta().fit(s, z, w)
    found = parameters(fitted)
    terms = np.stack([np.log(s), -np.log1p(-s), np.ones(s.size)])
    p = expit(found @ terms)
    gradient, hessian = terms @ (w * (p - z)), (terms * (w * p * (1 - p))) @ terms.T
    free = found != 0
    assert free.tolist() == [a > 0, b > 0, True]
    assert np.abs(np.linalg.solve(hessian[np.ix_(free, free)], gradient[free])).max() < 1e-4
    # Larger ones would cost more.
    assert (gradient[~free] > 0).all()
    assert fitted.predict(s) == pytest.approx(p, abs=1e-9)
    assert fitted.calibration_map_.monotone


def test_a_sampled_log_moves_the_intercept():
    s, z = sample()
    expected = odds_divided(Beta().fit(s, z).predict(s), 0.05)
    assert Beta().fit(s, z, sampling=Sampling(0.05)).predict(s) == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize("rate", [1.0, 0.01, 100.0])
@pytest.mark.parametrize("method", [Beta, lambda: Platt("logit")])
def test_the_table_is_right_up_to_the_ends_of_the_scores(method, rate):
    s, z = sample()[:2]
    fitted = method().fit(s, z, sampling=Sampling(rate))
    near = 2.0 ** -np.arange(1, 53.25, 0.25)
    last = np.arange(0, 40) * 2.0**-53
    at = np.unique(np.concatenate([near, 1 - near, last, 1 - last, [2.0**-60, 2.0**-54]]))
    clipped = np.clip(at, 2.0**-53, 1 - 2.0**-53)
    if isinstance(fitted, Beta):
        argument = fitted.a_ * np.log(clipped) - fitted.b_ * np.log1p(-clipped) + fitted.c_
    else:
        argument = fitted.slope_ * (np.log(clipped) - np.log1p(-clipped)) + fitted.intercept_
    assert np.abs(fitted.predict(at) - expit(argument)).max() <= 1e-9


@pytest.mark.parametrize(("positives", "expected"), [(0, 1 / 42), (40, 41 / 42)])
def test_beta_of_one_class_has_the_mean_of_a_uniform_prior(positives, expected):
    """Laplace's rule of succession: (positives + 1) / (rows + 2)."""
    score = np.linspace(0.1, 0.9, 40)
    fitted = Beta().fit(score, np.full(40, positives > 0))
    np.testing.assert_allclose(fitted.predict(np.array([0.0, 0.3, 1.0])), expected, rtol=1e-12)


# Platt scaling and beta calibration of many points, which begin at the optimum of narrow bins


def points_like(kind, n=20_000):
    """Points of a log: with a score that many rows have, with weights, of rare labels, far out."""
    rng = np.random.default_rng(5)
    score = rng.beta(0.5, 200, n) if kind == "rare" else rng.beta(0.6, 2.0, n)
    odds = 0.8 * (score / (1 - score)) ** 0.7
    label = rng.random(n) < odds / (1 + odds)
    weight = rng.lognormal(0, 0.5, n) if kind == "weights" else np.ones(n)
    order = np.argsort(score)
    score, weight, positives = score[order], weight[order], np.where(label, weight, 0.0)[order]
    if kind == "tie":
        weight[n // 3], positives[n // 3] = n / 5, n / 20
    if kind == "one class":
        positives = weight.copy()
    if kind == "saturated":  # most rows have the last double below 1, or 0
        score[[0, -1]] = 0.0, 1 - 2.0**-53
        weight[[0, -1]], positives[[0, -1]] = n, (n / 100, n * 0.98)
    if kind == "steep":
        score *= 1e-3
        score[-1] = 1.0
    if kind == "lost":  # beside the others' weights, the positives' are below the unit of whole sums
        weight = np.where(label[order], 1e-14, 1.0)
        positives = np.where(label[order], weight, 0.0)
    return Points(score, weight, positives)


KINDS = ["plain", "rare", "weights", "tie", "one class", "saturated"]


def parameters(fitted):
    """What was fitted."""
    if isinstance(fitted, Beta):
        return np.array([fitted.a_, fitted.b_, fitted.c_])
    return np.array([fitted.slope_, fitted.intercept_])


@pytest.fixture
def few(monkeypatch):
    """Sets from how many points on bins are made."""

    def set_to(points):
        for module in (calibrators.sigmoid.platt, calibrators.sigmoid.beta):
            monkeypatch.setattr(module, "FEWEST_POINTS", points)

    return set_to


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("calibrator", [Platt(), Platt("logit"), Beta()], ids=["score", "logit", "beta"])
def test_the_optimum_is_that_of_the_points(few, calibrator, kind):
    points = points_like(kind)
    plain = parameters(calibrator.fit_points(points))
    evaluations = calibrator.n_evaluations_
    few(2)
    begun = parameters(calibrator.fit_points(points))
    # Beta's own stopping rule leaves what the loss does not tell.
    close = 1e-4 if isinstance(calibrator, Beta) else 1e-12
    np.testing.assert_allclose(begun, plain, rtol=close, atol=close)
    if kind != "one class":
        assert calibrator.n_evaluations_ == 0 < 3 < evaluations
    if isinstance(calibrator, Beta):
        score, weight, positives = points
        s = np.clip(score, 2.0**-53, 1 - 2.0**-53)
        terms = np.stack([np.log(s), -np.log1p(-s), np.ones(s.size)])
        p, free = expit(begun @ terms), begun != 0
        gradient, hessian = terms @ (weight * p - positives), (terms * (weight * p * (1 - p))) @ terms.T
        if free[:2].any():
            step = np.linalg.solve(hessian[np.ix_(free, free)], gradient[free])
            # In squared standard errors.
            assert step @ gradient[free] < 1e-16


@pytest.mark.parametrize("kind", ["steep", "lost"])
def test_where_bins_do_not_stand_for_the_points_their_optimum_is_the_start(few, kind):
    points, calibrator = points_like(kind), Platt()
    plain = parameters(calibrator.fit_points(points))
    few(2)
    begun = parameters(calibrator.fit_points(points))
    np.testing.assert_allclose(begun, plain, rtol=1e-12, atol=1e-12)
    assert 0 < calibrator.n_evaluations_ <= 3
