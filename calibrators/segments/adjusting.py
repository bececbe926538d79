"""Adjustments of segments to the map of the rows that they are part of: two numbers each, shrunken towards none.

The variances of these numbers are estimated from all segments of a level (empirical Bayes). A segment enters only by
its counts in the ranges of scores within which its parent's map is constant.
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
    """1 - 2 p: E sigma(x) of x ~ N(m, v) is about sigma(m + v (1 - 2 p) / 2)."""
    p = np.empty(logit.size)
    logistic(np.ascontiguousarray(logit), p)
    return np.asarray(1.0 - 2.0 * p)


def moments(x: Array, logit: Array, weight: Array, sizes: Integers) -> Array:
    """Compute moments of segments, by information: powers 0 to 2 of x, and times the asymmetry 0 to 3: (segments, 7).

    x, logit, weight : float64 arrays, shape (cells,), segment after segment. sizes : of each, its cells
    """
    found, some = np.zeros((sizes.size, 7)), sizes > 0
    tilt = asymmetry(logit)
    information = weight * (0.25 * (1.0 - tilt * tilt))
    tilted = information * tilt
    terms = [information, information * x, information * x * x]
    terms += [tilted, tilted * x, tilted * x * x, tilted * x * x * x]
    starts = (np.cumsum(sizes) - sizes)[some]
    for column, term in zip(found.T, terms, strict=True):
        column[some] = np.add.reduceat(term, starts)
    return found


def line(sums: Array, place: float) -> Array:
    """The lines nearest to the asymmetry times 1, x and x**2, x from the place on: shape (2, 3). sums : of moments."""
    s, t = (
        [sum(math.comb(k, j) * (-place) ** (k - j) * own[j] for j in range(k + 1)) for k in range(own.size)]
        for own in (sums[:3], sums[3:])
    )
    low, high = np.array(t[:3]), np.array(t[1:])
    determinant = s[0] * s[2] - s[1] * s[1]
    if determinant <= _FLAT * s[0] * s[2]:
        return np.stack([low / s[0] if s[0] > 0 else np.zeros(3), np.zeros(3)])
    return np.stack([(s[2] * low - s[1] * high) / determinant, (s[0] * high - s[1] * low) / determinant])


def excess(derivatives: Array, pair: tuple[float, float]) -> Array:
    """Half of what the posterior variance of a + d x is more than the prior's, as a polynomial: shape (segments, 3)."""
    a, d = pair
    h_aa, h_ad, h_dd = derivatives[:, 2], derivatives[:, 3], derivatives[:, 4]
    of_a, of_d = 1.0 + a * h_aa, 1.0 + d * h_dd
    determinant = np.maximum(of_a * of_d - a * d * h_ad * h_ad, 1.0)
    variance_a, covariance, variance_d = (
        a * of_d / determinant,
        -a * d * h_ad / determinant,
        d * of_a / determinant,
    )
    return np.stack([0.5 * (variance_a - a), covariance, 0.5 * (variance_d - d)], axis=1)


def seen_from(theta: Array, derivatives: Array, further: float) -> tuple[Array, Array]:
    """Shifts, block ranges and the likelihood's derivatives, where x is counted from a place so much further."""
    if further == 0:
        return theta, derivatives
    a, d = theta.T
    g_a, g_d, h_aa, h_ad, h_dd = derivatives.T
    own = [g_a, g_d - further * g_a, h_aa, h_ad - further * h_aa]
    own.append(np.maximum(h_dd - 2.0 * further * h_ad + further * further * h_aa, 0.0))
    return np.stack([a + d * further, d], axis=1), np.stack(own, axis=1)


LEAST, MOST = float(np.finfo(np.float64).tiny), 1.0 - 2.0**-53
"""Probabilities whose log-odds doubles can say."""


