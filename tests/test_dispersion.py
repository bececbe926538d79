"""Over-dispersion: weights that vary at random make rates vary more, weights that count rows do not."""

import numpy as np
import pytest
from scipy.special import expit

from calibrators import Isotonic
from calibrators.measures.dispersion import combined
from calibrators.measures.fit_check import CheckCells, check_fit


def checked(score, weight, positives, expected=expit):
    """By points."""
    points, of = np.unique(score, return_inverse=True)
    weight, positives = np.bincount(of, weight), np.bincount(of, positives)
    return check_fit(CheckCells(points, points, weight, positives, weight * expected(points)))


def over_dispersion(score, weight, positives):
    return checked(score, weight, positives).over_dispersion


@pytest.mark.parametrize("centre", [0.0, -4.0])
@pytest.mark.parametrize("decimals", [2, 12])
def test_random_weights_have_their_design_effect(centre, decimals):
    rng = np.random.default_rng(0)
    x, weight = rng.normal(centre, 1.2, 20_000).round(decimals), rng.choice([1.0, 2, 5], 20_000)
    found = over_dispersion(x, weight, weight * (rng.random(x.size) < expit(x)))
    assert found == pytest.approx((weight**2).sum() / weight.sum(), rel=0.25)


@pytest.mark.parametrize("centre", [0.0, -4.0])
@pytest.mark.parametrize("decimals", [2, 12])
@pytest.mark.parametrize("seed", range(5))
def test_counts_are_not_dispersed(centre, decimals, seed):
    rng = np.random.default_rng(seed)
    x, weight = rng.normal(centre, 1.2, 5000).round(decimals), rng.choice([1, 2, 5], 5000)
    assert over_dispersion(x, weight.astype(float), rng.binomial(weight, expit(x)).astype(float)) == 1.0


@pytest.mark.parametrize("seed", range(5))
def test_rows_of_weight_1_are_not_dispersed_whatever_their_truth(seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(0, 1.2, 5000)
    label = rng.random(5000) < expit(x + 2 * np.sin(5 * x))
    assert over_dispersion(x, np.ones(5000), label.astype(float)) == 1.0


def test_copies_and_heavy_ties():
    rng = np.random.default_rng(3)
    x = np.append(rng.normal(-3, 1.2, 8000), [-2.0, -1.0])
    copies = np.append(np.full(8000, 3.0), [40_000.0, 90_000.0])
    positives = copies * (rng.random(x.size) < expit(x))
    positives[-2:] = 30_000, 100
    assert over_dispersion(x, copies, positives) == pytest.approx(3, rel=0.25)


def test_maps_of_blocks_have_none():
    rng = np.random.default_rng(5)
    x = rng.random(3000)
    fitted = Isotonic().fit(x, rng.random(3000) < x, rng.choice([1.0, 9.0], 3000)).calibration_map_
    rows = fitted.weight > 0
    cells = (fitted.score_lo[rows], fitted.score_hi[rows], fitted.weight[rows], fitted.positives[rows])
    assert check_fit(CheckCells(*cells, fitted.positives[rows])).over_dispersion == 1.0


def test_few_rows_with_random_weights_have_their_design_effect_in_the_check_too():
    rng = np.random.default_rng(0)
    found, flagged = [], 0
    for _ in range(60):
        x, weight = rng.normal(0, 1.2, 2000), rng.choice([1.0, 2, 5], 2000)
        found.append(checked(x, weight, weight * (rng.random(x.size) < expit(x))).dispersion)
        steps = weight * (rng.random(x.size) < np.where(x > 0.3, 0.8, 0.2))
        flagged += bool(checked(x, weight, steps, lambda score: expit(1.2 * (score - 0.3))).misfits)
    # The design effect is 3.75. Neighbours' differences alone are 8 in some of these draws, which hides misfits.
    assert 2.5 < min(found) < max(found) < 4.0
    assert flagged >= 57


@pytest.mark.parametrize(
    ("by_groups", "groups", "proven", "expected"),
    [
        (6.0, 25, 3.7, 3.7),  # within chance
        (6.0, 1000, 3.7, 6.0),  # beyond it
        (6.0, 25, 1.0, 6.0),  # nothing proven
        (3.0, 25, 3.7, 3.7),
        (1.0, 0, 2.0, 2.0),  # too few groups
    ],
)
def test_the_estimate_of_groups_is_believed_beyond_chance(by_groups, groups, proven, expected):
    assert combined(by_groups, groups, proven) == expected
