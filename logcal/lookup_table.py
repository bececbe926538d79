"""Lookup tables: a calibration map, or one for each segment, with metadata.

lookup.parquet contains the maps, sorted by level, segment and score: the map of all rows and, with segments, those of
keys of leading columns and of segments. segments.parquet, in the same folder, has one row per segment: its number of
rows, the rows that its map was fitted to and, if these are not its own, the reason. With partial pooling it also has
each segment's adjustment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from calibrators.core.arrays import Array, Codes, Integers
from calibrators.core.map import CalibrationMap, Interval, compiled, line
from calibrators.core.sorting import ordinals
from logcal import schema
from logcal.adjustments import Adjustments, adjust_map
from logcal.arrow_columns import as_column, as_numpy, column_of, one_array
from logcal.segment_index import SegmentIndex

Key = tuple[Any, ...]
"""A segment: one value per segment column (str, int, bool, datetime.date), None for null."""

_BUCKETS_PER_ROW = 4
"""Size limit of the index of a segment's map, in buckets per row: two thirds of look-ups then need no search."""


@dataclass(frozen=True)
class LookupFacts:
    """Metadata of a lookup table.

    Attributes
    ----------
    version : name of the published version
    method : name of the calibrator in configurations
    parameters : parameters of the calibrator
    score_transform : one of `logcal.schema.TRANSFORMS`, to be applied to scores before the map
    monotone : whether the map never decreases
    data : facts of the calibration data, as JSON values
    fingerprint : see `logcal.manifest.fingerprint`
    rows : number of rows of all maps
    segments : names of the segment columns
    features : those of `logcal.schema.FEATURES` that the table has
    interval : kind of the rows' intervals, 'posterior', 'band' or 'venn_abers'; None without intervals
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
    features: tuple[str, ...] = ()
    interval: str | None = None

    @property
    def content(self) -> dict[str, Any]:
        """Facts that are part of the fingerprint."""
        return content_of(vars(self))


def content_of(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Select the facts that are part of the fingerprint from those of a table."""
    names = ["method", "parameters", "score_transform", "data"]
    names += ["interval"] if facts.get("interval") is not None else []
    names += ["monotone", "segments"] if facts.get("segments") else []
    return {name: facts[name] for name in names}


