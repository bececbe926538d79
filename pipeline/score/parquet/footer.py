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

from logcal.storage import parse_json
from logcal.version import __version__
from pipeline.log import thrift
from pipeline.log.chunks import RowGroup, read_footer_fields
from pipeline.log.thrift import BINARY, I32, I64, LIST, STRUCT
from pipeline.score.parquet.pages import BOOLEAN, BYTE_ARRAY, DOUBLE, Chunk

MAGIC = b"PAR1"
TAIL_BYTES = 8
"""Bytes at the end of a file: the footer's length and the magic number."""

_OFFSET_INDEX = 4
"""Field of a chunk: the offset of its offset index."""
_OPTIONAL = 1
_UTF8 = 0
_ARROW_SCHEMA = b"ARROW:schema"
_SPARK_SCHEMA = b"org.apache.spark.sql.parquet.row.metadata"
_AVRO_SCHEMAS = (b"parquet.avro.schema", b"avro.schema")


_ARROW_TYPES = {BOOLEAN: pa.bool_(), DOUBLE: pa.float64(), BYTE_ARRAY: pa.string()}
_TYPE_NAMES = {BOOLEAN: "boolean", DOUBLE: "double", BYTE_ARRAY: "string"}
"""Names of the types in Spark's and Avro's schemas."""


class NotExtensibleError(ValueError):
    """Columns cannot be added to this footer."""


@dataclass(frozen=True)
class NewColumn:
    """Nullable top-level column of booleans, doubles or strings, with one chunk for each row group."""

    name: str
    physical_type: int
    chunks: Sequence[Chunk]
    indexes: Sequence[tuple[int, int]] | None = None
    """Offset and size in bytes of each chunk's offset index, if the file has offset indexes."""


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
        return any(_OFFSET_INDEX in chunk for group in self.row_groups[:1] for chunk in group.chunks)


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


def extended_footer(footer: Footer, columns: Sequence[NewColumn]) -> bytes:
    """Return the footer with columns added after all others, followed by the tail that ends the file.

    The schemas that Arrow, Spark and Avro write into the key-value metadata are extended too, since these readers would
    otherwise not see the new columns.

    Raises
    ------
    NotExtensibleError
        The footer is invalid, or the file is encrypted.
    """
    try:
        fields = dict(footer.fields)
        new = tuple((column.name, column.physical_type) for column in columns)
        fields[2] = (LIST, _extended_schema(fields[2][1], new))
        fields[4] = (LIST, _extended_row_groups(footer.row_groups, columns))
        if 5 in fields:
            fields[5] = (LIST, _extended_metadata(fields[5][1], new))
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


_NamedTypes = tuple[tuple[str, int], ...]
"""Names and physical types of new columns."""


@lru_cache(maxsize=16)
def _extended_schema(elements: bytes, columns: _NamedTypes) -> bytes:
    """Extend the schema. The result is cached, since most files of a log have the same schema."""
    root, *others = thrift.read_list(elements)
    fields, _ = thrift.read_struct(root)
    children = thrift.read_integer(fields[5][1])
    fields[5] = (I32, thrift.integer(children + len(columns)))
    new = [_schema_element(name, kind) for name, kind in columns]
    return thrift.list_of(STRUCT, [thrift.struct(fields), *others, *new])


def _schema_element(name: str, physical_type: int) -> bytes:
    """Encode the SchemaElement struct of a new column."""
    fields: thrift.Fields = {
        1: (I32, thrift.integer(physical_type)),
        3: (I32, thrift.integer(_OPTIONAL)),
        4: (BINARY, thrift.binary(name.encode())),
    }
    if physical_type == BYTE_ARRAY:
        fields[6] = (I32, thrift.integer(_UTF8))
        fields[10] = (STRUCT, thrift.struct({1: (STRUCT, thrift.struct({}))}))
    return thrift.struct(fields)


def _extended_row_groups(row_groups: Sequence[RowGroup], columns: Sequence[NewColumn]) -> bytes:
    extended = []
    for index, row_group in enumerate(row_groups):
        fields = dict(row_group.fields)
        chunks = [column.chunks[index] for column in columns]
        encoded = [
            column.chunks[index].encode(column.name, column.indexes[index] if column.indexes else None)
            for column in columns
        ]
        fields[1] = (LIST, thrift.extended_list(fields[1][1], encoded))
        for number, added in (
            (2, sum(c.uncompressed for c in chunks)),
            (6, sum(c.compressed for c in chunks)),
        ):
            if number in fields:
                fields[number] = (I64, thrift.integer(thrift.read_integer(fields[number][1]) + added))
        extended.append(thrift.struct(fields))
    return thrift.list_of(STRUCT, extended)


@lru_cache(maxsize=16)
def _extended_metadata(entries: bytes, columns: _NamedTypes) -> bytes:
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


def _extended_description(key: bytes, value: bytes, columns: _NamedTypes) -> bytes | None:
    """Extend a schema in the metadata; return None if it does not parse, so that it is left out."""
    try:
        if key == _ARROW_SCHEMA:
            return _extended_arrow_schema(value, columns)
        description: dict[str, Any] = parse_json(value)
        make = _spark_field if key == _SPARK_SCHEMA else _avro_field
        description["fields"] += [make(name, kind) for name, kind in columns]
        return json.dumps(description, separators=(",", ":"), ensure_ascii=False).encode()
    except (ValueError, TypeError, KeyError, pa.ArrowException, OSError):
        return None


@lru_cache(maxsize=16)
def _extended_arrow_schema(value: bytes, columns: _NamedTypes) -> bytes:
    """Extend the Arrow schema. It has a cache of its own, since other metadata may differ from file to file."""
    schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(value)))
    for name, kind in columns:
        schema = schema.append(pa.field(name, _ARROW_TYPES[kind]))
    return base64.b64encode(schema.serialize().to_pybytes())


def _spark_field(name: str, physical_type: int) -> dict[str, Any]:
    return {"name": name, "type": _TYPE_NAMES[physical_type], "nullable": True, "metadata": {}}


def _avro_field(name: str, physical_type: int) -> dict[str, Any]:
    return {"name": name, "type": ["null", _TYPE_NAMES[physical_type]], "default": None}
