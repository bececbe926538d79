"""BBQ against a direct loop over rows, models and bins with scipy's log-beta."""

import numpy as np
import pytest
from common import wavy_rows
from scipy.special import betaln

from calibrators.methods import binnings as family
from calibrators.methods.bbq import BBQ


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


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"rho": None},
        {"prior": "per_bin"},
        {"C": 3},
        {"reference": "authors"},
        {"reference": "authors", "prior": "paper", "rho": 0.1},
    ],
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
    from calibrators.methods.binnings import _fewest_bins, _most_bins

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


@pytest.mark.parametrize("reference", ["paper", "authors"])
def test_threads_change_nothing(monkeypatch, reference):
    generator = np.random.default_rng(5)
    s = generator.random(3000)
    z = generator.random(3000) < s
    alone = BBQ(rho=None, reference=reference, cuts="frequency").fit(s, z)
    monkeypatch.setattr(family, "_BINS_A_THREAD", 1)
    monkeypatch.setattr(family, "processors", lambda: 3)
    shares = []
    original = family._shares
    monkeypatch.setattr(family, "_shares", lambda *a: shares.append(original(*a)) or shares[-1])
    shared = BBQ(rho=None, reference=reference, cuts="frequency").fit(s, z)
    assert len(shares[0]) == 3
    for name in alone.models_._fields:
        np.testing.assert_array_equal(getattr(shared.models_, name), getattr(alone.models_, name))
    np.testing.assert_array_equal(shared.predict(s), alone.predict(s))
