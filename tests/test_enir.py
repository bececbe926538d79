"""ENIR against its reference, the average over all breakpoints, and the authors' variant row by row."""

import itertools

import numpy as np
import pytest
from common import wavy_rows
from sklearn.metrics import log_loss

from calibrators import ENIR, Isotonic, Points, collapse, near_isotonic_path
from calibrators.near_isotonic import enir, reference
from calibrators.near_isotonic.model_search import DROP, ModelSearch
from calibrators.near_isotonic.model_search import score as score_models

CRITERIA = ["bic", "aic", "aicc"]


def assert_equals_the_reference(points, name):
    fitted = ENIR(criterion=name, shrink=0).fit_points(points)
    mean, models = reference.enir(points.weight, points.positives, name)
    score = points.score
    inside = score[:-1] + np.diff(score) * np.random.default_rng(0).random(score.size - 1)
    np.testing.assert_allclose(fitted.predict(score), mean, rtol=0, atol=1e-10)
    np.testing.assert_allclose(fitted.predict(inside), np.interp(inside, score, mean), rtol=0, atol=1e-10)
    assert fitted.predict([-np.inf, np.inf]) == pytest.approx([mean[0], mean[-1]], abs=1e-10)
    kept = models.weight > 1.001e-12 * models.weight.max()
    lam, df, likelihood, criterion, share = (column[kept] for column in models)
    found = fitted.models_
    assert found.lam == pytest.approx(lam, rel=1e-12)
    assert found.degrees_of_freedom.tolist() == df.tolist()
    assert found.log_likelihood == pytest.approx(likelihood, rel=1e-11)
    assert found.criterion == pytest.approx(criterion, rel=1e-11)
    assert found.weight == pytest.approx(share, abs=1e-10)


@pytest.mark.parametrize("name", CRITERIA)
def test_equals_the_average_over_all_breakpoints_in_rational_arithmetic(name):
    rng = np.random.default_rng(1)
    compared = 0
    for seed in range(25):
        score, labels = wavy_rows(int(rng.integers(12, 90)), seed, rng.choice([1, 2, 9]))
        points = collapse(score, labels, rng.integers(1, 4, score.size) if seed % 3 == 0 else None)
        if near_isotonic_path(score, labels).breakpoints.size:
            assert_equals_the_reference(points, name)
            compared += 1
    assert compared > 15


@pytest.mark.parametrize("name", CRITERIA)
def test_skipping_models_changes_nothing(name, monkeypatch):
    def evaluate_all(search):
        for i in range(search.df.size):
            search.evaluate(i)

    for seed, n, decimals in [(1, 5000, None), (2, 5000, 3), (3, 300, None)]:
        path = near_isotonic_path(*wavy_rows(n, seed, decimals))
        penalty = enir.penalty_of(name, n)
        found = enir.weighted(score_models(path, penalty), DROP)
        with monkeypatch.context() as patch:
            patch.setattr(ModelSearch, "run", evaluate_all)
            everything = enir.weighted(score_models(path, penalty), DROP)
        for a, b in zip(found, everything, strict=True):
            assert np.array_equal(a, b)


def test_skipping_models_skips_models():
    n = 40_000
    path = near_isotonic_path(*wavy_rows(n, 5))
    search = ModelSearch(path, enir.penalty_of("bic", n))
    search.run()
    assert path.breakpoints.size > 1000
    assert np.sum(~np.isnan(search.log_likelihood)) < 150


def test_labels_without_a_fall_leave_isotonic_regression():
    score = np.linspace(0, 1, 50)
    grid = np.linspace(-0.2, 1.2, 500)
    for labels in [score > 0.3, np.ones(50), np.zeros(50)]:
        fitted = ENIR(shrink=0).fit(score, labels)
        assert np.array_equal(fitted.predict(grid), Isotonic(ends=0).fit(score, labels).predict(grid))
        assert fitted.models_.lam.tolist() == [0.0]
        assert fitted.models_.weight.tolist() == [1.0]
        assert fitted.models_.log_likelihood.tolist() == [0.0]


def authors_path(score, labels):
    """The levels of distinct scores at lambda 0 and at every breakpoint, in rational arithmetic."""
    distinct, row_of = np.unique(score, return_inverse=True)
    w, k = (np.bincount(row_of, weights, distinct.size) for weights in (None, labels.astype(float)))
    models = reference.modified_pava(w, k)
    return [(float(model.lam), reference.levels(model)) for model in models]


