"""Distance of two calibration maps over the rows that one of them was fitted to; and whether a map ranks."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from calibrators.arithmetic.calibration_map import CalibrationMap, line
from calibrators.arithmetic.log_odds import log_odds
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


def map_change(old: CalibrationMap, new: CalibrationMap, lowest: float, highest: float) -> MapChange:
    """Measure the distance of `new` from `old` over the rows that `new` was fitted to.

    Parameters
    ----------
    lowest, highest : of the scores of those rows; finite

    Notes
    -----
    A map says how many of its rows lie in each of its intervals, and not where: they are taken to lie evenly. O(rows of
    both maps).
    """
    both = TwoTables(TableMaps.of_one(old), TableMaps.of_one(new), lowest, highest)
    return _changes(both, [], np.ones(1)).whole


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
    segment without a map of its own are assumed to lie like those of the map that it falls back to. See `map_change`.
    O(rows of both tables).

    Raises
    ------
    InputRejectedError
        A table cannot be read.
    """
    before, after = (TableMaps.of_table(*place) for place in (old, new))
    old_weighs = not set(old[1]) <= set(new[1])
    if old_weighs and not set(new[1]) <= set(old[1]):
        return None
    both, finer = TwoTables(before, after, lowest, highest, old_weighs), before if old_weighs else after
    if finer.lookup is None:
        return _changes(both, [], np.ones(1))
    segments = finer.lookup.own_segments
    columns = [segments.column(name).combine_chunks() for name in finer.columns]
    rows = as_numpy(segments.column("rows").combine_chunks())
    return _changes(both, columns, rows)


def _changes(both: TwoTables, columns: list[pa.Array], rows: npt.NDArray[Any]) -> TableChange:
    """columns, rows : the values of the segments of the finer table, and how many rows each has."""
    finer = both.old if both.old_weighs else both.new
    places = [one.places(finer.columns, columns) for one in (both.old, both.new)]
    pairs, pair = np.unique((places[0] << 32) | places[1], return_inverse=True)
    each = both.changes(pairs >> 32, pairs & 0xFFFFFFFF)
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
    """Tell whether all scores get the same probability."""
    return bool(np.all(one.slope == 0) and np.all(one.prob_lo == one.prob_lo[0]))


def map_of(version: Version) -> CalibrationMap:
    """A version's map of all rows. Errors: InputRejectedError where the table cannot be read."""
    if segments_of(version):
        return cached_segmented_lookup(version.lookup_path).whole
    return cached_lookup_table(version.lookup_path).map


_BLOCK = 1 << 16
"""Pieces that are worked on at once, about: their arrays stay small."""


