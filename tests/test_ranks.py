"""Ranks and tests over data sets: against scipy, and the worked example of Demsar (2006)."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from benchmarks.reproduction.ranks import rank_methods, relative_gain, welch_t_test

# Demsar (2006), Table 6: AUC of C4.5 and three variants on 14 data sets.
DEMSAR = np.array(
    [
        [0.763, 0.768, 0.771, 0.798],
        [0.599, 0.591, 0.590, 0.569],
        [0.954, 0.971, 0.968, 0.967],
        [0.628, 0.661, 0.654, 0.657],
        [0.882, 0.888, 0.886, 0.898],
        [0.936, 0.931, 0.916, 0.931],
        [0.661, 0.668, 0.609, 0.685],
        [0.583, 0.583, 0.563, 0.625],
        [0.775, 0.838, 0.866, 0.875],
        [1.000, 1.000, 1.000, 1.000],
        [0.940, 0.962, 0.965, 0.962],
        [0.619, 0.666, 0.614, 0.669],
        [0.972, 0.981, 0.9751, 0.975],
        [0.957, 0.978, 0.946, 0.970],
    ]
)
NAMES = ("C4.5", "C4.5+m", "C4.5+cf", "C4.5+m+cf")


@pytest.fixture
def demsar():
    return rank_methods(NAMES, DEMSAR, higher_is_better=True)


def test_demsars_ranks(demsar):
    assert demsar.mean == pytest.approx(dict(zip(NAMES, (3.143, 2.000, 2.893, 1.964), strict=True)), abs=6e-4)


def test_demsars_friedman_statistics(demsar):
    found = demsar.friedman()
    assert found.chi_square == pytest.approx(9.28, abs=0.01)
    assert found.statistic == pytest.approx(3.69, abs=0.01)
    assert found.p_value == pytest.approx(stats.f.sf(found.statistic, 3, 39), rel=1e-12)
    assert found.p_value < 0.05


def test_demsars_holm_procedure(demsar):
    # The paper's table: z and p by ascending p, compared with .017, .025, .050; only the first is rejected.
    found = demsar.holm("C4.5")
    assert [c.method for c in found] == ["C4.5+m+cf", "C4.5+m", "C4.5+cf"]
    assert [abs(c.z) for c in found] == pytest.approx([2.416, 2.342, 0.512], abs=2e-3)
    assert [c.p_value for c in found] == pytest.approx([0.016, 0.019, 0.607], abs=2e-3)
    assert [c.alpha for c in found] == pytest.approx([0.05 / 3, 0.05 / 2, 0.05])
    assert [c.different for c in found] == [True, True, False]
    assert demsar.marks("C4.5") == {"C4.5": "", "C4.5+m": "⊛", "C4.5+cf": "", "C4.5+m+cf": "⊛"}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("levels", [None, 4])
def test_friedman_is_scipys(seed, levels):
    random = np.random.default_rng(seed)
    values = random.random((12, 5)) if levels is None else random.integers(0, levels, (12, 5)).astype(float)
    found = rank_methods("abcde", values, higher_is_better=False).friedman()
    oracle = stats.friedmanchisquare(*values.T)
    assert found.corrected == pytest.approx(oracle.statistic, rel=1e-12)
    if levels is None:
        assert found.chi_square == pytest.approx(oracle.statistic, rel=1e-12)
    else:
        assert found.chi_square < found.corrected


def test_one_best_everywhere_and_all_equal():
    clear = rank_methods("ab", [[0.1, 0.2]] * 5, higher_is_better=False)
    assert clear.mean == {"a": 1.0, "b": 2.0}
    assert clear.friedman().statistic == math.inf
    assert clear.friedman().p_value == 0.0
    alike = rank_methods("abc", np.ones((4, 3)), higher_is_better=True)
    assert alike.mean == {"a": 2.0, "b": 2.0, "c": 2.0}
    assert alike.friedman() == (0.0, 0.0, 0.0, 1.0)
    assert set(alike.marks("a").values()) == {""}


@pytest.mark.parametrize("sizes", [(10, 10), (3, 17)])
def test_welch_is_scipys(sizes):
    random = np.random.default_rng(1)
    a, b = random.normal(0, 1, sizes[0]), random.normal(0.5, 3, sizes[1])
    oracle = stats.ttest_ind(a, b, equal_var=False)
    found = welch_t_test(a, b)
    assert found == pytest.approx((oracle.statistic, oracle.df, oracle.pvalue), rel=1e-12)


def test_welch_without_variance():
    assert welch_t_test([1, 1], [1, 1]).p_value == 1.0
    assert welch_t_test([1, 1], [2, 2])[::2] == (-math.inf, 0.0)


def test_the_relative_gain_by_hand():
    # Gains -.5, 0 and .5: mean 0, standard error .5 / sqrt(3), t(.975, 2) = 4.30265.
    interval, left_out = relative_gain([0.1, 0.2, 0.3, 0.7], [0.2, 0.2, 0.2, 0.0])
    assert left_out == 1
    assert interval == pytest.approx((0.0, -4.30265 * 0.5 / 3**0.5, 4.30265 * 0.5 / 3**0.5), abs=1e-5)
    gains = np.array([-0.5, 0.0, 0.5])
    low, high = stats.t.interval(0.9, 2, gains.mean(), stats.sem(gains))
    assert relative_gain([0.1, 0.2, 0.3], [0.2, 0.2, 0.2], 0.9)[0][1:] == pytest.approx((low, high))
