"""Values of segment columns: their types, their order, and the codes of rows' segments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from calibrators.core.arrays import Codes, Integers
from logcal import names
from logcal.arrow_columns import as_column, as_numpy, column_of, null_mask
from logcal.errors import InputRejectedError
from logcal.lookup_table import Key, keys_of
from logcal.segment_types import mixed_signs, segment_column, segment_type, unified


class KeyColumns(Sequence[Key]):
    """Sequence of keys stored as columns, since a million tuples take a second and 100 MB to make.

    Attributes
    ----------
    columns : one Arrow array of values for each column of the key
    """

    def __init__(self, columns: Sequence[pa.Array]) -> None:
        self.columns = list(columns)

    @cached_property
    def _tuples(self) -> list[Key]:
        return keys_of(self.columns)

    def __len__(self) -> int:
        return len(self.columns[0])

    def __getitem__(self, index: Any) -> Any:
        return (
            self._tuples[index] if isinstance(index, slice) else tuple(x[index].as_py() for x in self.columns)
        )

    def __iter__(self) -> Iterator[Key]:
        return iter(self._tuples)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._tuples == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __getstate__(self) -> dict[str, Any]:
        return {"columns": self.columns}


MAX_SEGMENTS = 1_000_000
MOST_BYTES = 1 << 16
"""Most bytes of a segment's text, which tables, pages and the memory of each task contain."""


def order(key: Key) -> tuple[Any, ...]:
    """Sort key of segments: null first, strings by code points, numbers by size, false before true, dates by time."""
    return tuple((value is not None, value) for value in key)


class Encoder:
    """Encoder of rows' segments, batch by batch, as codes 0, 1, ... in the order of their first appearance."""

    def __init__(self, columns: Sequence[str]) -> None:
        self.columns = tuple(columns)
        self._keys = names.Keys([_Coder(name) for name in columns])

    def encode(self, batch: pa.RecordBatch) -> Codes:
        """Return the codes of a batch's rows.

        Raises
        ------
        InputRejectedError
            There are more than `MAX_SEGMENTS` segments, or text is not UTF-8 or longer than `MOST_BYTES`.
        """
        columns = [batch.column(name) for name in self.columns]
        codes = self._keys.encode(columns)
        if len(self) > MAX_SEGMENTS:
            raise InputRejectedError(
                f"$[segment]: expected at most {MAX_SEGMENTS:,} segments, found {len(self):,} or more: leave out "
                "columns that identify rows instead of groups of rows"
            )
        return codes

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def types(self) -> tuple[pa.DataType, ...]:
        """Types of the columns' values, see `segment_type`; uint64 if a number is larger than int64."""
        return tuple(coder.type for coder in self._keys.tables)

    @property
    def keys(self) -> list[Key]:
        """The segment of each code."""
        values = [column.to_pylist() for column in self.values_of(np.arange(len(self)))]
        return list(zip(*values, strict=True))

    def values_of(self, codes: Integers) -> list[pa.Array]:
        """Return the values of codes as one array for each column."""
        coders = self._keys.tables
        if len(coders) == 1 and np.array_equal(codes, np.arange(len(self))):
            return [coders[0].values]
        members = zip(coders, self._keys.members(codes), strict=True)
        return [coder.values.take(as_column(column)) for coder, column in members]

    def sort(self, present: Integers) -> tuple[Integers, list[Integers], list[pa.Array]]:
        """Sort codes by their segments.

        Returns
        -------
        codes : `present`, sorted
        ranks : for each column, the rank of each code's value among the column's values
        values : for each column, its values by rank
        """
        orders = [coder.in_order() for coder in self._keys.tables]
        members = zip(orders, self._keys.members(present), strict=True)
        ranks = [_inverse(order)[column] for order, column in members]
        if len(ranks) == 1 and present.size == orders[0].size:
            # With one column and all codes, the order of segments is that of the values.
            by_segment = _inverse(present)[orders[0]]
        else:
            by_segment = np.lexsort(ranks[::-1])
        in_order = zip(self._keys.tables, orders, strict=True)
        values = [coder.values.take(as_column(order)) for coder, order in in_order]
        return present[by_segment], [column[by_segment] for column in ranks], values


