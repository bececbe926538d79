"""Files of Iceberg tables, read as all others are: by fsspec's file systems, with the options of the configuration."""

from __future__ import annotations

from typing import Any

import fsspec
from pyiceberg.io.fsspec import FsspecFileIO


class FilesOfIceberg(FsspecFileIO):
    """What pyiceberg reads a table's metadata with. Its own choice would not know `storage.options`."""

    def _get_fs(self, scheme: str, hostname: str | None = None) -> Any:
        return fsspec.filesystem(scheme)
