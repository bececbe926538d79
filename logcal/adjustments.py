"""Adjusted maps, logit p = shift + slope * logit q with q the map's probability, and sigmoids of the score.

Results are the same to the last bit on every machine, compiled (`calibrators.core.kernels.log_odds`) or not: they are
computed by additions, multiplications and divisions, in one order.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from calibrators.core.arrays import Array, Codes
from calibrators.core.log_odds import (
    HALF,
    LN2,
    LN2_HIGH,
    LN2_LOW,
    LOG2_E,
    LOG_TERMS,
    ROOT_HALF,
    UNDERFLOW,
    exp_mantissa,
    log_odds,
    logistic,
)
from calibrators.core.map import CalibrationMap, compiled, gap_slopes

_ETA_LIMIT = 1000.0
_MAP, _SCORE, _LOG_ODDS = range(3)


class Adjustments(NamedTuple):
    """Adjusted maps and sigmoids, one entry each.

    Attributes
    ----------
    map : int32 array: number of the map to adjust
    shift, slope : float64 arrays; 0 and 1 leave the map as it is
    low, high : float64 arrays, in (0, 1): clipping bounds of the map's probability before it is adjusted
    kind : int8 array: quantity to adjust, as an index in `logcal.schema.LOGIT_FROM`: a map's log-odds, the score, or
        the score's own log-odds; None: always the map's log-odds
    """

    map: Codes
    shift: Array
    slope: Array
    low: Array
    high: Array
    kind: npt.NDArray[np.int8] | None = None

    def apply(self, p: Array, entry: Codes, scores: Array) -> Array:
        """Adjust the maps' probabilities; NaN stays NaN.

        p, entry, scores : the map's probability, the entry and the score of each row
        """
        out = self._adjust_probabilities(p, entry)
        if self.kind is not None:
            sigmoids = np.flatnonzero(self.kind[entry] != _MAP)
            out[sigmoids] = self._apply_sigmoids(scores[sigmoids], entry[sigmoids])
        return out

    def _apply_sigmoids(self, scores: Array, entry: Codes) -> Array:
        assert self.kind is not None
        x = scores.copy()
        logits = np.flatnonzero((self.kind[entry] == _LOG_ODDS) & ~np.isnan(x))
        q = np.maximum(self.low[entry[logits]], np.minimum(self.high[entry[logits]], x[logits]))
        x[logits] = log_odds(q)
        shift, slope = self.shift[entry], self.slope[entry]
        with np.errstate(over="ignore", invalid="ignore"):
            eta = np.where(slope == 0.0, shift, shift + slope * x)
        valid = np.flatnonzero(~np.isnan(scores))
        out = scores.copy()
        out[valid] = logistic(np.clip(eta[valid], -_ETA_LIMIT, _ETA_LIMIT))
        return out

    def _adjust_probabilities(self, p: Array, entry: Codes) -> Array:
        numbers = (self.shift, self.slope, self.low, self.high)
        if compiled(p.size):
            from calibrators.core.kernels.log_odds import adjust_each

            out = np.empty(p.size)
            adjust_each(p, entry, numbers, out)
            return out
        shift, slope, low, high = (column[entry] for column in numbers)
        adjusting = np.flatnonzero(((shift != 0.0) | (slope != 1.0)) & ~np.isnan(p))
        shift, slope, low, high = (column[adjusting] for column in (shift, slope, low, high))
        q = np.maximum(low, np.minimum(high, p[adjusting]))
        out = p.copy()
        out[adjusting] = logistic(shift + slope * log_odds(q))
        return out

    def apply_one(self, p: float, entry: int, score: float) -> float:
        """Adjust one probability, as `apply` does, without arrays."""
        shift, slope = float(self.shift[entry]), float(self.slope[entry])
        kind = _MAP if self.kind is None else int(self.kind[entry])
        if kind == _SCORE and p == p:
            eta = shift if slope == 0.0 else shift + slope * score
            return _logistic_scalar(max(-_ETA_LIMIT, min(_ETA_LIMIT, eta)))
        if kind == _LOG_ODDS:
            p = score
        elif (shift == 0.0 and slope == 1.0) or p != p:
            return p
        if p != p:
            return p
        q = max(float(self.low[entry]), min(float(self.high[entry]), p))
        return _logistic_scalar(shift + slope * (_log_scalar(q) - _log_scalar(1.0 - q)))


_LARGEST_LOGIT = 20.0
"""Sigmoids are approximated by lines up to these log-odds."""
_STEP = 0.01
"""Distance in log-odds between knots of a curve: the lines between them have a relative error of at most 2e-5."""


def _sigmoid_map(adjustments: Adjustments, entry: int) -> CalibrationMap:
    """Approximate a segment's sigmoid by a map: lines between knots that are `_STEP` of log-odds apart."""
    shift, slope = float(adjustments.shift[entry]), float(adjustments.slope[entry])
    if slope == 0.0:
        return CalibrationMap.from_bins(np.empty(0), logistic(np.array([shift])), np.zeros(1), np.zeros(1))
    eta = np.arange(-_LARGEST_LOGIT, _LARGEST_LOGIT + _STEP, _STEP) * math.copysign(1.0, slope)
    score = (eta - shift) / slope
    if adjustments.kind is not None and adjustments.kind[entry] == _LOG_ODDS:
        score = logistic(score)
    score, first = np.unique(score, return_index=True)
    level = logistic(eta[first])
    if score.size < 2:
        return CalibrationMap.from_bins(np.empty(0), level[:1], np.zeros(1), np.zeros(1))
    zeros = np.zeros(score.size + 1)
    return CalibrationMap.from_knots(score, level, zeros, zeros)


