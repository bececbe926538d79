"""Piecewise-linear approximation of smooth maps, with knots as dense as the curvature requires."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Protocol

import numpy as np

from calibrators.core.arrays import Array, Mask
from calibrators.core.cumulative import Layout, bin_counts, counts_below_pass
from calibrators.core.curve import ScoreAxis, expit
from calibrators.core.fine_cells import FineCells
from calibrators.core.map import CalibrationMap
from calibrators.core.passes import Pass, check_number

_GRID = 20_001
_STEEP = 55.0  # beyond this argument the sigmoid is within 3e-24 of 0 or 1
_LOWEST, _HIGHEST = -700.0, 37.0  # between these arguments the sigmoid, as a double, is neither 0 nor 1
_SAMPLES = (0.25, 0.5, 0.75)
_RELATIVE = 1e5  # factor from `max_error` to the largest error relative to p and to 1 - p
_SMALLEST = 3e-24


class SigmoidOfScore(Protocol):
    """Sigmoid of a monotone function of the score, its argument."""

    def argument(self, scores: Array) -> Array:
        """Return the sigmoid's argument at scores."""

    def probability(self, scores: Array) -> Array:
        """Return the sigmoid at scores."""

    def score(self, argument: Array) -> Array:
        """Return the scores, within the domain, at arguments."""

    def relative_curvature(self, argument: Array) -> Array:
        """Return the second derivative by the score over p (1 - p) (d argument / d score)**2."""

    def domain(self) -> tuple[float, float]:
        """Return the lowest and the highest score."""


def check_max_error(max_error: float) -> None:
    """Raise ValueError unless the largest error is a number in [1e-12, 0.1]."""
    check_number("max_error", max_error, "a number in [1e-12, 0.1]", 1e-12, 0.1)


def tabulate(
    layout: Layout, sigmoid: SigmoidOfScore, max_error: float
) -> Generator[Pass, Any, CalibrationMap]:
    """Yield the pass that counts the points in each row; return the sigmoid's map, see `tabulate_sigmoid`."""
    knots, levels = tabulate_sigmoid(sigmoid, max_error)
    counts = yield counts_below_pass(layout, knots)
    return CalibrationMap.from_knots(knots, levels, *bin_counts(layout, counts))


def tabulate_sigmoid(sigmoid: SigmoidOfScore, max_error: float) -> tuple[Array, Array]:
    """Choose knots for linear interpolation of the sigmoid, constant outside, with an error of at most max_error.

    Such an error could be as large as a small p or 1 - p. So the error relative to p and to 1 - p is at most
    `_RELATIVE` * max_error, down to p of 3e-20.

    Linear interpolation over a length h has an error of h**2 |f''| / 8, so the density of knots is proportional to the
    square root of the curvature. Segments with larger errors at samples are halved until the errors are small enough.

    Returns
    -------
    scores, probabilities : float64 arrays, shape (knots,), scores strictly ascending, probabilities monotone
    """
    scores = sigmoid.score(_arguments(sigmoid, max_error))
    # The score computed from an end's argument may be a neighbouring double, where log-odds differ by up to log 2.
    ends = np.array(sigmoid.domain())
    scores = np.union1d(scores, ends[np.abs(sigmoid.argument(ends)) <= _STEEP])
    halve = _too_coarse(sigmoid, scores, max_error)
    while halve.any():
        middle = scores[:-1][halve] / 2 + scores[1:][halve] / 2
        refined = np.union1d(scores, middle)
        if refined.size == scores.size:
            break  # neighbouring doubles
        scores = refined
        halve = _too_coarse(sigmoid, scores, max_error)
    levels = sigmoid.probability(scores)
    if levels[-1] >= levels[0]:
        return scores, np.maximum.accumulate(levels)
    return scores, np.minimum.accumulate(levels)


def most_knots(max_error: float) -> int:
    """Return an upper bound of the knots of `tabulate_sigmoid`, which has about 1 / sqrt(max_error)."""
    return int(16 / max_error**0.5) + 1000


