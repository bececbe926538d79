"""Choice of segments that have their own map: those of a level that bends, and those whose rows contradict a curve."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from calibrators.core.arrays import Array, Integers, Mask
from calibrators.core.log_odds import log_of
from calibrators.segments.bends import STRENGTH
from calibrators.segments.curves import LEAST, MOST
from calibrators.segments.partial_pooling import OwnMaps, own_maps

WEAK, WEAK_FLAT = 30.0, 3.0
"""Information of the curve as prior of an own map if the segment's rows contradict the curve's shape; where it is flat
it tells nothing."""

LEAST_EVIDENCE, RISING, FLAT = 10.0, 1.0, 0.5
"""Least gain of log likelihood by isotonic regression of the segment's rows alone, and for each of its blocks.

If the curve is the truth, isotonic regression gains .85 for each block where it rises, .6 where it is flat; in 600
simulations of 700 to 20,000 rows more than this in at most one of a hundred.
"""


def can_contradict(weight: Array, positives: Array) -> Mask:
    """Tell which groups' labels can be evidence enough against a curve: by the most that a map could explain.

    weight, positives : float64 arrays, shape (groups,)
    """
    entropy = np.zeros(weight.size)
    for count in (positives, weight - positives):
        some = count > 0
        entropy[some] += count[some] * log_of(weight[some] / count[some])
    return np.asarray(entropy > LEAST_EVIDENCE)


class Chosen(NamedTuple):
    """Own maps, and which groups have them.

    own : bool array, shape (groups,)
    maps : maps of these groups
    """

    own: Mask
    maps: OwnMaps | None


def choose_maps(
    columns: tuple[Array, Array, Array, Array],
    starts: Integers,
    prior: Array,
    bending: bool,
    dispersion: float = 1.0,
) -> Chosen:
    """Fit own maps of groups: of all of them if the level bends, else of those whose rows contradict the curve's shape.

    A curve has no shape for a segment if its parent's is flat there, as where others have inverted labels.

    Parameters
    ----------
    columns, starts, prior : see `own_maps`; prior : the bent or adjusted curve
    bending : whether the level's segments bend
    dispersion : over-dispersion, by which the evidence of rows is divided
    """
    alone = own_maps(*columns, starts, prior, 0.0)
    if bending:
        pooled = own_maps(*columns, starts, prior, STRENGTH * dispersion)
        before = _log_likelihood(pooled.weight, pooled.positives, pooled.level, pooled.sizes)
    else:
        before = _log_likelihood(columns[2], columns[3], prior, np.diff(starts))
    gain = _log_likelihood(alone.weight, alone.positives, alone.level, alone.sizes) - before
    flat = _flat_share(columns[2], prior, starts)
    per_block = RISING + (FLAT - RISING) * flat
    free = gain / dispersion > LEAST_EVIDENCE + per_block * alone.sizes
    own = free | bending
    if not own.any():
        return Chosen(own, None)
    if bending and not free.any():
        return Chosen(own, pooled)
    items = np.diff(starts)
    mask = np.repeat(own, items)
    starts = np.concatenate([[0], np.cumsum(items[own])])
    strength = dispersion * np.where(free, WEAK + (WEAK_FLAT - WEAK) * flat, STRENGTH)[own]
    first, last, weight, positives = (column[mask] for column in columns)
    return Chosen(own, own_maps(first, last, weight, positives, starts, prior[mask], strength))


def _log_likelihood(weight: Array, positives: Array, level: Array, sizes: Integers) -> Array:
    """Add up log likelihoods by group. sizes : number of blocks of each group, > 0."""
    p = np.clip(level, LEAST, MOST)
    terms = positives * log_of(p) + (weight - positives) * log_of(1.0 - p)
    return np.asarray(np.add.reduceat(terms, np.cumsum(sizes) - sizes))


def _flat_share(weight: Array, prior: Array, starts: Integers) -> Array:
    """Compute the largest share of each group's information in which the curve is constant."""
    information = weight * prior * (1.0 - prior)
    new = np.ones(prior.size, np.bool_)
    np.not_equal(prior[1:], prior[:-1], out=new[1:])
    new[starts[:-1]] = True
    first_range = np.cumsum(new)[starts[:-1]] - 1
    largest = np.maximum.reduceat(np.add.reduceat(information, np.flatnonzero(new)), first_range)
    total = np.add.reduceat(information, starts[:-1])
    return np.divide(largest, total, out=np.ones(total.size), where=total > 0)
