"""Adjustments of a parent's map to segments: a shift and a slope of log odds for each, shrunken towards typical ones.

The prior variances of shifts and slopes are estimated from all segments of a level (empirical Bayes), and so is the
typical curve, around which they vary. Of a segment only the counts in the ranges of scores are used within which its
parent's map is constant.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple, Protocol

import numpy as np

from calibrators.core.arrays import Array, Integers, Mask
from calibrators.segments.curves import damped, half_variance, line, moments, posterior_share, recentred
from calibrators.segments.kernels import adjusting as kernel
from calibrators.segments.totals import (
    FURTHEST,
    centring,
    keep_total,
    large,
    limit,
    moved_by_shift,
    responses,
    shifts_by_size,
    tolerance,
)

SHIFTS = np.concatenate([[0.0], 2.0 ** np.arange(-14, 5)])
SLOPES = np.concatenate([[0.0], 2.0 ** np.arange(-14, 1)])
"""Candidates for the prior variances of shifts and of slopes; the largest are those of outlying segments."""

UNLIKELY = 0.001
"""Prior probability that a segment is an outlier, whose shift and slope have the largest variances."""

_WIDE = (float(SHIFTS[-1]), float(SLOPES[-1]))
_FIRST = (0.25, 0.0625)
_SMALLEST = float(SHIFTS[1])
_MOST_ROUNDS = 10
_SAMPLE = 1 << 13
_SHARE = 1 << 15
"""Number of segments whose evidence one thread adds up, and in the first estimate of the variances."""

_PIECE = 1 << 10
"""Least number of segments that a thread fits at a time; results do not depend on it."""

_STEPS = (0.0, *(sign * step / 2 for step in range(1, 7) for sign in (-1, 1)))
"""Candidates for the pivot, in standard deviations of the log odds."""

_REACH = 0.35
"""Largest change of the pivot in a later round, as a share of the largest candidate."""

_NEAR, _EACH = 2, 3
"""Candidates for a variance in a round: so many on each side of the last one; each third, with 0 and the largest."""

_MOST_PIECES = 64
_MOST_SHIFTS = 8
"""Largest number of times that the typical curve is shifted for segments of each size."""

_MOST_THREADS = 8
_FLAT = 1e-12


class BlockCells(NamedTuple):
    """Counts of segments in their parents' blocks, segment after segment, ascending in each.

    Attributes
    ----------
    starts : int64 array, shape (segments + 1,)
    centre : float64 array, shape (segments,): centre of the parent's `Curve`
    logit : float64 array, shape (cells,): log odds of the parent's level in the cell's block
    weight, positives : float64 arrays, shape (cells,)
    part_stretched : float64 array, shape (cells,): part of the log odds that slopes stretch, to which `centre` belongs;
        None for all. What was estimated from the same rows is not to be stretched: it is shrunken, and their labels
        always ask for more of it.
    slope : float64 array, shape (segments,), >= 0: slope of the log odds in this part; None for 1
    """

    starts: Integers
    centre: Array
    logit: Array
    weight: Array
    positives: Array
    part_stretched: Array | None = None
    slope: Array | None = None

    @property
    def groups(self) -> int:
        """Number of segments."""
        return self.starts.size - 1

    @property
    def stretched(self) -> Array:
        """Log odds that slopes stretch, of each cell."""
        return self.logit if self.part_stretched is None else self.part_stretched

    @property
    def steepness(self) -> Array:
        """Slope of the log odds in those that slopes stretch, of each segment."""
        return np.ones(self.groups) if self.slope is None else self.slope

    def part(self, start: int, stop: int) -> BlockCells:
        """Select segments start, ..., stop - 1."""
        starts = self.starts[start : stop + 1]
        return self._taken(starts - starts[0], slice(start, stop), slice(starts[0], starts[-1]))

    def selected(self, segments: Integers) -> BlockCells:
        """Select segments. segments : their indices."""
        sizes = np.diff(self.starts)[segments]
        starts = np.concatenate([[0], np.cumsum(sizes)])
        rows = np.arange(starts[-1]) + np.repeat(self.starts[segments] - starts[:-1], sizes)
        return self._taken(starts, segments, rows)

    def _taken(self, starts: Integers, segments: slice | Integers, rows: slice | Integers) -> BlockCells:
        return BlockCells(
            starts,
            self.centre[segments],
            self.logit[rows],
            self.weight[rows],
            self.positives[rows],
            None if self.part_stretched is None else self.part_stretched[rows],
            None if self.slope is None else self.slope[segments],
        )

    def sums(self, column: Array) -> Array:
        """Add up a column by segment."""
        result, filled = np.zeros(self.groups), np.diff(self.starts) > 0
        result[filled] = np.add.reduceat(column, self.starts[:-1][filled]) if filled.any() else 0.0
        return result


class CellParts(Protocol):
    """Cells that are not all in memory at the same time; see `BlockCells`."""

    @property
    def groups(self) -> int:
        """Number of segments."""

    def part(self, start: int, stop: int) -> BlockCells:
        """Select segments start, ..., stop - 1."""


@dataclass(frozen=True)
class Adjusted:
    """Adjustment of each segment to its parent's curve.

    Attributes
    ----------
    variances : prior variances of the shifts and of the slopes
    shift, slope : float64 arrays, shape (segments,): logit p = shift + slope * logit of the parent's level; slope >= 0.
        Of cells that are stretched in part: logit + shift + (slope - 1) times this part.
    outlying : bool array, shape (segments,): segments that contradict the others: their shift or slope is too far from
        the typical one for these variances, or their truth falls where the parent's curve rises
    pivot : log odds, minus the parent's centre, at which shift and slope are independent
    typical : shift and slope - 1, at the pivot, of the typical curve
    centred : their difference from those of a curve whose mean over the prior is the parent's
    spread : variance of all shifts at the pivot: the prior's, and that of typical shifts of sizes
    certainty : float64 array, shape (segments,), in [0, 1]: share of the spread that the segment's rows and size take
        away
    """

    variances: tuple[float, float]
    shift: Array
    slope: Array
    outlying: Mask
    pivot: float = 0.0
    typical: tuple[float, float] = (0.0, 0.0)
    centred: tuple[float, float] = (0.0, 0.0)
    spread: float = 0.0
    certainty: Array = field(default_factory=lambda: np.empty(0))

    @property
    def removed(self) -> Array:
        """Part of the spread that each segment's rows and size take away."""
        return self.spread * self.certainty


