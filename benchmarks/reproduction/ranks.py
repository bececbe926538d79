"""Comparison of methods over data sets: average ranks and their tests, Welch's t-test, relative gains."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import stats

from calibrators.core.arrays import Array

DECIMALS = 10
"""Measures are rounded to these decimals before ranking, so that means that differ only by rounding are tied."""


class Friedman(NamedTuple):
    """Result of Friedman's test that all methods are equal.

    Attributes
    ----------
    chi_square : float >= 0: 12 n / (k (k + 1)) (sum R_j^2 - k (k + 1)^2 / 4), not corrected for ties
    corrected : float >= 0: chi_square divided by 1 - sum (t^3 - t) / (n k (k^2 - 1)) over ties of t methods
    statistic : float >= 0 or inf: Iman and Davenport's F = (n - 1) chi^2 / (n (k - 1) - chi^2)
    p_value : float in [0, 1]: of the F statistic, with k - 1 and (k - 1) (n - 1) degrees of freedom
    """

    chi_square: float
    corrected: float
    statistic: float
    p_value: float


class Comparison(NamedTuple):
    """Comparison of a method with the target, by Holm's step-down procedure.

    Attributes
    ----------
    method : str
    z : float: (R_method - R_target) / sqrt(k (k + 1) / (6 n)); positive where the target ranks better
    p_value : float in [0, 1], two-sided
    alpha : float: level of the test
    different : bool: whether the test rejects equality
    """

    method: str
    z: float
    p_value: float
    alpha: float
    different: bool


@dataclass(frozen=True)
class Ranking:
    """Ranks of k methods on n data sets; 1 is best.

    Attributes
    ----------
    methods : tuple of str, k of them
    ranks : float64 array, shape (n, k)
    """

    methods: tuple[str, ...]
    ranks: Array

    @property
    def mean(self) -> dict[str, float]:
        """Average rank of each method."""
        return dict(zip(self.methods, self.ranks.mean(axis=0).tolist(), strict=True))

    @property
    def standard_error(self) -> dict[str, float]:
        """Standard error of the average ranks over the data sets; NaN for one data set."""
        n = self.ranks.shape[0]
        if n < 2:
            return dict.fromkeys(self.methods, math.nan)
        spread = self.ranks.std(axis=0, ddof=1) / math.sqrt(n)
        return dict(zip(self.methods, spread.tolist(), strict=True))

    def friedman(self) -> Friedman:
        """Run Friedman's test with Iman and Davenport's correction, as in Demsar (2006), section 3.2.2."""
        n, k = self.ranks.shape
        mean = self.ranks.mean(axis=0)
        chi = max(0.0, 12 * n / (k * (k + 1)) * (float(np.sum(mean**2)) - k * (k + 1) ** 2 / 4))
        tied = sum(
            float(np.sum(counts**3 - counts))
            for row in self.ranks
            for counts in [np.unique(row, return_counts=True)[1].astype(np.float64)]
        )
        untied = 1 - tied / (n * k * (k * k - 1))
        corrected = chi / untied if untied > 0 else 0.0
        residual = n * (k - 1) - chi
        # If the ranks are equal on all data sets, there is no residual variance.
        statistic = math.inf if residual <= 1e-9 else (n - 1) * chi / residual
        degrees = (k - 1, (k - 1) * (n - 1))
        p_value = float(stats.f.sf(statistic, *degrees)) if n > 1 else math.nan
        return Friedman(chi, corrected, statistic, p_value)

    def holm(self, target: str, alpha: float = 0.05) -> list[Comparison]:
        """Compare every other method with the target; the result is sorted by p-value.

        The i-th smallest p-value is compared with alpha / (k - i). From the first one that is not below it, all
        hypotheses are retained.

        Raises
        ------
        ValueError
            The target is unknown, or alpha is outside (0, 1).
        """
        if target not in self.methods:
            raise ValueError(f"target: expected one of {', '.join(self.methods)}, found {target!r}")
        if not 0 < alpha < 1:
            raise ValueError(f"alpha: expected a number in (0, 1), found {alpha!r}")
        n, k = self.ranks.shape
        mean = self.mean
        scale = math.sqrt(k * (k + 1) / (6 * n))
        others = [(name, (mean[name] - mean[target]) / scale) for name in self.methods if name != target]
        tested = sorted((2 * float(stats.norm.sf(abs(z))), name, z) for name, z in others)
        comparisons, rejecting = [], True
        for i, (p_value, name, z) in enumerate(tested, 1):
            level = alpha / (k - i)
            rejecting = rejecting and p_value < level
            comparisons.append(Comparison(name, z, min(p_value, 1.0), level, rejecting))
        return comparisons

    def marks(self, target: str, alpha: float = 0.05) -> dict[str, str]:
        """Mark methods: '*' if the target is significantly better, '⊛' if it is worse, '' if neither.

        Holm's procedure is only used if Friedman's test rejects at alpha.
        """
        if not self.friedman().p_value < alpha:
            return dict.fromkeys(self.methods, "")
        marks = {c.method: ("*" if c.z > 0 else "⊛") if c.different else "" for c in self.holm(target, alpha)}
        return {name: marks.get(name, "") for name in self.methods}


def rank_methods(methods: Sequence[str], values: npt.ArrayLike, *, higher_is_better: bool) -> Ranking:
    """Rank methods on each data set: 1 is best; tied methods get the mean of their ranks.

    Parameters
    ----------
    methods : names of k >= 2 methods
    values : array-like, shape (n, k), n >= 1, without NaN; may be infinite
        The measure on each data set; rounded to 10 decimals.
    higher_is_better : whether the largest value gets rank 1

    Raises
    ------
    ValueError
        The shape is wrong, or a value is NaN.

    Notes
    -----
    O(n k log k).

    References
    ----------
    Demsar (2006), "Statistical comparisons of classifiers over multiple data sets", Journal of Machine Learning
    Research 7, 1-30. Holm (1979). Iman & Davenport (1980).

    Examples
    --------
    >>> ranking = rank_methods(["a", "b", "c"], [[0.9, 0.8, 0.8], [0.7, 0.6, 0.5]], higher_is_better=True)
    >>> ranking.mean
    {'a': 1.0, 'b': 2.25, 'c': 2.75}
    """
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 2 or array.shape[0] < 1 or array.shape[1] != len(methods) or len(methods) < 2:
        raise ValueError(
            f"values: expected shape (n, {len(methods)}) with n >= 1 and at least two methods, "
            f"found shape {array.shape}"
        )
    if np.isnan(array).any():
        bad = np.argwhere(np.isnan(array))
        raise ValueError(
            f"values: expected numbers, found {len(bad)} NaN, the first in row {bad[0][0]} for "
            f"{methods[bad[0][1]]!r}"
        )
    rounded = np.round(array, DECIMALS)
    return Ranking(tuple(methods), stats.rankdata(-rounded if higher_is_better else rounded, axis=1))


class Welch(NamedTuple):
    """Result of Welch's t-test of two means: t, degrees of freedom, and the two-sided p-value in [0, 1]."""

    t: float
    degrees_of_freedom: float
    p_value: float


