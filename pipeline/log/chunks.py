"""Facts of a file's footer about a column's chunks, once the footer is known to be sound.

Arrow's accessors (`RowGroupMetaData.column`, `ColumnChunkMetaData.statistics`) end the process if a damaged footer
contradicts itself: their C++ code raises exceptions that are not caught. So such contradictions are looked for first,
in the footer's own bytes. Source: the Apache Parquet format's parquet.thrift.
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

_KINDS = {
    "BOOLEAN": 0, "INT32": 1, "INT64": 2, "INT96": 3, "FLOAT": 4, "DOUBLE": 5, "BYTE_ARRAY": 6,
    "FIXED_LEN_BYTE_ARRAY": 7,
}  # fmt: skip
"""Parquet's numbers of physical types."""
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}
"""Bytes of a value."""
_LAST_CODEC = 7

_BEFORE, _AFTER = 4, 8
"""Bytes around a footer that is a file of its own."""

# Fields, by the names that parquet.thrift gives them.
_ROW_GROUPS = 4
_COLUMNS = 1
_META_DATA, _CRYPTO_METADATA = 3, 8
_TYPE, _PATH, _CODEC, _STATISTICS, _SIZE_STATISTICS = 1, 3, 4, 12, 16
_BOUNDS = {1: "max", 2: "min", 5: "max_value", 6: "min_value"}
_UNENCODED_BYTES = 1
_LEVELS = {2: "max_repetition_level", 3: "max_definition_level"}


class RowGroup(NamedTuple):
    """The fields of a row group, and those of each of its chunks."""

    fields: thrift.Fields
    chunks: list[thrift.Fields]


def read_footer_fields(footer: bytes) -> tuple[thrift.Fields, list[RowGroup]]:
    """The fields of a footer and its row groups, in one walk over the bytes.

    Raises
    ------
    LookupError, ValueError
        They do not read as a footer.
    """
    groups: list[RowGroup] = []

    def read_chunk(data: bytes, at: int) -> int:
        fields, end = thrift.read_struct(data, at)
        groups[-1].chunks.append(fields)
        return end

    def read_group(data: bytes, at: int) -> int:
        groups.append(RowGroup({}, []))
        columns = partial(thrift.read_structs, read=read_chunk)
        fields, end = thrift.read_struct(data, at, {_COLUMNS: columns})
        groups[-1].fields.update(fields)
        return end

    fields, _ = thrift.read_struct(footer, 0, {_ROW_GROUPS: partial(thrift.read_structs, read=read_group)})
    if _ROW_GROUPS not in fields or any(_COLUMNS not in group.fields for group in groups):
        raise LookupError("no row groups, or one without columns")
    return fields, groups


