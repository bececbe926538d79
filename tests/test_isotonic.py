"""Isotonic regression against scikit-learn, and in any number of parts."""

from fractions import Fraction

import numpy as np
import pytest
from common import assert_same_map, simulated, wavy_rows
from hypothesis import given
from hypothesis import strategies as st
from sklearn.isotonic import IsotonicRegression
from sklearn.metrics import roc_auc_score

from calibrators import CalibrationMap, Isotonic, collapse
from calibrators.core.kernels import pava
from calibrators.core.passes import Points
from calibrators.core.pava import pool_points
from calibrators.segments.partial_pooling import BlockRanges, fit_groups, pool_ranks_within


def sample(n, seed, digits=None, weighted=False):
    return *wavy_rows(n, seed, digits), np.random.default_rng(seed + 1).exponential(
        size=n
    ) if weighted else None


def test_scores_closer_than_scikit_learn_tells_apart_stay_apart():
    s = np.array([1e-9, 2e-9, 3e-9, 4e-9])
    np.testing.assert_array_equal(Isotonic(ends=0).fit(s, [0, 0, 1, 1]).predict(s), [0, 0, 1, 1])


def test_levels_that_differ_in_the_last_place_are_told_apart():
    # Cross products near 2**60: double precision cannot order these two levels.
    n = float(2**30)
    weight = np.array([n + 1, n])
    positives = np.array([(n + 1) / 2 + 0.5, n / 2])  # 1/2 + 1/(2(n+1)) then 1/2: they violate
    none = np.empty(0)
    pooled = pava.pool(np.arange(2.0), np.arange(2.0), weight, none, positives, none)
    assert pooled[0].size == 1
    rising = pava.pool(
        np.arange(2.0), np.arange(2.0), weight[::-1].copy(), none, positives[::-1].copy(), none
    )
    assert rising[0].size == 2


def test_equal_levels_are_one_block():
    points = collapse([1, 2, 3, 4], [1, 0, 1, 0], [0.1, 0.1, 0.7, 0.7])
    assert pool_points(points).first.size == 1


SCORE = st.one_of(
    st.sampled_from([0.0, 0.5, -1e308, 1e308, 5e-324]), st.floats(-2, 2), st.integers(0, 9).map(float)
)


def check_counts(s, z):
    """Blocks of points with whole weights against those of the kernel for any weights."""
    points = collapse(s, z)
    none = np.empty(0)
    expected = pava.pool(points.score, points.score, points.weight, none, points.positives, none)
    assert pava.pool_counts(*points).shape == (expected.shape[1], 4)
    for found, column in zip(pool_points(points), expected, strict=True):
        np.testing.assert_array_equal(found, column)


@given(st.lists(st.tuples(SCORE, st.booleans()), min_size=1, max_size=60))
def test_pooling_whole_weights_is_pooling_any_weights(rows):
    check_counts(*(np.array(column) for column in zip(*rows, strict=True)))


@pytest.mark.parametrize(("power", "digits"), [(-40, 17), (-1, 4), (0.0, 2), (0.2, 17), (40, 2), (40, 17)])
def test_pooling_whole_weights_of_long_stretches_is_pooling_any_weights(power, digits):
    rng = np.random.default_rng(digits)
    s = rng.random(30_000).round(digits)
    check_counts(s, rng.random(s.size) < (s**power if power >= 0 else 1 - s**-power))


