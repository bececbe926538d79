"""Safe access to a Parquet footer's column chunks, after a check of the footer's bytes.

Arrow's accessors (`RowGroupMetaData.column`, `ColumnChunkMetaData.statistics`) end the process if a damaged footer
contradicts itself: their C++ code raises exceptions that nothing catches. So the footer's bytes are checked for such
contradictions first. Source: the Apache Parquet format's parquet.thrift.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from logcal.errors import InputRejectedError
from pipeline.log import thrift

_TYPE_NUMBERS = {
    "BOOLEAN": 0, "INT32": 1, "INT64": 2, "INT96": 3, "FLOAT": 4, "DOUBLE": 5, "BYTE_ARRAY": 6,
    "FIXED_LEN_BYTE_ARRAY": 7,
}  # fmt: skip
"""Parquet's numbers of the physical types."""
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}
"""Bytes of a value."""
_HIGHEST_CODEC = 7

_HEADER_BYTES, _TRAILER_BYTES = 4, 8
"""Bytes before and after the footer in a file that consists of a footer only."""

# Field numbers; the names are those of parquet.thrift.
_ROW_GROUPS = 4
_COLUMNS = 1
_META_DATA, _CRYPTO_METADATA = 3, 8
_TYPE, _PATH, _CODEC, _STATISTICS, _SIZE_STATISTICS = 1, 3, 4, 12, 16
_BOUNDS = {1: "max", 2: "min", 5: "max_value", 6: "min_value"}
_UNENCODED_BYTES = 1
_LEVELS = {2: "max_repetition_level", 3: "max_definition_level"}


class RowGroup(NamedTuple):
    """Fields of a row group and of each of its column chunks."""

    fields: thrift.Fields
    chunks: list[thrift.Fields]


def read_footer_fields(footer: bytes) -> tuple[thrift.Fields, list[RowGroup]]:
    """Read the fields of a footer and its row groups, in one pass over the bytes.

    Raises
    ------
    LookupError, ValueError
        The bytes are not a footer.
    """
    groups: list[RowGroup] = []

    def read_chunk(data: bytes, start: int) -> int:
        fields, end = thrift.read_struct(data, start)
        groups[-1].chunks.append(fields)
        return end

    def read_group(data: bytes, start: int) -> int:
        groups.append(RowGroup({}, []))
        columns = partial(thrift.read_structs, read=read_chunk)
        fields, end = thrift.read_struct(data, start, {_COLUMNS: columns})
        groups[-1].fields.update(fields)
        return end

    fields, _ = thrift.read_struct(footer, 0, {_ROW_GROUPS: partial(thrift.read_structs, read=read_group)})
    if _ROW_GROUPS not in fields or any(_COLUMNS not in group.fields for group in groups):
        raise LookupError("no row groups, or one without columns")
    return fields, groups


