"""Totals of segments: what their adjusted curves expect, and how many positives they have."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from calibrators.core.arrays import Array, Mask
from calibrators.core.log_odds import log_of

MANY = 2500.0
"""Weight of positives and of negatives from which a segment keeps its own total."""

TOLERANCE = 0.015
"""Largest difference of the positives that such a segment expects and has, as a share of its rarer label."""

FURTHEST = np.array([2.0, 0.5])
"""Largest distance of the typical curve's shift and slope from those of a curve whose mean is the parent's."""

_SHARE = 0.5
_CLOSE = 1e-3
_LONGEST = 1.0
_MOST_ROUNDS = 30
_SINGULAR = 1e-6
_SIGNIFICANT = 4.5
"""Standard errors of the positives of segments of one size that cannot be chance, nor that of all sizes together."""

_RUN = 4.8
"""The same for all segments up to a size, or from it: they are mostly off together, and the check looks there."""

_LEAST_MOVED = 1.0


def responses(derivatives: Array, prior: Array) -> Array:
    """Compute the sums from which `centring` finds its step: shape (5,).

    If the typical curve moves by s, a segment's curve moves by (I + T H)^-1 s, with its prior variances T and its
    information H, and its expected gradient by H times this.

    derivatives : see the kernel's `adjust_curves`; prior : float64 array, shape (segments, 2)
    """
    moved = _moved(derivatives, prior)
    return np.concatenate([moved.sum(axis=1), [derivatives[:, 0].sum(), derivatives[:, 1].sum()]])


def moved_by_shift(derivatives: Array, prior: Array) -> Array:
    """Compute by how much each segment expects more positives if the typical curve is shifted by 1: see `responses`."""
    return np.asarray(_moved(derivatives, prior)[0])


def _moved(derivatives: Array, prior: Array) -> Array:
    s, t = prior.T
    h_aa, h_ad, h_dd = (derivatives[:, column] for column in (2, 3, 4))
    of_h = np.maximum(h_aa * h_dd - h_ad * h_ad, 0.0)
    determinant = 1.0 + s * h_aa + t * h_dd + s * t * of_h
    return np.asarray(np.stack([h_aa + t * of_h, h_ad, h_dd + s * of_h]) / determinant)


def shifts_by_size(totals: Array) -> Array:
    """Return the shift of the typical curve for each segment; 0 unless totals of sizes are significantly off.

    totals : float64 array, shape (4, segments): weight, positives minus expected ones, their variance, and by how much
        the expected ones grow if the typical curve is shifted by 1; 0 for outlying segments

    The shift is linear in the log of the weight between powers of the square root of 2: where negatives are sampled,
    sizes of equal segments are within a factor of 2 or 3, and yet go with rates.
    """
    weight, *columns = totals
    place = log_of(np.maximum(weight, 1.0)) * (2.0 / math.log(2.0))
    size = place.astype(np.int64)
    share = place - size
    sums = np.array(
        [
            np.bincount(size, column * (1.0 - share), size.max() + 2)
            + np.bincount(size + 1, column * share, size.max() + 2)
            for column in columns
        ]
    )
    # Sizes that no shift can mend have so few rows that one positive is many standard errors.
    off, smaller, larger = (
        np.divide(missing, np.sqrt(variance), out=np.zeros(missing.size), where=moved > _LEAST_MOVED)
        for missing, variance, moved in (sums, np.cumsum(sums, axis=1), np.cumsum(sums[:, ::-1], axis=1))
    )
    missing, _, moved = sums
    sizes, beyond = np.count_nonzero(moved > _LEAST_MOVED), _SIGNIFICANT * _SIGNIFICANT
    # The quantile of chi-square to the second order (Cornish and Fisher, 1938): several sizes may be off alike.
    together = sizes + _SIGNIFICANT * np.sqrt(2.0 * sizes) + 2.0 / 3.0 * (beyond - 1.0)
    off = np.square(np.clip(off, -together, together))
    most = max(np.abs(part).max() for part in (smaller, larger))
    if off.max() <= beyond and off.sum() <= together and most <= _RUN:
        return np.zeros(weight.size)
    step = np.divide(missing, moved, out=np.zeros(moved.size), where=moved > _LEAST_MOVED)
    step = np.clip(step, -_LONGEST, _LONGEST)
    return np.asarray(step[size] * (1.0 - share) + step[size + 1] * share)


def centring(sums: Array) -> Array:
    """Find the step of the typical curve with which the gradients add up to 0, at most 1. sums : see `responses`."""
    m_aa, m_ad, m_dd, g_a, g_d = sums
    determinant = m_aa * m_dd - m_ad * m_ad
    if determinant > _SINGULAR * m_aa * m_dd:
        step = np.array([m_dd * g_a - m_ad * g_d, m_aa * g_d - m_ad * g_a]) / determinant
    else:
        step = np.array([g_a / m_aa if m_aa > 0 else 0.0, 0.0])
    return np.asarray(np.clip(step, -_LONGEST, _LONGEST))


def keep_total(curves: Array, usual: Mask, rarer: float, derive: Callable[[Array], Array]) -> Array:
    """Shift curves equally, so that all segments together expect as many positives as they have, within a thousandth.

    Centring leaves little to do, unless segments vary in a way that no variances describe: if weights are no counts.

    Parameters
    ----------
    curves : float64 array, shape (segments, 2): shift and slope - 1 of each segment, changed in place
    usual : bool array, shape (segments,): segments that are shifted; the others keep their own totals
    rarer : weight of the rarer label of all segments
    derive : computes the derivatives of the log likelihood for curves, see the kernel's `derive`

    Returns
    -------
    derivatives for the shifted curves
    """
    for _ in range(_MOST_ROUNDS):
        derivatives = derive(curves)
        missing, information = derivatives[:, 0].sum(), derivatives[usual, 2].sum()
        if abs(missing) <= _CLOSE * rarer or not information > 0:
            return derivatives
        curves[usual, 0] += np.clip(missing / information, -_LONGEST, _LONGEST)
    return derive(curves)


def large(weight: Array, positives: Array) -> Mask:
    """Select the segments with enough of both labels to keep their totals: see `limit`."""
    return np.asarray(np.minimum(positives, weight - positives) >= MANY)


def tolerance(weight: Array, positives: Array, information: Array) -> Array:
    """Compute the largest difference of the positives that segments expect and have: see `limit`.

    Of an outlying segment with few positives it is half a standard error: its expected probabilities exceed the
    likeliest ones by much, since its prior variances are large.

    information : of the shift, at the likeliest curve
    """
    rarer = np.minimum(positives, weight - positives)
    few = np.where(rarer < MANY, _SHARE * np.sqrt(information), 0.0)
    return np.asarray(np.maximum(TOLERANCE * rarer, few))


def limit(curves: Array, most: Array, derive: Callable[[Array], Array]) -> None:
    """Shift segments' curves so that each expects as many positives as it has, within a tolerance.

    Pooling shrinks a large segment's shift by less than its error, but by more than this if the others hardly differ.
    A rule of limited translation (Efron and Morris, 1972, JASA 67, 130-139): the estimates of the others, and their
    mean error, hardly change.

    curves, derive : see `keep_total`; most : float64 array, shape (segments,): see `tolerance`
    """
    for _ in range(_MOST_ROUNDS):
        derivatives = derive(curves)
        missing = derivatives[:, 0] - np.clip(derivatives[:, 0], -most, most)
        # Each segment stops for itself, so that results do not depend on the others that are computed with it.
        missing[np.abs(missing) <= _CLOSE * most] = 0.0
        if not missing.any():
            break
        information = np.maximum(derivatives[:, 2], np.finfo(np.float64).tiny)
        longest = _LONGEST * information
        curves[:, 0] += np.clip(missing, -longest, longest) / information