@dataclass(frozen=True)
class LookupTable:
    """Lookup table: a calibration map or, with segments, one for each segment.

    Attributes
    ----------
    facts : metadata
    maps : columns of all maps, one map after the other, as in `CalibrationMap`
    starts : int64 array, shape (maps + 1,): first row of each map, and the number of rows
    owners : keys of the maps: a column of values for each segment column
    levels : int64 array, shape (maps,): number of leading columns that make up the map's key; below 0 for maps of all
        rows that are bent, the last ones
    segments : the segments that the table was fitted to; columns as `logcal.schema.segments`
    index : finds the number of a segment's map; with `adjustments`, the number of its entry
    adjustments : adjustments of maps by segments; None without partial pooling
    interval : interval of each row of the maps; None without intervals
    """

    facts: LookupFacts
    maps: dict[str, Array] = field(repr=False)
    starts: Integers = field(repr=False)
    owners: list[pa.Array] = field(repr=False)
    levels: Integers = field(repr=False)
    segments: pa.Table = field(repr=False)
    index: SegmentIndex = field(repr=False)
    adjustments: Adjustments | None = field(default=None, repr=False)
    interval: Interval | None = field(default=None, repr=False)

    @classmethod
    def of_map(
        cls, map_: CalibrationMap, facts: LookupFacts, interval: Interval | None = None
    ) -> LookupTable:
        """Make a table without segments."""
        maps = {name: getattr(map_, name) for name in schema.LOOKUP_TABLE.names}
        zero = np.zeros(1, np.int64)
        index = SegmentIndex([], zero, zero, np.ones(1, np.bool_))
        starts = np.array([0, len(map_)])
        return cls(facts, maps, starts, [], zero, pa.table({}), index, interval=interval)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the segment columns, as fitted; empty without segments."""
        return self.facts.segments

    @cached_property
    def fitted_on(self) -> dict[Key, str]:
        """Rows that each segment's map was fitted to: `segment`, `adjusted`, `parent`, `global` or `identity`."""
        return dict(zip(self.keys, self.finest_segments.column("fitted_on").to_pylist(), strict=True))

    def sources_of(self, keys: Sequence[pa.Array], other: str) -> pa.Array:
        """Return the rows that each key's map was fitted to, as `fitted_on`; `other` if the table has no such segment.

        keys : a column of values for each segment column. No Python objects are created, for speed.
        """
        segments = self.finest_segments
        columns = [one_array(segments.column(name)) for name in self.columns]
        sources = one_array(segments.column("fitted_on"))
        if all(column.equals(key) for column, key in zip(columns, keys, strict=True)):
            return sources
        # The first entry stands for all rows: unknown keys are found there.
        depth, count = len(columns), segments.num_rows
        index = SegmentIndex(
            [pa.concat_arrays([pa.nulls(1, column.type), column]) for column in columns],
            np.append(0, np.full(count, depth)),
            np.arange(count + 1),
            np.append(np.zeros(1, np.bool_), np.ones(count, np.bool_)),
        )
        entries, _ = index.find(keys)
        return pa.concat_arrays([column_of([other], pa.string()), sources]).take(as_column(entries))

    @cached_property
    def keys(self) -> list[Key]:
        """Keys of the segments that the table was fitted to, in order."""
        return keys_of([self.finest_segments.column(name) for name in self.columns])

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
        """First row in `maps`, and the row after the last, of each map that belongs to a key; in the maps' order."""
        keys = zip(keys_of(self.owners) if self.owners else [()], self.levels.tolist(), strict=True)
        spans = pairwise(self.starts.tolist())
        return {key[:n]: span for (key, n), span in zip(keys, spans, strict=True) if n >= 0}

    @cached_property
    def entries(self) -> dict[Key, int]:
        """Entry of `adjustments` for each key, of any level, with an adjusted map or a sigmoid."""
        if self.adjustments is None:
            return {}
        keys = keys_of([self.segments.column(name) for name in self.columns])
        levels = self.segments.column(schema.SEGMENT_LEVEL).to_pylist()
        fitted = self.segments.column("fitted_level").to_pylist()
        rows = enumerate(zip(keys, levels, fitted, strict=True), self.levels.size)
        sigmoid = np.zeros(0, np.int8) if self.adjustments.kind is None else self.adjustments.kind
        return {key[:n]: i for i, (key, n, at) in rows if at < n or sigmoid[i : i + 1].any()}

    def rows_of(self, key: Key) -> tuple[int, int]:
        """Return the first and the end row of the map that the key uses, or adjusts."""
        entry = self.entry_of(key)
        if entry is None or self.adjustments is None:
            return next(self.bounds[key[:n]] for n in range(len(key), -1, -1) if key[:n] in self.bounds)
        return self.rows_adjusted(entry)

    def rows_adjusted(self, entry: int) -> tuple[int, int]:
        """Return the first and the end row of the map that an entry of `adjustments` adjusts."""
        assert self.adjustments is not None
        number = self.adjustments.map[entry]
        return int(self.starts[number]), int(self.starts[number + 1])

    def entry_of(self, key: Key) -> int | None:
        """Return the entry of `adjustments` for a key; None if its map is not adjusted."""
        # The map of all rows is never adjusted.
        for n in range(len(key), 0, -1):
            if key[:n] in self.entries:
                return self.entries[key[:n]]
            if key[:n] in self.bounds:
                return None
        return None

    def adjustment_of(self, entry: int | None) -> dict[str, Any] | None:
        """Return an entry's adjustment, by columns of `logcal.schema.segments`; None if its map is not adjusted."""
        if entry is None or self.adjustments is None:
            return None
        shift, slope, low, high = (float(column[entry]) for column in self.adjustments[1:5])
        kinds = self.adjustments.kind
        kind = schema.LOGIT_FROM[0 if kinds is None else int(kinds[entry])]
        if kind == "map" and (shift, slope) == (0.0, 1.0):
            return None
        numbers = {"logit_shift": shift, "logit_slope": slope, "prob_min": low, "prob_max": high}
        return {"logit_from": kind, **numbers}

    def map_of(self, key: Key) -> CalibrationMap:
        """Return the map of a key.

        An adjusted map approximates the probabilities in gaps by lines, with a relative error of at most 2e-5.
        """
        raw, entry = self.unadjusted_map(key), self.entry_of(key)
        return raw if self.adjustments is None or entry is None else adjust_map(raw, self.adjustments, entry)

    def unadjusted_map(self, key: Key) -> CalibrationMap:
        """Return the map of a key before it is adjusted."""
        start, stop = self.rows_of(key)
        return CalibrationMap(**{name: column[start:stop] for name, column in self.maps.items()})

    def maps_of(self, keys: Sequence[pa.Array]) -> list[CalibrationMap]:
        """Return the maps of keys, as `map_of` does. keys : a column for each segment column."""
        maps = []
        for entry in self.index.find(keys)[0].tolist():
            number = entry if self.adjustments is None else self.adjustments.map[entry]
            rows = slice(*self.starts[number : number + 2])
            raw = CalibrationMap(**{name: column[rows] for name, column in self.maps.items()})
            if self.adjustments is not None and entry >= self.levels.size:
                # The entries before are unadjusted maps.
                raw = adjust_map(raw, self.adjustments, entry)
            maps.append(raw)
        return maps

    @cached_property
    def map(self) -> CalibrationMap:
        """The map of all rows."""
        return self.map_of(())

    def apply(self, scores: Array, entry: Codes) -> Array:
        """Return calibrated probabilities, NaN for NaN. entry : number of each score's map or entry, from `index`."""
        if self.adjustments is not None:
            return self.adjustments.apply(
                self._apply_maps(scores, self.adjustments.map[entry]), entry, scores
            )
        return self._apply_maps(scores, entry)

    def _apply_maps(self, scores: Array, number: npt.NDArray[np.integer[Any]]) -> Array:
        if compiled(scores.size):
            from calibrators.core.kernels import lookup

            out, scores = np.empty(scores.size), np.ascontiguousarray(scores)
            lookup.apply_each(scores, scores.view(np.uint64), number, self._index, out)
            return out
        row = self.rows_at(scores, number)
        return line(scores, *(self.maps[name][row] for name in ("prob_lo", "slope", "anchor")))

    @cached_property
    def _index(self) -> tuple[Any, ...]:
        """Arguments of the compiled look-up: the rows of all maps, and for each map an index on the bits of scores."""
        rows = np.column_stack([self.maps[name] for name in ("score_hi", "prob_lo", "slope", "anchor")])
        rows[self.starts[1:] - 1, 0] = np.nan
        edges = ordinals(self.maps["score_hi"])
        first, finite = self.starts[:-1], np.diff(self.starts) - 1
        span = np.where(finite > 0, edges[self.starts[1:] - 2] - edges[first], 0)
        # Increase each map's shift until its number of buckets is within the limit.
        shift, limit = np.zeros(first.size, np.uint64), (_BUCKETS_PER_ROW * finite).astype(np.uint64)
        while (large := (span >> shift >= limit) & (finite > 0)).any():
            shift += large.astype(np.uint64)
        sizes = (span >> shift).astype(np.int64) + 2
        begin = np.cumsum(sizes) - sizes
        heads = np.column_stack([edges[first], shift, begin.astype(np.uint64), (sizes - 2).astype(np.uint64)])
        # Number of edges below each bucket: the sum over the buckets before it.
        owner = np.repeat(np.arange(first.size), finite)
        inner = np.delete(np.arange(edges.size), self.starts[1:] - 1)
        bucket = ((edges[inner] - edges[first][owner]) >> shift[owner]).astype(np.int64)
        below = np.cumsum(np.bincount(begin[owner] + bucket + 1, minlength=int(sizes.sum())))
        offset = np.repeat(below[begin] - first, sizes)
        buckets = (below - offset).astype(np.uint32)
        return rows, heads, buckets

    def rows_at(self, scores: Array, number: npt.NDArray[np.integer[Any]]) -> Integers:
        """Find the row of `maps` for each score; any row of its map for NaN. number : number of each score's map."""
        score_hi = self.maps["score_hi"]
        row: Integers = self.starts[number]
        end = self.starts[number + 1] - 1
        while (searching := row < end).any():
            middle = (row + end) >> 1
            above = searching & (score_hi[middle] <= scores)
            end = np.where(searching & ~above, middle, end)
            row = np.where(above, middle + 1, row)
        return row

    def intervals(self, scores: Array, number: Codes) -> tuple[Array, Array]:
        """Return the interval of each score's row; NaN for NaN. number : number of each score's map, from `index`."""
        assert self.interval is not None
        row, missing = self.rows_at(scores, number), np.isnan(scores)
        lower, upper = (np.where(missing, np.nan, column[row]) for column in self.interval)
        return lower, upper


def keys_of(columns: Sequence[pa.Array | pa.ChunkedArray]) -> list[Key]:
    """Convert Arrow columns, one per segment column, to keys."""
    return list(zip(*(column.to_pylist() for column in columns), strict=True))
