"""Run records, one JSON file for each attempt of a job; and conversion of values to strict JSON."""

from __future__ import annotations

import json
import re
from typing import Any

import pydantic_core

from logcal.storage import parse_json
from pipeline.files.folders import Folder
from pipeline.files.storage import redacted

_NAME = re.compile(r"\d{8}T\d{6}[^/]*\.json")


def write_record(folder: str, record: dict[str, Any]) -> str:
    """Write a record to a folder, which is created if needed; return the file's path.

    Raises
    ------
    OSError, ValueError
        The record cannot be written.
    """
    stamp = re.sub(r"[-:]|\.\d+|\+.*", "", record["start"])
    name = f"{stamp}-{record['job']}-{record['attempt'][:12]}.json"
    content = f"{json.dumps(redacted(record), indent=2, allow_nan=False, default=str)}\n".encode()
    target = Folder.at(folder)
    target.write(name, content)
    return f"{target.root}/{name}"


def read_records(folder: str) -> tuple[list[dict[str, Any]], int]:
    """Read the records in a folder, oldest first; return them and the number of unreadable files."""
    source = Folder.at(folder)
    records, damaged = [], 0
    for name in source.names():
        if not _NAME.fullmatch(name):
            continue
        try:
            record = parse_json(source.read(name) or b"")
            records.append({key: record[key] for key in ("job", "start", "exit_code")} | record)
        except (OSError, ValueError, KeyError, TypeError):
            damaged += 1
    return sorted(records, key=lambda record: str(record["start"])), damaged


def jsonable(value: Any) -> Any:
    """Convert a value to JSON types; paths, dates and non-finite numbers ("Infinity", "NaN") become text."""
    return json.loads(pydantic_core.to_json(value, inf_nan_mode="strings", fallback=_item_or_text))


def _item_or_text(value: Any) -> Any:
    return value.item() if getattr(value, "shape", None) == () else str(value)


def to_json(document: Any) -> str:
    """Encode a document as strict JSON."""
    return json.dumps(jsonable(document), allow_nan=False, indent=2) + "\n"
