"""Distance between two tables' maps over the rows of one of them; ranking by a map."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from calibrators.core.arrays import Array, Integers
from calibrators.core.map import CalibrationMap
from calibrators.measures.certainty import area_under_roc
from logcal.arrow_columns import as_numpy, one_array
from logcal.lookup_table import LookupTable, keys_of
from logcal.reading import cached_table
from pipeline.log.segment_values import Key
from pipeline.table.published import Version, segments_of

ABOVE_CHANCE = 2.33
"""Number of standard errors that chance exceeds, in one direction, once in a hundred times."""


@dataclass(frozen=True)
class MapChange:
    """Change from one map to another.

    Attributes
    ----------
    mean : float >= 0: mean of |new - old| over the rows
    largest : float >= 0: largest |new - old|
    at_score : score of the largest change
    mean_old, mean_new : float in [0, 1]: mean probabilities of the rows
    """

    mean: float
    largest: float
    at_score: float
    mean_old: float
    mean_new: float

    @property
    def relative(self) -> float:
        """Mean change over the larger one of the mean probabilities; at most 1."""
        return self.mean / max(self.mean_old, self.mean_new) if self.mean > 0 else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return a dict for JSON."""
        return {**asdict(self), "relative": self.relative}


@dataclass(frozen=True)
class TableChange:
    """Change from one table to another, over the rows of one of them.

    Attributes
    ----------
    whole : change of all rows
    keys : keys of the segments, in the order of their table; empty without segments
    rows : int64 array: number of rows of each segment
    """

    whole: MapChange
    keys: list[Key]
    rows: Integers
    _pair: Integers = field(repr=False)
    _changes: Array = field(repr=False)

    def order(self) -> Integers:
        """Return the indices of the segments by decreasing mean change."""
        return np.lexsort((np.arange(self._pair.size), -self._changes[0][self._pair]))

    def of(self, segment: int) -> MapChange:
        """Return the change of a segment's rows."""
        return MapChange(*self._changes[:, self._pair[segment]].tolist())


def table_change(old: Version, new: Version) -> TableChange | None:
    """Measure the change between two versions; see `change_of_tables`. None if they cannot be compared."""
    if old.manifest["score_transform"] != new.manifest["score_transform"]:
        return None
    data = new.manifest["data"]
    before, after = ((version.lookup_path, segments_of(version)) for version in (old, new))
    return change_of_tables(before, after, data["lowest_score"], data["highest_score"])


Location = tuple[str, tuple[str, ...]]
"""Path of a lookup table, and its segment columns."""


def change_of_tables(old: Location, new: Location, lowest: float, highest: float) -> TableChange | None:
    """Measure the change between tables with the same transform; each row has its segment's map in both.

    Parameters
    ----------
    lowest, highest : range of the rows' scores

    Returns
    -------
    TableChange, or None if neither table's segment columns include the other's: then the maps of a row are unknown

    Notes
    -----
    Rows are taken from the table with more segment columns; from the new one if both have the same number. The rows of
    a segment without its own map are assumed to have the distribution of the map that it falls back to. A map has a
    row count for each of its intervals. Within an interval, these rows are assumed to have the distribution of the
    other table's rows, which are assumed to be uniform within its intervals. O(rows of both tables).

    Raises
    ------
    InputRejectedError
        A table cannot be read.
    """
    before, after = (cached_table(path) for path, _ in (old, new))
    rows_of_old = not set(old[1]) <= set(new[1])
    if rows_of_old and not set(new[1]) <= set(old[1]):
        return None
    both, finer = TwoTables(before, after, lowest, highest, rows_of_old), before if rows_of_old else after
    columns, rows = [], np.ones(1, np.int64)
    if finer.columns:
        segments = finer.finest_segments
        columns, rows = (
            [one_array(segments.column(n)) for n in finer.columns],
            as_numpy(segments.column("rows")),
        )
    old_index, new_index = (_entries(table, finer.columns, columns) for table in (before, after))
    pairs, pair = np.unique((old_index << 32) | new_index, return_inverse=True)
    changes = both.changes(pairs >> 32, pairs & 0xFFFFFFFF)
    pair_rows = np.bincount(pair, rows, pairs.size)
    farthest = int(np.lexsort((-pair_rows, -changes[1]))[0])
    mean, mean_old, mean_new = (changes[[0, 3, 4]] @ (pair_rows / pair_rows.sum())).tolist()
    largest, at = changes[1:3, farthest].tolist()
    change = MapChange(mean, largest, at, mean_old, mean_new)
    return TableChange(change, keys_of(columns), rows, pair, changes)


