"""Reading files whole: of a local path, and of a URL by way of fsspec, which only URLs need."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


def is_url(path: str) -> bool:
    """Whether a path is one that fsspec reads: s3://..., memory://..., simplecache::..."""
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
    filesystem, inner = _filesystem(path)
    content: bytes = filesystem.cat_file(inner)
    return content


def stamp(path: str) -> str:
    """What changes when a file does. Errors: as `read`."""
    if not is_url(path):
        found = os.stat(path)  # noqa: PTH116 - asked once a file that is scored
        return f"{found.st_ino} {found.st_size} {found.st_mtime_ns}"
    filesystem, inner = _filesystem(path)
    return str(filesystem.ukey(inner))


def beside(path: str, name: str) -> str:
    """The file of another name in the same folder."""
    folder, slash, _ = path.rpartition("/")
    return f"{folder}{slash}{name}"


def _filesystem(path: str) -> tuple[Any, str]:
    import fsspec

    found: tuple[Any, str] = fsspec.core.url_to_fs(path)
    return found
