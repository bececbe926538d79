"""Results of fits to segments: concatenated maps, their sources, and the reasons for missing maps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from calibrators.base import Line
from calibrators.core.arrays import Array, Codes, Integers
from calibrators.core.intervals import NONE
from calibrators.core.map import CalibrationMap, Interval
from calibrators.measures.segment_check import SegmentSums
from pipeline.log.segment_values import Key

MIN_ROWS, MIN_POSITIVES, MIN_NEGATIVES = "min_rows", "min_positives", "min_negatives"
ONE_CLASS, ONE_SCORE, NO_BEND, NOT_SUITED = "one_class", "one_score", "no_bend", "not_suited"
"""Reasons why a segment has no map of its own. no_bend: no segment of the level differs from its adjusted parent's map
beyond chance; not_suited: the calibrator refuses the segment's scores."""

OWN, ADJUSTED, PARENT, GLOBAL, IDENTITY = "segment", "adjusted", "parent", "global", "identity"
"""Sources of a segment's map. adjusted: the parent's map, adjusted by a shift and a slope."""

SOURCES = {
    OWN: "with their own map",
    ADJUSTED: "with their parent's map, adjusted",
    PARENT: "with their parent's map",
    GLOBAL: "with the map of all rows",
    IDENTITY: "with the score as it is",
}
"""Descriptions of the sources, for several segments."""

_COLUMNS = tuple(CalibrationMap.__dataclass_fields__)


@dataclass(frozen=True)
class SegmentRules:
    """Rules that decide which segments have their own maps.

    min_rows : smallest number of rows of a segment; not used with partial pooling
    min_positives : smallest number of rows with label 1; with partial pooling, of rows with either label
    partial_pooling : every segment adjusts its parent's map, and a segment that satisfies `min_positives` has its own
        map, pooled with the adjusted one
    """

    min_rows: int = 1
    min_positives: int = 1
    partial_pooling: bool = False

    def reasons(self, rows: Integers, positives: Integers) -> list[str | None]:
        """Return the reason why each segment is not fitted, or None if it is."""
        reasons = np.full(rows.size, None, object)
        # Later assignments have priority.
        if self.partial_pooling:
            reasons[rows - positives < self.min_positives] = MIN_NEGATIVES
        reasons[positives < self.min_positives] = MIN_POSITIVES
        reasons[(positives == 0) | (positives == rows)] = ONE_CLASS
        if not self.partial_pooling:
            reasons[rows < self.min_rows] = MIN_ROWS
        return reasons.tolist()


class MapAdjustments(NamedTuple):
    """Adjustments of the segments' maps: logit p = shift + slope * logit of the map's p.

    Attributes
    ----------
    fitted_level : int32 array: number of leading columns in the key of the segment that the map belongs to; below 0 a
        map of all rows that is bent, see `LevelFit.bent`
    shift, slope : float64 arrays, finite, slope >= 0; 0 and 1 if the map is the segment's own or is not adjusted
    low, high : float64 arrays, in (0, 1): clipping bounds of the map's p before the logit
    kind : int8 array: indices into `logcal.schema.LOGIT_FROM`, the adjusted quantity; None: always the map's p
    """

    fitted_level: Codes
    shift: Array
    slope: Array
    low: Array
    high: Array
    kind: npt.NDArray[np.int8] | None = None


@dataclass
class Maps:
    """Concatenated maps: the i-th has sizes[i] rows, whose columns are those of `CalibrationMap`.

    If rows have intervals, there are two more columns: see `empty`.
    """

    sizes: list[int] = field(default_factory=list)
    columns: list[list[Array]] = field(default_factory=lambda: [[] for _ in _COLUMNS])

    @classmethod
    def empty(cls, sizes: list[int], interval: str = NONE) -> Maps:
        """Return empty columns. interval : one of `calibrators.core.intervals.KINDS`."""
        width = len(_COLUMNS) + (0 if interval == NONE else len(Interval._fields))
        return cls(sizes, [[] for _ in range(width)])

    def first(self) -> CalibrationMap | None:
        """Return the first map; None if it is empty."""
        size = self.sizes[0]
        columns = [np.concatenate(column)[:size] for column in self.columns[: len(_COLUMNS)]] if size else []
        return CalibrationMap(*columns) if columns else None

    def add(self, new: CalibrationMap | None, interval: Interval | None = None) -> None:
        """Append a map, or an empty one for None. interval : interval of its rows; None: from 0 to 1."""
        self.sizes.append(0 if new is None else len(new))
        if new is None:
            return
        arrays = [getattr(new, name) for name in _COLUMNS]
        if len(self.columns) > len(arrays):
            arrays += interval or (np.zeros(len(new)), np.ones(len(new)))
        for column, values in zip(self.columns, arrays, strict=True):
            column.append(values)

    def packed(self) -> Maps:
        """Return the maps with one array per column."""
        return Maps(self.sizes, [[column] for column in self.arrays()])

    def arrays(self) -> list[Array]:
        """Return each column as one array."""
        return [np.concatenate([np.empty(0), *column]) for column in self.columns]


