"""ENIR against the average over all breakpoints done the slow way, and the authors' variant row by row."""

import itertools

import numpy as np
import pytest
from common import wavy_rows
from scipy.special import xlog1py, xlogy

from calibrators import ENIR, Isotonic, Points, collapse, near_isotonic_path
from calibrators.near_isotonic import enir
from tests.test_near_isotonic import exact_path

CRITERIA = ["bic", "aic", "aicc"]


def exact_levels(weight, positives):
    """Levels of every point at every breakpoint > 0, in rational arithmetic."""
    found = []
    for lam, blocks, *_ in exact_path(weight, positives)[1:]:
        sizes = np.diff([-1, *(last for last, _ in blocks)])
        found.append((float(lam), np.repeat([float(level) for _, level in blocks], sizes)))
    return found


def log_likelihood(p, w, k):
    return xlogy(k, p).sum() + xlog1py(w - k, -p).sum()


def criterion_of(name, likelihood, df, n):
    if name == "bic":
        return -2 * likelihood + df * np.log(n)
    aic = -2 * likelihood + 2 * df
    if name == "aic":
        return aic
    return aic + 2 * df * (df + 1) / (n - df - 1) if n - df - 1 > 0 else np.inf


def slow(points, models, name):
    """Average of the levels of all points over models [(lambda, levels)], and [(lambda, df, L, criterion, weight)]."""
    _, w, k = points
    rows = []
    for lam, p in models:
        df = 1 + np.sum(np.abs(np.diff(p)) > 1e-13)
        likelihood = log_likelihood(p, w, k)
        rows.append((lam, df, likelihood, criterion_of(name, likelihood, df, w.sum())))
    criteria = np.array([row[3] for row in rows])
    weight = np.exp(-(criteria - criteria.min()) / 2)
    weight /= weight.sum()
    mean = sum(a * p for a, (_, p) in zip(weight, models, strict=True))
    return mean, [(*row, a) for row, a in zip(rows, weight, strict=True)]


def assert_equals_slow(points, models, name):
    fitted = ENIR(criterion=name, shrink=0).fit_points(points)
    mean, rows = slow(points, models, name)
    score = points.score
    inside = score[:-1] + np.diff(score) * np.random.default_rng(0).random(score.size - 1)
    np.testing.assert_allclose(fitted.predict(score), mean, rtol=0, atol=1e-10)
    np.testing.assert_allclose(fitted.predict(inside), np.interp(inside, score, mean), rtol=0, atol=1e-10)
    assert fitted.predict([-np.inf, np.inf]) == pytest.approx([mean[0], mean[-1]], abs=1e-10)
    kept = [row for row in rows if row[4] > 1.001e-12 * max(row[4] for row in rows)]
    found = fitted.models_
    assert found.lam == pytest.approx([row[0] for row in kept], rel=1e-12)
    assert found.degrees_of_freedom.tolist() == [row[1] for row in kept]
    assert found.log_likelihood == pytest.approx([row[2] for row in kept], rel=1e-11)
    assert found.criterion == pytest.approx([row[3] for row in kept], rel=1e-11)
    assert found.weight == pytest.approx([row[4] for row in kept], abs=1e-10)


@pytest.mark.parametrize("name", CRITERIA)
def test_equals_the_average_over_all_breakpoints_in_rational_arithmetic(name):
    rng = np.random.default_rng(1)
    compared = 0
    for seed in range(25):
        score, labels = wavy_rows(int(rng.integers(12, 90)), seed, rng.choice([1, 2, 9]))
        points = collapse(score, labels, rng.integers(1, 4, score.size) if seed % 3 == 0 else None)
        models = exact_levels(points.weight, points.positives)
        if models:
            assert_equals_slow(points, models, name)
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
        found = enir.score(path, penalty)
        with monkeypatch.context() as patch:
            patch.setattr(enir._Search, "run", evaluate_all)
            everything = enir.score(path, penalty)
        for a, b in zip(found, everything, strict=True):
            assert np.array_equal(a, b)


def test_skipping_models_skips_models():
    n = 40_000
    path = near_isotonic_path(*wavy_rows(n, 5))
    search = enir._Search(path, enir.penalty_of("bic", n))
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
    return [(0.0, k / w), *exact_levels(w.astype(float), k)]


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
            value = criterion_of(name, likelihood, df, n)
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