class Curve(NamedTuple):
    """A map's levels as the segments below it move them.

    Attributes
    ----------
    logit : float64 array, shape (blocks,): of each block's level, finite
    centre : the mean of `logit` over the map's rows, weighted by p (1 - p)
    low, high : the first level and the last one, in (0, 1)
    """

    logit: Array
    centre: float
    low: float
    high: float


def logit_of(p: Array, q: Array) -> Array:
    """log(p) - log(q), the same on every machine. p, q : float64 arrays of normal numbers > 0."""
    out = np.empty(p.size)
    log_odds.logits(np.ascontiguousarray(p), np.ascontiguousarray(q), out)
    return out


def curve_of(level: npt.ArrayLike, weight: npt.ArrayLike) -> Curve:
    """A map's curve: what is adjusted.

    Parameters
    ----------
    level : float64 array-like, shape (blocks,), in [0, 1], ascending
    weight : float64 array-like, shape (blocks,), > 0: of the map's rows in each

    Notes
    -----
    A first level of 0 counts as min(1/2 / (W + 1), the next level), W its weight; a last level of 1 mirrored.
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
    # Sums of weights of 1e16 leave levels that doubles cannot tell from 1.
    p, q = np.clip(p, LEAST, MOST), np.maximum(q, 1.0 - MOST)
    logit = logit_of(p, q)
    information = w * p * q
    return Curve(logit, float((information * logit).sum() / information.sum()), float(p[0]), float(p[-1]))


Integers = npt.NDArray[np.int64]

VARIANCES = np.concatenate([[0.0], 2.0 ** np.arange(-14, 7)])
"""Candidates for the variances of shifts and of slopes."""

_FIRST = (0.25, 0.0625)
_SMALLEST = VARIANCES[1]
_MOST_ROUNDS = 10
_SHARE = 1 << 15
"""Segments whose evidence one thread adds up; the first estimate of the variances uses as many."""

_PIECE = 1 << 10
"""Segments that a thread moves at a time, at least: no result depends on it."""

_STEPS = (0.0, *(sign * step / 2 for step in range(1, 7) for sign in (-1, 1)))
"""Standard deviations of the log-odds."""

_REACH = 0.35
"""Share of the farthest place: how far from the last place a later round looks."""

_MOST_PIECES = 64
_MOST_THREADS = 8


class Cells(NamedTuple):
    """Counts of segments in their parents' blocks, segment after segment, ascending in each.

    Attributes
    ----------
    starts : int64 array, shape (segments + 1,)
    centre : float64 array, shape (segments,): of the parent, see `Curve`
    logit : float64 array, shape (cells,): of the parent's level in the cell's block
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
        own = slice(starts[0], starts[-1])
        return Cells(
            starts - starts[0],
            self.centre[start:stop],
            self.logit[own],
            self.weight[own],
            self.positives[own],
        )


