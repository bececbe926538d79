"""How far apart two calibration maps are, over the rows that one of them was fitted to; and whether a map ranks."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from calibrators.calibration_map import CalibrationMap
from calibrators.error_bars import error_bar_passes
from calibrators.measures import run_passes
from calibrators.passes import Array, Points
from pipeline.table.lookup_table import cached_lookup_table
from pipeline.table.segment_lookup import cached_segmented_lookup
from pipeline.table.version import Version, segments_of

ABOVE_CHANCE = 2.33
"""Standard errors: one chance in a hundred."""


@dataclass(frozen=True)
class MapChange:
    """How far a map is from another.

    Attributes
    ----------
    mean : float >= 0: mean of |new - old| over the rows. largest : of it. at : the score where it is.
    mean_old, mean_new : float in [0, 1]: mean probabilities of the rows.
    """

    mean: float
    largest: float
    at: float
    mean_old: float
    mean_new: float

    @property
    def relative(self) -> float:
        """The mean change over the mean probability: of the two the larger, so that it is at most 1."""
        return self.mean / max(self.mean_old, self.mean_new) if self.mean > 0 else 0.0

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "relative": self.relative}


def map_change(old: CalibrationMap, new: CalibrationMap, lowest: float, highest: float) -> MapChange:
    """How far `new` is from `old` over the rows that `new` was fitted to.

    Parameters
    ----------
    lowest, highest : of the scores of those rows; finite

    Notes
    -----
    A map says how many of its rows lie in each of its intervals, and not where: they are taken to lie evenly. O(rows of
    both maps).
    """
    inner = np.unique(np.concatenate([old.score_lo[1:], new.score_lo[1:], [lowest, highest]]))
    edges = inner[(inner >= lowest) & (inner <= highest)]
    low, high = (edges[:-1], edges[1:]) if edges.size > 1 else (edges, edges)
    middle = low / 2 + high / 2
    share = _shares(new, low, high, middle)
    p, q = (one.predict(middle) for one in (old, new))
    # Lines, so the ends of a piece are the farthest; the upper one is not part of it.
    ends = np.concatenate([low, middle, np.maximum(low, np.nextafter(high, -np.inf))])
    apart = np.abs(new.predict(ends) - old.predict(ends))
    apart[np.tile(share, 3) == 0] = 0
    widest = int(np.argmax(apart))
    mean = float(np.sum(share * np.abs(p - q)))
    return MapChange(
        mean, float(apart[widest]), float(ends[widest]), float(np.sum(share * p)), float(np.sum(share * q))
    )


def _shares(new: CalibrationMap, low: Array, high: Array, middle: Array) -> Array:
    """Of the rows the share in each piece."""
    row = np.searchsorted(new.score_hi[:-1], middle, side="right")
    width = high - low
    total = np.bincount(row, width, len(new))[row]
    pieces = np.bincount(row, minlength=len(new))[row]
    part = np.where(total > 0, width / np.where(total > 0, total, 1), 1 / pieces)
    share = new.weight[row] * part
    return share / share.sum()


def ranking(one: CalibrationMap) -> tuple[float | None, float | None]:
    """The AUC of the intervals' order on the rows that a map was fitted to, and its standard error.

    Rows of one interval count as tied, which brings the AUC nearer to 1/2.
    """
    filled = one.weight > 0
    place = np.arange(np.count_nonzero(filled), dtype=np.float64) + 2.0
    points = Points(place, one.weight[filled], one.positives[filled])
    bars = run_passes(error_bar_passes(), lambda request: request.combine([request.chunk(points)]))
    return bars.auc, bars.auc_error


def one_level(one: CalibrationMap) -> bool:
    """Whether all scores get the same probability."""
    return bool(np.all(one.slope == 0) and np.all(one.prob_lo == one.prob_lo[0]))


def map_of(version: Version) -> CalibrationMap:
    """A version's map of all rows. Errors: InputRejectedError where the table cannot be read."""
    if segments_of(version):
        return cached_segmented_lookup(version.lookup_path).whole
    return cached_lookup_table(version.lookup_path).map
