"""Writing lookup tables: a calibration map as a Parquet file, with the facts of its making in the file's metadata.

They are read by `logcal.reading`.
"""

from __future__ import annotations

import io
import os
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from calibrators._kernels import lookup as _compiled  # noqa: F401 (which maps then use for less than a million scores, too)
from calibrators.arithmetic.calibration_map import CalibrationMap, Interval
from logcal.arrow_columns import as_column
from logcal.fingerprints import as_json, fingerprint
from logcal.lookup_table import LookupFacts, LookupTable
from logcal.reading import cached_table, plain, read_table
from logcal.reading import read_facts as read_lookup_facts
from pipeline import schema

__all__ = [
    "LookupFacts",
    "LookupTable",
    "cached_lookup_table",
    "fingerprint",
    "lookup_bytes",
    "metadata_of",
    "read_lookup_facts",
    "read_lookup_table",
    "write_lookup_table",
]

_COMPRESSION = "zstd"
_PREFIX = schema.LOOKUP_METADATA_PREFIX


def write_lookup_table(
    target: str | os.PathLike[str] | BinaryIO,
    calibration_map: CalibrationMap,
    *,
    version: str,
    method: str,
    parameters: dict[str, Any],
    score_transform: str,
    data: dict[str, Any],
    interval: tuple[str, Interval] | None = None,
) -> None:
    """Write a calibration map as Parquet: the same bytes for the same arguments, without any date.

    Parameters
    ----------
    target : local path, or binary file open for writing
    version, method, parameters, score_transform, data
        As in `LookupFacts`; parameters and data hold values that JSON can.
    interval : of each row, with its kind
    """
    content = fingerprint(
        calibration_map,
        method=method,
        parameters=parameters,
        score_transform=score_transform,
        data=data,
        interval=interval,
    )
    facts: dict[str, Any] = {"method": method, "parameters": parameters, "data": data}
    facts["score_transform"] = score_transform
    facts["monotone"] = calibration_map.monotone
    columns = [getattr(calibration_map, name) for name in schema.LOOKUP_TABLE.names]
    if interval is None:
        layout, metadata = schema.LOOKUP_TABLE, metadata_of(facts, version, content)
    else:
        facts["interval"] = interval[0]
        columns += interval[1]
        layout = schema.INTERVAL_TABLE
        metadata = metadata_of(facts, version, content, schema.SECOND_FORMAT_VERSION)
    table = pa.Table.from_arrays(
        [as_column(column) for column in columns], schema=layout.with_metadata(metadata)
    )
    pq.write_table(table, target, compression=_COMPRESSION, use_dictionary=False)


def metadata_of(
    facts: dict[str, Any], version: str, content: str, format_version: str = schema.FORMAT_VERSION
) -> dict[str, str]:
    """A lookup table's Parquet metadata.

    facts : method, parameters, score_transform, monotone, data; of a segmented table also segments, its columns.
    content : the fingerprint
    """
    metadata = {
        "format_version": format_version,
        "version": version,
        "method": facts["method"],
        "parameters": as_json(facts["parameters"]),
        "score_transform": facts["score_transform"],
        "monotone": "true" if facts["monotone"] else "false",
        "data": as_json(facts["data"]),
        "fingerprint": content,
    }
    if "interval" in facts:
        metadata["interval"] = facts["interval"]
    if "segments" in facts:
        metadata["segments"] = as_json(facts["segments"])
    return {_PREFIX + key: text for key, text in metadata.items()}


def lookup_bytes(calibration_map: CalibrationMap, **facts: Any) -> bytes:
    """The bytes that `write_lookup_table` writes, with the same keywords."""
    buffer = io.BytesIO()
    write_lookup_table(buffer, calibration_map, **facts)
    return buffer.getvalue()


def read_lookup_table(path: str) -> LookupTable:
    """Read a lookup table without segments and check all of it. Errors: as `logcal.reading.read_table`."""
    return plain(path, read_table(path))


def cached_lookup_table(path: str) -> LookupTable:
    """The same, read once by each process while the file stays as it is."""
    return plain(path, cached_table(path))
