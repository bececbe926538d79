"""How far apart two calibration maps are, over the rows that one of them was fitted to; and whether a map ranks."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from calibrators.arithmetic.calibration_map import CalibrationMap
from calibrators.arithmetic.passes import Array
from calibrators.measures.error_bars import area_under_roc
from logcal.arrow_columns import as_numpy
from logcal.lookup_table import SegmentedLookup
from pipeline.log.segment_values import Integers, Key
from pipeline.table.lookup_table import cached_lookup_table, cached_segmented_lookup
from pipeline.table.published import Version, segments_of

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
    return _changes(TableMaps.of_one(old), TableMaps.of_one(new), [], np.ones(1), lowest, highest).whole


@dataclass(frozen=True)
class TableChange:
    """How far a table with segments is from another one, over the rows of one of them.

    Attributes
    ----------
    whole : of all rows
    keys : of the segments, in the order of their table; empty where neither table has any
    rows : int64 array: of each segment
    """

    whole: MapChange
    keys: list[Key]
    rows: Integers
    _pair: Integers = field(repr=False)
    _changes: Array = field(repr=False)

    def order(self) -> Integers:
        """The segments, those whose probability changes most on average first."""
        return np.lexsort((np.arange(self._pair.size), -self._changes[0][self._pair]))

    def of(self, segment: int) -> MapChange:
        """Of a segment's rows."""
        return MapChange(*self._changes[:, self._pair[segment]].tolist())


def table_change(old: Version, new: Version) -> TableChange | None:
    """How far a published table is from another one; see `change_of_tables`. None where it cannot be said."""
    if old.manifest["score_transform"] != new.manifest["score_transform"]:
        return None
    data = new.manifest["data"]
    before, after = ((version.lookup_path, segments_of(version)) for version in (old, new))
    return change_of_tables(before, after, data["lowest_score"], data["highest_score"])


Place = tuple[str, tuple[str, ...]]
"""Of a table: the path of its lookup table, and its segment columns."""


def change_of_tables(old: Place, new: Place, lowest: float, highest: float) -> TableChange | None:
    """How far a table is from another one of the same transform, each row going through its segment's map in both.

    Parameters
    ----------
    lowest, highest : of the scores of the rows

    Returns
    -------
    TableChange, or None where neither table's segment columns are among the other's, so that nothing says which rows go
    through which maps of both

    Notes
    -----
    The rows are those of the segments that the table with more columns was fitted to, the new one's where both have the
    same; of a segment without a map of its own they are taken to lie as those of the map that it falls back to. See
    `map_change`. O(rows of both tables).

    Raises
    ------
    InputRejectedError
        A table cannot be read.
    """
    before, after = (TableMaps.of_table(*place) for place in (old, new))
    if set(old[1]) <= set(new[1]):
        finer = after
    elif set(new[1]) <= set(old[1]):
        finer = before
    else:
        return None
    if finer.lookup is None:
        return _changes(before, after, [], np.ones(1), lowest, highest)
    segments = finer.lookup.own_segments
    columns = [segments.column(name).combine_chunks() for name in finer.columns]
    rows = as_numpy(segments.column("rows").combine_chunks())
    return _changes(before, after, columns, rows, lowest, highest, finer)


def _changes(
    old: TableMaps,
    new: TableMaps,
    columns: list[pa.Array],
    rows: npt.NDArray[Any],
    lowest: float,
    highest: float,
    finer: TableMaps | None = None,
) -> TableChange:
    """columns, rows : the values of the segments of `finer`, and how many rows each has."""
    finer = finer or new
    places = [one.places(finer.columns, columns) for one in (old, new)]
    pairs, pair = np.unique((places[0] << 32) | places[1], return_inverse=True)
    each = changes_of_pairs(old, new, pairs >> 32, pairs & 0xFFFFFFFF, finer is old, lowest, highest)
    in_all = np.bincount(pair, rows, pairs.size)
    top = int(np.lexsort((-in_all, -each[1]))[0])
    means = each[[0, 3, 4]] @ (in_all / in_all.sum())
    whole_change = MapChange(
        float(means[0]), float(each[1, top]), float(each[2, top]), float(means[1]), float(means[2])
    )
    keys = list(zip(*(column.to_pylist() for column in columns), strict=True))
    return TableChange(whole_change, keys, np.asarray(rows, np.int64), pair, each)


def ranking(one: CalibrationMap) -> tuple[float | None, float | None]:
    """The AUC of the intervals' order on the rows that a map was fitted to, and its standard error.

    Rows of one interval count as tied, which brings the AUC nearer to 1/2.
    """
    filled = one.weight > 0
    return area_under_roc(one.weight[filled], one.positives[filled])


def one_level(one: CalibrationMap) -> bool:
    """Whether all scores get the same probability."""
    return bool(np.all(one.slope == 0) and np.all(one.prob_lo == one.prob_lo[0]))


def map_of(version: Version) -> CalibrationMap:
    """A version's map of all rows. Errors: InputRejectedError where the table cannot be read."""
    if segments_of(version):
        return cached_segmented_lookup(version.lookup_path).whole
    return cached_lookup_table(version.lookup_path).map


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