def _arguments(sigmoid: SigmoidOfScore, max_error: float) -> Array:
    """Return the arguments of the knots, with the density that the curvature requires."""
    ends = np.sort(np.clip(sigmoid.argument(np.array(sigmoid.domain())), _LOWEST, _HIGHEST))
    inner = np.clip(ends, -_STEEP, _STEEP)
    grid = np.linspace(inner[0], inner[1], _GRID)
    e = np.exp(-np.abs(grid))
    variance = e / (1.0 + e) ** 2
    target = largest_error(np.where(grid >= 0, 1.0, e) / (1.0 + e), max_error)
    density = np.sqrt(variance * np.abs(sigmoid.relative_curvature(grid)) / (8.0 * 0.9 * target))
    passed = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2 * np.diff(grid))])
    count = max(int(np.ceil(passed[-1])), 8)
    knots = np.interp(np.linspace(0.0, passed[-1], count + 1), passed, grid)
    even = np.linspace(inner[0], inner[1], 9)  # so that the length of no segment overflows
    return np.concatenate([ends, knots, even])


def largest_error(probability: Array, max_error: float) -> Array:
    """Return the largest allowed error at probabilities, see `tabulate_sigmoid`."""
    rarer = np.minimum(probability, 1.0 - probability)
    # Near 1 doubles are some 1e-16 apart.
    least = np.where(probability > 0.5, 1e-15, _SMALLEST)
    return np.maximum(np.minimum(max_error, _RELATIVE * max_error * rarer), least)


def _too_coarse(sigmoid: SigmoidOfScore, scores: Array, max_error: float) -> Mask:
    """Tell which segments between neighbouring knots have too large an error at a sample."""
    low, high = scores[:-1], scores[1:]
    levels = sigmoid.probability(scores)
    worst = np.zeros(low.size)
    for share in _SAMPLES:
        at = np.clip(low * (1 - share) + high * share, low, high)
        # The share of the segment after rounding of `at`; halves, because the length may overflow.
        with np.errstate(invalid="ignore", divide="ignore"):
            part = (at / 2 - low / 2) / (high / 2 - low / 2)
        line = levels[:-1] + part * (levels[1:] - levels[:-1])
        exact = sigmoid.probability(at)
        target = largest_error(exact, max_error)
        worst = np.maximum(worst, np.abs(line - exact) / target)
    return worst > 0.95


# Calibration map of a non-decreasing curve of log-odds

_ROUNDS = 64
_FINER, _SHARE = 0.2, 0.75


def tabulate_curve(
    fine: FineCells, axis: ScoreAxis, knots: tuple[Array, Array], shift: float, max_error: float
) -> CalibrationMap:
    """Return the map of a curve, with an error of at most max_error outside fine cells of several scores.

    Parameters
    ----------
    fine : fine cells of the observations
    axis : score axis of the curve
    knots : ascending positions and non-decreasing log-odds; the curve is linear between knots and constant outside
    shift : added to the log-odds
    max_error : see `tabulate_sigmoid`
    """
    positions, log_odds = knots

    def level(at: Array) -> Array:
        return expit(np.interp(at, positions, log_odds) + shift)

    scores, levels = _candidates(fine, axis, positions, level, max_error)
    needed = needed_knots(scores, levels, _SHARE * largest_error(levels, max_error))
    scores, levels = scores[needed], np.maximum.accumulate(levels[needed])
    if levels[0] == levels[-1]:
        scores, levels = scores[:1], levels[:1]
    row = np.searchsorted(scores, fine.first, side="right")
    weight, positives = (
        np.bincount(row, c, scores.size + 1).astype(np.float64) for c in (fine.weight, fine.positives)
    )
    return CalibrationMap.from_knots(scores, levels, weight, positives)


