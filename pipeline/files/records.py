"""Facts of a run as strict JSON; and run records: a file for each attempt of a job, in a folder."""

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
    """Write a record to a folder, which is made; return its path.

    Raises
    ------
    OSError, ValueError
        It cannot be written.
    """
    stamp = re.sub(r"[-:]|\.\d+|\+.*", "", record["start"])
    name = f"{stamp}-{record['job']}-{record['attempt'][:12]}.json"
    content = f"{json.dumps(redacted(record), indent=2, allow_nan=False, default=str)}\n".encode()
    place = Folder.at(folder)
    place.replace(name, content)
    return f"{place.root}/{name}"


def read_records(folder: str) -> tuple[list[dict[str, Any]], int]:
    """The records in a folder, oldest first, and how many files there cannot be read."""
    place = Folder.at(folder)
    found, damaged = [], 0
    for name in place.names():
        if not _NAME.fullmatch(name):
            continue
        try:
            record = parse_json(place.read(name) or b"")
            found.append({key: record[key] for key in ("job", "start", "exit_code")} | record)
        except (OSError, ValueError, KeyError, TypeError):
            damaged += 1
    return sorted(found, key=lambda record: str(record["start"])), damaged


def jsonable(value: Any) -> Any:
    """A value as JSON can say it: what JSON has no word for as text: paths, dates, "Infinity", "-Infinity", "NaN"."""
    return json.loads(pydantic_core.to_json(value, inf_nan_mode="strings", fallback=_plain))


def _plain(value: Any) -> Any:
    return value.item() if getattr(value, "shape", None) == () else str(value)


def to_json(document: Any) -> str:
    """Strict JSON, in the same order every time."""
    return json.dumps(jsonable(document), allow_nan=False, indent=2) + "\n"
