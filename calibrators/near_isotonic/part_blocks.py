"""Start of the near-isotonic path: blocks that each part of the points merges independently of the others.

The string of equation 3's dual is pulled tight in each part by itself (`kernels.taut_string`): what is the same for any
height of its ends is the same in the whole. So the path of Algorithm 1 (`reference.modified_pava`) can begin at a
lambda > 0, from some thousand blocks a part.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from calibrators.core.arrays import Array, Integers, Mask
from calibrators.core.kernels import pava
from calibrators.core.passes import Pass, Points
from calibrators.near_isotonic.kernels import path as kernel
from calibrators.near_isotonic.kernels import tree
from calibrators.near_isotonic.kernels.taut_string import settled_ends
from calibrators.near_isotonic.label_runs import Border, PartRuns, Runs, join_runs, part_runs
from calibrators.near_isotonic.path import NearIsotonicPath, are_whole, first_step, scaled

KEEP = 1 << 13
"""Number of blocks per part down to which a part merges before the path starts."""

_FINAL = 8  # number of blocks of a part up to which merging stops
_IDLE = 4  # steps of lambda without progress after which merging stops


class Bound(NamedTuple):
    """Bounds of a part of the solution at lambda = 2 ** step.

    blocks : lower bound of its number of blocks. log_likelihood : upper bound
    """

    step: int
    blocks: int
    log_likelihood: float


class PartBlocks(NamedTuple):
    """Merged blocks of a part; the first and the last block are single runs, perhaps the same.

    Attributes
    ----------
    blocks : Runs: first and last scores, weights and positives, rounded
    low : float64 array, shape (blocks, 2): low parts of weights and positives
    falls : bool array, shape (blocks,): whether the level falls after each block; the last entry is undefined
    head, tail : the first and the last run
    start : float: the lambda up to which blocks were merged
    saturated : float: log likelihood of the runs' frequencies
    bounds : bounds for ascending steps
    """

    blocks: Runs
    low: Array
    falls: Mask
    head: Border
    tail: Border
    start: float
    saturated: float
    bounds: list[Bound]


class JoinedBlocks(NamedTuple):
    """Joined blocks of all parts; see `PartBlocks`. bounds : `saturated` and `bounds` of each part."""

    runs: Runs
    low: Array
    falls: Mask
    start: float
    bounds: list[tuple[float, list[Bound]]]


def blocks_pass(limit: float = np.inf, keep: int | None = None) -> Pass:
    """Make the pass that gathers `JoinedBlocks`: 49 bytes each.

    limit : lambda up to which blocks are merged
    keep : number of blocks per part at which merging stops; then bounds of the solutions below are computed
    """
    return Pass(chunk=partial(part_blocks, limit=limit, keep=keep), combine=join_blocks)


def path_from(blocks: JoinedBlocks, limit: float = np.inf) -> NearIsotonicPath:
    """Compute the path from the lambda of the blocks on."""
    return NearIsotonicPath.of_blocks(blocks.runs, blocks.low, blocks.falls, blocks.start, limit)


def part_blocks(points: Points, limit: float = np.inf, keep: int | None = None) -> PartBlocks:
    """Compute the blocks of a part. O(points) time; O(runs) temporary memory, under 100 bytes per run."""
    runs, head, tail = part_runs(points)
    weight, positives, unit = scaled(runs)
    falls = kernel.falling_gaps(weight, positives)
    saturated = tree.log_likelihood(positives / weight, weight, positives)
    blocks, low = runs, np.zeros((weight.size, 2))
    start, bounds = 0.0, list[Bound]()
    # Weights that need scaling are rare, and too extreme for the sums of several parts.
    if unit == 1.0 and limit > 0.0 and weight.size > (2 if keep is None else max(2, 4 * keep)):
        columns, falls, start, bounds = _in_steps(runs, falls, limit, keep)
        blocks, low = Runs(columns[0], columns[1], columns[2], columns[4], np.empty(0)), columns[3::2].T
    return PartBlocks(blocks, low, falls, head, tail, start, saturated, bounds)


def _in_steps(
    runs: Runs, falls: Mask, limit: float, keep: int | None
) -> tuple[Any, Mask, float, list[Bound]]:
    """Merge in steps of lambda by a factor of 2; return the blocks of the first step with at most `keep`."""
    weight, positives = runs.weight, runs.positives
    integral, empty = are_whole(weight, positives), np.empty(0)
    columns: Any = (runs.first, runs.last, weight, empty, positives, empty)
    bounds: list[Bound] = []
    result = None
    step = first_step(weight, positives, integral)
    start, idle = 0.0, 0
    while start == 0.0 or (start < limit and falls.size > _FINAL and idle < _IDLE):
        before, start = falls.size, min(2.0**step, limit)
        columns, falls, final = _merged(columns, falls, start, integral and start.is_integer())
        idle = idle + 1 if falls.size > 0.99 * before else 0
        if keep is not None:
            bounds.append(Bound(step, final.stop - final.start, _likelihood(columns, falls, start, final)))
            if result is None and falls.size <= keep:
                result = columns, falls, start
        step += 1
    return *(result or (columns, falls, start)), bounds


def _merged(columns: Any, falls: Mask, lam: float, exact: bool) -> tuple[Array, Mask, slice]:
    """Merge the blocks that have certainly merged at lambda; return also the slice of blocks of the solution."""
    ends = settled_ends(tuple(columns[2:]), falls, lam, exact)
    head = np.arange(ends[0] + 1 if ends.size else falls.size)
    tail = np.arange(ends[-1] + 1 if ends.size else falls.size, falls.size + 1)
    starts = np.concatenate([head, ends[:-1] + 1, tail])
    columns = pava.pool_groups(tuple(columns), starts, np.zeros(starts.size - 1, np.bool_))[0]
    return columns, falls[starts[1:] - 1], slice(head.size, head.size + max(ends.size - 1, 0))


def _likelihood(columns: Array, falls: Mask, lam: float, final: slice) -> float:
    """Bound the solution's log likelihood: no constant level is likelier than the frequency. final : see `_merged`."""
    weight, positives = columns[2], columns[4]
    level = positives.copy()
    falls_before, falls_after = falls[final.start - 1 : final.stop - 1], falls[final]
    level[final] += lam * (falls_before.astype(np.float64) - falls_after)
    return float(tree.log_likelihood(np.clip(level / weight, 0.0, 1.0), weight, positives))


