"""Run records: one JSON file an attempt of a job, in a folder of their own."""

from __future__ import annotations

import json
import re
from typing import Any

from pipeline.files.folders import Folder
from pipeline.files.secrets import redacted

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
            record = json.loads(place.read(name) or b"")
            found.append({key: record[key] for key in ("job", "start", "exit_code")} | record)
        except (OSError, ValueError, KeyError, TypeError):
            damaged += 1
    return sorted(found, key=lambda record: str(record["start"])), damaged
