"""Maps as polylines, and with fewer rows within a largest error."""

from __future__ import annotations

import numpy as np

from calibrators.core.arrays import Array
from calibrators.core.map import CalibrationMap, gap_slopes
from calibrators.core.tabulate import needed_knots

_ROUNDING = 1e-15
"""Difference of probabilities that the arithmetic of lines may add."""


def knots_of(map_: CalibrationMap) -> tuple[Array, Array]:
    """Return the first and the last score of each row, and their probabilities.

    The map is linear between neighbouring knots, up to rounding, and constant outside. A jump has two neighbouring
    doubles as knots.

    Returns
    -------
    scores, probabilities : float64 arrays, shape (knots,), scores strictly ascending and finite; empty for one row
    """
    low, high = map_.ends()
    last = np.nextafter(map_.score_hi, -np.inf)
    scores = np.column_stack([map_.score_lo, last]).ravel()[1:-1]
    levels = np.column_stack([low, high]).ravel()[1:-1]
    distinct = np.append(True, scores[1:] > scores[:-1])[: scores.size]
    return scores[distinct], levels[distinct]


def simplify(map_: CalibrationMap, allowed: Array) -> CalibrationMap:
    """Return a map with fewer rows; monotone if the map is. Rows that are new have no weights.

    Parameters
    ----------
    map_ : CalibrationMap
    allowed : float64 array, shape (knots,), > 0: largest difference of probabilities at the map's knots (`knots_of`)

    Notes
    -----
    Its knots are among the map's, chosen by `needed_knots`. Between the map's knots the difference is linear, so it is
    nowhere larger. O(knots * log(knots)) for most maps. A map that this does not shorten is returned as it is.
    """
    scores, levels = knots_of(map_)
    with np.errstate(over="ignore"):
        if scores.size == 0 or not np.isfinite(scores[-1] - scores[0]):
            return map_
    needed = needed_knots(scores, levels, allowed)
    simple = from_polyline(scores[needed], levels[needed])
    # Spans as short as subnormal numbers leave too little precision for lines.
    moved = np.abs(simple.predict_ascending(scores) - levels) > allowed + _ROUNDING
    return map_ if moved.any() or len(simple) >= len(map_) else simple


def from_polyline(scores: Array, levels: Array) -> CalibrationMap:
    """Return the map that is linear between knots, constant outside, and jumps between neighbouring doubles.

    scores : float64 array, shape (knots,), strictly ascending, finite; levels : their probabilities

    Its rows have no weights.
    """
    jump = np.nextafter(scores[:-1], np.inf) == scores[1:]
    # The lower end of a jump belongs to the row before it, if that is constant.
    flat_before = np.append(True, levels[:-2] == levels[1:-1])
    own = np.flatnonzero(~(jump & flat_before))
    score_lo = np.concatenate([[-np.inf], scores[own], scores[-1:]])
    prob_lo = np.concatenate([levels[:1], levels[own], levels[-1:]])
    slope = gap_slopes(scores[own], scores[own + 1], levels[own], levels[own + 1])
    slope = np.concatenate([[0.0], np.where(jump[own], 0.0, slope), [0.0]])
    flat = slope == 0.0
    repeated = np.append(False, flat[1:] & flat[:-1] & (prob_lo[1:] == prob_lo[:-1]))
    score_lo, prob_lo, slope = (column[~repeated] for column in (score_lo, prob_lo, slope))
    zeros = np.zeros(score_lo.size)
    anchor = np.where(np.isfinite(score_lo), score_lo, 0.0)
    return CalibrationMap(score_lo, np.append(score_lo[1:], np.inf), prob_lo, slope, anchor, zeros, zeros)