def join_blocks(parts: list[PartBlocks]) -> JoinedBlocks:
    """Join the blocks of all parts, in score order; runs that continue from part to part are joined."""
    runs = join_runs([PartRuns(part.blocks, part.head, part.tail) for part in parts])
    size = runs.weight.size
    low, falls = np.zeros((size, 2)), np.zeros(size, np.bool_)
    start = 0
    for part, following in pairwise([*parts, None]):
        assert part is not None
        end = start + part.falls.size
        low[start + 1 : end - 1] = part.low[1:-1]
        falls[start : end - 1] = part.falls[:-1]
        if following is None:
            break
        a, b = part.tail, following.head
        if a.same_level(b):
            start = end - 1
        else:
            falls[end - 1] = kernel.falling_gaps(
                np.array([a.weight, b.weight]), np.array([a.positives, b.positives])
            )[0]
            start = end
    return JoinedBlocks(
        runs, low, falls, max(part.start for part in parts), [(part.saturated, part.bounds) for part in parts]
    )


def least_criterion(blocks: JoinedBlocks, penalty: Callable[[Integers], Array]) -> float:
    """Bound the criterion of the models below the start of the path from below.

    penalty : penalty added to -2 log likelihood, a non-decreasing function of the degrees of freedom

    Between two steps a < b a solution is at most as likely as the solution at a, and has at least as many blocks as the
    solution at b.
    """
    steps = sorted({b.step for _, bounds in blocks.bounds for b in bounds if 2.0**b.step <= blocks.start})
    likelihood = np.zeros(len(steps) + 1)
    degrees = np.zeros(len(steps), np.int64)
    for saturated, bounds in blocks.bounds:
        part_steps = [b.step for b in bounds]
        likelihood[0] += saturated
        for i, step in enumerate(steps):
            before = bisect_right(part_steps, step) - 1
            likelihood[i + 1] += bounds[before].log_likelihood if before >= 0 else saturated
            after = bisect_left(part_steps, step)
            degrees[i] += bounds[after].blocks if after < len(part_steps) else 0
    if not steps:
        return -np.inf
    return float((penalty(degrees) - 2.0 * likelihood[:-1]).min())
