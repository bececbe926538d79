"""Finding the map that a row's segment is given: rows' segment values to the maps of a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from calibrators.arithmetic.calibration_map import compiled
from logcal.arrow_columns import as_column, as_numpy, null_mask

Integers = npt.NDArray[np.int64]
Codes = npt.NDArray[np.int32]
_ABSENT = np.int64(-1)


@dataclass
class DictionaryCodes:
    """Dictionary of a column's last batch, with the code of each value."""

    dictionary: pa.Array | None = None
    codes: Integers = field(default_factory=lambda: np.empty(0, np.int64))


class SegmentIndex:
    """The maps of a table by segment: of all rows, of the values of the first column, of the first two, and so on.

    It is made once and then only read: threads share it.

    Parameters
    ----------
    keys : a column of values for each segment column, shape (keys,)
    levels : int array, shape (keys,): how many leading columns of a key count; keys of level 0 are all rows
    maps : int array, shape (keys,): the map that a key's rows use; -1: its parent's
    known : bool array, shape (keys,): whether a key is a segment that the table knows
    """

    def __init__(
        self, keys: Sequence[pa.Array], levels: Integers, maps: Integers, known: npt.NDArray[np.bool_]
    ) -> None:
        owners = maps >= 0
        self._columns = [_Values(column) for column in keys]
        root = int(maps[owners & (levels == 0)][0])
        self._levels: list[_Level] = []
        prefix, parents = np.zeros(levels.size, np.int64), np.array([root])
        for depth, column in enumerate(self._columns, 1):
            pairs = (prefix << 32) | column.codes
            deep = levels >= depth
            numbers, ids = np.unique(pairs[deep], return_inverse=True)
            prefix = np.full(levels.size, _ABSENT)
            prefix[deep] = ids
            own = owners & (levels == depth)
            place = parents[numbers >> 32]
            place[prefix[own]] = maps[own]
            self._levels.append(_Level(_Numbers(numbers), np.append(place, root).astype(np.int32)))
            parents = place
        self._known = np.zeros(parents.size + 1, np.bool_)  # the last one for what is not there
        self._known[prefix[known]] = True
        # There is one key above the first column's: its codes tell its keys apart.
        first = self._levels[0].numbers.known
        self._first = np.full(len(self._columns[0]) + 1, _ABSENT)
        self._first[first] = np.arange(first.size)

    def find(
        self, columns: Sequence[pa.Array | pa.ChunkedArray], dictionaries: list[DictionaryCodes] | None = None
    ) -> tuple[Codes, npt.NDArray[np.bool_]]:
        """Find each row's map, int32, and whether its segment is known. O(1) a row.

        Parameters
        ----------
        columns : as many as the index has, of one length and any type; values of another type are not known
        dictionaries : state of each column, updated with each batch of a file, so that each value of a dictionary is
            looked up once; starts as `no_dictionaries()`
        """
        before = dictionaries or self.no_dictionaries()
        codes = [
            values.find(column, own)
            for values, column, own in zip(self._columns, columns, before, strict=True)
        ]
        ids = self._first[codes[0]]
        place = self._levels[0].place[ids]
        for level, own_codes in zip(self._levels[1:], codes[1:], strict=True):
            found = level.numbers.find((ids << 32) | own_codes)
            ids = np.where((ids >= 0) & (own_codes >= 0), found, _ABSENT)
            place = np.where(ids >= 0, level.place[ids], place)
        return place, self._known[ids]

    def no_dictionaries(self) -> list[DictionaryCodes]:
        """State of `find` before the first batch of a file: an empty dictionary per column."""
        return [DictionaryCodes() for _ in self._columns]


class _Numbers:
    """Whole numbers, all different, that are found by their value."""

    def __init__(self, known: Integers) -> None:
        self.known = np.ascontiguousarray(known, np.int64)

    @cached_property
    def _order(self) -> Integers:
        return np.argsort(self.known)

    def find(self, values: Integers) -> Integers:
        """The place of each value, or -1."""
        if not self.known.size:
            return np.full(values.size, _ABSENT)
        if compiled(values.size):
            codes: Codes = self._table.find(np.ascontiguousarray(values))
            return codes.astype(np.int64)
        order = self._order
        at = np.minimum(np.searchsorted(self.known, values, sorter=order), order.size - 1)
        return np.where(self.known[order[at]] == values, order[at], _ABSENT)

    @cached_property
    def _table(self) -> Any:
        # Imported with compiled code, which few values do not need.
        from logcal.names import Numbers

        table = Numbers()
        table.encode(self.known)
        return table


