"""SBB and ABB against brute force over all binnings."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
from common import over, simulated, wavy_rows
from scipy.special import betaln, gammaln, logsumexp
from sklearn.isotonic import IsotonicRegression

from calibrators import ABB, BBQ, DGG, SBB, Grouped, HistogramBinning, Isotonic, Points, collapse
from calibrators.core.cumulative import cuts_pass, equal_frequency_targets, layout_pass
from calibrators.core.passes import run_in_memory
from calibrators.generated.dgg import groups_passes


def all_binnings(points, expected_cuts):
    """Every binning of the points: the first points of its bins, its log score, its levels at the points."""
    s, w, k = points
    m = len(s)
    gap = np.diff(s) / (s[-1] - s[0]) if m > 1 else np.empty(0)
    found = []
    for boundaries in itertools.product([False, True], repeat=m - 1):
        prior = [
            1 - np.exp(-expected_cuts * g) if b else np.exp(-expected_cuts * g)
            for b, g in zip(boundaries, gap, strict=True)
        ]
        starts = [0, *(i + 1 for i, b in enumerate(boundaries) if b)]
        score, level = np.sum(np.log(prior)), np.empty(m)
        for a, b in zip(starts, [*starts[1:], m], strict=True):
            n, n1 = w[a:b].sum(), k[a:b].sum()
            score += gammaln(n1 + 1) + gammaln(n - n1 + 1) - gammaln(n + 2)
            level[a:b] = (n1 + 1) / (n + 2)
        found.append((starts, score, level))
    return found


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
    logs = np.array([b[1] for b in binnings])
    share = np.exp(logs - logsumexp(logs))
    fitted = ABB(expected_cuts).fit_points(points)
    assert fitted.exact_
    assert np.abs(fitted.predict(points.score) - share @ np.array([b[2] for b in binnings])).max() < 1e-10
    assert fitted.expected_bins_ == pytest.approx(share @ [len(b[0]) for b in binnings], rel=1e-10)
    fitted = SBB(expected_cuts).fit_points(points)
    assert fitted.log_score_ == pytest.approx(logs.max(), rel=1e-12, abs=1e-10)
    equals = [level for _, score, level in binnings if score > logs.max() - 1e-9]
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
    logs = np.array([b[1] for b in binnings])
    if method is ABB:
        expected = np.exp(logs - logsumexp(logs)) @ np.array([b[2] for b in binnings])
    else:
        expected = binnings[int(np.argmax(logs))][2]
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


# BBQ against a direct loop over rows, models and bins with scipy's log-beta


def bins_of_rows(s, ends):
    starts = [0, *ends]
    stops = [*ends, len(s)]
    edges = [0.0, *(s[e - 1] + (s[e] - s[e - 1]) / 2 for e in ends), 1.0]
    return [(edges[i], edges[i + 1], slice(starts[i], stops[i])) for i in range(len(starts))]


def past_ties(s, ranks):
    n = len(s)
    ends = set()
    for end in ranks:
        while 0 < end < n and s[end] == s[end - 1]:
            end += 1
        if 0 < end < n:
            ends.add(end)
    return sorted(ends)


def direct(scores, labels, C=10, prior="paper", rho=0.001, reference="paper", cuts="frequency"):
    """BBQ row by row: a function of scores, the marginal likelihoods and the numbers of bins."""
    order = np.argsort(scores, kind="stable")
    s, z = np.asarray(scores, float)[order], np.asarray(labels, float)[order]
    n = len(s)
    root = np.cbrt(n)
    authors = reference == "authors"
    models = []
    for B in range(max(1, int(root / C)), min(-(-n // 5), int(np.ceil(C * root))) + 1):
        ranks = [j * (n // B) if authors else -(-n * j // B) for j in range(1, B)]
        if cuts == "rarer" and not authors:
            rare = z if 2 * z.sum() <= n else 1 - z
            share = (np.arange(1, n + 1) / n + np.cumsum(rare) / rare.sum()) / 2 * n
            ranks = [int(np.argmax(share >= n * j / B)) + 1 for j in range(1, B)]
        bins = bins_of_rows(s, past_ties(s, ranks))
        strength = 2 if authors or prior == "per_bin" else 2 / len(bins)
        S, levels = 0.0, []
        for low, high, rows in bins:
            k, w = z[rows].sum(), len(z[rows])
            p = min(max((low + high) / 2, 0.005), 0.995)
            a, b = strength * p, strength * (1 - p)
            S += betaln(k + a, w - k + b) - betaln(a, b)
            if authors:
                p0 = (s[rows][z[rows] == 1].sum() + (low + high) / 2) / (k + 1)
                levels.append((k + p0) / (w + 1))
            else:
                levels.append((k + a) / (w + strength))
        models.append((S, np.array([b[0] for b in bins[1:]]), np.array(levels), B))
    best = max(m[0] for m in models)
    models.sort(key=lambda m: (-np.exp(m[0] - best), m[3]))
    relative = np.exp([m[0] - best for m in models])
    keep = len(models)
    if rho is not None:
        start = int(np.sum(relative == relative[0])) if authors else 1
        for k in range(start, len(models)):
            if relative[k - 1] - relative[k] <= rho * np.var(relative):
                keep = k
                break
        if authors:
            keep = max(1, keep - 1)
    models, relative = models[:keep], relative[:keep]

    def predict(x):
        levels = np.array([m[2][np.searchsorted(m[1], x, side="right")] for m in models])
        return relative @ levels / relative.sum()

    return predict, models, relative / relative.sum()


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
    predict, models, weight = direct(s, z, cuts=cuts, **parameters)
    at = np.concatenate([np.linspace(0, 1, 1001), s])
    assert fitted.predict(at) == pytest.approx(predict(at), rel=1e-9)
    kept = fitted.models_
    shown = kept.requested.size
    assert kept.requested.tolist() == [m[3] for m in models[:shown]]
    assert kept.bins.tolist() == [len(m[2]) for m in models[:shown]]
    assert kept.log_marginal_likelihood == pytest.approx([m[0] for m in models[:shown]], rel=1e-9)
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
    predict, _, _ = direct(s, z, C=1, rho=None)
    at = np.linspace(0, 1, 1001)
    assert fitted.predict(at) == pytest.approx(predict(at), rel=1e-9)


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
    found = bins_of_rows(s, past_ties(s, [-(-s.size * j // bins) for j in range(1, bins)]))
    weight, positives = ([column[rows].sum() for *_, rows in found] for column in (np.ones(s.size), z))
    fitted = HistogramBinning(bins).fit(scores, labels).calibration_map_
    assert fitted.score_hi[:-1] == pytest.approx([high for _, high, _ in found[:-1]], rel=1e-15)
    assert fitted.weight.tolist() == weight
    assert fitted.positives.tolist() == positives
    assert fitted.prob_lo == pytest.approx(np.divide(positives, weight), rel=1e-15)


def test_laplace_smoothing():
    fitted = HistogramBinning(bins=2, smoothing=1.0).fit([1, 2, 3, 4], [0, 0, 1, 1])
    assert fitted.predict([1, 4]).tolist() == [0.25, 0.75]


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
