"""Index from segment values to the maps of a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from calibrators.core.arrays import Codes, Integers, Mask
from calibrators.core.map import compiled
from logcal.arrow_columns import as_numpy, null_mask

_ABSENT = np.int64(-1)


@dataclass
class DictionaryCodes:
    """Dictionary of a column's last batch, with the code of each value."""

    dictionary: pa.Array | None = None
    codes: Integers = field(default_factory=lambda: np.empty(0, np.int64))


class SegmentIndex:
    """Index of a table's maps by key: all rows, values of the first column, of the first two columns, and so on.

    It does not change, so threads may share it.

    Parameters
    ----------
    keys : a column of values for each segment column, shape (keys,)
    levels : int array, shape (keys,): number of leading columns that make up the key; level 0 is all rows
    maps : int array, shape (keys,): number of the key's map; -1: it uses its parent's
    fitted : bool array, shape (keys,): whether the key is a segment that the table was fitted to
    """

    def __init__(self, keys: Sequence[pa.Array], levels: Integers, maps: Integers, fitted: Mask) -> None:
        self._columns = [_Values(column) for column in keys]
        if not keys:  # there is one map
            return
        owners = maps >= 0
        root = int(maps[owners & (levels == 0)][0])
        self._levels: list[_Level] = []
        prefix, parents = np.zeros(levels.size, np.int64), np.array([root])
        for depth, column in enumerate(self._columns, 1):
            pairs = (prefix << 32) | column.codes
            deep = levels >= depth
            numbers, ids = np.unique(pairs[deep], return_inverse=True)
            prefix = np.full(levels.size, _ABSENT)
            prefix[deep] = ids
            at_level = owners & (levels == depth)
            level_maps = parents[numbers >> 32]
            level_maps[prefix[at_level]] = maps[at_level]
            self._levels.append(_Level(_Numbers(numbers), np.append(level_maps, root).astype(np.int32)))
            parents = level_maps
        self._fitted = np.zeros(parents.size + 1, np.bool_)  # the last entry is for unknown keys
        self._fitted[prefix[fitted]] = True
        # Level 1 needs no hash table: its parent is always the same, so the code identifies the key.
        first = self._levels[0].numbers.values
        self._first = np.full(len(self._columns[0]) + 1, _ABSENT)
        self._first[first] = np.arange(first.size)

    def find(
        self, columns: Sequence[pa.Array | pa.ChunkedArray], dictionaries: list[DictionaryCodes] | None = None
    ) -> tuple[Codes, Mask]:
        """Find the number of each row's map, int32, and whether the table was fitted to its segment. O(1) per row.

        Parameters
        ----------
        columns : a column for each segment column, of one length; values of another type are unknown
        dictionaries : state of each column, updated with each batch of a file, so that each value of a dictionary is
            looked up once; starts as `no_dictionaries()`
        """
        before = dictionaries or self.no_dictionaries()
        codes = [
            values.find(column, dictionary)
            for values, column, dictionary in zip(self._columns, columns, before, strict=True)
        ]
        ids = self._first[codes[0]]
        maps = self._levels[0].maps[ids]
        for level, level_codes in zip(self._levels[1:], codes[1:], strict=True):
            matches = level.numbers.find((ids << 32) | level_codes)
            ids = np.where((ids >= 0) & (level_codes >= 0), matches, _ABSENT)
            maps = np.where(ids >= 0, level.maps[ids], maps)
        return maps, self._fitted[ids]

    def no_dictionaries(self) -> list[DictionaryCodes]:
        """State of `find` before the first batch of a file: an empty dictionary per column."""
        return [DictionaryCodes() for _ in self._columns]


class _Numbers:
    """Index of distinct whole numbers."""

    def __init__(self, values: Integers) -> None:
        self.values = np.ascontiguousarray(values, np.int64)

    @cached_property
    def _order(self) -> Integers:
        return np.argsort(self.values)

    def find(self, values: Integers) -> Integers:
        """Return the position of each value, or -1."""
        if not self.values.size:
            return np.full(values.size, _ABSENT)
        if compiled(values.size):
            codes: Codes = self._table.find(np.ascontiguousarray(values))
            return codes.astype(np.int64)
        order = self._order
        at = np.minimum(np.searchsorted(self.values, values, sorter=order), order.size - 1)
        return np.where(self.values[order[at]] == values, order[at], _ABSENT)

    @cached_property
    def _table(self) -> Any:
        # This imports compiled code, which is slow and not worth it for few values.
        from logcal.names import Numbers

        table = Numbers()
        table.encode(self.values)
        return table


