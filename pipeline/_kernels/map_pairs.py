"""Walking over pairs of piecewise-linear maps: how far apart they are over rows that lie as one of them says.

A *piece* lies between neighbouring edges of the two maps of a pair. Pieces without rows change nothing and are left
out, which is most of the gaps of isotonic maps. Where segments move maps, many pairs are of the same two maps: their
pieces, and the log-odds there, are found once.
"""

import numpy as np

from calibrators._kernels.compiled import kernel
from calibrators._kernels.log_odds import log_of, probability_of

_FARTHEST = 1000.0
_MAP, _SCORE = 0, 1
_POINTS = 3  # of a piece that maps are compared at: its first score, its middle, its last score


@kernel
def changes(
    old_map,
    new_map,
    old_place,
    new_place,
    old_starts,
    old_rows,
    old_moves,
    new_starts,
    new_rows,
    new_moves,
    weight,
    old_weighs,
    lowest,
    highest,
    out,
):
    """How far apart the maps of each pair are.

    Parameters
    ----------
    old_map, new_map : int64 arrays, shape (pairs,): numbers of maps; quick where equal pairs follow each other
    old_place, new_place : int64 arrays, shape (pairs,): entries of moves, which move them
    old_starts, new_starts : int64 arrays, shape (maps + 1,): where in the rows each map begins
    old_rows, new_rows : four float64 arrays each, shape (rows,): score_hi, prob_lo, slope, anchor
    old_moves, new_moves : shift, slope, low, high and of, as in `logcal.moved.Moves`; empty: nothing is moved
    weight : float64 array: of the rows of the maps that say where rows lie. old_weighs : whether those are the old ones
    lowest, highest : of the scores
    out : float64 array, shape (5, pairs): mean of |new - old|, the largest of it, where, means of old and of new

    Notes
    -----
    O(rows of both maps) a pair.
    """
    most = 2
    for i in range(old_map.size):
        rows = old_starts[old_map[i] + 1] - old_starts[old_map[i]]
        rows += new_starts[new_map[i] + 1] - new_starts[new_map[i]]
        most = max(most, rows + 2)
    edges, share = np.empty(most), np.empty(most)
    points = np.empty((most, _POINTS))
    places = np.empty((2, most, 2), np.int64)
    levels, logits = np.empty((2, most, _POINTS)), np.empty((2, most, _POINTS))
    values = np.empty((2, most, _POINTS))
    flat = np.empty((2, most), np.int8)
    n = 0
    for i in range(old_map.size):
        one, other = old_map[i], new_map[i]
        if i == 0 or one != old_map[i - 1] or other != new_map[i - 1]:
            old_span = (old_starts[one], old_starts[one + 1])
            new_span = (new_starts[other], new_starts[other + 1])
            m = _edges(old_rows[0], old_span, new_rows[0], new_span, lowest, highest, edges)
            n = _pieces(edges, m, old_rows[0], old_span, new_rows[0], new_span, points, places)
            n = _shares(edges, m, n, places[0 if old_weighs else 1], weight, share, points, places)
            _levels(old_rows, points, places[0], n, old_moves[0].size > 0, levels[0], logits[0], flat[0])
            _levels(new_rows, points, places[1], n, new_moves[0].size > 0, levels[1], logits[1], flat[1])
        _values(levels[0], logits[0], flat[0], points, n, old_moves, old_place[i], values[0])
        _values(levels[1], logits[1], flat[1], points, n, new_moves, new_place[i], values[1])
        _add_up(values[0], values[1], points, share, n, edges[0], out[:, i])


@kernel
def _edges(old_hi, old_span, new_hi, new_span, lowest, highest, edges):
    """The edges of two maps within the scores, and the scores' own ends, ascending, each once; returns how many."""
    i, i_end = old_span[0], old_span[1] - 1
    j, j_end = new_span[0], new_span[1] - 1
    while i < i_end and old_hi[i] < lowest:
        i += 1
    while j < j_end and new_hi[j] < lowest:
        j += 1
    m = 0
    while True:
        left = old_hi[i] if i < i_end else np.inf
        right = new_hi[j] if j < j_end else np.inf
        edge = min(left, right)
        if edge > highest:
            break
        if m == 0 and edge != lowest:
            edges[m] = lowest
            m += 1
        edges[m] = edge
        m += 1
        i += left <= edge
        j += right <= edge
    if m == 0:
        edges[0] = lowest
        m = 1
    if edges[m - 1] != highest:
        edges[m] = highest
        m += 1
    return m


@kernel
def _row_at(hi, span, score):
    """The row of a map that a finite score lies in."""
    row, end = span[0], span[1] - 1
    while row < end:
        middle = (row + end) >> 1
        if hi[middle] <= score:
            row = middle + 1
        else:
            end = middle
    return row


