"""Distance of two calibration maps over the rows that one of them was fitted to; and whether a map ranks."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from calibrators.arithmetic.calibration_map import CalibrationMap
from calibrators.arithmetic.passes import Array
from calibrators.measures.certainty import area_under_roc
from logcal.arrow_columns import as_numpy
from logcal.lookup_table import SegmentedLookup, keys_of, one_array
from pipeline.log.segment_values import Integers, Key
from pipeline.table.lookup_table import cached_lookup_table, cached_segmented_lookup
from pipeline.table.published import Version, segments_of

ABOVE_CHANCE = 2.33
"""Standard errors: one chance in a hundred."""


@dataclass(frozen=True)
class MapChange:
    """Distance of a map from another.

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


@dataclass(frozen=True)
class TableChange:
    """Distance of a table with segments from another one, over the rows of one of them.

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
        """Change of a segment's rows."""
        return MapChange(*self._changes[:, self._pair[segment]].tolist())


def table_change(old: Version, new: Version) -> TableChange | None:
    """Measure the distance of a published table from another one; see `change_of_tables`. None if there is none."""
    if old.manifest["score_transform"] != new.manifest["score_transform"]:
        return None
    data = new.manifest["data"]
    before, after = ((version.lookup_path, segments_of(version)) for version in (old, new))
    return change_of_tables(before, after, data["lowest_score"], data["highest_score"])


Place = tuple[str, tuple[str, ...]]
"""Place of a table: the path of its lookup table, and its segment columns."""


def change_of_tables(old: Place, new: Place, lowest: float, highest: float) -> TableChange | None:
    """Measure the distance of tables of the same transform, each row going through its segment's map in both.

    Parameters
    ----------
    lowest, highest : of the scores of the rows

    Returns
    -------
    TableChange, or None where neither table's segment columns are among the other's, so that nothing says which rows go
    through which maps of both

    Notes
    -----
    Rows are taken from the table with more segment columns; from the new one if both have as many. The rows of a
    segment without a map of its own are assumed to lie like those of the map that it falls back to. A map counts the
    rows of each of its intervals: they are assumed to lie in it as the other table's rows do, which are assumed to lie
    evenly in that one's intervals. O(rows of both tables).

    Raises
    ------
    InputRejectedError
        A table cannot be read.
    """
    before, after = (TableMaps.at(*place) for place in (old, new))
    old_weighs = not set(old[1]) <= set(new[1])
    if old_weighs and not set(new[1]) <= set(old[1]):
        return None
    both, finer = TwoTables(before, after, lowest, highest, old_weighs), before if old_weighs else after
    columns, rows = [], np.ones(1, np.int64)
    if isinstance(finer.table, SegmentedLookup):
        segments = finer.table.finest_segments
        columns, rows = (
            [one_array(segments.column(n)) for n in finer.columns],
            as_numpy(segments.column("rows")),
        )
    places = [one.places(finer.columns, columns) for one in (before, after)]
    pairs, pair = np.unique((places[0] << 32) | places[1], return_inverse=True)
    each = both.changes(pairs >> 32, pairs & 0xFFFFFFFF)
    in_all = np.bincount(pair, rows, pairs.size)
    top = int(np.lexsort((-in_all, -each[1]))[0])
    mean, mean_old, mean_new = (each[[0, 3, 4]] @ (in_all / in_all.sum())).tolist()
    largest, at = each[1:3, top].tolist()
    whole = MapChange(mean, largest, at, mean_old, mean_new)
    return TableChange(whole, keys_of(columns), rows, pair, each)


def ranking(one: CalibrationMap) -> tuple[float | None, float | None]:
    """The AUC of the intervals' order on the rows that a map was fitted to, and its standard error.

    Rows of one interval count as tied, which brings the AUC nearer to 1/2.
    """
    filled = one.weight > 0
    return area_under_roc(one.weight[filled], one.positives[filled])


def one_level(one: CalibrationMap) -> bool:
    """Tell whether all scores get the same probability."""
    return bool(np.all(one.slope == 0) and np.all(one.prob_lo == one.prob_lo[0]))


def map_of(version: Version) -> CalibrationMap:
    """A version's map of all rows. Errors: InputRejectedError where the table cannot be read."""
    if segments_of(version):
        return cached_segmented_lookup(version.lookup_path).global_map
    return cached_lookup_table(version.lookup_path).map


