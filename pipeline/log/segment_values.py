"""Values of segment columns: which types they may have, their order, and rows to small codes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from logcal.arrow_columns import as_column, as_numpy, column_of, null_mask
from logcal.errors import InputRejectedError
from logcal.names import Numbers, Texts

Integers = npt.NDArray[np.int64]
Key = tuple[Any, ...]
"""A segment: a value a column (str, int, bool, datetime.date), None where it is null."""


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
        return isinstance(other, Sequence) and len(self) == len(other) and self._whole == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __getstate__(self) -> list[pa.Array]:
        return self.columns

    def __setstate__(self, columns: list[pa.Array]) -> None:
        self.columns = columns


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
        self.types: tuple[pa.DataType, ...] = ()
        self._coders = [_Coder(name) for name in columns]
        # Of the pairs (code of the columns before, code of the column), for the second column and those after it.
        self._pairs = [Numbers() for _ in columns[1:]]

    def encode(self, batch: pa.RecordBatch) -> npt.NDArray[np.int32]:
        """The codes of a batch's rows.

        Raises
        ------
        InputRejectedError
            More than `MAX_SEGMENTS` segments, or text that is not UTF-8 or longer than `MOST_BYTES`.
        """
        columns = [batch.column(name) for name in self.columns]
        codes = self._coders[0].encode(columns[0])
        for coder, pairs, column in zip(self._coders[1:], self._pairs, columns[1:], strict=True):
            codes = pairs.encode((codes.astype(np.int64) << 32) | coder.encode(column))
        self.types = tuple(coder.type for coder in self._coders)
        if len(self) > MAX_SEGMENTS:
            raise InputRejectedError(
                f"log.segment: expected at most {MAX_SEGMENTS:,} segments, found {len(self):,} or more: leave out the "
                "column that tells rows apart and not groups of them"
            )
        return codes

    def __len__(self) -> int:
        return len(self._pairs[-1]) if self._pairs else len(self._coders[0])

    @property
    def keys(self) -> list[Key]:
        """The segment of each code."""
        values = [column.to_pylist() for column in self.values_of(np.arange(len(self)))]
        return list(zip(*values, strict=True))

    def values_of(self, codes: Integers) -> list[pa.Array]:
        """The values of codes, of each column."""
        if not self._pairs and np.array_equal(codes, np.arange(len(self))):
            return [self._coders[0].values]
        members = self._members(codes)
        return [
            coder.values.take(as_column(column)) for coder, column in zip(self._coders, members, strict=True)
        ]

    def sort(self, present: Integers) -> tuple[Integers, list[Integers], list[pa.Array]]:
        """Codes in the order of their segments.

        Returns
        -------
        codes : `present`, sorted
        ranks : of each column, for each of the codes: where its value stands among the column's
        values : of each column, by rank
        """
        members = self._members(present)
        orders = [coder.in_order() for coder in self._coders]
        ranks = [_inverse(places)[column] for places, column in zip(orders, members, strict=True)]
        if len(ranks) == 1 and present.size == orders[0].size:
            # All of them: they are in order as their values are.
            by_segment = _inverse(present)[orders[0]]
        else:
            by_segment = np.lexsort(ranks[::-1])
        values = [coder.take(places) for coder, places in zip(self._coders, orders, strict=True)]
        return present[by_segment], [column[by_segment] for column in ranks], values

    def _members(self, codes: Integers) -> list[Integers]:
        """The code of each column's value."""
        members = []
        for pairs in reversed(self._pairs):
            both = pairs.found[codes]
            members.append(both & 0xFFFFFFFF)
            codes = both >> 32
        return [codes, *reversed(members)]


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
        self._array: pa.Array | None = None
        self._texts: Texts | None = None
        self._dictionary: pa.Array | None = None
        self._known = np.empty(0, np.int32)
        self._numbers = Numbers()
        self._of_numbers = np.empty(0, np.int32)

    def encode(self, column: pa.Array) -> npt.NDArray[np.int32]:
        """The codes of a column's values."""
        if pa.types.is_null(column.type):
            column = column.cast(pa.string())
        if pa.types.is_dictionary(column.type):
            return self._encode_dictionary(column)
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            self.type = pa.string()
            return self._codes_of_texts(column)
        self.type = column.type
        return self._encode_numbers(column)

    def _encode_dictionary(self, column: pa.DictionaryArray) -> npt.NDArray[np.int32]:
        dictionary = column.dictionary
        # The batches of a row group share one dictionary, each a copy of it, which may grow at its end.
        known = self._dictionary
        seen = 0
        if known is not None and dictionary.slice(0, len(known)).equals(known):
            seen = len(known)
        if seen < len(dictionary) or self._dictionary is None:
            text = pa.types.is_string(dictionary.type) or pa.types.is_large_string(dictionary.type)
            self.type = pa.string() if text else dictionary.type
            codes_of = self._codes_of_texts if text else self._codes_of
            self._known = np.concatenate([self._known[:seen], codes_of(dictionary.slice(seen))])
            self._dictionary = dictionary
        if column.indices.null_count == 0:
            return self._known[as_numpy(column.indices)]
        missing = null_mask(column.indices)
        indices = np.where(missing, len(self._known), as_numpy(column.indices).astype(np.int64))
        return np.append(self._known, self._code_of_null())[indices].astype(np.int32, copy=False)

    def _code_of_null(self) -> np.int32:
        if self._texts is not None:
            return np.int32(self._texts.null())
        return np.int32(self._codes_of(pa.nulls(1, self.type))[0])

    def _codes_of_texts(self, values: pa.Array) -> npt.NDArray[np.int32]:
        """Code texts, as `_codes_of` does."""
        if self._texts is None:
            self._texts = Texts()
        before = self._texts.count
        missing = null_mask(values) if values.null_count else None
        if missing is None:
            codes = self._texts.encode(values)
        else:
            codes = np.full(len(values), self._texts.null(), np.int32)
            codes[~missing] = self._texts.encode(values.drop_null())
        if self._texts.count > before:
            self._array = None
            new = self._texts.values(before, self._texts.count)
            try:
                new.validate(full=True)
            except pa.ArrowInvalid:
                self._refuse_text()
                raise
            self._check_length(new)
        return codes

    def _check_length(self, texts: pa.Array) -> None:
        ends = np.frombuffer(texts.buffers()[1], np.int32)[texts.offset : texts.offset + len(texts) + 1]
        longest = int(np.diff(ends).max())
        if longest > MOST_BYTES:
            raise InputRejectedError(
                f"column '{self.name}' (log.segment): expected text of at most {MOST_BYTES:,} bytes, found "
                f"{longest:,}: use a column that names groups of rows"
            )

    def _encode_numbers(self, column: pa.Array) -> npt.NDArray[np.int32]:
        kind = pa.int32() if pa.types.is_date32(column.type) else column.type
        numbers = as_numpy(column.cast(kind)).astype(np.int64)
        missing = null_mask(column) if column.null_count else None
        places = self._numbers.encode(numbers if missing is None else numbers[~missing])
        new = self._numbers.found[self._of_numbers.size :]
        if new.size:
            # Through the column's own type: the largest unsigned numbers are negative here.
            values = as_column(new.astype(kind.to_pandas_dtype())).cast(column.type)
            self._of_numbers = np.concatenate([self._of_numbers, self._codes_of(values)])
        codes = self._of_numbers[places]
        if missing is None:
            return codes
        out = np.full(missing.size, self._codes_of(pa.nulls(1, self.type))[0], np.int32)
        out[~missing] = codes
        return out

    def _codes_of(self, values: pa.Array) -> npt.NDArray[np.int32]:
        """The codes of values that need not be distinct; those of new ones follow."""
        known = values.slice(0, 0) if self._array is None else self._array
        # Values in the order of their first appearance: the known ones keep their codes.
        both = pa.concat_arrays([known, values]).dictionary_encode(null_encoding="encode")
        self._array = both.dictionary
        try:
            self._array.validate(full=True)
        except pa.ArrowInvalid:
            self._refuse_text()
            raise
        return as_numpy(both.indices)[len(known) :]

    def _refuse_text(self) -> None:
        try:
            self.values.to_pylist()
        except UnicodeDecodeError as error:
            raise InputRejectedError(
                f"column '{self.name}' (log.segment): expected text in UTF-8, found {error.object!r}: convert it"
            ) from None

    def __len__(self) -> int:
        return len(self.values) if self._texts is None else self._texts.count

    @property
    def values(self) -> pa.Array:
        """Value of each code."""
        if self._texts is not None and (self._array is None or len(self._array) < self._texts.count):
            self._array = self._texts.values(0, self._texts.count)
        return pa.nulls(0) if self._array is None else self._array

    def take(self, codes: Integers) -> pa.Array:
        """The values of codes, each once at most."""
        if self._texts is not None:
            return self._texts.values_of(codes)
        return self.values.take(as_column(codes))

    def in_order(self) -> Integers:
        """The codes in the order of their values, null first."""
        # Takes some hundredths of a second to import, and only segments need it.
        import pyarrow.compute as pc

        # Text in UTF-8 has the order of its code points.
        return as_numpy(pc.array_sort_indices(self.values, null_placement="at_start")).astype(np.int64)


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
    names = [str(i) for i in range(len(columns))]
    encoder = Encoder(names)
    codes = encoder.encode(pa.RecordBatch.from_arrays(list(columns), names))
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


def keys_of(columns: Sequence[pa.Array | pa.ChunkedArray]) -> list[Key]:
    """Arrow columns as keys."""
    return list(zip(*(column.to_pylist() for column in columns), strict=True))