class CheckedFooter:
    """Footer whose bytes are checked before Arrow's accessors are called.

    Parameters
    ----------
    footer : footer that Arrow has read
    path : path of the file, for messages
    groups : row groups, if already read from the file's bytes; None: Arrow writes the footer again to read them
    """

    def __init__(self, footer: pq.FileMetaData, path: str, groups: Sequence[RowGroup] | None = None) -> None:
        self.footer = footer
        self.path = path
        self._read_groups = groups
        self._positions = {footer.schema.column(i).path: i for i in reversed(range(footer.num_columns))}

    def has(self, name: str) -> bool:
        """Tell whether there is such a column at the top level."""
        return name in self._positions

    def logical_type(self, name: str) -> Any:
        """Return the logical type of a column."""
        return self.footer.schema.column(self._positions[name]).logical_type

    def chunks(self, name: str) -> list[pq.ColumnChunkMetaData]:
        """Return the chunks of a column, one per row group.

        Raises
        ------
        InputRejectedError
            The footer contradicts itself or has no such column, or the column is encrypted.
        """
        self._facts(name)
        position = self._positions[name]
        return [self.footer.row_group(i).column(position) for i in range(self.footer.num_row_groups)]

    def codecs(self, name: str) -> list[int]:
        """Return the codec of each chunk of a column, by Parquet's number. Raises: see `chunks`."""
        return [thrift.read_integer(facts[_CODEC][1]) for facts in self._facts(name)]

    def _facts(self, name: str) -> list[thrift.Fields]:
        """Check the chunks of a column and return the metadata fields of each."""
        position = self._positions.get(name)
        if position is None:
            raise InputRejectedError(
                f"{self.path}: expected a footer that describes column '{name}', found none"
            )
        column, count = self.footer.schema.column(position), self.footer.num_columns
        if len(self._groups) != self.footer.num_row_groups:
            raise InputRejectedError(
                f"{self.path}: expected a footer that describes {self.footer.num_row_groups} row groups, found "
                f"{len(self._groups)}: write the file again"
            )
        all_facts = []
        for index, (_, chunks) in enumerate(self._groups):
            facts = (
                _facts_of(chunks[position], column)
                if len(chunks) == count
                else f"{len(chunks)} chunks for {count}"
            )
            if isinstance(facts, str):
                raise InputRejectedError(
                    f"{self.path}: expected a footer that describes column '{name}', found {facts} in row group "
                    f"{index}: write the file again"
                )
            all_facts.append(facts)
        return all_facts

    @cached_property
    def _groups(self) -> Sequence[RowGroup]:
        if self._read_groups is not None:
            return self._read_groups
        sink = pa.BufferOutputStream()
        self.footer.write_metadata_file(sink)
        return read_footer_fields(sink.getvalue().to_pybytes()[_HEADER_BYTES:-_TRAILER_BYTES])[1]


def bounds_of(statistics: pq.Statistics) -> tuple[Any, Any] | None:
    """Return the minimum and maximum of statistics; None if they are not values of the column's type."""
    try:
        return statistics.min, statistics.max
    except (ValueError, OverflowError):  # such as invalid UTF-8, or days outside the calendar
        return None


def _facts_of(chunk: thrift.Fields, column: Any) -> thrift.Fields | str:
    """Return a chunk's metadata fields, or the problem with it that would end Arrow's process."""
    try:
        if _CRYPTO_METADATA in chunk:
            return "an encrypted chunk"
        if _META_DATA not in chunk:
            return "nothing of its chunk"
        facts, _ = thrift.read_struct(chunk[_META_DATA][1])
        return _chunk_problem(facts, column) or facts
    except (LookupError, ValueError) as error:
        return f"bytes that do not read as one ({error!r})"


def _chunk_problem(facts: thrift.Fields, column: Any) -> str | None:
    if thrift.read_integer(facts[_TYPE][1]) != _TYPE_NUMBERS.get(column.physical_type):
        return f"a chunk of another type than {column.physical_type}"
    codec = thrift.read_integer(facts[_CODEC][1])
    if not 0 <= codec <= _HIGHEST_CODEC:
        return f"a chunk of an unknown codec, {codec}"
    path = ".".join(os.fsdecode(thrift.read_binary(part)) for part in thrift.read_list(facts[_PATH][1]))
    if path != column.path:
        return f"a chunk of '{path}'"
    if _STATISTICS in facts:
        statistics, _ = thrift.read_struct(facts[_STATISTICS][1])
        width = (
            column.length
            if column.physical_type == "FIXED_LEN_BYTE_ARRAY"
            else _WIDTHS.get(column.physical_type)
        )
        for number in _BOUNDS.keys() & statistics.keys():
            size = len(thrift.read_binary(statistics[number][1]))
            if width is not None and size < width:
                return f"a {_BOUNDS[number]} of {size} bytes instead of {width}"
    if _SIZE_STATISTICS in facts:
        return _size_problem(thrift.read_struct(facts[_SIZE_STATISTICS][1])[0], column)
    return None


def _size_problem(sizes: thrift.Fields, column: Any) -> str | None:
    if _UNENCODED_BYTES in sizes and column.physical_type != "BYTE_ARRAY":
        return f"a size of texts for {column.physical_type}"
    for number, level in _LEVELS.items():
        counts = len(thrift.read_list(sizes[number][1])) if number in sizes else 0
        if counts not in (0, getattr(column, level) + 1):
            return f"{counts} counts of levels instead of {getattr(column, level) + 1}"
    return None
