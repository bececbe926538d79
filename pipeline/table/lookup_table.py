"""Writing lookup tables, with the facts of their making in the files' metadata; and what gives rows probabilities.

lookup.parquet has the maps: of all rows (segment_level 0, every segment column null), of the leading columns, and of
the segments; sorted by level, segment and score. segments.parquet has one row per segment: how many rows it had, which
rows its map was fitted to and, if these are not its own, why. With partial pooling it has the segments of each level,
and how much each adjusts the map that it uses. Both are read by `logcal.reading`.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from calibrators._kernels import lookup as _compiled  # noqa: F401 (which maps then use for less than a million scores, too)
from calibrators.arithmetic.calibration_map import CalibrationMap, Interval
from calibrators.arithmetic.passes import Array
from calibrators.methods.intervals import NONE
from logcal import schema
from logcal.arrow_columns import as_column, as_numpy, column_of
from logcal.lookup_table import LookupTable, SegmentedLookup
from logcal.manifest import as_json, fingerprint, segmented_fingerprint
from logcal.reading import cached_table, read_table, require_segmented, require_unsegmented
from pipeline.log import segment_values
from pipeline.log.segment_values import Integers
from pipeline.schema import evaluated_segments
from pipeline.table.segment_maps import ADJUSTED, GLOBAL, IDENTITY, OWN, PARENT

if TYPE_CHECKING:
    from pipeline.table.segment_maps import LevelFit, SegmentedFit

_PREFIX = schema.LOOKUP_METADATA_PREFIX


def lookup_bytes(
    calibration_map: CalibrationMap,
    *,
    version: str,
    interval: tuple[str, Interval] | None = None,
    **facts: Any,
) -> bytes:
    """A calibration map as Parquet: the same bytes for the same arguments, without any date.

    Parameters
    ----------
    interval : of each row, with its kind
    facts : method, parameters, score_transform and data, as in `LookupFacts`; parameters and data hold values that
        JSON can.
    """
    content = fingerprint(calibration_map, interval=interval, **facts)
    facts["monotone"] = calibration_map.monotone
    columns = [getattr(calibration_map, name) for name in schema.LOOKUP_TABLE.names]
    layout, format_version = schema.LOOKUP_TABLE, schema.FORMAT_VERSION
    if interval is not None:
        facts["interval"] = interval[0]
        columns += interval[1]
        layout, format_version = schema.INTERVAL_TABLE, schema.SECOND_FORMAT_VERSION
    table = pa.Table.from_arrays([as_column(column) for column in columns], schema=layout)
    return _as_parquet(table, metadata_of(facts, version, content, format_version), [])


def _as_parquet(table: pa.Table, metadata: dict[str, str] | None, dictionaries: list[str]) -> bytes:
    buffer = io.BytesIO()
    table = table.replace_schema_metadata(metadata)
    pq.write_table(table, buffer, compression="zstd", use_dictionary=dictionaries or False)
    return buffer.getvalue()


def metadata_of(
    facts: dict[str, Any], version: str, content: str, format_version: str = schema.FORMAT_VERSION
) -> dict[str, str]:
    """A lookup table's Parquet metadata.

    facts : method, parameters, score_transform, monotone, data; of a segmented table also segments, its columns.
    content : the fingerprint
    """
    own = ("method", "parameters", "score_transform", "monotone", "data")
    metadata = {"format_version": format_version, "version": version}
    metadata |= {name: facts[name] for name in own} | {"fingerprint": content}
    metadata |= {name: facts[name] for name in ("interval", "segments") if name in facts}
    return {
        _PREFIX + name: value if isinstance(value, str) else as_json(value)
        for name, value in metadata.items()
    }


def read_lookup_table(path: str) -> LookupTable:
    """Read a lookup table without segments and check all of it. Errors: as `logcal.reading.read_table`."""
    return require_unsegmented(path, read_table(path))


def cached_lookup_table(path: str) -> LookupTable:
    """The same, read once by each process while the file stays as it is."""
    return require_unsegmented(path, cached_table(path))


_MAP = schema.LOOKUP_TABLE.names
RESERVED = frozenset(schema.INTERVAL_TABLE.names) | frozenset(
    name
    for columns in (schema.segmented_lookup, schema.sigmoid_segments, evaluated_segments)
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
        metadata = metadata_of(self.facts, version, self.fingerprint, self.format_version)
        names = self.table.schema.names[: self.table.schema.get_field_index(_MAP[0])]
        return _as_parquet(self.table, metadata, names)


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
    segments, sources, reasons = _segments_table(fit, columns)
    maps = {name: as_numpy(table.column(name)) for name in _MAP}
    version = schema.FORMAT_VERSIONS[
        ("logit_shift" in segments.schema.names) + ("logit_from" in segments.schema.names)
    ]
    interval = None
    if fit.interval != NONE:
        version = schema.FOURTH_FORMAT_VERSION
        interval = Interval(*(as_numpy(table.column(name)) for name in schema.INTERVAL_TABLE.names[-2:]))
    content = segmented_fingerprint(facts, fit.types, owners, rows, maps, segments, version, interval)
    data = _as_parquet(segments, None, segments.schema.names)
    return SegmentedFiles(content, data, table.num_rows, sources, reasons, table, facts, version)


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


def _depths(levels: Sequence[LevelFit]) -> npt.NDArray[np.int32]:
    return np.concatenate([np.full(len(level.keys), level.level, np.int32) for level in levels])


def _maps_table(
    fit: SegmentedFit, columns: tuple[str, ...], owners: list[pa.Array], rows: Integers
) -> pa.Table:
    """The maps of all levels. owners, rows : of each map its segment, null behind its level, and its rows."""
    levels = _depths(fit.levels)
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
    """The segments; where they adjust maps, those of all levels. Counts are of those of all columns."""
    own = fit.levels[-1]
    adjusting = [level for level in fit.levels if level.adjustments is not None]
    adjustments = [level.adjustments for level in adjusting if level.adjustments is not None]
    sigmoids = [one.of for one in adjustments if one.of is not None]
    levels = adjusting or [own]
    made = schema.sigmoid_segments if sigmoids else schema.adjusted_segments if adjusting else schema.segments
    layout = made(zip(columns, fit.types, strict=True))
    found = dict(zip(columns, _columns(levels, fit), strict=True))
    if adjusting:
        kinds = [kind for level in levels for kind in _kinds(level, identity=fit.identity)]
        found[schema.SEGMENT_LEVEL] = _depths(levels)
        names = ("fitted_level", "logit_shift", "logit_slope", "prob_min", "prob_max")
        parts = zip(*(one[: len(names)] for one in adjustments), strict=True)
        found |= {name: np.concatenate(own) for name, own in zip(names, parts, strict=True)}
    else:
        kinds, found["fitted_level"] = fit.origins()
    found["rows"] = np.concatenate([level.rows for level in levels])
    found["rows_positive"] = np.concatenate([level.positives for level in levels])
    found["fitted_on"] = _of_few(kinds)
    found["reason"] = _of_few([reason for level in levels for reason in level.reasons])
    if sigmoids:
        found["logit_from"] = _of_few([schema.LOGIT_FROM[of] for of in np.concatenate(sigmoids).tolist()])
    arrays = [as_column(one) if isinstance(one, np.ndarray) else one for one in map(found.get, layout.names)]
    table = pa.Table.from_arrays(arrays, schema=layout)
    sources = Counter(sorted(kinds[len(kinds) - len(own.keys) :]))
    return table, dict(sources), dict(Counter(sorted(filter(None, own.reasons))))


def _kinds(level: LevelFit, *, identity: bool) -> list[str]:
    """Return the rows that each segment's map was fitted to."""
    adjustments = level.adjustments
    assert adjustments is not None
    adjusted = (adjustments.shift != 0) | (adjustments.slope != 1)
    if adjustments.of is not None:
        adjusted &= adjustments.of == 0
    found = np.where(adjustments.fitted_level > 0, PARENT, IDENTITY if identity else GLOBAL).astype(object)
    found[adjusted] = ADJUSTED
    found[np.array([why is None for why in level.reasons], np.bool_)] = OWN
    return list(found)


