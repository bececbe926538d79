"""Lookup tables: a calibration map, or one for each segment, with the facts of their making.

lookup.parquet has the maps: of all rows, and, with segments, of the leading columns and of the segments, sorted by
level, segment and score. segments.parquet, in the same folder, has one row per segment: how many rows it had, which
rows its map was fitted to and, if these are not its own, why. With partial pooling it also has how much each segment
adjusts the map that it uses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from calibrators.arithmetic.calibration_map import CalibrationMap, Interval, compiled, line
from calibrators.arithmetic.ordering import ordinals
from logcal import schema
from logcal.adjustments import Adjustments, adjust_map
from logcal.arrow_columns import as_column, as_numpy, column_of
from logcal.segment_index import SegmentIndex

Array = npt.NDArray[np.float64]
Key = tuple[Any, ...]
"""A segment: one value per segment column (str, int, bool, datetime.date), None for null."""

_BUCKETS_PER_ROW = 4
"""Size limit of a segment map's index, in buckets a row: two thirds of look-ups then need no search."""


@dataclass(frozen=True)
class LookupFacts:
    """Facts in a lookup table's metadata.

    Attributes
    ----------
    version : the published version's name.
    method : the calibrator's name in configurations. parameters : what it was given.
    score_transform : one of `logcal.schema.TRANSFORMS`, to be applied to scores before the map.
    monotone : whether the map never decreases.
    data : facts of the calibration data, as JSON values.
    fingerprint : see `fingerprint` and `segmented_fingerprint`.
    rows : of all maps.
    segments : names of the segment columns.
    format_version : of the file.
    interval : the kind of its rows' intervals, 'posterior', 'band' or 'venn_abers'; None without intervals.
    """

    version: str
    method: str
    parameters: dict[str, Any]
    score_transform: str
    monotone: bool
    data: dict[str, Any]
    fingerprint: str
    rows: int
    segments: tuple[str, ...] = ()
    format_version: str = "1"
    interval: str | None = None

    @property
    def content(self) -> dict[str, Any]:
        """Facts that are part of the fingerprint of a table without segments."""
        names = ("method", "parameters", "score_transform", "data")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class LookupTable:
    """A calibration map with its metadata, and an interval for each of its rows, if it has intervals."""

    map: CalibrationMap
    facts: LookupFacts = field(repr=False)
    interval: Interval | None = field(default=None, repr=False)


