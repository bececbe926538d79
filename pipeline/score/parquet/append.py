"""Copy of a Parquet file with columns added."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

import pyarrow as pa
import pyarrow.parquet as pq
from fsspec.implementations.local import LocalFileSystem
from fsspec.spec import AbstractBufferedFile

from pipeline.files.faults import as_fault
from pipeline.files.folders import begin_sync, temporary_name
from pipeline.log import thrift
from pipeline.score.parquet.chunks import Chunk
from pipeline.score.parquet.footer import MAGIC, Footer, extended_footer, read_footer

_COPY_BYTES = 1 << 23

_BUFFER_BYTES = 1 << 18
"""Size of a write; a small file takes one write."""


class Ending(NamedTuple):
    """End of a file: its footer, the footer's offset, and the metadata that Arrow reads from it."""

    footer: Footer
    start: int
    metadata: pq.FileMetaData


def read_ending(source: BinaryIO, metadata: pq.FileMetaData | None = None) -> Ending:
    """Read the end of a file.

    metadata : metadata that Arrow has read from the same bytes, if any

    Raises
    ------
    NotExtensibleError
        The file is encrypted or not Parquet.
    """
    encoded, start = read_footer(source)
    footer = Footer.read(encoded)
    return Ending(footer, start, _read(encoded) if metadata is None else metadata)


def append_columns(
    source: BinaryIO,
    target: BinaryIO,
    columns: pa.Schema,
    row_groups: Iterable[Sequence[Chunk]],
    ending: Ending | None = None,
) -> int:
    """Copy a Parquet file and add columns to the copy.

    Parameters
    ----------
    source : file, open for reading
    target : empty file for the copy, open for writing; it need not be seekable
    columns : names and types of the new columns
    row_groups : chunks of the new columns for each row group, with offset indexes if the file has them
    ending : end of the source, if it was read already

    Returns
    -------
    int
        Bytes written.

    Raises
    ------
    NotExtensibleError
        The source is encrypted or not Parquet.
    """
    footer, position, _ = ending or read_ending(source)
    _copy(source, position, target)
    moved: list[list[thrift.Fields]] = []
    for chunks in row_groups:
        moved.append([])
        for chunk in chunks:
            content, fields = chunk.moved(position)
            moved[-1].append(fields)
            for part in content:
                target.write(part)
                position += len(part)
    end = extended_footer(footer, columns, moved)
    target.write(end)
    return position + len(end)


def _read(footer: bytes) -> pq.FileMetaData:
    return pq.read_metadata(pa.BufferReader(MAGIC + footer + len(footer).to_bytes(4, "little") + MAGIC))


def _copy(source: BinaryIO, size: int, target: BinaryIO) -> None:
    """Copy the first `size` bytes, inside the operating system's kernel if it can."""
    if type(source) is io.BytesIO and len(content := source.getvalue()) >= size:
        # `getvalue` returns the bytes of the source without a copy.
        target.write(memoryview(content)[:size])
        return
    source.seek(0)
    copied = _copy_in_kernel(source, size, target)
    source.seek(copied)
    while copied < size:
        block = source.read(min(_COPY_BYTES, size - copied))
        if not block:
            raise OSError(
                f"expected {size} bytes, the file ended after {copied}: it was changed while being read"
            )
        target.write(block)
        copied += len(block)


def _copy_in_kernel(source: BinaryIO, size: int, target: BinaryIO) -> int:
    copied = 0
    try:
        inlet, outlet = source.fileno(), target.fileno()
        while copied < size:
            count = os.copy_file_range(inlet, outlet, size - copied, offset_src=copied)
            if count == 0:
                break
            copied += count
    except (AttributeError, OSError):  # not files, not on one file system, or not on Linux
        pass
    return copied


@contextmanager
def _storing(path: str) -> Iterator[None]:
    """Raise a store's errors as its own: without a number they look like those of a source that cannot be decoded."""
    try:
        yield
    except OSError as error:
        fault = None if error.errno is not None else as_fault(error, path)
        if fault is None:
            raise
        raise fault from error


class _Stored:
    """File of a store that is being written."""

    closed = False  # Arrow asks for it

    def __init__(self, file: Any, path: str) -> None:
        self._file, self._path = file, path

    def write(self, data: bytes) -> None:
        """Write bytes."""
        with _storing(self._path):
            self._file.write(data)


@contextmanager
def open_target(
    filesystem: Any, path: str, check: Callable[[str], None] = lambda written: None
) -> Iterator[BinaryIO]:
    """Open a file that appears when the block ends without an error. Its folder must exist.

    check : called with the path of the written file. On a local file system that is a temporary name, so that the file
        appears only if there is no error; in a store it is the file, which is removed after an error
    """
    if not isinstance(filesystem, LocalFileSystem):
        with _storing(path):
            file = filesystem.open(path, "wb")
        try:
            yield cast(BinaryIO, _Stored(file, path))
        except BaseException:
            getattr(file, "discard", file.close)()
            if isinstance(file, AbstractBufferedFile):
                file.closed = True  # otherwise the garbage collector would write the discarded content
            raise
        with _storing(path):
            file.close()
        try:
            with _storing(path):
                check(path)
        except BaseException:
            with suppress(OSError):  # of a store that may not be read or deleted from, the first error counts
                filesystem.rm_file(path)
            raise
        return
    # Like `temporary_sibling`, but without an unlink after a successful rename: files may be many and small.
    temporary = f"{os.path.dirname(path)}/{temporary_name(os.path.basename(path))}"  # noqa: PTH119, PTH120
    try:
        with open(temporary, "wb", _BUFFER_BYTES) as local:  # noqa: PTH123
            yield local
            local.flush()
            check(temporary)
            begin_sync(local)
        os.replace(temporary, path)  # noqa: PTH105
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
