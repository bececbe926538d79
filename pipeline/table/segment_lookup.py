"""The lookup table of a log with segments: the maps of all levels in one Parquet file, and each segment's facts.

lookup.parquet has the maps: of all rows (segment_level 0, every segment column null), of the leading columns, and of
the segments; sorted by level, segment and score. segments.parquet has a row a segment: how many rows it had, which
rows its map was fitted to, and why where they are not its own. Where segments borrow strength it has the segments of
each level, and by how much each moves the map that it goes through.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from calibrators.arithmetic.calibration_map import Interval
from calibrators.methods.intervals import NONE
from logcal.arrow_columns import as_column, as_numpy, column_of
from logcal.fingerprints import segmented_fingerprint
from logcal.lookup_table import SegmentedLookup
from logcal.reading import SEGMENTS_FILE, cached_table, read_table, segmented
from pipeline import schema
from pipeline.log import segment_values
from pipeline.log.segment_values import Integers
from pipeline.table import lookup_table
from pipeline.table.segment_maps import GLOBAL, IDENTITY, MOVED, OWN, PARENT, Moves

if TYPE_CHECKING:
    from pipeline.table.segment_maps import LevelFit, SegmentedFit

__all__ = [
    "RESERVED",
    "SEGMENTS_FILE",
    "SegmentedFiles",
    "SegmentedLookup",
    "cached_segmented_lookup",
    "read_segmented_lookup",
    "segmented_files",
]

_MAP = schema.LOOKUP_TABLE.names
RESERVED = frozenset(schema.INTERVAL_TABLE.names) | frozenset(
    name
    for columns in (schema.segmented_lookup, schema.sigmoid_segments, schema.evaluated_segments)
    for name in columns([]).names
)
"""Names that a segment column cannot have, since the tables' own columns have them."""


@dataclass(frozen=True)
class SegmentedFiles:
    """A segmented table's content, ready to be published.

    fingerprint : of both files' content. segments : the bytes of segments.parquet. rows : of the lookup table.
    sources, reasons : how many segments have each. format_version : of both files.
    """

    fingerprint: str
    segments: bytes
    rows: int
    sources: dict[str, int]
    reasons: dict[str, int]
    table: pa.Table = field(repr=False)
    facts: dict[str, Any] = field(repr=False)
    format_version: str = schema.FORMAT_VERSION

    def lookup_bytes(self, version: str) -> bytes:
        """lookup.parquet: the same bytes for the same content and version."""
        metadata = lookup_table.metadata_of(self.facts, version, self.fingerprint, self.format_version)
        buffer = io.BytesIO()
        table = self.table.replace_schema_metadata(metadata)
        names = self.table.schema.names[: self.table.schema.get_field_index(_MAP[0])]
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
    if fit.interval != NONE:
        facts["interval"] = fit.interval
    rows = np.array([size for level in fit.levels for size in level.maps.sizes])
    owners = _columns(fit.levels, fit)
    table = _maps_table(fit, columns, owners, rows)
    moves = [level.moves for level in fit.levels if level.moves is not None]
    moved, sigmoids = bool(moves), any(one.of is not None for one in moves)
    segments, sources, reasons = (_moves_table if moved else _segments_table)(fit, columns)
    maps = {name: as_numpy(table.column(name)) for name in _MAP}
    version = schema.FORMAT_VERSIONS[2 if sigmoids else 1 if moved else 0]
    interval = None
    if fit.interval != NONE:
        version = schema.FOURTH_FORMAT_VERSION
        interval = Interval(*(as_numpy(table.column(name)) for name in schema.INTERVAL_TABLE.names[-2:]))
    content = segmented_fingerprint(facts, fit.types, owners, rows, maps, segments, version, interval)
    buffer = io.BytesIO()
    pq.write_table(segments, buffer, compression="zstd")
    return SegmentedFiles(content, buffer.getvalue(), table.num_rows, sources, reasons, table, facts, version)


