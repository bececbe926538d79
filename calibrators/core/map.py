"""Calibration map: the immutable piecewise-linear function that every calibrator fits."""

from __future__ import annotations

import sys
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from calibrators.core.arrays import Array, Integers
from calibrators.core.sorting import ordinals

_INDEX_BUCKETS_PER_ROW = 8
_FEWEST_BUCKETS = 1 << 14
_FEW, _MANY = 1 << 6, 1 << 20
_BLOCK = 1 << 15
"""Number of scores per block: temporary arrays stay in the processor's cache."""
_COMPILED = "calibrators.core.kernels.lookup"


def compiled(scores: int) -> bool:
    """Tell whether to use compiled code for so many scores; its import takes as long as a few million scores."""
    return (scores >= _MANY and find_spec("numba") is not None) or (
        scores >= _FEW and _COMPILED in sys.modules
    )


class Interval(NamedTuple):
    """Interval of the probability in each row of a map; float64 arrays, shape (rows,), lower <= upper."""

    lower: Array
    upper: Array

    def at(self, score_hi: Array, scores: Array) -> tuple[Array, Array]:
        """Return for each score the interval of its row; NaN for NaN. score_hi : upper edges of the rows."""
        row = np.searchsorted(score_hi[:-1], scores, side="right")
        missing = np.isnan(scores)
        lower, upper = (np.where(missing, np.nan, column[row]) for column in self)
        return lower, upper


class MapBlockRanges(NamedTuple):
    """Consecutive ranges of scores within which a fitted map is constant, or nearly so.

    edges : float64 array, ascending: the lower end of each range
    level : float64 array, in [0, 1], ascending: the map's mean over the observations of each range, before the
        sampling rate is applied
    weight : float64 array, > 0: weight of the observations of each range
    """

    edges: Array
    level: Array
    weight: Array