class _Level(NamedTuple):
    """The keys of a number of columns.

    Attributes
    ----------
    numbers : pairs of a key of one column less and the code of a value, ascending
    place : of each its map; the last one for what is not there
    """

    numbers: _Numbers
    place: Codes


class _Texts:
    """Texts, all different, that are found by their bytes."""

    def __init__(self, known: pa.Array) -> None:
        self.known = known

    def find(self, column: pa.Array) -> Integers:
        """The place of each text, or -1; of nulls, anything."""
        # Otherwise all known ones are hashed anew for each column.
        if compiled(max(len(column), len(self.known))):
            codes: Codes = self._table.find(column)
            return codes.astype(np.int64)
        import pyarrow.compute as pc

        places = pc.index_in(column.cast(self.known.type), value_set=self.known)
        return np.where(null_mask(places), _ABSENT, as_numpy(places))

    @cached_property
    def _table(self) -> Any:
        from logcal.names import Texts

        table = Texts()
        table.encode(self.known)
        return table


class _Values:
    """The values of a segment column that a table has, and the code of each key's.

    Attributes
    ----------
    codes : int64 array, shape (keys,)
    """

    def __init__(self, column: pa.Array) -> None:
        encoded = column.dictionary_encode(null_encoding="encode")
        self.codes = as_numpy(encoded.indices).astype(np.int64)
        values = encoded.dictionary
        self._size = len(values)
        self._null = int(np.flatnonzero(null_mask(values))[0]) if values.null_count else -1
        there = np.flatnonzero(~null_mask(values))
        self._code = np.append(there, -1)  # the last one for what is not there
        values = values.take(as_column(there))
        self._text = pa.types.is_string(values.type)
        self._kind = _kind(values.type)
        self._unsigned = pa.types.is_uint64(values.type)
        self._values: Any = (
            _Texts(values) if self._text else _Numbers(as_numpy(_whole(values)).astype(np.int64))
        )

    def find(self, column: pa.Array | pa.ChunkedArray, seen: DictionaryCodes) -> Integers:
        """The code of each value, or -1."""
        if isinstance(column, pa.ChunkedArray):
            found = [self.find(chunk, seen) for chunk in column.chunks]
            return np.concatenate([np.empty(0, np.int64), *found])
        if pa.types.is_dictionary(column.type):
            places = np.append(self._of_dictionary(column.dictionary, seen), _ABSENT)
            codes = places[np.where(null_mask(column.indices), -1, as_numpy(column.indices).astype(np.int64))]
            return self._with_nulls(column.indices, codes)
        if _kind(column.type) != self._kind:
            return self._with_nulls(column, np.full(len(column), _ABSENT))
        if self._text:
            return self._with_nulls(column, self._codes_at(self._values.find(column)))
        numbers = as_numpy(_whole(column)).astype(np.int64)
        codes = self._codes_at(self._values.find(numbers))
        if pa.types.is_uint64(column.type) != self._unsigned:
            # What is negative in the one is beyond the largest number in the other.
            codes = np.where(numbers < 0, _ABSENT, codes)
        return self._with_nulls(column, codes)

    def __len__(self) -> int:
        return self._size

    def _codes_at(self, places: Integers) -> Integers:
        """The codes of values by their places among those that are no nulls, or -1."""
        return places if self._null < 0 else self._code[places]

    def _of_dictionary(self, dictionary: pa.Array, seen: DictionaryCodes) -> Integers:
        """The codes of a dictionary's values; that of a batch begins with that of the one before, or is another."""
        known = seen.codes.size
        if seen.dictionary is None or not dictionary.slice(0, known).equals(seen.dictionary):
            known = 0
        codes = self.find(dictionary.slice(known), DictionaryCodes())
        seen.dictionary, seen.codes = dictionary, np.append(seen.codes[:known], codes)
        return seen.codes

    def _with_nulls(self, column: pa.Array, codes: Integers) -> Integers:
        return np.where(null_mask(column), self._null, codes) if column.null_count else codes


def _kind(kind: pa.DataType) -> str:
    """Types whose values can be equal have one kind."""
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "text"
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return "numbers"
    return "dates" if pa.types.is_date32(kind) else str(kind)


def _whole(column: pa.Array) -> pa.Array:
    return column.cast(pa.int32()) if pa.types.is_date32(column.type) else column
