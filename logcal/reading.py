"""Reading and checking lookup tables, with and without segments."""

from __future__ import annotations

import errno
import functools
import hashlib
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from calibrators.arithmetic.calibration_map import CalibrationMap, Interval
from logcal import schema, storage
from logcal.adjustments import Adjustments
from logcal.arrow_columns import as_column, as_numpy
from logcal.errors import ConfigError, InputRejectedError, LogcalError, TemporaryError
from logcal.lookup_table import Array, LookupFacts, LookupTable, SegmentedLookup, one_array
from logcal.manifest import fingerprint, read_manifest, segmented_fingerprint
from logcal.schema import TRANSFORMS
from logcal.segment_index import SegmentIndex
from logcal.storage import parse_json

Integers = npt.NDArray[np.int64]

SEGMENTS_FILE, MANIFEST_FILE = "segments.parquet", "manifest.json"

_CACHED_TABLES = 2
_PREFIX = schema.LOOKUP_METADATA_PREFIX
_MAP = schema.LOOKUP_TABLE.names
_NUMBERS = frozenset(schema.INTERVAL_TABLE.names)
_SEGMENTS = dict(
    zip(
        schema.FORMAT_VERSIONS,
        (schema.segments, schema.adjusted_segments, schema.sigmoid_segments, schema.segments),
        strict=True,
    )
)
_NO_FILE = (errno.EISDIR, errno.EINVAL, errno.ELOOP, errno.ENAMETOOLONG)
_JSON_KEYS = ("parameters", "data")


def read_table(path: str) -> LookupTable | SegmentedLookup:
    """Read a lookup table and its segments, and check all of it.

    Parameters
    ----------
    path : local path or fsspec URL

    Raises
    ------
    InputRejectedError
        It is not there, is not a lookup table of this format version, its rows are not calibration maps, or it is not
        as it was published.
    TemporaryError
        Its storage does not give it now.
    ConfigError
        It may not be read.
    """
    content = _content(path, "lookup table", "publish one with `logcal fit`")
    parquet = _parquet(path, content)
    facts = _checked_facts(path, parquet)
    table = _rows(path, parquet)
    if any(
        column.null_count
        for name, column in zip(table.column_names, table.columns, strict=True)
        if name in _NUMBERS
    ):
        raise InputRejectedError(f"{path}: expected a lookup table, found nulls in it: publish it again")
    if facts.segments:
        return _segmented(path, content, facts, table)
    interval = _interval(facts, table)
    try:
        found = LookupTable(CalibrationMap(**_columns(table)), facts, interval)
    except ValueError as error:
        raise InputRejectedError(
            f"{path}: expected a lookup table, found rows that are {error}: publish it again"
        ) from None
    pair = None if interval is None or facts.interval is None else (facts.interval, interval)
    _compare(path, facts.fingerprint, fingerprint(found.map, **facts.content, interval=pair))
    return found


def _interval(facts: LookupFacts, table: pa.Table) -> Interval | None:
    if facts.interval is None:
        return None
    return Interval(*(as_numpy(table.column(name)) for name in ("prob_lower", "prob_upper")))


def read_facts(path: str, content: bytes | None = None) -> LookupFacts:
    """Read a lookup table's metadata alone. content : of the file, if it has been read.

    Raises
    ------
    InputRejectedError
        As `read_table`, except that the rows are not looked at.
    TemporaryError, ConfigError
        As `read_table`.
    """
    content = content or _content(path, "lookup table", "publish one with `logcal fit`")
    return _checked_facts(path, _parquet(path, content))


def cached_table(path: str) -> LookupTable | SegmentedLookup:
    """A lookup table, read once by each process while the file stays as it is. Errors: as `read_table`."""
    with _READING:
        try:
            url = storage.is_url(path)
            stamp = _stamp_of_second(path, int(time.monotonic())) if url else storage.stamp(path)
        except OSError:
            return read_table(path)  # which says what is wrong
        return _read_cached(path, stamp)


@functools.lru_cache(maxsize=_CACHED_TABLES)
def _stamp_of_second(path: str, second: int) -> str:
    """Ask a store for a file's stamp, once a second at most: each file that is scored needs the table."""
    return storage.stamp(path)


_READING = threading.Lock()
"""Threads that need the same table at the same time wait for the one that reads it."""


@functools.lru_cache(maxsize=_CACHED_TABLES)
def _read_cached(path: str, stamp: str) -> LookupTable | SegmentedLookup:
    return read_table(path)