def _inverse(permutation: Integers) -> Integers:
    """Return the inverse of a permutation."""
    inverse = np.empty_like(permutation)
    inverse[permutation] = np.arange(permutation.size)
    return inverse


class _Coder:
    """Encoder of the values of one column, in the order of their first appearance.

    Attributes
    ----------
    type : type of the values, see `segment_type`; uint64 if a number is larger than int64
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._type: pa.DataType = pa.null()
        self._large = self._negative = False
        self._table: names.Texts | names.Numbers | None = None
        self._texts: list[pa.Array] = []  # of the table, which takes a while to write them
        # The first null gets the next free code; codes of the table from there on are shifted by 1.
        self._null = -1
        self._values = pa.nulls(0)
        self._dictionary: pa.Array | None = None
        self._codes = np.empty(0, np.int32)

    def encode(self, column: pa.Array) -> Codes:
        """Return the codes of a column's values."""
        if pa.types.is_dictionary(column.type):
            return self._encode_dictionary(column)
        kind = segment_type(column.type)
        assert kind is not None
        if pa.types.is_null(self._type):
            self._type, self._values = kind, pa.nulls(0)
        if column.null_count == len(column):
            return np.full(len(column), self._code_of_null() if len(column) else 0, np.int32)
        column = segment_column(column, self.name)
        if self._table is None:
            self._table = names.Texts() if pa.types.is_string(kind) else names.Numbers()
        if not column.null_count:
            return self._codes_of(column)
        missing, codes = null_mask(column), np.empty(len(column), np.int32)
        codes[~missing] = self._codes_of(column.drop_null())
        codes[missing] = self._code_of_null()
        return codes

    def _encode_dictionary(self, column: pa.DictionaryArray) -> Codes:
        dictionary = column.dictionary
        # Batches of a row group have copies of one dictionary, which may grow at its end.
        previous = self._dictionary
        shared = 0
        if previous is not None and dictionary.slice(0, len(previous)).equals(previous):
            shared = len(previous)
        if shared < len(dictionary) or previous is None:
            self._codes = np.concatenate([self._codes[:shared], self.encode(dictionary.slice(shared))])
            self._dictionary = dictionary
        if column.indices.null_count == 0:
            return self._codes[as_numpy(column.indices)]
        missing = null_mask(column.indices)
        indices = np.where(missing, len(self._codes), as_numpy(column.indices).astype(np.int64))
        return np.append(self._codes, np.int32(self._code_of_null()))[indices]

    def _code_of_null(self) -> int:
        if self._null < 0:
            self._null = len(self)
        return self._null

    def _codes_of(self, values: pa.Array) -> Codes:
        """Return the codes of values without nulls."""
        if isinstance(self._table, names.Texts):
            count = len(self._table)
            codes = self._table.encode(values)
            if len(self._table) > count:
                self._texts.append(self._table.values(count, len(self._table)))
                self._check(self._texts[-1])
        else:
            assert self._table is not None
            codes = self._table.encode(self._whole(values))
        return codes if self._null < 0 else codes + (codes >= self._null).astype(np.int32)

    def _whole(self, values: pa.Array) -> Integers:
        """Return whole numbers that stand for values without nulls; those from 2^63 on become negative."""
        integers = as_numpy(values.cast(pa.int32()) if pa.types.is_date32(values.type) else values)
        whole: Integers = integers.astype(np.int64)
        if values.type == pa.uint64():
            self._large |= bool((whole < 0).any())
        elif pa.types.is_signed_integer(values.type):
            self._negative |= bool((whole < 0).any())
        if self._large and self._negative:
            raise mixed_signs()
        return whole

    def _check(self, texts: pa.Array) -> None:
        try:
            texts.validate(full=True)
        except pa.ArrowInvalid:
            try:
                texts.to_pylist()
            except UnicodeDecodeError as error:
                raise InputRejectedError(
                    f"column '{self.name}' ($[segment]): expected text in UTF-8, found {error.object!r}: convert it"
                ) from None
            raise
        ends = np.frombuffer(texts.buffers()[1], np.int32)[texts.offset : texts.offset + len(texts) + 1]
        longest = int(np.diff(ends).max())
        if longest > MOST_BYTES:
            raise InputRejectedError(
                f"column '{self.name}' ($[segment]): expected text of at most {MOST_BYTES:,} bytes, found "
                f"{longest:,}: use a column that names groups of rows"
            )

    def __len__(self) -> int:
        return (0 if self._table is None else len(self._table)) + (self._null >= 0)

    @property
    def type(self) -> pa.DataType:
        """See the class."""
        return pa.uint64() if self._large else self._type

    @property
    def values(self) -> pa.Array:
        """Value of each code."""
        if len(self._values) < len(self):
            if isinstance(self._table, names.Texts):
                self._texts = [pa.concat_arrays(self._texts)]
                [values] = self._texts
            elif self._table is None:
                values = pa.nulls(0, self.type)
            elif pa.types.is_date32(self.type):
                values = as_column(self._table.numbers.astype(np.int32)).cast(self.type)
            else:
                values = as_column(self._table.numbers.astype(self.type.to_pandas_dtype()))
            parts = [values]
            if self._null >= 0:
                parts = [values.slice(0, self._null), pa.nulls(1, self.type), values.slice(self._null)]
            self._values = pa.concat_arrays(parts)
        return self._values

    def in_order(self) -> Integers:
        """Return the codes in the order of their values, null first."""
        # Imported here because it takes some hundredths of a second, and only segments need it.
        import pyarrow.compute as pc

        if self._table is None:
            return np.arange(len(self))
        # The order of UTF-8 bytes is that of code points.
        return as_numpy(pc.array_sort_indices(self.values, null_placement="at_start")).astype(np.int64)