_BLOCK = 1 << 16
"""Pieces that are worked on at once, about: their arrays stay small."""


@dataclass(frozen=True)
class TableMaps:
    """The maps of a table, one after the other; one without segments has one.

    A place is a map's number, or where segments move maps that of an entry of `SegmentedLookup.adjustments`. Rows of a
    segment with a sigmoid are taken to lie as those of the map above it. columns : names of the segment columns
    """

    table: CalibrationMap | SegmentedLookup
    columns: tuple[str, ...] = ()

    @classmethod
    def at(cls, path: str, columns: tuple[str, ...]) -> TableMaps:
        """Make it for a published table. Errors: InputRejectedError if it cannot be read."""
        return cls(cached_segmented_lookup(path) if columns else cached_lookup_table(path).map, columns)

    @property
    def starts(self) -> Integers:
        """Starts of the maps among all of their rows, and the end."""
        return np.array([0, len(self.table)]) if isinstance(self.table, CalibrationMap) else self.table.starts

    def rows(self, name: str) -> Array:
        """Return a column of the rows of all maps."""
        one = self.table
        found: Array = getattr(one, name) if isinstance(one, CalibrationMap) else one.maps[name]
        return found

    def places(self, names: tuple[str, ...], values: list[pa.Array]) -> Integers:
        """Return the place of each segment. names, values : segment columns, which may be more than this table's."""
        if isinstance(self.table, CalibrationMap):
            return np.zeros(len(values[0]) if values else 1, np.int64)
        own = [values[names.index(name)] for name in self.columns]
        return self.table.index.find(own)[0].astype(np.int64)

    def maps_at(self, places: Integers) -> Integers:
        """The number of the map of each place."""
        if isinstance(self.table, CalibrationMap) or self.table.adjustments is None:
            return places
        return self.table.adjustments.map[places].astype(np.int64)

    def predict(self, scores: Array, places: Integers) -> Array:
        """The probability of each score, which goes through the place beside it."""
        if isinstance(self.table, CalibrationMap):
            return np.asarray(self.table.predict(scores))
        return self.table.apply(scores, places.astype(np.int32))