class CellParts(Protocol):
    """Cells that need not be in memory together; see `Cells`."""

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
    variances : of the shifts and of the slopes
    shift, slope : float64 arrays, shape (segments,): logit p = shift + slope * logit of the parent's level; slope >= 0
    place : where shifts and slopes are independent, less the parent's centre
    """

    variances: tuple[float, float]
    shift: Array
    slope: Array
    place: float = 0.0


def adjust(cells: CellParts, *, mean: bool = False) -> Adjusted:
    """Estimate the variances of the segments of a level, and each segment's shift and stretch of its parent's curve.

    Weights count as repeated rows. Deterministic: sums run in the order of the segments. O(cells) a round of some,
    and 484 operations a segment, with `mean` 13 times as many.

    Parameters
    ----------
    cells : of the segments
    mean : whether the parent's curve is the mean of its segments' curves, and what is sought is each segment's expected
        probability; and whether shifts and slopes are independent at the place where this is likeliest. Otherwise
        the parent's curve is the most likely one, what is sought is a segment's most likely one, and the place is the
        parent's centre.
    """
    groups = cells.groups
    pair, place, seen = _FIRST, 0.0, set()
    search = _Search(cells, mean)
    places = search.places() if mean else (0.0,)
    if groups >= 2 * _SHARE:  # if those of some are the variances of all, one round tells
        some = adjust(_some(cells, groups // _SHARE), mean=mean)
        pair, place = some.variances, some.place
        places = (place,)
        seen.add((pair, place))
    near = places
    with ThreadPoolExecutor(min(processors(), _MOST_THREADS)) as threads:
        for _ in range(_MOST_ROUNDS):
            # A variance of 0 would keep the parameter at 0, and say nothing of what it could be.
            search.climb(threads, (max(pair[0], _SMALLEST), max(pair[1], _SMALLEST)), place)
            pair, place = search.best(threads, near)
            near = (places[0], *(p for p in places[1:] if abs(p - place) <= _REACH * places[-1]))
            if (pair, place) in seen:
                break
            seen.add((pair, place))
        if pair == (0.0, 0.0):
            return Adjusted(pair, np.zeros(groups), np.ones(groups))
        search.climb(threads, pair, place)
    return search.adjusted(pair, place)


class _Search:
    """Search for the variances of a level's adjustments."""

    def __init__(self, cells: CellParts, mean: bool) -> None:
        groups = cells.groups
        self._cells, self._mean = cells, mean
        self._theta, self._derivatives = np.zeros((groups, 2)), np.zeros((groups, 5))
        self._centre, self._place = np.zeros(groups), 0.0
        # Sums of shares are added up, and so may not depend on how many threads there are.
        self._shares = _slices(groups, _SHARE)
        self._pieces = _slices(groups, max(_PIECE, groups // _MOST_PIECES))
        parts = (cells.part(piece.start, piece.stop) for piece in self._pieces if mean)
        self._moments = np.concatenate([np.zeros((1, 7)), *map(_moments_of, parts)]).sum(axis=0)

    def places(self) -> tuple[float, ...]:
        """Centred places where shifts and slopes may be independent, as differences to the parents' centres."""
        s0, s1, s2 = self._moments[:3].tolist()
        deviation = math.sqrt(max(s2 / s0 - (s1 / s0) ** 2, 0.0)) if s0 > 0 else 0.0
        return tuple(deviation * step for step in _STEPS) if deviation > 0 else (0.0,)

    def climb(self, threads: ThreadPoolExecutor, variances: tuple[float, float], place: float) -> None:
        """Go to each segment's most likely shift and slope."""
        self._theta[:, 0] += self._theta[:, 1] * (place - self._place)
        self._place = place
        list(threads.map(self._climb, self._pieces, repeat(variances)))

    def _climb(self, piece: slice, variances: tuple[float, float]) -> None:
        own = self._cells.part(piece.start, piece.stop)
        centre = own.centre + self._place if self._mean else own.centre
        base = own.logit
        if self._mean:
            x = own.logit - np.repeat(centre, np.diff(own.starts))
            base = own.logit - 0.5 * asymmetry(own.logit) * (variances[0] + variances[1] * x * x)
        data = (own.logit, base, own.weight, own.positives, own.starts, centre)
        kernel.move_curves(*data, *variances, self._theta[piece], self._derivatives[piece])
        if own.logit.size:
            first = own.logit[np.minimum(own.starts[:-1], own.logit.size - 1)]
            self._centre[piece] = first - (first - centre)

    def best(
        self, threads: ThreadPoolExecutor, places: tuple[float, ...]
    ) -> tuple[tuple[float, float], float]:
        """The variances and the place with the most evidence."""
        found = np.empty((len(places), len(self._shares), VARIANCES.size, VARIANCES.size))
        tasks = [(i, j) for i in range(len(places)) for j in range(len(self._shares))]

        def weigh(task: tuple[int, int]) -> None:
            share, further = self._shares[task[1]], places[task[0]] - self._place
            own = seen_from(self._theta[share], self._derivatives[share], further)
            kernel.evidence(*own, VARIANCES, found[task])

        list(threads.map(weigh, tasks))
        # Of ties the first, which is the smallest.
        of, shift, slope = np.unravel_index(
            int(np.argmax(found.sum(axis=1))), found.shape[:1] + found.shape[2:]
        )
        pair = (float(VARIANCES[shift]), float(VARIANCES[slope]))
        return pair, places[of] if pair[1] > 0 else places[0]

    def adjusted(self, pair: tuple[float, float], place: float) -> Adjusted:
        """Adjustments that were found."""
        shift, slope = self._theta.T.copy()
        if self._mean:
            # What the parent's curve is above its segments' most likely one, and a segment's mean above its own.
            lines, more = line(self._moments, place), excess(self._derivatives, pair)
            shift += (lines[0] * more).sum(axis=1)
            slope = np.maximum(slope + (lines[1] * more).sum(axis=1), -1.0)
        # A curve's centre is its parent's; taking it out leaves the form that tables have.
        return Adjusted(pair, shift - slope * self._centre, 1.0 + slope, place)


def _moments_of(cells: Cells) -> Array:
    sizes = np.diff(cells.starts)
    return moments(cells.logit - np.repeat(cells.centre, sizes), cells.logit, cells.weight, sizes)


def _slices(groups: int, size: int) -> list[slice]:
    return [slice(at, min(at + size, groups)) for at in range(0, groups, size)]


def _some(cells: CellParts, every: int) -> Cells:
    """Select every so-many-th segment."""
    found = []
    for start in range(0, cells.groups, _SHARE):
        own = cells.part(start, min(start + _SHARE, cells.groups))
        kept = np.arange(-start % every, own.groups, every)
        sizes = np.diff(own.starts)[kept]
        starts = np.concatenate([[0], np.cumsum(sizes)])
        rows = np.arange(starts[-1]) + np.repeat(own.starts[kept] - starts[:-1], sizes)
        found.append((sizes, own.centre[kept], *(column[rows] for column in own[2:])))
    sizes, *columns = (np.concatenate(column) for column in zip(*found, strict=True))
    return Cells(np.concatenate([[0], np.cumsum(sizes)]), *columns)


def cross(cells: Cells, value: Integers, parent: Integers, *, mean: bool = False) -> Adjusted:
    """Estimate what a value does to the curves of all parents that have it: the main effect of a second column.

    Without it, what a value does everywhere has to be learned anew for each parent. Values that one parent alone has
    are left out: that is what `adjust` learns.

    Parameters
    ----------
    cells : of segments
    value, parent : int64 arrays, shape (segments,): each segment's value in the last column, and its parent
    mean : see `adjust`

    Returns
    -------
    Adjusted
        By segment, not by value: 0 and 1 for values that are left out. O(cells log cells).
    """
    sizes = np.diff(cells.starts)
    pairs = np.unique(np.stack([value, parent]), axis=1)[0]
    several = (np.bincount(pairs, minlength=value.max(initial=0) + 1) > 1)[value] & (sizes > 0)
    found = Adjusted((0.0, 0.0), np.zeros(sizes.size), np.ones(sizes.size))
    if not several.any():
        return found
    shared, group = np.unique(value[several], return_inverse=True)
    mine = np.repeat(several, sizes)
    owner = np.repeat(group, sizes[several])
    order = np.argsort(owner, kind="stable")
    logit, weight, positives = (
        column[mine][order] for column in (cells.logit, cells.weight, cells.positives)
    )
    p = np.empty(logit.size)
    logistic(logit, p)
    information = weight * p * (1.0 - p)
    centre = float((information * logit).sum() / information.sum())
    starts = np.searchsorted(owner[order], np.arange(shared.size + 1))
    adjusted = adjust(Cells(starts, np.full(shared.size, centre), logit, weight, positives), mean=mean)
    found.shift[several], found.slope[several] = adjusted.shift[group], adjusted.slope[group]
    return Adjusted(adjusted.variances, found.shift, found.slope, adjusted.place)
