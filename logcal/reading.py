"""Reading and checking lookup tables, with and without segments."""

from __future__ import annotations

import errno
import functools
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from calibrators.core.arrays import Array, Integers
from calibrators.core.map import CalibrationMap, Interval
from logcal import schema, storage
from logcal.adjustments import Adjustments
from logcal.arrow_columns import as_column, as_numpy, one_array
from logcal.errors import ConfigError, InputRejectedError, LogcalError, TemporaryError
from logcal.lookup_table import LookupFacts, LookupTable
from logcal.manifest import fingerprint
from logcal.schema import TRANSFORMS
from logcal.segment_index import SegmentIndex
from logcal.storage import parse_json

SEGMENTS_FILE, MANIFEST_FILE = "segments.parquet", "manifest.json"

_CACHED_TABLES = 2
_PREFIX = schema.LOOKUP_METADATA_PREFIX
_MAP = schema.LOOKUP_TABLE.names
_NUMBERS = frozenset(schema.INTERVAL_TABLE.names)
_NO_FILE = (errno.EISDIR, errno.EINVAL, errno.ELOOP, errno.ENAMETOOLONG)
_TEXTS, _JSONS = ("version", "method", "score_transform", "fingerprint"), ("parameters", "data")


def read_table(path: str) -> LookupTable:
    """Read a lookup table and its segments, and check all of it.

    Parameters
    ----------
    path : local path or fsspec URL

    Raises
    ------
    InputRejectedError
        The file does not exist, is not a lookup table of this format, or was changed after it was published.
    TemporaryError
        The storage is unavailable.
    ConfigError
        There is no permission to read the file.
    """
    content = _read_file(path, "lookup table", "publish one with `logcal fit`")
    parquet = _open_parquet(path, content)
    facts = _checked_facts(path, parquet)
    table = _read_rows(path, parquet)
    if any(
        column.null_count
        for name, column in zip(table.column_names, table.columns, strict=True)
        if name in _NUMBERS
    ):
        raise InputRejectedError(f"{path}: expected a lookup table, found nulls in it: publish it again")
    if facts.segments:
        segments = _read_segments(path, facts)
        _check_fingerprint(path, facts, table, segments)
        return _segmented_lookup(facts, table, segments)
    _check_fingerprint(path, facts, table)
    try:
        fitted = CalibrationMap(**_map_columns(table))
    except ValueError as error:
        raise InputRejectedError(
            f"{path}: expected a lookup table, found one that is {error}: publish it again"
        ) from None
    return LookupTable.of_map(fitted, facts, _interval(facts, table))


def _interval(facts: LookupFacts, table: pa.Table) -> Interval | None:
    if facts.interval is None:
        return None
    return Interval(*(as_numpy(table.column(name)) for name in ("prob_lower", "prob_upper")))


def read_facts(path: str, content: bytes | None = None) -> LookupFacts:
    """Read only the metadata of a lookup table.

    content : content of the file, if it has been read

    Raises
    ------
    InputRejectedError
        As `read_table`, except that the rows are not checked.
    TemporaryError, ConfigError
        As `read_table`.
    """
    content = content or _read_file(path, "lookup table", "publish one with `logcal fit`")
    return _checked_facts(path, _open_parquet(path, content))


def cached_table(path: str) -> LookupTable:
    """Return a lookup table, which each process reads again only if the file changes. Errors: as `read_table`."""
    with _READ_LOCK:
        try:
            url = storage.is_url(path)
            stamp = _stamp_of_second(path, int(time.monotonic())) if url else storage.stamp(path)
        except OSError:
            return read_table(path)  # raises the appropriate error
        return _read_cached(path, stamp)


@functools.lru_cache(maxsize=_CACHED_TABLES)
def _stamp_of_second(path: str, second: int) -> str:
    """Return a file's stamp, at most a second old: each scored file needs the table, and remote storage is slow."""
    return storage.stamp(path)


_READ_LOCK = threading.Lock()
"""Threads that need a table while another thread reads it wait for that thread."""


@functools.lru_cache(maxsize=_CACHED_TABLES)
def _read_cached(path: str, stamp: str) -> LookupTable:
    return read_table(path)


def _read_file(path: str, role: str, remedy: str) -> bytes:
    try:
        return storage.read(path)
    except FileNotFoundError:
        raise InputRejectedError(
            f"{path}: expected a {role}, found no file: {remedy}", missing=path
        ) from None
    except OSError as error:
        raise storage_error(path, role, error) from None


