"""Rows counted by the indices of their scores and labels, where a file encodes both columns with dictionaries.

Most writers encode columns of few values so. Arrow decodes them row by row; here only the dictionaries are decoded.
Files that are laid out differently, have nulls, unusable rows or damage, are left to Arrow and its errors.
"""

from __future__ import annotations

import os
import zlib
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from fsspec.implementations.local import LocalFileSystem

from logcal.errors import InputRejectedError
from pipeline._kernels import pages as kernels
from pipeline.execution import tasks
from pipeline.log import thrift
from pipeline.log.chunks import CheckedFooter, read_footer_fields
from pipeline.log.log_files import Piece, open_bytes, open_parquet
from pipeline.log.logs import Columns, Rows

_TYPES = {"INT32": "<i4", "INT64": "<i8", "FLOAT": "<f4", "DOUBLE": "<f8"}
_CODECS = {0: None, 1: "snappy", 2: "gzip", 4: "brotli", 6: "zstd", 7: "lz4_raw"}
_FIELDS = 4, 5, 6, 7, 11
"""Fields of a chunk's metadata: codec, number of values, bytes, compressed bytes, offset of the dictionary page."""
_TAIL_BYTES = 8
"""Bytes at the end of a file: the length of the footer, and the magic number."""
_DATA, _DICTIONARY = 0, 2
"""Types of pages."""
_PLAIN, _INDICES = {0, 2}, {2, 8}
"""Encodings of dictionaries and of indices; older writers use 2 for both."""
_RLE = 3
"""Encoding of levels."""

_MOST_PAGES = 1 << 12
_MOST_LABELS = 4
_MOST_ROWS = 1 << 22
"""Most rows of a row group: its pages are held twice, compressed and not."""
_MOST_BYTES = 4
"""Most bytes of a value, with its share of the dictionary. Scores in columns that take more hardly repeat."""
_ROWS_PER_CHUNK = 1 << 12
"""Rows to read, for each column chunk of the file, from which checking the bytes of its footer pays."""
_NO_BATCH = pa.RecordBatch.from_arrays([], names=[])


class _Chunk(NamedTuple):
    """A column chunk. values : its dictionary. pages : argument of `kernels.count_pairs`."""

    values: npt.NDArray[Any]
    pages: tuple[Any, ...]


def counted_rows(filesystem: Any, piece: Piece, columns: Columns) -> Rows | None:
    """Read the rows of a piece, counted by score and label, all of them usable; None if Arrow has to read them.

    Raises
    ------
    TemporaryError
        The file system fails to read the file.
    """
    names = [columns.score, columns.label]
    if columns.names != names or not isinstance(filesystem, LocalFileSystem):
        return None
    if piece.rows < len(names) * _ROWS_PER_CHUNK:
        return None
    try:
        with open_parquet(filesystem, piece.path, piece.state, footer=True) as parquet:
            metadata = parquet.metadata
        _require(piece.rows >= metadata.num_columns * metadata.num_row_groups * _ROWS_PER_CHUNK)
        counted = []
        with open_bytes(filesystem, piece.path, piece.state) as file:
            footer = CheckedFooter(metadata, piece.path, read_footer_fields(_footer(file))[1])
            chunks = [(footer.column(str(name)), footer.facts(str(name))) for name in names]
            for group in piece.row_groups:
                tasks.check()
                rows = metadata.row_group(group).num_rows
                counted.append(_count(*(_read(file, column, facts[group], rows) for column, facts in chunks)))
    except (InputRejectedError, LookupError, OSError, OverflowError, ValueError):
        return None
    score, label, times = map(np.concatenate, zip(*counted, strict=True))
    return Rows(piece.first_row, score, label, None, _NO_BATCH, times=times)


