"""Choice of segments that have their own map: those of a level that bends, and those whose rows contradict a curve."""

from __future__ import annotations

import math
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

RISING, FLAT = 1.0, 0.5
"""Least gain of log likelihood by isotonic regression of the segment's rows alone for each of its blocks.

If the curve is the truth, it gains .85 for each block where the curve rises, .6 where it is flat.
"""

FALLING = 1.0
"""Least gain of log likelihood by a curve that falls where the shares of all segments do, as prior of an own map.

The map never falls: rows and prior are pooled, by the segment's own shares of the scores before and after a fall.
"""

_MOST, _OF_ONE, _PER_LOG = 10.0, 3.0, 1.8

_WEAKER, _OF_WEAKER = (1000.0, 300.0, 100.0), 1.0
"""Strengths that a bent curve can have instead of `STRENGTH`, and the least evidence for one of them."""


def least_evidence(segments: int) -> float:
    """Return the gain, beyond that for each block, from which the rows of one of so many segments contradict its curve.

    The more segments a level has, the more of them seem to contradict their curve by chance. With this evidence fewer
    than .2 do on average, if the curve is the truth: a gain of 3 has a probability of up to .15, 4 of .10, 6 of .03,
    8 of .009, 10 of .002 (up to 20,000 simulations of segments of 40 to 20,000 rows, 2 and 50 % positives; flat and
    rising curves). From 49 segments on it is 10, so that more do, if there are hundreds.
    """
    return min(_MOST, _OF_ONE + _PER_LOG * math.log(max(segments, 1)))


def can_contradict(weight: Array, positives: Array, evidence: float) -> Mask:
    """Tell which groups' labels can be evidence enough against a curve: by the most that a map could explain.

    weight, positives : float64 arrays, shape (groups,)
    evidence : see `least_evidence`
    """
    entropy = np.zeros(weight.size)
    for count in (positives, weight - positives):
        some = count > 0
        entropy[some] += count[some] * log_of(weight[some] / count[some])
    return np.asarray(entropy > evidence)


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
    evidence: float,
    dispersion: float = 1.0,
    falling: Array | None = None,
) -> Chosen:
    """Fit own maps of groups: of all of them if the level bends, else of those whose rows contradict the curve's shape.

    A curve has no shape for a segment if its parent's is flat there, as where others have inverted labels.

    Parameters
    ----------
    columns, starts, prior : see `own_maps`; prior : the bent or adjusted curve
    bending : whether the level's segments bend
    evidence : see `least_evidence`
    dispersion : over-dispersion, by which the evidence of rows is divided
    falling : a curve that falls where the shares of all groups do, see `FALLING`; groups whose rows it explains better
        have it instead of `prior`. None: no fall is known
    """
    flat = _flat_share(columns[2], prior, starts)
    per_block = RISING + (FLAT - RISING) * flat
    alone = own_maps(*columns, starts, prior, 0.0)
    strength = np.zeros(flat.size)
    if bending:
        strength, before = _strengths(columns, starts, prior, per_block, dispersion)
    else:
        before = _log_likelihood(columns[2], columns[3], prior, np.diff(starts))
    falls = np.zeros(flat.size, np.bool_)
    if falling is not None:
        maps = own_maps(*columns, starts, falling, STRENGTH * dispersion)
        likelihood = _log_likelihood(maps.weight, maps.positives, maps.level, maps.sizes)
        falls = (likelihood - before) / dispersion > FALLING
        before = np.where(falls, likelihood, before)
        strength[falls] = STRENGTH
        prior = np.where(np.repeat(falls, np.diff(starts)), falling, prior)
    gain = _log_likelihood(alone.weight, alone.positives, alone.level, alone.sizes) - before
    free = gain / dispersion > evidence + per_block * alone.sizes
    own = free | falls | bending
    if not own.any():
        return Chosen(own, None)
    items = np.diff(starts)
    mask = np.repeat(own, items)
    starts = np.concatenate([[0], np.cumsum(items[own])])
    strength = dispersion * np.where(free, WEAK + (WEAK_FLAT - WEAK) * flat, strength)[own]
    first, last, weight, positives = (column[mask] for column in columns)
    return Chosen(own, own_maps(first, last, weight, positives, starts, prior[mask], strength))


def _strengths(
    columns: tuple[Array, Array, Array, Array],
    starts: Integers,
    prior: Array,
    per_block: Array,
    dispersion: float,
) -> tuple[Array, Array]:
    """Choose the bent curve's strength in each group's map; return also the log likelihood of maps with `STRENGTH`.

    Cosines cannot follow a step of one segment. A weaker curve must explain the rows better by `per_block` for each
    degree of freedom: a block has as many as the rows' share of its information, the curve having the other part.
    """
    weight = columns[2]
    information = np.add.reduceat(weight * prior * (1.0 - prior), starts[:-1])
    first = best = chosen = np.empty(0)
    for strength in (STRENGTH, *_WEAKER):
        maps = own_maps(*columns, starts, prior, strength * dispersion)
        likelihood = _log_likelihood(maps.weight, maps.positives, maps.level, maps.sizes)
        share = information / (information + strength * dispersion)
        score = likelihood / dispersion - per_block * share * maps.sizes
        if strength == STRENGTH:
            first, best, chosen = likelihood, score + _OF_WEAKER, np.full(score.size, strength)
        else:
            chosen = np.where(score > best, strength, chosen)
            best = np.maximum(score, best)
    return chosen, first


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
