"""Files that appear whole: written under another name, flushed to the disk, renamed."""

from __future__ import annotations

import uuid
from pathlib import Path

from pipeline.files.folders import sync_folder, write_synced


def write_whole(path: Path, content: bytes) -> None:
    """Write a file of a mounted file system, whatever was there, so that readers see the old one or the new one.

    Raises
    ------
    OSError
        Nothing has changed.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        write_synced(temporary, content)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)