def _footer(file: Any) -> bytes:
    """Return the bytes of a file's footer. Arrow may end the process when it writes a damaged footer again."""
    file.seek(-_TAIL_BYTES, os.SEEK_END)
    length = int.from_bytes(file.read(4), "little")
    file.seek(-_TAIL_BYTES - length, os.SEEK_END)
    return bytes(file.read(length))


def _require(*conditions: bool | np.bool) -> None:
    """Raise ValueError, for which Arrow reads the rows, unless all conditions hold."""
    if not all(conditions):
        raise ValueError


def _count(score: _Chunk, label: _Chunk) -> tuple[npt.NDArray[Any], ...]:
    """Count rows by score and label; return scores, labels and counts."""
    _require(score.values.dtype.kind == "f", label.values.size <= _MOST_LABELS)
    counts = np.zeros((score.values.size, label.values.size), np.int64)
    _require(kernels.count_pairs(score.pages, label.pages, counts))
    of_score, of_label = np.nonzero(counts)
    scores, labels = score.values[of_score].astype(np.float64), label.values[of_label]
    _require(np.isfinite(scores).all(), ((labels == 0) | (labels == 1)).all())
    return scores, labels.astype(np.uint8), counts[of_score, of_label]


def _read(file: Any, column: pq.ColumnSchema, facts: thrift.Fields, rows: int) -> _Chunk:
    """Read a column chunk; ValueError or LookupError unless all its pages have indices of its dictionary, no nulls."""
    codec, number, size, compressed, start = (thrift.read_integer(facts[field][1]) for field in _FIELDS)
    _require(
        column.logical_type.type in ("NONE", "INT"),
        column.max_repetition_level == 0,
        column.max_definition_level <= 1,
        0 < rows == number <= _MOST_ROWS,
        0 < size <= _MOST_BYTES * rows,
        0 < compressed <= _MOST_BYTES * rows,
    )
    content = np.zeros(compressed + kernels.PADDING, np.uint8)
    file.seek(start)
    _require(file.readinto(content[:compressed]) == compressed)
    headers = np.empty((_MOST_PAGES, 8), np.int64)
    headers = headers[: max(0, kernels.read_headers(content, compressed, headers))]
    encodings = headers[:, kernels.ENCODING]
    leveled = column.max_definition_level == 1
    _require(
        headers.shape[0] > 1,
        (headers[:, [kernels.SIZE, kernels.VALUES]] >= 0).all(),
        headers[:, kernels.SIZE].sum() <= _MOST_BYTES * rows,
        headers[0, kernels.TYPE] == _DICTIONARY,
        (headers[1:, kernels.TYPE] == _DATA).all(),
        encodings[0] in _PLAIN,
        set(encodings[1:].tolist()) <= _INDICES,
        not leveled or (headers[1:, kernels.LEVELS] == _RLE).all(),
    )
    dictionary, *bodies = _bodies(content.data, headers.tolist(), _CODECS[codec])
    values = headers[1:, kernels.VALUES]
    joined = np.frombuffer(b"".join([*bodies, bytes(kernels.PADDING)]), np.uint8)
    pages = np.stack([np.cumsum([len(body) for body in bodies]), values], axis=1)
    indices = np.empty(values.max(), np.uint32)
    distinct = np.frombuffer(dictionary, _TYPES[column.physical_type])
    _require(values.sum() == rows, distinct.size == headers[0, kernels.VALUES])
    return _Chunk(distinct, (joined, pages, leveled, indices))


def _bodies(content: memoryview, headers: list[list[int]], codec: str | None) -> list[Any]:
    """Return the uncompressed bodies of pages; ValueError if a checksum differs."""
    bodies: list[Any] = []
    codec_ = None if codec is None else pa.Codec(codec)
    for start, _, size, compressed, checksum, *_ in headers:
        body = content[start : start + compressed]
        _require(checksum == kernels.ABSENT or zlib.crc32(body) == checksum & 0xFFFFFFFF)
        bodies.append(body if codec_ is None else codec_.decompress(body, size, asbytes=True))
    return bodies
