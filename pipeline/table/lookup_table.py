"""Files of lookup tables, and predictions with them in tasks.

lookup.parquet has the maps of all rows (segment_level 0, every segment column null), of the leading columns, and of
the segments, sorted by level, segment and score; then those of all rows that are bent (below 0). segments.parquet has
one row per segment: its number of rows, the source of its map and, if it has no map of its own, the reason. With
partial pooling it has the segments of all levels, and their adjustments. `logcal.reading` reads both files.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from calibrators.core.arrays import Array, Codes
from calibrators.core.intervals import NONE
from calibrators.core.kernels import lookup as _compiled  # noqa: F401 (which maps then use for less than a million scores, too)
from calibrators.core.map import CalibrationMap, Interval
from logcal import schema
from logcal.arrow_columns import as_column, column_of
from logcal.lookup_table import content_of
from logcal.manifest import as_json, fingerprint
from logcal.reading import SEGMENTS_FILE, cached_table
from pipeline.log import segment_values
from pipeline.schema import evaluated_segments
from pipeline.table.published import LOOKUP
from pipeline.table.segment_maps import ADJUSTED, GLOBAL, IDENTITY, OWN, PARENT

if TYPE_CHECKING:
    from pipeline.table.segment_maps import LevelFit, SegmentedFit

_PREFIX = schema.LOOKUP_METADATA_PREFIX


@dataclass(frozen=True)
class TableFiles:
    """Files of a table, ready to be published.

    table, facts : content and metadata of lookup.parquet
    segments : content of segments.parquet; None without segments
    sources, reasons : number of segments by source of the map, and by reason for a missing map
    """

    table: pa.Table = field(repr=False)
    facts: dict[str, Any] = field(repr=False)
    segments: pa.Table | None = field(default=None, repr=False)
    sources: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, int] = field(default_factory=dict)

    @cached_property
    def fingerprint(self) -> str:
        """Digest of the content of both files."""
        tables = (self.table,) if self.segments is None else (self.table, self.segments)
        return fingerprint(content_of(self.facts), *tables)

    def files(self, version: str) -> dict[str, bytes]:
        """Return the files by name: the same bytes for the same content and version, without any date."""
        added = {"format_version": schema.FORMAT_VERSION, "version": version, "fingerprint": self.fingerprint}
        facts = self.facts | added
        metadata = {name: facts[name] for name in _METADATA if name in facts}
        texts = {k: value if isinstance(value, str) else as_json(value) for k, value in metadata.items()}
        segment_columns = self.table.schema.names[: self.table.schema.get_field_index(_MAP[0])]
        lookup = _as_parquet(self.table, {_PREFIX + k: text for k, text in texts.items()}, segment_columns)
        if self.segments is None:
            return {LOOKUP: lookup}
        return {LOOKUP: lookup, SEGMENTS_FILE: _as_parquet(self.segments, None, self.segments.schema.names)}


_METADATA = (
    *("format_version", "features", "version", "method", "parameters", "score_transform", "monotone", "data"),
    *("fingerprint", "interval", "segments"),
)


def _as_parquet(table: pa.Table, metadata: dict[str, str] | None, dictionaries: list[str]) -> bytes:
    buffer = io.BytesIO()
    table = table.replace_schema_metadata(metadata)
    pq.write_table(table, buffer, compression="zstd", use_dictionary=dictionaries or False)
    return buffer.getvalue()


def plain_files(
    calibration_map: CalibrationMap, interval: tuple[str, Interval] | None = None, **facts: Any
) -> TableFiles:
    """Write a calibration map as a table without segments.

    Parameters
    ----------
    calibration_map : CalibrationMap
    interval : kind and interval of the rows
    facts : method, parameters, score_transform and data, as in `LookupFacts`; parameters and data are JSON values
    """
    columns = [getattr(calibration_map, name) for name in _MAP]
    layout = schema.LOOKUP_TABLE
    facts |= {"monotone": calibration_map.monotone, "features": []}
    if interval is not None:
        facts |= {"interval": interval[0], "features": [schema.INTERVAL]}
        columns += interval[1]
        layout = schema.INTERVAL_TABLE
    return TableFiles(pa.Table.from_arrays([as_column(column) for column in columns], schema=layout), facts)


_MAP = schema.LOOKUP_TABLE.names
RESERVED = frozenset(schema.INTERVAL_TABLE.names) | frozenset(
    name
    for columns in (schema.segmented_lookup([]), schema.segments([], schema.FEATURES), evaluated_segments([]))
    for name in columns.names
)
"""Names of the tables' columns, which a segment column cannot have."""