def unified_values(parts: Sequence[Sequence[pa.Array]]) -> list[list[pa.Array]]:
    """Convert the segment values of several runs, whose types may differ, to one type for each column."""
    columns = [unified(column) for column in zip(*parts, strict=True)]
    return [list(part) for part in zip(*columns, strict=True)]


class NumberedKeys(NamedTuple):
    """Distinct keys of Arrow columns by level: keys of the first column, of the first two columns, ...

    Attributes
    ----------
    types : types of the columns
    keys : keys of each level, in the order of `order`
    of : int32 array for each level: the position, among the level's keys, of each key of the last level
    codes : int32 array: the position of each row's key among those of the last level
    """

    types: tuple[pa.DataType, ...]
    keys: list[KeyColumns]
    of: list[Codes]
    codes: Codes


def number(columns: Sequence[pa.Array]) -> NumberedKeys:
    """Find the distinct keys of Arrow columns, and number the rows by key.

    Raises
    ------
    InputRejectedError
        There are more than `MAX_SEGMENTS` keys.
    """
    names_by_position = [str(i) for i in range(len(columns))]
    encoder = Encoder(names_by_position)
    codes = encoder.encode(pa.RecordBatch.from_arrays(list(columns), names_by_position))
    in_order, ranks, values = encoder.sort(np.arange(len(encoder)))
    # A column without values has a type in tables.
    values = [column.cast(pa.string()) if pa.types.is_null(column.type) else column for column in values]
    positions = np.empty(in_order.size, np.int32)
    positions[in_order] = np.arange(in_order.size)
    keys, ancestors = [], []
    changes = np.zeros(in_order.size, np.bool_)
    for level in range(1, len(columns) + 1):
        changes = changes | (np.diff(ranks[level - 1], prepend=-1) != 0)
        first = np.flatnonzero(changes)
        pairs = zip(values[:level], ranks[:level], strict=True)
        keys.append(KeyColumns([_take(column, rank[first]) for column, rank in pairs]))
        ancestors.append((np.cumsum(changes) - 1).astype(np.int32))
    types = tuple(pa.string() if pa.types.is_null(kind) else kind for kind in encoder.types)
    return NumberedKeys(types, keys, ancestors, positions[codes])


def _take(column: pa.Array, positions: Integers) -> pa.Array:
    """Take the values at positions, without a copy if these are all positions."""
    if np.array_equal(positions, np.arange(len(column))):
        return column
    return column.take(as_column(positions))


def arrays(keys: Sequence[Key], types: Sequence[pa.DataType]) -> list[pa.Array]:
    """Convert keys to Arrow columns."""
    if isinstance(keys, KeyColumns) and [column.type for column in keys.columns] == list(types):
        return keys.columns
    return [column_of([key[i] for key in keys], arrow_type) for i, arrow_type in enumerate(types)]
