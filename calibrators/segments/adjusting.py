"""Adjustments of a parent's map to segments: a shift and a slope of log odds for each, shrunk towards 0 and 1.

The prior variances of shifts and slopes are estimated from all segments of a level (empirical Bayes). Of a segment only
the counts in the ranges of scores are used within which its parent's map is constant.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from calibrators._kernels import log_odds
from calibrators._kernels import partial_pooling as kernel
from calibrators._kernels.log_odds import logistic
from calibrators.arithmetic.passes import Array
from calibrators.arithmetic.processors import processors

_FLAT = 1e-12


def asymmetry(logit: Array) -> Array:
    """Compute 1 - 2 p: for x ~ N(m, v), E sigma(x) is about sigma(m + v (1 - 2 p) / 2)."""
    p = np.empty(logit.size)
    logistic(np.ascontiguousarray(logit), p)
    return np.asarray(1.0 - 2.0 * p)


def moments(x: Array, logit: Array, weight: Array, sizes: Integers) -> Array:
    """Compute moments of segments weighted by information; shape (segments, 7).

    These are powers 0 to 2 of x, and powers 0 to 3 times the asymmetry.

    x, logit, weight : float64 arrays, shape (cells,), segment after segment. sizes : number of cells of each segment
    """
    result, filled = np.zeros((sizes.size, 7)), sizes > 0
    tilt = asymmetry(logit)
    information = weight * (0.25 * (1.0 - tilt * tilt))
    tilted = information * tilt
    terms = [information, information * x, information * x * x]
    terms += [tilted, tilted * x, tilted * x * x, tilted * x * x * x]
    starts = (np.cumsum(sizes) - sizes)[filled]
    for column, term in zip(result.T, terms, strict=True):
        column[filled] = np.add.reduceat(term, starts)
    return result


def line(sums: Array, pivot: float) -> Array:
    """Fit lines in x - pivot to the asymmetry times 1, x - pivot and its square: shape (2, 3). sums : see `moments`."""
    s, t = (
        [sum(math.comb(k, j) * (-pivot) ** (k - j) * m[j] for j in range(k + 1)) for k in range(m.size)]
        for m in (sums[:3], sums[3:])
    )
    low, high = np.array(t[:3]), np.array(t[1:])
    determinant = s[0] * s[2] - s[1] * s[1]
    if determinant <= _FLAT * s[0] * s[2]:
        return np.stack([low / s[0] if s[0] > 0 else np.zeros(3), np.zeros(3)])
    return np.stack([(s[2] * low - s[1] * high) / determinant, (s[0] * high - s[1] * low) / determinant])


def excess(derivatives: Array, variances: tuple[float, float]) -> Array:
    """Compute half of the posterior minus the prior variance of a + d x, as polynomials in x: shape (segments, 3)."""
    a, d = variances
    h_aa, h_ad, h_dd = derivatives[:, 2], derivatives[:, 3], derivatives[:, 4]
    factor_a, factor_d = 1.0 + a * h_aa, 1.0 + d * h_dd
    determinant = np.maximum(factor_a * factor_d - a * d * h_ad * h_ad, 1.0)
    variance_a, covariance, variance_d = (
        a * factor_d / determinant,
        -a * d * h_ad / determinant,
        d * factor_a / determinant,
    )
    return np.stack([0.5 * (variance_a - a), covariance, 0.5 * (variance_d - d)], axis=1)


def recentred(theta: Array, derivatives: Array, offset: float) -> tuple[Array, Array]:
    """Convert shifts, slopes and the likelihood's derivatives to a pivot that is larger by `offset`."""
    if offset == 0:
        return theta, derivatives
    a, d = theta.T
    g_a, g_d, h_aa, h_ad, h_dd = derivatives.T
    converted = [g_a, g_d - offset * g_a, h_aa, h_ad - offset * h_aa]
    converted.append(np.maximum(h_dd - 2.0 * offset * h_ad + offset * offset * h_aa, 0.0))
    return np.stack([a + d * offset, d], axis=1), np.stack(converted, axis=1)


LEAST, MOST = float(np.finfo(np.float64).tiny), 1.0 - 2.0**-53
"""Least and greatest probability with finite log odds in doubles."""


class Curve(NamedTuple):
    """Levels of a parent's map, which segments adjust.

    Attributes
    ----------
    logit : float64 array, shape (blocks,): log odds of each block's level, finite
    centre : mean of `logit` over the map's rows, weighted by p (1 - p)
    low, high : the first and the last level, in (0, 1)
    """

    logit: Array
    centre: float
    low: float
    high: float


