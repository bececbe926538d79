"""Platt scaling and beta calibration of many points, which begin at the optimum of narrow bins."""

import numpy as np
import pytest

import calibrators.methods.beta
import calibrators.methods.platt
from calibrators.arithmetic.passes import Points
from calibrators.methods.beta import Beta
from calibrators.methods.platt import Platt


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
    return Points(score, weight, positives)


KINDS = ["plain", "rare", "weights", "tie", "one class"]


def parameters(fitted):
    """What was fitted."""
    if isinstance(fitted, Beta):
        return np.array([fitted.a_, fitted.b_, fitted.c_])
    return np.array([fitted.slope_, fitted.intercept_])


@pytest.fixture
def few(monkeypatch):
    """Sets from how many points on bins are made."""

    def set_to(points):
        for module in (calibrators.methods.platt, calibrators.methods.beta):
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
        assert calibrator.n_evaluations_ <= 3 < evaluations