def ranking(fitted: CalibrationMap) -> tuple[float | None, float | None]:
    """Compute the AUC of a map's intervals on the rows that it was fitted to, and its standard error.

    Rows of the same interval count as tied, which brings the AUC nearer to 1/2.
    """
    filled = fitted.weight > 0
    return area_under_roc(fitted.weight[filled], fitted.positives[filled])


def one_level(fitted: CalibrationMap) -> bool:
    """Return whether a map gives all scores the same probability."""
    return bool(np.all(fitted.slope == 0) and np.all(fitted.prob_lo == fitted.prob_lo[0]))


def map_of(version: Version) -> CalibrationMap:
    """Return a version's map of all rows. Raises InputRejectedError if the table cannot be read."""
    return cached_table(version.lookup_path).map


_BLOCK = 1 << 16
"""Approximate number of pieces that are compared at a time, to keep arrays small."""


def _entries(table: LookupTable, names: tuple[str, ...], values: list[pa.Array]) -> Integers:
    """Return each segment's entry: see `LookupTable.apply`. names, values : segment columns, with the table's."""
    if not table.columns:
        return np.zeros(len(values[0]) if values else 1, np.int64)
    return table.index.find([values[names.index(name)] for name in table.columns])[0].astype(np.int64)


def _maps_of(table: LookupTable, entries: Integers) -> Integers:
    """Return the number of each entry's map; a segment with a sigmoid has its parent's map, for its rows."""
    return entries if table.adjustments is None else table.adjustments.map[entries].astype(np.int64)


