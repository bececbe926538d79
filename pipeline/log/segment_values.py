"""Values of segment columns: which types they may have, their order, and rows to small codes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from logcal import names
from logcal.arrow_columns import as_column, as_numpy, column_of, null_mask
from logcal.errors import InputRejectedError
from logcal.lookup_table import Key, keys_of

Integers = npt.NDArray[np.int64]
Codes = npt.NDArray[np.int32]


class Keys(Sequence[Key]):
    """Keys that are columns: of a million, tuples of Python's values take a second, and 100 MB.

    Attributes
    ----------
    columns : of values, each of its type
    """

    def __init__(self, columns: Sequence[pa.Array]) -> None:
        self.columns = list(columns)

    @cached_property
    def _whole(self) -> list[Key]:
        return keys_of(self.columns)

    def __len__(self) -> int:
        return len(self.columns[0])

    def __getitem__(self, place: Any) -> Any:
        return self._whole[place]

    def __iter__(self) -> Iterator[Key]:
        return iter(self._whole)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._whole == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __getstate__(self) -> dict[str, Any]:
        return {"columns": self.columns}


MAX_SEGMENTS = 1_000_000
MOST_BYTES = 1 << 16
"""Most bytes of a segment's text: each stands in tables, pages and the memory of every task."""


def usable(kind: pa.DataType) -> bool:
    """Tell whether a column of this type can tell segments apart: strings, integers, booleans, dates."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    text = text or pa.types.is_null(kind)  # a column of nulls only
    return text or pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_date32(kind)


def order(key: Key) -> tuple[Any, ...]:
    """Sorts keys: null first, then strings by code points, numbers by size, false before true, dates by time."""
    return tuple((value is not None, value) for value in key)


class Encoder:
    """Gives the rows of one batch after the other codes: 0, 1, ... in the order in which segments appear.

    Attributes
    ----------
    types : of the columns, known after the first batch, without dictionaries.
    """

    def __init__(self, columns: Sequence[str]) -> None:
        self.columns = tuple(columns)
        self._keys = names.Keys([_Coder(name) for name in columns])

    def encode(self, batch: pa.RecordBatch) -> npt.NDArray[np.int32]:
        """The codes of a batch's rows.

        Raises
        ------
        InputRejectedError
            More than `MAX_SEGMENTS` segments, or text that is not UTF-8 or longer than `MOST_BYTES`.
        """
        columns = [batch.column(name) for name in self.columns]
        codes = self._keys.encode(columns)
        if len(self) > MAX_SEGMENTS:
            raise InputRejectedError(
                f"log.segment: expected at most {MAX_SEGMENTS:,} segments, found {len(self):,} or more: leave out the "
                "column that tells rows apart and not groups of them"
            )
        return codes

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def types(self) -> tuple[pa.DataType, ...]:
        """Types of the columns, known after the first batch, without dictionaries."""
        return tuple(coder.type for coder in self._keys.tables)

    @property
    def keys(self) -> list[Key]:
        """The segment of each code."""
        values = [column.to_pylist() for column in self.values_of(np.arange(len(self)))]
        return list(zip(*values, strict=True))

    def values_of(self, codes: Integers) -> list[pa.Array]:
        """The values of codes, of each column."""
        coders = self._keys.tables
        if len(coders) == 1 and np.array_equal(codes, np.arange(len(self))):
            return [coders[0].values]
        members = zip(coders, self._keys.members(codes), strict=True)
        return [coder.values.take(as_column(column)) for coder, column in members]

    def sort(self, present: Integers) -> tuple[Integers, list[Integers], list[pa.Array]]:
        """Codes in the order of their segments.

        Returns
        -------
        codes : `present`, sorted
        ranks : of each column, for each of the codes: where its value stands among the column's
        values : of each column, by rank
        """
        orders = [coder.in_order() for coder in self._keys.tables]
        members = zip(orders, self._keys.members(present), strict=True)
        ranks = [_inverse(places)[column] for places, column in members]
        if len(ranks) == 1 and present.size == orders[0].size:
            # All of them: they are in order as their values are.
            by_segment = _inverse(present)[orders[0]]
        else:
            by_segment = np.lexsort(ranks[::-1])
        in_order = zip(self._keys.tables, orders, strict=True)
        values = [coder.values.take(as_column(places)) for coder, places in in_order]
        return present[by_segment], [column[by_segment] for column in ranks], values


def _inverse(places: Integers) -> Integers:
    """Return the position of each place among all."""
    found = np.empty_like(places)
    found[places] = np.arange(places.size)
    return found


class _Coder:
    """Values of one column to codes, in the order of their appearance.

    Attributes
    ----------
    type : of the column, known after the first batch, without dictionary.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.type: pa.DataType = pa.null()
        self._table: names.Texts | names.Numbers | None = None
        # Null has the code that was the next when it came first; the table's own go round it.
        self._null = -1
        self._array = pa.nulls(0)
        self._dictionary: pa.Array | None = None
        self._known = np.empty(0, np.int32)

    def encode(self, column: pa.Array) -> Codes:
        """The codes of a column's values."""
        if pa.types.is_dictionary(column.type):
            return self._encode_dictionary(column)
        if pa.types.is_null(column.type):
            column = column.cast(pa.string())
        if self._table is None:
            text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
            self._table = names.Texts() if text else names.Numbers()
            self.type = pa.string() if text else column.type
        if not column.null_count:
            return self._codes_of(column)
        missing, codes = null_mask(column), np.empty(len(column), np.int32)
        codes[~missing] = self._codes_of(column.drop_null())
        codes[missing] = self._code_of_null()
        return codes

    def _encode_dictionary(self, column: pa.DictionaryArray) -> Codes:
        dictionary = column.dictionary
        # The batches of a row group share one dictionary, each a copy of it, which may grow at its end.
        known = self._dictionary
        seen = 0
        if known is not None and dictionary.slice(0, len(known)).equals(known):
            seen = len(known)
        if seen < len(dictionary) or known is None:
            self._known = np.concatenate([self._known[:seen], self.encode(dictionary.slice(seen))])
            self._dictionary = dictionary
        if column.indices.null_count == 0:
            return self._known[as_numpy(column.indices)]
        missing = null_mask(column.indices)
        indices = np.where(missing, len(self._known), as_numpy(column.indices).astype(np.int64))
        return np.append(self._known, np.int32(self._code_of_null()))[indices]

    def _code_of_null(self) -> int:
        if self._null < 0:
            self._null = len(self)
        return self._null

    def _codes_of(self, values: pa.Array) -> Codes:
        """The codes of values, none of which is null."""
        if isinstance(self._table, names.Texts):
            before = len(self._table)
            codes = self._table.encode(values)
            if len(self._table) > before:
                self._check(self._table.values(before, len(self._table)))
        else:
            assert self._table is not None
            codes = self._table.encode(as_numpy(values.cast(_whole(values.type))).astype(np.int64))
        return codes if self._null < 0 else codes + (codes >= self._null).astype(np.int32)

    def _check(self, texts: pa.Array) -> None:
        try:
            texts.validate(full=True)
        except pa.ArrowInvalid:
            try:
                texts.to_pylist()
            except UnicodeDecodeError as error:
                raise InputRejectedError(
                    f"column '{self.name}' (log.segment): expected text in UTF-8, found {error.object!r}: convert it"
                ) from None
            raise
        ends = np.frombuffer(texts.buffers()[1], np.int32)[texts.offset : texts.offset + len(texts) + 1]
        longest = int(np.diff(ends).max())
        if longest > MOST_BYTES:
            raise InputRejectedError(
                f"column '{self.name}' (log.segment): expected text of at most {MOST_BYTES:,} bytes, found "
                f"{longest:,}: use a column that names groups of rows"
            )

    def __len__(self) -> int:
        return (0 if self._table is None else len(self._table)) + (self._null >= 0)

    @property
    def values(self) -> pa.Array:
        """Value of each code."""
        if len(self._array) < len(self):
            if isinstance(self._table, names.Texts):
                own = self._table.values(0, len(self._table))
            else:
                assert self._table is not None
                # Through the column's own type: the largest unsigned numbers are negative here.
                kind = _whole(self.type)
                own = as_column(self._table.numbers.astype(kind.to_pandas_dtype())).cast(self.type)
            parts = [own]
            if self._null >= 0:
                parts = [own.slice(0, self._null), pa.nulls(1, self.type), own.slice(self._null)]
            self._array = pa.concat_arrays(parts)
        return self._array

    def in_order(self) -> Integers:
        """The codes in the order of their values, null first."""
        # Takes some hundredths of a second to import, and only segments need it.
        import pyarrow.compute as pc

        # Text in UTF-8 has the order of its code points.
        return as_numpy(pc.array_sort_indices(self.values, null_placement="at_start")).astype(np.int64)


