"""Partial pooling: maps of many segments that borrow strength from the map of the rows that they are part of.

Every segment moves its parent's curve by two numbers that are shrunken towards none, by variances that the segments
themselves tell (empirical Bayes); a segment with enough rows of both labels then gets a map of its own that leans on
the moved curve. Both steps see a segment only through its counts in the parent's blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from calibrators._kernels import partial_pooling as kernel
from calibrators._kernels import pava
from calibrators._kernels.logistic import logistic
from calibrators.passes import Array, Blocks, Points

Integers = npt.NDArray[np.int64]

VARIANCES = np.concatenate([[0.0], 2.0 ** np.arange(-14, 7)])
"""Candidates for the variances of shifts and of stretches."""

_FIRST = (0.25, 0.0625)
_SMALLEST = VARIANCES[1]
_MOST_ROUNDS = 10

LEAN = 300.0
"""M: the information, sum of w p (1 - p), that the moved curve counts for in a segment's own map."""


class Curve(NamedTuple):
    """A map's levels as the segments below it move them.

    Attributes
    ----------
    logit : float64 array, shape (blocks,): of each block's level, finite
    centre : the mean of `logit` over the map's rows, weighted by p (1 - p)
    """

    logit: Array
    centre: float


class Cells(NamedTuple):
    """Counts of segments in their parents' blocks, segment after segment, ascending in each.

    Attributes
    ----------
    starts : int64 array, shape (segments + 1,)
    logit : float64 array, shape (cells,): of the parent's level in the cell's block
    offset : float64 array, shape (cells,): the same less the parent's centre
    weight, positives : float64 arrays, shape (cells,)
    """

    starts: Integers
    logit: Array
    offset: Array
    weight: Array
    positives: Array


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
    logit = np.log(p) - np.log(q)
    information = w * p * q
    return Curve(logit, float((information * logit).sum() / information.sum()))


def move(cells: Cells) -> Moved:
    """Estimate the variances of the segments of a level, and each segment's shift and stretch of its parent's curve.

    Weights count as repeated rows. Deterministic: sums run in the order of the segments. O(cells) a round of two or
    three, and 484 operations a segment.
    """
    groups = cells.starts.size - 1
    theta, derivatives = np.zeros((groups, 2)), np.zeros((groups, 5))
    scores = np.empty((VARIANCES.size, VARIANCES.size))
    data = (cells.logit, cells.offset, cells.weight, cells.positives, cells.starts)
    pair, seen = _FIRST, set()
    for _ in range(_MOST_ROUNDS):
        # A variance of 0 would keep the parameter at 0, and say nothing of what it could be.
        kernel.move_curves(*data, max(pair[0], _SMALLEST), max(pair[1], _SMALLEST), theta, derivatives)
        kernel.evidence(theta, derivatives, VARIANCES, scores)
        # Of ties the first, which is the smallest.
        best = np.unravel_index(int(np.argmax(scores)), scores.shape)
        pair = (float(VARIANCES[best[0]]), float(VARIANCES[best[1]]))
        if pair in seen:
            break
        seen.add(pair)
    kernel.move_curves(*data, *pair, theta, derivatives)
    # A curve's centre is its parent's; taking it out leaves the form that tables have.
    first = np.minimum(cells.starts[:-1], max(cells.logit.size - 1, 0))
    centre = (cells.logit - cells.offset)[first] if cells.logit.size else np.zeros(groups)
    return Moved(pair, theta[:, 0] - theta[:, 1] * centre, 1.0 + theta[:, 1])


def own_blocks(points: Points, prior: Array, lean: float = LEAN) -> tuple[Blocks, Array]:
    """A segment's own map: isotonic regression of its points, leaning on a prior curve.

    Each point has weight w (1 + C) and positives y + C w p, with C = lean / sum of w p (1 - p).

    Parameters
    ----------
    points : of the segment; or its cells, as points at each cell's first score, where `prior` is constant
    prior : float64 array, shape (m,), in (0, 1), ascending
    lean : the information that the prior counts for; 0: plain isotonic regression

    Returns
    -------
    blocks, level
        The segment's own sums in each block, and the level of each: in (0, 1) and ascending. Neighbours of equal
        level are one block.
    """
    score, w, y = points
    c = lean / float((w * prior * (1.0 - prior)).sum()) if lean else 0.0
    weight, positives = w * (1.0 + c), y + c * w * prior
    none = np.empty(0)
    pooled = Blocks(*pava.pool(score, score, weight, none, np.minimum(positives, weight), none))
    starts = np.searchsorted(score, pooled.first)
    own = Blocks(
        pooled.first,
        pooled.last,
        np.add.reduceat(w, starts),
        np.zeros(starts.size),
        np.add.reduceat(y, starts),
        np.zeros(starts.size),
    )
    return own, pooled.level