def segmented_files(fit: SegmentedFit, columns: tuple[str, ...], facts: dict[str, Any]) -> TableFiles:
    """Write a fit as files.

    Parameters
    ----------
    fit : the maps
    columns : names of the segment columns
    facts : method, parameters, score_transform and data, as in `LookupFacts`
    """
    table = _maps_table(fit, columns)
    segments, sources, reasons = _segments_table(fit, columns)
    present = {
        schema.SEGMENTS: True,
        schema.INTERVAL: fit.interval != NONE,
        schema.ADJUSTMENTS: "logit_shift" in segments.schema.names,
        schema.SIGMOIDS: "logit_from" in segments.schema.names,
        schema.BENT: any(level.bent for level in fit.levels),
    }
    facts = {**facts, "monotone": fit.monotone, "segments": list(columns)}
    facts["features"] = [name for name, has in present.items() if has]
    if fit.interval != NONE:
        facts["interval"] = fit.interval
    return TableFiles(table, facts, segments, sources, reasons)


def _columns(levels: Sequence[LevelFit], fit: SegmentedFit) -> list[pa.Array]:
    """Return the columns of the levels' segments, with null in the columns that a level lacks."""
    keys = [segment_values.arrays(level.keys, fit.types[: level.level]) for level in levels]
    return [
        pa.concat_arrays(
            [
                columns[i] if i < len(columns) else pa.nulls(len(level.keys), kind)
                for columns, level in zip(keys, levels, strict=True)
            ]
        )
        for i, kind in enumerate(fit.types)
    ]


def _depths(levels: Sequence[LevelFit]) -> Codes:
    return np.concatenate([np.full(len(level.keys), level.level, np.int32) for level in levels])


def _maps_table(fit: SegmentedFit, columns: tuple[str, ...]) -> pa.Table:
    """Make the table of all maps."""
    bent = {number: map_ for level in fit.levels for number, map_ in level.bent.items()}
    levels = np.append(_depths(fit.levels), np.array(list(bent), np.int32))
    rows = np.array([*(size for level in fit.levels for size in level.maps.sizes), *map(len, bent.values())])
    owner = np.repeat(np.arange(rows.size), rows)
    keys = [
        pa.concat_arrays([column, pa.nulls(len(bent), column.type)]) for column in _columns(fit.levels, fit)
    ]
    maps = zip(
        *(level.maps.arrays() for level in fit.levels),
        *([getattr(map_, name) for name in _MAP] for map_ in bent.values()),
        strict=True,
    )
    return pa.Table.from_arrays(
        [
            *(column.take(as_column(owner)) for column in keys),
            as_column(levels[owner]),
            *(as_column(np.concatenate(parts)) for parts in maps),
        ],
        schema=schema.segmented_lookup(zip(columns, fit.types, strict=True), interval=fit.interval != NONE),
    )