@dataclass(frozen=True)
class TableMaps:
    """The maps of a table, one after the other; one without segments has one.

    A place is a map's number, or where segments move maps that of an entry of `SegmentedLookup.adjustments`. Rows of a
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
        """Make it for one map."""
        names = CalibrationMap.__dataclass_fields__
        return cls({name: getattr(one, name) for name in names}, np.array([0, len(one)]))

    @classmethod
    def of_table(cls, path: str, columns: tuple[str, ...]) -> TableMaps:
        """Make it for a published table. Errors: InputRejectedError if it cannot be read."""
        if not columns:
            return cls.of_one(cached_lookup_table(path).map)
        lookup = cached_segmented_lookup(path)
        return cls(lookup.maps, lookup.starts, lookup.columns, lookup)

    def places(self, names: tuple[str, ...], values: list[pa.Array]) -> Integers:
        """Return the place of each segment. names, values : segment columns, which may be more than this table's."""
        if self.lookup is None:
            return np.zeros(len(values[0]) if values else 1, np.int64)
        own = [values[names.index(name)] for name in self.columns]
        return self.lookup.index.find(own)[0].astype(np.int64)

    def maps_at(self, places: Integers) -> Integers:
        """The number of the map of each place."""
        adjustments = None if self.lookup is None else self.lookup.adjustments
        return places if adjustments is None else adjustments.map[places].astype(np.int64)

    def adjusted(self, level: Array, piece: Integers, entry: Integers, score: Array) -> Array:
        """Evaluate maps, adjusted by an entry of `SegmentedLookup.adjustments`.

        Parameters
        ----------
        level : float64 array, shape (pieces,): what the map says
        piece, entry, score : arrays, shape (n,): of each probability that is asked for
        """
        adjustments = None if self.lookup is None else self.lookup.adjustments
        if adjustments is None:
            return level[piece]
        low, high = (column[entry] for column in self._held_in)
        shift, slope = adjustments.shift[entry], adjustments.slope[entry]
        # Many entries move the same pieces.
        from calibrators._kernels.log_odds import logistic

        probability = shift + slope * np.clip(log_odds(level.clip(5e-324, _BELOW_1))[piece], low, high)
        logistic(probability, probability)
        level, as_it_is = level[piece], (shift == 0.0) & (slope == 1.0)
        probability[as_it_is] = level[as_it_is]
        if adjustments.of is not None:
            sigmoids = np.flatnonzero(adjustments.of[entry])
            probability[sigmoids] = adjustments.apply(
                level[sigmoids], entry[sigmoids].astype(np.int32), score[sigmoids]
            )
        return probability

    @cached_property
    def _held_in(self) -> tuple[Array, Array]:
        """The log odds that an entry's map is held in."""
        adjustments = None if self.lookup is None else self.lookup.adjustments
        return (
            (np.empty(0), np.empty(0))
            if adjustments is None
            else (log_odds(adjustments.low), log_odds(adjustments.high))
        )

    def of_maps(self, entry: Integers) -> npt.NDArray[np.bool_]:
        """Tell whether an entry's probabilities are constant where its map's are."""
        adjustments = None if self.lookup is None else self.lookup.adjustments
        return (
            np.ones(entry.size, np.bool_)
            if adjustments is None or adjustments.of is None
            else adjustments.of[entry] == 0
        )


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
        pieces = self._pieces(maps[:, new])
        index = np.cumsum(new) - 1
        at, pair = _ranges(pieces.starts[:-1][index], np.diff(pieces.starts)[index])
        old, after = self._values(pieces, at, 1, [index[pair] for index in places])
        constant = pieces.flat[0][at] & pieces.flat[1][at]
        for one, index in zip((self.old, self.new), places, strict=True):
            constant &= one.of_maps(index)[pair]
        # Of pieces on which either map changes, the first and the last score count as well.
        changing = np.flatnonzero(~constant)
        apart, where, whose = [np.abs(after - old)], [_POINTS * at + np.where(constant, 0, 1)], [pair]
        for point in (0, 2):
            ends = self._values(pieces, at[changing], point, [index[pair[changing]] for index in places])
            apart.append(np.abs(ends[1] - ends[0]))
            where.append(_POINTS * at[changing] + point)
            whose.append(pair[changing])
        pairs, all_apart, of_pair = maps.shape[1], np.concatenate(apart), np.concatenate(whose)
        largest, lowest = np.zeros(pairs), np.full(pairs, pieces.points.size)
        np.maximum.at(largest, of_pair, all_apart)
        # The lowest score of those where maps are farthest apart.
        top = np.flatnonzero(all_apart == largest[of_pair])
        np.minimum.at(lowest, of_pair[top], np.concatenate(where)[top])
        farthest = np.where(largest > 0, pieces.points.ravel()[lowest], self.lowest)
        share = pieces.share[at]
        mean, mean_old, mean_new = (
            np.bincount(pair, share * column, pairs) for column in (apart[0], old, after)
        )
        return np.stack([mean, largest, farthest, mean_old, mean_new])

    def _values(self, pieces: _Pieces, at: Integers, point: int, entries: list[Integers]) -> list[Array]:
        """Evaluate either table at a point of pieces."""
        score = pieces.points[at, point]
        return [
            one.adjusted(level[:, point], at, entry, score)
            for one, level, entry in zip((self.old, self.new), pieces.levels, entries, strict=True)
        ]

    def _pieces(self, maps: Integers) -> _Pieces:
        """Find the pieces of pairs of maps. maps : int64 array, shape (2, pairs)."""
        low, high, pair, rows = self._edges(maps)
        pairs = maps.shape[1]
        # Lines, so the ends of a piece are the farthest; the upper one is not part of it.
        points = np.stack([low, low / 2 + high / 2, np.maximum(low, np.nextafter(high, -np.inf))], axis=1)
        middle = [own.copy() for own in rows]
        rounded = np.flatnonzero((points[:, 1] < low) | (points[:, 1] >= high))
        for row, one, own in zip(middle, (self.old, self.new), maps, strict=True):
            row[rounded] = _row_at(one, own[pair[rounded]], points[rounded, 1])
        finer, row = (self.old, middle[0]) if self.old_weighs else (self.new, middle[1])
        # The rows of an interval of the finer table lie evenly in it.
        run = np.cumsum(np.append(False, (np.diff(pair) > 0) | (np.diff(row) != 0)))
        width, pieces_of_run = np.bincount(run, high - low)[run], np.bincount(run)[run]
        with np.errstate(invalid="ignore", divide="ignore"):
            share = finer.rows["weight"][row] * np.where(width > 0, (high - low) / width, 1 / pieces_of_run)
            whole = np.bincount(pair, share, pairs)[pair]
            share = np.where(whole > 0, share / whole, 1 / np.bincount(pair, minlength=pairs)[pair])
        # Pieces without rows change nothing: most of the gaps of isotonic maps.
        kept = np.flatnonzero(share)
        points = points[kept]
        levels, flat = [], []
        for one, first, mid in zip((self.old, self.new), rows, middle, strict=True):
            at = np.stack([first, mid, first], axis=1)[kept]
            levels.append(line(points, *(one.rows[name][at] for name in ("prob_lo", "slope", "anchor"))))
            flat.append((one.rows["slope"][at[:, 0]] == 0.0) & (at[:, 0] == at[:, 1]))
        starts = np.searchsorted(pair[kept], np.arange(pairs + 1))
        return _Pieces(points, share[kept], levels, flat, starts)

    def _edges(self, maps: Integers) -> tuple[Array, Array, Integers, list[Integers]]:
        """Find the ends of the pieces of pairs of maps within the scores, their pair, and either map's row there."""
        pairs = np.arange(maps.shape[1])
        edges, whose, origin = [np.full(pairs.size, self.lowest)], [pairs], [np.full(pairs.size, 2)]
        for number, (one, own) in enumerate(zip((self.old, self.new), maps, strict=True)):
            at, of = _ranges(one.starts[own], np.diff(one.starts)[own] - 1)
            edge = np.maximum(one.rows["score_hi"][at], self.lowest)
            inside = edge <= self.highest
            edges.append(edge[inside])
            whose.append(of[inside])
            origin.append(np.full(edges[-1].size, number))
        # By pair and edge: of each pair there are two ascending runs, which a stable sort merges.
        together = np.argsort(np.concatenate(whose), kind="stable")
        keys = np.empty(together.size, np.complex128)
        keys.real, keys.imag = (np.concatenate(column)[together] for column in (whose, edges))
        order = np.argsort(keys, kind="stable")
        edge, own_pair, side = keys.imag[order], keys.real[order], np.concatenate(origin)[together][order]
        # The last of equal edges; where several scores lie between the ends, that at the highest one has no piece.
        last = np.append((own_pair[1:] != own_pair[:-1]) | (edge[1:] != edge[:-1]), True)
        piece = np.flatnonzero(last & ((edge < self.highest) | (self.lowest == self.highest)))
        begin = np.searchsorted(own_pair, pairs)
        of, rows = own_pair[piece].astype(np.int64), []
        for number, (one, own) in enumerate(zip((self.old, self.new), maps, strict=True)):
            passed = np.append(0, np.cumsum(side == number))
            rows.append(one.starts[own][of] + passed[piece + 1] - passed[begin][of])
        low = edge[piece]
        high = np.append(low[1:], self.highest)
        high[np.append(np.diff(of) > 0, True)] = self.highest
        return low, high, of, rows


