"""A rising curve of log-odds made a calibration map: piecewise linear, with knots as its curvature needs them.

Rows of a map say how many observations they hold. Of fine cells that is known where one begins, and anywhere between
neighbouring points that are cells themselves; there, and outside, knots may lie. Within a wider cell the map is a line.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from calibrators.arithmetic.calibration_map import CalibrationMap
from calibrators.arithmetic.curve import Places, expit
from calibrators.arithmetic.fine_cells import FineCells
from calibrators.arithmetic.passes import Array
from calibrators.arithmetic.tabulate import largest_error

_ROUNDS = 64
_FINER, _SHARE = 0.2, 0.75


def tabulated_curve(
    fine: FineCells, places: Places, knots: tuple[Array, Array], shift: float, max_error: float
) -> CalibrationMap:
    """The map of a curve, off by at most max_error where knots may lie.

    Parameters
    ----------
    fine : the observations
    places : where their scores lie
    knots : places, ascending, and the curve's log-odds there, non-decreasing; linear between, constant outside
    shift : added to the log-odds
    max_error : as `tabulate_sigmoid` has it
    """
    place, f = knots

    def level(at: Array) -> Array:
        return expit(np.interp(at, place, f) + shift)

    scores, levels = _candidates(fine, places, place, level, max_error)
    kept = _needed(scores, levels, max_error)
    scores, levels = scores[kept], np.maximum.accumulate(levels[kept])
    if levels[0] == levels[-1]:
        scores, levels = scores[:1], levels[:1]
    row = np.searchsorted(scores, fine.first, side="right")
    weight, positives = (
        np.bincount(row, c, scores.size + 1).astype(np.float64) for c in (fine.weight, fine.positives)
    )
    return CalibrationMap.from_knots(scores, levels, weight, positives)


def _candidates(
    fine: FineCells, places: Places, knots: Array, level: Callable[[Array], Array], max_error: float
) -> tuple[Array, Array]:
    """Scores at which knots may lie, so close that nearly nothing is lost of the curve where they may be close."""
    single = fine.first == fine.last
    free = np.append(places.scores(knots), [fine.first[0], fine.last[-1]])
    inside = np.searchsorted(fine.first, free, side="right") - 1
    # Between a point and the next cell, below all and above all.
    known = (inside < 0) | (free > fine.last[-1]) | single[np.maximum(inside, 0)]
    scores = np.union1d(fine.first, free[known])
    at = places.of(scores)
    levels = level(at)
    inside = np.searchsorted(fine.first, scores, side="right") - 1
    fixed = (inside >= 0) & ~single[np.maximum(inside, 0)]
    done: list[tuple[Array, Array]] = [(scores, levels)]
    left, right = slice(None, -1), slice(1, None)
    some = ~fixed[left]
    ends = [(c[left][some], c[right][some]) for c in (scores, at, levels)]
    for _ in range(_ROUNDS):
        (s0, s1), (z0, z1), (p0, p1) = ends
        middle = z0 / 2 + z1 / 2
        s = places.scores(middle)
        open_ = (s > s0) & (s < s1)
        s0, s1, z0, z1, p0, p1, s, middle = (c[open_] for c in (s0, s1, z0, z1, p0, p1, s, middle))
        p = level(middle)
        with np.errstate(over="ignore", invalid="ignore"):
            part = (s / 2 - s0 / 2) / (s1 / 2 - s0 / 2)
        coarse = np.abs(p0 + part * (p1 - p0) - p) > _FINER * largest_error(p, max_error)
        s0, s1, z0, z1, p0, p1, s, middle, p = (c[coarse] for c in (s0, s1, z0, z1, p0, p1, s, middle, p))
        if not s.size:
            break
        done.append((s, p))
        ends = [
            (np.concatenate(pair[:2]), np.concatenate(pair[2:]))
            for pair in ((s0, s, s, s1), (z0, middle, middle, z1), (p0, p, p, p1))
        ]
    scores, levels = (np.concatenate(column) for column in zip(*done, strict=True))
    order = np.argsort(scores, kind="stable")
    return scores[order], np.maximum.accumulate(levels[order])


def _needed(x: Array, y: Array, max_error: float) -> Array:
    """Which knots of a polyline to keep, so that the others lie on what is left but for the largest error.

    Ramer (1972), Douglas and Peucker (1973): the knot farthest from a stretch's chord divides the stretch.
    """
    n = x.size
    kept = np.zeros(n, bool)
    kept[[0, -1]] = True
    allowed = _SHARE * largest_error(y, max_error)
    open_ = np.arange(n)
    while open_.size:
        at = np.flatnonzero(kept)
        stretch = np.searchsorted(at, open_, side="right") - 1
        stretch = np.minimum(stretch, at.size - 2)
        a, b = at[stretch], at[stretch + 1]
        with np.errstate(over="ignore", invalid="ignore"):
            part = (x[open_] / 2 - x[a] / 2) / (x[b] / 2 - x[a] / 2)
        miss = np.abs(y[a] + part * (y[b] - y[a]) - y[open_]) / allowed[open_]
        starts = np.flatnonzero(np.diff(stretch, prepend=-1))
        worst = np.maximum.reduceat(miss, starts)
        wide = np.repeat(worst > 1, np.diff(np.append(starts, open_.size)))
        farthest = np.flatnonzero(miss == np.repeat(worst, np.diff(np.append(starts, open_.size))))
        farthest = farthest[wide[farthest]]
        farthest = farthest[np.append(True, np.diff(stretch[farthest]) > 0)[: farthest.size]]
        kept[open_[farthest]] = True
        open_ = open_[wide]
    return kept
