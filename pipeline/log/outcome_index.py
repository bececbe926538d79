"""Outcomes by key, in memory: a hash table of the keys, and the outcomes of each key in the order of their time.

The hash tables are those that number segments (`logcal.names`): built once a process, then read by all threads. Arrow's
`index_in` builds its table anew in each call, which takes five to ten times as long.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from logcal.arrow_columns import as_numpy, null_mask
from logcal.errors import InputRejectedError, examples
from logcal.names import Keys, Numbers, Texts

INTEGER, UNSIGNED, TEXT, BYTES, DATE = "integers", "unsigned integers", "text", "bytes", "dates"
"""Kinds of keys: those of one kind can be equal."""

ANY, LAST, FIRST, ERROR = "any", "last", "first", "error"

_OTHER = 3
_FOREVER = np.iinfo(np.int64).max

Integers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


def kind_of(kind: pa.DataType) -> str | None:
    """The kind of keys that a column of a type has; None where it cannot be a key."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    tests = (
        (UNSIGNED, pa.types.is_uint64),
        (INTEGER, pa.types.is_integer),
        (TEXT, pa.types.is_string),
        (TEXT, pa.types.is_large_string),
        (TEXT, pa.types.is_string_view),
        (BYTES, pa.types.is_binary),
        (BYTES, pa.types.is_large_binary),
        (BYTES, pa.types.is_fixed_size_binary),
        (DATE, pa.types.is_date32),
    )
    return next((name for name, test in tests if test(kind)), None)


def common_kind(one: str | None, other: str | None) -> str | None:
    """The kind in which keys of two columns are compared; None where they never are equal."""
    if {one, other} == {INTEGER, UNSIGNED}:
        return UNSIGNED
    return one if one == other else None


class KeyColumn(NamedTuple):
    """A column of keys: numbers or texts; and where they are null, or can equal no key of the other side."""

    values: Any
    missing: Mask | None


