"""Error bars against brute force and textbook formulas; and the same however the points are cut."""

import math

import numpy as np
import pytest
import scipy.special
import scipy.stats
import sklearn.metrics
from common import over

from calibrators.arithmetic import ties
from calibrators.arithmetic.passes import Points
from calibrators.measures.certainty import area_under_roc, error_bar_passes
from calibrators.measures.comparison import comparison_passes
from calibrators.measures.predictions import run_passes


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


def falling(scores):
    return 1.0 - scores


def delong(p, w, k):
    """The variance of the AUC by all pairs of rows. w : whole."""
    positives, negatives = np.repeat(p, k.astype(int)), np.repeat(p, (w - k).astype(int))
    wins = (positives[:, None] > negatives) + 0.5 * (positives[:, None] == negatives)
    return wins.mean(), wins.mean(1).var(ddof=1) / positives.size + wins.mean(0).var(ddof=1) / negatives.size


@pytest.mark.parametrize(("digits", "weights"), [(None, "one"), (2, "one"), (1, "counts"), (None, "counts")])
def test_auc_and_its_error_equal_those_of_all_pairs(digits, weights):
    points = sample(800, digits=digits, weights=weights)
    found = bars(points, cuts=(100, 300, 301))
    auc, variance = delong(*points)
    assert found.auc == pytest.approx(auc, rel=1e-11)
    assert found.auc_error == pytest.approx(math.sqrt(variance), rel=1e-11)
    assert found.auc_low == pytest.approx(auc - 1.96 * math.sqrt(variance), abs=1e-5)


@pytest.mark.parametrize("weights", ["one", "counts", "real"])
def test_few_groups_are_ranked_as_by_the_engine(weights):
    points = sample(400, digits=2, weights=weights)
    groups = Points(*ties.sum_ties(*points))
    found = area_under_roc(groups.weight, groups.positives)
    wanted = bars(points)
    assert found == pytest.approx((wanted.auc, wanted.auc_error), rel=1e-11)
    assert area_under_roc(np.array([2.0, 3.0]), np.array([2.0, 3.0])) == (None, None)
    assert area_under_roc(np.array([2.0, 3.0]), np.array([0.0, 1.0])) == (pytest.approx(0.75), None)


def test_weights_that_are_no_counts_weigh_pairs():
    points = sample(300, digits=1, weights="real")
    p, w, k = points
    n = w - k
    wins = (p[:, None] > p) + 0.5 * (p[:, None] == p)
    a, b = wins @ n / n.sum(), k @ wins / k.sum()
    auc = k @ a / k.sum()
    variance = k @ (a - auc) ** 2 / (k.sum() * (k.sum() - 1)) + n @ (b - auc) ** 2 / (n.sum() * (n.sum() - 1))
    found = bars(points)
    assert found.auc == pytest.approx(sklearn.metrics.roc_auc_score(k > 0, p, sample_weight=w), rel=1e-11)
    assert found.auc_error == pytest.approx(math.sqrt(variance), rel=1e-11)


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
        p, w, k = points
        n = w - k
        wins = (p[:, None] > p) + 0.5 * (p[:, None] == p)
        a, b = wins @ n / n.sum(), k @ wins / k.sum()
        variance = k @ (a - near.auc) ** 2 / k.sum() ** 2 + n @ (b - near.auc) ** 2 / n.sum() ** 2
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
    assert found.moved == pytest.approx(w @ np.abs(p**2 - p / 2))


def test_equal_predictions_do_not_differ():
    found = compared(sample(500), squared, squared)
    assert (found.log_loss.difference, found.log_loss.error, found.moved) == (0.0, 0.0, 0.0)


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


def test_maps_that_decrease_or_leave_probabilities_are_refused():
    with pytest.raises(ValueError, match="do not decrease"):
        bars(sample(50), falling)
    with pytest.raises(ValueError, match="probabilities in"):
        compared(Points(np.array([-1.0, 2.0]), np.ones(2), np.ones(2)), None, None)
