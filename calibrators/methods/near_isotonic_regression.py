"""Near-isotonic regression: the calibrator at one lambda."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from calibrators._kernels import label_runs as run_kernel
from calibrators._kernels import near_isotonic as kernel
from calibrators._kernels import near_isotonic_tree as tree
from calibrators.arithmetic.label_runs import Border, PartRuns, Runs, join_runs, part_runs
from calibrators.arithmetic.passes import Pass, Passes, Points
from calibrators.methods.base import Calibrator
from calibrators.methods.shrinking import check_shrink, floor_of, shrunk_map
from calibrators.methods.solution_path import NearIsotonicPath, are_whole, check_lam, scaled


class NearIsotonic(Calibrator):
    """Near-isotonic regression at one lambda: decreases of the map cost lambda each, times their size.

    From lam = 0 (the frequency of positives at each score) to isotonic regression (lam infinite, or at least the
    last breakpoint of the path). The map is constant on each block of equal levels and linear in the gaps between
    blocks; it need not be monotone. Weights count as repeated rows, ties as one point.

    Best where the truth falls somewhere and some 50,000 positives tell it, with lam 30 to 100; with 1, the default,
    in simulations 24 times the excess loss of the best method in the median: lam has to be chosen (docs/methods.md).

    Parameters
    ----------
    lam : float >= 0, default 1
        In units of weight: two neighbouring blocks in the wrong order move by lam / weight towards each other.
        Infinite is allowed.
    shrink : float >= 0, default 1
        Probabilities are drawn into [shrink / (2 N), 1 - shrink / (2 N)], N the sum of the weights, so that none is 0
        or 1: p becomes shrink / (2 N) + (1 - shrink / N) p. 0 leaves them as they are.

    Notes
    -----
    One pass merges in each part what is sure to have merged by `lam`, and gathers the blocks that this leaves, 49
    bytes each; then the path up to `lam` from there. Close to O(runs), where a run is a stretch of points with
    equal y (for labels of frequency p in random order about 2 p (1 - p) a point).

    References
    ----------
    Tibshirani, Hoefling & Tibshirani (2011), "Nearly-isotonic regression", Technometrics 53, 54-61.

    Examples
    --------
    >>> from calibrators.methods.near_isotonic_regression import NearIsotonic
    >>> NearIsotonic(lam=0.25, shrink=0).fit([0.1, 0.2, 0.3, 0.4], [0, 1, 0, 1]).predict([0.2, 0.25, 0.3])
    array([0.75, 0.5 , 0.25])
    """

    single_pass = True

    def __init__(self, lam: float = 1.0, shrink: float = 1) -> None:
        self.lam = lam
        self.shrink = shrink

    def check_parameters(self) -> None:
        """Raise ValueError if `lam` is not a number >= 0, or `shrink` not a finite one."""
        check_lam(self.lam)
        check_shrink(self.shrink)

    def _passes(self) -> Passes:
        lam = check_lam(self.lam)
        blocks = yield blocks_pass(lam)
        fitted = path_from(blocks, limit=lam).solution(lam).calibration_map()
        return shrunk_map(fitted, floor_of(float(self.shrink), float(fitted.weight.sum())))


# Where the near-isotonic path may begin: blocks that parts of the points merge apart from one another.

Array = npt.NDArray[np.float64]

KEEP = 1 << 13
"""Blocks a part to begin the path with, at most, where merging gets there."""

_FINAL = 64  # blocks of a part below which bounds are of no use
_IDLE = 4  # steps of lambda without progress after which a part is left as it is


class Bound(NamedTuple):
    """Bounds of a part's share in the solution at lambda = 2 ** step.

    blocks : it has at least so many. log_likelihood : it has at most that.
    """

    step: int
    blocks: int
    log_likelihood: float


class PartBlocks(NamedTuple):
    """The blocks that a part leaves; the first and the last are runs, perhaps the same.

    Attributes
    ----------
    blocks : Runs: first and last scores, weights and positives, rounded
    low : float64 array, shape (blocks, 2): what rounding cut off weights and positives
    falls : bool array, shape (blocks,): whether the gap after each falls; the last entry means nothing
    head, tail : the first and the last run
    start : float: the lambda up to which anything was merged
    saturated : float: log likelihood of the frequencies of the runs
    bounds : for ascending steps
    """

    blocks: Runs
    low: Array
    falls: npt.NDArray[np.bool_]
    head: Border
    tail: Border
    start: float
    saturated: float
    bounds: list[Bound]


class Blocks(NamedTuple):
    """The parts' blocks, joined; see `PartBlocks`. bounds : of every part, with its `saturated`."""

    runs: Runs
    low: Array
    falls: npt.NDArray[np.bool_]
    start: float
    bounds: list[tuple[float, list[Bound]]]


def blocks_pass(lam: float | None = None, keep: int = KEEP) -> Pass:
    """The pass that gathers `Blocks`: 49 bytes each.

    lam : merge up to this lambda; None: until at most `keep` blocks a part are left, with bounds of what is below.
    """
    return Pass(chunk=partial(part_blocks, lam=lam, keep=keep), combine=join_blocks)


def path_from(blocks: Blocks, limit: float = np.inf) -> NearIsotonicPath:
    """The path from where the blocks begin."""
    return NearIsotonicPath.of_blocks(blocks.runs, blocks.low, blocks.falls, blocks.start, limit)