def require_unsegmented(path: str, table: LookupTable | SegmentedLookup) -> LookupTable:
    """Return a table without segments; InputRejectedError if it has segments."""
    if isinstance(table, SegmentedLookup):
        raise InputRejectedError(
            f"{path}: expected a lookup table without segments, found one with the segment columns "
            f"{', '.join(table.columns)}: use a table that was fitted without log.segment"
        )
    return table


def require_segmented(path: str, table: LookupTable | SegmentedLookup) -> SegmentedLookup:
    """Return a table with segments; InputRejectedError if it has none."""
    if isinstance(table, LookupTable):
        raise InputRejectedError(
            f"{path}: expected a segmented lookup table, found one without segments: use a table that was fitted "
            "with log.segment"
        )
    return table


def _content(path: str, what: str, remedy: str) -> bytes:
    try:
        return storage.read(path)
    except FileNotFoundError:
        raise InputRejectedError(f"{path}: expected a {what}, found no file: {remedy}") from None
    except OSError as error:
        raise storage_error(path, what, error) from None


def storage_error(path: str, what: str, error: OSError) -> LogcalError:
    """Turn an error of the storage into one for the user."""
    reason = " ".join(str(error).split())[:200]
    if isinstance(error, PermissionError):
        return ConfigError(
            f"{path}: expected a {what} that may be read, found no permission ({reason}): give it, or correct the "
            "credentials"
        )
    if error.errno in _NO_FILE:
        return InputRejectedError(f"{path}: expected a {what}, found no file ({reason}): correct the path")
    return TemporaryError(
        f"{path}: expected a {what}, found that its storage does not give it now ({reason}): run again; what is "
        "published may well be whole"
    )


def _parquet(path: str, content: bytes) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(pa.BufferReader(content))
    except (pa.ArrowException, ValueError, OSError) as error:  # names may not be UTF-8
        raise _unreadable(path, error) from None


def _rows(path: str, parquet: pq.ParquetFile) -> pa.Table:
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


def _compare(path: str, expected: str, found: str) -> None:
    if found != expected:
        raise InputRejectedError(
            f"{path}: expected content with the fingerprint {expected}, found {found}: "
            "the file was changed after it was published; publish it again"
        )


def _columns(table: pa.Table) -> dict[str, Array]:
    return {name: as_numpy(table.column(name)) for name in _MAP}


def _checked_facts(path: str, parquet: pq.ParquetFile) -> LookupFacts:
    """Read the facts of the metadata and check the columns."""
    found = parquet.schema_arrow
    segmented = (_PREFIX + "segments").encode() in (found.metadata or {})
    facts = facts_of(path, found.metadata, parquet.metadata.num_rows) if segmented else None
    names = facts.segments if facts else ()
    with_interval = (_PREFIX + "interval").encode() in (found.metadata or {})
    plain_table = schema.INTERVAL_TABLE if with_interval else schema.LOOKUP_TABLE
    segmented_table = functools.partial(schema.segmented_lookup, interval=with_interval)
    expected = _expected(found, names, segmented_table) if names else plain_table
    if not found.remove_metadata().equals(expected):
        raise InputRejectedError(
            f"{path}: expected a lookup table with the columns {_described(expected)}; found {_described(found)}: "
            "publish it again"
        )
    return facts or facts_of(path, found.metadata, parquet.metadata.num_rows)


def _expected(found: pa.Schema, names: Sequence[str], columns: Any) -> pa.Schema:
    """The columns of a table with segment columns of the types that they are found to have."""
    there = set(found.names)
    return columns((name, found.field(name).type if name in there else pa.null()) for name in names)


def _described(columns: pa.Schema) -> str:
    return ", ".join(f"{f.name} {f.type}{'' if f.nullable else ' not null'}" for f in columns)


