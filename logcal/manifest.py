"""A version's manifest, with one check of all keys that its readers use; and the fingerprint of a table."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from calibrators.core.arrays import Array
from calibrators.core.map import CalibrationMap, Interval
from logcal import schema
from logcal.arrow_columns import as_column, as_numpy
from logcal.errors import InputRejectedError, examples
from logcal.lookup_table import one_array
from logcal.storage import parse_checked

MOST_BYTES = 64 << 20
"""Size limit of a manifest: a log of 300,000 files is listed in fewer bytes."""

_MAX_SHOWN = 40
_NUMBER = (int, float)
_TYPE_NAMES: dict[Any, str] = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    dict: "an object",
    list: "a list",
    None: "null",
    dt.datetime: "a date",
}

_DAYS = [{"day": dt.datetime, "rows_read": int, "rows_used": int}]
_MODEL: dict[str, Any] = {
    "table": str,
    "version": str,
    "previous_version": (str, None),
    "created": dt.datetime,
    "fingerprint": str,
    "publish?": str,
    "refused?": [{"rule": str, "message": str}],
    "files": {"*": {"bytes": int, "sha256": str}},
    "run_id": str,
    "method": str,
    "parameters": {},
    "score_transform": str,
    "monotone": bool,
    "lookup_rows": int,
    "seconds": _NUMBER,
    "started?": dt.datetime,
    "interval?": (str, None),
    "software": {},
    "config": {"log": {"weight?": (str, None)}, "score_table?": {}},
    "data": {
        **dict.fromkeys(("rows_read", "rows_used", "rows_positive", "distinct_scores"), int),
        **dict.fromkeys(("weight", "positives"), _NUMBER),
        **dict.fromkeys(("lowest_score", "highest_score"), (*_NUMBER, str, None)),
        "quarantined_by_reason": {"*": int},
    },
    "log": {
        "columns?": {"*": str},
        "generated_by?": (str, None),
        "files": [{"path": str, "bytes": (int, None), "rows": (int, None), "stamp?": (str, *_NUMBER, None)}],
    },
    "segments?": ({"columns": [str]}, None),
    "gate?": ({"auc?": (*_NUMBER, None), "holdout?": ({}, None)}, None),
    "window?": (
        {
            "column": str,
            "first": dt.datetime,
            "last": dt.datetime,
            "days?": _DAYS,
            "days_set_aside?": [{"day": str, "reasons": [str]}],
        },
        None,
    ),
}
"""Keys that readers use, with the type of the value, or a tuple of alternative types. A manifest may have other keys. A
key whose name ends with `?` is optional; `*` stands for every key.
"""


def full_name(table: str, name: str, names: Sequence[str]) -> str:
    """Complete the beginning of a version's name; InputRejectedError if no name or several names begin with it.

    names : names of all versions of the table
    """
    matches = [full for full in names if full.startswith(name)] if name else []
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise InputRejectedError(
            f"table '{table}' has {len(matches)} versions that begin with '{name}': {examples(matches)}; write more of "
            "the name"
        )
    raise InputRejectedError(
        f"table '{table}' has no version '{name}'; found {examples(names) or 'no versions'}"
    )


def read_manifest(path: str, content: bytes) -> dict[str, Any]:
    """Decode and check a version's manifest.

    Parameters
    ----------
    path : path of the file, for messages
    content : content of the file

    Raises
    ------
    InputRejectedError
        It is not a version's manifest, or is of another format.
    """
    if len(content) > MOST_BYTES:
        raise _damaged(path, f"a manifest of at most {MOST_BYTES:,} bytes", f"{len(content):,}")
    try:
        manifest = parse_checked(content)
    except ValueError as error:
        raise _damaged(path, "JSON", f"a damaged file ({error})") from None
    version = manifest.get("format_version") if isinstance(manifest, dict) else None
    schema.check_format(path, version, "publish it again")
    _check(path, manifest, {"features": [str]}, ())
    schema.check_features(path, manifest["features"])
    _check(path, manifest, _MODEL, ())
    return dict(manifest)


def _check(path: str, value: Any, model: Any, keys: tuple[str, ...]) -> None:
    """Check a value of the manifest against `model`, an entry of `_MODEL`. keys : position of the value."""
    types = model if isinstance(model, tuple) else (model,)
    match = next((kind for kind in types if _has_type(value, kind)), "none")
    if match == "none":
        raise _damaged(path, f"{'.'.join(keys)} to be {_describe_types(types)}", _describe_value(value))
    if isinstance(match, list):
        for i, entry in enumerate(value if match else ()):
            _check(path, entry, match[0], (*keys, str(i)))
    for key, inner in match.items() if isinstance(match, dict) else ():
        name = key.removesuffix("?")
        if name == key != "*" and name not in value:
            raise _damaged(path, f"{'.'.join((*keys, name))} to be {_describe_types((inner,))}", "nothing")
        for present in value if key == "*" else {name} & value.keys():
            _check(path, value[present], inner, (*keys, present))


def _has_type(value: Any, kind: Any) -> bool:
    if isinstance(kind, (dict, list)):
        return type(value) is type(kind)
    if kind is not dt.datetime:
        # bool is a subclass of int, but true is not a whole number here.
        return value is None if kind is None else type(value) is kind
    try:
        dt.datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return False
    return True


def _describe_types(types: tuple[Any, ...]) -> str:
    flat = [inner for kind in types for inner in (kind if isinstance(kind, tuple) else (kind,))]
    named = [type(kind) if isinstance(kind, (dict, list)) else kind for kind in flat]
    return " or ".join(_TYPE_NAMES[kind] for kind in named if not (kind is int and float in named))


def _describe_value(value: Any) -> str:
    if isinstance(value, (dict, list)):
        return _TYPE_NAMES[type(value)]
    text = json.dumps(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


def _damaged(path: str, expected: str, found: str) -> InputRejectedError:
    return InputRejectedError(
        f"{path}: expected {expected}, found {found}: the version is damaged; go back to another with "
        "`logcal tables rollback`, or fit again"
    )


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
    """Return the SHA-256 of a lookup table's content in hexadecimal digits; the content excludes the version's name.

    Equal content has equal fingerprints, whichever version of pyarrow writes it.
    """
    facts = {"method": method, "parameters": parameters, "score_transform": score_transform, "data": data}
    if interval is not None:
        facts["interval"] = interval[0]
    digest = hashlib.sha256(f"{schema.FORMAT_VERSION}\n{as_json(facts)}\n".encode())
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
    interval: Interval | None = None,
) -> str:
    """Return the fingerprint of a table with segments.

    Parameters
    ----------
    facts : method, parameters, score_transform, data, monotone, segments, and interval for a table with intervals
    types : types of the segment columns
    keys : keys of all levels, in order: a column of values for each segment column, null beyond the key's level
    rows : number of rows of each key's map
    maps : columns of all maps
    segments : the table of segments
    interval : interval of each row of the maps
    """
    digest = hashlib.sha256(f"{schema.FORMAT_VERSION}\n{as_json(facts)}\n".encode())
    # A map's segment is hashed once, not once per row.
    digest.update(f"[{json.dumps([str(kind) for kind in types])}, [".encode())
    _update(digest, keys, in_rows=True)
    digest.update(b"], [")
    _update(digest, [pa.chunked_array([as_column(rows)])])
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


_CHUNK = 1 << 14
"""Values converted to Python objects at a time: a million segments at once would take some hundred MB."""


def _update(digest: Any, columns: Sequence[pa.Array | pa.ChunkedArray], *, in_rows: bool = False) -> None:
    """Hash the JSON text of a column's values, or of the rows of several columns, without the list's brackets."""
    for start in range(0, len(columns[0]), _CHUNK):
        parts = [column.slice(start, _CHUNK) for column in columns]
        if in_rows:
            text = json.dumps([*zip(*(part.to_pylist() for part in parts), strict=True)], default=str)[1:-1]
        else:
            text = _json_values(parts[0])
        digest.update(f"{', ' if start else ''}{text}".encode())


def _json_values(chunked: pa.ChunkedArray) -> str:
    """Return the JSON texts of values; each distinct value is encoded once, as most segments share a map."""
    column = one_array(chunked)
    # Compare the bits: 0.0 and -0.0 are equal, but have different texts.
    bits = column.view(pa.int64()) if pa.types.is_float64(column.type) else column
    coded = bits.dictionary_encode(null_encoding="encode")
    if 4 * len(coded.dictionary) > len(column):
        return json.dumps(column.to_pylist(), default=str)[1:-1]
    texts = [json.dumps(value, default=str) for value in coded.dictionary.view(column.type).to_pylist()]
    return ", ".join([texts[i] for i in as_numpy(coded.indices).tolist()])


def as_json(value: Any) -> str:
    """Return the canonical JSON text of a value."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