def part_blocks(points: Points, lam: float | None = None, keep: int = KEEP) -> PartBlocks:
    """The blocks of a part. Close to O(points) time; O(runs) memory, under 60 bytes each, on the way."""
    runs, head, tail = part_runs(points)
    weight, positives, unit = scaled(runs)
    falls = kernel.falling(weight, positives)
    with np.errstate(divide="ignore", invalid="ignore"):
        saturated = tree.log_likelihood(positives / weight, weight, positives)
    untouched = PartBlocks(runs, np.zeros((weight.size, 2)), falls, head, tail, 0.0, saturated, [])
    # Weights that need a unit of their own are rare, and too extreme for sums of several parts.
    if unit != 1.0 or (weight.size <= 4 * keep if lam is None else lam == 0.0) or weight.size < 3:
        return untouched
    merging = _Merging(weight, positives, falls)
    if lam is None:
        start, last, block, bounds = _in_steps(merging, float(weight.mean()), keep)
    else:
        merging.merge(min(lam, float(np.finfo(np.float64).max)))
        start, last, block, bounds = lam, *merging.blocks(), []
    first = np.concatenate([[0], last[:-1] + 1])
    low = block[:, 2:].copy() if block.shape[1] == 4 else np.zeros((last.size, 2))
    blocks = Runs(runs.first[first], runs.last[last], block[:, 0].copy(), block[:, 1].copy(), np.empty(0))
    return PartBlocks(blocks, low, falls[last], head, tail, start, saturated, bounds)


class _Merging:
    """A part's blocks, merged up to ascending lambda."""

    def __init__(self, weight: Array, positives: Array, falls: npt.NDArray[np.bool_]) -> None:
        whole, self.size = are_whole(weight, positives), weight.size
        index = np.empty(0, np.int32 if weight.size < 2**31 else np.int64)
        block, ids = kernel.begin(weight, positives, np.empty((0, 2)), whole, index)
        death, child, total = (
            np.full(weight.size - 1, np.inf),
            np.empty((0, 2), index.dtype),
            np.empty((0, 2)),
        )
        self.path = kernel.Merging(block, ids, falls, death, child, total, whole, True)

    def merge(self, lam: float) -> None:
        """Merge what is sure to have merged by lambda."""
        self.size = kernel.merge_sure(self.size, lam, 2, self.path)

    def bound(self, step: int, lam: float) -> Bound:
        """Bounds at lambda."""
        return Bound(step, *kernel.bounds_at(lam, self.size, self.path))

    def blocks(self) -> tuple[npt.NDArray[np.int64], Array]:
        """The last run of each block, and the sums."""
        return self.path.ids[: self.size, 1].astype(np.int64), self.path.block[: self.size].copy()


def _in_steps(
    merging: _Merging, typical: float, keep: int
) -> tuple[float, npt.NDArray[np.int64], Array, list[Bound]]:
    """Merge in steps of lambda by a factor of 2; the blocks of the first step that leaves at most `keep`."""
    bounds: list[Bound] = []
    kept: tuple[float, npt.NDArray[np.int64], Array] | None = None
    # Runs of single points meet from lambda = weight / 2 on.
    step = int(np.floor(np.log2(typical))) - 1
    idle = 0
    while True:
        before = merging.size
        lam = 2.0**step
        merging.merge(lam)
        bounds.append(merging.bound(step, lam))
        idle = idle + 1 if merging.size > 0.99 * before else 0
        stop = merging.size <= _FINAL or idle == _IDLE
        if kept is None and (merging.size <= keep or stop):
            kept = lam, *merging.blocks()
        if stop and kept is not None:
            return *kept, bounds
        step += 1


def join_blocks(parts: list[PartBlocks]) -> Blocks:
    """The blocks of all parts, in score order; runs that go on from part to part are one."""
    runs = join_runs([PartRuns(part.blocks, part.head, part.tail) for part in parts])
    size = runs.weight.size
    low, falls = np.zeros((size, 2)), np.zeros(size, np.bool_)
    at = 0
    for part, following in pairwise([*parts, None]):
        assert part is not None
        end = at + part.falls.size
        low[at + 1 : end - 1] = part.low[1:-1]
        falls[at : end - 1] = part.falls[:-1]
        if following is None:
            break
        a, b = part.tail, following.head
        if run_kernel.same_level(a.weight, a.positives, b.weight, b.positives):
            at = end - 1
        else:
            falls[end - 1] = kernel.falling(
                np.array([a.weight, b.weight]), np.array([a.positives, b.positives])
            )[0]
            at = end
    return Blocks(
        runs, low, falls, max(part.start for part in parts), [(part.saturated, part.bounds) for part in parts]
    )


def least_criterion(blocks: Blocks, penalty: Callable[[npt.NDArray[np.int64]], Array]) -> float:
    """A criterion that no model below the start of the path can be less than.

    penalty : what the criterion adds to -2 log likelihood, as a function of the degrees of freedom; not decreasing.

    Between two steps a < b a solution is at most as likely as that at a, and has at least as many blocks as that
    at b.
    """
    steps = sorted({b.step for _, bounds in blocks.bounds for b in bounds if 2.0**b.step <= blocks.start})
    likelihood = np.zeros(len(steps) + 1)
    degrees = np.zeros(len(steps), np.int64)
    for saturated, bounds in blocks.bounds:
        known = [b.step for b in bounds]
        likelihood[0] += saturated
        for i, step in enumerate(steps):
            at = bisect_right(known, step) - 1
            likelihood[i + 1] += bounds[at].log_likelihood if at >= 0 else saturated
            after = bisect_left(known, step)
            degrees[i] += bounds[after].blocks if after < len(known) else 0
    if not steps:
        return -np.inf
    return float((penalty(degrees) - 2.0 * likelihood[:-1]).min())