def facts_of(path: str, metadata: dict[bytes, bytes] | None, rows: int) -> LookupFacts:
    """Read the facts of a lookup table's Parquet metadata; InputRejectedError for another file. rows : of the table."""
    prefix = _PREFIX.encode()
    try:
        texts = {
            key[len(prefix) :].decode(): value.decode()
            for key, value in (metadata or {}).items()
            if key.startswith(prefix)
        }
    except UnicodeDecodeError as error:
        raise _unreadable(path, error) from None
    found = texts.get("format_version")
    if found not in schema.FORMAT_VERSIONS:
        raise InputRejectedError(f"{path}: {schema.other_format(found)}")
    try:
        values: dict[str, Any] = {key: parse_json(texts[key]) for key in _JSON_KEYS}
        values |= {key: texts[key] for key in ("version", "method", "score_transform", "fingerprint")}
        values["monotone"] = {"true": True, "false": False}[texts["monotone"]]
        values["segments"] = tuple(parse_json(texts.get("segments", "[]")))
        values["format_version"] = found
        values["interval"] = texts.get("interval")
    except (KeyError, ValueError) as error:
        raise InputRejectedError(
            f"{path}: expected a lookup table's metadata, found them incomplete ({error}): publish it again"
        ) from None
    if values["score_transform"] not in TRANSFORMS:
        raise InputRejectedError(
            f"{path}: expected a score transform among {', '.join(TRANSFORMS)}, found "
            f"'{values['score_transform']}': use the version of logcal that wrote it"
        )
    return LookupFacts(rows=rows, **values)


# With segments


def _segmented(path: str, content: bytes, facts: LookupFacts, table: pa.Table) -> SegmentedLookup:
    segments_path = storage.sibling(path, SEGMENTS_FILE)
    segments_content = _content(segments_path, "table of segments", "publish it again")
    segments = _rows(segments_path, _parquet(segments_path, segments_content))
    expected = _expected(segments.schema, facts.segments, _SEGMENTS[facts.format_version])
    if not segments.schema.remove_metadata().equals(expected):
        raise InputRejectedError(
            f"{segments_path}: expected the columns {_described(expected)}; found {_described(segments.schema)}: "
            "publish it again"
        )
    _check_files(path, {path: content, segments_path: segments_content})
    try:
        lookup = _put_together(facts, table, segments)
        found = _fingerprint_of(lookup)
    except (IndexError, ValueError):  # of changed rows nothing can be made
        found = "none"
    _compare(path, facts.fingerprint, found)
    return lookup


def _put_together(facts: LookupFacts, table: pa.Table, segments: pa.Table) -> SegmentedLookup:
    """Make a table of its columns. That these are right its fingerprint tells, which is of all of them."""
    names, maps = facts.segments, _columns(table)
    levels = as_numpy(table.column(schema.SEGMENT_LEVEL)).astype(np.int64)
    # Each map begins at -inf, and nothing else does.
    starts = np.flatnonzero(maps["score_lo"] == -np.inf)
    whose = [one_array(table.column(name)) for name in names]
    if not all(_constant(column, starts) for column in [*whose, as_column(levels)]):
        raise ValueError("the rows of each map must be of one segment")
    owners, levels = [column.take(as_column(starts)) for column in whose], levels[starts]
    keys = [pa.concat_arrays([a, one_array(segments.column(n))]) for a, n in zip(owners, names, strict=True)]
    rows, adjustments = segments.num_rows, None
    own_levels, own_places = np.full(rows, len(names)), np.full(rows, -1)
    if facts.format_version in (schema.SECOND_FORMAT_VERSION, schema.THIRD_FORMAT_VERSION):
        own_levels = as_numpy(segments.column(schema.SEGMENT_LEVEL)).astype(np.int64)
        adjustments, own_places = _adjustments(segments, keys, levels, own_levels)
    index = SegmentIndex(
        keys,
        np.append(levels, own_levels),
        np.append(np.arange(starts.size), own_places),
        np.append(np.zeros(starts.size, np.bool_), own_levels == len(names)),
    )
    starts = np.append(starts, table.num_rows)
    return SegmentedLookup(
        facts, maps, starts, owners, levels, segments, index, adjustments, _interval(facts, table)
    )


def _constant(column: pa.Array, starts: npt.NDArray[np.int64]) -> bool:
    """Tell whether a column changes at `starts` alone."""
    codes = as_numpy(column.dictionary_encode(null_encoding="encode").indices)
    inner = np.ones(codes.size, np.bool_)
    inner[starts] = False
    return not np.any(np.diff(codes)[inner[1:]])