def _whole(kind: pa.DataType) -> pa.DataType:
    return pa.int32() if pa.types.is_date32(kind) else kind


class Numbered(NamedTuple):
    """The distinct keys of Arrow columns, level by level: of the first column, of the first two, ...

    Attributes
    ----------
    types : of the columns
    keys : of each level, in the order of `order`
    of : int32 arrays: of each level, the place of each key of all columns among the level's
    codes : int32 array: of each row, the place of its key of all columns
    """

    types: tuple[pa.DataType, ...]
    keys: list[Keys]
    of: list[npt.NDArray[np.int32]]
    codes: npt.NDArray[np.int32]


def number(columns: Sequence[pa.Array]) -> Numbered:
    """The distinct keys of Arrow columns.

    Raises
    ------
    InputRejectedError
        More than `MAX_SEGMENTS`.
    """
    places_of = [str(i) for i in range(len(columns))]
    encoder = Encoder(places_of)
    codes = encoder.encode(pa.RecordBatch.from_arrays(list(columns), places_of))
    in_order, ranks, values = encoder.sort(np.arange(len(encoder)))
    places = np.empty(in_order.size, np.int32)
    places[in_order] = np.arange(in_order.size)
    keys, of = [], []
    changes = np.zeros(in_order.size, np.bool_)
    for level in range(1, len(columns) + 1):
        changes = changes | (np.diff(ranks[level - 1], prepend=-1) != 0)
        first = np.flatnonzero(changes)
        own = [_at(column, rank[first]) for column, rank in zip(values[:level], ranks[:level], strict=True)]
        keys.append(Keys(own))
        of.append((np.cumsum(changes) - 1).astype(np.int32))
    return Numbered(encoder.types, keys, of, places[codes])


def _at(column: pa.Array, places: Integers) -> pa.Array:
    """The values at places; all of them, mostly."""
    if np.array_equal(places, np.arange(len(column))):
        return column
    return column.take(as_column(places))


def arrays(keys: Sequence[Key], types: Sequence[pa.DataType]) -> list[pa.Array]:
    """Keys as Arrow columns."""
    if isinstance(keys, Keys) and [column.type for column in keys.columns] == list(types):
        return keys.columns
    return [column_of([key[i] for key in keys], kind) for i, kind in enumerate(types)]