def logit_of(p: Array, q: Array) -> Array:
    """Compute log(p) - log(q), with the same result on every machine. p, q : float64 arrays of normal numbers > 0."""
    out = np.empty(p.size)
    log_odds.logits(np.ascontiguousarray(p), np.ascontiguousarray(q), out)
    return out


def curve_of(level: npt.ArrayLike, weight: npt.ArrayLike) -> Curve:
    """Compute the curve of a map, which segments adjust.

    Parameters
    ----------
    level : float64 array-like, shape (blocks,), in [0, 1], ascending
    weight : float64 array-like, shape (blocks,), > 0: weight of the map's rows in each block

    Notes
    -----
    A first level of 0 is replaced by min(1/2 / (W + 1), the next level), W its weight; a last level of 1 likewise.
    """
    p = np.array(level, np.float64)
    w = np.asarray(weight, np.float64)
    if p.ndim != 1 or p.size == 0 or p.shape != w.shape:
        raise ValueError(f"level, weight: expected one shape (n,) with n >= 1, found {p.shape} and {w.shape}")
    q = 1.0 - p
    if p[0] <= 0.0:
        p[0] = min([0.5 / (w[0] + 1.0), *p[1:2][p[1:2] < 1.0]])
        q[0] = 1.0 - p[0]
    if q[-1] <= 0.0:
        q[-1] = min([0.5 / (w[-1] + 1.0), *q[-2:-1][: p.size - 1]])
        p[-1] = 1.0 - q[-1]
    # With weights of 1e16 a level may round to 1.
    p, q = np.clip(p, LEAST, MOST), np.maximum(q, 1.0 - MOST)
    logit = logit_of(p, q)
    information = w * p * q
    return Curve(logit, float((information * logit).sum() / information.sum()), float(p[0]), float(p[-1]))


Integers = npt.NDArray[np.int64]

VARIANCES = np.concatenate([[0.0], 2.0 ** np.arange(-14, 7)])
"""Candidates for the prior variances of shifts and of slopes."""

_FIRST = (0.25, 0.0625)
_SMALLEST = VARIANCES[1]
_MOST_ROUNDS = 10
_SHARE = 1 << 15
"""Number of segments whose evidence one thread adds up, and in the first estimate of the variances."""

_PIECE = 1 << 10
"""Least number of segments that a thread fits at a time; results do not depend on it."""

_STEPS = (0.0, *(sign * step / 2 for step in range(1, 7) for sign in (-1, 1)))
"""Candidates for the pivot, in standard deviations of the log odds."""

_REACH = 0.35
"""Largest change of the pivot in a later round, as a share of the largest candidate."""

_MOST_PIECES = 64
_MOST_THREADS = 8


class Cells(NamedTuple):
    """Counts of segments in their parents' blocks, segment after segment, ascending in each.

    Attributes
    ----------
    starts : int64 array, shape (segments + 1,)
    centre : float64 array, shape (segments,): centre of the parent's `Curve`
    logit : float64 array, shape (cells,): log odds of the parent's level in the cell's block
    weight, positives : float64 arrays, shape (cells,)
    """

    starts: Integers
    centre: Array
    logit: Array
    weight: Array
    positives: Array

    @property
    def groups(self) -> int:
        """Number of segments."""
        return self.starts.size - 1

    def part(self, start: int, stop: int) -> Cells:
        """Select segments start, ..., stop - 1."""
        starts = self.starts[start : stop + 1]
        columns = (column[starts[0] : starts[-1]] for column in self[2:])
        return Cells(starts - starts[0], self.centre[start:stop], *columns)


class CellParts(Protocol):
    """Cells that are not all in memory at the same time; see `Cells`."""

    @property
    def groups(self) -> int:
        """Number of segments."""

    def part(self, start: int, stop: int) -> Cells:
        """Select segments start, ..., stop - 1."""


@dataclass(frozen=True)
class Adjusted:
    """Adjustment of each segment to its parent's curve.

    Attributes
    ----------
    variances : prior variances of the shifts and of the slopes
    shift, slope : float64 arrays, shape (segments,): logit p = shift + slope * logit of the parent's level; slope >= 0
    pivot : log odds, minus the parent's centre, at which shift and slope are independent
    """

    variances: tuple[float, float]
    shift: Array
    slope: Array
    pivot: float = 0.0


