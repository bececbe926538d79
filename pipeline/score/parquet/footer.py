"""A Parquet file's footer, extended by columns.

A footer names the bytes of every column chunk by their offset in the file. So a file may keep its bytes where they
are, take new chunks at its end, and a new footer after them: all that was there stays as it was written, with its
types, encodings, statistics, page indexes and Bloom filters. Source: the Apache Parquet format's parquet.thrift.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import metadata
from typing import Any, BinaryIO

import pyarrow as pa

from logcal.storage import parse_json
from pipeline.log import thrift
from pipeline.log.chunks import RowGroup, read_footer_fields
from pipeline.log.thrift import BINARY, I32, I64, LIST, STRUCT
from pipeline.score.parquet.pages import BOOLEAN, BYTE_ARRAY, DOUBLE, Chunk

MAGIC = b"PAR1"
TAIL_BYTES = 8
"""Bytes at the end of a file: the footer's length and the magic number."""

_OFFSET_INDEX = 4
"""Field of a chunk: where its offset index is."""
_OPTIONAL = 1
_UTF8 = 0
_ARROW_SCHEMA = b"ARROW:schema"
_SPARK_SCHEMA = b"org.apache.spark.sql.parquet.row.metadata"
_AVRO_SCHEMAS = (b"parquet.avro.schema", b"avro.schema")


_ARROW_TYPES = {BOOLEAN: pa.bool_(), DOUBLE: pa.float64(), BYTE_ARRAY: pa.string()}
_TYPE_NAMES = {BOOLEAN: "boolean", DOUBLE: "double", BYTE_ARRAY: "string"}
"""For Spark and Avro alike."""


class NotExtensibleError(ValueError):
    """The footer is not one that columns can be added to."""


@dataclass(frozen=True)
class NewColumn:
    """A nullable top-level column of booleans, doubles or strings, with one chunk a row group."""

    name: str
    physical_type: int
    chunks: Sequence[Chunk]
    indexes: Sequence[tuple[int, int]] | None = None
    """Offset and bytes of each chunk's offset index, where there are any."""


def read_footer(source: BinaryIO) -> tuple[bytes, int]:
    """A file's footer and the offset at which it starts.

    Raises
    ------
    NotExtensibleError
        The file ends otherwise: it is not Parquet, or it is encrypted.
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
    """A footer that has been read.

    Attributes
    ----------
    fields : of the file
    """

    fields: thrift.Fields
    row_groups: list[RowGroup]

    @classmethod
    def read(cls, footer: bytes) -> Footer:
        """Read a footer.

        Raises
        ------
        NotExtensibleError
            It does not read as one.
        """
        try:
            return cls(*read_footer_fields(footer))
        except (LookupError, ValueError) as error:
            raise _unreadable(error) from None

    def has_offset_index(self) -> bool:
        """Tell whether the file has an index of a column's pages."""
        return any(_OFFSET_INDEX in chunk for group in self.row_groups[:1] for chunk in group.chunks)


def _unreadable(error: Exception) -> NotExtensibleError:
    return NotExtensibleError(f"its footer does not read as Parquet's: {error!r}")


@lru_cache(maxsize=16)
def created_by(before: str) -> str:
    """Who wrote the file, and that we added to it.

    Readers look at the name and the version for errors of old writers, which the old columns still have: they stay,
    and we are named within what they take for the build.
    """
    own = f"columns added by logcal version {_version()}"
    found = re.fullmatch(r"(.*?\s+version\s*[^(]*?)\s*(?:\(\s*build\s*([^)]*?)\s*\))?", before)
    if found is None:
        return f"logcal version {_version()}"
    builds = [build for build in (found[2], own) if build]
    return f"{found[1]} (build {'; '.join(builds)})"


@cache
def _version() -> str:
    """Ours: looked up once, since that reads a file."""
    return metadata.version("logcal")


def extended_footer(footer: Footer, columns: Sequence[NewColumn]) -> bytes:
    """The footer of the same file with columns added after all others, and the tail that ends the file.

    Descriptions of the schema that Arrow, Spark and Avro leave in the key-value metadata are extended too, or
    these readers would not see the new columns.

    Raises
    ------
    NotExtensibleError
        The footer does not read as one.
    """
    try:
        fields = dict(footer.fields)
        new = tuple((column.name, column.physical_type) for column in columns)
        fields[2] = (LIST, _extended_schema(fields[2][1], new))
        fields[4] = (LIST, _extended_row_groups(footer.row_groups, columns))
        if 5 in fields:
            fields[5] = (LIST, _extended_metadata(fields[5][1], new))
        before = thrift.read_binary(fields[6][1]).decode("utf-8", "replace") if 6 in fields else ""
        fields[6] = (BINARY, thrift.binary(created_by(before).encode()))
        if 7 in fields:
            order = thrift.struct({1: (STRUCT, thrift.struct({}))})
            fields[7] = (LIST, thrift.extended_list(fields[7][1], [order for _ in columns]))
    except (LookupError, ValueError) as error:
        raise _unreadable(error) from None
    if 8 in fields:
        raise NotExtensibleError("expected a plain Parquet file, found an encrypted one")
    encoded = thrift.struct(fields)
    return encoded + len(encoded).to_bytes(4, "little") + MAGIC


_Named = tuple[tuple[str, int], ...]
"""Names and physical types of new columns."""


@lru_cache(maxsize=16)
def _extended_schema(elements: bytes, columns: _Named) -> bytes:
    """The schema with new columns. The files of a log have one, mostly."""
    root, *others = thrift.read_list(elements)
    fields, _ = thrift.read_struct(root)
    children = thrift.read_integer(fields[5][1])
    fields[5] = (I32, thrift.integer(children + len(columns)))
    new = [_schema_element(name, kind) for name, kind in columns]
    return thrift.list_of(STRUCT, [thrift.struct(fields), *others, *new])


def _schema_element(name: str, physical_type: int) -> bytes:
    """The SchemaElement struct of a new column."""
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
        for number, more in (
            (2, sum(c.uncompressed for c in chunks)),
            (6, sum(c.compressed for c in chunks)),
        ):
            if number in fields:
                fields[number] = (I64, thrift.integer(thrift.read_integer(fields[number][1]) + more))
        extended.append(thrift.struct(fields))
    return thrift.list_of(STRUCT, extended)


@lru_cache(maxsize=16)
def _extended_metadata(entries: bytes, columns: _Named) -> bytes:
    """Key-value metadata with the new columns in its descriptions of the schema, which are mostly one for a log."""
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


def _extended_description(key: bytes, value: bytes, columns: _Named) -> bytes | None:
    """A description of the schema with the new columns; None when it does not parse and is better left out."""
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
def _extended_arrow_schema(value: bytes, columns: _Named) -> bytes:
    """Extend the Arrow schema, where other metadata differ from file to file."""
    schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(value)))
    for name, kind in columns:
        schema = schema.append(pa.field(name, _ARROW_TYPES[kind]))
    return base64.b64encode(schema.serialize().to_pybytes())


def _spark_field(name: str, physical_type: int) -> dict[str, Any]:
    return {"name": name, "type": _TYPE_NAMES[physical_type], "nullable": True, "metadata": {}}


def _avro_field(name: str, physical_type: int) -> dict[str, Any]:
    return {"name": name, "type": ["null", _TYPE_NAMES[physical_type]], "default": None}
