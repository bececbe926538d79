"""Segments that borrow strength: against a generic optimiser, quadrature and plain isotonic regression."""

import numpy as np
import pytest
from scipy import integrate, optimize
from scipy.special import expit, logit

from calibrators._kernels import partial_pooling as kernel
from calibrators.segments.adjusting import VARIANCES, Cells, adjust, curve_of


def cells_of(rng, groups=30, shift=0.5, block_range=0.3, rows=200):
    """Groups whose truth is a adjusted curve."""
    level = np.sort(rng.random(12)) * 0.6 + 0.02
    curve = curve_of(level, np.full(12, 100.0))
    parts = []
    for _ in range(groups):
        a, d = rng.normal(0, shift), max(rng.normal(0, block_range), -1)
        blocks = np.flatnonzero(rng.random(12) < 0.7)
        n = rng.integers(1, rows, blocks.size).astype(float)
        x = curve.logit[blocks] - curve.centre
        k = rng.binomial(n.astype(int), expit(curve.logit[blocks] + a + d * x)).astype(float)
        parts.append((curve.logit[blocks], n, k))
    starts = np.concatenate([[0], np.cumsum([len(part[0]) for part in parts])])
    return Cells(
        starts,
        np.full(groups, curve.centre),
        *(np.concatenate(column) for column in zip(*parts, strict=True)),
    )


def penalised(theta, cells, g, a, d):
    rows = slice(cells.starts[g], cells.starts[g + 1])
    eta = cells.logit[rows] + theta[0] + theta[1] * (cells.logit[rows] - cells.centre[g])
    n, k = cells.weight[rows], cells.positives[rows]
    likelihood = (-k * np.logaddexp(0, -eta) - (n - k) * np.logaddexp(0, eta)).sum()
    return -(likelihood - theta[0] ** 2 / (2 * a) - theta[1] ** 2 / (2 * d))


@pytest.mark.parametrize("scale", [1.0, 1e12, 1e70])
def test_the_evidence_is_that_of_its_formula(scale):
    """With determinants beyond what a product of a few can hold, too."""
    rng = np.random.default_rng(5)
    theta, derivatives = rng.normal(0, 0.5, (40, 2)), np.empty((40, 5))
    expected = np.zeros((VARIANCES.size, VARIANCES.size))
    for g in range(40):
        root = rng.normal(0, 1, (2, 2)) * np.sqrt(scale)
        h, gradient = root @ root.T, rng.normal(0, 1, 2)
        derivatives[g] = *gradient, h[0, 0], h[0, 1], h[1, 1]
        b = gradient + h @ theta[g]
        for i, j in np.ndindex(expected.shape):
            t = np.diag([VARIANCES[i], VARIANCES[j]])
            inner = np.eye(2) + t @ h
            size = inner[0, 0] * inner[1, 1] - inner[0, 1] * inner[1, 0]
            expected[i, j] += 0.5 * b @ np.linalg.solve(inner, t @ b) - 0.5 * np.log(size)
    found = np.empty_like(expected)
    kernel.evidence(theta, derivatives, VARIANCES, found)
    np.testing.assert_allclose(found, expected, rtol=1e-7)


def test_groups_of_one_class_and_without_rows():
    cells = cells_of(np.random.default_rng(1))
    cells.positives[: cells.starts[1]] = 0
    cells.positives[cells.starts[1] : cells.starts[2]] = cells.weight[cells.starts[1] : cells.starts[2]]
    starts = np.append(cells.starts, cells.starts[-1])
    adjusted = adjust(cells._replace(starts=starts, centre=np.append(cells.centre, 0.3)))
    assert np.isfinite(adjusted.shift).all()
    assert (adjusted.slope >= 0).all()
    assert adjusted.shift[-1] == 0
    assert adjusted.slope[-1] == 1


def test_the_chosen_variances_are_those_of_quadrature():
    cells = cells_of(np.random.default_rng(2), groups=15, shift=0.7, block_range=0.0)
    adjusted = adjust(cells)

    def group_evidence(g, a):
        def loss(shift):
            return penalised([shift, 0.0], cells, g, a, 1.0)

        at = optimize.minimize_scalar(loss)
        value, _ = integrate.quad(lambda t: np.exp(at.fun - loss(at.x + t)), -8, 8, limit=200, points=[0.0])
        return np.log(value) - at.fun - 0.5 * np.log(a)

    def log_evidence(a):
        return sum(group_evidence(g, a) for g in range(15))

    candidates = VARIANCES[1:]
    best = candidates[np.argmax([log_evidence(a) for a in candidates])]
    assert adjusted.variances[0] == best
    assert adjusted.variances[1] <= 2.0**-6


def test_segments_that_do_not_differ_are_hardly_moved_and_often_not_at_all():
    """The parent's map is fitted to the same rows, which vary less about it than about the truth."""
    exactly = 0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        n = rng.integers(1, 200, (300, 12)).astype(float)
        k = rng.binomial(n.astype(int), np.linspace(0.05, 0.6, 12)).astype(float)
        curve = curve_of(k.sum(axis=0) / n.sum(axis=0), n.sum(axis=0))
        logits = np.tile(curve.logit, 300)
        cells = Cells(np.arange(0, 3601, 12), np.full(300, curve.centre), logits, n.ravel(), k.ravel())
        adjusted = adjust(cells)
        assert max(adjusted.variances) <= 2.0**-9
        if adjusted.variances == (0.0, 0.0):
            exactly += 1
            assert (adjusted.shift == 0).all()
            assert (adjusted.slope == 1).all()
    assert exactly >= 3


def test_truth_is_recovered():
    rng = np.random.default_rng(4)
    adjusted = adjust(cells_of(rng, groups=1000, shift=0.5, block_range=0.25, rows=400))
    assert adjusted.variances[0] in (0.125, 0.25, 0.5)
    assert adjusted.variances[1] in (2.0**-5, 2.0**-4, 2.0**-3)


def test_the_ends_of_a_curve_are_finite():
    curve = curve_of([0.0, 0.2, 1.0], [9.0, 10.0, 4.0])
    np.testing.assert_allclose(curve.logit, logit([0.05, 0.2, 0.9]))
    assert curve_of([0.0, 0.01, 0.9], [9.0, 1.0, 1.0]).logit[0] == curve_of([0.01, 0.9], [1.0, 1.0]).logit[0]
    assert np.isfinite(curve_of([0.0, 1.0], [1.0, 1.0]).logit).all()
    with pytest.raises(ValueError, match="one shape"):
        curve_of([], [])