def _columns(levels: Sequence[LevelFit], fit: SegmentedFit) -> list[pa.Array]:
    """The segments of levels, null in columns behind each one's level."""
    own = [segment_values.arrays(level.keys, fit.types[: level.level]) for level in levels]
    return [
        pa.concat_arrays(
            [
                of[i] if i < len(of) else pa.nulls(len(level.keys), kind)
                for of, level in zip(own, levels, strict=True)
            ]
        )
        for i, kind in enumerate(fit.types)
    ]


def _maps_table(
    fit: SegmentedFit, columns: tuple[str, ...], owners: list[pa.Array], rows: Integers
) -> pa.Table:
    """The maps of all levels. owners, rows : of each map its segment, null behind its level, and its rows."""
    levels = np.concatenate([np.full(len(level.keys), level.level, np.int32) for level in fit.levels])
    owner = np.repeat(np.arange(rows.size), rows)
    segment = [column.take(as_column(owner)) for column in owners]
    maps = zip(*(level.maps.arrays() for level in fit.levels), strict=True)
    return pa.Table.from_arrays(
        [*segment, as_column(levels[owner]), *(as_column(np.concatenate(parts)) for parts in maps)],
        schema=schema.segmented_lookup(zip(columns, fit.types, strict=True), interval=fit.interval != NONE),
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


def _moves_table(
    fit: SegmentedFit, columns: tuple[str, ...]
) -> tuple[pa.Table, dict[str, int], dict[str, int]]:
    """The same of segments that move maps; counts are of those of all columns."""
    levels = fit.levels[1:]
    kinds = [kind for level in levels for kind in _kinds(level, identity=fit.identity)]
    own = fit.levels[-1]
    last = kinds[len(kinds) - len(own.keys) :]
    sources, reasons = _count(last), _count([r for r in own.reasons if r is not None])
    moves = [level.moves for level in levels if level.moves is not None]
    numbers = [np.concatenate([getattr(one, name) for one in moves]) for name in Moves._fields[:-1]]
    sigmoids = [one.of for one in moves if one.of is not None]
    made = schema.sigmoid_segments if sigmoids else schema.moved_segments
    more = [[schema.LOGIT_FROM[of] for of in np.concatenate(sigmoids).tolist()]] if sigmoids else []
    table = pa.Table.from_arrays(
        [
            *_columns(levels, fit),
            as_column(np.concatenate([np.full(len(level.keys), level.level, np.int32) for level in levels])),
            as_column(np.concatenate([level.rows for level in levels])),
            as_column(np.concatenate([level.positives for level in levels])),
            _of_few(kinds),
            as_column(numbers[0]),
            _of_few([reason for level in levels for reason in level.reasons]),
            *(as_column(column) for column in numbers[1:]),
            *(column_of(column, pa.string()) for column in more),
        ],
        schema=made(zip(columns, fit.types, strict=True)),
    )
    return table, sources, reasons


def _kinds(level: LevelFit, *, identity: bool) -> list[str]:
    """What each segment's map was fitted to."""
    moves = level.moves
    assert moves is not None
    moved = (moves.shift != 0) | (moves.slope != 1)
    if moves.of is not None:
        moved &= moves.of == 0
    found = np.where(moves.fitted_level > 0, PARENT, IDENTITY if identity else GLOBAL).astype(object)
    found[moved] = MOVED
    found[np.array([why is None for why in level.reasons], np.bool_)] = OWN
    kinds: list[str] = found.tolist()
    return kinds


def _of_few(names: Sequence[str | None]) -> pa.Array:
    """A column of texts that are few different ones."""
    places = {name: i for i, name in enumerate(dict.fromkeys(names))}
    codes = np.fromiter(map(places.__getitem__, names), np.int32, len(names))
    return column_of(list(places), pa.string()).take(as_column(codes))


def _count(names: list[str]) -> dict[str, int]:
    return {name: names.count(name) for name in sorted(set(names))}


def read_segmented_lookup(path: str) -> SegmentedLookup:
    """Read a table with segments and check all of it. Errors: as `logcal.reading.read_table`."""
    return segmented(path, read_table(path))


def cached_segmented_lookup(path: str) -> SegmentedLookup:
    """The same, read once by each process while the files stay as they are."""
    return segmented(path, cached_table(path))