@pytest.mark.parametrize(
    ("weight", "positives"), [([1.0, 1.5], [1.0, 0.0]), ([1.0, 3.0], [0.5, 2.0]), ([2.0**25] * 2, [1.0, 0.0])]
)
def test_counts_that_are_not_whole_or_too_many_are_left_to_the_other_kernel(weight, positives):
    assert pava.pool_counts(np.arange(2.0), np.array(weight), np.array(positives)).size == 0


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ends", [0, 1, 2.5])
@pytest.mark.parametrize(("n", "digits"), [(1, None), (2, None), (50, 1), (3000, 3), (20000, None)])
def test_equals_scikit_learn_with_two_rows_more_at_the_ends(n, digits, weighted, ends):
    s, z, w = sample(n, n, digits, weighted)
    ours = Isotonic(ends=ends).fit(s, z, w)
    weights = np.concatenate([np.ones(n) if w is None else w, [ends, ends]])
    theirs = IsotonicRegression(out_of_bounds="clip").fit(
        np.concatenate([s, [-1.0, 2.0]]), np.concatenate([z, [1.0, 0.0]]), sample_weight=weights
    )
    at = np.concatenate([s, np.random.default_rng(1).uniform(s.min(), s.max(), 500), [-9.0, 9.0]])
    expected = theirs.predict(np.clip(at, s.min(), s.max()))
    np.testing.assert_allclose(ours.predict(at), expected, rtol=0, atol=2e-15)
    table = ours.calibration_map_
    total = weights.sum()
    low, high = table.prob_lo[0], table.prob_lo[-1]
    assert ends / total <= low <= high <= 1 - ends / total
    # No row is added to what the map says of the data.
    assert table.weight.sum() == pytest.approx(total - 2 * ends)
    assert table.positives.sum() == pytest.approx(weights[:-2] @ z)
    points = collapse(s, z, w)
    expected_positives = points.positives.sum() + ends * (1 - low - high)
    assert points.weight @ ours.predict(points.score) == pytest.approx(expected_positives)


