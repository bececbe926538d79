"""The maps of two tables, pair by pair: how far apart they are over the rows of the segments that go through both."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from calibrators.arithmetic.calibration_map import CalibrationMap
from calibrators.arithmetic.passes import Array
from pipeline.log.segment_values import Integers
from pipeline.table.lookup_table import cached_lookup_table
from pipeline.table.segment_lookup import SegmentedLookup, cached_segmented_lookup

_BLOCK = 4096
"""Pairs that are walked over at once: in between an interrupt is heard."""

_LINES = ("score_hi", "prob_lo", "slope", "anchor")


@dataclass(frozen=True)
class TableMaps:
    """The maps of a table, one after the other; one without segments has one.

    A place is a map's number, or where segments move maps that of an entry of `SegmentedLookup.moves`. Rows of a
    segment with a sigmoid are taken to lie as those of the map above it.

    Attributes
    ----------
    rows : the columns of all maps, as in `CalibrationMap`. starts : int64 array, shape (maps + 1,): where each begins.
    columns : names of the segment columns. lookup : of a table with segments.
    """

    rows: dict[str, Array] = field(repr=False)
    starts: Integers = field(repr=False)
    columns: tuple[str, ...] = ()
    lookup: SegmentedLookup | None = field(default=None, repr=False)

    @classmethod
    def of_one(cls, one: CalibrationMap) -> TableMaps:
        """Of one map."""
        names = CalibrationMap.__dataclass_fields__
        return cls({name: getattr(one, name) for name in names}, np.array([0, len(one)]))

    @classmethod
    def of_table(cls, path: str, columns: tuple[str, ...]) -> TableMaps:
        """Of a published table. Errors: InputRejectedError where it cannot be read."""
        if not columns:
            return cls.of_one(cached_lookup_table(path).map)
        lookup = cached_segmented_lookup(path)
        return cls(lookup.maps, lookup.starts, lookup.columns, lookup)

    def places(self, names: tuple[str, ...], values: list[pa.Array]) -> Integers:
        """Of each segment its place. names, values : of the segment columns, which may be more than this table's."""
        if self.lookup is None:
            return np.zeros(len(values[0]) if values else 1, np.int64)
        own = [values[names.index(name)] for name in self.columns]
        return self.lookup.index.find(own)[0].astype(np.int64)

    def maps_at(self, places: Integers) -> Integers:
        """The number of the map of each place."""
        moves = None if self.lookup is None else self.lookup.moves
        return places if moves is None else moves.map[places].astype(np.int64)

    def lines(self) -> tuple[Array, ...]:
        """What says where rows end and which lines they are, as kernels take it."""
        return tuple(_fixed(self.rows[name]) for name in _LINES)

    def moves(self) -> tuple[Any, ...]:
        """Numbers of the moves, as kernels take them; empty where there are none."""
        moves = None if self.lookup is None else self.lookup.moves
        if moves is None:
            return (*(_fixed(np.empty(0)) for _ in range(4)), _fixed(np.empty(0, np.int8)))
        of = np.empty(0, np.int8) if moves.of is None else moves.of
        return tuple(_fixed(column) for column in (moves.shift, moves.slope, moves.low, moves.high, of))


def _fixed(column: Any) -> Any:
    """The same array, contiguous and not to be written to, whatever it was: so that a kernel is compiled once."""
    fixed = np.ascontiguousarray(column).view()
    fixed.flags.writeable = False
    return fixed


def changes_of_pairs(
    old: TableMaps,
    new: TableMaps,
    old_places: Integers,
    new_places: Integers,
    old_weighs: bool,
    lowest: float,
    highest: float,
) -> Array:
    """How far the maps of two tables are apart, pair by pair.

    Parameters
    ----------
    old_places, new_places : int64 arrays, shape (pairs,): what the rows of each pair go through
    old_weighs : whether the old maps say where the rows lie, instead of the new ones
    lowest, highest : of the scores of those rows; finite

    Returns
    -------
    float64 array, shape (5, pairs)
        In the order of `MapChange`: mean of |new - old|, the largest of it and where, the means of old and of new.

    Notes
    -----
    O(rows of both maps) a pair; beside the result, memory for one pair.
    """
    from pipeline._kernels import map_pairs

    old_map, new_map = old.maps_at(old_places), new.maps_at(new_places)
    found = np.empty((5, old_places.size))
    order = np.lexsort((new_map, old_map))
    starts = [np.asarray(one.starts, np.int64) for one in (old, new)]
    weight = _fixed((old if old_weighs else new).rows["weight"])
    sides = [(_fixed(begin), one.lines(), one.moves()) for begin, one in zip(starts, (old, new), strict=True)]
    for first in range(0, order.size, _BLOCK):
        some = order[first : first + _BLOCK]
        block = np.empty((5, some.size))
        pairs = (old_map[some], new_map[some], old_places[some], new_places[some])
        map_pairs.changes(
            *pairs, *sides[0], *sides[1], weight, old_weighs, float(lowest), float(highest), block
        )
        found[:, some] = block
    return found
