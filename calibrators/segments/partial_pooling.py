"""Partial pooling: maps of many segments that borrow strength from the map of the rows that they are part of.

Every segment moves its parent's curve by two numbers that are shrunken towards none, by variances that the segments
themselves tell (empirical Bayes); a segment with enough rows of both labels then gets a map of its own that leans on
the moved curve. Both steps see a segment only through its counts in the parent's blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from calibrators._kernels import log_odds
from calibrators._kernels import partial_pooling as kernel
from calibrators._kernels.log_odds import logistic
from calibrators.arithmetic.passes import Array, Blocks, Points
from calibrators.arithmetic.processors import processors

Integers = npt.NDArray[np.int64]

VARIANCES = np.concatenate([[0.0], 2.0 ** np.arange(-14, 7)])
"""Candidates for the variances of shifts and of stretches."""

LEAST, MOST = float(np.finfo(np.float64).tiny), 1.0 - 2.0**-53
"""Probabilities whose log-odds doubles can say."""

_FIRST = (0.25, 0.0625)
_SMALLEST = VARIANCES[1]
_MOST_ROUNDS = 10
_SHARE = 1 << 15
"""Segments whose evidence a thread adds up, and of which the first variances are."""

_PIECE = 1 << 10
"""Segments that a thread moves at a time, at least: no result depends on it."""

_MOST_PIECES = 64
_MOST_THREADS = 8

LEAN = 300.0
"""M: the information, sum of w p (1 - p), that the moved curve counts for in a segment's own map."""


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
        """How many segments there are."""
        return self.starts.size - 1

    def part(self, start: int, stop: int) -> Cells:
        """Those of segments start, ..., stop - 1."""
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
        """How many segments there are."""

    def part(self, start: int, stop: int) -> Cells:
        """Those of segments start, ..., stop - 1."""


@dataclass(frozen=True)
class Moved:
    """How segments move their parents' curves.

    Attributes
    ----------
    variances : of the shifts and of the stretches
    shift, slope : float64 arrays, shape (segments,): logit p = shift + slope * logit of the parent's level; slope >= 0
    """

    variances: tuple[float, float]
    shift: Array
    slope: Array

    def predict(self, cells: Cells) -> Array:
        """Probabilities in the cells, in (0, 1)."""
        sizes = np.diff(cells.starts)
        eta = np.repeat(self.shift, sizes) + np.repeat(self.slope, sizes) * cells.logit
        logistic(eta, eta)
        return eta


class WithinStretches(NamedTuple):
    """Items of groups that lie within the stretches of their parents' maps, group after group, ascending in each.

    Attributes
    ----------
    first, last : float64 arrays, shape (items,): the scores that each reaches from and to
    weight, weight_low, positives, positives_low : float64 arrays, shape (items,): sums as double-doubles
    stretch : int64 array, shape (items,): the place of each one's stretch among all parents'
    sizes : int64 array, shape (groups,)
    """

    first: Array
    last: Array
    weight: Array
    weight_low: Array
    positives: Array
    positives_low: Array
    stretch: Integers
    sizes: Integers


class Stretches(NamedTuple):
    """Where the stretches of constant level of some maps begin.

    edges : float64 array of scores, or int32 array of ranks, map after map, ascending in each.
    starts : int64 array, shape (maps + 1,)
    """

    edges: npt.NDArray[Any]
    starts: Integers


def pool_within(
    items: Sequence[Array],
    starts: Integers,
    stretches: Stretches,
    parent: npt.NDArray[np.integer[Any]],
    pooled: npt.NDArray[np.bool_],
) -> WithinStretches:
    """Join what groups have within the stretches of their parents' maps: all that moving and own maps need.

    It is associative: parts that are joined first, and then together, give the same.

    Parameters
    ----------
    items : the first six columns of `WithinStretches`; of points, or of what this has made of parts
    starts : int64 array, shape (groups + 1,): where each group's begin. None lies in two stretches.
    parent : shape (groups,): whose stretches they are
    pooled : shape (groups,): whether isotonic regression pools them, for an own map; otherwise a stretch is one item

    Notes
    -----
    O(items log stretches) at most, O(items) where most follow each other in a stretch.
    """
    found, stretch, sizes = kernel.pool_within(*items, starts, parent, *stretches, pooled)
    first, last, weight, weight_low, positives, positives_low = _alone(found, items[0].size)
    stretch = _alone(stretch, items[0].size)
    return WithinStretches(first, last, weight, weight_low, positives, positives_low, stretch, sizes)