def test_large_groups_at_once_are_each_group_alone():
    """Each group pooled in two parts, and then what that leaves."""
    rng = np.random.default_rng(0)
    groups, ends = [], 0.3
    for size, digits in ((5000, 9), (3, 9), (4097, 2), (1, 9), (2048, 1), (3000, 0)):
        score = rng.random(size).round(digits)
        groups.append((score, rng.random(size) < 0.2 + 0.6 * score))
    # More blocks than the first stack holds.
    score = np.arange(50_000) / 50_000
    groups.append((score, rng.random(score.size) < score**40))
    steps = np.repeat(np.arange(600.0), 600)
    groups.append((steps, np.tile(np.arange(600.0), 600) < steps))
    distinct = np.unique(np.concatenate([s for s, _ in groups]) + 0.0)
    parts = [[], []]
    for s, z in groups:
        rows = np.sort(2 * np.searchsorted(distinct, s + 0.0) + z).astype(np.uint32)
        cut = np.searchsorted(rows, 2 * (rows[rows.size // 3] // 2))
        parts[0].append(rows[:cut])
        parts[1].append(rows[cut:])
    everywhere = BlockRanges(np.zeros(1, np.int32), np.array([0, 1]))
    of, all_pooled = np.zeros(len(groups), np.int32), np.ones(len(groups), bool)
    pooled = []
    for part in parts:
        starts = np.cumsum([0, *(own.size for own in part)])
        pooled.append(pool_ranks_within(np.concatenate(part), starts, distinct, everywhere, of, all_pooled))
    blocks = [np.split(own, np.cumsum(sizes)[:-1], axis=1) for own, _, sizes in pooled]
    columns = np.concatenate([part for pair in zip(*blocks, strict=True) for part in pair], axis=1)
    sizes = pooled[0][2] + pooled[1][2]
    columns, sizes = fit_groups(list(columns), np.cumsum([0, *sizes]), ends)
    place = 0
    for (s, z), size in zip(groups, sizes.tolist(), strict=True):
        if np.unique(s).size == 1:
            assert size == 0
            continue
        alone = Isotonic(ends=ends).fit(s, z).calibration_map_
        found = CalibrationMap(*(column[place : place + size] for column in columns))
        assert_same_map(found, alone)
        place += size
    assert all(column.size == place for column in columns)


# Centred isotonic regression against its definition in rational arithmetic


def centred(points):
    """Oron & Flournoy's definition: pool a pair that violates into one point at the mean of both, until none does.

    A pair violates if it decreases or is level, unless it is level at 0 or at 1.

    Returns
    -------
    centre, level, weight, first and last score of each block, as fractions
    """
    dots = [
        [Fraction(s), Fraction(k) / Fraction(w), Fraction(w), Fraction(s), Fraction(s)]
        for s, w, k in zip(*(column.tolist() for column in points), strict=True)
    ]
    while True:
        for i in range(len(dots) - 1):
            (x0, y0, w0, first, _), (x1, y1, w1, _, last) = dots[i], dots[i + 1]
            if y0 > y1 or (y0 == y1 and 0 < y0 < 1):
                w = w0 + w1
                dots[i : i + 2] = [[(x0 * w0 + x1 * w1) / w, (y0 * w0 + y1 * w1) / w, w, first, last]]
                break
        else:
            return dots


def falls(points, centre, level, weight, first, last):
    """Tell whether the positives below the centre exceed their share by 2.5 standard errors."""
    below = (points.score >= float(first)) & (points.score < float(centre))
    w, k = (sum(map(Fraction, column[below].tolist())) for column in points[1:])
    return k > level * w and (k - level * w) ** 2 > Fraction(25, 4) * level * (1 - level) * w * (
        1 - w / weight
    )


def centred_knots(points):
    """Knots: the centres, or both ends of blocks in which the positives fall or lines would change them too much."""
    dots = centred(points)
    kept = [falls(points, *dot) for dot in dots]
    while True:
        left, right = (
            [dot[end] if flat else dot[0] for dot, flat in zip(dots, kept, strict=True)] for end in (3, 4)
        )
        slope = [
            0,
            *((dots[i + 1][1] - dots[i][1]) / (left[i + 1] - right[i]) for i in range(len(dots) - 1)),
            0,
        ]
        before = list(kept)
        for i, (centre, level, weight, first, last) in enumerate(dots):
            inside = (points.score >= float(first)) & (points.score <= float(last))
            own = zip(points.score[inside].tolist(), points.weight[inside].tolist(), strict=True)
            distance = sum(Fraction(w) * max(centre - Fraction(s), 0) for s, w in own)
            change = max(slope[i], slope[i + 1]) * distance
            kept[i] |= change**2 > weight * level * (1 - level) or (level in (0, 1) and first < last)
        if kept == before:
            knots = {x: y for i, (_, y, *_) in enumerate(dots) for x in (left[i], right[i])}
            return np.array(list(knots), float), np.array(list(knots.values()), float)


def random_points(seed, n, weighted=False, decimals=3):
    rng = np.random.default_rng(seed)
    s = np.round(rng.random(n), decimals)
    return collapse(s, rng.random(n) < s, rng.lognormal(0, 3, n) if weighted else None)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("n", [1, 2, 5, 20, 120])
def test_equals_the_definition(n, weighted):
    for seed in range(3):
        points = random_points(seed, n, weighted)
        x, y = centred_knots(points)
        fitted = Isotonic(strict=True, ends=0).fit_points(points)
        at = np.concatenate([points.score, x, np.linspace(-0.5, 1.5, 301)])
        # Blocks that keep their level rise by a ten-thousandth of the way to the next level.
        assert fitted.predict(at) == pytest.approx(np.interp(at, x, y), abs=2e-4)
        assert fitted.calibration_map_.monotone


def adversarial(name, n, rng):
    """Scores and labels of a truth with heavy ties, a dip or a jump."""
    s = rng.random(n)
    truth = s.copy()
    if name == "dip":
        truth = np.where((s > 0.7) & (s < 0.8), 0.02, s)
    if name == "ties":
        tied, which = rng.random(n) < 0.3, rng.integers(0, 5, n)
        s = np.where(tied, (which + 0.5) / 5, s)
        truth = np.where(tied, np.array([0.3, 0.02, 0.9, 0.5, 0.4])[which], s)
    if name == "jump":
        truth = np.where(s < 0.5, 0.1, 0.8)
    return s, rng.random(n) < truth


@pytest.mark.parametrize("name", ["smooth", "dip", "ties", "jump"])
@pytest.mark.parametrize("n", [300, 20_000])
def test_strict_keeps_the_positives_of_each_block(name, n):
    s, z = adversarial(name, n, np.random.default_rng(n))
    level = Isotonic().fit(s, z).predict(s)
    p = Isotonic(strict=True).fit(s, z).predict(s)
    for low in np.unique(level):
        own = level == low
        error = np.sqrt(own.sum() * low * (1 - low))
        assert abs(p[own].sum() - own.sum() * low) < 2 * error, low


@pytest.mark.parametrize("n", [2000, 20_000])
def test_strict_is_as_near_as_isotonic_to_a_truth_that_falls_in_places(n):
    at = np.linspace(0, 1, 5001)[1:-1]

    def wave(s):
        return 0.2 + 0.5 * s + 0.15 * np.sin(20 * s)

    both = []
    for draw in range(5):
        rng = np.random.default_rng([n, draw])
        s = rng.random(n)
        z, p = rng.random(n) < wave(s), wave(at)
        fitted = [Isotonic(strict=strict).fit(s, z).predict(at) for strict in (True, False)]
        both.append([np.mean(p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))) for q in fitted])
    strict, plain = np.mean(both, axis=0)
    assert strict < 1.02 * plain


def test_strict_keeps_heavy_ties_at_the_level_of_their_block():
    s = np.repeat([0.2, 0.9, 0.95], [1000, 3000, 1000])
    z = np.concatenate([np.arange(1000) < 500, np.arange(3000) < 900, np.arange(1000) < 900])
    p = Isotonic(strict=True).fit(s, z).predict([0.2, 0.9, 0.95])
    assert p == pytest.approx([0.35, 0.35, 0.9], abs=1e-3)
    assert np.all(np.diff(Isotonic(strict=True).fit(s, z).predict(np.linspace(0.2, 0.95, 50))) >= 0)


def test_increases_strictly_between_the_extremes_and_keeps_their_ranking():
    s, z = simulated(5000, 0)
    fitted = Isotonic(strict=True).fit(s, z)
    table = fitted.calibration_map_
    inner = np.sort(s[(s > table.score_hi[0]) & (s < table.score_lo[-1])])
    p = fitted.predict(inner)
    assert inner.size > 4800
    assert table.monotone
    assert np.all(np.diff(p[(p > 0) & (p < 1)]) > 0)
    assert roc_auc_score(z, fitted.predict(s)) == pytest.approx(roc_auc_score(z, s), abs=1e-6)
    plain = roc_auc_score(z, Isotonic(ends=0).fit(s, z).predict(s))
    assert plain != pytest.approx(roc_auc_score(z, s), abs=1e-4)


def test_ends_leave_nothing_flat_between_the_knots():
    s, z = np.arange(8.0), np.array([0, 0, 0, 1, 0, 1, 1, 1])
    fitted = Isotonic(strict=True).fit(s, z)
    augmented = Points(np.arange(-1.0, 9.0), np.ones(10), np.array([1.0, *z, 0.0]))
    levels = np.unique([float(dot[1]) for dot in centred(augmented)])
    # The knots stand at the mean scores of the rows themselves.
    assert fitted.predict([1.0, 3.5, 6.0]) == pytest.approx(levels)
    assert np.all(np.diff(fitted.predict(np.linspace(1.0, 6.0, 50))) > 0)


def test_scores_whose_sums_overflow():
    s = np.array([-1.7e308, -1.6e308, 1.6e308, 1.7e308])
    p = Isotonic(strict=True).fit(s, [1, 0, 1, 0], [1e12] * 4).predict(s)
    assert p == pytest.approx([0.5] * 4)


def test_one_pass_unless_strict():
    assert Isotonic().needs.one_pass
    assert not Isotonic(strict=True).needs.one_pass
