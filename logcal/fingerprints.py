"""Fingerprints of lookup tables: equal content has equal fingerprints, for any writer and any version name."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from calibrators.arithmetic.calibration_map import CalibrationMap, Interval
from logcal import schema
from logcal.lookup_table import Array

_MAP = schema.LOOKUP_TABLE.names


def fingerprint(
    calibration_map: CalibrationMap,
    *,
    method: str,
    parameters: dict[str, Any],
    score_transform: str,
    data: dict[str, Any],
    interval: tuple[str, Interval] | None = None,
) -> str:
    """The SHA-256 of a lookup table's content, as hexadecimal digits; its version is not part of it.

    Equal content has equal fingerprints, whatever the version of pyarrow that writes it.
    """
    facts = {"method": method, "parameters": parameters, "score_transform": score_transform, "data": data}
    version = schema.FORMAT_VERSION
    if interval is not None:
        facts["interval"], version = interval[0], schema.SECOND_FORMAT_VERSION
    digest = hashlib.sha256(f"{version}\n{as_json(facts)}\n".encode())
    for name in _MAP:
        digest.update(np.asarray(getattr(calibration_map, name), "<f8").tobytes())
    for column in () if interval is None else interval[1]:
        digest.update(np.asarray(column, "<f8").tobytes())
    return digest.hexdigest()


def segmented_fingerprint(
    facts: dict[str, Any],
    types: Sequence[pa.DataType],
    keys: Sequence[pa.Array],
    rows: npt.NDArray[np.int64],
    maps: dict[str, Array],
    segments: pa.Table,
    version: str = schema.FORMAT_VERSION,
    interval: Interval | None = None,
) -> str:
    """The same of a table with segments.

    Parameters
    ----------
    facts : method, parameters, score_transform, data, monotone, segments; and interval, where there are any
    types : of the segment columns
    keys, rows : of all levels, in order: a column of values for each segment column, null behind a key's level; and how
        many rows its map has
    maps : columns of all maps
    segments : the table beside them
    version : of the format
    interval : of each row of the maps
    """
    digest = hashlib.sha256(f"{version}\n{as_json(facts)}\n".encode())
    # The owner of the rows is written once per segment, not once per row.
    owners = list(zip(*(column.to_pylist() for column in keys), strict=True))
    _update(digest, [[str(kind) for kind in types], owners, rows.tolist()])
    for name in _MAP:
        digest.update(np.asarray(maps[name], "<f8").tobytes())
    for values in interval or ():
        digest.update(np.asarray(values, "<f8").tobytes())
    for name, column in zip(segments.schema.names, segments.columns, strict=True):
        _update(digest, [name, column.to_pylist()])
    return digest.hexdigest()


def _update(digest: Any, values: list[Any]) -> None:
    digest.update(json.dumps(values, default=str).encode())


def as_json(value: Any) -> str:
    """The one text of a JSON value."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
