"""Files of Iceberg tables, read as all others are: by fsspec's file systems, with the options of the configuration."""

from __future__ import annotations

from typing import Any

from pyiceberg.io.fsspec import FsspecFileIO

from logcal.storage import open_filesystem


class FilesOfIceberg(FsspecFileIO):
    """File access for pyiceberg to read a table's metadata. Its own choice would not know `storage.options`."""

    def _get_fs(self, scheme: str, hostname: str | None = None) -> Any:
        return open_filesystem(f"{scheme}://")[0]