def storage_error(path: str, role: str, error: OSError) -> LogcalError:
    """Turn an error of the storage into one for the user.

    role : kind of file, for the message
    """
    reason = " ".join(str(error).split())[:200]
    if isinstance(error, PermissionError):
        return ConfigError(
            f"{path}: expected a {role} that may be read, found no permission ({reason}): give it, or correct the "
            "credentials"
        )
    if error.errno in _NO_FILE:
        return InputRejectedError(f"{path}: expected a {role}, found no file ({reason}): correct the path")
    return TemporaryError(
        f"{path}: expected a {role}, found that its storage is unavailable ({reason}): run again; the published file "
        "may be undamaged"
    )


def _open_parquet(path: str, content: bytes) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(pa.BufferReader(content))
    except (pa.ArrowException, ValueError, OSError) as error:  # names may not be UTF-8
        raise _unreadable(path, error) from None


def _read_rows(path: str, parquet: pq.ParquetFile) -> pa.Table:
    try:
        return parquet.read(use_threads=False).combine_chunks()
    except (pa.ArrowException, ValueError, OSError) as error:  # names may not be UTF-8
        raise _unreadable(path, error) from None


def _unreadable(path: str, error: Exception) -> InputRejectedError:
    reason = " ".join(str(error).split())[:200]
    if isinstance(error, MemoryError) or "bad_alloc" in reason:
        raise MemoryError(reason)
    return InputRejectedError(
        f"{path}: expected a lookup table, found a file that cannot be read ({reason}): publish it again"
    )


def _check_fingerprint(path: str, facts: LookupFacts, *tables: pa.Table) -> None:
    if (actual := fingerprint(facts.content, *tables)) != facts.fingerprint:
        raise InputRejectedError(
            f"{path}: expected content with the fingerprint {facts.fingerprint}, found {actual}: "
            "the file was changed after it was published; publish it again"
        )


def _map_columns(table: pa.Table) -> dict[str, Array]:
    return {name: as_numpy(table.column(name)) for name in _MAP}


def _checked_facts(path: str, parquet: pq.ParquetFile) -> LookupFacts:
    """Read the facts in the metadata, and check the columns."""
    columns, prefix = parquet.schema_arrow, _PREFIX.encode()
    metadata = {key: value for key, value in (columns.metadata or {}).items() if key.startswith(prefix)}
    # A file that is no table of logcal's is described by its columns.
    facts = facts_of(path, metadata, parquet.metadata.num_rows) if metadata else None
    names, with_interval = (facts.segments, facts.interval is not None) if facts else ((), False)
    segmented_table = functools.partial(schema.segmented_lookup, interval=with_interval)
    plain_table = schema.INTERVAL_TABLE if with_interval else schema.LOOKUP_TABLE
    expected = _expected_columns(columns, names, segmented_table) if names else plain_table
    if not columns.remove_metadata().equals(expected):
        raise InputRejectedError(
            f"{path}: expected a lookup table with the columns {_describe(expected)}; found {_describe(columns)}: "
            "publish it again"
        )
    return facts or facts_of(path, metadata, parquet.metadata.num_rows)


def _expected_columns(columns: pa.Schema, names: Sequence[str], expected: Any) -> pa.Schema:
    """Return the columns that a table must have; segment columns may have any type.

    columns : the table's columns
    names : names of the segment columns
    expected : function from names and types of segment columns to the expected columns
    """
    present = set(columns.names)
    return expected((name, columns.field(name).type if name in present else pa.null()) for name in names)


def _describe(columns: pa.Schema) -> str:
    return ", ".join(f"{f.name} {f.type}{'' if f.nullable else ' not null'}" for f in columns)


def facts_of(path: str, metadata: dict[bytes, bytes], rows: int) -> LookupFacts:
    """Read the facts in a lookup table's Parquet metadata; InputRejectedError for another file.

    metadata : its entries with logcal's prefix
    rows : number of rows of the table
    """
    try:
        texts = {key.decode().removeprefix(_PREFIX): value.decode() for key, value in metadata.items()}
    except UnicodeDecodeError as error:
        raise _unreadable(path, error) from None
    try:
        schema.check_format(path, texts.get("format_version"), "publish it again")
        features = tuple(parse_json(texts["features"]))
        schema.check_features(path, features)
        values: dict[str, Any] = {key: parse_json(texts[key]) for key in _JSONS}
        values |= {key: texts[key] for key in _TEXTS}
        values["monotone"] = {"true": True, "false": False}[texts["monotone"]]
        values["segments"] = tuple(parse_json(texts["segments"])) if schema.SEGMENTS in features else ()
        values["interval"] = texts["interval"] if schema.INTERVAL in features else None
    except (KeyError, TypeError, ValueError) as error:
        raise InputRejectedError(
            f"{path}: expected a lookup table's metadata, found them incomplete ({error}): publish it again"
        ) from None
    if values["score_transform"] not in TRANSFORMS:
        raise InputRejectedError(
            f"{path}: expected a score transform among {', '.join(TRANSFORMS)}, found "
            f"'{values['score_transform']}': use the version of logcal that wrote it"
        )
    return LookupFacts(rows=rows, features=features, **values)