class CountedCells(NamedTuple):
    """What groups have in each stretch of their parents' maps, in whole rows, group after group.

    Attributes
    ----------
    sizes : int64 array, shape (groups,): cells of each group
    stretch : int64 array, shape (cells,): the place of each one's stretch among all parents'
    first, weight, positives : float64 arrays, shape (cells,): the first score; rows, and those with label 1
    counts : int64 array: of each cell of the pooled groups, how many items it has
    items : float64 array, shape (4, items): of pooled groups, see `WithinStretches`: first, last, weight, positives
    item_sizes : int64 array, shape (groups,): items of each group, 0 where it is not pooled
    """

    sizes: Integers
    stretch: Integers
    first: Array
    weight: Array
    positives: Array
    counts: Integers
    items: Array
    item_sizes: Integers


def cells_within(
    items: Array,
    starts: Integers,
    stretches: Stretches,
    parent: npt.NDArray[np.integer[Any]],
    pooled: npt.NDArray[np.bool_],
) -> CountedCells:
    """As `pool_within`, and what its items come to in each stretch, of rows that are counted and come in parts.

    Parameters
    ----------
    items : float64 array, shape (n, 4): first and last score, rows and positive rows; of a part, group after group
    starts : int64 array, shape (parts, groups + 1): where each group's begin in a part, which lies above the one before
    stretches, parent, pooled : see `pool_within`
    """
    sizes, stretch, cells, counts, pools, pool_sizes = kernel.cells_within(
        items, starts, parent, *stretches, pooled
    )
    first, weight, positives = cells
    return CountedCells(sizes, stretch, first, weight, positives, counts, pools, pool_sizes)


def pool_ranks_within(
    rows: npt.NDArray[np.uint32],
    starts: Integers,
    distinct: Array,
    stretches: Stretches,
    parent: npt.NDArray[np.integer[Any]],
    pooled: npt.NDArray[np.bool_],
) -> tuple[Array, npt.NDArray[np.int32], Integers]:
    """As `pool_within` of rows of weight 1, whose scores are ranks; their edges, too. O(rows log stretches) at most.

    Parameters
    ----------
    rows : uint32 array, shape (n,), n < 2**31: of each twice its score's rank, plus its label; ascending in each group
    distinct : float64 array: the score of each rank
    starts, parent, pooled : see `pool_within`

    Returns
    -------
    items : float64 array, shape (4, items): first and last score, rows, positive rows
    ranks : int32 array, shape (items,): of the first scores. sizes : int64 array, shape (groups,)
    """
    found: tuple[Array, npt.NDArray[np.int32], Integers]
    found = kernel.pool_ranks_within(rows, starts, distinct, parent, *stretches, pooled)
    return found


def _alone(part: npt.NDArray[Any], room: int) -> npt.NDArray[Any]:
    """A part of a larger array without the rest, unless that is little and copying takes longer than it is worth."""
    return part.copy() if 2 * part.shape[-1] < room else part


def logit_of(p: Array, q: Array) -> Array:
    """log(p) - log(q), the same on every machine. p, q : float64 arrays of normal numbers > 0."""
    out = np.empty(p.size)
    log_odds.logits(np.ascontiguousarray(p), np.ascontiguousarray(q), out)
    return out


