"""File access for pyiceberg through fsspec, with the configuration's storage options."""

from __future__ import annotations

from typing import Any

from pyiceberg.io.fsspec import FsspecFileIO

from logcal.storage import open_filesystem


class FilesOfIceberg(FsspecFileIO):
    """File access for pyiceberg with `storage.options`, which its default file access ignores."""

    def _get_fs(self, scheme: str, hostname: str | None = None) -> Any:
        return open_filesystem(f"{scheme}://")[0]