@dataclass(frozen=True)
class SegmentedLookup:
    """A table with segments, ready to score with.

    Attributes
    ----------
    facts : see `LookupFacts`.
    maps : the columns of all maps, one after the other, as in `CalibrationMap`.
    starts : int64 array, shape (maps + 1,): where each map begins, and where the last one ends.
    owners, levels : the segments that the maps belong to: the columns of their keys, and how many of these count.
    segments : the segments that the table was fitted to; `logcal.schema.segments`, or `adjusted_segments`.
    index : the map that a segment's rows use; with `adjustments`, the entry of it.
    adjustments : how segments adjust maps; None without partial pooling.
    interval : of each row of the maps; None without intervals.
    """

    facts: LookupFacts
    maps: dict[str, Array] = field(repr=False)
    starts: npt.NDArray[np.int64] = field(repr=False)
    owners: list[pa.Array] = field(repr=False)
    levels: npt.NDArray[np.int64] = field(repr=False)
    segments: pa.Table = field(repr=False)
    index: SegmentIndex = field(repr=False)
    adjustments: Adjustments | None = field(default=None, repr=False)
    interval: Interval | None = field(default=None, repr=False)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the segment columns, as fitted."""
        return self.facts.segments

    @cached_property
    def fitted_on(self) -> dict[Key, str]:
        """Rows that each segment's map was fitted to: `segment`, `moved`, `parent`, `global` or `identity`."""
        own = self.finest_segments
        return dict(zip(self.keys, own.column("fitted_on").to_pylist(), strict=True))

    def sources_of(self, keys: Sequence[pa.Array], other: str) -> pa.Array:
        """Return the rows that each key's map was fitted to, as `fitted_on`; `other` if the table has no such segment.

        keys : a column of values for each segment column. No Python objects are created, for speed.
        """
        own = self.finest_segments
        columns = [one_array(own.column(name)) for name in self.columns]
        sources = one_array(own.column("fitted_on"))
        if all(column.equals(key) for column, key in zip(columns, keys, strict=True)):
            return sources
        # All rows, which each index has, come first: what is not known is found there.
        depth, count = len(columns), own.num_rows
        index = SegmentIndex(
            [pa.concat_arrays([pa.nulls(1, column.type), column]) for column in columns],
            np.append(0, np.full(count, depth)),
            np.arange(count + 1),
            np.append(np.zeros(1, np.bool_), np.ones(count, np.bool_)),
        )
        place, _ = index.find(keys)
        return pa.concat_arrays([column_of([other], pa.string()), sources]).take(as_column(place))

    @cached_property
    def keys(self) -> list[Key]:
        """The segments of all columns that the table was fitted to, in order."""
        own = self.finest_segments
        return keys_of([own.column(name) for name in self.columns])

    @cached_property
    def finest_segments(self) -> pa.Table:
        """Rows of `segments` whose keys have all columns."""
        if self.adjustments is None:
            return self.segments
        levels = as_numpy(self.segments.column(schema.SEGMENT_LEVEL))
        above = int(np.count_nonzero(levels < len(self.columns)))
        return self.segments.slice(above)

    @cached_property
    def bounds(self) -> dict[Key, tuple[int, int]]:
        """Rows in `maps` of each segment with a map, by its key of any level."""
        keys = zip(keys_of(self.owners), self.levels.tolist(), strict=True)
        spans = pairwise(self.starts.tolist())
        return {key[:n]: span for (key, n), span in zip(keys, spans, strict=True)}

    @cached_property
    def entries(self) -> dict[Key, int]:
        """Entry of `adjustments` for each key of any level that has no map of its own, or a sigmoid."""
        if self.adjustments is None:
            return {}
        keys = keys_of([self.segments.column(name) for name in self.columns])
        levels = self.segments.column(schema.SEGMENT_LEVEL).to_pylist()
        fitted = self.segments.column("fitted_level").to_pylist()
        found = enumerate(zip(keys, levels, fitted, strict=True), self.levels.size)
        sigmoid = np.zeros(0, np.int8) if self.adjustments.kind is None else self.adjustments.kind
        return {key[:n]: i for i, (key, n, at) in found if at < n or sigmoid[i : i + 1].any()}

    def rows_of(self, key: Key) -> tuple[int, int]:
        """The rows of the map that a key's scores go through: its own, a parent's, or that of all rows."""
        return next(self.bounds[key[:n]] for n in range(len(key), -1, -1) if key[:n] in self.bounds)

    def entry_of(self, key: Key) -> int | None:
        """The entry of `adjustments` for a key's probabilities; None if its map is not adjusted."""
        # All rows have a map as it is.
        for n in range(len(key), 0, -1):
            if key[:n] in self.entries:
                return self.entries[key[:n]]
            if key[:n] in self.bounds:
                return None
        return None

    def map_of(self, key: Key) -> CalibrationMap:
        """The map that a key's scores go through.

        Where a map is adjusted, this is within a relative 2e-5 of the probabilities in gaps: a line is no longer one.
        """
        raw, entry = self.unadjusted_map(key), self.entry_of(key)
        return raw if self.adjustments is None or entry is None else adjust_map(raw, self.adjustments, entry)

    def unadjusted_map(self, key: Key) -> CalibrationMap:
        """Return the map that a key's scores go through, before it is adjusted."""
        start, stop = self.rows_of(key)
        return CalibrationMap(**{name: column[start:stop] for name, column in self.maps.items()})

    def maps_of(self, keys: Sequence[pa.Array]) -> list[CalibrationMap]:
        """The maps that segments' scores go through, as `map_of` has them. keys : a column for each segment column."""
        found = []
        for place in self.index.find(keys)[0].tolist():
            number = place if self.adjustments is None else self.adjustments.map[place]
            rows = slice(*self.starts[number : number + 2])
            own = CalibrationMap(**{name: column[rows] for name, column in self.maps.items()})
            if self.adjustments is not None and place >= self.levels.size:
                # The entries before are the maps as they are.
                own = adjust_map(own, self.adjustments, place)
            found.append(own)
        return found

    @property
    def global_map(self) -> CalibrationMap:
        """The map of all rows."""
        return self.map_of(())

    @property
    def global_interval(self) -> Interval | None:
        """Intervals of the rows of the map of all rows; None without intervals."""
        rows = slice(*self.bounds[()])
        return None if self.interval is None else Interval(*(column[rows] for column in self.interval))

    def apply(self, scores: Array, place: npt.NDArray[np.int32]) -> Array:
        """Probabilities, NaN for NaN. place : of each score the number of its map or entry, as `index` finds them."""
        if self.adjustments is not None:
            return self.adjustments.apply(self._of_maps(scores, self.adjustments.map[place]), place, scores)
        return self._of_maps(scores, place)

    def _of_maps(self, scores: Array, place: npt.NDArray[np.integer[Any]]) -> Array:
        if compiled(scores.size):
            from calibrators._kernels import lookup

            out, scores = np.empty(scores.size), np.ascontiguousarray(scores)
            lookup.apply_each(scores, scores.view(np.uint64), place, self._index, out)
            return out
        row = self._rows_at(scores, place)
        return line(scores, *(self.maps[name][row] for name in ("prob_lo", "slope", "anchor")))

    @cached_property
    def _index(self) -> tuple[Any, ...]:
        """The rows of all maps as the compiled look-up takes them, and an index on the bits of scores for each map."""
        rows = np.column_stack([self.maps[name] for name in ("score_hi", "prob_lo", "slope", "anchor")])
        rows[self.starts[1:] - 1, 0] = np.nan
        edges = ordinals(self.maps["score_hi"])
        first, finite = self.starts[:-1], np.diff(self.starts) - 1
        span = np.where(finite > 0, edges[self.starts[1:] - 2] - edges[first], 0)
        # As many bits as leave so few buckets.
        shift, wanted = np.zeros(first.size, np.uint64), (_BUCKETS_PER_ROW * finite).astype(np.uint64)
        while (large := (span >> shift >= wanted) & (finite > 0)).any():
            shift += large.astype(np.uint64)
        sizes = (span >> shift).astype(np.int64) + 2
        places = np.cumsum(sizes) - sizes
        heads = np.column_stack(
            [edges[first], shift, places.astype(np.uint64), (sizes - 2).astype(np.uint64)]
        )
        # Of each bucket how many edges are below it: those of the buckets before it, added up.
        owner = np.repeat(np.arange(first.size), finite)
        inner = np.delete(np.arange(edges.size), self.starts[1:] - 1)
        bucket = ((edges[inner] - edges[first][owner]) >> shift[owner]).astype(np.int64)
        below = np.cumsum(np.bincount(places[owner] + bucket + 1, minlength=int(sizes.sum())))
        own = np.repeat(below[places] - first, sizes)
        buckets = (below - own).astype(np.uint32)
        return rows, heads, buckets

    def _rows_at(self, scores: Array, place: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.int64]:
        """The row of `maps` that each score lies in; any of its map for NaN. place : of each the number of its map."""
        score_hi = self.maps["score_hi"]
        row: npt.NDArray[np.int64] = self.starts[place]
        end = self.starts[place + 1] - 1
        while (searching := row < end).any():
            middle = (row + end) >> 1
            above = searching & (score_hi[middle] <= scores)
            end = np.where(searching & ~above, middle, end)
            row = np.where(above, middle + 1, row)
        return row

    def intervals(self, scores: Array, place: npt.NDArray[np.int32]) -> tuple[Array, Array]:
        """Return for each score the interval of its row; NaN for NaN. place : as in `apply`."""
        assert self.interval is not None
        row, missing = self._rows_at(scores, place), np.isnan(scores)
        lower, upper = (np.where(missing, np.nan, column[row]) for column in self.interval)
        return lower, upper


def one_array(column: pa.ChunkedArray) -> pa.Array:
    """A column of a table in one piece."""
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def keys_of(columns: Sequence[pa.Array | pa.ChunkedArray]) -> list[Key]:
    """Arrow columns as keys."""
    return list(zip(*(column.to_pylist() for column in columns), strict=True))
