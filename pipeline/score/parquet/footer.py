"""Footer of a Parquet file, and its extension by columns.

A footer locates every column chunk by its offset in the file. So new chunks and a new footer can follow the existing
chunks, which keep their bytes, with their types, encodings, statistics, page indexes and Bloom filters. Source: the
Apache Parquet format's parquet.thrift.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from logcal.storage import parse_json
from logcal.version import __version__
from pipeline.log import thrift
from pipeline.log.chunks import RowGroup, read_footer_fields
from pipeline.log.thrift import BINARY, I32, I64, LIST, STRUCT

MAGIC = b"PAR1"
TAIL_BYTES = 8
"""Bytes at the end of a file: the footer's length and the magic number."""

_OFFSET_INDEX = 4
"""Field of a chunk: the offset of its offset index."""
_ARROW_SCHEMA = b"ARROW:schema"
_SPARK_SCHEMA = b"org.apache.spark.sql.parquet.row.metadata"
_AVRO_SCHEMAS = (b"parquet.avro.schema", b"avro.schema")


_TYPE_NAMES = {pa.bool_(): "boolean", pa.float64(): "double", pa.string(): "string"}
"""Names of the types in Spark's and Avro's schemas."""


class NotExtensibleError(ValueError):
    """Columns cannot be added to this footer."""


def read_footer(source: BinaryIO) -> tuple[bytes, int]:
    """Return a file's footer and the footer's offset.

    Raises
    ------
    NotExtensibleError
        The file is not Parquet, or is encrypted.
    """
    size = source.seek(0, os.SEEK_END)
    source.seek(max(0, size - TAIL_BYTES))
    tail = source.read(TAIL_BYTES)
    length = int.from_bytes(tail[:4], "little")
    if tail[4:] != MAGIC or length > size - TAIL_BYTES:
        raise NotExtensibleError(f"expected a plain Parquet file, found one that ends in {tail[4:]!r}")
    start = size - TAIL_BYTES - length
    source.seek(start)
    return source.read(length), start


@dataclass(frozen=True)
class Footer:
    """Decoded footer. fields : fields of the FileMetaData struct."""

    fields: thrift.Fields
    row_groups: list[RowGroup]

    @classmethod
    def read(cls, footer: bytes) -> Footer:
        """Decode a footer.

        Raises
        ------
        NotExtensibleError
            The bytes are not a footer.
        """
        try:
            return cls(*read_footer_fields(footer))
        except (LookupError, ValueError) as error:
            raise _unreadable(error) from None

    def has_offset_index(self) -> bool:
        """Tell whether the file has an offset index."""
        return any(_OFFSET_INDEX in chunk for group in self.row_groups for chunk in group.chunks)


def _unreadable(error: Exception) -> NotExtensibleError:
    return NotExtensibleError(f"its footer does not read as Parquet's: {error!r}")


@lru_cache(maxsize=16)
def created_by(before: bytes) -> bytes:
    """Return the footer's `created_by`: the writer of the file, and logcal, which added columns.

    By the writer's name and version readers work around errors of old writers, which the old columns may have. So both
    stay, and logcal is named in the build. A name of another form, such as `parquet-mr` alone, stays as it is: readers
    would take an addition for a part of the name.
    """
    match = re.fullmatch(rb"(.*?\s+version\s*[^(]*?)\s*(?:\(\s*build\s*([^)]*?)\s*\))?", before)
    if match is None:
        return before
    addition = f"columns added by logcal version {__version__}".encode()
    builds = [build for build in (match[2], addition) if build]
    return b"%s (build %s)" % (match[1], b"; ".join(builds))


def extended_footer(footer: Footer, columns: pa.Schema, chunks: Sequence[Sequence[thrift.Fields]]) -> bytes:
    """Return the footer with columns added after all others, followed by the tail that ends the file.

    columns : names and types of the new columns, which are nullable: booleans, doubles or strings
    chunks : fields of the ColumnChunk struct of each new column, for each row group

    The schemas that Arrow, Spark and Avro write into the key-value metadata are extended too, since these readers would
    otherwise not see the new columns.

    Raises
    ------
    NotExtensibleError
        The footer is invalid, or the file is encrypted.
    """
    try:
        fields = dict(footer.fields)
        fields[2] = (LIST, _extended_schema(fields[2][1], columns))
        fields[4] = (LIST, _extended_row_groups(footer.row_groups, chunks))
        if 5 in fields:
            fields[5] = (LIST, _extended_metadata(fields[5][1], columns))
        if 6 in fields:
            fields[6] = (BINARY, thrift.binary(created_by(thrift.read_binary(fields[6][1]))))
        if 7 in fields:
            order = thrift.struct({1: (STRUCT, thrift.struct({}))})
            fields[7] = (LIST, thrift.extended_list(fields[7][1], [order for _ in columns]))
    except (LookupError, ValueError) as error:
        raise _unreadable(error) from None
    if 8 in fields:
        raise NotExtensibleError("expected a plain Parquet file, found an encrypted one")
    encoded = thrift.struct(fields)
    return encoded + len(encoded).to_bytes(4, "little") + MAGIC


