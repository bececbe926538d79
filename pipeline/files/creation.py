"""Small files that are created whole and once: what several writers, and the reruns of one, agree by."""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path
from typing import Any

from fsspec.implementations.local import LocalFileSystem

from pipeline.errors import ConfigError, TemporaryError
from pipeline.files.folders import Folder, sync_folder, write_synced


def create(filesystem: Any, path: str, content: bytes) -> bool:
    """Write a file where nothing is; return whether this call wrote it. Whoever sees it sees all of it.

    On a mounted file system it is written under another name, flushed to the disk, and linked to its own; elsewhere it
    is a conditional PUT.

    Raises
    ------
    ConfigError
        The store knows neither.
    OSError
        It cannot be written.
    """
    if isinstance(filesystem, LocalFileSystem):
        return _link(Path(path), content)
    try:
        filesystem.pipe_file(path, content, mode="create")
    except FileExistsError:
        return False
    except (TypeError, NotImplementedError, ValueError) as error:
        raise ConfigError(
            f"{path}: expected a store that creates a file only where nothing is (conditional PUT), found one "
            f"that does not ({error}): use a mounted folder, or a store that does"
        ) from None
    return True


def _link(path: Path, content: bytes) -> bool:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        write_synced(temporary, content)
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)
    return True


def replace(filesystem: Any, path: str, content: bytes) -> None:
    """Write a file, whatever is there; whoever sees it sees all of it, the old one or the new."""
    parent, _, name = path.rpartition("/")
    folder = Folder(filesystem, parent)
    folder.make()
    folder.replace(name, content)


def read_json(filesystem: Any, path: str) -> dict[str, Any] | None:
    """An object in a file, or None where there is no file.

    Raises
    ------
    TemporaryError
        There is something else.
    """
    try:
        content = json.loads(filesystem.cat_file(path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as error:
        raise TemporaryError(f"{path}: expected JSON, found a file that is damaged ({error})") from None
    if not isinstance(content, dict):
        raise TemporaryError(f"{path}: expected an object, found {type(content).__name__}")
    return content
