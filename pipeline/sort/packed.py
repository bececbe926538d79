"""Files of packed columns that tasks leave each other: see `pipeline._kernels.packing`.

The columns, then where each one's blocks begin, so that any stretch of a column can be read alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline._kernels import packing
from pipeline.files.blobs import Blob, write_blob
from pipeline.sort.run_files import Words

STRIDE = 1024
"""Numbers of a packed block."""


class Packed(NamedTuple):
    """A file of columns of numbers of 8 bytes. sizes : numbers of each column. words : of all that are packed."""

    path: str
    sizes: tuple[int, ...]
    words: int

    def read(self, column: int, start: int = 0, stop: int | None = None) -> Words:
        """Numbers start, ..., stop - 1 of a column, as the whole numbers that their bits are."""
        with Blob(self.path) as blob:
            return self._read(blob, column, start, self.sizes[column] if stop is None else stop)

    def read_first(self, columns: int, start: int, stop: int) -> list[Words]:
        """The same of the first so many columns."""
        with Blob(self.path) as blob:
            return [self._read(blob, column, start, stop) for column in range(columns)]

    def fill_rows(self, start: int, rows: Words) -> None:
        """The same of as many columns as an array has, from number `start` on. rows : shape (n, columns), is filled."""
        with Blob(self.path) as blob:
            for column in range(rows.shape[1]):
                rows[:, column] = self._read(blob, column, start, start + rows.shape[0])

    def _read(self, blob: Blob, column: int, start: int, stop: int) -> Words:
        if start >= stop:
            return np.empty(0, np.uint64)
        first, last = start // STRIDE, _blocks(stop)
        ends = np.empty(last - first + 1, np.int64)
        at = self.words + sum(_blocks(size) + 1 for size in self.sizes[:column]) + first
        blob.read(8 * at, ends.data.cast("B"))
        size = int(ends[-1] - ends[0])
        words = np.zeros(size + packing.PADDING, np.uint64)
        blob.read(8 * int(ends[0]), words[:size].data.cast("B"))
        found = np.empty((last - first) * STRIDE, np.uint64)
        packing.unpack(words, size, False, found)
        return found[start - first * STRIDE : stop - first * STRIDE]


def write_packed(path: str, columns: Iterable[npt.NDArray[Any]]) -> Packed:
    """Write columns of float64, or of whole numbers of 64 bits."""
    sizes: list[int] = []
    ends: list[npt.NDArray[np.int64]] = []
    write_blob(path, _parts(columns, sizes, ends))
    return Packed(path, tuple(sizes), int(ends[-1][-1]))


def _parts(
    columns: Iterable[npt.NDArray[Any]], sizes: list[int], ends: list[npt.NDArray[np.int64]]
) -> Iterator[memoryview]:
    """Encode a file's parts; append the facts of each column to `sizes` and `ends`."""
    at = 0
    words: Words = np.empty(0, np.uint64)
    for column in columns:
        own = np.zeros(_blocks(column.size) + 1, np.int64)
        room = column.size + (packing.HEADER + 1) * (own.size - 1)
        if words.size < room:
            words = np.empty(room, np.uint64)
        packing.pack(np.ascontiguousarray(column).view(np.uint64), STRIDE, False, words, own)
        yield words[: own[-1]].data
        sizes.append(column.size)
        ends.append(own + at)
        at += int(own[-1])
    yield np.concatenate(ends).data


def _blocks(size: int) -> int:
    return -(-size // STRIDE)
