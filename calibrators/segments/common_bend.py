"""A bend of the parent's curve that all of its segments share.

The parent's curve is the mean of its rows. The mean of many lines bends, so where segments differ much no shift or
slope of the parent's curve gives a segment's, and all of them miss it alike. A segment about which the rows tell
nothing has the mean itself: so a segment's curve bends in proportion to what its rows tell about its shift.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np

from calibrators.core.arrays import Array, Integers
from calibrators.core.log_odds import log_of
from calibrators.segments.adjusting import Adjusted, BlockCells, CellParts, adjust, selected
from calibrators.segments.cholesky import factored, solved
from calibrators.segments.curves import MOST_INFORMATION, logistic_of
from calibrators.segments.kernels.common_bend import add_derivatives

SCALES = (2.0**-7, 2.0**-5, 2.0**-3, 2.0**-1)
"""Candidates for the prior standard deviation of the bend's change of slope, for each unit of log odds."""

STRENGTHS = 4
"""Strengths of the bend are multiples of 1 / 4: a segment of each has a curve of its own."""

_MIN_EVIDENCE, _LEAST_GAIN = 3.0, 1.0
_INNER = 24
"""Number of knots at which the slope changes: half of them by information, half by distance in log odds."""

_MOST_ROUNDS, _ROUNDS_OF_MANY, _MOST_HALVINGS = 4, 1, 3
_CONVERGING = 0.5
"""Share of the gain that may be left after a round for another one; what remains then is no error of the bend."""

_SAMPLE = 1 << 15
_PIECE = 1 << 12
_MOST_THREADS = 8
_LONGEST = 2.0
"""Largest change of log odds in a round."""

_CLOSEST = 2.0**-10
"""Least distance of knots: on a plateau changes of slope between them are rounding errors."""

_LEAST_VARIANCE, _RIDGE = 1e-6, 1e-9


class CommonBend(NamedTuple):
    """Bend h of a parent's curve: a segment of strength c adjusts l + c h(l), where l is the curve's log odds.

    c is the share of the segment's prior variance that its rows take away: to second order in its posterior variance,
    its expected curve lies between the mean and its own in this ratio.

    Attributes
    ----------
    scale : prior standard deviation of the change of slope, for each unit of log odds
    logit, values : float64 arrays, shape (knots,): h is linear between these log odds, and constant beyond them
    """

    scale: float
    logit: Array
    values: Array

    def bent(self, logit: Array, strength: float) -> Array:
        """Bend log odds of the parent's curve. They never fall."""
        inner = np.clip(logit, self.logit[0], self.logit[-1])
        return np.asarray(np.interp(inner, self.logit, self.curve(strength)) + (logit - inner))

    def curve(self, strength: float) -> Array:
        """Return the bent log odds at the knots."""
        return np.maximum.accumulate(self.logit + strength * self.values)

    def scaled(self, factor: float) -> CommonBend:
        """Multiply the bend by a factor."""
        return CommonBend(self.scale, self.logit, factor * self.values)

    def bent_cells(self, logit: Array, strength: Array) -> Array:
        """Bend the log odds of cells. strength : of each cell, multiples of 1 / STRENGTHS."""
        result = logit.copy()
        for value in np.arange(1, STRENGTHS + 1) / STRENGTHS:
            chosen = strength == value
            result[chosen] = self.bent(logit[chosen], value)
        return result


class CellFiles(CellParts, Protocol):
    """Cells in files: see `CellParts`."""

    def bent(self, bend: CommonBend, strength: Array) -> CellParts:
        """Bend the log odds of segments' cells. strength : of each segment."""


def bent_cells(cells: BlockCells | CellFiles, bend: CommonBend, strength: Array) -> CellParts:
    """Bend the log odds of segments' cells. strength : of each segment."""
    if not isinstance(cells, BlockCells):
        return cells.bent(bend, strength)
    return cells._replace(logit=bend.bent_cells(cells.logit, np.repeat(strength, np.diff(cells.starts))))


Adjusting = Callable[[CellParts, int], Adjusted]
"""Estimates segments' adjustments to cells' log odds with some processors: see `adjust`."""


def strengths(certainty: Array) -> Array:
    """Return segments' strengths of a bend. certainty : see `Adjusted`."""
    return np.asarray(np.round(certainty * STRENGTHS) / STRENGTHS)