@lru_cache(maxsize=16)
def _extended_schema(elements: bytes, columns: pa.Schema) -> bytes:
    """Extend the schema. The result is cached, since most files of a log have the same schema."""
    sink = pa.BufferOutputStream()
    pq.ParquetWriter(sink, columns, store_schema=False).close()
    written = Footer.read(read_footer(pa.BufferReader(sink.getvalue()))[0]).fields
    root, *others = thrift.read_list(elements)
    fields, _ = thrift.read_struct(root)
    fields[5] = (I32, thrift.integer(thrift.read_integer(fields[5][1]) + len(columns)))
    return thrift.list_of(STRUCT, [thrift.struct(fields), *others, *thrift.read_list(written[2][1])[1:]])


def _extended_row_groups(row_groups: Sequence[RowGroup], chunks: Sequence[Sequence[thrift.Fields]]) -> bytes:
    extended = []
    for row_group, added in zip(row_groups, chunks, strict=True):
        fields = dict(row_group.fields)
        fields[1] = (LIST, thrift.extended_list(fields[1][1], [thrift.struct(chunk) for chunk in added]))
        metadata = [thrift.read_struct(chunk[3][1])[0] for chunk in added]
        # Uncompressed and compressed bytes, of the row group and of a chunk.
        for number, of_chunk in ((2, 6), (6, 7)):
            if number in fields:
                sizes = (thrift.read_integer(chunk[of_chunk][1]) for chunk in metadata)
                fields[number] = (I64, thrift.integer(thrift.read_integer(fields[number][1]) + sum(sizes)))
        extended.append(thrift.struct(fields))
    return thrift.list_of(STRUCT, extended)


@lru_cache(maxsize=16)
def _extended_metadata(entries: bytes, columns: pa.Schema) -> bytes:
    """Extend the schemas in the key-value metadata. The result is cached, since most files of a log have the same."""
    extended = []
    for entry in thrift.read_list(entries):
        fields, _ = thrift.read_struct(entry)
        key = thrift.read_binary(fields[1][1])
        if 2 in fields and key in (_ARROW_SCHEMA, _SPARK_SCHEMA, *_AVRO_SCHEMAS):
            value = _extended_description(key, thrift.read_binary(fields[2][1]), columns)
            if value is None:
                continue
            fields[2] = (BINARY, thrift.binary(value))
        extended.append(thrift.struct(fields))
    return thrift.list_of(STRUCT, extended)


def _extended_description(key: bytes, value: bytes, columns: pa.Schema) -> bytes | None:
    """Extend a schema in the metadata; return None if it does not parse, so that it is left out."""
    try:
        if key == _ARROW_SCHEMA:
            return _extended_arrow_schema(value, columns)
        description: dict[str, Any] = parse_json(value)
        for name, kind in zip(columns.names, map(_TYPE_NAMES.get, columns.types), strict=True):
            spark = {"name": name, "type": kind, "nullable": True, "metadata": {}}
            avro = {"name": name, "type": ["null", kind], "default": None}
            description["fields"].append(spark if key == _SPARK_SCHEMA else avro)
        return json.dumps(description, separators=(",", ":"), ensure_ascii=False).encode()
    except (ValueError, TypeError, KeyError, pa.ArrowException, OSError):
        return None


@lru_cache(maxsize=16)
def _extended_arrow_schema(value: bytes, columns: pa.Schema) -> bytes:
    """Extend the Arrow schema. It has a cache of its own, since other metadata may differ from file to file."""
    schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(value)))
    for field in columns:
        schema = schema.append(field)
    return base64.b64encode(schema.serialize().to_pybytes())
