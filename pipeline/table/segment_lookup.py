"""The lookup table of a log with segments: the maps of all levels in one Parquet file, and each segment's facts.

lookup.parquet has the maps: of all rows (segment_level 0, every segment column null), of the leading columns, and of
the segments; sorted by level, segment and score. segments.parquet has a row a segment: how many rows it had, which
rows its map was fitted to, and why where they are not its own.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import fsspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from calibrators.calibration_map import CalibrationMap
from calibrators.passes import Array
from pipeline import schema
from pipeline._kernels import segments as kernels
from pipeline.arrow_columns import as_column, as_numpy, column_of
from pipeline.errors import InputRejectedError
from pipeline.log import segment_values
from pipeline.log.segment_values import Encoder, Integers, Key
from pipeline.table import lookup_table
from pipeline.table.lookup_table import LookupFacts

if TYPE_CHECKING:
    from pipeline.table.segment_maps import SegmentedFit

SEGMENTS_FILE = "segments.parquet"

_MAP = schema.LOOKUP_TABLE.names
RESERVED = frozenset(
    name
    for columns in (schema.segmented_lookup, schema.segments, schema.evaluated_segments)
    for name in columns([]).names
)
"""Names that a segment column cannot have, since the tables' own columns have them."""


@dataclass(frozen=True)
class SegmentedFiles:
    """A segmented table's content, ready to be published.

    fingerprint : of both files' content. segments : the bytes of segments.parquet. rows : of the lookup table.
    sources, reasons : how many segments have each.
    """

    fingerprint: str
    segments: bytes
    rows: int
    sources: dict[str, int]
    reasons: dict[str, int]
    table: pa.Table = field(repr=False)
    facts: dict[str, Any] = field(repr=False)

    def lookup_bytes(self, version: str) -> bytes:
        """lookup.parquet: the same bytes for the same content and version."""
        metadata = lookup_table.metadata_of(self.facts, version, self.fingerprint)
        buffer = io.BytesIO()
        table = self.table.replace_schema_metadata(metadata)
        names = self.table.schema.names[: -len(_MAP)]
        pq.write_table(table, buffer, compression="zstd", use_dictionary=names)
        return buffer.getvalue()


def segmented_files(fit: SegmentedFit, columns: tuple[str, ...], facts: dict[str, Any]) -> SegmentedFiles:
    """Lay out a fit as tables.

    Parameters
    ----------
    fit, columns : the maps, and the names of the segment columns
    facts : method, parameters, score_transform, data, as in `LookupFacts`
    """
    facts = {**facts, "monotone": fit.monotone, "segments": list(columns)}
    keys = [key + (None,) * (len(columns) - level.level) for level in fit.levels for key in level.keys]
    rows = np.array([size for level in fit.levels for size in level.maps.sizes])
    table = _maps_table(fit, columns, keys, rows)
    segments, sources, reasons = _segments_table(fit, columns)
    digest = hashlib.sha256(f"{schema.FORMAT_VERSION}\n{lookup_table.as_json(facts)}\n".encode())
    # Whose rows they are, once a segment and not once a row.
    types = [str(kind) for kind in fit.types]
    digest.update(json.dumps([types, keys, rows.tolist()], default=str).encode())
    for name in _MAP:
        digest.update(np.asarray(as_numpy(table.column(name)), "<f8").tobytes())
    for name, column in zip(segments.schema.names, segments.columns, strict=True):
        digest.update(json.dumps([name, column.to_pylist()], default=str).encode())
    buffer = io.BytesIO()
    pq.write_table(segments, buffer, compression="zstd")
    return SegmentedFiles(
        digest.hexdigest(), buffer.getvalue(), table.num_rows, sources, reasons, table, facts
    )


def _maps_table(fit: SegmentedFit, columns: tuple[str, ...], keys: list[Key], rows: Integers) -> pa.Table:
    """The maps of all levels. keys, rows : of each map its segment, None for columns behind its level, and its rows."""
    levels = np.concatenate([np.full(len(level.keys), level.level, np.int32) for level in fit.levels])
    owner = np.repeat(np.arange(len(keys)), rows)
    segment = [column.take(as_column(owner)) for column in segment_values.arrays(keys, fit.types)]
    maps = zip(*(level.maps.arrays() for level in fit.levels), strict=True)
    return pa.Table.from_arrays(
        [*segment, as_column(levels[owner]), *(as_column(np.concatenate(parts)) for parts in maps)],
        schema=schema.segmented_lookup(zip(columns, fit.types, strict=True)),
    )


