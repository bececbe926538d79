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
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from importlib import metadata
from typing import Any, BinaryIO

import pyarrow as pa

from logcal.storage import parse_json
from pipeline.log import thrift
from pipeline.log.thrift import BINARY, I32, I64, LIST, STRUCT

MAGIC = b"PAR1"
TAIL_BYTES = 8
"""Bytes at the end of a file: the footer's length and the magic number."""

_SIZES = (2, 6)
"""Fields of a row group: bytes of its chunks before and after compression."""

_ARROW_SCHEMA = b"ARROW:schema"
_SPARK_SCHEMA = b"org.apache.spark.sql.parquet.row.metadata"
_AVRO_SCHEMAS = (b"parquet.avro.schema", b"avro.schema")


class NotExtensibleError(ValueError):
    """The footer is not one that columns can be added to."""


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
    fields : of the file. row_groups : the fields of each
    encoded : all of it. start : the offset at which it starts
    """

    fields: thrift.Fields
    row_groups: list[thrift.Fields]
    encoded: bytes
    start: int

    @classmethod
    def of(cls, source: BinaryIO) -> Footer:
        """Read a file's footer. Errors: as `read_footer` and `read`."""
        return cls.read(*read_footer(source))

    @classmethod
    def read(cls, footer: bytes, start: int = 0) -> Footer:
        """Read a footer.

        Raises
        ------
        NotExtensibleError
            It does not read as one.
        """
        try:
            fields, _ = thrift.read_struct(footer)
            return cls(fields, thrift.read_structs(fields[4][1]), footer, start)
        except (LookupError, ValueError) as error:
            raise _unreadable(error) from None

    @cached_property
    def chunks(self) -> list[list[bytes]]:
        """The encoded chunks of each row group.

        Raises
        ------
        NotExtensibleError
            The footer does not read as one.
        """
        try:
            return [thrift.read_list(group[1][1]) for group in self.row_groups]
        except (LookupError, ValueError) as error:
            raise _unreadable(error) from None

    def has_offset_index(self) -> bool:
        """Tell whether the file has an index of a column's pages.

        Raises
        ------
        NotExtensibleError
            The footer does not read as one.
        """
        try:
            return any(4 in thrift.read_struct(chunk)[0] for group in self.chunks[:1] for chunk in group)
        except (LookupError, ValueError) as error:
            raise _unreadable(error) from None


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


def extended_footer(footer: Footer, new: Footer, columns: pa.Schema) -> bytes:
    """The footer of the same file with columns added after all others, and the tail that ends the file.

    Descriptions of the schema that Arrow, Spark and Avro leave in the key-value metadata are extended too, or
    these readers would not see the new columns.

    Parameters
    ----------
    new : of a file of the new columns alone, whose chunks are where they are in the file
    columns : the new columns

    Raises
    ------
    NotExtensibleError
        The footer does not read as one.
    """
    try:
        fields = dict(footer.fields)
        fields[2] = (LIST, _extended_schema(fields[2][1], new.fields[2][1]))
        fields[4] = (LIST, _extended_row_groups(footer, new))
        if 5 in fields:
            fields[5] = (LIST, _extended_metadata(fields[5][1], columns))
        before = thrift.read_binary(fields[6][1]).decode("utf-8", "replace") if 6 in fields else ""
        fields[6] = (BINARY, thrift.binary(created_by(before).encode()))
        if 7 in fields:
            fields[7] = (LIST, thrift.extended_list(fields[7][1], thrift.read_list(new.fields[7][1])))
    except (LookupError, ValueError) as error:
        raise _unreadable(error) from None
    if 8 in fields:
        raise NotExtensibleError("expected a plain Parquet file, found an encrypted one")
    return with_tail(thrift.struct(fields))


def with_tail(footer: bytes) -> bytes:
    """An encoded footer, and the bytes that end a file."""
    return footer + len(footer).to_bytes(4, "little") + MAGIC


@lru_cache(maxsize=16)
def _extended_schema(elements: bytes, new: bytes) -> bytes:
    """The schema with new columns. The files of a log have one, mostly."""
    root, *others = thrift.read_list(elements)
    _, *added = thrift.read_list(new)
    fields, _ = thrift.read_struct(root)
    fields[5] = (I32, thrift.integer(thrift.read_integer(fields[5][1]) + len(added)))
    return thrift.list_of(STRUCT, [thrift.struct(fields), *others, *added])


def _extended_row_groups(footer: Footer, new: Footer) -> bytes:
    extended = []
    for row_group, own, chunks in zip(footer.row_groups, new.row_groups, new.chunks, strict=True):
        fields = dict(row_group)
        fields[1] = (LIST, thrift.extended_list(fields[1][1], chunks))
        for number in _SIZES:
            if number in fields:
                both = (thrift.read_integer(group[number][1]) for group in (row_group, own))
                fields[number] = (I64, thrift.integer(sum(both)))
        extended.append(thrift.struct(fields))
    return thrift.list_of(STRUCT, extended)


@lru_cache(maxsize=16)
def _extended_metadata(entries: bytes, columns: pa.Schema) -> bytes:
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


def _extended_description(key: bytes, value: bytes, columns: pa.Schema) -> bytes | None:
    """A description of the schema with the new columns; None when it does not parse and is better left out."""
    plain = [(field.name, getattr(field.type, "value_type", field.type)) for field in columns]
    try:
        if key == _ARROW_SCHEMA:
            schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(value)))
            for name, kind in plain:
                schema = schema.append(pa.field(name, kind))
            return base64.b64encode(schema.serialize().to_pybytes())
        description: dict[str, Any] = parse_json(value)
        make = _spark_field if key == _SPARK_SCHEMA else _avro_field
        names = [(name, "boolean" if pa.types.is_boolean(kind) else str(kind)) for name, kind in plain]
        description["fields"] += [make(*column) for column in names]
        return json.dumps(description, separators=(",", ":"), ensure_ascii=False).encode()
    except (ValueError, TypeError, KeyError, pa.ArrowException, OSError):
        return None


def _spark_field(name: str, kind: str) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": True, "metadata": {}}


def _avro_field(name: str, kind: str) -> dict[str, Any]:
    return {"name": name, "type": ["null", kind], "default": None}
