"""Segments that borrow strength: against a generic optimiser, quadrature and plain isotonic regression."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, optimize
from scipy.special import expit, logit
from sklearn.isotonic import IsotonicRegression

from calibrators._kernels import partial_pooling as kernel
from calibrators.segments import adjusting
from calibrators.segments.adjusting import VARIANCES, Cells, adjust, curve_of
from calibrators.segments.partial_pooling import (
    OWN_STRENGTH,
    BlockRanges,
    own_maps,
    pool_ranks_within,
    pool_within,
)


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


@pytest.mark.parametrize("variances", [(0.25, 0.0625), (4.0, 2.0), (2.0**-14, 64.0)])
def test_each_group_is_at_the_optimum_that_scipy_finds(variances):
    cells = cells_of(np.random.default_rng(0))
    theta, derivatives = np.zeros((30, 2)), np.zeros((30, 5))
    kernel.move_curves(cells.logit, *cells[2:], cells.starts, cells.centre, *variances, theta, derivatives)
    for g in range(30):
        best = optimize.minimize(
            penalised, [0.0, 0.0], (cells, g, *variances), bounds=[(None, None), (-1, None)], tol=1e-14
        )
        np.testing.assert_allclose(theta[g], best.x, atol=2e-5)
        assert penalised(theta[g], cells, g, *variances) <= best.fun + 1e-9


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


def test_shares_change_nothing(monkeypatch):
    cells = cells_of(np.random.default_rng(6), groups=200)
    expected = adjust(cells)
    for share in (7, 64, 100):
        monkeypatch.setattr(adjusting, "_SHARE", share)
        found = adjust(cells)
        assert found.variances == expected.variances
        np.testing.assert_allclose(found.shift, expected.shift, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(found.slope, expected.slope, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("mean", [False, True])
def test_pieces_change_nothing_at_all(monkeypatch, mean):
    cells = cells_of(np.random.default_rng(6), groups=200)
    starts = np.insert(cells.starts, 5, cells.starts[5])  # one without rows
    cells = cells._replace(starts=starts, centre=np.insert(cells.centre, 5, 0.3))
    expected = adjust(cells, mean=mean)
    assert expected.variances > (0, 0)
    for piece, most in ((1, 500), (5, 64), (1, 3)):
        monkeypatch.setattr(adjusting, "_PIECE", piece)
        monkeypatch.setattr(adjusting, "_MOST_PIECES", most)
        found = adjust(cells, mean=mean)
        assert found.variances == expected.variances
        np.testing.assert_array_equal(found.shift, expected.shift)
        np.testing.assert_array_equal(found.slope, expected.slope)


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


def test_parts_of_segments_are_those_of_all(monkeypatch):
    """As of those whose cells are not in memory together; the first variances are of every so-many-th segment."""
    cells = cells_of(np.random.default_rng(6), groups=50)
    monkeypatch.setattr(adjusting, "_SHARE", 7)
    some = adjusting._some(cells, 3)
    for i, g in enumerate(range(0, 50, 3)):
        mine, own = slice(*cells.starts[g : g + 2]), slice(*some.starts[i : i + 2])
        for column, found in zip(cells[2:], some[2:], strict=True):
            np.testing.assert_array_equal(found[own], column[mine])
    assert some.groups == 17
    assert (some.centre == cells.centre[::3]).all()


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


def own_map(score, w, y, prior, strength=OWN_STRENGTH):
    """Of one group."""
    return own_maps(score, score, w, y, np.array([0, score.size]), prior, strength)


@given(st.integers(0, 2**32 - 1), st.integers(1, 60), st.sampled_from([0.0, 1.0, 300.0]))
def test_own_maps(seed, m, strength):
    rng = np.random.default_rng(seed)
    w = rng.integers(1, 20, m).astype(float)
    y = rng.binomial(w.astype(int), rng.random()).astype(float)
    prior = np.sort(rng.uniform(0.01, 0.99, m))
    blocks = own_map(np.arange(m, dtype=float), w, y, prior, strength)
    level = blocks.level
    c = strength / (w * prior * (1 - prior)).sum()
    target = (y + c * w * prior) / (w * (1 + c))
    expected = IsotonicRegression().fit_transform(np.arange(m), target, sample_weight=w)
    found = np.repeat(level, np.diff(np.append(blocks.first, m)).astype(int))
    np.testing.assert_allclose(found, expected, atol=1e-12)
    assert (np.diff(level) > 0).all()
    if strength:
        assert level[0] > 0
        assert level[-1] < 1
    assert blocks.weight.sum() == w.sum()
    assert blocks.positives.sum() == y.sum()


def test_the_ends_of_a_curve_are_finite():
    curve = curve_of([0.0, 0.2, 1.0], [9.0, 10.0, 4.0])
    np.testing.assert_allclose(curve.logit, logit([0.05, 0.2, 0.9]))
    assert curve_of([0.0, 0.01, 0.9], [9.0, 1.0, 1.0]).logit[0] == curve_of([0.01, 0.9], [1.0, 1.0]).logit[0]
    assert np.isfinite(curve_of([0.0, 1.0], [1.0, 1.0]).logit).all()
    with pytest.raises(ValueError, match="one shape"):
        curve_of([], [])


@given(
    seed=st.integers(0, 2**32 - 1),
    sizes=st.lists(st.integers(0, 60), min_size=1, max_size=6),
    ranks=st.integers(1, 80),
    share=st.floats(0, 1),
)
def test_rows_by_ranks_are_pooled_as_their_points(seed, sizes, ranks, share):
    rng = np.random.default_rng(seed)
    starts = np.append(0, np.cumsum(sizes))
    groups = [np.sort(2 * rng.integers(0, ranks, size) + rng.integers(0, 2, size)) for size in sizes]
    rows = np.concatenate(groups).astype(np.uint32)
    # Two parents' block ranges, each from the first rank on.
    edges = [np.append(0, np.flatnonzero(rng.random(ranks - 1) < share) + 1) for _ in range(2)]
    edge_starts = np.array([0, edges[0].size, edges[0].size + edges[1].size])
    parent = rng.integers(0, 2, len(sizes)).astype(np.int32)
    pooled = rng.random(len(sizes)) < 0.5
    block_ranges = BlockRanges(np.concatenate(edges).astype(np.int32), edge_starts)
    distinct = np.sort(rng.normal(size=ranks + 1))
    found, first, found_sizes = pool_ranks_within(rows, starts, distinct, block_ranges, parent, pooled)

    points = [np.unique(group >> 1, return_counts=True) for group in groups]
    score = np.concatenate([rank for rank, _ in points]).astype(np.float64)
    weight = np.concatenate([count for _, count in points]).astype(np.float64)
    positives = np.concatenate(
        [
            [(group[group >> 1 == r] & 1).sum() for r in rank]
            for group, (rank, _) in zip(groups, points, strict=True)
        ]
    ).astype(np.float64)
    zero = np.zeros(score.size)
    items = (score, score, weight, zero, positives, zero)
    own = np.append(0, np.cumsum([rank.size for rank, _ in points]))
    expected = pool_within(
        items, own, BlockRanges(block_ranges.edges.astype(np.float64), edge_starts), parent, pooled
    )
    np.testing.assert_array_equal(found_sizes, expected.sizes)
    np.testing.assert_array_equal(first, expected.items[0])
    np.testing.assert_array_equal(found[0], distinct[expected.items[0].astype(int)])
    np.testing.assert_array_equal(found[1], distinct[expected.items[1].astype(int)])
    np.testing.assert_array_equal(found[2], expected.items[2])
    np.testing.assert_array_equal(found[3], expected.items[4])


@given(seed=st.integers(0, 2**32 - 1), groups=st.integers(1, 6), share=st.floats(0, 1))
def test_cells_are_what_isotonic_regression_of_each_stretch_says(seed, groups, share):
    rng = np.random.default_rng(seed)
    places = 60  # distinct scores
    edges = [np.append(0.0, np.flatnonzero(rng.random(places - 1) < share) + 1.0) for _ in range(2)]
    block_ranges = BlockRanges(np.concatenate(edges), np.cumsum([0, *(own.size for own in edges)]))
    parent, pooled = rng.integers(0, 2, groups).astype(np.int32), rng.random(groups) < 0.6
    items = []
    for size in rng.integers(0, 20, groups):
        score = np.sort(rng.choice(places, size, replace=False)).astype(float)
        weight = rng.integers(1, 6, size).astype(float)
        items.append(np.column_stack([score, score, weight, np.floor(weight * rng.random(size) * 1.2)]))
    first, last, rows, hits = np.concatenate(items).T
    starts, none = np.cumsum([0, *map(len, items)]), np.empty(0)
    found = pool_within((first, last, rows, none, hits, none), starts, block_ranges, parent, pooled)

    cell = item = 0
    for g, own in enumerate(items):
        of = block_ranges.starts[parent[g]]
        block_range = of + np.searchsorted(edges[parent[g]], own[:, 0], side="right") - 1
        distinct = np.unique(block_range)
        assert found.cells[g] == distinct.size
        items_before = item
        for which in distinct:
            score, _, weight, positives = own[block_range == which].T
            assert found.block_range[cell] == which
            begin = np.zeros(1, int)
            if pooled[g]:
                level = IsotonicRegression().fit_transform(score, positives / weight, sample_weight=weight)
                begin = np.flatnonzero(np.append(True, np.diff(level) > 1e-9))
            assert found.counts[cell] == begin.size
            first, last, rows, _, hits, _ = found.items[:, item : item + begin.size]
            np.testing.assert_array_equal(first, score[begin])
            np.testing.assert_array_equal(last, score[np.append(begin[1:], score.size) - 1])
            np.testing.assert_array_equal(rows, np.add.reduceat(weight, begin))
            np.testing.assert_array_equal(hits, np.add.reduceat(positives, begin))
            item += begin.size
            cell += 1
        assert found.sizes[g] == item - items_before
    assert (cell, item) == (found.block_range.size, found.items.shape[1])