def _of_few(names: Sequence[str | None]) -> pa.Array:
    """A column of texts that are few different ones."""
    places = {name: i for i, name in enumerate(dict.fromkeys(names))}
    codes = np.fromiter(map(places.__getitem__, names), np.int32, len(names))
    return column_of(list(places), pa.string()).take(as_column(codes))


def read_segmented_lookup(path: str) -> SegmentedLookup:
    """Read a table with segments and check all of it. Errors: as `logcal.reading.read_table`."""
    return require_segmented(path, read_table(path))


def cached_segmented_lookup(path: str) -> SegmentedLookup:
    """The same, read once by each process while the files stay as they are."""
    return require_segmented(path, cached_table(path))


Places = npt.NDArray[np.int32]
"""Number of each segment's map."""


@dataclass(frozen=True)
class Predictor:
    """Predicts on any worker: tasks carry a path, not a map, and a process reads the table once.

    Attributes
    ----------
    path : of a lookup table; None: the score is the probability
    columns : the table's segment columns; none: all rows have one map
    sampling_rate : share of the rows with label 0 that the log has; what is predicted is the probability among the rows
        that there are
    """

    path: str | None = None
    columns: tuple[str, ...] = ()
    sampling_rate: float = 1.0

    def __call__(self, scores: Array) -> Array:
        """Probabilities of ascending scores, where there are no segments."""
        if self.path is None:
            return scores
        return self._of_sample(cached_lookup_table(self.path).map.predict_ascending(scores))

    def places(self, names: Sequence[str], values: Sequence[pa.Array]) -> Places | None:
        """The maps of segments. names, values : of the columns that tell them apart; the table's are among them."""
        if self.path is None or not self.columns:
            return None
        own = [values[list(names).index(name)] for name in self.columns]
        return cached_segmented_lookup(self.path).index.find(own)[0]

    def of_segments(self, scores: Array, places: Places | None) -> Array:
        """Probabilities of scores in any order. places : of each, as `places` finds them."""
        if self.path is None:
            return scores
        if places is None:
            return self._of_sample(cached_lookup_table(self.path).map.predict(scores))
        return self._of_sample(cached_segmented_lookup(self.path).apply(scores, places))

    def _of_sample(self, p: Array) -> Array:
        if self.sampling_rate == 1:
            return p
        return np.asarray(p / (p + (1 - p) * self.sampling_rate))
