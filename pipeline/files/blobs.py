"""Files that are written once, whole, and then read by ranges: runs, and what tasks leave each other."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


def write_blob(path: str, parts: Iterable[memoryview]) -> None:
    """Write a file that appears whole; a repeated task writes the same file again."""
    place = Path(path)
    temporary = place.with_name(f"{place.name}.tmp")
    with temporary.open("wb", buffering=0) as file:
        for part in parts:
            rest = part.cast("B") if part.nbytes else part
            while rest.nbytes:
                rest = rest[file.write(rest) :]
    temporary.replace(place)


class Blob:
    """An open file.

    Not mapped into memory: the pages of all runs together would count as the process's.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._file = Path(path).open("rb", buffering=0)  # noqa: SIM115 - closed by __exit__

    def __enter__(self) -> Blob:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def read(self, start: int, view: memoryview) -> None:
        """Fill memory with the bytes from `start` on."""
        while view:
            count = os.preadv(self._file.fileno(), [view], start)
            if count == 0:
                raise OSError(f"{self.path}: expected {start + len(view):,} bytes, found {start:,}")
            view, start = view[count:], start + count