class CheckedFooter:
    """A footer whose chunks are looked at before Arrow is asked for them.

    Parameters
    ----------
    footer : as Arrow has read it
    path : of the file, for messages
    groups : its row groups, where somebody has read them of the file's own footer; None: they are asked of Arrow
    """

    def __init__(self, footer: pq.FileMetaData, path: str, groups: Sequence[RowGroup] | None = None) -> None:
        self.footer = footer
        self.path = path
        self._given = groups
        self._places = {footer.schema.column(i).path: i for i in reversed(range(footer.num_columns))}

    def has(self, name: str) -> bool:
        """Tell whether there is such a column at the top level."""
        return name in self._places

    def logical_type(self, name: str) -> Any:
        """Return the meaning of a column's values."""
        return self.footer.schema.column(self._places[name]).logical_type

    def chunks(self, name: str) -> list[pq.ColumnChunkMetaData]:
        """The chunks of a column, one a row group.

        Raises
        ------
        InputRejectedError
            The footer contradicts itself or has no such column, or the column is encrypted.
        """
        self._facts(name)
        place = self._places[name]
        return [self.footer.row_group(i).column(place) for i in range(self.footer.num_row_groups)]

    def codecs(self, name: str) -> list[int]:
        """The codec of each chunk of a column, as Parquet numbers it. Errors: as `chunks`."""
        return [thrift.read_integer(facts[_CODEC][1]) for facts in self._facts(name)]

    def _facts(self, name: str) -> list[thrift.Fields]:
        """Return the footer's facts about each chunk of a column, once these were looked at."""
        place = self._places.get(name)
        if place is None:
            raise InputRejectedError(
                f"{self.path}: expected a footer that describes column '{name}', found none"
            )
        column, count = self.footer.schema.column(place), self.footer.num_columns
        if len(self._groups) != self.footer.num_row_groups:
            raise InputRejectedError(
                f"{self.path}: expected a footer that describes {self.footer.num_row_groups} row groups, found "
                f"{len(self._groups)}: write the file again"
            )
        found = []
        for index, (_, chunks) in enumerate(self._groups):
            facts = (
                _facts_of(chunks[place], column)
                if len(chunks) == count
                else f"{len(chunks)} chunks for {count}"
            )
            if isinstance(facts, str):
                raise InputRejectedError(
                    f"{self.path}: expected a footer that describes column '{name}', found {facts} in row group "
                    f"{index}: write the file again"
                )
            found.append(facts)
        return found

    @cached_property
    def _groups(self) -> Sequence[RowGroup]:
        if self._given is not None:
            return self._given
        sink = pa.BufferOutputStream()
        self.footer.write_metadata_file(sink)
        return read_footer_fields(sink.getvalue().to_pybytes()[_BEFORE:-_AFTER])[1]


def bounds_of(statistics: pq.Statistics) -> tuple[Any, Any] | None:
    """The smallest and the largest value that statistics have; None where they are no values of the column's type."""
    try:
        return statistics.min, statistics.max
    except (ValueError, OverflowError):  # bytes that are no text, days that no calendar has
        return None


def _facts_of(chunk: thrift.Fields, column: Any) -> thrift.Fields | str:
    """A chunk's description, or what is wrong with it, as far as Arrow would not say so."""
    try:
        if _CRYPTO_METADATA in chunk:
            return "an encrypted chunk"
        if _META_DATA not in chunk:
            return "nothing of its chunk"
        facts, _ = thrift.read_struct(chunk[_META_DATA][1])
        return _problem(facts, column) or facts
    except (LookupError, ValueError) as error:
        return f"bytes that do not read as one ({error!r})"


def _problem(facts: thrift.Fields, column: Any) -> str | None:
    if thrift.read_integer(facts[_TYPE][1]) != _KINDS.get(column.physical_type):
        return f"a chunk of another type than {column.physical_type}"
    codec = thrift.read_integer(facts[_CODEC][1])
    if not 0 <= codec <= _LAST_CODEC:
        return f"a chunk of an unknown codec, {codec}"
    named = ".".join(os.fsdecode(thrift.read_binary(part)) for part in thrift.read_list(facts[_PATH][1]))
    if named != column.path:
        return f"a chunk of '{named}'"
    if _STATISTICS in facts:
        bounds, _ = thrift.read_struct(facts[_STATISTICS][1])
        width = (
            column.length
            if column.physical_type == "FIXED_LEN_BYTE_ARRAY"
            else _WIDTHS.get(column.physical_type)
        )
        for number in _BOUNDS.keys() & bounds.keys():
            size = len(thrift.read_binary(bounds[number][1]))
            if width is not None and size < width:
                return f"a {_BOUNDS[number]} of {size} bytes instead of {width}"
    if _SIZE_STATISTICS in facts:
        return _problem_of_sizes(thrift.read_struct(facts[_SIZE_STATISTICS][1])[0], column)
    return None


def _problem_of_sizes(sizes: thrift.Fields, column: Any) -> str | None:
    if _UNENCODED_BYTES in sizes and column.physical_type != "BYTE_ARRAY":
        return f"a size of texts for {column.physical_type}"
    for number, level in _LEVELS.items():
        counts = len(thrift.read_list(sizes[number][1])) if number in sizes else 0
        if counts not in (0, getattr(column, level) + 1):
            return f"{counts} counts of levels instead of {getattr(column, level) + 1}"
    return None