def adjust(cells: CellParts, processors: int = 1) -> Adjusted:
    """Estimate the prior variances of a level, and each segment's shift and slope of its parent's curve.

    The parent's curve is the mean of its rows. Segments vary around a typical curve, a line in its log odds: the one
    whose mean over the prior is the parent's curve, moved so that all segments together expect as many positives as
    they have. The evidence chooses the variances, and the pivot at which shifts and slopes are independent. Estimates
    are the segments' expected probabilities. A segment that contradicts the others is an outlier with the largest
    variances, and has no say in those of the others. Large segments keep their own totals, see `totals.limit`. If the
    positives that segments of some size expect and have differ significantly, since rates go with sizes, the typical
    curve is shifted for segments of each size, and all is estimated again.

    Weights count as repeated rows. Deterministic: sums run in the order of the segments. A few rounds of O(cells) and
    120 operations per segment and candidate for the pivot, 320 in the last one.

    Parameters
    ----------
    cells : cells of the segments
    processors : number of threads to use at most; the result does not depend on it
    """
    shifts = np.zeros(cells.groups)
    found, totals = _adjust(cells, processors)
    for _ in range(_MOST_SHIFTS):
        step = shifts_by_size(totals)
        if not step.any():
            break
        shifts = shifts + step
        found, totals = _adjust(_Shifted(cells, shifts), processors)
        found = replace(found, shift=found.shift + found.slope * shifts)
    weight = totals[0] / max(float(totals[0].sum()), _FLAT)
    by_size = float((weight * np.square(shifts - (weight * shifts).sum())).sum())
    if by_size > 0.0:
        left = (1.0 - found.certainty) * found.variances[0] / (found.variances[0] + by_size)
        found = replace(found, spread=found.spread + by_size, certainty=1.0 - left)
    return found