class _Level(NamedTuple):
    """Keys of one level.

    Attributes
    ----------
    numbers : the keys: pairs of the parent key's number and the code of the last value, ascending
    maps : number of each key's map; the last entry is for unknown keys
    """

    numbers: _Numbers
    maps: Codes


class _Texts:
    """Index of distinct texts."""

    def __init__(self, values: pa.Array) -> None:
        self.values = values

    def find(self, column: pa.Array) -> Integers:
        """Return the position of each text, or -1; the position of a null is undefined."""
        # The table hashes `values` once; `index_in` hashes them for each column.
        if compiled(max(len(column), len(self.values))):
            codes: Codes = self._table.find(column)
            return codes.astype(np.int64)
        import pyarrow.compute as pc

        positions = pc.index_in(column.cast(self.values.type), value_set=self.values)
        return np.where(null_mask(positions), _ABSENT, as_numpy(positions))

    @cached_property
    def _table(self) -> Any:
        from logcal.names import Texts

        table = Texts()
        table.encode(self.values)
        return table


class _Values:
    """Distinct values of a segment column of the keys.

    Attributes
    ----------
    codes : int64 array, shape (keys,): code of each key's value
    """

    def __init__(self, column: pa.Array) -> None:
        encoded = column.dictionary_encode()
        values = encoded.dictionary
        self._null = len(values)
        self.codes = self._with_nulls(encoded.indices, as_numpy(encoded.indices).astype(np.int64))
        self._text = pa.types.is_string(values.type)
        self._kind = _kind(values.type)
        self._unsigned = pa.types.is_uint64(values.type)
        self._values: Any = (
            _Texts(values) if self._text else _Numbers(as_numpy(_whole(values)).astype(np.int64))
        )

    def find(self, column: pa.Array | pa.ChunkedArray, last: DictionaryCodes) -> Integers:
        """Return the code of each value, or -1."""
        if isinstance(column, pa.ChunkedArray):
            parts = [self.find(chunk, last) for chunk in column.chunks]
            return np.concatenate([np.empty(0, np.int64), *parts])
        if pa.types.is_dictionary(column.type):
            codes = np.append(self._of_dictionary(column.dictionary, last), _ABSENT)
            indices = np.where(null_mask(column.indices), -1, as_numpy(column.indices).astype(np.int64))
            return self._with_nulls(column.indices, codes[indices])
        if _kind(column.type) != self._kind:
            return self._with_nulls(column, np.full(len(column), _ABSENT))
        if self._text:
            return self._with_nulls(column, self._values.find(column))
        numbers = as_numpy(_whole(column)).astype(np.int64)
        codes = self._values.find(numbers)
        if pa.types.is_uint64(column.type) != self._unsigned:
            # Unsigned numbers from 2**63 on are negative here; numbers of the other type never equal them.
            codes = np.where(numbers < 0, _ABSENT, codes)
        return self._with_nulls(column, codes)

    def __len__(self) -> int:
        """Return the number of codes: the last one is that of null."""
        return self._null + 1

    def _of_dictionary(self, dictionary: pa.Array, last: DictionaryCodes) -> Integers:
        """Return the codes of a dictionary's values. If it extends the last batch's, only the new values are found."""
        done = last.codes.size
        if last.dictionary is None or not dictionary.slice(0, done).equals(last.dictionary):
            done = 0
        codes = self.find(dictionary.slice(done), DictionaryCodes())
        last.dictionary, last.codes = dictionary, np.append(last.codes[:done], codes)
        return last.codes

    def _with_nulls(self, column: pa.Array, codes: Integers) -> Integers:
        return np.where(null_mask(column), self._null, codes) if column.null_count else codes


def _kind(kind: pa.DataType) -> str:
    """Return the kind of a type; types whose values can be equal have one kind."""
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "text"
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return "numbers"
    return "dates" if pa.types.is_date32(kind) else str(kind)


def _whole(column: pa.Array) -> pa.Array:
    return column.cast(pa.int32()) if pa.types.is_date32(column.type) else column
