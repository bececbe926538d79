"""Fits to segments: maps, one after the other, and why a segment has none of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from calibrators.arithmetic.calibration_map import CalibrationMap, Interval
from calibrators.arithmetic.passes import Array
from calibrators.methods.base import Line
from calibrators.methods.intervals import NONE
from pipeline.log.segment_values import Key

MIN_ROWS, MIN_POSITIVES, MIN_NEGATIVES = "min_rows", "min_positives", "min_negatives"
ONE_CLASS, ONE_SCORE, NO_BEND, NOT_SUITED = "one_class", "one_score", "no_bend", "not_suited"
"""Why a segment has no map of its own; no_bend: none of its column differs from its adjusted parent's map by more than
chance. not_suited: the calibrator refuses its scores."""

OWN, ADJUSTED, PARENT, GLOBAL, IDENTITY = "segment", "moved", "parent", "global", "identity"
"""Rows that a segment's map was fitted to; moved: a parent's map, adjusted by two numbers of the segment's own."""

SOURCES = {
    OWN: "with their own map",
    ADJUSTED: "with their parent's map, adjusted",
    PARENT: "with their parent's map",
    GLOBAL: "with the map of all rows",
    IDENTITY: "with the score as it is",
}
"""The same in words, of several segments."""

_COLUMNS = tuple(CalibrationMap.__dataclass_fields__)


@dataclass(frozen=True)
class SegmentRules:
    """Rules for segments that are calibrated on their own.

    min_rows, min_positives : rows, and rows with label 1, that a segment must have at least.
    partial_pooling : every segment adjusts its parent's map, and a segment with `min_positives` rows of either
        label has a map of its own that is pooled with it; `min_rows` does not count then.
    """

    min_rows: int = 1
    min_positives: int = 1
    partial_pooling: bool = False

    def reasons(self, rows: npt.NDArray[np.int64], positives: npt.NDArray[np.int64]) -> list[str | None]:
        """Why segments of so many rows are not fitted; None where they are."""
        found = np.full(rows.size, None, object)
        # Of several reasons the last that is written counts.
        if self.partial_pooling:
            found[rows - positives < self.min_positives] = MIN_NEGATIVES
        found[positives < self.min_positives] = MIN_POSITIVES
        found[(positives == 0) | (positives == rows)] = ONE_CLASS
        if not self.partial_pooling:
            found[rows < self.min_rows] = MIN_ROWS
        return found.tolist()


class Adjustments(NamedTuple):
    """Adjustments of the segments' maps: logit p = shift + slope * logit of the map's p.

    Attributes
    ----------
    fitted_level : int32 array: the number of leading columns of the segment's key that the map belongs to
    shift, slope : float64 arrays, finite, slope >= 0; 0 and 1 where the map is the segment's own, or is left as it is
    low, high : float64 arrays, in (0, 1): clipping bounds of the map's p before the logit
    of : places in `logcal.schema.LOGIT_FROM`: what is moved where it is not a map's p; None: maps' alone
    """

    fitted_level: npt.NDArray[np.int32]
    shift: Array
    slope: Array
    low: Array
    high: Array
    of: npt.NDArray[np.int8] | None = None


