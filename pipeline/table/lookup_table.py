"""The lookup table: a calibration map as a Parquet file, with the facts of its making in the file's metadata."""

from __future__ import annotations

import functools
import hashlib
import io
import json
import os
import threading
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from calibrators.calibration_map import CalibrationMap
from pipeline import schema
from pipeline.arrow_columns import as_column, as_numpy
from pipeline.errors import InputRejectedError
from pipeline.log.transforms import TRANSFORMS

_COMPRESSION = "zstd"
_CACHED_TABLES = 2
_PREFIX = schema.LOOKUP_METADATA_PREFIX
_JSON_KEYS = ("parameters", "data")


@dataclass(frozen=True)
class LookupFacts:
    """What a lookup table's metadata says.

    Attributes
    ----------
    version : the published version's name.
    method : the calibrator's name in configurations. parameters : what it was given.
    score_transform : one of `pipeline.log.transforms.TRANSFORMS`, to be applied to scores before the map.
    monotone : whether the map never decreases.
    data : facts of the calibration data, as JSON values.
    fingerprint : see `fingerprint`.
    rows : of the map.
    """

    version: str
    method: str
    parameters: dict[str, Any]
    score_transform: str
    monotone: bool
    data: dict[str, Any]
    fingerprint: str
    rows: int


@dataclass(frozen=True)
class LookupTable:
    """A calibration map and the facts of its making."""

    map: CalibrationMap
    facts: LookupFacts = field(repr=False)


def fingerprint(
    calibration_map: CalibrationMap,
    *,
    method: str,
    parameters: dict[str, Any],
    score_transform: str,
    data: dict[str, Any],
) -> str:
    """The SHA-256 of a lookup table's content, as hexadecimal digits; its version is not part of it.

    Equal content has equal fingerprints, whatever the version of pyarrow that writes it.
    """
    facts = {"method": method, "parameters": parameters, "score_transform": score_transform, "data": data}
    digest = hashlib.sha256(f"{schema.FORMAT_VERSION}\n{as_json(facts)}\n".encode())
    for name in schema.LOOKUP_TABLE.names:
        digest.update(np.asarray(getattr(calibration_map, name), "<f8").tobytes())
    return digest.hexdigest()


def write_lookup_table(
    target: str | os.PathLike[str] | BinaryIO,
    calibration_map: CalibrationMap,
    *,
    version: str,
    method: str,
    parameters: dict[str, Any],
    score_transform: str,
    data: dict[str, Any],
) -> None:
    """Write a calibration map as Parquet: the same bytes for the same arguments, without any date.

    Parameters
    ----------
    target : local path, or binary file open for writing
    version, method, parameters, score_transform, data
        As in `LookupFacts`; parameters and data hold values that JSON can.
    """
    content = fingerprint(
        calibration_map, method=method, parameters=parameters, score_transform=score_transform, data=data
    )
    facts = {"method": method, "parameters": parameters, "score_transform": score_transform, "data": data}
    metadata = metadata_of({**facts, "monotone": calibration_map.monotone}, version, content)
    table = pa.Table.from_arrays(
        [as_column(getattr(calibration_map, name)) for name in schema.LOOKUP_TABLE.names],
        schema=schema.LOOKUP_TABLE.with_metadata(metadata),
    )
    pq.write_table(table, target, compression=_COMPRESSION, use_dictionary=False)


def metadata_of(facts: dict[str, Any], version: str, content: str) -> dict[str, str]:
    """A lookup table's Parquet metadata.

    facts : method, parameters, score_transform, monotone, data; of a segmented table also segments, its columns.
    content : the fingerprint
    """
    metadata = {
        "format_version": schema.FORMAT_VERSION,
        "version": version,
        "method": facts["method"],
        "parameters": as_json(facts["parameters"]),
        "score_transform": facts["score_transform"],
        "monotone": "true" if facts["monotone"] else "false",
        "data": as_json(facts["data"]),
        "fingerprint": content,
    }
    if "segments" in facts:
        metadata["segments"] = as_json(facts["segments"])
    return {_PREFIX + key: text for key, text in metadata.items()}


def lookup_bytes(calibration_map: CalibrationMap, **facts: Any) -> bytes:
    """The bytes that `write_lookup_table` writes, with the same keywords."""
    buffer = io.BytesIO()
    write_lookup_table(buffer, calibration_map, **facts)
    return buffer.getvalue()