@dataclass(frozen=True)
class TwoTables:
    """Two tables' maps, and the rows over which pairs of them are compared.

    Attributes
    ----------
    lowest, highest : of the scores of those rows; finite
    old_weighs : whether the old maps say where the rows lie, instead of the new ones
    """

    old: TableMaps
    new: TableMaps
    lowest: float
    highest: float
    old_weighs: bool = False

    def changes(self, old_places: Integers, new_places: Integers) -> Array:
        """Measure the distance of the maps, pair by pair.

        Parameters
        ----------
        old_places, new_places : int64 arrays, shape (pairs,): what the rows of each pair go through

        Returns
        -------
        float64 array, shape (5, pairs)
            In the order of `MapChange`: mean of |new - old|, the largest of it and where, the means of old and of new.

        Notes
        -----
        O(rows of both maps) a pair.
        """
        sides = (self.old, self.new)
        maps = [one.maps_at(places) for one, places in zip(sides, (old_places, new_places), strict=True)]
        found = np.empty((5, old_places.size))
        order = np.lexsort((maps[1], maps[0]))
        lengths = [np.diff(one.starts)[own][order] for one, own in zip(sides, maps, strict=True)]
        block = np.cumsum(lengths[0] + lengths[1]) // _BLOCK
        for some in np.split(order, np.flatnonzero(np.diff(block)) + 1) if order.size else []:
            own_maps = np.stack([own[some] for own in maps])
            found[:, some] = self._block(own_maps, (old_places[some], new_places[some]))
        return found

    def _block(self, maps: Integers, places: tuple[Integers, Integers]) -> Array:
        """`changes` of some pairs. maps : int64 array, shape (2, pairs): equal pairs follow each other."""
        # Where segments move maps, many pairs are of the same two maps: their pieces are found once.
        new = np.append(True, (maps[:, 1:] != maps[:, :-1]).any(axis=0))
        points, all_shares, starts = self._pieces(maps[:, new])
        own = np.cumsum(new) - 1
        at, pair = _ranges(starts[:-1][own], np.diff(starts)[own])
        scores, share = points[at], all_shares[at]
        p, q = (
            one.predict(scores.ravel(), np.repeat(own_places[pair], _POINTS)).reshape(scores.shape)
            for one, own_places in zip((self.old, self.new), places, strict=True)
        )
        apart, pairs = np.abs(q - p), maps.shape[1]
        largest = np.zeros(pairs)
        np.maximum.at(largest, pair, apart.max(axis=1))
        # The lowest score of those where maps are farthest apart.
        piece, point = np.nonzero(apart == largest[pair][:, np.newaxis])
        first = np.unique(pair[piece], return_index=True)[1]
        farthest = np.where(largest > 0, scores[piece[first], point[first]], self.lowest)
        means = (np.bincount(pair, share * column[:, 1], pairs) for column in (apart, p, q))
        mean, mean_old, mean_new = means
        return np.stack([mean, largest, farthest, mean_old, mean_new])

    def _pieces(self, maps: Integers) -> tuple[Array, Array, Integers]:
        """Find the pieces between neighbouring edges of pairs of maps, where there are rows.

        maps : int64 array, shape (2, pairs)

        Returns
        -------
        points : float64 array, shape (pieces, points): of each piece
        share : of the pair's rows in each piece. starts : where each pair's pieces begin, and the end
        """
        low, high, pair = self._edges(maps)
        pairs = maps.shape[1]
        # Lines, so the ends of a piece are the farthest; the upper one is not part of it.
        points = np.stack([low, low / 2 + high / 2, np.maximum(low, np.nextafter(high, -np.inf))], axis=1)
        sides = [(one, maps[i]) for i, one in enumerate((self.old, self.new))]
        share = high - low
        # The rows of an interval of the finer table lie in it as the other's do, whose rows lie evenly in its own.
        for one, own in sides[::-1] if self.old_weighs else sides:
            row = _row_at(one, own[pair], points[:, 1])
            run = np.cumsum(np.append(False, (np.diff(pair) > 0) | (np.diff(row) != 0)))
            share = one.rows("weight")[row] * _shares(share, run, high - low)
        share = _shares(share, pair)
        # Pieces without rows change nothing: most of the gaps of isotonic maps.
        kept = np.flatnonzero(share)
        return points[kept], share[kept], np.searchsorted(pair[kept], np.arange(pairs + 1))

    def _edges(self, maps: Integers) -> tuple[Array, Array, Integers]:
        """Find the ends of the pieces of pairs of maps within the scores, and their pair."""
        pairs = np.arange(maps.shape[1])
        edges, whose = [np.full(pairs.size, end) for end in (self.lowest, self.highest)], [pairs, pairs]
        for one, own in zip((self.old, self.new), maps, strict=True):
            at, of = _ranges(one.starts[own], np.diff(one.starts)[own] - 1)
            edge = one.rows("score_hi")[at]
            inside = (edge > self.lowest) & (edge < self.highest)
            edges.append(edge[inside])
            whose.append(of[inside])
        edge, pair = np.concatenate(edges), np.concatenate(whose)
        order = np.lexsort((edge, pair))
        edge, pair = edge[order], pair[order]
        apart = (edge[1:] > edge[:-1]) | (self.lowest == self.highest)
        piece = np.flatnonzero((pair[1:] == pair[:-1]) & apart)
        return edge[piece], edge[piece + 1], pair[piece]


_POINTS = 3
"""Points of a piece at which maps are compared: its first score, its middle, its last score."""


def _ranges(starts: Integers, counts: Integers) -> tuple[Integers, Integers]:
    """The whole numbers from each start on, and the place of the start that each comes from."""
    of = np.repeat(np.arange(counts.size), counts)
    return np.arange(of.size) - np.repeat(np.cumsum(counts) - counts - starts, counts), of


def _shares(mass: Array, group: Integers, otherwise: Array | None = None) -> Array:
    """Divide by the sum of the group; where it is 0 take the share of `otherwise`, or the same for all."""
    whole = np.bincount(group, mass)[group]
    rest = 1 / np.bincount(group)[group] if otherwise is None else _shares(otherwise, group)
    return np.divide(mass, whole, out=rest, where=whole > 0)


def _row_at(maps: TableMaps, own: Integers, score: Array) -> Integers:
    """The row that each finite score lies in, of the map whose number is given with it."""
    row, end, hi = maps.starts[own], maps.starts[own + 1] - 1, maps.rows("score_hi")
    while (row < end).any():
        middle = (row + end) >> 1
        passed = hi[middle] <= score
        row, end = np.where((row < end) & passed, middle + 1, row), np.where(passed, end, middle)
    return row
