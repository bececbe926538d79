"""Run records: one JSON file an attempt of a job, in a folder of their own."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from pipeline.files.secrets import redacted
from pipeline.files.whole import write_whole

_NAME = re.compile(r"\d{8}T\d{6}[^/]*\.json")


def write_record(folder: str, record: dict[str, Any]) -> str:
    """Write a record to a folder, which is made; return its path.

    Raises
    ------
    OSError, ValueError
        It cannot be written.
    """
    filesystem, root = fsspec.core.url_to_fs(folder)
    stamp = re.sub(r"[-:]|\.\d+|\+.*", "", record["start"])
    path = f"{root.rstrip('/')}/{stamp}-{record['job']}-{record['attempt'][:12]}.json"
    content = f"{json.dumps(redacted(record), indent=2, allow_nan=False, default=str)}\n".encode()
    if isinstance(filesystem, LocalFileSystem):
        os.makedirs(root, exist_ok=True)  # noqa: PTH103 - as the file system names it
        write_whole(Path(path), content)
    else:
        filesystem.pipe_file(path, content)
    return path


def read_records(folder: str) -> tuple[list[dict[str, Any]], int]:
    """The records in a folder, oldest first, and how many files there cannot be read."""
    filesystem, root = fsspec.core.url_to_fs(folder)
    try:
        paths = filesystem.ls(root, detail=False)
    except (FileNotFoundError, NotADirectoryError):
        return [], 0
    found, damaged = [], 0
    for path in sorted(path for path in paths if _NAME.fullmatch(path.rpartition("/")[2])):
        try:
            record = json.loads(filesystem.cat_file(path))
            found.append({key: record[key] for key in ("job", "start", "exit_code")} | record)
        except (OSError, ValueError, KeyError, TypeError):
            damaged += 1
    return sorted(found, key=lambda record: str(record["start"])), damaged
