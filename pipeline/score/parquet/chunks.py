"""Column chunks of new columns: pyarrow writes each into a Parquet file in memory, from which it is moved to the copy.

Source: the Apache Parquet format's parquet.thrift.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from logcal.arrow_columns import as_column, as_numpy, column_of
from pipeline.log import thrift
from pipeline.log.thrift import I32, I64, LIST, STRUCT
from pipeline.score.parquet.footer import Footer, read_footer

MOST_ROWS = 1 << 26
"""Most rows of a row group that pyarrow writes."""

_CODECS = {0: "none", 1: "snappy", 2: "gzip", 4: "brotli", 6: "zstd", 7: "lz4"}
_SNAPPY = 1
_LEVELS = {"gzip": 6, "brotli": 5}
_DICTIONARY_BYTES = 1 << 19
"""Bytes of distinct values from which on values are plain: calibrated probabilities often have a few thousand."""

_SAMPLE = 4096

_MAGIC_BYTES = 4
_COMPRESSED, _DATA_OFFSET, _DICTIONARY_OFFSET = 7, 9, 11
"""Fields of a chunk's metadata."""
_INDEX_OFFSET, _INDEX_SIZE = 4, 5
"""Fields of a chunk: its offset index."""


def codec_beside(codec: int) -> int:
    """Return the codec of new chunks in a file whose chunks have this codec; both by Parquet's numbers.

    It is the same, or snappy instead of codecs that pyarrow lacks (LZO) or that readers implement differently (LZ4 with
    Hadoop's frames).
    """
    return codec if codec in _CODECS else _SNAPPY


class Chunk(NamedTuple):
    """Column chunk in a file of its own.

    pages : the file's bytes from the first page on
    metadata : fields of its ColumnMetaData struct
    locations : fields of each entry of its offset index; None: it has none
    """

    pages: memoryview
    metadata: thrift.Fields
    locations: list[thrift.Fields] | None = None

    def moved(self, position: int) -> tuple[list[bytes | memoryview], thrift.Fields]:
        """Return its bytes at an offset of another file, and the fields of the ColumnChunk struct there."""
        shift = position - _MAGIC_BYTES
        metadata = _shifted(self.metadata, (_DATA_OFFSET, _DICTIONARY_OFFSET), shift)
        chunk: thrift.Fields = {2: (I64, thrift.integer(0)), 3: (STRUCT, thrift.struct(metadata))}
        if self.locations is None:
            return [self.pages], chunk
        entries = [thrift.struct(_shifted(location, (1,), shift)) for location in self.locations]
        index = thrift.struct({1: (LIST, thrift.list_of(STRUCT, entries))})
        chunk[_INDEX_OFFSET] = (I64, thrift.integer(position + len(self.pages)))
        chunk[_INDEX_SIZE] = (I32, thrift.integer(len(index)))
        return [self.pages, index], chunk


def _shifted(fields: thrift.Fields, numbers: tuple[int, ...], shift: int) -> thrift.Fields:
    moved = {n: thrift.integer(thrift.read_integer(fields[n][1]) + shift) for n in numbers if n in fields}
    return fields | {n: (I64, value) for n, value in moved.items()}


def encode_chunk(name: str, column: pa.ChunkedArray, codec: int, *, indexed: bool = False) -> Chunk:
    """Encode a column of at most `MOST_ROWS` rows as one chunk.

    codec : result of `codec_beside`
    indexed : whether to make an offset index: readers that use offset indexes expect them for all columns
    """
    table, sink = pa.Table.from_arrays([column], [name]), pa.BufferOutputStream()
    compression = _CODECS[codec]
    with pq.ParquetWriter(
        sink,
        table.schema,
        compression=compression,
        compression_level=_LEVELS.get(compression),
        use_dictionary=pa.types.is_dictionary(column.type) or _repeats(column),
        dictionary_pagesize_limit=_DICTIONARY_BYTES,
        write_page_index=indexed,
        store_schema=False,
    ) as writer:
        writer.write_table(table, row_group_size=MOST_ROWS)
    content = sink.getvalue()
    [[_, [chunk]]] = Footer.read(read_footer(pa.BufferReader(content))[0]).row_groups
    metadata, _ = thrift.read_struct(chunk[3][1])
    end = _MAGIC_BYTES + thrift.read_integer(metadata[_COMPRESSED][1])
    locations = None
    if indexed and _INDEX_OFFSET in chunk:  # pyarrow makes no index of a chunk without pages
        start, size = (thrift.read_integer(chunk[number][1]) for number in (_INDEX_OFFSET, _INDEX_SIZE))
        index, _ = thrift.read_struct(content[start : start + size].to_pybytes())
        locations = [thrift.read_struct(entry)[0] for entry in thrift.read_list(index[1][1])]
    return Chunk(memoryview(content)[_MAGIC_BYTES:end], metadata, locations)


def _repeats(column: pa.ChunkedArray) -> bool:
    """Tell whether values of a column of numbers repeat, by an evenly spaced sample: a dictionary may be shorter then.

    Of the most values that a dictionary takes, equally frequent, a sample of 4,096 has about 128 repeats. In a column
    that cannot have too many values a quarter must repeat: with a tenth, a dictionary of 10,000 values takes an eighth
    more bytes, and four times the time.
    """
    step = 1 + len(column) // _SAMPLE
    sample = np.concatenate([np.empty(0), *(as_numpy(chunk)[::step] for chunk in column.chunks)])
    part = 4 if column.nbytes <= _DICTIONARY_BYTES else 64
    return len(np.unique(sample)) <= sample.size - sample.size // part


@lru_cache(maxsize=64)
def constant_chunk(name: str, value: str, rows: int, codec: int, *, indexed: bool = False) -> Chunk:
    """Encode a column with the same text in every row, cached since many row groups have the same rows."""
    codes = pa.DictionaryArray.from_arrays(
        as_column(np.zeros(rows, np.int8)), column_of([value], pa.string())
    )
    return encode_chunk(name, pa.chunked_array([codes]), codec, indexed=indexed)
