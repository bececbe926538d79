"""Fingerprints of lookup tables: equal content has equal fingerprints, for any writer and any version name."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from calibrators.arithmetic.calibration_map import CalibrationMap, Interval
from logcal import schema
from logcal.arrow_columns import as_column, column_of
from logcal.lookup_table import Array

_MAP = schema.LOOKUP_TABLE.names

_AT_ONCE = 1 << 16
"""Rows whose texts are made together."""

_PLAIN = re.compile(rb"[ !#-\[\]-~]*")
"""Characters that JSON in ASCII keeps: all printable ones but the quotation mark and the backslash."""


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
    digest.update(f"[{json.dumps([str(kind) for kind in types])}, [".encode())
    _update(digest, keys, "[", "]")
    digest.update(b"], [")
    _update(digest, [as_column(rows)])
    digest.update(b"]]")
    for name in _MAP:
        digest.update(np.asarray(maps[name], "<f8").tobytes())
    for values in interval or ():
        digest.update(np.asarray(values, "<f8").tobytes())
    for name, column in zip(segments.schema.names, segments.columns, strict=True):
        digest.update(f"[{json.dumps(name)}, [".encode())
        _update(digest, [column])
        digest.update(b"]]")
    return digest.hexdigest()


def _update(
    digest: Any, columns: Sequence[pa.Array | pa.ChunkedArray], before: str = "", behind: str = ""
) -> None:
    """Add the JSON texts of rows, each between the same two, as `json.dumps` separates those of a list.

    Whole columns of texts at a time: for a million segments Python's objects would take seconds.
    """
    import pyarrow.compute as pc

    for start in range(0, len(columns[0]), _AT_ONCE):
        rows = [_texts(_one(column.slice(start, _AT_ONCE))) for column in columns]
        texts = rows[0] if len(rows) == 1 else pc.binary_join_element_wise(*rows, _scalar(", "))
        ends = as_column(np.array([0, len(texts)], np.int32))
        [joined] = pc.binary_join(pa.ListArray.from_arrays(ends, texts), _scalar(f"{behind}, {before}"))
        digest.update(f"{', ' if start else ''}{before}{joined}{behind}".encode())


def _scalar(text: str) -> pa.Scalar:
    """A text for Arrow, which imports pandas where it is given Python's."""
    return column_of([text], pa.string())[0]


def _one(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return column if isinstance(column, pa.Array) else pa.concat_arrays(column.chunks)


def _texts(column: pa.Array) -> pa.Array:
    """The JSON text of each value, as `json.dumps` has it."""
    import pyarrow.compute as pc

    if pa.types.is_integer(column.type):
        texts = column.cast(pa.string())
    elif pa.types.is_string(column.type) and _is_plain(column):
        texts = pc.binary_join_element_wise(_scalar('"'), column, _scalar('"'), _scalar(""))
    else:
        # Zeros of either sign are different texts.
        numbers = pa.types.is_float64(column.type)
        coded = (column.view(pa.int64()) if numbers else column).dictionary_encode()
        values = coded.dictionary.view(column.type).to_pylist()
        found = _number_texts(values) if numbers else _other_texts(values)
        texts = found.take(coded.indices)
    return texts.fill_null(_scalar("null"))


def _number_texts(numbers: list[float]) -> pa.Array:
    text = np.frombuffer(json.dumps(numbers, separators=(",", ":"))[1:-1].encode(), np.uint8)
    commas = np.flatnonzero(text == ord(","))
    ends = np.concatenate([[0], commas - np.arange(commas.size), [text.size - commas.size]]).astype(np.int32)
    data = np.delete(text, commas)
    return pa.StringArray.from_buffers(len(numbers), pa.py_buffer(ends), pa.py_buffer(data))


def _other_texts(values: list[Any]) -> pa.Array:
    return column_of(list(map(json.JSONEncoder(default=str).encode, values)), pa.string())


def _is_plain(column: pa.Array) -> bool:
    """Tell whether JSON has nothing in texts to escape."""
    _, ends, data = column.buffers()
    if data is None:
        return True
    first, last = np.frombuffer(ends, np.int32)[[column.offset, column.offset + len(column)]]
    return _PLAIN.fullmatch(data[first:last]) is not None


def as_json(value: Any) -> str:
    """The one text of a JSON value."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
