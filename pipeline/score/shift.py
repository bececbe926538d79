"""Distance between the scores of a log and those that a table was fitted to.

Scores are counted in at most `BINS` bins, whose edges are edges of the table's rows. There the share of the table's
rows below is known exactly, and a count costs as little as a prediction. The largest difference of the shares below an
edge is the Kolmogorov-Smirnov distance, up to a part of a bin.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from calibrators.core.arrays import Array
from calibrators.core.map import CalibrationMap

Counts = tuple[int, ...]
"""Numbers of scores in each bin; empty: none were counted."""

BINS = 64
FEWEST_ROWS = 1000
"""Fewest rows that are refused: the distance of fewer is large by chance."""
WARNED = 0.35
"""Distance from which there is a warning where no limit is known: such scores come from another model."""
_FLOOR, _FACTOR, _CHANCE = 0.05, 2.0, 2.0


class Bins(NamedTuple):
    """Bins of scores.

    map : step function from a score to the number of its bin, divided by `BINS`
    shares : share of the table's rows in each bin
    """

    map: CalibrationMap
    shares: Array

    def tally(self, scores: Array, weight: Array | None = None) -> Array:
        """Count scores, or add up their weights, by bin; NaN is left out."""
        values = self.map.predict(scores)
        there = ~np.isnan(values)
        if not there.all():
            values, weight = values[there], None if weight is None else weight[there]
        return np.bincount((values * BINS).astype(np.intp), weight, self.shares.size).astype(np.float64)

    def distance(self, counts: Array) -> float:
        """Return the largest difference of the shares below an edge, in [0, 1]; 0 without rows."""
        total = counts.sum()
        if not total > 0:
            return 0.0
        return float(np.abs(np.cumsum(counts) / total - np.cumsum(self.shares)).max())


@lru_cache(maxsize=4)
def bins_of(map_: CalibrationMap) -> Bins | None:
    """Return bins with about equal shares of a map's rows; None if the map has no rows."""
    below = np.cumsum(map_.weight)
    total = float(below[-1])
    if not 0 < total < math.inf:
        return None
    row = np.unique(np.searchsorted(below, total * np.arange(1, BINS) / BINS))
    row = row[row < map_.score_hi.size - 1]
    edges = map_.score_hi[row]
    zeros = np.zeros(edges.size + 1)
    steps = CalibrationMap(
        np.concatenate([[-np.inf], edges]),
        np.concatenate([edges, [np.inf]]),
        np.arange(edges.size + 1) / BINS,
        zeros,
        zeros,
        zeros,
        zeros,
    )
    return Bins(steps, np.diff(np.concatenate([[0.0], below[row], [total]])) / total)


def total_counts(parts: Iterable[Counts]) -> Counts:
    """Add up counts of files."""
    filled = [part for part in parts if part]
    return tuple(map(sum, zip(*filled, strict=True))) if filled else ()


@dataclass(frozen=True)
class Shift:
    """Distance between scores and those of a table.

    Attributes
    ----------
    rows : number of scores
    distance : in [0, 1]
    limit : largest accepted distance of so many rows; None: unknown
    beyond : whether the rows are too many and too far away to be accepted
    warned : whether the distance is worth a warning
    """

    rows: int
    distance: float
    limit: float | None
    beyond: bool
    warned: bool

    def facts(self) -> dict[str, Any]:
        """Return JSON values for a manifest."""
        limit = None if self.limit is None else float(f"{self.limit:.12g}")
        return {"distance": float(f"{self.distance:.12g}"), "limit": limit, "beyond": self.beyond}

    def text(self) -> str:
        """Describe the distance in a sentence."""
        usual = "" if self.limit is None else f", at most {self.limit:.2f} is expected"
        return (
            f"the scores of {self.rows:,} rows are at a distance (Kolmogorov-Smirnov) of {self.distance:.2f} from "
            f"those that the table was fitted to{usual}: are they another model's?"
        )


@dataclass(frozen=True)
class ShiftRule:
    """Rule for the distance between scores and a table's.

    Attributes
    ----------
    limit : largest accepted distance; None: unknown, so that there are only warnings
    of_days : whether the limit is the largest distance of the table's own days, to which chance and a margin are added
    refuse : whether scores beyond the limit are refused; otherwise they are scored
    """

    limit: float | None
    of_days: bool = False
    refuse: bool = True

    def judge(self, bins: Bins | None, counts: Counts) -> Shift | None:
        """Judge counted scores; None if there are none, or the table has no rows."""
        rows = sum(counts)
        if bins is None or not rows:
            return None
        limit, chance = self.limit, _CHANCE / math.sqrt(rows)
        if limit is not None and self.of_days:
            limit = _FACTOR * max(limit, _FLOOR) + chance
        distance = bins.distance(np.array(counts, np.float64))
        warned = distance > (WARNED + chance if limit is None else limit)
        return Shift(rows, distance, limit, warned and limit is not None and rows >= FEWEST_ROWS, warned)
