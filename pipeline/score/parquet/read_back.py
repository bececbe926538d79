"""Reading back the columns that were added to a file, before the file is visible.

An output is never trusted unread: the footer is read from the written file, and each added column is decoded and
compared, by a checksum of its values, with what was to be written.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from logcal.arrow_columns import as_numpy, null_mask
from logcal.errors import TemporaryError
from pipeline.files.requests import StoreFile
from pipeline.score.parquet.footer import NotExtensibleError

_FOOTER_BYTES = 1 << 16
"""Arrow reads as many bytes from a file's end at first."""
_TAIL_BYTES = 1 << 26
"""Most bytes of a store's file that are read with one request, and held."""
_BUFFER_BYTES = 1 << 20
_FEW_ROWS = 1 << 14
_MODULUS = 1 << 64


class Checksum:
    """Checksum of a column of doubles or booleans, independent of the batches it is added in; NaN and null are equal.

    It is the sum of the values' bits, each times an odd number that depends on its row, modulo 2^64. So it differs if
    any one value does.
    """

    def __init__(self) -> None:
        self.value = self.rows = 0

    def add(self, column: pa.Array) -> None:
        """Add the next rows."""
        values = as_numpy(column)
        if column.null_count:
            values = np.where(null_mask(column), np.nan, values)
        bits = values.astype(np.float64, copy=False).view(np.uint64)
        weighted = int(np.dot(bits, _weights(bits.size.bit_length())[: bits.size]))
        shift = 2 * self.rows * int(bits.sum()) if self.rows else 0
        self.value = (self.value + weighted + shift) % _MODULUS
        self.rows += bits.size


@lru_cache(maxsize=32)
def _weights(bits: int) -> npt.NDArray[np.uint64]:
    return 2 * np.arange(1 << bits, dtype=np.uint64) + np.uint64(1)


@dataclass
class Expected:
    """Expected content of a written file.

    Attributes
    ----------
    before : footer of the file that was copied
    names : names of the added columns, in order; the last is a constant text
    sums : for each row group a checksum for each added column but the last
    constant : value of the last column
    start : offset of the added columns
    """

    before: pq.FileMetaData
    names: Sequence[str]
    constant: str
    start: int
    sums: list[list[Checksum]] = field(default_factory=list)

    def check(self, source: Any) -> None:
        """Read a written file, open as `source`, and compare it.

        Raises
        ------
        NotExtensibleError
            The footer is not that of the copied file with the added columns.
        TemporaryError
            A column has other values.
        """
        few = self.before.num_rows <= _FEW_ROWS
        options: dict[str, Any] = {"pre_buffer": False, "buffer_size": 0 if few else _BUFFER_BYTES}
        with pq.ParquetFile(source, read_dictionary=[self.names[-1]], **options) as parquet:
            self._check_footer(parquet.metadata)
            for index in range(parquet.num_row_groups):
                batches = parquet.iter_batches(1 << 17, [index], list(self.names), use_threads=False)
                self._check_group(index, batches)

    def _check_footer(self, after: pq.FileMetaData) -> None:
        before = self.before
        old, new = _paths(before), _paths(after)
        groups = range(before.num_row_groups)
        if (
            new != [*old, *self.names]
            or after.num_row_groups != before.num_row_groups
            or any(after.row_group(i).num_rows != before.row_group(i).num_rows for i in groups)
        ):
            raise NotExtensibleError("its extended footer does not read as its own with the new columns")

    def _check_group(self, index: int, batches: Iterable[pa.RecordBatch]) -> None:
        found = [Checksum() for _ in self.names[:-1]]
        rows, constant = 0, True
        for batch in batches:
            *columns, last = (batch.column(name) for name in self.names)
            for checksum, column in zip(found, columns, strict=True):
                checksum.add(column)
            constant = constant and _is_constant(last, self.constant)
            rows += batch.num_rows
        wrong = [
            name
            for name, now, then in zip(self.names, found, self.sums[index], strict=False)
            if (now.value, now.rows) != (then.value, then.rows)
        ]
        wrong += [] if constant and rows == self.before.row_group(index).num_rows else [self.names[-1]]
        if wrong:
            raise TemporaryError(
                f"expected the added columns to read as they were written, found other values of {', '.join(wrong)} in "
                f"row group {index}: the file was not published; run again, and check the storage if it happens again"
            )


def _paths(footer: pq.FileMetaData) -> list[str]:
    schema = footer.schema
    return [schema.column(i).path for i in range(footer.num_columns)]


def _is_constant(column: pa.DictionaryArray, value: str) -> bool:
    return len(column) == 0 or (
        column.dictionary.to_pylist() == [value]
        and not column.null_count
        and not as_numpy(column.indices).any()
    )


@contextmanager
def open_stored(filesystem: Any, path: str, size: int, start: int) -> Iterator[Any]:
    """Open the end of a file of a store for `Expected.check`: one request, if it is not too large to hold."""
    first = max(0, min(start, size - _FOOTER_BYTES))
    if size - first > _TAIL_BYTES:
        yield StoreFile(filesystem, path, size)
    else:
        yield _End(filesystem.cat_file(path, start=first, end=size), first)


class _End(io.BytesIO):
    """End of a file, with the offsets of the file."""

    def __init__(self, content: bytes, start: int) -> None:
        super().__init__(content)
        self._start = start

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return super().seek(offset - (self._start if whence == io.SEEK_SET else 0), whence) + self._start

    def tell(self) -> int:
        return super().tell() + self._start