@kernel
def _pieces(edges, m, old_hi, old_span, new_hi, new_span, points, places):
    """The points of the pieces between m edges, and each map's row at the first and at the middle one.

    Returns how many there are; one edge is a piece, too.
    """
    n = max(m - 1, 1)
    for i in range(n):
        low, high = edges[i], edges[min(i + 1, m - 1)]
        points[i, 0] = low
        points[i, 1] = low / 2 + high / 2
        # Lines, so the ends of a piece are the farthest; the upper one is not part of it.
        points[i, 2] = max(low, np.nextafter(high, -np.inf))
    for side in range(2):
        hi = old_hi if side == 0 else new_hi
        span = old_span if side == 0 else new_span
        last = span[1] - 1
        for point in range(2):
            row = _row_at(hi, span, points[0, point])
            for i in range(n):
                while row < last and hi[row] <= points[i, point]:
                    row += 1
                places[side, i, point] = row
    return n


@kernel
def _shares(edges, m, n, finer, weight, share, points, places):
    """The share of the rows that each piece has, those of an interval lying evenly; leaves out pieces without any.

    finer : of each piece the rows of the map that says so. Returns how many pieces are left.
    """
    whole, i = 0.0, 0
    while i < n:
        row, end, total = finer[i, 1], i, 0.0
        while end < n and finer[end, 1] == row:
            share[end] = edges[min(end + 1, m - 1)] - edges[end]
            total += share[end]
            end += 1
        for k in range(i, end):
            part = share[k] / total if total > 0 else 1 / (end - i)
            share[k] = weight[row] * part
            whole += share[k]
        i = end
    left = 0
    for i in range(n):
        own = share[i] / whole if whole > 0 else 1 / n
        if own == 0:
            continue
        share[left] = own
        for k in range(_POINTS):
            points[left, k] = points[i, k]
        for side in range(2):
            for k in range(2):
                places[side, left, k] = places[side, i, k]
        left += 1
    return left


@kernel
def _levels(rows, points, places, n, moving, level, logit, flat):
    """What a map says at the points of n pieces; where it may be moved, the log-odds of that, too.

    flat : int8 array: 1 where a piece has one level, 2 where that is the one of the piece before, too; otherwise 0.
    """
    _, prob_lo, slope, anchor = rows
    for i in range(n):
        row = places[i, 0]
        flat[i] = slope[row] == 0.0 and places[i, 1] == row
        if flat[i] and i > 0 and flat[i - 1] and places[i - 1, 0] == row:
            flat[i] = 2
        for k in range(_POINTS):
            j = places[i, 1] if k == 1 else row
            p = prob_lo[j]
            if slope[j] != 0.0:
                p += slope[j] * (points[i, k] - anchor[j])
            level[i, k] = p
            if moving and flat[i] == 2:
                logit[i, k] = logit[i - 1, k]
            elif moving and flat[i] == 1 and k > 0:
                logit[i, k] = logit[i, 0]
            elif moving and 0.0 < p < 1.0:
                logit[i, k] = log_of(p) - log_of(1.0 - p)


@kernel
def _values(level, logit, flat, points, n, moves, entry, values):
    """The probabilities at the points of n pieces, once an entry of moves has moved what the map says."""
    shift, slope, low, high, of = moves
    kind = of[entry] if of.size else _MAP
    if shift.size == 0 or (kind == _MAP and shift[entry] == 0.0 and slope[entry] == 1.0):
        for i in range(n):
            for k in range(_POINTS):
                values[i, k] = level[i, k]
        return
    a, b, least, most = shift[entry], slope[entry], low[entry], high[entry]
    if kind != _MAP:
        for i in range(n):
            for k in range(_POINTS):
                values[i, k] = _sigmoid(points[i, k], a, b, least, most, kind)
        return
    lowest = log_of(least) - log_of(1.0 - least)
    highest = log_of(most) - log_of(1.0 - most)
    for i in range(n):
        for k in range(_POINTS):
            if flat[i] == 2:
                values[i, k] = values[i - 1, k]
            elif flat[i] == 1 and k > 0:
                values[i, k] = values[i, 0]
            else:
                p = level[i, k]
                x = lowest if p < least else highest if p > most else logit[i, k]
                values[i, k] = probability_of(a + b * x)


@kernel
def _sigmoid(score, shift, slope, low, high, kind):
    """What an entry that stands for a sigmoid says of a finite score, or of a score's own log-odds."""
    x = score
    if kind != _SCORE:
        q = max(low, min(high, x))
        x = log_of(q) - log_of(1.0 - q)
    eta = shift if slope == 0.0 else shift + slope * x
    return probability_of(max(-_FARTHEST, min(_FARTHEST, eta)))


@kernel
def _add_up(old, new, points, share, n, first, out):
    """Sums over n pieces in ascending order, and the place where two maps are farthest apart, the lowest of equals."""
    mean, mean_old, mean_new, largest, at = 0.0, 0.0, 0.0, 0.0, first
    for i in range(n):
        mean += share[i] * abs(old[i, 1] - new[i, 1])
        mean_old += share[i] * old[i, 1]
        mean_new += share[i] * new[i, 1]
        for k in range(_POINTS):
            apart = abs(new[i, k] - old[i, k])
            if apart > largest:
                largest, at = apart, points[i, k]
    out[0], out[1], out[2], out[3], out[4] = mean, largest, at, mean_old, mean_new
