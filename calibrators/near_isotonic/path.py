"""Near-isotonic regression: the path of solutions for all lambda, as `reference.modified_pava` has it, but faster.

Levels are those of equation 6 of Naeini & Cooper (2016); `kernels.path` finds the breakpoints of equations 8 and 9.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from calibrators.core.arrays import Array, Integers, Mask
from calibrators.core.kernels import sums
from calibrators.core.map import CalibrationMap
from calibrators.core.passes import check_number, collapse
from calibrators.near_isotonic.kernels import path as kernel
from calibrators.near_isotonic.kernels import tree
from calibrators.near_isotonic.label_runs import Runs, join_runs, part_runs

_FEW = 1024  # number of blocks up to which one priority queue is used
_LARGEST = float(np.finfo(np.float64).max)
_SAME = 2.0**-40  # relative difference below which breakpoints are equal, for weights that are not whole
_MAX_EXACT = 2.0**52  # sums of whole numbers up to this limit are exact
_MODERATE = 300  # limit of binary exponents of weights whose products neither overflow nor underflow


class Solution(NamedTuple):
    """A near-isotonic solution: one entry per block of neighbours with equal level, in ascending score order.

    Attributes
    ----------
    first_score, last_score : float64 arrays, shape (blocks,)
    weight, positives : float64 arrays, shape (blocks,): sums over the block
    level : float64 array, shape (blocks,): probability in [0, 1]; neighbours differ
    """

    first_score: Array
    last_score: Array
    weight: Array
    positives: Array
    level: Array

    def calibration_map(self) -> CalibrationMap:
        """Convert to a map: constant on each block and linear in the gaps between blocks."""
        return CalibrationMap.from_blocks(
            self.first_score, self.last_score, self.level, self.weight, self.positives
        )


@dataclass(frozen=True, eq=False)
class NearIsotonicPath:
    """All solutions of near-isotonic regression, for every lambda >= 0.

    The solution at lambda minimises 1/2 sum w_i (p_i - y_i)^2 + lambda sum max(p_i - p_{i+1}, 0), where y_i is the
    frequency of positives at score i and w_i its weight. Between breakpoints levels are linear in lambda; at a
    breakpoint blocks merge, and they never split. From the last breakpoint on the solution is isotonic.

    Attributes
    ----------
    breakpoints : float64 array, shape (t,)
        The distinct lambda > 0 at which blocks merge, ascending. With whole weights whose sum is below 2**44 each is
        the double nearest to the exact quotient of whole numbers, so equal quotients are one breakpoint (and so are
        two that no doubles can distinguish). Otherwise levels and breakpoints that differ by less than a factor of
        1 + 2**-40 count as equal.
    degrees_of_freedom : int64 array, shape (t,)
        The number of blocks of the solution at each breakpoint, descending.

    Notes
    -----
    A tree of merges over runs of points with equal y: 65 bytes per run and 16 per breakpoint. A path may begin at a
    lambda > 0, from the blocks there (`calibrators.near_isotonic.part_blocks`); it then has no solutions for
    smaller lambda.

    start : float: the lambda at which the path begins
    runs : Runs: runs of points with equal y, or blocks, at the beginning of the path
    """

    breakpoints: Array
    degrees_of_freedom: Integers
    runs: Runs
    _tree: tuple[npt.NDArray[np.generic], ...]
    _blocks_at_start: int
    start: float = 0.0

    @classmethod
    def of_runs(cls, runs: Runs, limit: float = np.inf, few: int = _FEW) -> Self:
        """Compute the path of runs up to the lambda `limit`; larger lambda have the blocks of the limit.

        few : number of blocks up to which merges are in strict order of lambda; affects only speed
        """
        weight, positives, _ = scaled(runs)
        return cls.of_blocks(runs, np.empty((0, 2)), kernel.falling_gaps(weight, positives), 0.0, limit, few)

    @classmethod
    def of_blocks(
        cls,
        runs: Runs,
        low: Array,
        falls: Mask,
        start: float,
        limit: float = np.inf,
        few: int = _FEW,
    ) -> Self:
        """Compute the path from the lambda `start` on. Each given block is part of a block of the solution there.

        low : shape (r, 2) or (0, 2): low parts of weights and positives
        falls : shape (r,): whether the level falls after each block
        """
        weight, positives, unit = scaled(runs)
        integral = are_whole(weight, positives) and not low.any()
        index = np.empty(0, np.int32 if weight.size < 2**31 else np.int64)
        # At `start` the blocks have merged, except near the ends of the parts that they come from.
        first = max(2.0 ** first_step(weight, positives, integral), 2.0 * start)
        reach = first, min(limit / unit, _LARGEST)
        death, child, total, ids = kernel.build(
            (weight, positives, low / unit), falls, integral, reach, few, index
        )
        if unit != 1.0:
            death *= unit
            total *= unit
        closed = np.sort(death[(death > start) & (death < np.inf)])
        if not integral:
            anchors = tree.merge_close(closed.copy(), _SAME)
            closed = anchors[np.searchsorted(anchors, closed, side="right") - 1]
            late = (death > start) & (death < np.inf)
            death[late] = anchors[np.searchsorted(anchors, death[late], side="right") - 1]
        breakpoints, equal = np.unique(closed, return_counts=True)
        larger = closed.size - np.cumsum(equal)
        ends = ids.shape[0]
        tree_of_merges = (falls, death, child, total, ids)
        return cls(breakpoints, ends + larger, runs, tree_of_merges, ends + closed.size, start)

    def solution(self, lam: float) -> Solution:
        """Compute the solution at lambda: at a breakpoint after its merges, beyond the last the isotonic one.

        Parameters
        ----------
        lam : float >= 0; infinite is allowed

        Notes
        -----
        O(blocks) time and memory. Every level comes from its closed form (k + lam * c) / w.

        Raises
        ------
        ValueError
            If lam is not a number >= 0.
        """
        last, weight, positives, level = self.blocks(lam)
        first = np.concatenate([[0], last[:-1] + 1])
        return Solution(self.runs.first[first], self.runs.last[last], weight, positives, level)

    def blocks(self, lam: float) -> tuple[Integers, Array, Array, Array]:
        """Compute the solution at lambda as (index of each block's last run, weight, positives, level)."""
        lam = check_lam(lam)
        if lam < self.start:
            raise ValueError(f"lam: expected a number >= {self.start}, where this path begins, found {lam!r}")
        i = int(np.searchsorted(self.breakpoints, lam, side="right"))
        blocks = self._blocks_at_start if i == 0 else int(self.degrees_of_freedom[i - 1])
        last, weight, positives, level = tree.expand(
            lam, blocks, (self.runs.weight, self.runs.positives), self._tree
        )
        return last, weight, positives, level


def near_isotonic_path(
    scores: npt.ArrayLike, labels: npt.ArrayLike, sample_weight: npt.ArrayLike | None = None
) -> NearIsotonicPath:
    """Compute all solutions of near-isotonic regression of the labels on the scores.

    Parameters
    ----------
    scores : array-like of numbers, shape (n,), finite, n >= 1; in any order. Ties are one point.
    labels : array-like, shape (n,), bool or numbers in {0, 1}
    sample_weight : array-like, shape (n,), finite, > 0; default 1. A weight of 2 equals a repeated row.

    Returns
    -------
    NearIsotonicPath

    Raises
    ------
    ValueError
        For input outside these ranges.

    Notes
    -----
    O(n log n) for the sort, then close to O(r) for the r runs of points with equal y (O(r log r) at worst), and
    under 120 bytes per run at its peak.

    References
    ----------
    Tibshirani, Hoefling & Tibshirani (2011), "Nearly-isotonic regression", Technometrics 53, 54-61 (the path
    algorithm, "modified PAVA").

    Examples
    --------
    >>> from calibrators.near_isotonic.path import near_isotonic_path
    >>> path = near_isotonic_path([0.1, 0.2, 0.3, 0.4], [0, 1, 0, 1])
    >>> path.breakpoints
    array([0.5])
    >>> path.solution(0.25).level
    array([0.  , 0.75, 0.25, 1.  ])
    >>> path.solution(0.5).level
    array([0. , 0.5, 1. ])
    """
    return NearIsotonicPath.of_runs(join_runs([part_runs(collapse(scores, labels, sample_weight))]))


def check_lam(lam: float) -> float:
    """Return lambda as a float; raise ValueError unless it is a number >= 0."""
    check_number("lam", lam, "a number >= 0", 0, np.inf)
    return float(lam)


def scaled(runs: Runs) -> tuple[Array, Array, float]:
    """Divide weights and positives by a power of two so that their products stay in range; return also this unit."""
    low, high = (int(e) for e in np.frexp([runs.weight.min(), runs.weight.max()])[1])
    if low > -_MODERATE and high < _MODERATE:
        return runs.weight, runs.positives, 1.0
    unit = 2.0 ** ((low + high) // 2)
    return runs.weight / unit, runs.positives / unit, unit


def are_whole(weight: Array, positives: Array) -> bool:
    """Tell whether all weights and positives are whole numbers with exact sums."""
    return bool(
        sums.exact_sum(weight) <= _MAX_EXACT
        and np.array_equal(weight, np.floor(weight))
        and np.array_equal(positives, np.floor(positives))
    )


def first_step(weight: Array, positives: Array, integral: bool) -> int:
    """Return the exponent of the power of two up to which few runs merge as lambda grows."""
    # Runs of the rarer label merge from lambda = weight / 2 on, most single points by 1.
    typical = 2.0 * min(float(positives.sum()), float((weight - positives).sum())) / weight.size
    return int(np.floor(np.log2(max(typical, 2.0 if integral else weight.min())))) - 1
