"""Copying a Parquet file with columns added."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from fsspec.implementations.local import LocalFileSystem
from fsspec.spec import AbstractBufferedFile

from pipeline.files.folders import begin_sync, temporary_name
from pipeline.score.parquet.footer import (
    MAGIC,
    TAIL_BYTES,
    Footer,
    NotExtensibleError,
    extended_footer,
    with_tail,
)

_COPY_BYTES = 1 << 23

_BUFFER_BYTES = 1 << 17
"""Written with one call: a small file takes one."""


CODECS = {0: "none", 1: "snappy", 2: "gzip", 4: "brotli", 6: "zstd", 7: "lz4"}
"""Codecs as Parquet numbers them, and as Arrow calls them."""
_SNAPPY = 1
_LEVELS = {"gzip": 6, "brotli": 5}


def codec_beside(codec: int) -> str:
    """The codec of new chunks beside one of this codec, which is as Parquet numbers it.

    The same; snappy for those that pyarrow does not have (LZO) or that readers differ on (LZ4 with Hadoop's frames).
    """
    return CODECS.get(codec, CODECS[_SNAPPY])


class Appended(NamedTuple):
    """New columns of a file.

    schema : of them: booleans, doubles, and strings as dictionaries. groups : their rows, a table for each row group
    """

    schema: pa.Schema
    groups: Iterable[pa.Table]
    codec: str


def append_columns(source: BinaryIO, target: BinaryIO, columns: Appended, footer: Footer) -> int:
    """Copy a Parquet file and add columns to the copy.

    Arrow writes the new columns as a file of their own, which begins where the source's footer did: its chunks are
    where they are to be, and only its footer is not.

    Parameters
    ----------
    source : the file, open for reading
    target : where the copy goes, open for writing and empty; it need not be seekable
    columns : what is added; as many groups as the source has
    footer : the source's

    Returns
    -------
    int
        Bytes written.

    Raises
    ------
    NotExtensibleError
        The source is encrypted or not Parquet.
    """
    _copy(source, footer.start, target)
    sink = _Sink(target, footer.start)
    texts = [field.name for field in columns.schema if pa.types.is_dictionary(field.type)]
    file = pa.PythonFile(sink, mode="w")
    with pq.ParquetWriter(
        file,
        columns.schema,
        compression=columns.codec,
        compression_level=_LEVELS.get(columns.codec),
        # A text is the same in all rows: its bounds say nothing that its dictionary does not.
        write_statistics=[name for name in columns.schema.names if name not in texts],
        use_dictionary=[field.name for field in columns.schema if not pa.types.is_boolean(field.type)],
        # Beyond some thousand values a dictionary of doubles saves little, and to look each value up takes long.
        dictionary_pagesize_limit=_DICTIONARY_BYTES,
        # Readers that use the offset indexes of some columns expect those of all.
        write_page_index=footer.has_offset_index(),
        store_schema=False,
    ) as writer:
        for written in range(sink.position, footer.start, len(_ROOM)):
            file.write(_ROOM[: footer.start - written])
        for group in columns.groups:
            writer.write_table(group, row_group_size=max(1, group.num_rows))
        sink.hold()
    end = extended_footer(footer, Footer.read(sink.footer()), columns.schema)
    _check(footer, end, columns.schema.names)
    target.write(end)
    return sink.position + len(end)


_DICTIONARY_BYTES = 1 << 15
_ROOM = memoryview(bytes(1 << 20))


class _Sink:
    """File that Arrow writes to: bytes behind others of a target.

    Parameters
    ----------
    target : only its `write` is used
    start : bytes that it holds already. Arrow counts what it writes from 0: as many must be written first, and are
        dropped.
    """

    closed = False

    def __init__(self, target: BinaryIO, start: int) -> None:
        self.target = target
        self.position = 0
        self._start = start
        self._held: list[bytes] | None = None

    def write(self, data: bytes) -> int:
        """Write bytes, or hold them."""
        if self._held is not None:
            self._held.append(data)
        elif self.position >= self._start:
            self.target.write(data)
        self.position += len(data)
        return len(data)

    def hold(self) -> None:
        """Hold what is written from here on: indexes and a footer."""
        self._held = []

    def footer(self) -> bytes:
        """Take the footer that is held, and write what came before it."""
        held = b"".join(self._held or [])
        size = int.from_bytes(held[-TAIL_BYTES:-4], "little") + TAIL_BYTES
        self.target.write(held[:-size])
        self.position -= size
        return held[-size:-TAIL_BYTES]

    def flush(self) -> None:
        """Do nothing: the target is another's."""

    def close(self) -> None:
        """Do nothing: the target is another's."""


def _check(before: Footer, end: bytes, new: list[str]) -> None:
    """Have Arrow read the old and the new footer, too: nothing is left to trust in an unusual file."""
    one, two = (pq.read_metadata(pa.BufferReader(MAGIC + own)) for own in (with_tail(before.encoded), end))
    names, found = ([own.schema.column(i).path for i in range(own.num_columns)] for own in (one, two))
    if found != [*names, *new] or one.num_rows != two.num_rows or one.num_row_groups != two.num_row_groups:
        raise NotExtensibleError("its extended footer does not read as its own with the new columns")


def _copy(source: BinaryIO, size: int, target: BinaryIO) -> None:
    """Copy the first `size` bytes; inside the kernel where it can."""
    if type(source) is io.BytesIO and len(held := source.getvalue()) >= size:
        # The bytes that it was made of: they need not be copied once more to be written.
        target.write(memoryview(held)[:size])
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
def open_target(filesystem: Any, path: str) -> Iterator[BinaryIO]:
    """Open a file for writing that appears, whole, when the block ends without an error. Its folder must exist."""
    if not isinstance(filesystem, LocalFileSystem):
        file = filesystem.open(path, "wb")
        try:
            yield file
        except BaseException:
            getattr(file, "discard", file.close)()
            if isinstance(file, AbstractBufferedFile):
                file.closed = True  # else the collector would write what was discarded
            raise
        file.close()
        return
    # As `beside`, without looking for what a rename has taken away: files may be many and small.
    temporary = f"{os.path.dirname(path)}/{temporary_name(os.path.basename(path))}"  # noqa: PTH119, PTH120
    try:
        with open(temporary, "wb", buffering=_BUFFER_BYTES) as local:  # noqa: PTH123
            yield local
            begin_sync(local)
        os.replace(temporary, path)  # noqa: PTH105
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
