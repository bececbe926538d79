"""Values as strict JSON, whatever they are: what manifests, records and reports say of them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from typing import Any


def jsonable(value: Any) -> Any:
    """A value as JSON can say it: what JSON has no word for as text: paths, dates, "Infinity", "-Infinity", "NaN"."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return (
            value
            if math.isfinite(value)
            else {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
        )
    if is_dataclass(value) and not isinstance(value, type):
        return jsonable(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        return [jsonable(item) for item in value]
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        return jsonable(value.item())
    return str(value)


def to_json(document: Any) -> str:
    """Strict JSON, in the same order every time."""
    return json.dumps(jsonable(document), allow_nan=False, indent=2) + "\n"
