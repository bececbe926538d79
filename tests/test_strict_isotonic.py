"""Centred isotonic regression against its definition in rational arithmetic."""

from fractions import Fraction

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from calibrators.arithmetic.passes import Points, collapse
from calibrators.methods.isotonic import Isotonic


def centred(points):
    """Oron & Flournoy's definition: pool a pair that violates into one point at the mean of both, until none does.

    A pair violates if it decreases or is level, unless it is level at 0 or at 1.
    """
    dots = [
        [Fraction(s), Fraction(k) / Fraction(w), Fraction(w)]
        for s, w, k in zip(*(column.tolist() for column in points), strict=True)
    ]
    while True:
        for i in range(len(dots) - 1):
            (x0, y0, w0), (x1, y1, w1) = dots[i], dots[i + 1]
            if y0 > y1 or (y0 == y1 and 0 < y0 < 1):
                w = w0 + w1
                dots[i : i + 2] = [[(x0 * w0 + x1 * w1) / w, (y0 * w0 + y1 * w1) / w, w]]
                break
        else:
            return np.array([d[0] for d in dots], float), np.array([d[1] for d in dots], float)


def random_points(seed, n, weighted=False, decimals=3):
    rng = np.random.default_rng(seed)
    s = np.round(rng.random(n), decimals)
    return collapse(s, rng.random(n) < s, rng.lognormal(0, 3, n) if weighted else None)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("n", [1, 2, 5, 20, 120])
def test_equals_the_definition(n, weighted):
    for seed in range(3):
        points = random_points(seed, n, weighted)
        x, y = centred(points)
        fitted = Isotonic(strict=True, ends=0).fit_points(points)
        at = np.concatenate([points.score, x, np.linspace(-0.5, 1.5, 301)])
        assert fitted.predict(at) == pytest.approx(np.interp(at, x, y), rel=1e-9, abs=1e-12)


def test_increases_strictly_between_the_extremes_and_keeps_their_ranking():
    rng = np.random.default_rng(0)
    s = rng.random(5000)
    z = rng.random(5000) < s
    fitted = Isotonic(strict=True).fit(s, z)
    table = fitted.calibration_map_
    inner = np.sort(s[(s > table.score_hi[0]) & (s < table.score_lo[-1])])
    p = fitted.predict(inner)
    assert inner.size > 4800
    assert table.monotone
    assert np.all(np.diff(p[(p > 0) & (p < 1)]) > 0)
    assert roc_auc_score(z, fitted.predict(s)) == pytest.approx(roc_auc_score(z, s), abs=1e-6)
    assert roc_auc_score(z, Isotonic(ends=0).fit(s, z).predict(s)) != pytest.approx(
        roc_auc_score(z, s), abs=1e-4
    )


def test_ends_leave_nothing_flat_between_the_knots():
    s, z = np.arange(8.0), np.array([0, 0, 0, 1, 0, 1, 1, 1])
    fitted = Isotonic(strict=True).fit(s, z)
    augmented = Points(np.arange(-1.0, 9.0), np.ones(10), np.array([1.0, *z, 0.0]))
    levels = np.unique(centred(augmented)[1])
    # The knots stand at the mean scores of the rows themselves.
    assert fitted.predict([1.0, 3.5, 6.0]) == pytest.approx(levels)
    assert np.all(np.diff(fitted.predict(np.linspace(1.0, 6.0, 50))) > 0)


def test_blocks_at_zero_and_one_stay_flat():
    fitted = Isotonic(strict=True, ends=0).fit([1, 2, 3, 4, 5, 6, 7, 8], [0, 0, 0, 1, 0, 1, 1, 1])
    assert fitted.predict([0, 1, 3, 4.5, 6, 8, 9]).tolist() == [0, 0, 0, 0.5, 1, 1, 1]


def test_scores_whose_sums_overflow():
    s = np.array([-1.7e308, -1.6e308, 1.6e308, 1.7e308])
    p = Isotonic(strict=True).fit(s, [1, 0, 1, 0], [1e12] * 4).predict(s)
    assert p == pytest.approx([0.5] * 4)


def test_one_pass_unless_strict():
    assert Isotonic().single_pass
    assert not Isotonic(strict=True).single_pass
