"""Opening paths and URLs, and reading files whole; fsspec is imported for URLs alone.

One function opens file systems, and one decodes JSON, for everything that reads files.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from logcal.errors import ConfigError


def is_url(path: str) -> bool:
    """Tell whether a path is one that fsspec reads: s3://..., memory://..., simplecache::..."""
    return "://" in path or "::" in path


def read(path: str) -> bytes:
    """The content of a file.

    Raises
    ------
    FileNotFoundError
        It is not there.
    OSError
        It cannot be read.
    """
    if not is_url(path):
        try:
            return Path(path).read_bytes()
        except NotADirectoryError as error:
            raise FileNotFoundError(*error.args) from None
    filesystem, inner = open_filesystem(path)
    content: bytes = filesystem.cat_file(inner)
    return content


def names(path: str) -> list[str]:
    """The names of the files and folders in a folder, as they are now. Errors: as `open_filesystem` and `read`."""
    filesystem, inner = open_filesystem(path)
    filesystem.invalidate_cache(inner)
    return sorted(found.rstrip("/").rpartition("/")[2] for found in filesystem.ls(inner, detail=False))


def stamp(path: str) -> str:
    """Return the stamp that changes when a file does. Errors: as `read`."""
    if not is_url(path):
        found = os.stat(path)  # noqa: PTH116 - asked once a file that is scored
        return f"{found.st_ino} {found.st_size} {found.st_mtime_ns}"
    filesystem, inner = open_filesystem(path)
    return str(filesystem.ukey(inner))


def sibling(path: str, name: str) -> str:
    """Return the path of another file in the same folder."""
    folder, slash, _ = path.rpartition("/")
    return f"{folder}{slash}{name}"


def open_filesystem(path: str, setting: str = "") -> tuple[Any, str]:
    """The file system of fsspec that a path or URL belongs to, and the path there.

    Parameters
    ----------
    setting : that holds the path, for messages

    Raises
    ------
    ConfigError
        The protocol is not known, a package for it is missing, or its options (storage.options) do not suit.
    OSError
        The URL's target, such as an archive, does not exist or cannot be reached.
    """
    import fsspec

    try:
        found: tuple[Any, str] = fsspec.core.url_to_fs(path)
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        head = f"{setting}: " if setting else ""
        raise ConfigError(f"{head}cannot open {path}: {why_not_opened(error)}") from None
    return found


def why_not_opened(error: Exception) -> str:
    """The reason why a file system cannot be made, and what to do."""
    said = " ".join(str(error).split())[:200]
    if isinstance(error, ImportError):
        missing = error.name or getattr(error.__cause__, "name", None)
        return f"{said}: pip install {missing}" if missing else said
    if isinstance(error, OSError):  # Arrow's, which have no number
        return (
            f"a library that it needs is missing ({said}): install it, for hdfs:// Java and Hadoop's libhdfs"
        )
    if isinstance(error, ValueError):
        return said
    return f"it does not take these options ({said}): correct storage.options for its protocol"


_CHECKSUM = "checksum"


def with_checksum(content: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON object with a checksum (CRC-32) of the rest of it, by which `parse_checked` knows a damaged file."""
    return {**content, _CHECKSUM: _checksum(content)}


def parse_checked(content: str | bytes) -> Any:
    """Do `parse_json` without the object's checksum; objects of older versions have none.

    Raises
    ------
    ValueError
        As `parse_json`, or the checksum is another.
    """
    found = parse_json(content)
    if isinstance(found, dict) and _CHECKSUM in found and found.pop(_CHECKSUM) != _checksum(found):
        raise ValueError("its checksum is another")
    return found


def _checksum(content: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())


def parse_json(content: str | bytes) -> Any:
    """The value that a JSON text holds.

    Raises
    ------
    ValueError
        It is not JSON, or nested too deeply.
    """
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
