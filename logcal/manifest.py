"""A version's manifest, with one check of all keys that its readers use; and the fingerprint of a table."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from logcal import schema
from logcal.arrow_columns import as_numpy, one_array
from logcal.errors import InputRejectedError, examples
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

_DAYS = [{"day": dt.datetime, **dict.fromkeys(("rows_read", "rows_usable", "rows_used"), int)}]
_MODEL: dict[str, Any] = {
    "table": str,
    "version": str,
    "previous_version": (str, None),
    "created": dt.datetime,
    "fingerprint": str,
    "publish": str,
    "refused": [{"rule": str, "message": str}],
    "files": {"*": {"bytes": int, "sha256": str}},
    "run_id": str,
    "method": str,
    "parameters": {},
    "score_transform": str,
    "monotone": bool,
    "lookup_rows": int,
    "seconds": _NUMBER,
    "started": dt.datetime,
    "interval?": (str, None),
    "software": {},
    "config": {"log": {"weight": (str, None)}, "score_table": {"grid": str}},
    "data": {
        **dict.fromkeys(("rows_read", "rows_used", "rows_positive", "distinct_scores"), int),
        **dict.fromkeys(("weight", "positives"), _NUMBER),
        **dict.fromkeys(("lowest_score", "highest_score"), (*_NUMBER, str, None)),
        "quarantined_by_reason": {"*": int},
    },
    "log": {
        "columns": {"*": str},
        "generated_by": (str, None),
        "files": [{"path": str, "bytes": (int, None), "rows": (int, None), "stamp": (str, *_NUMBER, None)}],
    },
    "segments?": ({"columns": [str]}, None),
    "gate?": ({"auc?": (*_NUMBER, None), "holdout?": ({}, None)}, None),
    "window?": (
        {
            "column": str,
            "first": dt.datetime,
            "last": dt.datetime,
            "days": _DAYS,
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


_CHUNK = 1 << 14
"""Values converted to Python objects at a time: a million segments at once would take some hundred MB."""


def fingerprint(facts: dict[str, Any], *tables: pa.Table) -> str:
    """Return the SHA-256 of a lookup table's content in hexadecimal digits; the content excludes the version's name.

    Equal content has equal fingerprints, whichever version of pyarrow writes it.

    facts : see `LookupFacts.content`
    tables : the lookup table and, with segments, the table of segments
    """
    digest = hashlib.sha256(f"{schema.FORMAT_VERSION}\n{as_json(facts)}\n".encode())
    for column in (column for table in tables for column in table.columns):
        if column.type == pa.float64():
            digest.update(np.ascontiguousarray(as_numpy(column), "<f8").data)
            continue
        # Each distinct value has its text hashed once: most rows share a segment, and most segments a map.
        encoded = one_array(column).dictionary_encode(null_encoding="encode")
        values = encoded.dictionary
        digest.update(f"{values.type} {len(values)} ".encode())
        for start in range(0, len(values), _CHUNK):
            digest.update(json.dumps(values.slice(start, _CHUNK).to_pylist(), default=str).encode())
        digest.update(np.ascontiguousarray(as_numpy(encoded.indices), "<i4").data)
    return digest.hexdigest()


def as_json(value: Any) -> str:
    """Return the canonical JSON text of a value."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
