"""Index of outcomes in memory: a hash table of keys, and the outcomes of each key in the order of time.

The hash tables are those that number segments (`logcal.names`), built once per process and read by all threads. Arrow's
`index_in` builds its table in each call, which takes five to ten times as long.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from calibrators.core.arrays import Codes, Integers, Mask
from logcal.arrow_columns import as_column, as_numpy, null_mask
from logcal.errors import InputRejectedError, examples
from logcal.names import Keys, Numbers, Texts
from logcal.segment_types import segment_column
from pipeline.log.column_types import BYTES, DATE, TEXT, UNSIGNED

ANY, LAST, FIRST, ERROR = "any", "last", "first", "error"

_OTHER = 3
_FOREVER = np.iinfo(np.int64).max


class KeyColumn(NamedTuple):
    """Column of keys: numbers or texts; and a mask of those that are null or cannot equal any key of the other side."""

    values: Any
    missing: Mask | None


def key_column(column: pa.Array, kind: str) -> KeyColumn:
    """Convert a column to keys of a kind. Texts and bytes stay Arrow arrays; values at nulls are undefined."""
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
    if pa.types.is_decimal(column.type):
        column = segment_column(column, "a key")
    values = as_numpy(column)
    if kind == UNSIGNED and values.dtype.kind == "i":
        negative = values < 0
        missing = negative if missing is None else missing | negative
    return KeyColumn(values.astype(np.int64, copy=False), missing)


def any_missing(columns: Sequence[KeyColumn]) -> Mask | None:
    """Return a mask of the rows with a missing value in a column; None if there are none."""
    mask: Mask | None = None
    for _, missing in columns:
        if missing is not None:
            mask = missing if mask is None else mask | missing
    return mask


class KeyTable(Keys):
    """Hash table that numbers keys of one or several columns without nulls in order of appearance."""

    def __init__(self, kinds: Sequence[str]) -> None:
        super().__init__([Texts() if kind in (TEXT, BYTES) else Numbers() for kind in kinds])

    def find(self, columns: Sequence[KeyColumn]) -> Codes:
        """Return the numbers of keys, -1 for unknown keys. Thread-safe."""
        codes = self.tables[0].find(columns[0].values)
        for table, pairs, column in zip(self.tables[1:], self.pairs, columns[1:], strict=True):
            part = table.find(column.values)
            both = (codes >= 0) & (part >= 0)
            codes = np.where(both, pairs.find((codes.astype(np.int64) << 32) | (part & 0x7FFFFFFF)), -1)
        missing = any_missing(columns)
        return codes if missing is None else np.where(missing, np.int32(-1), codes)

    def shown(self, codes: Integers) -> list[str]:
        """Return the keys with these numbers as text."""
        columns = [
            [t.values(int(c), int(c) + 1)[0] for c in part] if isinstance(t, Texts) else t.numbers[part]
            for t, part in zip(self.tables, self.members(codes), strict=True)
        ]
        return [", ".join(map(str, key)) for key in zip(*columns, strict=True)]


def batch_of(columns: Mapping[str, Any]) -> pa.RecordBatch:
    """Return arrays as a batch, without those that are None."""
    filled = {name: values for name, values in columns.items() if values is not None}
    arrays = [as_column(v) if isinstance(v, np.ndarray) else v for v in filled.values()]
    return pa.RecordBatch.from_arrays(arrays, list(filled))


def keys_in(batch: pa.RecordBatch) -> list[Any]:
    """Return the key columns k0, k1, ... of a batch: numbers as arrays, texts as Arrow columns."""
    columns = [batch.column(name) for name in batch.schema.names if name[0] == "k"]
    return [column if pa.types.is_large_string(column.type) else as_numpy(column) for column in columns]


def array_in(batch: pa.RecordBatch, name: str) -> Any:
    """Return a column of a batch as an array; None without it."""
    return as_numpy(batch.column(name)) if name in batch.schema.names else None


class Matches(NamedTuple):
    """Outcomes matched to rows.

    rows : indices of the rows whose key has outcomes; the other arrays belong to these rows
    key : number of the key
    in_time : whether an outcome lies in the row's time range
    late, early : whether, if not, an outcome lies after the range, or only before it
    code, position : label code and position of the outcome that counts
    conflicting : whether outcomes in the row's time range have different labels
    """

    rows: Integers
    key: Integers
    valid: Mask
    late: Mask
    early: Mask
    code: npt.NDArray[np.uint8]
    conflicting: Mask
    position: Integers


class OutcomeIndex:
    """Index of outcomes by key.

    Parameters
    ----------
    kinds : kinds of the key columns
    duplicates : which of several outcomes of a prediction counts: ANY, LAST, FIRST, or ERROR
    parts : the outcomes that have a key and a label, in any order, as batches: keys (k0, k1, ...) without nulls, label
        codes (code), times in microseconds (time) or without times, and the labels (value) or without, if all are 1

    Attributes
    ----------
    code : label code of each outcome
    value : label of each outcome; None if all are 0 or 1
    time : time of each outcome; None without times

    Raises
    ------
    InputRejectedError
        `duplicates` is ERROR, and a key has several outcomes.
    """

    def __init__(self, kinds: Sequence[str], duplicates: str, parts: Iterable[pa.RecordBatch]) -> None:
        self.table = KeyTable(kinds)
        self.duplicates = duplicates
        # Keys are numbered part by part, since all keys at once would be in memory twice.
        names = ("code", "time", "value")
        numbered = [
            (self.table.encode(keys_in(part)), *(array_in(part, name) for name in names)) for part in parts
        ]
        numbers, codes, times, values = zip(*numbered, strict=True) if numbered else ((),) * 4
        number, code = _concat(numbers, np.int32), _concat(codes, np.uint8)
        value = _concat(values, np.float64) if (code == _OTHER).any() else None
        time = _concat(times, np.int64) if times and times[0] is not None else None
        del numbered, numbers, codes, times, values
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
            self._next = [_next_positions(code == c) for c in (0, 1, _OTHER)]
        self.code, self.value, self.time = code, value, time

    def _refuse(self, repeated: Integers) -> None:
        raise InputRejectedError(
            f"$[duplicates]=error: expected one outcome per key, found several for {repeated.size:,} keys, "
            f"such as {examples(self.table.shown(repeated[:3]), 3)}: set $[duplicates] to any, last or first"
        )

    def __len__(self) -> int:
        return int(self.code.size)

    def count_outcomes(self, keys: Mask) -> int:
        """Return the number of outcomes of the masked keys."""
        if self._starts is None:
            return int(np.count_nonzero(keys))
        return int(np.diff(self._starts)[keys].sum())

    def match(self, columns: Sequence[KeyColumn], begin: Integers | None, end: Integers | None) -> Matches:
        """Match rows with outcomes by key and time.

        Parameters
        ----------
        columns : keys of the rows
        begin, end : int64 arrays, microseconds: bounds (inclusive) on the times of outcomes that count; None: no bound
        """
        keys = self.table.find(columns)
        rows = np.flatnonzero(keys >= 0)
        key: Integers = keys[rows].astype(np.int64)
        low: Integers = key
        high: Integers = key + 1
        if self._starts is not None:
            low, high = self._starts[key], self._starts[key + 1]
        first, last = low, high
        if self.time is not None:
            if begin is not None:
                first = self._bisect(low, high, begin[rows])
            if end is not None:
                row_end = end[rows]
                # The first position after the end.
                last = self._bisect(low, high, np.where(row_end == _FOREVER, row_end, row_end + 1))
                last = np.where(row_end == _FOREVER, high, last)
        valid = first < last
        late = ~valid & (last < high)
        early = ~valid & ~late
        position, conflicting = self._select(first, last, valid)
        return Matches(rows, key, valid, late, early, self.code[position], conflicting, position)

    def _bisect(self, low: Integers, high: Integers, time: Integers) -> Integers:
        """Return the first position in each range [low, high) whose time is at least `time`, otherwise `high`."""
        assert self.time is not None
        low, high = low.copy(), high.copy()
        while (active := np.flatnonzero(low < high)).size:
            middle = (low[active] + high[active]) >> 1
            earlier = self.time[middle] < time[active]
            low[active[earlier]] = middle[earlier] + 1
            high[active[~earlier]] = middle[~earlier]
        return low

    def _select(self, first: Integers, last: Integers, valid: Mask) -> tuple[Integers, Mask]:
        """Return the position of the outcome that counts in each range, and whether labels in the range differ."""
        start = np.where(valid, first, 0)
        if self._starts is None:
            return start, np.zeros(start.size, np.bool_)
        next_positions = [positions[start] for positions in self._next]
        zeros, ones, others = (valid & (position < last) for position in next_positions)
        conflicting = zeros.astype(np.int8) + ones + others > 1
        if self.duplicates == LAST:
            return np.where(valid, last - 1, 0), conflicting
        if self.duplicates == FIRST:
            return start, conflicting
        return np.select([others, ones], next_positions[:0:-1], start), conflicting


def _concat(parts: Sequence[Any], dtype: Any) -> Any:
    return np.concatenate([np.empty(0, dtype), *parts])


def _next_positions(chosen: Mask) -> Integers:
    """Return for each position the first chosen position from there on; the size if there is none."""
    positions = np.where(chosen, np.arange(chosen.size), chosen.size)
    return np.minimum.accumulate(positions[::-1])[::-1]