def adjust_map(raw: CalibrationMap, adjustments: Adjustments, entry: int) -> CalibrationMap:
    """Adjust a map: constant rows are adjusted exactly, and each gap's curve is approximated by lines."""
    if adjustments.kind is not None and adjustments.kind[entry] != _MAP:
        return _sigmoid_map(adjustments, entry)
    slope, low, high = (
        float(column[entry]) for column in (adjustments.slope, adjustments.low, adjustments.high)
    )

    def adjusted(p: Array) -> Array:
        return adjustments.apply(p, np.full(p.size, entry, np.int32), p)

    def logit(p: Array) -> Array:
        q = np.maximum(low, np.minimum(high, p))
        return log_odds(q)

    begin, end = (logit(p) for p in raw.ends())
    pieces = np.maximum(1, np.ceil(np.abs(end - begin) * max(1.0, slope) / _STEP)).astype(np.int64)
    row = np.repeat(np.arange(len(raw)), pieces)
    step = np.arange(row.size) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    anchor, p, score_lo = raw.anchor[row], raw.prob_lo[row], raw.score_lo[row]
    inner = np.flatnonzero(step)
    at = row[inner]
    p[inner] = logistic(begin[at] + (end[at] - begin[at]) * step[inner] / pieces[at])
    score_lo[inner] = anchor[inner] = anchor[inner] + (p[inner] - raw.prob_lo[at]) / raw.slope[at]
    # A narrow gap has fewer pieces: all must have different scores.
    keep = np.ones(row.size, np.bool_)
    keep[inner] = (score_lo[inner] > score_lo[inner - 1]) & (score_lo[inner] < raw.score_hi[at])
    keep &= np.append(True, np.maximum.accumulate(score_lo)[:-1] < score_lo[1:])
    row, step = row[keep], step[keep]
    anchor, p, score_lo = (column[keep] for column in (anchor, p, score_lo))
    level = np.maximum.accumulate(adjusted(p))
    score_hi = np.append(score_lo[1:], np.inf)
    line = raw.slope[row] != 0
    lines = np.zeros(row.size)
    after = np.append(level[1:], level[-1:])
    lines[line] = gap_slopes(anchor[line], score_hi[line], level[line], after[line])
    first = step == 0
    weight, positives = (np.where(first, column[row], 0.0) for column in (raw.weight, raw.positives))
    return CalibrationMap(score_lo, score_hi, level, lines, anchor, weight, positives)


def _log_scalar(x: float) -> float:
    mantissa, exponent = math.frexp(x)
    if mantissa < ROOT_HALF:
        mantissa *= 2.0
        exponent -= 1
    s = (mantissa - 1.0) / (mantissa + 1.0)
    z = s * s
    total = 0.0
    for term in LOG_TERMS:
        total = total * z + term
    return exponent * LN2 + 2.0 * s * total


def _logistic_scalar(x: float) -> float:
    e = _exp_scalar(-abs(x))
    return (1.0 if x >= 0.0 else e) / (1.0 + e)


def _exp_scalar(x: float) -> float:
    x = max(x, UNDERFLOW)
    k = float(round(x * LOG2_E))
    mantissa: float = exp_mantissa(x - k * LN2_HIGH, k * LN2_LOW)
    down = -int(k)
    first = min(down, HALF)
    return math.ldexp(math.ldexp(mantissa, -first), first - down)