def welch_t_test(first: npt.ArrayLike, second: npt.ArrayLike) -> Welch:
    """Run Welch's t-test for the means of two samples with unequal variances.

    Parameters
    ----------
    first, second : array-like, shapes (n,) and (m,), n, m >= 2, finite

    Returns
    -------
    Welch
        t is negative if the first mean is smaller. If neither sample varies, p is 1 for equal means and 0 otherwise.

    Raises
    ------
    ValueError
        A sample has fewer than two numbers, or numbers that are not finite.

    References
    ----------
    Welch (1947), "The generalization of 'Student's' problem when several different population variances are
    involved", Biometrika 34.

    Examples
    --------
    >>> welch_t_test([1.0, 2.0, 3.0], [3.0, 4.0, 5.0]).t.__round__(4)
    -2.4495
    """
    a, b = _sample("first", first), _sample("second", second)
    error_a, error_b = a.var(ddof=1) / a.size, b.var(ddof=1) / b.size
    difference, error = float(a.mean() - b.mean()), float(error_a + error_b)
    if error == 0:
        infinite = math.copysign(math.inf, difference) if difference else 0.0
        return Welch(infinite, float(a.size + b.size - 2), 0.0 if difference else 1.0)
    t = difference / math.sqrt(error)
    degrees = error**2 / float(error_a**2 / (a.size - 1) + error_b**2 / (b.size - 1))
    return Welch(t, degrees, 2 * float(stats.t.sf(abs(t), degrees)))


class Interval(NamedTuple):
    """Mean with its confidence interval."""

    mean: float
    low: float
    high: float


def relative_gain(
    values: npt.ArrayLike, baseline: npt.ArrayLike, confidence: float = 0.95
) -> tuple[Interval, int]:
    """Return the mean over data sets of (value - baseline) / baseline, with its Student interval.

    Parameters
    ----------
    values, baseline : array-like, shape (n,), n >= 2, finite: a measure >= 0 of two methods on each data set
    confidence : float in (0, 1), default 0.95

    Returns
    -------
    interval : Interval
    left_out : int
        Number of data sets that are left out, since their baseline is 0.

    Raises
    ------
    ValueError
        The shapes differ, a number is not finite, or fewer than two data sets have a baseline above 0.

    References
    ----------
    Naeini & Cooper (2016), equation 10.
    """
    a, b = _sample("values", values), _sample("baseline", baseline)
    if a.shape != b.shape:
        raise ValueError(f"baseline: expected shape {a.shape} as values has, found {b.shape}")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence: expected a number in (0, 1), found {confidence!r}")
    usable = b > 0
    if usable.sum() < 2:
        raise ValueError(f"baseline: expected at least two numbers > 0, found {int(usable.sum())}")
    gains = (a[usable] - b[usable]) / b[usable]
    mean = float(gains.mean())
    half_width = float(
        stats.t.ppf((1 + confidence) / 2, gains.size - 1) * gains.std(ddof=1) / math.sqrt(gains.size)
    )
    return Interval(mean, mean - half_width, mean + half_width), int(np.sum(~usable))


def _sample(name: str, values: npt.ArrayLike) -> Array:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or array.size < 2 or not np.isfinite(array).all():
        raise ValueError(f"{name}: expected at least two finite numbers in shape (n,), found {array!r:.80}")
    return array