def bend_in_common(
    cells: BlockCells | CellFiles,
    adjusted: Adjusted,
    strength: Array,
    processors: int = 1,
    start: CommonBend | None = None,
    across: Adjusting | None = None,
) -> tuple[CommonBend | None, Adjusted]:
    """Estimate the bend of a curve that all segments share, in turn with their adjustments.

    h'' is white noise whose scale is the candidate with the most evidence, by the likelihood's parabola. Each segment's
    line is free beside the bend, within its prior.

    Parameters
    ----------
    cells : cells of the segments, in the curve that is bent
    adjusted : their adjustments to the curve as it is, not used with a start
    strength : float64 array, shape (segments,), multiples of 1 / STRENGTHS: see `strengths`; with 0 the curve may be
        another one
    processors : number of threads to use at most; the result does not depend on it
    start : a bend to begin with, such as that of the level above; None for none
    across : estimates adjustments that only all segments together determine; None: `adjust`

    Returns
    -------
    the bend, None without a start and evidence for one; and the segments' adjustments to the bent curve

    Notes
    -----
    O(cells) in each of a few rounds. Of many segments a sample bends the curve first, if it can and there is no start,
    then all do it once. Segments that contradict the others are left out.
    """
    adjusting = adjust if across is None else across
    every = -(-cells.groups // _SAMPLE)
    chosen = np.arange(cells.groups) if across is None else np.flatnonzero(strength > 0.0)
    chosen = chosen[::every]
    knots = share = np.empty(0)
    if strength.any():
        sample = selected(cells, chosen)
        knots, share = _knots(sample, adjusted, chosen)
    if start is not None:
        adjusted = adjusting(bent_cells(cells, start, strength), processors)
    if knots.size < 3:
        return start, adjusted
    sampled = every > 1 and start is None and across is None
    begun = sampled or start is not None
    before, rounds = adjusted, _ROUNDS_OF_MANY if begun and every > 1 else _MOST_ROUNDS
    rounds_of = partial(_rounds, share=share, processors=processors)
    bend = CommonBend(0.0, knots, np.zeros(knots.size))
    if start is not None:
        bend = CommonBend(start.scale, knots, np.interp(knots, start.logit, start.values))
    elif sampled:
        first = adjusting(sample, processors)
        bend, _ = rounds_of(sample, first, strength[chosen], bend, _MOST_ROUNDS, adjusting)
        if bend.scale:
            adjusted = adjusting(bent_cells(cells, bend, strength), processors)
    bend, adjusted = rounds_of(cells, adjusted, strength, bend, rounds, adjusting)
    return (bend, adjusted) if bend.scale else (None, before)


def _rounds(
    cells: BlockCells | CellFiles,
    adjusted: Adjusted,
    strength: Array,
    bend: CommonBend,
    rounds: int,
    adjusting: Adjusting,
    share: Array,
    processors: int,
) -> tuple[CommonBend, Adjusted]:
    """Bend and adjust in turn, until there is no evidence for more; a step that goes too far is halved."""
    step = _step(bend, _sums(cells, adjusted, strength, bend, processors))
    for _ in range(rounds):
        if step.gain < _LEAST_GAIN:
            break
        change = step.values - _line(bend.logit, step.values, share)  # segments' lines do what a line does
        change *= min(1.0, _LONGEST / np.abs(change).max())
        for halving in range(_MOST_HALVINGS):
            new = CommonBend(step.scale, bend.logit, bend.values + 0.5**halving * change)
            new_adjusted = adjusting(bent_cells(cells, new, strength), processors)
            following = _step(new, _sums(cells, new_adjusted, strength, new, processors))
            if following.gain < step.gain:
                break
        else:
            break
        converging = following.gain < _CONVERGING * step.gain
        bend, adjusted, step = new, new_adjusted, following
        if not converging:
            break
    return bend, adjusted


def _sums(cells: CellParts, adjusted: Adjusted, strength: Array, bend: CommonBend, processors: int) -> Array:
    """Compute the derivatives of the log likelihood for the bend: see the kernel `add_derivatives`."""
    size, groups = bend.logit.size, cells.groups
    precision = 1.0 / np.maximum(np.array(adjusted.variances), _LEAST_VARIANCE)
    steps = np.where(adjusted.outlying, 0, (STRENGTHS * strength).astype(np.int64))
    lines = np.stack([adjusted.shift, adjusted.slope], axis=1)
    curves = np.stack([bend.curve(step / STRENGTHS) for step in range(STRENGTHS + 1)])

    def of_piece(start: int) -> Array:
        span = slice(start, min(start + _PIECE, groups))
        part, sums = cells.part(span.start, span.stop), np.zeros((size + 1, size))
        of_cells = part.logit, part.weight, part.positives, part.starts, part.centre + adjusted.pivot
        add_derivatives(*of_cells, lines[span], steps[span], curves, precision, bend.logit, sums)
        return sums

    sums = np.zeros((size + 1, size))
    with ThreadPoolExecutor(min(processors, _MOST_THREADS)) as threads:
        for part in threads.map(of_piece, range(0, groups, _PIECE)):
            sums += part
    return sums


class _Step(NamedTuple):
    """Most likely change of a bend: the bend's scale, the gain of log likelihood less penalty, values at the knots."""

    scale: float
    gain: float
    values: Array


def _step(bend: CommonBend, sums: Array) -> _Step:
    """Find the scale with the most evidence, and the most likely change of the bend; none without evidence for one."""
    none = _Step(0.0, 0.0, np.zeros(bend.logit.size))
    if not np.abs(sums).max() < MOST_INFORMATION:
        return none
    hinges = np.maximum(bend.logit[:, np.newaxis] - bend.logit[1:-1], 0.0)
    lower = np.tril(sums[1:])
    second = _product(hinges.T, _product(lower + np.tril(lower, -1).T, hinges))[np.newaxis]
    inner = np.arange(hinges.shape[1])
    second[0, inner, inner] += _RIDGE * second[0, inner, inner].max()  # beyond rounding, if weights are huge
    gradient = _product(hinges.T, sums[:1].T).T
    # The prior holds for the whole bend.
    before = np.diff(np.diff(bend.values) / np.diff(bend.logit))
    width = (bend.logit[2:] - bend.logit[:-2]) / 2
    most, best = -np.inf if bend.scale else _MIN_EVIDENCE, none
    for scale in SCALES:
        variance = scale * scale * width
        factor = factored(second, variance)
        pull = gradient - before / variance
        change = solved(factor, pull)
        roots = log_of(factor[0, inner, inner]).sum() + 0.5 * log_of(variance).sum()
        gain = 0.5 * float((pull * change).sum())
        evidence = gain - 0.5 * float((before * before / variance).sum()) - roots
        if evidence > most:
            most, best = evidence, _Step(scale, gain, _product(hinges, change.T)[:, 0])
    return best


def _product(a: Array, b: Array) -> Array:
    """Multiply matrices, with the same bits on every machine."""
    return np.asarray((a[:, :, np.newaxis] * b).sum(axis=1))


def _knots(sample: BlockCells, adjusted: Adjusted, chosen: Integers) -> tuple[Array, Array]:
    """Return knots over the log odds of the parent's curve, and the share of the information at each; none without any.

    chosen : the sample's indices among the segments
    """
    sizes = np.diff(sample.starts)
    p = logistic_of(
        np.repeat(adjusted.shift[chosen], sizes) + np.repeat(adjusted.slope[chosen], sizes) * sample.logit
    )
    logit, index = np.unique(sample.logit, return_inverse=True)
    if logit.size < 3:
        return logit, logit
    cumulative = np.cumsum(np.bincount(index, sample.weight * p * (1.0 - p)))
    if not 0.0 < cumulative[-1] < MOST_INFORMATION:
        return logit[:0], logit[:0]
    place = cumulative / cumulative[-1] + (logit - logit[0]) / (logit[-1] - logit[0])
    inner = np.interp(
        np.arange(1, _INNER + 1) / (_INNER + 1), (place - place[0]) / (place[-1] - place[0]), logit
    )
    knots = _apart(np.concatenate([logit[:1], inner, logit[-1:]]))
    middle = np.concatenate([knots[:1], (knots[1:] + knots[:-1]) / 2, knots[-1:]])
    return knots, np.diff(np.interp(middle, logit, cumulative / cumulative[-1]))


def _apart(knots: Array) -> Array:
    """Leave out knots that are too close to the one before; the last one stays."""
    kept = [float(knots[0])]
    for knot in knots[1:-1].tolist():
        if min(knot - kept[-1], float(knots[-1]) - knot) >= _CLOSEST:
            kept.append(knot)
    return np.array([*kept, float(knots[-1])])


def _line(x: Array, y: Array, weight: Array) -> Array:
    """Return the least-squares line at x."""
    centre = (weight * x).sum() / weight.sum()
    x = x - centre
    return np.asarray((weight * y).sum() / weight.sum() + x * (weight * x * y).sum() / (weight * x * x).sum())