def _segments_table(
    fit: SegmentedFit, columns: tuple[str, ...]
) -> tuple[pa.Table, dict[str, int], dict[str, int]]:
    own = fit.levels[-1]
    found = [fit.source(key) for key in own.keys]
    sources, reasons = _count([kind for kind, _ in found]), _count([r for r in own.reasons if r is not None])
    table = pa.Table.from_arrays(
        [
            *segment_values.arrays(own.keys, fit.types),
            as_column(own.rows),
            as_column(own.positives),
            column_of([kind for kind, _ in found], pa.string()),
            column_of([level for _, level in found], pa.int32()),
            column_of(own.reasons, pa.string()),
        ],
        schema=schema.segments(zip(columns, fit.types, strict=True)),
    )
    return table, sources, reasons


def _count(names: list[str]) -> dict[str, int]:
    return {name: names.count(name) for name in sorted(set(names))}


@dataclass(frozen=True)
class SegmentedLookup:
    """A segmented lookup table, ready to score with.

    Attributes
    ----------
    columns : names of the segment columns, as fitted. facts : see `LookupFacts`.
    bounds : of each segment with a map, by its key of any level: its rows in `maps`.
    known : the segments that the table was fitted to, with or without a map of their own, and what each one's map was
        fitted to: `segment`, `parent`, `global` or `identity`.
    """

    columns: tuple[str, ...]
    facts: LookupFacts
    bounds: dict[Key, tuple[int, int]] = field(repr=False)
    known: dict[Key, str] = field(repr=False)
    maps: dict[str, Array] = field(repr=False)

    def rows_of(self, key: Key) -> tuple[int, int]:
        """The rows of the map that a key's scores go through: its own, a parent's, or that of all rows."""
        return next(self.bounds[key[:n]] for n in range(len(key), -1, -1) if key[:n] in self.bounds)

    def predict(
        self, scores: Array, keys: list[Key], codes: npt.NDArray[np.int32]
    ) -> tuple[Array, npt.NDArray[np.bool_]]:
        """Probabilities, and which rows are of a segment that the table does not know.

        keys : of each code. codes : int32 array, shape (n,).
        """
        bounds, unseen = self.bounds_of(keys)
        return self.apply(scores, bounds, codes), unseen[codes]

    def bounds_of(self, keys: list[Key]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Of each key `rows_of` it, an array of shape (keys, 2); and whether the table does not know it."""
        bounds = np.array([self.rows_of(key) for key in keys], np.int64).reshape(-1, 2)
        return bounds, np.array([key not in self.known for key in keys], np.bool_)

    def apply(self, scores: Array, bounds: npt.NDArray[np.int64], codes: npt.NDArray[np.int32]) -> Array:
        """Probabilities. bounds : of each code, the rows of its map."""
        start, stop = np.ascontiguousarray(bounds[codes].T)
        out = np.empty(scores.size)
        maps = self.maps
        kernels.apply(
            scores, start, stop, maps["score_hi"], maps["prob_lo"], maps["slope"], maps["anchor"], out
        )
        return out

    @property
    def whole(self) -> CalibrationMap:
        """The map of all rows."""
        start, stop = self.bounds[()]
        return CalibrationMap(**{name: column[start:stop] for name, column in self.maps.items()})


class CodedMaps:
    """The maps that rows go through, by the codes of an encoder; each segment is looked up once."""

    def __init__(self, lookup: SegmentedLookup, encoder: Encoder) -> None:
        self.lookup = lookup
        self.encoder = encoder
        self._bounds, self._unseen = lookup.bounds_of([])

    def predict(self, scores: Array, codes: npt.NDArray[np.int32]) -> tuple[Array, npt.NDArray[np.bool_]]:
        """Probabilities, and which rows are of a segment that the table does not know."""
        if len(self.encoder) > self._unseen.size:
            self._bounds, self._unseen = self.lookup.bounds_of(self.encoder.keys)
        return self.lookup.apply(scores, self._bounds, codes), self._unseen[codes]


def read_segmented_lookup(path: str) -> SegmentedLookup:
    """Read a segmented lookup table, and the segments beside it, and check every map.

    Raises
    ------
    InputRejectedError
        One of the files is not there, or is not what it should be.
    """
    table = _read(path)
    facts = lookup_table.facts_of(path, table.schema.metadata, table.num_rows)
    columns = tuple(table.schema.names[: -len(_MAP) - 1])
    _check_columns(path, table, columns)
    maps = {name: as_numpy(table.column(name)) for name in _MAP}
    keys = segment_values.keys_of([table.column(name) for name in columns])
    levels = as_numpy(table.column(schema.SEGMENT_LEVEL)).tolist()
    owners = [key[:level] for key, level in zip(keys, levels, strict=True)]
    starts = [i for i, key in enumerate(owners) if i == 0 or key != owners[i - 1]]
    bounds = {owners[a]: (a, b) for a, b in zip(starts, [*starts[1:], len(owners)], strict=True)}
    problem = _problem(maps, np.array(starts, np.int64))
    if len(bounds) < len(starts) or () not in bounds:
        problem = "it must have each segment once, and the map of all rows"
    if problem is not None:
        raise InputRejectedError(
            f"{path}: expected a lookup table, found rows that are not calibration maps: {problem}: publish it again"
        )
    beside = f"{path.rpartition('/')[0]}/{SEGMENTS_FILE}"
    segments = _read(beside)
    _check_columns(beside, segments, columns)
    own = segment_values.keys_of([segments.column(name) for name in columns])
    known = dict(zip(own, segments.column("fitted_on").to_pylist(), strict=True))
    return SegmentedLookup(columns, facts, bounds, known, maps)


def _read(path: str) -> pa.Table:
    try:
        with fsspec.open(path, "rb") as file:
            return pq.ParquetFile(file).read(use_threads=False)
    except FileNotFoundError:
        raise InputRejectedError(f"{path}: expected a table, found no file: publish it again") from None
    except (pa.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputRejectedError(
            f"{path}: expected a table, found a file that cannot be read ({reason}): publish it again"
        ) from None


def _check_columns(path: str, table: pa.Table, columns: tuple[str, ...]) -> None:
    fields = [(name, table.schema.field(name).type) for name in columns if name in table.schema.names]
    found = table.schema.remove_metadata()
    if len(fields) < 1 or not any(
        found.equals(expected(fields)) for expected in (schema.segmented_lookup, schema.segments)
    ):
        raise InputRejectedError(
            f"{path}: expected a segmented lookup table or its segments, found the columns "
            f"{', '.join(found.names)}: publish it again"
        )


def _problem(maps: dict[str, Array], starts: npt.NDArray[np.int64]) -> str | None:
    """What is wrong with the maps that begin at `starts`, or None; as `CalibrationMap.problem` for each."""
    low, high = maps["score_lo"], maps["score_hi"]
    last = np.append(starts[1:], low.size) - 1
    inner = np.ones(low.size, np.bool_)
    inner[starts] = False
    if not (np.all(low[starts] == -np.inf) and np.all(high[last] == np.inf)):
        return "each must reach from -inf to +inf"
    if not (np.array_equal(low[inner], np.roll(high, 1)[inner]) and np.all(low < high)):
        return "rows must follow each other without gaps or overlaps"
    if not all(np.isfinite(maps[name]).all() for name in _MAP[2:]):
        return "numbers must be finite"
    slope, prob, anchor = maps["slope"], maps["prob_lo"], maps["anchor"]
    if slope[starts].any() or slope[last].any():
        return "each must be constant in its first and last row"
    with np.errstate(invalid="ignore", over="ignore"):
        for at in (low, np.nextafter(high, -np.inf)):
            value = np.where(slope == 0, prob, prob + slope * (at - anchor))
            if not (value.min() >= 0 and value.max() <= 1):
                return "values must lie in [0, 1]"
    return None


def cached_segmented_lookup(path: str) -> SegmentedLookup:
    """A segmented lookup table, read once by each process while the file stays as it is."""
    try:
        filesystem, inner = fsspec.core.url_to_fs(path)
        stamp = filesystem.ukey(inner)
    except FileNotFoundError:
        stamp = ""
    with _READING:
        return _read_cached(path, stamp)


_READING = threading.Lock()
"""Threads that need the same table at the same time wait for the one that reads it."""


@functools.lru_cache(maxsize=1)
def _read_cached(path: str, stamp: str) -> SegmentedLookup:
    return read_segmented_lookup(path)