def _adjustments(
    segments: pa.Table, keys: list[pa.Array], levels: Integers, own_levels: Integers
) -> tuple[Adjustments, Integers]:
    """Read the segments' adjustments: an entry a map, as it is, then one a segment; and each segment's entry.

    keys : of the maps, and then of the segments. levels : of the maps. own_levels : of the segments
    """
    shift, slope, low, high = (
        as_numpy(segments.column(name)) for name in ("logit_shift", "logit_slope", "prob_min", "prob_max")
    )
    fitted, maps = as_numpy(segments.column("fitted_level")).astype(np.int64), levels.size
    of = np.zeros(fitted.size, np.int8)
    if "logit_from" in segments.column_names:
        of[:] = [schema.LOGIT_FROM.index(name) for name in segments.column("logit_from").to_pylist()]
    place = np.zeros(fitted.size, np.int64)
    for depth in range(1, len(keys) + 1):
        # The nearest map above a segment is found as a row's is.
        there, rows = np.flatnonzero(levels <= depth), np.flatnonzero(own_levels == depth)
        index = SegmentIndex(
            [column.take(as_column(there)) for column in keys[:depth]],
            levels[there],
            there,
            np.ones(there.size, np.bool_),
        )
        place[rows] = index.find([column.take(as_column(maps + rows)) for column in keys[:depth]])[0]
    still = np.zeros(maps)
    adjustments = Adjustments(
        np.append(np.arange(maps), place).astype(np.int32),
        np.append(still, shift),
        np.append(still + 1.0, slope),
        np.append(still + 0.5, low),
        np.append(still + 0.5, high),
        np.append(still.astype(np.int8), of) if of.any() else None,
    )
    return adjustments, np.where((fitted < own_levels) | (of != 0), maps + np.arange(fitted.size), -1)


def _check_files(path: str, contents: dict[str, bytes]) -> None:
    """Compare files with the checksums of the manifest beside them, where there is one."""
    manifest = storage.sibling(path, MANIFEST_FILE)
    try:
        files = read_manifest(manifest, storage.read(manifest))["files"]
        expected = {name: files[name.rpartition("/")[2]]["sha256"] for name in contents}
    except (OSError, KeyError, InputRejectedError):
        expected = {}  # what is in the files speaks for itself
    for name, content in contents.items() if expected else ():
        found = hashlib.sha256(content).hexdigest()
        if found != expected[name]:
            raise InputRejectedError(
                f"{name}: expected the sha256 {expected[name]} of the manifest beside it, found {found}: "
                "the file was changed after it was published; publish it again"
            )


def _fingerprint_of(lookup: SegmentedLookup) -> str:
    """The fingerprint, worked out anew from what was read: half a second for 200,000 segments."""
    own = [one_array(lookup.finest_segments.column(name)) for name in lookup.columns]
    columns: list[list[pa.Array]] = [[] for _ in own]
    sizes = []
    # Keys of all levels, in order; of each the rows of its map, if it has one.
    ids, owners = np.zeros(len(own[0]), np.int64), np.zeros(lookup.levels.size, np.int64)
    spans = np.diff(lookup.starts)
    for depth in range(len(own) + 1):
        if depth:
            ids, owners = _prefixes(ids, owners, own[depth - 1], lookup.owners[depth - 1])
        first = np.flatnonzero(np.diff(ids, prepend=-1))
        rows = np.zeros(max(ids.max(initial=0), owners.max(initial=0)) + 1, np.int64)
        mine = lookup.levels == depth
        rows[owners[mine]] = spans[mine]
        sizes.append(rows[ids[first]])
        for i, column in enumerate(own):
            columns[i].append(
                column.take(as_column(first)) if i < depth else pa.nulls(first.size, column.type)
            )
    facts = {**lookup.facts.content, "monotone": lookup.facts.monotone, "segments": list(lookup.columns)}
    if lookup.facts.interval is not None:
        facts["interval"] = lookup.facts.interval
    return segmented_fingerprint(
        facts,
        [column.type for column in own],
        [pa.concat_arrays(parts) for parts in columns],
        np.concatenate(sizes),
        lookup.maps,
        lookup.segments,
        lookup.facts.format_version,
        lookup.interval,
    )


def _prefixes(
    ids: Integers, owners: Integers, values: pa.Array, owned: pa.Array
) -> tuple[Integers, Integers]:
    """Numbers of keys one column longer. ids, values : of segments. owners, owned : of maps, numbered alike."""
    codes = pa.concat_arrays([values, owned]).dictionary_encode(null_encoding="encode").indices
    pairs = (np.append(ids, owners) << 32) | as_numpy(codes)
    _, found = np.unique(pairs, return_inverse=True)
    return found[: ids.size], found[ids.size :]
