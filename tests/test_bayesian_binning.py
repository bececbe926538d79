"""SBB and ABB against brute force over all binnings."""

import itertools

import numpy as np
import pytest
from common import over
from scipy.special import gammaln, logsumexp

from calibrators.arithmetic.cumulative import cuts_pass, equal_frequency_targets, layout_pass
from calibrators.arithmetic.passes import Points, collapse
from calibrators.methods.bayesian_binning import ABB, SBB


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
    weight, positives = (
        np.array([g.size for g in groups], float),
        np.array([z[g].sum() for g in groups], float),
    )
    # Stretched to the range of the scores, the groups' middles are points whose gaps are those of the prior.
    binnings = all_binnings(
        Points(middle, weight, positives), 3.0 * (middle[-1] - middle[0]) / (s[-1] - s[0])
    )
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


@pytest.mark.parametrize("method", [SBB, ABB])
def test_whole_weights_and_log_gamma_agree(method):
    rng = np.random.default_rng(5)
    s = rng.random(400)
    points = collapse(s, rng.random(400) < s)
    nearly = Points(points.score, points.weight * (1 + 1e-15), points.positives)
    assert method().fit_points(points).predict(s) == pytest.approx(
        method().fit_points(nearly).predict(s), rel=1e-9
    )
