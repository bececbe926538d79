"""Reading files from paths and URLs, and decoding JSON; fsspec is imported only for URLs."""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from logcal.errors import ConfigError
from logcal.slim import needed

MOST_LETTERS = 200
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{MOST_LETTERS - 1}}}")


def is_name(name: str) -> bool:
    """Tell whether a text can be the name of a table or a version."""
    return _NAME.fullmatch(name) is not None


def check_name(name: str) -> None:
    """Check the name of a table or a version.

    Raises
    ------
    ValueError
        It is longer than `MOST_LETTERS`, or has others than letters, digits, '.', '_' and '-'.
    """
    if not is_name(name):
        found = repr(name) if len(name) <= MOST_LETTERS else f"{len(name):,} characters"
        raise ValueError(
            f"expected at most {MOST_LETTERS} letters, digits, '.', '_' and '-', the first a letter or digit, found "
            f"{found}: choose a plain name"
        )


def is_url(path: str) -> bool:
    """Tell whether a path is an fsspec URL: s3://..., memory://..., simplecache::..."""
    return "://" in path or "::" in path


def read(path: str) -> bytes:
    """Read a file.

    Raises
    ------
    FileNotFoundError
        The file does not exist.
    OSError
        The file cannot be read.
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
    """List the names of the files and folders in a folder, uncached. Errors: see `open_filesystem` and `read`."""
    if not is_url(path):
        return sorted(os.listdir(path))  # noqa: PTH208 - names
    filesystem, inner = open_filesystem(path)
    filesystem.invalidate_cache(inner)
    return sorted(entry.rstrip("/").rpartition("/")[2] for entry in filesystem.ls(inner, detail=False))


def stamp(path: str) -> str:
    """Return a text that changes when the file changes. Errors: see `read`."""
    if not is_url(path):
        status = os.stat(path)  # noqa: PTH116 - faster than pathlib; called for each scored file
        return f"{status.st_ino} {status.st_size} {status.st_mtime_ns}"
    filesystem, inner = open_filesystem(path)
    return str(filesystem.ukey(inner))


def sibling(path: str, name: str) -> str:
    """Return the path of another file in the same folder."""
    folder, slash, _ = path.rpartition("/")
    return f"{folder}{slash}{name}"


def open_filesystem(path: str, setting: str = "") -> tuple[Any, str]:
    """Return the fsspec file system of a path or URL, and the path in it.

    Parameters
    ----------
    setting : name of the setting that holds the path, for messages

    Raises
    ------
    ConfigError
        The protocol is unknown, its package is missing, or its options (storage.options) are wrong.
    OSError
        The URL's target, such as an archive, does not exist or cannot be reached.
    """
    try:
        import fsspec
    except ModuleNotFoundError as error:
        raise needed("a URL", error) from None
    try:
        opened: tuple[Any, str] = fsspec.core.url_to_fs(path)
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        head = f"{setting}: " if setting else ""
        raise ConfigError(f"{head}cannot open {path}: {_reason(error)}") from None
    return opened


def _reason(error: Exception) -> str:
    """Say why a file system cannot be opened, and what to do."""
    text = " ".join(str(error).split())[:200]
    if isinstance(error, ImportError):
        missing = error.name or getattr(error.__cause__, "name", None)
        return f"{text}: pip install {missing}" if missing else text
    if isinstance(error, OSError):  # raised by Arrow, without errno
        return (
            f"a library that it needs is missing ({text}): install it, for hdfs:// Java and Hadoop's libhdfs"
        )
    if isinstance(error, ValueError):
        return text
    return f"it does not take these options ({text}): correct storage.options for its protocol"


_CHECKSUM = "checksum"


def with_checksum(content: Mapping[str, Any]) -> dict[str, Any]:
    """Add a CRC-32 checksum of the content to a JSON object, by which `parse_checked` detects a damaged file."""
    return {**content, _CHECKSUM: _checksum(content)}


def parse_checked(content: str | bytes) -> Any:
    """Decode JSON, and check and remove the object's checksum, if it has one.

    Raises
    ------
    ValueError
        It is not JSON, is nested too deeply, or has a wrong checksum.
    """
    value = parse_json(content)
    if isinstance(value, dict) and _CHECKSUM in value and value.pop(_CHECKSUM) != _checksum(value):
        raise ValueError("its checksum is wrong")
    return value


def _checksum(content: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())


def parse_json(content: str | bytes) -> Any:
    """Decode JSON.

    Raises
    ------
    ValueError
        It is not JSON, or nested too deeply.
    """
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
