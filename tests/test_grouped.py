"""Groups of observations against a loop over rows in exact arithmetic, and against scikit-learn on plain data."""

from fractions import Fraction

import numpy as np
import pytest
from sklearn.isotonic import IsotonicRegression

from calibrators.arithmetic.passes import Points, collapse
from calibrators.methods.dgg import DGG, Grouped, groups_pass, start_pass
from calibrators.methods.histogram import HistogramBinning
from calibrators.methods.isotonic import Isotonic
from logcal.errors import ConfigError
from pipeline.fit.calibration import make_calibrator


def groups_of(points, size):
    start = start_pass()
    first = start.combine([start.chunk(points)])
    groups = groups_pass(first, size)
    return groups.combine([groups.chunk(points)])


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
    rng = np.random.default_rng(3)
    s = rng.random(1050)
    z = rng.random(1050) < s**2
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
    rng = np.random.default_rng(0)
    s = np.round(rng.random(400), 2)
    z = rng.random(400) < s
    at = np.linspace(0, 1, 301)
    for calibrator in (Isotonic(), HistogramBinning(bins=5)):
        plain = calibrator.fit(s, z).predict(at)
        assert Grouped(calibrator, group_size=1).fit(s, z).predict(at) == pytest.approx(plain, abs=1e-12)


def test_fewer_observations_than_a_group_are_one_level():
    fitted = DGG(ends=0).fit([0.1, 0.5, 0.9], [0, 1, 1])
    assert fitted.predict([0.0, 0.5, 1.0]) == pytest.approx([2 / 3] * 3)
    # A positive and a negative more.
    assert DGG().fit([0.1, 0.5, 0.9], [0, 1, 1]).predict([0.5]) == pytest.approx([3 / 5])


def test_the_methods_of_configurations():
    assert isinstance(make_calibrator("dg", {}), Isotonic)
    assert make_calibrator("dgg", {"group_size": 50}).get_params() == {"ends": 1, "group_size": 50}
    with pytest.raises(ConfigError, match=r"group_sise: dgg has no such parameter \(did you mean"):
        make_calibrator("dgg", {"group_sise": 50})


def test_means_that_rounding_alone_tells_apart_are_one_point():
    from calibrators.methods.dgg import _without_rounding

    one = np.nextafter(0.3, 1.0)
    mean = np.array([0.1, 0.3, one, np.nextafter(one, 1.0), 0.3 + 1e-12, 7.0])
    assert _without_rounding(mean).tolist() == [0.1, 0.3, 0.3, 0.3, 0.3 + 1e-12, 7.0]
    assert _without_rounding(np.array([0.5])).tolist() == [0.5]