# Tables with segments


def _read_segments(path: str, facts: LookupFacts) -> pa.Table:
    segments_path = storage.sibling(path, SEGMENTS_FILE)
    segments_content = _read_file(segments_path, "table of segments", "publish it again")
    segments = _read_rows(segments_path, _open_parquet(segments_path, segments_content))
    columns_of = functools.partial(schema.segments, features=facts.features)
    expected = _expected_columns(segments.schema, facts.segments, columns_of)
    if not segments.schema.remove_metadata().equals(expected):
        raise InputRejectedError(
            f"{segments_path}: expected the columns {_describe(expected)}; found {_describe(segments.schema)}: "
            "publish it again"
        )
    return segments


def _segmented_lookup(facts: LookupFacts, table: pa.Table, segments: pa.Table) -> LookupTable:
    names, maps = facts.segments, _map_columns(table)
    levels = as_numpy(table.column(schema.SEGMENT_LEVEL)).astype(np.int64)
    # The first row of a map, and no other, begins at -inf.
    starts = np.flatnonzero(maps["score_lo"] == -np.inf)
    row_keys = [one_array(table.column(name)) for name in names]
    owners, levels = [column.take(as_column(starts)) for column in row_keys], levels[starts]
    keys = [pa.concat_arrays([a, one_array(segments.column(n))]) for a, n in zip(owners, names, strict=True)]
    rows, adjustments = segments.num_rows, None
    segment_levels, entries = np.full(rows, len(names)), np.full(rows, -1)
    if schema.ADJUSTMENTS in facts.features:
        segment_levels = as_numpy(segments.column(schema.SEGMENT_LEVEL)).astype(np.int64)
        adjustments, entries = _adjustments(segments, keys, levels, segment_levels)
    index = SegmentIndex(
        keys,
        np.append(levels, segment_levels),
        np.append(np.arange(starts.size), entries),
        np.append(np.zeros(starts.size, np.bool_), segment_levels == len(names)),
    )
    starts = np.append(starts, table.num_rows)
    return LookupTable(
        facts, maps, starts, owners, levels, segments, index, adjustments, _interval(facts, table)
    )


def _adjustments(
    segments: pa.Table, keys: list[pa.Array], levels: Integers, segment_levels: Integers
) -> tuple[Adjustments, Integers]:
    """Read the segments' adjustments, and each segment's entry in them; -1 if its map is not adjusted.

    The first entries are those of the maps, unadjusted; the others are those of the segments.

    keys : keys of the maps, then of the segments
    levels, segment_levels : levels of the maps' and of the segments' keys
    """
    shift, slope, low, high = (
        as_numpy(segments.column(name)) for name in ("logit_shift", "logit_slope", "prob_min", "prob_max")
    )
    fitted, maps = as_numpy(segments.column("fitted_level")).astype(np.int64), levels.size
    kind = np.zeros(fitted.size, np.int8)
    if "logit_from" in segments.column_names:
        kind[:] = [schema.LOGIT_FROM.index(name) for name in segments.column("logit_from").to_pylist()]
    nearest = np.zeros(fitted.size, np.int64)
    for depth in range(1, len(keys) + 1):
        # Find the map nearest above each segment as for a row.
        above, rows = np.flatnonzero(levels <= depth), np.flatnonzero(segment_levels == depth)
        index = SegmentIndex(
            [column.take(as_column(above)) for column in keys[:depth]],
            levels[above],
            above,
            np.ones(above.size, np.bool_),
        )
        nearest[rows] = index.find([column.take(as_column(maps + rows)) for column in keys[:depth]])[0]
    for level in np.unique(fitted[fitted < 0]):
        nearest[fitted == level] = np.flatnonzero(levels == level)[0]
    zeros = np.zeros(maps)
    adjustments = Adjustments(
        np.append(np.arange(maps), nearest).astype(np.int32),
        np.append(zeros, shift),
        np.append(zeros + 1.0, slope),
        np.append(zeros + 0.5, low),
        np.append(zeros + 0.5, high),
        np.append(zeros.astype(np.int8), kind) if kind.any() else None,
    )
    return adjustments, np.where((fitted < segment_levels) | (kind != 0), maps + np.arange(fitted.size), -1)