@dataclass(frozen=True)
class TwoTables:
    """Maps of two tables, which are compared in pairs.

    Attributes
    ----------
    lowest, highest : finite range of the rows' scores
    rows_of_old : whether the comparison is over the rows of the old maps, instead of those of the new ones
    """

    old: LookupTable
    new: LookupTable
    lowest: float
    highest: float
    rows_of_old: bool = False

    def changes(self, old: Integers, new: Integers) -> Array:
        """Measure the change between the maps of each pair.

        Parameters
        ----------
        old, new : int64 arrays, shape (pairs,): entries of the pairs in the old and in the new table

        Returns
        -------
        float64 array, shape (5, pairs)
            The fields of `MapChange`, in order.

        Notes
        -----
        O(rows of both maps) per pair.
        """
        tables, maps = (self.old, self.new), [_maps_of(self.old, old), _maps_of(self.new, new)]
        changes = np.empty((5, old.size))
        order = np.lexsort((maps[1], maps[0]))
        lengths = [np.diff(table.starts)[numbers][order] for table, numbers in zip(tables, maps, strict=True)]
        block = np.cumsum(lengths[0] + lengths[1]) // _BLOCK
        for pairs in np.split(order, np.flatnonzero(np.diff(block)) + 1) if order.size else []:
            block_maps = np.stack([numbers[pairs] for numbers in maps])
            changes[:, pairs] = self._changes_of_block(block_maps, (old[pairs], new[pairs]))
        return changes

    def _changes_of_block(self, maps: Integers, indices: tuple[Integers, Integers]) -> Array:
        """Do `changes` for some pairs. maps : int64 array, shape (2, pairs), with equal pairs in succession."""
        # With adjustments many pairs have the same two maps, whose pieces are computed once.
        distinct = np.append(True, (maps[:, 1:] != maps[:, :-1]).any(axis=0))
        points, all_shares, starts = self._pieces(maps[:, distinct])
        position = np.cumsum(distinct) - 1
        at, pair = _ranges(starts[:-1][position], np.diff(starts)[position])
        scores, share = points[at], all_shares[at]
        p, q = (
            table.apply(scores.ravel(), np.repeat(entry[pair], _POINTS).astype(np.int32)).reshape(
                scores.shape
            )
            for table, entry in zip((self.old, self.new), indices, strict=True)
        )
        change, pairs = np.abs(q - p), maps.shape[1]
        largest = np.zeros(pairs)
        np.maximum.at(largest, pair, change.max(axis=1))
        # Of several scores with the largest change, the lowest one is reported.
        piece, point = np.nonzero(change == largest[pair][:, np.newaxis])
        first = np.unique(pair[piece], return_index=True)[1]
        farthest = np.where(largest > 0, scores[piece[first], point[first]], self.lowest)
        means = (np.bincount(pair, share * column[:, 1], pairs) for column in (change, p, q))
        mean, mean_old, mean_new = means
        return np.stack([mean, largest, farthest, mean_old, mean_new])

    def _pieces(self, maps: Integers) -> tuple[Array, Array, Integers]:
        """Find the pieces between neighbouring edges of pairs of maps that have rows.

        maps : int64 array, shape (2, pairs)

        Returns
        -------
        points : float64 array, shape (pieces, points): the compared scores of each piece
        share : float64 array, shape (pieces,): share of the pair's rows in each piece
        starts : int64 array, shape (pairs + 1,): start of each pair's pieces, and the end
        """
        low, high, pair = self._edges(maps)
        pairs = maps.shape[1]
        # Maps are linear on a piece, so the change is largest at its ends; the upper end belongs to the next piece.
        points = np.stack([low, low / 2 + high / 2, np.maximum(low, np.nextafter(high, -np.inf))], axis=1)
        sides = [(self.old, maps[0]), (self.new, maps[1])]
        share = high - low
        # The table whose rows are used comes last: see the notes of `change_of_tables`.
        for table, numbers in sides[::-1] if self.rows_of_old else sides:
            row = table.rows_at(points[:, 1], numbers[pair])
            interval = np.cumsum(np.append(False, (np.diff(pair) > 0) | (np.diff(row) != 0)))
            share = table.maps["weight"][row] * _shares(share, interval, high - low)
        share = _shares(share, pair)
        # Most gaps between the blocks of isotonic maps are pieces without rows.
        filled = np.flatnonzero(share)
        return points[filled], share[filled], np.searchsorted(pair[filled], np.arange(pairs + 1))

    def _edges(self, maps: Integers) -> tuple[Array, Array, Integers]:
        """Return the ends of the pieces of pairs of maps within the range of scores, and the pair of each piece."""
        all_pairs = np.arange(maps.shape[1])
        edges = [np.full(all_pairs.size, end) for end in (self.lowest, self.highest)]
        pairs = [all_pairs, all_pairs]
        for table, numbers in zip((self.old, self.new), maps, strict=True):
            at, pair = _ranges(table.starts[numbers], np.diff(table.starts)[numbers] - 1)
            edge = table.maps["score_hi"][at]
            inside = (edge > self.lowest) & (edge < self.highest)
            edges.append(edge[inside])
            pairs.append(pair[inside])
        edge, pair = np.concatenate(edges), np.concatenate(pairs)
        order = np.lexsort((edge, pair))
        edge, pair = edge[order], pair[order]
        not_empty = (edge[1:] > edge[:-1]) | (self.lowest == self.highest)
        piece = np.flatnonzero((pair[1:] == pair[:-1]) & not_empty)
        return edge[piece], edge[piece + 1], pair[piece]


_POINTS = 3
"""Number of scores of a piece at which maps are compared: the first, the middle, the last."""


def _ranges(starts: Integers, counts: Integers) -> tuple[Integers, Integers]:
    """Return counts[i] consecutive numbers from starts[i] on, for each i, and the i of each number."""
    owner = np.repeat(np.arange(counts.size), counts)
    return np.arange(owner.size) - np.repeat(np.cumsum(counts) - counts - starts, counts), owner


def _shares(mass: Array, group: Integers, fallback: Array | None = None) -> Array:
    """Divide by the sum of the group; groups with sum 0 use the shares of `fallback`, or equal shares."""
    total = np.bincount(group, mass)[group]
    shares = 1 / np.bincount(group)[group] if fallback is None else _shares(fallback, group)
    return np.divide(mass, total, out=shares, where=total > 0)