def authors_rows(score, labels, name, path):
    """The authors' released variant on rows, from levels at every breakpoint.

    Returns the distinct scores, and the ensemble's level at each.
    """
    order = np.argsort(score, kind="stable")
    y, z = score[order], labels[order].astype(float)
    distinct, row_of = np.unique(y, return_inverse=True)
    kept = sorted({round(j * (len(path) - 1) / 99) for j in range(100)})
    betas, scores = [], []
    for rank in kept:
        lam, levels = path[rank]
        beta = np.clip(np.round(levels, 6), 0, 1)
        p = beta[row_of]
        df = 1 + sum(a != b for a, b in itertools.pairwise(beta))
        with np.errstate(divide="ignore"):
            likelihood = np.log(np.where(z == 1, p, 1 - p)).sum()
        n = len(z)
        if name == "bic":
            value = -2 * likelihood + df * (np.log(n) + np.log(2 * np.pi))
        else:
            value = -2 * likelihood + 2 * df
            if name == "aicc":
                value = value + 2 * df * (df + 1) / (n - df - 1) if n - df - 1 > 0 else np.inf
        if (lam > 0 or len(path) == 1) and np.isfinite(value):
            betas.append(beta)
            scores.append(value)
    smooth = []
    for beta in betas:
        p = beta[row_of]
        out = np.empty(len(p))
        i = 0
        while i < len(p):
            j = i
            while j < len(p) and p[j] == p[i]:
                j += 1
            e, o = y[i:j].mean(), z[i:j].mean()
            c = abs(o - e)
            out[i:j] = (p[i] * (j - i) + e * (1 - c)) / ((j - i) + 1 - c)
            i = j
        smooth.append([out[row_of == r][0] for r in range(len(distinct))])
    relative = np.exp((min(scores) - np.array(scores)) / 2)
    return distinct, relative @ np.array(smooth) / relative.sum()


@pytest.mark.parametrize(("n", "decimals", "thinned"), [(30, 9, False), (200, 2, False), (1200, 9, True)])
def test_authors_variant_equals_their_procedure_on_rows(n, decimals, thinned):
    score, labels = wavy_rows(n, n, decimals)
    path = authors_path(score, labels)
    assert (len(path) > 101) == thinned
    for name in CRITERIA:
        distinct, level = authors_rows(score, labels, name, path)
        fitted = ENIR(criterion=name, reference="authors", shrink=0).fit(score, labels)
        grid = np.linspace(-0.1, 1.1, 777)
        np.testing.assert_allclose(fitted.predict(distinct), level, rtol=0, atol=1e-10)
        np.testing.assert_allclose(fitted.predict(grid), np.interp(grid, distinct, level), rtol=0, atol=1e-10)
        assert fitted.models_.lam.size <= 99
        assert fitted.models_.weight.sum() == pytest.approx(1)
        assert np.all(fitted.models_.lam > 0)


def test_authors_variant_keeps_a_model_when_rounding_makes_all_infinite():
    # 3 positives among 8 million: every level rounds to zero.
    columns = [0.1, 0.2, 0.3, 0.4], [2e6, 4e6, 1e6, 1e6], [1.0, 1.0, 0.0, 1.0]
    points = Points(*map(np.array, columns))
    fitted = ENIR(reference="authors", shrink=0).fit_points(points)
    assert np.isfinite(fitted.predict(points.score)).all()
    assert fitted.models_.weight.tolist() == [1.0]


def test_the_reference_has_the_likelihood_of_scikit_learn():
    score, labels = wavy_rows(60, 3, 1)
    points = collapse(score, labels)
    p = np.clip(np.random.default_rng(0).random(points.score.size), 0.01, 0.99)
    at_rows = p[np.searchsorted(points.score, score)]
    expected = -log_loss(labels, at_rows, normalize=False)
    assert reference.log_likelihood(p, points.weight, points.positives) == pytest.approx(expected, rel=1e-12)
    assert reference.log_likelihood(np.array([0.0, 1.0]), np.array([2.0, 3.0]), np.array([0.0, 3.0])) == 0.0
    assert reference.log_likelihood(np.array([0.0]), np.ones(1), np.ones(1)) == -np.inf


@pytest.mark.parametrize("shrink", [1, 3.0])
def test_probabilities_are_shrunk_by_rows_over_twice_their_number(shrink):
    rng = np.random.default_rng(4)
    score = rng.random(200)
    labels = rng.random(200) < score
    at, floor = np.linspace(-0.1, 1.1, 50), shrink / 400
    plain = ENIR(shrink=0).fit(score, labels).predict(at)
    shrunk = ENIR(shrink=shrink).fit(score, labels).predict(at)
    np.testing.assert_allclose(shrunk, floor + (1 - 2 * floor) * plain, rtol=1e-12)