class Fitted(NamedTuple):
    """Result of a task that fits segments, in their order.

    maps : the maps of the segments
    reasons : why a segment has no map; None if it has one
    monotone : whether no map decreases
    repair : largest change by the monotone repair
    lines : a line of log-odds for a segment that has one instead of a map, else None
    refuted : number of maps without a band, because their observations refute a non-decreasing true probability
    checked : sums for the check of the maps against their rows
    single : float64 array, shape (3, segments): score, weight and positives of the segments with one score, in order
    """

    maps: Maps
    reasons: list[str | None]
    monotone: bool
    repair: float
    lines: list[Line | None] = []  # noqa: RUF012 it is never changed
    refuted: int = 0
    checked: SegmentSums | None = None
    single: Array = np.empty((3, 0))


@dataclass
class LevelFit:
    """The segments of one level, in the order of `segment_values.order`.

    Attributes
    ----------
    level : number of columns in a key; 0: all rows
    keys : the segments' keys
    rows, positives : int64 arrays, shape (segments,): number of used rows, and of those with label 1
    reasons : why a segment has no map; None if it has one
    maps : the maps of all segments; size 0 if there is none
    adjustments : adjustments of all segments; None for level 0 and without partial pooling
    variances_across : variances of the shifts and slopes of the last column's values across all parents
    bend_facts : estimates for the manifest: size of the bends of own maps from adjusted ones, and log-odds at which
        shifts and slopes are independent
    outlying : indices of the segments that contradict the others, see `calibrators.segments.adjusting.Adjusted`
    one_range : with partial pooling, indices of the segments with rows in one block range of their parent's map
    of : int32 array: index at this level of each segment of the last level; None with partial pooling
    checked : sums for the check of the maps against their rows; None for level 0
    bent : maps of all rows that are bent and that segments adjust, by their levels in the lookup table, below 0
    """

    level: int
    keys: Sequence[Key]
    rows: Integers
    positives: Integers
    reasons: list[str | None]
    maps: Maps
    adjustments: MapAdjustments | None = None
    variances_across: tuple[float, float] = (0.0, 0.0)
    bend_facts: dict[str, float] = field(default_factory=dict)
    outlying: Sequence[int] = ()
    one_range: Sequence[int] = ()
    of: Codes | None = None
    checked: SegmentSums | None = None
    bent: Mapping[int, CalibrationMap] = field(default_factory=dict)


@dataclass(frozen=True)
class SegmentedFit:
    """Maps of all levels.

    Attributes
    ----------
    levels : the fits of the levels, level 0 first
    types : types of the segment columns
    identity : whether level 0 is the unchanged score, because all rows together are too few for a map
    monotone : whether no map decreases
    repair : largest change by the monotone repair
    variances : for each level the variances of its segments' shifts and slopes; empty without partial pooling
    interval : kind of the intervals, one of `calibrators.core.intervals.KINDS`
    refuted : number of maps without a band, see `Fitted`
    shared : check of the maps that segments without one of their own use, see `pipeline.fit.shared_maps`
    parents : number of parents' maps that were fitted to the segments without one of their own alone
    users : number of rows of such segments, if the map of all rows was fitted to these rows alone; or else None
    """

    levels: tuple[LevelFit, ...]
    types: tuple[pa.DataType, ...]
    identity: bool
    monotone: bool
    repair: float
    variances: tuple[tuple[float, float], ...] = ()
    interval: str = NONE
    refuted: int = 0
    shared: LevelFit | None = None
    users: int | None = None
    parents: int = 0

    def origins(self) -> tuple[list[str], Codes]:
        """Return the source and the level of the map that each segment of the last level uses."""
        deepest = self.levels[-1]
        level = np.zeros(len(deepest.keys), np.int32)
        for fit in self.levels[1:]:
            assert fit.of is not None
            level[(np.array(fit.maps.sizes) > 0)[fit.of]] = fit.level
        kinds = {0: IDENTITY if self.identity else GLOBAL, deepest.level: OWN}
        return [kinds.get(i, PARENT) for i in level.tolist()], level
