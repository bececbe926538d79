"""SBB and ABB against brute force over all binnings."""

from fractions import Fraction

import numpy as np
import pytest
from common import over, simulated, wavy_rows
from sklearn.isotonic import IsotonicRegression

from calibrators import ABB, BBQ, DGG, SBB, Grouped, HistogramBinning, Isotonic, Points, collapse
from calibrators.bayesian_binning.reference import abb, all_binnings, sbb
from calibrators.binning.reference import bbq, past_ties
from calibrators.core.cumulative import cuts_pass, equal_frequency_targets, layout_pass
from calibrators.core.passes import run_in_memory
from calibrators.generated.dgg import groups_passes


def random_points(rng, m, weighted):
    s = np.round(rng.random(3 * m), 2 if m > 6 else 1)[:, None]
    s = rng.choice(np.unique(s), size=min(m, np.unique(s).size), replace=False)
    s = np.repeat(s, rng.integers(1, 5, s.size))
    return collapse(s, rng.random(s.size) < s, rng.lognormal(0, 2, s.size) if weighted else None)


CASES = [(seed, m, weighted) for seed, m in enumerate([1, 2, 3, 8, 11]) for weighted in (False, True)]


@pytest.mark.parametrize("expected_cuts", [0.3, 3.0, 30.0])
@pytest.mark.parametrize(("seed", "m", "weighted"), CASES)
def test_equals_the_best_of_all_binnings_and_their_average(seed, m, weighted, expected_cuts):
    points = random_points(np.random.default_rng(seed), m, weighted)
    binnings = all_binnings(points, expected_cuts)
    level, bins = abb(binnings)
    fitted = ABB(expected_cuts).fit_points(points)
    assert fitted.exact_
    assert np.abs(fitted.predict(points.score) - level).max() < 1e-10
    assert fitted.expected_bins_ == pytest.approx(bins, rel=1e-10)
    fitted = SBB(expected_cuts).fit_points(points)
    best = sbb(binnings).log_score
    assert fitted.log_score_ == pytest.approx(best, rel=1e-12, abs=1e-10)
    equals = [binning.level for binning in binnings if binning.log_score > best - 1e-9]
    assert min(np.abs(fitted.predict(points.score) - level).max() for level in equals) < 1e-10


@pytest.mark.parametrize("expected_cuts", [0.5, 1.0, 5.0, 20.0])
def test_expected_cuts_is_what_it_says(expected_cuts):
    # Points of next to no weight leave the prior as it is.
    s = np.sort(np.random.default_rng(0).random(2000))
    points = Points(s, np.full(s.size, 1e-12), np.zeros(s.size))
    assert ABB(expected_cuts).fit_points(points).expected_bins_ - 1 == pytest.approx(expected_cuts, rel=0.06)
    # Nor do fewer places for boundaries.
    few = ABB(expected_cuts, max_cuts=500, cuts="frequency").fit_points(points)
    assert not few.exact_
    assert few.expected_bins_ - 1 == pytest.approx(expected_cuts, rel=0.06)