def read_lookup_table(path: str) -> LookupTable:
    """Read a lookup table and check all of it.

    Parameters
    ----------
    path : local path or fsspec URL

    Raises
    ------
    InputRejectedError
        It is not there, is not a lookup table of this format version, or its rows are not a calibration map.
    """
    table = _read(path)
    facts = facts_of(path, table.schema.metadata, table.num_rows)
    if any(column.null_count for column in table.columns):
        raise InputRejectedError(f"{path}: expected a lookup table, found nulls in it: publish it again")
    try:
        columns = {name: as_numpy(table.column(name)) for name in schema.LOOKUP_TABLE.names}
        calibration_map = CalibrationMap(**columns)
    except ValueError as error:
        raise InputRejectedError(
            f"{path}: expected a lookup table, found rows that are {error}: publish it again"
        ) from None
    found = fingerprint(
        calibration_map,
        method=facts.method,
        parameters=facts.parameters,
        score_transform=facts.score_transform,
        data=facts.data,
    )
    if found != facts.fingerprint:
        raise InputRejectedError(
            f"{path}: expected content with the fingerprint {facts.fingerprint}, found {found}: "
            "the file was changed after it was published; publish it again"
        )
    return LookupTable(calibration_map, facts)


def read_lookup_facts(path: str) -> LookupFacts:
    """Read a lookup table's metadata alone.

    Raises
    ------
    InputRejectedError
        As `read_lookup_table`, except that the rows are not looked at.
    """
    footer = _read(path, footer_only=True)
    return facts_of(path, footer.metadata, footer.num_rows)


def cached_lookup_table(path: str) -> LookupTable:
    """A lookup table, read once by each process while the file stays as it is."""
    try:
        filesystem, inner = fsspec.core.url_to_fs(path)
        stamp = filesystem.ukey(inner)
    except FileNotFoundError:
        raise _missing(path) from None
    with _READING:
        return _read_cached(path, stamp)


_READING = threading.Lock()
"""Threads that need the same table at the same time wait for the one that reads it."""


@functools.lru_cache(maxsize=_CACHED_TABLES)
def _read_cached(path: str, stamp: str) -> LookupTable:
    return read_lookup_table(path)


def _missing(path: str) -> InputRejectedError:
    return InputRejectedError(
        f"{path}: expected a lookup table, found no file: publish one with `logcal fit`"
    )


def _read(path: str, *, footer_only: bool = False) -> Any:
    """The table, or its footer; its columns are checked."""
    try:
        with fsspec.open(path, "rb") as file:
            parquet = pq.ParquetFile(file)
            found = parquet.schema_arrow.remove_metadata()
            segmented = (_PREFIX + "segments").encode() in (parquet.schema_arrow.metadata or {})
            if segmented and not footer_only:
                raise InputRejectedError(
                    f"{path}: expected a lookup table without segments, found one with the columns "
                    f"{_described(found)}: use a table that was fitted without log.segment"
                )
            if not segmented and not found.equals(schema.LOOKUP_TABLE):
                raise InputRejectedError(
                    f"{path}: expected a lookup table with the columns {_described(schema.LOOKUP_TABLE)}; "
                    f"found {_described(found)}"
                )
            return parquet.metadata if footer_only else parquet.read(use_threads=False)
    except FileNotFoundError:
        raise _missing(path) from None
    except (pa.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputRejectedError(
            f"{path}: expected a lookup table, found a file that cannot be read ({reason}): publish it again"
        ) from None


def _described(columns: pa.Schema) -> str:
    return ", ".join(f"{f.name} {f.type}{'' if f.nullable else ' not null'}" for f in columns)


def facts_of(path: str, metadata: dict[bytes, bytes] | None, rows: int) -> LookupFacts:
    """What a lookup table's Parquet metadata says; InputRejectedError where it is not one's. rows : of the table."""
    prefix = _PREFIX.encode()
    texts = {
        key[len(prefix) :].decode(): value.decode()
        for key, value in (metadata or {}).items()
        if key.startswith(prefix)
    }
    found = texts.get("format_version")
    if found != schema.FORMAT_VERSION:
        raise InputRejectedError(
            f"{path}: expected a lookup table of format version {schema.FORMAT_VERSION}, found "
            f"{'no format version' if found is None else found}: use the version of logcal that wrote it, "
            "or publish it again"
        )
    try:
        values: dict[str, Any] = {key: json.loads(texts[key]) for key in _JSON_KEYS}
        values |= {key: texts[key] for key in ("version", "method", "score_transform", "fingerprint")}
        values["monotone"] = {"true": True, "false": False}[texts["monotone"]]
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


def as_json(value: Any) -> str:
    """The one text of a JSON value."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
