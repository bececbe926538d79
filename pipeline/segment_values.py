"""Values of segment columns: which types they may have, their order, and rows to small codes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.arrays import as_numpy
from pipeline.errors import InputRejectedError

Key = tuple[Any, ...]
"""A segment: a value a column (str, int, bool, datetime.date), None where it is null."""

MAX_SEGMENTS = 1_000_000
_DENSE = 1 << 22


def usable(kind: pa.DataType) -> bool:
    """Whether a column of this type can tell segments apart: strings, integers, booleans, dates."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    return text or pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_date32(kind)


def order(key: Key) -> tuple[Any, ...]:
    """Sorts keys: null first, then strings by code points, numbers by size, false before true, dates by time."""
    return tuple((value is not None, value) for value in key)


class Encoder:
    """Gives the rows of one batch after the other codes: 0, 1, ... in the order in which segments appear.

    Attributes
    ----------
    keys : of each code. types : of the columns, known after the first batch, without dictionaries.
    """

    def __init__(self, columns: Sequence[str]) -> None:
        self.columns = tuple(columns)
        self.keys: list[Key] = []
        self.types: tuple[pa.DataType, ...] = ()
        self._codes: dict[Key, int] = {}

    def encode(self, batch: pa.RecordBatch) -> npt.NDArray[np.int32]:
        """The codes of a batch's rows.

        Raises
        ------
        InputRejectedError
            More than `MAX_SEGMENTS` segments, or text that is not UTF-8.
        """
        columns = [_plain(batch.column(name)) for name in self.columns]
        self.types = tuple(column.type for column in columns)
        codes, keys = self._distinct(columns[0], self.columns[0])
        for column, name in zip(columns[1:], self.columns[1:], strict=True):
            inner, values = self._distinct(column, name)
            present, codes = _dense(codes * np.int64(len(values)) + inner, len(keys) * len(values))
            pairs = (divmod(both, len(values)) for both in present.tolist())
            keys = [keys[i] + values[j] for i, j in pairs]
        known = list(map(self._codes.get, keys))
        found = [self._code(key) if code is None else code for key, code in zip(keys, known, strict=True)]
        return np.array(found, np.int32)[codes]

    @staticmethod
    def _distinct(column: pa.Array, name: str) -> tuple[npt.NDArray[np.int64], list[Key]]:
        encoded = column.dictionary_encode(null_encoding="encode")
        try:
            values = [(value,) for value in encoded.dictionary.to_pylist()]
        except UnicodeDecodeError as error:
            raise InputRejectedError(
                f"column '{name}' (log.segment): expected text in UTF-8, found {error.object!r}: convert it"
            ) from None
        return as_numpy(encoded.indices).astype(np.int64), values

    def _code(self, key: Key) -> int:
        code = self._codes.setdefault(key, len(self.keys))
        if code == len(self.keys):
            if code == MAX_SEGMENTS:
                raise InputRejectedError(
                    f"log.segment: expected at most {MAX_SEGMENTS:,} segments, found more in the columns "
                    f"{', '.join(self.columns)}: leave out the column that tells rows apart and not groups of them"
                )
            self.keys.append(key)
        return code


def _plain(column: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return column.cast(pa.string()) if pa.types.is_large_string(column.type) else column


def _dense(codes: npt.NDArray[np.int64], size: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The distinct codes, ascending, and each code's place among them. codes : in [0, size)."""
    if size > _DENSE:
        present, inverse = np.unique(codes, return_inverse=True)
        return present, inverse.reshape(-1)
    seen = np.zeros(size, np.bool_)
    seen[codes] = True
    return np.flatnonzero(seen), (np.cumsum(seen) - 1)[codes]


def arrays(keys: Sequence[Key], types: Sequence[pa.DataType]) -> list[pa.Array]:
    """Keys as Arrow columns."""
    return [pa.array([key[i] for key in keys], kind) for i, kind in enumerate(types)]


def keys_of(columns: Sequence[pa.Array | pa.ChunkedArray]) -> list[Key]:
    """Arrow columns as keys."""
    return list(zip(*(column.to_pylist() for column in columns), strict=True))