@pytest.mark.parametrize("method", [SBB, ABB])
def test_few_cuts_equal_the_definition_on_groups(method):
    rng = np.random.default_rng(3)
    s = np.sort(rng.random(60))
    z = rng.random(60) < s
    fitted = method(3.0, max_cuts=9, cuts="frequency").fit(s, z)
    ends = [-(-60 * j // 10) for j in range(1, 10)]
    groups = np.split(np.arange(60), ends)
    middle = np.array([(s[g[0]] + s[g[-1]]) / 2 for g in groups])
    weight = np.array([g.size for g in groups], float)
    positives = np.array([z[g].sum() for g in groups], float)
    # Stretched to the range of the scores, the groups' middles are points whose gaps are those of the prior.
    binnings = all_binnings(Points(middle, weight, positives), 3.0 * (np.ptp(middle)) / (s[-1] - s[0]))
    expected = abb(binnings)[0] if method is ABB else sbb(binnings).level
    assert fitted.predict(s) == pytest.approx(np.repeat(expected, weight.astype(int)), abs=1e-10)
    edges = [(s[e - 1] + s[e]) / 2 for e in ends]
    assert set(fitted.calibration_map_.score_hi[:-1]) <= set(edges)


@pytest.mark.parametrize("rarer", [True, False])
@pytest.mark.parametrize("parts", [1, 7])
def test_balanced_cuts_have_equal_shares_of_rows_and_of_the_rarer_label(rarer, parts):
    rng = np.random.default_rng(8)
    s = np.sort(rng.random(5000).round(3))
    z = (rng.random(5000) < 0.1 * s**4) == rarer
    points = collapse(s, z)
    run = over(points, *range(0, 1000, 1000 // parts))
    layout = run(layout_pass())
    found = run(cuts_pass(layout, equal_frequency_targets(1.0, 40), balanced=True))
    few = points.positives if rarer else points.weight - points.positives
    share = (np.cumsum(points.weight) / points.weight.sum() + np.cumsum(few) / few.sum()) / 2
    expected = np.unique([np.argmax(share >= j / 40) for j in range(1, 40)])
    assert found.below.tolist() == points.score[expected].tolist()


# BBQ against its reference, row by row

AUTHORS = {"reference": "authors"}


@pytest.mark.parametrize(
    "parameters",
    [{}, {"rho": None}, {"prior": "per_bin"}, {"C": 3}, AUTHORS, AUTHORS | {"prior": "paper", "rho": 0.1}],
    ids=str,
)
@pytest.mark.parametrize(
    ("n", "decimals", "cuts"),
    [
        (7, None, "rarer"),
        (7, 1, "frequency"),
        (331, None, "frequency"),
        (331, 1, "rarer"),
        (1000, 3, "rarer"),
    ],
)
def test_equals_the_direct_loop(n, parameters, decimals, cuts):
    s, z = wavy_rows(n, n, decimals)
    fitted = BBQ(cuts=cuts, **parameters).fit(s, z)
    expected = bbq(s, z, fitted)
    models, weight = expected
    at = np.concatenate([np.linspace(0, 1, 1001), s])
    assert fitted.predict(at) == pytest.approx(expected.predict(at), rel=1e-9)
    kept = fitted.models_
    shown = kept.requested.size
    assert kept.requested.tolist() == [model.B for model in models[:shown]]
    assert kept.bins.tolist() == [model.theta.size for model in models[:shown]]
    assert kept.log_marginal_likelihood == pytest.approx(
        [model.log_score for model in models[:shown]], rel=1e-9
    )
    assert kept.weight == pytest.approx(weight[:shown], rel=1e-6)
    assert weight[shown:].sum() < 1e-15


def test_number_of_models_is_exact_where_the_cube_root_is_whole():
    from calibrators.binning.family import _fewest_bins, _most_bins

    for root in (10, 20, 100, 300, 1000):
        assert _fewest_bins(float(root**3), 10.0) == max(1, root // 10)
        assert _fewest_bins(float(root**3 - 1), 10.0) == max(1, (root - 1) // 10)
        assert _most_bins(float(root**3), 10.0) == min(-(-(root**3) // 5), 10 * root)
        assert _most_bins(float(root**3 + 1), 10.0) == min(-(-(root**3 + 1) // 5), 10 * root + 1)


def test_points_beyond_one_block_of_the_kernel():
    s, z = wavy_rows(100_000, 9)
    fitted = BBQ(C=1, rho=None, cuts="frequency").fit(s, z)
    expected = bbq(s, z, fitted)
    at = np.linspace(0, 1, 1001)
    assert fitted.predict(at) == pytest.approx(expected.predict(at), rel=1e-9)


def test_too_many_edges_are_refused():
    with pytest.raises(ValueError, match="lower C, or scale the weights"):
        BBQ().fit(np.linspace(0, 1, 100_000), np.arange(100_000) % 2, np.full(100_000, 1e9))


# Histogram binning against a loop over rows


@pytest.mark.parametrize("bins", [1, 2, 7, 10, 500])
@pytest.mark.parametrize("decimals", [1, 2, 12])
def test_equals_the_definition_on_rows(bins, decimals):
    """Bin j ends with the row of rank ceil(n j / bins), and with all rows tied with it."""
    scores, labels = simulated(311, bins, decimals=decimals)
    order = np.argsort(scores, kind="stable")
    s, z = scores[order], labels[order]
    starts = [0, *past_ties(s, [-(-s.size * j // bins) for j in range(1, bins)])]
    weight, positives = (np.add.reduceat(column, starts) for column in (np.ones(s.size), z.astype(float)))
    fitted = HistogramBinning(bins).fit(scores, labels).calibration_map_
    assert fitted.score_hi[:-1] == pytest.approx([(s[i - 1] + s[i]) / 2 for i in starts[1:]], rel=1e-15)
    assert fitted.weight.tolist() == weight.tolist()
    assert fitted.positives.tolist() == positives.tolist()
    assert fitted.prob_lo == pytest.approx(positives / weight, rel=1e-15)


def test_laplace_smoothing():
    fitted = HistogramBinning(bins=2, smoothing=1.0).fit([1, 2, 3, 4], [0, 0, 1, 1])
    assert fitted.predict([1, 4]).tolist() == [0.25, 0.75]


@pytest.mark.parametrize("seed", range(40))
def test_enormous_weights_give_probabilities(seed):
    """Log scores beyond 1e16 have rounding errors above 1: shares vanished or overflowed, and levels were NaN."""
    rng = np.random.default_rng(seed)
    scores = rng.random(100).round(2)
    weight = 10.0 ** rng.uniform(-30, 30, 100)
    levels = ABB().fit(scores, rng.random(100) < scores, weight).predict(scores)
    assert ((levels >= 0) & (levels <= 1)).all()


def test_counts_stay_exact_beside_a_huge_weight():
    scores = np.arange(6.0)
    weight = np.array([1e12, 1e-9, 3e-9, 1e12, 2e-9, 1e12])
    fitted = HistogramBinning(bins=3).fit(scores, [1, 0, 1, 0, 1, 0], weight).calibration_map_
    assert fitted.weight == pytest.approx([1e12, 1e12 + 4e-9, 1e12 + 2e-9])
    assert fitted.positives == pytest.approx([1e12, 3e-9, 2e-9], rel=1e-12)


# Groups of observations against a loop over rows in exact arithmetic, and against scikit-learn on plain data


def groups_of(points, size):
    return run_in_memory(groups_passes(size), points)[1]


def groups_of_rows(points, size):
    """The definition: fill groups of `size` with the points in order; a point may fill several, in proportion."""
    groups, group = [], [Fraction(0)] * 3
    for s, w, k in zip(*(map(Fraction, column.tolist()) for column in points), strict=True):
        left = w
        while left > 0:
            taken = min(left, size - group[0])
            group = [group[0] + taken, group[1] + taken * k / w, group[2] + taken * s]
            left -= taken
            if group[0] == size:
                groups.append(group)
                group = [Fraction(0)] * 3
    if group[0] > 0:
        groups.append(group)
    means = {}
    for w, k, moment in groups:
        sums = means.setdefault(moment / w, [0, 0])
        sums[0] += w
        sums[1] += k
    ascending = sorted(means)
    return Points(
        np.array([float(s) for s in ascending]),
        np.array([float(means[s][0]) for s in ascending]),
        np.array([float(means[s][1]) for s in ascending]),
    )


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize(("decimals", "weights"), [(1, "any"), (2, "none"), (12, "whole"), (12, "any")])
def test_groups_equal_the_definition_on_rows(size, decimals, weights):
    rng = np.random.default_rng(size)
    s = np.round(rng.random(311), decimals)
    z = rng.random(311) < s
    weight = {"none": None, "whole": rng.integers(1, 40, 311), "any": rng.lognormal(0, 2, 311)}[weights]
    points = collapse(s, z, weight)
    found, expected = groups_of(points, size), groups_of_rows(points, size)
    assert found.score.size == expected.score.size
    for a, b in zip(found, expected, strict=True):
        assert a == pytest.approx(b, rel=1e-12)


def test_on_plain_rows_it_is_isotonic_regression_on_means():
    s, z = simulated(1050, 3, power=2)
    order = np.argsort(s)
    cuts = np.arange(100, 1050, 100)
    scores = [part.mean() for part in np.split(s[order], cuts)]
    levels = [part.mean() for part in np.split(z[order], cuts)]
    weights = [part.size for part in np.split(s[order], cuts)]
    assert weights[-1] == 50
    oracle = IsotonicRegression(out_of_bounds="clip").fit(scores, levels, weights)
    at = np.linspace(0, 1, 501)
    assert DGG(ends=0).fit(s, z).predict(at) == pytest.approx(oracle.predict(at), abs=1e-12)


def test_groups_of_one_are_the_calibrator_itself():
    s, z = simulated(400, 0, decimals=2)
    at = np.linspace(0, 1, 301)
    for calibrator in (Isotonic(), HistogramBinning(bins=5)):
        plain = calibrator.fit(s, z).predict(at)
        assert Grouped(calibrator, group_size=1).fit(s, z).predict(at) == pytest.approx(plain, abs=1e-12)


def test_means_that_rounding_alone_tells_apart_are_one_point():
    from calibrators.generated.dgg import _without_rounding

    one = np.nextafter(0.3, 1.0)
    mean = np.array([0.1, 0.3, one, np.nextafter(one, 1.0), 0.3 + 1e-12, 7.0])
    assert _without_rounding(mean).tolist() == [0.1, 0.3, 0.3, 0.3, 0.3 + 1e-12, 7.0]
    assert _without_rounding(np.array([0.5])).tolist() == [0.5]