@dataclass(frozen=True, eq=False)
class CalibrationMap:
    """Piecewise-linear map from score to probability. In each row, p = prob_lo + slope * (score - anchor).

    Row i applies for score_lo[i] <= score < score_hi[i]; the rows cover all scores from -inf to +inf without gaps.
    Values lie in [0, 1] for every score, also after rounding, so that no reader of the table has to clip.

    Parameters
    ----------
    score_lo, score_hi : float64 arrays, shape (rows,)
        Ascending; score_hi[i] == score_lo[i + 1], first -inf, last +inf.
    prob_lo, slope, anchor : float64 arrays, shape (rows,), finite
        Constant rows have slope 0; their anchor has no effect.
    weight, positives : float64 arrays, shape (rows,)
        Weight and positives of the calibration data in each row; they add up to the totals of the data.
    """

    score_lo: Array
    score_hi: Array
    prob_lo: Array
    slope: Array
    anchor: Array
    weight: Array
    positives: Array

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            column = np.ascontiguousarray(getattr(self, name), dtype=np.float64)
            if column.flags.writeable:
                column = column.copy()
                column.flags.writeable = False
            object.__setattr__(self, name, column)
        if self.problem() is not None:
            raise ValueError(f"not a calibration map: {self.problem()}")

    def problem(self) -> str | None:
        """Describe what is wrong with the rows; return None if they are valid. O(rows)."""
        rows = self.score_lo.size
        columns = [getattr(self, name) for name in self.__dataclass_fields__]
        if rows == 0 or any(c.shape != (rows,) for c in columns):
            return "it needs at least one row and columns of one length"
        if self.score_lo[0] != -np.inf or self.score_hi[-1] != np.inf:
            return "it must reach from -inf to +inf"
        if (self.score_lo[1:] != self.score_hi[:-1]).any() or not (self.score_lo < self.score_hi).all():
            return "its rows must follow each other without gaps or overlaps"
        if not all(np.isfinite(c).all() for c in columns[2:]):
            return "its numbers must be finite"
        if self.slope[0] != 0.0 or self.slope[-1] != 0.0:
            return "it must be constant in its first and last row"
        low, high = self._ends
        if not (low.min() >= 0 and low.max() <= 1 and high.min() >= 0 and high.max() <= 1):
            return "its values must lie in [0, 1]"
        return None

    def ends(self) -> tuple[Array, Array]:
        """Return the values at the first and the last score of each row, as `predict` computes them."""
        return self._ends

    @cached_property
    def _ends(self) -> tuple[Array, Array]:
        with np.errstate(invalid="ignore", over="ignore"):
            last = np.nextafter(self.score_hi, -np.inf)
            low = np.where(
                self.slope == 0, self.prob_lo, self.prob_lo + self.slope * (self.score_lo - self.anchor)
            )
            high = np.where(self.slope == 0, self.prob_lo, self.prob_lo + self.slope * (last - self.anchor))
        return low, high

    @cached_property
    def monotone(self) -> bool:
        """True if the map never decreases."""
        low, high = self._ends
        return bool(np.all(self.slope >= 0) and np.all(high[:-1] <= low[1:]))

    @cached_property
    def _index(self) -> tuple[Any, ...]:
        """Rows in the layout of the compiled look-up, and an index on ordinals of scores for constant-time search."""
        rows = np.column_stack([self.score_hi, self.prob_lo, self.slope, self.anchor])
        rows[-1, 0] = np.nan
        bits = ordinals(self.score_hi[:-1])
        if bits.size == 0:
            return rows, np.zeros(2, np.uint32), np.uint64(0), np.uint64(0)
        low = bits[0]
        span = int(bits[-1]) - int(low) + 1
        most_buckets = max(_FEWEST_BUCKETS, _INDEX_BUCKETS_PER_ROW * bits.size)
        shift = max(0, (span // (most_buckets + 1)).bit_length() - 1)
        buckets = (bits - low) >> np.uint64(shift)
        starts = np.searchsorted(buckets, np.arange((span >> shift) + 2, dtype=np.uint64)).astype(np.uint32)
        return rows, starts, low, np.uint64(shift)

    @overload
    def predict(self, scores: float) -> np.float64: ...

    @overload
    def predict(self, scores: npt.ArrayLike) -> Any: ...

    def predict(self, scores: Any) -> Any:
        """Return the probabilities of scores of any shape. O(1) per score.

        Parameters
        ----------
        scores : a number, or an array-like of numbers of any shape
            May be infinite. NaN has the probability NaN.

        Returns
        -------
        float64, or float64 array
            Probabilities in [0, 1]. A number for a number; otherwise an array of the scores' shape.
        """
        if isinstance(scores, float):
            return self._predict_one(float(scores))
        array = np.asarray(scores, dtype=np.float64)
        if array.ndim == 0:
            return self._predict_one(float(array))
        if not compiled(array.size):
            return self._predict_without_kernels(array)
        from calibrators.core.kernels import lookup

        flat = np.ascontiguousarray(array).reshape(-1)
        out = np.empty(flat.size)
        lookup.apply(flat, flat.view(np.uint64), self._index, out)
        return out.reshape(array.shape)

    @cached_property
    def _views(self) -> tuple[memoryview, ...]:
        """Edges and rows as memory views, whose items are Python floats."""
        columns: tuple[Any, ...] = (self.score_hi[:-1], self.prob_lo, self.slope, self.anchor)
        return tuple(memoryview(column) for column in columns)

    def _predict_one(self, score: float) -> float:
        """Do `predict` for one score, without arrays."""
        if score != score:
            return score
        edges, prob_lo, slope, anchor = self._views
        j = bisect_right(edges, score)
        p: float = prob_lo[j]
        if slope[j] != 0.0:
            p += slope[j] * (score - anchor[j])
        return np.float64(p)

    def _predict_without_kernels(self, scores: Array) -> Array:
        """Do `predict` without compiled code. O(log rows) per score."""
        j = np.searchsorted(self.score_hi[:-1], scores, side="right")
        return line(scores, self.prob_lo[j], self.slope[j], self.anchor[j])

    def predict_ascending(self, scores: Array) -> Array:
        """Do `predict` for ascending scores, several times as fast. O(n + rows).

        Parameters
        ----------
        scores : float64 array, shape (n,), ascending, without NaN

        Returns
        -------
        float64 array, shape (n,)
            Probabilities in [0, 1].
        """
        ends = np.searchsorted(scores, self.score_hi[:-1])
        out = np.empty(scores.size)
        for start in range(0, scores.size, _BLOCK):
            stop = min(start + _BLOCK, scores.size)
            first, last = np.searchsorted(ends, [start, stop - 1], side="right")
            counts = np.diff(ends[first:last], prepend=start, append=stop)
            columns = (column[first : last + 1] for column in (self.prob_lo, self.slope, self.anchor))
            out[start:stop] = line(scores[start:stop], *(np.repeat(column, counts) for column in columns))
        return out

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    def __len__(self) -> int:
        return int(self.score_lo.size)

    @classmethod
    def from_blocks(
        cls, first: Array, last: Array, level: Array, weight: Array, positives: Array
    ) -> CalibrationMap:
        """Make a map that is constant on each block's [first, last] and linear in the gap to the next block.

        Parameters
        ----------
        first, last : float64 arrays, shape (blocks,), first[i] <= last[i] < first[i + 1]
        level : float64 array, shape (blocks,), probabilities in [0, 1]
        weight, positives : float64 arrays, shape (blocks,)

        Returns
        -------
        CalibrationMap

        Notes
        -----
        The slope of a gap is rounded towards zero until the value at the last score of the gap does not exceed
        the next level. So the map is monotone if the levels are, also in floating point. A gap too narrow
        (or too wide) for a finite slope becomes a step at the next block.
        """
        blocks = np.stack([first, last, weight, positives])
        columns = maps_of_blocks(blocks, level, np.array([first.size]))[0]
        for column in columns:
            column.flags.writeable = False  # else they are copied
        return cls(*columns)

    @classmethod
    def from_bins(cls, edges: Array, level: Array, weight: Array, positives: Array) -> CalibrationMap:
        """Make a step function: bin i is edges[i - 1] <= score < edges[i]; the outer bins are unbounded.

        Parameters
        ----------
        edges : float64 array, shape (bins - 1,), strictly ascending
        level : float64 array, shape (bins,), probabilities in [0, 1]
        weight, positives : float64 arrays, shape (bins,)

        Returns
        -------
        CalibrationMap
        """
        lows = np.concatenate([[-np.inf], edges])
        zero = np.zeros(level.size)
        anchor = np.where(np.isfinite(lows), lows, 0.0)
        return cls(lows, np.append(edges, np.inf), level, zero, anchor, weight, positives)

    @classmethod
    def from_knots(cls, scores: Array, levels: Array, weight: Array, positives: Array) -> CalibrationMap:
        """Make a map that is linear between knots and constant outside.

        Parameters
        ----------
        scores : float64 array, shape (knots,), strictly ascending
        levels : float64 array, shape (knots,), probabilities in [0, 1]
        weight, positives : float64 arrays, shape (knots + 1,)
            Sums of the rows (-inf, scores[0]), of the intervals between knots, and of [scores[-1], inf).

        Returns
        -------
        CalibrationMap
        """
        slope = gap_slopes(scores[:-1], scores[1:], levels[:-1], levels[1:])
        lows = np.concatenate([[-np.inf], scores])
        return cls(
            score_lo=lows,
            score_hi=np.append(scores, np.inf),
            prob_lo=np.concatenate([levels[:1], levels]),
            slope=np.concatenate([[0.0], slope, [0.0]]),
            anchor=np.concatenate([scores[:1], scores]),
            weight=weight,
            positives=positives,
        )


def maps_of_blocks(blocks: Array, level: Array, sizes: Integers) -> tuple[list[Array], Integers]:
    """Return the columns of `CalibrationMap.from_blocks` for many groups, and the number of rows of each group.

    blocks : float64 array, shape (4, blocks): first, last, weight, positives, group after group
    level : float64 array, shape (blocks,)
    sizes : int64 array, shape (groups,), >= 1: number of blocks of each group
    """
    first, last, weight, positives = blocks
    ends = np.cumsum(sizes) - 1
    is_end = np.zeros(first.size, bool)
    is_end[ends] = True
    below = np.flatnonzero(~is_end)
    above = below + 1
    with np.errstate(over="ignore"):
        edge = np.nextafter(last[below], np.inf)
    # Each block has a row, and another one for the gap above it.
    used = np.zeros((first.size, 2), bool)
    used[:, 0] = True
    used[below, 1] = edge < first[above]
    score_lo, prob_lo, slope, anchor, row_weight, row_positives = np.zeros((6, first.size, 2))
    score_lo[:, 0], score_lo[below, 1] = first, edge
    score_lo[ends - sizes + 1, 0] = -np.inf
    prob_lo[:] = level[:, np.newaxis]
    slope[below, 1] = gap_slopes(last[below], first[above], level[below], level[above])
    anchor[:, 0], anchor[:, 1] = first, last
    row_weight[:, 0], row_positives[:, 0] = weight, positives
    rows = np.add.reduceat(used.sum(axis=1), ends - sizes + 1) if sizes.size else sizes
    score_lo = score_lo[used]
    score_hi = np.append(score_lo[1:], np.inf)[: score_lo.size]
    score_hi[np.cumsum(rows) - 1] = np.inf
    columns = (prob_lo, slope, anchor, row_weight, row_positives)
    return [score_lo, score_hi, *(column[used] for column in columns)], rows


def line(scores: Array, prob_lo: Array, slope: Array, anchor: Array) -> Array:
    """Return for each score the value of its row; NaN for NaN."""
    with np.errstate(invalid="ignore", over="ignore"):
        value = np.where(slope == 0.0, prob_lo, prob_lo + slope * (scores - anchor))
    return np.where(np.isnan(scores), scores, value)


def midpoints(below: Array, above: Array) -> Array:
    """Return bin edges between neighbouring scores below < above: the midpoint, or `above` if it equals `below`.

    The midpoint of neighbouring doubles may round down to `below`, which would then be in the upper bin.
    """
    with np.errstate(over="ignore"):
        middle = below + (above - below) / 2
    middle = np.where(np.isfinite(middle), middle, below / 2 + above / 2)
    return np.where(middle <= below, above, middle)


def gap_slopes(first: Array, last: Array, first_level: Array, last_level: Array) -> Array:
    """Return slopes of the lines from (first, first_level) to (last, last_level) that do not pass last_level."""
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        slope = (last_level - first_level) / (last - first)
        slope = np.where(np.isfinite(slope), slope, 0.0)
        last_below = np.nextafter(last, -np.inf)
        while True:
            end = first_level + slope * (last_below - first)
            too_steep = np.where(last_level >= first_level, end > last_level, end < last_level)
            if not too_steep.any():
                return slope
            slope = np.where(too_steep, np.nextafter(slope, 0.0), slope)