_BELOW_1 = 1.0 - 2.0**-53

_POINTS = 3
"""Points of a piece at which maps are compared: its first score, its middle, its last score."""


class _Pieces(NamedTuple):
    """Pieces between neighbouring edges of the two maps of each pair, where there are rows.

    points : float64 array, shape (pieces, points). share : of the pair's rows. levels : what either map says at the
    points; flat : whether these are equal. starts : where each pair's pieces begin, and the end
    """

    points: Array
    share: Array
    levels: list[Array]
    flat: list[npt.NDArray[np.bool_]]
    starts: Integers


def _ranges(starts: Integers, counts: Integers) -> tuple[Integers, Integers]:
    """The whole numbers from each start on, and the place of the start that each comes from."""
    of = np.repeat(np.arange(counts.size), counts)
    return np.arange(of.size) - np.repeat(np.cumsum(counts) - counts - starts, counts), of


def _row_at(maps: TableMaps, own: Integers, score: Array) -> Integers:
    """The row that each finite score lies in, of the map whose number is given with it."""
    row, end, hi = maps.starts[own], maps.starts[own + 1] - 1, maps.rows["score_hi"]
    while (row < end).any():
        middle = (row + end) >> 1
        passed = hi[middle] <= score
        row, end = np.where((row < end) & passed, middle + 1, row), np.where(passed, end, middle)
    return row
