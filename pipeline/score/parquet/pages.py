"""Column chunks of new columns: doubles, booleans and constant strings as Parquet data pages (version 1).

Chunks are written page by page, so that a row group of any size needs little memory. A column of doubles is
dictionary-encoded if that shortens it: calibrated probabilities often have only a few thousand distinct values. Source:
the Apache Parquet format specification (Encodings.md, parquet.thrift).
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import lru_cache
from tempfile import SpooledTemporaryFile
from typing import BinaryIO, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from calibrators.core.arrays import Array
from pipeline._kernels import packing
from pipeline.log import thrift
from pipeline.log.thrift import BINARY, I32, I64, LIST, STRUCT

BOOLEAN, DOUBLE, BYTE_ARRAY = 0, 5, 6
"""Physical types."""

_PLAIN, _RLE, _RLE_DICTIONARY = 0, 3, 8
_DATA_PAGE, _DICTIONARY_PAGE = 0, 2
_CODECS = {1: "snappy", 2: "gzip", 4: "brotli", 6: "zstd", 7: "lz4_raw"}
_SNAPPY = 1
_LEVELS = {"gzip": 6, "brotli": 5}
_DICTIONARY_LIMIT = 1 << 16
_SLOT_BITS = 17
_SPOOLED_BYTES = 1 << 24


class Chunk(NamedTuple):
    """Metadata of a column chunk for the footer. Offsets and sizes are in bytes."""

    physical_type: int
    codec: int
    values: int
    nulls: int
    lowest: bytes
    highest: bytes
    uncompressed: int
    compressed: int
    data_page_offset: int
    dictionary_page_offset: int | None
    pages: tuple[tuple[int, int, int], ...]
    """Offset, size with header, and first row of each data page."""

    def offset_index(self) -> bytes:
        """Encode the OffsetIndex struct, which locates the data pages."""
        locations = [
            thrift.struct(
                {
                    1: (I64, thrift.integer(offset)),
                    2: (I32, thrift.integer(size)),
                    3: (I64, thrift.integer(row)),
                }
            )
            for offset, size, row in self.pages
        ]
        return thrift.struct({1: (LIST, thrift.list_of(STRUCT, locations))})

    def encode(self, name: str, index: tuple[int, int] | None = None) -> bytes:
        """Encode the ColumnChunk struct of a top-level column. index : offset and size of its offset index."""
        encodings = [_PLAIN, _RLE] if self.dictionary_page_offset is None else [_PLAIN, _RLE, _RLE_DICTIONARY]
        meta: thrift.Fields = {
            1: (I32, thrift.integer(self.physical_type)),
            2: (LIST, thrift.list_of(I32, [thrift.integer(e) for e in encodings])),
            3: (LIST, thrift.list_of(BINARY, [thrift.binary(name.encode())])),
            4: (I32, thrift.integer(self.codec)),
            5: (I64, thrift.integer(self.values)),
            6: (I64, thrift.integer(self.uncompressed)),
            7: (I64, thrift.integer(self.compressed)),
            9: (I64, thrift.integer(self.data_page_offset)),
            12: (STRUCT, self._statistics()),
        }
        if self.dictionary_page_offset is not None:
            meta[11] = (I64, thrift.integer(self.dictionary_page_offset))
        chunk: thrift.Fields = {2: (I64, thrift.integer(0)), 3: (STRUCT, thrift.struct(meta))}
        if index is not None:
            chunk[4] = (I64, thrift.integer(index[0]))
            chunk[5] = (I32, thrift.integer(index[1]))
        return thrift.struct(chunk)

    def _statistics(self) -> bytes:
        fields: thrift.Fields = {3: (I64, thrift.integer(self.nulls))}
        if self.nulls < self.values:
            fields[5] = (BINARY, thrift.binary(self.highest))
            fields[6] = (BINARY, thrift.binary(self.lowest))
        return thrift.struct(fields)


def codec_beside(codec: int) -> int:
    """Return the codec of new chunks in a file whose chunks have this codec; both by Parquet's numbers.

    It is the same, or snappy instead of codecs that pyarrow lacks (LZO) or that readers implement differently (LZ4 with
    Hadoop's frames).
    """
    return codec if codec == 0 or codec in _CODECS else _SNAPPY


@dataclass
class ChunkWriter:
    """Writes column chunks one after the other.

    Parameters
    ----------
    target : binary file, open for writing; only its `write` is used
    position : number of bytes already in the file
    """

    target: BinaryIO
    position: int = 0
    _codec: int = field(default=0, init=False)
    _chunk_start: int = field(default=0, init=False)
    _uncompressed: int = field(default=0, init=False)
    _pages: list[tuple[int, int, int]] = field(default_factory=list, init=False)
    _rows: int = field(default=0, init=False)

    def write_doubles(
        self, batches: Iterable[Sequence[Array]], rows: int, codec: int, count: int
    ) -> list[Chunk]:
        """Write a chunk of doubles for each column; NaN becomes null.

        The columns are encoded together, page by page. All but the first are buffered in temporary files, in memory up
        to some megabytes each.

        Parameters
        ----------
        batches : for each page one float64 array for each column
        rows : number of rows of all pages
        codec : result of `codec_beside`
        count : number of columns
        """
        with ExitStack() as files:
            waiting = (SpooledTemporaryFile(_SPOOLED_BYTES) for _ in range(count - 1))  # noqa: SIM115
            writers = [self, *(ChunkWriter(cast(BinaryIO, files.enter_context(file))) for file in waiting)]
            limit = min(_DICTIONARY_LIMIT, rows // 2)
            columns = [_DoublePages(writer, codec, limit) for writer in writers]
            for batch in batches:
                for pages, values in zip(columns, batch, strict=True):
                    pages.add(values)
            chunks = [pages.finish() for pages in columns]
            return [chunks[0], *map(self._append, writers[1:], chunks[1:])]

    def _append(self, other: ChunkWriter, chunk: Chunk) -> Chunk:
        """Append the content of another writer, which is one chunk; return the chunk with its new offsets."""
        other.target.seek(0)
        shutil.copyfileobj(other.target, self.target)
        shift, self.position = self.position, self.position + other.position
        dictionary = chunk.dictionary_page_offset
        return chunk._replace(
            data_page_offset=chunk.data_page_offset + shift,
            dictionary_page_offset=None if dictionary is None else dictionary + shift,
            pages=tuple((offset + shift, size, row) for offset, size, row in chunk.pages),
        )

    def write_booleans(
        self, batches: Iterable[tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]], codec: int
    ) -> Chunk:
        """Write a chunk of booleans. batches : for each page the values, and a mask of the nulls."""
        self._start_chunk(codec)
        first = self.position
        nulls, distinct = 0, set[bool]()
        for values, null in batches:
            levels, count = _definition_levels(null)
            present = values[~null] if count else values
            nulls += count
            distinct.update(np.unique(present).tolist())
            bits = np.packbits(present, bitorder="little").tobytes()
            self.write_page(levels + bits, values.size, _PLAIN)
        if first == self.position:
            self.write_page(_all_present(0), 0, _PLAIN)
        bounds = bytes([min(distinct, default=False)]), bytes([max(distinct, default=False)])
        return self._chunk(BOOLEAN, nulls, bounds, first)

    def write_constant(self, value: bytes, rows: int, codec: int) -> Chunk:
        """Write a chunk with the same string in every row; it takes a few bytes for any number of rows."""
        self._start_chunk(codec)
        dictionary_offset = self.position
        self.write_dictionary(len(value).to_bytes(4, "little") + value, 1)
        first = self.position
        # The bit width of the codes, which is 1, then one run of code 0.
        self.write_page(_all_present(rows) + b"\x01" + _run(rows, 0), rows, _RLE_DICTIONARY)
        return self._chunk(BYTE_ARRAY, 0, (value, value), first, dictionary_offset)

    def _start_chunk(self, codec: int) -> None:
        self._codec, self._chunk_start = codec, self.position
        self._uncompressed = 0
        self._pages, self._rows = [], 0

    def _chunk(
        self, kind: int, nulls: int, bounds: tuple[bytes, bytes], first: int, dictionary: int | None = None
    ) -> Chunk:
        """Return the metadata of the current chunk. first, dictionary : offsets of its first pages."""
        return Chunk(
            kind,
            self._codec,
            self._rows,
            nulls,
            *bounds,
            self._uncompressed,
            self.position - self._chunk_start,
            first,
            dictionary,
            tuple(self._pages),
        )

    def write_offset_index(self, chunk: Chunk) -> tuple[int, int]:
        """Write a chunk's offset index; return its offset and size."""
        offset, index = self.position, chunk.offset_index()
        self.target.write(index)
        self.position += len(index)
        return offset, len(index)

    def write_page(self, body: bytes, rows: int, encoding: int) -> None:
        """Write a data page whose body is levels and values."""
        start = self.position
        self._write(_DATA_PAGE, body, rows, encoding)
        self._pages.append((start, self.position - start, self._rows))
        self._rows += rows

    def write_dictionary(self, body: bytes, entries: int) -> None:
        """Write a dictionary page."""
        self._write(_DICTIONARY_PAGE, body, entries, _PLAIN)

    def _write(self, kind: int, body: bytes, values: int, encoding: int) -> None:
        encode = _encoded_cached if len(body) <= _CACHED_BYTES else _encoded
        head, packed = encode(kind, body, values, encoding, self._codec)
        self.target.write(head)
        self.target.write(packed)
        self.position += len(head) + len(packed)
        self._uncompressed += len(head) + len(body)


def _encoded(
    kind: int, body: bytes, values: int, encoding: int, codec: int
) -> tuple[bytes, bytes | memoryview]:
    """Return a page's header and its compressed body."""
    packed = _compress(body, codec)
    page: thrift.Fields = {1: (I32, thrift.integer(values)), 2: (I32, thrift.integer(encoding))}
    if kind == _DATA_PAGE:
        page[3] = page[4] = (I32, thrift.integer(_RLE))
    header: thrift.Fields = {
        1: (I32, thrift.integer(kind)),
        2: (I32, thrift.integer(len(body))),
        3: (I32, thrift.integer(len(packed))),
        5 if kind == _DATA_PAGE else 7: (STRUCT, thrift.struct(page)),
    }
    return thrift.struct(header), packed


_CACHED_BYTES = 256
_encoded_cached = lru_cache(maxsize=64)(_encoded)
"""For pages that are equal in many files, such as those of a constant string."""


def _compress(body: bytes, codec: int) -> bytes | memoryview:
    if codec == 0:
        return body
    name = _CODECS[codec]
    packed = pa.Codec(name, compression_level=_LEVELS.get(name)).compress(body)
    # The buffer may be larger than its content.
    return memoryview(packed)[: packed.size]


class _DoublePages:
    """Pages of one chunk of doubles: dictionary-encoded until the dictionary exceeds its limit, then plain."""

    def __init__(self, writer: ChunkWriter, codec: int, limit: int) -> None:
        writer._start_chunk(codec)
        self.writer = writer
        self.nulls = 0
        self.lowest, self.highest = np.inf, -np.inf
        self.first_data_page = writer.position
        self._limit = limit
        self._used = 0
        self._dictionary = np.empty(limit, np.uint64)
        # Four times as many slots as values, if these are few: most files may be small.
        self._slot_bits = min(_SLOT_BITS, (4 * limit + 1).bit_length())
        self._slots = np.full(1 << self._slot_bits, -1, np.int32)
        self._pending: list[tuple[bytes, int, npt.NDArray[np.uint16]]] | None = []
        self._written = 0

    def add(self, values: Array) -> None:
        """Add a page."""
        levels, present = self._levels(values)
        if present.size:
            self.lowest = min(self.lowest, float(present.min()))
            self.highest = max(self.highest, float(present.max()))
        if self._pending is not None:
            codes = np.empty(present.size, np.uint16)
            used = packing.encode(
                present.view(np.uint64),
                self._slots,
                np.uint64(64 - self._slot_bits),
                self._dictionary,
                self._used,
                self._limit,
                codes,
            )
            if used >= 0:
                self._used = used
                self._pending.append((levels, values.size, codes))
                return
            self._abandon_dictionary()
        self._write_plain(levels, values.size, present)

    def finish(self) -> Chunk:
        """Write the pending pages; return the chunk."""
        dictionary_offset = self._write_pending()
        # Both zeros are equal as doubles, so the bounds must cover both.
        lowest = -0.0 if self.lowest == 0.0 else self.lowest
        highest = 0.0 if self.highest == 0.0 else self.highest
        bounds = np.array([lowest], "<f8").tobytes(), np.array([highest], "<f8").tobytes()
        return self.writer._chunk(DOUBLE, self.nulls, bounds, self.first_data_page, dictionary_offset)

    def _write_pending(self) -> int | None:
        """Write the pending pages; return the dictionary page's offset, if there is one."""
        if not self._pending or self._used == 0:
            self._abandon_dictionary()
            if self._written == 0:
                self._write_plain(_all_present(0), 0, np.empty(0))
            return None
        offset = self.writer.position
        self.writer.write_dictionary(self._dictionary[: self._used].tobytes(), self._used)
        self.first_data_page = self.writer.position
        width = max(1, (self._used - 1).bit_length())
        for levels, rows, codes in self._pending:
            body = levels + bytes([width]) + _bit_packed(codes, width)
            self.writer.write_page(body, rows, _RLE_DICTIONARY)
        return offset

    def _levels(self, values: Array) -> tuple[bytes, Array]:
        """Return the encoded definition levels (1 for a value, 0 for a null), and the values without nulls."""
        null = np.isnan(values)
        levels, nulls = _definition_levels(null)
        self.nulls += nulls
        return levels, values[~null] if nulls else values

    def _abandon_dictionary(self) -> None:
        for levels, rows, codes in self._pending or []:
            self._write_plain(levels, rows, self._dictionary[codes].view(np.float64))
        self._pending = None

    def _write_plain(self, levels: bytes, rows: int, present: Array) -> None:
        body = b"".join([levels, present.astype("<f8", copy=False).tobytes()])
        self.writer.write_page(body, rows, _PLAIN)
        self._written += 1


def _definition_levels(null: npt.NDArray[np.bool_]) -> tuple[bytes, int]:
    """Return the encoded definition levels (1 for a value, 0 for a null), and the number of nulls."""
    nulls = int(np.count_nonzero(null))
    if nulls == 0:
        return _all_present(null.size), 0
    bits = np.packbits(~null, bitorder="little").tobytes()
    return _sized(thrift.varint(len(bits) << 1 | 1) + bits), nulls


def _all_present(rows: int) -> bytes:
    """Encode the definition levels of a page without nulls."""
    return _sized(_run(rows, 1))


def _sized(levels: bytes) -> bytes:
    return len(levels).to_bytes(4, "little") + levels


def _run(length: int, value: int) -> bytes:
    """Encode a run of a value of at most 8 bits."""
    return thrift.varint(length << 1) + bytes([value])


def _bit_packed(codes: npt.NDArray[np.uint16], width: int) -> bytes:
    """Encode codes as one bit-packed run, padded with zeros to a multiple of eight."""
    groups = -(-codes.size // 8)
    out = np.zeros(-(-groups * width // 4), "<u4")
    packing.pack_codes(codes, width, out)
    return thrift.varint(groups << 1 | 1) + out.tobytes()[: groups * width]
