"""Histogram binning against a loop over rows."""

import numpy as np
import pytest

from calibrators.methods.histogram import HistogramBinning


def bins_of_rows(scores, labels, bins):
    """The definition on rows: bin j ends with the row of rank ceil(n j / bins), and with all rows tied with it."""
    order = np.argsort(scores, kind="stable")
    s, z = np.asarray(scores)[order], np.asarray(labels)[order]
    n = len(s)
    ends = []
    for j in range(1, bins):
        end = -(-n * j // bins)
        while end < n and s[end] == s[end - 1]:
            end += 1
        if 0 < end < n and end not in ends:
            ends.append(end)
    starts = [0, *ends]
    stops = [*ends, n]
    edges = [s[e - 1] + (s[e] - s[e - 1]) / 2 for e in ends]
    spans = list(zip(starts, stops, strict=True))
    return edges, [b - a for a, b in spans], [z[a:b].sum() for a, b in spans]


@pytest.mark.parametrize("bins", [1, 2, 7, 10, 500])
@pytest.mark.parametrize("decimals", [1, 2, 12])
def test_equals_the_definition_on_rows(bins, decimals):
    rng = np.random.default_rng(bins)
    s = np.round(rng.random(311), decimals)
    z = rng.random(311) < s
    fitted = HistogramBinning(bins).fit(s, z).calibration_map_
    edges, weight, positives = bins_of_rows(s, z, bins)
    assert fitted.score_hi[:-1] == pytest.approx(edges, rel=1e-15)
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