def _candidates(
    fine: FineCells, axis: ScoreAxis, knots: Array, level: Callable[[Array], Array], max_error: float
) -> tuple[Array, Array]:
    """Return candidate scores for knots, and their levels.

    Interpolation between candidates uses at most a share `_FINER` of the largest error. There are no candidates inside
    a fine cell of several scores, except its first score.
    """
    single = fine.first == fine.last
    free = np.append(axis.scores(knots), [fine.first[0], fine.last[-1]])
    inside = np.searchsorted(fine.first, free, side="right") - 1
    # Scores below all cells, above all cells, or between two cells, and cells of a single score.
    fixed_score = (inside < 0) | (free > fine.last[inside]) | single[inside]
    scores = np.union1d(fine.first, free[fixed_score])
    at = axis.positions(scores)
    levels = level(at)
    inside = np.searchsorted(fine.first, scores, side="right") - 1
    fixed = (inside >= 0) & ~single[np.maximum(inside, 0)]
    pieces: list[tuple[Array, Array]] = [(scores, levels)]
    lower, upper = slice(None, -1), slice(1, None)
    has_inner = ~fixed[lower]
    ends = [(c[lower][has_inner], c[upper][has_inner]) for c in (scores, at, levels)]
    for _ in range(_ROUNDS):
        (s0, s1), (z0, z1), (p0, p1) = ends
        middle = z0 / 2 + z1 / 2
        s = axis.scores(middle)
        open_spans = (s > s0) & (s < s1)
        s0, s1, z0, z1, p0, p1, s, middle = (c[open_spans] for c in (s0, s1, z0, z1, p0, p1, s, middle))
        p = level(middle)
        with np.errstate(over="ignore", invalid="ignore"):
            part = (s / 2 - s0 / 2) / (s1 / 2 - s0 / 2)
        coarse = np.abs(p0 + part * (p1 - p0) - p) > _FINER * largest_error(p, max_error)
        s0, s1, z0, z1, p0, p1, s, middle, p = (c[coarse] for c in (s0, s1, z0, z1, p0, p1, s, middle, p))
        if not s.size:
            break
        pieces.append((s, p))
        ends = [
            (np.concatenate(pair[:2]), np.concatenate(pair[2:]))
            for pair in ((s0, s, s, s1), (z0, middle, middle, z1), (p0, p, p, p1))
        ]
    scores, levels = (np.concatenate(column) for column in zip(*pieces, strict=True))
    order = np.argsort(scores, kind="stable")
    return scores[order], np.maximum.accumulate(levels[order])


_LARGE = 8e307


def needed_knots(x: Array, y: Array, allowed: Array) -> Mask:
    """Tell which knots of a polyline to keep, so that no knot moves by more than what is allowed there.

    Ramer (1972), Douglas and Peucker (1973): the knot farthest from a span's chord divides the span.

    x, y, allowed : float64 arrays, shape (knots,); x strictly ascending, allowed > 0
    """
    # So that no length overflows; other scores keep the precision of subnormal numbers.
    x = x / 2 if np.abs(x[[0, -1]]).max() > _LARGE else x
    needed = np.zeros(x.size, bool)
    needed[[0, -1]] = True
    undecided = np.arange(x.size)
    while undecided.size:
        knots = np.flatnonzero(needed)
        span = np.searchsorted(knots, undecided, side="right") - 1
        span = np.minimum(span, knots.size - 2)
        a, b = knots[span], knots[span + 1]
        with np.errstate(invalid="ignore"):
            part = (x[undecided] - x[a]) / (x[b] - x[a])
        error = np.abs(y[a] + part * (y[b] - y[a]) - y[undecided]) / allowed[undecided]
        starts = np.flatnonzero(np.diff(span, prepend=-1))
        worst = np.maximum.reduceat(error, starts)
        wide = np.repeat(worst > 1, np.diff(np.append(starts, undecided.size)))
        farthest = np.flatnonzero(error == np.repeat(worst, np.diff(np.append(starts, undecided.size))))
        farthest = farthest[wide[farthest]]
        farthest = farthest[np.append(True, np.diff(span[farthest]) > 0)[: farthest.size]]
        needed[undecided[farthest]] = True
        undecided = undecided[wide]
    return needed
