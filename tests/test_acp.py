"""ACP against loops over rows, and the intervals of logistic regression against its loss and by simulation."""

import numpy as np
import pytest
from scipy.special import expit
from sklearn.linear_model import LogisticRegression

from calibrators import ACP
from calibrators.acp import coefficient_covariance, confidence_intervals


def brute_force(scores, labels, weight, at, lower, upper):
    out = []
    for s, a, b in zip(at, lower, upper, strict=True):
        inside = (scores >= a) & (scores <= b)
        out.append(weight[inside] @ labels[inside] / weight[inside].sum() if inside.any() else s)
    return np.array(out)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("decimals", [1, 12])
def test_equals_the_frequency_inside_each_interval(weighted, decimals):
    rng = np.random.default_rng(decimals)
    s = np.round(rng.random(300), decimals)
    z = rng.random(300) < s
    w = rng.lognormal(0, 2, 300) if weighted else np.ones(300)
    at = np.round(rng.random(500), decimals)
    lower, upper = np.clip(at - 0.1 * rng.random(500), 0, 1), np.clip(at + 0.1 * rng.random(500), 0, 1)
    lower[:50], upper[:50] = at[:50], at[:50]
    found = ACP().fit(s, z, w if weighted else None).predict(at, lower, upper)
    assert found == pytest.approx(brute_force(s, z, w, at, lower, upper), rel=1e-12)


def test_small_weights_count_beside_huge_ones():
    acp = ACP().fit([0.1, 0.2, 0.3], [1, 1, 0], [1e12, 1e-9, 3e-9])
    assert acp.predict([0.25], [0.15], [0.35]) == pytest.approx([0.25], rel=1e-12)


def test_nan_gives_nan():
    nan = np.nan
    found = ACP().fit([0.1, 0.9], [0, 1]).predict([nan, 0.5, 0.5], [0, nan, 0], [1, 1, nan])
    assert np.isnan(found).all()


def test_errors_say_what_was_found():
    acp = ACP().fit([0.1, 0.5], [0, 1])
    with pytest.raises(ValueError, match=r"lower: expected numbers <= upper, found 1 above it, the first"):
        acp.predict([0.5, 0.5], [0.1, 0.6], [0.2, 0.5])
    with pytest.raises(ValueError, match=r"of one shape, found \(2,\), \(1,\) and \(1,\)"):
        acp.predict([0.5, 0.5], [0.1], [0.2])
    with pytest.raises(ValueError, match=r"found 1 others, the first 1.5 at index 0"):
        acp.predict([1.5], [0.1], [0.2])


def data(n, seed, beta):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, len(beta)))
    return X, rng.random(n) < expit(X @ beta - 0.5)


LIBLINEAR = {"C": 0.3, "solver": "liblinear", "intercept_scaling": 2.0}


@pytest.mark.parametrize(
    "parameters", [{"C": np.inf}, {"C": 0.3}, {"C": 0.3, "fit_intercept": False}, LIBLINEAR], ids=str
)
def test_covariance_is_the_inverse_curvature_of_the_loss(parameters):
    X, y = data(300, 0, np.array([1.0, -2.0, 0.0]))
    weight = np.random.default_rng(1).lognormal(size=300)
    model = LogisticRegression(tol=1e-10, **parameters).fit(X, y, weight)
    scaling = parameters.get("intercept_scaling", np.inf)
    with_intercept = model.fit_intercept

    def loss(beta):
        u = X @ beta[:3] + (beta[3] if with_intercept else 0)
        penalty = beta[:3] @ beta[:3] + ((beta[3] / scaling) ** 2 if with_intercept else 0)
        return np.sum(weight * (np.logaddexp(0, u) - y * u)) + penalty / (2 * model.C)

    best = np.append(model.coef_[0], model.intercept_[: int(with_intercept)])
    h = 1e-3

    def change(function, step):
        """The central difference, as a function again."""
        return lambda at: (function(at + step) - function(at - step)) / (2 * h)

    steps = h * np.eye(best.size)
    curvature = [[change(change(loss, a), b)(best) for b in steps] for a in steps]
    covariance = coefficient_covariance(model, X, weight)
    assert np.abs(covariance @ np.array(curvature) - np.eye(best.size)).max() < 1e-4


def test_intervals_cover_the_truth_as_often_as_they_say():
    beta = np.array([1.0, -1.0])
    at = np.array([[0.0, 0.0], [1.0, 0.5], [-1.0, 1.0]])
    truth = expit(at @ beta - 0.5)
    hits = []
    for seed in range(150):
        X, y = data(300, seed, beta)
        model = LogisticRegression(C=np.inf).fit(X, y)
        p, lower, upper = confidence_intervals(model, coefficient_covariance(model, X), at, confidence=0.9)
        assert np.all((lower < p) & (p < upper))
        assert p == pytest.approx(model.predict_proba(at)[:, 1], rel=1e-12)
        hits.append((lower <= truth) & (truth <= upper))
    assert np.mean(hits, axis=0) == pytest.approx([0.9] * 3, abs=0.06)


def test_models_without_such_a_covariance_are_refused():
    X, y = data(100, 0, np.array([1.0, -1.0]))
    with pytest.raises(ValueError, match="no L1 penalty"):
        coefficient_covariance(LogisticRegression(l1_ratio=1.0, solver="saga", max_iter=5000).fit(X, y), X)
    with pytest.raises(ValueError, match=r"^sample_weight: expected, because"):
        coefficient_covariance(LogisticRegression(class_weight="balanced").fit(X, y), X)
    with pytest.raises(ValueError, match="two classes, found 3"):
        coefficient_covariance(LogisticRegression().fit(X, np.arange(100) % 3), X)
    twice = np.column_stack([X, X[:, 0]])
    with pytest.raises(ValueError, match="singular information"):
        coefficient_covariance(LogisticRegression(C=np.inf).fit(twice, y), twice)
    model = LogisticRegression().fit(X, y)
    with pytest.raises(ValueError, match=r"confidence: expected a number in \(0, 1\), found 95"):
        confidence_intervals(model, coefficient_covariance(model, X), X, confidence=95)