def adjust(cells: CellParts, *, mean: bool = False) -> Adjusted:
    """Estimate the prior variances of a level, and each segment's shift and slope of its parent's curve.

    Weights count as repeated rows. Deterministic: sums run in the order of the segments. A few rounds of O(cells) and
    484 operations per segment; with `mean` 13 times as many operations.

    Parameters
    ----------
    cells : cells of the segments
    mean : If True, the parent's curve is the mean of its segments' curves, the estimates are the segments' expected
        probabilities, and the evidence chooses the pivot at which shifts and slopes are independent. If False, the
        parent's curve is the most likely one, the estimates are the most likely ones, and the pivot is the parent's
        centre.
    """
    groups = cells.groups
    variances, pivot, visited = _FIRST, 0.0, set()
    search = _Search(cells, mean)
    pivots = search.pivots() if mean else (0.0,)
    if groups >= 2 * _SHARE:  # a sample usually gives the variances of all, and then one round is enough
        sample = adjust(_every_nth(cells, groups // _SHARE), mean=mean)
        variances, pivot = sample.variances, sample.pivot
        pivots = (pivot,)
        visited.add((variances, pivot))
    candidates = pivots
    with ThreadPoolExecutor(min(processors(), _MOST_THREADS)) as threads:
        for _ in range(_MOST_ROUNDS):
            # A variance of 0 would fix the parameter at 0, and give no evidence for other variances.
            search.climb(threads, (max(variances[0], _SMALLEST), max(variances[1], _SMALLEST)), pivot)
            variances, pivot = search.best(threads, candidates)
            candidates = (pivots[0], *(p for p in pivots[1:] if abs(p - pivot) <= _REACH * pivots[-1]))
            if (variances, pivot) in visited:
                break
            visited.add((variances, pivot))
        if variances == (0.0, 0.0):
            return Adjusted(variances, np.zeros(groups), np.ones(groups))
        search.climb(threads, variances, pivot)
    return search.adjusted(variances, pivot)


class _Search:
    """Search for the prior variances and the pivot of a level's adjustments."""

    def __init__(self, cells: CellParts, mean: bool) -> None:
        groups = cells.groups
        self._cells, self._mean = cells, mean
        self._theta, self._derivatives = np.zeros((groups, 2)), np.zeros((groups, 5))
        self._centre, self._pivot = np.zeros(groups), 0.0
        # The shares' sums are added up, so shares must not depend on the number of threads.
        self._shares = _slices(groups, _SHARE)
        self._pieces = _slices(groups, max(_PIECE, groups // _MOST_PIECES))
        parts = (cells.part(piece.start, piece.stop) for piece in self._pieces if mean)
        self._moments = np.concatenate([np.zeros((1, 7)), *map(_moments_of_cells, parts)]).sum(axis=0)

    def pivots(self) -> tuple[float, ...]:
        """Compute candidates for the pivot, as differences to the parents' centres."""
        s0, s1, s2 = self._moments[:3].tolist()
        deviation = math.sqrt(max(s2 / s0 - (s1 / s0) ** 2, 0.0)) if s0 > 0 else 0.0
        return tuple(deviation * step for step in _STEPS) if deviation > 0 else (0.0,)

    def climb(self, threads: ThreadPoolExecutor, variances: tuple[float, float], pivot: float) -> None:
        """Find each segment's most likely shift and slope."""
        self._theta[:, 0] += self._theta[:, 1] * (pivot - self._pivot)
        self._pivot = pivot
        list(threads.map(self._climb, self._pieces, repeat(variances)))

    def _climb(self, piece: slice, variances: tuple[float, float]) -> None:
        cells = self._cells.part(piece.start, piece.stop)
        centre = cells.centre + self._pivot if self._mean else cells.centre
        base = cells.logit
        if self._mean:
            x = cells.logit - np.repeat(centre, np.diff(cells.starts))
            base = cells.logit - 0.5 * asymmetry(cells.logit) * (variances[0] + variances[1] * x * x)
        data = (cells.logit, base, cells.weight, cells.positives, cells.starts, centre)
        kernel.adjust_curves(*data, *variances, self._theta[piece], self._derivatives[piece])
        if cells.logit.size:
            first = cells.logit[np.minimum(cells.starts[:-1], cells.logit.size - 1)]
            self._centre[piece] = first - (first - centre)

    def best(
        self, threads: ThreadPoolExecutor, pivots: tuple[float, ...]
    ) -> tuple[tuple[float, float], float]:
        """Find the variances and the pivot with the most evidence; of ties the smallest."""
        evidence = np.empty((len(pivots), len(self._shares), VARIANCES.size, VARIANCES.size))
        tasks = [(i, j) for i in range(len(pivots)) for j in range(len(self._shares))]

        def add_up(task: tuple[int, int]) -> None:
            share, offset = self._shares[task[1]], pivots[task[0]] - self._pivot
            arguments = recentred(self._theta[share], self._derivatives[share], offset)
            kernel.evidence(*arguments, VARIANCES, evidence[task])

        list(threads.map(add_up, tasks))
        total = evidence.sum(axis=1)
        i, shift, slope = np.unravel_index(int(np.argmax(total)), total.shape)
        variances = (float(VARIANCES[shift]), float(VARIANCES[slope]))
        return variances, pivots[i] if variances[1] > 0 else pivots[0]

    def adjusted(self, variances: tuple[float, float], pivot: float) -> Adjusted:
        """Convert the most likely parameters to adjustments."""
        shift, slope = self._theta.T.copy()
        if self._mean:
            # The log odds of a mean probability exceed the likeliest ones by half the variance times the asymmetry.
            lines, correction = line(self._moments, pivot), excess(self._derivatives, variances)
            shift += (lines[0] * correction).sum(axis=1)
            slope = np.maximum(slope + (lines[1] * correction).sum(axis=1), -1.0)
        # Tables store shift and slope relative to log odds of 0 instead of the centre.
        return Adjusted(variances, shift - slope * self._centre, 1.0 + slope, pivot)


def _moments_of_cells(cells: Cells) -> Array:
    sizes = np.diff(cells.starts)
    return moments(cells.logit - np.repeat(cells.centre, sizes), cells.logit, cells.weight, sizes)


def _slices(groups: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, groups)) for start in range(0, groups, size)]


def _every_nth(cells: CellParts, every: int) -> Cells:
    """Select every n-th segment. every : n."""
    selected = []
    for start in range(0, cells.groups, _SHARE):
        part = cells.part(start, min(start + _SHARE, cells.groups))
        chosen = np.arange(-start % every, part.groups, every)
        sizes = np.diff(part.starts)[chosen]
        starts = np.concatenate([[0], np.cumsum(sizes)])
        rows = np.arange(starts[-1]) + np.repeat(part.starts[chosen] - starts[:-1], sizes)
        selected.append((sizes, part.centre[chosen], *(column[rows] for column in part[2:])))
    sizes, *columns = (np.concatenate(column) for column in zip(*selected, strict=True))
    return Cells(np.concatenate([[0], np.cumsum(sizes)]), *columns)


def cross(cells: Cells, value: Integers, parent: Integers, *, mean: bool = False) -> Adjusted:
    """Estimate the main effect of the last column: one adjustment per value, common to all parents.

    Without it, the effect of a value would be estimated separately for each parent. Values that occur under one parent
    only are left out, since `adjust` estimates their effect.

    Parameters
    ----------
    cells : cells of the segments
    value, parent : int64 arrays, shape (segments,): each segment's value in the last column, and its parent
    mean : see `adjust`

    Returns
    -------
    Adjusted
        One entry per segment, not per value: shift 0 and slope 1 for values that are left out. O(cells log cells).
    """
    sizes = np.diff(cells.starts)
    pairs = np.unique(np.stack([value, parent]), axis=1)[0]
    in_several = (np.bincount(pairs, minlength=value.max(initial=0) + 1) > 1)[value] & (sizes > 0)
    result = Adjusted((0.0, 0.0), np.zeros(sizes.size), np.ones(sizes.size))
    if not in_several.any():
        return result
    shared, group = np.unique(value[in_several], return_inverse=True)
    cell_mask = np.repeat(in_several, sizes)
    cell_group = np.repeat(group, sizes[in_several])
    order = np.argsort(cell_group, kind="stable")
    logit, weight, positives = (
        column[cell_mask][order] for column in (cells.logit, cells.weight, cells.positives)
    )
    p = np.empty(logit.size)
    logistic(logit, p)
    information = weight * p * (1.0 - p)
    centre = float((information * logit).sum() / information.sum())
    starts = np.searchsorted(cell_group[order], np.arange(shared.size + 1))
    adjusted = adjust(Cells(starts, np.full(shared.size, centre), logit, weight, positives), mean=mean)
    result.shift[in_several], result.slope[in_several] = adjusted.shift[group], adjusted.slope[group]
    return Adjusted(adjusted.variances, result.shift, result.slope, adjusted.pivot)