def _segments_table(
    fit: SegmentedFit, columns: tuple[str, ...]
) -> tuple[pa.Table, dict[str, int], dict[str, int]]:
    """Make the table of segments, with adjustments of all levels; count the last level's sources and reasons."""
    last = fit.levels[-1]
    adjusting = [level for level in fit.levels if level.adjustments is not None]
    adjustments = [level.adjustments for level in adjusting if level.adjustments is not None]
    sigmoids = [part.kind for part in adjustments if part.kind is not None]
    levels = adjusting or [last]
    features = [*([schema.ADJUSTMENTS] if adjusting else ()), *([schema.SIGMOIDS] if sigmoids else ())]
    layout = schema.segments(zip(columns, fit.types, strict=True), features)
    values = dict(zip(columns, _columns(levels, fit), strict=True))
    if adjusting:
        kinds = [kind for level in levels for kind in _kinds(level, identity=fit.identity)]
        values[schema.SEGMENT_LEVEL] = _depths(levels)
        names = ("fitted_level", "logit_shift", "logit_slope", "prob_min", "prob_max")
        parts = zip(*(part[: len(names)] for part in adjustments), strict=True)
        values |= {name: np.concatenate(arrays) for name, arrays in zip(names, parts, strict=True)}
    else:
        kinds, values["fitted_level"] = fit.origins()
    values["rows"] = np.concatenate([level.rows for level in levels])
    values["rows_positive"] = np.concatenate([level.positives for level in levels])
    values["fitted_on"] = _text_column(kinds)
    values["reason"] = _text_column([reason for level in levels for reason in level.reasons])
    if sigmoids:
        values["logit_from"] = _text_column([schema.LOGIT_FROM[i] for i in np.concatenate(sigmoids).tolist()])
    arrays = [as_column(v) if isinstance(v, np.ndarray) else v for v in map(values.get, layout.names)]
    table = pa.Table.from_arrays(arrays, schema=layout)
    sources = Counter(sorted(kinds[len(kinds) - len(last.keys) :]))
    return table, dict(sources), dict(Counter(sorted(filter(None, last.reasons))))


def _kinds(level: LevelFit, *, identity: bool) -> list[str]:
    """Return the source of each segment's map."""
    adjustments = level.adjustments
    assert adjustments is not None
    adjusted = (adjustments.shift != 0) | (adjustments.slope != 1) | (adjustments.fitted_level < 0)
    if adjustments.kind is not None:
        adjusted &= adjustments.kind == 0
    kinds = np.where(adjustments.fitted_level > 0, PARENT, IDENTITY if identity else GLOBAL).astype(object)
    kinds[adjusted] = ADJUSTED
    kinds[np.array([reason is None for reason in level.reasons], np.bool_)] = OWN
    return list(kinds)


def _text_column(texts: Sequence[str | None]) -> pa.Array:
    """Make a column of texts with few distinct values."""
    codes_of = {text: i for i, text in enumerate(dict.fromkeys(texts))}
    codes = np.fromiter(map(codes_of.__getitem__, texts), np.int32, len(texts))
    return column_of(list(codes_of), pa.string()).take(as_column(codes))


MapIndices = Codes
"""Index of each segment's map or adjustment, see `logcal.lookup_table.LookupTable.apply`."""


@dataclass(frozen=True)
class Predictor:
    """Predictions of a table in tasks, which carry its path instead of its maps; a process reads the table once.

    Attributes
    ----------
    path : path of a lookup table; None: the score is the probability
    columns : the table's segment columns; empty: all rows have the same map
    sampling_rate : sampled share of the rows with label 0; predictions are probabilities among the sampled rows
    """

    path: str | None = None
    columns: tuple[str, ...] = ()
    sampling_rate: float = 1.0

    def __call__(self, scores: Array) -> Array:
        """Predict ascending scores with a table without segments."""
        if self.path is None:
            return scores
        return self._of_sample(cached_table(self.path).map.predict_ascending(scores))

    def map_indices(self, names: Sequence[str], values: Sequence[pa.Array]) -> MapIndices | None:
        """Find the maps of segments. names, values : segment columns, which include the table's."""
        if self.path is None or not self.columns:
            return None
        columns = [values[list(names).index(name)] for name in self.columns]
        return cached_table(self.path).index.find(columns)[0]

    def of_segments(self, scores: Array, indices: MapIndices | None) -> Array:
        """Predict scores in any order. indices : map index of each score, as returned by `map_indices`."""
        if self.path is None:
            return scores
        if indices is None:
            return self._of_sample(cached_table(self.path).map.predict(scores))
        return self._of_sample(cached_table(self.path).apply(scores, indices))

    def _of_sample(self, p: Array) -> Array:
        if self.sampling_rate == 1:
            return p
        return np.asarray(p / (p + (1 - p) * self.sampling_rate))