@dataclass
class Maps:
    """Maps, one after the other: the rows of the i-th are sizes[i], in `columns` as `CalibrationMap` names them.

    Where rows have intervals, two columns more: see `empty`.
    """

    sizes: list[int] = field(default_factory=list)
    columns: list[list[Array]] = field(default_factory=lambda: [[] for _ in _COLUMNS])

    @classmethod
    def empty(cls, sizes: list[int], interval: str = NONE) -> Maps:
        """No maps yet; interval : of `calibrators.methods.intervals.KINDS`."""
        width = len(_COLUMNS) + (0 if interval == NONE else len(Interval._fields))
        return cls(sizes, [[] for _ in range(width)])

    def first(self) -> CalibrationMap | None:
        """The first map, if there is one."""
        size = self.sizes[0]
        columns = [np.concatenate(column)[:size] for column in self.columns[: len(_COLUMNS)]] if size else []
        return CalibrationMap(*columns) if columns else None

    def add(self, one: CalibrationMap | None, interval: Interval | None = None) -> None:
        """Append a map, or none. interval : of its rows; where it is unknown, from 0 to 1."""
        self.sizes.append(0 if one is None else len(one))
        if one is None:
            return
        rows = [getattr(one, name) for name in _COLUMNS]
        if len(self.columns) > len(rows):
            rows += interval or (np.zeros(len(one)), np.ones(len(one)))
        for column, values in zip(self.columns, rows, strict=True):
            column.append(values)

    def packed(self) -> Maps:
        """With one array a column."""
        return Maps(self.sizes, [[column] for column in self.arrays()])

    def arrays(self) -> list[Array]:
        """The columns."""
        return [np.concatenate([np.empty(0), *column]) for column in self.columns]


class Fitted(NamedTuple):
    """Result of a task for some segments, by position.

    maps, reasons : a map or a reason each. monotone : whether every map is. repair : largest change it made.
    lines : instead of a map, what a segment's log-odds are a line of: of, shift, slope; None where it has a map
    refuted : maps that have no band, since their observations refute a truth that never decreases
    """

    maps: Maps
    reasons: list[str | None]
    monotone: bool
    repair: float
    lines: list[Line | None] = []  # noqa: RUF012 it is never changed
    refuted: int = 0


@dataclass
class LevelFit:
    """The segments of one level, in the order of `segment_values.order`.

    Attributes
    ----------
    level : number of columns in a key; 0: all rows.
    rows, positives : of each segment: rows used, and those with label 1.
    reasons : why a segment has no map, None where it has one.
    maps : of all segments, in order; size 0 where there is none.
    adjustments : of all segments, with partial pooling; None for level 0 and without it.
    crossed : variances of the shifts and slopes that values of the last column have in all segments of the others
    bent : how far own maps bend from adjusted ones, and where shifts and slopes are independent, if estimated
    of : of each segment of all columns, its place at this level; None with partial pooling
    """

    level: int
    keys: Sequence[Key]
    rows: npt.NDArray[np.int64]
    positives: npt.NDArray[np.int64]
    reasons: list[str | None]
    maps: Maps
    adjustments: Adjustments | None = None
    crossed: tuple[float, float] = (0.0, 0.0)
    bent: dict[str, float] = field(default_factory=dict)
    of: npt.NDArray[np.int32] | None = None


@dataclass(frozen=True)
class SegmentedFit:
    """Maps of all levels; of level 0 first.

    Attributes
    ----------
    types : of the segment columns.
    identity : whether level 0 is the score as it is, since all rows together are too few.
    monotone : whether every map is. repair : largest change that was made to have them so.
    variances : of each level, of the shifts and of the slopes of its segments; empty without partial pooling.
    interval : that the rows of maps have, one of `calibrators.methods.intervals.KINDS`
    refuted : maps that have none, see `Fitted`
    """

    levels: tuple[LevelFit, ...]
    types: tuple[pa.DataType, ...]
    identity: bool
    monotone: bool
    repair: float
    variances: tuple[tuple[float, float], ...] = ()
    interval: str = NONE
    refuted: int = 0

    def origins(self) -> tuple[list[str], npt.NDArray[np.int32]]:
        """Return the rows that the map of each segment of all columns was fitted to: the kind, and the level."""
        deepest = self.levels[-1]
        level = np.zeros(len(deepest.keys), np.int32)
        for fit in self.levels[1:]:
            assert fit.of is not None
            level[(np.array(fit.maps.sizes) > 0)[fit.of]] = fit.level
        kinds = {0: IDENTITY if self.identity else GLOBAL, deepest.level: OWN}
        return [kinds.get(one, PARENT) for one in level.tolist()], level