def _adjust(cells: CellParts, processors: int) -> tuple[Adjusted, Array]:
    """Do `adjust` with one typical curve for all sizes; also return the sums for `shifts_by_size`."""
    groups = cells.groups
    variances, pivot, visited = _FIRST, 0.0, set()
    search = _Search(cells)
    pivots = search.pivots()
    rounds = _MOST_ROUNDS
    if groups >= 2 * _SHARE:  # a sample determines the variances far better than the candidates' factor of 2
        sample, _ = _adjust(selected(cells, np.arange(0, groups, groups // _SAMPLE)), processors)
        variances, pivot, rounds = sample.variances, sample.pivot, 0
        search.start(sample)
    candidates = pivots
    with ThreadPoolExecutor(min(processors, _MOST_THREADS)) as threads:
        for _ in range(rounds):
            # A variance of 0 would fix the parameter at 0, and give no evidence for other variances.
            fitted = (max(variances[0], _SMALLEST), max(variances[1], _SMALLEST))
            search.climb(threads, fitted, pivot)
            search.centre(threads, fitted)
            near = _near(SHIFTS, variances[0]), _near(SLOPES, variances[1])
            variances, pivot = search.best(threads, candidates, *near)
            candidates = (pivots[0], *(p for p in pivots[1:] if abs(p - pivot) <= _REACH * pivots[-1]))
            if (variances, pivot) in visited:  # none of those left out may be better
                variances, pivot = search.best(threads, candidates, SHIFTS, SLOPES)
            if (variances, pivot) in visited:
                break
            visited.add((variances, pivot))
        search.climb(threads, variances, pivot)
        if variances == (0.0, 0.0) and not search.outlying.any():
            search.start(None)
            search.climb(threads, variances, pivot)
        elif rounds:  # a sample's typical curve is centred already
            search.centre(threads, variances)
            search.climb(threads, variances, pivot)
        return search.adjusted(threads, variances)


def _near(variances: Array, variance: float) -> Array:
    """Return a round's candidates: see `_NEAR`."""
    index = np.arange(variances.size)
    near = np.abs(index - np.searchsorted(variances, variance)) <= _NEAR
    return np.asarray(variances[near | (index == 0) | ((variances.size - 1 - index) % _EACH == 0)])


class _Shifted:
    """Cells of parents' curves that are shifted for each segment.

    shifts : float64 array, shape (segments,)
    """

    def __init__(self, cells: CellParts, shifts: Array) -> None:
        self._cells, self._shifts = cells, shifts

    @property
    def groups(self) -> int:
        """Number of segments."""
        return self._cells.groups

    def part(self, start: int, stop: int) -> BlockCells:
        """Select segments start, ..., stop - 1."""
        cells, shifts = self._cells.part(start, stop), self._shifts[start:stop]
        of_cells = np.repeat(shifts, np.diff(cells.starts))
        part = None if cells.part_stretched is None else cells.part_stretched + of_cells
        centre = cells.centre + shifts
        return cells._replace(logit=cells.logit + of_cells, centre=centre, part_stretched=part)


class _Search:
    """Search for the prior variances and the pivot of a level's adjustments."""

    def __init__(self, cells: CellParts) -> None:
        groups = cells.groups
        self._cells = cells
        self._theta, self._derivatives = np.zeros((groups, 2)), np.zeros((groups, 5))
        self._kind = np.zeros(groups, np.int8)
        self._pivot = 0.0
        self._typical, self._centred = np.zeros(2), np.zeros(2)
        # The shares' sums are added up, so shares must not depend on the number of threads.
        self._shares = _slices(groups, _SHARE)
        self._pieces = _slices(groups, max(_PIECE, groups // _MOST_PIECES))
        self._centre, self._first = np.zeros(groups), np.zeros(groups)
        self._weight, self._positives, self._steepness = np.zeros(groups), np.zeros(groups), np.ones(groups)
        self._bound = np.ones(groups)  # by how much a slope can be below the curve's
        self._moments = np.concatenate([np.zeros((1, 7)), *map(self._describe, self._pieces)]).sum(axis=0)

    def _describe(self, piece: slice) -> Array:
        """Store the sums of segments; return their moments."""
        cells = self._cells.part(piece.start, piece.stop)
        sizes = np.diff(cells.starts)
        self._weight[piece], self._positives[piece] = cells.sums(cells.weight), cells.sums(cells.positives)
        self._centre[piece], self._steepness[piece] = cells.centre, cells.steepness
        stretched = cells.stretched
        if stretched.size:
            first = self._first[piece] = stretched[np.minimum(cells.starts[:-1], stretched.size - 1)]
            # Rows of one log odds tell nothing about the slope: a bound of it would bound their probability.
            single = (sizes > 0) & (stretched[cells.starts[1:] - 1] == first)
            self._bound[piece] = np.where(single, np.inf, cells.steepness)
        return moments(stretched - np.repeat(cells.centre, sizes), cells.logit, cells.weight, sizes)

    def pivots(self) -> tuple[float, ...]:
        """Compute candidates for the pivot, as differences to the parents' centres."""
        s0, s1, s2 = self._moments[:3].tolist()
        deviation = math.sqrt(max(s2 / s0 - (s1 / s0) ** 2, 0.0)) if s0 > 0 else 0.0
        return tuple(deviation * step for step in _STEPS) if deviation > 0 else (0.0,)

    def start(self, sample: Adjusted | None) -> None:
        """Start from the typical curve of a sample, or from the parents' curves."""
        if sample is None:
            self._centred, self._theta[:] = np.zeros(2), 0.0
        else:
            self._centred, self._pivot = np.array(sample.centred), sample.pivot

    def climb(self, threads: ThreadPoolExecutor, variances: tuple[float, float], pivot: float) -> None:
        """Find each segment's most likely shift and slope."""
        moved = pivot - self._pivot
        self._theta[:, 0] += self._theta[:, 1] * moved
        self._centred[0] += self._centred[1] * moved
        self._pivot = pivot
        self._typical = self._typical_curves(np.array([variances]), pivot)[0] + self._centred
        list(threads.map(self._climb, self._pieces, repeat(variances)))

    def _climb(self, piece: slice, variances: tuple[float, float]) -> None:
        cells = self._cells.part(piece.start, piece.stop)
        data = (*_of_kernel(cells), cells.starts, cells.centre + self._pivot, self._bound[piece])
        found = self._theta[piece], self._derivatives[piece], self._kind[piece]
        kernel.adjust_curves(*data, self._typical, np.array([variances, _WIDE]), UNLIKELY, *found)

    def _typical_curves(self, variances: Array, pivot: float) -> Array:
        """Compute shift and slope - 1 of the typical curve, whose mean over the segments is the parent's curve."""
        return np.asarray(-0.5 * damped(variances) @ line(self._moments, pivot)[:, ::2].T)

    @property
    def outlying(self) -> Mask:
        """True for segments that contradicted the others in the last climb."""
        return np.asarray((self._kind == kernel.OUTLYING) | (self._kind == kernel.FALLING))

    def centre(self, threads: ThreadPoolExecutor, variances: tuple[float, float]) -> None:
        """Move the typical curve so that usual segments together expect as many positives as they have.

        The parent's curve is the mean of its rows, so of its segments only if these do not depend on their sizes.
        """
        curves, prior = self._curves(variances)
        derivatives, usual = self._derive(threads, curves), self._kind <= kernel.FAR
        step = centring(responses(derivatives[usual], prior[usual]))
        step = np.clip(self._centred + step, -FURTHEST, FURTHEST) - self._centred
        self._centred += step
        self._typical = self._typical + step
        self._theta -= step

    def _curves(self, variances: tuple[float, float]) -> tuple[Array, Array]:
        """Compute the curves of segments' expected probabilities, shape (segments, 2): shift and slope - 1.

        Also return the prior variances.
        """
        prior = np.where((self._kind == kernel.OUTLYING)[:, np.newaxis], _WIDE, variances)
        # The log odds of a mean probability exceed the likeliest ones by half the variance times the asymmetry.
        correction = half_variance(self._derivatives, prior) @ line(self._moments, self._pivot).T
        curves = self._typical + self._theta
        # The constant curve is the end of what is allowed, not a mean.
        constant = curves[:, 1] <= _FLAT - self._bound
        curves += np.where(constant[:, np.newaxis], 0.0, correction)
        np.maximum(curves[:, 1], -self._bound, out=curves[:, 1])
        return curves, prior

    def _derive(self, threads: ThreadPoolExecutor, curves: Array) -> Array:
        """Compute the derivatives of segments' log likelihoods for their curves: see the kernel's `derive`."""
        derivatives = np.empty((curves.shape[0], 5))

        def derive(piece: slice) -> None:
            cells = self._cells.part(piece.start, piece.stop)
            derivatives[piece] = _derived(cells, self._pivot, curves[piece])

        list(threads.map(derive, self._pieces))
        return derivatives

    def best(
        self, threads: ThreadPoolExecutor, pivots: tuple[float, ...], shifts: Array, slopes: Array
    ) -> tuple[tuple[float, float], float]:
        """Find the variances and the pivot with the most evidence; of ties the smallest.

        shifts, slopes : candidates for the variances, ascending; the last ones are those of outliers
        """
        evidence = np.empty((len(pivots), len(self._shares), shifts.size, slopes.size))
        pairs = np.stack(np.meshgrid(shifts, slopes, indexing="ij"), axis=-1)
        typical = np.zeros((len(pivots), *pairs.shape))
        fitted = self._typical - self._centred
        for i, pivot in enumerate(pivots):
            # Each candidate is compared with its own typical curve.
            moved = fitted + np.array([fitted[1] * (pivot - self._pivot), 0.0])
            typical[i] = self._typical_curves(pairs, pivot) - moved
        tasks = [(i, j) for i in range(len(pivots)) for j in range(len(self._shares))]

        def add_up(task: tuple[int, int]) -> None:
            share, offset = self._shares[task[1]], pivots[task[0]] - self._pivot
            theta, derivatives = recentred(self._theta[share], self._derivatives[share], offset)
            candidates = (shifts, slopes, typical[task[0]], UNLIKELY)
            kernel.evidence(theta, derivatives, self._kind[share], *candidates, evidence[task])

        list(threads.map(add_up, tasks))
        total = evidence.sum(axis=1)
        best, shift, slope = np.unravel_index(int(np.argmax(total)), total.shape)
        variances = (float(shifts[shift]), float(slopes[slope]))
        return variances, pivots[int(best)] if variances[1] > 0 else pivots[0]

    def adjusted(self, threads: ThreadPoolExecutor, variances: tuple[float, float]) -> tuple[Adjusted, Array]:
        """Convert the most likely parameters to adjustments by segments' expected probabilities.

        Also return the sums for `totals.shifts_by_size`.
        """
        curves, prior = self._curves(variances)
        list(threads.map(self._limit, self._pieces, repeat(curves)))
        derive = partial(self._derive, threads)
        if curves.any():
            positives, negatives = self._positives.sum(), (self._weight - self._positives).sum()
            usual = np.full(curves.shape[0], True)
            usual[self._keeping(slice(0, curves.shape[0]))] = False
            derivatives = keep_total(curves, usual, float(min(positives, negatives)), derive)
        else:
            derivatives = derive(curves)
        shift, slope = curves.T
        totals = np.stack(
            [self._weight, derivatives[:, 0], derivatives[:, 2], moved_by_shift(derivatives, prior)]
        )
        totals[1:, self.outlying] = 0.0
        # Tables store shift and slope relative to log odds of 0 instead of the centre.
        centre = self._first - (self._first - (self._centre + self._pivot))
        typical, centred = ((float(a), float(d)) for a, d in (self._typical, self._centred))
        rising = np.maximum(slope, -self._steepness)
        shift = shift - slope * centre + (slope - rising) * self._first
        slope = 1.0 + rising
        certainty = 1.0 - posterior_share(derivatives, prior)
        line = variances, shift, slope
        spread = variances[0]
        return Adjusted(*line, self.outlying, self._pivot, typical, centred, spread, certainty), totals

    def _limit(self, piece: slice, curves: Array) -> None:
        chosen = self._keeping(piece)
        if not chosen.size:
            return
        cells = self._cells.part(piece.start, piece.stop).selected(chosen)
        chosen += piece.start
        most = tolerance(self._weight[chosen], self._positives[chosen], self._derivatives[chosen, 2])
        own = curves[chosen]
        limit(own, most, lambda theta: _derived(cells, self._pivot, theta))
        curves[chosen] = own

    def _keeping(self, piece: slice) -> Integers:
        """Return the indices of segments that keep their totals: large and outlying ones."""
        outlying = self._kind[piece] == kernel.OUTLYING
        return np.flatnonzero(large(self._weight[piece], self._positives[piece]) | outlying)


def _derived(cells: BlockCells, pivot: float, curves: Array) -> Array:
    """Compute the derivatives of segments' log likelihoods: see the kernel's `derive`."""
    derivatives = np.empty((curves.shape[0], 5))
    kernel.derive(*_of_kernel(cells), cells.starts, cells.centre + pivot, curves, derivatives)
    return derivatives


def _of_kernel(cells: BlockCells) -> tuple[Array, Array, Array, Array]:
    return cells.logit, cells.stretched, cells.weight, cells.positives


def _slices(groups: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, groups)) for start in range(0, groups, size)]


def selected(cells: CellParts, chosen: Integers) -> BlockCells:
    """Select segments of a level. chosen : their indices, ascending, at least one."""
    parts = []
    for piece in _slices(cells.groups, _SHARE):
        low, high = np.searchsorted(chosen, [piece.start, piece.stop])
        if low < high:
            parts.append(cells.part(piece.start, piece.stop).selected(chosen[low:high] - piece.start))
    sizes = np.concatenate([np.diff(part.starts) for part in parts])
    joined: list[Any] = [
        None if column[0] is None else np.concatenate(column) for column in list(zip(*parts, strict=True))[1:]
    ]
    return BlockCells(np.concatenate([[0], np.cumsum(sizes)]), *joined)