def key_column(column: pa.Array, kind: str) -> KeyColumn:
    """A column as keys of a kind. Texts and bytes stay Arrow's; what stands in the place of nulls is undefined."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    missing = null_mask(column) if column.null_count else None
    if kind == TEXT:
        return KeyColumn(column.cast(pa.large_string()), missing)
    if kind == BYTES:
        return KeyColumn(column.cast(pa.large_binary()).view(pa.large_string()), missing)
    if kind == DATE:
        column = column.cast(pa.int32())
    values = as_numpy(column)
    if kind == UNSIGNED and values.dtype.kind == "i":
        negative = values < 0
        missing = negative if missing is None else missing | negative
    return KeyColumn(values.astype(np.int64, copy=False), missing)


def any_missing(columns: Sequence[KeyColumn]) -> Mask | None:
    """Mask of the rows with a missing value in some column; None if there are none."""
    found: Mask | None = None
    for _, missing in columns:
        if missing is not None:
            found = missing if found is None else found | missing
    return found


class KeyTable(Keys):
    """Numbers keys of one or several columns without nulls: 0, 1, ... in the order of their appearance."""

    def __init__(self, kinds: Sequence[str]) -> None:
        super().__init__([Texts() if kind in (TEXT, BYTES) else Numbers() for kind in kinds])

    def find(self, columns: Sequence[KeyColumn]) -> npt.NDArray[np.int32]:
        """The numbers of keys, -1 for those that have none. Threads may do so at once."""
        codes = self.tables[0].find(columns[0].values)
        for table, pairs, column in zip(self.tables[1:], self.pairs, columns[1:], strict=True):
            own = table.find(column.values)
            there = (codes >= 0) & (own >= 0)
            codes = np.where(there, pairs.find((codes.astype(np.int64) << 32) | (own & 0x7FFFFFFF)), -1)
        missing = any_missing(columns)
        return codes if missing is None else np.where(missing, np.int32(-1), codes)

    def shown(self, codes: Integers) -> list[str]:
        """Some keys as text."""
        columns = [
            [t.values(int(c), int(c) + 1)[0] for c in own] if isinstance(t, Texts) else t.numbers[own]
            for t, own in zip(self.tables, self.members(codes), strict=True)
        ]
        return [", ".join(map(str, key)) for key in zip(*columns, strict=True)]


class OutcomeRows(NamedTuple):
    """Outcomes with a key and a label.

    keys : columns, without nulls. code : uint8 array, see `pipeline.log.logs.Rows`. time : int64 array, microseconds;
    None without times. value : float64 array, the labels; None where all are 0 or 1
    """

    keys: list[Any]
    code: npt.NDArray[np.uint8]
    time: Integers | None
    value: npt.NDArray[np.float64] | None = None


class Chosen(NamedTuple):
    """The outcomes of some rows.

    hit : the rows whose key has outcomes, by place; the other arrays are of these rows
    number : of the key
    there : whether an outcome lies in the row's time. late, early : otherwise, whether one lies after, or before
    code, place : of the outcome that counts. conflicting : whether outcomes in the row's time have different labels
    """

    hit: Integers
    number: Integers
    there: Mask
    late: Mask
    early: Mask
    code: npt.NDArray[np.uint8]
    conflicting: Mask
    place: Integers


class OutcomeIndex:
    """Outcomes by key.

    Parameters
    ----------
    kinds : of the columns of the key
    duplicates : which of several outcomes of a prediction counts
    parts : the outcomes, in any order

    Attributes
    ----------
    value, time : of each outcome; None where all labels are 0 or 1, or without times

    Raises
    ------
    InputRejectedError
        A key is there twice, and `duplicates` is an error.
    """

    def __init__(self, kinds: Sequence[str], duplicates: str, parts: Iterable[OutcomeRows]) -> None:
        self.table = KeyTable(kinds)
        self.duplicates = duplicates
        # Numbered part by part: all keys together would be held twice.
        numbered = [(self.table.encode(part.keys), *part[1:]) for part in parts]
        number = _joined([part[0] for part in numbered], np.int32)
        code = _joined([part[1] for part in numbered], np.uint8)
        value = None
        if (code == _OTHER).any():
            value = _joined([own if labels is None else labels for _, own, _, labels in numbered], np.float64)
        time = None
        if numbered and numbered[0][2] is not None:
            time = _joined([part[2] for part in numbered], np.int64)
        del numbered
        self._starts: Integers | None = None
        if len(self.table) < number.size:
            counts = np.bincount(number, minlength=len(self.table))
            if duplicates == ERROR:
                self._refuse(np.flatnonzero(counts > 1))
            self._starts = np.concatenate([[0], np.cumsum(counts)])
            order = np.lexsort([code, *([] if time is None else [time]), number])
            code = code[order]
            value = None if value is None else value[order]
            time = None if time is None else time[order]
            self._next = [_next_places(code == c) for c in (0, 1, _OTHER)]
        self.code, self.value, self.time = code, value, time

    def _refuse(self, several: Integers) -> None:
        raise InputRejectedError(
            f"log.labels.duplicates=error: expected one outcome for each key, found several for {several.size:,} keys, "
            f"such as {examples(self.table.shown(several[:3]), 3)}: set log.labels.duplicates to any, last or first"
        )

    def __len__(self) -> int:
        return int(self.code.size)

    def rows_of(self, seen: Mask) -> int:
        """Count the outcomes of keys that have been seen."""
        if self._starts is None:
            return int(np.count_nonzero(seen))
        return int(np.diff(self._starts)[seen].sum())

    def choose(self, columns: Sequence[KeyColumn], begin: Integers | None, end: Integers | None) -> Chosen:
        """The outcomes of rows.

        Parameters
        ----------
        columns : the rows' keys
        begin, end : int64 arrays, microseconds: an outcome counts if its time lies between, both included; None: all
            count
        """
        codes = self.table.find(columns)
        hit = np.flatnonzero(codes >= 0)
        number: Integers = codes[hit].astype(np.int64)
        low: Integers = number
        high: Integers = number + 1
        if self._starts is not None:
            low, high = self._starts[number], self._starts[number + 1]
        first, last = low, high
        if self.time is not None:
            if begin is not None:
                first = self._bisect(low, high, begin[hit])
            if end is not None:
                own = end[hit]
                # The first place after the end.
                last = self._bisect(low, high, np.where(own == _FOREVER, own, own + 1))
                last = np.where(own == _FOREVER, high, last)
        there = first < last
        late = ~there & (last < high)
        early = ~there & ~late
        place, conflicting = self._place(first, last, there)
        return Chosen(hit, number, there, late, early, self.code[place], conflicting, place)

    def _bisect(self, low: Integers, high: Integers, time: Integers) -> Integers:
        """The first place of each range whose time is not before one; the range's end where there is none."""
        assert self.time is not None
        low, high = low.copy(), high.copy()
        while (open_ := np.flatnonzero(low < high)).size:
            middle = (low[open_] + high[open_]) >> 1
            before = self.time[middle] < time[open_]
            low[open_[before]] = middle[before] + 1
            high[open_[~before]] = middle[~before]
        return low

    def _place(self, first: Integers, last: Integers, there: Mask) -> tuple[Integers, Mask]:
        """The place of the outcome that counts in each range, and whether the range has different labels."""
        safe = np.where(there, first, 0)
        if self._starts is None:
            return safe, np.zeros(safe.size, np.bool_)
        following = [places[safe] for places in self._next]
        zeros, ones, others = (there & (place < last) for place in following)
        conflicting = zeros.astype(np.int8) + ones + others > 1
        if self.duplicates == LAST:
            return np.where(there, last - 1, 0), conflicting
        if self.duplicates == FIRST:
            return safe, conflicting
        return np.select([others, ones], following[:0:-1], safe), conflicting


def _joined(parts: Sequence[Any], kind: Any) -> Any:
    return np.concatenate([np.empty(0, kind), *parts])


def _next_places(chosen: Mask) -> Integers:
    """Return for each place the next chosen one, itself included; the end after the last of them."""
    places = np.where(chosen, np.arange(chosen.size), chosen.size)
    return np.minimum.accumulate(places[::-1])[::-1]