def curve_of(level: npt.ArrayLike, weight: npt.ArrayLike) -> Curve:
    """A map's curve: what is moved.

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


def move(cells: CellParts) -> Moved:
    """Estimate the variances of the segments of a level, and each segment's shift and stretch of its parent's curve.

    Weights count as repeated rows. Deterministic: sums run in the order of the segments. O(cells) a round of some,
    and 484 operations a segment.
    """
    groups = cells.groups
    theta, derivatives = np.zeros((groups, 2)), np.zeros((groups, 5))
    centre = np.zeros(groups)
    # Sums of shares are added up, and so may not depend on how many threads there are.
    shares = [slice(at, min(at + _SHARE, groups)) for at in range(0, groups, _SHARE)]
    piece_size = max(_PIECE, groups // _MOST_PIECES)
    pieces = [slice(at, min(at + piece_size, groups)) for at in range(0, groups, piece_size)]
    scores = np.empty((len(shares), VARIANCES.size, VARIANCES.size))

    def step(piece: slice, variances: tuple[float, float]) -> None:
        own = cells.part(piece.start, piece.stop)
        data = (own.logit, own.weight, own.positives, own.starts, own.centre)
        kernel.move_curves(*data, *variances, theta[piece], derivatives[piece])
        if own.logit.size:
            first = own.logit[np.minimum(own.starts[:-1], own.logit.size - 1)]
            centre[piece] = first - (first - own.centre)

    def weigh(share: slice, found: Array) -> None:
        kernel.evidence(theta[share], derivatives[share], VARIANCES, found)

    pair, seen = _FIRST, set()
    if groups >= 2 * _SHARE:  # if those of some are the variances of all, one round tells
        pair = move(_some(cells, groups // _SHARE)).variances
        seen.add(pair)
    with ThreadPoolExecutor(min(processors(), _MOST_THREADS)) as threads:
        for _ in range(_MOST_ROUNDS):
            # A variance of 0 would keep the parameter at 0, and say nothing of what it could be.
            tried = (max(pair[0], _SMALLEST), max(pair[1], _SMALLEST))
            list(threads.map(step, pieces, repeat(tried)))
            list(threads.map(weigh, shares, scores))
            # Of ties the first, which is the smallest.
            best = divmod(int(np.argmax(scores.sum(axis=0))), VARIANCES.size)
            pair = (float(VARIANCES[best[0]]), float(VARIANCES[best[1]]))
            if pair in seen:
                break
            seen.add(pair)
        if pair == (0.0, 0.0):
            return Moved(pair, np.zeros(groups), np.ones(groups))
        list(threads.map(step, pieces, repeat(pair)))
    # A curve's centre is its parent's; taking it out leaves the form that tables have.
    return Moved(pair, theta[:, 0] - theta[:, 1] * centre, 1.0 + theta[:, 1])


def _some(cells: CellParts, every: int) -> Cells:
    """Those of every so-many-th segment."""
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


def cross(cells: Cells, value: Integers, parent: Integers) -> Moved:
    """Estimate what a value does to the curves of all parents that have it: the main effect of a second column.

    Without it, what a value does everywhere has to be learned anew for each parent. Values that one parent alone has
    are left out: that is what `move` learns.

    Parameters
    ----------
    cells : of segments
    value, parent : int64 arrays, shape (segments,): whose rows a segment has: of which value, and of which parent

    Returns
    -------
    Moved
        By segment, not by value: 0 and 1 for values that are left out. O(cells log cells).
    """
    sizes = np.diff(cells.starts)
    pairs = np.unique(np.stack([value, parent]), axis=1)[0]
    several = (np.bincount(pairs, minlength=value.max(initial=0) + 1) > 1)[value] & (sizes > 0)
    found = Moved((0.0, 0.0), np.zeros(sizes.size), np.ones(sizes.size))
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
    moved = move(Cells(starts, np.full(shared.size, centre), logit, weight, positives))
    found.shift[several], found.slope[several] = moved.shift[group], moved.slope[group]
    return Moved(moved.variances, found.shift, found.slope)


class OwnMaps(NamedTuple):
    """Maps of groups of their own, group after group.

    Attributes
    ----------
    first, last, weight, positives : float64 arrays, shape (blocks,): each block's scores, and the group's own sums
    level : float64 array, shape (blocks,): ascending in each group; in (0, 1) where the prior counts for something
    sizes : int64 array, shape (groups,)
    """

    first: Array
    last: Array
    weight: Array
    positives: Array
    level: Array
    sizes: Integers


def own_maps(
    first: Array,
    last: Array,
    weight: Array,
    positives: Array,
    starts: Integers,
    prior: Array,
    lean: float = LEAN,
) -> OwnMaps:
    """Groups' own maps: isotonic regression of each one's points, leaning on a prior curve.

    Each point has weight w (1 + C) and positives y + C w p, with C = lean / sum of w p (1 - p) over the group.

    Parameters
    ----------
    first, last, weight, positives : float64 arrays, shape (n,)
        Points of groups, group after group, ascending in each; or their cells, pooled where `prior` is constant.
    starts : int64 array, shape (groups + 1,): strictly ascending
    prior : float64 array, shape (n,), in (0, 1), ascending in each group
    lean : the information that the prior counts for; 0: plain isotonic regression

    Notes
    -----
    Neighbours of equal level are one block. O(n).
    """
    information = np.add.reduceat(weight * prior * (1.0 - prior), starts[:-1])
    share = lean / information if lean else np.zeros(information.size)
    # Pooled by their places instead of their scores, so that it is known which are in a block.
    blocks, left = kernel.pool_leaning(weight, positives, prior, starts, share)
    begin, end = blocks[0].astype(np.int64), blocks[1].astype(np.int64)
    return OwnMaps(
        first[begin],
        last[end],
        np.add.reduceat(weight, begin),
        np.add.reduceat(positives, begin),
        np.minimum(blocks[4] / blocks[2], 1.0),
        left,
    )


def own_blocks(points: Points, prior: Array, lean: float = LEAN) -> tuple[Blocks, Array]:
    """One group's own map: see `own_maps`. Returns its blocks, with the group's own sums, and their levels."""
    score, w, y = points
    found = own_maps(score, score, w, y, np.array([0, score.size]), prior, lean)
    zero = np.zeros(found.first.size)
    return Blocks(found.first, found.last, found.weight, zero, found.positives, zero), found.level
